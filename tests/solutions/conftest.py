"""Run the code of a notebook here, without Jupyter: what the tests of this folder share.

Tests that hold for every exercise take the fixture `assignment`; `-k 01_memory` runs those of one. What is special to an exercise
is in a file of its own, such as test_03_flash_forward.py.
"""

import copy
import functools
import linecache

import pytest

from autograder import exercise
from autograder.checks import CHECKS


@pytest.fixture(params=exercise.assignments())
def assignment(request):
    """The name of every exercise in turn."""
    return request.param


@functools.cache
def _release(assignment):
    return exercise.release(assignment)


@pytest.fixture
def release(assignment):
    """A copy of the released notebook of `assignment`."""
    return copy.deepcopy(_release(assignment))


def _run_cell(source, name, namespace):
    """Execute `source`. Triton reads a kernel's text through its file name, so the text is kept under one."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


_count = 0


def _given(cell):
    """Whether this is a locked cell without points: the set-up, and what else an exercise defines for its solutions."""
    meta = cell.metadata.get("nbgrader", {})
    return meta.get("locked") and not meta.get("grade")


def _define(notebook):
    global _count
    _count += 1
    namespace = {"__name__": f"notebook_{_count}"}
    for cell in notebook.cells:
        if cell.cell_type == "code" and (exercise.is_solution(cell) or _given(cell)):
            _run_cell(cell.source, f"<notebook {_count}, cell {cell['id']}>", namespace)
    return namespace


def _checked(notebook):
    found = {}
    for cell in notebook.cells:
        if (exercise.grade_id(cell) or "").startswith("check-"):
            call = cell.source.strip()
            assert call.startswith('check("') and call.endswith(")") and "\n" not in call, call
            name, target = call[len("check(") : -1].split(", ")
            found[name.strip('"')] = (target, cell)
    number = next(iter(found)).split(".")[0]
    assert list(found) == [n for n in CHECKS if n.startswith(f"{number}.")]
    return found


@pytest.fixture(scope="session")
def run_cell():
    """run_cell(source, name, namespace): execute a cell."""
    return _run_cell


@pytest.fixture(scope="session")
def define():
    """define(notebook): the names that its given and its solution cells define."""
    return _define


@pytest.fixture(scope="session")
def checked():
    """checked(notebook): check name -> (the name that its locked cell hands in, the cell), in the notebook's order."""
    return _checked
