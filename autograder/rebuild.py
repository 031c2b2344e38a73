"""Rebuild a submission from the master: the student's solutions and extra cells, everything else as released.

Nothing in a submitted notebook is trusted but the sources of its solution cells and of the cells that the student added.
Locked cells, points, tags, metadata and outputs come from the master; so deleting, editing, reordering or duplicating
them changes nothing, and a `skip-execution` tag goes nowhere.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

MAX_NOTEBOOK_BYTES = 20 * 2**20
MAX_CELL_CHARACTERS = 200_000
MAX_EXTRA_CELLS = 200
_EXTRA = "extra-"  # how the id of a student's own cell starts


class Unreadable(ValueError):
    """The submission can't be graded as it is; a person must look. The message says why."""


@dataclass
class Rebuilt:
    """A submission as it will be run.

    Attributes:
        notebook: what will be run.
        flags: what an instructor should know about the submission.
        outdated: grade_ids of graded cells that were others, or not there, in the release that the student worked on. What
            they ask for now was never asked of this student.
    """

    notebook: nbformat.NotebookNode
    flags: list = field(default_factory=list)
    outdated: set = field(default_factory=set)


def grade_id(cell):
    """The nbgrader grade_id of `cell`, or None."""
    data = cell.get("metadata", {}).get("nbgrader", {})
    return data.get("grade_id") if isinstance(data, dict) else None


def is_solution(cell):
    """Whether `cell` (of a master) is the student's to fill."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_graded(cell):
    """Whether `cell` (of a master) carries points and is judged by a check."""
    data = cell.metadata.get("nbgrader", {})
    return bool(data.get("grade")) and not data.get("solution")


def is_extra(cell):
    """Whether `cell` of a rebuilt notebook is one that the student added."""
    return cell.id.startswith(_EXTRA)


def locate(path):
    """The file that was handed in as `path`: that one or, when it has another name, the only notebook in its folder.

    Raises:
        Unreadable: the folder, or the student's folder above it, is a symbolic link.
    """
    path = Path(path)
    for folder in (path.parent, path.parent.parent):
        if folder.is_symlink():
            raise Unreadable(f"the folder {folder.name} is a symbolic link")
    others = [p for p in path.parent.glob("*.ipynb") if p.is_file() and not p.is_symlink()]
    return others[0] if len(others) == 1 and not os.path.lexists(path) else path


def read(path):
    """The notebook at `path`, which a student wrote.

    Raises:
        Unreadable: it is missing, a link, too large, or not a notebook.
    """
    path = Path(path)
    if path.is_symlink():
        raise Unreadable(f"{path.name} is a symbolic link")
    if not path.is_file():
        others = sorted(p.name for p in path.parent.glob("*.ipynb"))[:5]
        found = f"; the folder holds {', '.join(others)}" if others else ""
        raise Unreadable(f"no file {path.name} was handed in{found}")
    if path.stat().st_size > MAX_NOTEBOOK_BYTES:
        raise Unreadable(f"{path.name} has {path.stat().st_size / 2**20:.0f} MiB; {MAX_NOTEBOOK_BYTES >> 20} is the most")
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        cells = [c for c in notebook.cells if isinstance(c.get("source"), str)]
    except Exception as error:  # a broken file raises whatever its breakage leads to
        raise Unreadable(f"{path.name} is not a notebook: {type(error).__name__}: {str(error)[:200]}") from None
    notebook.cells = cells
    return notebook


def rebuild(master, submitted):
    """Put the student's sources from `submitted` into a copy of `master`.

    A solution cell is found by its grade_id, else by its cell id (which the release derives from the grade_id, so that
    it survives stripped metadata), else by what it defines when only one cell does. Extra cells follow the known cell that they
    followed in the submission; a second copy of a cell that students write in is one of them, as it runs in their notebook.

    Args:
        master: the released notebook.
        submitted: what `read` returned.

    Raises:
        Unreadable: not one cell of the master can be found in the submission, or it can't be told which one stands for a
            solution cell that is missing.
    """
    flags, outdated, elsewhere = [], set(), []
    known = {grade_id(c): c for c in master.cells if grade_id(c)}
    released = {c.id: c for c in master.cells}
    sources, extras = {}, {}  # by the id of a master's cell
    seen, after = set(), None
    for cell in submitted.cells:
        here = known.get(grade_id(cell)) or released.get(cell.get("id"))
        if here is None:
            if cell.source.strip():
                extras.setdefault(after, []).append(cell)
            continue
        name = grade_id(here) or here.id
        locked = grade_id(here) and not is_solution(here)
        writable = here.cell_type == "code" and not locked
        if here.id in seen:
            if writable and cell.cell_type == "code" and cell.source != sources[here.id]:
                extras.setdefault(after, []).append(cell)
                flags.append(f"a second copy of cell {name} was run as a cell of the student's own")
            else:
                flags.append(f"a second copy of cell {name} was ignored")
            continue
        seen.add(here.id)
        after = here.id
        if _checksum(cell) and _checksum(here) and _checksum(cell) != _checksum(here):
            elsewhere.append(name)
            if is_graded(here):
                outdated.add(name)
        elif locked and (cell.source != here.source or cell.cell_type != here.cell_type):
            flags.append(f"the locked cell {name} was changed; the released one was run")
        if writable:
            sources[here.id] = _cut(cell, name, flags)
        tags = [t for t in cell.get("metadata", {}).get("tags", []) if t not in here.metadata.get("tags", [])]
        if tags:
            flags.append(f"cell {name} carried the tag {str(tags[0])[:40]!r}, which was dropped")
    if not any(c.id in seen for c in known.values()):
        raise Unreadable("none of its cells belongs to this exercise (were the cells' metadata and ids removed?)")
    if sum(map(len, extras.values())) > MAX_EXTRA_CELLS:
        raise Unreadable(f"it has more than {MAX_EXTRA_CELLS} cells of its own")
    for cell in master.cells:
        if is_solution(cell) and cell.cell_type == "code" and cell.id not in seen:
            _find_by_definition(cell, extras, sources, flags, seen)
    if elsewhere:
        cells = ", ".join(elsewhere[:5])
        flags.append(f"it was made from another release of the exercise (cells that differ: {cells}); the present one was run")
        outdated |= {grade_id(c) for c in master.cells if is_graded(c) and c.id not in seen}
    out = nbformat.from_dict(master)
    cells = [_extra(c, i, flags) for i, c in enumerate(extras.get(None, []))]
    for cell in out.cells:
        if grade_id(cell) and cell.id not in seen:
            flags.append(f"cell {grade_id(cell)} was missing; the released one was put back")
        cell.source = sources.get(cell.id, cell.source)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cells.append(cell)
        cells += [_extra(c, f"{cell.id}-{i}", flags) for i, c in enumerate(extras.get(cell.id, []))]
    out.cells = cells
    return Rebuilt(out, flags, outdated)


def _checksum(cell):
    """What nbgrader's release noted about `cell` in its metadata, which survives what students do to the source."""
    data = cell.get("metadata", {}).get("nbgrader", {})
    found = data.get("checksum") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None


def _find_by_definition(cell, extras, sources, flags, seen):
    """Take for the solution cell `cell`, whose grade_id and id are gone, the one extra cell that defines what it should."""
    names = _defined(cell.source)
    found = [(group, e) for group in extras.values() for e in group if e.cell_type == "code" and names & _defined(e.source)]
    if not found:
        return
    what = f"cell {grade_id(cell)} was missing, and {', '.join(sorted(names))}"
    if len(found) > 1:
        raise Unreadable(f"{what} is defined in {len(found)} other cells: a person must say which one counts")
    ((group, extra),) = found
    at = group.index(extra)
    extras[cell.id] = group[at + 1 :]  # what followed it still does
    del group[at:]
    sources[cell.id] = _cut(extra, grade_id(cell), flags)
    seen.add(cell.id)
    flags.append(f"{what} is defined in one other cell, which was taken for it")


def _defined(source):
    return set(re.findall(r"^(?:def|class)[ \t]+(\w+)", source, re.MULTILINE))


def _cut(cell, name, flags):
    """The cell's source, without what goes beyond the most that a cell may have; a flag then says so."""
    if len(cell.source) > MAX_CELL_CHARACTERS:
        flags.append(f"cell {name} has {len(cell.source)} characters; what follows the first {MAX_CELL_CHARACTERS} was cut off")
    return cell.source[:MAX_CELL_CHARACTERS]


def _extra(cell, number, flags):
    source = _cut(cell, f"{_EXTRA}{number}", flags)
    new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    return new(source, id=f"{_EXTRA}{number}"[:64])
