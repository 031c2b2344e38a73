"""What happens before a launch: the arguments are checked, and tiles are chosen that the card can hold."""

from typing import NamedTuple

import torch
import triton

from kernels.reference.arguments import check_dense_shapes

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 256
LARGEST_GRID = 2**31 - 1


class Tiles(NamedTuple):
    """One configuration of a kernel: queries and keys a tile, warps a program, stages of loads in flight."""

    block_m: int
    block_n: int
    warps: int
    stages: int


# (largest head_dim served, bytes an element) -> tiles, where shared memory allows.
TILES = {
    (64, 2): Tiles(128, 64, 4, 3),
    (128, 2): Tiles(128, 64, 8, 3),
    (256, 2): Tiles(64, 64, 8, 2),
    (64, 4): Tiles(64, 32, 8, 2),
    (128, 4): Tiles(32, 16, 4, 2),
    (256, 4): Tiles(16, 32, 8, 2),
}


def check_tensors(q, k, v, kernel):
    """ValueError unless q, k, v are tensors that `kernel` can work on."""
    for name, x in ("q", q), ("k", k), ("v", v):
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16, bfloat16 or float32, got {x.dtype}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name} must have the dtype and device of q, {q.dtype} on {q.device}, "
                f"got {x.dtype} on {x.device}"
            )
    check_dense_shapes(q.shape, k.shape, v.shape)
    for name, x in ("q", q), ("v", v):
        if x.shape[3] > LARGEST_HEAD_DIM:
            raise ValueError(f"{name} must have a head_dim of at most {LARGEST_HEAD_DIM}, got {x.shape[3]}")
    if not q.is_cuda and not interpreted(kernel):
        raise ValueError(
            f"q is on {q.device}: compiled kernels need a GPU tensor; to run them on a CPU, "
            "set TRITON_INTERPRET=1 before Triton is first imported"
        )


def check_lengths(name, lens, batch, most, device):
    """Lengths (batch,) as int32 on `device`, or None. Reading their values waits for the GPU."""
    if lens is None:
        return None
    try:
        lens = torch.as_tensor(lens)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must hold integers, got {lens!r}") from None
    if lens.dtype.is_floating_point or lens.dtype.is_complex or lens.dtype == torch.bool:
        raise ValueError(f"{name} must hold integers, got {lens.dtype}")
    if tuple(lens.shape) != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), one length a sequence, got {tuple(lens.shape)}")
    values = lens.tolist()
    if any(n < 0 or n > most for n in values):
        raise ValueError(f"{name} must lie between 0 and {most}, got {values}")
    return lens.to(device=device, dtype=torch.int32).contiguous()


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


def tiles_for(q, k, v):
    """Tiles for these tensors on their device."""
    return choose_tiles(
        q.shape[3], v.shape[3], q.element_size(), shared_memory(q.device), aligned(k) and aligned(v)
    )


def choose_tiles(head_dim, v_dim, itemsize, shared_memory, pipelined=True):
    """Tiles for these head dimensions that need at most `shared_memory` bytes.

    Stages are given up first, then keys a tile, then queries a tile. `pipelined`: K and V can be loaded ahead
    of their use, which takes 16-byte pieces.
    """
    block_d, block_dv = padded(head_dim), padded(v_dim)
    widest = max(block_d, block_dv)
    tiles = next(tiles for (dim, size), tiles in TILES.items() if size == itemsize and widest <= dim)
    if itemsize == 2 and not pipelined:
        # Without pipelining, the ptxas of CUDA 12.8 (in Triton 3.6 and 3.7) can mix up the descriptors
        # of Hopper's wgmma between the two loops over keys: wrong numbers, or a wild read. Fewer than 64 rows
        # keep Triton to mma.sync, which has no descriptors.
        tiles = tiles._replace(block_m=32, warps=4)
    while shared_bytes(tiles, block_d, block_dv, itemsize) > shared_memory:
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
    """Bytes of shared memory of one program: queries, probabilities, and K and V once a stage."""
    query = tiles.block_m * block_d
    probabilities = tiles.block_m * tiles.block_n
    keys_and_values = tiles.stages * tiles.block_n * (block_d + block_dv)
    return itemsize * (query + probabilities + keys_and_values)


def shared_memory(device):
    """Bytes of shared memory that one program may have on this device."""
    if device.type != "cuda":
        return 2**20  # the interpreter has no such limit
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
