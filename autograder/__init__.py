"""The grader of *FlashAttention, Tile by Tile*. Notebooks use one name of it: `check`."""

from autograder.student import CheckFailed, check

__all__ = ["CheckFailed", "check"]
