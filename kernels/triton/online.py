"""What every attention kernel shares: the online-softmax step, the mask, the loop over keys.

The letters are those of `kernels.reference.state`: m running maximum, l running sum, o accumulator.
Inside a kernel m is in units of log 2 (exp2 is what the hardware has), so scores arrive multiplied by
scale * log2(e); `finish` converts to the natural log at the boundary.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import triton
import triton.language as tl


@triton.jit
def softmax_step(m, l, o, s, b_v):
    """Take in one tile of scores s (M, N), -inf where masked, and values b_v (N, DV); return the state.

    m, l: (M,) float32; o: (M, DV) float32. A row that has seen no key keeps m = -inf, and its shift is 0,
    for -inf - (-inf) is NaN.
    """
    m_new = tl.maximum(m, tl.max(s, 1))
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    correction = tl.exp2(m - shift)
    p = tl.exp2(s - shift[:, None])
    l = l * correction + tl.sum(p, 1)
    o = o * correction[:, None]
    # "ieee": a float32 product is done in float32, not in TF32. It changes nothing for float16 and bfloat16.
    o = tl.dot(p.to(b_v.dtype), b_v, o, input_precision="ieee")
    return m_new, l, o


@triton.jit
def visible(i_q, i_k, q_len, kv_len, CAUSAL: tl.constexpr):
    """Which queries may see which keys: (M, N) booleans from indices i_q (M,) and i_k (N,).

    Causal is aligned at the bottom right: the last query sees the last key.
    """
    seen = (i_q[:, None] < q_len) & (i_k[None, :] < kv_len)
    if CAUSAL:
        seen = seen & (i_k[None, :] <= i_q[:, None] + (kv_len - q_len))
    return seen


@triton.jit
def key_range(first_row, q_len, kv_len, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """For the BLOCK_M queries from first_row on: (full, end).

    Tiles of keys before `full` (a multiple of BLOCK_N) are seen whole by every query and need no mask; those
    from `end` on are seen by none and are skipped; those between are masked.
    """
    if CAUSAL:
        offset = kv_len - q_len
        last_row = tl.minimum(first_row + BLOCK_M, q_len) - 1
        end = tl.minimum(last_row + offset + 1, kv_len)
        seen_by_all = tl.minimum(first_row + offset + 1, kv_len)
    else:
        end = kv_len
        seen_by_all = kv_len
    end = tl.where(first_row < q_len, tl.maximum(end, 0), 0)
    seen_by_all = tl.minimum(tl.maximum(seen_by_all, 0), end)
    return seen_by_all // BLOCK_N * BLOCK_N, end


@triton.jit
def attend(
    m, l, o, b_q, p_k, k_strides, p_v, v_strides, i_q, q_len, kv_len, start, end, scale_log2,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Walk the keys start .. end in tiles of BLOCK_N and return the state after them.

    p_k, p_v: pointers to the first key and value of this head; strides (key, dim). With MASKED off, the
    caller vouches that every key of every tile is seen by every query.
    """
    i_d = tl.arange(0, BLOCK_D)
    i_dv = tl.arange(0, BLOCK_DV)
    k_dim = i_d.to(tl.int64)[:, None] * k_strides[1]
    v_dim = i_dv.to(tl.int64)[None, :] * v_strides[1]
    in_dim = i_d[:, None] < HEAD_DIM
    in_v_dim = i_dv[None, :] < V_DIM
    for first in tl.range(start, end, BLOCK_N):
        i_k = first + tl.arange(0, BLOCK_N)
        row = i_k.to(tl.int64)
        p_kt = p_k + row[None, :] * k_strides[0] + k_dim  # (D, N): K transposed
        p_vt = p_v + row[:, None] * v_strides[0] + v_dim  # (N, DV)
        b_k = load_tile(p_kt, in_dim, i_k[None, :] < kv_len, BLOCK_D != HEAD_DIM, MASKED, b_q.dtype)
        s = tl.dot(b_q, b_k, input_precision="ieee") * scale_log2  # (M, N)
        if MASKED:
            s = tl.where(visible(i_q, i_k, q_len, kv_len, CAUSAL), s, float("-inf"))
        b_v = load_tile(p_vt, in_v_dim, i_k[:, None] < kv_len, BLOCK_DV != V_DIM, MASKED, b_q.dtype)
        m, l, o = softmax_step(m, l, o, s, b_v)
    return m, l, o


@triton.jit
def load_tile(pointers, in_dim, in_len, PADDED: tl.constexpr, MASKED: tl.constexpr, dtype: tl.constexpr):
    """What lies inside, and 0 elsewhere: whatever memory holds there, 0 * NaN would be NaN."""
    if PADDED and MASKED:
        b = tl.load(pointers, mask=in_dim & in_len, other=0.0)
    elif PADDED:
        b = tl.load(pointers, mask=in_dim, other=0.0)
    elif MASKED:
        b = tl.load(pointers, mask=in_len, other=0.0)
    else:
        b = tl.load(pointers)
    return b.to(dtype)


@triton.jit
def finish(m, l, o, real):
    """(output, lse) of a state: o / l and the natural log of the sum of exp(score).

    `real`: (M,) booleans, the rows that exist.
    Rows that saw no key, and rows that do not exist, give 0 and -inf.
    """
    seen = real & (m != float("-inf"))
    l = tl.where(seen, l, 1.0)
    o = tl.where(seen[:, None], o / l[:, None], 0.0)
    lse = tl.where(seen, (m + tl.log2(l)) * 0.6931471805599453, float("-inf"))
    return o, lse
