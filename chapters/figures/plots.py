"""Plots of what a page has measured or computed."""

from __future__ import annotations

import math

from figures.canvas import TEXT, WIDTH, narrow
from widgets import look
from widgets.base import size
from widgets.cards import Card


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


def roofline(card: Card, work):
    """The roofline of a card for 16-bit products, on log axes, and where some work lies under it.

    work: (name, FLOP per byte, token, marker) for each, with an intensity above 0.
    """
    from matplotlib.figure import Figure

    if any(intensity <= 0 for _, intensity, _, _ in work):
        raise ValueError(f"work must have intensities above 0; got {[own[1] for own in work]}")
    ridge, tera = card.matrix_rate / card.hbm_rate, 1e12
    low, high = min(own[1] for own in work) / 4, max(own[1] for own in work) * 12
    with look.matplotlib_style():
        figure = Figure(figsize=(WIDTH / 72, 320 / 72))
        axes = figure.add_subplot()
        corners = [low, ridge, high]
        axes.loglog(
            corners,
            [min(card.matrix_rate, x * card.hbm_rate) / tera for x in corners],
            color=look.color("ink"),
        )
        axes.plot(
            [ridge, ridge], [low * card.hbm_rate / tera, card.matrix_rate / tera],
            color=look.color("muted"), linestyle=":", linewidth=1.2,
        )  # fmt: skip
        axes.annotate(
            f"ridge: {ridge:.0f}", (ridge, low * card.hbm_rate / tera), (4, 2), textcoords="offset points",
            fontsize=TEXT, color=look.color("muted"),
        )  # fmt: skip
        above = True
        for name, intensity, token, marker in work:
            reached = min(card.matrix_rate, intensity * card.hbm_rate) / tera
            axes.plot(
                intensity, reached, color=look.color(token), marker=marker, markersize=9, linestyle="none"
            )
            # Under the slope there is room at the right; on the flat part above and below, in turn.
            offset, ha, va = (9, -3), "left", "top"
            if intensity > ridge:
                offset, ha, va = ((0, 8), "center", "bottom") if above else ((0, -9), "center", "top")
                above = not above
            axes.annotate(
                f"{name}: {intensity:,.3g}" if intensity < 1000 else f"{name}: {intensity:,.0f}", (intensity, reached),
                offset, textcoords="offset points", fontsize=TEXT, color=look.color(token, text=True), ha=ha, va=va,
            )  # fmt: skip
        bottom, top = low * card.hbm_rate / tera, card.matrix_rate / tera * 5
        axes.set(xlim=(low, high), ylim=(bottom, top))
        powers = [10.0**p for p in range(-3, 9)]
        for set_ticks, start, stop in ((axes.set_xticks, low, high), (axes.set_yticks, bottom, top)):
            ticks = [tick for tick in powers if start <= tick <= stop]
            set_ticks(ticks, [f"{tick:,g}" for tick in ticks], fontsize=TEXT)
        axes.minorticks_off()
        axes.set_xlabel("FLOP per byte of HBM traffic (log scale)", fontsize=TEXT)
        axes.set_ylabel("at most, TFLOP/s (log scale)", fontsize=TEXT)
    waiting = [name for name, intensity, _, _ in work if intensity < ridge]
    shown = look.figure(
        figure,
        alt=f"Roofline of an {card.name}. Left of the ridge at {ridge:.0f} FLOP per byte, where memory sets the pace: "
        f"{', '.join(waiting)}. Right of it, where arithmetic does: "
        f"{', '.join(own[0] for own in work if own[0] not in waiting)}.",
        caption=f"{card.name}, published rates. The slope is the HBM rate, the flat part the rate of the matrix units. "
        "The number at a point is its FLOP per byte, computed on this page; its height is a bound and no measurement.",
    )
    return narrow(shown, 32)


def growth(lengths, peak) -> float:
    """By how much one doubling of N multiplies the peak, over the whole range measured."""
    return 2 ** (math.log(peak[-1] / peak[0]) / math.log(lengths[-1] / lengths[0]))
