"""What is special to exercise 04: what its checks hold for true, against the library's mask and sums written by hand."""

import itertools
import math

import numpy as np
import pytest

from autograder.checks import CHECKS, ex04
from autograder.contestant import Tensor
from kernels.reference import mask

KERNELS = ["04.kernel.ragged", "04.kernel.nan", "04.kernel.skips"]


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def cases(name, seed=5):
    check = CHECKS[name]
    return list(check.cases(np.random.default_rng(seed), "interpreter" if check.triton else "numpy"))


def by_hand(q, k, v, seen):
    """Attention of one head over the keys that each row sees, with exact summation; nothing else is looked at."""
    o, lse = [], []
    for row, sees in zip(q, seen, strict=True):
        s = {j: math.fsum(row * k[j]) / math.sqrt(len(row)) for j in np.flatnonzero(sees)}
        top = max(s.values(), default=0.0)
        w = {j: math.exp(x - top) for j, x in s.items()}
        total = math.fsum(w.values())
        o.append([math.fsum(w[j] * v[j, c] for j in w) / (total or 1.0) for c in range(v.shape[1])])
        lse.append(top + math.log(total) if w else -math.inf)
    return np.array(o), np.array(lse)


@pytest.mark.parametrize("name", ["04.visible", "04.visible.window"])
def test_the_mask_is_the_librarys(name):
    for case in cases(name):
        assert np.array_equal(case.expected["mask"], mask.visible(*case.call)), case.name


def test_the_kinds_of_tiles_are_those_of_their_elements():
    for case in cases("04.tiles"):
        q_len, kv_len, tile_q, tile_k, causal, window = case.call
        for (a, b), kind in np.ndenumerate(case.expected["kinds"]):
            pairs = itertools.product(
                range(a * tile_q, (a + 1) * tile_q), range(b * tile_k, (b + 1) * tile_k)
            )
            seen = [mask.visible(i, j, q_len, kv_len, causal, window) for i, j in pairs]
            assert kind == (2 if all(seen) else 1 if any(seen) else 0), (case.name, a, b)


def test_the_walks_are_those_of_the_library_in_whole_tiles():
    for case in cases("04.range"):
        first, last, q_len, kv_len, tile, causal, window = case.call
        begin, end = mask.key_range(first, last, q_len, kv_len, causal, window)
        want = (begin // tile, -(-end // tile)) if end > begin else (0, 0)
        assert (case.expected["begin"], case.expected["end"]) == want, case.name


def test_one_set_of_scores_and_no_other_of_its_size_breaks_the_step():
    for case in cases("04.nan.made"):
        s, tile = case.call
        hidden = np.isinf(case.expected["s"])
        many = int(hidden.sum())
        breaking = [
            which
            for which in itertools.combinations(range(len(s)), many)
            if ex04._breaks(ex04._hidden(s, which), tile)
        ]
        assert breaking == [tuple(np.flatnonzero(hidden))], case.name


@pytest.mark.parametrize("name", ["04.nan.guard", "04.nan.padding"])
def test_a_step_gives_what_the_rows_saw_and_nothing_else(name):
    for case in cases(name):
        (m, l, o), s, seen, v = case.call  # noqa: E741
        for i, sees in enumerate(seen):
            old = m[i]
            keys = np.flatnonzero(sees)
            new = max([old, *s[i, keys]])
            shift = 0.0 if new == -np.inf else new
            w = np.exp(s[i, keys] - shift)
            kept = 0.0 if old == -np.inf else math.exp(old - shift)
            assert case.expected["m"][i] == new
            assert case.expected["l"][i] == pytest.approx(kept * l[i] + w.sum(), abs=1e-12)
            want = kept * o[i] + sum((a * x for a, x in zip(w, v[keys], strict=True)), np.zeros(v.shape[1]))
            assert case.expected["o"][i] == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("seed", [20, 1, 2, 3, 4])
def test_walks_that_are_not_cut_to_the_keys_or_have_one_window_side_are_told_apart(seed):
    """In every draw, by the answers themselves: rounding to tiles hides such a slip at many sizes."""
    slips = {"begin": 0, "end": 0, "side": 0}
    for case in cases("04.range", seed):
        first, last, q_len, kv_len, tile, causal, window = case.call
        place = kv_len - q_len
        want = int(case.expected["begin"]), int(case.expected["end"])
        keys = [kv_len, *([last + place + 1] if causal else []), *([last + place + window] if window else [])]
        slips["begin"] += window is not None and (first + place - window + 1) // tile != want[0]
        slips["end"] += -(-min(keys) // tile) != want[1]
        slips["side"] += not causal and window is not None and -(-kv_len // tile) != want[1]
    assert all(slips.values()), slips


def test_infinity_lies_where_it_shows_and_where_it_must_not():
    shown = {}
    for name in ("04.bug.edge", "04.bug.cache"):
        for case in cases(name, 6):
            if np.isinf(case.call.arguments[2].array).any():
                shown.setdefault(name, []).append(np.isinf(case.expected["o"]).any())
    assert shown == {"04.bug.edge": [True], "04.bug.cache": [True, False]}
    assert [np.isinf(case.expected["o"]).any() for case in cases("04.nan.padding")] == [False] * 4 + [True]
    assert [np.isinf(case.call[3]).any() for case in cases("04.nan.padding")] == [
        False,
        True,
        False,
        False,
        True,
    ]


def test_the_shift_leaves_half_of_the_weight_to_the_hidden_keys():
    for case in cases("04.stand_in"):
        s, hidden, stand_in = case.call
        assert stand_in < -9000
        assert ex04._leak(s, hidden, stand_in, float(case.expected["t"])) == pytest.approx(0.5, abs=1e-6)
        # And the tolerance does not accept another: a key more or less would be far outside of it.
        assert case.tolerance["t"] < 1e-3 * abs(math.log((hidden + 1) / hidden))


def heads_of(tensor, heads, length, d):
    return tensor.array[: heads * length * d].reshape(heads, length, d).astype(np.float64)


@pytest.mark.parametrize("name", KERNELS)
def test_the_truth_of_the_kernel_checks(name):
    for case in cases(name, 6):
        q, k, v, q_lens, kv_lens, *_, heads, q_len, kv_len, scale = case.call.arguments
        d, causal = case.call.constants["HEAD_DIM"], case.call.constants["CAUSAL"]
        rows = case.call.grid[1]
        assert scale == pytest.approx(d**-0.5) and rows == heads * len(q_lens.array)
        q, k, v = (heads_of(x, rows, n, d) for x, n in ((q, q_len), (k, kv_len), (v, kv_len)))
        for h in range(rows):
            own = int(q_lens.array[h // heads]), int(kv_lens.array[h // heads])
            seen = mask.visible(np.arange(q_len)[:, None], np.arange(kv_len), *own, causal)
            o, lse = by_hand(q[h], k[h], v[h], seen)
            assert np.abs(case.expected["o"][h] - o).max() < 1e-11, case.name
            # The last check looks at o and at the count.
            assert "lse" not in case.expected or np.allclose(case.expected["lse"][h], lse, rtol=0, atol=1e-10)


def test_the_truth_of_the_broken_kernels():
    def masks(name, numbers):
        if name == "04.bug.cache":
            q_len, kv_len, used = numbers
            return np.broadcast_to(np.arange(kv_len) < used, (q_len, kv_len))
        q_len, kv_len, *window = numbers
        return mask.visible(np.arange(q_len)[:, None], np.arange(kv_len), q_len, kv_len, True, *window)

    for name in ("04.bug.edge", "04.bug.cache", "04.bug.band"):
        for case in cases(name, 6):
            q, k, v, _, _, *numbers, _ = case.call.arguments
            d, heads = case.call.constants["HEAD_DIM"], case.call.grid[1]
            q, k, v = (
                heads_of(x, heads, n, d) for x, n in ((q, numbers[0]), (k, numbers[1]), (v, numbers[1]))
            )
            for h in range(heads):
                o, lse = by_hand(q[h], k[h], v[h], masks(name, numbers))
                assert np.allclose(case.expected["o"][h], o, rtol=0, atol=1e-11), (
                    case.name
                )  # infinity where it has to show
                assert np.allclose(case.expected["lse"][h], lse, rtol=0, atol=1e-10), case.name


@pytest.mark.parametrize("name", KERNELS + ["04.bug.cache"])
def test_nan_lies_only_where_nobody_may_look(name):
    poisoned = [
        case for case in cases(name)
        if any(isinstance(x, Tensor) and np.isnan(x.array).any() for x in case.call.arguments[:3])
    ]  # fmt: skip
    many = {"04.kernel.ragged": 0, "04.kernel.nan": 3, "04.kernel.skips": 0, "04.bug.cache": 3}
    assert len(poisoned) == many[name]
    assert all(np.isfinite(case.expected["o"]).all() for case in poisoned)


def test_the_visits_are_the_tiles_in_which_there_is_anything_to_see():
    for case in cases("04.kernel.skips"):
        _, _, _, q_lens, kv_lens, *_, heads, q_len, kv_len, _ = case.call.arguments
        block_m, block_n = (case.call.constants[n] for n in ("BLOCK_M", "BLOCK_N"))
        for (h, t), count in np.ndenumerate(case.expected["visited"]):
            own = int(q_lens.array[h // heads]), int(kv_lens.array[h // heads])
            rows = np.arange(t * block_m, min((t + 1) * block_m, q_len))[:, None]
            seen = mask.visible(rows, np.arange(kv_len), *own, case.call.constants["CAUSAL"])
            tiles = {j // block_n for j in np.flatnonzero(seen.any(0))}
            assert count == len(tiles), (case.name, h, t)


@pytest.mark.parametrize("name, works", [("edge", 4), ("cache", 5), ("band", 2)])
def test_a_broken_kernel_fails_some_cases_and_no_hint_tells_why(name, works, monkeypatch, run_cell):
    """The cases that work are the clue, whatever the seed, and the fault is for the student to find."""
    from autograder import exercise
    from autograder.checks import core
    from autograder.student import _performer, rung

    check = CHECKS[f"04.bug.{name}"]
    if rung(check) is None:
        pytest.skip("Triton has no build here")
    namespace = {"__name__": f"broken_{name}", "look": lambda *_: None}
    for cell in exercise.load_source("04_masks_and_nan").cells:
        if exercise.grade_id(cell) == "setup" or f"def broken_{name}(" in cell.source:
            run_cell(cell.source, f"<broken {name} {cell['id']}>", namespace)
    for seed in (20, 1, 2):
        found = list(
            core.evaluate(
                check, np.random.default_rng(seed), rung(check), _performer(namespace[f"broken_{name}"])
            )
        )
        assert [r.passed for r in found] == [True] * works + [False] * (len(found) - works)
        assert len(found) > works and not any(r.hint for r in found)
