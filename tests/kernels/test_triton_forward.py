"""The Triton forward kernel against float64: on the GPU if there is one, else in the interpreter at small
sizes. Tolerance: see `kernel_yardstick`.
"""

import ctypes
import math
import mmap

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kernel_yardstick import (  # noqa: E402
    CAP,
    DTYPES,
    FLOOR,
    GPU,
    MOD_NAMES,
    assert_right,
    mods,
    plain,
    tensors,
    to64,
)

from kernels.reference import fp8  # noqa: E402
from kernels.reference import score_mods as twins  # noqa: E402
from kernels.triton import forward, host, score_mods  # noqa: E402
from kernels.triton.attention import flash_attention, fp8_attention, packed_attention  # noqa: E402

needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).split(".")[1])
NAN = math.nan


def check(
    problem, oracle, device, dtype, *, causal=False, window=None, scale=None, seed=0, tiles=None, **shape
):
    q, k, v = tensors(problem(np.random.default_rng(seed), **shape), dtype, device)
    options = {"causal": causal, "window": window, "scale": scale}
    options |= {"q_lens": shape.get("q_lens"), "kv_lens": shape.get("kv_lens")}
    got = flash_attention(q, k, v, **options) if tiles is None else with_tiles(tiles, q, k, v, **options)
    assert_right(got, q, k, v, oracle, **options)


def with_tiles(tiles, *args, function=flash_attention, **options):
    """The public function with given tiles, on outputs full of NaN: what it leaves unwritten shows."""

    def poisoned_empty(*shape, **kwargs):
        return torch.full(*shape, NAN, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "forward_tiles", lambda *args: tiles)
        patch.setattr(torch, "empty", poisoned_empty)
        return function(*args, **options)


SMALL = host.Tiles(16, 16, 4, 2)  # many tiles at small sizes


@st.composite
def shapes(draw):
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    q_len, kv_len = draw(st.integers(1, 40)), draw(st.integers(0, 70))
    lens = st.none() | st.lists(st.integers(0, q_len), min_size=batch, max_size=batch)
    kv = st.none() | st.lists(st.integers(0, kv_len), min_size=batch, max_size=batch)
    dim, v_dim = draw(st.sampled_from([(16, 16), (1, 24), (40, 16), (33, 7)]))
    return {"batch": batch, "heads": kv_heads * group, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
            "dim": dim, "v_dim": v_dim, "q_lens": draw(lens), "kv_lens": draw(kv)}  # fmt: skip


@settings(deadline=None, max_examples=60 if GPU else 25)
@given(
    shape=shapes(),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 75),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([None, 0.5, -1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_small_problem(shape, causal, window, dtype, scale, seed, problem, oracle, device):
    check(problem, oracle, device, dtype, causal=causal, window=window, scale=scale, seed=seed, tiles=SMALL,
          **shape)  # fmt: skip


@dtypes
@pytest.mark.parametrize("causal", [False, True])
def test_a_batch_of_everything(dtype, causal, problem, oracle, device):
    """The public function with its own tiles: ragged, grouped, longer than a tile, V's head_dim its own."""
    check(problem, oracle, device, dtype, causal=causal, batch=3, heads=6, kv_heads=2, q_len=140, kv_len=150,
          dim=40, v_dim=24, q_lens=[140, 0, 65], kv_lens=[150, 70, 129])  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 33, 127, 128, 129] + [1023, 1025] * GPU)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_around_tile_boundaries(n, causal, problem, oracle, device):
    check(problem, oracle, device, torch.float16, causal=causal, heads=2, q_len=n, kv_len=n)
    check(problem, oracle, device, torch.float32, causal=causal, q_len=17, kv_len=n, tiles=SMALL)


@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(9, 4), (40, 17), (33, 1), (5, 0), (1, 0), (1, 129), (3, 128), (47, 48), (48, 47)]
)
def test_causal_is_aligned_at_the_bottom_right(q_len, kv_len, problem, oracle, device):
    for dtype in torch.float16, torch.float32:
        check(problem, oracle, device, dtype, causal=True, q_len=q_len, kv_len=kv_len, tiles=SMALL)


def test_the_end_of_a_longer_context(problem, oracle, device):
    n = 4096 if GPU else 256
    check(problem, oracle, device, torch.float16, causal=True, q_len=63, kv_len=n)
    check(
        problem, oracle, device, torch.float16, causal=True, q_len=n - 1 if GPU else 33, kv_len=n, tiles=SMALL
    )


@pytest.mark.parametrize("heads", [1, 7, 8, 9, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_each_tile_of_each_head_is_computed_once(heads, causal, problem, oracle, device):
    """Heads take turns, eight at a time; outputs full of NaN show a tile that nobody had."""
    check(problem, oracle, device, torch.float32, causal=causal, batch=2, heads=heads, q_len=35, kv_len=20, tiles=SMALL)


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-42, 1e-20, -1e-20, 3.0, -3.0])
@pytest.mark.parametrize("causal", [False, True])
def test_a_scale_of_any_sign_and_size(scale, causal, problem, oracle, device):
    """A vanishing scale makes all visible keys equal, and hidden ones no less hidden; a negative one turns their order."""
    check(problem, oracle, device, torch.float32, causal=causal, scale=scale, q_len=20, kv_len=37, kv_lens=[30], tiles=SMALL)
    check(problem, oracle, device, torch.float16, causal=causal, scale=scale, q_len=130, kv_len=140, dim=32, v_dim=32)


@pytest.mark.parametrize("keys", [64, 128])
def test_masked_tiles_are_narrower_than_the_others(keys, problem, oracle, device):
    for window in None, 70:
        check(problem, oracle, device, torch.float16, causal=True, window=window, batch=2, q_len=190, kv_len=250, dim=16,
              v_dim=16, q_lens=[190, 77], kv_lens=[250, 201], tiles=host.Tiles(32, keys, 4, 2))  # fmt: skip


def test_boxes_are_for_what_the_copy_engine_can_take(device):
    """Only Hopper has it, and it takes 16-byte pieces of rows that lie in order; all else is loaded by pointers."""
    x = torch.zeros(2, 3, 40, 64, dtype=torch.float16, device=device)
    options = host.Options(False, None, 1.0, None, None, None, None, False)
    taken = host.has_boxes(x.device)
    assert (host.boxes(x, 32, options) is not None) == taken
    assert (host.boxes(x.transpose(1, 2), 32, options) is not None) == taken
    for refused in (
        x.float(), x[..., ::2], x[..., 1:33], x.transpose(2, 3), x[:, :, :0], x[:1, :1, :1, :20],
        x[:, :, :1].expand(-1, -1, 5, -1),
    ):  # fmt: skip
        assert host.boxes(refused, 32, options) is None
    assert host.boxes(x, 32, options._replace(score_mod=score_mods.softcap)) is None
    packed = host.as_dense(x[0].transpose(0, 1), 5)  # five sequences that are one tensor
    if taken:
        assert host.boxes(packed, 32, options._replace(packed=True)).shape == [1, 3, 40, 64]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 89, 90, 2**31])
def test_windows(causal, window, problem, oracle, device):
    """Around the tile of 16 keys: windows that leave no tile whole, some whole, and all of them."""
    check(
        problem, oracle, device, torch.float16, causal=causal, window=window, q_len=20, kv_len=70, tiles=SMALL
    )
    check(problem, oracle, device, torch.float32, causal=causal, window=window, batch=3, heads=2, q_len=37,
          kv_len=33, q_lens=[37, 5, 0], kv_lens=[33, 20, 9], tiles=SMALL)  # fmt: skip


@dtypes
def test_nan_that_a_window_has_left_behind(dtype, problem, oracle, device):
    """What no query may read any more, in the middle of a tile and in whole tiles before it."""
    q, k, v = problem(np.random.default_rng(0), q_len=3, kv_len=50)
    k[:, :, :27] = v[:, :, :27] = NAN  # the queries stand at 47 .. 49
    q, k, v = tensors((q, k, v), dtype, device)
    options = {"causal": True, "window": 21}
    assert_right(with_tiles(SMALL, q, k, v, **options), q, k, v, oracle, **options)


@pytest.mark.parametrize("name", MOD_NAMES)
@pytest.mark.parametrize("dtype", DTYPES if GPU else [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True] if GPU else [True])
def test_a_score_mod_equals_its_twin(name, causal, dtype, problem, oracle, device):
    rng = np.random.default_rng(0)
    lens = {"q_lens": [18, 17], "kv_lens": [40, 33]}
    q, k, v = tensors(problem(rng, 2, 2, 1, 18, 40, **lens), dtype, device)
    mod, aux, twin = mods(rng, 2, 2, 18, 40, device)[name]
    got = with_tiles(SMALL, q, k, v, causal=causal, score_mod=mod, aux=aux, window=25, **lens)
    assert_right(got, q, k, v, oracle, causal=causal, twin=twin, window=25, **lens)


def test_slopes_may_be_strided(problem, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 4, 2, 5, 9), torch.float32, device)
    wide = torch.arange(8.0, device=device)
    got = [
        flash_attention(q, k, v, score_mod=score_mods.alibi, aux=score_mods.sloped(slopes))
        for slopes in (wide[1::2], wide[1::2].contiguous(), wide[:4])
    ]
    assert torch.equal(got[0][0], got[1][0])
    assert not torch.equal(got[0][0], got[2][0])


def test_what_score_mods_read_is_checked():
    with pytest.raises(ValueError, match=r"slopes must have shape \(heads,\), got \(2, 2\)"):
        score_mods.sloped(torch.ones(2, 2))
    with pytest.raises(ValueError, match="x must have 4 axes"):
        score_mods.indexed(torch.ones(3, 4))


def test_a_bias_may_have_expanded_axes_and_is_never_read_beyond_its_end(problem, oracle, device):
    """One bias for all batches and heads, at the very end of its memory."""
    rng = np.random.default_rng(0)
    q, k, v = tensors(problem(rng, 2, 4, 2, 21, 37), torch.float32, device)
    values = rng.standard_normal((21, 37)).astype(np.float32)
    room = torch.full((5 * 21, 37), NAN, device=device)
    room[21:42] = torch.from_numpy(values)  # NaN before and after it: a read outside shows in no score
    shown = room[21:42].expand(2, 4, 21, 37)
    got = flash_attention(q, k, v, score_mod=score_mods.bias, aux=score_mods.indexed(shown))
    twin = twins.bias(np.broadcast_to(values, (2, 4, 21, 37)))
    assert_right(got, q, k, v, oracle, twin=twin)


def test_nan_in_slots_that_a_score_mod_hides_from_everyone(problem, oracle, device):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 1, 2, 1, 20, 40)
    mod, aux, twin = mods(rng, 1, 2, 20, 40, device)["mask"]
    k[:, :, 0] = v[:, :, 0] = NAN
    q, k, v = tensors((q, k, v), torch.float16, device)
    got = with_tiles(SMALL, q, k, v, score_mod=mod, aux=aux)
    assert_right(got, q, k, v, oracle, twin=twin)


def test_softcap_of_large_and_small_scores(device):
    """A score of 5000 under a cap of 50 is 50; near 0 the cap keeps every digit."""
    q = torch.ones(1, 1, 1, 16, device=device)
    v = torch.arange(5.0, device=device)[:, None].expand(1, 1, 5, 16)
    for score in 5000.0, -5000.0, 1e-3, 9.9, 10.1, -60.0:
        k = torch.full((1, 1, 5, 16), score / 16, device=device)
        o, lse = flash_attention(q, k, v, scale=1.0, score_mod=score_mods.softcap, aux=50.0)
        assert (o - 2).abs().max() <= 1e-5
        expected = 50 * math.tanh(score / 50) + math.log(5)
        assert abs(lse.item() - expected) <= 5e-7 * max(1, abs(expected))


def test_an_added_million_is_not_minus_infinity(device):
    """A valid score of -2e6 beside a key under an additive mask of -inf: the masked key gets nothing."""
    q = torch.ones(1, 1, 1, 16, device=device)
    k, v = (torch.tensor(x, device=device)[:, None].expand(1, 1, 2, 16) for x in ([-125e3, 0.0], [3.0, 7.0]))
    mask = torch.tensor([0, -math.inf], device=device).expand(1, 1, 1, 2)
    o, lse = flash_attention(q, k, v, scale=1.0, score_mod=score_mods.bias, aux=score_mods.indexed(mask))
    assert (o == 3).all()
    assert lse.item() == pytest.approx(-2e6, rel=2e-7)


def test_tanh_to_a_few_units_in_the_last_place(device):
    """Through the cap: with one key, lse is cap * tanh(score / cap)."""
    x = np.concatenate([np.linspace(-12, 12, 181), np.geomspace(1e-6, 0.3, 60)]).astype(np.float32)
    q = torch.from_numpy(x).to(device)[None, None, :, None].expand(-1, -1, -1, 16) / 16
    k = torch.ones(1, 1, 1, 16, device=device)
    _, lse = flash_attention(q, k, k, scale=1.0, score_mod=score_mods.softcap, aux=1.0)
    expected = np.tanh(x.astype(np.float64))
    assert np.abs(to64(lse)[0, 0] - expected).max() <= 4e-7
    assert (np.abs(to64(lse)[0, 0] - expected) <= 6e-7 * np.abs(expected)).all()


@pytest.mark.parametrize("kind", ["none", "number", "tensor"])
@pytest.mark.parametrize("causal", [False, True])
def test_fp8(kind, causal, problem, oracle, device):
    """e4m3 q, k and v; factors that bfloat16 and float16 hold, so that the yardstick sees the same numbers."""
    rng = np.random.default_rng(0)
    lens = {"q_lens": [20, 9], "kv_lens": [37, 30]}
    bits = [fp8.quantize(np.nan_to_num(x)) for x in problem(rng, 2, 4, 2, 20, 37, v_dim=24, **lens)]
    q, k, v = (torch.from_numpy(x).view(torch.float8_e4m3fn).to(device) for x in bits)
    factors = {"none": (1, 1, 1), "number": (2.0, 0.25, 4.0)}.get(
        kind, [np.array(x) for x in ([2, 0.5], [0.25, 1], [4, 2])]
    )
    given_descales = [
        torch.tensor(x, dtype=torch.float32, device=device)
        if kind == "tensor"
        else None
        if kind == "none"
        else x
        for x in factors
    ]
    names = ("q_descale", "k_descale", "v_descale")
    got = with_tiles(SMALL, q, k, v, function=fp8_attention, causal=causal, **lens,
                     **dict(zip(names, given_descales, strict=True)))  # fmt: skip
    meant = []
    for x, factor, group in zip(bits, factors, (2, 1, 1), strict=True):
        factor = np.repeat(np.broadcast_to(factor, (2,)), group)[:, None, None]
        meant.append(torch.from_numpy(fp8.dequantize(x) * factor).to(torch.bfloat16).to(device))
    assert_right(got, *meant, oracle, causal=causal, **lens)


def test_fp8_refuses_other_dtypes(device):
    x = torch.ones(1, 1, 3, 16, device=device)
    with pytest.raises(ValueError, match="q must be float8_e4m3fn, got torch.float32"):
        fp8_attention(x, x, x)
    with pytest.raises(ValueError, match="q must be float16, bfloat16 or float32, got torch.float8_e4m3fn"):
        flash_attention(*[x.to(torch.float8_e4m3fn)] * 3)


@st.composite
def packings(draw):
    lens = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 34)), max_size=3))
    return [n for n, _ in lens], [n for _, n in lens], draw(st.sampled_from([0, 3, 33]))


def pack(rng, q_lens, kv_lens, spare=0, heads=2, kv_heads=1, dim=16, v_dim=24):
    """q, k, v packed, NaN in the tokens that belong to none; cu_seqlens of queries and of keys."""
    cu_q, cu_k = (np.cumsum([0, *lens]).tolist() for lens in (q_lens, kv_lens))
    q = rng.standard_normal((cu_q[-1] + spare, heads, dim))
    k, v = (rng.standard_normal((cu_k[-1] + spare, kv_heads, n)) for n in (dim, v_dim))
    q[cu_q[-1] :] = k[cu_k[-1] :] = v[cu_k[-1] :] = NAN
    return q, k, v, cu_q, cu_k


def padded_batch(x, cuts):
    """(total, heads, dim) as (batch, heads, longest, dim)."""
    longest = max(np.diff(cuts), default=0)
    out = x.new_zeros(len(cuts) - 1, x.shape[1], longest, *x.shape[2:])
    for b in range(len(cuts) - 1):
        out[b, :, : cuts[b + 1] - cuts[b]] = x[cuts[b] : cuts[b + 1]].transpose(0, 1)
    return out


def check_packed(q, k, v, cu_q, cu_k, got, oracle, **options):
    """Each sequence against the oracle, and 0 and -inf for the tokens of none."""
    o, lse = got
    assert o.shape == (len(q), q.shape[1], v.shape[2])
    assert lse.shape == (len(q), q.shape[1])
    assert not o[cu_q[-1] :].any()
    assert torch.isneginf(lse[cu_q[-1] :]).all()
    lens = {"q_lens": np.diff(cu_q).tolist(), "kv_lens": np.diff(cu_k).tolist()}
    if lens["q_lens"]:
        o_b = padded_batch(o, cu_q)
        lse_b = padded_batch(lse, cu_q)
        for b, n in enumerate(lens["q_lens"]):
            lse_b[b, :, n:] = -math.inf
        q, k, v = padded_batch(q, cu_q), padded_batch(k, cu_k), padded_batch(v, cu_k)
        assert_right((o_b, lse_b), q, k, v, oracle, **lens, **options)


@settings(deadline=None, max_examples=60 if GPU else 8)
@given(
    packing=packings(),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 60),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_packed(packing, causal, window, dtype, seed, oracle, device):
    q_lens, kv_lens, spare = packing
    q, k, v, cu_q, cu_k = pack(np.random.default_rng(seed), q_lens, kv_lens, spare)
    q, k, v = tensors((q, k, v), dtype, device)
    options = {"causal": causal, "window": window}
    got = with_tiles(SMALL, q, k, v, cu_q, cu_k, function=packed_attention, **options)
    check_packed(q, k, v, cu_q, cu_k, got, oracle, **options)


@pytest.mark.parametrize("q_lens", [[1, 0, 1], [0, 16, 17], [16, 16, 0], [0, 0, 0], [15, 1, 48]])
def test_packed_around_tile_boundaries(q_lens, oracle, device):
    q, k, v, cu_q, cu_k = pack(np.random.default_rng(0), q_lens, [3, 0, 40], heads=3)
    q, k, v = tensors((q, k, v), torch.float16, device)
    got = with_tiles(SMALL, q, k, v, cu_q, cu_k, function=packed_attention, causal=True)
    check_packed(q, k, v, cu_q, cu_k, got, oracle, causal=True)


def test_packed_views_into_one_tensor_and_a_score_mod(oracle, device):
    """q, k, v as views into one fused tensor; indices count within each sequence."""
    fused = torch.randn(37, 3, 4, 16, generator=torch.Generator().manual_seed(0)).half().to(device)
    q, k, v = fused[:, 0], fused[:, 1, ::2], fused[:, 2, 1::2]
    cuts = torch.tensor([0, 20, 20, 37])
    mod, aux, twin = mods(np.random.default_rng(0), 3, 4, 20, 20, device)["bias"]
    got = packed_attention(q, k, v, cuts, cuts, causal=True, score_mod=mod, aux=aux)
    check_packed(q, k, v, cuts.tolist(), cuts.tolist(), got, oracle, causal=True, twin=twin)


@pytest.mark.parametrize("wrong", [[0, 2**30], [0, -7], [3, 2], [-(2**30), 4]])
def test_wrong_lengths_on_a_gpu_are_no_wild_reads(wrong, monkeypatch, device):
    """As if their values were not known before the launch: they are clamped to the tensors. In the
    interpreter a wild read ends the process."""
    q = torch.ones(1, 1, 40, 16, device=device)
    monkeypatch.setattr(host, "check_integers", lambda name, x, device: (x, None))
    lens = torch.tensor(wrong[1:], dtype=torch.int32, device=device)
    o, lse = flash_attention(q, q, q, q_lens=lens, kv_lens=lens, causal=True)
    assert torch.isfinite(o).all()
    cuts = torch.tensor(wrong, dtype=torch.int32, device=device)
    packed = q[0].transpose(0, 1)
    o, lse = with_tiles(SMALL, packed, packed, packed, cuts, cuts, function=packed_attention)
    assert o.shape == (40, 1, 16)


@needs_gpu
def test_no_call_waits_for_the_gpu(device):
    """A call with lengths on the GPU can be captured in a CUDA graph."""
    q = torch.randn(2, 2, 40, 16, device=device, dtype=torch.float16)
    lens = torch.tensor([40, 7], dtype=torch.int32, device=device)
    cuts = torch.tensor([0, 7, 40], dtype=torch.int32, device=device)
    for function, args, options in (
        (flash_attention, (q, q, q), {"q_lens": lens, "kv_lens": lens}),
        (packed_attention, (q[0].transpose(0, 1),) * 3 + (cuts, cuts), {}),
    ):
        expected, _ = function(*args, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, _ = function(*args, **options)
        o.fill_(NAN)
        graph.replay()
        assert torch.equal(o, expected)


@pytest.mark.parametrize("kv_lens", [[0, 17, 40], [17, 0, 40], [17, 40, 0], [0, 0, 0], [1, 16, 33]])
@pytest.mark.parametrize("q_lens", [None, [0, 20, 20], [20, 0, 1], [1, 17, 0]])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged(q_lens, kv_lens, causal, problem, oracle, device):
    check(problem, oracle, device, torch.float32, causal=causal, batch=3, heads=3, kv_heads=1, q_len=20,
          kv_len=40, q_lens=q_lens, kv_lens=kv_lens, tiles=SMALL)  # fmt: skip


def test_ragged_beside_empty_sequences(problem, oracle, device):
    check(problem, oracle, device, torch.float16, causal=True, batch=3, heads=9, kv_heads=3, q_len=1,
          kv_len=5, q_lens=[1, 0, 1], kv_lens=[3, 0, 5])  # fmt: skip


@pytest.mark.parametrize("kind", ["int32", "int64", "list", "strided"])
def test_lengths_of_any_kind(kind, problem, oracle, device):
    lens = [3, 40]
    given_lens = {
        "int32": torch.tensor(lens, dtype=torch.int32, device=device),
        "int64": torch.tensor(lens),
        "list": lens,
        "strided": torch.tensor([[3, 0], [40, 0]], device=device, dtype=torch.int32)[:, 0],
    }[kind]
    q, k, v = tensors(
        problem(np.random.default_rng(0), 2, q_len=5, kv_len=40, kv_lens=lens), torch.float16, device
    )
    assert_right(flash_attention(q, k, v, kv_lens=given_lens), q, k, v, oracle, kv_lens=lens)


@pytest.mark.parametrize(
    ("dim", "v_dim"),
    [
        (1, 1),
        (8, 200),
        (40, 40),
        (64, 64),
        (80, 80),
        (96, 128),
        (160, 160),
        (192, 128),
        (256, 256),
        (72, 256),
    ],
)
@dtypes
def test_head_dims(dim, v_dim, dtype, problem, oracle, device):
    check(problem, oracle, device, dtype, causal=True, q_len=21, kv_len=37, dim=dim, v_dim=v_dim)


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(32, 4), (9, 3), (6, 2), (5, 1), (7, 1), (16, 1), (48, 1), (10, 2), (64, 8)]
)
def test_head_map(heads, kv_heads, problem, device):
    q, k, v = problem(np.random.default_rng(0), 1, heads, kv_heads, 3, 11)
    v[:] = np.arange(kv_heads)[:, None, None]
    o, _ = flash_attention(*tensors((q, k, v), torch.float32, device))
    expected = np.arange(heads) // (heads // kv_heads)
    assert np.abs(to64(o) - expected[:, None, None]).max() <= 1e-5


def strided(x, layout):
    """The same numbers laid out otherwise."""
    if layout == "length first":  # as (batch, length, heads, dim)
        return x.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    if layout == "dim strided":  # K or V kept transposed
        return x.mT.contiguous().mT
    if layout == "every second":
        wide = torch.full((*x.shape[:3], 2 * x.shape[3]), NAN, dtype=x.dtype, device=x.device)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "head slice":
        return torch.cat([torch.full_like(x, NAN), x, torch.full_like(x, NAN)], dim=1)[
            :, x.shape[1] : 2 * x.shape[1]
        ]
    if layout == "one sequence for all":
        return x[:1].expand(x.shape)
    raise AssertionError(layout)


@pytest.mark.parametrize(
    "layout", ["length first", "dim strided", "every second", "head slice", "one sequence for all"]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_strides(layout, which, problem, oracle, device):
    arrays = tensors(problem(np.random.default_rng(0), 2, 2, 2, 20, 37, 24), torch.float16, device)
    arrays[which] = strided(arrays[which], layout)
    assert not arrays[which].is_contiguous()
    assert_right(flash_attention(*arrays, causal=True), *arrays, oracle, causal=True)


@pytest.mark.parametrize(
    ("dim", "v_dim"),
    [(24, 24), (40, 24), (33, 64), (64, 33), (100, 100), (250, 250)] if GPU else [(40, 24), (33, 7)],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_that_do_not_start_at_16_bytes(dim, v_dim, dtype, causal, transposed, problem, oracle, device):
    """Several tiles of keys, in and after the unmasked loop, loaded element by element when compiled."""
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 2, 1, 70, 150, dim, v_dim), dtype, device)
    if transposed:
        k, v = strided(k, "dim strided"), strided(v, "dim strided")
    assert not (host.aligned(k) and host.aligned(v))
    assert_right(flash_attention(q, k, v, causal=causal), q, k, v, oracle, causal=causal)


def test_views_into_one_fused_tensor(problem, oracle, device):
    fused = torch.randn(2, 33, 3, 4, 16, generator=torch.Generator().manual_seed(0)).half().to(device)
    q, k, v = (fused[:, :, i].transpose(1, 2) for i in range(3))
    q, k, v = q, k[:, ::2], v[:, 1::2]
    assert_right(flash_attention(q, k, v, causal=True), q, k, v, oracle, causal=True)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_offsets_beyond_2_to_the_31(axis, which, problem, oracle, device):
    """A stride of 2^31 / 15 elements and an index of 16 or more: the offset does not fit in 32 bits."""
    shape = {0: (18, 1, 1, 1), 1: (1, 18, 1, 1), 2: (1, 1, 18, 1), 3: (1, 1, 1, 18)}[axis]
    q, k, v = tensors(
        problem(np.random.default_rng(0), shape[0], shape[1], shape[1], shape[2], max(5, shape[2]), shape[3]),
        torch.float16,
        device,
    )
    arrays = [q, k, v]
    x = arrays[which]
    stride = 2**31 // 15
    strides = [s if i != axis else stride for i, s in enumerate(x.stride())]
    elements = stride * (x.shape[axis] - 1) + x.numel()
    if GPU:
        room = torch.empty(elements, dtype=x.dtype, device=device)
    else:
        # Address space, not memory: only the pages that are written exist.
        try:
            pages = mmap.mmap(
                -1, 2 * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
            )  # NORESERVE
        except OSError as error:
            pytest.skip(f"no address space of {2 * elements} bytes: {error}")
        room = torch.frombuffer((ctypes.c_char * (2 * elements)).from_buffer(pages), dtype=x.dtype)
    wide = room.as_strided(x.shape, strides)
    wide.copy_(x)
    arrays[which] = wide
    assert_right(flash_attention(*arrays), *arrays, oracle)


def test_the_grid_lies_on_axis_x(monkeypatch, device):
    """The y and z axes end at 65,535; x does not."""
    grids = []

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *args, **kwargs: None

    monkeypatch.setattr(forward, "forward_kernel", Recorder())
    q = torch.empty(1, 1, 1, 16, dtype=torch.float16, device=device).expand(300, 300, 20, 16)
    k = torch.empty(1, 1, 1, 16, dtype=torch.float16, device=device).expand(300, 300, 9, 16)
    monkeypatch.setattr(host, "forward_tiles", lambda *args: SMALL)
    flash_attention(q, k, k)
    assert grids == [(300 * 300 * 2,)]


@needs_gpu
def test_batch_times_heads_above_65535(problem, oracle, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 70_000, q_len=1, kv_len=3), torch.float16, device)
    o, lse = flash_attention(q, k, v)
    last = slice(69_990, 70_000)
    assert_right((o[last], lse[last]), q[last], k[last], v[last], oracle)
    assert_right((o[:10], lse[:10]), q[:10], k[:10], v[:10], oracle)


@dtypes
def test_large_scores(dtype, problem, oracle, device):
    """Scores far beyond the range of float16 and of exp; equal scores; one that dominates."""
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 2, 1, 20, 40), dtype, device)
    for scale in 2.0**12, -(2.0**12), 0.0:
        got = flash_attention(q, k, v, causal=True, scale=scale)
        o, lse = (to64(x) for x in got)
        assert np.isfinite(o).all()
        assert np.isfinite(lse).all()
        expected, expected_lse = oracle(to64(q), to64(k), to64(v), causal=True, scale=scale)
        yardstick, _ = plain(q.cpu(), k.cpu(), v.cpu(), causal=True, scale=scale)
        budget = np.abs(to64(yardstick) - expected).max()
        # Two roundings: where the scores are this large, a kernel that folds the scale into the exponent leaves the largest
        # weight near 1 and not at 1, and that weight is rounded to dtype before it multiplies v, as the output is after.
        assert np.abs(o - expected).max() <= 2 * budget + 2 * FLOOR[dtype] * np.abs(to64(v)).max()
        assert np.abs(lse - expected_lse).max() <= 2e-6 * np.abs(expected_lse).max()


@dtypes
def test_scores_below_every_stand_in_for_minus_infinity(dtype, device):
    q, k = torch.full((1, 1, 20, 16), 1.0), torch.full((1, 1, 40, 16), -3.75e3)  # scores of -6e4
    k[:, :, 5:] = NAN
    v = torch.where(torch.isnan(k), NAN, torch.arange(40.0)[:, None])
    q, k, v = (x.to(device=device, dtype=dtype) for x in (q, k, v))
    score = 16 * float(k[0, 0, 0, 0])  # bfloat16 rounds -3750
    o, lse = flash_attention(q, k, v, scale=1.0, kv_lens=[5])
    assert (o - 2).abs().max() <= 4e-2 if dtype == torch.bfloat16 else (o - 2).abs().max() <= 2e-3
    assert np.abs(to64(lse) - (score + math.log(5))).max() <= 2e-7 * abs(score)


@dtypes
@pytest.mark.parametrize("which", ["k", "v"])
def test_nan_beyond_the_keys(dtype, which, problem, oracle, device):
    """A cache longer than its sequence, NaN from the sequence's end on, in K alone and in V alone."""
    q, k, v = problem(np.random.default_rng(0), 1, 2, 1, 20, 48)
    {"k": k, "v": v}[which][:, :, 42:] = NAN
    q, k, v = tensors((q, k, v), dtype, device)
    got = flash_attention(q, k, v, causal=True, kv_lens=[42])
    assert_right(got, q, k, v, oracle, causal=True, kv_lens=[42])


@pytest.mark.parametrize("kv_len", [1, 20])
def test_a_visible_nan_is_not_hidden(kv_len, problem, device):
    """Among other keys, and as the only one."""
    q, k, v = problem(np.random.default_rng(0), 1, 1, 1, 20, kv_len)
    for x in k, v:
        kept = x.copy()
        x[0, 0, kv_len // 2] = NAN
        o, lse = flash_attention(*tensors((q, k, v), torch.float32, device))
        assert torch.isnan(o).all()
        assert torch.isnan(lse).all() == (x is k)
        x[:] = kept


@pytest.mark.parametrize(
    "tiles", sorted(set(host.TILES.values())) + [SMALL, host.Tiles(16, 64, 4, 1)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES if GPU else [torch.float16], ids=str)
def test_each_configuration_alone_on_poisoned_outputs(tiles, dtype, problem, oracle, device):
    check(problem, oracle, device, dtype, causal=True, tiles=tiles, batch=2, heads=2, kv_heads=1, q_len=150,
          kv_len=140, q_lens=[150, 33], kv_lens=[140, 65])  # fmt: skip


@dtypes
def test_a_sequence_alone_and_in_a_batch_is_the_same_to_the_bit(dtype, problem, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 3, 4, 2, 20, 50), dtype, device)
    lens = [50, 17, 0]
    o, lse = flash_attention(q, k, v, kv_lens=lens, causal=True)
    for b in range(3):
        alone = flash_attention(
            q[b : b + 1], k[b : b + 1], v[b : b + 1], kv_lens=lens[b : b + 1], causal=True
        )
        assert torch.equal(alone[0][0], o[b])
        assert torch.equal(alone[1][0], lse[b])


@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)])
def test_empty_tensors(shape, device):
    batch, heads, q_len, kv_len = shape
    q = torch.ones(batch, heads, q_len, 16, device=device)
    k = torch.ones(batch, max(1, heads), kv_len, 16, device=device)
    o, lse = flash_attention(q, k, k, causal=True)
    assert o.shape == (batch, heads, q_len, 16)
    assert not o.any()
    assert torch.isneginf(lse).all()


@needs_gpu
@dtypes
@pytest.mark.parametrize(("dim", "n"), [(64, 2048), (128, 2000), (256, 1025), (80, 1500)])
@pytest.mark.parametrize("causal", [False, True])
def test_larger_shapes(dtype, dim, n, causal, device):
    """Too large for the oracle's loops: float64 on the GPU, and the plain formula there."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(2, h, n, dim, generator=generator, device=device).to(dtype) for h in (4, 2, 2))
    q_lens, kv_lens = [n, n - 700], [n - 3, n]
    for b in range(2):
        q[b, :, q_lens[b] :] = NAN
        k[b, :, kv_lens[b] :] = v[b, :, kv_lens[b] :] = NAN
    options = {"causal": causal, "q_lens": q_lens, "kv_lens": kv_lens}
    tiles = host.forward_tiles(q, k, v)
    o, lse = with_tiles(tiles, q, k, v, **options)
    expected, expected_lse = plain(q.double(), k.double(), v.double(), **options)
    if dtype == torch.float32:
        assert not torch.backends.cuda.matmul.allow_tf32
    yardstick, _ = plain(q, k, v, **options)
    budget = (yardstick.double() - expected).abs().max().item()
    error = (o.double() - expected).abs().max().item()
    largest = v.nan_to_num().abs().max().item()
    print(f"error {error:.2e}, plain {budget:.2e}, ratio {error / budget:.2f}")
    assert budget <= CAP * largest
    assert error <= 2 * budget + FLOOR[dtype] * largest
    seen = ~torch.isneginf(expected_lse)
    assert torch.equal(~torch.isneginf(lse), seen)
    assert (lse[seen].double() - expected_lse[seen]).abs().max().item() <= 1e-5


@needs_gpu
def test_memory_is_the_outputs_alone(device):
    n = 32_768  # one score matrix would be 2 GB
    q, k, v = (torch.randn(1, 1, n, 64, device=device, dtype=torch.float16) for _ in range(3))
    flash_attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = flash_attention(q, k, v, causal=True)
    beyond = torch.cuda.max_memory_allocated() - before - o.nbytes - lse.nbytes
    assert beyond <= 1024  # the allocator rounds each block up to 512 bytes


GOOD = {"q": torch.ones(2, 4, 3, 8), "k": torch.ones(2, 2, 5, 8), "v": torch.ones(2, 2, 5, 6)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.ones((2, 4, 3, 8))}, "q must be a torch tensor, got ndarray"),
        ({"k": torch.ones(2, 2, 5, 8).double()}, "k must be float16, bfloat16 or float32, got torch.float64"),
        ({"v": torch.ones(2, 2, 5, 6).half()}, "v must have the dtype and device of q, torch.float32 on"),
        ({"q": torch.ones(4, 3, 8)}, r"q must have 4 axes .* got shape \(4, 3, 8\)"),
        ({"k": torch.ones(1, 2, 5, 8)}, "k and v must have the batch size of q, 2, got 1 and 2"),
        ({"v": torch.ones(2, 2, 4, 6)}, "k and v must agree in heads and length"),
        ({"k": torch.ones(2, 2, 5, 7)}, "k must have the head_dim of q, 8, got 7"),
        (
            {"k": torch.ones(2, 3, 5, 8), "v": torch.ones(2, 3, 5, 8)},
            "multiple of the heads of k and v, got 4 and 3",
        ),
        (
            {"q": torch.ones(2, 4, 3, 257), "k": torch.ones(2, 2, 5, 257)},
            "q must have a head_dim of at most 256, got 257",
        ),
        ({"v": torch.ones(2, 2, 5, 264)}, "v must have a head_dim of at most 256, got 264"),
        ({"v": torch.ones(2, 2, 5, 0)}, "head_dim must be at least 1"),
        ({"kv_lens": [5, 6]}, r"kv_lens must lie between 0 and 5, got \[5, 6\]"),
        ({"q_lens": [-1, 3]}, r"q_lens must lie between 0 and 3, got \[-1, 3\]"),
        ({"kv_lens": torch.tensor([5, 6])}, "kv_lens must lie between 0 and 5"),
        ({"kv_lens": [5]}, r"kv_lens must have shape \(2,\), one length a sequence, got \(1,\)"),
        ({"kv_lens": [1.0, 2.0]}, "kv_lens must hold integers, got torch.float32"),
        ({"kv_lens": "ab"}, "kv_lens must hold integers, got 'ab'"),
        ({"scale": NAN}, "scale must be a finite number or None, got nan"),
        ({"scale": "x"}, "scale must be a finite number or None, got 'x'"),
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
        ({"score_mod": lambda *args: args[0]}, "score_mod must be a @triton.jit function"),
        ({"aux": 5.0}, "aux is what a score_mod reads, and there is no score_mod"),
    ],
)
def test_refusals_come_before_any_launch(change, message, monkeypatch, device):
    monkeypatch.setattr(forward, "launch", lambda *args, **kwargs: pytest.fail("launched"))
    arguments = {
        name: x.to(device) if isinstance(x, torch.Tensor) and name in GOOD else x
        for name, x in (GOOD | change).items()
    }
    with pytest.raises(ValueError, match=message):
        flash_attention(**arguments)


GOOD_PACKED = {"q": torch.ones(7, 4, 8), "k": torch.ones(9, 2, 8), "v": torch.ones(9, 2, 6),
               "cu_seqlens_q": [0, 3, 7], "cu_seqlens_k": torch.tensor([0, 0, 9])}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(1, 7, 4, 8)}, "q must have 3 axes"),
        ({"v": torch.ones(8, 2, 6)}, "k and v must agree in tokens and heads"),
        ({"k": torch.ones(9, 2, 8).half()}, "k must have the dtype and device of q"),
        ({"cu_seqlens_q": [0, 3, 8]}, r"cu_seqlens_q must rise from 0 to at most 7, got \[0, 3, 8\]"),
        ({"cu_seqlens_q": [0, 5, 3]}, "cu_seqlens_q must rise from 0"),
        ({"cu_seqlens_k": [1, 2, 9]}, "cu_seqlens_k must rise from 0"),
        ({"cu_seqlens_k": [0, 9]}, "same number of sequences, got 2 and 1"),
        ({"cu_seqlens_k": []}, r"cu_seqlens_k must have shape \(batch \+ 1,\)"),
        ({"cu_seqlens_k": [0.0, 1.0, 2.0]}, "cu_seqlens_k must hold integers"),
        ({"window": 1.5}, "window must be an integer of at least 1, got 1.5"),
    ],
)
def test_packed_refusals_come_before_any_launch(change, message, monkeypatch, device):
    def arguments(given):
        return {
            name: x.to(device) if isinstance(x, torch.Tensor) and name in "qkv" else x
            for name, x in given.items()
        }

    packed_attention(**arguments(GOOD_PACKED))
    monkeypatch.setattr(forward, "launch", lambda *args, **kwargs: pytest.fail("launched"))
    with pytest.raises(ValueError, match=message):
        packed_attention(**arguments(GOOD_PACKED | change))


@needs_gpu
def test_a_cpu_tensor_is_refused_by_the_compiled_kernel():
    with pytest.raises(ValueError, match="q is on cpu: compiled kernels need a GPU tensor"):
        flash_attention(**GOOD)


@pytest.mark.parametrize("shared", [65_536, 101_376, 166_912, 232_448])  # bytes: Turing to Hopper
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("dim", [1, 16, 64, 80, 128, 192, 256])
def test_tiles_fit_the_card(shared, itemsize, dim):
    tiles = host.choose_tiles(host.TILES, dim, dim, itemsize, shared)
    assert host.shared_bytes(tiles, host.padded(dim), host.padded(dim), itemsize) <= shared
    for block in tiles.block_m, tiles.block_n:
        assert block >= 16
        assert block & (block - 1) == 0
    assert tiles.stages >= 1
    assert host.padded(dim) >= max(16, dim)


def test_alignment_as_triton_sees_it(device):
    room = torch.zeros(2, 4, 64, 64, dtype=torch.float16, device=device)
    assert host.aligned(room)
    assert host.aligned(room[:1, ::2, 3:])
    assert host.aligned(room[:1].expand(5, 4, 64, 64))
    assert host.aligned(room[..., :40])
    assert not host.aligned(room[..., 1:41])  # the first element
    assert not host.aligned(room[..., :33])  # the last of a row
    assert not host.aligned(room[..., ::2])
    assert not host.aligned(room.mT)
    assert not host.aligned(room[..., :40].contiguous())  # rows of 80 bytes: 40 is no multiple of 16
    assert host.choose_tiles(host.TILES, 64, 64, 2, 232_448, direct=False).block_m < 64
    assert host.choose_tiles(host.TILES, 64, 64, 4, 232_448, direct=False) == host.choose_tiles(
        host.TILES, 64, 64, 4, 232_448
    )


def test_tiles_of_a_wide_v():
    assert (
        host.choose_tiles(host.TILES, 16, 256, 2, 2**20)
        == host.choose_tiles(host.TILES, 256, 16, 2, 2**20)
        == host.TILES[256, 2]
    )
