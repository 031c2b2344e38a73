"""The course's simulators, its quiz and its look. A widget is an anywidget: a `.py` and a `.js` of its name."""

from widgets import look
from widgets.masks import Masks
from widgets.quiz import Quiz
from widgets.roofline import Roofline
from widgets.stepper import Stepper
from widgets.tiles import Tiles

__all__ = ["Masks", "Quiz", "Roofline", "Stepper", "Tiles", "look"]
