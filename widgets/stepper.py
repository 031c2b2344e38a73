"""The online-softmax stepper: one query against 16 keys, tile by tile.

The arithmetic that moves is in `stepper.js`; the presets, the checks of what is set, and a still of the
opening state are here.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import traitlets

from widgets.base import NUMBERS, Setting, Widget, checked_bool, checked_choice, checked_int, style

HERE = Path(__file__).parent
KEYS, WIDTH = 16, 4

# numpy.random.default_rng(238).normal(0, 1.2, 16).round(2): tiles of 4 move the maximum in tiles 1, 2 and 4,
# not in 3.
_RANDOM = [
    0.88,
    -2.7,
    1.24,
    1.41,
    -1.92,
    -0.57,
    0.49,
    1.95,
    -0.52,
    -0.86,
    0.43,
    0.73,
    2.58,
    0.13,
    -0.42,
    0.08,
]
_RISING = [round(-1.5 + 0.3 * j, 2) for j in range(KEYS)]

PRESETS = {
    "random": ("random", _RANDOM),
    "rising": ("rising", _RISING),
    "falling": ("falling", _RISING[::-1]),
    "huge": ("one huge logit", [800.0 if j == 9 else s for j, s in enumerate(_RANDOM)]),
    "masked": ("masked first tile", [-math.inf] * 4 + _RANDOM[4:]),
}
CUSTOM = "custom"

# One set of values for all presets, so that only the scores differ between two of them. Shape (16, 4).
VALUES = [[round(math.cos(0.9 * j * (c + 1) + c), 2) for c in range(WIDTH)] for j in range(KEYS)]


def checked_scores(name: str, scores) -> list[float]:
    """16 scores as floats, -inf for a masked key. Raises `ValueError` for anything else."""
    try:
        array = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {KEYS} numbers; got {scores!r}") from None
    if array.shape != (KEYS,):
        raise ValueError(f"{name} must be {KEYS} numbers; got shape {array.shape}")
    if np.isnan(array).any() or np.isposinf(array).any():
        raise ValueError(f"{name} must be finite, or -inf where a key is masked; got {array.tolist()}")
    return array.tolist()


def checked_values(name: str, values) -> list[list[float]]:
    """A value of 4 numbers for each of the 16 keys. Raises `ValueError` for anything else."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {KEYS} rows of {WIDTH} numbers; got {values!r}") from None
    if array.shape != (KEYS, WIDTH):
        raise ValueError(f"{name} must have shape ({KEYS}, {WIDTH}); got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or an infinity")
    return array.tolist()


class Stepper(Widget):
    """Step through the online softmax of 16 scores.

    preset: "random", "rising", "falling", "huge" (one huge logit) or "masked" (the first four keys masked).
    tile: keys a tile, 1 to 16.
    guard: subtract 0 instead of a maximum of -inf, so that a masked tile adds nothing.
    scores, values: your own 16 scores (-inf masks a key) and 16 x 4 values, instead of a preset's.
    position: tiles already done when it opens.

    All of these are live traits. `trace` reads back what the front end computed: one dict for each tile done,
    with `start` and `stop` (keys, half-open), `m`, `correction`, `l`, `o` (4), `output` (o / l, 4) and
    `error` (largest difference between `output` and the answer over all 16 keys). It is empty until the
    widget has been shown.

    Raises `ValueError` for a bad argument or a bad assignment.
    """

    _esm = HERE / "stepper.js"
    _css = style("stepper.css")

    preset = Setting("random", checked_choice, [*PRESETS, CUSTOM])
    tile = Setting(4, checked_int, 1, KEYS)
    guard = Setting(True, checked_bool)
    position = Setting(2, checked_int, 0, KEYS)
    scores = Setting(_RANDOM, checked_scores).tag(**NUMBERS)
    values = Setting(VALUES, checked_values).tag(**NUMBERS)
    trace = traitlets.List().tag(**NUMBERS)
    presets = traitlets.Dict().tag(**NUMBERS)

    def __init__(self, preset=None, tile=4, guard=True, *, scores=None, values=None, position=2):
        if preset is not None and scores is not None:
            raise ValueError(f"give preset or scores, not both; got preset={preset!r} and scores={scores!r}")
        if scores is not None:
            preset = CUSTOM
        else:
            preset = checked_choice("preset", "random" if preset is None else preset, PRESETS)
            scores = PRESETS[preset][1]
        super().__init__(
            preset=preset,
            tile=tile,
            guard=guard,
            position=position,
            scores=scores,
            values=VALUES if values is None else values,
            presets={name: {"label": label, "scores": own} for name, (label, own) in PRESETS.items()},
        )

    @traitlets.observe("preset")
    def _load_preset(self, change):
        if change.new != CUSTOM:
            self.scores = list(PRESETS[change.new][1])

    @traitlets.observe("scores")
    def _name_scores(self, change):
        if self.preset != CUSTOM and change.new != PRESETS[self.preset][1]:
            self.preset = CUSTOM

    def fallback(self) -> str:
        """The table of all tiles, as HTML: what the simulator shows when it has run to the end."""
        rows = []
        m, total = -math.inf, 0.0
        for start in range(0, KEYS, self.tile):
            s = np.array(self.scores[start : start + self.tile])
            old, m = m, max(m, s.max())
            shift = 0.0 if self.guard and m == -math.inf else m
            with np.errstate(invalid="ignore"):
                correction = float(np.exp(np.subtract(old, shift)))
                total = correction * total + float(np.exp(s - shift).sum())
            numbers = "".join(f"<td>{_shown(x)}</td>" for x in (m, correction, total))
            keys = f"{start + 1}–{start + len(s)}" if len(s) > 1 else f"{start + 1}"
            rows.append(f'<tr><th scope="row">{keys}</th>{numbers}</tr>')
        scores = ", ".join(_shown(s, 2) for s in self.scores)
        return (
            "<table><caption>The online softmax of 16 scores in tiles of "
            f"{self.tile}: {scores}.</caption><thead><tr><th scope='col'>keys</th>"
            "<th scope='col'>m</th><th scope='col'>correction e<sup>m_old − m_new</sup></th>"
            f"<th scope='col'>l</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )


def _shown(x: float, places: int = 4) -> str:
    if math.isnan(x):
        return "NaN"
    return ("−" if x < 0 else "") + ("∞" if math.isinf(x) else f"{abs(x):.{places}f}")
