"""The stepper in the page: its numbers are the reference's, and everything can be done from the keyboard."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from kernels.reference import empty_state, finalize, naive_attention, step
from widgets.stepper import PRESETS, VALUES

SCRIPT = (Path(__file__).resolve().parents[2] / "widgets" / "stepper.js").read_text("utf-8")
PAGE = "chapters/02_online_softmax.html"
VALUES = np.array(VALUES)


def to_json(x):
    return [str(v) if not np.isfinite(v) else float(v) for v in np.ravel(x)]


@pytest.fixture(scope="module")
def module(browser):
    """Calls a function of stepper.js in the browser; scores go in and come out as JSON, NaN and infinities as
    words."""
    page = browser.new_page()
    page.evaluate(
        """async (source) => {
            const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
            window.stepper = await import(url);
        }""",
        SCRIPT,
    )

    def trace(scores, values, tile, guard):
        out = page.evaluate(
            """([scores, values, tile, guard]) => JSON.stringify(
                stepper.trace(stepper.decode(scores), values, tile, guard), (_, x) => stepper.encode(x))""",
            [to_json(scores), np.asarray(values).tolist(), tile, guard],
        )
        rows = json.loads(out)
        number = lambda x: [float(y) for y in x] if isinstance(x, list) else float(x)  # noqa: E731
        return [{key: number(value) for key, value in row.items()} for row in rows]

    trace.page = page
    yield trace
    page.close()


def random_scores(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 10.0 ** rng.integers(-1, 3), 16)
    scores[rng.random(16) < rng.choice([0, 0.3, 0.9, 1])] = -np.inf
    return scores


CASES = [(name, np.array(scores)) for name, (_, scores) in PRESETS.items()]
CASES += [(f"seed {seed}", random_scores(seed)) for seed in range(12)]


@pytest.mark.parametrize("tile", [1, 3, 4, 7, 16])
@pytest.mark.parametrize(("label", "scores"), CASES, ids=[label for label, _ in CASES])
def test_numbers_equal_the_reference(module, label, scores, tile):
    values = VALUES if label in PRESETS else np.random.default_rng(7).normal(0, 3, (16, 4))
    exact, _ = naive_attention(
        np.ones((1, 1, 1, 1)), scores.reshape(1, 1, 16, 1).clip(-1e300), values[None, None], scale=1.0
    )
    state = empty_state((), 4)
    rows = module(scores, values, tile, True)
    assert [row["start"] for row in rows] == list(range(0, 16, tile))
    for row in rows:
        start, stop = int(row["start"]), int(row["stop"])
        previous = state
        state = step(state, scores[start:stop], values[start:stop])
        output, _ = finalize(state)
        shift = 0 if state.m == -np.inf else state.m
        close = {"rtol": 1e-12, "atol": 1e-12}
        np.testing.assert_allclose(row["m"], state.m, **close)
        np.testing.assert_allclose(row["correction"], np.exp(previous.m - shift), **close)
        np.testing.assert_allclose(row["l"], state.l, **close)
        np.testing.assert_allclose(row["o"], state.o, **close)
        np.testing.assert_allclose(row["output"], output, **close)
    if np.isfinite(scores).any():
        np.testing.assert_allclose(rows[-1]["output"], exact[0, 0, 0], rtol=1e-12, atol=1e-12)
    assert rows[-1]["error"] < 1e-12


@pytest.mark.parametrize("tile", [1, 2, 4, 8])
def test_without_the_guard_a_masked_first_tile_is_nan_to_the_end(module, tile):
    """The plain formula in NumPy, unguarded, says where NaN stands; the script must agree number by
    number."""
    scores = np.array(PRESETS["masked"][1])
    m, total = -np.inf, 0.0
    for row in module(scores, VALUES, tile, False):
        s = scores[int(row["start"]) : int(row["stop"])]
        old, m = m, max(m, s.max())
        with np.errstate(invalid="ignore"):
            total = np.exp(old - m) * total + np.exp(s - m).sum()
        np.testing.assert_allclose(row["l"], total, rtol=1e-12)
        assert np.isnan(row["output"]).all() == np.isnan(total) == np.isnan(row["error"])
        assert np.isnan(total) == (tile <= 4)


def test_rescalings_count_only_what_was_kept(module):
    def count(name, tile):
        return module.page.evaluate(
            "([s, v, tile]) => stepper.rescalings(stepper.trace(stepper.decode(s), v, tile))",
            [to_json(PRESETS[name][1]), VALUES.tolist(), tile],
        )

    assert [count("rising", 1), count("rising", 4), count("falling", 1), count("random", 4)] == [15, 3, 0, 2]
    assert count("masked", 4) == 1  # the first tile left nothing to rescale


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("1.5", 1.5), ("−2", -2), ("0,25", 0.25), ("", "-inf"), ("-inf", "-inf"), ("−∞", "-inf"), ("1e2", 100)]
    + [(bad, None) for bad in ("abc", "inf", "nan", "1.2.3")],
)
def test_what_a_reader_types_as_a_score(module, typed, meant):
    assert module.page.evaluate("(t) => stepper.encode(stepper.parseScore(t)) ?? null", typed) == meant


# ------------------------------------------------------------------------------------------------- the page


def stepper(page):
    return page.locator(".ft-stepper").first


def number(text):
    return float(text.replace("−", "-").replace("∞", "inf").replace("⚠ NaN", "nan"))


def shown(root):
    """The finished rows of the table as [keys, m, correction, l]."""
    rows = root.locator(".ft-rows tbody tr").all()
    cells = [row.locator("th, td").all_inner_texts() for row in rows]
    return [[row[0], *map(number, row[1:])] for row in cells if row[1] != "·"]


def test_keyboard_alone(tab, base):
    """From the top of the widget with Tab, Space and arrows: step, back, run to the end, change the tile,
    mask a key."""
    page = tab(reduced_motion="reduce").open(f"{base}/{PAGE}")
    root = stepper(page)
    press = page.keyboard.press
    root.locator("select").focus()
    press("Tab")  # the tile
    press("Home")
    assert root.locator("output").inner_text() == "1 key"
    for _ in range(3):
        press("ArrowRight")
    assert root.locator("output").inner_text() == "4 keys"
    press("Tab")  # the guard
    press("Tab")  # Back
    assert page.evaluate("document.activeElement.textContent") == "Back"
    for _ in range(3):
        press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Reset"
    press("Enter")
    assert shown(root) == []
    assert "Nothing is loaded" in root.locator(".ft-sentence").inner_text()
    press("Tab")  # the picture
    assert page.evaluate("document.activeElement.className") == "ft-scores"
    top = page.evaluate("scrollY")
    press("Space")
    press("ArrowRight")
    assert page.evaluate("scrollY") == top  # Space stepped, it didn't scroll
    assert [row[0] for row in shown(root)] == ["1–4", "5–8"]
    press("ArrowLeft")
    assert [row[0] for row in shown(root)] == ["1–4"]
    press("End")
    rows = shown(root)
    assert len(rows) == 4
    assert "All keys are seen" in root.locator(".ft-sentence").inner_text()
    assert root.locator(".ft-acc .ft-hit").count() == 4
    # Type into the first score, mask the second: the last m follows.
    press("Tab")
    page.keyboard.type("9.5")
    press("Tab")
    page.keyboard.press("Delete")
    press("Enter")
    assert root.locator("select").input_value() == "custom"
    assert shown(root)[-1][1] == 9.5
    assert "masked" in root.locator(".ft-score").nth(1).get_attribute("aria-label")
    press("ArrowDown")  # nothing to nudge on a masked key
    press("Shift+Tab")
    press("ArrowDown")
    assert shown(root)[-1][1] == 9.25


def test_the_table_shows_what_the_arithmetic_gives(tab, served, module):
    page = tab().open(f"{served}/{PAGE}")
    root = stepper(page)
    for name in PRESETS:
        root.locator("select").select_option(name)
        for tile in (4, 5):
            root.locator("input[type=range]").fill(str(tile))
            root.locator(".ft-scores").press("End")
            expected = module(PRESETS[name][1], VALUES, tile, True)
            rows = shown(root)
            assert len(rows) == len(expected)
            for (keys, *numbers), row in zip(rows, expected, strict=True):
                assert keys == f"{row['start'] + 1:.0f}–{row['stop']:.0f}".replace("16–16", "16")
                np.testing.assert_allclose(
                    numbers, [row["m"], row["correction"], row["l"]], atol=6e-3, rtol=1e-3
                )
            for text, value in zip(
                root.locator(".ft-acc tbody td:nth-child(3)").all_inner_texts(),
                expected[-1]["output"],
                strict=True,
            ):
                assert abs(number(text) - value) <= 6e-5


def test_cells_are_not_loaded_current_or_discarded(tab, served):
    root = stepper(tab().open(f"{served}/{PAGE}"))
    root.locator(".ft-scores").press("Home")
    states = lambda: [cell.get_attribute("data-state")[0] for cell in root.locator(".ft-key").all()]  # noqa: E731
    assert "".join(states()) == "a" * 16
    root.locator(".ft-scores").press("Space")
    root.locator(".ft-scores").press("Space")
    assert "".join(states()) == "dddd" + "cccc" + "a" * 8
    assert root.locator(".ft-facts strong").first.inner_text() == "4 of 16"
    assert "on chip now" in root.locator(".ft-score").nth(5).get_attribute("aria-label")


def test_guard_off_shows_nan_with_a_sign_and_a_word_and_on_again_cures_it(tab, served):
    root = stepper(tab().open(f"{served}/{PAGE}"))
    root.locator("select").select_option("masked")
    root.locator(".ft-scores").press("End")
    assert root.locator("text=⚠ NaN").count() == 0
    root.locator("input[type=checkbox]").uncheck()
    rows = root.locator(".ft-rows tbody tr")
    assert [text.count("⚠ NaN") for text in rows.all_inner_texts()] == [2, 1, 1, 1]
    assert root.locator(".ft-acc tbody td:nth-child(3)").all_inner_texts() == ["⚠ NaN"] * 4
    assert root.locator(".ft-facts strong").last.inner_text() == "⚠ NaN"
    assert "NaN times anything is NaN" in root.locator(".ft-sentence").inner_text()
    root.locator("input[type=checkbox]").check()
    assert root.locator("text=⚠ NaN").count() == 0
    assert root.locator(".ft-acc .ft-hit").count() == 4


def test_a_bad_score_is_refused_in_words_and_changes_nothing(tab, served):
    root = stepper(tab().open(f"{served}/{PAGE}"))
    before = shown(root)
    field = root.locator(".ft-score").first
    old = field.input_value()
    field.fill("abc")
    field.press("Enter")
    assert "“abc” is no score" in root.locator(".ft-sentence").inner_text()
    assert (field.input_value(), shown(root)) == (old, before)


def test_a_bar_can_be_dragged(tab, served):
    page = tab().open(f"{served}/{PAGE}")
    root = stepper(page)
    root.locator(".ft-plot").nth(4).hover()
    box = root.locator(".ft-plot").nth(4).bounding_box()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 4, steps=3)
    page.mouse.up()
    assert float(root.locator(".ft-score").nth(4).input_value()) > 2.5
    assert root.locator("select").input_value() == "custom"


@pytest.mark.parametrize("width", [1280, 360])
def test_stepping_moves_nothing_on_the_page(tab, served, width):
    page = tab(viewport={"width": width, "height": 800}, reduced_motion="reduce").open(f"{served}/{PAGE}")
    root = stepper(page)
    for name in ("random", "huge", "masked"):
        root.locator("select").select_option(name)
        for guard in (True, False):
            root.locator("input[type=checkbox]").set_checked(guard)
            root.locator(".ft-scores").press("Home")
            boxes = set()
            for _ in range(5):
                boxes.add(
                    root.evaluate("""(e) => JSON.stringify([e, ...e.querySelectorAll(
                        '.ft-rows, .ft-acc, .ft-facts, .ft-sentence, .ft-terms, .ft-working, .ft-try, .ft-score')]
                        .map((part) => { const b = part.getBoundingClientRect(), a = e.getBoundingClientRect();
                          return [b.x - a.x, b.y - a.y, b.width, b.height].map(Math.round); }))""")
                )
                root.locator(".ft-scores").press("Space")
            assert len(boxes) == 1, (name, guard)


def test_run_goes_to_the_end_by_itself_and_at_once_where_motion_is_unwanted(tab, served):
    root = stepper(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    root.locator(".ft-scores").press("Home")
    root.locator("button.ft-run").click()
    assert len(shown(root)) == 4

    page = tab(reduced_motion="no-preference").open(f"{served}/{PAGE}")
    root = stepper(page)
    root.locator(".ft-scores").press("Home")
    root.locator("button.ft-run").click()
    assert root.locator("button.ft-run").inner_text() == "Pause"
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "off"
    page.wait_for_function("document.querySelector('.ft-run').textContent === 'Run'")
    assert len(shown(root)) == 4
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "polite"


def test_a_term_lights_up_in_formula_table_and_picture_together(tab, served):
    root = stepper(tab().open(f"{served}/{PAGE}"))
    chip = root.locator(".ft-terms button[data-term=alpha]")
    chip.focus()
    lit = root.locator(".ft-lit")
    assert {part.get_attribute("data-term") for part in lit.all()} == {"alpha"}
    for place in (".ft-formula", ".ft-rows", ".ft-scores", ".ft-worked"):
        assert root.locator(f"{place} .ft-lit, {place}.ft-lit").count() > 0, place
    chip.press("Enter")  # keep it lit
    root.locator("button.ft-step").focus()
    assert lit.count() > 0
    chip.click()
    root.locator("button.ft-step").focus()
    root.page.mouse.move(0, 0)
    assert lit.count() == 0


def test_every_experiment_does_what_it_says(tab, served):
    root = stepper(tab(reduced_motion="reduce").open(f"{served}/{PAGE}"))
    links = root.locator(".ft-try button")
    finals = []
    for link in links.all():
        link.click()
        finals.append(
            (root.locator("output").inner_text(), root.locator(".ft-facts strong").nth(1).inner_text())
        )
    assert finals[0][0] == "1 key" and finals[1][0] == "16 keys"
    assert int(re.search(r"\d+", finals[3][1])[0]) == 0  # falling: nothing is rescaled
    assert finals[5][0] == "8 keys" and root.locator("text=⚠ NaN").count() == 0


@pytest.mark.parametrize("touch", [True, False])
def test_touch_targets_are_large_enough(tab, served, touch):
    # On a phone's width whatever the browser says of its pointer: headless Chromium doesn't always say `coarse`.
    page = tab(viewport={"width": 360, "height": 740}, has_touch=touch, is_mobile=touch).open(
        f"{served}/{PAGE}"
    )
    targets = ".ft-stepper :is(.ft-controls button, select, input[type=range], .ft-check)"
    heights = page.locator(targets).evaluate_all("found => found.map(e => e.getBoundingClientRect().height)")
    assert len(heights) >= 7 and min(heights) >= 44, heights


def test_no_javascript_table_equals_the_live_one(browser, tab, served):
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(f"{served}/{PAGE}")
    rows = [
        row.locator("th, td").all_inner_texts() for row in still.locator(".ft-fallback tbody tr").all()[:4]
    ]
    context.close()
    root = stepper(tab().open(f"{served}/{PAGE}"))
    root.locator(".ft-scores").press("End")
    assert [[row[0], *map(number, row[1:])] for row in rows] == shown(root)
