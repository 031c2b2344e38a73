"""Four ways to compute attention, shown to be one. Needs NumPy alone; takes about two seconds."""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

import argparse
import math
import sys

import numpy as np

from kernels.reference import (
    empty_state,
    finalize,
    flash_attention,
    flash_decoding,
    naive_attention,
    paged_attention,
    peak_bytes,
    step,
)

YES_NO = ("no", "yes")
EPS = np.finfo(np.float64).eps  # 2.2e-16
ULPS = 8
"""How far two forms may differ, in units of EPS times the largest |v|.

An output is a weighted mean of values, so the largest |v| is its scale. The four forms do the same arithmetic
in another order, and rounding is all that can tell them apart. The proven worst case (every rounding in the
same direction) is about a thousand such units and does not happen; in 300 random problems like those below
the largest difference was 2.7 units, and 8 leaves room for another BLAS.
"""


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m kernels", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of the random inputs (drawn afresh by default)")
    parser.add_argument(
        "--large", action="store_true", help="go on to N = 8192; naive alone needs 1.7 GB there"
    )
    args = parser.parse_args(argv)
    seed = np.random.SeedSequence(args.seed).entropy % 2**32 if args.seed is None else args.seed
    if seed < 0:
        parser.error(f"--seed must not be negative, got {seed}")
    rng = np.random.default_rng(seed)

    agrees = show_agreement(rng)
    show_memory(rng, [256, 512, 1024, 2048] + ([4096, 8192] if args.large else []))
    show_nan()
    if not agrees:
        print(
            f"\nThe four forms disagree: see the rows marked above. Repeat with --seed {seed}.",
            file=sys.stderr,
        )
        return 1
    print(f"\nAll four agree. The same run again: python -m kernels --seed {seed}")
    return 0


def show_agreement(rng, cases=8):
    print("1. Naive, tiled flash, paged and flash-decoding on random inputs (float64)\n")
    print("   batch  heads   q_len  kv_len  causal  tile q x k  block  splits   difference (o, lse)    bound")
    agrees = True
    for case in range(cases):
        batch, kv_heads, group = (int(rng.integers(1, 4)) for _ in range(3))
        kv_len, q_len = int(rng.integers(1, 500)), int(rng.integers(1, 120))
        head_dim, v_dim = (int(rng.choice([16, 40, 64])) for _ in range(2))
        tile_q, tile_k, block, tile = (int(rng.integers(8, 100)) for _ in range(4))
        splits = int(rng.integers(1, 9))
        causal = bool(case % 2)
        q = rng.standard_normal((batch, kv_heads * group, q_len, head_dim))
        k = rng.standard_normal((batch, kv_heads, kv_len, head_dim))
        v = rng.standard_normal((batch, kv_heads, kv_len, v_dim))
        kv_lens = rng.integers(0, kv_len + 1, batch)  # ragged, and now and then empty

        o, lse = naive_attention(q, k, v, causal=causal, kv_lens=kv_lens)
        others = [
            flash_attention(q, k, v, causal=causal, kv_lens=kv_lens, tile_q=tile_q, tile_k=tile_k),
            paged_attention(q, *paged(rng, k, v, block), kv_lens, causal=causal),
            flash_decoding(q, k, v, causal=causal, kv_lens=kv_lens, splits=splits, tile=tile),
        ]
        seen = ~np.isneginf(lse)
        bound = ULPS * EPS * np.abs(v).max()
        lse_bound = ULPS * EPS * max(1, np.abs(lse[seen]).max(initial=0))
        o_error = np.max([np.abs(other - o).max() for other, _ in others])
        lse_error = np.max([np.abs(other[seen] - lse[seen]).max(initial=0) for _, other in others])
        same_empty = all(np.array_equal(np.isneginf(other), ~seen) for _, other in others)
        good = bool(
            o_error <= bound and lse_error <= lse_bound and same_empty
        )  # NaN is no error below a bound
        agrees &= good
        print(
            f"   {batch:5}  {kv_heads * group:2} / {kv_heads}  {q_len:5}  {kv_len:6}  {YES_NO[causal]:>6}"
            f"  {f'{tile_q} x {tile_k}':>10}  {block:5}  {splits:6}   {o_error:10.1e}, {lse_error:7.1e}"
            f"    {bound:.1e}{'' if good else '  <-- DISAGREE'}"
        )
    print(
        f"\n   difference: the largest of the other three from naive. bound: {ULPS} eps max|v|, eps = 2.2e-16"
        f"\n   (for lse: {ULPS} eps max(1, |lse|)). Only rounding tells them apart."
    )
    return agrees


def paged(rng, k, v, block_size):
    """k, v (batch, kv_heads, kv_len, dim) dealt out to blocks in random order, NaN wherever no token lies."""
    batch, kv_heads, kv_len, _ = k.shape
    blocks = math.ceil(kv_len / block_size)
    table = rng.permutation(batch * blocks).reshape(batch, blocks)
    caches = []
    for x in (k, v):
        padded = np.full((batch, blocks * block_size, kv_heads, x.shape[3]), np.nan)
        padded[:, :kv_len] = x.swapaxes(1, 2)
        cache = np.empty((batch * blocks, block_size, kv_heads, x.shape[3]))
        cache[table] = padded.reshape(batch, blocks, block_size, kv_heads, -1)
        caches.append(cache)
    return *caches, table


def show_memory(rng, lengths, head_dim=64):
    print(
        "\n2. Peak memory beyond inputs and outputs, in KiB "
        f"(one head, N queries, N keys, head_dim {head_dim})\n"
    )
    print(f"   {'N':>6}  {'naive':>10}  {'flash':>10}  {'paged':>10}  {'decoding':>10}")
    peaks = []
    for n in lengths:
        q, k, v = rng.standard_normal((3, 1, 1, n, head_dim))
        k_cache, v_cache, table = paged(rng, k, v, 64)
        calls = [
            (naive_attention, (q, k, v), {}),
            (flash_attention, (q, k, v), {}),
            (paged_attention, (q, k_cache, v_cache, table, [n]), {}),
            (flash_decoding, (q, k, v), {"splits": 4}),
        ]
        row = []
        for function, positional, keywords in calls:
            (o, lse), peak = peak_bytes(function, *positional, **keywords)
            row.append(peak - o.nbytes - lse.nbytes)
        peaks.append(row)
        print(f"   {n:6}  " + "  ".join(f"{x / 1024:10,.0f}" for x in row))
    print()
    slopes = np.polyfit(np.log(lengths), np.log(peaks), 1)[0]
    remarks = [
        "every score exists at once",
        "one tile of queries meets one tile of keys",
        "one block at a time, but all N queries in hand",
        "one tile at a time, but all N queries in hand",
    ]
    for name, slope, remark in zip(("naive", "flash", "paged", "decoding"), slopes, remarks, strict=True):
        print(f"   {name:8}  N doubles: x {2**slope:.2f}, {in_words(slope):11} (slope {slope:.2f}): {remark}")
    print("   Paged and decoding serve one new query a sequence in practice, and then hold next to nothing.")


def in_words(slope):
    return ("constant", "linear", "quadratic")[min(2, max(0, round(slope)))]


def show_nan():
    print("\n3. A tile in which a query may see nothing: all its scores are -inf\n")
    s, v = np.full(4, -np.inf), np.ones((4, 2))
    with np.errstate(invalid="ignore"):
        m = np.maximum(-np.inf, s.max())
        p = np.exp(s - m)
        l = p.sum()
        o = p @ v
    print(f"   without a guard  m = {m}, s - m = -inf - (-inf), p = {p}, l = {l}, o = {o}")
    state = step(empty_state((), 2), s, v)
    print(
        f"   with the guard   m = {state.m}, s - 0 = -inf,            "
        f"p = {np.exp(s)}, l = {state.l}, o = {state.o}"
    )
    later = finalize(step(state, np.zeros(4), v))
    with np.errstate(invalid="ignore"):
        lost = np.exp(m - 0.0) * o + np.ones(4) @ v  # the next tile is fine; the damage is in o already
    print(f"   after a good tile of four ones: without {lost / 4}, with {later[0]}")
    print("   guard: subtract where(m == -inf, 0, m); m itself stays -inf: the state still says 'empty'.")


if __name__ == "__main__":
    sys.exit(main())
