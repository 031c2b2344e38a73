"""Hand in: look at a notebook as the grader will, say what is missing, and pack it as intake expects it.

    python -m autograder.handin NOTEBOOK [--to FOLDER] [--student ID]

In a notebook, `from autograder import handin` and `handin()` do the same for the notebook itself. Nothing of the student's
runs here. The file is read and rebuilt by the grader's own code against the released notebook that came with the course, so
that what is said here and what the grader finds can't differ. It needs nbformat alone, and travels with the student edition.
"""

import argparse
import ast
import contextlib
import datetime
import hashlib
import json
import os
import re
import sys
import types
import unicodedata
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nbformat

from autograder.rebuild import MAX_CELL_CHARACTERS, Unreadable, grade_id, is_solution, read, rebuild

MANIFEST = (
    "handin.json"  # beside the notebook in the package; what it says of the student is the student's word
)
SCHEMA = 1
EPOCH = (1980, 1, 1, 0, 0, 0)  # for zip entries, so that the same content gives the same bytes
_STAMP = "%Y%m%dT%H%M%SZ"
# What a folder, a shell, a glob or nbgrader reads as something else than a name.
_NOT_IN_A_NAME = re.compile(r'[\\/:*?"<>|+\[\]{}]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


class HandInError(ValueError):
    """The notebook can't be handed in as it is. The message says why, and what to do."""

    def _render_traceback_(self):
        # IPython asks an exception for its own traceback: the frames of this module help no student.
        return [f"HandInError: {self}"]


@dataclass(frozen=True)
class Look:
    """What was found in one notebook.

    Attributes:
        data: the file's bytes, which are packed as they are.
        assignment, notebook: what it was recognised as: "03_flash_forward", and the file name that the grader looks for.
        flags: what the grader will note about it, in the grader's words.
        untouched: grade_ids of the parts that are still as released; of `parts` parts.
        cut: grade_ids of cells that are longer than the grader reads.
        saved: when the file was last written (UTC).
    """

    path: Path
    data: bytes
    assignment: str
    notebook: str
    flags: list
    untouched: list
    parts: int
    cut: list
    saved: datetime.datetime


def masters():
    """The released notebooks that came with this installation: assignment -> path."""
    here = Path(__file__).resolve().parent
    # The student edition carries them in the package; in the course's own folder they are where students get them from.
    folder = here / "released" if (here / "released").is_dir() else here.parent / "exercises"
    return {path.parent.name: path for path in sorted(folder.glob("[0-9]*/*.ipynb"))}


def match(notebook, released):
    """Names of the released notebooks that most of `notebook`'s cells come from.

    One name is an answer, several are a tie, none means that not one cell is known. Cells are known as `rebuild` knows them:
    by grade_id, else by cell id.

    Args:
        released: name -> released notebook.
    """
    found = {}
    for name, master in released.items():
        ours = {grade_id(c): c.id for c in master.cells if grade_id(c)}
        ids = set(ours.values())
        found[name] = len({ours.get(grade_id(c), c.get("id")) for c in notebook.cells} & ids)
    best = max(found.values(), default=0)
    return [name for name, count in found.items() if count == best > 0]


def student_problem(student):
    """Why `student` can't be the name of a student's folder, or None. `student` is taken in Unicode's composed form (NFC)."""
    if not student or student != student.strip():
        return "it is empty, or starts or ends with a space"
    if unicodedata.normalize("NFC", student) != student:
        return "it is not in Unicode's composed form"
    if _NOT_IN_A_NAME.search(student) or any(unicodedata.category(c)[0] == "C" for c in student):
        return 'it has a character that no folder name may have (one of \\ / : * ? " < > | + [ ] { }, or an invisible one)'
    if student[0] in ".-~" or student[-1] == "." or _RESERVED.fullmatch(student):
        return "it is a name that some system keeps for itself"
    if len(student.encode()) > 120:
        return "it is longer than 120 bytes"
    return None


def _bare(source):
    """`source` without comments and layout, to see whether anything was written."""
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source.split()


def examine(path, released=None):
    """Read and rebuild the notebook at `path` as the grader does, and return a `Look`.

    Args:
        released: assignment -> path of the released notebook; default: those of this installation.

    Raises:
        HandInError: it can't be read, belongs to no exercise or to more than one, or changed while it was read.
    """
    path = Path(path)
    released = masters() if released is None else released
    if not released:
        raise HandInError(
            "the released notebooks did not come with this installation, so nothing can be compared with them. Install the "
            "student edition, or upload the .ipynb file itself"
        )
    try:
        before = path.stat() if path.is_file() else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbformat's own, about what `rebuild` says in plain words
            notebook = read(path)
        data, after = path.read_bytes(), path.stat()
        opened = {name: nbformat.read(p, as_version=4) for name, p in released.items()}
        names = match(notebook, opened)
        # Without a known cell `rebuild` says what is wrong, in the grader's words.
        name = names[0] if names else next(iter(released))
        rebuilt = rebuild(opened[name], notebook)
    except Unreadable as error:
        raise HandInError(str(error)) from None
    except Exception as error:  # as in the grader: a malformed notebook raises whatever it leads to
        raise HandInError(
            f"{path.name} could not be taken apart: {type(error).__name__}: {str(error)[:200]}"
        ) from None
    if len(names) > 1:
        raise HandInError(f"{path.name} has cells of {', '.join(names)}; which one it is can't be told")
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise HandInError(f"{path.name} was saved while it was read; run this again")
    ours = {c.id: c.source for c in opened[name].cells if is_solution(c)}
    untouched = [
        grade_id(c) for c in rebuilt.notebook.cells if c.id in ours and _bare(c.source) == _bare(ours[c.id])
    ]
    cut = [str(grade_id(c) or c.get("id")) for c in notebook.cells if len(c.source) > MAX_CELL_CHARACTERS]
    saved = datetime.datetime.fromtimestamp(after.st_mtime, datetime.UTC)
    return Look(path, data, name, released[name].name, rebuilt.flags, untouched, len(ours), cut, saved)


def describe(look, now=None):
    """What a student reads about `look`, as lines of text."""
    now = now or datetime.datetime.now(datetime.UTC)
    age = max(0, round((now - look.saved).total_seconds()))
    ago = f"{age} seconds" if age < 120 else f"{age // 60} minutes" if age < 7200 else f"{age // 3600} hours"
    lines = [
        f"{look.path.name}, read as the grader will read it: exercise {look.assignment}",
        f"  last saved {look.saved.astimezone():%Y-%m-%d %H:%M:%S}, {ago} ago; what was changed after that is not in it. "
        "If you changed something since, save and run this again",
    ]
    if look.path.name != look.notebook:
        lines.append(f"  it is packed as {look.notebook}, the name that the grader looks for")
    if look.untouched:
        lines.append(
            f"  still as released ({len(look.untouched)} of {look.parts} parts): {', '.join(look.untouched)}"
        )
    lines += [
        f"  longer than {MAX_CELL_CHARACTERS:,} characters, the rest is cut off: {name}" for name in look.cut
    ]
    lines += [f"  the grader will note: {flag}" for flag in look.flags]
    if not (look.untouched or look.flags or look.cut):
        lines.append(f"  nothing is missing: {look.parts} of {look.parts} parts are filled in")
    return lines


def pack(look, folder, student=None, now=None):
    """Write the hand-in of `look` to `folder` and return its path.

    ASSIGNMENT--STUDENT--TIME--HASH.zip, without STUDENT where none is given, holds the notebook's own bytes and `handin.json`.
    When the newest hand-in there already has these bytes, that one is returned.

    Raises:
        HandInError: `student` can't be a name; the folder can't be written.
    """
    if student is not None:
        student = unicodedata.normalize("NFC", str(student))
        if problem := student_problem(student):
            raise HandInError(f"the student id {student!r} can't be used: {problem}")
    created = (now or datetime.datetime.now(datetime.UTC)).replace(microsecond=0)
    digest = hashlib.sha256(look.data).hexdigest()
    stem = "--".join(filter(None, [look.assignment, student]))
    folder = Path(folder)
    name = re.compile(re.escape(stem) + r"--\d{8}T\d{6}Z--[0-9a-f]{12}\.zip")
    manifest = {
        "schema": SCHEMA,
        "assignment": look.assignment,
        "student": student,
        "notebook": look.notebook,
        "created": created.isoformat(),
        "saved": look.saved.isoformat(),
        "sha256": digest,
        "flags": look.flags,
        "untouched": look.untouched,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = sorted(p for p in folder.iterdir() if name.fullmatch(p.name))
        if before and before[-1].stem.endswith(digest[:12]):
            return before[-1]
        target = folder / f"{stem}--{created:{_STAMP}}--{digest[:12]}.zip"
        part = target.with_suffix(".part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as file:
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            for entry, content in ((MANIFEST, text), (look.notebook, look.data)):
                file.writestr(zip_entry(entry), content)
        part.replace(target)
    except OSError as error:
        raise HandInError(f"{folder} can't be written to ({error.strerror}); name another folder") from None
    return target


def zip_entry(name):
    """A zip entry whose time and rights are always the same."""
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.create_system, entry.external_attr, entry.compress_type = 3, 0o644 << 16, zipfile.ZIP_DEFLATED
    return entry


def _this_notebook():
    """The file of the notebook that is running: VS Code says it in a variable, Jupyter's server in the environment."""
    names = [os.environ.get("JPY_SESSION_NAME")]
    with contextlib.suppress(ImportError):
        from IPython import get_ipython

        if get_ipython() is not None:
            names.insert(0, get_ipython().user_ns.get("__vsc_ipynb_file__"))
    for name in filter(None, names):
        for path in (Path(name), Path(Path(name).name)):  # a kernel runs in its notebook's folder
            if path.suffix == ".ipynb" and path.is_file():
                return path
    here = sorted(p.name for p in Path().glob("*.ipynb"))
    where = f"; this folder holds {', '.join(here[:5])}" if len(here) > 1 else ""
    raise HandInError(
        f'which file this notebook is can\'t be found out here: say it, as in handin("{here[0] if here else "NAME.ipynb"}")'
        f"{where}. In Colab, download the notebook (File, Download) and upload that file to your course"
    )


def handin(notebook=None, to=None, student=None):
    """Look at a notebook as the grader will, say what is missing, and pack it; prints all of it.

    Args:
        notebook: path of the saved notebook; default: the one that this cell is in.
        to: folder for the package; default: the notebook's own.
        student: your id in the course. Not needed where you upload the package to a page that knows you.

    Raises:
        HandInError: it can't be handed in as it is.
    """
    path = Path(notebook) if notebook is not None else _this_notebook()
    look = examine(path)
    print(*describe(look), sep="\n")
    student = student if student is not None else os.environ.get("JUPYTERHUB_USER")
    package = pack(look, path.parent if to is None else to, student)
    print(f"packed: {package}")
    if len(look.untouched) == look.parts:
        print(
            "WARNING: every part of it is as released, so it would earn nothing. "
            "Save the notebook and run this again; or name the file that you wrote in."
        )
    else:
        print("Upload that file, as it is.")
    if student is None:
        print(
            'It holds no student id. A course page that you log in to knows you; anywhere else use handin(student="...").'
        )


class _Callable(types.ModuleType):
    # `from autograder import handin` gives this module, as `python -m autograder.handin` needs it: so it can be called.
    def __call__(self, *args, **kwargs):
        return handin(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable


def main(arguments=None):
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m autograder.handin", description=handin.__doc__.split("\n")[0]
    )
    parser.add_argument("notebook", metavar="NOTEBOOK", help="the saved notebook")
    parser.add_argument("--to", metavar="FOLDER", help="where the package goes; default: beside the notebook")
    parser.add_argument(
        "--student", metavar="ID", help="your id in the course, where the upload does not know you"
    )
    given = parser.parse_args(arguments)
    try:
        handin(given.notebook, given.to, given.student)
    except HandInError as error:
        print(f"handin: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
