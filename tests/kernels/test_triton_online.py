"""The bricks of the Triton kernels by themselves: the step, the mask and the range of keys."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernels.triton.online import finish, key_range, query_range, softmax_step, visible  # noqa: E402

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
        m, l, o = softmax_step(m, l, o, s, b_v, 1.4426950408889634)
    o, lse = finish(m, l, o, i_row < ROWS - 1)
    tl.store(p_o + i_row[:, None] * DIM + i_d[None, :], o)
    tl.store(p_lse + i_row, lse)


@triton.jit
def mask_kernel(
    p_seen, p_keys, p_queries, first, q_len, kv_len, window, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    i_q, i_k = tl.arange(0, 4 * M), tl.arange(0, 4 * N)
    seen = visible(i_q[:, None], i_k[None, :], q_len, kv_len, window, CAUSAL)
    tl.store(p_seen + i_q[:, None] * 4 * N + i_k[None, :], seen.to(tl.int32))
    bounds = key_range(first, tl.minimum(first + M, q_len) - 1, q_len, kv_len, window, CAUSAL, N)
    for i in tl.static_range(4):
        tl.store(p_keys + i, bounds[i])
    bounds = query_range(first, tl.minimum(first + N, kv_len) - 1, q_len, kv_len, window, CAUSAL, M)
    for i in tl.static_range(4):
        tl.store(p_queries + i, bounds[i])


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
@pytest.mark.parametrize("window", [None, 1, 10, 16, 33, 200])
@pytest.mark.parametrize("first", [0, 16, 48])
@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(40, 64), (40, 40), (40, 33), (64, 3), (5, 50), (17, 0), (0, 30), (64, 64)]
)
def test_the_ranges_are_what_the_mask_says(causal, window, first, q_len, kv_len, device):
    """Outside the range nothing is seen; in the walk without a mask every real row sees all of every tile; and
    the range ends where the last one that is seen does."""
    block = 16
    seen = torch.zeros(4 * block, 4 * block, dtype=torch.int32, device=device)
    keys, queries = (torch.zeros(4, dtype=torch.int32, device=device) for _ in range(2))
    mask_kernel[(1,)](seen, keys, queries, first, q_len, kv_len, window, CAUSAL=causal, M=block, N=block)
    i, j = np.arange(4 * block)[:, None], np.arange(4 * block)
    ahead = j - (i + kv_len - q_len)
    expected = (i < q_len) & (j < kv_len) & ((ahead <= 0) | (not causal))
    expected &= np.abs(ahead) < (window or 1000)
    assert np.array_equal(seen.cpu().numpy().astype(bool), expected)
    for bounds, side, length, others in (
        (keys, expected, q_len, kv_len),
        (queries, expected.T, kv_len, q_len),
    ):
        begin, full, full_end, end = bounds.tolist()
        mine = side[first : min(first + block, length)] if first < length else side[:0]
        used = np.flatnonzero(mine.any(axis=0))
        walks = [range(begin // block * block, full, block), range(full, full_end, block),
                 range(full_end, end, block)]  # fmt: skip
        covered = [n for walk in walks for start in walk for n in range(start, start + block)]
        assert len(set(covered)) == len(covered)  # no tile twice
        assert set(used) <= set(covered) & set(range(begin, end))
        if len(used):
            assert (begin, end) == (used[0], used[-1] + 1)
        if len(mine) == 0:
            assert covered == []
        for start in walks[1]:
            assert mine[:, start : start + block].all()
        whole = [n for n in range(0, others - block + 1, block) if len(mine) and mine[:, n : n + block].all()]
        assert list(walks[1]) == whole  # no mask where none is needed
