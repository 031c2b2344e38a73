"""Flash-decoding: cut the keys into splits, let each split make its own state, merge the states.

One new query has no other queries to be spread over the GPU with, so its keys are spread instead. Dao,
Haziza, Massa and Sizov, "Flash-Decoding for long-context inference" (2023).
"""

from functools import reduce
from itertools import pairwise

import numpy as np

from .arguments import check_dense, positive_int
from .mask import key_range, masked
from .state import empty_state, finalize, merge, step


def flash_decoding(
    q, k, v, *, splits, causal=False, window=None, scale=None, score_mod=None, kv_lens=None, tile=64
):
    """Attention by split and merge. Each split walks its own keys, in tiles of `tile`, and no other's.

    q, k, v, the options and the results (o, lse): as `flash_attention`. `splits`, at least 1:
    how many parts each sequence's keys are cut into; with fewer keys than splits some parts are empty, and
    merging them changes nothing. ValueError, before any work, as `flash_attention`.
    """
    splits, tile = positive_int("splits", splits), positive_int("tile", tile)
    q, k, v, call = check_dense(q, k, v, causal, window, scale, score_mod, None, kv_lens)
    o = np.zeros((call.batch, call.heads, call.q_len, call.v_dim), call.dtype)
    lse = np.full((call.batch, call.heads, call.q_len), -np.inf, call.dtype)

    row = np.arange(call.q_len)
    for b, h in np.ndindex(call.batch, call.heads):
        k_head, v_head = k[b, h // call.group], v[b, h // call.group]
        first, last = key_range(0, call.q_len - 1, call.q_len, int(call.kv_lens[b]), causal, call.window)
        cuts = [first + (last - first) * i // splits for i in range(splits + 1)]
        states = []
        for begin, end in pairwise(cuts):  # a GPU runs these side by side
            state = empty_state((call.q_len,), call.v_dim, call.dtype)
            for start in range(begin, end, tile):
                col = np.arange(start, min(start + tile, end))
                keys = slice(start, start + len(col))
                s = masked(call.scale * q[b, h] @ k_head[keys].T, b, h, row, col, call)
                state = step(state, s, v_head[keys])
            states.append(state)
        o[b, h], lse[b, h] = finalize(reduce(merge, states))
    return o, lse
