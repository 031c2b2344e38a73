"""The backward pass in NumPy: against finite differences of the oracle, and against torch's float64 autograd."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import flash_attention, flash_attention_backward

# Not all warnings: those of sockets that another test left to the garbage collector are not ours.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::DeprecationWarning")
EPS = np.finfo(np.float64).eps


def gradients(q, k, v, do, tiles=(7, 5), **options):
    o, lse = flash_attention(q, k, v, **options)
    return flash_attention_backward(q, k, v, o, lse, do, tile_q=tiles[0], tile_k=tiles[1], **options)


def finite_differences(function, x, step=1e-6):
    """d function / d x, element by element, by central differences. x is put back as it was."""
    gradient = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        kept = x[at]
        x[at] = kept + step
        above = function()
        x[at] = kept - step
        gradient[at] = (above - function()) / (2 * step)
        x[at] = kept
    return gradient


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_against_finite_differences_of_the_oracle(causal, window, problem, oracle):
    """Ragged, grouped, with an empty sequence and rows that see nothing."""
    rng = np.random.default_rng(0)
    lens = {"q_lens": [3, 2, 0], "kv_lens": [4, 1, 4]}
    q, k, v = problem(rng, 3, 4, 2, 3, 4, dim=2, v_dim=3, **lens)
    q, k, v = (np.nan_to_num(x) for x in (q, k, v))
    do = rng.standard_normal((3, 4, 3, 3))
    options = {"causal": causal, "window": window, "scale": 0.7} | lens
    got = gradients(q, k, v, do, tiles=(2, 3), **options)
    for x, gradient in zip((q, k, v), got, strict=True):
        expected = finite_differences(lambda: (oracle(q, k, v, **options)[0] * do).sum(), x)
        assert np.abs(gradient - expected).max() <= 1e-8


def autograd(q, k, v, do, *, causal, window, scale, q_lens, kv_lens):
    """The textbook formula through torch's autograd, in float64."""
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(np.nan_to_num(x), requires_grad=True) for x in (q, k, v))
    batch, heads, q_len, dim = q.shape
    group = heads // k.shape[1]
    i, j = torch.arange(q_len)[:, None], torch.arange(k.shape[2])
    rows = torch.tensor([q_len] * batch if q_lens is None else q_lens)[:, None, None, None]
    keys = torch.tensor([k.shape[2]] * batch if kv_lens is None else kv_lens)[:, None, None, None]
    ahead = j - (i + keys - rows)
    seen = (i < rows) & (j < keys)
    if causal:
        seen = seen & (ahead <= 0)
    if window is not None:
        seen = seen & (ahead.abs() < window)
    s = q @ k.repeat_interleave(group, 1).mT * (dim**-0.5 if scale is None else scale)
    seen = seen.expand(s.shape)
    blind = ~seen.any(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(~seen & ~blind, -torch.inf), -1).masked_fill(~seen, 0.0)
    (p @ v.repeat_interleave(group, 1)).backward(torch.tensor(np.nan_to_num(do)))
    return [x.grad.numpy() for x in (q, k, v)]


@st.composite
def cases(draw):
    batch = draw(st.integers(1, 2))
    q_len, kv_len = draw(st.integers(1, 16)), draw(st.integers(1, 20))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    shape = {"batch": batch, "heads": kv_heads * group, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
             "dim": draw(st.integers(1, 9)), "v_dim": draw(st.integers(1, 9))}  # fmt: skip
    lens = {
        name: draw(st.none() | st.lists(st.integers(0, most), min_size=batch, max_size=batch))
        for name, most in (("q_lens", q_len), ("kv_lens", kv_len))
    }
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 20)),
        "scale": draw(st.sampled_from([None, -0.5])),
    }
    return shape, lens, options, (draw(st.integers(1, 20)), draw(st.integers(1, 24)))


@settings(deadline=None, max_examples=80)
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_against_autograd(case, seed, problem):
    """NaN lies in every slot that no query may read, in q, k, v and do, and reaches no gradient."""
    shape, lens, options, tiles = case
    rng = np.random.default_rng(seed)
    q, k, v = problem(rng, **shape, **lens)
    do = rng.standard_normal((*q.shape[:3], shape["v_dim"]))
    for b, n in enumerate(lens["q_lens"] or []):
        do[b, :, n:] = np.nan
    got = gradients(q, k, v, do, tiles=tiles, **options, **lens)
    expected = autograd(q, k, v, do, **options, **lens)
    for gradient, right in zip(got, expected, strict=True):
        assert np.abs(gradient - right).max() <= 64 * EPS * max(1, np.abs(right).max())


@pytest.mark.parametrize(("q_len", "kv_len"), [(9, 4), (5, 1), (1, 1), (1025 // 64, 1025)])
def test_queries_that_see_nothing_have_no_gradient(q_len, kv_len, problem):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 1, 2, 1, q_len, kv_len, dim=4)
    dq, dk, dv = gradients(q, k, v, rng.standard_normal(q.shape), causal=True)
    blind = max(0, q_len - kv_len)
    assert not dq[:, :, :blind].any()
    assert all(np.isfinite(x).all() for x in (dq, dk, dv))


def test_large_scores_have_finite_gradients(problem):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 1, 2, 2, 9, 12)
    for scale in 1e4, -1e4, 0.0:
        for gradient in gradients(q, k, v, rng.standard_normal(q.shape), causal=True, scale=scale):
            assert np.isfinite(gradient).all()


def test_dtypes_and_arguments_are_kept(problem):
    arrays = [x.astype(np.float32) for x in problem(np.random.default_rng(0), 1, 2, 1, 5, 6)]
    before = [x.copy() for x in arrays]
    got = gradients(*arrays, np.ones((1, 2, 5, 16), np.float32))
    assert all(x.dtype == np.float32 for x in got)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do": np.ones((1, 2, 3, 8))}, r"do must have shape \(1, 2, 3, 6\), .* got \(1, 2, 3, 8\)"),
        ({"o": np.ones((1, 2, 2, 6))}, r"o must have shape \(1, 2, 3, 6\)"),
        ({"lse": np.ones((1, 2, 3, 1))}, r"lse must have shape \(1, 2, 3\)"),
        ({"k": np.ones((1, 1, 5, 7))}, "k must have the head_dim of q"),
        ({"tile_k": 0}, "tile_k must be an integer of at least 1"),
        ({"window": -1}, "window must be an integer of at least 1"),
    ],
)
def test_refusals(change, message):
    good = {"q": np.ones((1, 2, 3, 8)), "k": np.ones((1, 1, 5, 8)), "v": np.ones((1, 1, 5, 6)),
            "o": np.ones((1, 2, 3, 6)), "lse": np.ones((1, 2, 3)), "do": np.ones((1, 2, 3, 6))}  # fmt: skip
    flash_attention_backward(**good)
    with pytest.raises(ValueError, match=message):
        flash_attention_backward(**good | change)
