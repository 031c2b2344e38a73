"""What a class's verdicts say: tables for the terminal; CSV, JSON and the shapes of Canvas and Moodle; the audit trail.

A score that is waiting is never written as a zero. A student's text (names, messages, flags) is never trusted: what a
terminal, a spreadsheet or rich would act on is taken out or quoted.
"""

import csv
import io
import json
import re
import unicodedata
from collections import Counter

from rich import box
from rich.table import Table
from rich.text import Text

from autograder.classroom import ClassError
from autograder.judge import WAITING

_WORD = {
    "failed": "",
    "needs_review": " review",
    "infrastructure_error": " error",
    "not_run": " waits",
    "by hand": " by hand",
}
_FORMULA = tuple("=+-@\t\r\n")
VERSIONS = ("python", "numpy", "torch", "triton")


# ---------------------------------------------------------------------------------------------------------------
# Reading the class


def rows(classroom, assignment):
    """One dict a student: scores in points, with what could not be scored kept apart.

    `earned` of `available` points were judged, by a check or by hand; `waiting` points were not (no GPU, a person must
    look, our own fault). `recorded` is nbgrader's score, late penalty and extra credit included, or None while the
    gradebook does not have this verdict.
    """
    totals, marks = _gradebook(classroom, assignment)
    out = []
    for student in classroom.students(assignment):
        found = classroom.verdict(assignment, student)
        entry = {"student": student, "assignment": assignment, "graded": found is not None, "recorded": None}
        out.append(entry)
        if found is None:
            continue
        verdict, mine = found[0], marks.get(student, {})
        cells = verdict["cells"]
        by_hand = {name: manual for name, (_, manual) in mine.items() if name in cells and manual is not None}
        entry |= {
            "earned": float(sum(by_hand.get(name, c["earned"]) for name, c in cells.items())),
            "available": sum(
                (c["points"] for n, c in cells.items() if n in by_hand or c["status"] not in WAITING), 0.0
            ),
            "waiting": sum(
                (c["points"] for n, c in cells.items() if n not in by_hand and c["status"] in WAITING), 0.0
            ),
            "checks": {
                c["check"]: "by hand" if name in by_hand else c["status"] for name, c in cells.items()
            },
            "points": {c["check"]: c["points"] for c in cells.values()},
            "reasons": {c["check"]: _reason(c) for c in cells.values() if c["status"] == "failed"},
            "flags": verdict["flags"],
            "seconds": verdict["seconds"],
            "machine": verdict["machine"],
            "rung": verdict["rung"],
        }
        auto = {name: c["earned"] if c["status"] not in WAITING else None for name, c in cells.items()}
        if all(name in mine and mine[name][0] == score for name, score in auto.items()):
            entry["recorded"] = totals[student]
    return out


def _gradebook(classroom, assignment):
    """student -> score; and student -> {grade_id: (auto_score, manual_score)}."""
    from nbgrader.api import Assignment, BaseCell, Grade, SubmittedAssignment, SubmittedNotebook

    totals, marks = {}, {}
    with classroom.gradebook() as gradebook:
        if any(a.name == assignment for a in gradebook.assignments):
            for submission in gradebook.assignment_submissions(assignment):
                # As nbgrader's own export: a penalty takes away what there is, and no more.
                totals[submission.student_id] = max(
                    0.0, submission.score - submission.late_submission_penalty
                )
            found = (
                gradebook.db.query(
                    SubmittedAssignment.student_id, BaseCell.name, Grade.auto_score, Grade.manual_score
                )
                .select_from(Grade)
                .join(BaseCell, Grade.cell_id == BaseCell.id)
                .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
                .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
                .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
                .filter(Assignment.name == assignment)
            )
            for student, name, auto, manual in found:
                marks.setdefault(student, {})[name] = (auto, manual)
    return totals, marks


def _reason(cell):
    """Why a cell failed, in words that are the same for all who made the same mistake."""
    failed = next((c for c in cell["cases"] if c["passed"] is False), {})
    if failed.get("hint"):
        return re.split(r"(?<=[.?!]) ", failed["hint"])[0]
    return re.sub(r"\d+", "n", printable(failed.get("message") or cell["message"]))[:120]


def waits(entry):
    """Whether something of this row is not settled: ungraded, waiting, or not in the gradebook."""
    return not entry["graded"] or entry["waiting"] > 0 or entry["recorded"] is None


# ---------------------------------------------------------------------------------------------------------------
# For the terminal


def printable(text):
    """`text` without what a terminal acts on: control characters, lone surrogates, marks that turn the reading order."""
    return "".join(
        " "
        if unicodedata.category(c) in ("Cc", "Cs") or "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069"
        else c
        for c in text
    )


def _text(text, longest=120):
    text = printable(text)
    return Text(text if len(text) <= longest else text[: longest - 3] + "...")


def _checks(entries):
    """Names of all checks, in the order of the notebook."""
    return list(dict.fromkeys(c for e in entries if e["graded"] for c in e["checks"]))


def _prefix(names):
    prefix = names[0].split(".")[0] + "." if names else ""
    return prefix if all(n.startswith(prefix) for n in names) else ""


def table(entries, title):
    """A rich table of `rows`: what each student earned, and the checks that did not pass, by word and colour."""
    prefix = _prefix(_checks(entries))
    out = Table(title=title, title_justify="left")
    out.add_column("student", overflow="fold")
    out.add_column("points", justify="right", no_wrap=True)
    out.add_column("waits", justify="right", no_wrap=True)
    out.add_column("not passed")
    out.add_column("flags", overflow="fold")
    for e in entries:
        if not e["graded"]:
            out.add_row(_text(e["student"]), "-", "-", "not graded yet", "")
            continue
        lost = Text()
        judged = {
            name: status for name, status in e["checks"].items() if status != "not_run"
        }  # `waits` counts those
        if len(statuses := set(judged.values())) == 1 and statuses != {"passed"}:
            lost.append("all")
            lost.append(_WORD[statuses.pop()], style="yellow")
            judged = {}
        for name, status in judged.items():
            if status != "passed":
                lost.append((", " if lost else "") + name.removeprefix(prefix))
                lost.append(_WORD[status], style="yellow")
        points = f"{e['earned']:g} / {e['available']:g}"
        if e["recorded"] not in (None, e["earned"]):  # late, or extra credit
            points += f", {e['recorded']:g} recorded"
        out.add_row(_text(e["student"]), points, f"{e['waiting']:g}", lost, _text("; ".join(e["flags"])))
    return out


def histogram(entries):
    """A rich table: how many students earned which share of the points that were judged; None when no one has any."""
    shares = [100 * e["earned"] / e["available"] for e in entries if e["graded"] and e["available"]]
    if not shares:
        return None
    counts = Counter(
        min(max(int(share // 10), 0), 10) for share in shares
    )  # extra marks by hand may go past 100 %
    out = Table(title="Share of the points that were judged", title_justify="left", box=None, padding=(0, 1))
    out.add_column("", justify="right", no_wrap=True)
    out.add_column("students", justify="right")
    out.add_column("", no_wrap=True)
    widest = max(counts.values())
    for tens in range(10, -1, -1):
        label = "100 %" if tens == 10 else f"{10 * tens} to {10 * tens + 9} %"
        out.add_row(label, str(counts[tens]), "█" * -(-40 * counts[tens] // widest))
    return out


def failures(entries):
    """For each check, in order, a dict: how many passed, failed, wait; how many fail it first; the commonest reason.

    `first` counts the students for whom this is the first check that failed: the step that they are stuck on.
    """
    graded = [e for e in entries if e["graded"]]
    firsts = Counter(
        next((c for c, status in e["checks"].items() if status == "failed"), None) for e in graded
    )
    out = []
    for name in _checks(entries):
        statuses = Counter(e["checks"][name] for e in graded if name in e["checks"])
        reasons = Counter(e["reasons"][name] for e in graded if e["checks"].get(name) == "failed")
        reason, count = reasons.most_common(1)[0] if reasons else ("", 0)
        out.append(
            {
                "check": name,
                "passed": statuses["passed"],
                "failed": statuses["failed"],
                "waiting": sum(statuses[s] for s in WAITING),
                "by_hand": statuses["by hand"],
                "first": firsts[name],
                "reason": reason,
                "reason_count": count,
            }
        )
    return out


def failure_table(entries):
    """`failures` as a rich table; None when nothing was graded."""
    found = failures(entries)
    if not found:
        return None
    prefix = _prefix([f["check"] for f in found])
    out = Table(title="Where the class is stuck", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    out.collapse_padding = True
    for name in ("check", "passed", "failed", "", "wait", "stuck"):
        out.add_column(name, justify="left" if name == "check" else "right", no_wrap=True)
    out.add_column("the commonest reason")
    stuck = max(f["first"] for f in found)
    for f in found:
        judged = f["passed"] + f["failed"]
        rate = f"{100 * f['failed'] / judged:.0f} %" if judged else ""
        reason = _text(f["reason"], 70)
        if f["reason_count"] > 1:
            reason = Text(f"{f['reason_count']} x ") + reason
        first = Text(str(f["first"] or ""), style="bold yellow" if f["first"] == stuck else "")
        counts = (str(f["passed"]), str(f["failed"]), rate, str(f["waiting"] or ""))
        out.add_row(f["check"].removeprefix(prefix), *counts, first, reason)
    return out


# ---------------------------------------------------------------------------------------------------------------
# Files


def _csv(lines):
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _plain(text):
    """For a cell that people read. A spreadsheet runs what starts with one of these, and students choose such text."""
    text = printable(text)
    return "'" + text if text.lstrip(" ").startswith(_FORMULA) else text


def as_csv(entries):
    """The rows as CSV text, one line a student and one column a check."""
    names = _checks(entries)
    lines = [["student", "assignment", "earned", "available", "waiting", "recorded", *names, "flags"]]
    for e in _settled(entries):
        line = [_plain(e["student"]), e["assignment"]]
        if e["graded"]:
            line += [
                e["earned"],
                e["available"],
                e["waiting"],
                e["recorded"],
                *(e["checks"].get(n, "") for n in names),
            ]
            line.append(_plain("; ".join(e["flags"])))
        else:
            line += ["", "", "", e["recorded"], *("" for _ in names), "not graded"]
        lines.append(line)
    return _csv(lines)


def as_json(entries):
    """The rows as JSON text."""
    return json.dumps(_settled(entries), indent=1)


def _settled(entries):
    """The entries; `recorded` only where the score could go to a learning platform: what waits must not read as lost."""
    final = exportable(entries)
    return [e | {"recorded": final[e["assignment"]][1].get(e["student"])} for e in entries]


def exportable(entries):
    """What may go to a learning platform: assignment -> (points possible, {student: score}).

    A row with anything waiting has no score, with one exception: checks that wait for a GPU in the whole class are left out
    of the points possible, so that a class without a GPU is scored out of what it could be judged on.
    """
    out = {}
    for assignment in dict.fromkeys(e["assignment"] for e in entries):
        graded = [e for e in entries if e["assignment"] == assignment and e["graded"]]
        points = {name: p for e in graded for name, p in e["points"].items()}
        statuses = {name: {e["checks"].get(name) for e in graded} for name in points}
        nowhere = {
            name
            for name, found in statuses.items()
            if "not_run" in found and not found & {"passed", "failed"}
        }
        possible = sum(p for name, p in points.items() if name not in nowhere)
        scores = {
            e["student"]: e["recorded"]
            for e in graded
            if e["recorded"] is not None
            and {n for n, status in e["checks"].items() if status in WAITING} == nowhere
        }
        out[assignment] = (possible, scores)
    return out


def _number(value):
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _identifier(text):
    """An identifier has to be exact, so it can't be quoted as `_plain` does."""
    if _plain(text) != text:
        raise ClassError(
            f"{text!r} can't be exported: a spreadsheet would run it or it holds control characters; rename the student"
        )
    return text


def as_canvas(entries, people):
    """The scores as Canvas's gradebook import wants them: its five columns about the student, then one an assignment.

    Canvas finds a student by ID, else by SIS Login ID (our folder name), else by name; an assignment by "title (id)" or by
    its title alone. An empty cell is no grade; a student without any score has no line.

    Args:
        entries: from `rows`, of one or more assignments.
        people: student -> nbgrader's `Student` (names and `lms_user_id`, the ID in Canvas), as far as they are known.
    """
    found = exportable(entries)
    lines = [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *found],
        ["    Points Possible", "", "", "", "", *(_number(possible) for possible, _ in found.values())],
    ]
    for student in sorted({s for _, scores in found.values() for s in scores}):
        person = people.get(student)
        names = [getattr(person, "last_name", None), getattr(person, "first_name", None)]
        name = ", ".join(n for n in names if n) or student
        scores = (scores.get(student) for _, scores in found.values())
        number = _identifier(getattr(person, "lms_user_id", None) or "")
        lines.append(
            [
                _plain(name),
                number,
                "",
                _identifier(student),
                "",
                *("" if s is None else _number(s) for s in scores),
            ]
        )
    return _csv(lines)


def as_moodle(entries, people):
    """The scores as Moodle's CSV import takes them: identifiers, then one column an assignment.

    The importer asks which column identifies the student, and gives a line whose identifier is empty to the student of the
    line before; so `email address` and `ID number` are there only if all have one. "-" is no grade: it takes an empty cell
    of a new grade item for a grade.

    Args: as `as_canvas`.
    """
    found = exportable(entries)
    students = sorted({s for _, scores in found.values() for s in scores})
    columns = {"username": {s: s for s in students}}
    for head, attribute in (("email address", "email"), ("ID number", "lms_user_id")):
        values = {s: getattr(people.get(s), attribute, None) for s in students}
        if students and all(values.values()):
            columns[head] = values
    lines = [[*columns, *found]]
    for student in students:
        scores = (scores.get(student) for _, scores in found.values())
        identifiers = (_identifier(values[student]) for values in columns.values())
        lines.append([*identifiers, *("-" if s is None else _number(s) for s in scores)])
    return _csv(lines)


def people(classroom):
    """student -> nbgrader's `Student`, with the names and numbers that a roster gave."""
    with classroom.gradebook() as gradebook:
        found = {s.id: s for s in gradebook.students}
        gradebook.db.expunge_all()
    return found


def as_audit(classroom, assignments):
    """The audit trail as CSV text: one line for each score of every verdict that was ever kept, the newest first.

    `in use` says which verdict is that of the submission as it is now; `interruptions`, how often a process was lost and its
    cells run again. A score that waits is empty.
    """
    lines = [
        ["student", "assignment", "check", "status", "earned", "points", "seconds", "card", *VERSIONS, "seed id", "rung",
         "made", "flags", "interruptions", "record", "in use"]
    ]  # fmt: skip
    for assignment in assignments:
        folder = classroom.folder / ".autograder" / "verdicts" / assignment
        present = set(classroom.students(assignment))
        for student in sorted(p.name for p in folder.glob("*") if p.is_dir()):
            found = classroom.verdict(assignment, student) if student in present else None
            now = f"{found[0]['key']}-{found[0]['rung']}" if found else None
            history = [_verdict(path) for path in (folder / student).glob("*.json")]
            for verdict in sorted(history, key=lambda v: v["made"], reverse=True):
                record = f"{verdict['key']}-{verdict['rung']}"
                for cell in verdict["cells"].values():
                    machine = verdict["machine"]
                    lines.append([
                        _plain(student), assignment, cell["check"], cell["status"],
                        "" if cell["status"] in WAITING else cell["earned"], cell["points"], cell["seconds"],
                        machine.get("card") or "", *(machine.get(v) or "" for v in VERSIONS), verdict["seed_id"],
                        verdict["rung"], verdict["made"], _plain("; ".join(verdict["flags"])), len(verdict.get("interruptions", ())),
                        record, "yes" if record == now else "no",
                    ])  # fmt: skip
    return _csv(lines)


def _verdict(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ClassError(
            f"{path} is not a verdict ({error}); delete it and run `autograder grade` again"
        ) from None
