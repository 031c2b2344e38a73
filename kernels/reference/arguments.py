"""What the functions accept. Every public function calls one of these before it does any work, and every
refusal is a ValueError that names the argument, what was given and what is accepted."""

import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Call(NamedTuple):
    """What a checked call works with. Lengths are int64 arrays (batch,); group = heads // kv_heads."""

    batch: int
    heads: int
    group: int
    q_len: int
    kv_len: int
    v_dim: int
    dtype: np.dtype
    causal: bool
    window: int | None
    scale: float
    score_mod: Callable | None
    q_lens: np.ndarray
    kv_lens: np.ndarray


def check_dense(q, k, v, causal, window, scale, score_mod, q_lens, kv_lens):
    """Check a dense problem; return q, k, v in one dtype, and its Call."""
    q, k, v = _same_dtype(q, k, v)
    check_dense_shapes(q.shape, k.shape, v.shape)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_dim = v.shape[1:]
    return q, k, v, Call(
        batch, heads, heads // kv_heads, q_len, kv_len, v_dim, q.dtype,
        bool(causal), check_window(window), scale_or_default(scale, head_dim), check_score_mod(score_mod),
        lengths("q_lens", q_lens, batch, q_len), lengths("kv_lens", kv_lens, batch, kv_len),
    )  # fmt: skip


def check_gradient(o, lse, do, call):
    """Check what a backward pass gets beside q, k, v; return o, lse, do in the dtype of the call."""
    shape = (call.batch, call.heads, call.q_len, call.v_dim)
    for name, x, expected in ("o", o, shape), ("lse", lse, shape[:3]), ("do", do, shape):
        if np.shape(x) != expected:
            raise ValueError(f"{name} must have shape {expected}, as forward gives it, got {np.shape(x)}")
    return [
        floating(name, x).astype(call.dtype, copy=False) for name, x in (("o", o), ("lse", lse), ("do", do))
    ]


def check_packed(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """Check a packed problem; return q, k, v in one dtype, and the two cu_seqlens as int64 arrays."""
    q, k, v = _same_dtype(q, k, v)
    check_packed_shapes(q.shape, k.shape, v.shape)
    q_cuts = cuts("cu_seqlens_q", cu_seqlens_q, len(q))
    k_cuts = cuts("cu_seqlens_k", cu_seqlens_k, len(k))
    if len(q_cuts) != len(k_cuts):
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must have the same number of sequences, "
            f"got {len(q_cuts) - 1} and {len(k_cuts) - 1}"
        )
    return q, k, v, q_cuts, k_cuts


def check_packed_shapes(q, k, v):
    """q, k, v: the three shapes, of arrays of any library."""
    q, k, v = tuple(q), tuple(k), tuple(v)
    for name, shape in ("q", q), ("k", k), ("v", v):
        if len(shape) != 3:
            raise ValueError(f"{name} must have 3 axes (tokens, heads, head_dim), got shape {shape}")
    if k[:2] != v[:2]:
        raise ValueError(f"k and v must agree in tokens and heads, got shapes {k} and {v}")
    if k[2] != q[2]:
        raise ValueError(f"k must have the head_dim of q, {q[2]}, got {k[2]}")
    check_heads(q[1], k[1], q[2], v[2])


def cuts(name, x, total):
    """cu_seqlens (batch + 1,) as int64: from 0, never falling, to at most `total`."""
    x = integers(name, x)
    if x.ndim != 1 or len(x) == 0:
        raise ValueError(f"{name} must have shape (batch + 1,), got {x.shape}")
    if x[0] != 0 or (np.diff(x) < 0).any() or x[-1] > total:
        raise ValueError(f"{name} must rise from 0 to at most {total}, got {x.tolist()}")
    return x


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


def check_paged(q, k_cache, v_cache, block_table, seq_lens, causal, window, scale, score_mod):
    """Check a paged problem; return q, k_cache, v_cache in one dtype, the table as int64, and its Call."""
    q, k_cache, v_cache = _same_dtype(q, k_cache, v_cache, names=("q", "k_cache", "v_cache"))
    table, seq_lens = integers("block_table", block_table), integers("seq_lens", seq_lens)
    check_paged_shapes(q.shape, k_cache.shape, v_cache.shape, table.shape)
    batch, heads, q_len, head_dim = q.shape
    _, _, kv_heads, v_dim = v_cache.shape
    window = check_window(window)
    seq_lens = check_table(table, seq_lens, k_cache.shape, q_len, window)
    return q, k_cache, v_cache, table, Call(
        batch, heads, heads // kv_heads, q_len, int(seq_lens.max(initial=0)), v_dim, q.dtype,
        bool(causal), window, scale_or_default(scale, head_dim), check_score_mod(score_mod),
        np.full(batch, q_len), seq_lens,
    )  # fmt: skip


def check_paged_shapes(q, k_cache, v_cache, table):
    """q, k_cache, v_cache, table: the four shapes, of arrays of any library."""
    q, k_cache, v_cache, table = tuple(q), tuple(k_cache), tuple(v_cache), tuple(table)
    if len(q) != 4:
        raise ValueError(f"q must have 4 axes (batch, heads, length, head_dim), got shape {q}")
    for name, cache in ("k_cache", k_cache), ("v_cache", v_cache):
        if len(cache) != 4:
            raise ValueError(
                f"{name} must have 4 axes (blocks, block_size, kv_heads, dim), got shape {cache}"
            )
    if k_cache[:3] != v_cache[:3]:
        raise ValueError(
            f"k_cache and v_cache must agree in blocks, block_size and kv_heads, got {k_cache} and {v_cache}"
        )
    if k_cache[3] != q[3]:
        raise ValueError(f"k_cache must have the head_dim of q, {q[3]}, got {k_cache[3]}")
    if k_cache[1] == 0:
        raise ValueError(f"k_cache must have a block_size of at least 1, got shape {k_cache}")
    check_heads(q[1], k_cache[2], q[3], v_cache[3])
    if len(table) != 2 or table[0] != q[0]:
        raise ValueError(f"block_table must have shape (batch, max_blocks) with batch {q[0]}, got {table}")


def check_table(table, seq_lens, cache_shape, q_len, window):
    """seq_lens as int64, once every block that a query may read is known to exist."""
    num_blocks, block_size = cache_shape[:2]
    seq_lens = lengths("seq_lens", seq_lens, len(table), table.shape[1] * block_size)[:, None]
    i = np.arange(table.shape[1])
    used = i * block_size < seq_lens
    if window is not None:  # blocks that the window has left behind may have been freed
        used &= (i + 1) * block_size > seq_lens - q_len - window + 1
    wrong = used & ((table < 0) | (table >= num_blocks))
    if wrong.any():
        b, i = np.argwhere(wrong)[0]
        raise ValueError(
            f"block_table[{b}, {i}] is {table[b, i]}, and {seq_lens[b, 0]} tokens use it: "
            f"blocks are 0 to {num_blocks - 1}"
        )
    return seq_lens[:, 0]


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


def check_window(window):
    return None if window is None else positive_int("window", window)


def check_score_mod(score_mod):
    if score_mod is not None and not callable(score_mod):
        raise ValueError(
            f"score_mod must be a function (score, batch, head, q_index, kv_index) or None, got {score_mod!r}"
        )
    return score_mod


def scale_or_default(scale, head_dim):
    """The factor of the scores as a Python float (which leaves float32 arrays in float32)."""
    return 1 / math.sqrt(head_dim) if scale is None else finite_number("scale", scale, " or None")


def finite_number(name, x, or_what=""):
    try:
        number = float(x)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number{or_what}, got {x!r}")
    return number


def _same_dtype(*arrays, names=("q", "k", "v")):
    arrays = [floating(name, x) for name, x in zip(names, arrays, strict=True)]
    dtype = np.result_type(*arrays)
    return [x.astype(dtype, copy=False) for x in arrays]
