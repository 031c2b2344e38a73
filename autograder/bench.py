"""Measure the grader: beside stock nbgrader on the same submissions, and on a large class in which things go wrong.

    python -m autograder.bench                      48 copies of exercise 03's reference, graded by both
    python -m autograder.bench --class-size 2000    a class of quick notebooks; workers and the coordinator are killed on the way

Both graders start from nothing: no verdict, no gradebook entry, an empty Triton cache. Stock nbgrader runs `nbgrader autograde`
with its own preprocessors on the same release and the same files. There the notebook's own `check` cells judge; so that they
make the cases that our judge makes, and not the public ones, a start-up file of its IPython gives `check` the judge's
generator (`CASES`). That seed is then in reach of the student's code, which is the point of having a judge outside.

A score is right when it is what the reference earns: full points, and none yet for a check that needs a GPU where there is none.
Memory is the sum over the process tree of each process's proportional share (PSS), looked at every half second. CPU seconds are
what the whole machine was busy meanwhile, so nothing else should run on it. The JSON is written again after each step, so that a run
which is cut off leaves what it had measured.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import nbformat
import numpy as np
import psutil
import typer
from nbformat.v4 import new_code_cell

from autograder import checks, executor, exercise, judge
from autograder.classroom import Classroom
from autograder.rebuild import grade_id, is_graded
from autograder.sandbox import Limits, gpu_nodes

ASSIGNMENT, COUNT = "03_flash_forward", 48
RESULTS = Path(__file__).with_name("results")
QUICK = ("solution-step", "check-03-step", "check-03-step-masked")  # the cells of a notebook that runs in milliseconds
STOCK = '''import os

c = get_config()  # noqa: F821 - nbgrader provides it
c.CourseDirectory.root = os.path.dirname(os.path.abspath(__file__))
c.Execute.timeout = {seconds}
'''
CASES = '''import hmac

import autograder
from autograder import student

_check, _seed = student.check, bytes.fromhex("{seed}")


def check(name, target):
    student.PUBLIC_SEED = list(hmac.digest(_seed, name.encode(), "sha256"))  # as judge.generator
    return _check(name, target)


autograder.check = check
'''


# -- beside stock nbgrader -----------------------------------------------------------------------------------------


def compare(folder, source, submission, count, jobs=None):
    """Grade `count` copies of a right `submission` with both graders, one after the other.

    Args:
        folder: an empty folder to work in.
        source: the instructor's notebook (with solutions) that the release is made from.
        submission: what each student hands in.

    Yields:
        two dicts, a row for each grader, as soon as it is done.
    """
    ours, stock = Classroom.create(folder / "ours"), Classroom(folder / "stock")
    ours.add("bench", source, "bench")
    for i in range(count):
        ours.submit("bench", f"student{i:02d}", submission)
    shutil.copytree(ours.folder, stock.folder)
    (stock.folder / "nbgrader_config.py").write_text(STOCK.format(seconds=int(Limits().cell_seconds)))
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "cases.py").write_text(CASES.format(seed=ours.seed("bench").hex()))
    expected = {
        grade_id(cell): None if checks.find(judge.requested(cell)[0]).gpu and not gpu_nodes() else float(cell.metadata.nbgrader.points)
        for cell in filter(is_graded, nbformat.read(ours.notebook("bench"), as_version=4).cells)
    }  # fmt: skip
    env = os.environ | {"IPYTHONDIR": str(folder / "ipython"), "TRITON_CACHE_DIR": str(folder / "triton"),
                        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    # Both find the libraries' files in the page cache.
    subprocess.run([sys.executable, "-c", "import torch, triton, nbgrader, ipykernel, distributed"], check=False)
    for name, room, command in (
        ("stock nbgrader", stock, [sys.executable, "-m", "nbgrader", "autograde", "bench"]),
        ("autograder", ours, [*_grade(ours, "bench"), *(["--jobs", str(jobs)] if jobs else [])]),
    ):
        with open(folder / f"{name}.log", "w+") as log:
            started, busy = time.monotonic(), _busy()
            process = subprocess.Popen(command, cwd=room.folder, env=env, stdout=log, stderr=subprocess.STDOUT)
            peak = 0
            while process.poll() is None:
                peak = max(peak, sum(map(_share, _tree(process.pid))))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            seconds, busy = time.monotonic() - started, _busy() - busy
            log.seek(0)
            words = log.read()[-2000:]
        scores = room.auto_scores("bench")
        right = Counter(cell for mine in scores.values() for cell, score in expected.items() if mine.get(cell, "none") == score)
        wrong = {cell: f"{count - right[cell]} of {count} wrong; right is {score if score is not None else 'no score yet'}"
                 for cell, score in expected.items() if right[cell] < count}  # fmt: skip
        row = {
            "grader": name, "submissions": count, "seconds": round(seconds, 1), "per_minute": round(60 * count / seconds, 2),
            "cpu_seconds_each": round(busy / count, 2), "peak_mib": peak >> 20, "right": sum(right.values()), "scores": count * len(expected), "wrong": wrong,
        }  # fmt: skip
        if process.returncode:
            row["problem"] = f"exit code {process.returncode}: {words}"
        yield row


def phases(folder, source, submission):
    """Where the time of a submission goes in a process that has graded one before. Each phase is without those that lie inside it.

    Returns:
        phase -> {"seconds": on the clock, "cpu_grader": CPU seconds of the grader's process, "cpu_sandbox": and inside}.
    """
    room = Classroom.create(folder)
    room.add("bench", source, "bench")
    for student in ("first", "second"):
        room.submit("bench", student, submission)
    spent, inner = {}, []

    def now(owner):
        main = getattr(owner, "main", None)
        return np.array([time.perf_counter(), time.process_time(), _cpu(main.pid) if main else 0.0])

    def timed(function, phase):
        def wrapper(*args, **kwargs):
            owner = args[0] if args else None
            began, process = now(owner), getattr(owner, "main", None)
            inner.append(np.zeros(3))
            try:
                return function(*args, **kwargs)
            finally:
                took = now(owner) - began
                if getattr(owner, "main", None) is not process:
                    took[2] = now(owner)[2]  # a process that came up meanwhile; what it had done before is not known
                took[2] = max(took[2], 0.0)  # one that is gone tells nothing more
                spent[phase] = spent.get(phase, 0) + took - inner.pop()
                if inner:
                    inner[-1] += took * (1, 1, 0)  # what encloses it does not look at the sandbox

        return wrapper

    places = [
        (executor.Notebook, "_start", "sandbox and Jupyter kernel: start"),
        (executor.Notebook, "_execute", "the notebook's cells"),
        (executor.Notebook, "_shut", "sandbox and Jupyter kernel: end"),
        (executor.Driver, "__enter__", "kernel driver: sandbox, torch and triton"),
        (executor.Driver, "__exit__", "kernel driver: end"),
        (executor.Notebook, "ask", "calls in the notebook's process"),
        (executor.Driver, "ask", "calls in the kernel driver"),
        (judge, "write", "writing the verdict"),
        (judge, "rebuild", "reading and rebuilding"),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, phase in places:
            inherited = name not in vars(owner)
            original = getattr(owner, name)
            setattr(owner, name, timed(original, phase))
            stack.callback(delattr, owner, name) if inherited else stack.callback(setattr, owner, name, original)
        judge.grade(room.job("bench", "first"))  # which also starts the warm parent and draws the cases
        spent.clear()
        timed(judge.grade, "comparing, and all else")(room.job("bench", "second"))
    list(room.record("bench", ["first"]))  # the first also makes nbgrader's objects
    timed(lambda: list(room.record("bench", ["second"])), "recording, by nbgrader")()
    names = ("seconds", "cpu_grader", "cpu_sandbox")
    found = sorted(spent.items(), key=lambda item: -item[1][0])
    return {phase: {name: round(float(x), 3) for name, x in zip(names, took, strict=True)} for phase, took in found}


# -- a large class in which things go wrong ------------------------------------------------------------------------


def quick():
    """(source, [(submission, its score in each graded cell)]): the first step of exercise 03, right and wrong in known ways."""
    source = exercise.load_source(ASSIGNMENT)
    source.cells = [c for c in source.cells if grade_id(c) in QUICK]
    source.cells.insert(0, new_code_cell("import numpy as np\n\nfrom autograder import check", id="setup"))
    points = {grade_id(c): (judge.requested(c)[0], float(c.metadata.nbgrader.points)) for c in source.cells if is_graded(c)}

    def made(book, fails=()):
        kept = nbformat.from_dict(source)
        kept.cells[1].source = next(c.source for c in book.cells if grade_id(c) == QUICK[0])
        return kept, {cell: 0.0 if name in fails else worth for cell, (name, worth) in points.items()}

    reference = exercise.submission(ASSIGNMENT)
    kinds = [made(reference), made(exercise.release(ASSIGNMENT), {name for name, _ in points.values()})]
    for mutant in exercise.mutants(ASSIGNMENT):
        if {cell for cell, _, _ in mutant.edits} == {QUICK[0]}:
            kinds.append(made(exercise.submission(ASSIGNMENT, mutant), mutant.fails))
    return source, kinds


def crashing():
    """Two like those of `quick`: a cell that ends its process, which costs that cell alone, and a `step` that does."""
    _, ((book, full), *_) = quick()
    cell, call = nbformat.from_dict(book), nbformat.from_dict(book)
    cell.cells.insert(1, new_code_cell("import os\n\nos._exit(1)", id="crash"))
    call.cells[1].source = "import os\n\n\ndef step(state, tile):\n    os._exit(1)"
    return [(cell, full), (call, dict.fromkeys(full, 0.0))]


def simulate(folder, size, jobs=None, save=lambda so_far: None):
    """Grade a class of `size` quick notebooks, of which one in a hundred crashes.

    On the way a worker is killed (a quarter done), then the coordinator, which is started anew (half), then another worker
    (three quarters).

    Args:
        save: called with what there is of the result, each time that there is more.

    Returns:
        a dict: times, whether every score is right, what was tried more than once, and memory on the way.
    """
    room = Classroom.create(folder)
    source, kinds = quick()
    room.add("bench", source, "bench")
    expected = {}
    for i in range(size):
        found = crashing()[i // 100 % 2] if i % 100 == 7 else kinds[i % len(kinds)]
        room.submit("bench", f"student{i:04d}", found[0])
        expected[f"student{i:04d}"] = found[1]
    command = [*_grade(room, "bench"), "--jobs", str(jobs or os.cpu_count())]
    events = [(size // 4, "a worker is killed"), (size // 2, "the coordinator is killed"), (3 * size // 4, "a worker is killed")]
    looks = sorted({min(48, size // 5), *(size * n // 10 for n in range(1, 11))})
    memory, happened = [], []
    started = time.monotonic()
    with open(folder / "bench.log", "a+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        graded = 0.0
        while process.poll() is None:
            done = sum(1 for _ in (room.folder / ".autograder" / "verdicts" / "bench").glob("*/*.json"))
            workers = [p for p in _tree(process.pid) if "spawn_main" in " ".join(_words(p))]
            while looks and done >= looks[0]:
                memory.append({"graded": done, "seconds": round(time.monotonic() - started, 1), "coordinator_mib": _rss(process.pid) >> 20,
                               "workers_mib": sorted(_rss(w.pid) >> 20 for w in workers)})  # fmt: skip
                looks.pop(0)
                save({"class_size": size, "happened": happened, "memory": memory})
            if events and done >= events[0][0] and workers:
                what = events.pop(0)[1]
                happened.append(f"{what} after {done} of {size}")
                if "worker" in what:
                    workers[-1].send_signal(signal.SIGKILL)
                else:
                    process.kill()
                    process.wait()
                    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            if done == size and not graded:
                graded = time.monotonic() - started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        seconds = time.monotonic() - started
        log.seek(0)
        words = log.read()[-2000:]
    scores = room.auto_scores("bench")
    tries = [p.read_text().count(", try ") for p in (room.folder / ".autograder" / "logs" / "bench").glob("*.log")]
    out = {
        "class_size": size, "crashing": sum(i % 100 == 7 for i in range(size)), "happened": happened,
        "seconds": round(seconds, 1), "of_which_recording": round(seconds - graded, 1) if graded else None,
        "right": sum(scores.get(student) == score for student, score in expected.items()),
        "begun_more_than_once": sum(n > 1 for n in tries), "memory": memory,
    }  # fmt: skip
    if process.returncode:
        out["problem"] = f"exit code {process.returncode}: {words}"
    return out


# -- small things --------------------------------------------------------------------------------------------------


def _grade(room, assignment):
    return [sys.executable, "-m", "autograder.cli", "grade", assignment, "--class", str(room.folder)]


def _tree(pid):
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _words(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _rss(pid):
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return 0


def _share(process):
    with contextlib.suppress(psutil.Error):
        return process.memory_full_info().pss
    return 0


def _busy():
    """CPU seconds that this machine has worked since its start."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "irq", 0) + getattr(times, "softirq", 0) + getattr(times, "nice", 0)


def _cpu(pid):
    """CPU seconds of a process and of its children that have ended."""
    with contextlib.suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:4])
    return 0.0


def machine():
    """What this was measured on."""
    names = ("nbgrader", "distributed", "numpy", "torch", "triton", "ipykernel")
    return judge.machine(bool(gpu_nodes())) | {
        "processor": next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""),
        "cores": os.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30, 1), "system": platform.platform(),
        **{name: importlib.metadata.version(name) for name in names}, "limits": dataclasses.asdict(Limits()),
    }  # fmt: skip


def _lines(path):
    with contextlib.suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def main(
    count: Annotated[int, typer.Option(min=1, help="How many submissions both graders are given.")] = COUNT,
    class_size: Annotated[int | None, typer.Option(min=10, help="Simulate a class of this size instead.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Submissions that ours grades at once. Default: one for each core.")] = None,
    to: Annotated[Path | None, typer.Option(help="Where the result goes. Default: autograder/results/bench_WHAT.json.")] = None,
):
    """Measure the grader, print the result and write it as JSON."""
    report = {"made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), "machine": machine(), "jobs": jobs or os.cpu_count()}
    to = to or RESULTS / f"bench_{f'class_{class_size}' if class_size else f'stock_{count}'}.json"
    to.parent.mkdir(parents=True, exist_ok=True)

    def save(**more):
        report.update(more)
        part = to.with_name(f"{to.name}.part")
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        part.replace(to)

    save()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        folder = Path(folder)
        if class_size:
            source, ((book, _), *_) = quick()
            save(**{"class": simulate(folder / "class", class_size, jobs, lambda so_far: save(**{"class": so_far}))})
        else:
            source, book = exercise.load_source(ASSIGNMENT), exercise.submission(ASSIGNMENT)
            rows = []
            for row in compare(folder / "compare", source, book, count, jobs):
                rows.append(row)
                save(assignment=ASSIGNMENT, graders=rows)
            save(times_stock=round(rows[1]["per_minute"] / rows[0]["per_minute"], 2))
        save(phases=phases(folder / "phases", source, book))
    print(json.dumps({k: v for k, v in report.items() if k != "machine"}, indent=1))
    print(f"wrote {to}")


if __name__ == "__main__":
    typer.run(main)
