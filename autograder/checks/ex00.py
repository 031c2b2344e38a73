"""Exercise 00, start here: its checks, their inputs, and the mistakes that they recognise.

This file travels with the exercise, so it adds nothing up tile by tile and launches nothing: the truth is the plain product or
sum in float64, and what a mistake computes is written in closed form.

Shapes: `q (n_q, d)`, `k (n_k, d)`; weights `w (n_q, n)`, values `v (n, dv)`; vectors `(n,)`; square matrices `(n, n)`.
"""

import math

import numpy as np

from autograder.checks.core import FLOOR, Case, Check, budget
from autograder.contestant import Launch, Tensor

HINTS = {
    "scale": "Every number is too large by the same factor, the square root of d: divide by it.",
    "scale_d": "Every number is too small by the same factor: divide by the square root of d, not by d.",
    "transposed": "Rows and columns are exchanged: entry i, j belongs to query i and key j.",
    # Part 2 shows this one before the student has looked for the bug, so it does not name the bug.
    "dropped": "Some keys are missing from the sum. Compare the sizes of the cases that fail with those of the cases that pass.",
    "twice": "The last tile is whole, and begins before the one in front of it ends: the keys that are in both count twice.",
    "last_only": "Only the last tile is in the result. Each tile is to be added to what is there already.",
    "single": (
        "What was added while the sum was large is gone. float32 has 7 digits: in which type is the sum kept, and in which are w "
        "and v?"
    ),
    "one_block": (
        "Only the first block was written: every program did the same piece of work. tl.program_id(0) is what tells them apart."
    ),
    "overlap": (
        "The blocks overlap: each begins one place after the one before it. Program 1 begins where program 0 has ended, BLOCK "
        "places further on."
    ),
    "one_input": "out holds x alone. Where is y loaded, and added?",
    "raw_bits": (
        "Those are products of the integers that the bits of the bfloat16 numbers spell. In the interpreter tl.dot must get numbers "
        "of another type: convert what was loaded."
    ),
    "ten_bits": (
        "The numbers have lost all but 10 bits behind the point, or were too large: float16 has no more, and holds none above 65504. "
        "Convert to float32. On a GPU that is not enough: there tl.dot takes TF32, with 10 bits, unless input_precision forbids it."
    ),
    "rounded": "The product is right, but it was rounded to the type of a and b. c is float32: store it as it comes out of tl.dot.",
    "by_element": "Each number is that of a times that of b at the same place. A matrix product is tl.dot.",
    "b_transposed": "This is the product with the transpose of b. Row i of b begins at b_ptr + i * N.",
}


def _between(rng, low, high):
    return int(rng.integers(low, high + 1))


# ---------------------------------------------------------------------------------------------------------------
# 00.scores


def _scores_case(name, q, k):
    d = q.shape[1]
    exact = q.astype(np.float64) @ k.astype(np.float64).T / math.sqrt(d)
    plain = np.float32(1 / math.sqrt(d)) * (q @ k.T) if q.dtype == np.float32 else None

    def wrong():
        found = {
            "scale": {"s": exact * math.sqrt(d)},
            "scale_d": {"s": exact / math.sqrt(d)},
        }
        return found | ({"transposed": {"s": exact.T}} if len(q) == len(k) else {})

    tolerance = budget(plain, exact, FLOOR["numpy"][q.dtype.name])
    return Case(name, (q, k), {"s": exact}, {"s": tolerance}, wrong)


def _scores_cases(rng, rung):
    def case(n_q, n_k, d, dtype=np.float64):
        q, k = (rng.standard_normal((n, d)).astype(dtype) for n in (n_q, n_k))
        queries = f"{n_q} queries" if n_q > 1 else "one query"
        return _scores_case(f"{queries}, {n_k} keys, d = {d}" + (", float32" * (dtype == np.float32)), q, k)

    n = _between(rng, 3, 9)
    yield case(n, n, 16)
    yield case(_between(rng, 2, 9), _between(rng, 10, 20), _between(rng, 5, 12))
    yield case(1, _between(rng, 3, 9), 64)
    yield case(_between(rng, 2, 9), _between(rng, 10, 20), 1)
    yield case(_between(rng, 10, 20), _between(rng, 2, 9), 32, np.float32)


# ---------------------------------------------------------------------------------------------------------------
# 00.mend.tiles, 00.mend.precision


def _mend_case(name, w, v, tile, **more):
    """`more`: further mistakes, name -> result."""
    n = len(v)
    exact = w @ v
    whole, last = n // tile * tile, (n - 1) // tile * tile

    def wrong():
        found = {"dropped": w[:, :whole] @ v[:whole], "last_only": w[:, last:] @ v[last:]}
        if n > whole > 0:
            found["twice"] = exact + w[:, n - tile : whole] @ v[n - tile : whole]
        return {mistake: {"o": o} for mistake, o in (found | more).items()}

    tolerance = budget(None, exact, FLOOR["numpy"]["float64"])
    return Case(name, (w, v, tile), {"o": exact}, {"o": tolerance}, wrong)


def _mend_tiles_cases(rng, rung):
    # Small whole numbers, whose sums are exact in every type: what is lost by rounding is the other check's business. All above 0, so
    # that every key counts.
    def case(name, n, tile):
        w, v = (rng.integers(1, 9, shape).astype(np.float64) for shape in ((_between(rng, 2, 6), n), (n, 8)))
        return _mend_case(name, w, v, tile)

    tile, many = _between(rng, 8, 16), _between(rng, 3, 5)
    yield case(f"{tile * many} keys in tiles of {tile}", tile * many, tile)
    tile, many = _between(rng, 8, 16), _between(rng, 2, 4)
    n = tile * many + _between(rng, 1, tile - 1)
    yield case(f"{n} keys in tiles of {tile}: the last tile is short", n, tile)
    n = _between(rng, 3, 12)
    yield case(f"{n} keys in tiles of 1", n, 1)
    n = _between(rng, 3, 15)
    yield case(f"{n} keys, a tile of 16: the tile is larger than all of them", n, 16)


def _mend_precision_cases(rng, rung):
    # Whole tiles, so that a last tile that is missing is the other check's business.
    def sizes():
        tile, many = _between(rng, 8, 16), _between(rng, 4, 6)
        return tile * many, tile

    for dv in (4, 16):
        n, tile = sizes()
        w, v = rng.random((_between(rng, 2, 6), n)), rng.standard_normal((n, dv))
        yield _mend_case(f"{n} keys in tiles of {tile}, {dv} numbers in a value", w, v, tile)
    # The first and the last term cancel, and are so large that a float32 sum has no digit left for what is between them.
    n, tile = sizes()
    w = rng.integers(0, 2, (3, n)).astype(np.float64)
    v = rng.integers(-3, 4, (n, 4)).astype(np.float64)
    w[:, :tile] = w[:, -tile:] = 0
    w[:, 0], w[:, -1] = 2**15, -(2**15)
    v[0] = v[-1] = 2**15
    name = f"{n} keys in tiles of {tile}, a first term of 1e9 that the last one cancels"
    yield _mend_case(name, w, v, tile, single=np.zeros((3, 4)))


# ---------------------------------------------------------------------------------------------------------------
# 00.add.full, 00.add.tails


def _add_case(name, rng, rung, n, block, dtype="float32"):
    """One launch. Behind the end of x and y lies a block of other numbers, which a load without a mask reads."""
    narrow = np.dtype(dtype)
    x, y = (rng.standard_normal(n + block).astype(narrow) for _ in range(2))
    a, b = (memory[:n].astype(np.float64) for memory in (x, y))
    programs = -(-n // block)

    def wrong():
        i = np.arange(n)
        return {
            "one_block": {"out": np.where(i < block, a + b, np.nan)},
            "overlap": {"out": np.where(i < programs - 1 + block, a + b, np.nan)},
            "one_input": {"out": a},
        }

    return Case(
        name,
        Launch(
            (programs,),
            (*(Tensor(memory.astype(np.float32), dtype) for memory in (x, y)), "@out", n),
            {"out": ((n,), dtype)},
            {"BLOCK": block},
        ),
        {"out": a + b},
        {"out": budget(x[:n] + y[:n], a + b, FLOOR[rung][dtype])},
        wrong,
    )


def _add_full_cases(rng, rung):
    yield _add_case("16 numbers, one block of 16", rng, rung, 16, 16)
    many = _between(rng, 3, 6)
    yield _add_case(f"{32 * many} numbers in blocks of 32", rng, rung, 32 * many, 32)
    many = _between(rng, 2, 5)
    yield _add_case(f"{64 * many} numbers in blocks of 64, float16", rng, rung, 64 * many, 64, "float16")


def _add_tails_cases(rng, rung):
    n = 32 * _between(rng, 2, 4) + _between(rng, 1, 31)
    yield _add_case(f"{n} numbers in blocks of 32: the last block is short", rng, rung, n, 32)
    n = _between(rng, 2, 15)
    yield _add_case(f"{n} numbers, a block of 16", rng, rung, n, 16)
    n = 64 * _between(rng, 1, 3) + 1
    yield _add_case(f"{n} numbers in blocks of 64: one number in the last block", rng, rung, n, 64)


# ---------------------------------------------------------------------------------------------------------------
# 00.dot.float32, 00.dot.bfloat16


def _to_bfloat16(x, to_nearest=False):
    """float32 `x` with the lower half of its bits cut off, or rounded to the nearest number that has none."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    if to_nearest:
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32)


def _raw(x):
    """What the bits of the bfloat16 numbers `x` spell as integers."""
    return (x.view(np.uint32) >> 16).astype(np.float64)


def _dot_case(name, rung, dtype, *both):
    """`both`: the two matrices, in any type; they are rounded to `dtype`."""
    a, b = (_to_bfloat16(x) if dtype == "bfloat16" else x.astype(dtype).astype(np.float32) for x in both)
    n = len(a)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = wide_a @ wide_b

    def wrong():
        narrow_a, narrow_b = (x.astype(np.float16).astype(np.float64) for x in (a, b))
        found = {
            "by_element": wide_a * wide_b,
            "b_transposed": wide_a @ wide_b.T,
            "ten_bits": narrow_a @ narrow_b,
        }
        if dtype == "bfloat16":
            # The interpreter converts to bfloat16 by cutting off, a GPU by rounding.
            found |= {"raw_bits": _raw(a) @ _raw(b), "rounded": _to_bfloat16(exact, to_nearest=rung == "gpu")}
        if dtype == "float16":
            found["rounded"] = exact.astype(np.float16)
        return {mistake: {"c": c} for mistake, c in found.items()}

    return Case(
        name,
        Launch((1,), (Tensor(a, dtype), Tensor(b, dtype), "@c"), {"c": ((n, n), "float32")}, {"N": n}),
        {"c": exact},
        # Products of bfloat16 numbers are float32 numbers, so that the sum is all that may round, whatever the inputs are.
        {"c": budget(a @ b, exact, FLOOR[rung]["float32"])},
        wrong,
    )


def _dot_cases(dtype):
    def cases(rng, rung):
        def normal(n):
            return rng.standard_normal((2, n, n))

        if dtype == "float32":
            # Numbers of which TF32 and float16 keep the same, however they round. First, so that its hint is the one that is shown.
            a, b = rng.choice([-4, -2, -1, 1, 2, 4], (2, 16, 16)) * (1 + 2.0**-12)
            blind = ", which the interpreter never does" if rung == "interpreter" else ""
            yield _dot_case("16 x 16, digits that TF32 drops" + blind, rung, dtype, a, b)
        yield _dot_case("16 x 16", rung, dtype, *normal(16))
        yield _dot_case("64 x 64", rung, dtype, *normal(64))
        # More than a float16 can hold: to take that for all types is no way out. With one sign a sum that is too large is
        # infinite and not NaN, which is what a kernel leaves that stores nothing.
        thousands = _between(rng, 100, 900)
        large = 1000.0 * thousands * np.abs(normal(32))
        yield _dot_case(f"32 x 32, numbers near {thousands}000", rung, dtype, *large)
        if dtype == "bfloat16":
            yield _dot_case("32 x 32, float16", rung, "float16", *normal(32))

    return cases


CHECKS = [
    Check("00.scores", "scores of queries and keys", "function", _scores_cases, HINTS),
    Check("00.mend.tiles", "the sum over tiles of any size", "function", _mend_tiles_cases, HINTS),
    Check("00.mend.precision", "the digits of the sum", "function", _mend_precision_cases, HINTS),
    Check("00.add.full", "the first kernel on whole blocks", "kernel", _add_full_cases, HINTS, triton=True),
    Check(
        "00.add.tails", "the first kernel when the last block is short", "kernel", _add_tails_cases, HINTS,
        needs=("00.add.full",), triton=True,
    ),
    Check("00.dot.float32", "a product of float32 numbers", "kernel", _dot_cases("float32"), HINTS, triton=True),
    Check("00.dot.bfloat16", "a product of bfloat16 and of float16 numbers", "kernel", _dot_cases("bfloat16"), HINTS, triton=True),
]  # fmt: skip
