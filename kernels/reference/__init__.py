"""Attention without the score matrix, in NumPy: readable first, one idea a file.

Read in this order: `state` (the three letters m, l, o and their merge), `softmax`, `naive`, `flash`, `mask`
and `score_mods`, `packed`, `paged`, `decoding`, `fp8`, `backward`, `memory`. Nothing here imports anything but NumPy and the standard library.

Shapes: q (batch, heads, q_len, head_dim),
k (batch, kv_heads, kv_len, head_dim), v (batch, kv_heads, kv_len, v_dim).
Every function computes in the dtype of its inputs, promoted to float32 at least; float64 stays float64.
A query that may see no key gets output 0 and lse -inf.
"""

from .backward import flash_attention_backward
from .decoding import flash_decoding
from .flash import flash_attention, flash_one_query
from .memory import peak_bytes
from .naive import naive_attention
from .packed import packed_attention
from .paged import paged_attention
from .softmax import online_softmax
from .state import State, empty_state, finalize, from_result, merge, step

__all__ = [
    "State",
    "empty_state",
    "finalize",
    "flash_attention",
    "flash_attention_backward",
    "flash_decoding",
    "flash_one_query",
    "from_result",
    "merge",
    "naive_attention",
    "online_softmax",
    "packed_attention",
    "paged_attention",
    "peak_bytes",
    "step",
]
