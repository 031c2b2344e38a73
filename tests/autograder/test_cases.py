"""The judge keeps the cases of a check between submissions: the same as drawn afresh, unchangeable, and no more than fit."""

import dataclasses

import numpy as np
import pytest

from autograder import checks, judge
from autograder.checks.core import Case, Check
from autograder.contestant import Launch, Tensor


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(judge, "_kept", {})


def check(name="t.one", numbers=1000, count=2, drawn=None):
    """A check of `count` cases of `numbers` float64 each, in the call, in the truth and in what `wrong` remembers."""

    def cases(rng, rung):
        for i in range(count):
            if drawn is not None:
                drawn.append(i)
            x, mistake = rng.standard_normal(numbers), rng.standard_normal(numbers)
            yield Case(f"case {i}", ((x, 3),), {"y": 2 * x}, {"y": 0.0}, lambda mistake=mistake: {"m": {"y": mistake}})

    return Check(name, "a check", "function", cases)


def outcome(case):
    """All that a submission can be compared with, as bytes."""
    call = case.call.arguments if isinstance(case.call, Launch) else case.call
    with np.errstate(all="ignore"):
        wrong = case.wrong() if case.wrong else {}

    def flat(value):
        if isinstance(value, Tensor):
            return value.dtype, flat(value.array)
        if isinstance(value, (tuple, list)):
            return tuple(map(flat, value))
        if isinstance(value, dict):
            return {key: flat(x) for key, x in value.items()}
        return (np.shape(value), np.ma.filled(value, 0).tobytes()) if isinstance(value, np.ndarray) else repr(value)

    return flat([call, case.expected, case.tolerance, wrong]), case.name, case.limit_bytes, case.may_write


def test_cases_are_drawn_once_for_each_seed_check_and_rung():
    drawn = []
    one = check(drawn=drawn)
    first = list(judge.cases(b"seed", one, "numpy"))
    again = list(judge.cases(b"seed", one, "numpy"))
    assert drawn == [0, 1] and all(a is b for a, b in zip(first, again, strict=True))
    named, drawn_otherwise = dataclasses.replace(one, name="t.two"), check(drawn=drawn, count=3)
    for seed, other, rung in ((b"rotated", one, "numpy"), (b"seed", named, "numpy"), (b"seed", one, "gpu"), (b"seed", drawn_otherwise, "numpy")):
        del drawn[:]
        found = list(judge.cases(seed, other, rung))
        assert drawn == list(range(len(found)))
        assert not any(a is b for a in first for b in found), (seed, other.name, rung)
        assert [outcome(case) for case in found] == [outcome(case) for case in other.cases(judge.generator(seed, other.name), rung)]


@pytest.mark.parametrize("name", checks.CHECKS)
def test_kept_cases_are_those_that_are_drawn_afresh_and_nothing_in_them_can_be_written_to(name):
    found = checks.find(name)
    for rung in ("interpreter", "gpu") if found.triton and not found.gpu else ("gpu",) if found.gpu else ("numpy",):
        kept = list(judge.cases(b"seed", found, rung))
        again = judge.cases(b"seed", found, rung)
        for case, fresh, same in zip(kept, found.cases(judge.generator(b"seed", name), rung), again, strict=True):
            if not found.gpu:  # else they may be too large to be kept
                assert case is same
            # `wrong` of the first is called for the second time at the end: it may not change what it computes with either.
            assert outcome(case) == outcome(fresh) == outcome(case)
            call = case.call.arguments if isinstance(case.call, Launch) else case.call
            arrays = [x.array if isinstance(x, Tensor) else x for x in [*call, *case.expected.values()]]
            for array in (x for x in arrays if isinstance(x, np.ndarray) and x.size):
                with pytest.raises(ValueError, match="read-only"):
                    array[(0,) * array.ndim] = 7


def test_what_only_a_mistake_computes_with_is_read_only_too():
    (case, *_) = judge.cases(b"seed", check(), "numpy")
    with pytest.raises(ValueError, match="read-only"):
        case.wrong()["m"]["y"][0] = 7
    with pytest.raises(ValueError, match="read-only"):
        case.call[0][0][0] = 7  # in a tuple in the call


def test_no_more_is_kept_than_fits_and_what_was_used_last_stays(monkeypatch):
    monkeypatch.setattr(judge, "_KEPT_BYTES", 3 * 48_000)  # of the checks above, three
    drawn, made = [], {}

    def use(name, **kwargs):
        before = len(drawn)
        list(judge.cases(b"seed", made.setdefault(name, check(name, drawn=drawn, **kwargs)), "numpy"))
        assert sum(size for _, size in judge._kept.values()) <= 3 * 48_000
        return len(drawn) > before

    assert [use(name) for name in ("a", "b", "c", "a", "d")] == [True, True, True, False, True]
    assert [use(name) for name in ("a", "c", "d", "b")] == [False, False, False, True]  # b was the oldest
    assert use("huge", numbers=10_000) and use("huge", numbers=10_000)  # 480,000 bytes: never kept
    assert [use(name) for name in ("c", "d", "b")] == [False] * 3  # and nothing made room for it
    for i in range(50):
        use(f"another {i}")
    assert len(judge._kept) == 3


def test_cases_that_were_not_drawn_to_the_end_are_not_kept():
    drawn = []
    one = check(drawn=drawn)
    next(judge.cases(b"seed", one, "numpy"))
    assert len(list(judge.cases(b"seed", one, "numpy"))) == 2 and drawn == [0, 0, 1]


def test_a_check_is_made_with_the_kept_cases(graded):
    """Two submissions in one process: the second draws nothing, and gets what it would have got alone."""
    first, _ = graded(seed=b"kept")
    drawn = set(judge._kept)
    assert drawn and {key[0] for key in drawn} == {b"kept"}
    kept = {key: found[0] for key, found in judge._kept.items()}
    second, _ = graded(seed=b"kept")
    assert {key: found[0] for key, found in judge._kept.items()} == kept
    assert all(judge._kept[key][0] is kept[key] for key in kept)

    def plain(verdict):
        cases = [c | {"seconds": 0, "peak_bytes": 0} for cell in verdict["cells"].values() for c in cell["cases"]]
        return [cell["status"] for cell in verdict["cells"].values()], cases

    assert plain(first) == plain(second)


def test_every_array_of_a_case_is_found():
    x, y, z = np.zeros(1), np.zeros(2), np.zeros(3)
    launch = Launch((1,), (Tensor(x), {"deep": [y]}, 1.0), {"o": ((1,), "float32")})

    def wrong(default=z):
        return inner()

    def inner():
        return {"m": {"o": other}}

    other = np.zeros(4)
    case = Case("case", launch, {"o": np.zeros(5)}, {"o": 0.0}, wrong)
    # `wrong` is found in the closure of `dataclasses.replace`d cases as well.
    assert sorted(a.size for a in judge._arrays(dataclasses.replace(case))) == [1, 2, 3, 4, 5]
