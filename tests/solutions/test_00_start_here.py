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
    # All that the notebook promises.
    types = {"00.dot.float32": {"float32"}, "00.dot.bfloat16": {"bfloat16", "float16"}}
    for name in types:
        assert {x.dtype for case in cases(name) for x in case.call.arguments[:2]} == types[name]
        for case in cases(name):
            a, b = (x.array.astype(np.float64) for x in case.call.arguments[:2])
            exact = product(a, b.T)
            assert np.abs(case.expected["c"] - exact).max() < 1e-14 * np.abs(exact).max()
            for x in case.call.arguments[:2]:
                array = torch.from_numpy(x.array)
                assert torch.equal(array, array.to(getattr(torch, x.dtype)).float())


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


def to_tf32(x, nearest):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + (0x1000 if nearest else 0)) & 0xFFFFE000).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("nearest", [False, True])
def test_a_gpu_that_takes_tf32_fails_the_first_case_with_its_hint_however_it_rounds(nearest):
    for seed in range(5):
        case = next(CHECKS["00.dot.float32"].cases(np.random.default_rng(seed), "gpu"))
        a, b = (to_tf32(x.array, nearest) for x in case.call.arguments[:2])
        result = core.judge_case(case, core.Answer([a @ b]), ex00.HINTS)
        assert not result.passed and result.mistake == "ten_bits" and result.error > 4 * result.tolerance


def test_the_case_that_the_interpreter_cannot_see_says_so():
    names = {rung: next(iter(cases("00.dot.float32", rung))).name for rung in ("interpreter", "gpu")}
    assert "TF32" in names["gpu"] and "interpreter" not in names["gpu"]
    assert names["interpreter"] == names["gpu"] + ", which the interpreter never does"


# ---------------------------------------------------------------------------------------------------------------
# Trying the first kernel


@pytest.fixture
def trying(define, run_cell):
    """trying(*wrong): the names of the notebook with these mistakes, `try_add` and `measure` among them."""

    def make(*wrong):
        notebook = exercise.submission(
            ASSIGNMENT, *(m for m in exercise.mutants(ASSIGNMENT) if m.name in wrong)
        )
        space = define(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code" and ("def try_add" in cell.source or "def measure" in cell.source):
                run_cell(cell.source, f"<trying {cell['id']}>", space)
        return space

    return make


@pytest.mark.parametrize(
    "wrong, written",
    [
        ((), []),
        (("store-unmasked",), [0.0, 0.0]),
        (("mask-one-too-many",), [0.0]),
        (("one-block",), []),
    ],
)
def test_try_add_shows_what_is_written_behind_the_end(trying, capsys, wrong, written):
    space = trying(*wrong)
    capsys.readouterr()
    space["try_add"](n=10, block=4)
    out, behind = capsys.readouterr().out.splitlines()
    right = [100.0 + i for i in range(10)]
    assert (out == f"out: {right}") == ("one-block" not in wrong)
    assert behind == f"behind its end: {f'WRITTEN, {written}' if written else 'untouched'}"
    space[
        "try_add"
    ]()  # whole blocks, for the first round: nothing but a mask that is wrong can be seen there, or be missed
    assert capsys.readouterr().out.endswith("untouched\n")


def test_no_first_kernel_can_write_to_memory_of_others(trying):
    """An unmasked store past the end of a small tensor kills the interpreter's process, sooner or later."""
    space, launches = trying(), []

    class Kernel:
        def __getitem__(self, grid):
            def launch(*arguments, BLOCK):
                launches.append((grid[0] * BLOCK, [a for a in arguments if isinstance(a, torch.Tensor)]))

            return launch

    space["add_kernel"] = Kernel()
    for n, block in ((10, 4), (1, 1024), (1000, 256)):
        space["try_add"](n, block)
        space["measure"](n, block)
    assert len(launches) == 6
    for places, tensors in launches:
        assert len(tensors) == 3 and all(t.is_contiguous() and t.numel() >= places + 2**15 for t in tensors)
