"""Changes to scores, as functions: softcap, ALiBi, an added bias, a mask of one's own.

A score_mod is a function (score, batch, head, q_index, kv_index) -> score, called for a tile of scores after
the scale and before the mask. The four indices are integers or arrays that broadcast against score (rows,
keys). -inf hides a key. `kernels.triton.score_mods` has the same four for the GPU.

An attention sink is none of these: it is the partial state (m = sink, l = 1, o = 0), merged once at the end.
"""

import math

import numpy as np

from .arguments import finite_number, positive_int


def softcap(cap):
    """cap * tanh(score / cap): no score passes +-cap. Gemma 2 (arXiv 2408.00118)."""
    cap = finite_number("cap", cap)
    if cap <= 0:
        raise ValueError(f"cap must be above 0, got {cap}")
    return lambda score, batch, head, q_index, kv_index: cap * np.tanh(score / cap)


def alibi(slopes, offset=0):
    """score - slope * distance; slopes: (heads,). Press et al., 2022 (arXiv 2108.12409).

    The distance is |q_index + offset - kv_index|; offset: kv_len - q_len, where the query stands.
    """
    slopes = np.asarray(slopes)
    if slopes.ndim != 1:
        raise ValueError(f"slopes must have shape (heads,), got {slopes.shape}")

    def mod(score, batch, head, q_index, kv_index):
        distance = np.abs(q_index + offset - kv_index)
        return score - slopes[head].astype(score.dtype) * distance

    return mod


def alibi_slopes(heads):
    """The slopes of the paper: 2^(-8 / n), 2^(-16 / n), ... for n heads; every second of the next power of two's
    for the rest where n is no power of two."""

    def powers(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    n = 2 ** math.floor(math.log2(positive_int("heads", heads)))
    return np.array(powers(n) + powers(2 * n)[::2][: heads - n])


def bias(values):
    """score + values[batch, head, q_index, kv_index]; values: (batch, heads, q_len, kv_len)."""
    values = _four_axes("values", values)

    def mod(score, batch, head, q_index, kv_index):
        return score + values[batch, head, q_index, kv_index].astype(score.dtype)

    return mod


def custom_mask(allowed):
    """-inf where allowed[batch, head, q_index, kv_index] is false; allowed: (batch, heads, q_len, kv_len)."""
    allowed = _four_axes("allowed", allowed).astype(bool, copy=False)
    return lambda score, batch, head, q_index, kv_index: np.where(
        allowed[batch, head, q_index, kv_index], score, -np.inf
    )


def _four_axes(name, x):
    x = np.asarray(x)
    if x.ndim != 4:
        raise ValueError(f"{name} must have 4 axes (batch, heads, q_len, kv_len), got shape {x.shape}")
    return x
