"""The backward pass: gradients from q, k, v and what forward left, (o, lse). The scores are made again.

With p = exp(s - lse), the probabilities, and delta = sum(do * o) of each row, equal to sum(p * dp):

    dv = p^T do        dp = do v^T        ds = p * (dp - delta)        dq = scale ds k        dk = scale ds^T q

so no tile needs to know another. Dao et al., 2022 (arXiv 2205.14135), appendix B.4.
"""

import numpy as np

from .arguments import check_dense, check_gradient, positive_int
from .mask import key_range, masked
from .state import finite_shift


def flash_attention_backward(
    q, k, v, o, lse, do, *,
    causal=False, window=None, scale=None, q_lens=None, kv_lens=None, tile_q=64, tile_k=64,
):  # fmt: skip
    """(dq, dk, dv), shaped as q, k, v, from do, the gradient of o. At most tile_q * tile_k scores exist.

    o (batch, heads, q_len, v_dim), lse (batch, heads, q_len): what `flash_attention` returned for the same
    arguments; do: as o. Queries and keys beyond their lengths get gradient 0 and are never read; so do
    queries that see no key. A KV head's gradient is the sum over the query heads that read it.
    ValueError as `flash_attention`. There is no score_mod: its own derivative would be needed.
    """
    tile_q, tile_k = positive_int("tile_q", tile_q), positive_int("tile_k", tile_k)
    q, k, v, call = check_dense(q, k, v, causal, window, scale, None, q_lens, kv_lens)
    o, lse, do = check_gradient(o, lse, do, call)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)

    for b, h in np.ndindex(call.batch, call.heads):
        q_len, kv_len = int(call.q_lens[b]), int(call.kv_lens[b])
        kv = b, h // call.group
        for first in range(0, q_len, tile_q):
            row = np.arange(first, min(first + tile_q, q_len))
            q_tile, do_tile = q[b, h, row], do[b, h, row]
            delta = (do_tile * o[b, h, row]).sum(axis=-1, keepdims=True)
            shift = finite_shift(lse[b, h, row])[:, None]
            begin, end = key_range(row[0], row[-1], q_len, kv_len, causal, call.window)
            for start in range(begin, end, tile_k):
                col = np.arange(start, min(start + tile_k, end))
                keys = slice(start, start + len(col))
                k_tile, v_tile = k[kv][keys], v[kv][keys]
                s = masked(call.scale * q_tile @ k_tile.T, b, h, row, col, call)
                p = np.exp(s - shift)
                ds = p * (do_tile @ v_tile.T - delta)
                dv[kv][keys] += p.T @ do_tile
                dk[kv][keys] += call.scale * ds.T @ q_tile
                dq[b, h, row] += call.scale * ds @ k_tile
    return dq, dk, dv
