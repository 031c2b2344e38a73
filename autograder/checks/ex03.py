"""Exercise 03, FlashAttention forward: its checks, their inputs, and the mistakes that they recognise.

This file travels with the exercise, so it never walks over tiles: the truth is the plain formula, all scores at once in
float64, and what a mistake computes is written in closed form over those same scores. Sizes are drawn from ranges, so
the grader's cases are others than the public ones, of the same kinds.

Shapes: one query `q (d,)`, `k (n, d)`, `v (n, dv)`; tiles `q (n_q, d)`; kernel `(heads, len, head_dim)`; host
`(batch, heads, len, head_dim)`. Scores `s (..., n_q, n_k)` hold -inf where a query may not see a key.
"""

import math

import numpy as np

from autograder.checks.core import FLOOR, Case, Check, budget
from autograder.contestant import Launch, Tensor

_UNIFORM = (
    "Rows that may see no key came out as the mean of V: their scores were masked with a large finite number. The "
    "mask is -inf, and such a row gives 0."
)
HINTS = {
    "correction": (
        "Each tile was added as if its own maximum were still the final one. When the maximum moves, what was gathered "
        "before has to be rescaled: look at how the correction is made, and whether m is replaced before or after that."
    ),
    "correction_o": "The sum l follows the moving maximum, but o does not. Look at what is applied to l and not to o.",
    "correction_l": "The output o follows the moving maximum, but l does not. Look at what is applied to o and not to l.",
    "upside_down": (
        "The correction is upside down. It carries what was gathered from the old maximum to the new, larger one, exp(old - new): "
        "never above 1, and 0 for the first tile. Turned over it is infinite there, since m is still -inf, and 0 * inf is NaN."
    ),
    "no_max": (
        "The exponentials are not taken relative to the running maximum, the largest of all scores so far. Without it one "
        "score of 1000 overflows."
    ),
    "m_zero": (
        "Every weight came out as 0: the largest of these scores lies far below 0, and they were taken relative to something "
        "larger. What is m before any key has been seen? With 0, every score below it is measured from 0."
    ),
    "tile_max": "m is the largest score of this tile alone. It should be the largest of all the scores so far.",
    "m_stays": "Only the last tile counts. Where is the new maximum kept for the next tile? m is still what it was before the loop.",
    "one_max": (
        "Rows whose scores lie far below those of other rows vanished: all rows of a tile share one maximum. Each row needs its "
        "own."
    ),
    "sum_all": "All rows of a tile share one sum: the weights were added up over the whole tile. Each row needs its own l.",
    "state_kept": (
        "Only the first tile of queries is right: the others start with the state that it ended with. Where are m, l and o made, before "
        "the outer loop or in it?"
    ),
    "normalised": "o was divided by l inside the loop. o stays unnormalised; one division after the last tile is enough.",
    "unnormalised": "The weighted sum is right, but nothing divided it by l.",
    "scale": "The scores were used without the factor 1/sqrt(head_dim).",
    "scale_d": "The scores were divided by head_dim; the factor is 1/sqrt(head_dim).",
    "scale_is_d": "The kernel got head_dim as its scale. It multiplies by what it gets: that is 1/sqrt(head_dim).",
    "scale_root": "The kernel got sqrt(head_dim) as its scale. It multiplies by what it gets: that is 1/sqrt(head_dim).",
    "dropped": "The keys of the last, shorter tile are missing from the result. Look at where the loop over tiles stops.",
    "padded": (
        "The last tile is short, and the places behind its end were counted as keys with score 0. They need a weight of "
        "exactly 0."
    ),
    "overrun": (
        "Keys behind the end of this head were counted: what lies there in memory belongs to the next one. Mask the loads, and "
        "give those places a weight of exactly 0."
    ),
    "lse_l": "lse is the log of l alone. l was taken relative to m, so m belongs in it.",
    "lse_m": "lse holds the maximum alone: the log of l is missing.",
    "lse_no_log": "lse is m + l; the sum of exponentials goes in as its logarithm, m + log(l).",
    "lse_is_l": "lse holds l itself, the sum relative to m. It should be m + log(l).",
    "lse_base2": "lse is in base 2. At the border of the function it is a natural logarithm.",
    "not_causal": "Every query saw every key, as if causal were off.",
    "causal_strict": "Every query misses its own last key: the diagonal itself is visible.",
    "causal_late": "Every query sees one key too many, the one after the diagonal.",
    "top_left": (
        "The diagonal starts at the first key. It has to end at the last one: with q_len and kv_len different, the last "
        "query sees every key."
    ),
    "diagonal_sign": (
        "The diagonal moved the wrong way. Query i sees key j when j <= i + kv_len - q_len: with more keys than queries it sees "
        "more than i of them."
    ),
    "parentheses": (
        "`a & b <= c` is read as `(a & b) <= c`, since & binds tighter than <=. Put each comparison of the mask in parentheses."
    ),
    "no_guard": (
        "A tile of nothing but -inf gave NaN: with m still -inf, m - m is not 0. What is subtracted in the exponentials has to "
        "be finite."
    ),
    "dead_rows": (
        "Rows that may see no key came out as NaN. Their m is still -inf: find the subtraction of two infinities and "
        "the division of 0 by 0."
    ),
    "shift_kept": (
        "What has seen no key has an m of 0 here: that is the shift, which is only there to be subtracted. The state keeps the maximum, "
        "-inf."
    ),
    "finite_mask": (
        "No score of this tile is finite, and yet m is: was -inf replaced by a large finite number, such as -1e30? Relative to itself "
        "it has the weight 1. m stays -inf; only what is subtracted has to be finite."
    ),
    "uniform": _UNIFORM,
    "uniform_tile": _UNIFORM,
    "poisoned": (
        "NaN that lies in memory behind the end of this head's V reached the output, although its weight is 0: "
        "0 times NaN is NaN. Look at the load of V in the last tile."
    ),
    "o_narrow": (
        "Most of the keys are lost. Each adds less to o than float16 can hold beside what is there already, so o has to be gathered "
        "in float32, and to become float16 in the store alone."
    ),
    "first_batch": "Only the first element of the batch is right. Look at the grid: how many programs has it for heads?",
    "grid_axes": (
        "Only the first two heads are right. Look at the grid: it has two axes, first the tiles of queries, then all heads of the "
        "whole batch."
    ),
    "grid_floor": (
        "The rows behind the last whole block are wrong, as if no program had them. How many programs does the grid have when q_len is "
        "no multiple of the block?"
    ),
    "kv_from_q": "Only as many keys as there are queries were read: kv_len is a length of k, not of q.",
    "lse_narrow": (
        "lse was rounded to float16, which holds nothing above 65504. It is float32 whatever the type of q is: what type has the "
        "tensor that you made for it?"
    ),
    "memory": (
        "Something as large as all scores at once was alive at the peak. Look for an array with as many rows as there "
        "are queries and as many columns as there are keys."
    ),
}


# ---------------------------------------------------------------------------------------------------------------
# The plain formula, and what mistakes make of it


def _scores(q, k, scale, visible=None):
    s = scale * (q @ np.swapaxes(k, -1, -2))
    return s if visible is None else np.where(visible, s, -np.inf)


def _plain(s, v):
    """Softmax over all scores at once, then the weighted sum: (o, lse). A row with no visible key gives (0, -inf)."""
    m = s.max(-1, keepdims=True, initial=-np.inf)
    shift = np.where(m == -np.inf, s.dtype.type(0), m)
    w = np.exp(s - shift)
    l = w.sum(-1, keepdims=True)  # noqa: E741 - the course's name for it
    with np.errstate(divide="ignore"):
        return w @ v / np.where(l == 0, s.dtype.type(1), l), (shift + np.log(l))[..., 0]


def _causal(q_len, kv_len, late=0, top_left=False):
    """Which keys each query sees (q_len, kv_len): the last query sees the last key. `late`: a diagonal moved so far."""
    first = 0 if top_left else kv_len - q_len
    return np.arange(kv_len) <= np.arange(q_len)[:, None] + first + late


def _mistakes(s, v, tile, scale, dtype=np.float64):
    """What a mistake in the recurrence gives: weights in closed form from the maximum of all scores up to a key's tile."""
    n = s.shape[-1]
    last = np.minimum((np.arange(n) // tile + 1) * tile, n) - 1  # for each key, the last key of its tile
    highest = s.max(-1, keepdims=True)
    running = np.maximum.accumulate(s, -1)[..., last]
    w, own = np.exp(s - highest), np.exp(s - running)
    total, own_total = w.sum(-1, keepdims=True), own.sum(-1, keepdims=True)
    bare = np.exp(s.astype(dtype))
    up_to = np.cumsum(w, -1)[..., last] * np.exp(highest - running)  # l after each key's tile
    ends = np.arange(n) == last
    after = np.cumsum(np.where(ends, np.log(up_to), 0.0)[..., ::-1], -1)[
        ..., ::-1
    ]  # log of the product of all later l
    found = {
        "correction": own @ v / own_total,
        "correction_o": own @ v / total,
        "correction_l": w @ v / own_total,
        "scale": _plain(s / scale, v)[0],
        "scale_d": _plain(s * scale, v)[0],
        "no_max": _ratio(bare, v),
        "normalised": np.exp(s - highest - after) @ v,
        "unnormalised": w @ v,
    }
    if n > tile:
        start = (n - 1) // tile * tile
        found["m_stays"] = _plain(s[..., start:], v[..., start:, :])[0]
    short = n % tile
    if short:
        found["padded"] = w @ v / (total + (tile - short) * np.exp(-highest))
        if n > tile:
            found["dropped"] = _plain(s[..., : n - short], v[..., : n - short, :])[0]
    # Overflow gives NaN whatever the mistake, so only the mistake that is overflow may be recognised by it.
    found = {name: {"o": o} for name, o in found.items() if name == "no_max" or np.isfinite(o).all()}
    from_zero = {"m_zero": _relative(np.maximum(highest, 0.0), s, v, dtype)}
    # m starts as -inf, so that the first correction is infinite when it is upside down, and l and o are 0 * inf. It comes last, since
    # it gives NaN everywhere in every case, and the others in some.
    nothing = {"o": np.full((*s.shape[:-1], v.shape[-1]), np.nan), "lse": np.full(s.shape[:-1], np.nan)}
    return from_zero | found | {"upside_down": nothing}


def _rows_mistakes(s, v, tile_q, tile_k, exact, dtype=np.float64):
    """The same for mistakes that rows make together: `tile_q` of them share a program, or a turn of the outer loop."""
    n_q, n_k = s.shape[-2:]
    first = np.arange(0, n_q, tile_q)
    highest = s.max(-1, keepdims=True)
    shared = np.repeat(np.maximum.reduceat(highest, first, axis=-2), tile_q, axis=-2)[..., :n_q, :]
    found = {"one_max": _relative(shared, s, v, dtype)}
    if n_q % tile_q:
        return found
    last = np.minimum((np.arange(n_k) // tile_k + 1) * tile_k, n_k) - 1
    running = np.maximum.accumulate(s, -1)[..., last]
    together = np.repeat(np.add.reduceat(np.exp(s - running), first, axis=-2), tile_q, axis=-2)
    l = (np.exp(running - highest) * together).sum(-1, keepdims=True)  # noqa: E741
    found["sum_all"] = {"o": np.exp(s - highest) @ v / l, "lse": (highest + np.log(l))[..., 0]}
    if n_q > tile_q and s.ndim == 2:
        # The state goes from tile to tile of queries: each row has the keys of all rows before it at the same place.
        o, lse = (x.reshape(-1, tile_q, *x.shape[1:]) for x in exact)
        weight, so_far = np.exp(lse - lse.max()), np.logaddexp.accumulate(lse, 0)
        o = np.cumsum(weight[..., None] * o, 0) / np.cumsum(weight, 0)[..., None]
        found["state_kept"] = {"o": o.reshape(n_q, -1), "lse": so_far.reshape(n_q)}
    return found


def _relative(base, s, v, dtype):
    """(o, lse) from weights relative to `base` (..., n_q, 1), where these may all vanish: o is then 0 / 0, or what a guard makes of it.

    Where they nearly vanish, both are a matter of rounding: such numbers have fewer digits the smaller they are.
    """
    w = np.exp((s - base).astype(dtype))
    total = w.sum(-1, keepdims=True)
    o, lse = w @ v / total, base + np.log(total)
    faint = total < np.finfo(dtype).tiny
    edge = faint & ((s - base).max(-1, keepdims=True) > np.log(np.finfo(dtype).smallest_subnormal) - 10)
    return {"o": np.ma.array(o, mask=np.broadcast_to(faint, o.shape)), "lse": np.ma.array(lse, mask=edge)[..., 0]}


def _ratio(w, v):
    return w @ v / w.sum(-1, keepdims=True)


def _lse_mistakes(s, lse):
    highest = s.max(-1, initial=-np.inf)
    return {
        "lse_l": {"lse": lse - highest},
        "lse_m": {"lse": highest},
        "lse_no_log": {"lse": highest + np.exp(lse - highest)},
        "lse_is_l": {"lse": np.exp(lse - highest)},
        "lse_base2": {"lse": lse / math.log(2)},
    }


# ---------------------------------------------------------------------------------------------------------------
# Inputs


def _normal(rng, *shape, scale=1.0):
    return scale * rng.standard_normal(shape)


def _between(rng, low, high):
    return int(rng.integers(low, high + 1))


def _rising(q, k):
    """The keys in the order of their scores with one query, so that the maximum moves in every tile."""
    return np.ascontiguousarray(k[np.argsort(k @ q)])


def _aim(q, score, scale):
    """A key whose scaled score with q is `score`."""
    return q * (score / (scale * float(q @ q)))


def _all_near(score, q, k):
    """Change q (..., n_q, 16) and k (..., n_k, 16) so that every scaled score lies near `score`, a whole number.

    Their first numbers see to that. The others become multiples of 1/16, so that no score is rounded, however large it is.
    """
    for x in (q, k):
        np.round(16 * np.clip(x, -2, 2), out=x)
        x /= 16
    q[..., 0], k[..., 0] = 4.0, score


# ---------------------------------------------------------------------------------------------------------------
# 03.step, 03.step.masked


def _state(s, v):
    m = float(s.max(initial=-np.inf))
    w = np.exp(s - (m if m > -np.inf else 0.0))
    return m, float(w.sum()), w @ v


def _step_case(name, before, values_before, s, v, may_write=False):
    state = _state(before, values_before)
    m, l, o = _state(np.concatenate([before, s]), np.concatenate([values_before, v]))  # noqa: E741
    expected = {"m": np.float64(m), "l": np.float64(l), "o": o}
    expected = {key: np.asarray(value) for key, value in expected.items()}

    def wrong():
        old_m, old_l, old_o = state
        shift = m if m > -np.inf else 0.0
        p = np.exp(s - shift)
        factor = np.exp(old_m - shift)
        bare = np.exp(s)
        no_guard = {"no_guard": {"o": np.full_like(o, np.nan)}} if s.max() == -np.inf else {}
        if m == -np.inf:
            anything = np.ma.array(m, mask=True)
            return {"shift_kept": {"m": 0.0, "l": l, "o": o}} | no_guard | {"finite_mask": {"m": anything}}
        return no_guard | {
            "correction": {"l": old_l + p.sum(), "o": old_o + p @ v},
            "correction_o": {"l": l, "o": old_o + p @ v},
            "correction_l": {"l": old_l + p.sum(), "o": o},
            "upside_down": {"l": old_l / factor + p.sum(), "o": old_o / factor + p @ v},
            "no_max": {"l": old_l + bare.sum(), "o": old_o + bare @ v},
            "normalised": {"l": l, "o": o / l},
            "tile_max": {"m": s.max()},
        }

    floor = FLOOR["numpy"]["float64"]
    return Case(
        name,
        (state, (s, v)),
        expected,
        {key: budget(None, value, floor) for key, value in expected.items()},
        wrong,
        may_write=may_write,
        names={"argument 1, part 3": "the o of state", "argument 2, part 1": "s", "argument 2, part 2": "v"},
    )


def _step_cases(rng, rung):
    d = _between(rng, 3, 6)
    none, no_values = np.empty(0), np.empty((0, d))

    def tile(n, shift=0.0):
        return shift + 2 * rng.standard_normal(n), rng.standard_normal((n, d))

    n = _between(rng, 4, 9)
    yield _step_case(f"the first tile, {n} scores", none, no_values, *tile(n))
    past, n = tile(_between(rng, 4, 12)), _between(rng, 4, 9)
    yield _step_case(f"the maximum moves up, {n} scores", *past, *tile(n, past[0].max() + 6))
    past, n = tile(_between(rng, 4, 12)), _between(rng, 4, 9)
    s, v = tile(n)
    yield _step_case(f"the maximum stays, {n} scores", *past, s - s.max() + past[0].max() - 1, v)
    yield _step_case("a tile of one score", *tile(_between(rng, 2, 5)), *tile(1, 1.0))
    past, n = tile(_between(rng, 4, 12)), _between(rng, 4, 9)
    s, v = tile(n)
    s[_between(rng, 0, n - 1)] = rng.uniform(900, 1200)
    yield _step_case("one score near 1000", *past, s, v)
    n = _between(rng, 4, 9)
    yield _step_case("every score near -1000", none, no_values, *tile(n, -rng.uniform(900, 1200)))


def _step_masked_cases(rng, rung):
    d = _between(rng, 3, 6)
    none, no_values = np.empty(0), np.empty((0, d))

    def tile(n, shift=0.0):
        return shift + 2 * rng.standard_normal(n), rng.standard_normal((n, d))

    def masked(n, keep, shift=0.0):
        s, v = tile(n, shift)
        hidden = rng.permutation(n)[keep:]
        s[hidden] = -np.inf
        return s, v

    # That the state is left alone is 03.step's business: one mistake, one loss.
    n = _between(rng, 4, 9)
    yield _step_case(
        f"{n - 2} of {n} scores are -inf, first tile", none, no_values, *masked(n, 2), may_write=True
    )
    past = tile(_between(rng, 4, 12))
    n = _between(rng, 4, 9)
    s, v = masked(n, 1)
    s[s > -np.inf] = past[0].max() + rng.uniform(2, 10)
    yield _step_case(f"{n - 1} of {n} scores are -inf, the maximum moves", *past, s, v, may_write=True)
    n = _between(rng, 4, 9)
    yield _step_case(
        f"all {n} scores are -inf, after an ordinary tile",
        *tile(_between(rng, 4, 12)),
        *masked(n, 0),
        may_write=True,
    )
    n = _between(rng, 4, 9)
    yield _step_case(f"all {n} scores are -inf, first tile", none, no_values, *masked(n, 0), may_write=True)


# ---------------------------------------------------------------------------------------------------------------
# 03.one_query, 03.tiles, 03.memory


def _numpy_case(name, q, k, v, *tiles):
    """`q` (d,): one query, output o. `q` (n_q, d): outputs o and lse. The last of `tiles` is the tile of keys."""
    one = q.ndim == 1
    rows = q[None] if one else q
    scale = 1 / math.sqrt(q.shape[-1])
    exact_s = _scores(rows.astype(np.float64), k.astype(np.float64), scale)
    exact = _plain(exact_s, v.astype(np.float64))
    floor = FLOOR["numpy"][q.dtype.name]
    plain = (None, None)
    if q.dtype == np.float32:
        plain = _plain(_scores(rows, k, np.float32(scale)), v)

    def shaped(o, lse):
        return {"o": o[0]} if one else {"o": o, "lse": lse}

    def wrong():
        found = _mistakes(exact_s, v, tiles[-1], scale)
        if one:  # without lse, what is 0 / 0 has to be just that
            return {
                mistake: {"o": np.ma.filled(outputs["o"][0], np.nan)} for mistake, outputs in found.items()
            }
        return found | _rows_mistakes(exact_s, v, *tiles, exact) | _lse_mistakes(exact_s, exact[1])

    budgets = [budget(p, e, floor) for p, e in zip(plain, exact, strict=True)]
    return Case(name, (q, k, v, *tiles), shaped(*exact), dict(zip(("o", "lse"), budgets, strict=True)), wrong)


def _one_query_cases(rng, rung):
    def inputs(n, d, dv=None):
        return _normal(rng, d, scale=3.0), _normal(rng, n, d), _normal(rng, n, dv or d)

    tile = _between(rng, 8, 32)
    yield _numpy_case(f"{tile} keys: one tile", *inputs(tile, 16), tile)
    tile, many = _between(rng, 8, 32), _between(rng, 3, 6)
    q, k, v = inputs(tile * many, 16)
    yield _numpy_case(
        f"{tile * many} keys in tiles of {tile}, the scores rise from tile to tile", q, _rising(q, k), v, tile
    )
    tile, many = _between(rng, 8, 32), _between(rng, 2, 5)
    n = tile * many + _between(rng, 1, tile - 1)
    yield _numpy_case(f"{n} keys in tiles of {tile}: the last tile is short", *inputs(n, 8), tile)
    n = _between(rng, 3, 15)
    yield _numpy_case(f"{n} keys, a tile of 16: the tile is larger than the sequence", *inputs(n, 8), 16)
    n = _between(rng, 5, 12)
    yield _numpy_case(f"{n} keys in tiles of 1", *inputs(n, 4), 1)
    d, dv = _between(rng, 5, 12), _between(rng, 13, 20)
    yield _numpy_case(f"head_dim {d}, values of {dv} numbers", *inputs(48, d, dv), 16)
    tile = _between(rng, 8, 16)
    q, k, v = inputs(3 * tile, 16)
    k[_between(rng, tile, 2 * tile - 1)] = _aim(q, rng.uniform(900, 1200), 0.25)
    yield _numpy_case("one score near 1000, in the second of three tiles", q, k, v, tile)
    tile = _between(rng, 8, 16)
    q, k, v = inputs(3 * tile, 16)
    score = -_between(rng, 900, 1200)
    _all_near(score, q, k)
    yield _numpy_case(f"every score near {score}", q, k, v, tile)


def _tiles_cases(rng, rung):
    def inputs(n_q, n_k, d, dv=None):
        return _normal(rng, n_q, d, scale=3.0), _normal(rng, n_k, d), _normal(rng, n_k, dv or d)

    # No two lengths are the same here, so that what runs along the wrong axis doesn't fit.
    n_q, n_k = 8 * _between(rng, 3, 6), 16 * _between(rng, 4, 6)
    q, k, v = inputs(n_q, n_k, 12, 20)
    yield _numpy_case(
        f"{n_q} queries, {n_k} keys, tiles of 8 and 16, head_dim 12, values of 20 numbers; the scores of the first query rise",
        q,
        _rising(q[0], k),
        v,
        8,
        16,
    )
    n = 16 * _between(rng, 2, 5)
    yield _numpy_case(f"{n} queries and keys, tiles of 16", *inputs(n, n, 16), 16, 16)
    n_k = 32 * _between(rng, 2, 4) + _between(rng, 1, 31)
    yield _numpy_case(f"{n_k} keys in tiles of 32: the last tile is short", *inputs(32, n_k, 8), 16, 32)
    n_q = 16 * _between(rng, 1, 3) + _between(rng, 1, 15)
    yield _numpy_case(f"{n_q} queries in tiles of 16: the last tile is short", *inputs(n_q, 64, 8), 16, 32)
    n_q, n_k = _between(rng, 2, 9), _between(rng, 10, 20)
    yield _numpy_case(
        f"{n_q} queries, {n_k} keys, tiles of 64: larger than both", *inputs(n_q, n_k, 8), 64, 64
    )
    d, dv = _between(rng, 5, 12), _between(rng, 13, 20)
    yield _numpy_case(f"one query, head_dim {d}, values of {dv} numbers", *inputs(1, 48, d, dv), 16, 16)
    q, k, v = inputs(32, 64, 16)
    k[_between(rng, 16, 63)] = _aim(q[_between(rng, 0, 31)], rng.uniform(900, 1200), 0.25)
    yield _numpy_case("one score near 1000", q, k, v, 16, 16)
    q, k, v = inputs(32, 64, 16)
    score = -_between(rng, 900, 1200)
    _all_near(score, q, k)
    yield _numpy_case(f"every score near {score}", q, k, v, 16, 16)
    yield _numpy_case("float32 inputs", *(x.astype(np.float32) for x in inputs(32, 96, 16)), 16, 32)


_DISTINCT = 256


def _repeated(rng, q, keys, values, n, scale):
    """n keys drawn from a few distinct ones: k, v, and the exact (o, lse), which then needs few scores.

    A key that is there c times has c times the weight: its score gains log(c). So the truth for N x N scores costs
    N x `_DISTINCT`, and no N x N array exists on this side either.
    """
    pick = np.concatenate([np.arange(len(keys)), rng.integers(0, len(keys), n - len(keys))])
    rng.shuffle(pick)
    counts = np.bincount(pick, minlength=len(keys))
    q, distinct = q.astype(np.float64), keys.astype(np.float64)
    return (
        keys[pick],
        values[pick],
        _plain(_scores(q, distinct, scale) + np.log(counts), values.astype(np.float64)),
    )


def _memory_cases(rng, rung):
    d, tile = 16, 128
    # The last one gives all queries at once: rows of whole scores would then be N x N, tiles of keys still are not.
    for n, tile_q in ((512, tile), (2048, tile), (8192, tile), (8192, 8192)):
        keys, values = _normal(rng, _DISTINCT, d), _normal(rng, _DISTINCT, d)
        q = _normal(rng, n, d, scale=2.0)
        k, v, (o, lse) = _repeated(rng, q, keys, values, n, 1 / math.sqrt(d))
        expected = {"o": o, "lse": lse}
        floor = FLOOR["numpy"]["float64"]
        yield Case(
            f"N = {n}, tiles of {tile}" if tile_q == tile else f"N = {n}, all queries against tiles of {tile} keys",
            (q, k, v, tile_q, tile),
            expected,
            {key: budget(None, value, floor) for key, value in expected.items()},
            limit_bytes=_numpy_limit(n, d, tile if tile_q == tile else 2 * tile),
            size=n if tile_q == tile else None,  # not a point of the curve
        )


def _numpy_limit(n, d, tile, item=8):
    """What `flash_attention` may hold: linear in N.

    Four times inputs and outputs; four arrays of N x tile (a solution that takes all queries against one tile of keys is
    linear too; where the case asks for just that, twice as many); 8 MiB for what a process grows by whatever it does, since the grader measures it from outside. At
    N = 8192 that is 57 MiB, where one N x N array of float64 has 512.
    """
    return item * (4 * (4 * n * d + n) + 4 * n * tile) + 8 * 2**20


# ---------------------------------------------------------------------------------------------------------------
# 03.kernel.*


def _kernel_case(
    name, rng, rung, shape, blocks, causal=False, dtype="float32", edit=None, poison=None, wrong=None
):
    """One launch.

    Args:
        shape: (heads, q_len, kv_len, head_dim).
        blocks: (BLOCK_M, BLOCK_N).
        edit: a function that changes (q, k, v) before use, all of them (heads, len, head_dim).
        poison: "k" or "v": the memory behind the last head holds NaN there, else ordinary numbers. It belongs to no head,
            so that no expected value depends on it, and a load that forgot its mask reads it instead of foreign memory.
        wrong: further mistakes, a function of the scores without a mask, v, and the exact (o, lse).
    """
    heads, q_len, kv_len, d = shape
    block_m, block_n = blocks
    q, k, v = (
        _normal(rng, heads, q_len, d, scale=2.0),
        _normal(rng, heads, kv_len, d),
        _normal(rng, heads, kv_len, d),
    )
    scale = 1 / math.sqrt(d)
    if edit is not None:
        edit(q, k, v)
    narrow = np.float16 if dtype == "float16" else np.float32
    q, k, v = (x.astype(narrow).astype(np.float32) for x in (q, k, v))
    visible = _causal(q_len, kv_len) if causal else None
    full = _scores(q.astype(np.float64), k.astype(np.float64), scale)
    s = full if visible is None else np.where(visible, full, -np.inf)
    exact = _plain(s, v.astype(np.float64))
    plain_o, plain_lse = _plain(_scores(q, k, np.float32(scale), visible), v)
    floor = FLOOR[rung][dtype]
    expected = {"o": exact[0], "lse": exact[1]}
    tolerance = {
        "o": budget(plain_o.astype(narrow), exact[0], floor),
        "lse": budget(plain_lse, exact[1], FLOOR[rung]["float32"] if dtype == "float32" else floor),
    }

    def behind(x, name):
        """All heads in one row, and after them at least a tile that belongs to no head."""
        size = max(x.shape[1], block_m, block_n) * d
        rest = np.full(size, np.nan) if poison == name else _normal(np.random.default_rng(7), size)
        return np.concatenate([x.reshape(-1), rest.astype(narrow).astype(np.float32)])

    q_memory, k_memory, v_memory = behind(q, "q"), behind(k, "k"), behind(v, "v")

    def overrun():
        tiled = -(-kv_len // block_n) * block_n
        rows = np.arange(heads)[:, None] * kv_len + np.arange(tiled)
        k_read, v_read = (memory.reshape(-1, d)[rows].astype(np.float64) for memory in (k_memory, v_memory))
        return {"o": _plain(_scores(q.astype(np.float64), k_read, scale), v_read)[0]}

    def mistakes():
        found = {}
        if kv_len and (s.max(-1) > -np.inf).all():
            found |= _mistakes(s, v, block_n, scale, np.float32)
            found |= _rows_mistakes(s, v, block_m, block_n, exact, np.float32) | _lse_mistakes(s, exact[1])
            if kv_len % block_n and not causal:
                found["overrun"] = overrun()
        return found | (wrong(full, v, exact) if wrong else {})

    return Case(
        name,
        Launch(
            (-(-q_len // block_m), heads),
            (
                *(Tensor(memory, dtype) for memory in (q_memory, k_memory, v_memory)),
                "@o",
                "@lse",
                q_len,
                kv_len,
                scale,
            ),
            {"o": ((heads, q_len, d), dtype), "lse": ((heads, q_len), "float32")},
            {"HEAD_DIM": d, "BLOCK_M": block_m, "BLOCK_N": block_n, "CAUSAL": causal},
        ),
        expected,
        tolerance,
        mistakes,
    )


def _full_cases(rng, rung):
    # No two lengths are the same here: a transpose that is missing, or what runs along the wrong axis, doesn't fit.
    yield _kernel_case(
        "one head, one tile: 16 queries, 32 keys, head_dim 64", rng, rung, (1, 16, 32, 64), (16, 32)
    )

    def rising(q, k, v):
        k[0] = _rising(q[0, 0], k[0])

    n = 16 * _between(rng, 3, 5)
    yield _kernel_case(
        f"one head, {n} keys in tiles of 16, the scores rise",
        rng,
        rung,
        (1, 16, n, 16),
        (16, 16),
        edit=rising,
    )
    heads, q_len, kv_len = _between(rng, 2, 3), 16 * _between(rng, 2, 3), 32 * _between(rng, 2, 3)
    yield _kernel_case(
        f"{heads} heads, {q_len} queries, {kv_len} keys, tiles of 16 and 32",
        rng,
        rung,
        (heads, q_len, kv_len, 32),
        (16, 32),
    )
    yield _kernel_case("2 heads, head_dim 64, tiles of 32 and 16", rng, rung, (2, 32, 48, 64), (32, 16))

    def huge(q, k, v):
        k[0, _between(rng, 16, 47)] = _aim(q[0, _between(rng, 0, 15)], rng.uniform(300, 400), 0.25)

    yield _kernel_case("one score near 350", rng, rung, (1, 16, 48, 16), (16, 16), edit=huge)
    score = -_between(rng, 150, 200)
    yield _kernel_case(
        f"every score near {score}", rng, rung, (1, 16, 48, 16), (16, 16), edit=lambda q, k, v: _all_near(score, q, k)
    )
    yield _kernel_case("float16, 2 heads", rng, rung, (2, 16, 64, 32), (16, 32), dtype="float16")

    def small_beside_large(q, k, v):
        # The first key has exp(11) times the weight of any other, which float16 can't hold beside it; together the others count.
        _all_near(0, q, k)
        k[:, 1:] /= 4
        k[:, 0] = 0.0
        k[:, 0, 0] = 11.0
        v[...] = 1 + np.minimum(np.abs(v), 2) / 4

    n = 16 * _between(rng, 48, 64)
    yield _kernel_case(
        f"float16, one score near 11 and {n - 1} near 0",
        rng, rung, (1, 16, n, 16), (16, 16), dtype="float16", edit=small_beside_large, wrong=_first_tile_alone,
    )  # fmt: skip


def _first_tile_alone(s, v, exact):
    """What float16 holds of o when nothing that comes after the first tile of 16 keys is large enough to be added to it."""
    return {"o_narrow": {"o": np.exp(s[..., :16] - exact[1][..., None]) @ v[..., :16, :]}}


def _tails_cases(rng, rung):
    n = 16 * _between(rng, 1, 3) + _between(rng, 1, 15)
    yield _kernel_case(
        f"{n} keys in tiles of 16: the last tile is short", rng, rung, (2, 16, n, 32), (16, 16)
    )
    n = 16 + _between(rng, 1, 15)
    yield _kernel_case(
        f"{n} queries in tiles of 16: the last tile is short", rng, rung, (2, n, 32, 32), (16, 16)
    )
    yield _kernel_case("one query, one key", rng, rung, (1, 1, 1, 16), (16, 16))
    yield _kernel_case("17 queries, 100 keys, tiles of 16 and 32", rng, rung, (2, 17, 100, 32), (16, 32))
    n = _between(rng, 2, 15)
    yield _kernel_case(
        f"{n} keys, a tile of 32: the tile is larger than the sequence", rng, rung, (2, 16, n, 16), (16, 32)
    )


def _causal_mistakes(q_len, kv_len):
    def wrong(full, v, exact):
        masks = {
            "not_causal": np.ones((q_len, kv_len), bool),
            "causal_strict": _causal(q_len, kv_len, late=-1),
            "causal_late": _causal(q_len, kv_len, late=1),
            "top_left": _causal(q_len, kv_len, top_left=True),
            # (visible & column) <= row + ...: where every column is there, the number on the left is the column's last bit.
            "parentheses": np.arange(kv_len) % 2 <= np.arange(q_len)[:, None] + kv_len - q_len,
        }
        found = {name: {"o": _plain(np.where(mask, full, -np.inf), v)[0]} for name, mask in masks.items()}
        mask = np.arange(kv_len) <= np.arange(q_len)[:, None] + q_len - kv_len
        o, dead = _plain(np.where(mask, full, -np.inf), v)[0], ~mask.any(-1, keepdims=True)
        if not dead.all():  # rows that see nothing may have become NaN
            found["diagonal_sign"] = {"o": np.ma.array(o, mask=np.broadcast_to(dead, o.shape))}
        return found

    return wrong


def _causal_cases(rng, rung):
    def case(name, shape, blocks):
        return _kernel_case(name, rng, rung, shape, blocks, causal=True, wrong=_causal_mistakes(*shape[1:3]))

    n = 16 * _between(rng, 2, 3)
    yield case(f"{n} queries, {n} keys", (2, n, n, 16), (16, 16))
    extra = 16 * _between(rng, 1, 2)
    yield case(
        f"48 queries, {48 + extra} keys: the last query sees every key", (1, 48, 48 + extra, 16), (16, 16)
    )
    q_len = _between(rng, 17, 30)
    kv_len = q_len + _between(rng, 20, 40)
    yield case(
        f"{q_len} queries, {kv_len} keys, tiles of 16 and 32: both last tiles are short",
        (2, q_len, kv_len, 32),
        (16, 32),
    )
    kv_len = _between(rng, 33, 60)
    yield case(f"one query, {kv_len} keys: it sees them all", (2, 1, kv_len, 16), (16, 16))


def _nan_cases(rng, rung):
    kv_len = _between(rng, 5, 14)
    q_len = kv_len + _between(rng, 18, 24)

    def dead(full, v, exact):
        empty = ~_causal(q_len, kv_len).any(-1)[:, None]
        return _causal_mistakes(q_len, kv_len)(full, v, exact) | {
            "dead_rows": {"o": np.where(empty, np.nan, exact[0])},
            "uniform": {"o": np.where(empty, v.mean(-2, keepdims=True), exact[0])},
            # The places behind the last key count as well, with what a load gives there.
            "uniform_tile": {"o": np.where(empty, v.sum(-2, keepdims=True) / 16, exact[0])},
            "shift_kept": {"o": exact[0], "lse": np.where(empty[..., 0], 0.0, exact[1])},
        }

    yield _kernel_case(
        f"{q_len} queries, {kv_len} keys, causal: the first {q_len - kv_len} rows see no key",
        rng, rung, (2, q_len, kv_len, 16), (16, 16), causal=True, wrong=dead,
    )  # fmt: skip

    def nothing(full, v, exact):
        # With lse, since o alone is NaN as well when nothing was stored.
        return {"dead_rows": {"o": np.full_like(exact[0], np.nan), "lse": exact[1]}}

    yield _kernel_case("no keys at all", rng, rung, (2, 16, 0, 16), (16, 16), wrong=nothing)

    def poisoned(full, v, exact):
        return {"poisoned": {"o": np.full_like(exact[0], np.nan), "lse": exact[1]}}

    def rising(q, k, v):
        k[0] = _rising(q[0, -1], k[0])

    # Causal, because the diagonal alone hides what lies behind the last key: what is left to go wrong is the load.
    for where in ("k", "v"):
        n = 16 + _between(rng, 1, 15)
        yield _kernel_case(
            f"{n} keys in tiles of 16, NaN in memory behind the end of {where.upper()}",
            rng, rung, (1, n, n, 16), (16, 16), causal=True, edit=rising, poison=where, wrong=poisoned,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# 03.host, 03.host.memory


def _host_case(name, rng, rung, shape, causal=False, dtype="float32", edit=None):
    """One call. `shape`: (batch, heads, q_len, kv_len, head_dim). `edit`: a function that changes (q, k, v) before use."""
    *lead, q_len, kv_len, d = shape
    narrow = np.float16 if dtype == "float16" else np.float32
    q, k, v = (
        _normal(rng, *lead, q_len, d, scale=2.0),
        _normal(rng, *lead, kv_len, d),
        _normal(rng, *lead, kv_len, d),
    )
    if edit is not None:
        edit(q, k, v)
    q, k, v = (x.astype(narrow).astype(np.float32) for x in (q, k, v))
    scale = 1 / math.sqrt(d)
    visible = _causal(q_len, kv_len) if causal else None
    full = _scores(q.astype(np.float64), k.astype(np.float64), scale)
    s = full if visible is None else np.where(visible, full, -np.inf)
    exact = _plain(s, v.astype(np.float64))
    plain_o, plain_lse = _plain(_scores(q, k, np.float32(scale), visible), v)
    floor = FLOOR[rung][dtype]

    def unwritten(where):
        # What is held there is whatever was in that memory.
        return {"o": np.ma.array(exact[0], mask=np.broadcast_to(where, exact[0].shape))}

    def sharp(factor):
        # Scores as large as these are rounded in float32, which shows in a row where not one key alone has nearly all of the weight.
        large = s / scale * factor
        o, lse = _plain(large, v)
        rounded = np.exp(large.max(-1) - lse) < 0.98
        return {"o": np.ma.array(o, mask=np.broadcast_to(rounded[..., None], o.shape))}

    def mistakes():
        found = {
            "scale": {"o": _plain(s / scale, v)[0]},
            "scale_d": {"o": _plain(s * scale, v)[0]},
            "scale_is_d": sharp(d),
            "scale_root": sharp(math.sqrt(d)),
        }
        if lead[0] > 1:
            found["first_batch"] = unwritten(np.arange(lead[0])[:, None, None, None] > 0)
        if math.prod(lead) > 2:
            # Of a swapped grid two programs reach the heads, one for each tile of 64 queries; of three axes, one for each of batch 2.
            found["grid_axes"] = unwritten(np.arange(math.prod(lead)).reshape(*lead, 1, 1) > 1)
        if q_len % 64:
            found["grid_floor"] = unwritten(np.arange(q_len)[:, None] >= q_len // 64 * 64)
        if kv_len > q_len and not causal:
            # The heads lie one behind another, and each one begins where q's length says.
            rows = np.arange(math.prod(lead))[:, None] * q_len + np.arange(q_len)
            k_read, v_read = (x.reshape(-1, d)[rows].reshape(*lead, q_len, d).astype(np.float64) for x in (k, v))
            found["kv_from_q"] = {"o": _plain(_scores(q.astype(np.float64), k_read, scale), v_read)[0]}
        if dtype == "float16":
            found["lse_narrow"] = {"lse": exact[1].astype(np.float16)}
        return found | (_causal_mistakes(q_len, kv_len)(full, v, exact) if causal else {})

    return Case(
        name,
        (Tensor(q, dtype), Tensor(k, dtype), Tensor(v, dtype), causal),
        {"o": exact[0], "lse": exact[1]},
        {"o": budget(plain_o.astype(narrow), exact[0], floor), "lse": budget(plain_lse, exact[1], floor)},
        mistakes,
    )


def _host_cases(rng, rung):
    # Lengths are multiples of any usual block, so that a tail that is wrong costs its own check alone. But for q_len in one case, since a
    # grid that is rounded down passes without it: there a store without a mask costs this check as well.
    yield _host_case("batch 2, 3 heads, 128 queries and keys", rng, rung, (2, 3, 128, 128, 16))
    batch = _between(rng, 2, 3)
    yield _host_case(f"batch {batch}, 1 head, 128 queries, 256 keys", rng, rung, (batch, 1, 128, 256, 32))
    yield _host_case(
        "batch 1, 2 heads, 128 queries and keys, causal", rng, rung, (1, 2, 128, 128, 16), causal=True
    )
    q_len = _between(rng, 97, 111)
    yield _host_case(
        f"float16, batch 1, 2 heads, {q_len} queries, 128 keys",
        rng, rung, (1, 2, q_len, 128, 16), dtype="float16",
    )  # fmt: skip
    score = _between(rng, 66_000, 90_000)

    def large(q, k, v):
        # The score is 16 products of 32 and score / 128, times 1/4.
        q[0, 0, _between(rng, 0, 127)] = 32.0
        k[0, 0, _between(rng, 0, 127)] = score / 128

    yield _host_case(
        f"float16, one score near {score}", rng, rung, (1, 1, 128, 128, 16), dtype="float16", edit=large
    )
    if rung == "gpu":
        yield _host_case(
            "float16, batch 2, 4 heads, 512 queries and keys",
            rng,
            rung,
            (2, 4, 512, 512, 64),
            dtype="float16",
        )


def _host_memory_cases(rng, rung):
    d = 64
    for n in (8192, 32768):
        keys, values, q = (_normal(rng, m, d).astype(np.float16) for m in (_DISTINCT, _DISTINCT, n))
        k, v, (o, lse) = _repeated(rng, q, keys, values, n, 1 / math.sqrt(d))
        expected = {"o": o[None, None], "lse": lse[None, None]}
        floor = FLOOR[rung]["float16"]
        yield Case(
            f"N = {n}, float16: N x N scores would be {2 * n * n / 2**20:.0f} MiB",
            (*(Tensor(x[None, None], "float16") for x in (q, k, v)), False),
            expected,
            # o is rounded to float16 on its way out: half a unit in the last place, of numbers below 2.
            {key: budget(None, value, floor) for key, value in expected.items()},
            # Inputs and outputs four times over (as the NumPy check allows), and what the driver takes by itself for
            # loading the first kernel.
            limit_bytes=4 * 2 * 4 * n * d + 64 * 2**20,
            size=n,
        )


CHECKS = [
    Check("03.step", "one step of the recurrence", "function", _step_cases, HINTS),
    Check("03.step.masked", "one step when scores are masked", "function", _step_masked_cases, HINTS),
    Check("03.one_query", "one query over all its keys", "function", _one_query_cases, HINTS),
    Check("03.tiles", "tiles of queries against tiles of keys", "function", _tiles_cases, HINTS),
    Check("03.memory", "the peak while N grows", "function", _memory_cases, HINTS, seconds=120.0),
    Check("03.kernel.full", "the kernel on whole tiles", "kernel", _full_cases, HINTS, triton=True, seconds=60.0),
    Check("03.kernel.tails", "the kernel when a last tile is short", "kernel", _tails_cases, HINTS, triton=True, seconds=60.0),
    Check("03.kernel.causal", "the kernel with a causal mask", "kernel", _causal_cases, HINTS, triton=True, seconds=60.0),
    Check("03.kernel.nan", "the kernel where NaN may come from", "kernel", _nan_cases, HINTS, triton=True, seconds=60.0),
    Check(
        "03.host", "the function that allocates and launches", "function", _host_cases, HINTS,
        needs=("03.kernel.full",), triton=True, seconds=120.0,
    ),
    Check(
        "03.host.memory", "its memory on the GPU", "function", _host_memory_cases, HINTS,
        needs=("03.kernel.full",), gpu=True, triton=True, seconds=120.0,
    ),
]  # fmt: skip
