"""The reference passes every check; every wrong solution fails those of the matrix and no other, with the right hint."""

import math

import numpy as np
import pytest

from autograder import exercise
from autograder.checks import CHECKS, core
from autograder.student import PUBLIC_SEED, _performer, rung

# Which cells' code a check runs. A check that runs none of a mutant's is the reference's, and that one is tested as well.
RUNS = {
    "03.step": {"solution-step"},
    "03.step.masked": {"solution-step"},
    "03.one_query": {"solution-step", "solution-one-query"},
    "03.tiles": {"solution-tiles"},
    "03.memory": {"solution-tiles"},
    "03.kernel.full": {"solution-kernel"},
    "03.kernel.tails": {"solution-kernel"},
    "03.kernel.causal": {"solution-kernel"},
    "03.kernel.nan": {"solution-kernel"},
    "03.host": {"solution-kernel", "solution-host"},
    "03.host.memory": {"solution-kernel", "solution-host"},
}
ASSIGNMENT = "03_flash_forward"
MUTANTS = exercise.mutants(ASSIGNMENT)
HERE = [name for name in RUNS if rung(CHECKS[name]) is not None]
ON_GPU = rung(CHECKS["03.host.memory"]) == "gpu"


def results(name, target, seed):
    check = CHECKS[name]
    return core.evaluate(check, np.random.default_rng(seed), rung(check), _performer(target))


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def reference(define):
    return define(exercise.submission(ASSIGNMENT))


@pytest.mark.parametrize("name", HERE)
def test_the_reference_passes(name, reference, release, checked):
    target = reference[checked(release)[name][0]]
    for seed in (PUBLIC_SEED, 1, 2, 3):
        found = list(results(name, target, seed))
        assert len(found) >= 2
        assert all(r.passed for r in found), [(seed, r.name, r.message) for r in found if not r.passed]
        measured = [r for r in found if r.limit_bytes]
        # A right solution is nowhere near the limit, and all scores at once are far beyond it.
        assert all(r.peak_bytes < r.limit_bytes / 2 for r in measured)
        assert all(8 * r.size**2 > 8 * r.limit_bytes for r in measured if r.size == 8192)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
@pytest.mark.parametrize("seed", [PUBLIC_SEED, 4])
def test_a_mutant_fails_what_the_matrix_says(mutant, seed, release, define, checked):
    must = mutant.fails if mutant.fails_on_gpu is None or not ON_GPU else mutant.fails_on_gpu
    space = define(exercise.submission(ASSIGNMENT, mutant))
    edited = {cell for cell, _, _ in mutant.edits}
    fails, reasons = set(), {}
    for name in HERE:
        if not RUNS[name] & edited:
            continue
        for r in results(name, space[checked(release)[name][0]], seed):
            assert r.passed is not None
            if not r.passed:
                fails.add(name)
                reasons.setdefault(name, []).append(r.mistake)
                assert r.message
                if r.mistake == mutant.hint.get(name):
                    break
    fails |= {name for name in HERE if fails.intersection(CHECKS[name].needs)}
    assert fails == must & set(HERE)
    for name, mistake in mutant.hint.items():
        if name in HERE:
            assert mistake in reasons[name]


def test_the_matrix_names_checks_and_hints_that_exist():
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 14
    for m in MUTANTS:
        on_gpu = m.fails if m.fails_on_gpu is None else m.fails_on_gpu
        assert m.fails <= on_gpu <= set(RUNS)
        for name, mistake in m.hint.items():
            assert name in m.fails and mistake in CHECKS[name].hints
        for name in RUNS:  # what needs a failed check fails
            if on_gpu.intersection(CHECKS[name].needs):
                assert name in on_gpu, (m.name, name)


@pytest.mark.parametrize("name", RUNS)
def test_each_check_has_a_mutant_that_fails_it_alone(name):
    needing = {other for other in RUNS if name in CHECKS[other].needs}
    alone = [
        m.name for m in MUTANTS if (m.fails if m.fails_on_gpu is None else m.fails_on_gpu) == {name} | needing
    ]
    assert alone


def test_an_edit_that_does_not_fit_is_refused():
    def mutant(*edit):
        return exercise.Mutant("none", "", (edit,), frozenset())

    with pytest.raises(ValueError, match="no solution cell is called 'solution-stride'"):
        exercise.submission(ASSIGNMENT, mutant("solution-stride", "a", "b"))
    with pytest.raises(ValueError, match="occurs 0 times"):
        exercise.submission(ASSIGNMENT, mutant("solution-step", "no such text", "b"))
    with pytest.raises(ValueError, match="should occur once"):
        exercise.submission(ASSIGNMENT, mutant("solution-step", "alpha", "b"))


def test_the_submission_is_the_release_with_its_solutions_filled_in(release):
    filled = exercise.submission(ASSIGNMENT)
    assert len(filled.cells) == len(release.cells)
    for a, b in zip(filled.cells, release.cells, strict=True):
        assert a["id"] == b["id"] and a.metadata == b.metadata
        if exercise.is_solution(b):
            assert a.source != b.source and "SOLUTION" not in a.source
        else:
            assert a.source == b.source


# ---------------------------------------------------------------------------------------------------------------
# What the checks hold for true, against sums written by hand


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


def test_other_seeds_draw_other_cases_of_the_same_kinds():
    for name in RUNS:
        check = CHECKS[name]
        kind = "numpy" if not check.triton else "gpu" if check.gpu else "interpreter"
        if check.gpu:
            continue  # its sizes are fixed; its inputs are large
        one, same, other = (list(check.cases(np.random.default_rng(seed), kind)) for seed in (1, 1, 2))
        assert [c.name for c in one] == [c.name for c in same]
        assert len(one) == len(other) >= 3
        for a, b, c in zip(one, same, other, strict=True):
            assert all(np.array_equal(a.expected[key], b.expected[key]) for key in a.expected)
            if a.name != "no keys at all":
                assert any(not np.array_equal(a.expected[key], c.expected[key]) for key in a.expected)
        if name not in {"03.memory"}:
            assert [c.name for c in one] != [c.name for c in other]


def test_every_mistake_has_a_hint_and_every_hint_a_mistake():
    seen = {"memory"}
    for name in RUNS:
        check = CHECKS[name]
        if check.gpu:
            continue
        for case in check.cases(np.random.default_rng(8), "interpreter" if check.triton else "numpy"):
            for mistake, outputs in (case.wrong() if case.wrong else {}).items():
                seen.add(mistake)
                for output, value in outputs.items():
                    assert np.shape(value) == case.expected[output].shape, (name, case.name, mistake)
    hints = set().union(*(CHECKS[name].hints for name in RUNS))
    assert seen == hints
