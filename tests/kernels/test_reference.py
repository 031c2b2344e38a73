"""The four NumPy forms of attention, against a float64 oracle that shares nothing with them.

Tolerance: inputs are float64, so the error may be a few roundings of the largest |v|, of which an output is a
mean.
"""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import (
    flash_attention,
    flash_decoding,
    flash_one_query,
    naive_attention,
    packed_attention,
    paged_attention,
    peak_bytes,
)
from kernels.reference.mask import key_range, visible
from kernels.reference.score_mods import alibi, alibi_slopes, bias, custom_mask, softcap

# Not all warnings: those of sockets that another test left to the garbage collector are not ours.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::DeprecationWarning")
EPS = np.finfo(np.float64).eps
ULPS = 32
NAN = np.nan


def paged(rng, k, v, block_size, kv_lens, spare=2):
    """k, v (batch, kv_heads, kv_len, dim) as a cache in random block order: NaN in unused slots, -1 past the
    end."""
    batch, kv_heads, kv_len, _ = k.shape
    lens = [kv_len] * batch if kv_lens is None else kv_lens
    used = [-(-n // block_size) for n in lens]
    table = np.full((batch, max(used, default=0) + 1), -1, np.int32)
    order = iter(rng.permutation(sum(used) + spare))
    caches = [np.full((sum(used) + spare, block_size, kv_heads, x.shape[3]), NAN) for x in (k, v)]
    for b, n in enumerate(lens):
        for i in range(used[b]):
            table[b, i] = next(order)
            for cache, x in zip(caches, (k, v), strict=True):
                part = x[b, :, i * block_size : min((i + 1) * block_size, n)].swapaxes(0, 1)
                cache[table[b, i], : len(part)] = part
    return *caches, table, lens


def naive(rng, q, k, v, **options):
    return naive_attention(q, k, v, **options)


def flash(rng, q, k, v, tile_q=7, tile_k=5, **options):
    return flash_attention(q, k, v, tile_q=tile_q, tile_k=tile_k, **options)


def paged_form(rng, q, k, v, block=6, kv_lens=None, **options):
    k_cache, v_cache, table, lens = paged(rng, k, v, block, kv_lens)
    return paged_attention(q, k_cache, v_cache, table, lens, **options)


def decoding(rng, q, k, v, splits=3, tile=4, **options):
    return flash_decoding(q, k, v, splits=splits, tile=tile, **options)


def every_third_key(score, batch, head, q_index, kv_index):
    """A mask that leaves some rows nothing: the first key that most rows could see is hidden from them."""
    return np.where((q_index + kv_index + batch + head) % 3 == 1, score, -np.inf)


def tilt(score, batch, head, q_index, kv_index):
    """Every index has its own weight, so that swapping two of them shows."""
    return score + 0.5 * batch + 0.25 * head + 0.125 * q_index - 0.0625 * kv_index


MODS = [None, softcap(2.0), tilt, every_third_key]
WITH_Q_LENS = [naive, flash]
FORMS = [naive, flash, paged_form, decoding]
forms = pytest.mark.parametrize("form", FORMS)


def assert_close(got, expected, v, ulps=ULPS):
    """A weight is exp(s - lse), here and in the oracle: one rounding of lse is |lse| * EPS of every weight."""
    (o, lse), (expected_o, expected_lse) = got, expected
    assert o.shape == expected_o.shape
    assert lse.shape == expected_lse.shape
    seen = ~np.isneginf(expected_lse)
    assert np.array_equal(~np.isneginf(lse), seen)
    most = ulps * EPS * np.abs(expected_lse[seen]).max(initial=1)
    assert np.abs(lse[seen] - expected_lse[seen]).max(initial=0) <= most
    assert np.abs(o - expected_o).max(initial=0) <= most * np.nanmax(np.abs(v), initial=1)
    assert not o[~seen].any()


def check(form, problem, oracle, seed=0, options=None, **shape):
    rng = np.random.default_rng(seed)
    options = dict(options or {})
    lens = {name: shape[name] for name in ("q_lens", "kv_lens") if shape.get(name) is not None}
    q, k, v = problem(rng, **shape)
    names = ("causal", "window", "scale", "score_mod")
    shared = {name: options[name] for name in names if name in options} | lens
    assert_close(form(rng, q, k, v, **options, **lens), oracle(q, k, v, **shared), v)


def draw_shape(draw, lens):
    batch = draw(st.integers(1, 3))
    q_len, kv_len = draw(st.integers(1, 24)), draw(st.integers(0, 40))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = {
        "batch": batch,
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "q_len": q_len,
        "kv_len": kv_len,
        "dim": draw(st.integers(1, 20)),
        "v_dim": draw(st.integers(1, 20)),
    }
    for name, most in zip(lens, {"kv_lens": kv_len, "q_lens": q_len}.values(), strict=False):
        shape[name] = draw(st.none() | st.lists(st.integers(0, most), min_size=batch, max_size=batch))
    return shape


@st.composite
def cases(draw):
    """A form with its tiles, and a problem it takes: ragged, causal, grouped, of any small size."""
    form = draw(st.sampled_from(FORMS))
    shape = draw_shape(draw, ["kv_lens", "q_lens"] if form in WITH_Q_LENS else ["kv_lens"])
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 45)),
        "scale": draw(st.sampled_from([None, 0.3, -1.0, 0.0])),
        "score_mod": draw(st.sampled_from(MODS)),
    }
    names = {naive: [], flash: ["tile_q", "tile_k"], paged_form: ["block"], decoding: ["splits", "tile"]}[
        form
    ]
    options |= {name: draw(st.integers(1, 45)) for name in names}
    return form, shape, options, draw(st.integers(0, 2**32 - 1))


@settings(deadline=None, max_examples=300)
@given(case=cases())
def test_every_form_equals_the_oracle(case, problem, oracle):
    form, shape, options, seed = case
    check(form, problem, oracle, seed, options, **shape)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 70),
    tile=st.integers(1, 80),
    scale=st.sampled_from([None, 2.0]),
)
def test_one_query(seed, n, tile, scale, problem, oracle):
    q, k, v = problem(np.random.default_rng(seed), kv_len=n, dim=5, v_dim=3)
    o, lse = flash_one_query(q[0, 0, 0], k[0, 0], v[0, 0], tile=tile, scale=scale)
    assert o.shape == (3,)
    assert np.ndim(lse) == 0
    assert_close((o[None, None, None], np.reshape(lse, (1, 1, 1))), oracle(q, k, v, scale=scale), v)


@forms
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1023, 1025])
def test_lengths_around_tile_boundaries(form, n, problem, oracle):
    sizes = {flash: {"tile_q": 16, "tile_k": 64}, paged_form: {"block": 64}, decoding: {"tile": 16}}
    options = {"causal": True} | sizes.get(form, {})
    check(form, problem, oracle, options=options, q_len=min(n, 130), kv_len=n, dim=8)
    check(form, problem, oracle, options=sizes.get(form, {}), q_len=1, kv_len=n, dim=8)


@forms
@pytest.mark.parametrize(("q_len", "kv_len"), [(9, 4), (30, 1), (5, 0), (1, 0), (1, 129), (3, 128), (40, 41)])
def test_causal_is_aligned_at_the_bottom_right(form, q_len, kv_len, problem, oracle):
    check(form, problem, oracle, options={"causal": True}, q_len=q_len, kv_len=kv_len)
    rng = np.random.default_rng(1)
    q, k, v = problem(rng, q_len=q_len, kv_len=kv_len)
    o, lse = form(rng, q, k, v, causal=True)
    blind = max(0, q_len - kv_len)  # the queries above the diagonal's first key
    assert np.isneginf(lse[..., :blind]).all()
    assert not o[..., :blind, :].any()
    assert np.isfinite(lse[..., blind:]).all()


@forms
def test_no_keys_at_all(form, problem):
    rng = np.random.default_rng(0)
    o, lse = form(rng, *problem(rng, 2, 4, 2, 3, 0))
    assert not o.any()
    assert o.shape == (2, 4, 3, 16)
    assert np.isneginf(lse).all()


@given(
    q_len=st.integers(1, 20),
    kv_len=st.integers(0, 20),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 25),
    data=st.data(),
)
def test_the_range_of_keys_holds_all_that_is_visible_and_no_more(q_len, kv_len, causal, window, data):
    first = data.draw(st.integers(0, q_len - 1))
    last = data.draw(st.integers(first, q_len - 1))
    rows, keys = np.arange(first, last + 1)[:, None], np.arange(kv_len)
    seen = np.flatnonzero(visible(rows, keys, q_len, kv_len, causal, window).any(axis=0))
    begin, end = key_range(first, last, q_len, kv_len, causal, window)
    assert list(range(begin, min(end, kv_len))) == seen.tolist()


@forms
def test_a_window_looks_so_far_and_no_further(form):
    """With values that are their own index, and equal scores, an output is the mean of what was seen."""
    q, k, v = np.zeros((1, 1, 6, 1)), np.zeros((1, 1, 10, 1)), np.arange(10.0).reshape(1, 1, 10, 1)
    o, lse = form(np.random.default_rng(0), q, k, v, causal=True, window=3)
    assert np.abs(o[0, 0, :, 0] - [3, 4, 5, 6, 7, 8]).max() <= 8 * EPS * 9  # keys 2-4, 3-5, ..., 7-9
    assert np.abs(lse - np.log(3)).max() <= 8 * EPS
    o, lse = form(np.random.default_rng(0), q, k, v, window=3)
    assert np.abs(np.exp(lse[0, 0]) - [5, 5, 5, 5, 4, 3]).max() <= 8 * EPS * 5  # both sides


@forms
@pytest.mark.parametrize("window", [1, 3, 4, 7, 100])
def test_a_window_that_empties_whole_tiles(form, window, problem, oracle):
    """Tiles of 4 to 6 keys: the first ones of late rows, or parts of them, are outside the window."""
    check(form, problem, oracle, options={"causal": True, "window": window}, q_len=17, kv_len=23)
    check(form, problem, oracle, options={"window": window}, q_len=23, kv_len=9, batch=2, kv_lens=[9, 0])


@pytest.mark.parametrize("form", [naive, flash, decoding])
def test_nan_that_a_window_has_left_behind(form, problem, oracle):
    q, k, v = problem(np.random.default_rng(0), q_len=2, kv_len=20)
    expected = form(None, q, k, v, causal=True, window=5)
    k[:, :, :14] = v[:, :, :14] = NAN
    got = form(None, q, k, v, causal=True, window=5)
    assert_close(got, expected, v)


def test_blocks_that_a_window_has_left_behind_may_be_gone(problem, oracle):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, q_len=2, kv_len=20)
    k_cache, v_cache, table, lens = paged(rng, k, v, 4, None)
    expected = paged_attention(q, k_cache, v_cache, table, lens, causal=True, window=5)
    table[0, :3] = -1  # the queries stand at 18 and 19 and see 14 .. 19
    got = paged_attention(q, k_cache, v_cache, table, lens, causal=True, window=5)
    assert np.array_equal(got[0], expected[0])
    table[0, 3] = -1
    with pytest.raises(ValueError, match=r"block_table\[0, 3\] is -1"):
        paged_attention(q, k_cache, v_cache, table, lens, causal=True, window=5)


@forms
def test_softcap_of_large_scores(form, problem):
    """A score of 5000 under a cap of 50 is 50."""
    rng = np.random.default_rng(0)
    q, k, v = np.full((1, 1, 2, 1), 1.0), np.full((1, 1, 7, 1), 5000.0), np.arange(7.0).reshape(1, 1, 7, 1)
    o, lse = form(rng, q, k, v, scale=1.0, score_mod=softcap(50))
    assert np.abs(o - 3).max() <= ULPS * EPS * 6
    assert np.abs(lse - (50 + np.log(7))).max() <= ULPS * EPS * 52


@forms
def test_masks_and_biases_as_score_mods(form, problem, oracle):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 2, 4, 2, 9, 14)
    allowed = rng.random((2, 4, 9, 14)) < 0.3
    allowed[0, 1] = False  # a whole head that sees nothing
    allowed[1, :, :, :6] = False  # no row of a sequence sees its first tile
    values = rng.standard_normal((2, 4, 9, 14))
    for mod in custom_mask(allowed), bias(values), alibi(alibi_slopes(4), offset=5):
        got = form(rng, q, k, v, score_mod=mod, causal=True)
        assert_close(got, oracle(q, k, v, score_mod=mod, causal=True), v)
    k[1, :, 3] = v[1, :, 4] = NAN  # in slots that the mask hides from everyone
    mod = custom_mask(allowed)
    assert_close(form(rng, q, k, v, score_mod=mod), oracle(q, k, v, score_mod=mod), v)
    before = form(rng, q, k[:, ::-1], v, score_mod=custom_mask(np.zeros_like(allowed)))
    assert not before[0].any()
    assert np.isneginf(before[1]).all()


@forms
def test_an_added_million_is_not_minus_infinity(form):
    """A valid score of -2e6 beside a key under an additive -inf mask: the masked key gets nothing."""
    rng = np.random.default_rng(0)
    q, k = np.ones((1, 1, 1, 1)), np.array([[[[-2e6], [0.0]]]])
    mask = np.array([0, -np.inf]).reshape(1, 1, 1, 2)
    o, lse = form(rng, q, k, np.array([[[[3.0], [7.0]]]]), scale=1.0, score_mod=bias(mask))
    assert o.item() == 3
    assert lse.item() == -2e6


def test_alibi_slopes_of_the_paper():
    assert np.allclose(alibi_slopes(8), [2.0**-i for i in range(1, 9)], rtol=4 * EPS)
    assert np.allclose(alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=4 * EPS)
    assert len(alibi_slopes(12)) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: softcap(0), "cap must be above 0, got 0"),
        (lambda: softcap(NAN), "cap must be a finite number, got nan"),
        (lambda: alibi(np.ones((2, 2))), r"slopes must have shape \(heads,\), got \(2, 2\)"),
        (lambda: alibi_slopes(0), "heads must be an integer of at least 1, got 0"),
        (lambda: bias(np.ones((3, 4))), r"values must have 4 axes .* got shape \(3, 4\)"),
        (lambda: custom_mask(np.ones((3, 4), bool)), "allowed must have 4 axes"),
    ],
)
def test_score_mods_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_score_mod_keeps_float32(problem):
    q, k, v = (x.astype(np.float32) for x in problem(np.random.default_rng(0), 1, 2, 2, 5, 9))
    for mod in softcap(3), alibi(alibi_slopes(2)), bias(np.ones((1, 2, 5, 9))):
        o, lse = flash_attention(q, k, v, score_mod=mod)
        assert o.dtype == lse.dtype == np.float32


@st.composite
def packings(draw):
    lens = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 15)), max_size=4))
    return [n for n, _ in lens], [n for _, n in lens], draw(st.integers(0, 3)), draw(st.integers(0, 3))


@settings(deadline=None, max_examples=60)
@given(
    packing=packings(),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 9),
    mod=st.sampled_from(MODS),
    seed=st.integers(0, 2**32 - 1),
)
def test_packed_is_each_sequence_by_itself(packing, causal, window, mod, seed, oracle):
    q_lens, kv_lens, q_spare, k_spare = packing
    rng = np.random.default_rng(seed)
    cu_q, cu_k = (np.cumsum([0, *lens]) for lens in (q_lens, kv_lens))
    q = rng.standard_normal((cu_q[-1] + q_spare, 4, 5))
    k, v = (rng.standard_normal((cu_k[-1] + k_spare, 2, n)) for n in (5, 3))
    q[cu_q[-1] :] = k[cu_k[-1] :] = v[cu_k[-1] :] = NAN
    o, lse = packed_attention(
        q, k, v, cu_q, cu_k, causal=causal, window=window, score_mod=mod, tile_q=5, tile_k=4
    )
    expected_o, expected_lse = np.zeros((len(q), 4, 3)), np.full((len(q), 4), -np.inf)
    for b in range(len(q_lens)):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        alone = (x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        here = mod and (lambda s, _, *index, b=b: mod(s, b, *index))
        o_b, lse_b = oracle(*alone, causal=causal, window=window, score_mod=here)
        expected_o[rows], expected_lse[rows] = o_b[0].swapaxes(0, 1), lse_b[0].swapaxes(0, 1)
    assert_close((o, lse), (expected_o, expected_lse), v)


GOOD_PACKED = {
    "q": np.ones((7, 4, 8)), "k": np.ones((9, 2, 8)), "v": np.ones((9, 2, 6)),
    "cu_seqlens_q": [0, 3, 7], "cu_seqlens_k": [0, 0, 9],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.ones((1, 7, 4, 8))}, "q must have 3 axes"),
        ({"v": np.ones((8, 2, 6))}, "k and v must agree in tokens and heads"),
        ({"k": np.ones((9, 2, 7))}, "k must have the head_dim of q, 8, got 7"),
        ({"q": np.ones((7, 3, 8))}, "multiple of the heads of k and v, got 3 and 2"),
        ({"cu_seqlens_q": [0, 3, 8]}, r"cu_seqlens_q must rise from 0 to at most 7, got \[0, 3, 8\]"),
        ({"cu_seqlens_q": [0, 5, 3]}, "cu_seqlens_q must rise from 0"),
        ({"cu_seqlens_k": [1, 2, 9]}, "cu_seqlens_k must rise from 0"),
        ({"cu_seqlens_k": [0, 9]}, "same number of sequences, got 2 and 1"),
        ({"cu_seqlens_k": []}, r"cu_seqlens_k must have shape \(batch \+ 1,\)"),
        ({"cu_seqlens_k": [0.0, 1.0, 2.0]}, "cu_seqlens_k must hold integers"),
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
    ],
)
def test_packed_refusals(change, message):
    packed_attention(**GOOD_PACKED)
    with pytest.raises(ValueError, match=message):
        packed_attention(**GOOD_PACKED | change)


@forms
@pytest.mark.parametrize("kv_lens", [[0, 7, 12], [7, 0, 12], [7, 12, 0], [0, 0, 0], [12, 12, 12], [1, 6, 11]])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_keys(form, kv_lens, causal, problem, oracle):
    check(form, problem, oracle, options={"causal": causal}, batch=3, heads=6, kv_heads=2, q_len=4, kv_len=12,
          kv_lens=kv_lens)  # fmt: skip


@pytest.mark.parametrize("form", WITH_Q_LENS)
@pytest.mark.parametrize("q_lens", [[1, 0, 1], [0, 5, 5], [5, 5, 0], [0, 0, 0]])
@pytest.mark.parametrize("kv_lens", [[3, 0, 5], [0, 3, 5], [5, 1, 0], [5, 5, 5]])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_queries_and_keys(form, q_lens, kv_lens, causal, problem, oracle):
    check(form, problem, oracle, options={"causal": causal}, batch=3, heads=9, kv_heads=3, q_len=5, kv_len=5,
          q_lens=q_lens, kv_lens=kv_lens)  # fmt: skip


@forms
@pytest.mark.parametrize(
    ("heads", "kv_heads"),
    [(32, 4), (9, 3), (6, 2), (5, 1), (7, 1), (16, 1), (48, 1), (10, 2), (64, 8), (3, 3)],
)
def test_head_map(form, heads, kv_heads, problem, oracle):
    """Each KV head's values are its own number, so an output says which head it read."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 2, heads, kv_heads, 3, 11)
    v[:] = np.arange(kv_heads)[:, None, None]
    o, _ = form(rng, q, k, v)
    expected = np.arange(heads) // (heads // kv_heads)
    assert np.abs(o - expected[:, None, None]).max() <= ULPS * EPS * kv_heads
    check(form, problem, oracle, batch=2, heads=heads, kv_heads=kv_heads, q_len=3, kv_len=11)


@pytest.mark.parametrize("form", [flash, paged_form, decoding])
@pytest.mark.parametrize("slot", [0, 5, 10, 11])
@pytest.mark.parametrize("which", ["k", "v"])
def test_a_key_changes_only_the_queries_that_see_it(form, slot, which, problem):
    """Not even NaN gets past the causal mask."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 1, 2, 1, 12, 12)
    clean_o, clean_lse = form(rng, q, k, v, causal=True)
    {"k": k, "v": v}[which][:, :, slot] = NAN
    o, lse = form(rng, q, k, v, causal=True)
    assert np.abs(o[:, :, :slot] - clean_o[:, :, :slot]).max(initial=0) <= ULPS * EPS * np.nanmax(np.abs(v))
    assert np.array_equal(lse[:, :, :slot], clean_lse[:, :, :slot])
    assert np.isnan(o[:, :, slot:]).all()


@forms
def test_large_scores(form, problem, oracle):
    """Scores of +-1e4 and more: the tolerance is that of the scores themselves, 1e4 roundings of 1."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 2, 4, 2, 9, 23)
    largest = 1e4 * np.abs(q).max() * np.abs(k).max() * 4
    for factor in 1e4, -1e4:
        assert_close(
            form(rng, q, k, v, scale=factor, causal=True),
            oracle(q, k, v, scale=factor, causal=True),
            v,
            ulps=8 * largest,
        )
    o, lse = form(rng, q, k, v, scale=0.0)  # equal scores: the mean
    assert np.abs(o - v.mean(axis=2).repeat(2, axis=1)[:, :, None]).max() <= ULPS * EPS * np.abs(v).max()
    assert np.abs(lse - np.log(23)).max() <= ULPS * EPS


@forms
def test_scores_below_every_stand_in_for_minus_infinity(form):
    rng = np.random.default_rng(0)
    q, k = np.full((1, 1, 2, 1), 1.0), np.full((1, 1, 9, 1), -6e4)
    k[0, 0, 5:] = NAN
    v = np.where(np.isnan(k), NAN, np.arange(9.0)[:, None])
    o, lse = form(rng, q, k, v, scale=1.0, kv_lens=[5])
    assert np.abs(o - 2).max() <= ULPS * EPS
    assert np.abs(lse - (math.log(5) - 6e4)).max() <= EPS * 6e4


@pytest.mark.parametrize("block", [1, 16, 17, 256, 544])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_pages_of_any_size(block, off, problem, oracle):
    n = max(1, 2 * block + off)
    check(paged_form, problem, oracle, options={"block": block}, batch=2, heads=4, kv_heads=2, kv_len=n,
          dim=8, kv_lens=[n, max(0, block + off)])  # fmt: skip


def test_pages_may_be_shared_and_repeated(problem, oracle):
    """Two sequences with one prefix, and a block that a sequence lists twice."""
    rng = np.random.default_rng(0)
    k_cache, v_cache = rng.standard_normal((2, 3, 4, 2, 8))
    q = rng.standard_normal((2, 2, 1, 8))
    table = np.array([[2, 0, 2], [2, 1, -1]])
    got = paged_attention(q, k_cache, v_cache, table, [11, 6])
    k, v = (x[np.maximum(table, 0)].reshape(2, 12, 2, 8).swapaxes(1, 2) for x in (k_cache, v_cache))
    assert_close(got, oracle(q, k, v, kv_lens=[11, 6]), v)


@pytest.mark.parametrize("splits", [1, 2, 5, 11, 12, 40])
def test_more_splits_than_keys(splits, problem, oracle):
    check(decoding, problem, oracle, options={"splits": splits}, batch=2, heads=2, q_len=2, kv_len=11,
          kv_lens=[11, 3])  # fmt: skip


@forms
def test_views_and_strides(form, problem, oracle):
    """q, k, v as views into one tensor, as transposes, and as slices along the heads."""
    rng = np.random.default_rng(0)
    fused = rng.standard_normal((2, 13, 3, 4, 8))  # (batch, length, q k v, heads, dim)
    q, k, v = (fused[:, :, i].swapaxes(1, 2) for i in range(3))
    q = q[:, ::2]
    k, v = k[:, 1:3], v[:, :2].swapaxes(2, 3).copy().swapaxes(2, 3)
    assert_close(form(rng, q, k, v, causal=True), oracle(q, k, v, causal=True), v)


@forms
def test_a_sequence_alone_and_in_a_batch_is_the_same_to_the_bit(form, problem):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 3, 4, 2, 6, 30)
    lens = [30, 17, 0]
    o, lse = form(rng, q, k, v, kv_lens=lens)
    for b in range(3):
        alone_o, alone_lse = form(rng, q[b : b + 1], k[b : b + 1], v[b : b + 1], kv_lens=lens[b : b + 1])
        assert np.array_equal(alone_o[0], o[b])
        assert np.array_equal(alone_lse[0], lse[b])


@forms
def test_dtypes(form, problem, oracle):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 1, 2, 1, 5, 20)
    for dtype, expected in (np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64):
        narrow = [x.astype(dtype) for x in (q, k, v)]
        o, lse = naive(rng, *narrow) if form is paged_form and dtype == np.float16 else form(rng, *narrow)
        if form is not paged_form:  # its cache above is float64
            assert o.dtype == lse.dtype == expected
        eps = np.finfo(expected).eps
        assert np.abs(o - oracle(*narrow)[0]).max() <= 8 * eps * np.abs(v).max()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_paged_dtypes(dtype):
    cache = np.ones((2, 4, 1, 8), dtype)
    o, lse = paged_attention(np.ones((1, 2, 1, 8), dtype), cache, cache, [[1, 0]], [7])
    assert o.dtype == lse.dtype == np.float32


@forms
def test_arguments_are_left_alone(form, problem):
    rng = np.random.default_rng(0)
    arrays = problem(rng, 2, 4, 2, 6, 20, kv_lens=[20, 3])
    before = [x.copy() for x in arrays]
    form(rng, *arrays, causal=True, kv_lens=[20, 3])
    for x, y in zip(arrays, before, strict=True):
        assert np.array_equal(x, y, equal_nan=True)


def test_peak_bytes_counts_what_was_alive_at_one_time():
    def work(n):
        first = np.ones(n)
        del first
        return np.ones(n // 2)

    result, peak = peak_bytes(work, 2**20)
    assert len(result) == 2**19
    assert 8 * 2**20 <= peak < 8.1 * 2**20
    kept = np.ones(2**20)
    assert peak_bytes(lambda x: None, kept)[1] < 2**16


def test_peak_bytes_within_a_trace_of_someone_else():
    """An earlier, higher peak is not ours; and the other trace goes on."""
    tracemalloc.start()
    try:
        np.ones(2**20).sum()
        _, peak = peak_bytes(np.ones, 2**10)
        assert 8 * 2**10 <= peak < 2**16
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_memory_of_flash_grows_with_n_and_of_naive_with_n_squared(problem):
    """Slope of log peak against log N, results included: flash 1 (its output), the naive form 2."""
    lengths = [512, 1024, 2048]
    slopes, peaks = {}, {}
    for name, function in ("naive", naive_attention), ("flash", flash_attention):
        peaks[name] = []
        for n in lengths:
            q, k, v = problem(np.random.default_rng(0), q_len=n, kv_len=n, dim=32)
            peaks[name].append(peak_bytes(function, q, k, v)[1])
        slopes[name] = np.polyfit(np.log(lengths), np.log(peaks[name]), 1)[0]
    assert slopes["naive"] > 1.9
    assert slopes["flash"] < 1.05
    assert peaks["naive"][-1] >= 2048**2 * 8  # at least one whole score matrix
    assert peaks["flash"][-1] <= 2048 * 33 * 8 + 400_000  # the output, the lse, a few tiles


@pytest.mark.parametrize(("tile_q", "tile_k"), [(16, 16), (64, 64), (128, 32)])
def test_flash_holds_a_few_tiles_beside_its_output(tile_q, tile_k, problem):
    q, k, v = problem(np.random.default_rng(0), q_len=200, kv_len=8000, dim=16)
    (o, lse), peak = peak_bytes(flash_attention, q, k, v, tile_q=tile_q, tile_k=tile_k)
    tile = 8 * (tile_q * tile_k + (tile_q + tile_k) * 16)
    # 500 kB for what other threads of a whole test run allocate meanwhile; a tile as long as the row takes six times that.
    assert peak - o.nbytes - lse.nbytes <= 5 * tile + 500_000


def least_peak(function, *arguments, **options):
    """The least of three peaks: other threads of a whole test run can add to one, and nothing can take away from it."""
    return min(peak_bytes(function, *arguments, **options)[1] for _ in range(3))


@pytest.mark.parametrize("form", [paged_form, decoding])
def test_decode_memory_does_not_grow_with_the_context(form, problem):
    rng = np.random.default_rng(0)
    peaks = []
    for n in 1024, 8192:
        q, k, v = problem(rng, kv_len=n)
        if form is decoding:
            peaks.append(least_peak(flash_decoding, q, k, v, splits=4))
        else:
            k_cache, v_cache, table, lens = paged(rng, k, v, 64, None)
            peaks.append(least_peak(paged_attention, q, k_cache, v_cache, table, lens))
    assert peaks[1] <= peaks[0] + 8_000  # bytes: the block table's checks; the scores alone would be 57,344


GOOD = {"q": np.ones((2, 4, 3, 8)), "k": np.ones((2, 2, 5, 8)), "v": np.ones((2, 2, 5, 6))}
BAD_DENSE = [
    ({"q": np.ones((4, 3, 8))}, r"q must have 4 axes .* got shape \(4, 3, 8\)"),
    ({"k": np.ones((2, 5, 8))}, "k must have 4 axes"),
    ({"v": np.ones((2, 2, 5, 6, 1))}, "v must have 4 axes"),
    ({"k": np.ones((1, 2, 5, 8))}, "k and v must have the batch size of q, 2, got 1 and 2"),
    ({"v": np.ones((1, 2, 5, 8))}, "k and v must have the batch size of q, 2, got 2 and 1"),
    ({"v": np.ones((2, 2, 4, 6))}, "k and v must agree in heads and length"),
    ({"v": np.ones((2, 1, 5, 6))}, "k and v must agree in heads and length"),
    ({"k": np.ones((2, 2, 5, 7))}, "k must have the head_dim of q, 8, got 7"),
    (
        {"k": np.ones((2, 3, 5, 8)), "v": np.ones((2, 3, 5, 6))},
        "multiple of the heads of k and v, got 4 and 3",
    ),
    (
        {"k": np.ones((2, 8, 5, 8)), "v": np.ones((2, 8, 5, 6))},
        "multiple of the heads of k and v, got 4 and 8",
    ),
    (
        {"k": np.ones((2, 0, 5, 8)), "v": np.ones((2, 0, 5, 6))},
        "multiple of the heads of k and v, got 4 and 0",
    ),
    ({"v": np.ones((2, 2, 5, 0))}, "head_dim must be at least 1, got 8 for q and k, 0 for v"),
    ({"q": np.ones((2, 4, 3, 8), complex)}, "q must hold real numbers, got dtype complex128"),
    ({"v": np.full((2, 2, 5, 6), "x")}, "v must hold real numbers"),
    ({"kv_lens": [5, 6]}, r"kv_lens must lie between 0 and 5, got \[5, 6\]"),
    ({"kv_lens": [-1, 5]}, "kv_lens must lie between 0 and 5"),
    ({"kv_lens": [5]}, r"kv_lens must have shape \(2,\), one length a sequence, got \(1,\)"),
    ({"kv_lens": [1.0, 2.0]}, "kv_lens must hold integers, got dtype float64"),
    ({"scale": NAN}, "scale must be a finite number or None, got nan"),
    ({"scale": np.inf}, "scale must be a finite number"),
    ({"window": 0}, "window must be an integer of at least 1, got 0"),
    ({"window": 2.5}, "window must be an integer of at least 1, got 2.5"),
    ({"score_mod": 50.0}, r"score_mod must be a function .* or None, got 50.0"),
    ({"scale": "1"[:0]}, "scale must be a finite number"),
]
MORE_BAD = {
    naive: [({"q_lens": [4, 0]}, "q_lens must lie between 0 and 3")],
    flash: [
        ({"q_lens": [4, 0]}, "q_lens must lie between 0 and 3"),
        ({"tile_q": 0}, "tile_q must be an integer of at least 1, got 0"),
        ({"tile_k": 1.5}, "tile_k must be an integer of at least 1, got 1.5"),
    ],
    decoding: [
        ({"splits": 0}, "splits must be an integer of at least 1, got 0"),
        ({"tile": -4}, "tile must be an integer of at least 1, got -4"),
    ],
}


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [(form, *bad) for form in (naive, flash, decoding) for bad in BAD_DENSE + MORE_BAD[form]],
)
def test_dense_refusals(form, change, message):
    with pytest.raises(ValueError, match=message):
        form(None, **GOOD | change)


GOOD_PAGED = {
    "q": np.ones((2, 4, 1, 8)),
    "k_cache": np.ones((5, 16, 2, 8)),
    "v_cache": np.ones((5, 16, 2, 6)),
    "block_table": np.array([[0, 1, 4], [3, -1, -1]]),
    "seq_lens": np.array([33, 16]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": [[0, 1, 5], [3, -1, -1]]}, r"block_table\[0, 2\] is 5, .* blocks are 0 to 4"),
        ({"block_table": [[0, 1, 4], [-1, -1, -1]]}, r"block_table\[1, 0\] is -1, and 16 tokens use it"),
        ({"seq_lens": [33, 17]}, r"block_table\[1, 1\] is -1, and 17 tokens use it"),
        ({"seq_lens": [49, 16]}, r"seq_lens must lie between 0 and 48, got \[49, 16\]"),
        ({"seq_lens": [33]}, r"seq_lens must have shape \(2,\)"),
        ({"seq_lens": [33.0, 16.0]}, "seq_lens must hold integers"),
        ({"block_table": [[0, 1, 4]]}, r"block_table must have shape \(batch, max_blocks\) with batch 2"),
        ({"block_table": [[0.0, 1, 4], [3, -1, -1]]}, "block_table must hold integers"),
        ({"q": np.ones((4, 1, 8))}, "q must have 4 axes"),
        ({"k_cache": np.ones((5, 16, 8))}, "k_cache must have 4 axes"),
        ({"k_cache": np.ones((5, 16, 2, 7))}, "k_cache must have the head_dim of q, 8, got 7"),
        ({"k_cache": np.ones((4, 16, 2, 8))}, "k_cache and v_cache must agree"),
        ({"k_cache": np.ones((5, 0, 2, 8)), "v_cache": np.ones((5, 0, 2, 6))}, "block_size of at least 1"),
        ({"q": np.ones((2, 3, 1, 8))}, "multiple of the heads of k and v, got 3 and 2"),
        ({"k_cache": np.ones((5, 16, 2, 8), complex)}, "k_cache must hold real numbers"),
    ],
)
def test_paged_refusals(change, message):
    paged_attention(**GOOD_PAGED)
    with pytest.raises(ValueError, match=message):
        paged_attention(**GOOD_PAGED | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.ones((1, 8))}, r"q, k, v must have shapes .* got \(1, 8\), \(5, 8\), \(5, 6\)"),
        ({"k": np.ones((5, 7))}, "q, k, v must have shapes"),
        ({"v": np.ones((4, 6))}, "q, k, v must have shapes"),
        ({"tile": 0}, "tile must be an integer of at least 1"),
        ({"scale": NAN}, "scale must be a finite number"),
    ],
)
def test_one_query_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        flash_one_query(**{"q": np.ones(8), "k": np.ones((5, 8)), "v": np.ones((5, 6))} | change)


def test_a_bad_block_past_the_end_is_not_looked_at():
    table = GOOD_PAGED["block_table"].copy()
    table[1, 1:] = [99, -7]
    expected = paged_attention(**GOOD_PAGED)
    got = paged_attention(**GOOD_PAGED | {"block_table": table})
    assert np.array_equal(got[0], expected[0])
