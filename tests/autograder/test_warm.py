"""A fork of the warm parent is walled in exactly as what bubblewrap starts, and carries nothing but imported libraries."""

import ast
import json
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from small_assignment import STEP, needs_sandbox, statuses

from autograder import sandbox, warm
from autograder.executor import Notebook
from autograder.sandbox import Limits, Sandbox

pytestmark = needs_sandbox


@pytest.fixture(scope="module")
def parent():
    found = warm.parent()
    if found is None:
        assert "differs" not in warm.mode(), warm.mode()
        pytest.skip(f"no warm parent can be had here: {warm.mode()}")
    return found


def start(parent, code, **limits):
    box = Sandbox(Limits(**limits), parent=parent).__enter__()
    return box, box.start([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(parent, code, **limits):
    box, process = start(parent, code, **limits)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        box.__exit__(None, None, None)
    return process.returncode, out, err


def gone(pids, seconds=10):
    """Whether all of `pids` end within some seconds."""
    deadline = time.monotonic() + seconds
    alive = pids
    while alive and time.monotonic() < deadline:
        alive = [p for p in alive if lives(p)]
        time.sleep(0.02)
    return not alive


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_inside_everything_is_as_bubblewrap_makes_it(parent):
    assert warm.compare(parent) == []
    with Sandbox(parent=parent) as box:
        output, _ = box.start([sys.executable, "-c", warm.FACTS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).communicate(timeout=60)
    facts = json.loads(output)
    # That both are the same is not enough if both were open.
    status = dict(line.split(":\t") for line in facts["status"])
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1" and status["Threads"] == "1"
    assert facts["fds"] == ["0", "1", "2"]
    assert facts["write to the program"] == 30  # EROFS
    assert facts["interfaces"] == ["lo"]
    for name in ("mnt", "pid", "net", "ipc", "uts", "user"):
        assert facts["namespaces"][name] != os.readlink(f"/proc/self/ns/{name}")


OTHERS = """
import os
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        print(open(f"/proc/{pid}/comm").read().strip(), *[os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")])
"""


def test_what_holds_a_sandbox_open_has_nothing_of_the_parents_to_take(parent):
    """Code inside can take the files of any process there (`pidfd_getfd`): the parent's socket would be every later submission."""
    code, out, err = run(parent, OTHERS)
    others = {name: sorted(files) for name, *files in map(str.split, out.splitlines())}
    assert (code, set(others)) == (0, {"bwrap", "cat"}), err
    assert others["cat"] == ["/dev/null", "pipe", "pipe"]
    assert not [file for file in others["bwrap"] if file.startswith("socket")]


# One line of the program each, left out or changed, and what the comparison must then find.
MUTANTS = {
    "capabilities kept": ("    _drop_capabilities()\n", "", "status"),
    "bounding set kept": ("        _prctl(_DROP_BOUND, capability)\n", "        pass\n", "status"),
    "effective ones kept": ('    _call("capset"', '    (lambda *_: None)("capset"', "status"),
    "files left open": ("    os.closerange(3,", "    (3,", "fds"),
    "no limits": ("        resource.setrlimit(", "        (", "limits"),
    "another priority": ("    os.setpriority(", "    (", "place"),
    "no session": ("    os.setsid()", "    pass", "place"),
    "another folder": ('    os.chdir(os.environ["HOME"])\n', "", "place"),
    "the parent's files": ('"mnt": 0x00020000, ', "", "mounts"),
    "the parent's network": ('"net": 0x40000000, ', "", "namespaces"),
    "the parent's ipc": ('"ipc": 0x08000000, ', "", "namespaces"),
    "the parent's name": ('"uts": 0x04000000, ', "", "place"),
    "the parent's user": (', "user": 0x10000000', "", "maps"),
    "an own variable": ("    return argv\n", "    os.environ['SEEN'] = '1'\n    return argv\n", "environment"),
    "signals ignored": ("signal.signal(signal.SIGCHLD, signal.SIG_DFL)", "pass", "status"),
    "an import path": ("    del sys.path[0]", "    pass", "program"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_fork_that_differs_is_found_out(parent, monkeypatch, tmp_path, mutant):
    original, changed, fact = MUTANTS[mutant]
    program = warm.PROGRAM.read_text()
    assert program.count(original) == 1
    imports = program[program.index("PRELOAD =") : program.index("\n_JOINED")]
    (tmp_path / "fork.py").write_text(program.replace(imports, 'PRELOAD = ("numpy",)').replace(original, changed))
    monkeypatch.setattr(warm, "PROGRAM", tmp_path / "fork.py")
    candidate = warm.Parent()
    try:
        assert fact in warm.compare(candidate)
    finally:
        candidate.end()


SCAN = """
import os
def find(halves):
    # Both halves, one behind the other; never joined here, so that this search does not find itself.
    first, second = (half.encode() for half in halves)
    def is_in(piece):
        at = piece.find(first)
        while at >= 0:
            if piece.startswith(second, at + len(first)):
                return True
            at = piece.find(first, at + 1)
        return False
    found = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            place, access = line.split()[:2]
            begin, end = (int(x, 16) for x in place.split("-"))
            if "r" in access and not line.endswith(("[vvar]\\n", "[vsyscall]\\n", "[vvar_vclock]\\n")):
                try:
                    memory.seek(begin)
                    while begin < end:
                        piece = memory.read(min(end - begin, 2**24))
                        if is_in(piece):
                            found.append(line.strip())
                        begin += len(piece)
                        if not piece:
                            break
                except OSError:
                    pass
    return bool(found)
"""


def test_nothing_of_the_grader_or_of_another_submission_is_in_its_memory(monkeypatch):
    secret = ["a secret that ", "nobody inside may read"]
    kept = "".join(secret) * 1000  # in our heap
    monkeypatch.setenv("SECRET_OF_THE_HOST", "".join(secret))
    marker = ["what another ", "student wrote"]
    candidate = warm.Parent()  # started with all that in reach
    try:
        code, _, err = run(candidate, f"import sys; left = {''.join(marker)!r} * 1000; sys.setswitchinterval(1)")
        assert code == 0, err
        control = ["seen if one ", "looks at all"]
        _, out, err = run(candidate, SCAN + f"own = ''.join({control}) * 1000\nprint(find({control}), find({secret}), find({marker}))")
        assert out.split() == ["True", "False", "False"], err
    finally:
        candidate.end()
    assert kept


def test_what_one_fork_does_to_its_modules_no_other_sees(parent):
    code = """
import sys, numpy as np, multiprocessing
print("torch" in sys.modules, "triton" in sys.modules, "ipykernel.kernelapp" in sys.modules, hasattr(np, "mark"))
print(np.random.random(), multiprocessing.current_process().authkey.hex())
np.mark = 1
"""
    first, second = (run(parent, code)[1].splitlines() for _ in range(2))
    assert first[0] == second[0] == "True True True False"
    assert not set(first[1].split()) & set(second[1].split())  # random state and keys are drawn anew


def test_what_the_program_prints_and_how_it_ends_come_out(parent):
    assert run(parent, "import sys; print(1 + 1); sys.exit(3)") == (3, "2\n", "")
    assert run(parent, "import os; os.kill(os.getpid(), 9)")[0] == 128 + 9
    code, _, err = run(parent, "raise ValueError('so')")
    assert code == 1 and err.rstrip().endswith("ValueError: so")


def test_a_reply_that_comes_between_two_looks_is_not_missed(parent, monkeypatch):
    """Its sender closes its streams at once, and was taken for one that had ended without a reply."""
    exists = os.path.exists

    def exists_until_closed(path):
        deadline = time.monotonic() + 60
        while str(path).endswith("/fd/0") and exists(path) and time.monotonic() < deadline:
            time.sleep(0.005)
        return exists(path)

    monkeypatch.setattr(os.path, "exists", exists_until_closed)
    assert run(parent, "print(1)") == (0, "1\n", "")


@pytest.mark.parametrize("cause", ["the walls fall", "no parent listens", "our side ends"])
def test_where_nothing_is_forked_the_message_says_why(parent, monkeypatch, cause):
    said = {"the walls fall": "the parent's fork ended", "no parent listens": "No such file", "our side ends": "nothing says why"}
    if cause == "the walls fall":
        monkeypatch.setattr(Sandbox, "command", lambda box, argv: parent.command(["false"], argv, box._folder / "entered"))
    elif cause == "no parent listens":
        monkeypatch.setattr(parent, "_address", parent._address + ".gone")
    else:
        monkeypatch.setattr(Sandbox, "command", lambda *_: ["false"])
    with Sandbox(parent=parent) as box, pytest.raises(OSError, match=f"no process was forked into the sandbox: .*{said[cause]}"):
        box.start([sys.executable, "-c", ""], stdin=subprocess.DEVNULL).wait()


DAEMON = "import os, time\nif os.fork() == 0: os.setsid()\nprint('up', flush=True)\ntime.sleep(600)"


@pytest.mark.parametrize("end", ["leaving", "the process on our side", "the holder", "the init inside", "the parent"])
def test_every_process_dies_with_the_sandbox_and_the_parent_goes_on(parent, end):
    own = warm.Parent() if end == "the parent" else parent
    box, process = start(own, DAEMON)
    assert process.stdout.readline() == "up\n"
    processes = box.processes()
    pids = [p.pid for p in processes]
    assert len(pids) >= 5 and box.main in pids  # bubblewrap's two, what holds it open, ours and its daemon
    if end == "leaving":
        box.__exit__(None, None, None)
    elif end == "the process on our side":
        process.kill()
    elif end == "the parent":
        own.end()
    else:
        next(p for p in processes if p.name() == ("cat" if end == "the holder" else "bwrap") and p.pid != processes[0].pid).kill()
    assert gone(pids)
    process.communicate(timeout=10)
    if end != "leaving":
        box.__exit__(None, None, None)
    assert own.alive() == (end != "the parent")


def test_the_watchdog_counts_a_fork_as_anything_else(parent):
    box, process = start(parent, "kept = []\nwhile True: kept.append(bytearray(2**24))", memory_bytes=500 * 2**20)
    process.communicate(timeout=60)
    assert box.verdict == "memory"
    box.__exit__(None, None, None)


def test_a_signal_to_its_group_stays_inside(parent):
    assert run(parent, "import os, signal; os.kill(0, signal.SIGKILL)")[0] == 128 + 9
    assert run(parent, "import os, signal; os.kill(-1, signal.SIGKILL)")[0] in (0, 1, 128 + 9)
    assert parent.alive() and run(parent, "print(1)")[1] == "1\n"


def test_a_parent_that_died_is_replaced(parent):
    first = warm.parent()
    first.end()
    assert not os.path.exists(first.folder)
    second = warm.parent()
    assert second is not first and second.alive()


def ask(way, cell, n, monkeypatch):
    """The peak that is measured for one call of `step(n)`, started one way or the other."""
    import nbformat

    if way == "exec":
        monkeypatch.setattr(warm, "parent", lambda gpu=False: None)
    cell = nbformat.v4.new_code_cell("import numpy as np\nimport autograder\n" + cell + "\nautograder.check('x', step)")
    with Notebook(nbformat.v4.new_notebook(cells=[cell]), Limits()) as kernel:
        assert bool(kernel.sandbox.main) == (way == "fork")
        kernel._execute(cell, 0)
        answer, peak = kernel.ask("x", (n,), 30, measure=True)
        assert answer.problem is None, answer
    monkeypatch.undo()
    return peak / 2**20


@pytest.mark.parametrize(
    "cell",
    [
        "def step(n): return np.zeros(8)",
        "def step(n): return np.ones(n // 8)[:8]",
        "x = np.zeros(2**23)\ndef step(n):\n    x[: n // 8] = 1\n    return np.zeros(8)",
        # Kept to the end, where the reading is exact: between two readings what is freed is known to some MiB only, either way.
        "np.random.rand(1)\ndef step(n):\n    global a\n    a = np.random.rand(n // 8 // 2048, 2048)\n"
        "    return (a @ np.ones((2048, 16)))[0, :8]",
    ],
    ids=["nothing", "allocated", "written to", "multiplied"],
)
def test_the_peak_of_a_call_is_the_same_either_way(parent, monkeypatch, cell):
    n = 48 * 2**20
    fork, exec_ = (ask(way, cell, n, monkeypatch) for way in ("fork", "exec"))
    assert abs(fork - exec_) < 4, (fork, exec_)
    assert (fork < 24) == (cell == "def step(n): return np.zeros(8)")


_LAUNCH = """
import runpy, sys
for name in runpy.run_path({program!r})["PRELOAD"]:
    __import__(name)
before = set(sys.modules)
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(x + i, v + tl.max(v, 0), mask=i < n)

x = torch.arange(4.0)
kernel[(1,)](x, 4, N=8)
assert x.tolist() == [3, 4, 5, 6]
import matplotlib.pyplot as plt
plt.figure().add_subplot().plot([1, 2])
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] in ("torch", "triton", "matplotlib", "PIL")))
"""


def test_what_a_first_launch_and_a_first_figure_import_is_there_before_the_fork(tmp_path):
    """Else each call, which is a fork of its own, imports it anew."""
    (tmp_path / "launch.py").write_text(_LAUNCH.format(program=str(warm.PROGRAM)))
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, tmp_path / "launch.py"], capture_output=True, text=True, check=True, env=env)
    assert set(ast.literal_eval(done.stdout)) <= {"matplotlib.pyplot", "matplotlib.style", "matplotlib.style.core"}


@pytest.mark.parametrize("reason", ["cannot nest", "differs"])
def test_where_it_cannot_work_submissions_are_graded_as_without_it(graded, monkeypatch, reason):
    monkeypatch.setattr(warm, "_parents", {})
    if reason == "differs":
        monkeypatch.setattr(warm, "compare", lambda *_: ["status"])
    else:
        monkeypatch.setattr(warm, "PROGRAM", warm.PROGRAM.with_name("no such file"))
    verdict, _ = graded(STEP)
    assert statuses(verdict) == {"step": "passed", "masked": "passed"}
    assert verdict["machine"]["start"].startswith("exec (") and ("status" in verdict["machine"]["start"]) == (reason == "differs")


def test_a_verdict_says_which_way_it_was(graded, parent):
    verdict, _ = graded(STEP)
    assert verdict["machine"]["start"] == "fork"
    assert np.isfinite(verdict["seconds"]) and sandbox.available()
