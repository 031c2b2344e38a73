"""The partial state (m, l, o): step, merge, finalize, and the softmax made of them."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import State, empty_state, finalize, from_result, merge, online_softmax, step

# Not all warnings: those of sockets that another test left to the garbage collector are not ours.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::DeprecationWarning")
EPS = np.finfo(np.float64).eps
NAN = np.nan
seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None, max_examples=60)


def whole(s, v):
    """(o, lse) of scores s (..., n) and values v (n, d), from the definition."""
    lse = np.logaddexp.reduce(s, axis=-1, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        p = np.where(np.isneginf(s), 0, np.exp(s - lse[..., None]))
    return p @ v, lse


def random_state(rng, rows=(5,), dim=3):
    """A state over a few keys, in which some rows have seen none."""
    s = 10 * rng.standard_normal((*rows, 4))
    s[rng.random(s.shape) < 0.3] = -np.inf
    s[rng.random(rows) < 0.3] = -np.inf
    return step(empty_state(rows, dim), s, rng.standard_normal((4, dim)))


def assert_same_state(a, b, ulps=0.0):
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(np.isneginf(x), np.isneginf(y))
        finite = ~np.isneginf(x)
        scale = np.abs(y[finite]).max(initial=1)
        assert np.abs(x[finite] - y[finite]).max(initial=0) <= ulps * EPS * scale


@quick
@given(seeds)
def test_merge_is_commutative_to_the_bit(seed):
    rng = np.random.default_rng(seed)
    a, b = random_state(rng), random_state(rng)
    assert_same_state(merge(a, b), merge(b, a))


@quick
@given(seeds)
def test_merge_is_associative(seed):
    rng = np.random.default_rng(seed)
    a, b, c = (random_state(rng) for _ in range(3))
    assert_same_state(merge(merge(a, b), c), merge(a, merge(b, c)), ulps=16)


@quick
@given(seeds)
def test_empty_is_the_identity_of_merge(seed):
    a = random_state(np.random.default_rng(seed))
    empty = empty_state((5,), 3)
    assert_same_state(merge(a, empty), a)
    assert_same_state(merge(empty, a), a)


@quick
@given(seeds, st.lists(st.integers(1, 7), min_size=1, max_size=6), st.sampled_from([1.0, 30.0, 1e4]))
def test_any_cut_into_tiles_gives_the_whole(seed, tiles, spread):
    rng = np.random.default_rng(seed)
    s = spread * rng.standard_normal((4, sum(tiles)))
    s[rng.random(s.shape) < 0.25] = -np.inf
    v = rng.standard_normal((sum(tiles), 3))
    stepped, merged = empty_state((4,), 3), empty_state((4,), 3)
    for start, n in zip(np.cumsum([0, *tiles]), tiles, strict=False):
        tile = slice(start, start + n)
        stepped = step(stepped, s[:, tile], v[tile])
        merged = merge(merged, step(empty_state((4,), 3), s[:, tile], v[tile]))
    expected_o, expected_lse = whole(s, v)
    seen = ~np.isneginf(expected_lse)
    for state in stepped, merged:
        o, lse = finalize(state)
        # lse near spread is itself rounded to spread * EPS, and the oracle's probabilities with it.
        assert np.abs(o - expected_o).max() <= 8 * EPS * max(4, 4 * spread) * np.abs(v).max()
        assert np.array_equal(np.isneginf(lse), ~seen)
        assert np.abs(lse[seen] - expected_lse[seen]).max(initial=0) <= 8 * EPS * max(1, 5 * spread)


def test_step_keeps_its_letters():
    """One tile by hand: scores ln 1, ln 2, ln 4 give m = ln 4, l = 7/4, o = (1 v0 + 2 v1 + 4 v2) / 4."""
    first = step(empty_state((), 1), np.log([1.0]), [[1.0]])
    m, l, o = step(first, np.log([2.0, 4.0]), [[10.0], [100.0]])
    assert m == np.log(4.0)
    assert abs(l - 7 / 4) <= 4 * EPS
    assert abs(o[0] - 421 / 4) <= 4 * EPS * 421 / 4


def test_step_and_merge_leave_their_arguments_alone():
    rng = np.random.default_rng(0)
    a, b = random_state(rng), random_state(rng)
    s, v = rng.standard_normal((5, 4)), rng.standard_normal((4, 3))
    before = [x.copy() for x in (*a, *b, s, v)]
    step(a, s, v)
    merge(a, b)
    finalize(a)
    for x, y in zip((*a, *b, s, v), before, strict=True):
        assert np.array_equal(x, y)


def test_a_tile_without_visible_keys_changes_nothing():
    state = step(empty_state((2,), 2), np.array([[1.0], [-np.inf]]), np.ones((1, 2)))
    after = step(state, np.full((2, 3), -np.inf), np.full((3, 2), NAN))
    assert_same_state(after, state)
    o, lse = finalize(after)
    assert np.array_equal(o, [[1, 1], [0, 0]])
    assert np.array_equal(lse, [1, -np.inf])


def test_an_empty_first_tile_then_a_good_one():
    state = step(empty_state((), 2), np.full(4, -np.inf), np.ones((4, 2)))
    assert state.m == -np.inf
    assert state.l == 0
    o, lse = finalize(step(state, np.zeros(2), np.array([[1.0, 2.0], [3.0, 4.0]])))
    assert np.array_equal(o, [2, 3])
    assert abs(lse - np.log(2)) <= EPS


@pytest.mark.parametrize("bad", [NAN, np.inf, -np.inf])
def test_a_masked_value_adds_nothing_and_a_visible_one_does(bad):
    s = np.array([[0.0, -np.inf, 0.0], [0.0, 0.0, 0.0], [-np.inf, -np.inf, -np.inf]])
    v = np.array([[1.0, 1.0], [bad, 5.0], [3.0, 3.0]])
    o, _ = finalize(step(empty_state((3,), 2), s, v))
    assert np.array_equal(o[0], [2, 2])
    assert np.array_equal(o[2], [0, 0])
    assert np.array_equal(o[1], [bad, 3], equal_nan=True)


def test_values_for_each_row():
    rng = np.random.default_rng(1)
    s, v = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 3, 5, 4))
    s[0, 1, 2] = -np.inf
    v[0, 1, 2] = NAN
    o, _ = finalize(step(empty_state((2, 3), 4), s, v))
    for i in np.ndindex(2, 3):
        expected, _ = whole(s[i], np.where(np.isnan(v[i]), 0, v[i]))
        assert np.abs(o[i] - expected).max() <= 8 * EPS * np.nanmax(np.abs(v))


def test_merging_empties_is_empty_and_finite():
    o, lse = finalize(merge(empty_state((2,), 3), empty_state((2,), 3)))
    assert np.array_equal(o, np.zeros((2, 3)))
    assert np.array_equal(lse, [-np.inf, -np.inf])


@pytest.mark.parametrize("garbage", [NAN, np.inf, 7.0])
def test_what_an_empty_state_holds_does_not_matter(garbage):
    scratch = State(np.full(5, -np.inf), np.full(5, garbage), np.full((5, 3), garbage))
    a = random_state(np.random.default_rng(2))
    for state in merge(a, scratch), merge(scratch, a):
        o, lse = finalize(state)
        expected_o, expected_lse = finalize(a)
        assert np.array_equal(o, expected_o)
        assert np.array_equal(lse, expected_lse)
    assert np.array_equal(finalize(scratch)[0], np.zeros((5, 3)))


def test_merge_takes_views():
    rng = np.random.default_rng(3)
    a, b = random_state(rng, (4, 6)), random_state(rng, (4, 6))
    strided = State(np.asfortranarray(a.m), np.repeat(a.l, 2, 1)[:, ::2], a.o[:, :, ::-1].copy()[:, :, ::-1])
    assert not strided.m.flags.c_contiguous
    assert_same_state(merge(strided, b), merge(a, b))


@pytest.mark.parametrize("splits", [1, 4])
def test_a_sink_counts_once(splits):
    """An attention sink is a state with m = sink, l = 1, o = 0: one more key, of value 0, whatever else is
    empty."""
    s, v = np.array([0.5, -1.0]), np.array([[1.0], [2.0]])
    state = step(empty_state((), 1), s, v)
    for _ in range(splits):
        state = merge(state, empty_state((), 1))
    o, lse = finalize(merge(state, State(np.float64(2.0), np.float64(1.0), np.zeros(1))))
    expected, expected_lse = whole(np.append(s, 2.0), np.append(v, [[0.0]], axis=0))
    assert abs(o - expected) <= 4 * EPS
    assert abs(lse - expected_lse) <= 4 * EPS


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([-6e4, -6e4, -6e4], [1 / 3, 1 / 3, 1 / 3]),  # far below any stand-in for -inf
        ([-2e6, -np.inf], [1, 0]),  # below -1e6, beside a masked key
        ([1e4, -1e4], [1, 0]),
        ([-1e4, 1e4], [0, 1]),
        ([1e300, 1e300], [0.5, 0.5]),
        ([7.0, 7.0, 7.0, 7.0], [0.25] * 4),
        ([0.0, 800.0, 0.0], [0, 1, 0]),  # exp(800) overflows
        ([-800.0, 0.0, -800.0], [0, 1, 0]),
    ],
)
@pytest.mark.parametrize("tile", [1, 2, 8])
def test_scores_of_any_size(scores, weights, tile):
    s, v = np.array(scores), np.eye(len(scores))
    state = empty_state((), len(scores))
    for start in range(0, len(s), tile):
        state = step(state, s[start : start + tile], v[start : start + tile])
    o, lse = finalize(state)
    assert np.abs(o - weights).max() <= 2 * EPS
    assert abs(lse - np.logaddexp.reduce(s)) <= EPS * np.abs(s[np.isfinite(s)]).max()
    assert np.abs(online_softmax(s, tile) - weights).max() <= 2 * EPS


def test_lse_is_a_natural_log():
    _, lse = finalize(step(empty_state((), 1), np.zeros(8), np.zeros((8, 1))))
    assert abs(lse - np.log(8)) <= 2 * EPS


def test_float32_stays_float32():
    state = step(empty_state((2,), 3, np.float32), np.ones((2, 4), np.float32), np.ones((4, 3), np.float32))
    assert {x.dtype for x in (*state, *merge(state, state), *finalize(state))} == {np.dtype(np.float32)}
    assert online_softmax(np.ones((2, 4), np.float16), 3).dtype == np.float32


@quick
@given(seeds, st.integers(0, 40), st.integers(1, 50))
def test_online_softmax_in_any_tile(seed, n, tile):
    rng = np.random.default_rng(seed)
    x = 50 * rng.standard_normal((2, 3, n))
    x[rng.random(x.shape) < 0.2] = -np.inf
    if n:
        x[0, 0] = -np.inf
    lse = np.logaddexp.reduce(x, axis=-1, initial=-np.inf)
    expected = np.exp(x - np.where(np.isneginf(lse), 0, lse)[..., None])
    assert np.abs(online_softmax(x, tile) - expected).max(initial=0) <= 500 * EPS


@pytest.mark.parametrize("tile", [0, -1, 2.0, True, None])
def test_online_softmax_refuses_a_bad_tile(tile):
    with pytest.raises(ValueError, match="tile must be an integer of at least 1"):
        online_softmax([1.0], tile)


@pytest.mark.parametrize("x", [1.0, ["a"], [1j]])
def test_online_softmax_refuses_bad_numbers(x):
    with pytest.raises(ValueError, match="x must"):
        online_softmax(x, 1)


@quick
@given(seeds)
def test_finished_results_merge_as_their_states_do(seed):
    rng = np.random.default_rng(seed)
    a, b = random_state(rng), random_state(rng)
    o, lse = finalize(merge(from_result(*finalize(a)), from_result(*finalize(b))))
    expected_o, expected_lse = finalize(merge(a, b))
    assert np.abs(o - expected_o).max() <= 16 * EPS * np.abs(expected_o).max(initial=1)
    seen = ~np.isneginf(expected_lse)
    assert np.array_equal(~np.isneginf(lse), seen)
    assert np.abs(lse[seen] - expected_lse[seen]).max(initial=0) <= 64 * EPS * np.abs(expected_lse[seen]).max(
        initial=1
    )


@quick
@given(seeds, st.integers(1, 5))
def test_a_sink_is_one_more_key_whose_value_is_zero(seed, splits):
    """It counts once, however many splits there are and whichever of them are empty."""
    rng = np.random.default_rng(seed)
    heads, n, dim = 3, 7, 4
    s, v, sink = (
        rng.standard_normal((heads, 5, n)),
        rng.standard_normal((n, dim)),
        rng.standard_normal((heads, 1)),
    )
    s[:, 0] = -np.inf  # a row that sees the sink alone
    cuts = np.sort(rng.integers(0, n + 1, splits - 1)).tolist()
    state = empty_state((heads, 5), dim)
    for begin, end in zip([0, *cuts], [*cuts, n], strict=True):
        state = merge(state, step(empty_state((heads, 5), dim), s[..., begin:end], v[begin:end]))
    o, lse = finalize(merge(state, from_result(np.zeros(dim), sink)))
    with_key = np.concatenate([s, np.broadcast_to(sink[..., None], (heads, 5, 1))], axis=-1)
    expected_o, expected_lse = whole(with_key, np.concatenate([v, np.zeros((1, dim))]))
    assert np.abs(o - expected_o).max() <= 32 * EPS * np.abs(v).max(initial=1)
    assert np.abs(lse - expected_lse).max() <= 32 * EPS * np.abs(expected_lse).max(initial=1)
    assert np.array_equal(lse[:, 0], np.broadcast_to(sink, (heads, 5))[:, 0])


def test_an_empty_result_holds_nothing_whatever_lies_there():
    o, lse = finalize(from_result(np.full(3, NAN), np.array(-np.inf)))
    assert not o.any()
    assert np.isneginf(lse)
