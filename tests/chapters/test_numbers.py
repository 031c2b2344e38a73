"""The numbers that the pages glue into their text, against computations that share no code with the pages."""

import math
import re

import numpy as np
import pytest

from widgets.roofline import costs
from widgets.tiles import TILES
from widgets.tiles import count as loops


def test_overflow_limits(run):
    glued, _ = run("02_online_softmax")
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.float32(glued["limit32"] + 0.001)))
        assert np.isfinite(np.exp(np.float32(glued["limit32"] - 0.001)))
        assert np.isinf(np.exp(np.float16(glued["limit16"] + 0.05)))
        assert np.isfinite(np.exp(np.float16(glued["limit16"] - 0.05)))


def test_the_worked_example(run):
    glued, _ = run("02_online_softmax")
    scores, values = [1, 3, 2, 0, 5, 4], [10, 20, 30, 40, 50, 60]

    def attend(keys):
        weights = [math.exp(scores[j]) for j in keys]
        return sum(w * values[j] for w, j in zip(weights, keys, strict=True)) / sum(weights)

    assert glued["worked_alpha"] == pytest.approx(math.exp(3 - 5))
    assert glued["worked_before"] == pytest.approx(attend(range(4)))
    assert glued["worked_exact"] == pytest.approx(attend(range(6)))
    assert 0 <= glued["worked_gap"] < 1e-13


def test_rounding_in_ulps(run):
    glued, _ = run("02_online_softmax")
    rng = np.random.default_rng(1)
    s = (rng.normal(size=(64, 4096)) * 3).astype(np.float32)
    v = rng.random(size=(4096, 32)).astype(np.float32)
    weights = np.exp(s.astype(np.longdouble))
    truth = (weights / weights.sum(1, keepdims=True)) @ v.astype(np.longdouble)

    def error(tile):
        m, l, o = np.full((64, 1), -np.inf, np.float32), np.float32(0), np.zeros((64, 32), np.float32)  # noqa: E741
        for start in range(0, 4096, tile):
            part = s[:, start : start + tile]
            new = np.maximum(m, part.max(1, keepdims=True))
            p = np.exp(part - new)
            l = np.exp(m - new) * l + p.sum(1, keepdims=True)  # noqa: E741
            o = np.exp(m - new) * o + p @ v[start : start + tile]
            m = new
        return float(np.max(np.abs(o / l - truth) / np.spacing(truth.astype(np.float32))))

    # The library may order its sums in another way, so the worst case may differ, but not by its size.
    assert glued["ulp_64"] == pytest.approx(error(64), rel=0.25)
    assert glued["ulp_1"] == pytest.approx(error(1), rel=0.25)
    assert glued["ulp_plain"] == pytest.approx(error(4096), rel=0.25)
    assert glued["ulp_1"] > 3 * glued["ulp_64"] > glued["ulp_plain"]  # what the text says of them
    weights32 = np.exp(s - s.max(1, keepdims=True))
    total = np.cumsum(weights32, 1)[:, -1:]  # cumsum adds one key after another
    output = np.stack([np.cumsum(weights32 * column, 1)[:, -1] for column in v.T], 1) / total
    sequence = float(np.max(np.abs(output - truth) / np.spacing(truth.astype(np.float32))))
    assert glued["ulp_sequence"] == pytest.approx(sequence, rel=0.25)
    assert glued["ulp_sequence"] > 3 * glued["ulp_64"]
    assert 0.02 < glued["same_64"] < 0.5


def test_stopping_early_looks_settled_and_is_wrong(run):
    glued, _ = run("02_online_softmax")
    rng = np.random.default_rng(3)
    s, v = rng.normal(size=1024), rng.normal(size=(1024, 4))
    s[-1] = 12.0

    def attend(n):
        return np.average(v[:n], axis=0, weights=np.exp(s[:n]))

    assert glued["early_change"] == pytest.approx(np.abs(attend(960) - attend(896)).max())
    assert glued["early_error"] == pytest.approx(np.abs(attend(960) - attend(1024)).max())
    assert glued["early_error"] > 20 * glued["early_change"]


def test_how_often_the_maximum_moves(run):
    glued, _ = run("02_online_softmax")
    assert glued["harmonic"] == pytest.approx(sum(1 / k for k in range(1, 17)) - 1)
    four_standard_errors = 4 * math.sqrt(sum(1 / k - 1 / k**2 for k in range(2, 17)) / 10_000)
    assert glued["moves_random"] == pytest.approx(glued["harmonic"], abs=four_standard_errors)
    assert glued["moves_rising"] == 15


def test_size_of_the_score_matrix(run):
    glued, _ = run("01_memory_hierarchy")
    assert glued["s_head"] == run("03_flash_forward")[0]["s_head"] == 128  # MiB
    assert glued["s_all"] == 4  # GiB
    assert glued["s_all_gb"] == pytest.approx(4.294967296)
    assert glued["s_over_q"] == 8192 / 128
    assert 2 * 32 * 2 * glued["n_full"] ** 2 == pytest.approx(80e9)
    assert glued["s_over_block"] == pytest.approx(2 * 8192**2 / (227 * 1024))
    assert glued["s_once_ms"] == pytest.approx(1e3 * 32 * 2 * 8192**2 / 3.35e12)
    assert glued["registers_H100"] == 132 * 256 / 1024
    assert glued["shared_H100"] == 132 * 228 / 1024
    assert glued["l2_mib"] == 50


def test_chapter_1_and_its_simulator_count_alike(run):
    glued, _ = run("01_memory_hierarchy")
    for card in ("A100", "H100", "H200"):
        own = costs(8192, 32, 128, "fp16", card)
        assert glued[f"bound_{card}"] == pytest.approx(own["standard"]["seconds"] / own["flash"]["seconds"])
        assert glued[f"ridge_{card}"] == pytest.approx(own["ridge"])
    own = costs()
    for form in ("standard", "flash"):
        assert glued[f"{form}_mib"] == own[form]["bytes"] / 32 / 2**20
        assert glued[f"int_{form}"] == pytest.approx(own[form]["intensity"])
    assert glued["traffic_ratio"] == own["standard"]["bytes"] / own["flash"]["bytes"] == 8192 / 128 + 1


def test_traffic_of_chapter_1_array_by_array(run):
    glued, _ = run("01_memory_hierarchy")
    q = k = v = o = 8192 * 128 * 2
    s = p = 8192 * 8192 * 2
    standard = (q + k) + s + s + p + (p + v) + o
    assert glued["standard_mib"] * 2**20 == standard
    assert glued["flash_mib"] * 2**20 == q + k + v + o
    flop = 2 * (2 * 8192 * 8192 * 128)
    assert glued["int_standard"] == pytest.approx(flop / standard)
    assert glued["int_flash"] == 8192 / 2
    assert glued["int_query"] == pytest.approx(1, abs=1e-3)
    memory, arithmetic = 32 * standard / 3.35e12, 32 * flop / 989e12
    assert glued["idle_H100"] == pytest.approx(1 - arithmetic / memory)
    assert glued["exp_ms"] == pytest.approx(1e3 * 32 * 8192**2 / 3.9e12)
    assert glued["exp_share"] == pytest.approx((32 * 8192**2 / 3.9e12) / arithmetic)


def test_traffic_counted_tile_by_tile(run):
    glued, _ = run("03_flash_forward")
    n, d, tile, element = 8192, 128, 128, 2
    matrix, array, part = n * n, n * d, tile * d
    standard = 2 * array + matrix + matrix + matrix + matrix + 2 * array
    once = 4 * array * element + 4 * n  # lse is float32, and the page counts it
    queries_outside = 0
    for _ in range(0, n, tile):
        queries_outside += part * element  # this tile of Q
        for _ in range(0, n, tile):
            queries_outside += 2 * part * element  # a tile of K and of V
        queries_outside += part * element + 4 * tile  # this tile of O and of lse
    keys_outside = states = 0
    for first in range(0, n, tile):
        keys_outside += 2 * part * element
        for _ in range(0, n, tile):
            keys_outside += part * element
            state = 4 * (part + 2 * tile)
            states += state * (first > 0) + state * (first + tile < n)
            keys_outside += (part * element + 4 * tile) * (first + tile == n)
    keys_outside += states
    assert glued["queries_mib"] == pytest.approx(queries_outside / 2**20)
    assert glued["keys_mib"] == pytest.approx(keys_outside / 2**20)
    assert glued["keys_ratio"] == pytest.approx(keys_outside / queries_outside)
    assert glued["state_share"] == pytest.approx(states / keys_outside)
    standard_loads = 4 * matrix
    for _ in range(0, n, tile):
        for _ in range(0, n, tile):
            standard_loads += 2 * part  # a tile of Q and of K, for one of S
            standard_loads += part  # a tile of V, for one of P
        standard_loads += part  # this tile of O
    assert glued["tiled_ratio"] == pytest.approx(standard_loads * element / queries_outside)
    assert glued["standard_mib"] == standard * element / 2**20
    assert glued["once_mib"] == once / 2**20
    assert glued["at_once"] == 3 and glued["at_once_mib"] == 3 * 2 * array * element / 2**20 < glued["l2_mib"]
    assert glued["passed_round"] == 32 * (array * element + 4 * n * (d + 2)) / 2**20 > glued["l2_mib"]
    flop = 2 * n * n * d * 2
    assert glued["int_hbm"] == pytest.approx(flop / queries_outside)
    assert glued["ms_hbm"] == pytest.approx(1e3 * 32 * queries_outside / 3.35e12)
    assert glued["ms_matmul"] == pytest.approx(1e3 * 32 * flop / 989e12)
    assert glued["ridge_H100"] == pytest.approx(989 / 3.35)
    assert glued["saved"] == pytest.approx((n * n - n * d) / flop)
    assert abs(glued["extra"] - glued["saved"]) < 1e-4  # "about as many"
    assert glued["extra"] == pytest.approx((n // tile) * n * (d + 1) / flop)


def test_both_loop_orders_ran_and_moved_what_the_simulator_counts(run):
    glued, outputs = run("03_flash_forward")
    (printed,) = [out.text for out in outputs if out.output_type == "stream" and "same bits:" in out.text]
    assert "same bits: True" in printed
    own = loops(1024, 128, "fp16", 128, 128)
    moved = [f"{own[order]['total'] / 2**20:.2f}" for order in ("queries", "keys")]
    assert re.findall(r"([\d.]+) MiB", printed) == moved
    own = loops(8192, 128, "fp16", 128, 128)
    assert glued["queries_mib"] == own["queries"]["total"] / 2**20
    assert glued["keys_mib"] == own["keys"]["total"] / 2**20


def test_attention_in_ulps(run):
    glued, _ = run("03_flash_forward")
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, 1, 2048, 64)).astype(np.float32)
    v = rng.random(size=(1, 1, 2048, 64)).astype(np.float32)
    q, k, v = q[0, 0], k[0, 0], v[0, 0]

    def attend(q, k, v, tile):
        """o of the tiled form; with one tile of all the keys, of the plain formula."""
        m, l, o = np.full((2048, 1), -np.inf, q.dtype), q.dtype.type(0), q.dtype.type(0)  # noqa: E741
        for start in range(0, 2048, tile):
            s = (q / q.dtype.type(8)) @ k[start : start + tile].T
            new = np.maximum(m, s.max(1, keepdims=True))
            p, alpha = np.exp(s - new), np.exp(m - new)
            l, o, m = alpha * l + p.sum(1, keepdims=True), alpha * o + p @ v[start : start + tile], new  # noqa: E741
        return o / l

    truth = attend(*(x.astype(np.float64) for x in (q, k, v)), 2048)
    ulp = np.spacing(truth.astype(np.float32)).astype(np.float64)
    plain, tiled = attend(q, k, v, 2048), attend(q, k, v, 128)
    # The matrix library decides the order of its sums, so the numbers may differ, but not by their size.
    assert glued["ulp_plain"] == pytest.approx(np.median(np.abs(plain - truth) / ulp), rel=0.5)
    assert glued["ulp_tiles"] == pytest.approx(np.median(np.abs(tiled - truth) / ulp), rel=0.5)
    # What the text says of them.
    assert (
        glued["ulp_tiles"] < 1.5 * glued["ulp_plain"] and glued["ulp_tiles_max"] < 2 * glued["ulp_plain_max"]
    )
    assert glued["ulp_plain_max"] < 50
    assert 0.02 < glued["same_tiles"] < 0.6 and 0.02 < glued["same_shuffled"] < 0.6
    assert glued["same_queries"] > glued["same_tiles"]
    assert glued["half_as_float32"] == 2**12


def test_bounds_on_the_time(run):
    glued, _ = run("01_memory_hierarchy")
    n, d, heads = 8192, 128, 32
    flop, moved = heads * 4 * n * n * d, heads * (4 * n * n + 4 * n * d) * 2
    published = {"A100": (1.555e12, 312e12), "H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}
    for card, (memory, arithmetic) in published.items():
        assert glued[f"bound_{card}"] == pytest.approx((moved / memory) / (flop / arithmetic))
        assert glued[f"ridge_{card}"] == pytest.approx(arithmetic / memory)
    assert glued["ratio_A100"] == pytest.approx(19 / 1.555)
    assert glued["ratio_H200"] == pytest.approx(31 / 4.8)


def test_what_the_paper_printed(run):
    glued, _ = run("01_memory_hierarchy")
    assert glued["paper_flop"] == pytest.approx(0.129, abs=5e-4)
    assert glued["paper_hbm"] == pytest.approx(9.16, abs=5e-3)
    assert glued["paper_time"] == pytest.approx(5.71, abs=5e-3)


def test_measured_peaks(run):
    glued, _ = run("03_flash_forward")
    # Three N x N arrays for the naive form: quadratic to within what is linear beside it.
    assert 0.85 * 16**2 < glued["peak_times"] <= 16**2
    assert glued["output_times"] == 16
    assert 1 < glued["flash_times"] < 16
    assert 3 < glued["naive_matrices"] < 3.5
    first, last = (float(glued[name].removesuffix(" KiB")) for name in ("work_first", "work_last"))
    assert last == pytest.approx(first, rel=0.05)  # the working space stays put
    assert 3 * 128 * 64 * 4 / 1024 < first < 1024  # KiB: more than the tiles themselves, less than a matrix


def test_the_grid(run):
    glued, _ = run("03_flash_forward")
    assert glued["blocks"] == 32 * 64
    assert glued["waves"] == pytest.approx(2048 / 132)
    assert glued["decode_idle"] == glued["keys_idle"] == pytest.approx(100 / 132)
    assert glued["two_waves"] == pytest.approx(160 / 264)


def test_the_choice_of_tiles(run):
    glued, _ = run("03_flash_forward")
    numbers = 227 * 1024 // 2  # of fp16 in the shared memory of a thread block
    assert glued["paper_keys"] == math.ceil(numbers / 512) and glued["paper_queries"] == 128
    least = {"queries": math.inf, "keys": math.inf}
    for q in TILES:
        for k in TILES:
            registers = 4 * (q * k + q * 128)
            for order, shared in (("queries", q + 4 * k), ("keys", 2 * k + 2 * q)):
                if registers <= 256 * 1024 and shared * 128 * 2 <= 227 * 1024:
                    least[order] = min(least[order], loops(8192, 128, "fp16", q, k)[order]["total"])
    assert glued["least_queries"] == least["queries"] / 2**20 < glued["least_keys"] == least["keys"] / 2**20


def test_the_longest_programs_first_leave_less_idle(run):
    _, outputs = run("03_flash_forward")
    (printed,) = [out.text for out in outputs if out.output_type == "stream" and "longest first" in out.text]
    shares = [float(share) for share in re.findall(r"([\d.]+)%", printed)]

    def used(order):  # minute by minute: a multiprocessor that is free takes the next program
        waiting, left, minutes = list(order)[::-1], [0] * 132, 0
        while waiting or any(left):
            left = [own or (waiting.pop() if waiting else 0) for own in left]
            left = [max(0, own - 1) for own in left]
            minutes += 1
        return 100 * sum(order) / (132 * minutes)

    expected = []
    for heads in (32, 8):
        work = [t + 1 for _ in range(heads) for t in range(64)]
        expected += [used(work), used(sorted(work, reverse=True))]
    assert shares == pytest.approx(expected, abs=0.06)
    assert shares[1] > shares[0] and shares[3] > shares[2]


def test_tiles_do_not_change_the_result(run):
    glued, _ = run("03_flash_forward")
    assert 0 < glued["tiles_worst"] < 1e-13


def test_the_example_of_chapter_0_fails_with_its_hint_and_passes_where_the_text_says(run):
    _, outputs = run("00_start_here")
    tables = [out.data["text/plain"] for out in outputs if "text/html" in out.get("data", {})]
    (wrong,) = [table for table in tables if table.startswith("00.scores")]
    assert "✗ fail" in wrong and "hint" in wrong and "the square root of d: divide by it" in wrong
    assert re.findall(r"✓ pass .*(d = \d+)", wrong) == ["d = 1"]


def test_chapter_0_what_the_interpreter_does_otherwise(run):
    """What its table says of the interpreter, the page has just seen."""
    _, outputs = run("00_start_here")
    printed = "".join(out.text for out in outputs if out.output_type == "stream")
    assert "1 * 1 in torch.float16: 16\n" in printed and "1 * 1 in torch.bfloat16: 4.22812e+09\n" in printed
    assert "16 * 16256^2 = 4.22812e+09" in printed  # the raw bits
    assert "1.005859375 as bfloat16: here 1.0, to the nearest 1.0078125" in printed  # cut off
    assert "inline assembly raises InterpreterError" in printed


def test_chapter_4_what_a_mask_hides_and_what_it_costs_to_store(run):
    glued, _ = run("04_masks_and_nan")
    assert (glued["decode_top"], glued["decode_bottom"]) == (1, 8192)
    assert glued["blind_rows"] == 6 - 2
    assert (glued["dense_bool"], glued["dense_bias"], glued["dense_lengths"]) == ("512 MiB", "1 GiB", "64 B")
    assert glued["dense_traffic"] == 8192**2 / (4 * 8192 * 128 * 2)


def test_chapter_4_tiles_counted_from_the_mask_itself(run):
    """The page counts with two numbers a tile; here every entry of the mask is looked at, a row of tiles at a time."""
    glued, _ = run("04_masks_and_nan")

    def look(n, tile, window=None, size=8192):
        done = partial = seen = 0
        for top in range(0, size, tile):
            i, j = np.arange(top, top + tile)[:, None], np.arange(size)
            mask = (i < n) & (j <= i) & ((i - j < window) if window else True)
            cells = mask.reshape(tile, size // tile, tile)
            some, all_ = cells.any((0, 2)), cells.all((0, 2))
            done, partial, seen = done + some.sum(), partial + (some & ~all_).sum(), seen + mask.sum()
        return int(done), int(partial), int(seen)

    all_tiles = 64 * 64
    done, partial, _ = look(8192, 128)
    assert (glued["causal_computed"], glued["causal_masked"]) == (done, partial)
    assert glued["causal_done"] == done / all_tiles == 1 / glued["causal_times"]
    done, _, seen = look(8192, 128, window=1024)
    assert glued["window_done"] == done / all_tiles == 1 / glued["window_times"]
    assert glued["window_seen"] == pytest.approx(seen / 8192**2)
    assert glued["window_coarse"] == look(8192, 512, window=1024)[0] / 16**2
    ragged = sum(look(n, 128)[0] for n in (8192, 5000, 1200, 300))
    assert glued["ragged_times"] == pytest.approx(4 * all_tiles / ragged)
    assert (glued["row_first"], glued["row_last"]) == (1, 64)


def test_chapter_4_which_rows_are_lost(run):
    glued, outputs = run("04_masks_and_nan")
    # A row is lost if the first tile that its tile of 64 queries loads lies before its own window of 48.
    first_key = [max(0, i - 47) for i in range(512)]
    lost = [i for i in range(512) if first_key[i] // 64 > first_key[i - i % 64] // 64]
    assert glued["nan_first"] == len(lost) and glued["nan_row"] == lost[0]
    assert glued["nan_row_from"] == first_key[lost[0]]
    # A NaN key or value spoils every tile of queries that loads its tile.
    spoiled = {i // 64 for i in lost}
    reached = [i for i in range(512) if {first_key[i - i % 64] // 64, i // 64} & spoiled]
    assert glued["nan_second"] == len(reached)
    tables = "".join(out.data.get("text/markdown", "") for out in outputs if "data" in out)
    assert f"| 3 | {len(reached)} of 512 | 0 |" in tables
    assert glued["nan_kept"] == 512 - len(reached)
    assert glued["guard_gap"] < 1e-14


def test_chapter_4_what_it_prints_and_what_pytorch_answers(run):
    glued, outputs = run("04_masks_and_nan")
    printed = "".join(out.text for out in outputs if out.output_type == "stream")
    assert "-1e6: [15. 15. 15. 15.]" in printed and "-inf: [0. 0. 0. 0.]" in printed
    assert "-1e6 added: 99.0,  -inf: 1.0" in printed
    assert "float16(-1e6) = -inf" in printed and "-1e4 + 3 = -10000.0" in printed
    assert "p @ v, masked scores alone: nan" in printed and "values selected too: 7.0" in printed
    assert "4096 keys: 1.0000" in printed and "4090 keys: nan" in printed and "4080 keys: 1.0000" in printed
    assert "same bits: True" in printed
    tables = "".join(out.data.get("text/markdown", "") for out in outputs if "data" in out)
    assert "| another worker that saw nothing | 7, −9,995.1 | 0, −∞ |" in tables
    assert "a row that sees nothing | weights 0, 0, 0, 0, 0 |" in tables
    assert "the lowest float32 added | weights 0.2, 0.2, 0.2, 0.2, 0.2 |" in tables
    assert "masked from | NaN |" in tables
    assert (glued["torch_square"], glued["torch_lower"]) == (1, 4)
