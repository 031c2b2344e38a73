"""The roofline's Python side: what it accepts, what it refuses, and its counts against loops that move every tile."""

import json

import pytest

from widgets import Roofline
from widgets.base import size
from widgets.cards import CARDS
from widgets.roofline import DTYPES, HEAD_DIMS, MOVES, TILES, costs, tile_needs

BYTES = {"fp16": 2, "fp32": 4}


def rows_of(n, tile):
    return [min(tile, n - start) for start in range(0, n, tile)]


def standard_by_tiles(n, d, element, tile, l2):
    """Bytes that HBM sees of one head after each of the six moves. Without L2, each tile of scores fetches its own."""
    tiles = rows_of(n, tile)
    once = n * d * element
    if l2:
        q_and_k, v = 2 * once, once
    else:
        q_and_k = sum(once + once for _ in tiles)  # K for each tile of queries, Q for each tile of keys
        v = sum(once for _ in tiles)
    s = p = sum(queries * keys for queries in tiles for keys in tiles) * element
    moves = [q_and_k, s, s, p, p + v, once]
    return [sum(moves[:k]) for k in range(7)]


def flash_by_tiles(n, d, element, tile, l2):
    """Bytes that HBM sees of one head after each tile of queries."""
    moved, cached = [0], False
    for queries in rows_of(n, tile):
        now = queries * d * element  # this tile of Q
        for keys in rows_of(n, tile):
            now += 0 if l2 and cached else 2 * keys * d * element
        cached = True
        moved.append(moved[-1] + now + queries * d * element)  # these rows of O
    return moved


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("n", [64, 127, 512, 1000, 2048])
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, "fp16"), (128, "fp32"), (256, "fp16")])
def test_traffic_is_what_moving_every_tile_adds_up_to(n, head_dim, dtype, l2):
    own = costs(n, 3, head_dim, dtype, "A100", l2)
    args = n, head_dim, BYTES[dtype], own["tile"], l2
    assert own["standard"]["moved"] == [3 * x for x in standard_by_tiles(*args)]
    tiles = flash_by_tiles(*args)
    assert own["visits"] == len(tiles) - 1
    # A sixth of the tiles at each move; one that has been begun counts as done.
    for k, tiles_done in enumerate(own["done"]):
        assert (tiles_done - 1) * MOVES < k * own["visits"] <= tiles_done * MOVES
    assert own["flash"]["moved"] == [3 * tiles[k] for k in own["done"]]
    for form in ("standard", "flash"):
        assert own[form]["bytes"] == own[form]["moved"][-1]
        assert len(own[form]["moved"]) == MOVES + 1


def test_the_numbers_of_the_question():
    own = costs()  # 8,192 tokens, 32 heads of 128, fp16, H100
    assert own["score_head"] == 128 * 2**20 and own["score_all"] == 4 * 2**30
    assert own["standard"]["held"] - own["flash"]["held"] == 2 * own["score_all"]
    assert own["flop"] == 4 * 32 * 8192**2 * 128
    assert (own["standard"]["limit"], own["flash"]["limit"]) == ("memory", "arithmetic")
    assert own["flash"]["seconds"] == pytest.approx(4 * 32 * 8192**2 * 128 / 989e12)
    assert own["standard"]["seconds"] == pytest.approx(own["standard"]["bytes"] / 3.35e12)


def test_kernels_one_after_another_each_take_the_longer_of_traffic_and_arithmetic():
    n, d, heads = 8192, 128, 32
    own = costs(n, heads, d, "fp32", "H100")
    array, matrix, product = heads * n * d * 4, heads * n * n * 4, 2 * heads * n * n * d
    by_hand = (
        max((2 * array + matrix) / 3.35e12, product / 67e12)
        + 2 * matrix / 3.35e12
        + max((matrix + 2 * array) / 3.35e12, product / 67e12)
    )
    assert own["standard"]["seconds"] == pytest.approx(by_hand)
    assert own["standard"]["limit"] == "both in turn"
    assert own["standard"]["seconds"] > max(
        own["standard"]["memory_seconds"], own["standard"]["arithmetic_seconds"]
    )


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_largest_tile_fits_and_the_next_one_does_not(head_dim, dtype, card):
    own = costs(8192, 1, head_dim, dtype, card)
    tile, element = own["tile"], BYTES[dtype]
    q, k, v = (tile * head_dim * element for _ in range(3))
    assert own["shared"] == q + 2 * (k + v) <= CARDS[card].shared_bytes_block
    assert own["registers"] == 4 * (tile * tile + tile * head_dim) <= CARDS[card].register_bytes_each
    if tile < max(TILES):
        shared, registers = tile_needs(2 * tile, head_dim, element)
        assert shared > CARDS[card].shared_bytes_block or registers > CARDS[card].register_bytes_each


def test_cards_are_consistent():
    for card in CARDS.values():
        assert card.shared_bytes_block == card.shared_bytes_each - 1024
        rates = [card.shared_rate, card.l2_rate or card.shared_rate, card.hbm_rate, card.host_rate]
        assert rates == sorted(rates, reverse=True)
        assert card.float32_rate < card.matrix_rate


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", [63, 2**20 + 1, 8192.0, "8192", True, None]),
        ("heads", [0, 257, 1.5, False]),
        ("head_dim", [0, 96, "128", True, [128]]),
        ("dtype", ["fp8", "float16", 2, None]),
        ("card", ["h100", "B200", 0]),
        ("l2", [1, "on", None]),
        ("position", [-1, 7, 2.0]),
    ],
)
def test_bad_arguments_and_assignments_are_named_and_change_nothing(name, values):
    w = Roofline()
    before = getattr(w, name)
    for value in values:
        with pytest.raises(ValueError, match=f"{name} must be"):
            Roofline(**{name: value})
        with pytest.raises(ValueError, match=f"{name} must be"):
            setattr(w, name, value)
        assert getattr(w, name) == before


def test_costs_follow_the_traits():
    w = Roofline(card="A100")
    w.n, w.dtype, w.l2 = 1000, "fp32", False
    assert w.costs == costs(1000, 32, 128, "fp32", "A100", False) != Roofline().costs


def test_the_state_is_json_and_carries_every_card():
    state = Roofline().get_state()
    own = json.loads(json.dumps({key: state[key] for key in ("n", "options")}, allow_nan=False))
    assert own["options"]["cards"].keys() == CARDS.keys()


def test_the_bundle_carries_the_live_view_and_a_still():
    w = Roofline(heads=8, card="A100")
    data, _ = w._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    still = data["text/html"]
    assert "8 heads of 128" in still and "A100" in still
    own = costs(8192, 8, 128, "fp16", "A100")
    for bytes_ in (own["score_head"], own["score_all"], own["standard"]["bytes"], own["flash"]["bytes"]):
        assert f"<td>{size(bytes_)}</td>" in still


def test_sizes_change_their_unit_before_they_show_four_digits_and_round_ties_up():
    assert [size(x) for x in (0, 999, 999.7, 1000 * 2**20, 3 * 2**40)] == [
        "0 B", "999 B", "0.976 KiB", "0.977 GiB", "3 TiB",
    ]  # fmt: skip
    assert [size(x * 2**30) for x in (16.25, 4.125, 2.625)] == ["16.3 GiB", "4.13 GiB", "2.63 GiB"]
