"""Flash-decoding: cut the keys into splits, let each split make its own state, merge the states.

One new query has no other queries to be spread over the GPU with, so its keys are spread instead. Dao,
Haziza, Massa and Sizov, "Flash-Decoding for long-context inference" (2023).
"""

from functools import reduce
from itertools import pairwise

import numpy as np

from .arguments import check_dense, positive_int
from .state import empty_state, finalize, merge, step


def flash_decoding(q, k, v, *, splits, causal=False, kv_lens=None, scale=None, tile=64):
    """Attention by split and merge. Each split walks its own keys, in tiles of `tile`, and no other's.

    q, k, v, causal, kv_lens, scale and the results (o, lse): as `flash_attention`. `splits`, at least 1:
    how many parts each sequence's keys are cut into; with fewer keys than splits some parts are empty, and
    merging them changes nothing. ValueError, before any work, as `flash_attention`.
    """
    splits, tile = positive_int("splits", splits), positive_int("tile", tile)
    q, k, v, size = check_dense(q, k, v, scale, None, kv_lens)
    o = np.zeros((size.batch, size.heads, size.q_len, size.v_dim), size.dtype)
    lse = np.full((size.batch, size.heads, size.q_len), -np.inf, size.dtype)

    row = np.arange(size.q_len)[:, None]
    for b, h in np.ndindex(size.batch, size.heads):
        kv_len = int(size.kv_lens[b])
        k_head, v_head = k[b, h // size.group], v[b, h // size.group]
        cuts = [kv_len * i // splits for i in range(splits + 1)]
        states = []
        for begin, end in pairwise(cuts):  # a GPU runs these side by side
            state = empty_state((size.q_len,), size.v_dim, size.dtype)
            for start in range(begin, end, tile):
                col = np.arange(start, min(start + tile, end))
                keys = slice(start, start + len(col))
                s = size.scale * q[b, h] @ k_head[keys].T
                if causal:
                    s = np.where(col <= row + kv_len - size.q_len, s, -np.inf)
                state = step(state, s, v_head[keys])
            states.append(state)
        o[b, h], lse[b, h] = finalize(reduce(merge, states))
    return o, lse
