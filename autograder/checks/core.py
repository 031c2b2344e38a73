"""What a check is, and how an answer is compared with the truth.

The same `evaluate` serves the student's own `check` (public cases, answers from this process) and the judge (cases drawn
with the class's secret seed, answers from a sandbox). Only where the answers come from differs, so the two can't disagree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from autograder.contestant import UNTOUCHED, Answer, Launch, moved_bytes

# The tolerance of a case is twice the error of the plain formula in the same dtype, plus this floor: what a right answer
# may lose by adding in another order. Published in the guide; "gpu" is looser in float32 because exp2 and the division
# are approximate there.
FLOOR = {
    "numpy": {"float64": 1e-12, "float32": 2e-6},
    "interpreter": {"float32": 4e-6, "float16": 2e-3},
    "gpu": {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2},
}
# A budget larger than this would accept garbage: a plain formula that overflows in its dtype gives no licence to.
BUDGET_CAP = 0.05
_SLOW = (
    "Every number should be read once and written once, a whole tile at a time, with neighbours side by side. Look for a loop "
    "over single numbers, for something that is loaded twice, or for addresses that jump."
)


@dataclass(frozen=True)
class Case:
    """One call and its true result.

    Attributes:
        name: what a student reads, such as "100 keys in tiles of 32".
        call: positional arguments, or a `Launch`.
        expected: name of each output -> float64 array (never NaN; -inf where the convention says so).
        tolerance: name of each output -> largest allowed absolute error; 0 for whole numbers, which have to be exact. Not used when
            `expected` is empty.
        wrong: a function of no arguments: mistake name -> {output name: array}, computed only when the case fails. In a
            masked array the masked elements may be anything, as long as one of them is wrong.
        limit_bytes: for a memory case, the most that the call may allocate.
        size: for a memory case, the N that the slope is taken over.
        may_write: the call may write to its inputs (another check of the exercise says that it must not).
        names: what the text calls an input: {"argument 1, part 3": "the o of state"}.
        least_share: for a timed launch, the least share of the rate of a copy that passes. Never seconds: a share is the same
            on a slow card and on one that somebody else uses.
    """

    name: str
    call: tuple | Launch
    expected: dict
    tolerance: dict
    wrong: Callable[[], dict] | None = None
    limit_bytes: int | None = None
    size: int | None = None
    may_write: bool = False
    names: dict = field(default_factory=dict)
    least_share: float | None = None


@dataclass(frozen=True)
class Check:
    """What is checked under one name, such as "03.step".

    Attributes:
        kind: "function" (called in the student's process) or "kernel" (jitted; launched by a clean driver).
        cases: `cases(rng, rung)` yields `Case`s; `rung` is "numpy", "interpreter" or "gpu".
        hints: mistake name -> hint.
        needs: checks that must have passed for this one to count.
        gpu: can only be made on a GPU.
        triton: needs triton (interpreter or GPU).
        seconds: the limit for one call.
    """

    name: str
    title: str
    kind: str
    cases: Callable[[np.random.Generator, str], Iterable[Case]]
    hints: dict = field(default_factory=dict)
    needs: tuple = ()
    gpu: bool = False
    triton: bool = False
    seconds: float = 30.0


@dataclass
class Result:
    """How one case went. `passed` is None when the case was not run."""

    name: str
    passed: bool | None
    message: str = ""
    error: float | None = None
    tolerance: float | None = None
    output: str | None = None
    index: tuple | None = None
    expected: float | None = None
    got: float | None = None
    mistake: str | None = None
    hint: str | None = None
    detail: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    size: int | None = None
    speed: tuple | None = None  # of a right answer that was timed: its seconds, and those of a copy of as many bytes
    moved_bytes: int | None = None
    least_share: float | None = None
    # What the function was called with, where that is numbers alone. Not a field: like the expected value it is for the student's own
    # table, and what the judge keeps of a result, its fields, leaves it out.
    called = None

    @property
    def share(self):
        """The rate as a share of a copy's, or None when nothing was timed."""
        return self.speed and self.speed[1] / self.speed[0]


def budget(plain, exact, floor):
    """The allowed error of one output: see FLOOR.

    Args:
        plain: the plain formula's result in the dtype of the inputs, or None for float64 inputs (the floor is all).
        exact: float64 truth, same shape.
        floor: from FLOOR.
    """
    finite = exact[np.isfinite(exact)]
    scale = max(1.0, float(np.max(np.abs(finite)))) if finite.size else 1.0
    if plain is None:
        return floor * scale
    with np.errstate(invalid="ignore"):
        error = np.abs(np.asarray(plain, np.float64) - exact)
    error = error[np.isfinite(error)]
    return min(2 * float(error.max()) if error.size else 0.0, BUDGET_CAP * scale) + floor * scale


def _difference(got, expected):
    """|got - expected|, with inf wherever one of them is not finite and they are not the same infinity."""
    got = np.asarray(got, np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - expected)
    same = np.isinf(expected) & (got == expected)
    return np.where(same, 0.0, np.where(np.isfinite(got) & np.isfinite(expected), error, np.inf))


def _untouched(array):
    """Where nothing was stored: the elements that still have the bits that outputs are filled with."""
    if array.dtype != np.float32:
        return np.zeros(array.shape, bool)
    return array.view(np.uint32) == UNTOUCHED["float32"]


def _called(call):
    """A call as a student would write it, or None where it has more than numbers and tuples of them."""
    if isinstance(call, tuple):
        parts = [_called(x) for x in call]
        return None if None in parts else f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    return f"{call:.12g}" if isinstance(call, float) else str(call) if isinstance(call, int) else None


def judge_case(case, answer, hints):
    """Compare one `Answer` with its `Case` and return a `Result`."""
    result = Result(case.name, False, detail=answer.detail, seconds=answer.seconds)
    result.called = _called(case.call)
    if answer.problem is not None or answer.arrays is None:
        result.message = answer.problem or "no answer came back"
        return result
    if not case.expected:
        result.passed = True
        return result
    names = list(case.expected)
    if len(answer.arrays) != len(names):
        many = f"{len(answer.arrays)} value" + "s" * (len(answer.arrays) != 1)
        result.message = f"{many} came back, expected {len(names)}: ({', '.join(names)})"
        return result
    got = dict(zip(names, answer.arrays, strict=True))
    for name in names:
        if got[name].shape != case.expected[name].shape:
            result.message = f"{name} has shape {got[name].shape}, expected {case.expected[name].shape}"
            if sorted(x.shape for x in got.values()) == sorted(x.shape for x in case.expected.values()):
                result.message += f"; the order is ({', '.join(names)})"
            return result
        if got[name].dtype.kind != "f" and case.expected[name].dtype.kind == "f" and got[name].dtype.kind != "i":
            result.message = f"{name} has dtype {got[name].dtype}, expected a float"
            return result
    worst = None
    for name in names:
        errors = _difference(got[name], case.expected[name])
        tolerance = case.tolerance[name]
        largest = float(errors.max()) if errors.size else 0.0
        ratio = largest / tolerance if tolerance else largest
        if worst is None or ratio > worst[0]:
            worst = (ratio, name, largest, tolerance)
        if largest > tolerance and result.index is None:
            index = np.unravel_index(int(np.argmax(errors.ravel() > tolerance)), errors.shape)
            result.output = name
            result.index = tuple(int(i) for i in index)
            result.expected = float(case.expected[name][index])
            result.got = float(got[name][index])
            result.error, result.tolerance = largest, tolerance
    if result.index is None:
        result.passed = True
        _, result.output, result.error, result.tolerance = worst
        if answer.changed and not case.may_write:
            result.passed = False
            changed = ", ".join(case.names.get(name, name) for name in answer.changed)
            result.message = f"the result is right, but {changed} was written to; work on a copy"
        return result
    bad = got[result.output]
    missing = _untouched(bad) if isinstance(case.call, Launch) else np.zeros(bad.shape, bool)
    nans = np.isnan(bad) & ~missing
    result.message = f"{result.output}{list(result.index) if result.index else ''} is wrong"
    for which, what in ((missing, "were not stored"), (nans, "are NaN")):
        if which.any():
            result.message += f"; {int(which.sum())} of {bad.size} elements {what}"
    # Of a timed launch smallest and largest come back, and what their search makes of a NaN's bits is the machine's affair.
    if isinstance(case.call, Launch) and all(
        (np.isnan(array) if case.call.copies else _untouched(array)).all() for array in got.values()
    ):
        result.message = f"{result.output} is NaN everywhere, as it was before the launch: was anything stored?"
        return result
    recognise(case, got, hints, result)
    return result


def recognise(case, got, hints, result):
    """If `got` is what a known mistake computes on the same inputs, name the mistake and give its hint."""
    if case.wrong is None:
        return
    with np.errstate(all="ignore"):
        wrongs = case.wrong()
    for mistake, outputs in wrongs.items():
        distinct = False
        for name, wrong in outputs.items():
            tolerance, found, expected = case.tolerance[name], got[name], case.expected[name]
            if np.shape(wrong) != found.shape:
                break
            wrong = np.where(np.ma.getmaskarray(wrong), found, np.ma.getdata(wrong)).astype(np.float64)
            if not _alike(found, wrong, tolerance):
                break
            distinct |= not _alike(expected, wrong, tolerance)
        else:
            if distinct:
                result.mistake, result.hint = mistake, hints[mistake]
                return


def _alike(a, b, tolerance):
    # Wrong formulas may overflow to inf or NaN; then those must be in the same places.
    return bool(np.allclose(a, b, rtol=1e-6, atol=tolerance, equal_nan=True))


def evaluate(check, rng, rung, perform):
    """Make `check`: yield a `Result` for each of its cases.

    Args:
        rng: a `numpy.random.Generator`; the same seed gives the same cases.
        rung: "numpy", "interpreter" or "gpu".
        perform: `perform(case) -> (Answer, peak_bytes or None)`.
    """
    for case in check.cases(rng, rung):
        answer, peak = perform(case)
        result = judge_case(case, answer, check.hints)
        if case.limit_bytes is not None:
            result.peak_bytes, result.limit_bytes, result.size = peak, case.limit_bytes, case.size
            if answer.arrays is None:
                result.peak_bytes = None  # a call that gave nothing has no peak worth showing
            if result.passed and peak is None:
                result.passed, result.message = None, "the memory of this call could not be measured"
            elif result.passed and peak > case.limit_bytes:
                result.passed = False
                result.message = (
                    f"right, but the call held {peak / 2**20:.1f} MiB at its peak; "
                    f"the limit is {case.limit_bytes / 2**20:.1f} MiB"
                )
                result.hint = check.hints.get("memory")
                result.mistake = "memory" if result.hint else None
        if case.least_share is not None:
            result.least_share, result.moved_bytes = case.least_share, moved_bytes(case.call)
            if result.passed and answer.speed is None:
                result.passed, result.message = None, "the time of this launch could not be measured"
            elif result.passed:
                result.speed = answer.speed
                if result.share < case.least_share:
                    result.passed = False
                    result.message = (
                        f"right, but at {result.share:.0%} of the rate at which the card copies as many bytes; "
                        f"{case.least_share:.0%} is asked for"
                    )
                    result.mistake, result.hint = "slow", _SLOW
        yield result


def growth(results):
    """One sentence on how the peak grows with N, or "" when fewer than two peaks were measured.

    The slope of log(peak) against log(N) between the smallest and the largest N: about 2 when an N x N array exists.
    """
    measured = [(r.size, r.peak_bytes) for r in results if r.peak_bytes and r.size]
    if len(measured) < 2:
        return ""
    (n0, p0), (n1, p1) = min(measured), max(measured)
    slope = np.log(p1 / p0) / np.log(n1 / n0)
    return f"From N = {n0} to {n1} the peak grew by a factor of {p1 / p0:.1f}: about N to the power {slope:.2f}."


__all__ = [
    "FLOOR",
    "Answer",
    "Case",
    "Check",
    "Launch",
    "Result",
    "budget",
    "evaluate",
    "growth",
    "judge_case",
]
