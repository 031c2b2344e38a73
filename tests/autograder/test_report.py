"""What an instructor sees and exports: tables, histogram, failure rates, CSV for people, Canvas and Moodle, the audit trail."""

import csv
import io
import json
import subprocess
import sys

import graded_class
import pytest
from graded_class import FAILED, HINT, MASKED_CHECK, STEP_CHECK, make, record, verdict
from rich.console import Console
from small_assignment import submission
from typer.testing import CliRunner

from autograder import cli, report
from autograder.classroom import ClassError

ESCAPE = "\x1b]0;owned\x07\x1b[31m"


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def lines(text):
    return list(csv.reader(io.StringIO(text)))


def shown(*tables):
    console = Console(width=110, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """ada has all, bob fails the first check, cyd waits for a person, dan's is not graded, eve's second check needs a GPU."""
    room = make(tmp_path_factory.mktemp("report") / "class", "ada", "bob", "cyd", "dan", "eve")
    verdict(room, "ada", {})
    verdict(
        room,
        "bob",
        {STEP_CHECK: ("failed", "", FAILED)},
        flags=["cell own carried the tag '[/bold]', which was dropped"],
    )
    verdict(room, "cyd", {STEP_CHECK: "needs_review", MASKED_CHECK: "needs_review"})
    verdict(room, "eve", {MASKED_CHECK: "not_run"})
    record(room, "ada", "bob", "cyd", "eve")
    with room.gradebook() as gradebook:
        gradebook.update_or_create_student(
            "ada", first_name="Ada", last_name="Lovelace, née Byron", email="ada@x.org", lms_user_id="11"
        )
        gradebook.update_or_create_student("bob", first_name="=1+1", last_name=None)
    return room


def entry(student, statuses, recorded=None, assignment="a", **more):
    """A row as `report.rows` gives it: checks a.1, a.2, ... of 2 points each."""
    checks = {f"a.{i}": status for i, status in enumerate(statuses, 1)}
    judged = [s for s in statuses if s not in report.WAITING]
    earned = 2.0 * sum(s in ("passed", "by hand") for s in statuses)
    return {
        "student": student, "assignment": assignment, "graded": True, "recorded": earned if recorded is None else recorded,
        "earned": earned, "available": 2.0 * len(judged), "waiting": 2.0 * (len(statuses) - len(judged)), "checks": checks,
        "points": dict.fromkeys(checks, 2.0), "reasons": {c: "why" for c, s in checks.items() if s == "failed"}, "flags": [],
    } | more  # fmt: skip


# -- rows --------------------------------------------------------------------------------------------------------


def test_rows_keep_what_waits_apart(room):
    rows = {e["student"]: e for e in report.rows(room, "small")}
    numbers = {
        s: (e["earned"], e["available"], e["waiting"], e["recorded"]) for s, e in rows.items() if e["graded"]
    }
    assert numbers == {
        "ada": (5.0, 5.0, 0.0, 5.0), "bob": (2.0, 5.0, 0.0, 2.0), "cyd": (0.0, 0.0, 5.0, 0.0), "eve": (3.0, 3.0, 2.0, 3.0),
    }  # fmt: skip
    assert not rows["dan"]["graded"]
    assert [s for s, e in rows.items() if report.waits(e)] == ["cyd", "dan", "eve"]


def test_a_mark_by_hand_settles_what_waited_and_a_penalty_takes_no_more_than_there_is(tmp_path):
    room = make(tmp_path / "class", "ada", "bob")
    verdict(room, "ada", {STEP_CHECK: "needs_review"})
    verdict(room, "bob", {STEP_CHECK: ("failed", "", FAILED)})
    record(room, "ada", "bob")
    with room.gradebook() as gradebook:
        gradebook.find_grade(STEP_CHECK, "small", "small", "ada").manual_score = 1.5
        gradebook.find_submission_notebook("small", "small", "bob").late_submission_penalty = 4.0
        gradebook.db.commit()
    ada, bob = report.rows(room, "small")
    assert (ada["earned"], ada["available"], ada["waiting"], ada["recorded"]) == (3.5, 5.0, 0.0, 3.5)
    assert ada["checks"]["03.step"] == "by hand" and "step by hand" in shown(report.table([ada], "small"))
    assert bob["recorded"] == 0.0 and not report.waits(ada)


def test_a_score_that_the_gradebook_does_not_have_yet_is_not_settled(tmp_path):
    room = make(tmp_path / "class", "ada")
    verdict(room, "ada", {})
    (ada,) = report.rows(room, "small")
    assert ada["recorded"] is None and report.waits(ada)
    record(room, "ada")
    assert report.rows(room, "small")[0]["recorded"] == 5.0
    verdict(room, "ada", {STEP_CHECK: ("failed", "", FAILED)})  # graded again, and not recorded
    (ada,) = report.rows(room, "small")
    assert ada["earned"] == 2.0 and ada["recorded"] is None and report.waits(ada)


# -- tables ------------------------------------------------------------------------------------------------------


def test_failures_say_on_which_check_how_many_are_stuck_and_what_most_of_them_did():
    entries = [
        entry("a", ["passed", "failed", "failed"], reasons={"a.2": "scale", "a.3": "mask"}),
        entry("b", ["passed", "failed", "passed"], reasons={"a.2": "mask"}),
        entry("c", ["failed", "failed", "not_run"], reasons={"a.1": "empty", "a.2": "scale"}),
        entry("d", ["needs_review", "by hand", "infrastructure_error"]),
        {"student": "e", "assignment": "a", "graded": False, "recorded": None},
    ]
    found = report.failures(entries)
    counts = [(f["check"], f["passed"], f["failed"], f["waiting"], f["by_hand"], f["first"]) for f in found]
    assert counts == [("a.1", 2, 1, 1, 0, 1), ("a.2", 0, 3, 0, 1, 2), ("a.3", 1, 1, 2, 0, 0)]
    assert (found[1]["reason"], found[1]["reason_count"]) == ("scale", 2)
    assert "100 %" in shown(report.failure_table(entries))
    assert report.failure_table(entries[-1:]) is None


def test_the_reason_is_the_hints_first_sentence_or_the_message_without_its_numbers(room):
    rows = {e["student"]: e for e in report.rows(room, "small")}
    assert rows["bob"]["reasons"] == {"03.step": HINT.split(". ")[0] + "."}
    cell = {"cases": [{"passed": False, "hint": None, "message": "o has shape (3, 17)"}], "message": ""}
    assert report._reason(cell) == "o has shape (n, n)"


def test_the_histogram_counts_shares_of_what_was_judged():
    shares = [(0, 4), (1, 10), (9.99, 10), (10, 10), (12, 10)]
    entries = [entry(str(i), ["passed"], earned=e, available=a) for i, (e, a) in enumerate(shares)]
    entries.append(entry("waits", ["not_run"]))
    counted = {
        row.split("%")[0].strip(): row.split("%")[1].split()[0]
        for row in shown(report.histogram(entries)).splitlines()
        if "%" in row
    }
    assert len(counted) == 11 and {k: v for k, v in counted.items() if v != "0"} == {
        "100": "2", "90 to 99": "1", "10 to 19": "1", "0 to 9": "1",
    }  # fmt: skip
    assert report.histogram(entries[-1:]) is None


def test_hostile_text_neither_breaks_the_tables_nor_reaches_the_terminal():
    name = f"[/bold][link=file:///etc]{ESCAPE}\u202eevil\udc80"
    reasons = {"a.1": f"[/red] {ESCAPE}"}
    entries = [entry(name, ["failed", "passed"], flags=[f"[/] {ESCAPE}"], reasons=reasons)]
    text = shown(report.table(entries, "a"), report.failure_table(entries), report.histogram(entries))
    assert "[/bold][link=file:///etc]" in text.replace("\n", "")
    assert not set(text) & {"\x1b", "\x07", "\u202e", "\udc80"}


# -- files -------------------------------------------------------------------------------------------------------


def test_csv_and_json_keep_what_is_unknown_empty(room):
    rows = report.rows(room, "small")
    table = {line[0]: line for line in lines(report.as_csv(rows))}
    assert table["student"][:6] == ["student", "assignment", "earned", "available", "waiting", "recorded"]
    assert table["cyd"][2:5] == ["0.0", "0.0", "5.0"] and table["dan"][2:6] == ["", "", "", ""]
    assert table["eve"][6:8] == ["passed", "not_run"]
    assert {e["student"]: e.get("waiting") for e in json.loads(report.as_json(rows))}["eve"] == 2.0
    # What is recorded of a row that waits would read as a low score.
    assert {name: line[5] for name, line in table.items() if name != "student"} == {
        "ada": "5.0", "bob": "2.0", "cyd": "", "dan": "", "eve": "",
    }  # fmt: skip
    assert {e["student"]: e["recorded"] for e in json.loads(report.as_json(rows))} == {
        "ada": 5.0, "bob": 2.0, "cyd": None, "dan": None, "eve": None,
    }  # fmt: skip


def test_the_table_shows_a_recorded_score_that_is_not_what_was_earned():
    text = shown(report.table([entry("ada", ["passed"], recorded=0.0), entry("bob", ["passed"])], "a"))
    late, on_time = (next(line for line in text.splitlines() if name in line) for name in ("ada", "bob"))
    assert "0 recorded" in late and "recorded" not in on_time


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\x00="])
def test_a_spreadsheet_runs_no_students_text(start):
    text = start + "HYPERLINK(1)"
    rows = [
        entry(text, ["passed"], flags=[text]),
        {"student": text, "assignment": "a", "graded": False, "recorded": None},
    ]
    for line in lines(report.as_csv(rows))[1:]:
        assert not any(
            cell.lstrip(" ").startswith(tuple("=+-@\t\r\n")) for cell in line if not _is_number(cell)
        ), line

    class Person:
        first_name, last_name, email, lms_user_id = text, None, None, None

    name = lines(report.as_canvas([entry("ada", ["passed"])], {"ada": Person}))[2][0]
    assert not name.lstrip(" ").startswith(tuple("=+-@\t\r\n"))
    for shape in (
        report.as_canvas,
        report.as_moodle,
    ):  # an identifier can't be quoted: then it would be another one
        with pytest.raises(ClassError, match="HYPERLINK"):
            shape(rows[:1], {})


def _is_number(text):
    try:
        return float(text) is not None
    except ValueError:
        return False


def test_canvas_gets_its_columns_the_points_possible_and_no_line_without_a_score(room):
    # What Canvas's importer looks at: "Student" and "ID" first, both SIS columns or none, Section last before the assignments.
    head, possible, *rest = lines(report.as_canvas(report.rows(room, "small"), report.people(room)))
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "small"]
    assert "Points Possible" in possible[0] and possible[1:] == ["", "", "", "", "5"]
    assert rest == [["Lovelace, née Byron, Ada", "11", "", "ada", "", "5"], ["'=1+1", "", "", "bob", "", "2"]]


def test_moodle_gets_identifiers_that_all_have_and_a_dash_for_no_grade():
    class Ada:
        email, lms_user_id = "ada@x.org", "11"

    class Bob:
        email, lms_user_id = "bob@x.org", None

    rows = [
        entry("ada", ["passed"]),
        entry("bob", ["passed"]),
        entry("ada", ["needs_review"], assignment="b"),
        entry("bob", ["failed"], assignment="b"),
    ]
    head, *rest = lines(report.as_moodle(rows, {"ada": Ada, "bob": Bob}))
    assert head == ["username", "email address", "a", "b"]
    assert rest == [["ada", "ada@x.org", "2", "-"], ["bob", "bob@x.org", "2", "0"]]
    # Moodle gives a line whose identifier is empty to the student of the line before.
    assert lines(report.as_moodle(rows, {"ada": Ada}))[0] == ["username", "a", "b"]


def test_without_a_gpu_the_class_is_scored_out_of_what_could_be_judged():
    rows = [
        entry("ada", ["passed", "passed", "not_run"]),
        entry("bob", ["failed", "passed", "not_run"]),
        entry("cyd", ["needs_review", "needs_review", "needs_review"]),
        entry("dan", ["passed", "infrastructure_error", "not_run"]),
        entry("eve", ["passed", "passed", "by hand"]),
        entry("fay", ["passed", "passed", "not_run"], recorded=4.0) | {"recorded": None},
    ]
    assert report.exportable(rows) == {"a": (4.0, {"ada": 4.0, "bob": 2.0})}
    # Once one was judged on a GPU, it counts for all, and those who wait for it have no score.
    rows.append(entry("gus", ["passed", "passed", "failed"]))
    assert report.exportable(rows) == {"a": (6.0, {"eve": 6.0, "gus": 4.0})}


@pytest.mark.parametrize("option", ["--csv", "--json", "--canvas", "--moodle"])
def test_no_file_of_grades_is_written_while_any_wait(room, tmp_path, option):
    refused = run("report", "--class", room.folder, option, tmp_path / "out")
    assert (
        refused.exit_code == cli.WAITING
        and "3 of 5 rows" in refused.output
        and not (tmp_path / "out").exists()
    )
    written = run("report", "--class", room.folder, option, tmp_path / "out", "--partial")
    assert written.exit_code == 0, written.output
    text = (tmp_path / "out").read_text()
    assert "ada" in text
    if option in ("--canvas", "--moodle"):
        assert "2 of 5 students have a score, out of 5 points" in written.output
        assert not any(name in text for name in ("cyd", "dan", "eve"))


@pytest.mark.parametrize("option", ["--csv", "--json", "--canvas", "--moodle", "--audit"])
@pytest.mark.parametrize("place", ["none/out", "."], ids=["no such folder", "a folder"])
def test_a_place_that_cannot_be_written_is_named(room, tmp_path, option, place):
    failed = run("report", "--class", room.folder, "--partial", option, tmp_path / place)
    assert failed.exit_code == cli.FAILED and f"{tmp_path / place} can't be written" in failed.output


def test_a_reader_that_stops_costs_no_file(room, tmp_path):
    """As in `autograder report ... | head -1`."""
    options = ["--class", room.folder, "--partial", "--csv", tmp_path / "out.csv", "--audit", tmp_path / "audit.json"]
    command = [sys.executable, "-B", "-m", "autograder.cli", "report", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert "ada" in (tmp_path / "out.csv").read_text() and "ada" in (tmp_path / "audit.json").read_text()


# -- the audit trail ---------------------------------------------------------------------------------------------


def test_the_audit_trail_says_for_every_score_what_it_rests_on_and_keeps_older_ones(tmp_path):
    room = make(tmp_path / "class", "ada", "bob")
    old = verdict(room, "ada", {MASKED_CHECK: ("failed", "", FAILED)}, made="2026-02-01T00:00:00Z")
    room.submit("small", "ada", submission(extra="# a second try"))
    flags = ["=cmd()", "and [another]"]
    verdict(
        room,
        "ada",
        {MASKED_CHECK: "not_run"},
        flags=flags,
        interruptions=[{"cell": "own", "reason": "x", "by": ""}],
    )
    verdict(room, "bob", {}, gpu=True)
    written = run("report", "--class", room.folder, "--audit", tmp_path / "audit.csv")
    assert written.exit_code == 0, written.output  # it is a record of what waits, too: never refused
    text = (tmp_path / "audit.csv").read_text()
    trail = list(csv.DictReader(io.StringIO(text)))
    assert [(r["student"], r["check"], r["status"], r["earned"], r["in use"]) for r in trail] == [
        ("ada", "03.step", "passed", "3.0", "yes"),
        ("ada", "03.step.masked", "not_run", "", "yes"),
        ("ada", "03.step", "passed", "3.0", "no"),
        ("ada", "03.step.masked", "failed", "0.0", "no"),
        ("bob", "03.step", "passed", "3.0", "yes"),
        ("bob", "03.step.masked", "passed", "2.0", "yes"),
    ]
    assert trail[0]["flags"] == "'=cmd(); and [another]" and trail[0]["interruptions"] == "1"
    assert (trail[4]["card"], trail[4]["torch"], trail[4]["rung"]) == ("NVIDIA Test", "2.13.0", "gpu")
    assert trail[2]["record"].startswith(old["key"]) and trail[2]["made"] == "2026-02-01T00:00:00Z"
    assert trail[0]["seed id"] == old["seed_id"] and room.seed("small").hex() not in text
    assert {r["seconds"] for r in trail} == {"0.25"}


def test_a_verdict_that_cannot_be_read_is_named(tmp_path):
    room = make(tmp_path / "class", "ada")
    verdict(room, "ada", {})
    (path,) = room.folder.glob(".autograder/verdicts/small/ada/*.json")
    path.with_name("0-cpu.json").write_text("{")
    with pytest.raises(ClassError, match="0-cpu.json is not a verdict"):
        report.as_audit(room, ["small"])


def test_the_class_that_these_tests_use_is_one_that_the_judge_could_have_made(room):
    """`graded_class.verdict` must not drift from what `judge.grade` writes."""
    from autograder import judge

    job = room.job("small", "dan")
    real = judge.grade(
        job.__class__(
            **(job.__dict__ | {"submission": "/nowhere/at/all.ipynb", "stem": str(room.folder / "x")})
        )
    )
    made = graded_class.verdict(room, "dan", {})
    assert set(made) <= set(real) and set(made["cells"][STEP_CHECK]) == set(real["cells"][STEP_CHECK])
    next(room.folder.glob(".autograder/verdicts/small/dan/*.json")).unlink()
