"""The partial state (m, l, o): all that attention has to remember about the keys it has seen.

For one query with scores s_j and values v_j over the keys seen so far,

    m = max_j s_j          l = sum_j exp(s_j - m)          o = sum_j exp(s_j - m) v_j

so the output over those keys is o / l, and log(sum_j exp(s_j)) is m + log(l). States over two disjoint sets
of keys merge into the state over both, in any order and any grouping; that is the whole of FlashAttention, of
flash-decoding, of paging and of ring attention. The recurrence is Milakov and Gimelshein (2018, arXiv
1805.02867) for m and l; Rabe and Staats (2021, arXiv 2112.05682) and Dao et al. (2022, arXiv 2205.14135)
carry o along.

A set without keys has m = -inf, l = 0, o = 0; its m is what marks it as empty. And exp(-inf - (-inf)) is NaN,
so every exponential here subtracts a *finite* shift: m where it is finite, 0 where no key has been seen yet.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    """Partial attention over some keys, for any number of rows (queries) at once.

    m: (...) running maximum of the scores, -inf where no key was seen.
    l: (...) running sum of exp(score - m).
    o: (..., v_dim) running sum of exp(score - m) * value, not yet divided by l.
    """

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray


def empty_state(rows_shape, head_dim, dtype=np.float64):
    """The state of rows that have seen no key: merging with it changes nothing.

    rows_shape: shape of m and l, () for a single query. head_dim: length of one value vector.
    """
    rows_shape = tuple(rows_shape)
    m = np.full(rows_shape, -np.inf, dtype)
    return State(m, np.zeros(rows_shape, dtype), np.zeros((*rows_shape, head_dim), dtype))


def step(state, s, v):
    """Take in one tile of keys and return the new state; nothing is changed in place.

    s: (..., n) scores of the tile, -inf where a row may not see a key. The leading axes are those of
    `state.m`.
    v: (n, v_dim) the tile's values, shared by all rows; or (..., n, v_dim), a tile of values for each row.

    A value that a row may not see adds nothing to it, even where NaN is stored there.
    """
    s, v = np.asarray(s), np.asarray(v)
    m = np.maximum(state.m, s.max(axis=-1, initial=-np.inf))
    shift = finite_shift(m)
    correction = np.exp(state.m - shift)
    p = np.exp(s - shift[..., None])
    l = correction * state.l + p.sum(axis=-1)
    o = correction[..., None] * state.o + weighted_sum(p, v, np.isneginf(s))
    return State(m, l, o)


def merge(a, b):
    """The state over the keys of a and of b together.

    Commutative to the last bit, associative up to rounding; `empty_state` is its identity. Where a side has
    seen no key (its m is -inf), its l and o are ignored, whatever they hold.
    """
    a, b = _empty_means_zero(a), _empty_means_zero(b)
    m = np.maximum(a.m, b.m)
    shift = finite_shift(m)
    weight_a, weight_b = np.exp(a.m - shift), np.exp(b.m - shift)
    l = weight_a * a.l + weight_b * b.l
    o = weight_a[..., None] * a.o + weight_b[..., None] * b.o
    return State(m, l, o)


def finalize(state):
    """(o, lse) of a state: the output (..., v_dim) and the natural log of the sum of exp(score) (...).

    Rows that saw no key give output 0 and lse -inf.
    """
    m, l, o = _empty_means_zero(state)
    l = np.where(np.isneginf(m), 1, l)
    return o / l[..., None], m + np.log(l)


def from_result(o, lse):
    """The state whose `finalize` is (o, lse): m = lse, l = 1. o: (..., v_dim); lse: (...), natural log.

    So finished results merge too: `finalize(merge(from_result(*a), from_result(*b)))`. An attention sink is
    `from_result(0, sink)`: a key with that score whose value is 0, merged once at the end.
    """
    lse = np.asarray(lse)
    return State(lse, np.ones_like(lse), np.asarray(o))


def finite_shift(m):
    """What to subtract before exp: m, or 0 where no key was seen, because -inf - (-inf) is NaN."""
    return np.where(np.isneginf(m), 0, m)


def weighted_sum(p, v, masked):
    """Sum of p_j v_j over the keys j that are not masked.

    p, masked: (..., n); v: (n, v_dim) or (..., n, v_dim).

    Where masked, p is 0, so a plain product would do, but for one thing: 0 * NaN is NaN. Vectors of v that
    hold a NaN or an infinity are therefore left out of the product and added key by key, to the rows that may
    see them.
    """
    finite = np.isfinite(v).all(axis=-1)
    clean = v if finite.all() else np.where(finite[..., None], v, 0)
    o = p @ clean if v.ndim == 2 else (p[..., None, :] @ clean)[..., 0, :]
    some_bad = ~finite.all(axis=tuple(range(finite.ndim - 1)))
    for j in np.flatnonzero(some_bad):
        add = ~masked[..., j] & ~finite[..., j]
        o = o + p[..., j, None] * np.where(add[..., None], v[..., j, :], 0)
    return o


def _empty_means_zero(state):
    """The state with l = 0 and o = 0 in the rows that have seen no key, in place of whatever was there."""
    empty = np.isneginf(state.m)
    return State(state.m, np.where(empty, 0, state.l), np.where(empty[..., None], 0, state.o))
