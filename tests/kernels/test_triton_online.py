"""The bricks of the Triton kernels by themselves: the step, the mask and the range of keys."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernels.triton.online import finish, key_range, softmax_step, visible  # noqa: E402

ROWS, N, DIM = 16, 16, 16
INF = float("inf")


@triton.jit
def steps_kernel(p_s, p_v, p_o, p_lse, tiles, ROWS: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    i_row, i_n, i_d = tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, DIM)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    o = tl.zeros([ROWS, DIM], tl.float32)
    for tile in range(0, tiles):
        s = tl.load(p_s + tile * ROWS * N + i_row[:, None] * N + i_n[None, :])
        b_v = tl.load(p_v + tile * N * DIM + i_n[:, None] * DIM + i_d[None, :])
        m, l, o = softmax_step(m, l, o, s * 1.4426950408889634, b_v)
    o, lse = finish(m, l, o, i_row < ROWS - 1)
    tl.store(p_o + i_row[:, None] * DIM + i_d[None, :], o)
    tl.store(p_lse + i_row, lse)


@triton.jit
def mask_kernel(
    p_seen, p_range, first_row, q_len, kv_len, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    i_q, i_k = first_row + tl.arange(0, M), tl.arange(0, 4 * N)
    seen = visible(i_q, i_k, q_len, kv_len, CAUSAL)
    tl.store(p_seen + tl.arange(0, M)[:, None] * 4 * N + i_k[None, :], seen.to(tl.int32))
    full, end = key_range(first_row, q_len, kv_len, CAUSAL, M, N)
    tl.store(p_range, full)
    tl.store(p_range + 1, end)


@pytest.mark.parametrize("empty", [[], [0], [0, 1], [2], [1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_steps_over_tiles_of_which_some_are_empty(empty, spread, device):
    rng = np.random.default_rng(0)
    s = (spread * rng.standard_normal((4, ROWS, N))).astype(np.float32)
    s[empty] = -INF
    s[0, :5] = -INF  # the first tile is empty for some rows only
    s[:, 7] = -INF  # a row that sees nothing at all
    s[rng.random(s.shape) < 0.2] = -INF
    v = rng.standard_normal((4, N, DIM)).astype(np.float32)
    o = torch.full((ROWS, DIM), torch.nan, device=device)
    lse = torch.full((ROWS,), torch.nan, device=device)
    steps_kernel[(1,)](*(torch.tensor(x, device=device) for x in (s, v)), o, lse, 4, ROWS, N, DIM)

    flat = s.transpose(1, 0, 2).reshape(ROWS, 4 * N).astype(np.float64)
    expected_lse = np.logaddexp.reduce(flat, axis=-1)
    expected_lse[ROWS - 1] = -INF  # the row that does not exist
    seen = np.isfinite(expected_lse)
    p = np.zeros_like(flat)
    p[seen] = np.exp(flat[seen] - expected_lse[seen, None])
    assert np.abs(o.cpu().numpy() - p @ v.reshape(-1, DIM)).max() <= 3e-6 * max(1, spread / 10)
    got = lse.cpu().numpy()
    assert np.array_equal(np.isfinite(got), seen)
    assert np.array_equal(got[~seen], expected_lse[~seen])
    if seen.any():
        assert np.abs(got[seen] - expected_lse[seen]).max() <= 2e-6 * max(1, np.abs(expected_lse[seen]).max())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first_row", [0, 16, 32])
@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(40, 64), (40, 40), (40, 33), (64, 3), (5, 50), (17, 0), (0, 30)]
)
def test_the_range_of_keys_is_what_the_mask_says(causal, first_row, q_len, kv_len, device):
    """Before `full` all real rows see all keys; from `end` on none sees any; and no tile is done in vain."""
    block = 16
    seen = torch.zeros(block, 4 * block, dtype=torch.int32, device=device)
    ends = torch.zeros(2, dtype=torch.int32, device=device)
    mask_kernel[(1,)](seen, ends, first_row, q_len, kv_len, CAUSAL=causal, M=block, N=block)
    i, j = np.arange(first_row, first_row + block)[:, None], np.arange(4 * block)
    expected = (i < q_len) & (j < kv_len) & ((j <= i + kv_len - q_len) | (not causal))
    assert np.array_equal(seen.cpu().numpy().astype(bool), expected)

    full, end = ends.tolist()
    rows = expected[: max(0, min(block, q_len - first_row))]
    assert full % block == 0
    assert rows[:, :full].all()
    assert not rows[:, end:].any()
    assert end == (np.flatnonzero(rows.any(axis=0)).max(initial=-1) + 1)
    assert full == (0 if rows.size == 0 else int(rows.all(axis=0).sum()) // block * block)
