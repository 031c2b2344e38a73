"""From one source to what a student gets, and to the submissions of the sample class. Runs on the coordinator alone.

`solutions/NAME.py` is the only place where an exercise is written: jupytext percent text with nbgrader's metadata. From it,
nbgrader itself makes the release, in a course that exists for that moment only: so the stripping, the locks and the
checksums are those that nbgrader will look for later. Nothing here is random: the same source gives the same bytes.

    python -m autograder.exercise build      write exercises/ again
    python -m autograder.exercise compare    exit 1, with a diff, when exercises/ is not what build would write
"""

import copy
import difflib
import functools
import importlib.util
import logging
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import jupytext
import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS = ROOT / "solutions"
EXERCISES = ROOT / "exercises"

_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
_STUB = "# YOUR CODE HERE"
# What a released notebook says about its kernel: nothing of the machine that made it.
_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


@dataclass(frozen=True)
class Mutant:
    """A wrong solution, and what it must lose.

    Attributes:
        name: a short name, unique in its exercise.
        mistake: what was done wrong, one sentence.
        edits: (grade_id, old, new): in the reference's cell `grade_id`, `old` occurs once and becomes `new`.
        fails: names of the checks that it must fail where there is no GPU, those included that only fail because a check
            that they need does. It passes every other one that can be made there.
        fails_on_gpu: the same where there is a GPU; None means `fails`.
        hint: check name -> mistake whose hint a student must be shown there.
    """

    name: str
    mistake: str
    edits: tuple
    fails: frozenset
    fails_on_gpu: frozenset | None = None
    hint: dict = field(default_factory=dict)


def assignments():
    """Names of all exercises, such as "03_flash_forward": the nbgrader assignments. The notebook is called `notebook_name(name)`."""
    return sorted(path.stem for path in SOLUTIONS.glob("[0-9]*.py"))


def notebook_name(assignment):
    """The name of the assignment's only notebook: "03_flash_forward" -> "flash_forward"."""
    return assignment.split("_", 1)[1]


def _source_path(assignment):
    if assignment not in assignments():
        raise ValueError(f"assignment {assignment!r} does not exist; there are: {', '.join(assignments())}")
    return SOLUTIONS / f"{assignment}.py"


def repository():
    """Where the course lives: `repository: url:` of _config.yml, the one place where it is written.

    Raises:
        ValueError: the file or the entry is missing.
    """
    path = ROOT / "_config.yml"
    try:
        url = yaml.safe_load(path.read_text(encoding="utf-8"))["repository"]["url"]
    except (OSError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path.name} should have an entry repository: url: ({type(error).__name__}: {error})"
        ) from None
    return url.rstrip("/")


def grade_id(cell):
    """The cell's grade_id, or None."""
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def is_solution(cell):
    """Whether a student writes in this cell."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def load_source(assignment):
    """The solution notebook, as nbgrader's `source/` wants it, with ids that never change.

    A cell's id is its grade_id, or its position among the cells that have none.

    Raises:
        ValueError: no such assignment; a grade_id that occurs twice; a solution cell without a solution region.
    """
    path = _source_path(assignment)
    return copy.deepcopy(
        _parsed(path.name, path.read_text(encoding="utf-8").replace("{{repository}}", repository()))
    )


@functools.cache  # the sample reads a source, and makes its release, again for each of a hundred submissions
def _parsed(file, text):
    book = jupytext.reads(text, fmt="py:percent")
    book.metadata = nbformat.from_dict(copy.deepcopy(_METADATA))
    book.nbformat, book.nbformat_minor = 4, 5
    seen, plain = set(), 0
    for cell in book.cells:
        name = grade_id(cell)
        if name is None:
            cell["id"] = f"cell-{plain:02d}"
            plain += 1
        else:
            if name in seen:
                raise ValueError(f"{file}: grade_id {name!r} occurs twice")
            seen.add(name)
            cell["id"] = name
            cell.metadata["nbgrader"].setdefault("cell_type", cell.cell_type)
        regions = cell.source.count(_BEGIN), cell.source.count(_END)
        if regions != ((1, 1) if is_solution(cell) else (0, 0)):
            raise ValueError(
                f"{file}: cell {cell['id']} has {regions[0]} {_BEGIN!r} and {regions[1]} {_END!r}; "
                f"a solution cell has one of each, any other has none"
            )
    nbformat.validate(book)
    return book


def release(assignment):
    """The notebook that students get, made by nbgrader's generate_assignment in a throw-away course."""
    return copy.deepcopy(_released(assignment, nbformat.writes(load_source(assignment))))


@functools.cache
def _released(assignment, source):
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    name = notebook_name(assignment)
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        path = Path(folder) / "source" / assignment / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(source, encoding="utf-8")
        config = Config()
        config.CourseDirectory.root = folder
        config.CourseDirectory.assignment_id = assignment
        config.ClearSolutions.code_stub = {"python": _STUB}
        config.ClearSolutions.text_stub = ""
        # No gradebook: a class makes its own, and `nbgrader generate_assignment --no-db` sets these same two.
        config.SaveCells.enabled = False
        config.GenerateAssignment.no_database = True
        log = logging.getLogger("autograder.exercise")
        log.setLevel(logging.ERROR)
        converter = GenerateAssignment(coursedir=CourseDirectory(config=config), config=config)
        converter.log = log
        converter.start()
        book = nbformat.read(Path(folder) / "release" / assignment / f"{name}.ipynb", as_version=4)
    book.metadata = nbformat.from_dict(copy.deepcopy(_METADATA))
    for cell in book.cells:
        if _BEGIN in cell.source or _END in cell.source:
            raise ValueError(f"{assignment}: the release of cell {cell['id']} still has its solution region")
    return book


def solutions(assignment):
    """grade_id -> the reference's source of each solution cell, without the lines that mark the region.

    Raises:
        ValueError: as `load_source`.
    """
    marks = re.compile(rf"^[ \t]*(?:{_BEGIN}|{_END})[ \t]*\n?", re.MULTILINE)
    return {
        grade_id(cell): marks.sub("", cell.source).rstrip("\n")
        for cell in load_source(assignment).cells
        if is_solution(cell)
    }


def submission(assignment, *wrong):
    """The release, filled in with the reference's solutions, and the mistakes of the mutants `wrong`: what a student hands in.

    Raises:
        ValueError: an edit of a mutant names a cell that does not exist, or text that does not occur once in it.
    """
    sources = solutions(assignment)
    for mutant, cell, old, new in ((m, *edit) for m in wrong for edit in m.edits):
        if cell not in sources:
            raise ValueError(
                f"mutant {mutant.name!r}: no solution cell is called {cell!r}; there are {list(sources)}"
            )
        times = sources[cell].count(old)
        if times != 1:
            raise ValueError(
                f"mutant {mutant.name!r}: {old!r} occurs {times} times in {cell!r}; it should occur once"
            )
        sources[cell] = sources[cell].replace(old, new)
    book = release(assignment)
    for cell in book.cells:
        if is_solution(cell):
            cell.source = sources[grade_id(cell)]
    return book


def mutants(assignment):
    """The wrong solutions of `solutions/mutants/ASSIGNMENT.py`, a list of `Mutant`."""
    return list(_matrix(assignment).MUTANTS)


def runs(assignment):
    """check name -> grade_ids of the solution cells whose code it runs: `RUNS` of `solutions/mutants/ASSIGNMENT.py`.

    A check that runs none of a mutant's cells gives what it gives of the reference.
    """
    return {check: frozenset(cells) for check, cells in _matrix(assignment).RUNS.items()}


def _matrix(assignment):
    path = SOLUTIONS / "mutants" / _source_path(assignment).name
    spec = importlib.util.spec_from_file_location(f"mutants_{assignment}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _built():
    """Path below exercises/ -> text, for everything that build writes."""
    return {
        Path(name) / f"{notebook_name(name)}.ipynb": nbformat.writes(release(name)) + "\n"
        for name in assignments()
    }


def build():
    """Write exercises/ again. Returns the paths written."""
    written = []
    for path, text in _built().items():
        target = EXERCISES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")
        written.append(target)
    return written


def compare(lines=40):
    """How exercises/ differs from what build would write: a short diff, "" when it does not."""
    found = []
    built = _built()
    for path, text in built.items():
        target = EXERCISES / path
        there = target.read_bytes().decode("utf-8", "replace") if target.exists() else ""
        if there == text:
            continue
        diff = list(
            difflib.unified_diff(
                there.splitlines(),
                text.splitlines(),
                f"exercises/{path.as_posix()}",
                "what solutions/ gives",
                lineterm="",
                n=1,
            )
        )
        # Two texts can differ in line ends alone, which no diff of lines shows.
        diff = diff or [f"exercises/{path.as_posix()}: line ends differ"]
        rest = len(diff) - lines
        found += diff[:lines] + ([f"... and {rest} more lines"] if rest > 0 else [])
    found += [
        f"exercises/{path.relative_to(EXERCISES).as_posix()}: no solution makes it"
        for path in sorted(EXERCISES.rglob("*.ipynb"))
        if path.relative_to(EXERCISES) not in built and ".ipynb_checkpoints" not in path.parts
    ]
    return "\n".join(found)


def main(arguments):
    if arguments == ["build"]:
        for path in build():
            print(path.relative_to(ROOT).as_posix())
        return 0
    if arguments == ["compare"]:
        difference = compare()
        if difference:
            print(difference)
            print("exercises/ is out of step with solutions/: run `make exercises`", file=sys.stderr)
        return 1 if difference else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
