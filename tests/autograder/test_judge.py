"""One submission, from file to verdict: what it scores, whatever it does."""

import io
import json
import types

import numpy as np
import psutil
import pytest
from nbformat.v4 import new_code_cell
from small_assignment import STEP, master, needs_sandbox, statuses, submission

from autograder import checks, executor, judge
from autograder.checks import core
from autograder.rebuild import grade_id
from autograder.sandbox import Sandbox

pytestmark = needs_sandbox
BOTH = {"step": "passed", "masked": "passed"}
NONE = {"step": "failed", "masked": "failed"}


def test_a_right_answer_passes_and_its_table_is_in_the_notebook(graded):
    verdict, notebook = graded()
    assert statuses(verdict) == BOTH and verdict["flags"] == []
    assert [c["earned"] for c in verdict["cells"].values()] == [3.0, 2.0]
    cell = next(c for c in notebook.cells if grade_id(c) == "check-03-step")
    assert "cases pass" in cell.outputs[0].data["text/html"]


def test_the_blank_release_scores_nothing_and_says_why(graded):
    verdict, _ = graded(notebook=master())
    assert statuses(verdict) == NONE
    assert "return" in verdict["cells"]["check-03-step"]["cases"][0]["message"]


@pytest.mark.parametrize(
    "extra",
    [
        "import os; os._exit(1)",
        "import ctypes; ctypes.string_at(0)",
        "raise RuntimeError('x' * 10**7)",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "while True: print('x' * 100_000)",
        "kept = []\nwhile True: kept.append(bytearray(2**26))",
        "input()",
        "import signal, os; os.kill(os.getppid(), signal.SIGKILL)",
        "this is not python",
        "exit()",
    ],
)
def test_a_cell_that_dies_costs_that_cell_alone(graded, extra):
    verdict, _ = graded(extra=extra, cell_seconds=3.0, memory_bytes=2**30)
    assert statuses(verdict) == BOTH


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import ctypes; ctypes.string_at(0)", "signal 11"),
        ("while True: pass", "took longer than 2 s"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "ended the whole Python process"),
        ("kept = []\n    while True: kept.append(bytearray(2**26))", "GiB of memory"),
        ("raise SystemExit", "SystemExit"),
        ("return state, 'x'", "tuple"),
        ("return np.zeros(3), np.zeros(3)", "expected 3"),
    ],
)
def test_a_call_that_dies_fails_its_check_with_the_reason(graded, body, reason):
    # `other` is asked after it, so the notebook has to live on.
    notebook = submission(f"def step(state, tile):\n    {body}")
    notebook.cells[4].source = 'check("03.step.masked", other)'
    released = master()
    released.cells[4].source = notebook.cells[4].source
    notebook.cells.insert(3, new_code_cell(STEP.replace("def step", "def other"), id="own"))
    verdict, _ = graded(notebook=notebook, master_notebook=released, cell_seconds=2.0, memory_bytes=2**30)
    assert statuses(verdict) == {"step": "failed", "masked": "passed"}
    assert reason in " ".join(c["message"] for c in verdict["cells"]["check-03-step"]["cases"])


def test_what_a_call_leaves_behind_is_not_there_for_the_next_one(graded):
    """A call runs in a child: it can't keep the judge's inputs, count calls, or print them into the notebook."""
    spy = STEP.replace("m, l, o = state", "seen.append(state); print('SPIED', tile)\n    m, l, o = state")
    notebook = submission("seen = []\n" + spy)
    notebook.cells.append(new_code_cell("print('kept', len(seen))", id="own"))
    verdict, executed = graded(notebook=notebook)
    assert statuses(verdict) == BOTH
    text = json.dumps([c.outputs for c in executed.cells if c.cell_type == "code"])
    assert "kept 0" in text and "SPIED" not in text


def test_a_verdict_cannot_be_written_from_inside(graded):
    forge = """
import glob, json, os, threading, time
def forge():
    while True:
        for folder in glob.glob("/tmp/ag-*/answers/*"):
            body = {"arrays": 0, "problem": None, "detail": "", "changed": [], "seconds": 0, "passed": True, "earned": 100}
            try:
                open(folder + "/answer.json", "w").write(json.dumps(body))
            except OSError:
                pass
        time.sleep(0.0005)
threading.Thread(target=forge, daemon=True).start()
def step(state, tile):
    return state
"""
    verdict, _ = graded(forge)
    assert statuses(verdict) == NONE


def _answer_of(**files):
    """What our side makes of an answer's folder with these files in it."""
    with Sandbox() as box:
        (box.answers / "1").mkdir()
        for name, content in files.items():
            (box.answers / "1" / name.replace("_", ".")).write_bytes(content)
        return executor.read_answer(box, "1")


_ONE = json.dumps({"arrays": 1, "problem": None, "detail": "", "changed": [], "seconds": 0}).encode()


@pytest.mark.parametrize(
    "content",
    ["not json", '{"arrays": 10000000000}', '{"arrays": 1}', "[]", '{"arrays": -1}', "9" * 10**6, "[" * 30_000, '{"arrays": true}'],
)
def test_a_forged_answer_of_any_shape_is_a_failed_case(content):
    answer = _answer_of(answer_json=content.encode())
    assert answer.arrays is None and "no readable answer" in answer.problem


def _npy(array, pickled=False):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


def test_an_array_comes_back_as_it_was():
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.float32(3), np.zeros((0, 4))):
        (back,) = _answer_of(answer_json=_ONE, out0_npy=_npy(array)).arrays
        assert back.dtype == np.asarray(array).dtype and np.array_equal(back, array) and back.shape == np.shape(array)


@pytest.mark.parametrize(
    "content",
    [
        _npy(np.array([print], dtype=object), pickled=True),
        _npy(np.zeros(3, dtype="U9")),
        _npy(np.zeros(4))[:-8],
        _npy(np.zeros(4)) + bytes(8),
        b"",
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }".ljust(117) + b"\n",
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }".ljust(117) + b"\n",
        b"\x93NUMPY\x03\x00v\x00\x00\x00" + b"{}".ljust(117) + b"\n",
    ],
    ids=["pickle", "text", "short", "long", "empty", "a huge header", "a negative header", "another version"],
)
def test_what_is_not_the_plain_array_it_says_it_is_is_not_taken(content):
    answer = _answer_of(answer_json=_ONE, out0_npy=content)
    assert answer.arrays is None and "no readable answer" in answer.problem


def test_the_same_seed_gives_the_same_cases_and_another_seed_others():
    def inputs(seed):
        check = checks.find("03.step")
        return [c.call for c in check.cases(judge.generator(seed, check.name), "numpy")]

    first, again, other = inputs(b"a"), inputs(b"a"), inputs(b"b")
    assert repr(first) == repr(again) != repr(other)
    assert judge.seed_id(b"a") != judge.seed_id(b"b") and b"a".hex() not in judge.seed_id(b"a")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("from IPython import get_ipython\n_k = get_ipython().kernel\n"
         "for _ in range(3): _k.session.send(_k.iopub_socket, 'stream', {}, _k.get_parent())", "passed"),
        ("from IPython.display import display\ndisplay({'application/json': [0] * 1_000_000}, raw=True)", "passed"),
        ("import os\nfor i in range(1200):\n    os.mkdir('d'); os.chdir('d')\n"
         "import time; time.sleep(5)", "passed"),
    ],
    ids=["malformed messages", "numbers without end", "folders without end"],
)  # fmt: skip
def test_what_a_kernel_sends_or_leaves_does_not_stop_the_judge(graded, extra, expected):
    verdict, executed = graded(extra=extra.replace("import os\n", "import os, glob\nos.chdir(glob.glob('/tmp/ag-*/answers')[0])\n"))
    assert set(statuses(verdict).values()) == {expected}
    assert len(json.dumps(executed)) < 3 * 2**20


def test_many_large_answers_are_not_all_taken():
    with Sandbox() as box:
        (box.answers / "1").mkdir()
        (box.answers / "1" / "answer.json").write_bytes(_ONE.replace(b'"arrays": 1', b'"arrays": 16'))
        for i in range(16):
            with open(box.answers / "1" / f"out{i}.npy", "wb") as file:
                file.write(_npy(np.zeros(0))[:-1])
                file.truncate(200 * 2**20)
        assert executor.read_answer(box, "1").arrays is None


def test_text_that_no_encoding_takes_and_metadata_of_any_shape_lose_nothing(graded):
    verdict, _ = graded('def step(state, tile):\n    raise ValueError("\\ud800")')
    assert statuses(verdict) == NONE
    odd = submission()
    odd.cells[3].metadata = {"nbgrader": {"grade_id": ["x"]}, "tags": 5}
    verdict, _ = graded(notebook=odd)
    assert set(statuses(verdict).values()) <= {"needs_review", "passed"}


def test_our_own_failure_in_the_middle_keeps_what_was_judged(graded, monkeypatch):
    def broken(rng, rung):
        raise KeyError("our fault")

    verdict, _ = graded(master_notebook=_with(monkeypatch, _check("x.broken", broken)))
    assert statuses(verdict) == {"step": "passed", "masked": "infrastructure_error"}
    assert any("our fault" in flag for flag in verdict["flags"])


def test_an_unreadable_submission_waits_for_a_person(graded, tmp_path):
    path = tmp_path / "small.ipynb"
    path.write_text("{")
    verdict, _ = graded(path=path)
    assert set(statuses(verdict).values()) == {"needs_review"}
    assert "not a notebook" in verdict["flags"][0]


def _check(name, cases, **kwargs):
    return core.Check(name, "made for this test", "function", cases, **kwargs)


def _with(monkeypatch, check):
    monkeypatch.setitem(checks.CHECKS, check.name, check)
    released = master()
    released.cells[4].source = f'check("{check.name}", step)'
    return released


def test_a_gpu_check_waits_without_a_gpu(graded, monkeypatch):
    released = _with(monkeypatch, _check("x.gpu", lambda rng, rung: [], gpu=True, triton=True))
    verdict, _ = graded(master_notebook=released)
    assert statuses(verdict) == {"step": "passed", "masked": "not_run"}
    assert verdict["cells"]["check-03-masked"]["earned"] == 0


def test_a_check_counts_only_with_what_it_needs(graded, monkeypatch):
    anything = [core.Case("c", ((0.0, 0.0, np.zeros(2)), (np.zeros(1), np.zeros((1, 2)))), {}, {})]
    released = _with(monkeypatch, _check("x.needs", lambda rng, rung: anything, needs=("03.step",)))
    assert statuses(graded(master_notebook=released)[0])["masked"] == "passed"
    verdict, _ = graded("def step(state, tile):\n    return state", master_notebook=released)
    assert statuses(verdict)["masked"] == "failed"
    assert "counts only once 03.step" in verdict["cells"]["check-03-masked"]["message"]


_N = 64 * 2**20
_HONEST = "def step(n):\n    return np.zeros(8)"


@pytest.mark.parametrize(
    ("solution", "passes"),
    [
        (_HONEST, True),
        ("def step(n):\n    x = np.ones(n // 8)\n    del x\n    return np.zeros(8)", False),
        (f"x = np.zeros({_N // 8})\ndef step(n):\n    x[:] = 1\n    return np.zeros(8)", False),
        ("def step(n):\n    with open('/dev/shm/x', 'wb') as f: f.write(bytes(n))\n    import os; os.remove('/dev/shm/x')\n"
         "    return np.zeros(8)", False),
        ("def step(n):\n    import os\n    f = os.memfd_create('x')\n    for _ in range(n >> 20): os.write(f, bytes(2**20))\n"
         "    import time; time.sleep(0.2)\n    return np.zeros(8)", False),
        ("def step(n):\n    import os\n    r = os.fork()\n    if r == 0:\n        x = np.ones(n // 8)\n        import time\n"
         "        time.sleep(0.5)\n        os._exit(0)\n    os.waitpid(r, 0)\n    return np.zeros(8)", False),
        ("import os, time\ndef step(n):\n    if os.fork() == 0:\n        if os.fork() == 0:\n            x = np.ones(n // 8)\n"
         "            time.sleep(0.5)\n        os._exit(0)\n    time.sleep(0.5)\n    return np.zeros(8)", False),
        ("import autograder\n_perform = autograder.perform\ndef late(target, call, keep, ready=None, done=None):\n"
         "    answer = _perform(target, call, keep)\n    ready and ready()\n    done and done()\n    return answer\n"
         "autograder.perform = late\ndef step(n):\n    return np.ones(n // 8)[:8] * 0", False),
    ],
    ids=["honest", "freed before it returns", "set up before the call", "spilt to tmpfs", "in a memfd", "in a child",
         "in a daemon", "before it says ready"],
)  # fmt: skip
def test_memory_is_measured_from_outside_wherever_it_is_hidden(graded, monkeypatch, solution, passes):
    cases = [core.Case(f"{_N >> 20} MiB", (_N,), {"o": np.zeros(8)}, {"o": 0.1}, limit_bytes=_N // 2, size=_N)]
    verdict, _ = graded(solution, master_notebook=_with(monkeypatch, _check("x.memory", lambda rng, rung: cases)))
    cell = verdict["cells"]["check-03-masked"]
    assert cell["status"] == ("passed" if passes else "failed"), cell["cases"]
    assert cell["cases"][0]["peak_bytes"] < 16 * 2**20 if passes else cell["cases"][0]["peak_bytes"] > _N // 2


@pytest.mark.parametrize(
    ("readings", "peak"),
    [
        # MiB that NVML says: before the call, at "ready", while it runs, at "done".
        ((0, 600, 2648, 700), 2048),
        ((0, 600, 610, 610), 10),
        ((3000, 3012, 3020, 3020), 8),  # the notebook's own process had used the card before
        ((0, 2800, 2800, 2800), 2800 - 1536),  # "ready" was said when all was done
    ],
)
def test_on_a_card_what_counts_is_what_the_call_adds_to_its_context(monkeypatch, readings, peak):
    said = iter([None, "ready", None, "done"])
    values = iter(readings)
    monkeypatch.setattr(executor, "_nvml", lambda: lambda pids: next(values) * 2**20)
    with Sandbox() as box:
        box.gpu = True
        for folder in (box.answers / "1", box.requests / "1"):
            folder.mkdir()
        process = types.SimpleNamespace(sandbox=box, main=psutil.Process())
        next(said)
        meter = executor._Meter(process, "1", True)
        for word in said:
            if word:
                (box.answers / "1" / word).touch()
            meter.step()
        assert meter.peak == peak * 2**20
        assert sorted(p.name for p in (box.requests / "1").iterdir()) == ["go", "measured"]


_KERNEL = "import triton\nimport triton.language as tl\n@triton.jit\ndef step(p, N: tl.constexpr):\n    i = tl.arange(0, N)\n    {}"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("tl.store(p + i, i.to(tl.float32))", "passed", ""),
        ("pass", "failed", "NaN"),
        ("tl.store(p + i, np.arange(16))", "failed", "the name np.arange"),
        ("while True: i += 1", "failed", "took longer"),
        ("tl.store(p + i, nonsense)", "failed", "the name nonsense"),
    ],
)
def test_a_kernel_is_launched_by_the_driver_alone(graded, monkeypatch, body, status, words):
    from autograder.contestant import Launch

    launch = Launch((1,), ("@o",), {"o": ((16,), "float32")}, {"N": 16})
    cases = [core.Case("16 numbers", launch, {"o": np.arange(16.0)}, {"o": 1e-6})]
    check = core.Check("x.kernel", "made for this test", "kernel", lambda rng, rung: cases, triton=True)
    solution = _KERNEL.format(body) + "\nstep.fn.__globals__['tl'].store = lambda *a, **k: None  # host code: must not matter"
    verdict, _ = graded(solution, master_notebook=_with(monkeypatch, check), cell_seconds=10.0)
    cell = verdict["cells"]["check-03-masked"]
    assert cell["status"] == status
    assert words in cell["message"] + "".join(c["message"] for c in cell["cases"])


def test_without_a_sandbox_the_outcome_is_the_same_and_the_verdict_says_so(graded):
    """`--unsafe`: the same outcome, without the sandbox."""
    verdict, _ = graded(unsafe=True)
    assert statuses(verdict) == BOTH and verdict["unsafe"]
