"""The score_mods of `kernels.reference.score_mods` for the GPU. Pass one as score_mod=, what it reads as aux=.

A score_mod is a @triton.jit function (score, batch, head, q_index, kv_index, aux) -> score. score is a tile of
scores (queries, keys), scaled, in natural units; the indices are integers or tensors that broadcast against
it, and always those of tokens that exist.
"""

import triton
import triton.language as tl


@triton.jit
def softcap(score, batch, head, q_index, kv_index, aux):
    """cap * tanh(score / cap). aux: cap, a number above 0."""
    return aux * tanh(score / aux)


@triton.jit
def alibi(score, batch, head, q_index, kv_index, aux):
    """score - slopes[head] * |q_index + offset - kv_index|. aux: `sloped(slopes, offset)`."""
    distance = tl.abs(q_index + aux[2] - kv_index).to(tl.float32)
    return score - tl.load(aux[0] + tl.cast(head, tl.int64) * aux[1]) * distance


@triton.jit
def bias(score, batch, head, q_index, kv_index, aux):
    """score + values[batch, head, q_index, kv_index]. aux: `indexed(values)`."""
    return score + at(aux, batch, head, q_index, kv_index)


@triton.jit
def custom_mask(score, batch, head, q_index, kv_index, aux):
    """-inf where allowed[batch, head, q_index, kv_index] is false. aux: `indexed(allowed)`."""
    return tl.where(at(aux, batch, head, q_index, kv_index) != 0, score, float("-inf"))


def sloped(slopes, offset=0):
    """aux for `alibi`: slopes (heads,); offset: kv_len - q_len, where the queries stand."""
    if slopes.ndim != 1:
        raise ValueError(f"slopes must have shape (heads,), got {tuple(slopes.shape)}")
    return (slopes, slopes.stride(0), offset)


def indexed(x):
    """aux for `bias` and `custom_mask`: x (batch, heads, q_len, kv_len), any strides, and expanded axes too."""
    if x.ndim != 4:
        raise ValueError(f"x must have 4 axes (batch, heads, q_len, kv_len), got shape {tuple(x.shape)}")
    return (x, *x.stride())


@triton.jit
def at(aux, batch, head, q_index, kv_index):
    offset = tl.cast(batch, tl.int64) * aux[1] + tl.cast(head, tl.int64) * aux[2]
    offset += tl.cast(q_index, tl.int64) * aux[3] + tl.cast(kv_index, tl.int64) * aux[4]
    return tl.load(aux[0] + offset)


@triton.jit
def tanh(x):
    """To about 2 units in the last place: near 0, where 1 - exp(-2 x) loses digits, by its series."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.2, series, tl.where(x < 0, -far, far))
