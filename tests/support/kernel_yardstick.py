"""What the tests of the Triton kernels measure with: the plain formula, its budget, and score_mods with twins.

Tolerance: the error against float64 may be at most twice that of the plain formula (inputs and probabilities
in the same dtype, sums in float32), plus a floor. The floors are units of the largest |v|, one set a rung.
"""

import math

import numpy as np
import torch

from kernels.reference import score_mods as twins
from kernels.triton import score_mods

GPU = torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# One rounding of an output near the largest |v| is eps / 2 of it; float32 sums add a few of float32's own.
FLOOR = {
    "interpreter": {torch.float32: 5e-7, torch.float16: 2**-11, torch.bfloat16: 2**-8},
    "gpu": {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8},
}["gpu" if GPU else "interpreter"]
LSE_FLOOR = 2e-6  # of max(1, |lse|): lse is float32 whatever the inputs are
CAP = 0.03  # of the largest |v|: a plain formula further off than this is no yardstick


def plain(q, k, v, *, causal=False, window=None, scale=None, twin=None, q_lens=None, kv_lens=None):
    """The textbook formula: inputs and probabilities rounded to the inputs' dtype, products and sums in
    float32 (float64 for float64). twin: a score_mod in NumPy."""
    dtype = q.dtype
    work = torch.float64 if dtype == torch.float64 else torch.float32
    batch, heads, q_len, dim = q.shape
    kv_len = k.shape[2]
    k, v = (torch.nan_to_num(x).repeat_interleave(heads // k.shape[1], dim=1).to(work) for x in (k, v))
    q_lens, kv_lens = (
        torch.full((batch, 1, 1, 1), n, device=q.device)
        if x is None
        else torch.as_tensor(x, device=q.device)[:, None, None, None]
        for x, n in ((q_lens, q_len), (kv_lens, kv_len))
    )
    i, j = torch.arange(q_len, device=q.device)[:, None], torch.arange(kv_len, device=q.device)
    ahead = j - (i + kv_lens - q_lens)
    visible = (j < kv_lens) & (i < q_lens)
    if causal:
        visible = visible & (ahead <= 0)
    if window is not None:
        visible = visible & (ahead.abs() < window)
    s = (torch.nan_to_num(q).to(work) @ k.mT) * (dim**-0.5 if scale is None else scale)
    if twin is not None:
        for b, h in np.ndindex(batch, heads):
            changed = twin(s[b, h].cpu().numpy(), b, h, i.cpu().numpy(), j.cpu().numpy())
            s[b, h] = torch.from_numpy(np.asarray(changed)).to(s)
    s = s.masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.where(torch.isneginf(lse)[..., None], 0.0, torch.exp(s - lse[..., None]))
    return (p.to(dtype).to(work) @ v).to(dtype), lse


def to64(x):
    return x.detach().cpu().double().numpy()


def tensors(arrays, dtype, device):
    return [torch.from_numpy(x).to(device=device, dtype=dtype) for x in arrays]


def assert_right(got, q, k, v, oracle, *, twin=None, **options):
    """got = (o, lse) against the oracle in float64, within the budget. options: causal, window, scale, q_lens,
    kv_lens."""
    o, lse = got
    expected, expected_lse = oracle(to64(q), to64(k), to64(v), score_mod=twin, **options)
    assert o.dtype == q.dtype
    assert lse.dtype == torch.float32
    assert o.device == lse.device == q.device
    assert o.shape == expected.shape
    assert lse.shape == expected_lse.shape
    yardstick, yardstick_lse = plain(q.cpu(), k.cpu(), v.cpu(), twin=twin, **options)
    o, lse = to64(o), to64(lse)
    seen = ~np.isneginf(expected_lse)
    assert np.array_equal(~np.isneginf(lse), seen)
    assert not o[~seen].any()

    largest = np.abs(np.nan_to_num(to64(v))).max(initial=0)
    budget = np.abs(to64(yardstick) - expected).max(initial=0)
    assert budget <= CAP * largest
    assert np.abs(o - expected).max(initial=0) <= 2 * budget + FLOOR[q.dtype] * largest
    lse_budget = np.abs(to64(yardstick_lse)[seen] - expected_lse[seen]).max(initial=0)
    lse_scale = np.abs(expected_lse[seen]).max(initial=1)
    assert lse_budget <= 1e-4 * lse_scale
    assert np.abs(lse[seen] - expected_lse[seen]).max(initial=0) <= 2 * lse_budget + LSE_FLOOR * lse_scale


def mods(rng, batch, heads, q_len, kv_len, device):
    """{name: (Triton score_mod, its aux, its twin in NumPy)} for a problem of this size."""
    values = rng.standard_normal((batch, heads, q_len, kv_len)).astype(np.float32)
    allowed = rng.random((batch, heads, q_len, kv_len)) < 0.4
    allowed[..., :1] = False  # a key that nobody sees
    allowed[:, :, q_len // 2] = False  # a query that sees nothing
    slopes = twins.alibi_slopes(heads).astype(np.float32)
    offset = kv_len - q_len
    values_on, allowed_on, slopes_on = (torch.from_numpy(x).to(device) for x in (values, allowed, slopes))
    return {
        "softcap": (score_mods.softcap, 2.5, twins.softcap(2.5)),
        "alibi": (score_mods.alibi, score_mods.sloped(slopes_on, offset), twins.alibi(slopes, offset)),
        "bias": (score_mods.bias, score_mods.indexed(values_on), twins.bias(values)),
        "mask": (score_mods.custom_mask, score_mods.indexed(allowed_on), twins.custom_mask(allowed)),
    }


MOD_NAMES = ["softcap", "alibi", "bias", "mask"]
