"""Exercise 02, the online softmax: its checks, their inputs, and the mistakes that they recognise.

This file travels with the exercise, so it never walks over tiles and never merges: the truth is the plain formula over all
scores at once in float64, and what a mistake computes is written in closed form over those same scores. Sizes are drawn
from ranges, so the grader's cases are others than the public ones, of the same kinds.

Shapes: `s (rows, n)` in 02.softmax, `(n,)` in 02.update and 02.one_pass; states of 02.merge and 02.early `m (rows,)`,
`l (rows,)`, `o (rows, d)`; the kernel's `x (rows, n)` in memory that has strides.
"""

import functools

import numpy as np

from autograder.checks.core import FLOOR, Case, Check, budget
from autograder.contestant import Launch, Tensor

HINTS = {
    "no_max": (
        "The exponentials are those of the scores themselves. Without the maximum subtracted one score of 1000 overflows, and "
        "inf / inf is NaN."
    ),
    "one_max": (
        "Rows whose scores lie far below those of other rows vanished: all rows share one maximum. Each row needs its own."
    ),
    "columns": "The sum was taken down the columns. Each row is a softmax of its own: look at the axis.",
    "unnormalised": "The exponentials are right, but nothing divided them by their sum.",
    "correction": (
        "Each tile was added as if its own maximum were still the final one. When the maximum moves, what was gathered "
        "before has to be corrected: look at how that is done, and whether m is replaced before or after it."
    ),
    "upside_down": (
        "The correction grows where it should shrink, and on the first tile it is inf (inf times 0 is NaN). It carries a "
        "value from the old maximum to the new, larger one: can it ever be above 1?"
    ),
    "tile_max": "m is the largest score of this tile alone. It should be the largest of all the scores so far.",
    "old_max": "The new exponentials are measured from the old maximum. Measure them from the new one.",
    "forgotten": "l holds the new scores alone: what the state held before is missing.",
    "m_stays": "Only the last tile counts. Where is the new state kept for the next tile?",
    "dropped": "The scores of the last, shorter tile are missing from the result. Look at where the loop over tiles stops.",
    "zero_start": "m started from 0, as if a score of 0 had been seen. Before the first tile no score was seen at all.",
    "no_guard": (
        "A tile of nothing but -inf gave NaN: with m still -inf, m - m is not 0. What is subtracted in the exponentials has "
        "to be finite."
    ),
    "finite_m": (
        "m became a finite number that no key has as its score, and scores far below it lose all their weight. m is -inf "
        "until a score was seen, a place that holds no score counts as -inf, and only what is subtracted in the "
        "exponentials is a finite number instead."
    ),
    "one_side": (
        "Only the first side was corrected. The second was measured from its own maximum, too, and that may be the lower one."
    ),
    "correction_o": "l is corrected to the common maximum, but o is not. Look at what is applied to l and not to o.",
    "correction_l": "o is corrected to the common maximum, but l is not. Look at what is applied to o and not to l.",
    "normalised": "o was divided by l. The state keeps o undivided, so that it can be merged again.",
    "two_empty": (
        "Where both sides are empty, -inf was subtracted from -inf, and that is NaN. Subtract a finite number there; m "
        "itself stays -inf."
    ),
    "scratch": (
        "What an empty side holds in l and o came out as NaN. Its weight is 0, but 0 times NaN is NaN: where the weight is 0, "
        "take 0 and not the product."
    ),
    "all_states": "Every state was merged. Only those that the tree names belong in the result.",
    "undivided": "The output is o / l, and o alone was taken for it. As a column l is l[:, None].",
    "settled": "The answer was 0 for a row that can still move. That o / l has settled says nothing about scores that were not read.",
    "one_key": "The unread keys were counted as one. There are `left` of them, and each may have the highest score.",
    "ratio": "The share is the weight of the unread keys divided by all the weight, not by the weight of what was read.",
    "no_m": "l was taken for the weight of what was read, but l is measured from m, and the unread scores are not.",
    "range": (
        "That is a bound, but not the smallest: the output already stands somewhere between low and high, and can only move "
        "to one of them."
    ),
    "upwards": "The output can also move down, to low.",
    "unknown": (
        "A score far above all others gave NaN; where nothing is known, highest is even inf, and inf - inf is NaN. Measure the "
        "weights from highest: then what was read weighs exp(m - inf) = 0."
    ),
    "first_walk": (
        "Each tile was divided by the l of the tiles so far. The weights can only be stored once m and l of the whole row "
        "are known: in a second walk."
    ),
    "padded": (
        "The last tile is short, and the places behind its end were counted as scores of 0. They need a weight of exactly 0."
    ),
    "overrun": (
        "Scores behind the end of the row were counted: what lies there in memory belongs to the next one. Mask the loads."
    ),
    "packed": "The rows were read as if one began where the one before it ends. The distance between rows is x_row_stride.",
    "column_stride": "Neighbours in memory were read. The distance between neighbours of a row is x_stride.",
    "out_packed": (
        "x was read right, but the weights were stored as if out had the strides n and 1, which are those of x here. It has "
        "strides of its own."
    ),
    "dead_rows": (
        "Rows of nothing but -inf came out as NaN. Their m is still -inf and their l is 0: find the subtraction of two "
        "infinities and the division by 0."
    ),
    "uniform": (
        "Rows of nothing but -inf came out with equal weights: their scores were replaced by a large finite number. Such a "
        "row gives 0."
    ),
}


# ---------------------------------------------------------------------------------------------------------------
# The plain formula, and inputs


def _weights(s):
    """Softmax over all scores of each row at once, in the dtype of s; a row of nothing but -inf gives 0."""
    w = np.exp(s - _finite(s.max(-1, keepdims=True)))
    total = w.sum(-1, keepdims=True)
    return w / np.where(total == 0, s.dtype.type(1), total)


def _state(s, v=None):
    """(m, l) of the rows of s (..., n), or (m, l, o) with values v (n, d)."""
    m = s.max(-1, initial=-np.inf)
    w = np.exp(s - _finite(m)[..., None])
    return (m, w.sum(-1)) if v is None else (m, w.sum(-1), w @ v)


def _finite(m):
    return np.where(m > -np.inf, m, m.dtype.type(0))


def _between(rng, low, high):
    return int(rng.integers(low, high + 1))


def _numpy_case(name, call, outputs, wrong, plain=None, may_write=False):
    """A case of the NumPy parts. `outputs`: name -> exact float64 array; `plain`: the same in float32, for float32 inputs."""
    expected = {key: np.asarray(value, np.float64) for key, value in outputs.items()}
    floor = FLOOR["numpy"]["float32" if plain else "float64"]
    tolerance = {key: budget((plain or {}).get(key), value, floor) for key, value in expected.items()}
    return Case(name, call, expected, tolerance, wrong, may_write=may_write)


# ---------------------------------------------------------------------------------------------------------------
# 02.softmax


def _softmax_cases(rng, rung):
    def case(name, s):
        wide = s.astype(np.float64)

        def wrong():
            bare = np.exp(s)
            shared = np.exp(s - s.max())
            own = np.exp(wide - wide.max(-1, keepdims=True))
            found = {
                "no_max": bare / bare.sum(-1, keepdims=True),
                "one_max": shared / shared.sum(-1, keepdims=True),
                "columns": own / own.sum(0),
                "unnormalised": own,
            }
            return {mistake: {"p": p} for mistake, p in found.items()}

        plain = {"p": _weights(s)} if s.dtype == np.float32 else None
        return _numpy_case(name, (s,), {"p": _weights(wide)}, wrong, plain)

    def scores(rows, n):
        return 3 * rng.standard_normal((rows, n))

    rows, n = _between(rng, 2, 5), _between(rng, 6, 12)
    yield case(f"{rows} rows of {n} scores", scores(rows, n))
    n = _between(rng, 6, 12)
    s = scores(3, n)
    s[1, _between(rng, 0, n - 1)] = rng.uniform(900, 1200)
    yield case(f"3 rows of {n}, one score near 1000", s)
    n = _between(rng, 6, 12)
    yield case(f"2 rows of {n}: one near 1000, one near -1000", scores(2, n) + [[1000], [-1000]])
    n = _between(rng, 6, 12)
    s = scores(3, n)
    s[rng.random(s.shape) < 0.4] = -np.inf
    s[:, _between(rng, 0, n - 1)] = 1.0
    yield case(f"3 rows of {n}, some of them -inf", s)
    rows = _between(rng, 2, 5)
    yield case(f"{rows} rows of 2 scores", scores(rows, 2))
    n = _between(rng, 20, 40)
    yield case(f"float32, 4 rows of {n}, scores near 100", (scores(4, n) + 100).astype(np.float32))


# ---------------------------------------------------------------------------------------------------------------
# 02.update, 02.update.masked, 02.one_pass


def _update_case(name, before, s, may_write=False):
    state = tuple(float(x) for x in _state(before))
    m, l = (float(x) for x in _state(np.concatenate([before, s])))  # noqa: E741 - the course's name for it

    def wrong():
        old_m, old_l = state
        shift = m if m > -np.inf else 0.0
        p = np.exp(s - shift).sum()
        found = {} if m > -np.inf else {"no_guard": {"m": m, "l": np.nan}}  # first: there others are NaN, too
        found |= {
            "correction": {"m": m, "l": old_l + p},
            "upside_down": {"m": m, "l": np.exp(shift - old_m) * old_l + p},
            "no_max": {"m": m, "l": old_l + np.exp(s).sum()},
            "forgotten": {"m": m, "l": p},
            "old_max": {"m": m, "l": old_l + np.exp(s - old_m).sum()},
            "tile_max": {"m": s.max()},
        }
        if m < -10_000:
            found["finite_m"] = {"m": np.ma.masked_all(()), "l": 0.0}  # whatever the number is
        return {
            mistake: {key: np.asanyarray(x) for key, x in outputs.items()}
            for mistake, outputs in found.items()
            if mistake in {"no_guard", "upside_down"} or not np.isnan(outputs.get("l", 0.0))
        }

    return _numpy_case(name, (state, s), {"m": m, "l": l}, wrong, may_write=may_write)


def _update_cases(rng, rung):
    none = np.empty(0)

    def tile(n, shift=0.0):
        return shift + 2 * rng.standard_normal(n)

    n = _between(rng, 4, 9)
    yield _update_case(f"the first tile, {n} scores", none, tile(n))
    past, n = tile(_between(rng, 4, 12)), _between(rng, 4, 9)
    yield _update_case(f"the maximum moves up, {n} scores", past, tile(n, past.max() + 6))
    past, n = tile(_between(rng, 4, 12)), _between(rng, 4, 9)
    s = tile(n)
    yield _update_case(f"the maximum stays, {n} scores", past, s - s.max() + past.max() - 1)
    yield _update_case("a tile of one score", tile(_between(rng, 2, 5)), tile(1, 1.0))
    past, n = tile(_between(rng, 4, 12)), _between(rng, 4, 9)
    s = tile(n)
    s[_between(rng, 0, n - 1)] = rng.uniform(900, 1200)
    yield _update_case("one score near 1000", past, s)
    n = _between(rng, 4, 9)
    yield _update_case("every score near -1000", none, tile(n, -rng.uniform(900, 1200)))


def _update_masked_cases(rng, rung):
    # That the scores are left alone is 02.update's business, here and in 02.one_pass: one mistake, one loss.
    case = functools.partial(_update_case, may_write=True)
    none = np.empty(0)

    def tile(n, keep, shift=0.0):
        s = shift + 2 * rng.standard_normal(n)
        s[rng.permutation(n)[keep:]] = -np.inf
        return s

    n = _between(rng, 4, 9)
    yield case(f"{n - 2} of {n} scores are -inf, first tile", none, tile(n, 2))
    past, n = tile(12, _between(rng, 4, 12)), _between(rng, 4, 9)
    s = tile(n, 1)
    s[s > -np.inf] = past.max() + rng.uniform(2, 10)
    yield case(f"{n - 1} of {n} scores are -inf, the maximum moves", past, s)
    n = _between(rng, 4, 9)
    yield case(f"all {n} scores are -inf, after an ordinary tile", tile(8, 8), tile(n, 0))
    n = _between(rng, 4, 9)
    yield case(f"all {n} scores are -inf, first tile", none, tile(n, 0))
    past, n = tile(_between(rng, 4, 9), 0), _between(rng, 4, 9)
    yield case(f"{n} scores near -20000 after a tile of -inf", past, tile(n, n, -20_000.0))


def _running(s, tile):
    """For each score of s (..., n): the maximum of all scores up to the end of its tile."""
    n = s.shape[-1]
    last = np.minimum((np.arange(n) // tile + 1) * tile, n) - 1
    return np.maximum.accumulate(s, -1)[..., last]


def _one_pass_cases(rng, rung):
    def case(name, s, tile):
        m, l = _state(s)  # noqa: E741

        def wrong():
            found = {
                "zero_start": (max(0.0, m), np.exp(s - max(0.0, m)).sum()),
                "correction": (m, np.exp(s - _running(s, tile)).sum()),
                "no_max": (m, np.exp(s).sum()),
            }
            short = len(s) % tile
            if short and len(s) > tile:
                found["dropped"] = _state(s[:-short])
            if len(s) > tile:
                found["m_stays"] = _state(s[(len(s) - 1) // tile * tile :])
            return {k: {"m": np.asarray(a), "l": np.asarray(b)} for k, (a, b) in found.items()}

        return _numpy_case(name, (s, tile), {"m": m, "l": l}, wrong, may_write=True)

    def scores(n):
        return 3 * rng.standard_normal(n)

    tile = _between(rng, 8, 32)
    yield case(f"{tile} scores: one tile", scores(tile), tile)
    tile, many = _between(rng, 8, 32), _between(rng, 3, 6)
    yield case(f"{tile * many} rising scores in tiles of {tile}", np.sort(scores(tile * many)), tile)
    yield case(f"{tile * many} falling scores in tiles of {tile}", -np.sort(scores(tile * many)), tile)
    tile, many = _between(rng, 8, 32), _between(rng, 2, 5)
    n = tile * many + _between(rng, 1, tile - 1)
    yield case(f"{n} scores in tiles of {tile}: the last tile is short", scores(n), tile)
    n = _between(rng, 3, 15)
    yield case(f"{n} scores, a tile of 16: the tile is larger than the row", scores(n), 16)
    n = _between(rng, 5, 12)
    yield case(f"{n} scores in tiles of 1", scores(n), 1)
    n = _between(rng, 40, 60)
    yield case(f"{n} scores near -1000 in tiles of 16", scores(n) - 1000, 16)


# ---------------------------------------------------------------------------------------------------------------
# 02.merge, 02.merge.empty, 02.merge.laws


def _keys(rng, rows, n, shift=0.0, scale=3.0, hidden=0.0):
    """Scores (rows, n), the share `hidden` of them -inf, of which no row has nothing else."""
    s = shift + scale * rng.standard_normal((rows, n))
    s[:, 1:][rng.random((rows, n - 1)) < hidden] = -np.inf
    return s


def _union(parts):
    """The state over the keys of several (s, v)."""
    return _state(np.concatenate([s for s, _ in parts], -1), np.concatenate([v for _, v in parts]))


def _named(state):
    return dict(zip(("m", "l", "o"), state, strict=True))


def _uncorrected(states):
    """What every tree gives when a correction is missing."""
    ls, os = sum(state[1] for state in states), sum(state[2] for state in states)
    return {"correction": {"l": ls, "o": os}, "correction_o": {"o": os}, "correction_l": {"l": ls}}


def _merge_case(name, a, b, wrong=None, scratch=None, may_write=False):
    """`a`, `b`: (s, v). `scratch`: what an empty row of b holds in l and o."""
    states = [_state(*a), list(_state(*b))]
    if scratch is not None:
        empty = states[1][0] == -np.inf
        states[1][1] = np.where(empty, scratch, states[1][1])
        states[1][2] = np.where(empty[:, None], scratch, states[1][2])
    exact = _union([a, b])

    def mistakes():
        (m_a, l_a, o_a), (m_b, l_b, o_b) = states
        m, l, o = exact  # noqa: E741
        up, other = np.exp(m - m_a), np.exp(m - m_b)
        down = np.exp(m_a - m)
        return _uncorrected(states) | {
            "one_side": {"l": down * l_a + l_b, "o": down[:, None] * o_a + o_b},
            "upside_down": {"l": up * l_a + other * l_b, "o": up[:, None] * o_a + other[:, None] * o_b},
            "no_max": {
                "l": np.exp(m_a) * l_a + np.exp(m_b) * l_b,
                "o": np.exp(m_a)[:, None] * o_a + np.exp(m_b)[:, None] * o_b,
            },
            "normalised": {"o": o / l[:, None]},
        }

    call = tuple(tuple(state) for state in states)
    return _numpy_case(name, call, _named(exact), lambda: (wrong or mistakes)(), may_write=may_write)


def _merge_cases(rng, rung):
    def keys(rows, n, d, **kinds):
        return _keys(rng, rows, n, **kinds), rng.standard_normal((n, d))

    rows, d = _between(rng, 20, 40), _between(rng, 2, 5)
    yield _merge_case(
        f"{rows} rows, now a and now b has the larger maximum",
        keys(rows, 6, d, hidden=0.3),
        keys(rows, 6, d, hidden=0.3),
    )
    rows, d = _between(rng, 3, 6), _between(rng, 2, 5)
    yield _merge_case(f"{rows} rows, b has the larger one", keys(rows, 5, d), keys(rows, 7, d, shift=12.0))
    yield _merge_case(f"{rows} rows, a has the larger one", keys(rows, 5, d, shift=12.0), keys(rows, 7, d))
    d = _between(rng, 6, 9)
    yield _merge_case(f"one row, values of {d} numbers", keys(1, 4, d), keys(1, 4, d))
    s, v = keys(4, 6, 3)
    yield _merge_case(
        "both sides have the same maximum", (s, v), (s[:, ::-1].copy(), rng.standard_normal(v.shape))
    )
    yield _merge_case("a near -1000, b near 1000", keys(4, 6, 3, shift=-1000.0), keys(4, 6, 3, shift=1000.0))


def _merge_empty_cases(rng, rung):
    d = _between(rng, 8, 10)  # more than rows, so that a forgotten [:, None] is an error and not a riddle

    def keys(rows, empty=()):
        s = _keys(rng, rows, 6)
        s[list(empty)] = -np.inf
        return s, rng.standard_normal((6, d))

    def case(name, a, b, **scratch):
        exact = _union([a, b])
        nothing = exact[0] == -np.inf

        def wrong():
            # Where both are empty and one holds NaN, the two mistakes look alike; the first has cases of its own.
            bad = b[0].max(-1) == -np.inf if scratch else nothing
            l = np.where(bad, np.nan, exact[1])  # noqa: E741
            return {
                "scratch" if scratch else "two_empty": {
                    "l": np.ma.array(l, mask=bad & bool(scratch)),  # l alone may have been cleaned
                    "o": np.where(bad[:, None], np.nan, exact[2]),
                },
                "finite_m": _named((np.ma.array(exact[0], mask=nothing), *exact[1:])),
            }

        return _merge_case(name, a, b, wrong, may_write=True, **scratch)

    rows = _between(rng, 4, 7)
    yield case(f"{rows} rows, b is empty", keys(rows), keys(rows, range(rows)))
    yield case(f"{rows} rows, a is empty", keys(rows, range(rows)), keys(rows))
    rows = _between(rng, 4, 7)
    both = _between(rng, 0, rows - 2)
    yield case(f"both sides of row {both} are empty", keys(rows, [both]), keys(rows, [both, rows - 1]))
    yield case("both are empty in every row", keys(3, range(3)), keys(3, range(3)))
    rows = _between(rng, 4, 7)
    yield case(f"{rows} rows, b is empty and holds NaN", keys(rows), keys(rows, range(rows)), scratch=np.nan)
    yield case("both are empty, and one holds NaN", keys(3, range(3)), keys(3, range(3)), scratch=np.nan)
    yield case(f"{rows} rows, b is empty and holds 7", keys(rows), keys(rows, range(rows)), scratch=7.0)


def _grow(rng, leaves):
    """A random tree over `leaves`, in their order."""
    if len(leaves) == 1:
        return leaves[0]
    cut = _between(rng, 1, len(leaves) - 1)
    return _grow(rng, leaves[:cut]), _grow(rng, leaves[cut:])


def _laws_cases(rng, rung):
    d = _between(rng, 2, 4)

    def case(name, parts, tree, used=None):
        states = [_state(*part) for part in parts]
        used = range(len(parts)) if used is None else used

        def wrong():
            found = _uncorrected([states[i] for i in used])
            if len(used) < len(parts):
                found["all_states"] = _named(_union(parts))
            return found

        call = (tuple(states), tree)
        exact = _union([parts[i] for i in used])
        # Two empty sides, and what they hold, are 02.merge.empty's business; that its inputs stay, 02.merge's.
        return _numpy_case(name, call, _named(exact), wrong, may_write=True)

    def parts(count, rows, shift=0.0, scale=3.0, empty=0.0):
        """`count` sets of keys. In each row a set is empty with the chance `empty`, the first one never."""
        found = []
        for i in range(count):
            n = _between(rng, 1, 6)
            s = _keys(rng, rows, n, shift, scale, hidden=0.3)
            if i:
                s[rng.random(rows) < empty] = -np.inf
            found.append((s, rng.standard_normal((n, d))))
        return found

    rows = _between(rng, 60, 90)
    three = parts(3, rows)
    for law, tree in {
        "(a b) c": ((0, 1), 2),
        "a (b c)": (0, (1, 2)),
        "c (b a)": (2, (1, 0)),
        "(c a) b": ((2, 0), 1),
    }.items():
        yield case(f"{law}, {rows} random rows", three, tree)
    huge = parts(3, rows, scale=3000.0)
    yield case(f"(a b) c, {rows} rows, scores of thousands", huge, ((0, 1), 2))
    yield case(f"a (b c), {rows} rows, scores of thousands", huge, (0, (1, 2)))
    # The empty state as identity, on either side and in the middle. Set 0 stands beside each, so no two empty ones meet.
    one = parts(2, rows, empty=1.0)
    yield case(f"a with the empty state, {rows} rows", one, (0, 1))
    yield case(f"the empty state with a, {rows} rows", one, (1, 0))
    some = parts(3, rows, empty=0.5)
    yield case("(a b) c, b and c empty in half of the rows", some, ((0, 1), 2))
    yield case("c (b a), b and c empty in half of the rows", some, (2, (1, 0)))
    count = _between(rng, 6, 9)
    many = parts(count, rows, shift=-500.0, scale=30.0)
    order = [int(i) for i in rng.permutation(count)]
    yield case(f"a random tree over {count} states", many, _grow(rng, order))
    used = order[: count - 2]
    yield case(f"a tree that names {count - 2} of {count} states", many, _grow(rng, used), used)
    yield case("a tree of one state", three, 1, [1])


# ---------------------------------------------------------------------------------------------------------------
# 02.early


def _early_cases(rng, rung):
    low, high = -float(rng.uniform(0.5, 1.5)), float(rng.uniform(2.0, 3.0))

    def case(name, s, left, highest):
        v = rng.uniform(low, high, (s.shape[1], _between(rng, 7, 9)))  # more than rows: see 02.merge.empty
        m, l, o = _state(s, v)  # noqa: E741
        now = _weights(s) @ v
        highest = highest(m) if callable(highest) else np.full(len(m), float(highest))
        # The share of the unread keys, from the log of both weights: no exponential above 1.
        read, unread = m + np.log(l), highest + (np.log(left) if left else -np.inf)
        top = np.maximum(read, unread)
        known = top < np.inf
        w_read, w_unread = (
            np.exp(x - np.where(known, top, 0.0)) for x in (read, np.where(known, unread, 0.0))
        )
        share = np.where(known, w_unread / (w_read + w_unread), 1.0)[:, None]
        room = np.maximum(high - now, now - low)

        def wrong():
            weight = np.exp(highest - m)[:, None]
            total = left * weight + l[:, None]
            found = {
                "undivided": share * np.maximum(np.abs(high - o), np.abs(o - low)),
                "settled": np.zeros_like(now),
                "one_key": weight / (weight + l[:, None]) * room,
                "ratio": left * weight / l[:, None] * room,
                "no_m": left
                * np.exp(highest)[:, None]
                / (left * np.exp(highest)[:, None] + l[:, None])
                * room,
                "range": share * np.full_like(now, high - low),
                "upwards": share * (high - now),
                "unknown": np.where(np.isinf(total), np.nan, share * room),
            }
            return {
                mistake: {"change": x}
                for mistake, x in found.items()
                if mistake == "unknown" or not np.isnan(x).any()
            }

        return _numpy_case(name, ((m, l, o), left, highest, low, high), {"change": share * room}, wrong)

    def rows(shift=0.0):
        return _keys(rng, _between(rng, 3, 6), _between(rng, 16, 40), shift, hidden=0.2)

    left = _between(rng, 20, 60)
    yield case(f"{left} keys left, scores at most as large as before", rows(), left, lambda m: m)
    left = _between(rng, 20, 60)
    yield case(
        f"{left} keys left, scores far below", rows(2.0), left, lambda m: m - rng.uniform(3, 8, len(m))
    )
    yield case("one key left, with a score far above", rows(), 1, lambda m: m + rng.uniform(2, 6, len(m)))
    yield case("one key left, and nothing is known of it", rows(), 1, np.inf)
    left = _between(rng, 2, 9)
    yield case(f"{left} keys left, all of them masked", rows(), left, -np.inf)
    yield case("no key left", rows(), 0, -np.inf)
    left = _between(rng, 2, 9)
    yield case(f"{left} keys left, read near -1000, unread at most near 1000", rows(-1000.0), left, 1000.0)
    left = _between(rng, 2, 9)
    yield case(f"{left} keys left, read near 1000, unread at most near -1000", rows(1000.0), left, -1000.0)


# ---------------------------------------------------------------------------------------------------------------
# 02.kernel.*


def _kernel_case(
    name, rung, x, block, dtype="float32", spread=None, strides=None, out_columns=False, wrong=None
):
    """One launch over the rows of `x` (rows, n).

    Args:
        spread: x -> the memory that holds it, 1-d. Without it the rows lie one behind another, and behind the last one at
            least a tile of ordinary numbers, so that a load that forgot its mask reads those and no foreign memory.
        strides: (row stride, column stride) of x in that memory.
        out_columns: the output is stored column by column.
        wrong: further mistakes, a function of the scores as float64, the exact weights and the memory.
    """
    rows, n = x.shape
    narrow = np.float16 if dtype == "float16" else np.float32
    x = x.astype(narrow).astype(np.float32)
    if spread is None:
        behind = np.random.default_rng(7).standard_normal(max(n, block)).astype(narrow).astype(np.float32)
        memory, strides = np.concatenate([x.reshape(-1), behind]), (n, 1)
    else:
        memory = spread(x)
    s = x.astype(np.float64)
    exact = _weights(s)

    def shaped(p):
        return p.T if out_columns else p

    def mistakes():
        live = (s.max(-1) > -np.inf).all()
        found = wrong(s, exact, memory) if wrong else {}  # first: what this case was made for
        found |= _kernel_mistakes(s, x, block, memory) if live else {}
        found = {mistake: shaped(p) for mistake, p in found.items()}
        if out_columns:
            found["out_packed"] = exact.reshape(n, rows)
        return {mistake: {"out": p} for mistake, p in found.items()}

    return Case(
        name,
        Launch(
            (rows,),
            (
                Tensor(memory, dtype),
                "@out",
                *strides,
                *((1, rows) if out_columns else (n, 1)),
                n,
            ),
            {"out": ((n, rows) if out_columns else (rows, n), dtype)},
            {"BLOCK": block},
        ),
        {"out": shaped(exact)},
        {"out": budget(shaped(_weights(x).astype(narrow)), shaped(exact), FLOOR[rung][dtype])},
        mistakes,
    )


def _kernel_mistakes(s, x, block, memory):
    """What a mistake in the two walks gives, in closed form over the scores s (rows, n); x are the same in float32."""
    rows, n = s.shape
    w = np.exp(s - s.max(-1, keepdims=True))
    total = w.sum(-1, keepdims=True)
    bare = np.exp(x)
    start = (n - 1) // block * block
    tiles = [slice(first, first + block) for first in range(0, n, block)]
    found = {
        "no_max": bare / bare.sum(-1, keepdims=True),
        "unnormalised": w,
        "correction": w / np.exp(s - _running(s, block)).sum(-1, keepdims=True),
    }
    last = s[:, start:]
    found["m_stays"] = np.exp(s) / np.exp(last - last.max(-1, keepdims=True)).sum(-1, keepdims=True)
    if n > block:
        found["first_walk"] = np.concatenate([_weights(s[:, : tile.stop])[:, tile] for tile in tiles], -1)
    short = n % block
    if short:
        missing = block - short
        found["padded"] = w / (total + missing * np.exp(-s.max(-1, keepdims=True)))
        if n > block:
            found["dropped"] = np.concatenate([_weights(s[:, :-short]), np.full((rows, short), np.nan)], -1)
        if len(memory) >= rows * n + missing:
            read = memory[np.arange(rows)[:, None] * n + np.arange(n + missing)].astype(np.float64)
            found["overrun"] = _weights(read)[:, :n]
    return {k: p for k, p in found.items() if k in {"no_max", "dropped"} or np.isfinite(p).all()}


def _far_down(s, exact, memory):
    """Rows below -10000 when m is, or falls back to, a finite number above them."""
    return {"finite_m": np.where(s.max(-1, keepdims=True) < -10_000, 0.0, exact)}


def _full_cases(rng, rung):
    def scores(rows, n, scale=3.0):
        return scale * rng.standard_normal((rows, n))

    yield _kernel_case("one row, one tile of 16", rung, scores(1, 16), 16)
    n = 16 * _between(rng, 3, 6)
    yield _kernel_case(f"one row of {n} rising scores in tiles of 16", rung, np.sort(scores(1, n)), 16)
    yield _kernel_case(f"one row of {n} falling scores in tiles of 16", rung, -np.sort(scores(1, n)), 16)
    rows, n = _between(rng, 2, 5), 32 * _between(rng, 2, 4)
    yield _kernel_case(f"{rows} rows of {n} in tiles of 32", rung, scores(rows, n), 32)
    x = scores(2, 64)
    x[1, _between(rng, 0, 15)] = rng.uniform(300, 400)
    yield _kernel_case("2 rows of 64 in tiles of 16, one score near 350", rung, x, 16)
    yield _kernel_case("float16, 2 rows of 96 in tiles of 32", rung, scores(2, 96), 32, dtype="float16")
    x = scores(2, 64) - [[0], [20_000]]
    yield _kernel_case("2 rows of 64 in tiles of 16, row 1 near -20000", rung, x, 16, wrong=_far_down)
    if rung == "gpu":
        yield _kernel_case("64 rows of 8192 in tiles of 1024", rung, scores(64, 8192), 1024)


def _tails_cases(rng, rung):
    def scores(rows, n, shift=0.0):
        return shift + 2 * rng.standard_normal((rows, n))

    n = 16 * _between(rng, 1, 4) + _between(rng, 1, 15)
    yield _kernel_case(f"3 rows of {n} in tiles of 16: the last tile is short", rung, scores(3, n), 16)
    n = 16 * _between(rng, 1, 4) + _between(rng, 1, 15)
    yield _kernel_case(f"2 rows of {n} in tiles of 16, scores near -9", rung, scores(2, n, -9.0), 16)
    n = _between(rng, 2, 15)
    yield _kernel_case(
        f"3 rows of {n}, a tile of 32: the tile is larger than the row", rung, scores(3, n), 32
    )
    yield _kernel_case("4 rows of two scores", rung, scores(4, 2), 16)
    n = 32 * _between(rng, 1, 3) + 1
    yield _kernel_case(f"2 rows of {n} in tiles of 32: one score in the last", rung, scores(2, n), 32)
    n = 16 * _between(rng, 1, 3) + 1
    x = scores(2, n, -20_000.0)
    yield _kernel_case(f"2 rows of {n} in tiles of 16, scores near -20000", rung, x, 16, wrong=_far_down)


def _strides_cases(rng, rung):
    """Whole tiles, so that a tail that is wrong costs its own check alone."""
    rows, n = _between(rng, 2, 5), 16 * _between(rng, 2, 4)
    gap = _between(rng, 3, 13)

    def scores(rows=rows, n=n):
        return 3 * rng.standard_normal((rows, n))

    def read(row_stride, stride):
        def at(s, exact, memory):
            where = np.arange(s.shape[0])[:, None] * row_stride + np.arange(s.shape[1]) * stride
            return _weights(memory.astype(np.float64)[where])

        return at

    def wrong(row_stride, stride):
        def both(s, exact, memory):
            return {
                "packed": read(s.shape[1], 1)(s, exact, memory),
                "column_stride": read(row_stride, 1)(s, exact, memory),
            }

        return both

    def filled(size, x, where):
        """Memory of `size` numbers: x where it says, ordinary ones elsewhere and for a while behind."""
        memory = 3 * np.random.default_rng(8).standard_normal(size + x.size).astype(np.float32)
        memory[where] = x
        return memory

    def grid(row_stride, stride):
        return np.arange(rows)[:, None] * row_stride + np.arange(n) * stride

    def case(name, row_stride, stride, x=None, out_columns=False):
        where = grid(row_stride, stride)
        return _kernel_case(
            name,
            rung,
            scores() if x is None else x,
            16,
            spread=lambda x: filled(int(where.max()) + 1, x, where),
            strides=(row_stride, stride),
            out_columns=out_columns,
            wrong=wrong(row_stride, stride),
        )

    # First, since here alone an output that is stored by other strides than its own stays within its memory.
    yield case(f"{rows} rows of {n}, and an output that is stored by columns", n, 1, out_columns=True)
    yield case(f"{rows} rows of {n}, and {gap} other numbers between rows", n + gap, 1)
    yield case(f"the columns of a matrix: {rows} of them, {n} numbers each", 1, rows)
    yield case(f"every second number of {rows} rows of {2 * n}", 2 * n, 2)
    yield case(f"the same row {rows} times: row stride 0", 0, 1, np.repeat(scores(1), rows, 0))


def _empty_cases(rng, rung):
    """Whole tiles again."""

    def scores(rows, n):
        return 3 * rng.standard_normal((rows, n))

    def first(s, exact, memory):
        no_guard = np.where((s[:, :16].max(-1) == -np.inf)[:, None], np.nan, exact)
        return {"no_guard": no_guard} | _far_down(s, exact, memory)

    def whole(s, exact, memory):
        dead = (s.max(-1) == -np.inf)[:, None]
        return {
            "dead_rows": np.where(dead, np.nan, exact),
            "uniform": np.where(dead, 1 / s.shape[1], exact),
        }

    n = 16 * _between(rng, 3, 5)
    x = scores(3, n)
    x[rng.random(x.shape) < 0.3] = -np.inf
    x[:, ::16] = 0.5
    yield _kernel_case(f"3 rows of {n} in tiles of 16, some scores -inf", rung, x, 16)
    x = scores(3, n)
    x[1, :16] = -np.inf
    yield _kernel_case("the first tile of row 1 is -inf", rung, x, 16, wrong=first)
    n = 16 * _between(rng, 3, 5)
    x = scores(2, n) - 20_000
    x[:, :16] = -np.inf
    name = f"2 rows of {n} in tiles of 16: the first tile -inf, the rest near -20000"
    yield _kernel_case(name, rung, x, 16, wrong=first)
    x = scores(3, n)
    x[:, -16:] = -np.inf
    yield _kernel_case("the last tile of every row is -inf", rung, x, 16)
    rows = _between(rng, 3, 5)
    dead = _between(rng, 0, rows - 1)
    x = scores(rows, n)
    x[dead] = -np.inf
    yield _kernel_case(f"row {dead} of {rows} is -inf everywhere", rung, x, 16, wrong=whole)


CHECKS = [
    Check("02.softmax", "a softmax that does not overflow", "function", _softmax_cases, HINTS),
    Check("02.update", "one tile into (m, l)", "function", _update_cases, HINTS),
    Check("02.update.masked", "one tile when scores are masked", "function", _update_masked_cases, HINTS),
    Check("02.one_pass", "a row in one pass", "function", _one_pass_cases, HINTS),
    Check("02.merge", "two states into one", "function", _merge_cases, HINTS),
    Check("02.merge.empty", "two states when one is empty, or both", "function", _merge_empty_cases, HINTS),
    Check("02.merge.laws", "many states, in any order and grouping", "function", _laws_cases, HINTS),
    Check("02.early", "how far the output can still move", "function", _early_cases, HINTS),
    Check("02.kernel.full", "the kernel on whole tiles", "kernel", _full_cases, HINTS, triton=True, seconds=60.0),
    Check("02.kernel.tails", "the kernel when the last tile is short", "kernel", _tails_cases, HINTS, triton=True, seconds=60.0),
    Check("02.kernel.strides", "the kernel on rows that have strides", "kernel", _strides_cases, HINTS, triton=True, seconds=60.0),
    Check("02.kernel.empty", "the kernel on tiles and rows of -inf", "kernel", _empty_cases, HINTS, triton=True, seconds=60.0),
]  # fmt: skip
