"""The masks simulator's Python side: what it accepts, what it refuses, and its numbers against kernels.reference."""

import itertools
import json
import math

import numpy as np
import pytest

from kernels import reference
from kernels.reference.mask import visible as reference_visible
from widgets import Masks
from widgets.masks import (
    BATCHES,
    HIDDEN,
    SCORES,
    SLOTS,
    TILES,
    VALUES,
    finalize,
    kinds,
    merge,
    outputs,
    step,
    trace,
    visible,
)

RULES = [dict(causal=causal, window=window) for causal in (True, False) for window in (None, 1, 3, 6, 12)]


def seen_of(lengths, rule):
    """The mask of one sequence from the library, over all slots."""
    whole = np.zeros((SLOTS, SLOTS), bool)
    i, j = np.arange(lengths[0])[:, None], np.arange(lengths[1])
    whole[: lengths[0], : lengths[1]] = reference_visible(i, j, *lengths, **rule)
    return whole


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_the_mask_and_its_tiles_are_the_librarys(batch, rule):
    for tile in TILES:
        maps = kinds(batch, tile=tile, **rule)
        for own, lengths in zip(maps, BATCHES[batch][1], strict=True):
            whole = seen_of(lengths, rule)
            mine = [
                [visible(i, j, *lengths, rule["causal"], rule["window"]) for j in range(SLOTS)]
                for i in range(SLOTS)
            ]
            assert (whole == mine).all()
            for r, c in itertools.product(range(SLOTS // tile), repeat=2):
                cells = whole[r * tile : (r + 1) * tile, c * tile : (c + 1) * tile]
                assert own[r][c] == ("full" if cells.all() else "partial" if cells.any() else "empty")


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("skip", "split", "tile"), [(True, False, 3), (False, True, 4), (True, True, 2)])
def test_with_the_guard_every_output_is_the_librarys(batch, rule, skip, split, tile):
    _, lengths, level = BATCHES[batch]
    for b, (queries, _) in enumerate(lengths):
        whole = seen_of(lengths[b], rule)
        for i in range(queries):
            s = np.where(whole[i], np.array(SCORES[b][i]) + level, -np.inf)
            want, want_lse = reference.finalize(
                reference.step(reference.empty_state((), 1), s, np.array(VALUES[b])[:, None])
            )
            for nan in (False, True):  # poison in the padding changes nothing
                own = trace(
                    batch, tile=tile, skip=skip, split=split, nan=nan, guard=True, sequence=b, query=i, **rule
                )
                assert own["output"] == pytest.approx(want[0], rel=1e-12, abs=1e-12)
                assert own["lse"] == pytest.approx(want_lse, rel=1e-12)


def test_step_merge_and_finalize_are_the_librarys_with_the_guard():
    rng = np.random.default_rng(3)
    state = lambda own: reference.State(np.float64(own[0]), np.float64(own[1]), np.array([own[2]]))  # noqa: E731
    for _ in range(200):
        s, v = rng.normal(size=(2, 4)) * 10
        s[rng.random(4) < 0.6] = -np.inf
        a = step((-math.inf, 0.0, 0.0), s.tolist(), v.tolist())
        want = reference.step(reference.empty_state((), 1), s, v[:, None])
        np.testing.assert_allclose(a, [want.m, want.l, want.o[0]], rtol=1e-12, atol=1e-12)
        b = (-math.inf, 0.0, 0.0) if rng.random() < 0.3 else (rng.normal(), 1.5, rng.normal())
        both = reference.merge(state(a), state(b))
        np.testing.assert_allclose(merge(a, b), [both.m, both.l, both.o[0]], rtol=1e-12, atol=1e-12)
        output, lse = reference.finalize(both)
        np.testing.assert_allclose(finalize(merge(a, b)), (output[0], lse), rtol=1e-12, atol=1e-12)


def plain(s, v, tile):
    """The recurrence without a guard, in NumPy, over all tiles: the yardstick of what is broken."""
    m, l, o = -np.inf, 0.0, 0.0  # noqa: E741
    with np.errstate(invalid="ignore"):
        for start in range(0, SLOTS, tile):
            part = s[start : start + tile]
            new = max(m, part.max())
            alpha, p = np.exp(m - new), np.exp(part - new)
            m, l, o = new, alpha * l + p.sum(), alpha * o + p @ v[start : start + tile]  # noqa: E741
        return o / l


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("batch", BATCHES)
def test_without_the_guard_it_breaks_where_the_plain_formula_breaks(batch, hidden, nan):
    _, lengths, level = BATCHES[batch]
    for tile, rule in itertools.product((2, 3), RULES):
        own = outputs(batch=batch, tile=tile, skip=False, guard=False, hidden=hidden, nan=nan, **rule)
        for b, rows in enumerate(own):
            v = np.where(np.arange(SLOTS) < lengths[b][1], VALUES[b], np.nan if nan else VALUES[b])
            whole = seen_of(lengths[b], rule)
            for i, (mine, _) in enumerate(rows):
                s = np.where(whole[i], np.array(SCORES[b][i]) + level, HIDDEN[hidden])
                np.testing.assert_allclose(mine, plain(s, v, tile), rtol=1e-9, atol=1e-9)


def broken(**settings):
    """How many outputs are (NaN, finite and wrong, right)."""
    pairs = [pair for rows in outputs(**settings) for pair in rows]
    nan = sum(math.isnan(mine) for mine, _ in pairs)
    wrong = sum(abs(mine - right) > 1e-9 for mine, right in pairs)
    return nan, wrong, len(pairs) - nan - wrong


def test_the_opening_shows_each_kind_of_tile_and_a_row_that_skipping_does_not_save():
    w = Masks()
    kinds_shown = {step["kind"] for step in w.trace["steps"]}
    assert kinds_shown == {"full", "partial", "empty"}
    first = w.trace["steps"][0]
    assert (first["kind"], first["seen"], first["skipped"]) == ("partial", 0, False)
    assert math.isnan(first["l"]) and math.isnan(w.trace["output"])
    nan, wrong, right = broken(**w.settings)
    assert nan > 0 and wrong == 0 and right > nan
    assert broken(**w.settings | {"guard": True})[:2] == (0, 0)


def test_each_experiment_has_its_failure():
    base = Masks().settings
    assert broken(**base | {"hidden": "-1e4", "skip": False})[0] == 0
    assert broken(**base | {"hidden": "-1e4", "skip": False})[1] == 4  # the rows that see no key
    low = broken(**base | {"batch": "low", "hidden": "-1e4", "window": None})
    assert low[1] > 4
    poisoned = dict(nan=True, window=None)
    for tile, bad in ((3, True), (2, False)):  # the second sequence has 10 keys
        own = trace(**base | poisoned | {"tile": tile}, sequence=1, query=3)
        assert math.isnan(own["output"]) == bad
        assert math.isfinite(own["steps"][-1]["m"]) and math.isfinite(own["steps"][-1]["l"])
    split = trace(**base | dict(split=True, window=None, skip=False), sequence=0, query=4)
    *tiles, last = split["steps"]
    assert last["kind"] == "merge" and math.isnan(last["l"])
    assert [math.isnan(one["l"]) for one in tiles] == [False, False, True, True]
    assert math.isfinite(trace(**base | dict(window=None, skip=False), sequence=0, query=4)["output"])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("batch", ["Ragged", None, 0, ["ragged"]]),
        ("window", [0, 13, 2.0, "3", True]),
        ("tile", [1, 5, "3", True, None]),
        ("hidden", ["-1e6", -1e4, None]),
        ("sequence", [-1, 3, 1.0]),
        ("query", [-1, 12, None]),
        ("position", [-1, 13, "0"]),
        *((name, [0, 1, "on", None]) for name in ("causal", "skip", "guard", "nan", "split")),
    ],
)
def test_bad_arguments_and_assignments_are_named_and_change_nothing(name, values):
    w = Masks()
    before = getattr(w, name)
    for value in values:
        with pytest.raises(ValueError, match=f"{name} must be"):
            Masks(**{name: value})
        with pytest.raises(ValueError, match=f"{name} must be"):
            setattr(w, name, value)
        assert getattr(w, name) == before


def test_the_trace_follows_the_traits_and_a_short_sequence():
    w = Masks(guard=True, window=None)
    assert w.trace == trace(guard=True, window=None)
    w.sequence = 1  # it has four queries: the ninth is none of them
    assert w.trace == trace(guard=True, window=None, sequence=1, query=3)


def test_the_state_is_json_and_the_numbers_survive():
    state = Masks().get_state()
    own = json.loads(
        json.dumps({key: state[key] for key in ("options", "window", "hidden")}, allow_nan=False)
    )
    assert own["options"]["hidden"] == {"-inf": "-inf", "-1e4": -10000.0}
    assert np.shape(own["options"]["scores"]) == (3, SLOTS, SLOTS)


def test_the_bundle_carries_the_live_view_and_a_still():
    data, _ = Masks()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    still = data["text/html"]
    assert still.count("<table>") == 4 and "skipped" in still
    right = trace(guard=True)["output"]
    assert f"Output: NaN against {right:.4f}" in still
    assert "NaN" not in Masks(guard=True).fallback()
    assert "merge" in Masks(split=True).fallback()
