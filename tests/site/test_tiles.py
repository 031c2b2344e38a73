"""The tiles simulator in the page: its numbers are its Python twin's, and everything can be done from the keyboard."""

import json
import random
from pathlib import Path

import pytest

from widgets.base import size
from widgets.cards import CARDS
from widgets.tiles import DTYPES, HEAD_DIMS, LENGTHS, ORDERS, STAGES, TILES, Tiles, count

SCRIPT = (Path(__file__).resolve().parents[2] / "widgets" / "tiles.js").read_text("utf-8")
PAGE = "chapters/03_flash_forward.html"
OPTIONS = json.loads(json.dumps(Tiles().options))
OPENING = dict(n=1024, head_dim=128, dtype="fp16", tile_q=128, tile_k=128, stages=2, card="H100", position=20)
PARTS = ("Q", "K, V", "m, l, o", "O, lse")


@pytest.fixture(scope="module")
def module(browser):
    """A page that has imported tiles.js as `tiles`."""
    page = browser.new_page()
    page.evaluate(
        """async ([source, options]) => {
            const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
            window.tiles = await import(url);
            window.options = options;
        }""",
        [SCRIPT, OPTIONS],
    )
    yield page
    page.close()


def choices():
    """Every position of two small walks, every pair of tiles, and many choices at random, positions past the end too."""
    rng = random.Random(7)
    for tile_q, tile_k in ((256, 128), (64, 256)):
        for position in range(512 // tile_q * (512 // tile_k) + 2):
            yield OPENING | dict(n=512, tile_q=tile_q, tile_k=tile_k, position=position)
    for tile_q in TILES:
        for tile_k in TILES:
            yield OPENING | dict(tile_q=tile_q, tile_k=tile_k, position=rng.randrange(5000))
    for _ in range(200):
        yield dict(
            n=rng.choice(LENGTHS),
            head_dim=rng.choice(HEAD_DIMS),
            dtype=rng.choice(list(DTYPES)),
            tile_q=rng.choice(TILES),
            tile_k=rng.choice(TILES),
            stages=rng.choice(STAGES),
            card=rng.choice(list(CARDS)),
            position=int(2 ** rng.uniform(0, 18)),
        )


def test_numbers_equal_the_twin(module):
    asked = list(choices())
    answers = module.evaluate("(asked) => asked.map((own) => tiles.count(own, options))", asked)
    assert len(answers) > 200
    for own, answer in zip(asked, answers, strict=True):
        expected = count(**own)
        for order in ORDERS:
            assert answer[order].pop("intensity") == pytest.approx(
                expected[order].pop("intensity"), rel=1e-12
            )
        assert answer == expected, own


def test_sizes_read_as_in_python(module):
    values = [0, 1, 999, 999.7, 2048, 96 * 1024, 1000 * 2**20, 16.25 * 2**30]
    assert module.evaluate("(x) => x.map(tiles.size)", values) == [size(x) for x in values]


def test_the_words_for_a_visit_name_what_it_moves(module):
    def said(position):
        own = OPENING | dict(n=512, position=position)
        return module.evaluate("(own) => tiles.story(tiles.count(own, options))", own)

    assert said(0).startswith("Nothing has moved")
    assert "Queries outside loads Q₁, K₁, V₁ and stores nothing: (m, l, o)₁ stays on chip." in said(1)
    assert "Keys outside loads Q₁, K₁, V₁ and stores (m, l, o)₁." in said(1)
    assert "Queries outside loads K₂, V₂ and stores nothing: (m, l, o)₁ stays on chip." in said(2)
    assert "Queries outside loads K₄, V₄ and stores O₁. Keys outside loads Q₄ and stores (m, l, o)₄." in said(
        4
    )
    assert "Queries outside loads Q₂, K₁, V₁" in said(5)
    assert "Keys outside loads Q₁, K₂, V₂, (m, l, o)₁ and stores (m, l, o)₁." in said(5)
    assert "Keys outside loads Q₁, K₄, V₄, (m, l, o)₁ and stores O₁." in said(13)
    own = count(512, position=16)
    assert said(16).startswith("All 16 visits are made") and size(own["keys"]["total"]) in said(16)


# ------------------------------------------------------------------------------------------------- the page


def widget(page):
    return page.locator(".ft-tiles")


def opened(tab, served, **options):
    return widget(tab(reduced_motion="reduce", **options).open(f"{served}/{PAGE}"))


def table(root):
    """The table as {row: (queries outside, keys outside)}."""
    rows = [row.locator("th, td").all_inner_texts() for row in root.locator(".ft-moves tbody tr").all()]
    return {name.strip(): tuple(cells) for name, *cells in rows}


def sentence(root):
    return root.locator(".ft-sentence").inner_text()


def expect(root, **own):
    """The table shows `count` of this choice."""
    now, shown = count(**OPENING | own), table(root)
    both = lambda f: tuple(f(now[order]) for order in ORDERS)  # noqa: E731
    for part, name in zip(("q", "kv", "state", "o"), PARTS, strict=True):
        assert shown[name] == both(lambda form, part=part: size(form["moved"][part])), name
    assert shown["moved so far"] == both(lambda form: size(form["bytes"]))
    assert shown["moved in all"] == both(lambda form: size(form["total"]))
    assert shown["thread blocks a head"] == both(lambda form: f"{form['programs']:,}")
    assert (
        root.locator("label[for$=position] output").inner_text()
        == f"{now['position']:,} of {now['visits']:,}"
    )
    return now


def test_keyboard_alone(tab, served):
    """From the first control to the picture with Tab, arrows, Space: every choice, every kind of step."""
    root = opened(tab, served)
    page, press = root.page, root.page.keyboard.press
    expect(root)
    root.locator("select").first.focus()
    press("ArrowUp")  # N
    expect(root, n=512, position=5)  # the walk stays as far as it was
    press("Tab")
    press("ArrowUp")  # head size
    press("Tab")
    press("ArrowDown")  # stages
    press("Tab")
    press("ArrowDown")  # numbers
    press("Tab")
    press("ArrowDown")  # card
    own = dict(n=512, head_dim=64, stages=3, dtype="fp32", card="H200")
    expect(root, **own, position=5)
    press("Tab")
    press("ArrowLeft")  # queries a tile
    press("Tab")
    press("End")  # keys a tile
    own |= dict(tile_q=64, tile_k=256)
    expect(root, **own, position=5)
    assert "256 keys a tile: in all, keys outside moves" in sentence(
        root
    )  # a large outer tile pays in either order
    press("Tab")
    press("ArrowRight")  # the visit itself
    expect(root, **own, position=6)
    for name in ("Back", "Step", "Run", "Reset"):
        press("Tab")
        assert page.evaluate("document.activeElement.textContent") == name
    press("Enter")
    assert "Nothing has moved" in sentence(root)
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "ft-orders"
    top = page.evaluate("scrollY")
    for position in range(1, 17):
        press("Space" if position % 2 else "ArrowRight")
        now = expect(root, **own, position=position)
    assert page.evaluate("scrollY") == top  # Space stepped, it didn't scroll
    assert now["position"] == now["visits"] and "both orders have the same O" in sentence(root)
    assert root.locator("button.ft-step").get_attribute("aria-disabled") == "true"
    press("Space")
    expect(root, **own, position=16)
    press("ArrowLeft")
    expect(root, **own, position=15)
    press("Home")
    assert root.locator("button.ft-back").get_attribute("aria-disabled") == "true"
    press("End")
    expect(root, **own, position=16)
    for name in PARTS:
        press("Tab")
        assert page.evaluate("document.activeElement.textContent") == name


def boxes(root, order):
    """Rectangles of one picture: (part, state, x, y, width, height)."""
    return root.locator(f"svg[data-order={order}] rect").evaluate_all(
        "all => all.map(e => [e.dataset.part ?? '', e.dataset.state ?? e.getAttribute('class') ?? '', "
        "...['x', 'y', 'width', 'height'].map(name => +e.getAttribute(name))])"
    )


def test_the_picture_shows_what_is_on_chip_in_hbm_and_gone(tab, served):
    root = opened(tab, served)
    picture = root.locator(".ft-orders")
    tile, left, top = 196 / 8, 62, 84
    picture.press("Home")
    for order in ORDERS:
        assert not [own for own in boxes(root, order) if own[1] == "current"]
    for position in (*range(1, 12), 60, 64):  # 60: keys outside is half through its last tile of keys
        root.locator("input[data-trait=position]").fill(str(position))
        now = count(**OPENING | dict(position=position))
        for order in ORDERS:
            drawn, form = boxes(root, order), now[order]
            current = [own for own in drawn if own[1] == "current"]
            assert sorted(own[0] for own in current) == ["", "kv", "kv", "q", "state"]
            (scores,) = [own for own in current if not own[0]]
            assert scores[2:4] == [left + tile * form["j"], top + tile * form["i"]]
            stored = {
                own[0]: (own[3], own[5]) for own in drawn if own[1] == "stored" and own[0] in ("state", "o")
            }
            done, begun = form["finished"], form["unfinished"]
            held = {"o": (top, tile * done)} if done else {}
            held |= {"state": (top + tile * done, tile * begun)} if begun else {}
            assert stored == held
            # What is hatched is every tile of scores but the current one.
            gone = [own for own in drawn if not own[1]]
            assert sum(own[4] * own[5] for own in gone) == tile * tile * (position - 1)
            # The bar: its parts are the table's, on the scale of the larger total.
            bar = {own[0]: own[4] for own in drawn if own[1] == "ft-part"}
            most = max(now[name]["total"] for name in ORDERS)
            assert bar == pytest.approx({part: 338 * x / most for part, x in form["moved"].items()})


def test_what_does_not_fit_is_said_with_a_sign_and_a_word(tab, served):
    root = opened(tab, served)
    assert "⚠" not in root.inner_text()
    heads, keys = root.locator("select").nth(1), root.locator("input[data-trait=tile_k]")
    heads.select_option("256")
    assert table(root)["shared, of 227 KiB"] == ("⚠ too much: 320", "⚠ too much: 256")
    assert table(root)["blocks a multiprocessor"] == ("⚠ none", "⚠ none")
    assert "⚠ Too large: shared memory does not hold the tiles with queries outside" in sentence(root)
    keys.fill("0")  # 16 keys
    assert table(root)["shared, of 227 KiB"] == ("96", "144") and "⚠" not in root.inner_text()
    root.locator("input[data-trait=tile_q]").fill("4")
    keys.fill("4")  # 256 x 256
    assert "⚠ too much: 512 of 256 KiB" in root.locator(".ft-facts").inner_text()
    assert "the registers do not hold" in sentence(root)
    room = {"A100": 163, "H100": 227, "H200": 227}
    for card, kib in room.items():
        root.locator("select").nth(4).select_option(card)
        assert f"shared, of {kib} KiB" in table(root)


def test_a_name_lights_its_shapes_its_share_and_its_row(tab, served):
    root = opened(tab, served)
    chip = root.locator(".ft-parts button[data-part=kv]")
    chip.focus()
    lit = root.locator(".ft-lit")
    assert {own.get_attribute("data-part") for own in lit.all()} == {"kv"}
    for place in ("svg[data-order=queries]", "svg[data-order=keys]", ".ft-moves", ".ft-parts"):
        assert root.locator(f"{place} .ft-lit").count() > 0, place
    root.locator("button.ft-step").focus()
    assert lit.count() == 0
    chip.press("Enter")  # keep it lit, through a step as well
    root.locator("button.ft-step").click()
    root.page.mouse.move(0, 0)
    assert chip.get_attribute("aria-pressed") == "true" and lit.count() > 0
    chip.click()
    root.locator("button.ft-step").focus()
    root.page.mouse.move(0, 0)
    assert lit.count() == 0


@pytest.mark.parametrize("width", [1280, 360])
def test_stepping_moves_nothing_on_the_page(tab, served, width):
    root = opened(tab, served, viewport={"width": width, "height": 800})
    for length, head_dim, position in (("512", "128", "0"), ("8192", "256", "4020")):
        root.locator("select").nth(0).select_option(length)
        root.locator("select").nth(1).select_option(head_dim)
        root.locator("input[data-trait=position]").fill(position)
        places = set()
        for _ in range(8):
            root.locator(".ft-orders").press("Space")
            places.add(
                root.evaluate("""(e) => JSON.stringify([e, ...e.querySelectorAll(
                    '.ft-orders svg, .ft-parts, .ft-moves, .ft-facts, .ft-sentence, .ft-try, .ft-controls')]
                    .map((part) => { const b = part.getBoundingClientRect(), a = e.getBoundingClientRect();
                      return [b.x - a.x, b.y - a.y, b.width, b.height].map(Math.round); }))""")
            )
        assert len(places) == 1, length


def test_run_goes_to_the_end_by_itself_and_at_once_where_motion_is_unwanted(tab, served):
    root = opened(tab, served)
    root.locator("button.ft-run").click()
    expect(root, position=64)

    page = tab(reduced_motion="no-preference").open(f"{served}/{PAGE}")
    page.clock.install()
    root = widget(page)
    root.locator(".ft-orders").press("End")
    root.locator("button.ft-run").click()  # from the end it begins again
    assert "Nothing has moved" in sentence(root)
    assert root.locator("button.ft-run").inner_text() == "Pause"
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "off"
    page.clock.run_for(60_000)
    assert root.locator("button.ft-run").inner_text() == "Run"
    expect(root, position=64)
    assert root.locator(".ft-sentence").get_attribute("aria-live") == "polite"
    root.locator("select").nth(0).select_option("8192")  # many visits take no longer
    root.locator(".ft-orders").press("Home")
    root.locator("button.ft-run").click()
    page.clock.run_for(1_000)
    root.locator("button.ft-run").click()  # Pause
    shown = table(root)
    page.clock.run_for(5_000)
    assert table(root) == shown and shown["moved so far"] != shown["moved in all"]
    root.locator("button.ft-run").click()
    page.clock.run_for(20_000)
    expect(root, n=8192, position=4096)


def test_every_experiment_shows_what_it_says(tab, served):
    root = opened(tab, served)
    total, shared = {}, {}

    def number(text):
        amount, unit = text.split()
        return float(amount.replace(",", "")) * {"KiB": 1, "MiB": 1024}[unit]

    for link in root.locator(".ft-try button").all():
        link.click()
        name, now = link.inner_text(), table(root)
        assert sentence(root).startswith(name)
        total[name] = [number(cell) for cell in now["moved in all"]]
        shared[name] = now["shared, of 227 KiB"]
    for large, small in (("128 queries a tile", "64"), ("64", "32")):
        assert 1.8 < total[small][0] / total[large][0] < 2 and total[small][1] == total[large][1]
    for large, small in (("128 queries a tile", "64 keys"), ("64 keys", "32 keys")):
        assert 1.8 < total[small][1] / total[large][1] < 2.2 and total[small][0] == total[large][0]
    assert all("⚠" in cell for cell in shared["Heads of 256"])
    for name in ("32 keys a tile", "4 stages"):
        assert not any("⚠" in cell for cell in shared[name])
    assert (
        total["32 keys a tile"][0] == total["Heads of 256"][0]
        and total["4 stages"][0] == total["1,024 tokens"][0]
    )
    for order in (0, 1):
        assert 55 < total["8,192"][order] / total["1,024 tokens"][order] < 67
    assert count(8192)["once"] == 8 * count(1024)["once"]
    assert table(root)["m, l, o"][0] == "0 B"


def test_touch_targets_are_large_enough(tab, served):
    root = opened(tab, served, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    targets = root.locator(":is(.ft-controls, .ft-parts) button, select, input")
    heights = targets.evaluate_all("found => found.map(e => e.getBoundingClientRect().height)")
    assert len(heights) == 5 + 3 + 4 + 4 and min(heights) >= 44, heights


def test_no_javascript_table_equals_the_live_one(browser, tab, served):
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(f"{served}/{PAGE}")
    rows = still.locator(".ft-fallback:has-text('keys outside')").locator("tbody tr").all()
    stills = [row.locator("th, td").all_inner_texts() for row in rows]
    context.close()
    assert len(stills) == 6
    root = opened(tab, served)
    for pair, *cells in stills:
        for trait, tile in zip(("tile_q", "tile_k"), map(int, pair.split(" × ")), strict=True):
            root.locator(f"input[data-trait={trait}]").fill(str(TILES.index(tile)))
        now = table(root)
        assert now["moved in all"] == tuple(cells[:2])
        assert tuple(f"{cell} KiB" for cell in now["shared, of 227 KiB"]) == tuple(cells[2:])
