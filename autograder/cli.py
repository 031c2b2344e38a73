"""The command line: a class from the release of its exercises to the grades, one command a step."""

import contextlib
import datetime
import importlib.metadata
import platform
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autograder.sandbox import CudaUnavailable, SandboxUnavailable, gpu_nodes
from autograder.sandbox import doctor as try_sandbox

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown",
                  pretty_exceptions_show_locals=False, help=__doc__.split("\n")[0])  # fmt: skip
out = Console()

OK, FAILED, NO_SANDBOX, WAITING = 0, 1, 3, 4
ClassOption = Annotated[Path, typer.Option("--class", help="The class folder (nbgrader's course root).")]
RosterOption = Annotated[
    Path | None,
    typer.Option(help="A CSV file of the students: nbgrader's, Moodle's or Canvas's. Names and addresses go to nbgrader's gradebook."),
]


def _classroom(folder):
    from autograder.classroom import Classroom

    classroom = Classroom(folder)
    classroom.require()
    return classroom


def _fail(message, code=FAILED):
    typer.echo(f"autograder: {message}", err=True)
    raise typer.Exit(code)


def _write(path, text):
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _fail(f"{path} can't be written: {error.strerror}")


@app.command(epilog="Exit codes: 0 all well; 1 something is missing; 3 no sandbox can be had here, or none that can use the GPU.\n\n"
                    "Example: `autograder doctor`, `autograder doctor --sandbox` (only that, quietly).")  # fmt: skip
def doctor(sandbox: Annotated[bool, typer.Option("--sandbox", help="Try the sandbox only.")] = False):
    """Look at this machine: Python, torch, triton, GPU, sandbox; say how to mend what is missing."""
    code = OK

    def line(good, what, fix=""):
        nonlocal code
        if not good:
            code = max(code, FAILED)
        text = f"{'ok  ' if good else 'FIX '} {what}"
        if fix and not good:
            text += "".join(f"\n     {row}" for row in fix.splitlines())
        out.print(text, highlight=False, markup=False, soft_wrap=True)  # commands in it are there to be copied

    gpu = bool(gpu_nodes())
    if not sandbox:
        line((3, 11) <= sys.version_info[:2] <= (3, 13), f"Python {platform.python_version()}", "Python 3.11, 3.12 or 3.13 is needed")
        for name in ("numpy", "torch", "triton", "nbgrader"):
            try:
                line(True, f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                where = "Triton has builds for Linux only: use the dev container, WSL or Colab" if name == "triton" else f"pip install {name}"
                line(False, f"{name} is missing", where)
        if gpu:
            import torch

            line(torch.cuda.is_available(), f"GPU nodes {', '.join(gpu_nodes())}", "torch sees no GPU: a CPU build of torch, or no driver")
        else:
            out.print("ok   no GPU: kernels run under Triton's interpreter; GPU-only checks wait", highlight=False)
    try:
        line(True, f"sandbox: {try_sandbox(gpu)}")
    except SandboxUnavailable as error:
        line(False, "the sandbox has no CUDA" if isinstance(error, CudaUnavailable) else "no sandbox can be had here", str(error))
        code = NO_SANDBOX
    raise typer.Exit(code)


@app.command(epilog="Example: `autograder new class/2026`; then put notebooks at submitted/STUDENT/ASSIGNMENT/ in it.")
def new(
    folder: Annotated[Path, typer.Argument(help="Where the class goes; a new or empty folder.")],
    roster: RosterOption = None,
):
    """Make an empty class, with every exercise in its source and release folders."""
    from autograder import exercise, intake
    from autograder.classroom import Classroom

    if folder.exists() and any(folder.iterdir()):
        _fail(f"{folder} is not empty; a new class needs a new folder")
    people = intake.Roster(roster) if roster else None  # a wrong file is found before anything is made
    classroom = Classroom.create(folder)
    for name in exercise.assignments():
        classroom.add(name, exercise.load_source(name), exercise.notebook_name(name))
        out.print(f"{folder}: {name} released", highlight=False, soft_wrap=True)
    if people:
        people.fill(classroom)


@app.command(epilog="Exit codes: 0; 1 when one of them is released already (`--again` releases it anew).\n\n"
                    "Example: `autograder add --class class/2026`, `autograder add 03_flash_forward --class class/2026 --again`")  # fmt: skip
def add(
    folder: ClassOption,
    assignments: Annotated[list[str] | None, typer.Argument(metavar="[ASSIGNMENT]...", help="Default: all that it does not have.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Release anew what students have already, since it was changed.")] = False,
):
    """Release more exercises in a running class, or one of its own anew after a correction."""
    from autograder import exercise

    classroom = _classroom(folder)
    there, known = classroom.assignments(), exercise.assignments()
    names = assignments or [name for name in known if name not in there]
    for name in names:
        if name not in known:
            _fail(f"assignment {name!r} does not exist; there are: {', '.join(known)}")
        if name in there and not again:
            _fail(f"{name} is released already, and {len(classroom.students(name))} have handed it in; --again releases it anew")
    for name in names:
        classroom.add(name, exercise.load_source(name), exercise.notebook_name(name))
        out.print(f"{folder}: {name} released", highlight=False, soft_wrap=True)
    if not names:
        out.print(f"{folder} has every exercise", highlight=False, soft_wrap=True)


@app.command(epilog="Exit codes: 0; 1 when there is no such exercise, or, with `--verify`, when any outcome differs from what the "
                    "sample must score.\n\n"
                    "Example: `autograder sample class/sample --small`, then `autograder grade 03_flash_forward --class class/sample`, "
                    "then `autograder sample class/sample --verify`.")  # fmt: skip
def sample(
    folder: Annotated[Path, typer.Argument(help="Where the class goes; it is made if it isn't there.")],
    assignments: Annotated[list[str] | None, typer.Argument(metavar="[ASSIGNMENT]...", help="Default: every exercise; with --small 03 alone.")] = None,
    small: Annotated[bool, typer.Option("--small/--all", help="A handful of submissions, or every one there is.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Make nothing: compare the graded class with what it must score.")] = False,
):
    """Make a class of known submissions: reference, blank, mutants, people's, and in exercise 03 hostile and broken ones."""
    from autograder import sample as samples

    if verify:
        wrong, count = samples.verify(_classroom(folder))
        for text in wrong:
            typer.echo(text, err=True)
        if wrong:
            _fail(f"{len(wrong)} outcomes differ from what the sample must score")
        out.print(f"All {count} submissions scored exactly what they must.", highlight=False)
        return
    try:
        count = samples.make(folder, small, assignments)
    except ValueError as error:
        _fail(error)
    out.print(f"{count} submissions in {folder}/submitted", highlight=False)


@app.command(epilog="Exit codes: 0 all graded; 1 some could not be graded (`infrastructure_error`; run it again), or the class is being "
                    "graded by another process; 3 no sandbox. It may be stopped at any moment: run it again, and it goes on.\n\n"
                    "Example: `autograder grade 03_flash_forward --class class/2026 --jobs 4`")  # fmt: skip
def grade(
    assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")],
    folder: ClassOption,
    jobs: Annotated[int | None, typer.Option(min=1, help="Submissions graded at once. Default: one for each core, or each GPU.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="A running Dask scheduler, e.g. tcp://10.0.0.1:8786 or tls://...")] = None,
    cell_seconds: Annotated[float | None, typer.Option(min=1, help="Limit for one cell and one call.")] = None,
    job_seconds: Annotated[float | None, typer.Option(min=1, help="Limit for one submission, after which its worker is ended. "
                                                                  "Default: more than the other limits add up to.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Grade on the CPU even if there is a GPU.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Grade without a sandbox: student code can then read and change all you can.")] = False,
):  # fmt: skip
    """Grade every submission that has no verdict yet, then write all scores to nbgrader's gradebook."""
    from autograder import fleet
    from autograder.classroom import ClassError

    classroom = _classroom(folder)
    classroom.notebook(assignment)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(classroom.lock())
            client = stack.enter_context(fleet.remote(scheduler)) if scheduler else None
            gpu = not cpu and (fleet.has_gpu(client) if client else bool(gpu_nodes()))
            students = classroom.students(assignment)
            pending = list(classroom.pending(assignment, unsafe=unsafe, cell_seconds=cell_seconds, cpu=cpu, gpu=gpu))
            if pending and not unsafe:
                fleet.try_workers(client, gpu) if client else try_sandbox(gpu)
            if pending and not client:
                client = stack.enter_context(fleet.local(len(pending), jobs, gpu))
        except (ClassError, fleet.FleetError) as error:
            _fail(error)
        except SandboxUnavailable as error:
            _fail(f"no sandbox: {error}\n(--unsafe grades without one: only for code that you trust)", NO_SANDBOX)
        tally = fleet.Tally(len(pending))
        with _progress("grading", tally) as step:
            try:
                for _, verdict in fleet.grade_all(pending, client, tally, job_seconds):
                    step(f"{verdict['seconds']:.0f} s")
            except fleet.FleetError as error:
                _fail(error)
        broken = tally.failed
        stale = list(classroom.unrecorded(assignment))
        recording = fleet.Tally(len(stale))
        with _progress("recording", recording) as step:
            # One student's odd folder or timestamp must not keep the others' scores back.
            for student, problem in classroom.record(assignment, stale):
                recording.done += 1
                if problem:
                    broken += 1
                    recording.failed += 1
                    typer.echo(f"autograder: {student} could not be recorded: {problem}", err=True)
                step()
    out.print(f"{len(pending)} graded ({tally.retried} of them in more than one try), {len(students) - len(pending)} unchanged "
              f"since the last run; {len(stale)} recorded.", highlight=False)  # fmt: skip
    if broken:
        _fail(f"{broken} could not be graded or recorded; run the same command again")


@contextlib.contextmanager
def _progress(what, tally):
    """A function that shows `tally` as it is now: in a bar, or in lines when nobody looks at a terminal (they name nobody)."""
    columns = (TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}"),
               TimeElapsedColumn(), TextColumn("{task.fields[left]}"))  # fmt: skip
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=tally.total, counts="", left="")
        shown = 0.0

        def step(note=""):
            nonlocal shown
            named = {"running": tally.running, "failed": tally.failed, "retried": tally.retried}
            counts = ", ".join(f"{number} {name}" for name, number in named.items() if number)
            seconds = tally.seconds_left()
            left = f"about {datetime.timedelta(seconds=round(seconds))} left" if seconds else ""
            bar.update(task, completed=tally.done, counts=counts, left=left)
            # At most a line a second, and the last one.
            if not out.is_terminal and (time.monotonic() - shown > 1 or tally.done == tally.total):
                shown = time.monotonic()
                typer.echo(", ".join(filter(None, (f"{what}: {tally.done} of {tally.total}", note, counts, left))))

        yield step


@app.command(epilog="Exit codes: 0; 4 when a file of grades was refused because scores are waiting (`--partial` writes it all the same, "
                    "with no score where one waits).\n\n"
                    "Example: `autograder report --class class/2026 --canvas class/canvas.csv --audit class/audit.csv`")  # fmt: skip
def report(
    folder: ClassOption,
    assignment: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file: a line for each student, a column for each check.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the same as JSON.")] = None,
    canvas: Annotated[Path | None, typer.Option(help="Write the scores for Canvas's gradebook import.")] = None,
    moodle: Annotated[Path | None, typer.Option(help="Write the scores for Moodle's CSV import.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Write the audit trail: what each score rests on, older verdicts included.")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Write files even if some scores are waiting.")] = False,
):
    """Show the grades, their histogram and where the class is stuck; write them for a spreadsheet, Canvas or Moodle."""
    from autograder import report as reports

    classroom = _classroom(folder)
    names = [assignment] if assignment else classroom.assignments()
    found = {name: reports.rows(classroom, name) for name in names}
    everything = [entry for entries in found.values() for entry in entries]
    waiting = [e for e in everything if reports.waits(e)]
    refused = (csv or json or canvas or moodle) and waiting and not partial
    files = [(audit, lambda: reports.as_audit(classroom, names))]
    if not refused:
        files += [
            (csv, lambda: reports.as_csv(everything)),
            (json, lambda: reports.as_json(everything)),
            (canvas, lambda: reports.as_canvas(everything, reports.people(classroom))),
            (moodle, lambda: reports.as_moodle(everything, reports.people(classroom))),
        ]
    files = [(path, text) for path, text in files if path]
    for path, text in files:  # before anything is printed: whoever reads that may stop reading, as `head` does
        _write(path, text())
    for name, entries in found.items():
        if not entries:
            out.print(f"{name}: nothing was handed in", highlight=False)
            continue
        out.print(reports.table(entries, name))
        for more in (reports.failure_table(entries), reports.histogram(entries)):
            if more is not None:
                out.print(more)
    for path, _ in files:
        typer.echo(f"wrote {path}")
    if refused:
        _fail(f"{len(waiting)} of {len(everything)} rows have scores that are waiting, which are not zeros; "
              "grade them (on a GPU, or by hand), or write the file with --partial", WAITING)  # fmt: skip
    if canvas or moodle:
        for name, (possible, scores) in reports.exportable(everything).items():
            rows = sum(e["assignment"] == name for e in everything)
            typer.echo(f"{name}: {len(scores)} of {rows} students have a score, out of {possible:g} points")


@app.command(epilog="Exit codes: 0; 4 when no speed has been measured yet.\n\n"
                    "Example: `autograder leaderboard 01_memory_hierarchy --class class/2026 --html class/leaderboard.html`")  # fmt: skip
def leaderboard(
    assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")],
    folder: ClassOption,
    html: Annotated[Path | None, typer.Option(help="Write a page that can be published.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Show the others too, under numbers drawn at random.")] = False,
):
    """Rank the kernels by speed. Shows who opted in: the lines `student,name` of the class's .autograder/leaderboard.csv."""
    from autograder import leaderboard as leaderboards

    classroom = _classroom(folder)
    found = leaderboards.speeds(classroom, assignment)
    if not found:
        _fail(f"no speed has been measured for {assignment}: speeds come from graded submissions that passed a timed check on a GPU",
              WAITING)  # fmt: skip
    for speed in found:
        if speed.problem:
            typer.echo(f"for review, without a place: {speed.student}, {speed.check}: {speed.problem}", err=True)
    names = leaderboards.opted_in(classroom)
    boards = leaderboards.boards(found, names, anonymous)
    for (check, card), board in boards.items():
        out.print(leaderboards.table(check, card, board))
    hidden = len({s.student for s in found if not s.problem} - names.keys())
    if hidden and not anonymous:
        typer.echo(f"{hidden} more were measured and did not opt in ({leaderboards.OPT_IN}); --anonymous shows them without names")
    if html:
        _write(html, leaderboards.as_html(assignment, boards))
        typer.echo(f"wrote {html}")


@app.command(epilog="Exit codes: 0; 1 when a page could not be written.\n\n"
                    "Example: `autograder feedback 03_flash_forward --class class/2026 --student ada`")  # fmt: skip
def feedback(
    assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")],
    folder: ClassOption,
    student: Annotated[str | None, typer.Option(help="Only this one.")] = None,
):
    """Write the students' feedback pages to the class's feedback folder: scores, hints, and what each score rests on."""
    from autograder import feedback as pages
    from autograder.classroom import ClassError

    classroom = _classroom(folder)
    missing = 0
    for name in [student] if student else classroom.students(assignment):
        try:
            typer.echo(pages.write(classroom, assignment, name))
        except ClassError as error:  # one student without a page must not keep back the others'
            missing += 1
            typer.echo(f"autograder: {error}", err=True)
    if missing:
        raise typer.Exit(FAILED)


@app.command(epilog="Example: `autograder seed 03_flash_forward --class class/2026 --rotate`")
def seed(
    assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")],
    folder: ClassOption,
    rotate: Annotated[bool, typer.Option("--rotate", help="Draw a new one; every submission is then graded afresh.")] = False,
):
    """Show the id of the secret seed that an assignment's cases are drawn with (never the seed), or replace it."""
    from autograder.judge import seed_id

    classroom = _classroom(folder)
    classroom.notebook(assignment)
    out.print(f"seed id {seed_id(classroom.seed(assignment, rotate))}", highlight=False)


@app.command(epilog="Exit codes: 0; 1 when nothing was written, since the target is in use or an answer would be in it.\n\n"
                    "Example: `autograder release --to class/exercises.zip`, `autograder release 03_flash_forward --to /tmp/edition`")  # fmt: skip
def release(
    to: Annotated[Path, typer.Option("--to", help="A new or empty folder, or a file that ends in .zip.")],
    assignments: Annotated[list[str] | None, typer.Argument(metavar="[ASSIGNMENT]...", help="Default: every exercise.")] = None,
):
    """Write the student edition: the exercises and what they need to check themselves, without any answers."""
    from autograder import release as releases

    try:
        files = releases.edition(assignments or ())
        releases.write(files, to)
    except (releases.ReleaseError, OSError) as error:
        _fail(error)
    out.print(f"{to}: {len(files)} files, {sum(map(len, files.values())) / 1024:.0f} KiB", highlight=False, soft_wrap=True)


@app.command(epilog="Exit codes: 0 everything was taken in; 1 some files were refused (listed, with the reason).\n\n"
                    "Example: `autograder intake submissions.zip --class class/2026 --roster students.csv`")  # fmt: skip
def intake(
    source: Annotated[Path, typer.Argument(help="A folder of hand-ins, nbgrader's submitted/, or a zip of Moodle or Canvas.")],
    folder: ClassOption,
    assignment: Annotated[str | None, typer.Option(help="What all of it was handed in for.")] = None,
    roster: RosterOption = None,
):
    """Take hand-ins into the class, and report on every file: accepted, an older version, or refused and why."""
    from rich.markup import escape

    from autograder import intake as intakes

    classroom = _classroom(folder)
    people = intakes.Roster(roster) if roster else None
    if people:
        people.fill(classroom)
    run = intakes.Intake(classroom, assignment, people)
    lines = run.run(source)
    path = run.write_report()
    for line in lines:
        if line.status in ("refused", "older"):
            who = f" ({line.student})" if line.student else ""
            out.print(escape(f"{line.status}: {line.where}{who}: {line.why}"), highlight=False, soft_wrap=True)
        for note in line.notes:
            out.print(escape(f"note: {line.where} ({line.student}): {note}"), highlight=False, soft_wrap=True)
    counts = {s: sum(line.status == s for line in lines) for s in ("accepted", "older", "unchanged", "ignored", "refused")}
    out.print(", ".join(f"{n} {s}" for s, n in counts.items() if n) or "nothing was found", highlight=False)
    out.print(f"report: {path}", highlight=False, soft_wrap=True)
    if counts["refused"] or not lines:
        raise typer.Exit(FAILED)


@app.command(epilog="Exit codes: 0, whatever was found: it is for a person to judge.\n\n"
                    "Example: `autograder similar 03_flash_forward --class class/2026`")  # fmt: skip
def similar(assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")], folder: ClassOption):
    """Show pairs of submissions that are alike beyond what the exercise makes alike, for a person to look at."""
    from rich.markup import escape
    from rich.table import Table

    from autograder import similar as likes

    classroom = _classroom(folder)
    found, codes, rare, unread = likes.compare(classroom, assignment)
    if found:
        table = Table("first", "second", "in", "alike", "shared passages", title=f"{assignment}, {len(codes)} submissions", title_justify="left")
        for pair in found:
            table.add_row(escape(pair.first), escape(pair.second), escape(pair.part), f"{pair.alike:.0%}", str(pair.shared))
        out.print(table)
        out.print(likes.CAUTION, highlight=False)
    else:
        out.print(f"No two of {len(codes)} submissions are alike beyond what the exercise makes alike.", highlight=False)
    for text in unread:
        out.print(escape(f"not compared, since it can't be read: {text}"), highlight=False, soft_wrap=True)
    out.print(f"side by side: {likes.write(classroom, assignment, found, codes, rare)}", highlight=False, soft_wrap=True)


def main():
    """Entry point: errors about the class are one line, not a traceback."""
    from autograder.classroom import ClassError

    try:
        app()
    except ClassError as error:
        typer.echo(f"autograder: {error}", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
