"""What is special to exercise 00: what its checks hold for true, and that the tables of its wrong functions show what it says."""

import math

import numpy as np
import pytest
import torch

from autograder import exercise
from autograder.checks import CHECKS, core, ex00
from autograder.student import PUBLIC_SEED, _performer

ASSIGNMENT = "00_start_here"


def cases(name, rung="interpreter"):
    return CHECKS[name].cases(np.random.default_rng(5), rung)


def product(a, b):
    """a (n, d) times the rows of b (m, d), each sum exact."""
    return np.array([[math.fsum(x * y) for y in b] for x in a])


def test_the_truth_of_the_numpy_checks():
    for case in cases("00.scores", "numpy"):
        q, k = (x.astype(np.float64) for x in case.call)
        assert np.abs(case.expected["s"] - product(q, k) / math.sqrt(q.shape[1])).max() < 1e-13
    for name in ("00.mend.tiles", "00.mend.precision"):
        for case in cases(name, "numpy"):
            w, v, _ = case.call
            assert np.abs(case.expected["o"] - product(w, v.T)).max() < 1e-12


def test_the_truth_of_the_kernel_checks():
    for name in ("00.add.full", "00.add.tails"):
        for case in cases(name):
            x, y, _, n = case.call.arguments
            assert case.call.grid == (math.ceil(n / case.call.constants["BLOCK"]),)
            assert np.array_equal(case.expected["out"], x.array[:n].astype(np.float64) + y.array[:n])
    for name in ("00.dot.float32", "00.dot.bfloat16"):
        for case in cases(name):
            a, b = (x.array.astype(np.float64) for x in case.call.arguments[:2])
            exact = product(a, b.T)
            assert np.abs(case.expected["c"] - exact).max() < 1e-14 * np.abs(exact).max()
            if name.endswith("bfloat16"):
                assert all(
                    np.array_equal(x.array, torch.from_numpy(x.array).bfloat16().float())
                    for x in case.call.arguments[:2]
                )


def test_numbers_become_bfloat16_as_the_two_machines_make_them():
    x = np.random.default_rng(6).standard_normal(4096).astype(np.float32)
    assert np.array_equal(
        ex00._to_bfloat16(x, to_nearest=True), torch.from_numpy(x).bfloat16().float().numpy()
    )
    cut = ex00._to_bfloat16(x)
    assert (np.abs(cut) <= np.abs(x)).all() and not np.array_equal(cut, ex00._to_bfloat16(x, to_nearest=True))


@pytest.fixture
def given(run_cell, capsys):
    """What the cells of the released notebook define up to part 3."""
    space = {"__name__": "given"}
    for cell in exercise.release(ASSIGNMENT).cells:
        if exercise.grade_id(cell) == "solution-add":
            return space
        if cell.cell_type == "code" and not (exercise.grade_id(cell) or "").startswith("check-"):
            run_cell(cell.source, f"<given {cell['id']}>", space)


def results(name, function):
    return list(
        core.evaluate(CHECKS[name], np.random.default_rng(PUBLIC_SEED), "numpy", _performer(function))
    )


def test_the_forgetful_function_passes_where_the_factor_is_1(given):
    found = results("00.scores", given["forgetful"])
    assert [r.passed for r in found] == ["d = 1" in r.name and "d = 16" not in r.name for r in found]
    assert sum(r.passed for r in found) == 1 and found[0].mistake == "scale"
    assert found[0].got / found[0].expected == pytest.approx(
        4
    )  # d = 16: the text says that it is the square root
    assert "float32" in found[-1].name and found[-1].tolerance > 1e5 * found[0].tolerance


def test_the_two_bugs_show_in_a_table_each(given):
    tiles, precision = (results(f"00.mend.{what}", given["broken"]) for what in ("tiles", "precision"))
    assert [r.passed for r in tiles] == ["short" not in r.name and "larger" not in r.name for r in tiles]
    assert any(r.passed for r in tiles) and all(r.error >= 1 for r in tiles if not r.passed)
    assert not any(r.passed for r in precision)
    assert precision[0].mistake is None and 1e-8 < precision[0].error / abs(precision[0].expected) < 1e-5
