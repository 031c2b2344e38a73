"""The Triton decode kernel, paged and dense, against float64: on the GPU if there is one, else in the
interpreter at small sizes. Tolerance: see `kernel_yardstick`."""

import ctypes
import math
import mmap

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kernel_yardstick import DTYPES, GPU, MOD_NAMES, assert_right, mods, tensors, to64  # noqa: E402

from kernels.reference import fp8  # noqa: E402
from kernels.triton import decode, host, online  # noqa: E402
from kernels.triton.decode import flash_decoding, paged_attention  # noqa: E402

NAN = math.nan
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).split(".")[1])
SMALL = host.Tiles(16, 16, 4, 2)  # many tiles at small sizes


def paged(rng, k, v, block_size, lens, spare=2):
    """k, v (batch, kv_heads, kv_len, dim), NumPy, as a cache in random block order: NaN in unused slots, and a
    table full of -1 past the used part."""
    used = [-(-n // block_size) for n in lens]
    table = np.full((len(lens), max(used, default=0) + 1), -1, np.int32)
    order = iter(rng.permutation(sum(used) + spare))
    caches = [np.full((sum(used) + spare, block_size, x.shape[1], x.shape[3]), NAN) for x in (k, v)]
    for b, n in enumerate(lens):
        for i in range(used[b]):
            table[b, i] = next(order)
            for cache, x in zip(caches, (k, v), strict=True):
                part = x[b, :, i * block_size : min((i + 1) * block_size, n)].swapaxes(0, 1)
                cache[table[b, i], : len(part)] = part
    return *caches, table


def poisoned(function, *args, tiles=SMALL, **options):
    """The public function with given tiles; results and scratch memory are full of NaN before it starts."""

    def empty(*shape, **kwargs):
        return torch.full(*shape, NAN, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        if tiles is not None:
            patch.setattr(host, "decode_tiles", lambda *args: tiles)
        return function(*args, **options)


def check(problem, oracle, device, dtype, *, block=16, seed=0, tiles=SMALL, splits=2, **shape_and_options):
    """Paged with pages of `block` tokens, or dense where that is None."""
    rng = np.random.default_rng(seed)
    names = ("causal", "window", "scale")
    options = {n: shape_and_options.pop(n) for n in names if n in shape_and_options}
    shape = shape_and_options
    lens = shape.setdefault("kv_lens", [shape["kv_len"]] * shape.get("batch", 1))
    arrays = problem(rng, **shape)
    q, k, v = tensors(arrays, dtype, device)
    if block is None:
        got = poisoned(flash_decoding, q, k, v, kv_lens=lens, splits=splits, tiles=tiles, **options)
    else:
        k_cache, v_cache, table = paged(rng, *arrays[1:], block, lens)
        k_cache, v_cache = tensors((k_cache, v_cache), dtype, device)
        table = torch.from_numpy(table).to(device)
        got = poisoned(
            paged_attention, q, k_cache, v_cache, table, lens, splits=splits, tiles=tiles, **options
        )
    assert_right(got, q, k, v, oracle, kv_lens=lens, **options)


@st.composite
def cases(draw):
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 6))
    kv_len = draw(st.integers(0, 70))
    dim, v_dim = draw(st.sampled_from([(16, 16), (8, 24), (40, 16), (33, 7)]))
    return {
        "batch": batch, "heads": kv_heads * group, "kv_heads": kv_heads, "kv_len": kv_len, "dim": dim, "v_dim": v_dim,
        "q_len": draw(st.integers(1, 4)),
        "kv_lens": draw(st.lists(st.integers(0, kv_len), min_size=batch, max_size=batch)),
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 75)),
        "block": draw(st.none() | st.integers(1, 40)),
        "splits": draw(st.none() | st.integers(1, 7)),
    }  # fmt: skip


@settings(deadline=None, max_examples=80 if GPU else 12)
@given(case=cases(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32 - 1))
def test_any_small_problem(case, dtype, seed, problem, oracle, device):
    check(problem, oracle, device, dtype, seed=seed, **case)


@pytest.mark.parametrize("block", [1, 16, 17, 256, 544])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_pages_of_any_size(block, off, problem, oracle, device):
    """Lengths at, one under and one over the end of a page, of a tile and of a split."""
    n = max(1, 2 * block + off) if GPU or block < 100 else block + off
    check(problem, oracle, device, torch.float16, block=block, batch=2, heads=4, kv_heads=2, kv_len=n,
          kv_lens=[n, max(0, n - block)], tiles=host.Tiles(16, 64, 4, 2), splits=3)  # fmt: skip


@pytest.mark.parametrize("kv_lens", [[0, 17, 40], [17, 0, 40], [17, 40, 0], [0, 0, 0], [1, 16, 33]])
@pytest.mark.parametrize("block", [None, 8])
def test_ragged(kv_lens, block, problem, oracle, device):
    check(problem, oracle, device, torch.float32, block=block, batch=3, heads=6, kv_heads=2, kv_len=40,
          kv_lens=kv_lens, splits=4)  # fmt: skip


@pytest.mark.parametrize("splits", [1, 2, 5, 13])
@dtypes
def test_more_splits_than_tiles(splits, dtype, problem, oracle, device):
    """Some splits have no keys; their scratch memory, full of NaN before, counts for nothing."""
    check(problem, oracle, device, dtype, batch=2, heads=2, kv_len=50, kv_lens=[50, 3], splits=splits)


HEADS = [(32, 4), (9, 3), (6, 2), (5, 1), (7, 1), (16, 1), (48, 1), (64, 8)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "q_len"),
    [(*h, 1) for h in HEADS] + [(*h, 3) for h in (HEADS if GPU else [(9, 3), (5, 1), (48, 1)])],
)
def test_groups(heads, kv_heads, q_len, problem, oracle, device):
    """A group's heads are rows of one tile, or of several; V's numbers say which KV head was read."""
    check(problem, oracle, device, torch.float16, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=19,
          causal=True, tiles=None)  # fmt: skip
    q, k, v = problem(np.random.default_rng(0), 1, heads, kv_heads, q_len, 11)
    v[:] = np.arange(kv_heads)[:, None, None]
    o, _ = flash_decoding(*tensors((q, k, v), torch.float32, device), splits=1)
    expected = np.arange(heads) // (heads // kv_heads)
    assert np.abs(to64(o) - expected[:, None, None]).max() <= 1e-5


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 128), (1, 129), (3, 128), (9, 4), (5, 0), (20, 33)])
@pytest.mark.parametrize("block", [None, 16] if GPU else [16])
def test_causal_is_aligned_at_the_bottom_right(q_len, kv_len, block, problem, oracle, device):
    check(
        problem, oracle, device, torch.float16, block=block, heads=3, q_len=q_len, kv_len=kv_len, causal=True
    )


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 2**31])
def test_windows(window, problem, oracle, device):
    check(problem, oracle, device, torch.float16, batch=2, heads=3, q_len=2, kv_len=70, kv_lens=[70, 9],
          causal=True, window=window, splits=3)  # fmt: skip


@pytest.mark.parametrize(
    ("dim", "v_dim"),
    [(1, 1), (8, 200), (80, 80), (96, 128), (160, 160), (192, 128), (256, 256), (576 // 4, 33)],
)
def test_head_dims(dim, v_dim, problem, oracle, device):
    check(problem, oracle, device, torch.float16, heads=2, kv_len=37, dim=dim, v_dim=v_dim, tiles=None)


@pytest.mark.parametrize("tiles", sorted(set(host.DECODE_TILES.values())), ids=str)
@dtypes
def test_each_configuration_alone_on_poisoned_outputs(tiles, dtype, problem, oracle, device):
    check(problem, oracle, device, dtype, batch=2, heads=6, kv_heads=2, q_len=2, kv_len=150, kv_lens=[150, 65],
          causal=True, tiles=tiles, splits=3)  # fmt: skip


@dtypes
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("block", [None, 16])
def test_nan_beyond_the_keys(dtype, which, block, problem, oracle, device):
    """The end of a page that is not full, in K alone and in V alone."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, 1, 2, 1, 1, 48)
    (k, v)[which][:, :, 42:] = NAN
    lens = [42]
    on_device = tensors((q, k, v), dtype, device)
    if block is None:
        got = poisoned(flash_decoding, *on_device, kv_lens=lens, splits=2)
    else:
        k_cache, v_cache, table = paged(rng, k, v, block, [48])  # the last page keeps its NaN
        caches = tensors((k_cache, v_cache), dtype, device)
        got = poisoned(
            paged_attention, on_device[0], *caches, torch.from_numpy(table).to(device), lens, splits=2
        )
    assert_right(got, *on_device, oracle, kv_lens=lens)


def test_blocks_that_a_window_has_left_behind_may_be_gone(problem, oracle, device):
    """Entries of -1, and NaN in the block that a clamped -1 would read."""
    rng = np.random.default_rng(0)
    arrays = problem(rng, q_len=2, kv_len=50)
    k_cache, v_cache, table = paged(rng, *arrays[1:], 4, [50])
    k_cache, v_cache = (np.concatenate([np.full_like(x[:1], NAN), x]) for x in (k_cache, v_cache))
    table[table >= 0] += 1
    table[0, :7] = -1  # the queries stand at 48 and 49 and see 28 .. 49
    q, k, v, k_cache, v_cache = tensors((*arrays, k_cache, v_cache), torch.float32, device)
    table = torch.from_numpy(table).to(device)
    got = poisoned(paged_attention, q, k_cache, v_cache, table, [50], causal=True, window=21)
    assert_right(got, q, k, v, oracle, causal=True, window=21)


@pytest.mark.parametrize("name", MOD_NAMES)
@pytest.mark.parametrize("splits", [1, 3])
def test_a_score_mod_equals_its_twin(name, splits, problem, oracle, device):
    rng = np.random.default_rng(0)
    lens = [40, 33]
    arrays = problem(rng, 2, 6, 2, 3, 40, kv_lens=lens)
    q, k, v = tensors(arrays, torch.float16, device)
    mod, aux, twin = mods(rng, 2, 6, 3, 40, device)[name]
    options = {"causal": True, "window": 30}
    k_cache, v_cache, table = paged(rng, *arrays[1:], 8, lens)
    caches = tensors((k_cache, v_cache), torch.float16, device)
    table = torch.from_numpy(table).to(device)
    got = poisoned(paged_attention, q, *caches, table, lens, score_mod=mod, aux=aux, splits=splits, **options)
    assert_right(got, q, k, v, oracle, twin=twin, kv_lens=lens, **options)
    got = poisoned(flash_decoding, q, k, v, kv_lens=lens, score_mod=mod, aux=aux, splits=splits, **options)
    assert_right(got, q, k, v, oracle, twin=twin, kv_lens=lens, **options)


@dtypes
def test_scores_below_every_stand_in_for_minus_infinity(dtype, device):
    """Scores of -6e4, and NaN where the sequence has ended; a split that has no key beside them."""
    q = torch.ones(1, 1, 1, 16, device=device, dtype=dtype)
    k = torch.full((1, 1, 40, 16), -3.75e3)
    k[:, :, 5:] = NAN
    v = torch.where(torch.isnan(k), NAN, torch.arange(40.0)[:, None])
    k, v = (x.to(device=device, dtype=dtype) for x in (k, v))
    score = 16 * float(k[0, 0, 0, 0])  # bfloat16 rounds -3750
    o, lse = poisoned(flash_decoding, q, k, v, scale=1.0, kv_lens=[5], splits=3)
    assert (o - 2).abs().max() <= 2 * 2**-7
    assert np.abs(to64(lse) - (score + math.log(5))).max() <= 3e-7 * abs(score)


def test_the_grid_lies_on_axis_x(monkeypatch, device):
    """The y and z axes end at 65,535; x does not."""
    grids = []

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *args, **kwargs: None

    monkeypatch.setattr(decode, "decode_kernel", Recorder())
    monkeypatch.setattr(decode.merge, "merge_kernel", Recorder())
    monkeypatch.setattr(host, "decode_tiles", lambda *args: SMALL)
    q = torch.empty(1, 1, 1, 16, dtype=torch.float16, device=device).expand(300, 300, 3, 16)
    k = torch.empty(1, 1, 1, 16, dtype=torch.float16, device=device).expand(300, 300, 40, 16)
    flash_decoding(q, k, k, splits=2)
    assert grids == [(300 * 300 * 2,), (300 * 300 * 3 // 4,)]


@dtypes
def test_a_sequence_alone_and_in_a_batch_is_the_same_to_the_bit(dtype, problem, device):
    """With a fixed number of splits, whatever else is in the batch and however the pages lie."""
    rng = np.random.default_rng(0)
    lens = [50, 17, 0, 64]
    q, k, v = problem(rng, 4, 4, 2, 1, 64)
    on_device = tensors((q, k, v), dtype, device)
    together = flash_decoding(*on_device, kv_lens=lens, splits=3)
    k_cache, v_cache, table = paged(rng, k, v, 8, lens)
    caches = tensors((k_cache, v_cache), dtype, device)
    table = torch.from_numpy(table).to(device)
    in_pages = paged_attention(on_device[0], *caches, table, lens, splits=3)
    for b in range(4):
        one = slice(b, b + 1)
        alone = flash_decoding(*(x[one] for x in on_device), kv_lens=lens[one], splits=3)
        for x, y, z in zip(alone, together, in_pages, strict=True):
            assert torch.equal(x[0], y[b])
            assert torch.equal(x[0], z[b])


def test_the_number_of_splits():
    """Few when there are programs enough, many when there are not, and never one that leaves a split idle."""
    assert host.choose_splits(programs=1000, tiles=100, at_once=200) == 1
    assert host.choose_splits(programs=0, tiles=100, at_once=200) == 1
    assert host.choose_splits(programs=8, tiles=1, at_once=200) == 1
    assert host.choose_splits(programs=8, tiles=0, at_once=200) == 1
    for programs in 1, 8, 32, 150, 201, 300:
        for tiles in 2, 7, 64, 4000:
            for wave in 40, 132, 216, 264:
                splits = host.choose_splits(programs, tiles, wave)
                full = [
                    programs * n / (wave * math.ceil(programs * n / wave))
                    for n in range(1, host.MOST_SPLITS + 1)
                ]
                possible = [
                    n
                    for n in range(1, min(tiles, host.MOST_SPLITS) + 1)
                    if n == 1 or -(-tiles // n) < -(-tiles // (n - 1))
                ]
                assert splits in possible
                best = max(full[n - 1] for n in possible)
                assert full[splits - 1] >= 0.85 * best
                assert all(full[n - 1] < 0.85 * best for n in possible if n < splits)


def test_splits_are_chosen_from_the_card(problem, oracle, monkeypatch, device):
    q, k, v = tensors(problem(np.random.default_rng(0), 1, 2, 2, 1, 400), torch.float16, device)
    seen = []
    launch = decode.launch
    monkeypatch.setattr(decode, "launch", lambda *args: (seen.append(len(args[7])), launch(*args)))
    for multiprocessors in 1, 2, 8:
        monkeypatch.setattr(host, "multiprocessors", lambda device, n=multiprocessors: n)
        assert_right(poisoned(flash_decoding, q, k, v), q, k, v, oracle)
    # Two programs on 2 and on 4 places with 7 tiles of keys, then on 8 multiprocessors with 4 larger tiles.
    assert seen == [1, 2, 4]


def fp8_problem(rng, problem, device, lens, block, heads=6, kv_heads=2, kv_len=50, q_len=1):
    """q, an e4m3 cache on the device with its table, and k, v in float64 as the cache means them."""
    q, k, v = problem(rng, len(lens), heads, kv_heads, q_len, kv_len, kv_lens=lens)
    k_cache, v_cache, table = paged(rng, k, v, block, lens)
    bits = [fp8.quantize(x) for x in (k_cache, v_cache)]  # NaN stays NaN in unused slots
    dense = [fp8.dequantize(fp8.quantize(x)).astype(np.float64) for x in (k, v)]
    caches = [torch.from_numpy(x).view(torch.float8_e4m3fn).to(device) for x in bits]
    return q, *dense, *caches, torch.from_numpy(table).to(device)


@dtypes
@pytest.mark.parametrize("kind", ["none", "number", "tensor"])
def test_fp8_cache(dtype, kind, problem, oracle, device):
    lens = [50, 0, 17]
    q, k, v, k_cache, v_cache, table = fp8_problem(np.random.default_rng(0), problem, device, lens, 8)
    k_factor, v_factor = {"none": (1, 1), "number": (0.5, 3.0)}.get(
        kind, (np.array([0.25, 2]), np.array([4, 0.5]))
    )
    given_descales = {"none": (None, None), "number": (0.5, 3.0)}.get(kind) or [
        torch.tensor(x, device=device) for x in (k_factor, v_factor)
    ]
    k, v = (x * np.reshape(factor, (-1, 1, 1)) for x, factor in ((k, k_factor), (v, v_factor)))
    q, k, v = (
        torch.from_numpy(q).to(device, dtype),
        torch.from_numpy(k).to(device),
        torch.from_numpy(v).to(device),
    )
    k_descale, v_descale = given_descales
    got = poisoned(
        paged_attention, q, k_cache, v_cache, table, lens, k_descale=k_descale, v_descale=v_descale, splits=2
    )
    k, v = k.to(dtype), v.to(dtype)  # exact: e4m3 numbers and powers of two, but for V times 3
    if kind == "number":
        o, lse = got
        got = (o.float() / 3).to(dtype), lse
        v = (v.float() / 3).to(dtype)
    assert_right(got, q, k, v, oracle, kv_lens=lens)


def test_changing_a_descale_changes_the_result(problem, device):
    lens = [50]
    q, _, _, k_cache, v_cache, table = fp8_problem(np.random.default_rng(0), problem, device, lens, 16)
    q = torch.from_numpy(q).to(device, torch.float16)
    base_o, base_lse = paged_attention(q, k_cache, v_cache, table, lens)
    o, lse = paged_attention(q, k_cache, v_cache, table, lens, k_descale=2.0)
    assert (lse - base_lse).abs().min() > 1e-3
    o, lse = paged_attention(q, k_cache, v_cache, table, lens, v_descale=2.0)
    assert torch.equal(o, 2 * base_o)
    assert torch.equal(lse, base_lse)


def test_both_ways_to_read_e4m3_agree(device):
    """The card's own conversion, and the one for cards that have none."""
    import triton
    import triton.language as tl

    @triton.jit
    def convert(p_own, p_bits, p_a, p_b):
        i = tl.arange(0, 256)
        tl.store(p_a + i, tl.load(p_own + i).to(tl.float32))
        tl.store(p_b + i, online.from_e4m3(tl.load(p_bits + i)).to(tl.float32))

    bits = torch.arange(256, dtype=torch.uint8, device=device)
    own, ours = torch.empty(256, device=device), torch.empty(256, device=device)
    convert[(1,)](bits.view(torch.float8_e4m3fn), bits, own, ours)
    expected = torch.from_numpy(fp8.VALUES).to(device)
    nan = torch.isnan(expected)
    assert torch.equal(ours[~nan], expected[~nan])
    assert torch.isnan(ours[nan]).all()
    assert torch.equal(own[~nan], expected[~nan])  # the interpreter's conversion has no NaN


def test_strides_of_cache_and_table(problem, oracle, device):
    """K and V as views into one fused cache, with heads outside slots; a table that is a slice of a larger one."""
    rng = np.random.default_rng(0)
    arrays = problem(rng, 2, 4, 2, 1, 40)
    q, k, v = tensors(arrays, torch.float16, device)
    lens = [40, 21]
    k_cache, v_cache, table = paged(rng, *arrays[1:], 8, lens)
    fused = torch.from_numpy(np.stack([k_cache, v_cache], 1).swapaxes(2, 3)).half().to(device)
    k_view, v_view = fused[:, 0].transpose(1, 2), fused[:, 1].transpose(1, 2)
    wide = torch.full((4, 3 * table.shape[1]), -1, dtype=torch.int64, device=device)
    wide[::2, 1::3] = torch.from_numpy(table).to(device).long()
    got = poisoned(paged_attention, q, k_view, v_view, wide[::2, 1::3], lens, splits=2)
    assert_right(got, q, k, v, oracle, kv_lens=lens)


@pytest.mark.parametrize("which", [0, 1])
def test_a_page_beyond_2_to_the_31(which, problem, oracle, device):
    """A page's number times its stride does not fit in 32 bits."""
    rng = np.random.default_rng(0)
    q, k, v = problem(rng, q_len=1, kv_len=16)
    q, k, v = tensors((q, k, v), torch.float16, device)
    caches = [x.transpose(1, 2) for x in (k, v)]  # one page of 16 slots
    page, blocks = 480 * 576, 7800
    elements = page * blocks
    if GPU:
        room = torch.empty(elements, dtype=torch.float16, device=device)
    else:  # address space, not memory: only the pages that are written exist
        try:
            pages = mmap.mmap(
                -1, 2 * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
            )  # NORESERVE
        except OSError as error:
            pytest.skip(f"no address space of {2 * elements} bytes: {error}")
        room = torch.frombuffer((ctypes.c_char * (2 * elements)).from_buffer(pages), dtype=torch.float16)
    wide = room.as_strided((blocks, 16, 1, 16), (page, 16, 16, 1))
    wide[blocks - 1] = caches[which][0]
    caches[which] = wide
    other = caches[1 - which]
    caches[1 - which] = other.expand(blocks, *other.shape[1:])
    assert_right(paged_attention(q, *caches, [[blocks - 1]], [16]), q, k, v, oracle)


def test_wrong_entries_and_lengths_on_a_gpu_are_no_wild_reads(monkeypatch, device):
    """As if their values were not known before the launch."""
    cache = torch.ones(3, 8, 1, 16, device=device)
    q = torch.ones(2, 1, 1, 16, device=device)
    monkeypatch.setattr(
        host,
        "check_integers",
        lambda name, x, device: (torch.as_tensor(x, dtype=torch.int32, device=device), None),
    )
    table = [[2**30, -(2**30)], [-1, 3]]
    o, lse = paged_attention(q, cache, cache, table, [2**30, -5])
    assert torch.isfinite(o).all()
    assert lse[0].item() == pytest.approx(4 + math.log(16), rel=1e-5)
    assert torch.isneginf(lse[1]).all()


@pytest.mark.parametrize("shape", [(0, 2, 1), (2, 0, 1), (2, 2, 0)])
def test_empty_tensors(shape, device):
    batch, heads, q_len = shape
    q = torch.ones(batch, heads, q_len, 16, device=device)
    cache = torch.ones(3, 8, 1, 16, device=device)
    o, lse = paged_attention(q, cache, cache, torch.zeros(batch, 2, dtype=torch.int32), [3] * batch)
    assert o.shape == (batch, heads, q_len, 16)
    assert lse.shape == (batch, heads, q_len)


@pytest.mark.parametrize("splits", [1, 3])
def test_no_cache_at_all(splits, device):
    q = torch.ones(2, 2, 1, 16, device=device)
    for blocks, entries in (0, 3), (3, 0), (0, 0):
        cache = torch.ones(blocks, 8, 1, 16, device=device)
        table = torch.full((2, entries), -1, dtype=torch.int32)
        o, lse = poisoned(paged_attention, q, cache, cache, table, [0, 0], splits=splits)
        assert not o.any()
        assert torch.isneginf(lse).all()


@needs_gpu
def test_memory_is_the_outputs_and_the_partial_results(device):
    n, splits = 2**20, 16
    q = torch.randn(1, 8, 1, 128, device=device, dtype=torch.float16)
    k = torch.randn(1, 1, n, 128, device=device, dtype=torch.float16)
    flash_decoding(q, k, k, splits=splits)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = flash_decoding(q, k, k, splits=splits)
    beyond = torch.cuda.max_memory_allocated() - before - o.nbytes - lse.nbytes
    assert beyond <= splits * 8 * 129 * 4 + 2048  # the allocator rounds each block up to 512 bytes


@needs_gpu
def test_no_call_waits_for_the_gpu(device):
    """With the table and lengths on the GPU a call can be captured in a CUDA graph."""
    q = torch.randn(2, 4, 1, 16, device=device, dtype=torch.float16)
    cache = torch.randn(9, 16, 2, 16, device=device, dtype=torch.float16)
    table = torch.arange(8, device=device, dtype=torch.int32).view(2, 4)
    lens = torch.tensor([64, 7], device=device, dtype=torch.int32)
    expected, _ = paged_attention(q, cache, cache, table, lens, splits=3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = paged_attention(q, cache, cache, table, lens, splits=3)
    o.fill_(NAN)
    graph.replay()
    assert torch.equal(o, expected)


@needs_gpu
def test_a_merge_that_starts_early_waits_for_the_last_split(monkeypatch, device):
    """The scratch memory holds what the call before left there: values of the other sign."""
    q = torch.randn(1, 8, 1, 128, device=device, dtype=torch.float16)
    k, v = torch.randn(2, 1, 1, 2**18, 128, device=device, dtype=torch.float16)
    signs = [v, -v]
    with monkeypatch.context() as patch:
        patch.setattr(host, "starts_early", lambda device: False)
        expected = [flash_decoding(q, k, x, splits=128)[0] for x in signs]
    for _ in range(20):
        for x, right in zip(signs, expected, strict=True):
            assert torch.equal(flash_decoding(q, k, x, splits=128)[0], right)


GOOD = {
    "q": torch.ones(2, 4, 1, 8), "k_cache": torch.ones(5, 16, 2, 8), "v_cache": torch.ones(5, 16, 2, 6),
    "block_table": [[0, 1, 4], [3, -1, -1]], "seq_lens": [33, 16],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": [[0, 1, 5], [3, -1, -1]]}, r"block_table\[0, 2\] is 5, .* blocks are 0 to 4"),
        ({"block_table": [[0, 1, 4], [-1, -1, -1]]}, r"block_table\[1, 0\] is -1, and 16 tokens use it"),
        ({"seq_lens": [49, 16]}, r"seq_lens must lie between 0 and 48, got \[49, 16\]"),
        ({"seq_lens": [33]}, r"seq_lens must have shape \(2,\)"),
        ({"seq_lens": None}, "seq_lens must hold integers, got None"),
        ({"seq_lens": [33.0, 16.0]}, "seq_lens must hold integers"),
        ({"block_table": [[0, 1, 4]]}, r"block_table must have shape \(batch, max_blocks\) with batch 2"),
        ({"q": torch.ones(4, 1, 8)}, "q must have 4 axes"),
        ({"q": torch.ones(2, 3, 1, 8)}, "multiple of the heads of k and v, got 3 and 2"),
        ({"k_cache": torch.ones(5, 16, 2, 7)}, "k_cache must have the head_dim of q, 8, got 7"),
        ({"k_cache": torch.ones(5, 16, 2, 8).half()}, "k_cache must have the dtype and device of q"),
        ({"k_cache": torch.ones(4, 16, 2, 8)}, "k_cache and v_cache must agree"),
        ({"k_cache": torch.ones(5, 16, 2, 8).to(torch.float8_e4m3fn)}, "v_cache must be torch.float8_e4m3fn"),
        (
            {"k_cache": torch.ones(5, 16, 2, 8).to(torch.float8_e5m2)},
            "k_cache must be float16, bfloat16 or float32",
        ),
        (
            {"k_descale": 2.0},
            "k_descale belongs to a cache of torch.float8_e4m3fn, and this one is torch.float32",
        ),
        ({"splits": 0}, "splits must be an integer of at least 1, got 0"),
        ({"window": 0}, "window must be an integer of at least 1"),
        ({"scale": math.inf}, "scale must be a finite number or None"),
    ],
)
def test_refusals_come_before_any_launch(change, message, monkeypatch, device):
    def arguments(given):
        return {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in given.items()}

    paged_attention(**arguments(GOOD))
    monkeypatch.setattr(decode, "launch", lambda *args, **kwargs: pytest.fail("launched"))
    with pytest.raises(ValueError, match=message):
        paged_attention(**arguments(GOOD | change))


@pytest.mark.parametrize(
    "descale", [torch.ones(3), torch.ones(1, 2), torch.ones(2, dtype=torch.int32), math.nan, "x"]
)
def test_descales_that_do_not_fit(descale, device):
    caches = {n: GOOD[n].to(torch.float8_e4m3fn).to(device) for n in ("k_cache", "v_cache")}
    with pytest.raises(ValueError, match="v_descale must be a"):
        paged_attention(**GOOD | caches | {"q": GOOD["q"].to(device), "v_descale": descale})
