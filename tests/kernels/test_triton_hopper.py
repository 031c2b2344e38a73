"""The forward pass in Gluon for Hopper: which calls it gets, and on such a card what it makes of them.

Gluon has no interpreter; without a card `test_compile.py` compiles it.
"""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402

from kernels.triton import attention, forward, hopper, host  # noqa: E402

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
FLOOR = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # one rounding of the output
DIM = 128


def options(q, k, **changes):
    given = {"causal": False, "window": None, "scale": None, "score_mod": None, "aux": None, "q_lens": None,
             "kv_lens": None, "packed": False}  # fmt: skip
    return host.check_options(q, k.shape[2], **given | changes)


def formula(q, k, v, causal, scale):
    """(o, lse) from all scores: the truth for float64; for 16 bits, with float32 scores and weights rounded to 16 bits, how far
    off a right result may be."""
    group = q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    s = q.to(wide) @ k.to(wide).repeat_interleave(group, 1).mT * scale
    if causal:
        place = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        s = s.masked_fill(torch.arange(k.shape[2], device=q.device) > place, -math.inf)
    lse = torch.logsumexp(s, 3)
    p = torch.exp(s - torch.where(lse == -math.inf, 0, lse)[..., None])
    return p.to(v.dtype) @ v.repeat_interleave(group, 1), lse


def exact(q, k, v, causal, scale):
    return formula(q.double(), k.double(), v.double(), causal, scale)


def launched(q, k, v, **changes):
    """o and lse of `launch` alone, on outputs that were full of NaN."""
    o, lse = torch.full_like(q, math.nan).contiguous(), torch.full(q.shape[:3], math.nan, device=q.device)
    given = options(q, k, **changes)
    assert hopper.fits(q, k, v, given)
    hopper.launch(q, k, v, o, lse, given)
    return o, lse


def assert_right(q, k, v, causal, scale=None):
    scale = DIM**-0.5 if scale is None else scale
    o, lse = launched(q, k, v, causal=causal, scale=scale)
    right, right_lse = exact(q, k, v, causal, scale)
    budget = (formula(q, k, v, causal, scale)[0].double() - right).abs().max()
    assert (o.double() - right).abs().max() <= 2 * budget + 2 * FLOOR[q.dtype] * v.abs().max()
    seen = right_lse > -math.inf
    assert torch.equal(lse > -math.inf, seen)
    assert not o[~seen].any()
    largest = right_lse[seen].abs().max().item() if seen.any() else 0.0
    assert not seen.any() or (lse[seen].double() - right_lse[seen]).abs().max() <= 1e-5 + 1e-6 * largest


def random(generator, *shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@needs_hopper
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    batch=st.integers(1, 3), kv_heads=st.integers(1, 3), group=st.sampled_from([1, 2, 5]),
    q_len=st.integers(1, 400), kv_len=st.integers(1, 700), causal=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]), heads_inside=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_any_problem(batch, kv_heads, group, q_len, kv_len, causal, dtype, heads_inside, seed):
    """heads_inside: memory in the order (batch, length, heads, dim)."""
    generator = torch.Generator("cuda").manual_seed(seed)
    q, k, v = (
        random(generator, batch, length, heads, DIM, dtype=dtype).transpose(1, 2)
        if heads_inside
        else random(generator, batch, heads, length, DIM, dtype=dtype)
        for heads, length in ((kv_heads * group, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    )
    assert_right(q, k, v, causal)


@needs_hopper
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q_len", "kv_len"), [(4096, 4096), (1000, 5000), (3000, 2999), (128, 8192), (129, 127)])
def test_larger_problems(q_len, kv_len, causal):
    generator = torch.Generator("cuda").manual_seed(0)
    assert_right(
        random(generator, 2, 4, q_len, DIM), random(generator, 2, 2, kv_len, DIM),
        random(generator, 2, 2, kv_len, DIM), causal,
    )  # fmt: skip


@needs_hopper
@pytest.mark.parametrize("scale", [2.0**12, 2.0**-12])
def test_large_and_small_scales(scale):
    generator = torch.Generator("cuda").manual_seed(0)
    assert_right(*(random(generator, 1, 2, 300, DIM, dtype=torch.float16) for _ in range(3)), True, scale)


@needs_hopper
@pytest.mark.parametrize("which", ["k", "v"])
def test_nan_that_no_row_of_a_tile_may_see(which):
    """Behind the tensors' ends, and in the future of all 128 rows of a program, wherever that begins."""
    generator = torch.Generator("cuda").manual_seed(0)
    for q_len, kv_len in (200, 250), (256, 256), (300, 111):
        q = random(generator, 1, 2, q_len, DIM)
        behind = [random(generator, 1, 2, kv_len + 200, DIM) for _ in range(2)]
        for x in behind:
            x[:, :, kv_len:] = math.nan
        k, v = (x[:, :, :kv_len] for x in behind)
        assert_right(q, k, v, True)
        first_hidden = max(128 + kv_len - q_len, 0)  # from the first 128 rows
        {"k": k, "v": v}[which][:, :, first_hidden:] = math.nan
        o, lse = launched(q, k, v, causal=True)
        known = [x.clone().nan_to_num(0.0) for x in (k, v)]
        right, right_lse = launched(q, *known, causal=True)
        assert torch.equal(o[:, :, :128], right[:, :, :128])
        assert torch.equal(lse[:, :, :128], right_lse[:, :, :128])
        assert q_len <= 128 or first_hidden >= kv_len or torch.isnan(o[:, :, -1]).all()  # who may see it does


@needs_hopper
def test_the_same_bits_every_time_and_alone():
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (random(generator, 3, 4, 1500, DIM) for _ in range(3))
    first = launched(q, k, v, causal=True)
    for _ in range(20):  # a wait that is missing shows now and then
        assert all(torch.equal(a, b) for a, b in zip(launched(q, k, v, causal=True), first, strict=True))
    alone = launched(*(x[1:2, 2:3] for x in (q, k, v)), causal=True)
    assert all(torch.equal(a, b[1:2, 2:3]) for a, b in zip(alone, first, strict=True))


@needs_hopper
def test_more_than_65535_programs():
    generator = torch.Generator("cuda").manual_seed(0)
    q, k = random(generator, 40_000, 2, 1, DIM), random(generator, 40_000, 2, 3, DIM)
    o, lse = launched(q, k, k)
    for part in slice(0, 9), slice(-9, None):
        right, right_lse = exact(q[part], k[part], k[part], False, DIM**-0.5)
        assert (o[part].double() - right).abs().max() <= 0.03
        assert (lse[part].double() - right_lse).abs().max() <= 1e-5


@pytest.fixture
def on_hopper(monkeypatch):
    """CPU tensors pass for those of a Hopper card; the two launches are noted down."""
    found = []
    monkeypatch.setattr(host, "is_hopper", lambda device: True)
    monkeypatch.setattr(host, "has_boxes", lambda device: True)
    monkeypatch.setattr(host, "runs_on", lambda kernel, device: True)
    monkeypatch.setattr(hopper, "launch", lambda *args: found.append("hopper"))
    monkeypatch.setattr(forward, "launch", lambda *args: found.append("forward"))
    return found


def dense(dim=DIM, v_dim=None, dtype=torch.float16, length=300):
    return [torch.zeros(2, 2, length, n, dtype=dtype) for n in (dim, dim, v_dim or dim)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", list(FLOOR))
def test_what_it_gets(on_hopper, dtype, causal):
    attention.flash_attention(*dense(dtype=dtype), causal=causal)
    assert on_hopper == ["hopper"]


@pytest.mark.parametrize(
    ("tensors", "changes"),
    [
        (dense(dtype=torch.float32), {}),
        (dense(64), {}),
        (dense(256), {}),
        (dense(DIM, 64), {}),
        (dense(64, DIM), {}),
        ([x[..., :DIM] for x in dense(DIM + 1)], {}),  # rows that do not begin at multiples of 16 bytes
        ([x.mT for x in dense(length=DIM)], {}),
        ([x[:, :, :1].expand(-1, -1, 300, -1) for x in dense()], {}),  # a stride of 0
        (dense(), {"window": 50}),
        (dense(), {"q_lens": [300, 7]}),
        (dense(), {"kv_lens": [300, 7]}),
        (dense(), {"scale": 0.0}),
        (dense(), {"scale": -1.0}),
        (dense(), {"score_mod": hopper.find_head}),
        (dense(length=0), {}),
    ],
)
def test_what_it_leaves_to_the_other(on_hopper, tensors, changes):
    attention.flash_attention(*tensors, **changes)
    assert on_hopper == ["forward"]


def test_packed_sequences_are_left_to_the_other(on_hopper):
    tokens = [torch.zeros(300, 2, DIM, dtype=torch.float16) for _ in range(3)]
    attention.packed_attention(*tokens, [0, 100, 300], [0, 100, 300])
    assert on_hopper == ["forward"]


def test_other_cards_are_left_to_the_other(monkeypatch, on_hopper):
    monkeypatch.setattr(host, "is_hopper", lambda device: False)
    attention.flash_attention(*dense())
    assert on_hopper == ["forward"]
