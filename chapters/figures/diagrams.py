"""Diagrams: the one idea, the memory hierarchy, the recurrence, tiles of queries against tiles of keys."""

from __future__ import annotations

import math

import numpy as np

from figures.canvas import Canvas
from kernels.reference import empty_state, step
from widgets.cards import Card


def one_idea():
    """Two partial states made from different keys, merged into the state of all of them."""
    c = Canvas(height=318)
    for x, words in ((14, "some of the keys"), (200, "the other keys")):
        for i in range(6):
            c.cell(x + 28 * i, 24, 26, 26)
        c.text(x + 83, 12, words, ha="center", token="key")
        c.arrow(x + 83, 54, x + 83, 82)
        c.state(x + 35, 86)
    c.arrow(97, 118, 168, 150, token="correction")
    c.arrow(283, 118, 212, 150, token="correction")
    c.panel(70, 152, 240, 54, "correction")
    c.text(190, 169, "merge", ha="center", weight="bold", token="correction", size=15)
    c.text(190, 190, "rescale both to the larger m, add", ha="center")
    c.arrow(190, 210, 190, 232)
    c.state(142, 236)
    c.text(252, 250, "of all the keys")
    c.arrow(190, 268, 190, 288)
    c.text(190, 302, "o / l  =  the exact output  ✓", ha="center", token="exact", weight="bold", size=15)
    return c.show(
        alt="Two groups of keys each give a partial state (m, l, o); merging the two states gives the state of all the "
        "keys, whose o divided by l is the exact attention output.",
        caption="The one idea of the course. The two groups may be two tiles, one after the other in time; two thread "
        "blocks of one GPU; two blocks of a paged cache; two GPUs of a ring.",
    )


def memory_hierarchy(card: Card):
    """Levels of one card's memory, nearest first; bars are published rates to scale."""
    each = f"{card.multiprocessors} × "
    rows = (
        ("Registers", f"{each}{card.register_bytes_each / 2**10:.0f} KiB", None, "current",
         "scores and outputs of the tile at work"),
        ("Shared memory", f"{each}{card.shared_bytes_each / 2**10:.0f} KiB", card.shared_rate, "current",
         "tiles of Q, K, V live here"),
        ("L2 cache", f"{card.l2_bytes / 2**20:.0f} MiB", card.l2_rate, "key", "K, V tiles read again"),
        ("HBM", f"{card.hbm_bytes / 1e9:.0f} GB", card.hbm_rate, "danger", "naive: all of S, and all of P"),
        ("Host memory", "over PCIe, each way", card.host_rate, "discarded", "nothing, while attention runs"),
    )  # fmt: skip
    line = 80
    c = Canvas(height=line * len(rows) - 6)
    left, full = 2, 300
    for i, (name, size, rate, token, what) in enumerate(rows):
        y = 4 + line * i
        c.text(left, y + 10, name, weight="bold", size=14)
        c.text(378, y + 10, size, ha="right", token="muted")
        if rate is None:
            c.text(left, y + 34, "rate not in the sources", style="italic", token="muted")
        else:
            width = full * rate / card.shared_rate
            c.cell(left, y + 21, width, 26, token=token)
            label = f"{rate / 1e12:.4g} TB/s" if rate >= 1e12 else f"{rate / 1e9:.4g} GB/s"
            c.text(left + (8 if width > 110 else width + 8), y + 34, label, weight="bold")
        c.text(left, y + 60, what, token=token)
    ratio = card.shared_rate / card.hbm_rate
    return c.show(
        alt=f"On an {card.name}, shared memory moves {card.shared_rate / 1e12:.4g} terabytes a second, HBM "
        f"{card.hbm_rate / 1e12:.4g} and the link to the host {card.host_rate / 1e12:.4g}: shared memory is {ratio:.1f} "
        f"times as fast as HBM, and thousands of times smaller.",
        caption=f"{card.name}: published rates, bars to scale; sources in the text. The lines below the bars say what of "
        "attention lives there. The naive form keeps S and P in HBM; flash keeps one tile of S, in registers.",
    )


def recurrence(scores, tile: int):
    """The recurrence on one row of scores: a line per tile, with what is in memory, m, the correction and l.

    scores: (n,) finite numbers, n at most 8, a multiple of `tile`.
    """
    scores = np.asarray(scores, dtype=float)
    if scores.ndim != 1 or len(scores) > 8 or len(scores) % tile:
        raise ValueError(
            f"scores must be one row of at most 8, a multiple of tile={tile}; got shape {scores.shape}"
        )
    steps, size, line = len(scores) // tile, 40, 106
    c = Canvas(height=line * steps - 14)
    state = empty_state((), 1)
    told = []
    for t in range(steps):
        y = line * t
        old, state = state, step(state, scores[t * tile : (t + 1) * tile], np.zeros((tile, 1)))
        for j, score in enumerate(scores):
            at = j // tile
            what = "current" if at == t else "discarded" if at < t else "absent"
            c.cell(2 + j * size, y + 22, size - 4, 28, state=what, words=f"{score:g}" if at == t else "")
        c.text(2, y + 10, f"tile {t + 1}", token="current", weight="bold")
        factor = 0.0 if math.isinf(old.m) else math.exp(old.m - state.m)
        moved = "m moves" if factor < 1 else "m stays"
        if t == 0:
            moved = "first tile"
        told.append(f"tile {t + 1}: m {float(state.m):g}, correction {factor:.3f}, l {float(state.l):.3f}")
        c.text(260, y + 10, moved, token="muted")
        c.text(260, y + 30, f"m = {float(state.m):g}", token="query", weight="bold")
        c.text(260, y + 50, f"l = {float(state.l):.3f}", token="query", weight="bold")
        c.text(2, y + 70, f"correction of the old l and o:  × {factor:.3f}", token="correction")
    return c.show(
        alt="The recurrence on one row of scores, "
        + "; ".join(told)
        + ". Only the current tile is in memory.",
        caption="One line a tile. Orange: the tile in memory. Hatched: used and gone. Dashed: not loaded yet.",
    )


def tiles(count: int = 5, row: int = 2, column: int = 3):
    """Tiles of queries (rows) against tiles of keys and values (columns), at one moment of the flash loop."""
    if not (0 <= row < count and 0 <= column < count):
        raise ValueError(f"row and column must be in 0..{count - 1}; got {row}, {column}")
    size, x0, y0 = 42, 54, 84
    c = Canvas(height=y0 + count * size + 42)
    for j in range(count):
        here = "plain" if j == column else "absent"
        c.cell(x0 + j * size, 6, size - 4, 28, state=here, token="key", words="K" if j == column else "")
        c.cell(x0 + j * size, 40, size - 4, 28, state=here, token="value", words="V" if j == column else "")
    for i in range(count):
        y = y0 + i * size
        c.cell(
            4,
            y,
            40,
            size - 4,
            state="plain" if i == row else "absent",
            token="query",
            words="Q" if i == row else "",
        )
        for j in range(count):
            done = i < row or (i == row and j < column)
            what = "current" if (i, j) == (row, column) else "discarded" if done else "absent"
            c.cell(x0 + j * size, y, size - 4, size - 4, state=what, words="S" if what == "current" else "")
        x = x0 + count * size + 6
        if i < row:
            c.cell(x, y, 40, size - 4, token="value", words="O")
            c.text(x + 46, y + 19, "written", token="value")
        elif i == row:
            c.state(x, y + 5, w=28)
    c.arrow(x0, y0 + count * size + 10, x0 + count * size - 6, y0 + count * size + 10, token="current")
    c.text(
        x0 + count * size / 2,
        y0 + count * size + 28,
        "inner loop: tiles of keys",
        ha="center",
        token="current",
    )
    return c.show(
        alt=f"A grid of {count} by {count} tiles of the score matrix. Only one tile of S exists, where the tile of queries "
        f"meets the tile of keys; the tiles before it are discarded, the rest were never made, and one state (m, l, o) is kept.",
        caption="One moment of the loop. One tile each of Q, K and V is in fast memory, with one tile of S and the "
        "state of one tile of queries. The rows of tiles are independent: each is a thread block of its own.",
    )
