"""The Triton backward kernels against float64 gradients: on the GPU if there is one, else in the interpreter.

Tolerance: the error may be at most twice that of the plain formula's own gradients (everything that a tensor
of the inputs' dtype would hold rounded to it, sums in float32), plus a floor in units of the largest gradient.
"""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kernel_yardstick import DTYPES, GPU, MOD_NAMES, mods, tensors, to64  # noqa: E402

from kernels.reference import flash_attention as reference_forward  # noqa: E402
from kernels.reference import flash_attention_backward  # noqa: E402
from kernels.triton import attention, host  # noqa: E402
from kernels.triton.attention import flash_attention, packed_attention  # noqa: E402

NAN = math.nan
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).split(".")[1])
FLOOR = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
SMALL = (host.Tiles(16, 16, 4, 1), host.Tiles(16, 16, 4, 1))


def plain_gradients(q, k, v, do, *, causal=False, window=None, scale=None, q_lens=None, kv_lens=None):
    """dq, dk, dv by the formulas of `kernels.reference.backward` on whole matrices, float32 sums; p and ds are
    rounded to the inputs' dtype before they are multiplied, as tensors of that dtype would be."""
    dtype = q.dtype
    batch, heads, q_len, dim = q.shape
    group = heads // k.shape[1]
    q, k, v, do = (torch.nan_to_num(x).float() for x in (q, k, v, do))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scale = dim**-0.5 if scale is None else scale
    rows = torch.tensor(q_lens or [q_len] * batch)[:, None, None, None]
    keys = torch.tensor(kv_lens or [k.shape[2]] * batch)[:, None, None, None]
    i, j = torch.arange(q_len)[:, None], torch.arange(k.shape[2])
    ahead = j - (i + keys - rows)
    seen = (i < rows) & (j < keys)
    seen = seen & (ahead <= 0) if causal else seen
    seen = seen & (ahead.abs() < window) if window else seen
    s = (q @ k.mT * scale).masked_fill(~seen, -math.inf)
    p = torch.nan_to_num(torch.softmax(s, -1))
    o = (p.to(dtype).float() @ v).to(dtype).float()
    ds = p * (do @ v.mT - (o * do).sum(-1, keepdim=True))
    p, ds = p.to(dtype).float(), ds.to(dtype).float()
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ do
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
    return [x.to(dtype) for x in (dq, dk, dv)]


def assert_gradients(got, q, k, v, do, **options):
    arrays = [to64(x) for x in (q, k, v)]
    o, lse = reference_forward(*arrays, **options)
    expected = flash_attention_backward(*arrays, o, lse, to64(do), **options)
    yardstick = plain_gradients(*(x.detach().cpu() for x in (q, k, v, do)), **options)
    largest = max(np.abs(x).max(initial=0) for x in expected)
    for name, gradient, right, near, x in zip("qkv", got, expected, yardstick, (q, k, v), strict=True):
        assert gradient.dtype == x.dtype
        assert gradient.shape == x.shape
        budget = np.abs(to64(near) - right).max(initial=0)
        assert budget <= 0.05 * largest
        error = np.abs(to64(gradient) - right).max(initial=0)
        assert error <= 2 * budget + FLOOR[q.dtype] * largest, f"d{name}: {error} against {budget}"


def gradients(function, q, k, v, *args, do, tiles=SMALL, **options):
    """dq, dk, dv, out of memory full of NaN."""

    def empty(*shape, **kwargs):
        return torch.full(*shape, NAN, **kwargs)

    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        if tiles is not None:
            patch.setattr(host, "backward_tiles", lambda *args: tiles)
            patch.setattr(host, "forward_tiles", lambda *args: tiles[0])
        o, lse = function(q, k, v, *args, **options)
        assert not lse.requires_grad
        o.backward(do)
    return q.grad, k.grad, v.grad


def check(problem, device, dtype, *, seed=0, tiles=SMALL, causal=False, window=None, scale=None, **shape):
    rng = np.random.default_rng(seed)
    q, k, v = problem(rng, **shape)
    do = rng.standard_normal((*q.shape[:3], v.shape[3]))
    lens = {name: shape[name] for name in ("q_lens", "kv_lens") if shape.get(name) is not None}
    for b, n in enumerate(lens.get("q_lens", [])):
        do[b, :, n:] = NAN
    q, k, v, do = tensors((q, k, v, do), dtype, device)
    options = {"causal": causal, "window": window, "scale": scale} | lens
    got = gradients(flash_attention, q, k, v, do=do, tiles=tiles, **options)
    assert_gradients(got, q, k, v, do, **options)


@st.composite
def cases(draw):
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    q_len, kv_len = draw(st.integers(1, 36)), draw(st.integers(1, 40))
    dim, v_dim = draw(st.sampled_from([(16, 16), (1, 24), (40, 16), (33, 7)]))
    shape = {"batch": batch, "heads": kv_heads * group, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
             "dim": dim, "v_dim": v_dim}  # fmt: skip
    for name, most in ("q_lens", q_len), ("kv_lens", kv_len):
        shape[name] = draw(st.none() | st.lists(st.integers(0, most), min_size=batch, max_size=batch))
    return shape


@settings(deadline=None, max_examples=30 if GPU else 8)
@given(
    shape=cases(),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 45),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_small_problem(shape, causal, window, dtype, seed, problem, device):
    """NaN lies in every slot that no query may read, in q, k, v and do, and reaches no gradient."""
    check(problem, device, dtype, causal=causal, window=window, seed=seed, **shape)


@dtypes
@pytest.mark.parametrize("causal", [False, True] if GPU else [True])
def test_a_batch_of_everything(dtype, causal, problem, device):
    """With the kernels' own tiles: ragged, grouped, empty sequences, V's head_dim its own."""
    check(problem, device, dtype, causal=causal, batch=3, heads=2, q_len=70, kv_len=80, dim=40, v_dim=24,
          q_lens=[70, 0, 33], kv_lens=[80, 70, 0], tiles=None)  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 16, 17, 40] if GPU else [None, 17])
@pytest.mark.parametrize(("q_len", "kv_len"), [(33, 33), (20, 50), (50, 20), (1, 17)])
def test_masks_around_tile_boundaries(causal, window, q_len, kv_len, problem, device):
    check(problem, device, torch.float32, causal=causal, window=window, q_len=q_len, kv_len=kv_len)


def test_nan_that_a_window_has_left_behind(problem, device):
    """What no query may read has gradient 0, in the middle of a tile and in whole tiles before it."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, q_len=3, kv_len=50)
    k[:, :, :27] = v[:, :, :27] = NAN  # the queries stand at 47 .. 49
    q, k, v, do = tensors((q, k, v, rng.standard_normal(q.shape)), torch.float32, device)
    options = {"causal": True, "window": 21}
    got = gradients(flash_attention, q, k, v, do=do, **options)
    assert_gradients(got, q, k, v, do, **options)
    assert not got[1][:, :, :27].any()
    assert not got[2][:, :, :27].any()


def test_a_length_one_over_a_tile(problem, device):
    n = 1025 if GPU else 129
    check(problem, device, torch.float16, causal=True, q_len=n, kv_len=n, tiles=None)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (5, 1), (9, 3)])
def test_groups_are_summed(heads, kv_heads, problem, device):
    check(problem, device, torch.float16, causal=True, heads=heads, kv_heads=kv_heads, q_len=9, kv_len=20)


@pytest.mark.parametrize(
    ("dim", "v_dim"),
    [(8, 80), (80, 80), (96, 64), (128, 128), (192, 128), (256, 256)] if GPU else [(96, 64), (192, 128)],
)
@dtypes
def test_head_dims(dim, v_dim, dtype, problem, device):
    check(problem, device, dtype, causal=True, q_len=21, kv_len=37, dim=dim, v_dim=v_dim, tiles=None)


@pytest.mark.parametrize("tiles", sorted({*host.DQ_TILES.values(), *host.DKDV_TILES.values()}), ids=str)
@pytest.mark.parametrize("dtype", DTYPES if GPU else [torch.float16], ids=str)
def test_each_configuration_alone_on_poisoned_outputs(tiles, dtype, problem, device):
    check(problem, device, dtype, causal=True, batch=2, heads=2, kv_heads=1, q_len=40, kv_len=140, q_lens=[40, 33],
          kv_lens=[140, 65], tiles=(tiles, tiles))  # fmt: skip


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", ["length first", "dim strided", "expanded"])
def test_strides(which, layout, problem, device):
    """q, k, v and do, which autograd hands over as it comes: an expanded number, for one, from a sum."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 2, 2, 2, 20, 37, 24)
    arrays = tensors((q, k, v, rng.standard_normal(q.shape)), torch.float16, device)
    x = arrays[which]
    arrays[which] = {
        "length first": lambda: x.transpose(1, 2).contiguous().transpose(1, 2),
        "dim strided": lambda: x.mT.contiguous().mT,
        "expanded": lambda: x[:1, :, :, :1].expand(x.shape),
    }[layout]()
    q, k, v, do = arrays
    got = gradients(flash_attention, q, k, v, do=do, causal=True)
    assert_gradients(got, q, k, v, do, causal=True)


def test_the_gradient_of_a_sum(device):
    q = torch.randn(1, 2, 9, 16, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    o, _ = flash_attention(q, q, q, causal=True)
    o.sum().backward()
    got = q.grad.clone()
    q.grad = None
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert (got - q.grad).abs().max() <= 1e-5


def test_queries_that_see_nothing_have_no_gradient(problem, device):
    rng = np.random.default_rng(0)
    q, k, v = tensors(problem(rng, 1, 2, 1, 30, 9), torch.float32, device)
    dq, dk, dv = gradients(flash_attention, q, k, v, do=torch.ones_like(q), causal=True)
    assert not dq[:, :, :21].any()
    assert all(torch.isfinite(x).all() for x in (dq, dk, dv))
    q, k, v = tensors(problem(rng, 2, 2, 1, 9, 0), torch.float32, device)
    dq, dk, dv = gradients(flash_attention, q, k, v, do=torch.ones_like(q))
    assert not dq.any()


@pytest.mark.parametrize("dtype", DTYPES if GPU else [torch.float16], ids=str)
def test_large_scores_have_finite_gradients(dtype, problem, device):
    """lse far below -88, where exp(-lse) has no float32, and far above."""
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 1, 1, 20, 35), dtype, device)
    for scale in 2.0**12, -(2.0**12), 0.0:
        for x in gradients(flash_attention, q, k, v, do=torch.ones_like(q), causal=True, scale=scale):
            assert torch.isfinite(x).all()
    low = torch.full_like(k, -30.0)
    for x in gradients(flash_attention, torch.full_like(q, 30.0), low, v, do=torch.ones_like(q), causal=True):
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("dtype", DTYPES if GPU else [torch.bfloat16], ids=str)
def test_the_same_bits_every_time(dtype, problem, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 2, 1, 33, 40), dtype, device)
    do = torch.ones_like(q)
    first, second = (gradients(flash_attention, q, k, v, do=do, causal=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lens", [([20, 0, 17], [5, 9, 17]), ([0, 16, 1], [3, 0, 30])])
def test_packed_is_each_sequence_by_itself(causal, lens, problem, device):
    """NaN in the tokens of no sequence; their gradient is 0."""
    rng = np.random.default_rng(0)
    cu_q, cu_k = (np.cumsum([0, *n]).tolist() for n in lens)
    q, do = rng.standard_normal((2, cu_q[-1] + 3, 2, 16))
    k, v = rng.standard_normal((2, cu_k[-1] + 3, 1, 16))
    for x, cuts in (q, cu_q), (do, cu_q), (k, cu_k), (v, cu_k):
        x[cuts[-1] :] = NAN
    q, k, v, do = tensors((q, k, v, do), torch.float32, device)
    got = gradients(packed_attention, q, k, v, cu_q, cu_k, do=do, causal=causal, window=9)
    for x, cuts in zip(got, (cu_q, cu_k, cu_k), strict=True):
        assert not x[cuts[-1] :].any()
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        alone = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys], do[rows])]
        here = [x.transpose(0, 1)[None] for x in (got[0][rows], got[1][keys], got[2][keys])]
        assert_gradients(here, *alone, causal=causal, window=9)


@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)])
def test_empty_tensors(shape, device):
    batch, heads, q_len, kv_len = shape
    q = torch.ones(batch, heads, q_len, 16, device=device)
    k = torch.ones(batch, max(1, heads), kv_len, 16, device=device)
    for x in gradients(flash_attention, q, k, k, do=torch.ones_like(q), causal=True):
        assert not x.any() or q_len
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("name", MOD_NAMES)
def test_a_score_mod_has_no_backward_and_says_so(name, problem, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 2, 1, 5, 6), torch.float32, device)
    mod, aux, _ = mods(np.random.default_rng(0), 1, 2, 5, 6, device)[name]
    for x in q, k, v:
        x.requires_grad_()
        with pytest.raises(ValueError, match="score_mod has no backward pass"):
            flash_attention(q, k, v, score_mod=mod, aux=aux)
        with torch.no_grad():
            flash_attention(q, k, v, score_mod=mod, aux=aux)
        x.requires_grad_(False)


def test_a_bias_that_wants_a_gradient_is_refused(problem, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 2, 1, 5, 6), torch.float32, device)
    mod, aux, _ = mods(np.random.default_rng(0), 1, 2, 5, 6, device)["bias"]
    with pytest.raises(ValueError, match="score_mod has no backward pass"):
        flash_attention(q, k, v, score_mod=mod, aux=(aux[0].requires_grad_(), *aux[1:]))


def test_nothing_is_recorded_where_no_gradient_is_wanted(device):
    q = torch.ones(1, 1, 3, 16, device=device)
    o, lse = flash_attention(q, q, q)
    assert not o.requires_grad
    o, lse = flash_attention(q, q, q.clone().requires_grad_())
    assert o.requires_grad
    assert isinstance(o.grad_fn, attention.Attention._backward_cls)


@needs_gpu
@dtypes
@pytest.mark.parametrize(("dim", "n"), [(64, 2048), (128, 2000), (80, 1025)])
@pytest.mark.parametrize("causal", [False, True])
def test_larger_shapes(dtype, dim, n, causal, device):
    """Against autograd of the plain formula in float64 on the GPU."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, do = (
        torch.randn(2, h, n, dim, generator=generator, device=device).to(dtype) for h in (4, 2, 2, 4)
    )
    got = gradients(flash_attention, q, k, v, do=do, tiles=None, causal=causal)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    s = wide[0] @ wide[1].repeat_interleave(2, 1).mT * dim**-0.5
    if causal:
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=device).triu(1), -math.inf)
    (torch.softmax(s, -1) @ wide[2].repeat_interleave(2, 1)).backward(do.double())
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for x, right in zip(got, wide, strict=True):
        assert (x.double() - right.grad).abs().max() <= bound * right.grad.abs().max()


@needs_gpu
def test_memory_is_the_gradients_and_one_number_a_row(device):
    n = 16_384
    q, k, v = (
        torch.randn(1, 2, n, 64, device=device, dtype=torch.float16, requires_grad=True) for _ in range(3)
    )
    o, _ = flash_attention(q, k, v, causal=True)
    do = torch.ones_like(o)
    o.backward(do, retain_graph=True)
    q.grad = k.grad = v.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o.backward(do)
    beyond = torch.cuda.max_memory_allocated() - before - 3 * q.nbytes
    assert beyond <= 2 * n * 4 + 2048
