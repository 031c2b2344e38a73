"""How an answer is compared with the truth."""

import dataclasses

import numpy as np
import pytest

from autograder.checks import core, table
from autograder.contestant import UNTOUCHED, Answer, Launch, perform

INF = np.inf


def case(expected, tolerance=1e-6, **kwargs):
    expected = {"o": np.asarray(expected, np.float64)}
    return core.Case("a case", (), expected, {"o": tolerance}, **kwargs)


def verdict(expected, got, **kwargs):
    return core.judge_case(case(expected, **kwargs), Answer([np.asarray(got)]), {"mistake": "look there"})


@pytest.mark.parametrize(
    ("expected", "got", "passed"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.0 + 9e-7], True),
        ([1.0, 2.0], [1.0, 2.0 + 2e-6], False),
        ([-INF, 2.0], [-INF, 2.0], True),
        ([-INF, 2.0], [INF, 2.0], False),
        ([-INF, 2.0], [-1e30, 2.0], False),
        ([-INF, 2.0], [np.nan, 2.0], False),
        ([1.0, 2.0], [np.nan, 2.0], False),
        ([1.0, 2.0], [INF, 2.0], False),
        ([1.0, 2.0], [[1.0], [2.0]], False),
        ([], [], True),
        ([1.0], np.float32([1.0]), True),
        ([1.0], np.array([True]), False),
    ],
)
def test_an_element_passes_only_within_the_tolerance_and_infinities_only_as_themselves(expected, got, passed):
    assert verdict(expected, got).passed is passed


def test_a_failure_names_the_first_wrong_element_and_counts_nan():
    result = verdict([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [np.nan, 9.0]])
    assert (result.index, result.expected, np.isnan(result.got)) == ((1, 0), 3.0, True)
    assert "1 of 4 elements are NaN" in result.message


def test_a_tolerance_of_zero_takes_the_number_itself_alone_and_is_called_exact():
    count = 2.0**52 + 1
    assert verdict(count, count, tolerance=0.0).passed and verdict(count, int(count), tolerance=0.0).passed
    wrong = verdict(count, count + 1, tolerance=0.0)
    assert wrong.passed is False
    text = table.as_text("a check", [wrong])
    for words in ("exact", "expected: 4503599627370497", "got: 4503599627370498"):
        assert words in text


def test_what_the_function_was_called_with_is_shown_and_never_kept():
    call = (3, ((1.5, 6.32e14), (0, 2**40)), 4.23e12)
    result = core.judge_case(dataclasses.replace(case(1.0), call=call), Answer([np.asarray(2.0)]), {})
    text = table.as_text("a check", [result])
    assert "called with: (3, ((1.5, 6.32e+14), (0, 1099511627776)), 4.23e+12)" in text
    kept = dataclasses.replace(result, expected=None, got=None)  # as the judge does
    assert "called" not in dataclasses.asdict(result)
    assert "called with" not in table.as_text("a check", [kept])
    arrays = core.judge_case(dataclasses.replace(case(1.0), call=(1, np.ones(2))), Answer([np.asarray(2.0)]), {})
    assert arrays.called is None


class Stores:
    """A kernel that stores `value` into `out[where]`."""

    def __init__(self, where, value):
        self.where, self.value = where, value

    def __getitem__(self, grid):
        def launch(out):
            out[self.where] = self.value

        return launch


@pytest.mark.parametrize("dtype", UNTOUCHED)
def test_nothing_stored_is_told_apart_from_nan_that_was_stored(dtype):
    torch = pytest.importorskip("torch")
    zero = torch.zeros(())
    seen = {}
    for name, kernel in {
        "nothing": Stores(slice(0), 0.0),
        "some": Stores(slice(3), 0.5),
        "nan": Stores(slice(None), float("nan")),
        "computed": Stores(slice(None), zero / zero),
        "both": Stores(slice(3), -(zero / zero)),
    }.items():
        launch = Launch((1,), ("@o",), {"o": ((5,), dtype)})
        wrong = lambda: {"mistake": {"o": np.full(5, np.nan)}}  # noqa: E731
        expected = dataclasses.replace(case(np.full(5, 0.5), wrong=wrong), call=launch)
        seen[name] = core.judge_case(expected, perform(kernel, launch), {"mistake": "look there"})
    assert "was anything stored" in seen["nothing"].message and seen["nothing"].hint is None
    assert seen["some"].message == "o[3] is wrong; 2 of 5 elements were not stored"
    for name in ("nan", "computed"):
        assert seen[name].message == "o[0] is wrong; 5 of 5 elements are NaN" and seen[name].hint == "look there"
    assert seen["both"].message == "o[0] is wrong; 2 of 5 elements were not stored; 3 of 5 elements are NaN"


def test_the_number_of_values_and_missing_answers_are_named():
    two = core.judge_case(case([1.0]), Answer([np.ones(1), np.ones(1)]), {})
    assert not two.passed and "2 values came back, expected 1: (o)" in two.message
    none = core.judge_case(case([1.0]), Answer(problem="it raised"), {})
    assert not none.passed and none.message == "it raised"


def test_writing_to_an_input_fails_a_right_answer():
    result = core.judge_case(case([1.0]), Answer([np.ones(1)], changed=["argument 1"]), {})
    assert result.passed is False and "argument 1" in result.message


def test_a_known_mistake_is_recognised_only_when_its_result_is_that_one_and_not_the_truth():
    wrong = lambda: {"mistake": {"o": np.array([5.0, 6.0])}}  # noqa: E731
    assert verdict([1.0, 2.0], [5.0, 6.0], wrong=wrong).hint == "look there"
    assert verdict([1.0, 2.0], [5.0, 7.0], wrong=wrong).hint is None
    same = lambda: {"mistake": {"o": np.array([1.0, 2.0])}}  # noqa: E731
    assert verdict([1.0, 2.0], [1.0, 2.1], wrong=same, tolerance=1e-3).hint is None


def test_the_budget_is_twice_the_plain_formula_plus_the_floor_and_capped():
    exact = np.array([0.5, -0.25])
    assert core.budget(None, exact, 1e-12) == 1e-12
    assert core.budget(exact + 1e-4, exact, 1e-6) == pytest.approx(2e-4 + 1e-6)
    assert core.budget(np.array([np.inf, 9.0]), exact, 1e-6) == pytest.approx(core.BUDGET_CAP + 1e-6)
    assert core.budget(None, np.array([1e4, -INF]), 1e-6) == pytest.approx(1e-2)


def _memory_check(limit):
    def cases(rng, rung):
        for n in (64, 256):
            yield core.Case(f"N = {n}", (n,), {"o": np.zeros(n)}, {"o": 0.1}, limit_bytes=limit, size=n)

    return core.Check("x.memory", "", "function", cases)


def test_a_right_answer_over_its_limit_fails_and_an_unmeasured_one_is_left_open():
    rng = np.random.default_rng(0)
    quadratic = lambda c: (Answer([np.zeros(c.size)]), c.size**2)  # noqa: E731
    small, large = core.evaluate(_memory_check(10_000), rng, "numpy", quadratic)
    assert small.passed is True and large.passed is False and "peak" in large.message
    assert "power 2.00" in core.growth([small, large])
    blind = lambda c: (Answer([np.zeros(c.size)]), None)  # noqa: E731
    assert [r.passed for r in core.evaluate(_memory_check(10_000), rng, "numpy", blind)] == [None, None]


class Equal:
    def __eq__(self, other):
        return True


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "NoneType: is the part still empty, or a `return` missing?"),
        ([1.0, 2.0], "list: several results come back as a tuple"),
        ("x" * 10**6, "str"),
        (Equal(), "Equal"),
        (np.array([object()]), "an array of object"),
        ((np.ones(1), None), "value 2"),
    ],
)
def test_what_is_not_an_array_is_named_and_never_passed_on(returned, words):
    answer = perform(lambda: returned, ())
    assert answer.arrays is None and words in answer.problem and len(answer.problem) < 500


def test_a_subclass_of_ndarray_arrives_as_a_plain_array():
    class Sly(np.ndarray):
        pass

    assert type(perform(lambda: np.ones(2).view(Sly), ()).arrays[0]) is np.ndarray


def test_an_exception_of_any_size_becomes_a_short_problem():
    def raises():
        raise SystemExit("x" * 10**7)

    answer = perform(raises, ())
    assert answer.problem.startswith("SystemExit: xxx") and len(answer.problem) < 400 and len(answer.detail) <= 4000


def test_an_exception_comes_with_the_line_of_the_student_that_it_came_through():
    def helper(x):
        return x[:, None]

    def raises(x):
        return helper(x) + 1

    assert perform(raises, (1,)).problem == "TypeError: 'int' object is not subscriptable, at `return x[:, None]`"

    def wraps(x):
        try:
            helper(x)
        except TypeError as error:
            exec("raise RuntimeError('inside') from error", {"error": error})

    assert "RuntimeError: inside, at `return x[:, None]`" in perform(wraps, (1,)).problem
    assert perform(len, (1,)).problem == "TypeError: object of type 'int' has no len()"


def test_the_callers_arrays_stay_as_they_were_and_the_write_is_reported():
    mine = np.zeros(3)

    def scribbles(x, pair):
        x += 1
        pair[1][0] = 5
        return x

    answer = perform(scribbles, (mine, (1.0, mine)))
    assert mine.tolist() == [0, 0, 0]
    assert answer.changed == ["argument 1", "argument 2, part 2"]


def test_the_table_shows_the_case_the_index_and_the_hint_and_escapes_what_students_write():
    result = core.Result("<b>case</b>", False, "o[1] is wrong", 0.5, 1e-6, "o", (1,), 2.0, 2.5, "m", "look <there>")
    html = table.as_html("a check", [result])
    assert "&lt;b&gt;case" in html and "<b>case" not in html and "look &lt;there&gt;" in html and "<details open" in html
    text = table.as_text("a check", [result])
    for words in ("fail", "first wrong: o[1]", "expected: 2", "got: 2.5", "hint: look <there>", "0 of 1 cases pass"):
        assert words in text


@pytest.mark.parametrize("scale", [1.0, -1e-9, 1e7])
@pytest.mark.parametrize("gap", [1e-1, 1e-7, 1e-11, 2e-15])
def test_numbers_that_differ_are_shown_so_that_the_difference_is_seen(scale, gap):
    a, b = table.apart(scale * 0.3, scale * 0.3 * (1 + gap))
    assert a != b and abs(float(a) - scale * 0.3) <= abs(scale * gap)


def test_whole_numbers_have_all_of_their_digits():
    assert table.number(22560768.0) == "22560768" and table.number(-123456789) == "-123456789"
    assert table.number(2.0**60) == "1.15e+18" and table.number(123456.5) == "1.23e+05"


def test_numbers_that_are_equal_are_short():
    assert table.apart(1 / 3, 1 / 3) == ("0.333333", "0.333333")
    assert table.apart(0.0, float("nan")) == ("0", "NaN")
