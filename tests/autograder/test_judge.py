"""One submission, from file to verdict: what it scores, whatever it does."""

import io
import itertools
import json
import os
import re
import tempfile
import threading
import time
import types

import nbformat
import numpy as np
import psutil
import pytest
from nbformat.v4 import new_code_cell
from small_assignment import STEP, data, master, needs_sandbox, statuses, submission

from autograder import checks, executor, judge, warm
from autograder.checks import core
from autograder.contestant import Launch
from autograder.executor import NotStarted
from autograder.oddities import oddities
from autograder.rebuild import grade_id, is_extra
from autograder.sandbox import FLOOD_BYTES, Sandbox

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
        ("import os\n    while True: os.fork()", "too many processes"),
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


def test_too_many_processes_are_the_reason_even_if_the_watchdog_had_no_turn(graded, monkeypatch):
    """A fork bomb keeps the machine so busy that its time may be up first."""
    monkeypatch.setattr(Sandbox, "_watch_until_stopped", lambda self: None)
    body = """def step(state, tile):
    import os, time
    for _ in range(70):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    time.sleep(60)"""
    verdict, _ = graded(notebook=submission(body), cell_seconds=3.0)
    assert "too many processes" in " ".join(c["message"] for c in verdict["cells"]["check-03-step"]["cases"])


def test_what_a_call_leaves_behind_is_not_there_for_the_next_one(graded):
    """A call runs in a child: it can't keep the judge's inputs, count calls, or print them into the notebook."""
    spy = STEP.replace("m, l, o = state", "seen.append(state); print('SPIED', tile)\n    m, l, o = state")
    notebook = submission("seen = []\n" + spy)
    notebook.cells.append(new_code_cell("print('kept', len(seen))", id="own"))
    verdict, executed = graded(notebook=notebook)
    assert statuses(verdict) == BOTH
    text = json.dumps([c.outputs for c in executed.cells if c.cell_type == "code"])
    assert "kept 0" in text and "SPIED" not in text


_KEEP = "m, l, o = state\n    open('/tmp/kept', 'w').write(' '.join(f'KEPT{x:.4f}' for x in tile[0]))"


def test_what_a_call_kept_in_a_file_comes_out_in_no_earlier_output_and_no_message(graded):
    """The feedback page leaves out later outputs; so nothing may get into earlier ones, nor into the line of a check."""
    show = "from IPython.display import display\nshown = display('as it was', display_id='x')"
    notebook = submission(STEP.replace("m, l, o = state", _KEEP), extra=show)
    again = "from IPython.display import update_display\nkept = open('/tmp/kept').read()\nupdate_display(kept, display_id='x')\n"
    notebook.cells.insert(5, new_code_cell(again + "def check(*args): raise ValueError('0.125 in ' + kept.replace('KEPT', ' '))", id="own2"))
    verdict, executed = graded(notebook=notebook)
    early, late = (json.dumps(c.outputs) for c in executed.cells if is_extra(c))
    assert "as it was" in early and "KEPT" not in early
    cell = verdict["cells"]["check-03-masked"]
    assert cell["message"].startswith("ValueError: # in ") and "#  -#" in cell["message"] and not re.search(r"\d", cell["message"])


def test_a_verdict_cannot_be_written_from_inside(graded):
    forge = """
import glob, json, os, threading, time
def forge():
    while True:
        for folder in glob.glob("/tmp/**/answers/*", recursive=True):
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
    verdict, executed = graded(extra=extra.replace("import os\n", "import os, glob\nos.chdir(glob.glob('/tmp/**/answers', recursive=True)[0])\n"))
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


def test_no_warm_parent_is_started_for_what_cannot_be_read(graded, tmp_path, monkeypatch):
    """It takes longer to come up than all the rest of such a verdict."""
    asked = []
    monkeypatch.setattr(warm, "_found", lambda gpu: asked.append(gpu) or "none")
    path = tmp_path / "small.ipynb"
    path.write_text("{")
    verdict, _ = graded(path=path)
    assert verdict["machine"]["start"] is None and not asked
    verdict, _ = graded(notebook=master())
    assert verdict["machine"]["start"] == "exec (none)" and asked


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
        (f"x = np.ones({_N // 8})\ndef step(n):\n    x[:] = 2\n    return np.zeros(8)", False),
        (f"import time\nx = [np.ones({_N // 8})]\ndef step(n):\n    x[0][:] = 2\n    time.sleep(0.3)\n    x.clear()\n"
         "    return np.zeros(8)", False),
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
    ids=["honest", "freed before it returns", "set up before the call", "set up before and freed", "spilt to tmpfs", "in a memfd", "in a child",
         "in a daemon", "before it says ready"],
)  # fmt: skip
def test_memory_is_measured_from_outside_wherever_it_is_hidden(graded, monkeypatch, solution, passes):
    cases = [core.Case(f"{_N >> 20} MiB", (_N,), {"o": np.zeros(8)}, {"o": 0.1}, limit_bytes=_N // 2, size=_N)]
    verdict, _ = graded(solution, master_notebook=_with(monkeypatch, _check("x.memory", lambda rng, rung: cases)))
    cell = verdict["cells"]["check-03-masked"]
    assert cell["status"] == ("passed" if passes else "failed"), cell["cases"]
    assert cell["cases"][0]["peak_bytes"] < 16 * 2**20 if passes else cell["cases"][0]["peak_bytes"] > _N // 2


@pytest.mark.parametrize(
    "solution",
    [
        "def step(n):\n    with open('/tmp/x', 'wb') as f:\n        for _ in range(n >> 20): f.write(bytes(2**20))\n"
        "    import os; os.remove('/tmp/x')\n    return np.zeros(8)",
        "import os\ndef step(n):\n    if (r := os.fork()) == 0:\n        with open('/dev/shm/x', 'wb') as f: f.write(bytes(n))\n"
        "        os.remove('/dev/shm/x')\n        os._exit(0)\n    os.waitpid(r, 0)\n    return np.zeros(8)",
    ],
    ids=["by the function", "by a child"],
)
def test_a_file_that_is_gone_before_anybody_looks_counts(graded, monkeypatch, solution):
    monkeypatch.setattr(executor._Meter, "_tmpfs", lambda self: 0)
    cases = [core.Case("c", (_N,), {"o": np.zeros(8)}, {"o": 0.1}, limit_bytes=_N // 2, size=_N)]
    verdict, _ = graded(solution, master_notebook=_with(monkeypatch, _check("x.memory", lambda rng, rung: cases)))
    assert verdict["cells"]["check-03-masked"]["cases"][0]["peak_bytes"] >= _N


def test_the_answer_is_no_scratch_file(graded, monkeypatch):
    step, wrote = executor._Meter.step, []

    def late(meter):
        if "done" in meter._let:
            time.sleep(0.5)  # so long that the answer is written
        step(meter)
        wrote.append(meter._wrote)

    monkeypatch.setattr(executor._Meter, "step", late)
    cases = [core.Case("c", (_N,), {"o": np.zeros(2**20)}, {"o": 0.1}, limit_bytes=_N, size=_N)]
    graded("def step(n):\n    return np.zeros(2**20)", master_notebook=_with(monkeypatch, _check("x.memory", lambda rng, rung: cases)))
    assert wrote and max(wrote) < 2**20


_LOOKS_AT_FILES = """
import mmap, numpy.random as r
def step(n):
    x = np.ones(n // 8)
    del x
    with open(r._generator.__file__, "rb") as file:  # pages of files, looked at once the array is gone, hide none of it
        mapped = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for _ in range(100)]
    sum(m[i] for m in mapped for i in range(0, len(m), 4096))
    return np.zeros(8)
"""


@pytest.mark.parametrize(
    "solution", ["def step(n):\n    x = np.ones(n // 8)\n    del x\n    return np.zeros(8)", _LOOKS_AT_FILES], ids=["freed", "and then files"]
)
def test_memory_that_is_freed_before_the_end_is_read_in_full(graded, monkeypatch, solution):
    """A fork starts without its parent's pages of files, so these must not be taken off what it grew by."""
    cases = [core.Case(f"{i}", (_N,), {"o": np.zeros(8)}, {"o": 0.1}, limit_bytes=2 * _N, size=_N) for i in range(4)]
    verdict, _ = graded(solution, master_notebook=_with(monkeypatch, _check("x.memory", lambda rng, rung: cases)))
    peaks = [case["peak_bytes"] / 2**20 for case in verdict["cells"]["check-03-masked"]["cases"]]
    mib = _N / 2**20
    assert min(peaks) > mib - 1, peaks
    assert "files" in solution or max(peaks) < mib + 6, peaks


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


def _table_of(names, functions, monkeypatch):
    """A master in which cell i asks for `functions[i]` by a check of its own, and the submission that has them."""
    case = core.Case("c", (np.arange(6.0).reshape(2, 3),), {"o": np.arange(2.0)}, {"o": 1e-9})
    released, handed = master(), master()
    for book, sources in ((released, ["f = None"] * len(functions)), (handed, functions)):
        book.cells = book.cells[:2]
        for i, source in enumerate(sources):
            name = f"x.{i}"
            monkeypatch.setitem(checks.CHECKS, name, core.Check(name, names[i], "function", lambda rng, rung: [case, case]))
            book.cells.append(new_code_cell(source, id=f"s-{i}", metadata=data(f"s-{i}")))
            book.cells.append(new_code_cell(f'check("{name}", f)', id=f"check-{i}", metadata=data(f"check-{i}", 1)))
    return released, handed


_TRICKS = {
    "None": ("return None", "NoneType"),
    "a list": ("return [0.0, 1.0]", "but is list"),
    "text": ("return np.array(['0', '1'])", "array of <U1"),
    "objects": ("return np.array([0.0, 1.0], dtype=object)", "array of object"),
    "another shape": ("return np.zeros((1, 2))", r"shape \(1, 2\), expected \(2,\)"),
    "booleans": ("return np.array([False, True])", "dtype bool"),
    "NaN": ("return np.full(2, np.nan)", "2 of 2 elements are NaN"),
    "zeros": ("return np.zeros(2)", "is wrong"),
    "inputs overwritten": ("x[...] = 0\n    return x[:, 0]", "is wrong"),
    "inputs overwritten, result right": ("x[...] = 0\n    return np.arange(2.0)", "was written to"),
    "equal to everything": ("class E(np.ndarray):\n        __eq__ = __le__ = lambda s, o: True\n    return np.zeros(2).view(E)", "is wrong"),
    "a text of 100 MB": ("raise ValueError('y' * 10**8)", r"ValueError: y+\.\.\."),
    "an error without text": ("class E(Exception):\n        def __str__(self): raise RuntimeError\n    raise E", "could not be printed"),
    "a stack without end": ("import sys\n    sys.setrecursionlimit(10**9)\n    g = lambda y: sorted([y], key=g)\n    return g(0)",
                            "signal 11|RecursionError"),
    "10,000 files": ("kept = [open('/dev/null') for _ in range(10_000)]\n    return x[0]", "Too many open files"),
    "input": ("return input()", "Error"),
    "network": ("import socket\n    socket.create_connection(('127.0.0.1', 22), 1)", "OSError|Refused"),
}  # fmt: skip


def test_many_kinds_of_wrong_answers_each_cost_their_check_and_say_why(graded, monkeypatch):
    """One notebook, one kernel, a cell for each; the last one is right."""
    bodies = [f"def f(x):\n    {code}" for code, _ in _TRICKS.values()] + ["def f(x):\n    return np.arange(2.0)"]
    released, handed = _table_of([*_TRICKS, "right"], bodies, monkeypatch)
    verdict, _ = graded(notebook=handed, master_notebook=released)
    *cells, last = verdict["cells"].values()
    assert last["status"] == "passed" and verdict["interruptions"] == []
    for (name, (_, words)), cell in zip(_TRICKS.items(), cells, strict=True):
        assert cell["status"] == "failed" and re.search(words, cell["cases"][0]["message"]), (name, cell["cases"][0])


_SLOW_ENDING = """
import ctypes, pathlib, time
write = pathlib.Path.write_text
def slowly(path, text):
    path.touch()
    time.sleep(0.3)
    return write(path, text)
pathlib.Path.write_text = slowly
def step(state, tile):
    ctypes.string_at(0)
"""


def test_how_a_call_ended_is_read_only_when_all_of_it_is_written(graded):
    """On a busy machine the grader looks in between, and a crash read as "exit code 0"."""
    verdict, _ = graded(_SLOW_ENDING)
    assert "signal 11" in verdict["cells"]["check-03-step"]["cases"][0]["message"]


_FLOODS = {
    "one message": "display({'text/plain': 'x' * 300_000_000}, raw=True)",
    "a message without end": "for _ in range(3000): raw.send(bytes(10**6), zmq.SNDMORE, copy=False)",
    "messages of parts": "for _ in range(300): raw.send_multipart([bytes(10**6)] * 6, copy=False)",
}


@pytest.mark.parametrize("code", _FLOODS.values(), ids=_FLOODS.keys())
def test_our_own_memory_does_not_grow_with_what_a_kernel_sends(graded, code):
    """What libzmq receives for us comes before any counting of ours."""
    own = psutil.Process()
    start, peak, over = own.memory_info().rss, [0], threading.Event()

    def watch():
        while not over.wait(0.005):
            peak[0] = max(peak[0], own.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        head = ("import zmq\nfrom IPython import get_ipython\nfrom IPython.display import display\n"
                "raw = zmq.Socket.shadow(get_ipython().kernel.iopub_socket.io_thread.socket.underlying)\n")  # fmt: skip
        verdict, executed = graded(extra=head + code, cell_seconds=15.0)
    finally:
        over.set()
        watcher.join()
    assert statuses(verdict) == BOTH
    assert peak[0] - start < 2 * FLOOD_BYTES + 64 * 2**20  # one look of the watchdog late
    own_cell = next(c for c in executed.cells if is_extra(c))
    assert [i["cell"] for i in verdict["interruptions"]] == [own_cell.id]


@pytest.fixture
def folders(monkeypatch):
    """The folders of all sandboxes that were made."""
    made, make = [], tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *args, **kwargs: made.append(make(*args, **kwargs)) or made[-1])
    return made


@pytest.mark.parametrize("where", ["spawn", "up", "main"])
def test_a_driver_that_does_not_start_is_our_fault_and_leaves_nothing_behind(graded, monkeypatch, folders, where):
    """The kernel's check waits, the others are judged."""
    launch = Launch((1,), ("@o",), {"o": ((16,), "float32")}, {"N": 16})
    check = core.Check("x.kernel", "made for this test", "kernel", triton=True,
                       cases=lambda rng, rung: [core.Case("16 numbers", launch, {"o": np.arange(16.0)}, {"o": 1e-6})])  # fmt: skip
    released = _with(monkeypatch, check)
    released.cells[4].source = 'check("x.kernel", k)'
    if where == "spawn":
        monkeypatch.setattr(executor.Sandbox, "start", lambda *a, **k: (_ for _ in ()).throw(OSError("no more processes")))
    elif where == "up":
        start = executor.Sandbox.start
        monkeypatch.setattr(executor.Sandbox, "start", lambda self, argv, **kwargs: start(self, ["/bin/true"], **kwargs))
    else:
        find = executor._Process.find_main

        def lost(self, *args):
            if isinstance(self, executor.Driver):
                raise NotStarted("the sandbox did not start")
            return find(self, *args)

        monkeypatch.setattr(executor._Process, "find_main", lost)
    verdict, _ = graded(notebook=submission(extra=_KERNEL.replace("step(p", "k(p").format("pass")), master_notebook=released)
    assert statuses(verdict) == {"step": "passed", "masked": "infrastructure_error"}
    assert folders and not any(map(os.path.exists, folders))


def test_a_notebook_that_does_not_start_is_our_fault_and_leaves_nothing_behind(graded, monkeypatch, folders):
    monkeypatch.setattr(executor._Process, "find_main", lambda *args: (_ for _ in ()).throw(NotStarted("the sandbox did not start")))
    verdict, _ = graded()
    assert set(statuses(verdict).values()) == {"infrastructure_error"}
    assert any("the sandbox did not start" in flag for flag in verdict["flags"])
    assert folders and not any(map(os.path.exists, folders))


def test_grading_leaves_nothing_open(graded):
    """A worker grades a thousand submissions: what one leaves open must not add up."""
    crash = "import os\nos._exit(0)"
    graded(extra=crash)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for extra in (None, crash, None):
        graded(extra=extra)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_what_was_lost_and_run_again_is_in_the_verdict(graded, monkeypatch):
    """A cell that dies only when it is run again is left out from then on: it can't keep the rest from being judged."""
    environment, runs = executor.Sandbox.environment, itertools.count()
    monkeypatch.setattr(executor.Sandbox, "environment", lambda self: environment(self) | {"RUN": str(next(runs))})
    monkeypatch.setattr(warm, "parent", lambda gpu=False: None)  # a parent serves one environment, and would count as a run
    monkeypatch.setattr(warm, "mode", lambda gpu=False: "exec")
    notebook = submission(extra="import os\nif os.environ['RUN'] != '0': os._exit(0)")
    notebook.cells.insert(4, new_code_cell("os._exit(1)", id="second"))
    verdict, _ = graded(notebook=notebook)
    assert statuses(verdict) == BOTH
    second, first = verdict["interruptions"]
    assert second["reason"] == "this cell ended its Python process" and second["cells_run_again"] == 2
    assert first["reason"] == "when it was run again: this cell ended its Python process" and first["cells_run_again"] == 2
    assert second["cell"] != first["cell"] and first["by"] is None and first["seconds"] > 0


def test_a_verdict_says_what_it_was_made_on_and_by_whom(graded):
    verdict, _ = graded(extra="kept = []\nwhile True: kept.append(bytearray(2**26))", memory_bytes=2**30)
    assert {"python", "numpy", "torch", "triton", "card"} <= verdict["machine"].keys()
    assert verdict["seed_id"] == judge.seed_id(b"secret") and len(verdict["grader"]) == 16 and verdict["rung"] == "cpu"
    assert verdict["limits"]["memory_bytes"] == 2**30 and verdict["made"].endswith("Z") and verdict["seconds"] > 0
    for cell in verdict["cells"].values():
        assert cell["check"] and cell["rung"] == "numpy" and cell["seconds"] > 0 and len(cell["cases"]) > 1
    (lost,) = verdict["interruptions"]
    assert lost["by"] == "memory" and lost["cells_run_again"] == 2
    assert any("GiB of memory" in flag for flag in verdict["flags"])


_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?:e[+-]?\d+)?")


@pytest.mark.parametrize(
    "solution",
    ["def step(state, tile):\n    return state[0], state[1] + 1, state[2]", "def step(state, tile):\n    raise ValueError(f'{state} {tile}')",
     "def step(state, tile):\n    assert tile[0].shape == (123, 45), (tile, state)"],
    ids=["wrong", "quotes its inputs", "asserts"],
)  # fmt: skip
def test_neither_verdict_nor_table_gives_away_a_secret_case(graded, solution):
    """No seed, no input, no expected value: not of the failing cases either, and not in what an exception of the student's quotes."""
    seed = bytes(range(32))
    verdict, executed = graded(solution, seed=seed)
    text = json.dumps(verdict) + json.dumps(executed)
    assert "failed" in statuses(verdict).values()
    assert seed.hex() not in text and repr(seed) not in text
    secrets = set()
    for name in ("03.step", "03.step.masked"):
        for case in checks.find(name).cases(judge.generator(seed, name), "numpy"):
            (m, l, o), (s, v) = case.call  # noqa: E741
            arrays = [m, l, o, s, v, *case.expected.values()]
            values = np.concatenate([np.ravel(np.asarray(a, float)) for a in arrays])
            secrets |= {abs(x) for x in values[np.isfinite(values)] if x != round(x)}
    secrets = np.array(sorted(secrets))
    shown = {abs(float(x)) for x in _NUMBER.findall(text)}
    shown -= {abs(v) for v in _numbers_of(verdict, ("seconds", "error", "tolerance"))}
    given_away = [x for x in shown if np.isclose(secrets, x, rtol=1e-4, atol=0).any()]
    assert len(secrets) > 100 and given_away == []
    assert all(c["expected"] is None and c["got"] is None for cell in verdict["cells"].values() for c in cell["cases"])


def _numbers_of(value, keys):
    """Every number that stands under one of `keys`, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in keys and isinstance(inner, float):
                yield from (inner, float(f"{inner:.6g}"), float(f"{inner:.2e}"))
            yield from _numbers_of(inner, keys)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers_of(inner, keys)


def test_a_traceback_keeps_its_lines_and_loses_the_numbers_of_its_message():
    text = 'Traceback (most recent call last):\n  File "<ipython-input-3>", line 12, in step\n    x = np.zeros(3) / 4\n' \
           "ValueError: shapes (17,) and (3, 4.5e-3) differ\n    in 5 places, float32"  # fmt: skip
    said = executor._traceback(text)
    assert "line 12, in step" in said and "np.zeros(3) / 4" in said
    assert said.endswith("ValueError: shapes (#,) and (#, #) differ\n    in # places, float32")


def test_memory_that_nvml_does_not_tell_is_looked_at_by_a_person(monkeypatch):
    monkeypatch.setattr(executor, "_nvml", lambda: lambda pids: 0)
    with Sandbox() as box:
        box.gpu = True
        for folder in (box.answers / "1", box.requests / "1"):
            folder.mkdir()
        meter = executor._Meter(types.SimpleNamespace(sandbox=box, main=psutil.Process()), "1", True)
        (box.answers / "1" / "ready").touch()
        meter.step()
        assert meter.peak is None


def test_a_part_of_another_release_waits_for_a_person(graded):
    old = submission()
    for cell, checksum in ((old.cells[3], "older"), (old.cells[4], "same")):
        cell.metadata.nbgrader.checksum = checksum
    released = master()
    released.cells[3].metadata.nbgrader.checksum, released.cells[4].metadata.nbgrader.checksum = "newer", "same"
    verdict, _ = graded(notebook=old, master_notebook=released)
    assert statuses(verdict) == {"step": "needs_review", "masked": "passed"}
    assert any("another release" in flag for flag in verdict["flags"])


def test_a_file_under_another_name_is_taken_and_flagged(graded, tmp_path):
    path = tmp_path / "mine" / "small (1).ipynb"
    path.parent.mkdir()
    nbformat.write(submission(), path)
    verdict, _ = graded(path=path.with_name("small.ipynb"))
    assert statuses(verdict) == BOTH and "handed in as small (1).ipynb" in verdict["flags"][0]
    nbformat.write(submission(), path.with_name("small (2).ipynb"))
    verdict, _ = graded(path=path.with_name("small.ipynb"))
    assert set(statuses(verdict).values()) == {"needs_review"} and "the folder holds" in verdict["flags"][0]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos._exit(0)", ["_exit"]),
        ("from kernels.reference import flash", ["from kernels.reference import flash"]),
        ("from autograder import check, handin\nimport time, os, glob\ntorch.backends.cuda.matmul.allow_tf32 = True", []),
        ("np.exp = f\ntime.time = lambda: 0", ["np.exp = ...", "time.time = ..."]),
        ("open('/proc/1/maps'); eval('1')", ["/proc", "eval"]),
        ("x = !ls", ["getoutput"]),
        ("this is not python", []),
    ],
)
def test_what_is_worth_a_look(source, found):
    assert oddities(source) == found
