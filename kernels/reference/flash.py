"""FlashAttention's forward pass: the same numbers as the naive form, a tile of scores at a time.

Dao et al., 2022 (arXiv 2205.14135); the loop order (queries outside, keys inside) is that of
FlashAttention-2, Dao, 2023 (arXiv 2307.08691): each tile of queries is finished before the next, so its state
never leaves the loop.
"""

import numpy as np

from .arguments import check_dense, floating, positive_int, scale_or_default
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


def flash_attention(q, k, v, *, causal=False, scale=None, q_lens=None, kv_lens=None, tile_q=64, tile_k=64):
    """Attention in tiles: at no time do more than tile_q * tile_k scores exist.

    q: (batch, heads, q_len, head_dim).
    k: (batch, kv_heads, kv_len, head_dim); v: (batch, kv_heads, kv_len, v_dim).
    heads must be a multiple of kv_heads: query head h reads KV head h // (heads // kv_heads).
    causal: query i sees the keys j <= i + kv_len - q_len, with each sequence's own lengths.
    scale: factor of the scores, 1 / sqrt(head_dim) by default.
    q_lens, kv_lens: (batch,) integers, how much of each sequence is real; what lies beyond is never read.

    Returns o (batch, heads, q_len, v_dim) and lse (batch, heads, q_len), the natural log of the sum of
    exp(score).
    Queries beyond q_lens, and those that see no key, get 0 and -inf. ValueError, before any work, for shapes,
    lengths, tiles or a scale that do not fit, naming the argument.
    """
    tile_q, tile_k = positive_int("tile_q", tile_q), positive_int("tile_k", tile_k)
    q, k, v, size = check_dense(q, k, v, scale, q_lens, kv_lens)
    o = np.zeros((size.batch, size.heads, size.q_len, size.v_dim), size.dtype)
    lse = np.full((size.batch, size.heads, size.q_len), -np.inf, size.dtype)

    for b, h in np.ndindex(size.batch, size.heads):
        q_len, kv_len = int(size.q_lens[b]), int(size.kv_lens[b])
        k_head, v_head = k[b, h // size.group], v[b, h // size.group]
        for first in range(0, q_len, tile_q):
            row = np.arange(first, min(first + tile_q, q_len))
            q_tile = size.scale * q[b, h, row]
            # One more than the last key each row sees. Tiles beyond the largest are empty and skipped.
            ends = np.minimum(row + kv_len - q_len + 1, kv_len) if causal else np.full(len(row), kv_len)
            state = empty_state((len(row),), size.v_dim, size.dtype)
            for start in range(0, ends[-1], tile_k):
                col = np.arange(start, min(start + tile_k, ends[-1]))
                keys = slice(start, start + len(col))
                s = q_tile @ k_head[keys].T
                s = np.where(col < ends[:, None], s, -np.inf)
                state = step(state, s, v_head[keys])
            o[b, h, row], lse[b, h, row] = finalize(state)
    return o, lse
