"""Attention over a paged KV cache: the tiles are blocks that lie anywhere in memory, found through a table.

Kwon et al., 2023 (arXiv 2309.06180). The recurrence does not care where a tile came from, so nothing else
changes.
"""

import numpy as np

from .arguments import check_paged
from .state import empty_state, finalize, step


def paged_attention(q, k_cache, v_cache, block_table, seq_lens, *, causal=False, scale=None):
    """Attention of q over sequences kept in a paged cache, one step a block; nothing is gathered.

    q: (batch, heads, q_len, head_dim), the last q_len tokens of each sequence: (batch, heads, 1, head_dim) to
    decode.
    k_cache: (num_blocks, block_size, kv_heads, head_dim), v_cache: (num_blocks, block_size, kv_heads, v_dim).
    block_table: (batch, max_blocks) integers. Entry [b, i] is the block that holds tokens i * block_size and
    on of sequence b; entries past the sequence's end are not looked at (-1 by custom).
    seq_lens: (batch,) integers, the tokens of each sequence that are in the cache.
    causal, scale, the head map and the results (o, lse): as `flash_attention`, with kv_len = seq_lens[b].

    ValueError, before any work, if a block in use is not in 0 .. num_blocks - 1, or a length does not fit its
    table.
    """
    q, k_cache, v_cache, table, size = check_paged(q, k_cache, v_cache, block_table, seq_lens, scale)
    block_size = k_cache.shape[1]
    o = np.zeros((size.batch, size.heads, size.q_len, size.v_dim), size.dtype)
    lse = np.full((size.batch, size.heads, size.q_len), -np.inf, size.dtype)

    row = np.arange(size.q_len)[:, None]
    for b, h in np.ndindex(size.batch, size.heads):
        kv_len = int(size.kv_lens[b])
        state = empty_state((size.q_len,), size.v_dim, size.dtype)
        for i, start in enumerate(range(0, kv_len, block_size)):
            block = table[b, i]
            used = min(block_size, kv_len - start)  # the last block is seldom full
            k_tile = k_cache[block, :used, h // size.group]
            v_tile = v_cache[block, :used, h // size.group]
            s = size.scale * q[b, h] @ k_tile.T
            if causal:
                s = np.where(start + np.arange(used) <= row + kv_len - size.q_len, s, -np.inf)
            state = step(state, s, v_tile)
        o[b, h], lse[b, h] = finalize(state)
    return o, lse
