"""What a submission may change, and what not."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from small_assignment import STEP, master, submission

from autograder import rebuild
from autograder.rebuild import Unreadable


def sources(notebook):
    return [c.source for c in notebook.cells]


def expected(extra=None):
    notebook = submission(extra=extra)
    return sources(notebook)


def test_an_honest_submission_comes_back_as_it_was():
    out = rebuild.rebuild(master(), submission(extra="x = 1"))
    assert sources(out.notebook) == expected("x = 1") and out.flags == []


def _delete(nb):
    del nb.cells[3]


def _duplicate(nb):
    nb.cells.insert(4, nbformat.from_dict(nb.cells[3]))


def _reverse(nb):
    nb.cells.reverse()


def _strip(nb):
    for c in nb.cells:
        c.metadata = {}


def _tag(nb):
    nb.cells[3].metadata.tags = ["skip-execution"]


def _edit(nb):
    nb.cells[3].source = "pass"


def _markdown(nb):
    nb.cells[3] = new_markdown_cell(nb.cells[3].source, id=nb.cells[3].id, metadata=nb.cells[3].metadata)


def _points(nb):
    nb.cells[3].metadata.nbgrader.points = 300


def _unlock(nb):
    nb.cells[3].metadata.nbgrader.grade = False


def _rename(nb):
    nb.cells[3].metadata.nbgrader.grade_id = "other"


def _outputs(nb):
    nb.cells[3].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "3"}, execution_count=1)]


@pytest.mark.parametrize(
    ("damage", "flag"),
    [
        (_delete, "was missing"), (_duplicate, "second copy"), (_reverse, None), (_strip, None), (_tag, "skip-execution"),
        (_edit, "was changed"), (_markdown, "was changed"), (_points, None), (_unlock, None), (_rename, None), (_outputs, None),
    ],
)  # fmt: skip
def test_damage_to_the_courses_own_cells_changes_nothing(damage, flag):
    notebook = submission()
    damage(notebook)
    out = rebuild.rebuild(master(), notebook)
    assert sources(out.notebook) == expected()
    assert [c.metadata for c in out.notebook.cells] == [c.metadata for c in master().cells]
    assert all(c.outputs == [] for c in out.notebook.cells if c.cell_type == "code")
    assert (flag is None and out.flags == []) or any(flag in f for f in out.flags)


def test_extra_cells_keep_their_places():
    notebook = submission()
    notebook.cells.insert(0, new_code_cell("first", id="a"))
    notebook.cells.insert(3, new_markdown_cell("before the solution", id="b"))
    notebook.cells.append(new_code_cell("last", id="c"))
    assert sources(rebuild.rebuild(master(), notebook).notebook) == sources(notebook)


def test_the_first_copy_of_a_solution_counts():
    notebook = submission()
    copy = nbformat.from_dict(notebook.cells[2])
    copy.source = "another"
    notebook.cells.insert(3, copy)
    assert STEP in sources(rebuild.rebuild(master(), notebook).notebook)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cells": 3}', b"\xff\xfe\x00", b'{"nbformat": 4}', b"null"])
def test_a_file_that_is_no_notebook_is_named(tmp_path, content):
    path = tmp_path / "small.ipynb"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=r"small\.ipynb"):
        rebuild.rebuild(master(), rebuild.read(path))


def test_links_missing_files_and_huge_ones_are_refused(tmp_path, monkeypatch):
    real = tmp_path / "real.ipynb"
    nbformat.write(submission(), real)
    link = tmp_path / "small.ipynb"
    link.symlink_to(real)
    with pytest.raises(Unreadable, match="symbolic link"):
        rebuild.read(link)
    link.unlink()
    with pytest.raises(Unreadable, match=r"no file small\.ipynb was handed in; the folder holds real\.ipynb"):
        rebuild.read(link)
    monkeypatch.setattr(rebuild, "MAX_NOTEBOOK_BYTES", 100)
    with pytest.raises(Unreadable, match="the most"):
        rebuild.read(real)


def test_a_notebook_of_another_exercise_is_for_a_person():
    other = nbformat.v4.new_notebook(cells=[new_code_cell("x = 1", id="z")])
    with pytest.raises(Unreadable, match="none of its cells"):
        rebuild.rebuild(master(), other)
