"""The numbers that the pages glue into their text, against computations that share no code with the pages."""

import math

import numpy as np
import pytest

from widgets.roofline import costs


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
    queries_outside = 0
    for _ in range(0, n, tile):
        queries_outside += part  # this tile of Q
        for _ in range(0, n, tile):
            queries_outside += 2 * part  # a tile of K and of V
        queries_outside += part  # this tile of O
    assert glued["queries_mib"] == pytest.approx(queries_outside * element / 2**20)
    standard_loads = 4 * matrix
    for _ in range(0, n, tile):
        for _ in range(0, n, tile):
            standard_loads += 2 * part  # a tile of Q and of K, for one of S
            standard_loads += part  # a tile of V, for one of P
        standard_loads += part  # this tile of O
    assert glued["tiled_ratio"] == pytest.approx(standard_loads / queries_outside)
    assert glued["standard_mib"] == standard * element / 2**20
    assert glued["once_mib"] == 4 * array * element / 2**20
    flop = 2 * n * n * d * 2
    assert glued["int_hbm"] == pytest.approx(flop / (queries_outside * element))
    assert glued["ms_hbm"] == pytest.approx(1e3 * 32 * queries_outside * element / 3.35e12)
    assert glued["ms_matmul"] == pytest.approx(1e3 * 32 * flop / 989e12)
    assert glued["ridge_H100"] == pytest.approx(989 / 3.35)
    assert glued["saved"] == pytest.approx((n * n - n * d) / flop)
    assert abs(glued["extra"] - glued["saved"]) < 1e-4  # "about as many"
    assert glued["extra"] == pytest.approx((n // tile) * n * (d + 1) / flop)


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
    assert glued["decode_idle"] == pytest.approx(100 / 132)


def test_tiles_do_not_change_the_result(run):
    glued, _ = run("03_flash_forward")
    assert 0 < glued["tiles_worst"] < 1e-13


def test_a_wrong_step_is_caught_with_its_hint(run):
    _, outputs = run("00_start_here")
    tables = [out.data["text/plain"] for out in outputs if "text/html" in out.get("data", {})]
    (wrong,) = tables
    assert "✗ fail" in wrong and "hint" in wrong and "o does not" in wrong
