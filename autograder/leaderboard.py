"""Who wrote the fastest kernel: speeds that were measured while grading, under the names that students chose to show.

A cell of a verdict from a GPU may hold `speed`, a list with one dict for each timed case:

    {"case": "...", "seconds": 1.9e-4, "plain_seconds": 6.1e-4, "floor_seconds": 0.8e-4}

- `seconds`: median of repeated launches of the student's kernel, by the clean driver, with a device-wide synchronisation;
- `plain_seconds`: the same for its yardstick, in the same process, right beside it. For a kernel whose cost is its traffic that
  is a copy of as many bytes on the card;
- `floor_seconds`: the least that the card can need: the bytes that must move over its bandwidth, or the operations over
  its peak rate, whichever is longer.

The speed is the ratio `plain_seconds / seconds`, so that a slow or shared card costs no one a place; over several cases, the
geometric mean. A time on a CPU or in the interpreter is no speed. Only checks that passed count, and cards are ranked apart.

Names are opt-in: the class's `.autograder/leaderboard.csv` has a line `student,name` for each student who wants to be shown.
"""

import csv
import html
import math
import random
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from autograder.classroom import ClassError
from autograder.report import printable

OPT_IN = ".autograder/leaderboard.csv"
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Speed:
    """One student's speed at one check. `problem` says why it can't be believed; then it has no place."""

    student: str
    check: str
    card: str
    ratio: float
    problem: str = ""


def speeds(classroom, assignment):
    """Every measured `Speed` of the class, fastest first."""
    out = []
    for student in classroom.students(assignment):
        found = classroom.verdict(assignment, student)
        if found is None or found[0]["rung"] != "gpu":
            continue
        for cell in found[0]["cells"].values():
            if cell["status"] == "passed" and cell.get("speed"):
                out.append(
                    _speed(
                        student, cell["check"], found[0]["machine"]["card"] or "unknown card", cell["speed"]
                    )
                )
    return sorted(out, key=lambda s: -s.ratio)


def _speed(student, check, card, cases):
    for case in cases:
        seconds, plain, floor = (case[key] for key in ("seconds", "plain_seconds", "floor_seconds"))
        if not all(math.isfinite(value) and value > 0 for value in (seconds, plain, floor)):
            return Speed(
                student, check, card, 0.0, f"{case['case']}: {seconds:g} s against {plain:g} s was measured"
            )
        if seconds < floor:
            problem = (
                f"{case['case']}: {1e6 * seconds:.3g} µs, and the card needs at least {1e6 * floor:.3g} µs"
            )
            return Speed(student, check, card, 0.0, problem)
    logs = [math.log(case["plain_seconds"] / case["seconds"]) for case in cases]
    return Speed(student, check, card, math.exp(sum(logs) / len(logs)))


def opted_in(classroom):
    """student -> the name to show, from the class's opt-in file; empty when there is none.

    Raises:
        ClassError: the file is not a CSV file with the columns student and name, or a name in it is empty.
    """
    path = classroom.folder / OPT_IN
    if not path.exists():
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        head = reader.fieldnames or []
        if not {"student", "name"} <= set(head):
            raise ClassError(f"{path}: the first line should be `student,name`, but is {','.join(head)!r}")
        names = {}
        for line in reader:
            name = " ".join(printable(line["name"] or "").split())[:_LONGEST_NAME]
            if not line["student"] or not name:
                raise ClassError(f"{path}, line {reader.line_num}: a student and a name are needed")
            names[line["student"]] = name
    return names


def boards(found, names, anonymous=False):
    """What may be shown: (check, card) -> list of (place, name, ratio).

    Args:
        found: from `speeds`.
        names: from `opted_in`; who is not in it is left out.
        anonymous: show them as well, as "anonymous N" with a number drawn for this call.
    """
    others = sorted({s.student for s in found} - names.keys())
    if anonymous:
        numbers = random.SystemRandom().sample(range(1, 10 * len(others) + 1), len(others))
        names = names | {student: f"anonymous {n}" for student, n in zip(others, numbers, strict=True)}
    out = {}
    for speed in found:
        if speed.student in names and not speed.problem:
            board = out.setdefault((speed.check, speed.card), [])
            board.append((len(board) + 1, names[speed.student], speed.ratio))
    return out


def table(check, card, board):
    """One board as a rich table."""
    out = Table(title=Text(printable(f"{check} on {card}")), title_justify="left")
    for name in ("place", "name", "times as fast as its yardstick"):
        out.add_column(name, justify="left" if name == "name" else "right")
    for place, name, ratio in board:
        out.add_row(str(place), Text(name), f"{ratio:.2f}")
    return out


def as_html(assignment, found):
    """All boards as a page that stands alone: names that were opted in, and nothing else of anyone."""
    from autograder.feedback import style

    parts = []
    for (check, card), board in found.items():
        lines = "".join(
            f"<tr><td>{place}</td><td>{html.escape(name)}</td><td>{ratio:.2f}</td></tr>"
            for place, name, ratio in board
        )
        parts.append(
            f"<h2>{html.escape(check)} on {html.escape(card)}</h2><table><thead><tr><th scope=col>place</th>"
            f"<th scope=col>name</th><th scope=col>ratio</th></tr></thead><tbody>{lines}</tbody></table>"
        )
    return _PAGE.format(title=html.escape(f"Leaderboard: {assignment}"), style=style(), boards="".join(parts))


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
body {{ max-width: 42rem; margin: 0 auto; padding: 1.5rem 1.2rem; background: var(--ft-ground); color: var(--ft-ink);
  font: 1rem/1.55 system-ui, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ padding: .35rem .8rem; text-align: left; border-bottom: 1px solid var(--ft-line); }}
:is(th, td):is(:first-child, :last-child) {{ text-align: right; width: 5rem; white-space: nowrap; }}
</style></head>
<body><main><h1>{title}</h1>
<p>The ratio says how many times as fast as its yardstick, measured beside it on the same card, a kernel ran: the geometric
mean over the timed cases. The yardstick of a kernel that moves memory is a copy of as many bytes. Differences of a few per
cent are noise.</p>
{boards}</main></body></html>
"""
