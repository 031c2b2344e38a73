"""The merge of partial results: the combine step of split decoding, prefix sharing (cascade), attention sinks.

A result (o, lse) is the state m = lse, l = 1, o; see `kernels.reference.state`. A part with lse = -inf has
seen no key, and nothing that its o holds counts.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import torch
import triton
import triton.language as tl

from . import host
from .online import LOG2_E, finish

PARTS = 128  # the most parts that are taken in at once


@triton.jit
def row_offset(i_row, strides, heads, q_len):
    """Where row i_row, of (batch, heads, q_len) counted through, lies: strides of those three axes."""
    row = i_row.to(tl.int64)
    return row // q_len // heads * strides[0] + row // q_len % heads * strides[1] + row % q_len * strides[2]


@triton.jit
def merge_step(
    m, l, o, p_lse, lse_stride, p_o, o_strides, there, i_dv, first, parts,
    V_DIM: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Take the next results into the states m, l (M,), o (M, DV), m in units of log 2.

    It is `online.softmax_step` once more: each result (o, lse) weighs exp(lse) as a key weighs exp(score).
    p_lse, p_o: (M,) pointers to the rows of part 0; lse_stride, o_strides: from part to part (of o: and dim).
    i_dv: (DV,) the dimensions of o that are asked for.
    """
    i_part = first + tl.arange(0, PARTS)
    real = there[:, None] & (i_part < parts)[None, :]
    part = i_part.to(tl.int64)[None, :]
    s = tl.load(p_lse[:, None] + part * lse_stride, mask=real, other=float("-inf")).to(tl.float32) * LOG2_E
    p_o = (
        p_o[:, None, None] + part[:, :, None] * o_strides[0] + i_dv.to(tl.int64)[None, None, :] * o_strides[1]
    )
    b_o = tl.load(p_o, mask=real[:, :, None] & (i_dv < V_DIM)[None, None, :], other=0.0).to(tl.float32)
    # What has seen no key may hold anything. Asked only now, so that both loads are on their way at once.
    b_o = tl.where((s != float("-inf"))[:, :, None], b_o, 0.0)
    m_new = tl.maximum(m, tl.max(s, 1))
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    correction = tl.exp2(m - shift)
    p = tl.exp2(s - shift[:, None])
    l = l * correction + tl.sum(p, 1)
    o = o * correction[:, None] + tl.sum(p[:, :, None] * b_o, 1)
    return m_new, l, o


@triton.jit(do_not_specialize=["heads", "q_len", "rows", "parts"])
def merge_kernel(
    p_o_a, o_a_strides, p_lse_a, lse_a_strides,  # strides (batch, head, row) of lse; of o, (.., dim) too
    p_o_b, o_b_strides, p_lse_b, lse_b_strides,
    part_strides,  # from part to part of o_b and of lse_b
    p_o, o_strides, p_lse, lse_strides,
    heads, q_len, rows, parts,
    V_DIM: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge result a (or nothing, where it is None) with `parts` results b, PARTS of them at a time.

    EARLY: launched while the kernel that writes b still runs (see `launch`)."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    DIM_TILES: tl.constexpr = (V_DIM + BLOCK_DV - 1) // BLOCK_DV
    i_row = tl.program_id(0) // DIM_TILES * ROWS + tl.arange(0, ROWS)
    there = i_row < rows
    first_dim = tl.program_id(0) % DIM_TILES * BLOCK_DV
    i_dv = first_dim + tl.arange(0, BLOCK_DV)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    o = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    if p_o_a is not None:
        p_o_a += row_offset(i_row, o_a_strides, heads, q_len)
        p_lse_a += row_offset(i_row, lse_a_strides, heads, q_len)
        m, l, o = merge_step(m, l, o, p_lse_a, 0, p_o_a, (0, o_a_strides[3]), there, i_dv, 0, 1, V_DIM, 1)
    p_o_b += row_offset(i_row, o_b_strides, heads, q_len)
    p_lse_b += row_offset(i_row, lse_b_strides, heads, q_len)
    for first in tl.range(0, parts, PARTS):
        m, l, o = merge_step(
            m, l, o, p_lse_b, part_strides[1], p_o_b, (part_strides[0], o_b_strides[3]), there, i_dv, first,
            parts, V_DIM, PARTS,
        )  # fmt: skip
    o, lse = finish(m, l, o, there)
    p_lse += row_offset(i_row, lse_strides, heads, q_len)
    p_o += row_offset(i_row, o_strides, heads, q_len)
    tl.store(p_lse, lse, mask=there & (first_dim == 0))
    in_v_dim = i_dv[None, :] < V_DIM
    tl.store(p_o[:, None] + i_dv[None, :], o.to(p_o.dtype.element_ty), mask=there[:, None] & in_v_dim)


def merge(o_a, lse_a, o_b, lse_b):
    """Attention over two disjoint sets of keys, from the attention over each: (o, lse), contiguous.

    o_a, o_b: (batch, heads, q_len, v_dim) or packed (tokens, heads, v_dim), one dtype; lse_a, lse_b: the same
    without v_dim, float32, natural log. Any strides. b may broadcast: what is the same for every row, such as
    an attention sink, can be expanded. A side with lse -inf has seen no key, whatever its o holds.
    ValueError, before any launch, for tensors that do not fit.
    """
    host.check_tensors(merge_kernel, o_a=o_a, o_b=o_b)
    host.check_tensors(merge_kernel, lse_a=lse_a, lse_b=lse_b)
    for name, o, lse in ("a", o_a, lse_a), ("b", o_b, lse_b):
        if o.ndim not in (3, 4):
            raise ValueError(
                f"o_{name} must have shape (batch, heads, q_len, v_dim) or (tokens, heads, v_dim), "
                f"got {tuple(o.shape)}"
            )
        if lse.shape != o.shape[:-1] or lse.dtype != torch.float32 or lse.device != o.device:
            raise ValueError(
                f"lse_{name} must be float32 {tuple(o.shape[:-1])} on {o.device}, as o_{name} is, "
                f"got {lse.dtype} {tuple(lse.shape)} on {lse.device}"
            )
    if o_b.shape != o_a.shape:
        raise ValueError(f"o_b must have the shape of o_a, {tuple(o_a.shape)}, got {tuple(o_b.shape)}")
    o = torch.empty(o_a.shape, dtype=o_a.dtype, device=o_a.device)
    lse = torch.empty(lse_a.shape, dtype=torch.float32, device=o_a.device)
    launch((o_a, lse_a), (o_b[None], lse_b[None]), o, lse)
    return o, lse


def add_sink(o, lse, sink):
    """The result (o, lse) with an attention sink: one more key a head, of score sink, whose value is 0.

    o, lse: as `merge`; sink: (heads,) scores in natural units, on the same device. Call it once, at the end.
    """
    heads = lse.shape[1] if lse.ndim > 1 else None
    if not isinstance(sink, torch.Tensor) or sink.shape != (heads,) or sink.device != o.device:
        raise ValueError(f"sink must be a tensor of shape ({heads},), one score a head, on {o.device}")
    sink = sink.float().view(heads, *[1] * (lse.ndim - 2)).expand(lse.shape)
    return merge(o, lse, o.new_zeros(()).expand(o.shape), sink)


def launch(a, parts, o, lse, early=False):
    """Fill o and lse from a, a result (o, lse) or None, and parts, results with one more axis in front.

    early: the kernel before this one on the stream calls gdc_launch_dependents. This one then starts beside that one's
    last programs, and waits inside until they are through."""
    os, lses = parts
    if o.ndim == 3:  # packed: one long sequence
        a = a and tuple(x.transpose(0, 1)[None] for x in a)
        os, lses = (x.transpose(1, 2)[:, None] for x in (os, lses))
        o, lse = o.transpose(0, 1)[None], lse.transpose(0, 1)[None]
    a_o, a_lse = a or (None, None)
    batch, heads, q_len, v_dim = o.shape
    rows = batch * heads * q_len
    at_once = min(PARTS, triton.next_power_of_2(len(os)))
    rows_a_program = max(1, 8 // at_once)
    # Of a row with many parts a program takes some of the dimensions, so that more multiprocessors fetch them.
    dims_a_program = min(64, host.padded(v_dim)) if at_once > 32 else host.padded(v_dim)
    programs = host.check_grid("o", triton.cdiv(rows, rows_a_program) * triton.cdiv(v_dim, dims_a_program))
    if programs == 0:
        return
    with host.on_device(o):
        merge_kernel[(programs,)](
            a_o, a and a_o.stride(), a_lse, a and a_lse.stride(),
            os, os.stride()[1:], lses, lses.stride()[1:], (os.stride(0), lses.stride(0)),
            o, o.stride(), lse, lse.stride(),
            heads, q_len, rows, len(os),
            V_DIM=v_dim, BLOCK_DV=dims_a_program, ROWS=rows_a_program, PARTS=at_once, EARLY=early,
            num_warps=4, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
