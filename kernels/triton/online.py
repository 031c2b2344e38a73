"""What every attention kernel shares: the online-softmax step, the mask, and which tiles need it.

The letters are those of `kernels.reference.state`: m running maximum, l running sum, o accumulator.
Inside a kernel m is in units of log 2 (exp2 is what the hardware has): the factor of the scores holds log2(e), and
`finish` converts to the natural log at the boundary.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOG_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def scores(
    products, batch, head, i_q, i_k, scale, aux, SCORE_MOD: tl.constexpr, FOLD_SCALE: tl.constexpr
):  # fmt: skip
    """Products of queries and keys as scores, changed by SCORE_MOD if there is one; under FOLD_SCALE they are not
    scaled, and `softmax_step` does it with its factor, in one instruction with the subtraction.

    The indices are those of tokens that exist: what lies at them in memory may be read.
    """
    if FOLD_SCALE:
        s = products
    elif SCORE_MOD is None:
        s = products * scale
    else:
        s = SCORE_MOD(products * scale, batch, head, i_q, i_k, aux)
    return s


@triton.jit
def softmax_step(m, l, o, s, b_v, factor):
    """Take in one tile of scores factor * s (M, N), -inf where masked, and values b_v (N, DV); return the state.

    m, l: (M,) float32; o: (M, DV) float32; factor > 0.
    """
    m, l, p, correction = weights(m, l, s, factor)
    o = o * correction[:, None]
    # "ieee": a float32 product is done in float32, not in TF32.
    # It changes nothing for float16 and bfloat16.
    o = tl.dot(p.to(b_v.dtype), b_v, o, input_precision="ieee")
    return m, l, o


@triton.jit
def weights(m, l, s, factor):
    """The step without its product: (m, l, weights p of this tile (M, N), what o so far is to be multiplied by).

    A row that has seen no key keeps m = -inf, and its shift is 0, for -inf - (-inf) is NaN.
    """
    m_new = tl.maximum(m, tl.max(s, 1) * factor)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    correction = tl.exp2(m - shift)
    p = tl.exp2(s * factor - shift[:, None])  # one fused multiply-add a score
    return m_new, l * correction + tl.sum(p, 1), p, correction


@triton.jit
def visible(i_q, i_k, q_len, kv_len, window, CAUSAL: tl.constexpr):
    """Which queries may see which keys: booleans in the broadcast shape of the indices i_q and i_k.

    Query i stands at key i + kv_len - q_len: the last query at the last key. Causal hides the keys after that
    place, `window` (None: no limit) those `window` or more away from it.
    """
    ahead = i_k - (i_q + (kv_len - q_len))
    seen = (i_q < q_len) & (i_k < kv_len)
    if CAUSAL:
        seen = seen & (ahead <= 0)
    if window is not None:
        seen = seen & (ahead < window) & (ahead > -window)
    return seen


@triton.jit
def key_range(first, last, q_len, kv_len, window, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    """The keys that the queries first .. last see: (begin, full, full_end, end), as `span`."""
    before = None
    after = None
    if window is not None:
        before = window - 1
        after = window - 1
    if CAUSAL:
        after = 0
    return span(first, last, kv_len - q_len, kv_len, before, after, BLOCK)


@triton.jit
def query_range(first, last, q_len, kv_len, window, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    """The queries that see the keys first .. last: (begin, full, full_end, end), as `span`."""
    before = None
    after = None
    if window is not None:
        before = window - 1
        after = window - 1
    if CAUSAL:
        before = 0
    return span(first, last, q_len - kv_len, q_len, before, after, BLOCK)


@triton.jit
def span(first, last, offset, length, before, after, BLOCK: tl.constexpr):
    """Item i sees the others from i + offset - before to i + offset + after (None: no limit) of 0 .. length - 1.

    For the items first .. last: none sees anything before `begin` or from `end` on, and between `full` and
    `full_end`, multiples of BLOCK, every one sees everything: these tiles need no mask. Three walks in tiles
    of BLOCK cover it all, the second without a mask: from `begin` rounded down to `full`, to `full_end`, to
    `end`. With last < first all of them are empty.
    """
    begin = 0
    full = 0
    end = length
    full_end = length
    if before is not None:
        begin = tl.maximum(first + offset - before, 0)
        full = tl.maximum(last + offset - before, 0)
    if after is not None:
        end = tl.minimum(last + offset + after + 1, length)
        full_end = tl.minimum(first + offset + after + 1, length)
    end = tl.where(first <= last, tl.maximum(end, 0), 0)
    full = (tl.minimum(full, end) + BLOCK - 1) // BLOCK * BLOCK
    full_end = tl.maximum(tl.minimum(tl.maximum(full_end, 0), end) // BLOCK * BLOCK, full)
    return begin, full, full_end, end


@triton.constexpr_function
def few(block):
    """How many items a masked tile takes where an unmasked one takes `block`. The masks and addresses of a whole
    tile would need more registers than the loop that does the work, and the fewer, the less of it is hidden."""
    return min(block, 32)


@triton.jit
def load_tile(pointers, in_dim, in_len, PADDED: tl.constexpr, MASKED: tl.constexpr, dtype: tl.constexpr):
    """What lies inside, and 0 elsewhere: whatever memory holds there, 0 * NaN would be NaN."""
    if PADDED and MASKED:
        b = tl.load(pointers, mask=in_dim & in_len, other=0.0)
    elif PADDED:
        b = tl.load(pointers, mask=in_dim, other=0.0)
    elif MASKED:
        b = tl.load(pointers, mask=in_len, other=0.0)
    else:
        b = tl.load(pointers)
    if b.dtype == tl.uint8:
        b = from_e4m3(b)
    return b.to(dtype)


@triton.jit
def load_box(boxes, batch, head, row, PACKED: tl.constexpr):
    """The tile of `host.boxes` that begins at this row: (rows, dim)."""
    if PACKED:
        batch = 0  # all sequences lie in one
    box = boxes.load([batch, head, row, 0])
    return box.reshape(box.shape[2], box.shape[3])


@triton.jit
def from_e4m3(bits):
    """float16 from the bits of e4m3 numbers, for cards that have no instruction for it. Shifted into place they
    are a float16 whose exponent counts from 8 lower."""
    wide = bits.to(tl.uint16)
    b = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), b)


@triton.jit
def drop_unseen(b_v, s):
    """Values (N, DV) with 0 for the keys that no row of s (M, N) sees: what a SCORE_MOD hides from all the
    queries of a tile may hold NaN."""
    return tl.where((tl.max(s, 0) > float("-inf"))[:, None], b_v, 0.0)


@triton.jit
def finish(m, l, o, real):
    """(output, lse) of a state: o / l and the natural log of the sum of exp(score).

    `real`: (M,) booleans, the rows that exist.
    Rows that saw no key, and rows that do not exist, give 0 and -inf.
    """
    seen = real & (l != 0.0)  # and not by m, which is -inf too where the only scores are NaN
    l = tl.where(seen, l, 1.0)
    o = tl.where(seen[:, None], o / l[:, None], 0.0)
    lse = tl.where(seen, (m + tl.log2(l)) * LOG_2, float("-inf"))
    return o, lse
