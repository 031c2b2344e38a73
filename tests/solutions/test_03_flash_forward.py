"""What is special to exercise 03: what its checks hold for true, against sums written by hand, what they say, and its memory."""

import math
import re

import numpy as np
import pytest

from autograder import contestant, exercise
from autograder.checks import CHECKS, core
from autograder.student import PUBLIC_SEED, _performer, rung

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


# ---------------------------------------------------------------------------------------------------------------
# What a student is told of the mistakes that are not in the matrix, each of which would be another submission of the sample

STEP, TILES, KERNEL, HOST = (f"solution-{name}" for name in ("step", "tiles", "kernel", "host"))
NEW = "return m_new, alpha * l + p.sum(), alpha * o + p @ v"
STATE = """        m = np.full(len(rows), -np.inf)
        l = np.zeros(len(rows))
        o = np.zeros((len(rows), v.shape[1]))
"""
ALL = "(triton.cdiv(q_len, block), batch * heads)"
LSE = 'tl.where(empty, float("-inf"), m + tl.log(total))'
CAUSAL = "(columns[None, :] <= rows[:, None] + kv_len - q_len)"
# what -> check, edits (cell, old, new), and the mistake that is recognised in the first case that fails.
RECOGNISED = {
    "-1e30 for -inf in s": ("03.step.masked", [(STEP, "m_new =", "s = np.maximum(s, -1e30)\n    m_new =")], "finite_mask"),
    "m is -1e30 at least": ("03.step.masked", [(STEP, "max(m, s.max())", "max(m, s.max(), -1e30)")], "finite_mask"),
    "correction upside down": ("03.tiles", [(TILES, "np.exp(m - m_new)", "np.exp(m_new - m)")], "upside_down"),
    "one sum for all rows": ("03.tiles", [(TILES, "p.sum(axis=1)", "p.sum()")], "sum_all"),
    "one state for all tiles": (
        "03.tiles",
        [(TILES, STATE, ""), (TILES, "    for first", "    rows = q[:tile_q]\n" + STATE.replace("        ", "    ") + "    for first")],
        "state_kept",
    ),
    "lse is m + l": ("03.tiles", [(TILES, "np.log(l)", "l")], "lse_no_log"),
    "lse is l": ("03.tiles", [(TILES, "m + np.log(l)", "l")], "lse_is_l"),
    "kernel: correction upside down": ("03.kernel.full", [(KERNEL, "tl.exp(m - shift)", "tl.exp(shift - m)")], "upside_down"),
    "kernel: one maximum for all rows": ("03.kernel.full", [(KERNEL, "tl.max(s, 1)", "tl.max(s)")], "one_max"),
    "kernel: one sum for all rows": ("03.kernel.full", [(KERNEL, "tl.sum(p, 1)", "tl.sum(p)")], "sum_all"),
    "kernel: lse is m + l": ("03.kernel.full", [(KERNEL, "tl.log(total)", "total")], "lse_no_log"),
    "kernel: no parentheses": ("03.kernel.causal", [(KERNEL, CAUSAL, CAUSAL[1:-1])], "parentheses"),
    "kernel: the diagonal's sign": ("03.kernel.causal", [(KERNEL, "kv_len - q_len)", "q_len - kv_len)")], "diagonal_sign"),
    "kernel: -1e30 for -inf": ("03.kernel.nan", [(KERNEL, 's, float("-inf"))', "s, -1e30)")], "uniform_tile"),
    "kernel: -1e30 for -inf in the diagonal": (
        "03.kernel.nan",
        [(KERNEL, 's, float("-inf"))', 's, tl.where(columns[None, :] < kv_len, -1e30, float("-inf")))')],
        "uniform",
    ),
    "kernel: shift for maximum": ("03.kernel.nan", [(KERNEL, "m = m_new", "m = shift"), (KERNEL, LSE, "m + tl.log(total)")], "shift_kept"),
    "host: axes of the grid": ("03.host", [(HOST, ALL, "(batch * heads, triton.cdiv(q_len, block))")], "grid_axes"),
    "host: three axes": ("03.host", [(HOST, ALL, "(triton.cdiv(q_len, block), batch, heads)")], "grid_axes"),
    "host: head_dim as scale": ("03.host", [(HOST, "head_dim**-0.5", "head_dim")], "scale_is_d"),
    "host: root as scale": ("03.host", [(HOST, "head_dim**-0.5", "head_dim**0.5")], "scale_root"),
    "host: kv_len of q": ("03.host", [(HOST, "k.shape[2]", "q_len")], "kv_from_q"),
}  # fmt: skip
# what -> the same, and what the message of the first case that fails says.
SAID = {
    "another order": (
        "03.step", [(STEP, NEW, "return m_new, alpha * o + p @ v, alpha * l + p.sum()")], "the order is (m, l, o)",
    ),
    "o written to": (
        "03.step", [(STEP, NEW, "o *= alpha\n    o += p @ v\n    return m_new, alpha * l + p.sum(), o")],
        "the o of state was written to",
    ),
    "correction along the wrong axis": ("03.tiles", [(TILES, "alpha[:, None] * o", "alpha * o")], "at `o = alpha * o"),
    "maximum along the wrong axis": ("03.tiles", [(TILES, "s.max(axis=1)", "s.max(axis=0)")], "at `m_new = "),
    "sum along the wrong axis": ("03.tiles", [(TILES, "p.sum(axis=1)", "p.sum(axis=0)")], "at `l = "),
    "no new axis": ("03.tiles", [(TILES, "m_new[:, None]", "m_new")], "at `p = np.exp(s - m_new)`"),
    "kernel: no transpose": ("03.kernel.full", [(KERNEL, "tl.trans(k)", "k")], "at `s = tl.dot(q, k"),
    "kernel: mask of one axis": (
        "03.kernel.full", [(KERNEL, "v_ptr + keys, mask=columns[:, None] <", "v_ptr + keys, mask=columns <")], "at `v = tl.load",
    ),
    "kernel: NumPy": ("03.kernel.full", [(KERNEL, "tl.exp(m - shift)", "np.exp(m - shift)")], "at `alpha = np.exp"),
}  # fmt: skip


def first_failing(name, edits, define, checked, seed):
    notebook = exercise.submission(ASSIGNMENT, exercise.Mutant("none", "", tuple(edits), frozenset()))
    target = define(notebook)[checked(notebook)[name][0]]
    found = core.evaluate(CHECKS[name], np.random.default_rng(seed), rung(CHECKS[name]), _performer(target))
    return next(result for result in found if not result.passed)


@pytest.mark.parametrize("what", RECOGNISED)
@pytest.mark.parametrize("seed", [PUBLIC_SEED, 6])
def test_a_mistake_is_recognised_where_it_first_shows(what, seed, define, checked):
    name, edits, mistake = RECOGNISED[what]
    assert first_failing(name, edits, define, checked, seed).mistake == mistake


@pytest.mark.parametrize("what", SAID)
@pytest.mark.parametrize("seed", [PUBLIC_SEED, 6])
def test_what_does_not_fit_is_said_with_its_line(what, seed, define, checked):
    name, edits, said = SAID[what]
    if name.startswith("03.kernel") and rung(CHECKS[name]) != "interpreter":
        pytest.skip("a GPU's compiler has words of its own")
    assert said in first_failing(name, edits, define, checked, seed).message


def test_what_the_host_does_not_store_is_nan_and_what_it_stores_past_the_end_harms_nothing():
    """In the interpreter such a store is a write to memory: behind a tensor that a call makes, it has to be nobody's."""

    def call(x):
        made = (
            torch.empty_like(x),
            torch.zeros(3, 4, dtype=torch.float16),
            x.new_full((2,), 1.0),
            torch.empty(()),
        )
        turned = torch.empty_like(x.T)
        assert turned.stride() == x.T.stride()
        assert (
            made[0].isnan().all()
            and turned.isnan().all()
            and made[2].tolist() == [1.0, 1.0]
            and not made[1].any()
        )
        assert torch.empty(3, dtype=torch.int32).shape == (3,)  # which has no NaN
        return tuple((m.untyped_storage().nbytes() - m.nbytes) / m.element_size() for m in made)

    torch = pytest.importorskip("torch")
    if contestant._device() != "cpu":
        pytest.skip("on a GPU such memory is torch's")
    x = contestant.Tensor(np.ones((2, 3), np.float32))
    assert contestant.perform(call, (x,)).arrays == [contestant._BEHIND] * 4
    assert torch.empty(3).untyped_storage().nbytes() == 12  # and elsewhere nothing changes


@pytest.mark.parametrize(
    "arguments", [{}, {"kv_len": 33}, {"q_len": 17}, {"heads": 2, "q_len": 40, "kv_len": 17, "causal": True}]
)
@pytest.mark.parametrize("masked", [True, False])
def test_the_trial_cell_bears_a_kernel_without_masks(arguments, masked, define, run_cell, capsys):
    """Behind its arrays there is room: a tail that no mask cuts off is told, and ends no process."""
    if rung(CHECKS["03.kernel.full"]) is None:
        pytest.skip("there is no Triton here")
    loads = [(KERNEL, f"{x}, mask={y}[:, None] < {n}, other=0.0)", f"{x})") for x, y, n in (
        ("q_ptr + tile", "rows", "q_len"), ("k_ptr + keys", "columns", "kv_len"), ("v_ptr + keys", "columns", "kv_len"),
    )]  # fmt: skip
    stores = [
        (KERNEL, ", mask=rows[:, None] < q_len)\n", ")\n"),
        (KERNEL, LSE + ", mask=rows < q_len)", LSE + ")"),
    ]
    edits = () if masked else (*loads, *stores)
    notebook = exercise.submission(ASSIGNMENT, exercise.Mutant("none", "", edits, frozenset()))
    space = define(notebook)
    (cell,) = (c for c in notebook.cells if "def try_kernel" in c.source)
    run_cell(cell.source, "<try_kernel>", space)
    capsys.readouterr()
    space["try_kernel"](**arguments)
    out = capsys.readouterr().out
    assert (
        ("wrote past the end of o" in out)
        == ("wrote past the end of lse" in out)
        == (not masked and "q_len" in arguments)
    )
    if masked:
        errors = [float(e) for e in re.findall(r"error of o (\S+),", out)]
        assert (
            len(errors) == arguments.get("heads", 1)
            and max(errors) < 1e-4
            and out.count("wrong lse: []") == len(errors)
        )
    if not masked and arguments == {"kv_len": 33}:
        assert "error of o nan" in out  # what lies behind the keys, and the same each time
