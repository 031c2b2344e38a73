"""The stepper's Python side: what it accepts, what it refuses, and that numbers survive JSON."""

import json
import math

import numpy as np
import pytest

from widgets import Stepper
from widgets.base import decode, encode
from widgets.stepper import PRESETS, VALUES


def test_it_opens_with_a_preset_and_its_numbers():
    w = Stepper()
    assert (w.preset, w.tile, w.guard, w.position) == ("random", 4, True, 2)
    assert w.scores == PRESETS["random"][1]
    assert np.shape(w.values) == (16, 4)
    assert w.trace == []


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_sixteen_scores_that_show_what_they_say(name):
    scores = Stepper(name).scores
    assert len(scores) == 16
    if name in ("rising", "falling"):
        assert scores == sorted(scores, reverse=name == "falling")
    if name == "huge":
        with np.errstate(over="ignore"):
            assert np.isinf(np.exp(scores)).sum() == 1  # the naive exponential overflows
    if name == "masked":
        assert scores[:4] == [-math.inf] * 4 and np.isfinite(scores[4:]).all()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"tile": 0}, "tile"),
        ({"tile": 17}, "tile"),
        ({"tile": 2.5}, "tile"),
        ({"tile": True}, "tile"),
        ({"tile": "4"}, "tile"),
        ({"position": -1}, "position"),
        ({"guard": "off"}, "guard"),
        ({"preset": "steady"}, "preset"),
        ({"preset": "custom"}, "preset"),
        ({"preset": ["random"]}, "preset"),
        ({"preset": "random", "scores": [0.0] * 16}, "preset or scores"),
        ({"scores": [0.0] * 15}, "scores"),
        ({"scores": [[0.0] * 16]}, "scores"),
        ({"scores": [0.0] * 15 + [math.nan]}, "scores"),
        ({"scores": [0.0] * 15 + [math.inf]}, "scores"),
        ({"scores": "sixteen"}, "scores"),
        ({"scores": [0.0] * 15 + [None]}, "scores"),
        ({"values": [[0.0] * 3] * 16}, "values"),
        ({"values": [[0.0] * 4] * 15 + [[0.0, 1.0, 2.0, math.inf]]}, "values"),
        ({"values": [[0.0] * 4] * 15 + [[0.0]]}, "values"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        Stepper(**arguments)


@pytest.mark.parametrize(
    ("trait", "value"),
    [
        ("tile", 0),
        ("tile", None),
        ("scores", [1.0]),
        ("preset", "x"),
        ("guard", 1),
        ("guard", None),
        ("position", 99),
    ],
)
def test_bad_assignments_are_refused_and_change_nothing(trait, value):
    w = Stepper()
    before = getattr(w, trait)
    with pytest.raises(ValueError, match=trait):
        setattr(w, trait, value)
    assert getattr(w, trait) == before


def test_scores_and_preset_follow_each_other():
    w = Stepper()
    w.preset = "masked"
    assert w.scores == PRESETS["masked"][1]
    w.scores = np.arange(16)
    assert w.preset == "custom" and w.scores == list(map(float, range(16)))
    w.preset = "rising"
    assert w.scores == PRESETS["rising"][1]
    assert Stepper(scores=range(16), values=np.ones((16, 4))).preset == "custom"


def test_one_widget_does_not_change_the_presets_of_the_next():
    w = Stepper("rising")
    w.scores[0] = 99.0
    assert Stepper("rising").scores[0] == -1.5 and VALUES[0][0] == 1.0


def test_state_is_valid_json_and_comes_back_as_numbers():
    w = Stepper("masked")
    state = w.get_state()
    text = json.dumps({key: state[key] for key in ("scores", "values", "presets", "trace")}, allow_nan=False)
    assert json.loads(text)["scores"][0] == "-inf"
    w.set_state(
        {"trace": [{"start": 0, "stop": 4, "m": "-inf", "correction": "nan", "l": "nan", "o": ["nan"] * 4}]}
    )
    (row,) = w.trace
    assert row["m"] == -math.inf and math.isnan(row["correction"]) and np.isnan(row["o"]).all()
    w.set_state({"scores": ["-inf"] * 16, "preset": "custom"})
    assert w.scores == [-math.inf] * 16


def test_encode_and_decode_are_inverse_and_leave_other_values_alone():
    value = {"a": [1, 2.5, -math.inf, {"b": math.inf}], "c": "text", "d": (1, 2)}
    assert decode(encode(value)) == {**value, "d": [1, 2]}
    assert math.isnan(decode(encode(math.nan)))


def test_the_bundle_carries_the_live_view_and_a_still():
    data, _ = Stepper("masked", guard=False)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    still = data["text/html"]
    assert still.count("NaN") == 5 and "−∞" in still  # correction and l of tile 1, l of the three after it
    assert "NaN" not in Stepper("masked").fallback()


def test_the_still_names_single_keys_and_a_short_last_tile():
    still = Stepper(tile=5).fallback()
    assert ">1–5<" in still and ">16<" in still
