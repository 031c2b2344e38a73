"""What the widgets share: a static fallback, checks of what is set, and traits whose non-finite numbers survive JSON."""

from __future__ import annotations

import math
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from widgets import look

HERE = Path(__file__).parent


class Widget(anywidget.AnyWidget):
    """An anywidget that also carries a static picture of its opening state.

    A subclass defines `fallback() -> str`, an HTML fragment. It is the `text/html` of the output: readers
    without JavaScript, GitHub's notebook view and feedback pages show it; the site shows it until the widget
    has started.
    """

    def fallback(self) -> str:
        raise TypeError(f"{type(self).__name__} must define fallback()")

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return data | {"text/html": f'<div class="ft-fallback">{self.fallback()}</div>'}, metadata


def style(own: str) -> str:
    """The style sheet of a widget: the look's properties, what widgets share, and the widget's own file."""
    return look.css() + "".join((HERE / name).read_text("utf-8") for name in ("base.css", own))


class Setting(traitlets.Any):
    """A trait of a widget, in step with its front end: `check(name, value, *accepted)` returns what is kept, or raises.

    Of type Any, since a bad assignment should raise the `ValueError` of the check, not a `TraitError`.
    """

    allow_none = False  # None is checked as well

    def __init__(self, default, check, *accepted):
        super().__init__(default)
        self.check, self.accepted = check, accepted
        self.tag(sync=True)

    def validate(self, _widget, value):
        return self.check(self.name, value, *self.accepted)


def checked_int(name: str, value, low: int, high: int) -> int:
    """A whole number in [low, high]. Raises `ValueError` for anything else, `True` included."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}; got {value!r}")
    return int(value)


def checked_choice(name: str, value, choices):
    """One of `choices`. Raises `ValueError` for anything else."""
    if isinstance(value, bool) or value not in list(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}")
    return value


def checked_bool(name: str, value) -> bool:
    """True or False. Raises `ValueError` for anything else, 0 and 1 included."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return value


def size(bytes_: float) -> str:
    """Bytes with a binary unit and three significant digits, such as `1.5 GiB` or `96 KiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while bytes_ >= 999.5 and len(units) > 1:
        bytes_ /= 1024
        units.pop(0)
    # A tie goes up, as a reader (and JavaScript) rounds: 16.25 is 16.3.
    return f"{bytes_ * (1 + 1e-15):.3g} {units[0]}"


def encode(value, _owner=None):
    """Numbers in lists and dicts to JSON: NaN and the infinities become the strings that `float()` reads."""
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode(value, _owner=None):
    """The inverse of `encode`."""
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


NUMBERS = {"sync": True, "to_json": encode, "from_json": decode}
