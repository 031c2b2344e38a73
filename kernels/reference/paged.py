"""Attention over a paged KV cache: the tiles are blocks that lie anywhere in memory, found through a table.

Kwon et al., 2023 (arXiv 2309.06180). The recurrence does not care where a tile came from, so nothing else
changes.
"""

import numpy as np

from .arguments import check_paged
from .mask import key_range, masked
from .state import empty_state, finalize, step


def paged_attention(
    q, k_cache, v_cache, block_table, seq_lens, *, causal=False, window=None, scale=None, score_mod=None
):
    """Attention of q over sequences kept in a paged cache, one step a block; nothing is gathered.

    q: (batch, heads, q_len, head_dim), the last q_len tokens of each sequence: (batch, heads, 1, head_dim) to
    decode.
    k_cache: (num_blocks, block_size, kv_heads, head_dim), v_cache: (num_blocks, block_size, kv_heads, v_dim).
    block_table: (batch, max_blocks) integers. Entry [b, i] is the block that holds tokens i * block_size and
    on of sequence b; entries past the sequence's end are not looked at (-1 by custom).
    seq_lens: (batch,) integers, the tokens of each sequence that are in the cache.
    The options, the head map and the results (o, lse): as `flash_attention`, with kv_len = seq_lens[b].
    Blocks that a window has left behind are not looked at either.

    ValueError, before any work, if a block in use is not in 0 .. num_blocks - 1, or a length does not fit its
    table.
    """
    q, k_cache, v_cache, table, call = check_paged(
        q, k_cache, v_cache, block_table, seq_lens, causal, window, scale, score_mod
    )
    block_size = k_cache.shape[1]
    o = np.zeros((call.batch, call.heads, call.q_len, call.v_dim), call.dtype)
    lse = np.full((call.batch, call.heads, call.q_len), -np.inf, call.dtype)

    row = np.arange(call.q_len)
    for b, h in np.ndindex(call.batch, call.heads):
        begin, end = key_range(0, call.q_len - 1, call.q_len, int(call.kv_lens[b]), causal, call.window)
        state = empty_state((call.q_len,), call.v_dim, call.dtype)
        for i in range(begin // block_size, -(-end // block_size)):
            start = i * block_size
            used = min(block_size, end - start)  # the last block is seldom full
            k_tile = k_cache[table[b, i], :used, h // call.group]
            v_tile = v_cache[table[b, i], :used, h // call.group]
            s = call.scale * q[b, h] @ k_tile.T
            state = step(state, masked(s, b, h, row, start + np.arange(used), call), v_tile)
        o[b, h], lse[b, h] = finalize(state)
    return o, lse
