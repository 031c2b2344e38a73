"""A class of known submissions, each with the outcome that it must have.

The reference, the blank release, every mutant, and submissions that are hostile or broken. `make` hands them in,
`autograder grade` grades them like any class, `verify` compares. This is how we know that a check bites, that a
dishonest submission gains nothing, and that a broken one costs no more than its broken part.
"""

from collections.abc import Callable
from dataclasses import dataclass

import nbformat
from nbformat.v4 import new_code_cell, new_output
from nbgrader.api import MissingEntry

from autograder import exercise
from autograder.classroom import Classroom
from autograder.rebuild import grade_id

ASSIGNMENT = "03_flash_forward"
STEP, ONE, TILES, KERNEL, HOST = (f"solution-{n}" for n in ("step", "one-query", "tiles", "kernel", "host"))
NUMPY_STEP = {"03.step", "03.step.masked"}
NUMPY_TILES = {"03.tiles", "03.memory"}


@dataclass(frozen=True)
class Entry:
    """One submission.

    Attributes:
        make: gives the notebook (or bytes) that is handed in.
        fails: checks that must fail; all others must pass.
        flag: words that one of the verdict's flags must contain, if any.
        gpu_fails: checks that must fail besides when graded on a GPU.
        small: part of the small sample.
    """

    name: str
    story: str
    make: Callable
    fails: frozenset = frozenset()
    flag: str = ""
    gpu_fails: frozenset = frozenset()
    small: bool = False


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


def _without(gid):
    def make():
        notebook = _reference()
        notebook.cells.remove(_cell(notebook, gid))
        return notebook

    return make


def _tagged():
    notebook = _with(STEP, "def step(state, tile):\n    return state")()
    for cell in notebook.cells:
        if (grade_id(cell) or "").startswith("check-"):
            cell.metadata.tags = ["skip-execution"]
            cell.outputs = [new_output("stream", name="stdout", text="4 of 4 cases pass")]
    return notebook


def _truncated():
    return nbformat.writes(_reference()).encode()[:5000]


def _duplicated():
    notebook = _reference()
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

ENTRIES = [
    Entry("reference", "the solution as we wrote it", _reference, small=True),
    Entry("hostile-exit-cell", "an own cell ends the Python process", _extra("import os\nos._exit(0)"), small=True),
    Entry("hostile-exit-call", "flash_attention ends the Python process instead of returning",
          _with(TILES, _FLASH_HEAD + "import os\n    os._exit(0)"), frozenset(NUMPY_TILES)),
    Entry("hostile-loop-cell", "an own cell loops for ever and swallows the interrupt",
          _extra("while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass")),
    Entry("hostile-loop-call", "flash_attention never returns",
          _with(TILES, _FLASH_HEAD + "while True:\n        pass"), frozenset(NUMPY_TILES)),
    Entry("hostile-print", "an own cell prints for ever", _extra("while True:\n    print('x' * 10_000)")),
    Entry("hostile-memory-bomb", "flash_attention allocates until something gives",
          _with(TILES, _FLASH_HEAD + "kept = []\n    while True:\n        kept.append(np.ones(2**24))"), frozenset(NUMPY_TILES)),
    Entry("hostile-skip-tag", "a wrong step, with its checks tagged skip-execution and passing outputs pasted in",
          _tagged, frozenset(NUMPY_STEP | {"03.one_query"}), "skip-execution"),
    Entry("hostile-fake-result", "a wrong step publishes execute_result messages that claim full points",
          _with(STEP, _FAKE), frozenset(NUMPY_STEP | {"03.one_query"})),
    Entry("hostile-always-equal", "results that compare equal to everything",
          _with(TILES, _EQUAL_ARRAYS, _with(STEP, _EQUAL_TO_ALL)),
          frozenset(NUMPY_STEP | NUMPY_TILES | {"03.one_query"})),
    Entry("hostile-gradebook", "the blank, with a cell that looks for the gradebook and sets every score",
          _extra(_OPEN_GRADEBOOK, _blank), frozenset({"*"})),
    Entry("hostile-read-solutions", "the blank, with a cell that looks for the solutions and runs them",
          _extra(_READ_SOLUTIONS, _blank), frozenset({"*"})),
    Entry("hostile-import-kernels", "flash_attention calls the course's own kernels",
          _with(TILES, _IMPORT_KERNELS), frozenset(NUMPY_TILES), small=True),
    Entry("hostile-constant", "functions that return constants",
          _with(TILES, _CONSTANT_TILES, _with(STEP, _CONSTANT_STEP)), frozenset(NUMPY_STEP | NUMPY_TILES | {"03.one_query"})),
    Entry("hostile-spill", "flash_attention keeps N x N scores in /dev/shm, out of sight of its own process",
          _with(TILES, _SPILL), frozenset({"03.memory"})),
    Entry("hostile-script", "the reference, with a script in an output and in Markdown",
          _extra("from IPython.display import HTML, display\n"
                 f"display(HTML(\"<script>window.hit = '{SCRIPT_MARK}'</script><b>{SCRIPT_MARK} text</b>\"))")),
    Entry("broken-deleted-check", "a graded cell is missing", _without("check-03-step"), flag="missing", small=True),
    Entry("broken-duplicated-check", "a graded cell is there twice", _duplicated, flag="second copy"),
    Entry("broken-warning", "a right answer that warns on stderr",
          _with(STEP, "import warnings\n_step = step\ndef step(state, tile):\n    warnings.warn('careful')\n"
                      "    import sys\n    print('careful', file=sys.stderr)\n    return _step(state, tile)\n"
                      "print('careful', file=__import__('sys').stderr)")),
    Entry("broken-truncated", "the file ends in the middle", _truncated, frozenset({"?"}), "not a notebook"),
]  # fmt: skip


def entries(small=False):
    """The submissions: our own list, the blank release, and every mutant."""
    blank = Entry("blank", "the release, with nothing filled in", _blank, frozenset({"*"}), small=True)
    mutants = exercise.mutants(ASSIGNMENT)
    found = [ENTRIES[0], blank]
    for i, m in enumerate(mutants):
        found.append(
            Entry(f"mutant-{m.name}", m.mistake, lambda m=m: exercise.submission(ASSIGNMENT, m), frozenset(m.fails),
                  gpu_fails=frozenset(m.fails_on_gpu or m.fails) - frozenset(m.fails), small=i % 6 == 0)
        )  # fmt: skip
    found += ENTRIES[1:]
    return [e for e in found if e.small or not small]


def make(folder, small=False):
    """Make `folder` a class with the sample's submissions; returns their names."""
    classroom = Classroom.create(folder)
    assignment, name = ASSIGNMENT, exercise.notebook_name(ASSIGNMENT)
    classroom.add(assignment, exercise.load_source(assignment), name)
    names = []
    for entry in entries(small):
        classroom.submit(assignment, entry.name, entry.make())
        names.append(entry.name)
    return names


def verify(classroom):
    """Compare every graded submission of the sample with what it must score.

    Returns:
        a list of differences, one line each, and how many submissions were compared.
    """
    wrong, count = [], 0
    known = {e.name: e for e in entries()}
    for student in classroom.students(ASSIGNMENT):
        if student not in known:
            continue
        entry, found = known[student], classroom.verdict(ASSIGNMENT, student)
        count += 1
        if found is None:
            wrong.append(f"{student}: not graded")
            continue
        verdict = found[0]
        wrong += [f"{student}: {text}" for text in _differences(entry, verdict)]
        wrong += [f"{student}: {text}" for text in _recorded(classroom, student, verdict)]
    if not count:
        wrong.append("no submission of the sample is in this class")
    return wrong, count


def _differences(entry, verdict):
    gpu = verdict["rung"] == "gpu"
    fails = entry.fails | (entry.gpu_fails if gpu else frozenset())
    for cell in verdict["cells"].values():
        name = cell["check"]
        if entry.fails == {"?"}:
            must = "needs_review"
        elif name == "03.host.memory" and not gpu:
            must = "not_run"
        else:
            must = "failed" if name in fails or "*" in fails else "passed"
        if cell["status"] != must:
            reason = cell["message"] or next((c["message"] for c in cell["cases"] if c["message"]), "")
            yield f"{name} is {cell['status']}, must be {must} ({reason[:160]})"
    if entry.flag and not any(entry.flag in flag for flag in verdict["flags"]):
        yield f"no flag says {entry.flag!r}: {verdict['flags']}"


def _recorded(classroom, student, verdict):
    """The gradebook must say what the verdict says."""
    earned = sum(c["earned"] for c in verdict["cells"].values())
    with classroom.gradebook() as gradebook:
        try:
            score = gradebook.find_submission(ASSIGNMENT, student).score
        except MissingEntry:
            yield "nothing in the gradebook"
            return
    if score != earned:
        yield f"the gradebook says {score}, the verdict {earned}"
