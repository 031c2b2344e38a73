"""What is special to exercise 03: what its checks hold for true, against sums written by hand, and its memory."""

import math

import numpy as np
import pytest

from autograder import exercise
from autograder.checks import CHECKS

ASSIGNMENT = "03_flash_forward"


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def test_an_edit_that_does_not_fit_is_refused():
    def mutant(*edit):
        return exercise.Mutant("none", "", (edit,), frozenset())

    with pytest.raises(ValueError, match="no solution cell is called 'solution-stride'"):
        exercise.submission(ASSIGNMENT, mutant("solution-stride", "a", "b"))
    with pytest.raises(ValueError, match="occurs 0 times"):
        exercise.submission(ASSIGNMENT, mutant("solution-step", "no such text", "b"))
    with pytest.raises(ValueError, match="should occur once"):
        exercise.submission(ASSIGNMENT, mutant("solution-step", "alpha", "b"))


def test_two_mutants_make_both_mistakes():
    one, two = (
        m for m in exercise.mutants(ASSIGNMENT) if m.name in {"scale-forgotten", "short-tile-dropped"}
    )
    both = exercise.submission(ASSIGNMENT, one, two)
    for mutant in (one, two):
        alone = exercise.submission(ASSIGNMENT, mutant)
        for cell in {cell for cell, _, _ in mutant.edits}:
            (a,), (b,) = ([c.source for c in book.cells if c["id"] == cell] for book in (alone, both))
            assert a == b


def by_hand(q, k, v, visible):
    """Attention of one head, row by row, with exact summation."""
    o, lse = [], []
    for i, row in enumerate(q):
        s = {j: math.fsum(row * k[j]) / math.sqrt(len(row)) for j in range(len(k)) if visible(i, j)}
        if not s:
            o.append([0.0] * v.shape[1])
            lse.append(-math.inf)
            continue
        top = max(s.values())
        w = {j: math.exp(x - top) for j, x in s.items()}
        total = math.fsum(w.values())
        o.append([math.fsum(w[j] * v[j, c] for j in w) / total for c in range(v.shape[1])])
        lse.append(top + math.log(total))
    return np.array(o), np.array(lse)


@pytest.mark.parametrize("name", ["03.one_query", "03.tiles"])
def test_the_truth_of_the_numpy_checks(name):
    for case in CHECKS[name].cases(np.random.default_rng(5), "numpy"):
        q, k, v, *_ = (x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in case.call)
        o, lse = by_hand(np.atleast_2d(q), k, v, lambda i, j: True)
        assert np.abs(case.expected["o"] - (o[0] if q.ndim == 1 else o)).max() < 1e-11
        if q.ndim == 2:
            assert np.abs(case.expected["lse"] - lse).max() < 1e-10


@pytest.mark.parametrize("name", ["03.kernel.full", "03.kernel.tails", "03.kernel.causal", "03.kernel.nan"])
def test_the_truth_of_the_kernel_checks(name):
    for case in CHECKS[name].cases(np.random.default_rng(6), "interpreter"):
        q, k, v, _, _, q_len, kv_len, scale = case.call.arguments
        d = case.call.constants["HEAD_DIM"]
        assert scale == pytest.approx(d**-0.5)
        assert case.call.grid[0] == math.ceil(q_len / case.call.constants["BLOCK_M"])
        for h in range(case.call.grid[1]):
            heads = [
                x.array[h * n * d : (h + 1) * n * d].reshape(n, d).astype(np.float64)
                for x, n in ((q, q_len), (k, kv_len), (v, kv_len))
            ]
            causal = case.call.constants["CAUSAL"]
            o, lse = by_hand(*heads, lambda i, j: not causal or j <= i + kv_len - q_len)  # noqa: B023
            assert np.abs(case.expected["o"][h] - o).max(initial=0) < 1e-11
            assert np.allclose(case.expected["lse"][h], lse, rtol=0, atol=1e-10)


def test_the_truth_of_the_memory_check_is_that_of_all_its_keys():
    case = next(iter(CHECKS["03.memory"].cases(np.random.default_rng(7), "numpy")))
    q, k, v, *_ = case.call
    o, lse = by_hand(q[:5], k, v, lambda i, j: True)
    assert np.abs(case.expected["o"][:5] - o).max() < 1e-12
    assert np.abs(case.expected["lse"][:5] - lse).max() < 1e-12


def test_the_memory_limit_is_far_below_all_scores():
    found = {
        case.size: case.limit_bytes for case in CHECKS["03.memory"].cases(np.random.default_rng(7), "numpy")
    }
    assert found[8192] < 8192**2
