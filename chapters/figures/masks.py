"""Diagrams of masks: which keys a query sees, and which tiles are full, partial and empty."""

from __future__ import annotations

import math

import numpy as np

from figures.canvas import Canvas
from widgets import look


def patterns(cases):
    """Small masks side by side, two a line: a filled cell is a key that a query sees.

    cases: up to four of (name, booleans (queries, keys)), each at most 6 x 6.
    """
    cases = [(name, np.asarray(seen, dtype=bool)) for name, seen in cases]
    if len(cases) > 4 or any(seen.ndim != 2 or max(seen.shape) > 6 for _, seen in cases):
        raise ValueError(
            f"cases must be at most four masks of at most 6 x 6; got shapes {[seen.shape for _, seen in cases]}"
        )
    size, block = 22, 190
    c = Canvas(height=block * math.ceil(len(cases) / 2))
    blind = []
    for n, (name, seen) in enumerate(cases):
        x0, y0 = 20 + block * (n % 2), 44 + block * (n // 2)
        c.text(x0 - 16, y0 - 32, name, weight="bold")
        c.text(x0 + seen.shape[1] * size / 2, y0 - 12, "keys", ha="center", token="key")
        for i, row in enumerate(seen):
            for j, there in enumerate(row):
                c.cell(x0 + j * size, y0 + i * size, size - 3, size - 3, state="plain" if there else "absent")
            if not row.any():
                c.text(x0 + seen.shape[1] * size + 6, y0 + i * size + 10, "sees no key", token="danger")
        blind.append(f"{name}: {int((~seen.any(1)).sum())} of {len(seen)} queries see no key")
    return c.show(
        alt="Masks as grids of queries (rows) and keys (columns). " + "; ".join(blind) + ".",
        caption="A row is a query, a column a key. Filled: the query sees the key. Dashed: it does not. The last query is always level with the last key.",
        max_width=32,
    )


def tile_map(cases, what):
    """Which tiles of a score matrix are full, partial and empty, for up to three masks side by side.

    cases: (name, (n, n) of 0 empty, 1 partial, 2 full), n at most 10. what: what the maps show, for the caption.
    """
    cases = [(name, np.asarray(kinds)) for name, kinds in cases]
    if len(cases) > 3 or any(kinds.ndim != 2 or max(kinds.shape) > 10 for _, kinds in cases):
        raise ValueError(
            f"cases must be at most three maps of at most 10 x 10; got shapes {[kinds.shape for _, kinds in cases]}"
        )
    width, told = 376 / 3, []
    c = Canvas(height=150)
    for n, (name, kinds) in enumerate(cases):
        size = (width - 10) / len(kinds)
        c.text(4 + n * width, 12, name, weight="bold")
        for i, row in enumerate(kinds):
            for j, kind in enumerate(row):
                x, y, side = 4 + n * width + j * size, 26 + i * size, size - 2.5
                c.cell(x, y, side, side, state="plain" if kind else "absent")
                if kind == 1:  # a hatch is too fine for a cell of a phone
                    c.axes.plot([x, x + side], [y, y + side], color=look.color("ink"), linewidth=1.4)
        counts = [int((kinds == kind).sum()) for kind in (2, 1, 0)]
        told.append("{}: {} full, {} partial, {} empty".format(name, *counts))
    return c.show(
        alt="Tiles of the score matrix under three masks. " + "; ".join(told) + ".",
        caption=f"{what}. Filled: full, no mask needed. Filled and struck through: partial, the mask is applied. Dashed: "
        f"empty, never loaded. {'; '.join(told)}.",
        max_width=34,
    )
