"""Where a program finds its work: its head, its tile, and its sequence in a padded or a packed batch."""

import triton
import triton.language as tl

HEADS_TOGETHER: tl.constexpr = tl.constexpr(8)


@triton.jit
def find_head(tiles, REVERSED: tl.constexpr):
    """(head, number of the tile) of this program; every head has `tiles` of them, in this order or REVERSED.

    Everything lies on grid axis 0, the only one that can pass 65,535. A few heads take turns: their keys fit in
    the L2, and where tiles differ in work, which causal does to them, the last to start are the smallest of
    several heads and not one head's whole range, so that the multiprocessors finish together.
    """
    program = tl.program_id(0)
    first = program // tiles // HEADS_TOGETHER * HEADS_TOGETHER
    width = tl.minimum(tl.num_programs(0) // tiles - first, HEADS_TOGETHER)
    turn = program - first * tiles
    tile = turn // width
    if REVERSED:
        tile = tiles - 1 - tile
    return first + turn % width, tile


@triton.jit
def sequence(p_lens, batch, batches, length, PACKED: tl.constexpr):
    """(first token, real length, rows there) of a sequence.

    PACKED: p_lens holds cu_seqlens (batches + 1,), `length` is the number of tokens, and the tokens that
    belong to none form one more sequence, number `batches`, of real length 0. Otherwise p_lens holds lengths
    (batches,), or is None where every sequence fills its tensor, and there are `length` rows.
    Values out of range are clamped: a wrong length is never a wild read.
    """
    if PACKED:
        exists = batch < batches
        start = tl.minimum(tl.maximum(tl.load(p_lens + batch), 0), length)
        end = tl.load(p_lens + batch + 1, mask=exists, other=0)
        rows = tl.where(exists, tl.minimum(end, length), length) - start
        rows = tl.maximum(rows, 0)
        real = tl.where(exists, rows, 0)
    else:
        start = 0
        rows = length
        real = length
        if p_lens is not None:
            real = tl.minimum(tl.maximum(tl.load(p_lens + batch), 0), length)
    return start, real, rows


@triton.jit
def find_tile(i, p_lens, batches, length, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """(sequence, tile within it) of tile number i; there are `host.count_tiles` of them a head.

    PACKED: sequence b has the numbers from cu_seqlens[b] // BLOCK + b on, which are enough for its tiles
    wherever it starts, so that nobody needs to know the longest sequence: a binary search finds b.
    """
    if PACKED:
        low = 0
        high = batches
        while low < high:
            middle = (low + high + 1) // 2
            if tl.load(p_lens + middle) // BLOCK + middle <= i:
                low = middle
            else:
                high = middle - 1
        batch = low
        tile = tl.maximum(i - (tl.load(p_lens + low) // BLOCK + low), 0)
    else:
        tiles = (length + BLOCK - 1) // BLOCK
        batch = i // tiles
        tile = i % tiles
    return batch, tile
