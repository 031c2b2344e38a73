"""Figures of chapter 3: what each loop order moves, how far rounding goes, and how fast the kernels are."""

from __future__ import annotations

import numpy as np

from figures.canvas import TEXT, WIDTH, Canvas, narrow
from widgets import look
from widgets.base import size

PARTS = {"Q": "query", "K, V": "key", "m, l, o": "correction", "O, lse": "value"}


def loop_traffic(forms):
    """What two or more ways through the same tiles move, part by part, as bars on one scale.

    forms: {name: {part: bytes}} with parts among "Q", "K, V", "m, l, o" and "O, lse".
    """
    for name, parts in forms.items():
        if not parts.keys() <= PARTS.keys():
            raise ValueError(f"parts must be among {', '.join(PARTS)}; got {', '.join(parts)} for {name}")
    most = max(sum(parts.values()) for parts in forms.values())
    line, told = 84, []
    c = Canvas(height=line * len(forms))
    for k, (name, parts) in enumerate(forms.items()):
        x, y, total = 2, 4 + line * k, sum(parts.values())
        c.text(2, y + 10, name, weight="bold", size=14)
        c.text(378, y + 10, size(total), ha="right", weight="bold")
        words = []
        for part, bytes_ in parts.items():
            width = 376 * bytes_ / most
            if bytes_:
                c.cell(x, y + 22, width, 24, token=PARTS[part])
                x += width
                words.append((part, bytes_))
        x = 2
        for part, bytes_ in words:
            told.append(f"{name}: {part} {size(bytes_)}")
            c.text(x, y + 60, f"{part} {size(bytes_)}", token=PARTS[part])
            x += 12 + 6.7 * len(f"{part} {size(bytes_)}")
    first, *rest = forms
    ratio = sum(forms[rest[-1]].values()) / sum(forms[first].values())
    return c.show(
        alt=f"{rest[-1].capitalize()} moves {ratio:.1f} times what {first} moves. " + "; ".join(told) + ".",
        caption="Every load and every store of a tile counts, wherever it is served from. Bars on one scale, in the "
        "order of the names under them.",
    )


def ulps(errors, shown=12):
    """The share of outputs whose error is at most so many ulps, one line for each form.

    errors: {name: errors in ulps, any shape, not negative}, at most four.  shown: ulps that the axis reaches.
    """
    from matplotlib.figure import Figure

    # The first is wide and pale, so that one that runs along it is still seen on it.
    looks = (("danger", "-", 6, 0.45), ("ink", ":", 2, 1), ("correction", "--", 2, 1), ("current", "-", 2, 1))
    if not 1 <= len(errors) <= len(looks):
        raise ValueError(f"errors must hold one to {len(looks)} forms; got {len(errors)}")
    told = []
    with look.matplotlib_style():
        figure = Figure(figsize=(WIDTH / 72, 280 / 72))
        axes = figure.add_subplot()
        at = np.linspace(0, shown, 121)
        for (name, values), (token, dash, width, alpha) in zip(errors.items(), looks, strict=False):
            values = np.sort(np.ravel(values))
            share = np.searchsorted(values, at, side="right") / len(values)
            axes.plot(
                at, share, color=look.color(token), linestyle=dash, linewidth=width, alpha=alpha, label=name
            )
            told.append(f"{name} {np.median(values):.1f}")
        axes.axhline(0.5, color=look.color("muted"), linewidth=0.8)
        axes.annotate("half of them", (shown, 0.5), (0, 3), textcoords="offset points", ha="right", fontsize=TEXT,
                      color=look.color("muted"))  # fmt: skip
        axes.legend(loc="lower right", fontsize=TEXT, handlelength=2.2)
        axes.set(xlim=(0, shown), ylim=(0, 1.02))
        axes.set_xlabel("error against float64, in ulps", fontsize=TEXT)
        axes.set_ylabel("share of the outputs", fontsize=TEXT)
        ticks = np.arange(0, shown + 1, 2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=TEXT)
        axes.set_yticks([0, 0.5, 1], ["0", "50%", "100%"], fontsize=TEXT)
    result = look.figure(
        figure,
        alt="The errors of all forms lie in the same range: half of the outputs are within this many ulps: "
        + ", ".join(told)
        + ".",
        caption="How many of the outputs lie within so many ulps of the float64 result; further to the left is better. "
        "Computed when this page was built.",
    )
    return narrow(result, 32)


def speed(rows, ceiling=None):
    """Measured TFLOP/s against the sequence length, one line for each contestant of one setting.

    rows: dicts with `who`, `q_len` and `tflops`, all of the same work.  ceiling: (name, TFLOP/s) of a limit, or None.
    Raises `ValueError` when there are none.
    """
    from matplotlib.figure import Figure

    rows = list(rows)
    if not rows:
        raise ValueError("rows must hold measurements; got none")
    lines = {}
    for row in rows:
        lines.setdefault(row["who"], []).append((row["q_len"], row["tflops"]))
    lengths = sorted({row["q_len"] for row in rows})
    top = max([row["tflops"] for row in rows] + ([ceiling[1]] if ceiling else []))
    others = iter(
        [("s", "--"), ("^", "-."), ("D", ":"), ("v", (0, (5, 1, 1, 1))), ("P", (0, (1, 1))), ("X", "--")] * 3
    )
    ends = []
    with look.matplotlib_style():
        figure = Figure(figsize=(WIDTH / 72, 300 / 72))
        axes = figure.add_subplot()
        for who, points in lines.items():
            token, marker, dash = "muted", *next(others)
            if who == "ours":
                token, marker, dash = "current", "o", "-"
            elif who.startswith("ours"):
                token, marker, dash = "current", "o", "--"
            elif who.startswith("plain"):
                token, marker, dash = "danger", "s", "-"
            points.sort()
            axes.plot(*zip(*points, strict=True), color=look.color(token), marker=marker, linestyle=dash)
            if points[-1][0] == lengths[-1]:
                ends.append([points[-1][1], who, token])
            else:  # one that was not measured to the end
                axes.annotate(who, points[-1], (8, 0), textcoords="offset points", fontsize=TEXT, va="center",
                              color=look.color(token, text=True))  # fmt: skip
        if ceiling:
            axes.axhline(ceiling[1], color=look.color("muted"), linewidth=0.8, linestyle=":")
            axes.annotate(ceiling[0], (lengths[0], ceiling[1]), (0, 3), textcoords="offset points", fontsize=TEXT,
                          color=look.color("muted"))  # fmt: skip
        # Names stand at the ends of the lines, moved apart where two lines end together.
        ends.sort()
        for below, above in zip(ends, ends[1:], strict=False):
            above[0] = max(above[0], below[0] + 0.075 * top)
        for y, who, token in ends:
            axes.annotate(who, (lengths[-1], y), (8, 0), textcoords="offset points", fontsize=TEXT, va="center",
                          color=look.color(token, text=True), annotation_clip=False)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths], fontsize=TEXT)
        axes.minorticks_off()
        axes.set(ylim=(0, max(1.15 * top, ends[-1][0] + 0.05 * top)))
        axes.tick_params(axis="y", labelsize=TEXT)
        axes.set_xlabel("sequence length N (log scale)", fontsize=TEXT)
        axes.set_ylabel("TFLOP/s", fontsize=TEXT)
        longest = max(len(who) for who in lines)
        axes.set_xlim(lengths[0] / 1.15, lengths[-1] * (lengths[-1] / lengths[0]) ** (0.03 * longest) * 1.2)
    at_end = {row["who"]: row["tflops"] for row in rows if row["q_len"] == lengths[-1]}
    told = ", ".join(f"{who} {tflops:.0f}" for who, tflops in sorted(at_end.items(), key=lambda own: -own[1]))
    return narrow(
        look.figure(
            figure,
            alt=f"At {lengths[-1]:,} tokens, in TFLOP/s: {told}.",
            caption="Operations of the two matrix products, divided by the time; higher is faster.",
        ),
        32,
    )
