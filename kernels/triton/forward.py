"""FlashAttention's forward pass. `kernels.reference.flash` is the same algorithm in NumPy, to read beside it.

One program computes one tile of queries of one head: it walks the keys that the tile may see, keeps (m, l, o)
in registers, and writes the output and the lse once. After FlashAttention-2 (Dao, 2023, arXiv 2307.08691).
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import contextlib

import torch
import triton
import triton.language as tl

from kernels.reference.arguments import scale_or_default

from . import host
from .online import attend, finish, key_range, load_tile

LOG2_E = 1.4426950408889634


# Sizes that change from call to call are not specialised: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["heads", "group", "q_len", "kv_len"])
def forward_kernel(
    p_q, q_strides,  # strides (batch, head, row, dim), in elements
    p_k, k_strides,
    p_v, v_strides,
    p_o,  # (batch, heads, q_len, V_DIM), contiguous
    p_lse,  # (batch, heads, q_len) float32, contiguous
    p_q_lens, p_kv_lens,  # (batch,) int32, or None: no sequence is shorter than its tensor
    heads, group, q_len, kv_len,  # group: query heads that share a KV head
    scale_log2,  # scale * log2(e)
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, COMPUTE: tl.constexpr,  # COMPUTE: the dtype of the products
):  # fmt: skip
    # Everything lies on grid axis x, the only one that can pass 65,535; the tiles of a head are neighbours.
    row_tiles = (q_len + BLOCK_M - 1) // BLOCK_M
    i_tile = tl.program_id(0) % row_tiles
    i_head = tl.program_id(0) // row_tiles % heads
    i_batch = tl.program_id(0) // row_tiles // heads
    head = i_head.to(tl.int64)
    batch = i_batch.to(tl.int64)
    kv_head = head // group

    real_q_len = q_len
    if p_q_lens is not None:
        real_q_len = tl.load(p_q_lens + batch)
    real_kv_len = kv_len
    if p_kv_lens is not None:
        real_kv_len = tl.load(p_kv_lens + batch)

    first_row = i_tile * BLOCK_M
    i_q = first_row + tl.arange(0, BLOCK_M)
    i_d = tl.arange(0, BLOCK_D)
    i_dv = tl.arange(0, BLOCK_DV)
    row = i_q.to(tl.int64)

    p_q += batch * q_strides[0] + head * q_strides[1]
    p_k += batch * k_strides[0] + kv_head * k_strides[1]
    p_v += batch * v_strides[0] + kv_head * v_strides[1]
    p_qt = p_q + row[:, None] * q_strides[2] + i_d.to(tl.int64)[None, :] * q_strides[3]
    b_q = load_tile(
        p_qt, i_d[None, :] < HEAD_DIM, i_q[:, None] < real_q_len, BLOCK_D != HEAD_DIM, True, COMPUTE
    )

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    full, end = key_range(first_row, real_q_len, real_kv_len, CAUSAL, BLOCK_M, BLOCK_N)
    k_row_strides = (k_strides[2], k_strides[3])
    v_row_strides = (v_strides[2], v_strides[3])
    m, l, o = attend(
        m, l, o, b_q, p_k, k_row_strides, p_v, v_row_strides, i_q, real_q_len, real_kv_len, 0, full,
        scale_log2,
        HEAD_DIM, V_DIM, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, False,
    )  # fmt: skip
    m, l, o = attend(
        m, l, o, b_q, p_k, k_row_strides, p_v, v_row_strides, i_q, real_q_len, real_kv_len, full, end,
        scale_log2,
        HEAD_DIM, V_DIM, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, True,
    )  # fmt: skip

    o, lse = finish(m, l, o, i_q < real_q_len)
    p_row = (batch * heads + head) * q_len + row
    tl.store(p_lse + p_row, lse, mask=i_q < q_len)
    p_ot = p_o + p_row[:, None] * V_DIM + i_dv[None, :]
    tl.store(p_ot, o.to(p_o.dtype.element_ty), mask=(i_q[:, None] < q_len) & (i_dv[None, :] < V_DIM))


def flash_attention(q, k, v, *, causal=False, scale=None, q_lens=None, kv_lens=None):
    """Attention and its lse, without the score matrix. Beyond its results it allocates nothing.

    q: (batch, heads, q_len, head_dim).
    k: (batch, kv_heads, kv_len, head_dim); v: (batch, kv_heads, kv_len, v_dim).
    All float16, all bfloat16 or all float32, on one GPU (or a CPU under TRITON_INTERPRET=1); any strides.
    head_dim and v_dim: 1 to 256 each. Query head h reads KV head h // (heads // kv_heads).
    causal: query i sees the keys j <= i + kv_len - q_len, with each sequence's own lengths.
    scale: factor of the scores, 1 / sqrt(head_dim) by default.
    q_lens, kv_lens: (batch,) integers (tensor or list), how much of each sequence is real; the rest is never
    read.
    Their values are checked, so a tensor on the GPU makes the call wait for it.

    Returns o (batch, heads, q_len, v_dim) in the dtype of q, and lse (batch, heads, q_len) float32, the
    natural log of the sum of exp(score); both contiguous. Queries beyond q_lens, and those that see no key,
    get 0 and -inf. Sums are float32; float32 products are full float32. No gradient is recorded.

    ValueError, before anything is launched, for arguments that do not fit, naming the argument.
    """
    host.check_tensors(q, k, v, forward_kernel)
    scale = scale_or_default(scale, q.shape[3])
    q_lens = host.check_lengths("q_lens", q_lens, q.shape[0], q.shape[2], q.device)
    kv_lens = host.check_lengths("kv_lens", kv_lens, q.shape[0], k.shape[2], q.device)
    o = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    tiles = host.tiles_for(q, k, v)
    launch(q, k, v, o, lse, causal=bool(causal), scale=scale, q_lens=q_lens, kv_lens=kv_lens, tiles=tiles)
    return o, lse


def launch(q, k, v, o, lse, *, causal, scale, q_lens, kv_lens, tiles):
    """Fill o and lse, both contiguous, from checked arguments. Apart from `flash_attention` so that tests can
    bring outputs full of NaN and any tiles."""
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_dim = v.shape[1:]
    programs = triton.cdiv(q_len, tiles.block_m) * batch * heads
    if programs == 0:
        return
    if programs > host.LARGEST_GRID:
        raise ValueError(
            f"q is too large for one launch: {programs} tiles of queries, at most {host.LARGEST_GRID}"
        )
    # The interpreter's tl.dot multiplies the raw bits of bfloat16: there, tiles become float32 when loaded.
    in_float32 = q.dtype == torch.float32 or (host.interpreted(forward_kernel) and q.dtype == torch.bfloat16)
    compute = tl.float32 if in_float32 else {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[q.dtype]
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        forward_kernel[(programs,)](
            q, q.stride(), k, k.stride(), v, v.stride(), o, lse, q_lens, kv_lens,
            heads, heads // kv_heads, q_len, kv_len, scale * LOG2_E,
            HEAD_DIM=head_dim, V_DIM=v_dim,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
            BLOCK_D=host.padded(head_dim), BLOCK_DV=host.padded(v_dim),
            CAUSAL=causal, COMPUTE=compute,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
