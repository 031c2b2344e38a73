"""Softmax of a row that is never in one place: maximum and sum are found tile by tile, in one pass."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import numpy as np

from .arguments import floating, positive_int
from .state import empty_state, finite_shift, step


def online_softmax(x, tile):
    """Softmax over the last axis of x, reading it in tiles of `tile` numbers.

    The first pass carries (m, l) alone: attention without values. Only then is each number turned into a
    probability. A row that is -inf throughout gives zeros. ValueError if x is not numeric or tile is not
    positive.
    Source: Milakov and Gimelshein, 2018 (arXiv 1805.02867).
    """
    x = floating("x", x)
    tile = positive_int("tile", tile)
    if x.ndim == 0:
        raise ValueError("x must have at least one axis, got a single number")
    n = x.shape[-1]
    state = empty_state(x.shape[:-1], 0, x.dtype)
    for start in range(0, n, tile):
        s = x[..., start : start + tile]
        no_values = np.empty((s.shape[-1], 0), x.dtype)
        state = step(state, s, no_values)
    m, l, _ = state
    l = np.where(np.isneginf(m), 1, l)
    return np.exp(x - finite_shift(m)[..., None]) / l[..., None]
