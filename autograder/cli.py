"""The command line: `autograder doctor | new | sample | grade | report | feedback | seed`."""

import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autograder.sandbox import SandboxUnavailable, gpu_nodes
from autograder.sandbox import doctor as try_sandbox

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown",
                  pretty_exceptions_show_locals=False, help=__doc__.split("\n")[0])  # fmt: skip
out = Console()

OK, FAILED, NO_SANDBOX, WAITING = 0, 1, 3, 4
ClassOption = Annotated[Path, typer.Option("--class", help="The class folder (nbgrader's course root).")]


def _classroom(folder):
    from autograder.classroom import Classroom

    classroom = Classroom(folder)
    classroom.require()
    return classroom


def _fail(message, code=FAILED):
    typer.echo(f"autograder: {message}", err=True)
    raise typer.Exit(code)


@app.command(epilog="Exit codes: 0 all well; 1 something is missing; 3 no sandbox can be had here.\n\n"
                    "Example: `autograder doctor`, `autograder doctor --sandbox` (only that, quietly).")  # fmt: skip
def doctor(sandbox: Annotated[bool, typer.Option("--sandbox", help="Try the sandbox only.")] = False):
    """Look at this machine: Python, torch, triton, GPU, sandbox; say how to mend what is missing."""
    code = OK

    def line(good, what, fix=""):
        nonlocal code
        if not good:
            code = max(code, FAILED)
        out.print(f"{'ok  ' if good else 'FIX '} {what}" + (f"\n     {fix}" if fix and not good else ""), highlight=False)

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
        line(False, "no sandbox can be had here", str(error))
        code = NO_SANDBOX
    raise typer.Exit(code)


@app.command(epilog="Example: `autograder new class/2026`; then put notebooks at submitted/STUDENT/ASSIGNMENT/ in it.")
def new(folder: Annotated[Path, typer.Argument(help="Where the class goes; a new or empty folder.")]):
    """Make an empty class, with every exercise in its source and release folders."""
    from autograder import exercise
    from autograder.classroom import Classroom

    if folder.exists() and any(folder.iterdir()):
        _fail(f"{folder} is not empty; a new class needs a new folder")
    classroom = Classroom.create(folder)
    for name in exercise.assignments():
        classroom.add(name, exercise.load_source(name), exercise.notebook_name(name))
    out.print(f"{folder}: {', '.join(classroom.assignments())} released", highlight=False)


@app.command(epilog="Exit codes: 0; with `--verify` 1 when any outcome differs from what the sample must score.\n\n"
                    "Example: `autograder sample class/sample --small`, then `autograder grade 03_flash_forward --class class/sample`, "
                    "then `autograder sample class/sample --verify`.")  # fmt: skip
def sample(
    folder: Annotated[Path, typer.Argument(help="Where the class goes; it is made if it isn't there.")],
    small: Annotated[bool, typer.Option("--small/--all", help="A handful of submissions, or every one there is.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Make nothing: compare the graded class with what it must score.")] = False,
):
    """Make a class of known submissions: the reference, the blank, mutants, hostile and broken ones."""
    from autograder import sample as samples

    if verify:
        wrong, count = samples.verify(_classroom(folder))
        for text in wrong:
            typer.echo(text, err=True)
        if wrong:
            _fail(f"{len(wrong)} outcomes differ from what the sample must score")
        out.print(f"All {count} submissions scored exactly what they must.", highlight=False)
        return
    names = samples.make(folder, small)
    out.print(f"{len(names)} submissions in {folder}/submitted", highlight=False)


@app.command(epilog="Exit codes: 0 all graded; 1 some could not be graded (`infrastructure_error`; run it again); 3 no sandbox.\n\n"
                    "Example: `autograder grade 03_flash_forward --class class/2026 --jobs 4`")  # fmt: skip
def grade(
    assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")],
    folder: ClassOption,
    jobs: Annotated[int | None, typer.Option(min=1, help="Submissions graded at once. Default: one for each core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="A running Dask scheduler, e.g. tcp://10.0.0.1:8786.")] = None,
    cell_seconds: Annotated[float | None, typer.Option(min=1, help="Limit for one cell and one call.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Grade on the CPU even if there is a GPU.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Grade without a sandbox: student code can then read and change all you can.")] = False,
):
    """Grade every submission that has no verdict yet, then write all scores to nbgrader's gradebook."""
    from autograder.classroom import ClassError
    from autograder.fleet import grade_all

    try:
        classroom = _classroom(folder)
        students = classroom.students(assignment)
        if not unsafe:
            try_sandbox(bool(gpu_nodes()) and not cpu)
        pending = list(classroom.pending(assignment, unsafe=unsafe, cell_seconds=cell_seconds, cpu=cpu))
    except ClassError as error:
        _fail(error)
    except SandboxUnavailable as error:
        _fail(f"no sandbox: {error}\n(--unsafe grades without one: only for code that you trust)", NO_SANDBOX)
    broken = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal) as progress:
        task = progress.add_task("grading  ", total=len(pending))
        for number, (job, verdict) in enumerate(grade_all(pending, jobs, scheduler), 1):
            broken += any(c["status"] == "infrastructure_error" for c in verdict["cells"].values())
            progress.advance(task)
            if not out.is_terminal:  # a log, where a bar would show nothing before the end
                typer.echo(f"graded {number} of {len(pending)}: {job.student}, {verdict['seconds']:.0f} s")
        task = progress.add_task("recording", total=len(students))
        for student in students:
            try:
                classroom.record(assignment, student)
            except ClassError as error:  # one student's odd folder or timestamp must not keep the others' scores back
                broken += 1
                typer.echo(f"autograder: {student} could not be recorded: {error}", err=True)
            progress.advance(task)
    kept = len(students) - len(pending)
    out.print(f"{len(pending)} graded, {kept} unchanged since the last run.", highlight=False)
    if broken:
        _fail(f"{broken} could not be graded or recorded; run the same command again")


@app.command(epilog="Exit codes: 0; 4 when `--csv` or `--json` was refused because scores are waiting (`--partial` writes it all the same).\n\n"
                    "Example: `autograder report --class class/2026 --csv grades.csv`")  # fmt: skip
def report(
    folder: ClassOption,
    assignment: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write a JSON file.")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Write files even if some scores are waiting.")] = False,
):
    """Show the grade table; write it as CSV or JSON."""
    from autograder import report as reports

    classroom = _classroom(folder)
    everything = []
    for name in [assignment] if assignment else classroom.assignments():
        entries = reports.rows(classroom, name)
        everything += entries
        out.print(reports.table(entries, name))
    waiting = [e for e in everything if not e["graded"] or e["waiting"]]
    if (csv or json) and waiting and not partial:
        _fail(f"{len(waiting)} of {len(everything)} rows have scores that are waiting, which are not zeros; "
              "grade them (on a GPU, or by hand), or write the file with --partial", WAITING)  # fmt: skip
    for path, text in ((csv, reports.as_csv), (json, reports.as_json)):
        if path:
            path.write_text(text(everything), encoding="utf-8")
            out.print(f"wrote {path}", highlight=False)


@app.command(epilog="Example: `autograder feedback 03_flash_forward --class class/2026 --student ada`")
def feedback(
    assignment: Annotated[str, typer.Argument(help="Name of a released assignment.")],
    folder: ClassOption,
    student: Annotated[str | None, typer.Option(help="Only this one.")] = None,
):
    """Write the students' feedback pages (nbgrader's, with the case tables) to the class's feedback folder."""
    classroom = _classroom(folder)
    for name in [student] if student else classroom.students(assignment):
        out.print(classroom.feedback(assignment, name), highlight=False, soft_wrap=True)


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
