"""FlashAttention's backward pass. `kernels.reference.backward` is the same algorithm in NumPy, to read beside it.

Two kernels make the scores again, tile by tile. In one a program owns a tile of queries and walks the keys,
for dq. In the other it owns a tile of keys and walks the queries of every head that reads them, for dk and
dv. Each number is thus summed by one program in one order: nothing is added atomically, and the same call gives
the same bits every time.
"""

import torch
import triton
import triton.language as tl

from . import host
from .online import LOG2_E, few, key_range, load_box, load_tile, query_range, visible
from .sequences import find_head, find_tile, sequence


@triton.jit
def load_shift(p_lse, real):
    """lse in units of log 2, where it is finite: what is subtracted before exp2. 0 for a row that saw no key."""
    lse = tl.load(p_lse, mask=real, other=0.0)
    return tl.where(lse == float("-inf"), 0.0, lse * LOG2_E)


@triton.jit(do_not_specialize=["tiles", "batches", "q_len"])
def delta_kernel(
    p_o, o_strides, p_do, do_strides,  # strides (batch, head, row, dim)
    p_delta, delta_strides,  # strides (batch, head, row); float32
    p_q_lens, tiles, batches, q_len,
    V_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """delta = sum(do * o) of each row: what the softmax's own derivative subtracts. 0 for rows that do not exist."""
    i_batch, i_tile = find_tile(tl.program_id(0) % tiles, p_q_lens, batches, q_len, BLOCK_M, PACKED)
    start, real_q_len, rows = sequence(p_q_lens, i_batch, batches, q_len, PACKED)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    batch = i_batch.to(tl.int64)
    i_q = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_dv = tl.arange(0, BLOCK_DV)
    row = start + i_q.to(tl.int64)
    dim = i_dv.to(tl.int64)[None, :]
    inside = (i_q[:, None] < real_q_len) & (i_dv[None, :] < V_DIM)
    p_o += batch * o_strides[0] + head * o_strides[1]
    p_do += batch * do_strides[0] + head * do_strides[1]
    b_o = tl.load(p_o + row[:, None] * o_strides[2] + dim * o_strides[3], mask=inside, other=0.0)
    b_do = tl.load(p_do + row[:, None] * do_strides[2] + dim * do_strides[3], mask=inside, other=0.0)
    p_delta += batch * delta_strides[0] + head * delta_strides[1] + row * delta_strides[2]
    tl.store(p_delta, tl.sum(b_o.to(tl.float32) * b_do.to(tl.float32), 1), mask=i_q < rows)


@triton.jit(do_not_specialize=["tiles", "batches", "group", "q_len", "kv_len", "window"])
def dq_kernel(
    p_q, q_strides, p_k, k_strides, p_v, v_strides, p_do, do_strides,  # strides (batch, head, row, dim)
    k_boxes, v_boxes,  # K and V once more, as `host.boxes` gives them; or None
    p_lse, p_delta, row_strides,  # strides (batch, head, row) of both; float32
    p_dq, dq_strides,  # the last dimension contiguous
    p_q_lens, p_kv_lens,
    tiles, batches, group, q_len, kv_len, scale, window,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, COMPUTE: tl.constexpr,
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
    dim = i_d.to(tl.int64)
    v_dim = i_dv.to(tl.int64)
    in_dim = i_d < HEAD_DIM
    in_v_dim = i_dv < V_DIM
    real = i_q < real_q_len

    p_q += batch * q_strides[0] + head * q_strides[1]
    p_do += batch * do_strides[0] + head * do_strides[1]
    p_k += batch * k_strides[0] + head // group * k_strides[1]
    p_v += batch * v_strides[0] + head // group * v_strides[1]
    p_row = batch * row_strides[0] + head * row_strides[1] + row * row_strides[2]
    p_qt = p_q + row[:, None] * q_strides[2] + dim[None, :] * q_strides[3]
    p_dot = p_do + row[:, None] * do_strides[2] + v_dim[None, :] * do_strides[3]
    b_q = load_tile(p_qt, in_dim[None, :], real[:, None], BLOCK_D != HEAD_DIM, True, COMPUTE)
    b_do = load_tile(p_dot, in_v_dim[None, :], real[:, None], BLOCK_DV != V_DIM, True, COMPUTE)
    shift = load_shift(p_lse + p_row, real)[:, None]
    delta = tl.load(p_delta + p_row, mask=real, other=0.0)[:, None]

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    last_row = tl.minimum(first_row + BLOCK_M, real_q_len) - 1
    begin, full, full_end, end = key_range(
        first_row, last_row, real_q_len, real_kv_len, window, CAUSAL, BLOCK_N
    )
    FEW: tl.constexpr = few(BLOCK_N)
    bounds = (begin // BLOCK_N * BLOCK_N, full, full_end, end)
    for part in tl.static_range(3):  # masked tiles, tiles that every row sees whole, masked tiles
        if part > 0 or window is not None:
            for first_key in tl.range(bounds[part], bounds[part + 1], BLOCK_N if part == 1 else FEW):
                i_k = first_key + tl.arange(0, BLOCK_N if part == 1 else FEW)
                seen_by_some = ((i_k >= begin) & (i_k < end))[:, None]
                key = (k_start + i_k.to(tl.int64))[:, None]
                if part == 1 and k_boxes is not None:
                    b_k = load_box(k_boxes, i_batch, i_head // group, k_start + first_key, PACKED).to(COMPUTE)
                    b_v = load_box(v_boxes, i_batch, i_head // group, k_start + first_key, PACKED).to(COMPUTE)
                else:
                    b_k = load_tile(
                        p_k + key * k_strides[2] + dim[None, :] * k_strides[3],  # (N, D)
                        in_dim[None, :], seen_by_some, BLOCK_D != HEAD_DIM, part != 1, COMPUTE,
                    )  # fmt: skip
                    b_v = load_tile(
                        p_v + key * v_strides[2] + v_dim[None, :] * v_strides[3],  # (N, DV)
                        in_v_dim[None, :], seen_by_some, BLOCK_DV != V_DIM, part != 1, COMPUTE,
                    )  # fmt: skip
                s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")  # (M, N)
                s *= scale * LOG2_E
                if part != 1:
                    seen = visible(i_q[:, None], i_k[None, :], real_q_len, real_kv_len, window, CAUSAL)
                    s = tl.where(seen, s, float("-inf"))
                p = tl.exp2(s - shift)
                dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")
                ds = p * (dp - delta)
                dq = tl.dot(ds.to(COMPUTE), b_k, dq, input_precision="ieee")

    p_dq += batch * dq_strides[0] + head * dq_strides[1]
    p_dqt = p_dq + row[:, None] * dq_strides[2] + i_d[None, :]
    dq = tl.where(real[:, None], dq * scale, 0.0)
    tl.store(p_dqt, dq.to(p_dq.dtype.element_ty), mask=(i_q < q_rows)[:, None] & in_dim[None, :])


@triton.jit(do_not_specialize=["tiles", "batches", "group", "q_len", "kv_len", "window"])
def dkdv_kernel(
    p_q, q_strides, p_k, k_strides, p_v, v_strides, p_do, do_strides,  # strides (batch, head, row, dim)
    q_boxes, do_boxes,
    p_lse, p_delta, row_strides,  # strides (batch, head, row) of both; float32
    p_dk, dk_strides, p_dv, dv_strides,  # the last dimension contiguous
    p_q_lens, p_kv_lens,
    tiles, batches, group, q_len, kv_len, scale, window,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    i_kv_head, i_tile = find_head(tiles, False)  # under causal the first ones have the most queries
    i_batch, i_tile = find_tile(i_tile, p_kv_lens, batches, kv_len, BLOCK_N, PACKED)
    q_start, real_q_len, _ = sequence(p_q_lens, i_batch, batches, q_len, PACKED)
    k_start, real_kv_len, k_rows = sequence(p_kv_lens, i_batch, batches, kv_len, PACKED)
    kv_head = i_kv_head.to(tl.int64)
    batch = i_batch.to(tl.int64)

    first_key = i_tile * BLOCK_N
    i_k = first_key + tl.arange(0, BLOCK_N)
    i_d = tl.arange(0, BLOCK_D)
    i_dv = tl.arange(0, BLOCK_DV)
    key = k_start + i_k.to(tl.int64)
    dim = i_d.to(tl.int64)
    v_dim = i_dv.to(tl.int64)
    in_dim = i_d < HEAD_DIM
    in_v_dim = i_dv < V_DIM
    last_key = tl.minimum(first_key + BLOCK_N, real_kv_len) - 1
    begin, full, full_end, end = query_range(
        first_key, last_key, real_q_len, real_kv_len, window, CAUSAL, BLOCK_M
    )
    # Keys that no query sees are not read: they may hold NaN.
    read_begin, _, _, read_end = key_range(
        0, real_q_len - 1, real_q_len, real_kv_len, window, CAUSAL, BLOCK_N
    )
    read = (i_k >= read_begin) & (i_k < read_end)

    p_k += batch * k_strides[0] + kv_head * k_strides[1]
    p_v += batch * v_strides[0] + kv_head * v_strides[1]
    p_kt = p_k + key[:, None] * k_strides[2] + dim[None, :] * k_strides[3]
    p_vt = p_v + key[:, None] * v_strides[2] + v_dim[None, :] * v_strides[3]
    b_k = load_tile(p_kt, in_dim[None, :], read[:, None], BLOCK_D != HEAD_DIM, True, COMPUTE)  # (N, D)
    b_v = load_tile(p_vt, in_v_dim[None, :], read[:, None], BLOCK_DV != V_DIM, True, COMPUTE)  # (N, DV)

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    FEW: tl.constexpr = few(BLOCK_M)
    bounds = (begin // BLOCK_M * BLOCK_M, full, full_end, end)
    for i_head in tl.range(0, group):  # the query heads that read this KV head
        i_q_head = i_kv_head * group + i_head
        head = i_q_head.to(tl.int64)
        p_q_head = p_q + batch * q_strides[0] + head * q_strides[1]
        p_do_head = p_do + batch * do_strides[0] + head * do_strides[1]
        p_row_head = batch * row_strides[0] + head * row_strides[1]
        for part in tl.static_range(3):  # masked tiles, tiles of queries that see every key, masked tiles
            if part > 0 or CAUSAL or window is not None:
                for first_row in tl.range(bounds[part], bounds[part + 1], BLOCK_M if part == 1 else FEW):
                    i_q = first_row + tl.arange(0, BLOCK_M if part == 1 else FEW)
                    real = i_q < real_q_len
                    row = q_start + i_q.to(tl.int64)
                    if part == 1 and q_boxes is not None:
                        b_q = load_box(q_boxes, i_batch, i_q_head, q_start + first_row, PACKED).to(COMPUTE)
                        b_do = load_box(do_boxes, i_batch, i_q_head, q_start + first_row, PACKED).to(COMPUTE)
                    else:
                        b_q = load_tile(
                            p_q_head + row[:, None] * q_strides[2] + dim[None, :] * q_strides[3],  # (M, D)
                            in_dim[None, :], real[:, None], BLOCK_D != HEAD_DIM, part != 1, COMPUTE,
                        )  # fmt: skip
                        b_do = load_tile(
                            p_do_head + row[:, None] * do_strides[2] + v_dim[None, :] * do_strides[3],  # (M, DV)
                            in_v_dim[None, :], real[:, None], BLOCK_DV != V_DIM, part != 1, COMPUTE,
                        )  # fmt: skip
                    p_row = p_row_head + row * row_strides[2]
                    shift = load_shift(p_lse + p_row, real)[None, :]
                    delta = tl.load(p_delta + p_row, mask=real, other=0.0)[None, :]
                    s = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")  # (N, M): transposed
                    s *= scale * LOG2_E
                    if part != 1:
                        seen = visible(i_q[None, :], i_k[:, None], real_q_len, real_kv_len, window, CAUSAL)
                        s = tl.where(seen, s, float("-inf"))
                    p = tl.exp2(s - shift)
                    dv = tl.dot(p.to(COMPUTE), b_do, dv, input_precision="ieee")
                    dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")
                    ds = p * (dp - delta)
                    dk = tl.dot(ds.to(COMPUTE), b_q, dk, input_precision="ieee")

    there = (i_k < k_rows)[:, None]
    real = (i_k < real_kv_len)[:, None]
    p_dk += batch * dk_strides[0] + kv_head * dk_strides[1]
    p_dv += batch * dv_strides[0] + kv_head * dv_strides[1]
    p_dkt = p_dk + key[:, None] * dk_strides[2] + i_d[None, :]
    p_dvt = p_dv + key[:, None] * dv_strides[2] + i_dv[None, :]
    dk = tl.where(real, dk * scale, 0.0)
    dv = tl.where(real, dv, 0.0)
    tl.store(p_dkt, dk.to(p_dk.dtype.element_ty), mask=there & in_dim[None, :])
    tl.store(p_dvt, dv.to(p_dv.dtype.element_ty), mask=there & in_v_dim[None, :])


def launch(q, k, v, o, lse, do, dq, dk, dv, options, tiles):
    """Fill dq, dk, dv (the last dimension contiguous) from checked arguments, as `forward.launch` takes them.
    tiles: of the dq kernel, and of the other. Scratch memory: one float32 a row of o."""
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_dim = v.shape[1:]
    dq_tiles, dkdv_tiles = tiles
    delta = torch.empty_strided(lse.shape, lse.stride(), dtype=torch.float32, device=q.device)
    q_tiles = host.count_tiles(batch, q_len, dq_tiles.block_m, options.packed)
    k_tiles = host.count_tiles(batch, kv_len, dkdv_tiles.block_n, options.packed)
    q_programs = host.check_grid("q", q_tiles * heads)
    k_programs = host.check_grid("k", k_tiles * kv_heads)

    inputs = (q, q.stride(), k, k.stride(), v, v.stride(), do, do.stride())
    rows = (lse, delta, lse.stride())
    lens = (options.q_lens, options.kv_lens)
    sizes = (batch, heads // kv_heads, q_len, kv_len, options.scale, options.window)
    constants = {
        "HEAD_DIM": head_dim, "V_DIM": v_dim, "BLOCK_D": host.padded(head_dim), "BLOCK_DV": host.padded(v_dim),
        "CAUSAL": options.causal, "PACKED": options.packed, "COMPUTE": host.compute_dtype(q, dq_kernel),
    }  # fmt: skip

    def both(x, y, block):
        found = tuple(host.boxes(tensor, block, options) for tensor in (x, y))
        return (None, None) if None in found else found

    def chosen(tiles):
        return constants | {
            "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "num_warps": tiles.warps, "num_stages": tiles.stages,
        }  # fmt: skip

    with host.on_device(q):
        if q_programs:
            delta_kernel[(q_programs,)](
                o, o.stride(), do, do.stride(), delta, delta.stride(), options.q_lens, q_tiles, batch, q_len,
                V_DIM=v_dim, BLOCK_M=dq_tiles.block_m, BLOCK_DV=host.padded(v_dim), PACKED=options.packed,
            )  # fmt: skip
            dq_kernel[(q_programs,)](
                *inputs, *both(k, v, dq_tiles.block_n), *rows, dq, dq.stride(), *lens, q_tiles, *sizes, **chosen(dq_tiles)
            )  # fmt: skip
        if k_programs:
            dkdv_kernel[(k_programs,)](
                *inputs, *both(q, do, dkdv_tiles.block_m), *rows, dk, dk.stride(), dv, dv.stride(), *lens, k_tiles, *sizes,
                **chosen(dkdv_tiles),
            )  # fmt: skip
