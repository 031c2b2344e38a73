"""Softmax of rows longer than a tile. `kernels.reference.softmax` is the same in NumPy."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import torch
import triton
import triton.language as tl

from kernels.reference.arguments import positive_int

from . import host
from .online import LOG2_E


@triton.jit(do_not_specialize=["n"])
def softmax_kernel(p_x, x_strides, p_out, out_strides, n, BLOCK_N: tl.constexpr):
    """One program a row. The first walk carries (m, l), as `online.softmax_step` does, with no values to weigh;
    only the second can turn scores into probabilities."""
    row = tl.program_id(0).to(tl.int64)
    p_x += row * x_strides[0]
    p_out += row * out_strides[0]
    i_n = tl.arange(0, BLOCK_N)
    m = float("-inf")
    l = 0.0
    for start in tl.range(0, n, BLOCK_N):
        column = (start + i_n).to(tl.int64)
        s = tl.load(p_x + column * x_strides[1], mask=column < n, other=float("-inf")).to(tl.float32) * LOG2_E
        m_new = tl.maximum(m, tl.max(s, 0))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        l = l * tl.exp2(m - shift) + tl.sum(tl.exp2(s - shift), 0)
        m = m_new
    shift = tl.where(m == float("-inf"), 0.0, m)
    l = tl.where(l == 0.0, 1.0, l)
    for start in tl.range(0, n, BLOCK_N):
        column = (start + i_n).to(tl.int64)
        s = tl.load(p_x + column * x_strides[1], mask=column < n, other=float("-inf")).to(tl.float32) * LOG2_E
        p = tl.exp2(s - shift) / l
        tl.store(p_out + column * out_strides[1], p.to(p_out.dtype.element_ty), mask=column < n)


def online_softmax(x, tile=1024):
    """Softmax over the last axis of x, reading each row twice in tiles of `tile` numbers.

    x: float16, bfloat16 or float32, at least one axis, on a GPU (or a CPU under TRITON_INTERPRET=1). tile: a
    power of two. Returns a contiguous tensor like x; a row that is -inf throughout gives zeros. Sums are
    float32. No gradient is recorded. ValueError, before any launch, if an argument does not fit.
    """
    host.check_tensors(softmax_kernel, x=x)
    if x.ndim == 0:
        raise ValueError("x must have at least one axis, got a single number")
    if positive_int("tile", tile) & (tile - 1):
        raise ValueError(f"tile must be a power of two, got {tile}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows, out_rows = x.reshape(-1, x.shape[-1]), out.view(-1, x.shape[-1])
    with host.on_device(x):
        softmax_kernel[(host.check_grid("x", len(rows)),)](
            rows, rows.stride(), out_rows, out_rows.stride(), x.shape[-1], BLOCK_N=tile
        )
    return out
