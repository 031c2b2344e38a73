"""What the functions accept. Every public function calls one of these before it does any work, and every
refusal is a ValueError that names the argument, what was given and what is accepted."""

import math
import operator
from typing import NamedTuple

import numpy as np


class Sizes(NamedTuple):
    """What a checked call works with. Lengths are int64 arrays (batch,); group = heads // kv_heads."""

    batch: int
    heads: int
    group: int
    q_len: int
    kv_len: int
    v_dim: int
    scale: float
    dtype: np.dtype
    q_lens: np.ndarray
    kv_lens: np.ndarray


def check_dense(q, k, v, scale, q_lens, kv_lens):
    """Check a dense problem; return q, k, v in one dtype, and its Sizes."""
    q, k, v = _same_dtype(q, k, v)
    check_dense_shapes(q.shape, k.shape, v.shape)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_dim = v.shape[1:]
    return q, k, v, Sizes(
        batch, heads, heads // kv_heads, q_len, kv_len, v_dim, scale_or_default(scale, head_dim), q.dtype,
        lengths("q_lens", q_lens, batch, q_len), lengths("kv_lens", kv_lens, batch, kv_len),
    )  # fmt: skip


def check_dense_shapes(q, k, v):
    """q, k, v: the three shapes, of arrays of any library."""
    q, k, v = tuple(q), tuple(k), tuple(v)
    for name, shape in ("q", q), ("k", k), ("v", v):
        if len(shape) != 4:
            raise ValueError(f"{name} must have 4 axes (batch, heads, length, head_dim), got shape {shape}")
    if k[0] != q[0] or v[0] != q[0]:
        raise ValueError(f"k and v must have the batch size of q, {q[0]}, got {k[0]} and {v[0]}")
    if k[1:3] != v[1:3]:
        raise ValueError(f"k and v must agree in heads and length, got shapes {k} and {v}")
    if k[3] != q[3]:
        raise ValueError(f"k must have the head_dim of q, {q[3]}, got {k[3]}")
    check_heads(q[1], k[1], q[3], v[3])


def check_heads(heads, kv_heads, head_dim, v_dim):
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"the heads of q must be a multiple of the heads of k and v, got {heads} and {kv_heads}"
        )
    if head_dim == 0 or v_dim == 0:
        raise ValueError(f"head_dim must be at least 1, got {head_dim} for q and k, {v_dim} for v")


def check_paged(q, k_cache, v_cache, block_table, seq_lens, scale):
    """Check a paged problem; return q, k_cache, v_cache in one dtype, the table as int64, and its Sizes."""
    q, k_cache, v_cache = _same_dtype(q, k_cache, v_cache, names=("q", "k_cache", "v_cache"))
    if q.ndim != 4:
        raise ValueError(f"q must have 4 axes (batch, heads, length, head_dim), got shape {q.shape}")
    for name, cache in ("k_cache", k_cache), ("v_cache", v_cache):
        if cache.ndim != 4:
            raise ValueError(
                f"{name} must have 4 axes (blocks, block_size, kv_heads, dim), got shape {cache.shape}"
            )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(
            "k_cache and v_cache must agree in blocks, block_size and kv_heads, "
            f"got {k_cache.shape} and {v_cache.shape}"
        )
    batch, heads, q_len, head_dim = q.shape
    num_blocks, block_size, kv_heads, v_dim = v_cache.shape
    if k_cache.shape[3] != head_dim:
        raise ValueError(f"k_cache must have the head_dim of q, {head_dim}, got {k_cache.shape[3]}")
    if block_size == 0:
        raise ValueError(f"k_cache must have a block_size of at least 1, got shape {k_cache.shape}")
    check_heads(heads, kv_heads, head_dim, v_dim)

    table = integers("block_table", block_table)
    if table.ndim != 2 or len(table) != batch:
        raise ValueError(
            f"block_table must have shape (batch, max_blocks) with batch {batch}, got {table.shape}"
        )
    seq_lens = lengths("seq_lens", seq_lens, batch, table.shape[1] * block_size)
    used = np.arange(table.shape[1]) < -(-seq_lens[:, None] // block_size)
    wrong = used & ((table < 0) | (table >= num_blocks))
    if wrong.any():
        b, i = np.argwhere(wrong)[0]
        raise ValueError(
            f"block_table[{b}, {i}] is {table[b, i]}, and {seq_lens[b]} tokens use it: "
            f"blocks are 0 to {num_blocks - 1}"
        )
    return q, k_cache, v_cache, table, Sizes(
        batch, heads, heads // kv_heads, q_len, int(seq_lens.max(initial=0)), v_dim,
        scale_or_default(scale, head_dim), q.dtype, np.full(batch, q_len), seq_lens,
    )  # fmt: skip


def floating(name, x):
    """x as an array of float32 or wider. Integers become float64, as NumPy promotes them."""
    x = np.asarray(x)
    if x.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold real numbers, got dtype {x.dtype}")
    return x.astype(np.result_type(x, np.float32), copy=False)


def integers(name, x):
    x = np.asarray(x)
    if x.dtype.kind not in "iu" and x.size:
        raise ValueError(f"{name} must hold integers, got dtype {x.dtype}")
    return x.astype(np.int64)


def lengths(name, x, batch, most):
    """Lengths (batch,) as int64, each from 0 to `most`; None means `most` throughout."""
    if x is None:
        return np.full(batch, most)
    x = integers(name, x)
    if x.shape != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), one length a sequence, got {x.shape}")
    if ((x < 0) | (x > most)).any():
        raise ValueError(f"{name} must lie between 0 and {most}, got {x.tolist()}")
    return x


def positive_int(name, x):
    try:
        n = 0 if isinstance(x, bool) else operator.index(x)
    except TypeError:
        n = 0
    if n < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {x!r}")
    return n


def scale_or_default(scale, head_dim):
    """The factor of the scores as a Python float (which leaves float32 arrays in float32)."""
    if scale is None:
        return 1 / math.sqrt(head_dim)
    try:
        number = float(scale)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"scale must be a finite number or None, got {scale!r}")
    return number


def _same_dtype(*arrays, names=("q", "k", "v")):
    arrays = [floating(name, x) for name, x in zip(names, arrays, strict=True)]
    dtype = np.result_type(*arrays)
    return [x.astype(dtype, copy=False) for x in arrays]
