"""The figures of the chapters, drawn by code. Each function returns inline SVG (`IPython.display.HTML`) with alt text.

A page calls a figure with the numbers that it has computed itself, so that a picture cannot disagree with the text
beside it. Pages run with `chapters/` as their working directory and write `from figures import peak_memory`.
"""

from figures.diagrams import memory_hierarchy, one_idea, recurrence, tiles
from figures.forward import loop_traffic, speed, ulps
from figures.hours import reading, solving
from figures.masks import patterns, tile_map
from figures.plots import peak_memory, roofline
from figures.text import measured, source, table
from widgets.base import size
from widgets.cards import CARDS, Card

__all__ = [
    "CARDS",
    "Card",
    "loop_traffic",
    "measured",
    "memory_hierarchy",
    "one_idea",
    "patterns",
    "peak_memory",
    "reading",
    "recurrence",
    "roofline",
    "size",
    "solving",
    "source",
    "speed",
    "table",
    "tile_map",
    "tiles",
    "ulps",
]
