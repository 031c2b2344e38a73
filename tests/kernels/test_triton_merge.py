"""The merge kernel against the merge of `kernels.reference.state`, and what it is for."""

import functools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kernel_yardstick import DTYPES, FLOOR, assert_right, tensors, to64  # noqa: E402

from kernels.reference import finalize, from_result  # noqa: E402
from kernels.reference import merge as reference_merge  # noqa: E402
from kernels.triton import merge as module  # noqa: E402
from kernels.triton.attention import flash_attention, packed_attention  # noqa: E402
from kernels.triton.decode import flash_decoding  # noqa: E402
from kernels.triton.merge import add_sink, merge  # noqa: E402

NAN = math.nan
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).split(".")[1])


def random_result(rng, shape, dim, spread):
    """o (*shape, dim) and lse (*shape), float32; where lse is -inf, o holds NaN."""
    o, lse = rng.standard_normal((*shape, dim)), spread * rng.standard_normal(shape)
    empty = rng.random(shape) < 0.3
    o[empty], lse[empty] = NAN, -np.inf
    return o, lse


@pytest.mark.parametrize(
    "parts, dim", [*((n, 24) for n in (1, 2, 3, 8, 31, 33, 128, 129, 300)), (31, 72), (33, 72), (129, 160)]
)
def test_any_number_of_parts(parts, dim, device):
    """All at once, or as many at a time as fit; more dimensions than one program takes; parts that saw no key hold NaN."""
    rng = np.random.default_rng(parts)
    o, lse = random_result(rng, (parts, 2, 3, 2), dim, 30)
    lse[:, 1, 0, 1] = -np.inf  # a row that none of them saw
    o[:, 1, 0, 1] = NAN
    o, lse = tensors((o, lse), torch.float32, device)
    got_o, got_lse = (
        torch.full(o.shape[1:], NAN, device=device),
        torch.full(lse.shape[1:], NAN, device=device),
    )
    module.launch(None, (o, lse), got_o, got_lse)
    states = [from_result(to64(a), to64(b)) for a, b in zip(o, lse, strict=True)]
    expected_o, expected_lse = finalize(functools.reduce(reference_merge, states))
    assert np.abs(to64(got_o) - expected_o).max() <= 1e-5
    seen = np.isfinite(expected_lse)
    assert np.array_equal(np.isfinite(to64(got_lse)), seen)
    assert np.abs(to64(got_lse)[seen] - expected_lse[seen]).max() <= 1e-4


@settings(deadline=None, max_examples=12)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    dim=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([1, 30, 1000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_merge_is_that_of_the_reference(shape, dim, dtype, spread, seed, device):
    rng = np.random.default_rng(seed)
    (o_a, lse_a), (o_b, lse_b) = (random_result(rng, shape, dim, spread) for _ in range(2))
    o_a, o_b = tensors((o_a, o_b), dtype, device)
    lse_a, lse_b = tensors((lse_a, lse_b), torch.float32, device)
    o, lse = merge(o_a, lse_a, o_b, lse_b)
    expected_o, expected_lse = finalize(
        reference_merge(from_result(to64(o_a), to64(lse_a)), from_result(to64(o_b), to64(lse_b)))
    )
    assert o.dtype == dtype
    assert lse.dtype == torch.float32
    seen = ~np.isneginf(expected_lse)
    assert np.array_equal(~np.isneginf(to64(lse)), seen)
    scale = np.abs(expected_lse[seen]).max(initial=1)
    assert np.abs(to64(lse)[seen] - expected_lse[seen]).max(initial=0) <= 2e-7 * scale
    # Twice the floor: the interpreter cuts digits off where it should round to bfloat16.
    bound = (2 * FLOOR[dtype] + 2e-7 * scale) * np.abs(expected_o).max(initial=1)
    assert np.abs(to64(o) - expected_o).max() <= bound


def test_two_empty_results(device):
    o = torch.full((2, 3, 4, 8), NAN, device=device)
    lse = torch.full((2, 3, 4), -math.inf, device=device)
    got_o, got_lse = merge(o, lse, o, lse)
    assert not got_o.any()
    assert torch.isneginf(got_lse).all()


@pytest.mark.parametrize("side", [0, 1])
def test_strides_of_outputs_and_lse(side, device):
    """Partial outputs with other head strides, dimensions not contiguous, an lse that is a transpose."""
    rng = np.random.default_rng(0)
    plain = [
        *tensors(random_result(rng, (2, 3, 4), 8, 1), torch.float32, device),
        *tensors(random_result(rng, (2, 3, 4), 8, 1), torch.float32, device),
    ]
    expected = merge(*plain)
    o, lse = plain[2 * side : 2 * side + 2]
    views = [
        (o.transpose(1, 2).contiguous().transpose(1, 2), lse.mT.contiguous().mT),
        (o.mT.contiguous().mT, torch.stack([lse, lse], -1)[..., 0]),
    ]
    for view in views:
        args = list(plain)
        args[2 * side : 2 * side + 2] = view
        for x, y in zip(merge(*args), expected, strict=True):
            assert torch.equal(x, y)


@dtypes
def test_a_prefix_shared_by_all_and_a_rest_of_each(dtype, problem, oracle, device):
    """Cascade: the shared keys once for everyone, each sequence's own after them, and a merge; also where a
    sequence has none of its own."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 3, 4, 2, 2, 50)
    k[:, :, :20], v[:, :, :20] = k[:1, :, :20], v[:1, :, :20]
    lens = [50, 20, 31]
    q, k, v = tensors((q, k, v), dtype, device)
    shared = flash_decoding(
        q, k[:1, :, :20].expand(3, -1, -1, -1), v[:1, :, :20].expand(3, -1, -1, -1), splits=2
    )
    own = flash_decoding(q, k[:, :, 20:], v[:, :, 20:], kv_lens=[n - 20 for n in lens], splits=2)
    o, lse = merge(*shared, *own)
    whole = flash_decoding(q, k, v, kv_lens=lens, splits=1)
    assert (lse - whole[1]).abs().max() <= 2e-6
    assert (o - whole[0]).abs().max() <= 3 * FLOOR[dtype] * v.abs().max()
    if dtype == torch.float32:
        assert_right((o, lse), q, k, v, oracle, kv_lens=lens)


def with_sink(o, lse, sink):
    """o and lse in float64 with one more key of score sink and value 0."""
    total = np.logaddexp(lse, sink)
    weight = np.where(np.isneginf(lse), 0, np.exp(lse - total))
    return o * weight[..., None], total


def test_a_sink_counts_once_whatever_the_splits(problem, oracle, device):
    """Empty sequences, splits without keys, queries that see nothing: they see the sink."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 3, 4, 2, 3, 40)
    sink = rng.standard_normal(4)
    lens = [40, 0, 2]
    q, k, v = tensors((q, k, v), torch.float32, device)
    expected = with_sink(*oracle(to64(q), to64(k), to64(v), causal=True, kv_lens=lens), sink[None, :, None])
    for splits in 1, 2, 7:
        result = flash_decoding(q, k, v, causal=True, kv_lens=lens, splits=splits)
        o, lse = add_sink(*result, torch.tensor(sink, device=device))
        assert np.abs(to64(o) - expected[0]).max() <= 3e-6
        assert np.abs(to64(lse) - expected[1]).max() <= 3e-6
    result = flash_attention(q, k, v, causal=True, kv_lens=lens)
    assert np.abs(to64(add_sink(*result, torch.tensor(sink, device=device))[0]) - expected[0]).max() <= 3e-6


def test_a_sink_of_a_packed_batch(device):
    x = torch.randn(9, 2, 16, generator=torch.Generator().manual_seed(0)).to(device)
    sink = torch.tensor([0.5, -2.0], device=device)
    o, lse = packed_attention(x, x, x, [0, 4, 9], [0, 4, 9])
    expected = with_sink(to64(o), to64(lse), to64(sink)[None, :])
    got = add_sink(o, lse, sink)
    assert np.abs(to64(got[0]) - expected[0]).max() <= 3e-6
    assert np.abs(to64(got[1]) - expected[1]).max() <= 3e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"o_b": torch.ones(2, 3, 4, 7)},
            r"o_b must have the shape of o_a, \(2, 3, 4, 8\), got \(2, 3, 4, 7\)",
        ),
        ({"o_b": torch.ones(2, 3, 4, 8).half()}, "o_b must have the dtype and device of o_a"),
        ({"lse_a": torch.ones(2, 3)}, r"lse_a must be float32 \(2, 3, 4\)"),
        ({"lse_b": torch.ones(2, 3, 4).half()}, "lse_b must have the dtype and device of lse_a"),
        ({"lse_a": torch.ones(2, 3, 4).half(), "lse_b": torch.ones(2, 3, 4).half()}, "lse_a must be float32"),
        ({"o_a": torch.ones(2, 8), "lse_a": torch.ones(2)}, "o_a must have shape"),
        ({"o_a": None}, "o_a must be a torch tensor, got NoneType"),
    ],
)
def test_refusals_come_before_any_launch(change, message, monkeypatch, device):
    good = {"o_a": torch.ones(2, 3, 4, 8), "lse_a": torch.ones(2, 3, 4),
            "o_b": torch.ones(2, 3, 4, 8), "lse_b": torch.ones(2, 3, 4)}  # fmt: skip
    monkeypatch.setattr(module, "launch", lambda *args, **kwargs: pytest.fail("launched"))
    with pytest.raises(ValueError, match=message):
        merge(**{n: x if x is None else x.to(device) for n, x in (good | change).items()})


@pytest.mark.parametrize("sink", [torch.ones(2), torch.ones(1, 3), 1.0])
def test_sinks_that_do_not_fit(sink, device):
    with pytest.raises(ValueError, match=r"sink must be a tensor of shape \(3,\)"):
        add_sink(torch.ones(2, 3, 4, 8, device=device), torch.ones(2, 3, 4, device=device), sink)
