"""A timed launch, from the request to the leaderboard. What a card does in it is tested on a card, by the exercises' own tests."""

import json
import math
import types

import numpy as np
import pytest
from small_assignment import master, needs_sandbox, statuses

from autograder import checks, contestant, executor, judge, leaderboard
from autograder.checks import core, table
from autograder.contestant import Answer, Launch, Tensor, moved_bytes
from autograder.sandbox import Sandbox

torch = pytest.importorskip("torch")

KERNEL = """
import triton
import triton.language as tl
@triton.jit
def step(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, {}, mask=i < n)
"""
X = np.arange(16, dtype=np.float32)


def launch(copies=3):
    n = 16 * copies
    return Launch(
        (math.ceil(n / 32),), (Tensor(X), "@out", n), {"out": ((16,), "float32")}, {"BLOCK": 32}, copies
    )


def timed_case(share=0.6):
    return core.Case("48 numbers", launch(), {"out": np.stack([X, X])}, {"out": 1e-6}, least_share=share)


def result_of(answer, case=None):
    check = core.Check("x.speed", "", "kernel", lambda rng, rung: [case or timed_case()])
    (result,) = core.evaluate(check, None, "gpu", lambda case: (answer, None))
    return result


@pytest.mark.parametrize(
    ("dtype", "moved"), [("float32", 3 * (16 * 4 + 16 * 4)), ("float16", 3 * (16 * 2 + 16 * 4)), ("bfloat16", 3 * (16 * 2 + 16 * 4))]
)  # fmt: skip
def test_what_has_to_move_is_every_input_once_and_every_output_once(dtype, moved):
    call = launch()
    assert moved_bytes(Launch(call.grid, (Tensor(X, dtype), "@out", 48), call.outputs, {}, 3)) == moved


def test_a_request_keeps_its_copies(tmp_path):
    contestant.write_request(tmp_path / "1", "k", launch())
    _, call, _ = contestant._read_request(tmp_path / "1")
    assert (call.copies, call.grid, call.constants, call.outputs) == (
        3,
        (2,),
        {"BLOCK": 32},
        {"out": ((16,), "float32")},
    )


def test_a_launch_finds_none_of_its_earlier_results_and_takes_turns_with_a_copy(monkeypatch):
    clock, order = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, other):
            return other.at - self.at  # milliseconds

    out = torch.zeros(8)

    def lazy():
        """Does its work only where the result is not there yet, as a kernel that has been here before might."""
        order.append("launch")
        if out.isnan().all():
            clock[0] += 3
            out.fill_(1.0)

    copied = []
    copy_ = torch.Tensor.copy_

    def copy(self, source):
        order.append("copy")
        copied.append(self.nbytes + source.nbytes)
        assert self.isnan().all() and not source.isnan().any()
        clock[0] += 2
        return copy_(self, source)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    assert contestant._time(lazy, {"out": out}.values(), 4096) == (0.003, 0.002)
    assert order == ["launch", "copy"] * contestant._ROUNDS and set(copied) == {4096}


@pytest.mark.parametrize(
    ("speed", "passed", "words"),
    [
        ((1.0, 0.7), True, ""),
        (
            (1.0, 0.59),
            False,
            "right, but at 59% of the rate at which the card copies as many bytes; 60% is asked for",
        ),
        (None, None, "could not be measured"),
    ],
)
def test_a_right_answer_passes_by_its_share_and_waits_where_nothing_was_timed(speed, passed, words):
    result = result_of(Answer([np.stack([X, X])], speed=speed))
    assert result.passed is passed and words in result.message
    assert bool(result.hint) is (passed is False)
    text = table.as_text("x", [result])
    assert "60%" in text and (speed is None or f"{speed[1]:.0%}" in text)
    assert "48 numbers" in table.as_html("x", [result], hide=True)  # the sizes are the same for all


def test_a_fast_wrong_answer_is_wrong():
    wrong = np.stack([X, X + 1])
    result = result_of(Answer([wrong], speed=(1.0, 2.0)))
    assert result.passed is False and result.share is None and "is wrong" in result.message


@pytest.mark.parametrize(
    ("speed", "kept"),
    [
        ([1e-3, 2e-3], (1e-3, 2e-3)), (None, None), ([0, 1], "unreadable"), ([1, -1], "unreadable"), ([1, math.nan], "unreadable"),
        ([math.inf, 1], "unreadable"), ([1], "unreadable"), ([1, 2, 3], "unreadable"), ("fast", "unreadable"), (True, "unreadable"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_not_taken(speed, kept):
    with Sandbox(unsafe=True) as box:
        (box.answers / "1").mkdir()
        body = {"arrays": 0, "problem": None, "detail": "", "changed": [], "seconds": 0, "speed": speed}
        (box.answers / "1" / "answer.json").write_text(json.dumps(body))
        answer = executor.read_answer(box, "1")
    assert (answer.speed if answer.arrays is not None else "unreadable") == kept


def test_a_verdict_has_the_speeds_that_the_leaderboard_reads():
    results = [result_of(Answer([np.stack([X, X])], speed=(1e-8 * k, 2e-8))) for k in (1, 4)]
    results[1].passed = True
    cell = master().cells[3]
    entry = judge.entry(cell, "passed", results=results, memory_rate=384 / 1e-9)
    assert [case["floor_seconds"] for case in entry["speed"]] == [pytest.approx(1e-9)] * 2
    speed = leaderboard._speed("ada", "x.speed", "a card", json.loads(json.dumps(entry["speed"])))
    assert speed.problem == "" and speed.ratio == pytest.approx(1.0)  # of 2 and 1/2
    # A card of which nobody knows what its memory can do has no leaderboard, and no other loss.
    assert "speed" not in judge.entry(cell, "passed", results=results)
    assert "speed" not in judge.entry(
        cell, "failed", results=[result_of(Answer(problem="it raised"))], memory_rate=1.0
    )


def test_the_rate_of_a_memory_is_two_transfers_a_clock_over_its_bus():
    class NVMLError(Exception):
        pass

    def nvml(width):
        return types.SimpleNamespace(
            NVMLError=NVMLError,
            NVML_CLOCK_MEM=2,
            nvmlDeviceGetMaxClockInfo=lambda handle, clock: {2: 2619}[clock],
            nvmlDeviceGetMemoryBusWidth=width,
        )

    def refused(handle):
        raise NVMLError

    # An H100 SXM, whose published rate is 3.35 TB/s.
    assert judge._memory_rate(nvml(lambda handle: 5120), 0) == pytest.approx(3.35e12, rel=1e-3)
    assert judge._memory_rate(nvml(refused), 0) is None


@needs_sandbox
@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        ("tl.load(x_ptr + i, mask=i < n, other=0.0)", "needs_review", "could not be measured"),
        (
            "tl.load(x_ptr + i % 16) + (i >= 32)",
            "failed",
            "out[1, 0] is wrong",
        ),  # right in all copies but the last
        ("tl.load(x_ptr + i % 16) - (i < 16)", "failed", "out[0, 0] is wrong"),  # in all but the first
    ],
)
def test_the_driver_gives_back_what_all_copies_hold(graded, monkeypatch, value, status, words):
    pytest.importorskip("triton")
    check = core.Check(
        "x.speed", "made for this test", "kernel", lambda rng, rung: [timed_case()], triton=True
    )
    monkeypatch.setitem(checks.CHECKS, check.name, check)
    released = master()
    released.cells[4].source = 'check("x.speed", step)'
    verdict, _ = graded(KERNEL.format(value), master_notebook=released)
    cell = verdict["cells"]["check-03-masked"]
    assert statuses(verdict)["masked"] == status and words in cell["cases"][0]["message"]
    assert cell["cases"][0]["speed"] is None and "speed" not in cell
