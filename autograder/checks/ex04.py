"""Exercise 04, masks and NaN: its checks, their inputs, and the mistakes that they recognise.

This file travels with the exercise, so it never walks over tiles: attention's truth is the plain formula with all scores
at once in float64, what a tile is follows from the mask of all its elements, and where a question is "which input breaks
this?" the truth is found by trying. Sizes are drawn from ranges, so the grader's cases are others than the public ones, of
the same kinds.

Shapes: masks `seen (..., q_len, kv_len)`; a step `s (rows, n)`, `v (n, dv)`; kernels `(heads, len, head_dim)`, where in the
last part the first axis is batch and heads in one. Output names are those of the exercise's text.
"""

import itertools
import math
from dataclasses import replace

import numpy as np

from autograder.checks.core import FLOOR, Case, Check, budget
from autograder.contestant import Launch, Tensor

HINTS = {
    "not_causal": "Every query sees every key up to its length, as if causal were off.",
    "causal_strict": "Every query misses its own last key: the diagonal itself is visible.",
    "causal_late": "Every query sees one key too many, the one after the diagonal.",
    "top_left": (
        "The diagonal starts at the first key. It has to end at the last one: a query i stands at key i + kv_len - q_len, "
        "so that the last query sees the last key."
    ),
    "keys_padding": (
        "Slots behind the last key count as keys. What lies there belongs to no token, so nobody may see it: compare with "
        "the length."
    ),
    "no_lengths": "Queries and keys count where no token stands: neither index is compared with its length.",
    "rows_padding": "Rows behind the last query see keys. There is no token in such a row, so it sees nothing.",
    "from_zero": (
        "The mask is that of the first queries and keys, whatever was asked for. A tile has indices of its own: use the values in "
        "i_q and i_k, and not only their shapes."
    ),
    "no_window": "The window hides nothing here: is it used at all?",
    "window_wide": "The window is one key too wide: a key that is exactly `window` away is hidden.",
    "window_narrow": "The window is one key too narrow: a key that is `window` - 1 away is seen.",
    "window_behind": (
        "Only keys behind the query's place are cut off. Without causal the window hides the far keys on both sides."
    ),
    "window_ahead": "Only keys ahead of the query's place are cut off; the window is there for those behind it, too.",
    "tail_full": (
        "A last tile of keys that is short came out as full. Its missing keys must not be seen, so it needs a mask: it is "
        "partial."
    ),
    "rows_full": (
        "A tile with rows behind the last query came out as full. No token stands in such a row, so it sees nothing, and the tile is "
        "partial."
    ),
    "no_empty": "Tiles in which nobody sees anything came out as partial. They are empty, and need not be loaded at all.",
    "reshaped": (
        "The reshape cut the table into runs of elements that are no tiles. It keeps the order of the elements: the queries become two "
        "axes, tile and place in it, and then the keys do."
    ),
    "no_full": "Tiles in which everybody sees everything came out as partial. They are full, and need no mask.",
    "stops_early": (
        "The walk ends one tile too early. The number of tiles that hold the keys 0 .. n - 1 is n / tile_k rounded *up*, and n "
        "is one more than the last key."
    ),
    "stops_late": "The walk ends one tile too late: nobody sees anything in its last tile.",
    "below_zero": (
        "The walk begins or ends before key 0. Cut it to the keys that exist before you count tiles, and where none is left the "
        "answer is (0, 0)."
    ),
    "begins_early": "The walk begins before the first tile that anybody sees.",
    "begins_late": "The walk begins too late: the first query sees keys further back than the last one does.",
    "hid_all": "That does give NaN, and hides more than it has to: with every score hidden there is nothing left to compute.",
    "hid_one": (
        "One hidden score is harmless as long as its tile has another one: the maximum is then finite. What has to be true of the "
        "maximum for the subtraction to fail?"
    ),
    "hid_largest": "With the largest score hidden, the next one is the maximum. Nothing breaks while there is a maximum at all.",
    "hid_last": (
        "When a hidden tile comes after a visible one, m is finite already: -inf minus a finite number is -inf, and exp of that is "
        "0. Where does m still have no finite value?"
    ),
    "no_guard": (
        "Rows that have seen nothing so far became NaN. Their new maximum is still -inf, and -inf minus -inf is NaN: what is "
        "subtracted has to be finite, in both exponentials."
    ),
    "shift_kept": (
        "m came out as 0 in rows that have seen nothing. That is the shift, which is there to be subtracted; the state keeps the maximum."
    ),
    "stand_in": (
        "Rows that see no key count the hidden ones: their scores were replaced by a large finite number, and relative to itself "
        "that number has weight 1. The value of a hidden score is -inf."
    ),
    "added_mask": (
        "Every score was kept and the mask was added to it. A hidden slot may hold NaN, and NaN + -inf is NaN: choose between the "
        "score and -inf, and compute nothing with what is hidden."
    ),
    "poisoned": (
        "NaN or an infinity in a slot that no row sees came through the product with v, where its weight is 0: 0 * NaN and 0 * inf are NaN. "
        "The weight can't stop it. Whatever lies in such a slot of v has to be replaced before the product."
    ),
    "wiped": (
        "NaN was made 0 in the result, and with it went all that the rows have seen. Look for what made it, and replace that before the "
        "product."
    ),
    "hushed": (
        "An infinity in a slot that is seen was replaced as well. Only what nobody may see is to be cleaned; what is seen has to "
        "show, or a broken model looks like a working one."
    ),
    "one_hidden": "Right for one hidden key. Here there are more, and each of them has the weight of the stand-in.",
    "highest": (
        "The shift was made for the largest visible score alone. All the visible keys together hold the other half of the "
        "weight: their sum of exponentials is what counts."
    ),
    "sign": "The size is right and the sign is not: do the visible scores have to go up or down to meet the stand-in?",
    "underflow": (
        "exp of a stand-in such as -1e6 is 0, and its logarithm is -inf. Take the logarithm of the product by hand: that of a product is "
        "a sum."
    ),
    "overflow": (
        "exp of a score near 1000 overflows. Take the logarithm of the sum of exponentials as you always do: relative to the "
        "maximum."
    ),
    "dead_rows": (
        "Rows that see no key, or stand behind the last query, are NaN. If they were stored, their m is still -inf: find the subtraction of "
        "two infinities and the division of 0 by 0. If they were not, the store stops too early: all of o is written."
    ),
    "uniform": (
        "Rows that may see no key came out as the mean of V: their scores were masked with a large finite number. The mask "
        "is -inf, and such a row gives 0."
    ),
    "rows_even": (
        "Rows behind the last query came out as a mean of V: their q is 0, so that all keys have the same score. No token stands in "
        "such a row, so the mask has to hide every key from it."
    ),
    "padded_lens": (
        "The diagonal was placed by the lengths of the tensors. It belongs to the lengths of this sequence: its last query sees "
        "its last key."
    ),
    "kernel_poisoned": (
        "NaN from behind the length reached the output, although its weight is 0. The load has to stop at the length of this "
        "sequence; the tensor goes on behind it."
    ),
    "visits_all": "Every tile of keys is visited, as if nothing were hidden: where does the loop end?",
    "behind_diagonal": (
        "An infinity in V, in a tile of keys that lies wholly behind the diagonal, made NaN of what must not see it: 0 * inf. Such a tile is "
        "not to be visited: where does the loop end?"
    ),
    "visits_causal": (
        "The loop ends at the length, and not at the diagonal: with CAUSAL the last query of this tile is the one that sees "
        "furthest."
    ),
    "visits_lens": "The loop ends at the diagonal of the whole tensor: the lengths of this sequence are not used.",
    "visits_padding": "A tile of queries that lies wholly behind the last query walks over the keys. It has nothing to compute.",
    "padded": (
        "The places behind the length were counted as keys with score 0. A load gives them the value 0, and a score of 0 is a score "
        "like any other: they need -inf."
    ),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# The truth, and what mistakes make of it


def _seen(
    i_q, i_k, q_len, kv_len, causal=False, window=None, *, late=0, top_left=False, rows=True, keys=True,
    behind=True, ahead=True,
):  # fmt: skip
    """The mask, and with a keyword that of a mistake.

    Args:
        late: the diagonal moved so far; top_left: aligned there.
        rows, keys: whether the length in queries, in keys counts.
        behind, ahead: whether the window cuts on that side.
    """
    far = i_k - i_q - (0 if top_left else kv_len - q_len)
    hidden = np.zeros(np.broadcast_shapes(np.shape(i_q), np.shape(i_k)), bool)
    if rows:
        hidden |= i_q >= q_len
    if keys:
        hidden |= i_k >= kv_len
    if causal:
        hidden |= far > late
    if window is not None and behind:
        hidden |= far <= -window
    if window is not None and ahead:
        hidden |= far >= window
    return ~hidden


def _square(q_len, kv_len, causal=False, window=None, **mistake):
    return _seen(np.arange(q_len)[:, None], np.arange(kv_len), q_len, kv_len, causal, window, **mistake)


def _plain(s, v):
    """Softmax over all scores at once, then the weighted sum: (o, lse). A row with no visible key gives (0, -inf)."""
    m, l, o = _state(s, v)  # noqa: E741 - the course's name for it
    with np.errstate(divide="ignore"):
        lse = np.where(m == -np.inf, s.dtype.type(0), m) + np.log(l)
    return o / np.where(l == 0, s.dtype.type(1), l)[..., None], lse


def _state(s, v):
    """(m, l, o) after all of the scores s (..., rows, n) and values v (..., n, dv)."""
    m = s.max(-1, initial=-np.inf)
    w = np.exp(s - np.where(m == -np.inf, s.dtype.type(0), m)[..., None])
    return m, w.sum(-1), w @ v


def _clean(v, seen):
    """v with 0 in the slots that no row sees."""
    return np.where(seen.any(-2)[..., None], v, v.dtype.type(0))


def _normal(rng, *shape, scale=1.0):
    return scale * rng.standard_normal(shape)


def _padded(s, v, extra):
    """The output if behind the keys there were `extra` more, of score 0 and value 0."""
    m, l, o = _state(s, v)  # noqa: E741
    return o / (l + extra * np.exp(-m))[..., None]


def _between(rng, low, high):
    return int(rng.integers(low, high + 1))


# ---------------------------------------------------------------------------------------------------------------
# 04.visible, 04.visible.window


def _mask_case(name, rows, keys, q_len, kv_len, causal, window, mistakes):
    """A tile of the mask: `rows` and `keys` are ranges of indices. `mistakes`: name -> keywords of `_seen`."""
    i_q, i_k = np.arange(*rows)[:, None], np.arange(*keys)

    def wrong():
        return {
            mistake: {
                "mask": _seen(i_q, i_k, q_len, kv_len, **({"causal": causal, "window": window} | changes))
            }
            for mistake, changes in mistakes.items()
        } | {
            "from_zero": {
                "mask": _seen(
                    i_q - rows[0] * (len(rows) - 1),
                    i_k - keys[0] * (len(keys) - 1),
                    q_len,
                    kv_len,
                    causal,
                    window,
                )
            }
        }

    return Case(
        name,
        (i_q, i_k, q_len, kv_len, causal, window),
        {"mask": _seen(i_q, i_k, q_len, kv_len, causal, window)},
        {"mask": 0.5},
        wrong,
    )


_DIAGONAL = {
    "not_causal": {"causal": False},
    "causal_strict": {"late": -1},
    "causal_late": {"late": 1},
    "top_left": {"top_left": True},
}


def _window_mistakes(window):
    return {
        "no_window": {"window": None},
        "window_wide": {"window": window + 1},
        "window_narrow": {"window": window - 1},
        "window_behind": {"ahead": False},
        "window_ahead": {"behind": False},
        "top_left": {"top_left": True},
    }


def _visible_cases(rng, rung):
    n = _between(rng, 5, 9)
    yield _mask_case(f"{n} queries, {n} keys, causal", (n,), (n,), n, n, True, None, _DIAGONAL)
    q_len = _between(rng, 2, 4)
    kv_len = q_len + _between(rng, 3, 6)
    yield _mask_case(
        f"{q_len} queries, {kv_len} keys, causal: the last query sees them all",
        (q_len,), (kv_len,), q_len, kv_len, True, None, _DIAGONAL,
    )  # fmt: skip
    kv_len = _between(rng, 2, 4)
    q_len = kv_len + _between(rng, 2, 4)
    yield _mask_case(
        f"{q_len} queries, {kv_len} keys, causal: the first {q_len - kv_len} see nothing",
        (q_len,), (kv_len,), q_len, kv_len, True, None, _DIAGONAL,
    )  # fmt: skip
    padding = {
        "keys_padding": {"keys": False},
        "rows_padding": {"rows": False},
        "no_lengths": {"keys": False, "rows": False},
    }
    q_len, kv_len = _between(rng, 5, 8), _between(rng, 6, 9)
    yield _mask_case(
        f"room for 10 queries and 12 keys, {q_len} and {kv_len} are there",
        (10,), (12,), q_len, kv_len, False, None, padding,
    )  # fmt: skip
    q_len, kv_len = _between(rng, 9, 11), _between(rng, 21, 23)
    yield _mask_case(
        f"one tile: queries 8 to 15, keys 16 to 23, of {q_len} and {kv_len}, causal",
        (8, 16), (16, 24), q_len, kv_len, True, None, _DIAGONAL | padding,
    )  # fmt: skip


def _window_cases(rng, rung):
    n, window = _between(rng, 9, 12), _between(rng, 3, 5)
    yield _mask_case(
        f"{n} queries and keys, causal, window {window}",
        (n,),
        (n,),
        n,
        n,
        True,
        window,
        _window_mistakes(window),
    )
    n, window = _between(rng, 9, 12), _between(rng, 2, 4)
    yield _mask_case(
        f"{n} queries and keys, window {window}, not causal",
        (n,),
        (n,),
        n,
        n,
        False,
        window,
        _window_mistakes(window),
    )
    q_len, window = _between(rng, 3, 5), _between(rng, 2, 4)
    kv_len = q_len + _between(rng, 4, 7)
    yield _mask_case(
        f"{q_len} queries, {kv_len} keys, causal, window {window}",
        (q_len,), (kv_len,), q_len, kv_len, True, window, _window_mistakes(window),
    )  # fmt: skip
    n = _between(rng, 4, 7)
    yield _mask_case(f"{n} queries and keys, window 1: each sees its own key", (n,), (n,), n, n, False, 1,
                     {"window_wide": {"window": 2}, "no_window": {"window": None}})  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# 04.tiles, 04.range


def _kinds(q_len, kv_len, tile_q, tile_k, causal, window, torn=False, **mistake):
    """0 empty, 1 partial, 2 full: (tiles of queries, tiles of keys). torn: of runs of elements in place of tiles, a mistake."""
    many_q, many_k = (-(-n // tile) for n, tile in ((q_len, tile_q), (kv_len, tile_k)))
    i_q, i_k = np.arange(many_q * tile_q)[:, None], np.arange(many_k * tile_k)
    seen = _seen(i_q, i_k, q_len, kv_len, causal, window, **mistake)
    shape, axes = (
        ((many_q, many_k, tile_q, tile_k), (2, 3)) if torn else ((many_q, tile_q, many_k, tile_k), (1, 3))
    )
    tiles = seen.reshape(shape)
    return np.where(tiles.all(axes), 2.0, np.where(tiles.any(axes), 1.0, 0.0))


def _tiles_case(name, q_len, kv_len, tile_q, tile_k, causal=False, window=None):
    call = (q_len, kv_len, tile_q, tile_k, causal, window)
    kinds = _kinds(*call)

    def wrong():
        found = {
            "rows_full": _kinds(*call, rows=False),
            "tail_full": _kinds(*call, keys=False),
            "no_empty": np.maximum(kinds, 1.0),
            "no_full": np.minimum(kinds, 1.0),
            "reshaped": _kinds(*call, torn=True),
        }
        for mistake in ("causal_strict", "causal_late", "top_left") if causal else ():
            found[mistake] = _kinds(*call, **_DIAGONAL[mistake])
        return {mistake: {"kinds": kinds} for mistake, kinds in found.items()}

    return Case(name, call, {"kinds": kinds}, {"kinds": 0.5}, wrong)


def _tiles_cases(rng, rung):
    n, tile = _between(rng, 3, 5), _between(rng, 4, 8)
    yield _tiles_case(
        f"{n * tile} queries and keys in tiles of {tile}, causal", n * tile, n * tile, tile, tile, True
    )
    tile, a, b = _between(rng, 4, 8), _between(rng, 2, 6), _between(rng, 2, 6)
    yield _tiles_case(
        f"{a * tile} queries, {b * tile} keys in tiles of {tile}, no mask", a * tile, b * tile, tile, tile
    )
    tile, a = _between(rng, 5, 8), _between(rng, 1, 5)
    n = _between(rng, 2, 5) * tile + _between(rng, 1, tile - 1)
    yield _tiles_case(
        f"{a * tile} queries, {n} keys in tiles of {tile}: the last is short", a * tile, n, tile, tile
    )
    b, n = _between(rng, 1, 5), _between(rng, 2, 5) * tile + _between(rng, 1, tile - 1)
    yield _tiles_case(
        f"{n} queries in tiles of {tile}, {b * tile} keys: the last is short", n, b * tile, tile, tile
    )
    q_len = 4 * _between(rng, 2, 4)
    kv_len = q_len + 4 * _between(rng, 2, 4) + 3  # the own key of a tile's first query ends a tile: it alone makes that tile full
    yield _tiles_case(f"{q_len} queries, {kv_len} keys, tiles of 4 and 8, causal", q_len, kv_len, 4, 8, True)
    kv_len = _between(rng, 6, 11)
    q_len = kv_len + _between(rng, 9, 14)
    yield _tiles_case(
        f"{q_len} queries, {kv_len} keys, tiles of 4, causal: rows without keys", q_len, kv_len, 4, 4, True
    )
    n, window = 4 * _between(rng, 6, 8), 4 * _between(rng, 1, 2) + 1  # with one key more, one tile more
    yield _tiles_case(
        f"{n} queries and keys in tiles of 4, causal, window {window}: a band", n, n, 4, 4, True, window
    )


def _range_case(name, first, last, q_len, kv_len, tile_k, causal, window=None, far=0):
    """The tiles of keys that queries first .. last visit.

    far: so many tiles of keys are put in front, which moves a band along with them: then the truth of sizes that nobody
    can try follows from one that was tried.
    """
    i_q = np.arange(first, last + 1)[:, None]
    many = -(-kv_len // tile_k)

    def walk(before=0, **changes):
        """before: so many tiles in front of key 0 count as keys, a mistake."""
        call = {"causal": causal, "window": window} | changes
        seen = _seen(i_q, np.arange(-before * tile_k, many * tile_k), q_len, kv_len, **call)
        tiles = np.flatnonzero(seen.reshape(len(seen), -1, tile_k).any((0, 2))) - before
        return (tiles[0], tiles[-1] + 1) if len(tiles) else (0, 0)

    def outputs(begin, end):
        moved_begin = begin + far if window is not None and end > begin else begin
        return {"begin": np.float64(moved_begin), "end": np.float64(end + far if end > begin else end)}

    begin, end = walk()

    def wrong():
        found = {"stops_early": (begin, end - 1), "stops_late": (begin, end + 1)}
        below = walk(before=-(-(q_len + kv_len) // tile_k))
        found["below_zero"] = (below[0] if window is not None else 0, below[1])
        if window is not None:
            found["window_behind"] = walk(ahead=False)
        if begin:
            found |= {"begins_early": (0, end), "begins_late": (begin + 1, end)}
        if causal:
            found |= {mistake: walk(**_DIAGONAL[mistake]) for mistake in _DIAGONAL}
        return {mistake: {"begin": np.float64(a), "end": np.float64(b)} for mistake, (a, b) in found.items()}

    expected = {key: np.asarray(value) for key, value in outputs(begin, end).items()}
    shift = far * tile_k
    return Case(
        name,
        (first, last, q_len, kv_len + shift, tile_k, causal, window),
        expected,
        {"begin": 0.5, "end": 0.5},
        None if far else wrong,  # hints compare with a relative tolerance, which is many tiles there
    )


def _range_cases(rng, rung):
    tile, n = _between(rng, 5, 9), _between(rng, 5, 12)
    first = tile * _between(rng, 1, n - 2)
    last = first + tile - 1
    yield _range_case(
        f"queries {first} to {last} of {n * tile}, tiles of {tile}, causal",
        first,
        last,
        n * tile,
        n * tile,
        tile,
        True,
    )
    n = tile * _between(rng, 3, 12) + _between(rng, 1, tile - 1)
    yield _range_case(f"{n} keys in tiles of {tile}, no mask: the last is short", 0, 3, 8, n, tile, False)
    for key, where in ((0, "first"), (tile - 1, "last")):
        last = _between(rng, 2, 5)
        q_len = last + _between(rng, 1, 4)
        kv_len = tile * _between(rng, 3, 20) + key - last + q_len
        yield _range_case(
            f"queries 0 to {last} of {q_len}, {kv_len} keys in tiles of {tile}, causal: they end at the {where} key of a tile",
            0, last, q_len, kv_len, tile, True,
        )  # fmt: skip
    window, first = tile + _between(rng, 2, tile - 1), tile * _between(rng, 3, 9)
    last, n = first + tile - 1, first + 6 * tile  # so long that the window ends before the keys do
    yield _range_case(
        f"queries {first} to {last} of {n}, tiles of {tile}, causal, window {window}",
        first,
        last,
        n,
        n,
        tile,
        True,
        window,
    )
    yield _range_case(
        "the same, not causal: the window has two sides", first, last, n, n, tile, False, window
    )
    for first, causal, rule in ((0, True, "causal"), (tile, False, "not causal")):
        last, n = first + tile * _between(rng, 1, 6) - 1, 11 * tile
        yield _range_case(
            f"queries {first} to {last} of {n}, tiles of {tile}, {rule}, window {window}: it reaches back beyond key 0",
            first, last, n, n, tile, causal, window,
        )  # fmt: skip
    n, more = _between(rng, 3, 6), _between(rng, 31, 40)  # several tiles before key 0
    yield _range_case(
        f"queries 0 to 3 of {n + more}, {n} keys in tiles of {tile}, causal: nothing to see, so (0, 0)",
        0, 3, n + more, n, tile, True,
    )  # fmt: skip
    window, far = _between(rng, 20, 60), 2**34 + _between(rng, 1, 1000)
    yield _range_case(
        f"over 2^40 keys in tiles of 64, causal, window {window}: too many to try",
        3,
        9,
        16,
        500,
        64,
        True,
        window,
        far,
    )
    yield _range_case("over 2^40 keys in tiles of 64, causal", 3, 9, 16, 500, 64, True, far=far)


# ---------------------------------------------------------------------------------------------------------------
# 04.nan.made, 04.nan.guard, 04.nan.padding


def _breaks(s, tile):
    """Whether the step without a guard, run over the tiles of s, ends in NaN: it is run."""
    m, l = -np.inf, 0.0  # noqa: E741
    with np.errstate(invalid="ignore"):
        for start in np.arange(0, len(s), tile):
            m_new = max(m, s[start : start + tile].max())
            l = np.exp(m - m_new) * l + np.exp(s[start : start + tile] - m_new).sum()  # noqa: E741
            m = m_new
    return bool(np.isnan(l))


def _hidden(s, which):
    s = s.copy()
    s[list(which)] = -np.inf
    return s


def _fewest(s, tile):
    """Every set of scores is hidden in turn, small ones first, until one breaks the step."""
    for many in range(1, len(s) + 1):
        for which in itertools.combinations(range(len(s)), many):
            if _breaks(_hidden(s, which), tile):
                return _hidden(s, which)
    raise AssertionError(f"nothing breaks {s} in tiles of {tile}")


def _made_cases(rng, rung):
    def case(name, n, tile):
        s = _normal(rng, n, scale=2.0)

        def wrong():
            found = {
                "hid_all": range(n),
                "hid_last": range((n - 1) // tile * tile, n),
                "hid_one": [0],
                "hid_largest": [int(s.argmax())],
            }
            return {mistake: {"s": _hidden(s, which)} for mistake, which in found.items()}

        return Case(name, (s, tile), {"s": _fewest(s, tile)}, {"s": 1e-12}, wrong)

    tile = _between(rng, 2, 3)
    yield case(f"{3 * tile} scores in tiles of {tile}", 3 * tile, tile)
    n = _between(rng, 9, 11)
    yield case(f"{n} scores in tiles of 4: the last is short", n, 4)
    n = _between(rng, 4, 6)
    yield case(f"{n} scores in tiles of 1", n, 1)
    n = _between(rng, 2, 4)
    yield case(f"{n} scores, a tile of 8: the tile is larger than the row", n, 8)


def _step_case(name, rng, rows, past, seen, nan_s=False, dirty_v=None, infinity=False):
    """One masked step for several rows.

    Args:
        past: (rows, n) booleans, what each row saw before; n may be 0.
        seen: (rows, n) booleans, what each row sees of this tile.
        nan_s: hidden scores are NaN.
        dirty_v: what values that nobody sees are, NaN or infinity.
        infinity: a value that every row sees is infinite.
    """
    dv = _between(rng, 3, 5)
    s, v = _normal(rng, *seen.shape, scale=2.0), _normal(rng, seen.shape[1], dv)
    before, values = (
        np.where(past, _normal(rng, *past.shape, scale=2.0), -np.inf),
        _normal(rng, past.shape[1], dv),
    )
    if infinity:
        v[int(np.flatnonzero(seen.all(0))[0]), 0] = np.inf
    state = _state(before, values)
    true_s = np.where(~seen, -np.inf, s)
    whole = np.concatenate([before, true_s], 1)
    m, l, o = _state(whole, np.concatenate([values, _clean(v, seen)]))  # noqa: E741
    given_s = np.where(seen, s, np.nan) if nan_s else s
    given_v = v if dirty_v is None else np.where(seen.any(0)[:, None], v, dirty_v)
    expected = {"m": m, "l": l, "o": o}

    def wrong():
        dead = m == -np.inf
        found = {}
        if dead.any():
            found["stand_in"] = {"l": np.where(dead, float(seen.shape[1]), l)}
            found["shift_kept"] = {"m": np.where(dead, 0.0, m), "l": l}
            found["no_guard"] = {"l": np.where(dead, np.nan, l), "o": np.where(dead[:, None], np.nan, o)}
        if nan_s:
            holes = ~seen.all(1)
            found["added_mask"] = {"m": np.where(holes, np.nan, m)}
        if dirty_v is not None:
            found["poisoned"] = {"l": l, "o": np.full_like(o, np.nan)}
            found["wiped"] = {"l": l, "o": np.zeros_like(o)}
        if infinity:
            # Whatever stands there in place of infinity.
            found["hushed"] = {"l": l, "o": np.ma.array(o, mask=np.isinf(o))}
        return found

    floor = FLOOR["numpy"]["float64"]
    return Case(
        name,
        (state, given_s, seen, given_v),
        expected,
        {key: budget(None, value, floor) for key, value in expected.items()},
        wrong,
        may_write=True,  # that a step leaves its state alone is exercise 03's business
    )


def _coin(rng, rows, n):
    """A random mask in which each row sees something and every slot is seen."""
    seen = rng.random((rows, n)) < 0.6
    seen[np.arange(rows), rng.integers(0, n, rows)] = True
    seen[rng.integers(0, rows, n), np.arange(n)] = True
    return seen


def _guard_cases(rng, rung):
    rows, n = _between(rng, 3, 5), _between(rng, 4, 7)
    yield _step_case(
        f"{rows} rows, {n} keys, some hidden, after another tile",
        rng,
        rows,
        _coin(rng, rows, 6),
        _coin(rng, rows, n),
    )
    rows, n = _between(rng, 3, 5), _between(rng, 4, 7)
    yield _step_case(
        f"{rows} rows, {n} keys, all hidden: the first tile",
        rng,
        rows,
        np.ones((rows, 0), bool),
        np.zeros((rows, n), bool),
    )
    yield _step_case(
        f"{rows} rows, {n} keys, all hidden, after another tile",
        rng,
        rows,
        _coin(rng, rows, 5),
        np.zeros((rows, n), bool),
    )
    rows = _between(rng, 4, 6)
    seen = _coin(rng, rows, n)
    seen[: rows // 2] = False
    yield _step_case(
        f"{rows} rows, the first {rows // 2} of them see no key: the first tile",
        rng,
        rows,
        np.ones((rows, 0), bool),
        seen,
    )
    past = _coin(rng, rows, 5)
    past[: rows // 2] = False
    yield _step_case(
        f"{rows} rows, the first {rows // 2} of them had seen nothing until now",
        rng,
        rows,
        past,
        _coin(rng, rows, n),
    )


def _padding_cases(rng, rung):
    def length(rows, n, there):
        return np.broadcast_to(np.arange(n) < there, (rows, n)).copy()

    rows, n = _between(rng, 3, 5), _between(rng, 6, 8)
    for what, dirt in (("NaN", np.nan), ("infinity", np.inf)):
        there = _between(rng, 2, n - 1)
        yield _step_case(
            f"{there} keys in a tile of {n}: {what} in v behind them",
            rng,
            rows,
            _coin(rng, rows, 4),
            length(rows, n, there),
            dirty_v=dirt,
        )
    there = _between(rng, 2, n - 1)
    yield _step_case(
        f"{there} keys in a tile of {n}: NaN in s behind them",
        rng,
        rows,
        _coin(rng, rows, 4),
        length(rows, n, there),
        nan_s=True,
    )
    seen = _coin(rng, rows, n)
    seen[:, [0, n - 2]] = False
    seen[:, 1] = True
    yield _step_case(
        "NaN in two slots that no row sees, in s and in v", rng, rows, _coin(rng, rows, 4), seen, True, np.nan
    )
    seen = length(rows, n, n - 1)
    yield _step_case(
        "an infinity in v that every row sees: it has to show",
        rng,
        rows,
        _coin(rng, rows, 4),
        seen,
        infinity=True,
    )


# ---------------------------------------------------------------------------------------------------------------
# 04.stand_in


def _leak(s, hidden, stand_in, t):
    """The weight that `hidden` masked keys get beside the visible scores s + t, with `stand_in` for -inf."""
    scores = np.concatenate([s + t, np.full(hidden, float(stand_in))])
    w = np.exp(scores - scores.max())
    return float(w[len(s) :].sum() / w.sum())


def _shift_by_trying(s, hidden, stand_in):
    """Bisection: the more the visible scores are shifted down, the more leaks."""
    span = 10 + float(np.abs(s).max()) + math.log(hidden) + math.log(len(s))
    low, high = stand_in - span, stand_in + span
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if _leak(s, hidden, stand_in, middle) < 0.5 else (middle, high)
    return (low + high) / 2


def _stand_in_cases(rng, rung):
    def case(name, s, hidden, stand_in):
        t = np.asarray(_shift_by_trying(s, hidden, stand_in))

        def wrong():
            top = s.max()
            lse = top + math.log(np.exp(s - top).sum())
            found = {
                "one_hidden": stand_in - lse,
                "highest": stand_in + math.log(hidden) - top,
                "sign": -t,
                "underflow": -np.inf,
                "overflow": stand_in + math.log(hidden) - np.log(np.exp(s).sum()),
            }
            del found["overflow" if np.isfinite(found["overflow"]) else "underflow"]  # both give -inf
            return {mistake: {"t": np.asarray(value)} for mistake, value in found.items()}

        # The scores are as large as the stand-in, and a double has 16 digits.
        return Case(name, (s, hidden, stand_in), {"t": t}, {"t": 1e-9 + 1e-14 * abs(stand_in)}, wrong)

    c = -1000.0 * _between(rng, 10, 90)
    yield case(f"one visible score of 0, one hidden key, {c:.0f}", np.zeros(1), 1, c)
    n, hidden = _between(rng, 4, 9), _between(rng, 3, 9)
    yield case(f"{n} visible scores, {hidden} hidden keys, -1e4", _normal(rng, n, scale=2.0), hidden, -1e4)
    n, hidden = _between(rng, 4, 9), _between(rng, 30, 90)
    yield case(f"{n} visible scores, {hidden} hidden keys, -1e6", _normal(rng, n, scale=2.0), hidden, -1e6)
    n, hidden = _between(rng, 4, 9), _between(rng, 3, 9)
    yield case(
        f"{n} visible scores near 1000, {hidden} hidden keys, -5e4", 1000 + _normal(rng, n), hidden, -5e4
    )


# ---------------------------------------------------------------------------------------------------------------
# Kernels: what all of their cases share


def _narrow(x, dtype):
    """x as numbers of `dtype`, in float32."""
    return x.astype(np.float16 if dtype == "float16" else np.float32).astype(np.float32)


def _memory(x, dtype, room):
    """All heads in one row, and behind them numbers that belong to no head, for loads without a mask."""
    rest = _normal(np.random.default_rng(7), max(room, x.shape[1]) * x.shape[2])
    return Tensor(np.concatenate([x.reshape(-1), _narrow(rest, dtype)]), dtype)


def _attention_case(name, rung, q, k, v, seen, launch, dtype="float32", wrong=None):
    """One launch of an attention kernel whose outputs are o and lse.

    Args:
        q, k, v: (heads, len, head_dim), float32 numbers of `dtype`; hidden slots may hold NaN.
        seen: (heads or 1, q_len, kv_len), the mask.
        launch: a function of a dict with the outputs o and lse that gives the `Launch`.
        wrong: a function of (scores without a mask, v, exact o) -> mistakes. There hidden slots are 0 in place of NaN.
    """
    heads, q_len, d = q.shape
    scale = 1 / math.sqrt(d)
    seen = np.broadcast_to(seen, (heads, *seen.shape[1:]))
    clean_q, clean_k, clean_v = (np.where(np.isnan(x), np.float32(0), x) for x in (q, k, v))
    wide_q, wide_k, wide_v = (x.astype(np.float64) for x in (clean_q, clean_k, clean_v))
    full = scale * (wide_q @ np.swapaxes(wide_k, 1, 2))
    exact = _plain(np.where(seen, full, -np.inf), wide_v)
    plain = _plain(
        np.where(seen, np.float32(scale) * (clean_q @ np.swapaxes(clean_k, 1, 2)), np.float32(-np.inf)),
        clean_v,
    )
    floor = FLOOR[rung][dtype]
    return Case(
        name,
        launch({"o": ((heads, q_len, d), dtype), "lse": ((heads, q_len), "float32")}),
        {"o": exact[0], "lse": exact[1]},
        {"o": budget(_narrow(plain[0], dtype), exact[0], floor), "lse": budget(plain[1], exact[1], floor)},
        None if wrong is None else lambda: wrong(full, wide_v, exact[0]),
    )


def _unseen(seen, v, exact, blocks, skips=True):
    """Mistakes in the rows that see no key, for masks `seen (heads or 1, q_len, kv_len)`.

    skips: a tile of queries without any key may have been skipped, and is right then.
    """
    empty = np.broadcast_to(~seen.any(-1)[..., None], (*exact.shape[:2], 1))
    rows = exact.shape[1]
    whole = np.logical_and.reduceat(empty, np.arange(0, rows, blocks[0]), 1)
    skipped = np.broadcast_to(np.repeat(whole, blocks[0], 1)[:, :rows] & skips, exact.shape)
    mean = v.sum(-2, keepdims=True) / (
        -(-v.shape[1] // blocks[1]) * blocks[1]
    )  # loads give 0 behind the last key
    return {
        mistake: {"o": np.ma.array(np.where(empty, value, exact), mask=skipped)}
        for mistake, value in (("dead_rows", np.nan), ("uniform", mean))
    }


def _by_mask(masks):
    """Mistakes that are another mask: name -> mask."""
    return lambda full, v, exact: {
        name: {"o": _plain(np.where(mask, full, -np.inf), v)[0]} for name, mask in masks.items()
    }


# ---------------------------------------------------------------------------------------------------------------
# 04.bug.*: three broken kernels. What each does before it is mended gives no hint: finding that out is the exercise.


def _inputs(rng, heads, q_len, kv_len, d, dtype="float32"):
    return (
        _narrow(_normal(rng, heads, q_len, d, scale=2.0), dtype),
        _narrow(_normal(rng, heads, kv_len, d), dtype),
        _narrow(_normal(rng, heads, kv_len, d), dtype),
    )


def _bug_case(name, rng, rung, shape, blocks, numbers, seen, wrong, poison="", dirt=np.nan, infinite=None):
    """A launch of a broken kernel.

    Args:
        numbers: its integers after the five pointers.
        poison: "k" or "v" is `dirt` where hidden.
        infinite: the first value of this key, which somebody sees, is infinite.
    """
    heads, q_len, kv_len, d = shape
    q, *clean = _inputs(rng, *shape)
    unseen = ~seen.any(-2)[..., None]
    k, v = (
        np.where(unseen & (letter == poison), np.float32(dirt), x)
        for letter, x in zip("kv", clean, strict=True)
    )
    if infinite is not None:
        v[:, infinite, 0] = np.inf

    def launch(outputs):
        return Launch(
            (-(-q_len // blocks[0]), heads),
            (
                *(_memory(x, "float32", max(blocks)) for x in (q, k, v)),
                "@o",
                "@lse",
                *numbers,
                1 / math.sqrt(d),
            ),
            outputs,
            {"HEAD_DIM": d, "BLOCK_M": blocks[0], "BLOCK_N": blocks[1]},
        )

    case = _attention_case(name, rung, q, *clean, seen, launch, wrong=wrong)
    if infinite is not None:  # it shows in the rows that see it, and in no other
        case.expected["o"][..., 0][np.broadcast_to(seen[..., infinite], (heads, q_len))] = np.inf
    return case


def _edge_cases(rng, rung):
    def case(name, heads, q_len, kv_len, blocks, infinite=None):
        masks = {
            mistake: _square(q_len, kv_len, **({"causal": True} | _DIAGONAL[mistake]))
            for mistake in _DIAGONAL
        }

        def behind(full, v, exact):
            spoilt = exact.copy()
            spoilt[..., 0] = np.where(np.isinf(exact[..., 0]), np.inf, np.nan)
            return {"behind_diagonal": {"o": spoilt}}

        return _bug_case(
            name, rng, rung, (heads, q_len, kv_len, 16), blocks, (q_len, kv_len), _square(q_len, kv_len, True)[None],
            _by_mask(masks) if infinite is None else behind, infinite=infinite,
        )  # fmt: skip

    n = 16 * _between(rng, 2, 3)
    yield case(f"{n} queries, {n} keys", 2, n, n, (16, 16))
    n = _between(rng, 18, 30)
    yield case(f"{n} queries, {n} keys", 1, n, n, (16, 16))
    n = 16 * _between(rng, 1, 3)
    yield case(f"32 queries, {32 + n} keys", 1, 32, 32 + n, (16, 16))
    n = 16 * _between(rng, 1, 2) + 1  # the last query and the last key have tiles of their own
    yield case(
        f"{n} queries, {n} keys, an infinity in V that the last query alone sees", 1, n, n, (16, 16), n - 1
    )
    n = 33 + 16 * _between(rng, 0, 1)
    yield case(f"32 queries, {n} keys", 2, 32, n, (16, 16))
    n = 33 + 32 * _between(rng, 0, 1)
    yield case(f"32 queries, {n} keys, tiles of 16 and 32", 1, 32, n, (16, 32))


def _cache_cases(rng, rung):
    def case(name, heads, q_len, room, used, poison="", **dirt):
        seen = np.broadcast_to(np.arange(room) < used, (1, q_len, room))

        def wrong(full, v, exact):
            tiled = -(-used // 16) * 16
            if dirt.get("infinite") is not None:  # whatever stands there in place of infinity
                return {"hushed": {"o": np.ma.array(exact, mask=np.isinf(exact))}}
            found = {"padded": {"o": _padded(full[..., :used], v[:, :used], tiled - used)}}
            return (
                found
                if poison
                else found | _by_mask({"keys_padding": np.arange(room) < tiled})(full, v, exact)
            )

        return _bug_case(
            name, rng, rung, (heads, q_len, room, 16), (16, 16), (q_len, room, used), seen, wrong, poison, **dirt
        )  # fmt: skip

    room = 16 * _between(rng, 3, 4)
    yield case(f"{room} slots, all in use", 2, 16, room, room)
    used = 16 * _between(rng, 1, 2) + _between(rng, 1, 15)
    yield case(f"{room} slots, {used} in use, old numbers behind them", 2, 16, room, used)
    used = 16 * _between(rng, 1, 2)
    yield case(f"{room} slots, {used} in use, NaN in V behind them", 1, 16, room, used, "v")
    used = 16 * _between(rng, 1, 2) + _between(rng, 1, 15)
    yield case(f"{room} slots, {used} in use, NaN in K behind them", 1, 16, room, used, "k")
    used = 16 * _between(rng, 1, 2) + _between(rng, 1, 15)
    yield case(f"{room} slots, {used} in use, an infinity in V in one of these: it has to show", 1, 16, room, used,
               infinite=_between(rng, 0, used - 1))  # fmt: skip
    used = 16 * _between(rng, 1, 2) + _between(rng, 1, 15)
    yield case(f"{room} slots, {used} in use, NaN in V behind them", 2, 17, room, used, "v")
    used = 16 * _between(rng, 1, 2) + _between(rng, 1, 15)
    yield case(f"{room} slots, {used} in use, infinity in V behind them", 1, 16, room, used, "v", dirt=np.inf)


def _band_cases(rng, rung):
    def case(name, heads, q_len, kv_len, window, blocks=(16, 16)):
        causal = _square(q_len, kv_len, True)
        masks = {
            "no_window": causal,
            "window_wide": _square(q_len, kv_len, True, window + 1),
            "window_narrow": _square(q_len, kv_len, True, window - 1),
        }
        seen = _square(q_len, kv_len, True, window)[None]

        def wrong(full, v, exact):
            # NaN gives no hint: that is what the broken kernel has.
            uniform = {"uniform": _unseen(seen, v, exact, blocks)["uniform"]}
            return _by_mask(masks)(full, v, exact) | (uniform if q_len > kv_len else {})

        return _bug_case(
            name, rng, rung, (heads, q_len, kv_len, 16), blocks, (q_len, kv_len, window), seen, wrong
        )  # fmt: skip

    n = 16 * _between(rng, 2, 3)
    yield case(f"{n} queries and keys, window {n}: it hides nothing", 1, n, n, n)
    n = _between(rng, 2, 14)
    yield case(f"16 queries and keys, window {n}: one tile", 1, 16, 16, n)
    n = _between(rng, 2, 14)
    yield case(f"48 queries and keys, window {n}", 2, 48, 48, n)
    extra, n = _between(rng, 5, 25), _between(rng, 2, 14)
    yield case(
        f"32 queries, {32 + extra} keys, window {n}, tiles of 32 and 16", 1, 32, 32 + extra, n, (32, 16)
    )
    kv_len = _between(rng, 5, 14)
    q_len, n = kv_len + _between(rng, 17, 20), _between(rng, 2, 14)
    yield case(
        f"{q_len} queries, {kv_len} keys, window {n}: the first {q_len - kv_len} rows see no key",
        1,
        q_len,
        kv_len,
        n,
    )


# ---------------------------------------------------------------------------------------------------------------
# 04.kernel.*


def _ragged(q_lens, kv_lens, q_len, kv_len, causal, **mistake):
    """(sequences, q_len, kv_len): the mask of a padded batch."""
    i_q, i_k = np.arange(q_len)[:, None], np.arange(kv_len)
    return np.stack([_seen(i_q, i_k, a, b, causal, **mistake) for a, b in zip(q_lens, kv_lens, strict=True)])


def _masked_launch(q, k, v, lens, heads, blocks, causal, dtype, outputs):
    """A launch of the exercise's kernel. What is not an output is scratch memory."""
    rows, q_len, d = q.shape
    tiles = -(-q_len // blocks[0])
    scratch = {"o": q.shape, "lse": q.shape[:2], "visited": (rows, tiles)}
    results = (
        f"@{name}"
        if name in outputs
        else Tensor(np.zeros(shape, np.float32), dtype if name == "o" else "float32")
        for name, shape in scratch.items()
    )
    return Launch(
        (tiles, rows),
        (
            *(_memory(x, dtype, max(blocks)) for x in (q, k, v)),
            *(Tensor(np.array(n, np.int32), "int32") for n in lens),
            *results,
            heads,
            q_len,
            k.shape[1],
            1 / math.sqrt(d),
        ),
        outputs,
        {"HEAD_DIM": d, "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "CAUSAL": causal},
    )


def _kernel_case(
    name,
    rng,
    rung,
    lens,
    room,
    heads=1,
    causal=False,
    blocks=(16, 16),
    d=16,
    dtype="float32",
    poison="",
):
    """A padded batch.

    Args:
        lens: (q_lens, kv_lens), one of each for a sequence.
        room: (q_len, kv_len) of the tensors.
        poison: letters of "qkv": all that is hidden in these is NaN, else ordinary numbers.
    """
    seen = np.repeat(_ragged(*lens, *room, causal), heads, 0)
    q, k, v = _inputs(rng, len(seen), *room, d, dtype)
    real = [np.repeat(np.array(n), heads) for n in lens]
    there = [np.arange(size) < n[:, None] for size, n in zip(room, real, strict=True)]
    q, k, v = (
        np.where(alive[..., None] | (letter not in poison), x, np.float32(np.nan))
        for letter, x, alive in (("q", q, there[0]), ("k", k, there[1]), ("v", v, there[1]))
    )

    def masks():
        found = {"keys_padding": {"keys": False}, "rows_padding": {"rows": False}}
        if causal:
            found |= _DIAGONAL
        found = {
            mistake: np.repeat(_ragged(*lens, *room, **({"causal": causal} | changes)), heads, 0)
            for mistake, changes in found.items()
        }
        if causal:  # the diagonal of the tensors, cut off at the lengths
            found["padded_lens"] = np.repeat(_ragged(*lens, *room, False), heads, 0) & _square(*room, True)
        return found

    def launch(outputs):
        return _masked_launch(q, k, v, lens, heads, blocks, causal, dtype, outputs)

    def mistakes(full, v, exact):
        found = _by_mask(masks())(full, v, exact)
        if not causal:
            extra = (-real[1] % blocks[1])[:, None]
            found["padded"] = {"o": _padded(np.where(seen, full, -np.inf), v, extra)}
        if not seen.any(-1).all():
            found |= _unseen(seen, v, exact, blocks, causal)
            mask = np.repeat(_ragged(*lens, *room, causal, rows=False), heads, 0)
            even = _plain(np.where(mask, 0.0, -np.inf), v)[0]
            rows = np.where(there[0][..., None], exact, even)
            found["rows_even"] = {"o": np.ma.array(rows, mask=np.ma.getmaskarray(found["dead_rows"]["o"]))}
        if set(poison) & {"k", "v"}:
            hurt = (real[1] < room[1])[:, None, None]
            found["kernel_poisoned"] = {"o": np.where(hurt, np.nan, exact)}
        return found

    return _attention_case(name, rung, q, k, v, seen, launch, dtype, mistakes)


def _ragged_cases(rng, rung):
    n = 16 * _between(rng, 2, 3)
    yield _kernel_case(
        f"one sequence of {n} queries and keys, causal", rng, rung, ([n], [n]), (n, n), causal=True
    )
    extra = 16 * _between(rng, 1, 2) + 1
    yield _kernel_case(
        f"one sequence, 32 queries, {32 + extra} keys, causal, 2 heads",
        rng, rung, ([32], [32 + extra]), (32, 32 + extra), heads=2, causal=True,
    )  # fmt: skip
    lens = [_between(rng, 17, 40), 48, _between(rng, 1, 15)]
    yield _kernel_case(
        f"3 sequences with {lens[0]}, {lens[1]} and {lens[2]} of 48 keys, 2 heads",
        rng, rung, ([16] * 3, lens), (16, 48), heads=2,
    )  # fmt: skip
    lens = [40, _between(rng, 17, 31), _between(rng, 2, 15)]
    yield _kernel_case(
        f"3 sequences of {lens[0]}, {lens[1]} and {lens[2]} tokens, causal, tiles of 16 and 32",
        rng, rung, (lens, lens), (40, 40), causal=True, blocks=(16, 32),
    )  # fmt: skip
    q_lens = [_between(rng, 2, 15), 24]
    # At most 8 keys more: then the walk as it should be reaches every key, and a diagonal in a wrong place is all that differs.
    kv_lens = [q_lens[0] + _between(rng, 10, 20), 24 + _between(rng, 3, 8)]
    yield _kernel_case(
        f"2 sequences, {q_lens[0]} queries on {kv_lens[0]} keys and {q_lens[1]} on {kv_lens[1]}, causal, 2 heads",
        rng, rung, (q_lens, kv_lens), (24, 48), heads=2, causal=True,
    )  # fmt: skip
    n = _between(rng, 17, 31)
    yield _kernel_case(
        f"float16, sequences of 48 and {n} tokens, causal", rng, rung, ([48, n], [48, n]), (48, 48),
        causal=True, d=32, dtype="float16",
    )  # fmt: skip


def _kernel_nan_cases(rng, rung):
    kv_len = _between(rng, 5, 14)
    q_len = kv_len + _between(rng, 17, 20)
    lens = ([q_len], [kv_len])
    yield _kernel_case(
        f"{q_len} queries, {kv_len} keys, causal: the first {q_len - kv_len} rows see no key",
        rng, rung, lens, (q_len, kv_len), heads=2, causal=True,
    )  # fmt: skip
    lens = ([16] * 3, [_between(rng, 5, 15), 0, 20])
    yield _kernel_case(
        f"3 sequences with {lens[1][0]}, 0 and 20 keys",
        rng,
        rung,
        lens,
        (16, 20),
    )
    for letter in "kv":
        n = 16 + _between(rng, 1, 15)
        yield _kernel_case(
            f"{n} and 48 of 48 keys, NaN in {letter.upper()} behind the length",
            rng, rung, ([16, 16], [n, 48]), (16, 48), poison=letter,
        )  # fmt: skip
    n = _between(rng, 3, 14)
    yield _kernel_case(
        f"{n} and 16 of 16 queries, NaN in Q behind the length",
        rng,
        rung,
        ([n, 16], [32, 20]),
        (16, 32),
        poison="q",
    )


def _visits_case(name, rng, rung, lens, room, heads=1, causal=False, blocks=(16, 16)):
    def visited(seen):
        """How many tiles of keys each tile of queries has anything to see in, (sequences, tiles of queries)."""
        whole = [-(-n // block) * block for n, block in zip(room, blocks, strict=True)]
        padded = np.zeros((len(seen), *whole), bool)
        padded[:, : room[0], : room[1]] = seen
        tiles = padded.reshape(len(seen), whole[0] // blocks[0], blocks[0], whole[1] // blocks[1], blocks[1])
        return np.repeat(tiles.any((2, 4)).sum(-1), heads, 0).astype(np.float64)

    masks = _ragged(*lens, *room, causal)
    count = visited(masks)
    most = -(-room[1] // blocks[1])
    first = np.arange(count.shape[1]) * blocks[0]
    behind = first >= np.repeat(np.array(lens[0]), heads)[:, None]
    by_length = np.repeat(-(-np.array(lens[1]) // blocks[1]), heads)[:, None]

    def wrong(full, v, exact):
        found = {
            "visits_all": np.full_like(count, most),
            "visits_causal": np.where(behind, 0.0, by_length),
            "visits_lens": np.broadcast_to(visited(_square(*room, causal)[None])[:1], count.shape),
            "visits_padding": np.where(behind, by_length, count),
            "stops_early": visited(_ragged(*lens, *room, causal, late=-1)),
            "stops_late": visited(_ragged(*lens, *room, causal, late=1)),
            "padded_lens": visited(_ragged(*lens, *room, False) & _square(*room, causal)),
        }
        return {mistake: {"visited": tiles} for mistake, tiles in found.items()}

    q, k, v = _inputs(rng, len(count), *room, 16)

    def launch(outputs):
        outputs = {"visited": (count.shape, "float32"), "o": outputs["o"]}
        return _masked_launch(q, k, v, lens, heads, blocks, causal, "float32", outputs)

    case = _attention_case(name, rung, q, k, v, np.repeat(masks, heads, 0), launch, wrong=wrong)
    return replace(
        case,
        expected={"visited": count, "o": case.expected["o"]},
        tolerance={"visited": 0.5, "o": case.tolerance["o"]},
    )


def _skips_cases(rng, rung):
    def case(name, lens, room, **options):
        return _visits_case(name, rng, rung, lens, room, **options)

    n = 16 * _between(rng, 3, 5)
    yield case(f"one sequence of {n} queries and keys, causal", ([n], [n]), (n, n), causal=True)
    q_len = _between(rng, 17, 40)
    kv_len = q_len + _between(rng, 10, 30)
    yield case(f"{q_len} queries, {kv_len} keys, causal", ([q_len], [kv_len]), (q_len, kv_len), causal=True)
    lens = [_between(rng, 1, 64), 0, _between(rng, 1, 64)]
    yield case(
        f"3 sequences with {lens[0]}, 0 and {lens[2]} of 64 keys, 2 heads",
        ([16] * 3, lens),
        (16, 64),
        heads=2,
    )
    lens = [64, _between(rng, 17, 64), _between(rng, 2, 32)]  # the last has one tile of keys, also where the tensor's diagonal has two
    yield case(
        f"3 sequences of {lens[0]}, {lens[1]} and {lens[2]} tokens, causal, tiles of 16 and 32",
        (lens, lens), (64, 64), causal=True, blocks=(16, 32),
    )  # fmt: skip
    kv_len = _between(rng, 5, 45)
    q_len = kv_len + _between(rng, 17, 60)
    yield case(
        f"{q_len} queries on {kv_len} keys, causal: the first tiles see nothing", ([q_len], [kv_len]), (q_len, kv_len),
        causal=True,
    )  # fmt: skip
    n = 32 + 16 * _between(rng, 0, 2) + 1
    yield case(
        f"32 queries, {n} keys, causal: one key reaches into the next tile", ([32], [n]), (32, n), causal=True
    )


_KERNEL = {"hints": HINTS, "triton": True, "seconds": 60.0}
CHECKS = [
    Check("04.visible", "who sees whom: causal, ragged", "function", _visible_cases, HINTS),
    Check("04.visible.window", "who sees whom: a sliding window", "function", _window_cases, HINTS),
    Check("04.tiles", "empty, partial and full tiles", "function", _tiles_cases, HINTS),
    Check("04.range", "the tiles that a tile of queries visits", "function", _range_cases, HINTS, seconds=10.0),
    Check("04.nan.made", "the fewest hidden scores that give NaN", "function", _made_cases, HINTS),
    Check("04.nan.guard", "a masked step that gives none", "function", _guard_cases, HINTS),
    Check("04.nan.padding", "a masked step beside NaN", "function", _padding_cases, HINTS),
    Check("04.stand_in", "the shift that fools a finite mask", "function", _stand_in_cases, HINTS),
    Check("04.bug.edge", "the first broken kernel", "kernel", _edge_cases, **_KERNEL),
    Check("04.bug.cache", "the second broken kernel", "kernel", _cache_cases, **_KERNEL),
    Check("04.bug.band", "the third broken kernel", "kernel", _band_cases, **_KERNEL),
    Check("04.kernel.ragged", "the kernel on causal and ragged batches", "kernel", _ragged_cases, **_KERNEL),
    Check("04.kernel.nan", "the kernel where NaN may come from", "kernel", _kernel_nan_cases, **_KERNEL),
    Check("04.kernel.skips", "the tiles that it visits", "kernel", _skips_cases, needs=("04.kernel.ragged",), **_KERNEL),
]  # fmt: skip
