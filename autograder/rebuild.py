"""Rebuild a submission from the master: the student's solutions and extra cells, everything else as released.

Nothing in a submitted notebook is trusted but the sources of its solution cells and of the cells that the student added.
Locked cells, points, tags, metadata and outputs come from the master; so deleting, editing, reordering or duplicating
them changes nothing, and a `skip-execution` tag goes nowhere.
"""

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
    """`notebook`: what will be run. `flags`: what an instructor should know about the submission."""

    notebook: nbformat.NotebookNode
    flags: list = field(default_factory=list)


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
    it survives stripped metadata). Extra cells follow the known cell that they followed in the submission.

    Args:
        master: the released notebook.
        submitted: what `read` returned.

    Raises:
        Unreadable: not one cell of the master can be found in the submission.
    """
    flags = []
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
        if here.id in seen:
            flags.append(f"a second copy of cell {name} was ignored")
            continue
        seen.add(here.id)
        after = here.id
        locked = grade_id(here) and not is_solution(here)
        if here.cell_type == "code" and not locked:
            sources[here.id] = cell.source[:MAX_CELL_CHARACTERS]
        elif locked and (cell.source != here.source or cell.cell_type != here.cell_type):
            flags.append(f"the locked cell {name} was changed; the released one was run")
        tags = [t for t in cell.get("metadata", {}).get("tags", []) if t not in here.metadata.get("tags", [])]
        if tags:
            flags.append(f"cell {name} carried the tag {str(tags[0])[:40]!r}, which was dropped")
    if not any(c.id in seen for c in known.values()):
        raise Unreadable("none of its cells belongs to this exercise (were the cells' metadata and ids removed?)")
    if sum(map(len, extras.values())) > MAX_EXTRA_CELLS:
        raise Unreadable(f"it has more than {MAX_EXTRA_CELLS} cells of its own")
    out = nbformat.from_dict(master)
    cells = [_extra(c, i) for i, c in enumerate(extras.get(None, []))]
    for cell in out.cells:
        if grade_id(cell) and cell.id not in seen:
            flags.append(f"cell {grade_id(cell)} was missing; the released one was put back")
        cell.source = sources.get(cell.id, cell.source)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cells.append(cell)
        cells += [_extra(c, f"{cell.id}-{i}") for i, c in enumerate(extras.get(cell.id, []))]
    out.cells = cells
    return Rebuilt(out, flags)


def _extra(cell, number):
    source = cell.source[:MAX_CELL_CHARACTERS]
    new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    return new(source, id=f"{_EXTRA}{number}"[:64])
