"""FlashAttention's forward pass: the same numbers as the naive form, a tile of scores at a time.

Dao et al., 2022 (arXiv 2205.14135); the loop order (queries outside, keys inside) is that of
FlashAttention-2, Dao, 2023 (arXiv 2307.08691): each tile of queries is finished before the next, so its state
never leaves the loop.
"""

import numpy as np

from .arguments import check_dense, floating, positive_int, scale_or_default
from .mask import key_range, masked
from .state import empty_state, finalize, step


def flash_one_query(q, k, v, tile=64, scale=None):
    """Attention of one query over n keys.

    q: (head_dim,), k: (n, head_dim), v: (n, v_dim). Returns o (v_dim,) and the scalar lse:
    0 and -inf if n = 0.
    At no time do more than `tile` scores exist. `scale` is 1 / sqrt(head_dim) by default.
    ValueError if the shapes do not fit or tile is not a positive integer.
    """
    q, k, v = floating("q", q), floating("k", k), floating("v", v)
    tile = positive_int("tile", tile)
    if q.ndim != 1 or k.ndim != 2 or v.ndim != 2 or k.shape[1] != len(q) or len(k) != len(v):
        raise ValueError(
            "q, k, v must have shapes (head_dim,), (n, head_dim), (n, v_dim), "
            f"got {q.shape}, {k.shape}, {v.shape}"
        )
    scale = scale_or_default(scale, len(q))
    dtype = np.result_type(q, k, v)
    state = empty_state((), v.shape[1], dtype)
    for start in range(0, len(k), tile):
        keys = slice(start, start + tile)
        s = scale * (k[keys] @ q)
        state = step(state, s, v[keys])
    return finalize(state)


def flash_attention(
    q, k, v, *,
    causal=False, window=None, scale=None, score_mod=None, q_lens=None, kv_lens=None, tile_q=64, tile_k=64,
):  # fmt: skip
    """Attention in tiles: at no time do more than tile_q * tile_k scores exist.

    q: (batch, heads, q_len, head_dim).
    k: (batch, kv_heads, kv_len, head_dim); v: (batch, kv_heads, kv_len, v_dim).
    heads must be a multiple of kv_heads: query head h reads KV head h // (heads // kv_heads).
    causal: query i sees the keys j <= i + kv_len - q_len, with each sequence's own lengths.
    window: query i sees the keys less than `window` away from i + kv_len - q_len; with causal, the last
    `window` keys. None: no limit.
    scale: factor of the scores, 1 / sqrt(head_dim) by default.
    score_mod: a change to the scores, see `score_mods`; None: no change.
    q_lens, kv_lens: (batch,) integers, how much of each sequence is real; what lies beyond is never read.

    Returns o (batch, heads, q_len, v_dim) and lse (batch, heads, q_len), the natural log of the sum of
    exp(score).
    Queries beyond q_lens, and those that see no key, get 0 and -inf. ValueError, before any work, for shapes,
    lengths, tiles, a window or a scale that do not fit, naming the argument.
    """
    tile_q, tile_k = positive_int("tile_q", tile_q), positive_int("tile_k", tile_k)
    q, k, v, call = check_dense(q, k, v, causal, window, scale, score_mod, q_lens, kv_lens)
    o = np.zeros((call.batch, call.heads, call.q_len, call.v_dim), call.dtype)
    lse = np.full((call.batch, call.heads, call.q_len), -np.inf, call.dtype)

    for b, h in np.ndindex(call.batch, call.heads):
        q_len, kv_len = int(call.q_lens[b]), int(call.kv_lens[b])
        k_head, v_head = k[b, h // call.group], v[b, h // call.group]
        for first in range(0, q_len, tile_q):
            row = np.arange(first, min(first + tile_q, q_len))
            q_tile = call.scale * q[b, h, row]
            # Tiles of keys that no row of this tile may see are skipped.
            begin, end = key_range(row[0], row[-1], q_len, kv_len, causal, call.window)
            state = empty_state((len(row),), call.v_dim, call.dtype)
            for start in range(begin, end, tile_k):
                col = np.arange(start, min(start + tile_k, end))
                keys = slice(start, start + len(col))
                s = masked(q_tile @ k_head[keys].T, b, h, row, col, call)
                state = step(state, s, v_head[keys])
            o[b, h, row], lse[b, h, row] = finalize(state)
    return o, lse
