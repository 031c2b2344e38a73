"""A drawing surface whose unit is one pixel of a phone, and the few shapes that the diagrams share.

Diagrams are 380 units wide and their text is 13 units high or more: a phone 360 pixels wide shows it at about 11
pixels, and a wide screen enlarges it to `max_width` rem.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from widgets import look

WIDTH = 380
TEXT = 13


class Canvas:
    """A matplotlib axes in pixels, y downwards. Draw, then `show`."""

    def __init__(self, height: float, width: float = WIDTH):
        with look.matplotlib_style():
            self.figure = Figure(figsize=(width / 72, height / 72), layout="none")
            self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def text(
        self, x, y, words, *, token="ink", size=TEXT, ha="left", va="center", weight="normal", style="normal"
    ):
        colour = look.color(token, text=True)
        self.axes.text(x, y, words, color=colour, fontsize=size, ha=ha, va=va, weight=weight, style=style)

    def cell(self, x, y, w, h, state="plain", token="key", words="", size=TEXT):
        """A box. state: `plain` (pale fill), `current`, `discarded` (hatched) or `absent` (dashed, empty)."""
        soft, line, hatch, dash = look.soft(token, look.LIGHT), look.color(token), None, "-"
        ink = "ink"
        if state == "current":
            soft, line = look.soft("current", look.LIGHT), look.color("current")
        elif state == "discarded":
            soft, line, hatch, ink = "none", look.color("discarded"), "////", "discarded"
        elif state == "absent":
            soft, line, dash, ink = "none", look.color("absent"), (0, (3, 2)), "absent"
        self.axes.add_patch(
            Rectangle(
                (x, y), w, h, facecolor=soft, edgecolor=line, hatch=hatch, linestyle=dash, linewidth=1.4,
                hatch_linewidth=0.7,
            )
        )  # fmt: skip
        if words:
            self.text(x + w / 2, y + h / 2, words, token=ink, size=size, ha="center")

    def panel(self, x, y, w, h, token, fill=True):
        self.axes.add_patch(
            FancyBboxPatch(
                (x + 4, y + 4), w - 8, h - 8, boxstyle="round,pad=4,rounding_size=6", linewidth=1.4,
                facecolor=look.soft(token, look.LIGHT) if fill else "none", edgecolor=look.color(token),
            )
        )  # fmt: skip

    def state(self, x, y, words=("m", "l", "o"), w=32, h=28, size=15):
        """The course's picture of the partial state, three joined cells: m and l belong to a query, o to values."""
        for i, (word, token) in enumerate(zip(words, ("query", "query", "value"), strict=True)):
            self.cell(x + i * w, y, w, h, token=token)
            self.text(x + i * w + w / 2, y + h / 2, word, ha="center", size=size, style="italic")

    def arrow(self, x0, y0, x1, y1, token="muted", curve=0.0):
        self.axes.annotate(
            "",
            (x1, y1),
            (x0, y0),
            arrowprops=dict(
                arrowstyle="-|>,head_width=.28,head_length=.5", color=look.color(token), linewidth=1.6, shrinkA=0,
                shrinkB=0, connectionstyle=f"arc3,rad={curve}",
            ),
        )  # fmt: skip

    def show(self, *, alt: str, caption: str = "", max_width: int = 30):
        return narrow(look.figure(self.figure, alt=alt, caption=caption), max_width)


def narrow(shown, rem: int):
    """Limit how far a wide screen enlarges the picture: text stays near the size of the page's own."""
    shown.data = shown.data.replace("<svg ", f'<svg style="max-width: {rem}rem" ', 1)
    return shown
