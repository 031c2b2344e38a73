"""Which queries may see which keys. Every form of attention asks these functions, and nothing else decides.

Query i stands at key i + kv_len - q_len (aligned at the bottom right: the last query stands at the last key).
Causal hides the keys after that place; a window of w hides the keys w or more away from it, on either side.
"""

import numpy as np


def visible(i_q, i_k, q_len, kv_len, causal=False, window=None):
    """Booleans in the broadcast shape of i_q and i_k: may query i_q see key i_k?

    i_q, i_k: integer indices within their sequence, such as (rows, 1) and (keys,).
    """
    # How far the key lies beyond the query's own place.
    ahead = i_k - (i_q + kv_len - q_len)
    seen = (i_q < q_len) & (i_k < kv_len)
    if causal:
        seen = seen & (ahead <= 0)
    if window is not None:
        seen = seen & (np.abs(ahead) < window)
    return seen


def key_range(first, last, q_len, kv_len, causal=False, window=None):
    """(begin, end) such that the queries first .. last see no key outside begin .. end - 1."""
    begin, end = 0, kv_len
    if window is not None:
        begin = max(begin, first + kv_len - q_len - window + 1)
        end = min(end, last + kv_len - q_len + window)
    if causal:
        end = min(end, last + kv_len - q_len + 1)
    return begin, max(begin, end)


def masked(s, b, h, i_q, i_k, call):
    """The scores s (rows, keys) of head h of sequence b after `score_mod`, and -inf where the mask says so.

    i_q (rows,), i_k (keys,): the indices of the rows and columns of s. call: see `arguments.Call`.
    """
    i_q = i_q[:, None]
    if call.score_mod is not None:
        s = call.score_mod(s, b, h, i_q, i_k)
    seen = visible(i_q, i_k, call.q_lens[b], call.kv_lens[b], call.causal, call.window)
    return np.where(seen, s, -np.inf)
