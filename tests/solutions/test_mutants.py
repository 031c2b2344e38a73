"""The reference passes every check; every wrong solution fails those of the matrix and no other, with the right hint."""

import numpy as np
import pytest

from autograder import exercise
from autograder.checks import CHECKS, core
from autograder.student import PUBLIC_SEED, _performer, rung


def readable(read):
    """(assignment, what `read` finds) of each exercise. One that can't be read fails in the test of its matrix; the others still run."""
    for name in exercise.assignments():
        try:
            found = read(name)
        except Exception:  # whatever a half-written file raises
            continue
        yield from ((name, item) for item in found)


MUTANTS = [pytest.param(*pair, id=f"{pair[0]}-{pair[1].name}") for pair in readable(exercise.mutants)]
CHECKED = [
    pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in readable(exercise.runs) if pair[1] in CHECKS
]
ON_GPU = "gpu" in map(rung, CHECKS.values())


def here(assignment):
    """The assignment's checks that can be made on this machine."""
    return [name for name in exercise.runs(assignment) if rung(CHECKS[name]) is not None]


def fails(mutant, on_gpu):
    return mutant.fails if mutant.fails_on_gpu is None or not on_gpu else mutant.fails_on_gpu


def results(name, target, seed):
    check = CHECKS[name]
    return core.evaluate(check, np.random.default_rng(seed), rung(check), _performer(target))


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def reference(define):
    """reference(assignment): the names that the reference defines."""
    spaces = {}

    def find(assignment):
        if assignment not in spaces:
            spaces[assignment] = define(exercise.submission(assignment))
        return spaces[assignment]

    return find


@pytest.mark.parametrize("assignment, name", [p for p in CHECKED if rung(CHECKS[p.values[1]]) is not None])
def test_the_reference_passes(assignment, name, reference, release, checked):
    target = reference(assignment)[checked(release)[name][0]]
    for seed in (PUBLIC_SEED, 1, 2, 3) if "memory" not in name else (PUBLIC_SEED,):  # memory does not depend on it
        found = list(results(name, target, seed))
        assert len(found) >= 2
        assert all(r.passed for r in found), [(seed, r.name, r.message) for r in found if not r.passed]
        # A right solution is nowhere near the limit.
        assert all(r.peak_bytes < r.limit_bytes / 2 for r in found if r.limit_bytes)


@pytest.mark.parametrize("assignment, mutant", MUTANTS)
def test_a_mutant_fails_what_the_matrix_says(assignment, mutant, release, define, checked):
    """With the public cases; with secret ones all of them are graded in tests/autograder/test_sample.py."""
    runs = exercise.runs(assignment)
    space = define(exercise.submission(assignment, mutant))
    edited = {cell for cell, _, _ in mutant.edits}
    failed, reasons = set(), {}
    for name in here(assignment):
        if not runs[name] & edited:
            continue  # it is the reference's, and that one is tested as well
        for r in results(name, space[checked(release)[name][0]], PUBLIC_SEED):
            assert r.passed is not None
            if not r.passed:
                failed.add(name)
                reasons.setdefault(name, []).append(r.mistake)
                assert r.message
                if name not in mutant.hint or r.mistake == mutant.hint[name]:
                    break
    failed |= {name for name in here(assignment) if failed.intersection(CHECKS[name].needs)}
    assert failed == fails(mutant, ON_GPU) & set(here(assignment))
    for name in failed & mutant.hint.keys():
        assert mutant.hint[name] in reasons[name]


@pytest.mark.parametrize("assignment, mutant", MUTANTS)
def test_no_seed_lets_a_mutant_pass(assignment, mutant, release, define, checked):
    """A class draws a seed of its own: what is caught with most of them only would be a grade by luck."""
    space, edited = define(exercise.submission(assignment, mutant)), {cell for cell, _, _ in mutant.edits}
    for name in sorted(mutant.fails.intersection(here(assignment))):
        if rung(CHECKS[name]) != "numpy" or "memory" in name or not exercise.runs(assignment)[name] & edited:
            continue  # these take too long for so many
        for seed in range(100, 120):
            mistakes = [r.mistake for r in results(name, space[checked(release)[name][0]], seed) if not r.passed]
            assert mistakes, (name, seed)
            assert name not in mutant.hint or mutant.hint[name] in mistakes, (name, seed, mistakes)


def test_the_matrix_names_cells_checks_and_hints_that_exist(assignment, release, checked):
    runs, mutants = exercise.runs(assignment), exercise.mutants(assignment)
    assert list(runs) == list(checked(release))
    assert set().union(*runs.values()) == set(exercise.solutions(assignment))
    assert len({m.name for m in mutants}) == len(mutants) >= 8
    here_without_gpu = [name for name in runs if not CHECKS[name].gpu]
    for m in mutants:
        assert m.fails | fails(m, True) <= set(runs)
        assert not [name for name in m.fails if CHECKS[name].gpu]
        for name, mistake in m.hint.items():
            assert name in m.fails | fails(m, True) and mistake in CHECKS[name].hints
        for must, made in (
            (m.fails, here_without_gpu),
            (fails(m, True), runs),
        ):  # what needs a failed check fails
            for name in made:
                assert name in must or not must.intersection(CHECKS[name].needs), (m.name, name)


def test_eight_mistakes_have_hints_of_their_own(assignment):
    hints = [
        CHECKS[name].hints[mistake] for m in exercise.mutants(assignment) for name, mistake in m.hint.items()
    ]
    assert len(set(hints)) >= 8


@pytest.mark.parametrize("assignment, name", CHECKED)
def test_each_check_has_a_mutant_that_fails_it_alone(assignment, name):
    needing = {other for other in exercise.runs(assignment) if name in CHECKS[other].needs}
    assert [m.name for m in exercise.mutants(assignment) if fails(m, True) == {name} | needing]


def test_the_submission_is_the_release_with_its_solutions_filled_in(assignment, release):
    filled = exercise.submission(assignment)
    assert len(filled.cells) == len(release.cells)
    for a, b in zip(filled.cells, release.cells, strict=True):
        assert a["id"] == b["id"] and a.metadata == b.metadata
        if exercise.is_solution(b):
            assert a.source != b.source and "SOLUTION" not in a.source
        else:
            assert a.source == b.source


# ---------------------------------------------------------------------------------------------------------------
# What is drawn, and what is recognised in it


def cases(name, seed):
    """The check's cases where there is no GPU; None for one that is made on a GPU alone, whose inputs are large."""
    check = CHECKS[name]
    if check.gpu:
        return None
    return list(check.cases(np.random.default_rng(seed), "interpreter" if check.triton else "numpy"))


def trivial(case):
    """Whether there is nothing to draw in what is expected, such as zeros where no key is seen."""
    return all(np.all((x == 0) | (x == -np.inf)) for x in case.expected.values())


@pytest.mark.parametrize("assignment, name", CHECKED)
def test_other_seeds_draw_other_cases_of_the_same_kinds(assignment, name):
    one, same, other = (cases(name, seed) for seed in (1, 1, 2))
    if one is None:
        return
    assert [c.name for c in one] == [c.name for c in same]
    assert len(one) == len(other) >= 2
    for a, b, c in zip(one, same, other, strict=True):
        assert all(np.array_equal(a.expected[key], b.expected[key]) for key in a.expected)
        assert trivial(a) or any(not np.array_equal(a.expected[key], c.expected[key]) for key in a.expected)
    if not any(c.limit_bytes for c in one):  # where memory is measured, at sizes that are told
        assert [c.name for c in one] != [c.name for c in other]


def test_every_mistake_has_a_hint_and_every_hint_a_mistake(assignment):
    seen, hints = set(), set()
    for name in exercise.runs(assignment):
        hints |= set(CHECKS[name].hints)
        for case in cases(name, 8) or ():
            if case.limit_bytes:
                seen.add("memory")
            for mistake, outputs in (case.wrong() if case.wrong else {}).items():
                seen.add(mistake)
                for output, value in outputs.items():
                    assert np.shape(value) == case.expected[output].shape, (name, case.name, mistake)
    assert seen == hints
