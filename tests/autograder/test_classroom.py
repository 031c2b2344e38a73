"""A class on disk, its gradebook, and the two ways to grade it."""

import contextlib
import html.parser
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from distributed import Client, LocalCluster
from nbformat.v4 import new_markdown_cell
from small_assignment import STEP, master, needs_sandbox, submission
from typer.main import get_command
from typer.testing import CliRunner

from autograder import checks, cli, fleet, judge
from autograder.checks import core
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


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    room = Classroom.create(tmp_path_factory.mktemp("fresh") / "class")
    room.add("small", SOURCE, "small")
    return room.folder


@pytest.fixture
def classroom(fresh, tmp_path):
    shutil.copytree(fresh, tmp_path / "a class")
    return Classroom(tmp_path / "a class")


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.fixture
def at_home(monkeypatch):
    """`autograder grade` with its one worker in this process, which has its libraries and its warm parent already.

    All else is as it always is. Workers that are processes of their own are the matter of test_fleet.py.
    """

    @contextlib.contextmanager
    def local(submissions, workers=None, gpu=False):
        with (
            LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield client

    monkeypatch.setattr(fleet, "local", local)


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
def test_our_command_and_nbgraders_give_the_same_scores(classroom, at_home):
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
def test_feedback_shows_the_tables_and_runs_nothing_of_the_students(classroom, at_home):
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
def test_grading_again_does_nothing_and_a_change_redoes_that_one(classroom):
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


@needs_sandbox
def test_manual_marks_and_late_penalties_survive_a_regrade(classroom, at_home):
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
def test_a_broken_file_waits_for_a_person_and_the_rest_is_graded(classroom, at_home):
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
def test_one_student_who_cannot_be_recorded_does_not_keep_the_others_back(classroom, at_home):
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
    assert list(classroom.record("small", ["ada"])) == [("ada", None)]
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
    commands = get_command(cli.app).commands
    assert {"add", "doctor", "grade"} <= commands.keys()
    for command in commands:
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
    ((student, problem),) = classroom.record("small", ["ada"])
    assert student == "ada" and "ada has no verdict" in problem
    assert list(classroom.unrecorded("small")) == ["ada"]


# -- what is graded again, and what is recorded again --------------------------------------------------------------


def grade_pending(room, **options):
    """Grade what is pending with a stand-in for the judge; returns who that was."""
    students = []
    for job in room.pending("small", **options):
        students.append(job.student)
        fleet.failed(job, RuntimeError("a stand-in"))
        verdict = json.loads(Path(job.stem + ".json").read_text())
        for cell in verdict["cells"].values():
            cell["status"], cell["earned"] = "passed", cell["points"]
        Path(job.stem + ".json").write_text(json.dumps(verdict))
    return students


@pytest.fixture
def two(classroom):
    for name in ("ada", "bob"):
        classroom.submit("small", name, submission())
    assert grade_pending(classroom) == ["ada", "bob"]
    return classroom


def test_the_key_covers_all_that_an_outcome_rests_on(two):
    for options in ({"unsafe": True}, {"cell_seconds": 7.0}, {"gpu": True}):
        assert len(list(two.pending("small", **options))) == 2, options
    keys = [two.job("small", "ada", **o).key for o in ({}, {"unsafe": True}, {"cell_seconds": 7.0}, {"gpu": True}, {"gpu": True, "cpu": True})]
    assert len(set(keys)) == 4 and keys[0] == keys[-1]
    folder = two.folder / "submitted" / "ada" / "small"
    (folder / "small.ipynb").rename(folder / "other name.ipynb")  # it is found under that name, too, and flagged
    assert [j.student for j in two.pending("small")] == ["ada"]


def test_the_limits_of_the_last_run_count(two):
    assert grade_pending(two, cell_seconds=7.0) == ["ada", "bob"]
    assert two.verdict("small", "ada")[0]["limits"]["cell_seconds"] == 7.0
    assert grade_pending(two) == []
    assert two.verdict("small", "ada")[0]["limits"]["cell_seconds"] == 60.0


def test_a_mended_check_has_only_its_own_assignments_graded_again(tmp_path, monkeypatch):
    """Two assignments, each with checks in a module of its own; both modules and one helper are then changed in turn."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "exercise_a.py").write_text("from kernels.reference import softmax\ncases = lambda rng, rung: []\n")
    (tmp_path / "exercise_b.py").write_text("from autograder.checks.core import FLOOR\ncases = lambda rng, rung: []\n")
    books = {}
    for name in ("exercise_a", "exercise_b"):
        check = core.Check(f"{name}.one", "", "function", importlib.import_module(name).cases)
        monkeypatch.setitem(checks.CHECKS, check.name, check)
        books[name] = master()
        books[name].cells = [books[name].cells[0], books[name].cells[3]]
        books[name].cells[1].source = f'check("{check.name}", step)'

    def prints():
        judge._fingerprint.cache_clear()
        return {name: judge.fingerprint(book) for name, book in books.items()}

    before = prints()
    assert before == prints() and len(set(before.values())) == 2
    (tmp_path / "exercise_a.py").write_text("cases = lambda rng, rung: []  # mended\n")
    after = prints()
    assert after["exercise_a"] != before["exercise_a"] and after["exercise_b"] == before["exercise_b"]

    def changed(module):
        """Which assignments' fingerprints differ once the file of `module` has another byte."""
        file = Path(importlib.util.find_spec(module).origin)
        with monkeypatch.context() as patch:
            read = Path.read_bytes
            patch.setattr(Path, "read_bytes", lambda path: read(path) + b"\n" * (path == file))
            now = prints()
        return {name for name in books if now[name] != after[name]}

    for shared in ("checks.core", "contestant", "executor", "jitted", "judge", "rebuild", "sandbox"):
        assert changed(f"autograder.{shared}") == set(books), shared
    for other in ("autograder.checks", "autograder.checks.ex03", "autograder.report", "autograder.fleet", "kernels.reference.softmax"):
        assert changed(other) == set(), other
    (tmp_path / "exercise_a.py").write_text("def cases(rng, rung):\n    from kernels.reference import flash\n")
    after = prints()
    assert changed("kernels.reference.flash") == {"exercise_a"}  # an oracle that this one's checks compare with
    judge._fingerprint.cache_clear()


def test_a_release_that_asks_for_an_unknown_check_is_named(classroom):
    book = nbformat.read(classroom.notebook("small"), as_version=4)
    book.cells[3].source = 'check("03.nothing", step)'
    nbformat.write(book, classroom.notebook("small"))
    with pytest.raises(ClassError, match="small can't be graded: no check is called '03.nothing'"):
        classroom.job("small", "ada")


def test_only_what_changed_is_recorded_again_and_manual_marks_stay(two, monkeypatch):
    names = ("check-03-step", "small", "small", "ada")
    assert list(two.unrecorded("small")) == ["ada", "bob"]
    assert list(two.record("small", ["ada", "bob"])) == [("ada", None), ("bob", None)]
    assert list(two.unrecorded("small")) == []
    with two.gradebook() as gradebook:
        gradebook.find_grade(*names).manual_score = 1.5
        gradebook.db.commit()
    assert score(two, "ada")[0] == 3.5 and list(two.unrecorded("small")) == []
    two.submit("small", "ada", submission(WRONG))
    assert grade_pending(two) == ["ada"]
    assert list(two.unrecorded("small")) == ["ada"]
    assert list(two.record("small", two.unrecorded("small"))) == [("ada", None)]
    assert score(two, "ada")[0] == 3.5 and score(two, "bob")[0] == 5.0
    with two.gradebook() as gradebook:
        assert gradebook.find_grade(*names).needs_manual_grade


def test_to_record_one_submission_its_run_notebook_is_read_once(two, monkeypatch):
    read, names = nbformat.read, []
    monkeypatch.setattr(nbformat, "read", lambda path, **options: names.append(str(path)) or read(path, **options))
    assert list(two.record("small", ["ada"])) == [("ada", None)]
    assert len([name for name in names if "/verdicts/" in name]) == 1 and score(two, "ada")[0] == 5.0


def test_two_hosts_that_share_a_folder_never_write_to_one_file(two, monkeypatch):
    """Their processes may have the same number."""
    parts = []
    monkeypatch.setattr(Path, "replace", lambda part, target: parts.append(part.name))
    for host in ("a", "b"):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        judge.write(two.folder / "key-cpu", {}, master())
        two.seed("small", rotate=True)
    assert len(parts) == 6 and not set(parts[:3]) & set(parts[3:])


def test_a_record_is_stale_when_what_it_was_made_from_or_what_it_made_is_gone(two):
    def record():
        assert [problem for _, problem in two.record("small", list(two.unrecorded("small")))] in ([None], [None, None])

    record()
    (two.folder / "submitted" / "ada" / "small" / "timestamp.txt").write_text("2026-01-01 00:00:00 UTC")
    assert list(two.unrecorded("small")) == ["ada"]
    record()
    shutil.rmtree(two.folder / "autograded" / "bob")
    assert list(two.unrecorded("small")) == ["bob"]
    record()
    with two.gradebook() as gradebook:  # a backup was put back
        gradebook.find_grade("check-03-step", "small", "small", "ada").auto_score = 0.0
        gradebook.db.commit()
    assert list(two.unrecorded("small")) == ["ada"]
    record()
    (two.folder / "gradebook.db").unlink()
    two.add("small", SOURCE, "small")
    assert list(two.unrecorded("small")) == ["ada", "bob"]
    record()
    assert list(two.unrecorded("small")) == [] and score(two, "bob")[0] == 5.0


def test_names_that_are_patterns_to_nbgrader_are_recorded_too(classroom):
    names = ["a*", "a?", "ab"]
    for name in [*names, "a[b]"]:
        classroom.submit("small", name, submission())
    grade_pending(classroom)
    found = dict(classroom.record("small", classroom.students("small")))
    assert "No notebooks were matched" in found.pop("a[b]")  # nbgrader itself can't; the others are recorded, each once
    assert found == dict.fromkeys(names)
    assert [score(classroom, name)[0] for name in names] == [5.0] * 3


def test_one_grader_at_a_time_and_the_other_is_named(classroom):
    hold = "import sys; from autograder.classroom import Classroom\nwith Classroom(sys.argv[1]).lock():\n    print('held', flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", hold, str(classroom.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    refused = run("grade", "small", "--class", classroom.folder)
    assert refused.exit_code == cli.FAILED and f"is being graded by process {other.pid} on " in refused.output
    other.kill()  # however it ends, the class is free again
    other.communicate()
    with classroom.lock():
        pass
    assert run("grade", "small", "--class", classroom.folder).exit_code == 0
