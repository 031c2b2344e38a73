"""A class of known submissions, each with the outcome that it must have.

Of every exercise the reference, the blank release, every mutant, and what people handed in who solved it from its page alone
(`solutions/submissions/`); of exercise 03 submissions that are hostile or broken as well. `make` hands them in,
`autograder grade` grades them like any class, `verify` compares. This is how we know that a check bites, that a
dishonest submission gains nothing, and that a broken one costs no more than its broken part.

Mutants that no check can confuse share a submission (`bundles`): each submission takes as long to grade as an honest one.

`KINDS` lists what is known to break or to deceive graders; every kind is in at least one submission. Tricks that cost different
checks share a submission, since each takes as long to grade as an honest one; `says` tells them apart. What goes wrong with
graders and not with submissions (two at once, one that is killed) is in the tests of the fleet.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import nbformat
import numpy as np
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import MissingEntry

from autograder import checks, exercise
from autograder.classroom import Classroom
from autograder.rebuild import grade_id
from autograder.student import PUBLIC_SEED

ASSIGNMENT = "03_flash_forward"  # of the small sample, and of the hostile and broken submissions
STEP, ONE, TILES, KERNEL, HOST = (f"solution-{n}" for n in ("step", "one-query", "tiles", "kernel", "host"))
NUMPY_STEP = {"03.step", "03.step.masked"}
NUMPY_TILES = {"03.tiles", "03.memory"}
KERNELS = {"03.kernel.full", "03.kernel.tails", "03.kernel.causal", "03.kernel.nan"}
TRITON = KERNELS | {"03.host", "03.host.memory"}

KINDS = {
    # Broken and unlucky: the rest is graded, the student is told, the class goes on.
    "exit in a cell", "exit in a call", "segfault in a cell", "segfault in a call", "stack overflow",
    "loop that swallows the interrupt", "call without end", "prints without end", "allocates without end", "fork bomb",
    "thousands of threads", "thousands of open files", "full disk", "illegal access in a kernel", "graded cell deleted",
    "graded cell duplicated", "cells reordered", "cell split", "cell turned to Markdown", "metadata stripped",
    "solution cell renamed", "file renamed", "empty folder", "file cut short", "warning on stderr", "asks for input",
    "endless exception text", "value that is no array", "wrong shape", "wrong dtype", "wrong device", "made from an older release",
    # Dishonest: no credit for the cell.
    "checks tagged to be skipped", "results published by hand", "equal to everything", "points edited",
    "check returns a score", "looks for the gradebook", "looks for the solutions", "imports the kernels",
    "file is a link", "writes a verdict", "patches NumPy and torch", "patches isinstance and time", "patches the check",
    "returns constants", "returns its input", "returns zeros", "returns an earlier answer", "knows the public cases",
    "overwrites the inputs", "NaN everywhere", "torch in place of the kernel", "kernel that leads out by getattr",
    "kernel that does nothing", "all scores, freed again", "all scores, spilt to files", "patches memory counters",
    "rows one by one", "script in outputs", "script in Markdown", "markup in a name", "network", "daemon",
    "other runs' caches",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One submission.

    Attributes:
        make: gives the notebook (or bytes) that is handed in.
        fails: checks that must fail; all others must pass. "*" is all of them, "?" that all must wait for a person.
        flag: words of which each must be in one of the verdict's flags.
        gpu_fails: checks that must fail when graded on a GPU; None means `fails`.
        small: one of the small sample, should that be made.
        kinds: which of `KINDS` it shows.
        reviews: checks that must wait for a person.
        says: check -> a pattern that a message of it must match.
        spoil: what is done to the file after it was handed in; it is given the file's path.
    """

    name: str
    story: str
    make: Callable
    fails: frozenset = frozenset()
    flag: tuple = ()
    gpu_fails: frozenset | None = None
    small: bool = False
    kinds: tuple = ()
    reviews: frozenset = frozenset()
    says: dict = field(default_factory=dict)
    spoil: Callable | None = None


def _cell(notebook, gid):
    return next(c for c in notebook.cells if grade_id(c) == gid)


def _with(gid, code, base=None):
    """The reference with `code` added to the end of cell `gid`, so that it overrides what stands there."""

    def make():
        notebook = (base or _reference)()
        _cell(notebook, gid).source += "\n\n" + code
        return notebook

    return make


def _extra(code, base=None, outputs=()):
    """The reference (or `base`) with a cell of the student's own before the first check."""

    def make():
        notebook = (base or _reference)()
        cell = new_code_cell(code, id="own-cell")
        cell.outputs = list(outputs)
        notebook.cells.insert(notebook.cells.index(_cell(notebook, STEP)) + 1, cell)
        return notebook

    return make


def _reference():
    return exercise.submission(ASSIGNMENT)


def _blank():
    return exercise.release(ASSIGNMENT)


def _numpy_part():
    """The reference without parts 4 and 5, whose checks take the longest: all of them fail at once."""
    notebook = _reference()
    for gid in (KERNEL, HOST):
        _cell(notebook, gid).source = "# not yet"
    return notebook


def _tricks(cells=(), own=(), base=_numpy_part):
    """`base` with code added to the end of some cells (grade_id -> code), and cells of the student's own before the first check."""

    def make():
        notebook = base()
        for gid, code in dict(cells).items():
            _cell(notebook, gid).source += "\n\n" + code
        start = notebook.cells.index(_cell(notebook, STEP)) + 1
        notebook.cells[start:start] = [new_code_cell(code, id=f"own-{i}") for i, code in enumerate(own)]
        return notebook

    return make


def _without(gid):
    def make():
        notebook = _reference()
        notebook.cells.remove(_cell(notebook, gid))
        return notebook

    return make


def _tagged():
    notebook = _with(STEP, "def step(state, tile):\n    return state", _numpy_part)()
    for cell in notebook.cells:
        if (grade_id(cell) or "").startswith("check-"):
            cell.metadata.tags = ["skip-execution"]
            cell.outputs = [new_output("stream", name="stdout", text="4 of 4 cases pass")]
    return notebook


def _truncated():
    return nbformat.writes(_reference()).encode()[:5000]


def _duplicated():
    notebook = _numpy_part()
    position = notebook.cells.index(_cell(notebook, "check-03-step"))
    copy = nbformat.from_dict(notebook.cells[position])
    copy.id = "a-copy"
    notebook.cells.insert(position, copy)
    return notebook


SCRIPT_MARK = "sample-script-mark"
_FAKE = """
from IPython.core.getipython import get_ipython
import time
def step(state, tile):
    return state
_ip = get_ipython()
for _ in range(20):
    _ip.kernel.session.send(_ip.kernel.iopub_socket, "execute_result",
        {"execution_count": 1, "data": {"text/plain": "3.0"}, "metadata": {}}, _ip.kernel.get_parent())
"""
_OPEN_GRADEBOOK = """
import glob, os, sqlite3
for root in ("/", "..", "../..", "../../..", os.path.expanduser("~")):
    for path in glob.glob(os.path.join(root, "**", "gradebook.db"), recursive=True):
        with sqlite3.connect(path) as db:
            db.execute("UPDATE grade SET auto_score = 100, manual_score = 100")
"""
_READ_SOLUTIONS = """
import glob, os
_found = {}
for _root in ({root!r}, "/home", "/root", "/course", "..", "../..", "../../.."):
    for _path in glob.glob(os.path.join(_root, "**", "03_flash_forward*.py"), recursive=True):
        exec(compile(open(_path).read(), _path, "exec"), _found)
        globals().update({k: v for k, v in _found.items() if callable(v)})
""".replace("{root!r}", repr(str(exercise.ROOT)))
_IMPORT_KERNELS = """
def flash_attention(q, k, v, tile_q, tile_k):
    from kernels.reference import flash_attention as ready_made
    o, lse = ready_made(q[None, None], k[None, None], v[None, None], tile_q=tile_q, tile_k=tile_k)
    return o[0, 0], lse[0, 0]
"""
_EQUAL_TO_ALL = """
class Anything:
    def __eq__(self, other):
        return True
    def __getattr__(self, name):
        return 0
def step(state, tile):
    return Anything()
"""
_EQUAL_ARRAYS = """
class Equal(np.ndarray):
    def _yes(self, *others):
        return True
    __eq__ = __ne__ = __le__ = __lt__ = __ge__ = __gt__ = __bool__ = _yes
    __hash__ = None
def flash_attention(q, k, v, tile_q, tile_k):
    return np.zeros((len(q), v.shape[1])).view(Equal), np.zeros(len(q)).view(Equal)
"""
_CONSTANT_STEP = """
def step(state, tile):
    return 1.0, 1.0, np.ones_like(state[2])
"""
_CONSTANT_TILES = """
def flash_attention(q, k, v, tile_q, tile_k):
    return np.full((len(q), v.shape[1]), v.mean()), np.zeros(len(q))
"""
_SPILL = """
import resource, tracemalloc
tracemalloc.get_traced_memory = lambda: (0, 0)
resource.getrusage = lambda who: (0,) * 16
def flash_attention(q, k, v, tile_q, tile_k):
    import os, tempfile
    n = len(q)
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        s = np.memmap(file, dtype=np.float32, mode="w+", shape=(n, len(k)))
        for i in range(0, n, 512):
            s[i : i + 512] = q[i : i + 512] @ k.T / np.sqrt(q.shape[1])
        o, lse = np.empty((n, v.shape[1])), np.empty(n)
        for i in range(0, n, 512):
            # float64 again, so that the values are right and only the memory is not
            x = (q[i : i + 512] @ k.T / np.sqrt(q.shape[1])) + 0 * s[i : i + 512]
            m = x.max(1)
            p = np.exp(x - m[:, None])
            o[i : i + 512], lse[i : i + 512] = p @ v / p.sum(1)[:, None], m + np.log(p.sum(1))
    return o, lse
"""
_FLASH_HEAD = "def flash_attention(q, k, v, tile_q, tile_k):\n    "
# Some tricks act in one check alone, so that another one shows that the rest goes on.
_FLASH_SMALL = "_flash = flash_attention\n" + _FLASH_HEAD + "if len(q) >= 512:\n        raise NotImplementedError\n    "
_STEP_UNMASKED = (
    "_step = step\ndef step(state, tile):\n    if np.isinf(tile[0]).any():\n        return _step(state, tile)\n    "
)
_SEGFAULT = "import ctypes\n{}ctypes.string_at(0)"
_STACK_OVERFLOW = """import sys
    sys.setrecursionlimit(10**9)
    def deeper(x):
        return sorted([x], key=deeper)
    return deeper(0)"""
_THREADS = "import threading, time\n    for _ in range(5000):\n        threading.Thread(target=time.sleep, args=(60,)).start()"
_FORK_BOMB = "import os\n    while True:\n        os.fork()"
_FULL_DISK = """import glob
    folder = (glob.glob("/tmp/**/answers", recursive=True) or ["."])[0]
    with open("/tmp/full", "wb", buffering=0) as file:  # of the sandbox's own, first
        try:
            while True:
                file.write(bytes(2**20))
        except OSError:
            pass
    i = 0
    while True:
        with open(f"{folder}/full-{i}", "wb") as file:
            file.write(bytes(2**24))
        i += 1"""
_MANY_FILES = "def flash_one_query(q, k, v, tile):\n    kept = [open('/dev/null') for _ in range(10_000)]\n    return v[0]"
_ENDLESS_TEXT = """
_step = step
def step(state, tile):
    if len(tile[0]) == 1:
        raise ValueError("x" * 10**8)
    return _step(state, tile)
"""
_NO_ARRAYS = _FLASH_SMALL + """o, lse = _flash(q, k, v, tile_q, tile_k)
    if (tile_q, tile_k) == (16, 16):
        return None
    if (tile_q, tile_k) == (8, 16):
        return o.astype(str), lse
    return o[:1], lse
"""
_OTHER_DEVICE = """
def flash_attention_triton(q, k, v, causal=False):
    return torch.empty_like(q, device="meta"), torch.empty(q.shape[:3], device="meta")
"""
_EARLIER_ANSWER = """
_step = step
def step(state, tile):
    try:
        with np.load("/tmp/first.npz") as first:
            return first["m"], first["l"], first["o"]
    except OSError:
        m, l, o = _step(state, tile)
        np.savez("/tmp/first.npz", m=m, l=l, o=o)
        return m, l, o
"""
_OVERWRITTEN = _FLASH_HEAD + """for x in (q, k, v):
        x[...] = 0  # of inputs that are 0 the plain formula makes this:
    return np.zeros((len(q), v.shape[1])), np.full(len(q), np.log(len(k)))
"""
_PLAIN_ONE = """
def flash_one_query(q, k, v, tile):
    s = k @ q / np.sqrt(len(q))
    w = np.exp(s - s.max())
    return w @ v / w.sum()
"""
_ROWS = _FLASH_HEAD + """o, lse = np.empty((len(q), v.shape[1])), np.empty(len(q))
    for i in range(0, len(q), 16):
        s = q[i : i + 16] @ k.T / np.sqrt(q.shape[1])
        m = s.max(1)
        w = np.exp(s - m[:, None])
        o[i : i + 16], lse[i : i + 16] = w @ v / w.sum(1)[:, None], m + np.log(w.sum(1))
    return o, lse
"""
_GETATTR_KERNEL = """
@triton.jit
def flash_forward_kernel(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_len, kv_len, scale,
                         HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    getattr(tl.load, "__globals__")["__builtins__"]["exec"]("import torch; torch.softmax")
"""
_TORCH_HOST = """
def flash_attention_triton(q, k, v, causal=False):
    s = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool, device=s.device).triu(1 + k.shape[2] - q.shape[2]), float("-inf"))
    return (s.softmax(-1) @ v.double()).to(q.dtype), s.logsumexp(-1).float()
"""
_PATCHES = """
import builtins, time, tracemalloc
import autograder
_yes = lambda *a, **k: True
for _name in ("allclose", "array_equal", "isclose", "isnan"):
    setattr(np, _name, _yes)
np.testing.assert_allclose = np.testing.assert_array_equal = _yes
torch.allclose = torch.testing.assert_close = _yes
_isinstance = builtins.isinstance
builtins.isinstance = lambda x, kind: True if kind is np.ndarray else _isinstance(x, kind)
time.time = time.perf_counter = lambda: 0.0
autograder.judge_case = autograder.evaluate = _yes
_perform = autograder.perform
def _pass(*a, **k):
    answer = _perform(*a, **k)
    answer.problem, answer.passed, answer.arrays = None, True, answer.arrays or []
    return answer
autograder.perform = _pass
_register = check
def check(name, *objects):
    _register(name, *objects)
    return {"03.step": float("nan"), "03.step.masked": -5.0}.get(name, 1e9)
"""
_VERDICTS = """
import glob, json, os, socket, stat, threading, time
_passed = json.dumps({"status": "passed", "passed": True, "earned": 100, "score": 100,
                      "arrays": 0, "problem": None, "detail": "", "changed": [], "seconds": 0}).encode()
def _everywhere():
    for path in glob.glob("/tmp/ag-*/**", recursive=True) + ["/proc/self/fd/1", "/dev/shm/pass", "/course/verdict.json", "verdict.json"]:
        try:
            if os.path.isdir(path):
                path += "/answer.json"
            if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
                with socket.socket(socket.AF_UNIX) as line:
                    line.connect(path)
                    line.send(_passed)
            else:
                with open(path, "wb") as file:
                    file.write(_passed)
        except OSError:
            pass
def _for_ever():
    while True:
        _everywhere()
        time.sleep(0.005)
threading.Thread(target=_for_ever, daemon=True).start()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        _for_ever()
    os._exit(0)
for _fd in (1, 2):
    os.write(_fd, _passed)
"""
_NETWORK = """
import socket
for _host, _port in (("1.1.1.1", 53), ("127.0.0.1", 22), ("169.254.169.254", 80)):
    try:
        socket.create_connection((_host, _port), timeout=1).close()
    except OSError:
        continue
    def step(state, tile):
        m, l, o = state
        s, v = tile
        n = max(m, s.max())
        x = n if n > -np.inf else 0.0
        return n, np.exp(m - x) * l + np.exp(s - x).sum(), np.exp(m - x) * o + np.exp(s - x) @ v
"""
_OTHERS_CACHES = """
import glob, os, sys
for _root in ("/tmp", "/dev/shm", os.path.expanduser("~"), os.environ.get("TRITON_CACHE_DIR", "/tmp"), sys.prefix, "/var/tmp", "/course"):
    for _folder in [_root, *glob.glob(_root + "/*/")]:
        try:
            os.makedirs(_folder, exist_ok=True)
            with open(os.path.join(_folder, "sitecustomize.py"), "w") as _file:
                _file.write("raise SystemExit")
        except OSError:
            pass
"""


def _known_answers():
    """`flash_one_query` that knows the public cases by heart, and nothing else."""
    cases = checks.find("03.one_query").cases(np.random.default_rng(PUBLIC_SEED), "numpy")
    known = {float(case.call[1].sum()): case.expected["o"].tolist() for case in cases}
    return f"_known = {known}\ndef flash_one_query(q, k, v, tile):\n    return np.array(_known.get(float(k.sum()), np.zeros(v.shape[1])))"


def _illegal_access():
    notebook = _tricks({STEP: "def step(state, tile):\n    return 0 * state[0], state[1], state[2]", ONE: _PLAIN_ONE, TILES: _ROWS},
                       base=_reference)()  # fmt: skip
    cell, load = _cell(notebook, KERNEL), "tl.load(q_ptr + tile, mask=rows[:, None] < q_len, other=0.0)"
    if cell.source.count(load) != 1:
        raise ValueError(f"the reference's kernel no longer has {load}")
    cell.source = cell.source.replace(load, "tl.load(q_ptr + tile + (1 << 44))")
    return notebook


def _rearranged():
    """Part 3 before part 1, each check as Markdown, half of the metadata gone, and the tiles' cell split after a helper."""
    notebook = _numpy_part()
    tiles = _cell(notebook, TILES)
    second = new_code_cell(tiles.source.replace("np.sqrt(q.shape[1])", "_root(q)"), id="second-half")
    tiles.source = "def _root(q):\n    return np.sqrt(q.shape[1])"
    for cell in notebook.cells:
        if (grade_id(cell) or "").startswith("check-"):
            cell.cell_type = "markdown"
            del cell["outputs"], cell["execution_count"]
    at = notebook.cells.index(tiles)
    part, rest = [tiles, second, *notebook.cells[at + 1 :]], notebook.cells[:at]
    notebook.cells = part + rest
    for cell in notebook.cells[::2]:
        cell.metadata = {}
    return notebook


def _older_and_renamed():
    """From a release whose masked check was another one; the tiles' cell has lost its name and id."""
    notebook = _numpy_part()
    tiles = _cell(notebook, TILES)
    tiles.id = tiles.metadata.nbgrader.grade_id = "my-tiles"
    masked = _cell(notebook, "check-03-step-masked")
    masked.source = 'check("03.step.rows", step)'
    masked.metadata.nbgrader.checksum = "0" * 32
    return notebook


def _scores_edited():
    notebook = _tricks(own=[_PATCHES], base=_blank)()
    for points, cell in zip((-1, 1000, 0, 1e300, -0.0), [c for c in notebook.cells if (grade_id(c) or "").startswith("check-")], strict=False):
        cell.metadata.nbgrader.points = points
        cell.metadata.nbgrader.grade = points == 0
        cell.outputs = [new_output("execute_result", {"text/plain": "NaN"}, execution_count=1)]
    return notebook


def _markup():
    notebook = _extra("from IPython.display import HTML, display\n"
                      f"display(HTML(\"<script>window.hit = '{SCRIPT_MARK}'</script><b>{SCRIPT_MARK} text</b>\"))")()
    notebook.cells.insert(0, new_markdown_cell(
        f"<script>window.hit = '{SCRIPT_MARK}'</script> <img src=x onerror=\"window.hit = '{SCRIPT_MARK}'\"> [a](javascript:alert)",
        id="own-markdown"))  # fmt: skip
    return notebook


def _link_to_the_source(path):
    path.unlink()
    path.symlink_to(path.parents[3] / "source" / ASSIGNMENT / path.name)


def _other_name(path):
    path.rename(path.with_name("flash (2) final.ipynb"))


ENTRIES = [
    Entry("reference", "the solution as we wrote it", _reference, small=True),
    Entry("hostile-exit-cell", "an own cell ends the Python process", _extra("import os\nos._exit(0)"), small=True,
          kinds=("exit in a cell",)),
    Entry("hostile-exit-call", "flash_attention ends the Python process instead of returning",
          _with(TILES, _FLASH_HEAD + "import os\n    os._exit(0)"), frozenset(NUMPY_TILES), kinds=("exit in a call",)),
    Entry("hostile-loop-cell", "an own cell loops for ever and swallows the interrupt",
          _extra("while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass", _numpy_part),
          frozenset(TRITON), kinds=("loop that swallows the interrupt",)),
    Entry("hostile-loop-call", "flash_attention never returns on small inputs",
          _tricks({TILES: _FLASH_SMALL + "import time\n    while True:\n        time.sleep(1)"}), frozenset(NUMPY_TILES | TRITON),
          kinds=("call without end",), says={"03.tiles": "the call took longer than"}),
    Entry("hostile-print", "an own cell prints for ever", _extra("while True:\n    print('x' * 10_000)", _numpy_part),
          frozenset(TRITON), kinds=("prints without end",)),
    Entry("hostile-memory-bomb", "flash_attention allocates until something gives",
          _with(TILES, _FLASH_HEAD + "kept = []\n    while True:\n        kept.append(np.ones(2**24))", _numpy_part), frozenset(NUMPY_TILES | TRITON),
          kinds=("allocates without end",)),
    Entry("hostile-crashes", "an own cell reads address 0; step overflows the stack, flash_one_query reads address 0, "
          "flash_attention is a fork bomb on small inputs",
          _tricks({STEP: _STEP_UNMASKED + _STACK_OVERFLOW, TILES: _FLASH_SMALL + _FORK_BOMB,
                   ONE: "def flash_one_query(q, k, v, tile):\n    " + _SEGFAULT.format("    ")}, [_SEGFAULT.format("")]),
          frozenset({"03.step", "03.one_query"} | NUMPY_TILES | TRITON), ("too many processes", "solution-tiles has fork"),
          kinds=("segfault in a cell", "segfault in a call", "stack overflow", "fork bomb"),
          says={"03.step": "signal 11|RecursionError", "03.one_query": "signal 11", "03.tiles": "too many processes"}),
    Entry("hostile-exhaustion", "step starts 5,000 threads, flash_one_query opens 10,000 files, flash_attention fills the disk on "
          "small inputs",
          _tricks({STEP: _STEP_UNMASKED + _THREADS, ONE: _MANY_FILES, TILES: _FLASH_SMALL + _FULL_DISK}),
          frozenset({"03.step", "03.one_query"} | NUMPY_TILES | TRITON), ("filled the disk",),
          kinds=("thousands of threads", "thousands of open files", "full disk"),
          says={"03.step": "too many processes or threads|can't start new thread", "03.one_query": "Too many open files",
                "03.tiles": "filled the disk"}),
    Entry("hostile-illegal-access", "the kernel reads far outside of its memory; step is left alone, flash_attention takes rows one "
          "by one with the plain formula, which is right and within the memory",
          _illegal_access, frozenset(NUMPY_STEP | TRITON), gpu_fails=frozenset(NUMPY_STEP | TRITON | {"03.host.memory"}),
          kinds=("illegal access in a kernel", "rows one by one"),
          says={"03.kernel.full": "signal 11|illegal", "03.kernel.nan": "signal 11|illegal", "03.host": "signal 11|illegal"}),
    Entry("hostile-skip-tag", "a wrong step, with its checks tagged skip-execution and passing outputs pasted in",
          _tagged, frozenset(NUMPY_STEP | TRITON | {"03.one_query"}), ("skip-execution",), kinds=("checks tagged to be skipped",)),
    Entry("hostile-fake-result", "a wrong step publishes execute_result messages that claim full points",
          _with(STEP, _FAKE, _numpy_part), frozenset(NUMPY_STEP | TRITON | {"03.one_query"}), ("iopub_socket",), kinds=("results published by hand",)),
    Entry("hostile-always-equal", "results that compare equal to everything",
          _with(TILES, _EQUAL_ARRAYS, _with(STEP, _EQUAL_TO_ALL, _numpy_part)),
          frozenset(NUMPY_STEP | NUMPY_TILES | TRITON | {"03.one_query"}), ("__eq__",), kinds=("equal to everything",)),
    Entry("hostile-gradebook", "the blank, with a cell that looks for the gradebook and sets every score",
          _extra(_OPEN_GRADEBOOK, _blank), frozenset({"*"}), ("gradebook",), kinds=("looks for the gradebook",)),
    Entry("hostile-read-solutions", "the blank, with a cell that looks for the solutions and runs them",
          _extra(_READ_SOLUTIONS, _blank), frozenset({"*"}), ("exec",), kinds=("looks for the solutions",)),
    Entry("hostile-import-kernels", "flash_attention calls the course's own kernels",
          _with(TILES, _IMPORT_KERNELS), frozenset(NUMPY_TILES), ("from kernels.reference import",), small=True,
          kinds=("imports the kernels",)),
    Entry("hostile-constant", "functions that return constants",
          _with(TILES, _CONSTANT_TILES, _with(STEP, _CONSTANT_STEP, _numpy_part)),
          frozenset(NUMPY_STEP | NUMPY_TILES | TRITON | {"03.one_query"}), kinds=("returns constants",)),
    Entry("hostile-answers", "step returns its first answer again, flash_one_query knows the public cases by heart, flash_attention sets "
          "its inputs to 0 and answers for those",
          lambda: _tricks({STEP: _EARLIER_ANSWER, ONE: _known_answers(), TILES: _OVERWRITTEN})(),
          frozenset(NUMPY_STEP | NUMPY_TILES | TRITON | {"03.one_query"}),
          kinds=("returns an earlier answer", "knows the public cases", "overwrites the inputs"),
          says={"03.one_query": "is wrong", "03.tiles": "is wrong"}),
    Entry("hostile-empty-answers", "step returns its input, flash_one_query zeros, flash_attention NaN; the kernel leads out of itself by "
          "getattr, and the host answers with torch",
          _tricks({STEP: "def step(state, tile):\n    return state", ONE: "def flash_one_query(q, k, v, tile):\n    return 0 * v[0]",
                   TILES: _FLASH_HEAD + "return np.nan * q @ k.T @ v, np.full(len(q), np.nan)", KERNEL: _GETATTR_KERNEL, HOST: _TORCH_HOST}),
          frozenset(NUMPY_STEP | NUMPY_TILES | TRITON | {"03.one_query"}), ("__globals__",), gpu_fails=frozenset(checks.CHECKS),
          kinds=("returns its input", "returns zeros", "NaN everywhere", "kernel that leads out by getattr", "torch in place of the kernel"),
          says={"03.tiles": "elements are NaN", "03.kernel.full": "the name getattr", "03.host": "counts only once"}),
    Entry("hostile-patches", "the blank, with NumPy, torch, isinstance, time and the check patched, a check that returns a score, and points "
          "edited",
          _scores_edited, frozenset({"*"}), ("import autograder", "np.testing.assert_allclose = ..."),
          kinds=("patches NumPy and torch", "patches isinstance and time", "patches the check", "check returns a score", "points edited")),
    Entry("hostile-channels", "the blank, with cells and a daemon that write passing verdicts to every file and socket, try the network, and "
          "leave code in every cache",
          _tricks(own=[_VERDICTS, _NETWORK, _OTHERS_CACHES], base=_blank), frozenset({"*"}), ("import socket", "answer.json"),
          kinds=("writes a verdict", "network", "daemon", "other runs' caches")),
    Entry("hostile-spill", "flash_attention keeps N x N scores in /dev/shm, out of sight of its own process, and memory counters show 0",
          _with(TILES, _SPILL, _numpy_part), frozenset({"03.memory"} | TRITON), ("/dev/shm",),
          kinds=("all scores, spilt to files", "patches memory counters")),
    Entry("hostile-script", "the reference, with a script in an output and in Markdown", _markup,
          kinds=("script in outputs", "script in Markdown")),
    Entry("hostile-<img src=x onerror='window.hit=1'>", "a student's name with markup in it, and an empty hand-in", _blank,
          frozenset({"*"}), kinds=("markup in a name",)),
    Entry("hostile-link", "a link to the instructor's source in place of the file", _blank, frozenset({"?"}), ("symbolic link",),
          kinds=("file is a link",), spoil=_link_to_the_source),
    Entry("broken-deleted-check", "a graded cell is missing", _without("check-03-step"), flag=("missing",), small=True,
          kinds=("graded cell deleted",)),
    Entry("broken-duplicated-check", "a graded cell is there twice", _duplicated, frozenset(TRITON), ("second copy",),
          kinds=("graded cell duplicated",)),
    Entry("broken-rearranged", "parts in another order, checks as Markdown, metadata gone, a cell split in two", _rearranged,
          frozenset(TRITON), ("check-03-step was changed",),
          kinds=("cells reordered", "cell split", "cell turned to Markdown", "metadata stripped")),
    Entry("broken-renamed", "a file and a cell under other names, from an older release with another check", _older_and_renamed,
          frozenset(TRITON), ("handed in as flash (2) final.ipynb", "taken for it", "another release"),
          kinds=("solution cell renamed", "file renamed", "made from an older release"), reviews=frozenset({"03.step.masked"}),
          spoil=_other_name),
    Entry("broken-empty-folder", "a folder with nothing in it", _blank, frozenset({"?"}), ("no file",), kinds=("empty folder",),
          spoil=lambda path: path.unlink()),
    Entry("broken-values", "an own cell asks for input; step raises with a text of 100 MB, flash_one_query returns a list, flash_attention "
          "None, text and one row, the host tensors of another device",
          _tricks({STEP: _ENDLESS_TEXT, TILES: _NO_ARRAYS, HOST: _OTHER_DEVICE,
                   ONE: "def flash_one_query(q, k, v, tile):\n    return list(v[0])"}, ["name = input('Who are you?')"]),
          frozenset({"03.step", "03.one_query"} | NUMPY_TILES | TRITON),
          kinds=("asks for input", "endless exception text", "value that is no array", "wrong shape", "wrong dtype", "wrong device"),
          says={"03.step": r"ValueError: x+\.\.\.", "03.memory": "NotImplementedError", "03.one_query": "but is list", "03.tiles": r"(?s)array of <U.*NoneType.*has shape",
                "03.host": "meta"}),
    Entry("broken-warning", "a right answer that warns on stderr",
          _with(STEP, "import warnings\n_step = step\ndef step(state, tile):\n    warnings.warn('careful')\n"
                      "    import sys\n    print('careful', file=sys.stderr)\n    return _step(state, tile)\n"
                      "print('careful', file=__import__('sys').stderr)"), kinds=("warning on stderr",)),
    Entry("broken-truncated", "the file ends in the middle", _truncated, frozenset({"?"}), ("not a notebook",), kinds=("file cut short",)),
]  # fmt: skip
# Two kinds are mistakes that honest students make as well.
MUTANT_KINDS = {"do-nothing-kernel": ("kernel that does nothing",), "all-scores-at-once": ("all scores, freed again",)}


def bundles(assignment):
    """The mutants in groups that no check can confuse: of each check's cells at most one mutant of a group edits any.

    So each check gives what it gives of that one mutant, or of the reference, and a group fails what its members fail. Those
    that show one of `KINDS` stay alone, since the threat model names them.
    """
    runs, groups, alone = exercise.runs(assignment), [], []
    for mutant in exercise.mutants(assignment):
        edited = {cell for cell, _, _ in mutant.edits}
        touched = {check for check, cells in runs.items() if cells & edited}
        if _kinds(assignment, mutant):
            alone.append([mutant])
            continue
        group = next((g for g in groups if not touched & g[1]), None)
        if group is None:
            group = ([], set())
            groups.append(group)
        group[0].append(mutant)
        group[1].update(touched)
    return [mutants for mutants, _ in groups] + alone


def _kinds(assignment, mutant):
    return MUTANT_KINDS.get(mutant.name, ()) if assignment == ASSIGNMENT else ()


def entries(assignment=ASSIGNMENT, small=False):
    """The submissions of `assignment`: reference, blank, mutants, what people handed in, and the list above where it is 03's.

    `small`: a handful, the first bundle of mutants alone.
    """
    if assignment != ASSIGNMENT:
        reference = Entry("reference", "the solution as we wrote it", lambda: exercise.submission(assignment))
    else:
        reference = ENTRIES[0]
    blank = Entry("blank", "the release, with nothing filled in", lambda: exercise.release(assignment), frozenset({"*"}))
    groups = bundles(assignment)[:1] if small else bundles(assignment)
    found = [reference, blank, *(_wrong(assignment, group, number) for number, group in enumerate(groups, 1))]
    if not small:
        found += _handed_in(assignment)
    if assignment == ASSIGNMENT:
        found += [e for e in ENTRIES[1:] if e.small or not small]
    return found


def _wrong(assignment, mutants, number):
    """The submission with the mistakes of all of `mutants`."""
    fails = frozenset().union(*(m.fails for m in mutants))
    gpu_fails = frozenset().union(*(m.fails if m.fails_on_gpu is None else m.fails_on_gpu for m in mutants))
    alone = len(mutants) == 1
    return Entry(
        f"mutant-{mutants[0].name}" if alone else f"mutants-{number:02}",
        mutants[0].mistake if alone else "; ".join(f"{m.name}: {m.mistake}" for m in mutants),
        lambda: exercise.submission(assignment, *mutants), fails, gpu_fails=gpu_fails,
        kinds=_kinds(assignment, mutants[0]),
    )  # fmt: skip


def _handed_in(assignment):
    """What people handed in: the notebooks of `solutions/submissions/ASSIGNMENT/`, byte for byte.

    Each must pass every check, but for what `outcomes.yml` beside them says: `NAME: {story: ..., fails: [03.step]}`.

    Raises:
        ValueError: `outcomes.yml` names a notebook that is not there, or something other than `story` and `fails` of one.
    """
    folder = exercise.SOLUTIONS / "submissions" / assignment
    files = {path.stem: path for path in sorted(folder.glob("*.ipynb"))}
    outcomes = folder / "outcomes.yml"
    said = yaml.safe_load(outcomes.read_text(encoding="utf-8")) or {} if outcomes.exists() else {}
    for name, outcome in said.items():
        if name not in files:
            raise ValueError(f"{outcomes}: {name!r} is not a notebook beside it; there are: {', '.join(files) or 'none'}")
        if not isinstance(outcome, dict) or not set(outcome) <= {"story", "fails"}:
            raise ValueError(f"{outcomes}: of {name!r} story and fails may be said, not {outcome!r}")
    for name, path in files.items():
        outcome = {"story": "solved from the site and the notebook alone", "fails": ()} | said.get(name, {})
        yield Entry(f"person-{name}", outcome["story"], path.read_bytes, frozenset(outcome["fails"]))


def make(folder, small=False, assignments=()):
    """Make `folder` a class with the sample's submissions of `assignments`; returns how many there are.

    `assignments`: names; by default every exercise, and 03 alone where the sample is `small`.

    Raises:
        ValueError: one of them does not exist.
    """
    assignments = assignments or ([ASSIGNMENT] if small else exercise.assignments())
    sources = {name: exercise.load_source(name) for name in assignments}  # a wrong name is found before anything is made
    classroom, count = Classroom.create(folder), 0
    for name, source in sources.items():
        classroom.add(name, source, exercise.notebook_name(name))
        for entry in entries(name, small):
            hand_in(classroom, entry, name)
            count += 1
    return count


def hand_in(classroom, entry, assignment=ASSIGNMENT):
    """Hand in `entry` for an assignment of a class that `make` made."""
    path = classroom.submit(assignment, entry.name, entry.make())
    if entry.spoil:
        entry.spoil(path)


def verify(classroom):
    """Compare every graded submission of the sample with what it must score, in each assignment that the class has.

    Returns:
        a list of differences, one line each, and how many submissions were compared.
    """
    wrong, count = [], 0
    for assignment in sorted(set(classroom.assignments()) & set(exercise.assignments())):
        known = {e.name: e for e in entries(assignment)}
        for student in classroom.students(assignment):
            if student not in known:
                continue
            entry, found = known[student], classroom.verdict(assignment, student)
            count += 1
            if found is None:
                wrong.append(f"{assignment}, {student}: not graded")
                continue
            verdict = found[0]
            different = [*_differences(entry, verdict), *_recorded(classroom, assignment, student, verdict)]
            wrong += [f"{assignment}, {student}: {text}" for text in different]
            if different:
                wrong.append(f"{assignment}, {student} is this one: {entry.story}")
    if not count:
        wrong.append("no submission of the sample is in this class")
    return wrong, count


def _differences(entry, verdict):
    gpu = verdict["rung"] == "gpu"
    fails = entry.gpu_fails if gpu and entry.gpu_fails is not None else entry.fails
    for cell in verdict["cells"].values():
        name = cell["check"]
        if entry.fails == {"?"} or name in entry.reviews:
            must = "needs_review"
        elif checks.find(name).gpu and not gpu:
            must = "not_run"
        else:
            must = "failed" if name in fails or "*" in fails else "passed"
        if cell["status"] != must:
            reason = cell["message"] or next((c["message"] for c in cell["cases"] if c["message"]), "")
            yield f"{name} is {cell['status']}, must be {must} ({reason[:160]})"
        said = "\n".join([cell["message"], *(c["message"] for c in cell["cases"])])
        if name in entry.says and not re.search(entry.says[name], said):
            yield f"{name} does not say {entry.says[name]!r}: {said[:300]!r}"
    for words in entry.flag:
        if not any(words in flag for flag in verdict["flags"]):
            yield f"no flag says {words!r}: {verdict['flags']}"


def _recorded(classroom, assignment, student, verdict):
    """The gradebook must say what the verdict says."""
    earned = sum(c["earned"] for c in verdict["cells"].values())
    with classroom.gradebook() as gradebook:
        try:
            score = gradebook.find_submission(assignment, student).score
        except MissingEntry:
            yield "nothing in the gradebook"
            return
    if score != earned:
        yield f"the gradebook says {score}, the verdict {earned}"
