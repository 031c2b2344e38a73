"""What students get: it is nbgrader's, gives nothing away, runs unfilled, and stays in step with its source."""

import importlib.util
import json
import re
import subprocess
import sys
import types

import nbformat
import numpy as np
import pytest

from autograder import exercise
from autograder.checks import CHECKS, core
from autograder.handin import HandInError
from autograder.student import CheckFailed, _performer, rung

ASSIGNMENT = "03_flash_forward"  # where one exercise is enough


def number(assignment):
    return assignment.split("_")[0]


def source_lines(assignment):
    """The lines between the marks in the source, and those outside them."""
    inside, lines = False, ([], [])
    for line in exercise.SOLUTIONS.joinpath(f"{assignment}.py").read_text(encoding="utf-8").splitlines():
        if line.strip() in {"### BEGIN SOLUTION", "### END SOLUTION"}:
            inside = line.strip().endswith("BEGIN SOLUTION")
        elif line.strip():
            lines[not inside].append(line.strip())
    return lines


def test_no_line_of_a_solution_is_released(assignment, release):
    solution, outside = source_lines(assignment)
    assert len(solution) > 10
    text = {line.strip() for cell in release.cells for line in cell.source.splitlines()}
    # A lone `)`, or an argument that the given signature names as well, gives nothing away.
    assert not text & (set(solution) - set(outside) - {")"})
    everything = json.dumps(release)
    assert "BEGIN SOLUTION" not in everything and "{{" not in "".join(c.source for c in release.cells)
    assert all(not cell.get("outputs") for cell in release.cells)


def test_nbgrader_finds_its_metadata(release, checked):
    for cell in release.cells:
        meta = cell.metadata.get("nbgrader")
        if meta is None:
            continue
        assert meta["checksum"] and meta["schema_version"] == 3
        assert not (meta["grade"] and meta["solution"])
        if meta["locked"]:
            assert cell.metadata["editable"] is False and cell.metadata["deletable"] is False
    assert all(
        cell.metadata.nbgrader.grade and cell.metadata.nbgrader.locked
        for _, cell in checked(release).values()
    )
    nbformat.validate(release)


def test_the_first_cell_tells_the_points_of_each_check(release, checked):
    """Its table's last two columns, `NN.check`, `.check` and 3 + 2, in the order of the cells."""
    rows = re.findall(r"^\| \d+ \|.*\| ([^|]*) \| ([\d +]*) \|$", release.cells[0].source, re.MULTILINE)
    names = [name for names, _ in rows for name in re.findall(r"`([^`]+)`", names)]
    points = [int(p) for _, points in rows for p in points.split(" + ")]
    cells = checked(release)
    assert all(whole.endswith(name) for whole, name in zip(cells, names, strict=True))
    assert points == [cell.metadata.nbgrader.points for _, cell in cells.values()]


def test_every_solution_has_hints_before_it(release):
    text = ""
    for cell in release.cells:
        if cell.cell_type == "markdown":
            text += cell.source
        elif exercise.is_solution(cell):
            assert text.count("<details>") == text.count("</details>") >= 1, exercise.grade_id(cell)
            text = ""


def test_the_setup_and_the_hand_in_are_those_of_every_exercise(assignment, release):
    """But for the numbers of the parts that need Triton."""

    def setup(notebook):
        source = next(c.source for c in notebook.cells if exercise.grade_id(c) == "setup")
        return re.sub(r"([Pp]art)s? \d(?:(?:, \d)* (?:and|to) \d)?( run| wait|)s?", r"\1\2", source)

    one = exercise.load_source(ASSIGNMENT)
    assert setup(release) == setup(one)
    assert [c.source for c in release.cells[-2:]] == [c.source for c in one.cells[-2:]]


def test_cell_ids_never_change(assignment, release):
    ids = [cell["id"] for cell in release.cells]
    assert len(set(ids)) == len(ids)
    assert ids == [cell["id"] for cell in exercise.load_source(assignment).cells]
    for cell in release.cells:
        if exercise.grade_id(cell):
            assert cell["id"] == exercise.grade_id(cell)


def test_the_release_runs_and_every_check_fails_with_a_reason(assignment, release, checked, run_cell):
    """Top to bottom, as "run all" does: only the checks raise."""
    names = {id(cell): name for name, (_, cell) in checked(release).items()}
    namespace = {"__name__": "blank"}
    failed = {}
    for cell in release.cells:
        if cell.cell_type != "code":
            continue
        try:
            run_cell(cell.source, f"<blank {cell['id']}>", namespace)
        except CheckFailed as error:
            failed[names[id(cell)]] = str(error)
        except HandInError as error:  # there is no Jupyter here that knows which file this is
            assert cell is release.cells[-1] and "say it, as in handin(" in str(error)
    here = [name for name in checked(release) if rung(CHECKS[name]) is not None]
    assert list(failed) == here
    for name, message in failed.items():
        kernel = CHECKS[name].kind == "kernel"
        assert ("was anything stored" if kernel else "a `return` missing") in message, message


def test_no_hint_accuses_an_empty_stub(release, define, checked):
    """A stub has made no mistake yet, so that no named mistake may be seen in it."""
    namespace = define(release)
    for name, (target, _) in checked(release).items():
        check = CHECKS[name]
        if rung(check) is None:
            continue
        for result in core.evaluate(
            check, np.random.default_rng(3), rung(check), _performer(namespace[target])
        ):
            assert result.passed is False
            assert result.mistake is None, (name, result.name, result.mistake)


@pytest.fixture
def elsewhere(monkeypatch):
    """A machine for which Triton has no build."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else find(name, *rest)
    )


def test_where_triton_has_no_build_the_numpy_part_works_and_the_rest_waits(
    assignment, elsewhere, run_cell, checked, capsys
):
    notebook = exercise.submission(assignment)
    namespace = {"__name__": "elsewhere"}
    for cell in notebook.cells[:-1]:  # all but the hand-in
        if cell.cell_type == "code":
            run_cell(cell.source, f"<elsewhere {cell['id']}>", namespace)
    printed = capsys.readouterr().out
    waiting = [name for name in checked(notebook) if CHECKS[name].triton]
    assert printed.count("It waits: Triton has no build for this system") == len(waiting) > 0
    assert re.search(r"Parts? \d.* waits?: Triton has no build", printed)
    assert "Colab, the dev container or WSL" in printed


def test_colab_installs_the_course_from_its_one_address(release, run_cell, monkeypatch):
    setup = next(c for c in release.cells if exercise.grade_id(c) == "setup")
    calls = []
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "autograder" else find(name, *rest)
    )
    monkeypatch.setattr(subprocess, "run", lambda command, **kwargs: calls.append(command))
    run_cell(setup.source, "<colab>", {"__name__": "colab"})
    installed = [word for command in calls for word in command]
    assert f"git+{exercise.repository()}" in installed and "anywidget" in installed
    assert all(command[0] == sys.executable for command in calls)


# ---------------------------------------------------------------------------------------------------------------
# In step


@pytest.fixture
def copy_of_exercises(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise, "EXERCISES", tmp_path / "exercises")
    monkeypatch.setattr(exercise, "assignments", lambda: [ASSIGNMENT])
    exercise.build()
    return tmp_path / "exercises" / ASSIGNMENT / f"{exercise.notebook_name(ASSIGNMENT)}.ipynb"


def test_exercises_are_in_step_with_their_source():
    assert exercise.compare() == ""


def test_building_twice_gives_the_same_bytes(copy_of_exercises, monkeypatch, tmp_path):
    first = copy_of_exercises.read_bytes()
    monkeypatch.chdir(tmp_path)
    exercise.build()
    assert copy_of_exercises.read_bytes() == first
    assert first.endswith(b"}\n") and b"\r" not in first
    committed = exercise.SOLUTIONS.parent / "exercises" / ASSIGNMENT / copy_of_exercises.name
    assert committed.read_bytes() == first


def test_compare_sees_a_changed_a_missing_and_a_foreign_notebook(copy_of_exercises):
    assert exercise.compare() == ""
    text = copy_of_exercises.read_text(encoding="utf-8")
    copy_of_exercises.write_text(
        text.replace("running maximum", "running minimum", 1).replace("Part 1", "Part One")
    )
    difference = exercise.compare()
    assert "Part One" in difference and len(difference.splitlines()) < 60
    copy_of_exercises.write_bytes(text.replace("\n", "\r\n").encode())
    assert exercise.compare() != ""
    copy_of_exercises.unlink()
    assert "more lines" in exercise.compare()
    copy_of_exercises.write_text(text, encoding="utf-8")
    copy_of_exercises.with_name("other.ipynb").write_text("{}")
    assert exercise.compare() == f"exercises/{ASSIGNMENT}/other.ipynb: no solution makes it"


def test_the_command_says_by_its_exit_code_whether_they_are_in_step(copy_of_exercises, capsys):
    assert exercise.main(["compare"]) == 0
    copy_of_exercises.write_text("{}")
    assert exercise.main(["compare"]) == 1
    assert "make exercises" in capsys.readouterr().err
    assert exercise.main(["buidl"]) == 2


# ---------------------------------------------------------------------------------------------------------------
# Sources that can't be right


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Write a changed copy of the source, and read it."""
    text = exercise.SOLUTIONS.joinpath(f"{ASSIGNMENT}.py").read_text(encoding="utf-8")
    monkeypatch.setattr(exercise, "SOLUTIONS", tmp_path)

    def change(old, new):
        assert old in text
        tmp_path.joinpath(f"{ASSIGNMENT}.py").write_text(text.replace(old, new, 1), encoding="utf-8")
        return exercise.load_source(ASSIGNMENT)

    return change


def test_a_source_that_would_leak_or_confuse_is_refused(source):
    assert source("Exercise 3", "Exercise three").cells[0].source.startswith("# Exercise three")
    with pytest.raises(ValueError, match="'solution-step' occurs twice"):
        source('"grade_id": "solution-tiles"', '"grade_id": "solution-step"')
    with pytest.raises(ValueError, match="cell solution-step has 0 '### BEGIN SOLUTION'"):
        source("    ### BEGIN SOLUTION\n    m_new", "    m_new")
    with pytest.raises(ValueError, match="cell setup has 1"):
        source("REPOSITORY =", "### BEGIN SOLUTION\n### END SOLUTION\nREPOSITORY =")


@pytest.mark.parametrize("read", [exercise.load_source, exercise.release, exercise.submission])
def test_what_a_caller_writes_into_a_notebook_is_not_in_the_next_one(read):
    before = nbformat.writes(read(ASSIGNMENT))
    written = read(ASSIGNMENT)
    written.cells[0].source += "mine"
    written.cells.pop()
    written.metadata.clear()
    assert nbformat.writes(read(ASSIGNMENT)) == before


def test_an_unknown_assignment_is_named():
    with pytest.raises(ValueError, match="'04_mask' does not exist; there are: .*03_flash_forward"):
        exercise.load_source("04_mask")


def test_a_missing_repository_address_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="repository: url:"):
        exercise.repository()
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://example.org/a/b/\n")
    assert exercise.repository() == "https://example.org/a/b"
