"""The tiles simulator's Python side: its counts against loops that move every tile, and what it accepts and refuses."""

import json

import pytest

from widgets import Tiles
from widgets.base import size
from widgets.cards import CARDS
from widgets.tiles import DTYPES, HEAD_DIMS, LENGTHS, ORDERS, PARTS, STAGES, TILES, count

BYTES = {"fp16": 2, "fp32": 4}


def walk(order, n, d, element, tile_q, tile_k):
    """After each visit: bytes moved by part, what this visit moved, and the tiles of queries that HBM holds."""
    moved = dict.fromkeys(PARTS, 0)
    unfinished, finished = set(), set()
    seen = dict.fromkeys(range(n // tile_q), 0)  # tiles of keys that each tile of queries has met
    chip = {}  # which tile of "q", "kv" and "state" is on chip
    tiles_q, tiles_k = range(n // tile_q), range(n // tile_k)
    visits = [(i, j) for i in tiles_q for j in tiles_k]
    if order == "keys":
        visits.sort(key=lambda visit: (visit[1], visit[0]))
    row = (d + 2) * 4  # m, l and o of one query, in float32
    for number, (i, j) in enumerate(visits):
        loads, stores = [], []
        if chip.get("q") != i:
            moved["q"] += tile_q * d * element
            loads.append("q")
        if chip.get("kv") != j:
            moved["kv"] += 2 * tile_k * d * element
            loads.append("kv")
        if chip.get("state") != i and seen[i]:
            moved["state"] += tile_q * row
            loads.append("state")
        chip = {"q": i, "kv": j, "state": i}
        seen[i] += 1
        following = visits[number + 1][0] if number + 1 < len(visits) else None
        if seen[i] == len(tiles_k):
            moved["o"] += tile_q * (d * element + 4)
            stores.append("o")
            unfinished.discard(i)
            finished.add(i)
        elif following != i or order == "keys":  # one thread block's registers hold one state
            moved["state"] += tile_q * row
            stores.append("state")
            unfinished.add(i)
            chip["state"] = None
        yield dict(moved), loads, stores, (i, j), len(unfinished), len(finished)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("n", "head_dim", "dtype", "tile_q", "tile_k"),
    [
        (512, 64, "fp16", 128, 128),
        (512, 128, "fp32", 64, 256),
        (1024, 32, "fp16", 256, 64),
        (512, 256, "fp16", 16, 32),
        (512, 64, "fp32", 256, 256),
    ],
)
def test_every_position_is_what_moving_every_tile_adds_up_to(order, n, head_dim, dtype, tile_q, tile_k):
    args = dict(n=n, head_dim=head_dim, dtype=dtype, tile_q=tile_q, tile_k=tile_k)
    start = count(**args, position=0)
    own = start[order]
    assert own["bytes"] == own["finished"] == own["unfinished"] == 0 and own["loads"] == own["stores"] == []
    assert (own["i"], own["j"]) == (-1, -1)
    steps = list(walk(order, n, head_dim, BYTES[dtype], tile_q, tile_k))
    assert start["visits"] == len(steps) == start["rows"] * start["columns"]
    for position, (moved, loads, stores, at, unfinished, finished) in enumerate(steps, 1):
        own = count(**args, position=position)[order]
        assert own["moved"] == moved, position
        assert own["bytes"] == sum(moved.values())
        assert (own["i"], own["j"]) == at
        assert sorted(own["loads"]) == sorted(loads) and own["stores"] == stores, position
        assert (own["unfinished"], own["finished"]) == (unfinished, finished), position
        assert own["total"] == sum(steps[-1][0].values())


def test_only_the_outer_tile_counts():
    totals = {(q, k): count(tile_q=q, tile_k=k) for q in TILES for k in TILES}
    for q in TILES:
        assert len({totals[q, k]["queries"]["total"] for k in TILES}) == 1
        assert len({totals[k, q]["keys"]["total"] for k in TILES}) == 1
    for order, pairs in (
        ("queries", zip(TILES, TILES[1:], strict=False)),
        ("keys", zip(TILES, TILES[1:], strict=False)),
    ):
        for small, large in pairs:
            assert totals[small, small][order]["total"] > 1.5 * totals[large, large][order]["total"]


def test_the_formulas_of_the_page():
    for n, d, q, k in ((8192, 128, 128, 128), (2048, 64, 64, 256)):
        own = count(n, d, "fp16", q, k)
        assert own["queries"]["total"] == 2 * n * d * 2 + n // q * 2 * n * d * 2 + 4 * n
        assert (
            own["keys"]["total"]
            == 3 * n * d * 2 + n // k * n * d * 2 + 2 * (n // k - 1) * 4 * n * (d + 2) + 4 * n
        )
        assert own["once"] == 4 * n * d * 2 + 4 * n
        assert own["queries"]["intensity"] == pytest.approx(4 * n * n * d / own["queries"]["total"])


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("head_dim", "dtype"), [(128, "fp16"), (256, "fp16"), (64, "fp32"), (256, "fp32")])
def test_budgets(card, stages, head_dim, dtype):
    for tile_q in TILES:
        for tile_k in TILES:
            own = count(8192, head_dim, dtype, tile_q, tile_k, stages, card)
            q, k, v = (tile * head_dim * BYTES[dtype] for tile in (tile_q, tile_k, tile_k))
            needs = {"queries": q + stages * (k + v), "keys": k + v + stages * q}
            registers = 4 * (tile_q * tile_k + tile_q * head_dim)
            assert own["registers"] == registers
            assert own["registers_fit"] == (registers <= 256 * 1024)
            for order, shared in needs.items():
                part = own[order]
                assert part["shared"] == shared
                assert part["fits"] == (shared <= CARDS[card].shared_bytes_block)
                held = 0
                while (
                    part["fits"]
                    and (held + 1) * (shared + 1024) <= CARDS[card].shared_bytes_each
                    and (held + 1) * registers <= 256 * 1024
                ):
                    held += 1
                assert part["blocks"] == held, (order, tile_q, tile_k)


def test_what_the_page_says_of_its_table_of_tiles():
    own = {pair: count(8192, 128, "fp16", *pair) for pair in ((128, 128), (128, 64), (256, 64))}
    assert own[128, 128]["queries"]["blocks"] == 1 and own[128, 64]["queries"]["blocks"] == 2
    assert own[128, 128]["queries"]["total"] == own[128, 64]["queries"]["total"]
    assert own[256, 64]["queries"]["fits"] and 0.7 * 256 * 1024 < own[256, 64]["registers"] <= 256 * 1024


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", [0, 1000, 16384, "1024", True, None, [1024]]),
        ("head_dim", [0, 96, "128", True, None]),
        ("dtype", ["fp8", "float16", 2, None]),
        ("tile_q", [0, 8, 48, 512, "64", False, None]),
        ("tile_k", [0, 8, 48, 512, "64", False, None]),
        ("stages", [0, 5, 1.5, "2", True, None]),
        ("card", ["h100", "B200", 0]),
        ("position", [-1, 2**20, 2.0, "3", True]),
    ],
)
def test_bad_arguments_and_assignments_are_named_and_change_nothing(name, values):
    w = Tiles()
    before = getattr(w, name)
    for value in values:
        with pytest.raises(ValueError, match=f"{name} must be"):
            Tiles(**{name: value})
        with pytest.raises(ValueError, match=f"{name} must be"):
            setattr(w, name, value)
        assert getattr(w, name) == before


def test_count_follows_the_traits_and_a_position_past_the_end_is_the_end():
    w = Tiles(card="A100")
    w.n, w.tile_q, w.stages, w.position = 512, 64, 3, 10_000
    assert w.count == count(512, 128, "fp16", 64, 128, 3, "A100", 8 * 4) != Tiles().count
    assert w.count["position"] == w.count["visits"] == 32


def test_every_choice_divides_every_length():
    assert all(n % tile == 0 for n in LENGTHS for tile in TILES)


def test_the_state_is_json_and_carries_every_card():
    state = Tiles().get_state()
    own = json.loads(json.dumps({key: state[key] for key in ("n", "options")}, allow_nan=False))
    assert own["options"]["cards"].keys() == CARDS.keys()
    assert (
        tuple(own["options"]["head_dims"]) == HEAD_DIMS and own["options"]["dtypes"].keys() == DTYPES.keys()
    )


def test_the_bundle_carries_the_live_view_and_a_still():
    w = Tiles(n=2048, head_dim=256, card="A100")
    data, _ = w._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    still = data["text/html"]
    assert "2,048 tokens" in still and "A100" in still and "⚠" in still
    own = count(2048, 256, "fp16", 64, 128, 2, "A100")
    for order in ORDERS:
        assert f"<td>{size(own[order]['total'])}</td>" in still
