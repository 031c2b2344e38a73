"""What happens before a launch: the arguments are checked, and tiles are chosen that the card can hold."""

import contextlib
import math
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.reference import arguments as reference
from kernels.reference.arguments import check_paged_shapes, check_window, finite_number, scale_or_default

FP8 = torch.float8_e4m3fn
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 256
LARGEST_GRID = 2**31 - 1


class Tiles(NamedTuple):
    """One configuration of a kernel: queries and keys a tile, warps a program, stages of loads in flight."""

    block_m: int
    block_n: int
    warps: int
    stages: int


# (largest head_dim served, bytes an element of q) -> tiles, where shared memory allows.
TILES = {
    (64, 2): Tiles(64, 128, 4, 2),
    (128, 2): Tiles(128, 64, 4, 2),
    (256, 2): Tiles(128, 64, 8, 2),
    (64, 4): Tiles(64, 32, 8, 2),
    (128, 4): Tiles(32, 16, 4, 2),
    (256, 4): Tiles(16, 32, 8, 2),
}
# The same for the two backward kernels. A program of the first keeps its queries, of the second its keys.
DQ_TILES = {
    (64, 2): Tiles(128, 64, 8, 3),
    (128, 2): Tiles(128, 64, 8, 3),
    (256, 2): Tiles(64, 32, 8, 2),
    (64, 4): Tiles(32, 32, 4, 1),
    (128, 4): Tiles(32, 16, 4, 1),
    (256, 4): Tiles(16, 16, 4, 1),
}
DKDV_TILES = {
    (64, 2): Tiles(128, 64, 4, 2),
    (128, 2): Tiles(64, 64, 4, 2),
    (256, 2): Tiles(32, 64, 8, 2),
    (64, 4): Tiles(32, 32, 4, 1),
    (128, 4): Tiles(16, 32, 4, 1),
    (256, 4): Tiles(16, 16, 4, 1),
}
# The same for decoding: block_m is the most, and smaller groups take less. Below 64: see `choose_tiles`.
DECODE_TILES = {
    (64, 2): Tiles(32, 64, 2, 5),
    (128, 2): Tiles(32, 64, 2, 5),
    (256, 2): Tiles(32, 32, 4, 3),
    (64, 4): Tiles(32, 32, 4, 2),
    (128, 4): Tiles(32, 32, 4, 2),
    (256, 4): Tiles(16, 32, 8, 2),
}
# And where there are too few programs for half of the card before they are split, so that each has a multiprocessor to
# itself, or enough for more than two on each: with one stage less keys are loaded once ahead and not twice, and four fit.
LONE_DECODE_TILES = DECODE_TILES | {(64, 2): Tiles(32, 128, 4, 5), (128, 2): Tiles(32, 128, 4, 5)}
CROWDED_DECODE_TILES = DECODE_TILES | {(64, 2): Tiles(32, 64, 2, 4), (128, 2): Tiles(32, 64, 2, 4)}
MOST_SPLITS = 128  # of the keys of a sequence; what the merge takes in at once


class Options(NamedTuple):
    """What a launch is told beside its tensors, all of it checked. score_mod, aux, q_lens, kv_lens: or None.
    packed: the lengths are cu_seqlens."""

    causal: bool
    window: int | None
    scale: float
    score_mod: object
    aux: object
    q_lens: torch.Tensor | None
    kv_lens: torch.Tensor | None
    packed: bool


def check_options(q, kv_len, *, causal, window, scale, score_mod, aux, q_lens, kv_lens, packed):
    """Options for q (batch, heads, q_len, head_dim) and kv_len keys; ValueError if one does not fit."""
    window = check_window(window)
    if window is not None and window >= q.shape[2] + kv_len:
        window = None  # hides nothing
    if score_mod is None and aux is not None:
        raise ValueError("aux is what a score_mod reads, and there is no score_mod")
    if score_mod is not None and not isinstance(score_mod, triton.runtime.KernelInterface):
        raise ValueError(
            "score_mod must be a @triton.jit function (score, batch, head, q_index, kv_index, aux) or None, "
            f"got {score_mod!r}"
        )
    for x in aux if isinstance(aux, tuple) else (aux,):
        if isinstance(x, torch.Tensor) and x.device != q.device:
            raise ValueError(f"aux must be on the device of q, {q.device}, got {x.device}")
    return Options(
        bool(causal), window, scale_or_default(scale, q.shape[3]), score_mod, aux, q_lens, kv_lens, packed
    )


def check_tensors(kernel, dtypes=DTYPES, **tensors):
    """ValueError unless all are tensors that `kernel` can work on, with the dtype and device of the first."""
    first_name, first = next(iter(tensors.items()))
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if x.dtype not in dtypes:
            *names, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
            accepted = f"{', '.join(names)} or {last}" if names else last
            raise ValueError(f"{name} must be {accepted}, got {x.dtype}")
        if x.dtype != first.dtype or x.device != first.device:
            raise ValueError(
                f"{name} must have the dtype and device of {first_name}, {first.dtype} on {first.device}, "
                f"got {x.dtype} on {x.device}"
            )
    if not runs_on(kernel, first.device):
        raise ValueError(
            f"{first_name} is on {first.device}: compiled kernels need a GPU tensor; to run them on a CPU, "
            "set TRITON_INTERPRET=1 before Triton is first imported"
        )


def check_cache(kernel, **tensors):
    """ValueError unless q, k and v are tensors that `kernel` can work on: k and v have the dtype of q, or both
    are float8_e4m3fn."""
    (_, q), (k_name, k), (v_name, v) = tensors.items()
    if isinstance(k, torch.Tensor) and k.dtype == FP8 and isinstance(v, torch.Tensor):
        check_tensors(kernel, q=q)
        for name, x in (k_name, k), (v_name, v):
            if x.dtype != FP8 or x.device != q.device:
                raise ValueError(
                    f"{name} must be {FP8} on {q.device}, as {k_name} is, got {x.dtype} on {x.device}"
                )
    else:
        check_tensors(kernel, **tensors)


def check_table(kernel, block_table, seq_lens, q, k_cache, v_cache, window):
    """block_table as an int32 tensor on the device of q, any strides, once all shapes are checked; and what it
    says, where that can be known without waiting for the GPU."""
    check_cache(kernel, q=q, k_cache=k_cache, v_cache=v_cache)
    block_table, entries = check_integers("block_table", block_table, q.device)
    _, lens = check_integers("seq_lens", seq_lens, q.device)
    check_paged_shapes(q.shape, k_cache.shape, v_cache.shape, block_table.shape)
    if entries is not None and lens is not None:
        reference.check_table(
            np.array(entries, np.int64).reshape(block_table.shape), lens, k_cache.shape, q.shape[2],
            check_window(window),
        )  # fmt: skip
    return block_table


def check_descale(name, descale, cache):
    """A float32 tensor (kv_heads,) on the device of the cache (.., .., kv_heads, dim), or None."""
    if descale is None:
        return None
    if cache.dtype != FP8:
        raise ValueError(f"{name} belongs to a cache of {FP8}, and this one is {cache.dtype}")
    kv_heads = cache.shape[2]
    if not isinstance(descale, torch.Tensor):
        descale = finite_number(name, descale, f" or a tensor ({kv_heads},)")
        return torch.full((kv_heads,), descale, dtype=torch.float32, device=cache.device)
    if (
        tuple(descale.shape) != (kv_heads,)
        or descale.device != cache.device
        or not descale.is_floating_point()
    ):
        raise ValueError(
            f"{name} must be a number or a tensor of floats of shape ({kv_heads},) on {cache.device}, "
            f"got {descale.dtype} of shape {tuple(descale.shape)} on {descale.device}"
        )
    return descale.to(torch.float32).contiguous()


def check_head_dims(q, v, q_name="q", v_name="v"):
    for name, x in (q_name, q), (v_name, v):
        if x.shape[-1] > LARGEST_HEAD_DIM:
            raise ValueError(f"{name} must have a head_dim of at most {LARGEST_HEAD_DIM}, got {x.shape[-1]}")


def check_integers(name, x, device):
    """(x as an int32 tensor on `device`, its values as a list). The values of a tensor on the GPU
    are None: to read them would make every call wait, and could not be captured in a CUDA graph."""
    try:
        x = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must hold integers, got {x!r}") from None
    if (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool) and x.numel():
        raise ValueError(f"{name} must hold integers, got {x.dtype}")
    return x.to(device=device, dtype=torch.int32), None if x.is_cuda else x.tolist()


def check_lengths(name, lens, batch, most, device):
    """Lengths (batch,) as int32 on `device`, or None."""
    if lens is None:
        return None
    lens, values = check_integers(name, lens, device)
    if tuple(lens.shape) != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), one length a sequence, got {tuple(lens.shape)}")
    if values is not None and any(n < 0 or n > most for n in values):
        raise ValueError(f"{name} must lie between 0 and {most}, got {values}")
    return lens.contiguous()


def check_cu_seqlens(name, cuts, total, device):
    """cu_seqlens (batch + 1,) as int32 on `device`."""
    cuts, values = check_integers(name, cuts, device)
    if cuts.ndim != 1 or len(cuts) == 0:
        raise ValueError(f"{name} must have shape (batch + 1,), got {tuple(cuts.shape)}")
    if values is not None and (values[0] != 0 or values != sorted(values) or values[-1] > total):
        raise ValueError(f"{name} must rise from 0 to at most {total}, got {values}")
    return cuts.contiguous()


def as_dense(x, batch):
    """A packed tensor (tokens, heads, ...) as kernels take it: (batch, heads, tokens, ...), the same tokens for
    every sequence, which then finds its own through cu_seqlens."""
    tokens, heads, *rest = x.stride()
    return x.as_strided((batch, x.shape[1], x.shape[0], *x.shape[2:]), (0, heads, tokens, *rest))


def count_tiles(batch, length, block, packed):
    """How many tiles of `block` rows a head has: see `sequences.find_tile`."""
    return length // block + batch + 1 if packed else triton.cdiv(length, block) * batch


def check_grid(name, programs):
    if programs > LARGEST_GRID:
        raise ValueError(f"{name} is too large for one launch: {programs} programs, at most {LARGEST_GRID}")
    return programs


def on_device(x):
    """A context in which launches go to the device of x."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def compute_dtype(q, kernel):
    """The dtype of the products: of q, and float16 for float8, every number of which it holds. The interpreter's tl.dot multiplies the raw bits of bfloat16: there, tiles
    become float32 when loaded."""
    if q.dtype == torch.bfloat16 and interpreted(kernel):
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}.get(q.dtype, tl.float16)


def runs_on(kernel, device):
    return device.type == "cuda" or interpreted(kernel)


def interpreted(kernel):
    """Whether Triton's interpreter runs this kernel: TRITON_INTERPRET decided when it was defined."""
    return not isinstance(kernel, triton.runtime.JITFunction)


def padded(dim):
    """The tile that holds a head_dim: a power of two, 16 at least (what tl.dot takes)."""
    return max(16, triton.next_power_of_2(dim))


def aligned(x):
    """Whether a kernel can load x (batch, heads, length, dim) in pieces of 16 bytes, as Triton sees it."""
    *outer, last = x.stride()
    return last == 1 and all(s % 16 == 0 for s in outer) and x.data_ptr() % 16 == 0 and x.shape[3] % 8 == 0


def folds_scale(options, descales):
    """Whether the softmax step can scale the scores: max(s) * scale is the maximum of s * scale for a positive
    scale that is known here, and -inf * scale is -inf if it doesn't vanish in float32."""
    return options.score_mod is None and descales is None and options.scale > 1e-30


def boxes(x, rows, options):
    """x (batch, heads, length, dim) as Hopper's copy engine (TMA) takes it, in boxes of `rows` rows of one head;
    None where the card has no such engine, or where Triton has to see to x itself on its way to the products.

    One thread asks for a whole tile, and no other has addresses to compute. What of a box lies outside of x is 0.
    """
    axes = box_axes(x, options)
    return axes and TensorDescriptor(x, *axes, [1, 1, rows, padded(x.shape[3])])


def box_axes(x, options):
    """(shape, strides) of x for `boxes`, or None."""
    if x.element_size() != 2 or options.score_mod is not None or not has_boxes(x.device) or not aligned(x):
        return None
    shape = (1, *x.shape[1:]) if options.packed else x.shape
    # Along an axis of size 1 nobody steps; torch may call such a stride anything.
    strides = [stride if size > 1 else 16 for size, stride in zip(shape, x.stride(), strict=True)]
    if 0 in shape or min(strides) <= 0:
        return None
    return list(shape), [*strides[:3], 1]


def is_hopper(device):
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def has_boxes(device):
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def forward_tiles(q, k, v, score_mod=None):
    """Tiles of the forward kernel for these tensors on their device."""
    # What a score_mod hides is taken out of V in registers, on its way to the products.
    # So is float8, to be converted.
    direct = aligned(k) and aligned(v) and score_mod is None and k.dtype != FP8
    return choose_tiles(
        TILES, q.shape[3], v.shape[3], max(2, q.element_size()), shared_memory(q.device), direct
    )


def backward_tiles(q, k, v, do):
    """Tiles of the two backward kernels for these tensors on their device: (dq, dk and dv)."""
    direct = all(aligned(x) for x in (q, k, v, do))
    found = []
    for table in DQ_TILES, DKDV_TILES:
        tiles = choose_tiles(
            table, q.shape[3], v.shape[3], q.element_size(), shared_memory(q.device), direct, backward_bytes
        )
        if q.element_size() == 2 and not direct:  # keys are rows of products here: see `choose_tiles`
            tiles = tiles._replace(block_n=min(tiles.block_n, 32))
        found.append(tiles)
    return tuple(found)


def decode_tiles(q, k_cache, v_cache, paged, table=DECODE_TILES):
    """Tiles of the decode kernel, whatever the batch: rows enough for a group of query heads, where that is not too many."""
    tiles = choose_tiles(
        table, q.shape[3], v_cache.shape[3], q.element_size(), shared_memory(q.device),
        need=paged_bytes if paged else shared_bytes,
    )  # fmt: skip
    rows = q.shape[1] // k_cache.shape[2] * q.shape[2]
    return tiles._replace(block_m=min(tiles.block_m, padded(rows)))


def decode_plan(q, k_cache, v_cache, kv_len, paged):
    """(tiles, splits) that fill the card, for sequences of up to kv_len keys."""
    tiles, at_once = decode_tiles(q, k_cache, v_cache, paged), 2 * multiprocessors(q.device)
    rows = q.shape[1] // k_cache.shape[2] * q.shape[2]
    programs = triton.cdiv(rows, tiles.block_m) * k_cache.shape[2] * q.shape[0]
    if 4 * programs <= at_once:
        tiles, at_once = decode_tiles(q, k_cache, v_cache, paged, LONE_DECODE_TILES), at_once // 2
    elif programs > at_once:
        tiles, at_once = decode_tiles(q, k_cache, v_cache, paged, CROWDED_DECODE_TILES), 2 * at_once
    return tiles, choose_splits(programs, triton.cdiv(kv_len, tiles.block_n), at_once)


def choose_tiles(table, head_dim, v_dim, itemsize, shared_memory, direct=True, need=None):
    """Tiles for these head dimensions that need at most `shared_memory` bytes, by `need` (`shared_bytes`).

    Stages are given up first, then keys a tile, then queries a tile. `direct`: K and V go from memory to the
    products untouched, in 16-byte pieces, so that they can be loaded ahead of their use.
    """
    need = need or shared_bytes
    block_d, block_dv = padded(head_dim), padded(v_dim)
    widest = max(block_d, block_dv)
    tiles = next(tiles for (dim, size), tiles in table.items() if size == itemsize and widest <= dim)
    if itemsize == 2 and not direct:
        # Without pipelining, the ptxas of CUDA 12.8 (in Triton 3.6 and 3.7) can mix up the descriptors
        # of Hopper's wgmma between the two loops over keys: wrong numbers, or a wild read. Fewer than 64 rows
        # keep Triton to mma.sync, which has no descriptors.
        tiles = tiles._replace(block_m=min(tiles.block_m, 32), warps=4)
    while need(tiles, block_d, block_dv, itemsize) > shared_memory:
        if tiles.stages > 1:
            tiles = tiles._replace(stages=tiles.stages - 1)
        elif tiles.block_n > 16:
            tiles = tiles._replace(block_n=tiles.block_n // 2)
        elif tiles.block_m > 16:
            tiles = tiles._replace(block_m=tiles.block_m // 2)
        else:
            break  # the smallest there is; Triton says so if even that is too large
    return tiles


def shared_bytes(tiles, block_d, block_dv, itemsize):
    """Bytes of shared memory of one program, at most: queries, and K and V once a stage. float32 products take
    the probabilities from there too; others have them in registers."""
    query = tiles.block_m * block_d
    keys_and_values = tiles.stages * tiles.block_n * (block_d + block_dv)
    probabilities = tiles.block_m * tiles.block_n if itemsize == 4 else 0
    return itemsize * (query + keys_and_values + probabilities)


def paged_bytes(tiles, block_d, block_dv, itemsize):
    """The same where a table says where the keys are: Triton spends every second stage on the table's entries, so
    that only half of the stages hold keys."""
    return shared_bytes(tiles._replace(stages=(tiles.stages + 1) // 2), block_d, block_dv, itemsize)


def backward_bytes(tiles, block_d, block_dv, itemsize):
    """The same for either backward kernel: two tiles that stay, two a stage, probabilities and their gradient. Without
    stages Triton may hold a tile twice, since it is read by rows and by columns."""
    kept = max(tiles.block_m, tiles.block_n) * (block_d + block_dv)
    passing = max(2, tiles.stages) * min(tiles.block_m, tiles.block_n) * (block_d + block_dv)
    probabilities = 2 * tiles.block_m * tiles.block_n if itemsize == 4 else 0
    return itemsize * (kept + passing + probabilities)


def choose_splits(programs, tiles, at_once):
    """Into how many parts to cut sequences of `tiles` tiles of keys, when `programs` programs serve them whole and the
    card runs `at_once` of them at a time.

    Programs run in waves of that many, and the last wave may be nearly empty. More splits fill it better but leave more
    to merge: the smallest number is taken whose waves are at least 85 % as full as the fullest. Numbers that only leave
    some splits without a tile are left out.
    """

    def full(splits):
        return programs * splits / (at_once * math.ceil(programs * splits / at_once))

    counts = [1] + [n for n in range(2, min(tiles, MOST_SPLITS) + 1) if -(-tiles // n) < -(-tiles // (n - 1))]
    if programs == 0:
        return 1
    best = max(full(n) for n in counts)
    return next(n for n in counts if full(n) >= 0.85 * best)


def multiprocessors(device):
    if device.type != "cuda":
        return 4  # the interpreter has none; a few, so that splits are used there too
    return torch.cuda.get_device_properties(device).multi_processor_count


def as_loaded(x):
    """x as a kernel loads it: float8 as bytes where the card cannot convert it (`online.from_e4m3` does)."""
    return x.view(torch.uint8) if x.dtype == FP8 and not converts_fp8(x.device) else x


def converts_fp8(device):
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def starts_early(device):
    """Can a kernel be launched while the one before it still runs (programmatic dependent launch)?"""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def shared_memory(device):
    """Bytes of shared memory that one program may have on this device."""
    if device.type != "cuda":
        return 2**20  # the interpreter has no such limit
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
