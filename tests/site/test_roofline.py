"""The roofline in the page: its numbers are its Python twin's, and everything can be done from the keyboard."""

import json
import random
import re
from pathlib import Path

import pytest

from widgets.base import size
from widgets.cards import CARDS
from widgets.roofline import DTYPES, HEAD_DIMS, HEADS, LENGTHS, MOVES, Roofline, costs

SCRIPT = (Path(__file__).resolve().parents[2] / "widgets" / "roofline.js").read_text("utf-8")
PAGE = "chapters/01_memory_hierarchy.html"
OPTIONS = json.loads(json.dumps(Roofline().options))


@pytest.fixture(scope="module")
def module(browser):
    """A page that has imported roofline.js as `roofline`."""
    page = browser.new_page()
    page.evaluate(
        """async ([source, options]) => {
            const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
            window.roofline = await import(url);
            window.options = options;
        }""",
        [SCRIPT, OPTIONS],
    )
    yield page
    page.close()


def choices():
    """Every card, dtype, head size and L2 at the usual shape, and many at random, odd lengths among them."""
    rng = random.Random(5)
    for card in CARDS:
        for dtype in DTYPES:
            for head_dim in HEAD_DIMS:
                for l2 in (True, False):
                    yield dict(n=8192, heads=32, head_dim=head_dim, dtype=dtype, card=card, l2=l2)
                    n = int(2 ** rng.uniform(6, 20))
                    yield dict(
                        n=n, heads=rng.randint(*HEADS), head_dim=head_dim, dtype=dtype, card=card, l2=l2
                    )
    for n in (*LENGTHS, 65, 127, 128, 129):
        yield dict(n=n, heads=1, head_dim=64, dtype="fp16", card="H100", l2=False)


def same(a, b, where=""):
    """Equal to 1e-12 relative, in every number of two nested results, and with the same names."""
    if isinstance(b, dict):
        assert a.keys() == b.keys(), where
        for key in b:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(b, list):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            same(*pair, f"{where}[{i}]")
    elif isinstance(b, str):
        assert a == b, where
    else:
        assert abs(a - b) <= 1e-12 * abs(b), (where, a, b)


def test_numbers_equal_the_twin(module):
    asked = list(choices())
    answers = module.evaluate("(asked) => asked.map((own) => roofline.costs(own, options))", asked)
    assert len(answers) > 100
    for own, answer in zip(asked, answers, strict=True):
        same(answer, costs(**own), str(own))


def test_sizes_read_as_in_python(module):
    values = [0, 1, 999, 999.7, 2048, 96 * 1024, 1000 * 2**20, 16.25 * 2**30, 5 * 2**40, 2.5 * 2**50]
    assert module.evaluate("(x) => x.map(roofline.size)", values) == [size(x) for x in values]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("8192", 8192), (" 8,192 ", 8192), ("1 000", 1000), ("64", 64), ("1048576", 1048576)]
    + [(bad, None) for bad in ("", "63", "1048577", "-512", "1e3", "12.5", "many", "nan")],
)
def test_what_a_reader_types_as_a_length(module, typed, meant):
    assert module.evaluate("(t) => roofline.parseWhole(t, options.lengths) ?? null", typed) == meant


# ------------------------------------------------------------------------------------------------- the page


def widget(page):
    return page.locator(".ft-roofline")


def table(root):
    """The table as {row: (standard, flash)}."""
    rows = [row.locator("th, td").all_inner_texts() for row in root.locator(".ft-costs tbody tr").all()]
    return {name: tuple(cells) for name, *cells in rows}


def sentence(root):
    return root.locator(".ft-sentence").inner_text()


def test_keyboard_alone(tab, served):
    """From the top of the widget with Tab, Space and arrows: every control, every step, the N in the sentence."""
    page = tab(reduced_motion="reduce").open(f"{served}/{PAGE}")
    root, press = widget(page), page.keyboard.press
    focused = lambda: page.evaluate("document.activeElement.id || document.activeElement.className")  # noqa: E731
    root.locator("input[type=range]").focus()
    press("ArrowRight")
    assert root.locator("output").inner_text() == "16,384 tokens"
    assert root.locator(".ft-facts strong").first.inner_text() == "512 MiB"
    press("Tab")  # heads
    page.keyboard.type("8")  # replaces the selection
    assert root.locator(".ft-facts strong").nth(1).inner_text() == "4 GiB"
    press("Tab")  # head size
    press("ArrowUp")
    press("Tab")  # numbers
    press("ArrowDown")
    press("Tab")  # card
    press("ArrowUp")
    press("Tab")  # L2
    press("Space")
    own = costs(16384, 8, 64, "fp32", "A100", False)
    assert table(root)["HBM traffic in all"] == (size(own["standard"]["bytes"]), size(own["flash"]["bytes"]))
    assert "Every read comes from HBM" in sentence(root)
    for name in ("Back", "Step", "Run", "Reset"):
        press("Tab")
        assert page.evaluate("document.activeElement.textContent") == name
    press("Enter")
    assert "Nothing has moved" in sentence(root) and table(root)["moved so far"] == ("0 B", "0 B")
    press("Tab")  # the N in the sentence
    assert focused() == "ft-inline"
    press("Control+a")
    page.keyboard.type("1000")
    assert root.locator("output").inner_text() == "1,000 tokens"
    assert root.locator(".ft-linked strong").nth(1).inner_text() == size(
        costs(1000, 8, 64, "fp32")["score_all"]
    )
    press("Tab")  # the picture
    assert focused() == "ft-moving"
    top = page.evaluate("scrollY")
    said = []
    for _ in range(MOVES):
        press("Space")
        said.append(sentence(root))
    assert page.evaluate("scrollY") == top  # Space stepped, it didn't scroll
    deeds = ["reads Q and K", "writes S", "reads S back", "writes P", "reads P and V", "writes O"]
    assert [re.search(r"Standard ([^:]+):", words)[1] for words in said] == deeds
    assert "Both have the same O" in said[-1]
    assert root.locator("button.ft-step").get_attribute("aria-disabled") == "true"
    press("ArrowLeft")
    assert "Move 5 of 6" in sentence(root)
    press("Home")
    assert "Nothing has moved" in sentence(root)
    press("End")
    assert table(root)["moved so far"] == table(root)["HBM traffic in all"]


def test_every_choice_reaches_the_table_the_sentence_and_the_roofline(tab, served):
    page = tab(reduced_motion="reduce").open(f"{served}/{PAGE}")
    root = widget(page)
    selects = root.locator("select")
    for head_dim, dtype, card, n in (
        (64, "fp16", "A100", 2048),
        (256, "fp32", "H200", 131072),
        (32, "fp16", "H100", 700),
    ):
        selects.nth(0).select_option(str(head_dim))
        selects.nth(1).select_option(dtype)
        selects.nth(2).select_option(card)
        root.locator(".ft-inline").fill(str(n))
        own = costs(n, 32, head_dim, dtype, card)
        shown = table(root)
        assert shown["HBM traffic in all"] == tuple(
            size(own[form]["bytes"]) for form in ("standard", "flash")
        )
        assert shown["limited by"] == (own["standard"]["limit"], own["flash"]["limit"])
        for form, text in zip(("standard", "flash"), shown["FLOP per byte"], strict=True):
            assert float(text.replace(",", "")) == pytest.approx(own[form]["intensity"], rel=6e-3)
        for form, text in zip(("standard", "flash"), shown["least time"], strict=True):
            number, unit = text.split()
            assert float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(
                own[form]["seconds"], rel=6e-3
            )
        assert root.locator(".ft-facts strong").nth(2).inner_text() == f"{own['tile']} × {own['tile']}"
        assert CARDS[card].name in root.locator(".ft-chart").get_attribute("aria-label")
        assert root.locator("input[type=range]").get_attribute("aria-valuetext") == f"{n:,} tokens"
        # The points lie where the numbers say: x over the decades from 1 to a million.
        left, width = 50, 340 - 6 - 50
        square = root.locator(".ft-chart [data-form=standard] rect")
        at = float(square.get_attribute("x")) + 6
        assert 10 ** (6 * (at - left) / width) == pytest.approx(own["standard"]["intensity"], rel=1e-6)


def test_arrays_are_drawn_to_scale_and_say_where_they_are(tab, served):
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    root.locator(".ft-inline").fill("512")

    def rects(form):
        """(token, state, width, height) of the arrays of a lane, in the order Q K S P V O."""
        return root.locator(f".ft-lanes [data-form={form}] rect[data-token]").evaluate_all(
            "all => all.map(e => [e.dataset.token, e.dataset.state, +e.getAttribute('width'), +e.getAttribute('height')])"
        )

    states = lambda form: [state for _, state, _, _ in rects(form)]  # noqa: E731
    picture = root.locator(".ft-moving")
    picture.press("Home")
    assert states("standard") == ["stored", "stored", "absent", "absent", "stored", "absent"]
    q, _, s, *_ = rects("standard")
    assert q[2] / s[2] == pytest.approx(128 / 512) and q[3] == pytest.approx(s[2]) and s[2] == s[3]
    seen = []
    for _ in range(MOVES):
        picture.press("Space")
        seen.append("".join(state[0] for state in states("standard")))  # moving, stored, absent: Q K S P V O
    assert seen == ["mmaasa", "ssmasa", "ssmasa", "sssmsa", "sssmma", "sssssm"]
    for form in ("standard", "flash"):  # in flash neither S nor P is ever stored
        keys = [state for token, state, _, _ in rects(form) if token == "key"]
        assert keys.count("absent") == (2 if form == "flash" else 0)


def test_what_does_not_fit_is_said_with_a_sign_and_a_word(tab, served):
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    held = lambda: next(cells for name, cells in table(root).items() if name.startswith("held"))  # noqa: E731
    assert "⚠" not in root.inner_text()
    root.locator(".ft-inline").fill("32768")
    assert held()[0].startswith("⚠ too much") and "⚠" not in held()[1]
    root.locator(".ft-inline").fill("131072")  # K and V of a head: 64 MiB, L2: 50 MiB
    assert "⚠ L2 has 50 MiB" in root.locator(".ft-facts").inner_text()
    root.locator(".ft-inline").fill("512")
    assert "smaller than L2" in root.locator(".ft-facts").inner_text() and "⚠" not in root.inner_text()


def test_a_bad_length_is_refused_in_words_and_changes_nothing(tab, served):
    root = widget(tab().open(f"{served}/{PAGE}"))
    before = table(root)
    field = root.locator(".ft-inline")
    field.fill("12")
    field.press("Tab")
    assert "“12” does not do: N is a whole number from 64 to 1,048,576." in sentence(root)
    assert (field.input_value(), table(root)) == ("8192", before)


@pytest.mark.parametrize("width", [1280, 360])
def test_stepping_moves_nothing_on_the_page(tab, served, width):
    page = tab(viewport={"width": width, "height": 800}, reduced_motion="reduce").open(f"{served}/{PAGE}")
    root = widget(page)
    for n in (8192, 512):
        root.locator(".ft-inline").fill(str(n))
        root.locator(".ft-moving").press("Home")
        boxes = set()
        for _ in range(MOVES + 1):
            boxes.add(
                root.evaluate("""(e) => JSON.stringify([e, ...e.querySelectorAll(
                    '.ft-lanes, .ft-chart, .ft-costs, .ft-facts, .ft-linked, .ft-sentence, .ft-try')]
                    .map((part) => { const b = part.getBoundingClientRect(), a = e.getBoundingClientRect();
                      return [b.x - a.x, b.y - a.y, b.width, b.height].map(Math.round); }))""")
            )
            root.locator(".ft-moving").press("Space")
        assert len(boxes) == 1, n


def test_run_goes_to_the_end_by_itself_and_at_once_where_motion_is_unwanted(tab, served):
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    root.locator(".ft-moving").press("Home")
    root.locator("button.ft-run").click()
    assert "Move 6 of 6" in sentence(root)
    arrow = "e => getComputedStyle(e).animationName"
    assert root.locator(".ft-down").first.evaluate(arrow) == "none"

    page = tab(reduced_motion="no-preference").open(f"{served}/{PAGE}")
    page.clock.install()
    root = widget(page)
    assert root.locator(".ft-down").first.evaluate(arrow) == "ft-flow"
    root.locator(".ft-moving").press("End")
    root.locator("button.ft-run").click()  # from the end it begins again
    assert "Nothing has moved" in sentence(root)
    assert root.locator("button.ft-run").inner_text() == "Pause"
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "off"
    page.clock.run_for(20_000)
    assert root.locator("button.ft-run").inner_text() == "Run"
    assert "Move 6 of 6" in sentence(root)
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "polite"


def test_every_experiment_shows_what_it_says(tab, served):
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    results = {}
    for link in root.locator(".ft-try button").all():
        link.click()
        results[link.inner_text()] = table(root), root.locator(".ft-facts strong").all_inner_texts()
        assert sentence(root).startswith(link.inner_text())
    number = lambda text: float(text.split()[0].replace(",", ""))  # noqa: E731
    small, large = results["N = 8,192"][0], results["16,384"][0]
    assert small["FLOP per byte"][0] == "63" and large["FLOP per byte"][0] == "63.5"
    assert number(large["FLOP per byte"][1]) == 2 * number(small["FLOP per byte"][1])
    assert number(large["HBM traffic in all"][1]) == 2 * number(small["HBM traffic in all"][1])
    assert any(cells[0].startswith("⚠") for cells in results["65,536"][0].values())
    assert results["512"][0]["limited by"] == ("memory", "memory")
    ratio = lambda own: costs(**own)["standard"]["seconds"] / costs(**own)["flash"]["seconds"]  # noqa: E731
    assert ratio({"dtype": "fp32"}) < 1.5 < 4 < ratio({})
    assert 14 < CARDS["H100"].matrix_rate / CARDS["H100"].float32_rate < 15.5
    fp32, fp16 = results["fp32, outside the matrix units"][0], results["fp16"][0]
    assert (fp32["limited by"], fp16["limited by"]) == (
        ("both in turn", "arithmetic"),
        ("memory", "arithmetic"),
    )
    for name, tile in (("L2 serves nothing", 128), ("heads of 256", 64)):
        shown, facts = results[name]
        assert facts[2] == f"{tile} × {tile}"
        assert number(shown["FLOP per byte"][1]) == pytest.approx(tile, rel=0.05)


def test_touch_targets_are_large_enough(tab, served):
    page = tab(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).open(
        f"{served}/{PAGE}"
    )
    targets = ".ft-roofline :is(.ft-controls button, select, input:not([type=checkbox]), .ft-check)"
    heights = page.locator(targets).evaluate_all("found => found.map(e => e.getBoundingClientRect().height)")
    assert len(heights) == 4 + 3 + 3 + 1 and min(heights) >= 44, heights


def test_no_javascript_table_equals_the_live_one(browser, tab, served):
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(f"{served}/{PAGE}")
    rows = still.locator(".ft-fallback:has-text('least time')").locator("tbody tr").all()
    stills = [row.locator("th, td").all_inner_texts() for row in rows]
    context.close()
    assert len(stills) == 5
    root = widget(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    for n, head, every, standard, _, flash, _ in stills:
        root.locator(".ft-inline").fill(n.replace(",", ""))
        assert root.locator(".ft-facts strong").all_inner_texts()[:2] == [head, every]
        assert table(root)["HBM traffic in all"] == (standard, flash)
