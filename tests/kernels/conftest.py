"""What the kernel tests share. On a machine without a GPU, Triton kernels run in its interpreter, on CPU
tensors."""

import os
import sys

import numpy as np
import pytest

try:
    import torch
except ImportError:
    torch = None

GPU = torch is not None and torch.cuda.is_available()
if not GPU:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before tests/kernels could set TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device():
    """Where Triton tests run: the GPU if there is one."""
    return "cuda" if GPU else "cpu"


@pytest.fixture(scope="session")
def oracle():
    return _oracle


@pytest.fixture(scope="session")
def problem():
    return _problem


def _oracle(q, k, v, *, causal=False, window=None, scale=None, score_mod=None, q_lens=None, kv_lens=None):
    """Attention in float64, one query at a time, over just the keys it sees: no m, no l, no o, no mask, no
    tile."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_dim = v.shape[1:]
    scale = head_dim**-0.5 if scale is None else scale
    o = np.zeros((batch, heads, q_len, v_dim))
    lse = np.full((batch, heads, q_len), -np.inf)
    for b in range(batch):
        rows = q_len if q_lens is None else int(q_lens[b])
        keys = kv_len if kv_lens is None else int(kv_lens[b])
        for h in range(heads):
            kv_head = h * kv_heads // heads
            for i in range(rows):
                place = i + keys - rows
                near = (j for j in range(keys) if window is None or abs(j - place) < window)
                seen = np.array([j for j in near if j <= place or not causal], int)
                s = k[b, kv_head, seen] @ q[b, h, i] * scale
                if score_mod is not None:
                    s = np.array([score_mod(x, b, h, i, j) for x, j in zip(s, seen, strict=True)])
                    seen, s = seen[s > -np.inf], s[s > -np.inf]
                if len(seen):
                    lse[b, h, i] = np.logaddexp.reduce(s)
                    o[b, h, i] = np.exp(s - lse[b, h, i]) @ v[b, kv_head, seen]
    return o, lse


def _problem(
    rng, batch=1, heads=1, kv_heads=1, q_len=1, kv_len=1, dim=16, v_dim=None, q_lens=None, kv_lens=None
):
    """Random q, k, v in float64, with NaN in every slot that no query may read."""
    q = rng.standard_normal((batch, heads, q_len, dim))
    k = rng.standard_normal((batch, kv_heads, kv_len, dim))
    v = rng.standard_normal((batch, kv_heads, kv_len, v_dim or dim))
    for b in range(batch):
        rows = q_len if q_lens is None else q_lens[b]
        keys = kv_len if kv_lens is None else kv_lens[b]
        q[b, :, rows:] = np.nan
        k[b, :, keys if rows else 0 :] = np.nan
        v[b, :, keys if rows else 0 :] = np.nan
    return q, k, v
