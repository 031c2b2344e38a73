"""Attention as the textbook has it: the score matrix S = q k^T, its softmax, times v. The yardstick, and the
problem: S and exp(S) hold batch * heads * q_len * kv_len numbers each."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import numpy as np

from .arguments import check_dense
from .mask import masked
from .state import finite_shift


def naive_attention(
    q, k, v, *, causal=False, window=None, scale=None, score_mod=None, q_lens=None, kv_lens=None
):
    """Attention that materialises every score at once. Same arguments and results as `flash_attention`.

    About three arrays of batch * heads * q_len * kv_len numbers are alive at its peak. Keys and values that
    no query may read are never used; NaN in one that *some* query reads spoils the other rows of that head
    too (0 * NaN is NaN).
    """
    q, k, v, call = check_dense(q, k, v, causal, window, scale, score_mod, q_lens, kv_lens)
    k = np.repeat(k, call.group, axis=1)  # query head h reads KV head h // group
    v = np.repeat(v, call.group, axis=1)

    s = call.scale * q @ k.swapaxes(-1, -2)  # (batch, heads, q_len, kv_len)
    for b, h in np.ndindex(call.batch, call.heads):
        s[b, h] = masked(s[b, h], b, h, np.arange(call.q_len), np.arange(call.kv_len), call)
    unread = np.isneginf(s).all(axis=-2)
    v = np.where(unread[..., None], 0, v)

    m = s.max(axis=-1, initial=-np.inf)
    p = np.exp(s - finite_shift(m)[..., None])
    l = p.sum(axis=-1)
    l = np.where(np.isneginf(m), 1, l)  # such a row has p = 0 throughout: its output is 0, its lse -inf
    return p @ v / l[..., None], m + np.log(l)
