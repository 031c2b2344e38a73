"""The masks simulator: a ragged batch as a map of tiles, and what one query's state goes through, guarded or not.

`kinds`, `trace` and `outputs` are the arithmetic; `masks.js` holds the same, and `tests/site/test_masks.py` compares
both with `kernels.reference`.
"""

# ruff: noqa: E741  (l is the running sum, in the papers and all through the course)

from __future__ import annotations

import math
from pathlib import Path

import traitlets

from widgets.base import NUMBERS, Setting, Widget, checked_bool, checked_choice, checked_int, style

HERE = Path(__file__).parent

SLOTS = 12  # of queries and of keys that each sequence has room for
TILES = (2, 3, 4, 6)
HIDDEN = {"-inf": -math.inf, "-1e4": -1e4}

# name -> (label, (queries, keys) of each sequence, what is added to every score)
BATCHES = {
    "ragged": ("ragged", ((12, 12), (4, 10), (7, 3)), 0.0),
    "square": ("padded, square", ((12, 12), (8, 8), (5, 5)), 0.0),
    "chunks": ("chunks and decode", ((4, 12), (2, 9), (1, 12)), 0.0),
    "empty": ("one without keys", ((12, 12), (6, 0), (3, 7)), 0.0),
    "low": ("very low scores", ((12, 12), (4, 10), (7, 3)), -20_000.0),
}

# The same for all batches, so that only the mask differs between two of them: scores (3, 12, 12), one number as the
# value of each key (3, 12). What lies beyond a sequence's keys is what an earlier request left there.
SCORES = [
    [[round(2 * math.cos(1.7 * i + 2.3 * j + b), 2) for j in range(SLOTS)] for i in range(SLOTS)]
    for b in range(3)
]
VALUES = [[round(5 + 4 * math.cos(0.9 * j + 2 * b), 1) for j in range(SLOTS)] for b in range(3)]


def visible(i: int, j: int, queries: int, keys: int, causal: bool, window: int | None) -> bool:
    """May query i see key j? Aligned at the bottom right: the last query stands at the last key."""
    ahead = j - (i + keys - queries)
    seen = i < queries and j < keys and not (causal and ahead > 0)
    return seen and (window is None or abs(ahead) < window)


def kinds(batch="ragged", causal=True, window=6, tile=3) -> list[list[list[str]]]:
    """ "full", "partial" or "empty", for each sequence, tile of queries and tile of keys, padding included."""
    starts = range(0, SLOTS, tile)

    def kind(lengths, row, column):
        cells = [
            visible(i, j, *lengths, causal, window)
            for i in range(row, row + tile)
            for j in range(column, column + tile)
        ]
        return "full" if all(cells) else "partial" if any(cells) else "empty"

    return [[[kind(own, row, column) for column in starts] for row in starts] for own in BATCHES[batch][1]]


def step(state, s, v, guard=True):
    """(m, l, o) after one tile: scores s and values v, one number each. Without the guard, -inf - (-inf) is NaN."""
    old, l, o = state
    m = max(old, *s)
    shift = 0.0 if guard and m == -math.inf else m
    correction, p = _exp(old - shift), [_exp(score - shift) for score in s]
    return m, correction * l + sum(p), correction * o + sum(a * b for a, b in zip(p, v, strict=True))


def merge(a, b, guard=True):
    """(m, l, o) over the keys of both states."""
    m = max(a[0], b[0])
    shift = 0.0 if guard and m == -math.inf else m
    wa, wb = _exp(a[0] - shift), _exp(b[0] - shift)
    return m, wa * a[1] + wb * b[1], wa * a[2] + wb * b[2]


def finalize(state, guard=True):
    """(output, lse). Without the guard, a state that has seen no key gives 0 / 0."""
    m, l, o = state
    if guard and l == 0:
        return 0.0, -math.inf
    output = math.nan if l == 0 or math.isnan(l) else o / l
    return output, m + (-math.inf if l == 0 else math.log(l))


EMPTY = (-math.inf, 0.0, 0.0)


def trace(
    batch="ragged", causal=True, window=6, tile=3, skip=True, guard=False, hidden="-inf", nan=False, split=False,
    sequence=0, query=8,
) -> dict:  # fmt: skip
    """What the state of one query goes through.

    `steps`: one dict a tile of keys: `start`, `stop` (keys, half-open), `kind`, `seen` (how many of them the query
    sees), `worker` (0 or 1), `skipped`, and `m`, `l`, `o` afterwards; with `split` one more, of `kind` "merge".
    `output` and `lse`: what the row ends with.

    The guard is both rules of the chapter: a finite shift, and values beyond a sequence's keys loaded as 0.
    """
    _, lengths, level = BATCHES[batch]
    queries, keys = lengths[sequence]
    states, steps = [EMPTY, EMPTY], []
    row = kinds(batch, causal, window, tile)[sequence][query // tile]
    for t, kind in enumerate(row):
        slots = range(t * tile, (t + 1) * tile)
        worker = int(split and 2 * t >= len(row))
        see = [visible(query, j, queries, keys, causal, window) for j in slots]
        skipped = skip and kind == "empty"
        if not skipped:
            padding = 0.0 if guard else math.nan if nan else None  # None: what lies there
            s = [
                SCORES[sequence][query][j] + level if seen else HIDDEN[hidden]
                for j, seen in zip(slots, see, strict=True)
            ]
            v = [VALUES[sequence][j] if j < keys or padding is None else padding for j in slots]
            states[worker] = step(states[worker], s, v, guard)
        m, l, o = states[worker]
        steps.append({"start": slots.start, "stop": slots.stop, "kind": kind, "seen": sum(see), "worker": worker,
                      "skipped": skipped, "m": m, "l": l, "o": o})  # fmt: skip
    state = states[0]
    if split:
        state = m, l, o = merge(*states, guard)
        steps.append({"start": 0, "stop": SLOTS, "kind": "merge", "seen": sum(own["seen"] for own in steps),
                      "worker": 0, "skipped": False, "m": m, "l": l, "o": o})  # fmt: skip
    output, lse = finalize(state, guard)
    return {"steps": steps, "output": output, "lse": lse}


RULES = {"guard": True, "hidden": "-inf"}  # what makes any of these kernels right


def outputs(**settings) -> list[list[tuple[float, float]]]:
    """(output, right output) of each query of each sequence; settings as for `trace`."""
    lengths = BATCHES[settings.get("batch", "ragged")][1]
    return [
        [
            tuple(trace(**own, sequence=b, query=i)["output"] for own in (settings, settings | RULES))
            for i in range(queries)
        ]
        for b, (queries, _) in enumerate(lengths)
    ]


def _exp(x: float) -> float:
    return math.nan if math.isnan(x) else math.exp(x)


def checked_window(name: str, value) -> int | None:
    """How many keys a query sees at most, or None. Raises `ValueError` for anything else."""
    return None if value is None else checked_int(name, value, 1, SLOTS)


class Masks(Widget):
    """A batch of three sequences as a map of tiles, and the state of one query, tile by tile.

    batch: "ragged", "square", "chunks", "empty" (a sequence without keys) or "low" (scores near -20,000).
    causal: hide the keys after a query's own place.  window: how many keys a query sees at most, 1 to 12, or None.
    tile: queries and keys in a tile, 2, 3, 4 or 6.  skip: leave out the tiles in which no query sees a key.
    guard: subtract a finite number always, and load values beyond a sequence's keys as 0.
    hidden: the score of a key that may not be seen, "-inf" or "-1e4".  nan: NaN in the padding of K and V.
    split: give each half of the keys to a worker of its own, and merge their states.
    sequence, query: the query that is followed, from 0.  position: steps already made when it opens.

    All of these are live traits, and `trace` gives the numbers of the present choice. Raises `ValueError` for a bad
    argument or a bad assignment.
    """

    _esm = HERE / "masks.js"
    _css = style("masks.css")

    batch = Setting("ragged", checked_choice, BATCHES)
    causal = Setting(True, checked_bool)
    window = Setting(6, checked_window)
    tile = Setting(3, checked_choice, TILES)
    skip = Setting(True, checked_bool)
    guard = Setting(False, checked_bool)
    hidden = Setting("-inf", checked_choice, HIDDEN)
    nan = Setting(False, checked_bool)
    split = Setting(False, checked_bool)
    sequence = Setting(0, checked_int, 0, 2)
    query = Setting(8, checked_int, 0, SLOTS - 1)
    position = Setting(1, checked_int, 0, SLOTS)
    options = traitlets.Dict().tag(**NUMBERS)  # what there is to choose from, for the front end

    def __init__(
        self, batch="ragged", causal=True, window=6, tile=3, skip=True, guard=False, hidden="-inf", nan=False,
        split=False, *, sequence=0, query=8, position=1,
    ):  # fmt: skip
        super().__init__(
            batch=batch, causal=causal, window=window, tile=tile, skip=skip, guard=guard, hidden=hidden, nan=nan,
            split=split, sequence=sequence, query=query, position=position,
            options={
                "slots": SLOTS,
                "tiles": TILES,
                "hidden": HIDDEN,
                "batches": {
                    name: {"label": label, "lengths": lengths, "level": level}
                    for name, (label, lengths, level) in BATCHES.items()
                },
                "scores": SCORES,
                "values": VALUES,
            },
        )  # fmt: skip

    @property
    def settings(self) -> dict:
        """The present choice, as `outputs` takes it."""
        names = ("batch", "causal", "window", "tile", "skip", "guard", "hidden", "nan", "split")
        return {name: getattr(self, name) for name in names}

    @property
    def trace(self) -> dict:
        """`trace` of the query that is followed (the sequence's last one, if it has fewer)."""
        queries = BATCHES[self.batch][1][self.sequence][0]
        return trace(**self.settings, sequence=self.sequence, query=min(self.query, queries - 1))

    def fallback(self) -> str:
        """The map in words and both traces of the query that is followed, as HTML."""
        own = self.settings
        maps = []
        for b, (rows, lengths) in enumerate(
            zip(kinds(self.batch, self.causal, self.window, self.tile), BATCHES[self.batch][1], strict=True)
        ):
            cells = "".join(
                f'<tr><th scope="row">{self.tile * r + 1}–{self.tile * (r + 1)}</th>'
                + "".join(f"<td>{kind}</td>" for kind in row)
                + "</tr>"
                for r, row in enumerate(rows)
            )
            head = "".join(
                f'<th scope="col">keys {start + 1}–{start + self.tile}</th>'
                for start in range(0, SLOTS, self.tile)
            )
            maps.append(
                f"<table><caption>Sequence {b + 1}: {lengths[0]} queries, {lengths[1]} keys.</caption>"
                f'<thead><tr><th scope="col">queries</th>{head}</tr></thead><tbody>{cells}</tbody></table>'
            )
        queries = BATCHES[self.batch][1][self.sequence][0]
        query = min(self.query, queries - 1)
        mine, right = (
            trace(**settings, sequence=self.sequence, query=query) for settings in (own, own | RULES)
        )
        lines = ""
        for a, b in zip(mine["steps"], right["steps"], strict=True):
            name = "merge" if a["kind"] == "merge" else f"{a['start'] + 1}–{a['stop']}"
            cells = [
                "skipped" if state["skipped"] else _shown(state[letter])
                for state in (a, b)
                for letter in "mlo"
            ]
            lines += f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        columns = "".join(f'<th scope="col">{name}</th>' for name in "mlomlo")
        return (
            "".join(maps)
            + f"<table><caption>Query {query + 1} of sequence {self.sequence + 1}: with the settings chosen, then with "
            f"the guard and true −∞. Output: {_shown(mine['output'])} against {_shown(right['output'])}.</caption>"
            f'<thead><tr><th scope="col">keys</th>{columns}</tr></thead><tbody>{lines}</tbody></table>'
        )


def _shown(x: float, places: int = 4) -> str:
    if math.isnan(x):
        return "NaN"
    return ("−" if x < 0 else "") + ("∞" if math.isinf(x) else f"{abs(x):.{places}f}")
