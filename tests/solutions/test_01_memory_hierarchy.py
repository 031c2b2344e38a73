"""What is special to exercise 01: what its checks hold for true, against arrays that are walked through, and its speeds."""

import dataclasses
import math

import numpy as np
import pytest

from autograder import exercise
from autograder.checks import CHECKS, core, ex01
from autograder.contestant import moved_bytes, perform
from autograder.student import rung

ASSIGNMENT = "01_memory_hierarchy"


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def cases(name, where="numpy", seed=5):
    return list(CHECKS[name].cases(np.random.default_rng(seed), where))


def array(*shape, number):
    """An array of this shape that takes no memory; its `nbytes` are those that it would have."""
    return np.broadcast_to(np.zeros((), {2: np.float16, 4: np.float32}[number]), shape)


def arrays(q_len, kv_len, heads, d, number):
    q, o = (array(heads, q_len, d, number=number) for _ in range(2))
    k, v = (array(heads, kv_len, d, number=number) for _ in range(2))
    s, p = (array(heads, q_len, kv_len, number=number) for _ in range(2))
    return q, k, v, s, p, o


def test_the_counts_are_those_of_the_arrays_that_each_kernel_takes_and_gives():
    for case in cases("01.traffic.standard"):
        q, k, v, s, p, o = arrays(*case.call)
        kernels = [((q, k), s), ((s,), p), ((p, v), o)]
        assert case.expected["read"] == sum(x.nbytes for taken, _ in kernels for x in taken)
        assert case.expected["written"] == sum(given.nbytes for _, given in kernels)
    for case in cases("01.traffic.flash"):
        q, k, v, _, _, o = arrays(*case.call)
        assert (case.expected["read"], case.expected["written"]) == (q.nbytes + k.nbytes + v.nbytes, o.nbytes)


def test_the_operations_are_two_for_each_term_of_each_sum():
    for case in cases("01.flop"):
        q, k, v, s, _, o = arrays(*case.call, 2)
        assert case.expected["flop"] == s.size * 2 * q.shape[2] + o.size * 2 * k.shape[1]


def test_the_peak_is_the_most_that_is_held_at_any_moment():
    for case in cases("01.peak"):
        *shape, at_once = case.call
        q, k, v, s, p, o = arrays(*shape)
        held = most = sum(x.nbytes for x in (q, k, v, o))
        for first in range(0, shape[2], at_once):
            group_s, group_p = (x[first : first + at_once].nbytes for x in (s, p))
            for change in (group_s, group_p, -group_s, -group_p):
                held += change
                most = max(most, held)
        assert case.expected["bytes"] == most and held < most


def test_the_bounds_are_the_longer_of_two_times_kernel_by_kernel():
    for case in cases("01.roofline"):
        flop, moved, rate, bandwidth = case.call
        seconds = float(case.expected["seconds"])
        # In that time the card can do all of it and move all of it, and one of the two takes all of the time.
        done, carried = seconds * rate, seconds * bandwidth
        assert done >= flop * (1 - 1e-12) and carried >= moved * (1 - 1e-12)
        assert math.isclose(done, flop) or math.isclose(carried, moved)
        assert math.isclose(float(case.expected["intensity"]) * moved, flop)
    assert (
        len(
            {
                flop / rate < moved / bandwidth
                for flop, moved, rate, bandwidth in (c.call for c in cases("01.roofline"))
            }
        )
        == 2
    )
    for case in cases("01.chain"):
        kernels, rate, bandwidth = case.call
        clock = 0.0
        for flop, moved in kernels:
            clock = max(clock + flop / rate, clock + moved / bandwidth)
        assert math.isclose(case.expected["seconds"], clock)


def test_the_truth_of_the_textbook_form_is_a_softmax_of_each_row():
    for case in cases("01.naive"):
        q, k, v = (x.astype(np.float64) for x in case.call)
        for i, row in enumerate(q):
            s = [math.fsum(row * key) / math.sqrt(len(row)) for key in k]
            w = [math.exp(x - max(s)) for x in s]
            o = [math.fsum(np.array(w) * column) / math.fsum(w) for column in v.T]
            assert np.abs(case.expected["o"][i] - o).max() < 1e-11


def test_the_truth_of_the_kernel_checks():
    for case in cases("01.scale", "interpreter"):
        x, _, n, a = case.call.arguments
        assert case.call.grid == (math.ceil(n / case.call.constants["BLOCK"]),)
        assert np.array_equal(case.expected["out"], [a * float(number) for number in x.array[:n]])
    for name in ("01.softmax.passes", "01.softmax.fused"):
        for case in cases(name, "interpreter"):
            x, _, n = case.call.arguments
            (rows,), block = case.call.grid, case.call.constants["BLOCK"]
            assert n <= block or name == "01.softmax.passes"
            for row, expected in zip(x.array[: rows * n].reshape(rows, n), case.expected["out"], strict=True):
                w = [math.exp(float(number) - float(row.max())) for number in row]
                assert np.abs(expected - np.array(w) / math.fsum(w)).max() < 1e-14
            # A load without a mask stays inside of the memory that was given.
            assert len(x.array) >= (rows - 1) * n + math.ceil(n / block) * block


# ---------------------------------------------------------------------------------------------------------------
# The cells that are not graded


@pytest.fixture
def cells_after(define, run_cell):
    """cells_after(notebook, *words): the names of the notebook, with those of its cells that hold one of `words` as well."""

    def find(notebook, *words):
        space = define(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code" and any(word in cell.source for word in words):
                run_cell(cell.source, f"<ladder {cell['id']} of {space['__name__']}>", space)
        return space

    return find


LADDERS = ("def try_scale", "def try_softmax")


def launch_small(space):
    space["try_scale"](n=20)
    space["try_softmax"](space["softmax_passes_kernel"], rows=2, n=20)
    space["try_softmax"](space["softmax_fused_kernel"], rows=2, n=13, shift=-300.0)


def test_the_ladders_of_right_kernels_report_nothing(cells_after, capsys):
    launch_small(cells_after(exercise.submission(ASSIGNMENT), *LADDERS))
    printed = capsys.readouterr().out
    assert "Written past the end" not in printed and "nan" not in printed
    assert str([3.0 * i for i in range(20)]) in printed


@pytest.mark.parametrize(
    ("cell", "old", "new", "words"),
    [
        ("solution-scale", "a * x, mask=inside)", "a * x)", "out has 20 numbers, and then [0.0, 0.0"),
        ("solution-passes", "total, mask=places < n)", "total)", "out has 40 numbers, and then [0.0, 0.0"),
        ("solution-fused", "0), mask=inside)", "0))", "out has 26 numbers, and then [0.0, 0.0, 0.0, nan"),
        ("solution-scale", "places < n", "places <= n", "out has 20 numbers, and then [60.0, nan"),
    ],
)
def test_a_ladder_says_that_a_store_went_past_the_end_and_lives(cell, old, new, words, cells_after, capsys):
    wrong = exercise.Mutant("no-mask", "", ((cell, old, new),), frozenset())
    launch_small(cells_after(exercise.submission(ASSIGNMENT, wrong), *LADDERS))
    printed = capsys.readouterr().out
    assert printed.count("Written past the end") == 1 and words in printed


def test_a_kernel_that_is_right_but_near_zero_is_seen_by_shifting(cells_after, capsys):
    wrong = next(m for m in exercise.mutants(ASSIGNMENT) if m.name == "maximum-begins-with-zero")
    space = cells_after(exercise.submission(ASSIGNMENT, wrong), *LADDERS)
    space["try_softmax"](space["softmax_passes_kernel"])
    assert "nan" not in capsys.readouterr().out
    space["try_softmax"](space["softmax_passes_kernel"], shift=-300.0)
    assert "nan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value"),
    [("standard_traffic", 5), ("flash_traffic", None), ("attention_flop", None), ("roofline", 1.0), ("chain_time", None)],
)  # fmt: skip
def test_the_sweep_asks_for_what_is_missing(name, value, cells_after, capsys):
    space = cells_after(exercise.submission(ASSIGNMENT), "def sweep")
    assert capsys.readouterr().out.count("\n") >= 7
    space[name] = lambda *arguments: value
    space["sweep"]()
    assert capsys.readouterr().out.endswith("Write parts 1 and 2 first: their checks say what is missing.\n")


# ---------------------------------------------------------------------------------------------------------------
# The checks of speed, at sizes that the interpreter can do. No second is asserted: that needs a card


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(ex01, "_BASE", 2**15)
    monkeypatch.setattr(ex01, "_COPIES", 3)


SPEEDS = {"01.scale.speed": "scale_kernel", "01.softmax.speed": "softmax_fused_kernel"}
interpreter = pytest.mark.skipif(
    rung(CHECKS["01.scale"]) != "interpreter", reason="the card times them itself"
)


@interpreter
@pytest.mark.parametrize("name", SPEEDS)
@pytest.mark.parametrize(("seconds", "passed"), [((2.0, 1.9), True), ((2.0, 1.1), False), (None, None)])
def test_a_right_kernel_passes_by_its_share_alone(name, seconds, passed, small, define):
    kernel = define(exercise.submission(ASSIGNMENT))[SPEEDS[name]]

    def timed(case):
        return dataclasses.replace(perform(kernel, case.call), speed=seconds), None

    for result in core.evaluate(CHECKS[name], np.random.default_rng(1), "gpu", timed):
        assert result.passed is passed, result.message
        assert result.error is not None and (passed is not False or (result.hint and "55%" in result.message))


@interpreter
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_timed_result_is_right_only_if_every_copy_of_it_is(where, small, define, monkeypatch):
    kernel = define(exercise.submission(ASSIGNMENT))["scale_kernel"]
    (case, _) = cases("01.scale.speed")
    n = case.call.arguments[2]
    assert moved_bytes(case.call) == 2 * 4 * n == 2 * 3 * 2**15

    class Spoiled:
        def __getitem__(self, grid):
            def launch(x, out, *rest, **constants):
                kernel[grid](x, out, *rest, **constants)
                out[{"first": 0, "middle": n // 2, "last": n - 1}[where]] += 1

            return launch

    for target, passed in ((kernel, True), (Spoiled(), False)):
        assert core.judge_case(case, perform(target, case.call), {}).passed is passed


def test_the_timed_arrays_are_larger_than_a_cache_and_short_on_their_way():
    for name in SPEEDS:
        for case in cases(name, "gpu"):
            (given,) = (a.array.nbytes for a in case.call.arguments if hasattr(a, "array"))
            assert (
                moved_bytes(case.call) >= 2**29 * 0.99
            )  # the largest cache of a card on the market has 128 MiB
            assert given <= 2**23 and case.least_share > 0.5  # every byte twice through HBM is one half
