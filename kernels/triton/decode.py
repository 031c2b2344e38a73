"""Decoding: a few new queries a sequence against a long cache of keys, paged or dense.

The query heads that share a KV head are packed into the rows of one tile, so that each key is read once for
all of them. One sequence has too few tiles to fill a GPU, so its keys are cut into splits that run side by
side (flash-decoding), each leaving a partial result in scratch memory; `merge` puts these together.
`kernels.reference.paged` and `kernels.reference.decoding` are the same in NumPy.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import torch
import triton
import triton.language as tl

from kernels.reference.arguments import check_dense_shapes, positive_int

from . import host, merge
from .online import LOG2_E, drop_unseen, finish, key_range, load_tile, scores, softmax_step, visible


@triton.jit(
    do_not_specialize=["row_tiles", "splits", "kv_heads", "group", "q_len", "kv_len", "blocks", "window"]
)
def decode_kernel(
    p_q, q_strides,  # strides (batch, head, row, dim), in elements
    p_k, k_strides,  # strides (block, slot, kv_head, dim); dense: a sequence is a block
    p_v, v_strides,
    p_o, o_strides,  # strides (split, batch, head, row); the last dimension contiguous
    p_lse, lse_strides,  # strides (split, batch, head, row); float32
    p_table, table_strides,  # int32 (batch, max_blocks), or None: dense
    p_kv_lens,  # int32 (batch,), or None: all have kv_len
    p_k_descale, p_v_descale,  # float32 (kv_heads,), or None
    row_tiles, splits, kv_heads, group, q_len, kv_len, blocks,  # kv_len: the most that a sequence can have
    scale, window, aux,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, SCORE_MOD: tl.constexpr, FOLD_SCALE: tl.constexpr, COMPUTE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    i_tile = tl.program_id(0) % row_tiles
    i_split = tl.program_id(0) // row_tiles % splits
    i_kv_head = tl.program_id(0) // row_tiles // splits % kv_heads
    i_batch = tl.program_id(0) // row_tiles // splits // kv_heads
    batch = i_batch.to(tl.int64)
    kv_head = i_kv_head.to(tl.int64)
    real_kv_len = kv_len
    if p_kv_lens is not None:
        real_kv_len = tl.minimum(tl.maximum(tl.load(p_kv_lens + batch), 0), kv_len)

    # The rows: for each query in turn, the heads of the group.
    rows = group * q_len
    i_row = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    there = i_row < rows
    i_row = tl.minimum(i_row, rows - 1)
    i_q = i_row // group
    i_head = i_kv_head * group + i_row % group
    i_d = tl.arange(0, BLOCK_D)
    i_dv = tl.arange(0, BLOCK_DV)
    in_dim = i_d < HEAD_DIM
    in_v_dim = i_dv < V_DIM
    head = i_head.to(tl.int64)
    row = i_q.to(tl.int64)

    p_q += batch * q_strides[0] + head[:, None] * q_strides[1] + row[:, None] * q_strides[2]
    p_qt = p_q + i_d.to(tl.int64)[None, :] * q_strides[3]
    b_q = load_tile(p_qt, in_dim[None, :], there[:, None], BLOCK_D != HEAD_DIM, True, COMPUTE)
    p_k += kv_head * k_strides[2] + i_d.to(tl.int64)[:, None] * k_strides[3]
    p_v += kv_head * v_strides[2] + i_dv.to(tl.int64)[None, :] * v_strides[3]
    if p_k_descale is not None:
        scale *= tl.load(p_k_descale + kv_head)
    factor = scale * LOG2_E if FOLD_SCALE else LOG2_E

    # This split's share of the tiles of keys that some row sees.
    first_q = i_tile * BLOCK_M // group
    last_q = (tl.minimum(i_tile * BLOCK_M + BLOCK_M, rows) - 1) // group
    begin, full, full_end, end = key_range(first_q, last_q, q_len, real_kv_len, window, CAUSAL, BLOCK_N)
    start = begin // BLOCK_N * BLOCK_N
    tiles = tl.maximum(end - start + BLOCK_N - 1, 0) // BLOCK_N
    share = (tiles + splits - 1) // splits * BLOCK_N
    low = start + i_split * share
    high = tl.minimum(low + share, end)
    bounds = (
        tl.minimum(low, high),
        tl.minimum(tl.maximum(full, low), high),
        tl.minimum(tl.maximum(full_end, low), high),
        high,
    )

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for part in tl.static_range(3):  # masked tiles, tiles that every row sees whole, masked tiles
        if part > 0 or window is not None:
            for first_key in tl.range(bounds[part], bounds[part + 1], BLOCK_N):
                i_k = first_key + tl.arange(0, BLOCK_N)
                seen_by_some = (i_k >= begin) & (i_k < end)
                if p_table is None:
                    block = batch + tl.zeros([BLOCK_N], tl.int64)
                    slot = i_k.to(tl.int64)
                else:
                    p_entry = (
                        p_table + batch * table_strides[0] + (i_k // PAGE).to(tl.int64) * table_strides[1]
                    )
                    if part != 1:
                        block = tl.load(p_entry, mask=seen_by_some, other=0)
                    else:
                        block = tl.load(p_entry)
                    # A wrong entry reads a wrong block, never what is no block.
                    block = tl.minimum(tl.maximum(block, 0), blocks - 1).to(tl.int64)
                    slot = (i_k % PAGE).to(tl.int64)
                b_k = load_tile(
                    p_k + (block * k_strides[0] + slot * k_strides[1])[None, :],  # (D, N): K transposed
                    in_dim[:, None], seen_by_some[None, :], BLOCK_D != HEAD_DIM, part != 1, COMPUTE,
                )  # fmt: skip
                s = tl.dot(b_q, b_k, input_precision="ieee")  # (M, N)
                real_k = tl.minimum(i_k, real_kv_len - 1)[None, :]
                s = scores(
                    s, i_batch, i_head[:, None], i_q[:, None], real_k, scale, aux, SCORE_MOD, FOLD_SCALE
                )
                if part != 1:
                    seen = visible(i_q[:, None], i_k[None, :], q_len, real_kv_len, window, CAUSAL)
                    s = tl.where(seen, s, float("-inf"))
                b_v = load_tile(
                    p_v + (block * v_strides[0] + slot * v_strides[1])[:, None],  # (N, DV)
                    in_v_dim[None, :], seen_by_some[:, None], BLOCK_DV != V_DIM, part != 1, COMPUTE,
                )  # fmt: skip
                if SCORE_MOD is not None:
                    b_v = drop_unseen(b_v, s)
                m, l, o = softmax_step(m, l, o, s, b_v, factor)

    o, lse = finish(m, l, o, there)
    if p_v_descale is not None:
        o *= tl.load(p_v_descale + kv_head)
    split = i_split.to(tl.int64)
    p_lse += split * lse_strides[0] + batch * lse_strides[1] + head * lse_strides[2] + row * lse_strides[3]
    p_o += split * o_strides[0] + batch * o_strides[1]
    p_ot = p_o + (head * o_strides[2] + row * o_strides[3])[:, None] + i_dv[None, :]
    tl.store(p_lse, lse, mask=there)
    tl.store(p_ot, o.to(p_o.dtype.element_ty), mask=there[:, None] & in_v_dim[None, :])


def paged_attention(
    q, k_cache, v_cache, block_table, seq_lens, *,
    causal=False, window=None, scale=None, score_mod=None, aux=None, k_descale=None, v_descale=None, splits=None,
):  # fmt: skip
    """Attention of q over sequences kept in a paged cache; nothing is gathered.

    q: (batch, heads, q_len, head_dim), the last q_len tokens of each sequence: q_len 1 to decode.
    k_cache: (num_blocks, block_size, kv_heads, head_dim), v_cache: (num_blocks, block_size, kv_heads, v_dim);
    any block_size, any strides, the dtype of q or float8_e4m3fn.
    block_table: (batch, max_blocks) integers. Entry [b, i] is the block that holds tokens i * block_size and
    on of sequence b; entries past the sequence's end are not looked at (-1 by custom).
    seq_lens: (batch,) integers, the tokens of each sequence that are in the cache. Tables and lengths on the
    GPU are not waited for: values out of range are clamped there. Others are checked.
    k_descale, v_descale: for a float8 cache, what its numbers are to be multiplied by: a number, or a tensor
    (kv_heads,).
    splits: None, or into how many parts each sequence's keys are cut. None: as many as fill the GPU, which
    depends on the batch. With a number a sequence gives the same bits alone and in any batch.
    The other options: as `attention.flash_attention`, with kv_len = seq_lens[b].

    Returns o (batch, heads, q_len, v_dim) in the dtype of q and lse (batch, heads, q_len) float32. Beyond
    these it allocates, with more than one split, splits times as much in float32 for the partial results.
    ValueError, before anything is launched, for arguments that do not fit, naming the argument.
    """
    block_table = host.check_table(decode_kernel, block_table, seq_lens, q, k_cache, v_cache, window)
    blocks, page = k_cache.shape[:2]
    most = block_table.shape[1] * page if blocks else 0
    seq_lens = host.check_lengths("seq_lens", seq_lens, q.shape[0], most, q.device)
    return _decode(
        q, k_cache, v_cache, block_table, most, splits, k_descale, v_descale, causal=causal, window=window,
        scale=scale, score_mod=score_mod, aux=aux, kv_lens=seq_lens,
    )  # fmt: skip


def flash_decoding(
    q, k, v, *,
    causal=False, window=None, scale=None, score_mod=None, aux=None, kv_lens=None, k_descale=None,
    v_descale=None, splits=None,
):  # fmt: skip
    """As `paged_attention`, of keys that lie in one piece: k (batch, kv_heads, kv_len, head_dim), v (batch,
    kv_heads, kv_len, v_dim), of which each sequence has kv_lens[b], or all kv_len."""
    host.check_cache(decode_kernel, q=q, k=k, v=v)
    check_dense_shapes(q.shape, k.shape, v.shape)
    kv_lens = host.check_lengths("kv_lens", kv_lens, q.shape[0], k.shape[2], q.device)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    return _decode(
        q, k, v, None, k.shape[1], splits, k_descale, v_descale, causal=causal, window=window, scale=scale,
        score_mod=score_mod, aux=aux, kv_lens=kv_lens,
    )  # fmt: skip


def _decode(q, k_cache, v_cache, block_table, kv_len, splits, k_descale, v_descale, **options):
    """What both have in common, once shapes are checked."""
    host.check_head_dims(q, v_cache, v_name="v")
    options = host.check_options(q, kv_len, q_lens=None, packed=False, **options)
    descales = [
        host.check_descale(name, x, cache)
        for name, x, cache in (("k_descale", k_descale, k_cache), ("v_descale", v_descale, v_cache))
    ]
    paged = block_table is not None
    if splits is None:
        tiles, splits = host.decode_plan(q, k_cache, v_cache, kv_len, paged)
    else:
        tiles = host.decode_tiles(q, k_cache, v_cache, paged)
    splits = positive_int("splits", splits)
    o = torch.empty((*q.shape[:3], v_cache.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if splits == 1:
        parts = o[None], lse[None]
    else:
        parts = tuple(torch.empty((splits, *x.shape), dtype=torch.float32, device=q.device) for x in (o, lse))
    early = splits > 1 and host.starts_early(q.device)
    launch(q, k_cache, v_cache, block_table, kv_len, *descales, *parts, options, tiles, early)
    if splits > 1:
        merge.launch(None, parts, o, lse, early)
    return o, lse


def launch(q, k_cache, v_cache, block_table, kv_len, k_descale, v_descale, os, lses, options, tiles, early):
    """Fill os and lses, one part a split, from checked arguments. early: see `merge.launch`."""
    batch, heads, q_len, head_dim = q.shape
    blocks, page, kv_heads, v_dim = v_cache.shape
    group = heads // kv_heads
    row_tiles = triton.cdiv(group * q_len, tiles.block_m)
    programs = host.check_grid("q", row_tiles * len(os) * kv_heads * batch)
    if programs == 0:
        return
    k_cache, v_cache = host.as_loaded(k_cache), host.as_loaded(v_cache)
    with host.on_device(q):
        decode_kernel[(programs,)](
            q, q.stride(), k_cache, k_cache.stride(), v_cache, v_cache.stride(),
            os, os.stride(), lses, lses.stride(),
            block_table, None if block_table is None else block_table.stride(), options.kv_lens,
            k_descale, v_descale,
            row_tiles, len(os), kv_heads, group, q_len, kv_len, blocks,
            options.scale, options.window, options.aux,
            HEAD_DIM=head_dim, V_DIM=v_dim, PAGE=page if block_table is not None else 1,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
            BLOCK_D=host.padded(head_dim), BLOCK_DV=host.padded(v_dim),
            CAUSAL=options.causal, SCORE_MOD=options.score_mod,
            FOLD_SCALE=host.folds_scale(options, k_descale), COMPUTE=host.compute_dtype(q, decode_kernel), EARLY=early,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
