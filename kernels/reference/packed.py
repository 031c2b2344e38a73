"""Sequences of different lengths without padding: all tokens in one row, and where each sequence starts."""

import numpy as np

from .arguments import check_packed
from .flash import flash_attention


def packed_attention(
    q, k, v, cu_seqlens_q, cu_seqlens_k, *,
    causal=False, window=None, scale=None, score_mod=None, tile_q=64, tile_k=64,
):  # fmt: skip
    """Attention of each sequence over its own keys.

    q: (total_q, heads, head_dim); k: (total_k, kv_heads, head_dim); v: (total_k, kv_heads, v_dim).
    cu_seqlens_q, cu_seqlens_k: (batch + 1,) integers from 0 on that never fall; sequence b is tokens
    cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Tokens from cu_seqlens[-1] on belong to none and are not read.
    The rest as `flash_attention`; the indices that score_mod gets count within their sequence.

    Returns o (total_q, heads, v_dim) and lse (total_q, heads); 0 and -inf for a token of no sequence.
    """
    q, k, v, q_cuts, k_cuts = check_packed(q, k, v, cu_seqlens_q, cu_seqlens_k)
    o = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    lse = np.full(q.shape[:2], -np.inf, q.dtype)
    for b in range(len(q_cuts) - 1):
        rows, keys = slice(q_cuts[b], q_cuts[b + 1]), slice(k_cuts[b], k_cuts[b + 1])
        q_b, k_b, v_b = (x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        o_b, lse_b = flash_attention(
            q_b, k_b, v_b, causal=causal, window=window, scale=scale, tile_q=tile_q, tile_k=tile_k,
            score_mod=score_mod and (lambda s, _, *index, b=b: score_mod(s, b, *index)),
        )  # fmt: skip
        o[rows], lse[rows] = o_b[0].swapaxes(0, 1), lse_b[0].swapaxes(0, 1)
    return o, lse
