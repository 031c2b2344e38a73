"""What is special to exercise 02: what its checks hold for true, against sums written by hand and the reference kernels."""

import itertools
import math

import numpy as np
import pytest

from autograder import exercise
from autograder.checks import CHECKS, ex02
from autograder.student import rung
from kernels.reference import online_softmax
from kernels.reference.state import State, finalize, from_result, merge

ASSIGNMENT = "02_online_softmax"
KERNELS = ["02.kernel.full", "02.kernel.tails", "02.kernel.strides", "02.kernel.empty"]
SEEDS = (5, 6)


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def cases(name, seed=5, rung="numpy"):
    return list(CHECKS[name].cases(np.random.default_rng(seed), rung))


def by_hand(row):
    """(m, l, weights) of one row of scores, with exact summation."""
    m = max(row, default=-math.inf)
    if m == -math.inf:
        return m, 0.0, [0.0] * len(row)
    e = [math.exp(s - m) for s in row]
    return m, math.fsum(e), [x / math.fsum(e) for x in e]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_of_softmax_and_of_the_pass(seed):
    for case in cases("02.softmax", seed):
        expected = [by_hand(row)[2] for row in case.call[0].astype(float)]
        assert np.abs(case.expected["p"] - expected).max() < 1e-13
    for case in cases("02.one_pass", seed):
        m, l, _ = by_hand(case.call[0])  # noqa: E741
        assert case.expected["m"] == m and case.expected["l"] == pytest.approx(l, rel=1e-13)


@pytest.mark.parametrize("name", ["02.update", "02.update.masked"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_of_update_is_a_merge_of_the_library(name, seed):
    for case in cases(name, seed):
        (m, l), s = case.call  # noqa: E741
        tile = by_hand(s)
        old, new = (State(*(np.float64(x) for x in part), np.zeros(0)) for part in ((m, l), tile[:2]))
        merged = merge(old, new)
        assert case.expected["m"] == merged.m and case.expected["l"] == pytest.approx(merged.l, rel=1e-12)


def fold(states, tree):
    if isinstance(tree, int):
        return State(*states[tree])
    return merge(fold(states, tree[0]), fold(states, tree[1]))


@pytest.mark.parametrize("name", ["02.merge", "02.merge.empty", "02.merge.laws"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_of_merge_is_that_of_the_library(name, seed):
    for case in cases(name, seed):
        states, tree = case.call if name == "02.merge.laws" else (case.call, (0, 1))
        for key, got in fold(states, tree)._asdict().items():
            same = np.isclose(got, case.expected[key], rtol=1e-11, atol=1e-11)
            assert same.all(), (case.name, key)


def test_the_laws_are_asked_of_hard_rows_too():
    """Empty states on either side, masked keys, scores of thousands, and each of the groupings of the same three."""
    laws = cases("02.merge.laws")
    m = [np.concatenate([state[0] for state in case.call[0]]) for case in laws]
    assert sum(np.isneginf(x).any() for x in m) >= 4
    assert max(x.max() for x in m) > 1000 and min(x[np.isfinite(x)].min() for x in m) < -1000
    trees = [case.call[1] for case in laws[:4]]
    assert len(set(trees)) == 4
    for a, b in itertools.pairwise(laws[:4]):
        assert all(np.array_equal(a.expected[key], b.expected[key]) for key in a.expected)
    # No two empty states meet before a full one: that is 02.merge.empty's.
    for case in laws:
        states, tree = case.call
        assert all((np.isfinite(m)).all() for m in _inner(states, tree))
    both = [np.isneginf(a[0]) & np.isneginf(b[0]) for a, b in (case.call for case in cases("02.merge.empty"))]
    assert any(x.any() and not x.all() for x in both) and any(x.all() for x in both)
    assert any(np.isnan(b[2]).any() for _, b in (case.call for case in cases("02.merge.empty")))


def _inner(states, tree):
    """m of every merge in the tree."""
    if isinstance(tree, int):
        return []
    return [fold(states, tree).m, *_inner(states, tree[0]), *_inner(states, tree[1])]


def moved(state, left, s, values):
    """How far the output moves when `left` keys arrive, all of score s (rows,), whose values have the mean `values`."""
    now = finalize(state)[0]
    rest = from_result(np.broadcast_to(values, now.shape), s + (math.log(left) if left else -np.inf))
    return np.abs(finalize(merge(state, rest))[0] - now)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_of_stopping_early_holds_and_is_reached(seed):
    """No keys within the assumptions move the output further, and some move it so far."""
    rng = np.random.default_rng(seed)
    for case in cases("02.early", seed):
        state, left, highest, low, high = case.call
        state, bound = State(*state), case.expected["change"]
        top = np.minimum(highest, 1e5)  # where nothing is known, a score of 100000 is as good as inf
        reached = np.maximum(*(moved(state, left, top, values) for values in (low, high)))
        assert np.allclose(reached, bound, rtol=1e-9, atol=1e-12), case.name
        for _ in range(50):
            s, values = top - rng.exponential(2.0, top.shape), rng.uniform(low, high, bound.shape)
            assert (moved(state, left, s, values) <= bound + 1e-12).all()


def in_memory(case):
    """The rows that a kernel case launches over, read by its strides."""
    memory, _, row_stride, stride, _, _, n = case.call.arguments
    return memory.array[np.arange(case.call.grid[0])[:, None] * row_stride + np.arange(n) * stride]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_of_the_kernel_checks(name, seed):
    for case in cases(name, seed, "interpreter"):
        x = in_memory(case).astype(np.float64)
        _, _, _, _, out_row_stride, out_stride, n = case.call.arguments
        out = case.expected["out"]
        rows = out.reshape(-1)[np.arange(len(x))[:, None] * out_row_stride + np.arange(n) * out_stride]
        assert np.abs(rows - [by_hand(row)[2] for row in x]).max() < 1e-13, case.name
        assert np.abs(rows - online_softmax(x, case.call.constants["BLOCK"])).max() < 1e-12
        assert {key: shape for key, (shape, _) in case.call.outputs.items()} == {"out": out.shape}


def test_each_round_of_the_kernel_asks_its_own_question():
    """Tails in 02.kernel.tails alone, strides in .strides alone, -inf in .empty alone: one mistake, one loss."""
    for name in KERNELS:
        for case in cases(name, 7, "interpreter"):
            memory, _, row_stride, stride, out_row_stride, out_stride, n = case.call.arguments
            block = case.call.constants["BLOCK"]
            plain = (row_stride, stride, out_row_stride, out_stride) == (n, 1, n, 1)
            assert (n % block != 0) == (name == "02.kernel.tails"), case.name
            assert plain == (name != "02.kernel.strides"), case.name
            assert not np.isneginf(memory.array).any() or name == "02.kernel.empty"


def walked(x, block, mistake):
    """What the kernel's two walks over x (rows, n) give with one mistake, tile by tile."""
    stop = x.shape[1] // block * block if mistake == "dropped" else x.shape[1]
    out = np.full(x.shape, np.nan)
    for row, s in enumerate(x):
        m, l = -1.0e4 if mistake == "finite_m" else -math.inf, 0.0  # noqa: E741
        for start in range(0, stop, block):
            tile = s[start : start + block]
            m_new = max(m, tile.max())
            l = (1.0 if mistake == "correction" else np.exp(m - m_new)) * l + np.exp(tile - m_new).sum()  # noqa: E741
            m = m if mistake == "m_stays" else m_new
        # A row whose m was never kept looks empty to the second walk: its guard subtracts 0.
        out[row, :stop] = np.exp(s[:stop] - (m if m > -math.inf else 0.0)) / (l or 1.0)
    return out


@pytest.mark.parametrize("mistake", ["correction", "m_stays", "dropped", "finite_m"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_mistake_in_the_walks_gives(mistake, seed):
    """The closed forms that no mutant of the kernel is spent on."""
    found = 0
    for name in ("02.kernel.full", "02.kernel.tails"):
        for case in cases(name, seed, "interpreter"):
            wrong = case.wrong().get(mistake)
            if wrong is not None:
                expected = walked(in_memory(case).astype(np.float64), case.call.constants["BLOCK"], mistake)
                assert np.allclose(wrong["out"], expected, rtol=1e-9, atol=1e-12, equal_nan=True), case.name
                found += 1
    assert found >= 2


def test_on_a_gpu_a_long_row_is_added():
    names = [case.name for case in cases("02.kernel.full", 7, "gpu")]
    assert names[:-1] == [case.name for case in cases("02.kernel.full", 7, "interpreter")]
    assert cases("02.kernel.full", 7, "gpu")[-1].call.arguments[-1] > 4096


UNMASKED_STORE = ("solution-kernel", "p, mask=j < n)", "p)")
NAN_BEHIND = ("solution-kernel", 'tl.load(x_ptr + j * x_stride, mask=j < n, other=float("-inf"))\n        s = s.to(tl.float32)\n        p',
              "tl.load(x_ptr + j * x_stride)\n        s = s.to(tl.float32)\n        p")  # fmt: skip


@pytest.mark.skipif(rung(CHECKS["02.kernel.full"]) is None, reason="Triton has no build here")
@pytest.mark.parametrize(
    "edits, n, behind",
    [((), 17, False), ((UNMASKED_STORE,), 32, False), ((UNMASKED_STORE,), 17, True), ((UNMASKED_STORE, NAN_BEHIND), 17, True)],
    ids=["right", "whole-tiles", "unmasked-store", "unmasked-load-and-store"],
)  # fmt: skip
def test_try_kernel_says_that_something_was_written_behind_out(edits, n, behind, define, run_cell, capsys):
    """And the room there is what keeps such a kernel, which part 5 asks for, from ending the process."""
    mutant = exercise.Mutant("none", "", edits, frozenset())
    book = exercise.submission(ASSIGNMENT, mutant)
    space = define(book)
    (cell,) = (c for c in book.cells if c.cell_type == "code" and "def try_kernel" in c.source)
    run_cell(cell.source, "<try_kernel of exercise 02>", space)
    for _ in range(3):
        space["try_kernel"](rows=2, n=n)
    said = capsys.readouterr().out
    assert said.count("largest error:") == 3
    assert said.count("wrote past the end of out") == (3 if behind else 0)
    assert "nan" not in said


def test_every_hint_is_one_that_a_mutant_is_given():
    """No hint of this exercise was only imagined: see the matrix."""
    given = {mistake for m in exercise.mutants(ASSIGNMENT) for mistake in m.hint.values()}
    assert given == set(ex02.HINTS)
