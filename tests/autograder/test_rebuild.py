"""What a submission may change, and what not."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from small_assignment import master, submission

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


def test_a_second_copy_of_a_solution_runs_where_it_stands_as_it_does_for_the_student():
    notebook = submission()
    copy = nbformat.from_dict(notebook.cells[2])
    notebook.cells.insert(3, copy)
    out = rebuild.rebuild(master(), notebook)
    assert sources(out.notebook) == expected() and "was ignored" in out.flags[0]
    copy.source = "another"
    out = rebuild.rebuild(master(), notebook)
    assert sources(out.notebook) == expected("another") and "was run as a cell of the student's own" in out.flags[0]


def _rename_solution(nb):
    nb.cells[2].id = nb.cells[2].metadata.nbgrader.grade_id = "other"


def test_a_solution_cell_without_its_name_is_found_by_what_it_defines():
    notebook = submission(extra="x = 1")
    _rename_solution(notebook)
    out = rebuild.rebuild(master(), notebook)
    assert sources(out.notebook) == expected("x = 1") and "which was taken for it" in " ".join(out.flags)
    assert rebuild.grade_id(out.notebook.cells[2]) == "solution-step"


def test_two_cells_that_could_be_it_are_for_a_person_and_none_is_put_back():
    notebook = submission(extra="def step(state, tile):\n    return state")
    _rename_solution(notebook)
    with pytest.raises(Unreadable, match="step is defined in 2 other cells"):
        rebuild.rebuild(master(), notebook)
    notebook.cells = [c for c in notebook.cells if "def step" not in c.source]
    out = rebuild.rebuild(master(), notebook)
    assert sources(out.notebook) == sources(master()) and "cell solution-step was missing; the released one was put back" in out.flags


def _checksums(notebook, **changed):
    for cell in notebook.cells:
        if rebuild.grade_id(cell):
            cell.metadata.nbgrader.checksum = changed.get(cell.id.replace("-", "_"), "same")
    return notebook


def test_another_release_is_named_and_what_it_did_not_ask_is_not_judged():
    old = _checksums(submission(), check_03_step="older", solution_step="older")
    old.cells[3].source = 'check("03.other", step)'
    del old.cells[4]
    out = rebuild.rebuild(_checksums(master()), old)
    assert out.outdated == {"check-03-step", "check-03-masked"}
    assert any("another release" in f and "cells that differ: solution-step, check-03-step)" in f for f in out.flags)
    assert not any("was changed" in f for f in out.flags)
    out = rebuild.rebuild(_checksums(master()), _checksums(submission()))
    assert out.outdated == set() and out.flags == []
    edited = _checksums(submission())
    edited.cells[3].source = "pass"
    out = rebuild.rebuild(_checksums(master()), edited)
    assert out.outdated == set() and any("was changed" in f for f in out.flags)


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "bob" / "small").mkdir(parents=True)
    nbformat.write(submission(), tmp_path / "bob" / "small" / "small.ipynb")
    assert rebuild.locate(tmp_path / "bob" / "small" / "small.ipynb").is_file()
    (tmp_path / "eve").symlink_to(tmp_path / "bob")
    (tmp_path / "mallory").mkdir()
    (tmp_path / "mallory" / "small").symlink_to(tmp_path / "bob" / "small")
    for student in ("eve", "mallory"):
        with pytest.raises(Unreadable, match="is a symbolic link"):
            rebuild.locate(tmp_path / student / "small" / "small.ipynb")


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


def test_a_cell_that_is_cut_for_its_length_is_flagged(monkeypatch):
    monkeypatch.setattr("autograder.rebuild.MAX_CELL_CHARACTERS", 200)
    notebook = submission("x = 1  # " + "y" * 300, extra="z" * 250)
    rebuilt = rebuild.rebuild(master(), notebook)
    assert all(len(c.source) <= 200 for c in rebuilt.notebook.cells if c.cell_type == "code")
    assert [f for f in rebuilt.flags if "was cut off" in f] == [
        "cell solution-step has 309 characters; what follows the first 200 was cut off",
        "cell extra-solution-step-0 has 250 characters; what follows the first 200 was cut off",
    ]
