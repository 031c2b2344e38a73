"""The forward pass once more, for Hopper (sm_90) and one level below Triton: in Gluon a kernel says itself which warps
do what, and what waits for what.

Triton's compiler waits for a product as soon as it has asked for it, and while the matrix units work on it the
program stands still. Here it does not. One warpgroup (four warps, to which Hopper's products are given) fetches keys
and values; two others compute 64 queries each. Each of the two asks for the scores of the next tile and for the
weighted sum of this one, and takes the exponentials of the next while the matrix units sum.
After FlashAttention-3 (Shah et al., 2024, arXiv 2407.08608): warp specialisation, and overlap within a warpgroup.

The mask, the step and the end are those of `online`. What does not `fits` is served by `forward`.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from . import host
from .online import LOG2_E, finish, key_range, visible, weights
from .sequences import find_head

DIM = gl.constexpr(128)  # of q, k and v; at 64 `forward` is faster, where three programs share a multiprocessor
ROWS = gl.constexpr(64)  # queries of a warpgroup
KEYS = gl.constexpr(128)  # a tile
COMPUTING = gl.constexpr(2)  # warpgroups
SLOTS = gl.constexpr(4)  # tiles of K and V in shared memory
# Registers a thread: of the second warpgroup that computes, and of the one that fetches. The first has the rest.
REGISTERS = gl.constexpr((240, 24))
# Which thread of a warpgroup holds what of a product: of scores (ROWS, KEYS) and, as KEYS is DIM, of outputs too.
PRODUCT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS.value, 16]))
ROW = gl.constexpr(gl.SliceLayout(1, PRODUCT.value))
COLUMN = gl.constexpr(gl.SliceLayout(0, PRODUCT.value))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(0, PRODUCT.value, 2))  # as the product with the values takes them


@gluon.jit
def fetch(boxes, memory, work, group):
    """Bring the queries, then K and V tile by tile into the slots: K of tile t is number 2 t, V number 2 t + 1."""
    q_boxes, k_boxes, v_boxes = boxes
    q_tiles, slots, q_there, there, free = memory
    batch, head, row, full_end, end, tiles = work
    for part in gl.static_range(COMPUTING):
        mbarrier.expect(q_there.index(part), q_boxes.block_type.nbytes)
        tma.async_copy_global_to_shared(
            q_boxes, [batch, head, row + part * ROWS, 0], q_there.index(part),
            q_tiles.index(part).reshape(q_boxes.block_shape),
        )  # fmt: skip
    for t in range(tiles):
        for i in gl.static_range(2):
            kv_boxes = k_boxes if i == 0 else v_boxes
            slot = (2 * t + i) % SLOTS
            # Both have freed it. The first time nobody has to: the phase before a barrier's first counts as over.
            mbarrier.wait(free.index(slot), (2 * t + i) // SLOTS & 1 ^ 1)
            mbarrier.expect(there.index(slot), kv_boxes.block_type.nbytes)
            tma.async_copy_global_to_shared(
                kv_boxes, [batch, head // group, end - (t + 1) * KEYS, 0], there.index(slot),
                slots.index(slot).reshape(kv_boxes.block_shape),
            )  # fmt: skip


@gluon.jit
def ask_scores(q_tile, slots, there, t):
    """Products (ROWS, KEYS) of the queries and tile t of the keys; they are there when `warpgroup_mma_wait` says so."""
    slot = 2 * t % SLOTS
    mbarrier.wait(there.index(slot), 2 * t // SLOTS & 1)
    nothing = gl.zeros([ROWS, KEYS], gl.float32, PRODUCT)
    return warpgroup_mma(q_tile, slots.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def ask_sum(p, o, slots, there, t):
    """o and the values of tile t, weighed by p, likewise."""
    slot = (2 * t + 1) % SLOTS
    mbarrier.wait(there.index(slot), (2 * t + 1) // SLOTS & 1)
    return warpgroup_mma(p, slots.index(slot), o, is_async=True)


@gluon.jit
def masked(s, i_q, first_key, q_len, kv_len, CAUSAL: gl.constexpr):
    i_k = first_key + gl.arange(0, KEYS, COLUMN)
    seen = visible(i_q[:, None], i_k[None, :], q_len, kv_len, None, CAUSAL) & (i_k >= 0)[None, :]
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def compute(memory, out, work, q_len, kv_len, scale, part: gl.constexpr, CAUSAL: gl.constexpr):
    """64 rows, from their queries to their outputs."""
    q_tiles, slots, q_there, there, free = memory
    p_o, o_strides, p_lse, lse_strides = out
    batch, head, row, full_end, end, tiles = work
    q_tile = q_tiles.index(part)
    i_q = row + part * ROWS + gl.arange(0, ROWS, ROW)
    factor = scale * LOG2_E
    m = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    l = gl.zeros([ROWS], gl.float32, ROW)
    o = gl.zeros([ROWS, DIM], gl.float32, PRODUCT)

    mbarrier.wait(q_there.index(part), 0)
    s = warpgroup_mma_wait(0, deps=[ask_scores(q_tile, slots, there, 0)])
    mbarrier.arrive(free.index(0))
    s = masked(s, i_q, end - KEYS, q_len, kv_len, CAUSAL)
    m, l, p, correction = weights(m, l, s, factor)
    p = gl.convert_layout(p.to(slots.dtype), WEIGHTS, assert_trivial=True)

    # More tiles that cross the diagonal (none while a tile has as many keys as a program has rows, since they are counted
    # from the last visible key), tiles that every row sees whole, and one that begins before the first key.
    crossing = gl.minimum(gl.maximum((end - full_end + KEYS - 1) // KEYS, 1), tiles)
    bounds = (1, crossing, gl.maximum(end // KEYS, crossing), tiles)
    for phase in gl.static_range(3):
        for t in range(bounds[phase], bounds[phase + 1]):
            s = ask_scores(q_tile, slots, there, t)
            o = ask_sum(p, o, slots, there, t - 1)
            s = warpgroup_mma_wait(1, deps=[s])
            mbarrier.arrive(free.index(2 * t % SLOTS))
            if phase != 1:
                s = masked(s, i_q, end - (t + 1) * KEYS, q_len, kv_len, CAUSAL)
            m, l, p_next, correction = weights(m, l, s, factor)
            o, p = warpgroup_mma_wait(0, deps=[o, p])
            mbarrier.arrive(free.index((2 * t - 1) % SLOTS))
            o = o * correction[:, None]
            p = gl.convert_layout(p_next.to(slots.dtype), WEIGHTS, assert_trivial=True)
    o = warpgroup_mma_wait(0, deps=[ask_sum(p, o, slots, there, tiles - 1)])

    o, lse = finish(m, l, o, i_q < q_len)
    p_o += batch.to(gl.int64) * o_strides[0] + head.to(gl.int64) * o_strides[1]
    p_lse += batch.to(gl.int64) * lse_strides[0] + head.to(gl.int64) * lse_strides[1]
    p_ot = p_o + i_q.to(gl.int64)[:, None] * o_strides[2] + gl.arange(0, DIM, COLUMN)[None, :]
    gl.store(p_ot, o.to(p_o.dtype.element_ty), (i_q < q_len)[:, None])
    gl.store(p_lse + i_q.to(gl.int64) * lse_strides[2], lse, i_q < q_len)


@gluon.jit(do_not_specialize=["tiles_a_head", "tiles_a_sequence", "group", "q_len", "kv_len"])
def hopper_kernel(
    q_boxes, k_boxes, v_boxes,  # (batch, heads, length, dim), as `boxes` gives them
    p_o, o_strides,  # strides (batch, head, row, dim), in elements; the last dimension contiguous
    p_lse, lse_strides,  # strides (batch, head, row); float32
    tiles_a_head, tiles_a_sequence, group, q_len, kv_len, scale, CAUSAL: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, DIM], k_boxes.dtype)
    q_tiles = gl.allocate_shared_memory(q_boxes.dtype, [COMPUTING, ROWS, DIM], layout)
    slots = gl.allocate_shared_memory(k_boxes.dtype, [SLOTS, KEYS, DIM], layout)
    q_there = gl.allocate_shared_memory(gl.int64, [COMPUTING, 1], mbarrier.MBarrierLayout())
    there = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COMPUTING):
        mbarrier.init(q_there.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(there.index(i), count=1)
        mbarrier.init(free.index(i), count=COMPUTING)
    fence_async_shared()

    head, tile = find_head(tiles_a_head, CAUSAL)
    batch = tile // tiles_a_sequence
    row = tile % tiles_a_sequence * (COMPUTING * ROWS)
    last_row = gl.minimum(row + COMPUTING * ROWS, q_len) - 1
    # Tiles are counted back from the last visible key, so that no box holds a key, NaN maybe, that no row sees. What the
    # last box holds before the first key is 0. Where nothing is visible there is one tile, all of it masked.
    _, _, full_end, end = key_range(row, last_row, q_len, kv_len, None, CAUSAL, 1)
    tiles = gl.maximum((end + KEYS - 1) // KEYS, 1)
    memory = (q_tiles, slots, q_there, there, free)
    out = (p_o, o_strides, p_lse, lse_strides)
    work = (batch, head, row, full_end, end, tiles)
    first: gl.constexpr = 0
    second: gl.constexpr = 1
    gl.warp_specialize(
        [
            (compute, (memory, out, work, q_len, kv_len, scale, first, CAUSAL)),
            (compute, (memory, out, work, q_len, kv_len, scale, second, CAUSAL)),
            (fetch, ((q_boxes, k_boxes, v_boxes), memory, work, group)),
        ],
        [4, 1], REGISTERS,
    )  # fmt: skip


def fits(q, k, v, options):
    """Whether `launch` can serve these checked arguments: dense float16 or bfloat16 of head_dim 128, also V's, on a
    Hopper card, with a positive scale and no other mask than the causal one, where all three can be fetched in boxes."""
    return (
        q.shape[3] == v.shape[3] == DIM.value
        and options.window is None
        and options.q_lens is None
        and options.kv_lens is None
        and host.folds_scale(options, None)
        and host.is_hopper(q.device)
        and None not in [host.box_axes(x, options) for x in (q, k, v)]
    )


def launch(q, k, v, o, lse, options):
    """Fill o and lse, as `forward.launch` does, from arguments that `fits`."""
    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.shape[1:3]
    tiles = triton.cdiv(q_len, COMPUTING.value * ROWS.value)
    programs = host.check_grid("q", batch * heads * tiles)
    with host.on_device(q):
        hopper_kernel[(programs,)](
            boxes(q, ROWS.value, options), boxes(k, KEYS.value, options), boxes(v, KEYS.value, options),
            o, o.stride(), lse, lse.stride(), batch * tiles, tiles, heads // kv_heads, q_len, kv_len, options.scale,
            CAUSAL=options.causal, num_warps=4,
        )  # fmt: skip


def boxes(x, rows, options):
    """`host.boxes` for Gluon, which wants to know how a box lies in shared memory."""
    block = [1, 1, rows, DIM.value]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16 if x.dtype == torch.float16 else gl.bfloat16)
    return TensorDescriptor(x, *host.box_axes(x, options), block, layout)
