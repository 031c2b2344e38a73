"""Every figure: inline SVG that parses, with alt text, text that is not tiny, and no colour but the look's."""

import re
import sys
import xml.etree.ElementTree as ET

import nbformat
import pytest
from chapter_pages import CHAPTERS

from kernels import reference

sys.path.insert(0, str(CHAPTERS))
import figures  # noqa: E402
from figures.canvas import WIDTH  # noqa: E402
from figures.plots import growth  # noqa: E402

LENGTHS, NAIVE, FLASH = [512, 2048, 8192], [3 * n * n * 4 for n in (512, 2048, 8192)], [4e5, 8e5, 2.4e6]
WORK = [("copy", 0.5, "query", "v"), ("naive", 60, "danger", "s"), ("flash", 4000.0, "current", "o")]
LOOPS = {
    "queries outside": {"Q": 2e6, "K, V": 2.6e8, "m, l, o": 0, "O, lse": 2e6},
    "keys outside": {"Q": 1.3e8, "K, V": 4e6, "m, l, o": 5.2e8, "O, lse": 2e6},
}
ULPS = {"plain": [0.2, 1.2, 3], "shuffled": [0.3, 1.1, 2], "16": [1, 2, 7], "128": [0, 0.8, 2]}
SPEED = [
    {"who": who, "q_len": n, "tflops": most * (1 - 300 / n)}
    for who, most in (("ours", 480), ("sdpa flash", 490), ("plain", 70))
    for n in (2048, 512, 8192)
]
MASKS = [
    ("square", [[True, False], [True, True]]),
    ("blind", [[False, False], [False, False], [True, False]]),
]
KINDS = [("causal", [[1, 0], [2, 1]]), ("window", [[1, 0, 0], [1, 1, 0], [0, 1, 1]])]
FIGURES = {
    "one_idea": lambda: figures.one_idea(),
    "memory_hierarchy": lambda: figures.memory_hierarchy(figures.CARDS["H100"]),
    "recurrence": lambda: figures.recurrence([1, 3, 2, 0, 5, 4], 2),
    "tiles": lambda: figures.tiles(),
    "peak_memory": lambda: figures.peak_memory(LENGTHS, NAIVE, FLASH),
    "loop_traffic": lambda: figures.loop_traffic(LOOPS),
    "ulps": lambda: figures.ulps(ULPS),
    "speed": lambda: figures.speed(SPEED, ("matrix units", 700)),
    "patterns": lambda: figures.patterns(MASKS),
    "tile_map": lambda: figures.tile_map(KINDS, "Two maps"),
    "roofline": lambda: figures.roofline(figures.CARDS["A100"], WORK),
}


def svg_of(shown):
    return re.search(r"<svg.*</svg>", shown.data, flags=re.DOTALL).group()


def words_of(shown):
    return [text.text for text in ET.fromstring(svg_of(shown)).iter("{http://www.w3.org/2000/svg}text")]


def test_all_figures_are_listed_here():
    helpers = {"CARDS", "Card", "measured", "reading", "size", "solving", "source", "table"}
    assert FIGURES.keys() == set(figures.__all__) - helpers


@pytest.mark.parametrize("name", FIGURES)
def test_renders_svg_with_alt_text(name):
    shown = FIGURES[name]()
    root = ET.fromstring(svg_of(shown))
    assert root.get("role") == "img" and len(root.get("aria-label")) > 60
    assert "<figcaption>" in shown.data


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_bytes_each_time(name):
    assert FIGURES[name]().data == FIGURES[name]().data


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_readable_on_a_phone(name):
    svg = svg_of(FIGURES[name]())
    width = float(ET.fromstring(svg).get("viewBox").split()[2])
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:[a-z]+ )?([\d.]+)px", svg)]
    assert width <= WIDTH and sizes
    assert min(sizes) * 320 / width >= 10.5  # 320 px is what a 360 px screen leaves for a picture


@pytest.mark.parametrize("name", FIGURES)
def test_colours_follow_the_theme(name):
    svg = svg_of(FIGURES[name]())
    assert "var(--ft-" in svg
    fixed = re.findall(r"#[0-9a-fA-F]{6}\b", re.sub(r"var\(--ft-[\w-]+, #[0-9a-fA-F]{6}\)", "", svg))
    assert not fixed


def test_recurrence_shows_the_numbers_of_the_library():
    state = reference.empty_state((), 1)
    words = " ".join(words_of(figures.recurrence([1, 3, 2, 0, 5, 4], 2)))
    for tile in ([1.0, 3.0], [2.0, 0.0], [5.0, 4.0]):
        state = reference.step(state, tile, [[0.0], [0.0]])
        assert f"m = {state.m:g}" in words and f"l = {state.l:.3f}" in words


def test_the_peak_plot_says_its_slopes_and_its_ends():
    shown = figures.peak_memory(LENGTHS, NAIVE, FLASH)
    assert growth(LENGTHS, NAIVE) == pytest.approx(4)
    assert growth(LENGTHS, [n * 100 for n in LENGTHS]) == pytest.approx(2)
    words = " ".join(words_of(shown))
    assert "naive: × 4.0 a doubling" in words
    assert all(figures.size(peak) in words for peak in (*NAIVE, *FLASH))
    assert "256 times" in svg_of(shown)


@pytest.mark.parametrize("name", figures.CARDS)
def test_the_hierarchy_draws_every_card_and_says_where_a_rate_is_missing(name):
    card = figures.CARDS[name]
    words = words_of(figures.memory_hierarchy(card))
    rates = [card.shared_rate, card.l2_rate, card.hbm_rate]
    shown = [f"{rate / 1e12:.4g} TB/s" for rate in rates if rate] + [f"{card.host_rate / 1e9:.0f} GB/s"]
    assert [word for word in words if word.endswith("B/s")] == shown
    assert words.count("rate not in the sources") == 1 + rates.count(None)  # the registers have none


def test_the_roofline_says_what_waits_for_memory():
    svg = svg_of(figures.roofline(figures.CARDS["A100"], WORK))
    assert "where memory sets the pace: copy, naive. Right of it, where arithmetic does: flash." in svg
    assert {"copy: 0.5", "naive: 60", "flash: 4,000", "ridge: 201"} <= set(
        words_of(figures.roofline(figures.CARDS["A100"], WORK))
    )


def test_masks_say_how_many_queries_see_nothing_and_maps_how_many_tiles_are_of_each_kind():
    svg = svg_of(figures.patterns(MASKS))
    assert "square: 0 of 2 queries see no key; blind: 2 of 3 queries see no key." in svg
    assert words_of(figures.patterns(MASKS)).count("sees no key") == 2
    svg = svg_of(figures.tile_map(KINDS, "Two maps"))
    assert "causal: 1 full, 2 partial, 1 empty; window: 0 full, 5 partial, 4 empty." in svg


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: figures.recurrence([1.0] * 9, 3), "scores"),
        (lambda: figures.recurrence([1.0] * 5, 2), "scores"),
        (lambda: figures.tiles(count=3, row=3), "row"),
        (lambda: figures.roofline(figures.CARDS["A100"], [("nothing", 0, "key", "o")]), "work"),
        (lambda: figures.peak_memory([1], [1], [1]), "lengths"),
        (lambda: figures.patterns([("wide", [[True] * 7])]), "cases"),
        (lambda: figures.tile_map([("one", [[1]])] * 4, "Four maps"), "cases"),
        (lambda: figures.loop_traffic({"one": {"S": 1}}), "parts"),
        (lambda: figures.ulps({}), "errors"),
        (lambda: figures.speed([]), "rows"),
        (lambda: figures.table(("a", "b"), [(1,)]), "rows"),
        (lambda: figures.source("reference/state.py", "nothing"), "function"),
        (lambda: figures.source("reference/state.py", "step", start="nothing"), "start"),
    ],
)
def test_bad_input_is_named(call, names):
    with pytest.raises(ValueError, match=names):
        call()


def test_the_bars_of_the_loop_orders_say_every_part_and_the_ratio():
    svg = svg_of(figures.loop_traffic(LOOPS))
    words = words_of(figures.loop_traffic(LOOPS))
    assert {f"{part} {figures.size(x)}" for own in LOOPS.values() for part, x in own.items() if x} <= set(
        words
    )
    assert not any(word.startswith("m, l, o 0") for word in words)
    assert "Keys outside moves 2.5 times what queries outside moves" in svg


def test_the_plot_of_ulps_says_its_medians():
    assert "plain 1.2, shuffled 1.1, 16 2.0, 128 0.8." in svg_of(figures.ulps(ULPS))


def test_the_plot_of_speed_names_every_line_and_puts_the_fastest_first():
    svg = svg_of(figures.speed(SPEED))
    at_end = {row["who"]: row["tflops"] for row in SPEED if row["q_len"] == 8192}
    told = ", ".join(f"{who} {at_end[who]:.0f}" for who in ("sdpa flash", "ours", "plain"))
    assert f"At 8,192 tokens, in TFLOP/s: {told}." in svg
    assert {"ours", "sdpa flash", "plain", "512", "2k", "8k"} <= set(words_of(figures.speed(SPEED)))


def test_what_was_measured_is_read():
    assert {row["what"] for row in figures.measured("h200")["rows"]} == {"forward", "backward", "decode"}


def test_source_is_the_file_without_the_docstring():
    file = (CHAPTERS.parent / "kernels/reference/state.py").read_text("utf-8")
    shown = figures.source("reference/state.py", "step").data
    code = shown.split("```")[1].removeprefix("python\n").splitlines()
    assert code[0].startswith("def step(") and code[-1].strip().startswith("return ")
    assert all(line in file.splitlines() for line in code)
    assert '"""' not in shown


def test_source_keeps_decorators_and_can_start_later():
    assert figures.source("triton/online.py", "softmax_step").data.startswith(
        "```python\n@triton.jit\ndef softmax_step"
    )
    later = figures.source("reference/flash.py", "flash_attention", start="for b, h in").data
    assert later.startswith("```python\nfor b, h in") and "\nreturn o, lse\n" in later


def test_sizes_read_well():
    assert [figures.size(n) for n in (12, 2048, 96 * 1024, 3 * 2**30)] == ["12 B", "2 KiB", "96 KiB", "3 GiB"]


def test_hours_are_those_of_prose_widgets_and_points(tmp_path, monkeypatch):
    page, book = tmp_path / "page.md", tmp_path / "book.ipynb"
    code = "```{code-cell} ipython3\n" + "word " * 5000 + "\nfrom widgets import Stepper, Quiz\n```\n"
    page.write_text("---\n" + "matter " * 5000 + "\n---\n" + code + "word " * 260, "utf-8")
    cells = [nbformat.v4.new_code_cell(metadata={"nbgrader": {"points": points}}) for points in (3, 5)]
    nbformat.write(nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_markdown_cell()]), book)
    monkeypatch.setattr(figures.hours, "PAGES", {7: page})
    monkeypatch.setattr(figures.hours, "EXERCISES", {7: book})
    assert figures.reading(7) == "0.75"  # 2.6 minutes and two widgets
    assert figures.solving(7) == "1"  # 48 minutes


def test_hours_are_known_of_every_chapter_that_is_written():
    written = {int(path.stem[:2]) for path in CHAPTERS.glob("[0-9]*.md")}
    assert figures.hours.PAGES.keys() == figures.hours.EXERCISES.keys() == written
    assert all(0.25 <= float(hours(n)) <= 8 for n in written for hours in (figures.reading, figures.solving))
