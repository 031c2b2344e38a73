"""Exercise 01, the memory hierarchy: its checks, their inputs, and the mistakes that they recognise.

A count is written as the arrays that it is made of: "QKSPV" are those that the standard form reads. So a mistake is another
such word, and the truth and each mistake are added up by the same line. Sizes and rates are drawn from ranges, so the
grader's cases are others than the public ones, of the same kinds.

Shapes: `q (n_q, d)`, `k (n_k, d)`, `v (n_k, dv)`; the scale kernel `(n,)`; the softmax kernels `(rows, n)`.
"""

import math

import numpy as np

from autograder.checks.core import FLOOR, Case, Check, budget
from autograder.contestant import Launch, Tensor

# The share of a copy's rate that a kernel which moves each byte once has to reach. One that moves every byte through HBM twice comes
# to 0.5 at best, so it can't pass; the rest up to 1 is left to a busy card, another generation of it, or an older compiler.
SHARE = 0.6

HINTS = {
    "one_matrix": (
        "Two square matrices exist, S and P, and each is written by one kernel and read by the next. One of them is missing."
    ),
    "not_read": "What a kernel writes, the next one has to read: S and P are counted where they are written, and not where they are read.",
    "matrices_alone": "Only S and P are counted. Q, K and V are read as well, and O is written.",
    "no_output": "O is missing: the result is written, too.",
    "swapped": "Read and written have changed places: (read, written) is asked for.",
    "matrix_moved": "S and P are counted. Here they never leave the chip: what is left to be read and written?",
    "matrix_kept": "S and P are missing: in the standard form both go to HBM and come back.",
    "one_head": "This is the count of a single head. Every head has arrays of its own.",
    "numbers": "Numbers are counted, not bytes: each number has several.",
    "square": (
        "It is right only where there are as many queries as keys. Q and O have a row for each query, K and V one for each key, "
        "and a row of S has a number for each key."
    ),
    "half": "This is half of it. There are two products, Q with K and P with V, and in each a multiply and an add count as two.",
    "quarter": "This is a quarter of it: there are two products, and in each a multiply and an add count as two.",
    "upside_down": "The intensity is upside down: it is operations for each byte, and grows with the operations.",
    "added": "The two times were added. A card computes while it moves, so the longer of the two hides the other.",
    "shorter": "This is the shorter of the two times. The card is done when both are.",
    "memory_alone": "Only the traffic is counted. With enough operations for each byte it is the arithmetic that takes longer.",
    "arithmetic_alone": "Only the arithmetic is counted. With few operations for each byte it is the traffic that takes longer.",
    "attainable": "This is a rate, operations a second. The time is asked for.",
    "one_max": (
        "All operations and all bytes were added up first, as if all kernels ran at the same time. Each kernel has a bound of its own; "
        "then the bounds add up."
    ),
    "longest": "This is the time of the slowest kernel. They run one after another, so their times add up.",
    "scale": "The scores were used without the factor 1/sqrt(d).",
    "scale_d": "The scores were divided by d; the factor is 1/sqrt(d).",
    "no_max": (
        "The exponential overflowed. The largest number of each row has to be subtracted before it; the result stays what it is."
    ),
    "shared_max": (
        "Rows whose scores lie far below those of another row vanished: all rows share one maximum. Each row needs its own."
    ),
    "shared_sum": "The weights were divided by the sum of the whole matrix. Each row has its own sum.",
    "keepdims": (
        "Score (i, j) lost the maximum of row j, and was divided by the sum of row j: NumPy lays an array of n_q numbers along the columns. "
        "With keepdims=True each number stays beside its row."
    ),
    "columns": "The softmax ran down the columns. It is over the keys of one query: along a row of the scores.",
    "unnormalised": "The exponentials are right, but nothing divided them by their sum.",
    "peak_one_matrix": "While P is being written, S is still there: both exist at once.",
    "peak_all": "S and P of all heads are counted. Only `at_once` heads are worked on at one time.",
    "peak_one_head": "S and P of one head are counted. There are `at_once` heads whose matrices exist together.",
    "peak_matrices": "Only S and P are counted. Q, K, V and O of all heads are there as well.",
    "peak_no_output": "O is missing: the room for it is taken from the beginning.",
    "peak_group": "Q, K, V and O are counted for the heads at work only. They are there for all heads, from beginning to end.",
    "first_tile": "Only the first tile was written. Every program has a tile of its own: where does its number come in?",
    "overlap": "The tiles overlap: each begins one number behind the one before it. It should begin BLOCK numbers behind.",
    "not_scaled": "The numbers came out as they went in: where is the factor?",
    "short_tile": "The last, shorter tile is missing. Places that exist have to be stored, also in a tile that is not full.",
    "padded": (
        "The last tile reaches past the end of the row, and the places behind it were counted as zeros. They need a number that is never "
        "the largest, and whose exponential is 0."
    ),
    "overrun": (
        "Places behind the end of the row were counted: what lies there in memory belongs to the next row. Mask the loads, and give "
        "those places a number whose exponential is 0."
    ),
    "last_tile": "The sum is that of the last tile alone. It has to be carried from tile to tile.",
    "last_maximum": (
        "The exponential overflowed where the largest number of the row is not in its last tile: m is the maximum of the last tile alone. It "
        "has to be carried from tile to tile."
    ),
    "vanished": (
        "All exponentials of a row became 0, and 0 / 0 is NaN: what was subtracted is larger than every number of the row. Only the row's "
        "maximum will do, and a search for it that begins with 0 never finds a negative one."
    ),
    "own_sum": (
        "Each tile became a softmax of its own. The numbers of a whole row have one sum, and its softmax adds up to 1 over all tiles together."
    ),
    "same_tile": "Only the first tile of each row was read and written. All tiles have the same places: where does `start` come in?",
}  # fmt: skip


def _between(rng, low, high):
    return int(rng.integers(low, high + 1))


def _case(name, call, expected, mistakes, exact=True):
    """A case of numbers. `expected` and each of `mistakes`: output name -> number. `exact`: they are counts."""
    expected = {key: np.float64(value) for key, value in expected.items()}
    return Case(
        name,
        call,
        {key: np.asarray(value) for key, value in expected.items()},
        # Relative: seconds are small. A count is a whole number below 2^53, which float64 holds as it is.
        {
            key: 0.0 if exact else FLOOR["numpy"]["float64"] * max(float(value), 1e-9)
            for key, value in expected.items()
        },
        lambda: {name: {key: np.float64(x) for key, x in outputs.items()} for name, outputs in mistakes.items()},
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# 01.traffic.*, 01.flop, 01.peak: counts


def _bytes(arrays, q_len, kv_len, heads, d, number):
    """Bytes of the arrays that `arrays` names, a letter each, of all heads."""
    sizes = {"QO": q_len * d, "KV": kv_len * d, "SP": q_len * kv_len}
    return heads * number * sum(size for array in arrays for pair, size in sizes.items() if array in pair)


def _shapes(rng):
    """(name, (q_len, kv_len, heads, d, number)): the shapes that a count is asked for."""
    number = {2: "fp16", 4: "float32"}
    n, d = 64 * _between(rng, 2, 40), 16 * _between(rng, 2, 16)
    yield f"one head, {n} queries and keys, d = {d}, fp16", (n, n, 1, d, 2)
    n, heads, d = 64 * _between(rng, 2, 40), _between(rng, 2, 40), 16 * _between(rng, 2, 16)
    yield f"{heads} heads, {n} queries and keys, d = {d}, float32", (n, n, heads, d, 4)
    q_len, kv_len, heads, d = _between(rng, 10, 500), _between(rng, 501, 5000), _between(rng, 4, 40), 64
    size = int(rng.choice([2, 4]))
    yield (
        f"{heads} heads, {q_len} queries, {kv_len} keys, d = {d}, {number[size]}",
        (q_len, kv_len, heads, d, size),
    )
    kv_len, heads, d = _between(rng, 1000, 100_000), _between(rng, 2, 40), 128
    yield f"{heads} heads, one query, {kv_len} keys, d = {d}, fp16", (1, kv_len, heads, d, 2)


_MOVED = {"standard": ("QKSPV", "SPO"), "flash": ("QKV", "O")}  # read, written
_WRONG = {
    "standard": {
        "one_matrix": ("QKSV", "SO"),
        "not_read": ("QKV", "SPO"),
        "matrices_alone": ("SP", "SP"),
        "no_output": ("QKSPV", "SP"),
        "swapped": ("SPO", "QKSPV"),
        "matrix_kept": ("QKV", "O"),
    },
    "flash": {
        "matrix_moved": ("QKSPV", "SPO"),
        "one_matrix": ("QKSV", "SO"),
        "no_output": ("QKV", ""),
        "swapped": ("O", "QKV"),
    },
}


def _traffic_cases(form):
    def cases(rng, rung):
        for name, shape in _shapes(rng):
            q_len, kv_len, heads, d, number = shape

            def count(arrays, *shape):
                return dict(zip(("read", "written"), (_bytes(each, *shape) for each in arrays), strict=True))

            wrong = {mistake: count(arrays, *shape) for mistake, arrays in _WRONG[form].items()}
            wrong["one_head"] = count(_MOVED[form], q_len, kv_len, 1, d, number)
            wrong["numbers"] = count(_MOVED[form], q_len, kv_len, heads, d, 1)
            wrong["square"] = count(_MOVED[form], q_len, q_len, heads, d, number)
            yield _case(name, shape, count(_MOVED[form], *shape), wrong)

    return cases


def _flop_cases(rng, rung):
    for name, (q_len, kv_len, heads, d, _) in _shapes(rng):
        flop = 4 * heads * q_len * kv_len * d
        wrong = {
            "half": flop / 2,
            "quarter": flop / 4,
            "one_head": flop / heads,
            "square": flop * q_len / kv_len,
        }
        yield _case(
            name.replace(", fp16", "").replace(", float32", ""),
            (q_len, kv_len, heads, d),
            {"flop": flop},
            {mistake: {"flop": value} for mistake, value in wrong.items()},
        )


def _peak_cases(rng, rung):
    for together, (name, shape) in zip(("one", "all", "some", "one"), _shapes(rng), strict=True):
        q_len, kv_len, heads, d, number = shape
        at_once = {"one": 1, "all": heads, "some": _between(rng, 2, max(heads - 1, 2))}[together]

        def held(arrays, matrices, of=heads, together=at_once, keys=kv_len, q_len=q_len, d=d, number=number):
            return sum(
                _bytes(which, q_len, keys, many, d, number)
                for which, many in ((arrays, of), (matrices, together))
            )

        peak = held("QKVO", "SP")
        wrong = {
            "peak_one_matrix": held("QKVO", "S"),
            "peak_all": held("QKVO", "SP", together=heads),
            "peak_one_head": held("QKVO", "SP", together=1),
            "peak_matrices": held("", "SP"),
            "peak_no_output": held("QKV", "SP"),
            "peak_group": held("QKVO", "SP", of=at_once),
            "numbers": peak / number,
            "square": held("QKVO", "SP", keys=q_len),
        }
        yield _case(
            f"{name}, {at_once} at once" if heads > 1 else name,
            (*shape, at_once),
            {"bytes": peak},
            {mistake: {"bytes": value} for mistake, value in wrong.items()},
        )


# ---------------------------------------------------------------------------------------------------------------
# 01.roofline, 01.chain: bounds


def _card(rng):
    """(rate, bandwidth) of a card that nobody sells, with few digits: a student may want to reckon by hand."""
    return float(f"{rng.uniform(1e14, 2e15):.2e}"), float(f"{rng.uniform(1e12, 8e12):.2e}")


def _roofline_cases(rng, rung):
    for name, low, high in (
        ("far left of the ridge", 0.002, 0.05),
        ("a little left of it", 0.6, 0.95),
        ("a little right of it", 1.05, 1.6),
        ("far right of it", 5, 50),
        ("no operations: a copy", 0, 0),
    ):
        rate, bandwidth = _card(rng)
        moved = _between(rng, 2**20, 2**34)
        flop = int(rng.uniform(low, high) * rate / bandwidth * moved)
        memory, arithmetic = moved / bandwidth, flop / rate
        wrong = {
            "added": {"seconds": memory + arithmetic},
            "shorter": {"seconds": min(memory, arithmetic)},
            "memory_alone": {"seconds": memory},
            "arithmetic_alone": {"seconds": arithmetic},
            "attainable": {"seconds": min(rate, flop / moved * bandwidth)},
        }
        if flop:
            wrong["upside_down"] = {"intensity": moved / flop}
        yield _case(
            f"{moved} bytes, {name}",
            (flop, moved, rate, bandwidth),
            {"intensity": flop / moved, "seconds": max(memory, arithmetic)},
            wrong,
            exact=False,
        )


def _chain_cases(rng, rung):
    def chain(rate, bandwidth, *sides):
        """A kernel for each of `sides`, which says how far right of the ridge it is."""
        sizes = [_between(rng, 2**20, 2**32) for _ in sides]
        return tuple(
            (int(side * rate / bandwidth * size), size) for side, size in zip(sides, sizes, strict=True)
        )

    for name, sides in (
        ("one kernel", (0.4,)),
        ("product, softmax without operations, product", (0.7, 0, 0.7)),
        ("one waits for memory, one for arithmetic", (0.2, 3)),
        ("five kernels", (3, 0, 0.5, 1.5, 0.1)),
    ):
        rate, bandwidth = _card(rng)
        kernels = chain(rate, bandwidth, *sides)
        memory, arithmetic = [m / bandwidth for _, m in kernels], [f / rate for f, _ in kernels]
        bounds = list(map(max, memory, arithmetic))
        wrong = {
            "one_max": max(sum(memory), sum(arithmetic)),
            "added": sum(memory) + sum(arithmetic),
            "shorter": sum(map(min, memory, arithmetic)),
            "memory_alone": sum(memory),
            "arithmetic_alone": sum(arithmetic),
            "longest": max(bounds),
        }
        yield _case(
            f"{name}, the first moves {kernels[0][1]} bytes",
            (kernels, rate, bandwidth),
            {"seconds": sum(bounds)},
            {mistake: {"seconds": value} for mistake, value in wrong.items()},
            exact=False,
        )


# ---------------------------------------------------------------------------------------------------------------
# 01.naive


def _softmax(s, axis=-1):
    w = np.exp(s - s.max(axis, keepdims=True))
    return w / w.sum(axis, keepdims=True)


def _naive_case(name, q, k, v):
    scale = 1 / math.sqrt(q.shape[1])
    s = (q.astype(np.float64) @ k.T.astype(np.float64)) * scale
    exact = _softmax(s) @ v.astype(np.float64)
    plain = _softmax(q @ k.T * np.float32(scale)) @ v if q.dtype == np.float32 else None

    def wrong():
        bare, shared, own = np.exp(s), np.exp(s - s.max()), np.exp(s - s.max(1, keepdims=True))
        found = {
            "scale": _softmax(s / scale) @ v,
            "scale_d": _softmax(s * scale) @ v,
            "no_max": bare / bare.sum(1, keepdims=True) @ v,
            "shared_max": shared / shared.sum(1, keepdims=True) @ v,
            "shared_sum": own / own.sum() @ v,
            "columns": _softmax(s, 0) @ v,
            "unnormalised": own @ v,
        }
        if len(q) == len(k):  # else NumPy itself refuses
            beside = np.exp(s - s.max(1))
            found["keepdims"] = beside / beside.sum(1) @ v
        return {mistake: {"o": o} for mistake, o in found.items()}

    return Case(
        name, (q, k, v), {"o": exact}, {"o": budget(plain, exact, FLOOR["numpy"][q.dtype.name])}, wrong
    )


def _naive_cases(rng, rung):
    def inputs(n_q, n_k, d, dv=None):
        return (
            3 * rng.standard_normal((n_q, d)),
            rng.standard_normal((n_k, d)),
            rng.standard_normal((n_k, dv or d)),
        )

    n = _between(rng, 20, 60)
    yield _naive_case(f"{n} queries and keys", *inputs(n, n, 16))
    n_q, n_k = _between(rng, 5, 20), _between(rng, 30, 60)
    yield _naive_case(f"{n_q} queries, {n_k} keys", *inputs(n_q, n_k, 8))
    d, dv = _between(rng, 5, 12), _between(rng, 13, 20)
    yield _naive_case(f"d = {d}, values of {dv} numbers", *inputs(24, 32, d, dv))
    n_k = _between(rng, 20, 60)
    yield _naive_case(f"one query, {n_k} keys", *inputs(1, n_k, 16))
    n = _between(rng, 16, 32)
    q, k, v = inputs(n, n, 16)
    row = _between(rng, 0, n - 1)
    k[:, 0] = 1.0
    q[row, 0] = 4 * rng.uniform(900, 1200)  # 4 is sqrt(d)
    yield _naive_case(f"{n} queries and keys, all scores of one query near 1000", q, k, v)
    n = _between(rng, 20, 60)
    yield _naive_case(f"{n} queries and keys in float32", *(x.astype(np.float32) for x in inputs(n, n, 16)))


# ---------------------------------------------------------------------------------------------------------------
# 01.scale, 01.softmax.*: kernels


def _rounded(x, dtype):
    return x.astype(np.float16 if dtype == "float16" else np.float32)


def _behind(rng, x, size, dtype):
    """The numbers of `x` in a row, and behind them `size` more that are nobody's, which a load without a mask would read."""
    return np.concatenate([x.reshape(-1), _rounded(rng.standard_normal(size), dtype)]).astype(np.float32)


def _scale_case(name, rng, rung, n, block, dtype="float32"):
    x, a = _rounded(rng.standard_normal(n), dtype), float(np.float32(rng.uniform(1.5, 4)))
    exact = a * x.astype(np.float64)
    plain = _rounded(np.float32(a) * x.astype(np.float32), dtype)

    def wrong():
        found = {"not_scaled": {"out": x.astype(np.float64)}}
        if n > block:  # else all of it is NaN, as where nothing was stored
            written = {
                "first_tile": block,
                "short_tile": n // block * block,
                "overlap": block + -(-n // block) - 1,
            }
            found |= {
                mistake: {"out": np.where(np.arange(n) < end, exact, np.nan)}
                for mistake, end in written.items()
            }
        return found

    return Case(
        name,
        Launch(
            (-(-n // block),),
            (Tensor(_behind(rng, x, block, dtype), dtype), "@out", n, a),
            {"out": ((n,), dtype)},
            {"BLOCK": block},
        ),
        {"out": exact},
        {"out": budget(plain, exact, FLOOR[rung][dtype])},
        wrong,
    )


def _scale_cases(rng, rung):
    yield _scale_case("one tile of 64 numbers", rng, rung, 64, 64)
    n = 64 * _between(rng, 3, 8)
    yield _scale_case(f"{n} numbers in tiles of 64", rng, rung, n, 64)
    n = 64 * _between(rng, 2, 5) + _between(rng, 1, 63)
    yield _scale_case(f"{n} numbers in tiles of 64: the last tile is short", rng, rung, n, 64)
    n = _between(rng, 3, 30)
    yield _scale_case(f"{n} numbers, a tile of 32: the tile is larger than the array", rng, rung, n, 32)
    n = 128 * _between(rng, 2, 4) + _between(rng, 1, 127)
    yield _scale_case(f"{n} numbers of float16 in tiles of 128", rng, rung, n, 128, "float16")


def _softmax_case(name, rng, rung, rows, n, block, shift=0.0, peak=None):
    """`shift` moves all numbers; `peak` replaces one of each row: of the first row in the first tile, of the last one in the last."""
    x = shift + 2 * rng.standard_normal((rows, n))
    last = (n - 1) // block * block  # where the last tile begins
    if peak is not None:
        x[0, rng.integers(0, min(n, block))] = x[-1, rng.integers(last, n)] = peak
    x = _rounded(x, "float32")
    memory = _behind(rng, x, block, "float32")
    exact = _softmax(x.astype(np.float64))
    places = -(-n // block) * block  # in all tiles of a row together

    def wrong():
        s = x.astype(np.float64)
        bare, w = np.exp(x), np.exp(s - s.max(1, keepdims=True))
        # Where all of x is negative, so does a maximum that begins with 0.
        found = {"vanished" if shift < 0 else "no_max": bare / bare.sum(1, keepdims=True), "unnormalised": w}
        if places > n:
            read = memory[np.arange(rows)[:, None] * n + np.arange(places)].astype(np.float64)
            found["padded"] = _softmax(np.pad(s, ((0, 0), (0, places - n))))[:, :n]
            found["overrun"] = _softmax(read)[:, :n]
        if n > block:
            found["last_tile"] = w / w[:, last:].sum(1, keepdims=True)
            late = np.exp(x - x[:, last:].max(1, keepdims=True))
            found["last_maximum"] = late / late.sum(1, keepdims=True)
            tiles = np.split(s, range(block, n, block), 1)
            found["own_sum"] = np.concatenate([_softmax(tile) for tile in tiles], 1)
            found["same_tile"], found["overlap"] = np.full((2, rows, n), np.nan)
            found["same_tile"][:, :block] = _softmax(tiles[0]) / len(tiles)  # its sum was added up in each turn
            starts = range(len(tiles))
            end = min(n, block + len(starts) - 1)
            seen = w[:, :end] / sum(w[:, start : start + block].sum(1, keepdims=True) for start in starts)
            found["overlap"][:, :end] = seen
        return {mistake: {"out": out} for mistake, out in found.items()}

    return Case(
        name,
        Launch((rows,), (Tensor(memory), "@out", n), {"out": ((rows, n), "float32")}, {"BLOCK": block}),
        {"out": exact},
        {"out": budget(_softmax(x), exact, FLOOR[rung]["float32"])},
        wrong,
    )


def _passes_cases(rng, rung):
    yield _softmax_case("one row of 16 numbers in one tile", rng, rung, 1, 16, 16)
    rows, n = _between(rng, 2, 4), 16 * _between(rng, 2, 4)
    yield _softmax_case(f"{rows} rows of {n} numbers in tiles of 16", rng, rung, rows, n, 16)
    rows, n = _between(rng, 2, 4), 16 * _between(rng, 1, 3) + _between(rng, 1, 15)
    yield _softmax_case(
        f"{rows} rows of {n} numbers in tiles of 16: the last tile is short", rng, rung, rows, n, 16
    )
    n = _between(rng, 3, 30)
    yield _softmax_case(
        f"2 rows of {n} numbers, a tile of 32: the tile is larger than the row", rng, rung, 2, n, 32
    )
    n = 16 * _between(rng, 1, 2) + _between(rng, 1, 15)
    yield _softmax_case(
        f"2 rows of {n} numbers in tiles of 16, all near -300", rng, rung, 2, n, 16, shift=-300.0
    )
    n = 16 * _between(rng, 2, 3)
    yield _softmax_case(
        f"2 rows of {n} numbers in tiles of 16, one number of each row near 300",
        rng,
        rung,
        2,
        n,
        16,
        peak=300.0,
    )


def _fused_cases(rng, rung):
    yield _softmax_case("one row of 64 numbers in a tile of 64", rng, rung, 1, 64, 64)
    rows = _between(rng, 2, 6)
    yield _softmax_case(f"{rows} rows of 32 numbers in tiles of 32", rng, rung, rows, 32, 32)
    rows, n = _between(rng, 2, 4), _between(rng, 33, 63)
    yield _softmax_case(f"{rows} rows of {n} numbers in tiles of 64", rng, rung, rows, n, 64)
    n = _between(rng, 17, 31)
    yield _softmax_case(
        f"2 rows of {n} numbers in tiles of 32, all near -300", rng, rung, 2, n, 32, shift=-300.0
    )
    n = _between(rng, 65, 128)
    yield _softmax_case(
        f"2 rows of {n} numbers in tiles of 128, one number of each row near 300",
        rng,
        rung,
        2,
        n,
        128,
        peak=300.0,
    )
    n = _between(rng, 1, 9)
    yield _softmax_case(f"3 rows of {n} numbers in tiles of 16", rng, rung, 3, n, 16)


# ---------------------------------------------------------------------------------------------------------------
# 01.scale.speed, 01.softmax.speed: beside a copy, on a GPU

_BASE = 2**22  # bytes that are drawn, sent and compared
_COPIES = 64  # of them on the card: 256 MiB to read and as much to write, more than any cache holds


def _timed(name, x, exact, plain, grid, numbers, constants, dtype="float32"):
    """`x` and the outputs are `_COPIES` times as long on the card; `grid` and `numbers` are those of the whole."""
    both = np.stack([exact, exact])  # the smallest and the largest of the copies
    return Case(
        name,
        Launch(grid, (Tensor(x, dtype), "@out", *numbers), {"out": (x.shape, dtype)}, constants, _COPIES),
        {"out": both},
        {"out": budget(plain, exact, FLOOR["gpu"][dtype])},
        least_share=SHARE,
    )


def _scale_speed_cases(rng, rung):
    for dtype, size in (("float32", 4), ("float16", 2)):
        n = _BASE // size
        x, a = _rounded(rng.standard_normal(n), dtype), float(np.float32(rng.uniform(1.5, 4)))
        yield _timed(
            f"{_COPIES * n} numbers of {dtype}",
            x.astype(np.float32),
            a * x.astype(np.float64),
            _rounded(np.float32(a) * x.astype(np.float32), dtype),
            (-(-_COPIES * n // 1024),),
            (_COPIES * n, a),
            {"BLOCK": 1024},
            dtype,
        )


def _softmax_speed_cases(rng, rung):
    for n, block, warps in ((4096, 4096, 8), (2000, 2048, 4)):
        rows = _BASE // 4 // n
        x = _rounded(2 * rng.standard_normal((rows, n)), "float32")
        yield _timed(
            f"{_COPIES * rows} rows of {n} numbers",
            x,
            _softmax(x.astype(np.float64)),
            _softmax(x),
            (_COPIES * rows,),
            (n,),
            {"BLOCK": block, "num_warps": warps},
        )


CHECKS = [
    Check("01.traffic.standard", "what the standard form moves", "function", _traffic_cases("standard"), HINTS),
    Check("01.traffic.flash", "what is left without the matrix", "function", _traffic_cases("flash"), HINTS),
    Check("01.flop", "the arithmetic of both products", "function", _flop_cases, HINTS),
    Check("01.roofline", "the intensity and the bound of one kernel", "function", _roofline_cases, HINTS),
    Check("01.chain", "the bound of kernels in a row", "function", _chain_cases, HINTS),
    Check("01.naive", "attention, all scores at once", "function", _naive_cases, HINTS),
    Check("01.peak", "what the standard form holds", "function", _peak_cases, HINTS),
    Check("01.scale", "the kernel that scales", "kernel", _scale_cases, HINTS, triton=True, seconds=60.0),
    Check(
        "01.scale.speed", "its rate beside a copy's", "kernel", _scale_speed_cases,
        needs=("01.scale",), gpu=True, triton=True, seconds=60.0,
    ),
    Check("01.softmax.passes", "a softmax in three passes", "kernel", _passes_cases, HINTS, triton=True, seconds=60.0),
    Check("01.softmax.fused", "a softmax in one read", "kernel", _fused_cases, HINTS, triton=True, seconds=60.0),
    Check(
        "01.softmax.speed", "its rate beside a copy's", "kernel", _softmax_speed_cases,
        needs=("01.softmax.fused",), gpu=True, triton=True, seconds=60.0,
    ),
]  # fmt: skip
