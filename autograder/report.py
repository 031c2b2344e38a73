"""What a class's verdicts say: a table for the terminal, CSV and JSON."""

import csv
import io
import json

from rich.table import Table
from rich.text import Text

from autograder.judge import WAITING

_WORD = {"failed": "", "needs_review": " review", "infrastructure_error": " error"}


def rows(classroom, assignment):
    """One dict a student: scores in points, with what could not be scored kept apart.

    `earned` of `available` points were judged; `waiting` points were not (no GPU, a person must look, our own fault).
    `recorded` is nbgrader's score, manual marks and late penalties included, or None before it was recorded.
    """
    out = []
    with classroom.gradebook() as gradebook:
        recorded = {}
        if any(a.name == assignment for a in gradebook.assignments):
            recorded = {s.student.id: s.score - s.late_submission_penalty for s in gradebook.assignment_submissions(assignment)}
    for student in classroom.students(assignment):
        found = classroom.verdict(assignment, student)
        if found is None:
            out.append({"student": student, "assignment": assignment, "graded": False, "recorded": recorded.get(student)})
            continue
        verdict = found[0]
        cells = verdict["cells"].values()
        waiting = [c for c in cells if c["status"] in WAITING]
        out.append(
            {
                "student": student,
                "assignment": assignment,
                "graded": True,
                "earned": sum((c["earned"] for c in cells), 0.0),
                "available": sum((c["points"] for c in cells if c["status"] not in WAITING), 0.0),
                "waiting": sum((c["points"] for c in waiting), 0.0),
                "recorded": recorded.get(student),
                "checks": {c["check"]: c["status"] for c in cells},
                "flags": verdict["flags"],
                "seconds": verdict["seconds"],
                "machine": verdict["machine"],
                "rung": verdict["rung"],
            }
        )
    return out


def table(entries, title):
    """A rich table of `rows`: a column for each check, the failing ones standing out by word and colour."""
    checks = list(dict.fromkeys(c for e in entries if e["graded"] for c in e["checks"]))
    prefix = checks[0].split(".")[0] + "." if checks else ""
    if not all(c.startswith(prefix) for c in checks):
        prefix = ""
    out = Table(title=title, title_justify="left")
    out.add_column("student", overflow="fold")
    out.add_column("points", justify="right", no_wrap=True)
    out.add_column("waits", justify="right", no_wrap=True)
    out.add_column("not passed")
    out.add_column("flags", overflow="fold")
    for e in entries:
        if not e["graded"]:
            out.add_row(e["student"], "-", "-", "not graded yet", "")
            continue
        lost = Text()
        judged = {name: status for name, status in e["checks"].items() if status != "not_run"}  # `waits` counts those
        if set(judged.values()) == {"failed"}:
            lost.append("all")
            judged = {}
        for name, status in judged.items():
            if status != "passed":
                lost.append((", " if lost else "") + name.removeprefix(prefix))
                lost.append(_WORD[status], style="yellow")
        flags = "; ".join(e["flags"])
        out.add_row(
            e["student"],
            f"{e['earned']:g} / {e['available']:g}",
            f"{e['waiting']:g}",
            lost,
            flags if len(flags) <= 120 else flags[:117] + "...",
        )
    return out


def as_csv(entries):
    """The rows as CSV text, one line a student and one column a check."""
    checks = list(dict.fromkeys(c for e in entries if e["graded"] for c in e["checks"]))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["student", "assignment", "earned", "available", "waiting", "recorded", *checks, "flags"])
    for e in entries:
        if e["graded"]:
            values = [e["earned"], e["available"], e["waiting"], e["recorded"]]
            writer.writerow(
                [_plain(e["student"]), e["assignment"], *values, *(e["checks"].get(c, "") for c in checks),
                 _plain("; ".join(e["flags"]))]
            )  # fmt: skip
        else:
            writer.writerow([_plain(e["student"]), e["assignment"], "", "", "", e["recorded"], *("" for _ in checks), "not graded"])
    return buffer.getvalue()


def _plain(text):
    # A spreadsheet runs what starts with one of these as a formula, and students choose such text.
    return "'" + text if text.startswith(tuple("=+-@\t\r")) else text


def as_json(entries):
    """The rows as JSON text."""
    return json.dumps(entries, indent=1)
