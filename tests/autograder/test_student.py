"""`check`, as a student calls it."""

import numpy as np
import pytest
from small_assignment import STEP

from autograder import CheckFailed, check, student
from autograder.checks import find

namespace = {"np": np}
exec(STEP, namespace)
step = namespace["step"]


def test_a_right_answer_prints_a_table_and_raises_nothing(capsys):
    check("03.step", step)
    out = capsys.readouterr().out
    assert "03.step" in out and "cases pass" in out and "fail" not in out


def test_a_wrong_answer_raises_after_the_table(capsys):
    with pytest.raises(CheckFailed, match=r"03\.step: \d+ of \d+ cases fail"):
        check("03.step", lambda state, tile: state)
    out = capsys.readouterr().out
    assert "First failing case" in out and "expected" in out and "got" in out


def test_an_unknown_check_lists_what_there_is():
    with pytest.raises(ValueError, match=r"no check is called '3\.step'; there are: .*03\.step"):
        check("3.step", step)


def test_a_gpu_check_waits_here_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr(student, "rung", lambda the_check: None)
    check("03.host.memory", None)
    assert "It waits" in capsys.readouterr().out


def test_the_interpreter_must_have_been_chosen_before_triton_was_imported(monkeypatch):
    if student.rung(find("03.kernel.full")) != "interpreter":
        pytest.skip("there is a GPU")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(CheckFailed, match="TRITON_INTERPRET=1 was not set"):
        check("03.kernel.full", None)


def test_a_call_that_raises_leaves_no_tracing_on(capsys):
    import tracemalloc

    def raises(*arguments):
        raise RuntimeError("no")

    with pytest.raises(CheckFailed):
        check("03.memory", raises)
    assert not tracemalloc.is_tracing()


def test_the_peak_that_a_student_sees_is_that_of_their_call(capsys):
    def quadratic(q, k, v, tile_q, tile_k):
        s = q @ k.T / np.sqrt(q.shape[1])
        m = s.max(1)
        p = np.exp(s - m[:, None])
        return p @ v / p.sum(1)[:, None], m + np.log(p.sum(1))

    with pytest.raises(CheckFailed):
        check("03.memory", quadratic)
    out = capsys.readouterr().out
    assert "MiB" in out and "power" in out and "as many rows as there are queries" in out.replace("\n", " ")
