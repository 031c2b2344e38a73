"""What a chapter and its exercise take: estimates of the course's authors, by words and by points, until classes report."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat

WORDS_A_MINUTE = 100  # slow, because of the formulas and the figures
WIDGET_MINUTES = 15  # a simulator, a quiz
POINT_MINUTES = 6  # a point of an exercise

CHAPTERS = Path(__file__).parents[1]
PAGES = {int(path.stem[:2]): path for path in CHAPTERS.glob("[0-9]*_*.md")}
EXERCISES = {int(path.parent.name[:2]): path for path in CHAPTERS.parent.glob("exercises/[0-9]*/*.ipynb")}


def reading(number: int) -> str:
    """Hours to read a chapter, play with its simulators and take its quiz: its prose and formulas count, not its code."""
    text = PAGES[number].read_text("utf-8").split("---\n", 2)[2]
    prose = re.sub(r"^```\{code-cell\}.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^from widgets import (.+)$", text, re.MULTILINE)
    widgets = {name for line in lines for name in line.split(", ")}
    return _quarters(len(prose.split()) / WORDS_A_MINUTE + WIDGET_MINUTES * len(widgets))


def solving(number: int) -> str:
    """Hours for the exercise of a chapter."""
    cells = nbformat.read(EXERCISES[number], as_version=4).cells
    points = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in cells)
    return _quarters(POINT_MINUTES * points)


def _quarters(minutes: float) -> str:
    """Minutes as hours, up to the next quarter of one: "1", "1.25"."""
    return f"{math.ceil(minutes / 15) / 4:g}"
