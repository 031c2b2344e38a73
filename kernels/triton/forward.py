"""FlashAttention's forward pass. `kernels.reference.flash` is the same algorithm in NumPy, to read beside it.

One program computes one tile of queries of one head: it walks the keys that the tile may see, keeps (m, l, o)
in registers, and writes the output and the lse once. After FlashAttention-2 (Dao, 2023, arXiv 2307.08691).
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import triton
import triton.language as tl

from . import host
from .online import (
    LOG2_E,
    drop_unseen,
    few,
    finish,
    key_range,
    load_box,
    load_tile,
    scores,
    softmax_step,
    visible,
)
from .sequences import find_head, find_tile, sequence


# Sizes that change from call to call are not specialised: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["tiles", "batches", "group", "q_len", "kv_len", "window"])
def forward_kernel(
    p_q, q_strides,  # strides (batch, head, row, dim), in elements
    p_k, k_strides,
    p_v, v_strides,
    k_boxes, v_boxes,  # K and V once more, as `host.boxes` gives them; or None
    p_o, o_strides,  # the last dimension contiguous
    p_lse, lse_strides,  # strides (batch, head, row); float32
    p_q_lens, p_kv_lens,  # int32, as `sequence` takes them
    p_descales,  # float32 (2, kv_heads), factors of scores and of values; or None
    tiles, batches, group, q_len, kv_len,  # tiles a head; query heads a KV head; longest lengths
    scale, window, aux,  # window: int or None; aux: what SCORE_MOD reads
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, SCORE_MOD: tl.constexpr,
    FOLD_SCALE: tl.constexpr,  # for a positive scale that nothing else changes: see `scores`
    COMPUTE: tl.constexpr,  # the dtype of the products
):  # fmt: skip
    i_head, i_tile = find_head(tiles, CAUSAL)  # under causal the last ones have the most keys
    i_batch, i_tile = find_tile(i_tile, p_q_lens, batches, q_len, BLOCK_M, PACKED)
    q_start, real_q_len, q_rows = sequence(p_q_lens, i_batch, batches, q_len, PACKED)
    k_start, real_kv_len, _ = sequence(p_kv_lens, i_batch, batches, kv_len, PACKED)
    head = i_head.to(tl.int64)
    batch = i_batch.to(tl.int64)

    first_row = i_tile * BLOCK_M
    i_q = first_row + tl.arange(0, BLOCK_M)
    i_d = tl.arange(0, BLOCK_D)
    i_dv = tl.arange(0, BLOCK_DV)
    row = q_start + i_q.to(tl.int64)
    in_dim = i_d < HEAD_DIM
    in_v_dim = i_dv < V_DIM

    p_q += batch * q_strides[0] + head * q_strides[1]
    p_k += batch * k_strides[0] + head // group * k_strides[1]
    p_v += batch * v_strides[0] + head // group * v_strides[1]
    p_qt = p_q + row[:, None] * q_strides[2] + i_d.to(tl.int64)[None, :] * q_strides[3]
    b_q = load_tile(p_qt, in_dim[None, :], i_q[:, None] < real_q_len, BLOCK_D != HEAD_DIM, True, COMPUTE)
    if p_descales is not None:
        scale *= tl.load(p_descales + head // group)
    factor = scale * LOG2_E if FOLD_SCALE else LOG2_E
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    last_row = tl.minimum(first_row + BLOCK_M, real_q_len) - 1
    begin, full, full_end, end = key_range(
        first_row, last_row, real_q_len, real_kv_len, window, CAUSAL, BLOCK_N
    )
    FEW: tl.constexpr = few(BLOCK_N)
    bounds = (begin // BLOCK_N * BLOCK_N, full, full_end, end)
    for part in tl.static_range(3):  # masked tiles, tiles that every row sees whole, masked tiles
        if part > 0 or window is not None:
            for first_key in tl.range(
                bounds[part], bounds[part + 1], BLOCK_N if part == 1 else FEW,
                num_stages=STAGES if part == 1 else STAGES * BLOCK_N // FEW,  # as many bytes on their way
            ):  # fmt: skip
                i_k = first_key + tl.arange(0, BLOCK_N if part == 1 else FEW)
                seen_by_some = (i_k >= begin) & (i_k < end)
                key = k_start + i_k.to(tl.int64)
                if part == 1 and k_boxes is not None:
                    b_k = (
                        load_box(k_boxes, i_batch, i_head // group, k_start + first_key, PACKED).to(COMPUTE).T
                    )
                else:
                    b_k = load_tile(
                        p_k + key[None, :] * k_strides[2] + i_d.to(tl.int64)[:, None] * k_strides[3],  # (D, N): K transposed
                        in_dim[:, None], seen_by_some[None, :], BLOCK_D != HEAD_DIM, part != 1, COMPUTE,
                    )  # fmt: skip
                s = tl.dot(b_q, b_k, input_precision="ieee")  # (M, N)
                real_q = tl.minimum(i_q, real_q_len - 1)[:, None]
                real_k = tl.minimum(i_k, real_kv_len - 1)[None, :]
                s = scores(s, i_batch, i_head, real_q, real_k, scale, aux, SCORE_MOD, FOLD_SCALE)
                if part != 1:
                    seen = visible(i_q[:, None], i_k[None, :], real_q_len, real_kv_len, window, CAUSAL)
                    s = tl.where(seen, s, float("-inf"))
                if part == 1 and v_boxes is not None:
                    b_v = load_box(v_boxes, i_batch, i_head // group, k_start + first_key, PACKED).to(COMPUTE)
                else:
                    b_v = load_tile(
                        p_v + key[:, None] * v_strides[2] + i_dv.to(tl.int64)[None, :] * v_strides[3],  # (N, DV)
                        in_v_dim[None, :], seen_by_some[:, None], BLOCK_DV != V_DIM, part != 1, COMPUTE,
                    )  # fmt: skip
                if SCORE_MOD is not None:
                    b_v = drop_unseen(b_v, s)
                m, l, o = softmax_step(m, l, o, s, b_v, factor)

    o, lse = finish(m, l, o, i_q < real_q_len)
    if p_descales is not None:
        o *= tl.load(p_descales + tl.num_programs(0) // tiles // group + head // group)
    there = i_q < q_rows
    p_lse += batch * lse_strides[0] + head * lse_strides[1] + row * lse_strides[2]
    p_o += batch * o_strides[0] + head * o_strides[1]
    p_ot = p_o + row[:, None] * o_strides[2] + i_dv[None, :]
    tl.store(p_lse, lse, mask=there)
    tl.store(p_ot, o.to(p_o.dtype.element_ty), mask=there[:, None] & in_v_dim[None, :])


def launch(q, k, v, o, lse, options, tiles, descales=None):
    """Fill o and lse (any strides, o's last dimension contiguous) from checked arguments. Packed tensors come
    as `host.as_dense` shows them. Apart from `attention` so that tests can bring outputs full of NaN and any
    tiles."""
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_dim = v.shape[1:]
    tiles_a_head = host.count_tiles(batch, q_len, tiles.block_m, options.packed)
    programs = host.check_grid("q", tiles_a_head * heads)
    if programs == 0:
        return
    q, k, v = (host.as_loaded(x) for x in (q, k, v))
    with host.on_device(q):
        forward_kernel[(programs,)](
            q, q.stride(), k, k.stride(), v, v.stride(),
            *(host.boxes(x, tiles.block_n, options) for x in (k, v)), o, o.stride(), lse, lse.stride(),
            options.q_lens, options.kv_lens, descales,
            tiles_a_head, batch, heads // kv_heads, q_len, kv_len,
            options.scale, options.window, options.aux,
            HEAD_DIM=head_dim, V_DIM=v_dim,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
            BLOCK_D=host.padded(head_dim), BLOCK_DV=host.padded(v_dim),
            STAGES=tiles.stages, CAUSAL=options.causal, PACKED=options.packed, SCORE_MOD=options.score_mod,
            FOLD_SCALE=host.folds_scale(options, descales), COMPUTE=host.compute_dtype(q, forward_kernel),
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
