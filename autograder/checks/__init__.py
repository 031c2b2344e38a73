"""The checks of every exercise, by name: `CHECKS["03.step"]`. Needs NumPy alone."""

from autograder.checks import ex00, ex01, ex02, ex03, ex04

CHECKS = {check.name: check for check in [*ex00.CHECKS, *ex01.CHECKS, *ex02.CHECKS, *ex03.CHECKS, *ex04.CHECKS]}


def find(name):
    """The check called `name`.

    Raises:
        ValueError: there is none; the message lists what there is.
    """
    try:
        return CHECKS[name]
    except KeyError:
        raise ValueError(f"no check is called {name!r}; there are: {', '.join(CHECKS)}") from None
