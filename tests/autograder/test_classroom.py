"""A class on disk, its gradebook, and the two ways to grade it."""

import contextlib
import html.parser
import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell
from small_assignment import STEP, master, needs_sandbox, submission
from typer.testing import CliRunner

from autograder import cli, fleet, judge
from autograder.classroom import ClassError, Classroom

SOURCE = master("### BEGIN SOLUTION\n" + STEP + "### END SOLUTION")
WRONG = STEP.replace("alpha * o", "o")
SCRIPT = """
from IPython.display import HTML, Javascript, Markdown, display
display(HTML("<script>alert('MARK1')</script><img src=x onerror=alert('MARK2')><b>harmless</b>"))
display(Javascript("alert('MARK3')"))
display(Markdown("<script>alert('MARK4')</script>"))
display({"image/svg+xml": "<svg onload=alert('MARK5')></svg>"}, raw=True)
print("<script>alert('MARK6')</script>")
"""


@pytest.fixture
def classroom(tmp_path):
    room = Classroom.create(tmp_path / "a class")
    room.add("small", SOURCE, "small")
    return room


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def nbgrader(*arguments, cwd):
    env = os.environ | {"PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def score(room, student):
    with room.gradebook() as gradebook:
        found = gradebook.find_submission("small", student)
        return found.score, [g.needs_manual_grade for n in found.notebooks for g in n.grades]


def test_the_release_has_no_solution_and_keeps_the_cells_ids(classroom):
    released = nbformat.read(classroom.notebook("small"), as_version=4)
    assert [c.id for c in released.cells] == [c.id for c in master().cells]
    assert "alpha" not in json.dumps(released)


@needs_sandbox
def test_our_command_and_nbgraders_give_the_same_scores(classroom):
    for name, solution in (("ada", STEP), ("bob", WRONG)):
        classroom.submit("small", name, submission(solution))
    result = run("grade", "small", "--class", classroom.folder)
    assert result.exit_code == 0, result.output
    ours = [score(classroom, n)[0] for n in ("ada", "bob")]
    assert ours == [5.0, 0.0]
    # From nothing: no verdict, and an empty gradebook.
    (classroom.folder / "gradebook.db").unlink()
    shutil.rmtree(classroom.folder / ".autograder" / "verdicts")
    shutil.rmtree(classroom.folder / "autograded")
    classroom.add("small", SOURCE, "small")
    done = nbgrader("autograde", "small", cwd=classroom.folder)
    assert done.returncode == 0, done.stderr
    assert [score(classroom, n)[0] for n in ("ada", "bob")] == ours


@pytest.mark.parametrize(("solution", "words"), [(STEP, "Success"), (WRONG, "CheckFailed: 03.step")])
def test_nbgraders_validate_which_students_can_run_agrees(tmp_path, solution, words):
    nbformat.write(submission(solution), tmp_path / "small.ipynb")
    done = nbgrader("validate", "small.ipynb", cwd=tmp_path)
    assert words in done.stdout, done.stdout + done.stderr


@needs_sandbox
def test_feedback_shows_the_tables_and_runs_nothing_of_the_students(classroom):
    notebook = submission(WRONG, extra=SCRIPT)
    notebook.cells.insert(4, new_markdown_cell("<script>alert('MARK7')</script><details>harmless</details>", id="md"))
    classroom.submit("small", "eve", notebook)
    assert run("grade", "small", "--class", classroom.folder).exit_code == 0
    assert run("feedback", "small", "--class", classroom.folder).exit_code == 0
    page = (classroom.folder / "feedback" / "eve" / "small" / "small.html").read_text()
    assert "harmless" in page and "first wrong" in page and "does not. Look at what is applied" in page
    class Live(html.parser.HTMLParser):
        """What a browser would run: the student's source is on the page as well, but as text."""

        found = []

        def handle_starttag(self, tag, attrs):
            attributes = dict(attrs)
            if tag == "script" or any(n.startswith("on") for n in attributes):
                self.found.append((tag, attributes))

        def handle_data(self, data):
            if self.lasttag == "script" and "MARK" in data:
                self.found.append(data)

    live = Live()
    live.feed(page)
    assert not [x for x in live.found if "MARK" in str(x)]
    assert "<details><summary>a fold of the course</summary>" in page


@needs_sandbox
def test_grading_again_does_nothing_and_a_change_redoes_that_one(classroom, monkeypatch):
    for name in ("ada", "bob"):
        classroom.submit("small", name, submission())
    assert [j.student for j in classroom.pending("small")] == ["ada", "bob"]
    for job in classroom.pending("small"):
        judge.grade(job)
    assert list(classroom.pending("small")) == []
    classroom.submit("small", "bob", submission(WRONG))
    assert [j.student for j in classroom.pending("small")] == ["bob"]
    for job in classroom.pending("small"):
        judge.grade(job)
    classroom.seed("small", rotate=True)
    assert [j.student for j in classroom.pending("small")] == ["ada", "bob"]
    monkeypatch.setattr(judge, "fingerprint", lambda: "other checks")
    assert [j.student for j in classroom.pending("small")] == ["ada", "bob"]


@needs_sandbox
def test_manual_marks_and_late_penalties_survive_a_regrade(classroom):
    classroom.submit("small", "ada", submission(WRONG))
    assert run("grade", "small", "--class", classroom.folder).exit_code == 0
    with classroom.gradebook() as gradebook:
        gradebook.find_grade("check-03-step", "small", "small", "ada").manual_score = 2.5
        gradebook.db.commit()
    assert score(classroom, "ada")[0] == 2.5
    classroom.seed("small", rotate=True)
    assert run("grade", "small", "--class", classroom.folder).exit_code == 0
    assert score(classroom, "ada")[0] == 2.5


@needs_sandbox
def test_a_broken_file_waits_for_a_person_and_the_rest_is_graded(classroom):
    classroom.submit("small", "ada", submission())
    classroom.submit("small", "bob", b"{ not a notebook")
    (classroom.folder / "submitted" / "cyd" / "small").mkdir(parents=True)
    assert run("grade", "small", "--class", classroom.folder).exit_code == 0
    assert score(classroom, "ada") == (5.0, [False, False])
    for student in ("bob", "cyd"):
        assert score(classroom, student) == (0.0, [True, True])
    refused = run("report", "--class", classroom.folder, "--csv", classroom.folder / "x.csv")
    assert refused.exit_code == cli.WAITING and not (classroom.folder / "x.csv").exists()
    assert "2 of 3 rows" in refused.output
    written = run("report", "--class", classroom.folder, "--csv", classroom.folder / "x.csv", "--partial")
    assert written.exit_code == 0
    lines = (classroom.folder / "x.csv").read_text().splitlines()
    assert lines[0].startswith("student,assignment,earned,available,waiting,recorded") and len(lines) == 4
    assert lines[1].startswith("ada,small,5.0,5.0,0.0") and lines[2].startswith("bob,small,0.0,0.0,5.0")


@needs_sandbox
def test_one_student_who_cannot_be_recorded_does_not_keep_the_others_back(classroom):
    for name in ("ada", "bob", "cyd"):
        classroom.submit("small", name, submission())
    (classroom.folder / "submitted" / "bob" / "small" / "timestamp.txt").write_text("yesterday, about noon")
    result = run("grade", "small", "--class", classroom.folder)
    assert result.exit_code == cli.FAILED and "bob could not be recorded" in result.output
    assert [score(classroom, n)[0] for n in ("ada", "cyd")] == [5.0, 5.0]


def test_our_own_failure_is_no_zero_and_is_tried_again(classroom):
    classroom.submit("small", "ada", submission())
    (job,) = classroom.pending("small")
    verdict = fleet.failed(job, RuntimeError("the worker died"))
    assert {c["status"] for c in verdict["cells"].values()} == {"infrastructure_error"}
    assert [j.student for j in classroom.pending("small")] == ["ada"]
    classroom.record("small", "ada")
    assert score(classroom, "ada") == (0.0, [True, True])


def test_a_formula_in_a_name_is_text_in_the_csv():
    from autograder import report

    entry = {"student": "=HYPERLINK(1)", "assignment": "a", "graded": False, "recorded": None}
    assert "'=HYPERLINK(1)" in report.as_csv([entry])


def test_the_seed_is_private_and_stays(classroom):
    first = classroom.seed("small")
    assert classroom.seed("small") == first and len(first) == 32
    assert (classroom.folder / ".autograder" / "seeds.json").stat().st_mode & 0o077 == 0
    assert classroom.seed("small", rotate=True) != first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grade", "small", "--class", "{empty}"], "is not a class folder"),
        (["grade", "other", "--class", "{room}"], "no assignment 'other' is released"),
        (["report", "--class", "{empty}"], "is not a class folder"),
        (["seed", "other", "--class", "{room}"], "released: small"),
        (["feedback", "other", "--class", "{room}"], "released: small"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(classroom, tmp_path, monkeypatch, capsys, arguments, words):
    filled = [a.format(empty=tmp_path / "empty", room=classroom.folder) for a in arguments]
    monkeypatch.setattr(sys, "argv", ["autograder", *filled])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == cli.FAILED
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


def test_every_command_has_help_with_an_example():
    for command in ("doctor", "new", "sample", "grade", "report", "feedback", "seed"):
        result = run(command, "--help")
        assert result.exit_code == 0 and "Example" in result.output, command


def test_a_new_class_has_every_exercise_and_never_takes_a_folder_that_is_in_use(tmp_path):
    from autograder import exercise

    result = run("new", tmp_path / "2026")
    assert result.exit_code == 0, result.output
    assert Classroom(tmp_path / "2026").assignments() == exercise.assignments()
    again = run("new", tmp_path / "2026")
    assert again.exit_code == cli.FAILED and "is not empty" in again.output


def test_without_a_sandbox_nothing_is_graded_and_the_fix_is_printed(classroom, monkeypatch):
    from autograder.sandbox import SandboxUnavailable

    def none(gpu=False):
        raise SandboxUnavailable("closed; do this to open it")

    monkeypatch.setattr(cli, "try_sandbox", none)
    classroom.submit("small", "ada", submission())
    result = run("grade", "small", "--class", classroom.folder)
    assert result.exit_code == cli.NO_SANDBOX and "do this to open it" in result.output
    assert run("doctor", "--sandbox").exit_code == cli.NO_SANDBOX
    assert len(list(classroom.pending("small"))) == 1


def test_a_student_without_a_verdict_is_not_recorded(classroom):
    classroom.submit("small", "ada", submission())
    with pytest.raises(ClassError, match="ada has no verdict"), contextlib.suppress(OSError):
        classroom.record("small", "ada")
