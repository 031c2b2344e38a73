"""Attention as the textbook has it: the score matrix S = q k^T, its softmax, times v. The yardstick, and the
problem: S and exp(S) hold batch * heads * q_len * kv_len numbers each."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import numpy as np

from .arguments import check_dense
from .state import finite_shift


def naive_attention(q, k, v, *, causal=False, scale=None, q_lens=None, kv_lens=None):
    """Attention that materialises every score at once. Same arguments and results as `flash_attention`.

    Three arrays of batch * heads * q_len * kv_len numbers are alive at its peak. Keys and values that no
    query may read are never used; NaN in one that *some* query reads spoils the other rows of that head too
    (0 * NaN is NaN).
    """
    q, k, v, size = check_dense(q, k, v, scale, q_lens, kv_lens)
    k = np.repeat(k, size.group, axis=1)  # query head h reads KV head h // group
    v = np.repeat(v, size.group, axis=1)

    row = np.arange(size.q_len)[:, None]
    col = np.arange(size.kv_len)
    q_lens, kv_lens = size.q_lens[:, None, None, None], size.kv_lens[:, None, None, None]
    readable = (col < kv_lens) & (row < q_lens)  # (batch, 1, q_len, kv_len)
    if causal:
        readable &= col <= row + kv_lens - q_lens  # aligned at the bottom right
    read = readable.any(axis=-2)[..., None]
    k, v = np.where(read, k, 0), np.where(read, v, 0)

    s = size.scale * q @ k.swapaxes(-1, -2)  # (batch, heads, q_len, kv_len)
    s = np.where(readable, s, -np.inf)
    m = s.max(axis=-1, initial=-np.inf)
    p = np.exp(s - finite_shift(m)[..., None])
    l = p.sum(axis=-1)
    l = np.where(np.isneginf(m), 1, l)  # such a row has p = 0 throughout: its output is 0, its lse -inf
    return p @ v / l[..., None], m + np.log(l)
