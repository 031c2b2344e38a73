"""Plots of what a page has measured."""

from __future__ import annotations

import math

from figures.canvas import TEXT, WIDTH, narrow
from figures.text import size
from widgets import look


def peak_memory(lengths, naive, flash):
    """Peak allocation in bytes of the naive and the flash form against the sequence length, on log axes.

    lengths, naive, flash: sequences of the same length (two or more), all positive, as the page measured them.
    """
    from matplotlib.figure import Figure

    if not (len(lengths) == len(naive) == len(flash) >= 2):
        raise ValueError(
            f"lengths, naive and flash must have one entry a measurement; got {len(lengths)}, {len(naive)}, {len(flash)}"
        )
    with look.matplotlib_style():
        figure = Figure(figsize=(WIDTH / 72, 300 / 72))
        axes = figure.add_subplot()
        # Both lines rise: above and left of the upper one, and below and right of the lower, labels are clear of them.
        series = (
            ("naive", naive, "danger", "s", "right", "bottom"),
            ("flash", flash, "current", "o", "left", "top"),
        )
        for name, peak, token, marker, ha, va in series:
            axes.loglog(lengths, peak, color=look.color(token), marker=marker)
            for n, bytes_ in zip(lengths, peak, strict=True):
                axes.annotate(
                    size(bytes_), (n, bytes_), (-3, 4) if va == "bottom" else (3, -4), textcoords="offset points",
                    fontsize=TEXT, color=look.color(token, text=True), ha=ha, va=va,
                )  # fmt: skip
            slope = growth(lengths, peak)
            axes.plot(
                [], [], color=look.color(token), marker=marker, label=f"{name}: × {slope:.1f} a doubling"
            )
        axes.legend(loc="upper left", fontsize=TEXT, handlelength=1.4, borderaxespad=0.1)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=TEXT)
        axes.minorticks_off()
        axes.set_xlabel("sequence length N (log scale)", fontsize=TEXT)
        axes.set_ylabel("peak, bytes (log scale)", fontsize=TEXT)
        low, top = min(*naive, *flash) / 5, max(*naive, *flash) * 40  # room for the labels and the legend
        axes.set(xlim=(lengths[0] / 3.2, lengths[-1] * 3.2), ylim=(low, top))
        ticks = [2.0**p for p in range(0, 60, 5) if low <= 2.0**p <= top]
        axes.set_yticks(ticks, [size(tick) for tick in ticks], fontsize=TEXT)
    times = [naive[-1] / naive[0], flash[-1] / flash[0]]
    shown = look.figure(
        figure,
        alt=f"From N = {lengths[0]:,} to {lengths[-1]:,} the naive form's peak grows {times[0]:.0f} times, to {size(naive[-1])}; "
        f"the flash form's grows {times[1]:.1f} times, to {size(flash[-1])}.",
        caption="Peak of what one call allocated, measured by this page when it was built. Doubling N multiplies the "
        f"naive peak by {growth(lengths, naive):.1f} and the flash peak by {growth(lengths, flash):.1f}.",
    )
    return narrow(shown, 32)


def growth(lengths, peak) -> float:
    """By how much one doubling of N multiplies the peak, over the whole range measured."""
    return 2 ** (math.log(peak[-1] / peak[0]) / math.log(lengths[-1] / lengths[0]))
