"""The figures of the chapters, drawn by code. Each function returns inline SVG (`IPython.display.HTML`) with alt text.

A page calls a figure with the numbers that it has computed itself, so that a picture cannot disagree with the text
beside it. Pages run with `chapters/` as their working directory and write `from figures import peak_memory`.
"""

from figures.cards import CARDS, Card
from figures.diagrams import memory_hierarchy, one_idea, recurrence, tiles
from figures.plots import peak_memory
from figures.text import size, source, table

__all__ = [
    "CARDS",
    "Card",
    "memory_hierarchy",
    "one_idea",
    "peak_memory",
    "recurrence",
    "size",
    "source",
    "table",
    "tiles",
]
