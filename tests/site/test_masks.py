"""The masks simulator in the page: its numbers are its Python twin's, and everything can be done from the keyboard."""

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from widgets.masks import BATCHES, RULES, SLOTS, TILES, Masks, kinds, outputs, trace

SCRIPT = (Path(__file__).resolve().parents[2] / "widgets" / "masks.js").read_text("utf-8")
PAGE = "chapters/04_masks_and_nan.html"
OPTIONS = json.loads(json.dumps(Masks().get_state()["options"]))


@pytest.fixture(scope="module")
def module(browser):
    """A page that has imported masks.js as `masks`; `words` makes its numbers into JSON, NaN and infinities as words."""
    page = browser.new_page()
    page.evaluate(
        """async ([source, options]) => {
            const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
            window.masks = await import(url);
            window.options = masks.decode(options);
            window.words = (value) => JSON.stringify(value, (_, x) => typeof x === 'number' && !Number.isFinite(x)
                ? String(x).replace('Infinity', 'inf').replace('NaN', 'nan') : x);
        }""",
        [SCRIPT, OPTIONS],
    )
    yield page
    page.close()


def choices():
    """Every batch with every tile size, guard and hidden score; the other settings at random."""
    rng = random.Random(4)
    for batch, tile, guard, hidden in itertools.product(BATCHES, TILES, (True, False), ("-inf", "-1e4")):
        for _ in range(2):
            yield dict(
                batch=batch, tile=tile, guard=guard, hidden=hidden, causal=rng.random() < 0.7,
                window=rng.choice((None, *range(1, SLOTS + 1))), skip=rng.random() < 0.5, nan=rng.random() < 0.4,
                split=rng.random() < 0.4,
            )  # fmt: skip


def same(a, b):
    a, b = float(a), float(b)
    return (math.isnan(a) and math.isnan(b)) or a == b or abs(a - b) <= 1e-12 * max(1, abs(b))


def test_numbers_equal_the_twin(module):
    """The twin is compared with kernels.reference in tests/widgets/test_masks.py."""
    asked = list(choices())
    answers = json.loads(
        module.evaluate(
            """(asked) => words(asked.map((own) => ({
                kinds: masks.kinds(own, options), counts: masks.counts(own, options), verdicts: masks.verdicts(own, options),
                traces: options.batches[own.batch].lengths.map(([queries], b) =>
                    Array.from({length: queries}, (_, i) => masks.trace(own, options, b, i))),
            })))""",
            asked,
        )
    )
    for own, answer in zip(asked, answers, strict=True):
        maps = kinds(own["batch"], own["causal"], own["window"], own["tile"])
        assert answer["kinds"] == maps
        flat = [kind for rows in maps for row in rows for kind in row]
        assert [answer["counts"][kind] for kind in ("full", "partial", "empty")] == [
            flat.count(kind) for kind in ("full", "partial", "empty")
        ]
        done = len(flat) if not own["skip"] else len(flat) - flat.count("empty")
        assert answer["counts"]["computed"] == done * own["tile"] ** 2
        seen = sum(
            step["seen"]
            for b, (queries, _) in enumerate(BATCHES[own["batch"]][1])
            for i in range(queries)
            for step in trace(**own | {"split": False}, sequence=b, query=i)["steps"]
        )
        assert answer["counts"]["seen"] == seen
        for b, rows in enumerate(outputs(**own)):
            for i, (mine, right) in enumerate(rows):
                want, got = trace(**own, sequence=b, query=i), answer["traces"][b][i]
                assert same(got["output"], want["output"]) and same(got["lse"], want["lse"]), (own, b, i)
                for one, other in zip(got["steps"], want["steps"], strict=True):
                    for name in ("m", "l", "o"):
                        assert same(one.pop(name), other.pop(name)), (own, b, i, name)
                    assert one == other
                verdict = "nan" if math.isnan(mine) else "wrong" if abs(mine - right) > 1e-9 else "right"
                assert answer["verdicts"][b][i] == verdict


def test_merge_and_finalize_take_empty_states(module):
    empty = {"m": "-inf", "l": 0, "o": 0}
    ask = "([a, b, guard]) => words(masks.finalize(masks.merge(masks.decode(a), masks.decode(b), guard), guard))"
    assert json.loads(module.evaluate(ask, [empty, empty, True])) == {"output": 0, "lse": "-inf"}
    assert json.loads(module.evaluate(ask, [empty, empty, False]))["output"] == "nan"


def test_the_story_never_calls_a_wrong_output_right(module):
    """At the end of every query, for every choice: the sentence agrees with the comparison of both outputs."""
    said = module.evaluate(
        """([asked, rules]) => asked.flatMap((own) => options.batches[own.batch].lengths.flatMap(([queries], b) =>
            Array.from({length: queries}, (_, i) => {
                const mine = masks.trace(own, options, b, i);
                const right = masks.trace({...own, ...rules}, options, b, i);
                const end = mine.steps.filter((one) => !one.skipped).length;
                const close = Math.abs(mine.output - right.output) <= 1e-9;
                return [Number.isNaN(mine.output) ? 'nan' : close ? 'right' : 'wrong',
                        masks.story(own, options, b, i, mine, right, end)];
            })))""",
        [list(choices()), RULES],
    )
    marks = {"nan": "NaN; with the rules", "wrong": "finite, and wrong"}
    assert {verdict for verdict, _ in said} == {"nan", "wrong", "right"}
    for verdict, text in said:
        assert "undefined" not in text
        for name, mark in marks.items():
            assert (mark in text) == (verdict == name), text
        if verdict == "right":
            assert "which is right" in text or "as agreed" in text or "by luck" in text


# ------------------------------------------------------------------------------------------------- the page


def widget(page):
    return page.locator(".ft-masks")


def rows(root, lane=0):
    """The lines of one table of states: [keys, sees, m, l, o], reached or not."""
    return [
        row.locator("th, td").all_inner_texts()
        for row in root.locator(".ft-rows").nth(lane).locator("tbody tr").all()
    ]


def sentence(root):
    return root.locator(".ft-sentence").inner_text()


def value(page):
    return page.evaluate("document.activeElement.value ?? document.activeElement.textContent")


def test_it_opens_at_the_nan_with_the_right_form_beside_it(tab, served):
    root = widget(tab().open(f"{served}/{PAGE}"))
    assert rows(root)[0] == ["1–3", "0", "−∞", "⚠ NaN", "⚠ NaN"]
    assert rows(root, 1)[0] == ["1–3", "0", "−∞", "0", "0"]
    assert "−∞ − (−∞) is NaN" in sentence(root)
    right = sum(abs(mine - good) < 1e-9 for own in outputs(**Masks().settings) for mine, good in own)
    assert root.locator(".ft-facts strong").last.inner_text() == f"{right} of 23"
    assert root.locator("svg .ft-cross").count() == 23 - right  # a sign, not a colour
    assert set(root.locator("svg .ft-kind").all_text_contents()) == {"F", "P", "E"}


def test_keyboard_alone(tab, base):
    """Every control with Tab, arrows and Space; then the map: choose a query, step to the end, back and to the start."""
    page = tab(reduced_motion="reduce").open(f"{base}/{PAGE}")
    root, press = widget(page), page.keyboard.press
    root.locator("select").first.focus()
    for expected in ("ragged", "6", "3", "-inf", "0-8"):  # batch, window, tile, hidden score, the query
        assert value(page) == expected
        press("Tab")
    states = {
        "causal": True,
        "skip empty tiles": True,
        "NaN in padding": False,
        "two workers": False,
        "guard": False,
    }
    for label, on in states.items():
        assert page.evaluate("document.activeElement.parentElement.textContent") == label
        assert page.evaluate("document.activeElement.checked") == on
        if label == "guard":
            press("Space")
            assert "All 23 outputs are right" in sentence(root)
            press("Space")
            assert "are NaN" in sentence(root)
        press("Tab")
    for label in ("Back", "Step", "Run", "Reset"):
        assert page.evaluate("document.activeElement.textContent") == label
        if label == "Reset":
            press("Enter")
            assert "No tile is loaded" in sentence(root)
        press("Tab")
    assert page.evaluate("document.activeElement.className") == "ft-map"
    top = page.evaluate("scrollY")
    press("Space")
    assert "Tile 1 (keys 1–3) holds no key" in sentence(root)
    press("ArrowRight")
    assert rows(root)[1][3:] == ["⚠ NaN", "⚠ NaN"] and "stay NaN" in sentence(root)
    press("ArrowLeft")
    assert rows(root)[1][3] == "·"
    press("End")
    assert "The output is NaN; with the rules it is" in sentence(root)
    press("ArrowUp")  # query 8 sees a key of the first tile
    assert root.locator(".ft-follow select").input_value() == "0-7"
    assert "which is right" in sentence(root)
    for _ in range(8):
        press("ArrowDown")  # past the end of the first sequence
    assert root.locator(".ft-follow select").input_value() == "1-3"
    press("Home")
    assert "Query 4 of sequence 2 sees keys 5 to 10." in sentence(root)
    assert page.evaluate("scrollY") == top  # arrows and Space moved nothing but the state


def test_the_tables_show_what_the_twin_gives(tab, served):
    root = widget(tab().open(f"{served}/{PAGE}"))
    number = lambda text: float(text.replace("−", "-").replace("∞", "inf").replace("⚠ NaN", "nan"))  # noqa: E731
    for batch in ("ragged", "empty", "low"):
        root.locator("select").first.select_option(batch)
        for query in (0, BATCHES[batch][1][1][0] - 1):
            root.locator(".ft-follow select").select_option(f"1-{query}")
            root.locator(".ft-map").press("End")
            for lane, extra in ((0, {}), (1, RULES)):
                own = trace(**Masks(batch).settings | extra, sequence=1, query=query)
                for cells, want in zip(rows(root, lane), own["steps"], strict=True):
                    assert cells[:2] == [f"{want['start'] + 1}–{want['stop']}", str(want["seen"])]
                    if want["skipped"]:
                        assert cells[2:] == ["skipped"]
                        continue
                    for text, x, places in zip(
                        cells[2:], (want["m"], want["l"], want["o"]), (2, 4, 4), strict=True
                    ):
                        got = number(text)
                        assert (
                            (math.isnan(got) and math.isnan(x))
                            or got == x
                            or abs(got - x) <= 0.6 * 10**-places
                        )
                output, _, lse = (
                    root.locator(".ft-rows").nth(lane).locator("tfoot tr > *").all_inner_texts()[1:]
                )
                for text, x in ((output, own["output"]), (lse, own["lse"])):
                    got = number(text)
                    assert (math.isnan(got) and math.isnan(x)) or got == x or abs(got - x) <= 6e-3


def test_marks_stand_for_the_verdicts(tab, served):
    root = widget(tab().open(f"{served}/{PAGE}"))
    root.locator(".ft-try button").nth(2).click()  # −10⁴
    own = Masks().settings | {"hidden": "-1e4", "skip": False}
    wrong = sum(abs(mine - good) > 1e-9 for lines in outputs(**own) for mine, good in lines)
    assert (
        wrong
        and root.locator("svg .ft-wrong").count() == wrong
        and root.locator("svg .ft-cross").count() == 0
    )
    root.get_by_label("NaN in padding").check()
    padding = sum(SLOTS - keys for _, keys in BATCHES["ragged"][1])
    nan = sum(math.isnan(mine) for lines in outputs(**own | {"nan": True}) for mine, _ in lines)
    assert root.locator("svg .ft-cross").count() == padding + nan


def test_a_click_on_a_row_follows_it(tab, served):
    root = widget(tab().open(f"{served}/{PAGE}"))
    svg, follow = root.locator("svg").nth(2), root.locator(".ft-follow select")
    box = svg.bounding_box()
    svg.click(position={"x": box["width"] / 2, "y": box["height"] * 0.3})
    chosen = follow.input_value()
    assert chosen.startswith("2-") and f"Query {int(chosen[2:]) + 1} of sequence 3" in sentence(root)
    svg.click(position={"x": box["width"] / 2, "y": box["height"] * 0.97})  # padding: no query is there
    assert follow.input_value() == chosen


def test_a_tile_and_its_line_light_up_together(tab, served):
    root = widget(tab().open(f"{served}/{PAGE}"))
    root.locator(".ft-rows").first.locator("tbody tr").nth(1).hover()
    lit = root.locator(".ft-lit")
    assert {part.get_attribute("data-tile") for part in lit.all()} == {"1"}
    assert lit.count() == 3  # the tile, and its line in both tables


def test_every_experiment_does_what_it_says(tab, served):
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    right = root.locator(".ft-facts strong").last
    told = {}
    for link in root.locator(".ft-try button").all():
        name = link.inner_text()
        link.click()
        root.locator(".ft-map").press("End")
        told[name] = (right.inner_text(), sentence(root))
    assert "NaN" in told["Guard off"][1] and told["guard on"][0] == "23 of 23"
    assert "finite, and wrong" in told["−10⁴ for −∞"][1]
    assert "finite, and wrong" in told["very low scores"][1]
    assert "0 × NaN is NaN" in told["NaN in the padding"][1] and "which is right" in told["tile of 2"][1]
    assert "Merge: the state of worker 2 is NaN" in told["Two workers"][1]


@pytest.mark.parametrize("width", [1280, 360])
def test_stepping_moves_nothing_on_the_page(tab, served, width):
    page = tab(viewport={"width": width, "height": 800}, reduced_motion="reduce").open(f"{served}/{PAGE}")
    root = widget(page)
    for batch in ("ragged", "low"):
        root.locator("select").first.select_option(batch)
        for hidden in ("-inf", "-1e4"):
            root.get_by_label("Hidden score").select_option(hidden)
            root.locator(".ft-map").press("Home")
            boxes = set()
            for _ in range(5):
                boxes.add(
                    root.evaluate("""(e) => JSON.stringify([e, ...e.querySelectorAll(
                        '.ft-map, .ft-rows, .ft-facts, .ft-sentence, .ft-try')]
                        .map((part) => { const b = part.getBoundingClientRect(), a = e.getBoundingClientRect();
                          return [b.x - a.x, b.y - a.y, b.width, b.height].map(Math.round); }))""")
                )
                root.locator(".ft-map").press("Space")
            assert len(boxes) == 1, (batch, hidden)


def test_run_goes_to_the_end_by_itself_and_at_once_where_motion_is_unwanted(tab, served):
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    root.locator(".ft-map").press("Home")
    root.locator("button.ft-run").click()
    assert "The output is NaN" in sentence(root)

    page = tab(reduced_motion="no-preference").open(f"{served}/{PAGE}")
    root = widget(page)
    root.locator(".ft-map").press("Home")
    root.locator("button.ft-run").click()
    assert root.locator("button.ft-run").inner_text() == "Pause"
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "off"
    page.wait_for_function("document.querySelector('.ft-masks .ft-run').textContent === 'Run'")
    assert "The output is NaN" in sentence(root)
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("touch", [True, False])
def test_targets_are_large_and_text_is_readable_on_a_phone(tab, served, touch):
    page = tab(viewport={"width": 360, "height": 740}, has_touch=touch, is_mobile=touch).open(
        f"{served}/{PAGE}"
    )
    targets = ".ft-masks :is(.ft-controls button, select, .ft-check)"
    heights = page.locator(targets).evaluate_all("found => found.map(e => e.getBoundingClientRect().height)")
    assert len(heights) >= 14 and min(heights) >= 44, heights
    sizes = page.locator(".ft-masks svg text").evaluate_all(
        """found => found.map(e => parseFloat(getComputedStyle(e).fontSize)
            * e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width)"""
    )
    assert min(sizes) >= 10.5, min(sizes)
