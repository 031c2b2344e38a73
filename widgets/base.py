"""What the widgets share: a static fallback, and traits whose non-finite numbers survive JSON."""

from __future__ import annotations

import math
from pathlib import Path

import anywidget

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
