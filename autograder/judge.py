"""The trusted side of grading one submission: run it in sandboxes, judge its answers, write a verdict.

A verdict is a plain dict (JSON). For each graded cell of the *master* it has a status:

- `passed`, `failed`: a score;
- `needs_review`: a person must look (the submission could not be read, or a measurement could not be made);
- `infrastructure_error`: our fault; grading it again may mend it;
- `not_run`: the check needs a GPU and there was none.

Only `passed` earns the cell's points; the last three are not zeros, and every report keeps them apart.

A verdict is also the audit trail. It says on what it was made (`machine`, `rung`, `limits`, `unsafe`), by which grader
(`grader`) with which secret cases (`seed_id`), when and for how long; for each cell the check, where its cases ran, how long,
and how each case went; what was odd about the submission (`flags`); and each time that a process of the run was lost and what
was run again for it (`interruptions`). It holds no expected value, no input and no seed, since students are shown it.
"""

import ast
import dataclasses
import functools
import hashlib
import hmac
import importlib.metadata
import importlib.util
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np

from autograder import checks, contestant, jitted, warm
from autograder.checks import core, table
from autograder.executor import UNREADABLE, Driver, Notebook, NotStarted, Stop
from autograder.oddities import oddities
from autograder.rebuild import Unreadable, grade_id, is_graded, locate, read, rebuild
from autograder.sandbox import Limits, card

SCHEMA = 1
WAITING = ("needs_review", "infrastructure_error", "not_run")


@dataclass(frozen=True)
class Job:
    """Everything that grading one submission needs; picklable, so that it can go to another machine.

    Attributes:
        master: path of the released notebook.
        submission: path of the notebook that was handed in (it may be missing or broken).
        seed: the class's secret for this assignment (bytes).
        stem: where the verdict goes: `stem.json` and the executed notebook `stem.ipynb`.
    """

    assignment: str
    student: str
    master: str
    submission: str
    seed: bytes
    stem: str
    key: str
    gpu: bool = False
    unsafe: bool = False
    limits: Limits = Limits()


def requested(cell):
    """The check that a graded cell of the master makes: ("03.step", "step"), its name and that of the target.

    Raises:
        ValueError: the cell does not hold exactly one call `check("name", target)`.
    """
    calls = [
        node for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "check" and len(node.args) == 2
    ]  # fmt: skip
    if len(calls) != 1:
        raise ValueError(f'cell {grade_id(cell)} should hold one check("name", target), but holds {len(calls)}')
    return ast.literal_eval(calls[0].args[0]), ast.unparse(calls[0].args[1])


def fingerprint(master):
    """A hash of the code that a score in `master` (a notebook) rests on: a change of it makes old verdicts stale.

    That is the grading itself and the modules of the checks that the master asks for, with all of ours that these import.
    Another exercise's checks are not among them, so mending those leaves this one's verdicts as they are.

    Raises:
        ValueError: a graded cell asks for no check, or for one that does not exist.
    """
    return _fingerprint(frozenset(requested(cell)[0] for cell in master.cells if is_graded(cell)))


@functools.cache  # taken once in a process, so that a run agrees with itself even if the files change under it
def _fingerprint(names):
    waiting = [__name__, *(checks.find(name).cases.__module__ for name in names)]
    files = {"autograder": b"", "autograder.checks": b""}  # these two only list what there is, other exercises included
    while waiting:
        module = waiting.pop()
        try:
            spec = None if module in files else importlib.util.find_spec(module)
        except ModuleNotFoundError:
            continue  # the name of a function: its module is in the list as well
        if spec is None:
            continue
        files[module] = Path(spec.origin).read_bytes()
        for node in ast.walk(ast.parse(files[module])):
            found = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), spec.parent)
                found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            waiting += [name for name in found if name.split(".")[0] in {"autograder", "kernels"}]
    digest = hashlib.sha256()
    for module in sorted(files):
        digest.update(module.encode() + hashlib.sha256(files[module]).digest())
    return digest.hexdigest()[:16]


def machine(gpu):
    """What the verdict was made on: versions and, with `gpu`, the card that the sandboxes get."""
    facts = {"python": platform.python_version(), "card": None}
    for name in ("numpy", "torch", "triton"):
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = None
    if gpu:
        import pynvml

        handle = card()
        if handle is None:
            facts["card"] = f"a card that NVML does not name (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')})"
            return facts
        facts["card"] = pynvml.nvmlDeviceGetName(handle)
        facts["driver"] = pynvml.nvmlSystemGetDriverVersion()
        facts["memory_rate"] = _memory_rate(pynvml, handle)
    return facts


def _memory_rate(pynvml, handle):
    """The most bytes a second that the card's memory can move (two transfers a clock), or None where NVML does not say."""
    try:
        megahertz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        return 2 * megahertz * 10**6 * pynvml.nvmlDeviceGetMemoryBusWidth(handle) // 8
    except pynvml.NVMLError:
        return None


def grade(job):
    """Grade one submission. Writes `job.stem`.json and .ipynb, and returns the verdict."""
    started = time.time()
    master = nbformat.read(job.master, as_version=4)
    verdict = {
        "schema": SCHEMA,
        "key": job.key,
        "assignment": job.assignment,
        "student": job.student,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "machine": machine(job.gpu) | {"start": None},
        "seed_id": seed_id(job.seed),
        "rung": "gpu" if job.gpu else "cpu",
        "unsafe": job.unsafe,
        "grader": fingerprint(master),
        "limits": dataclasses.asdict(job.limits),
        "flags": [],
        "interruptions": [],
        "cells": {},
    }
    cells = [c for c in master.cells if is_graded(c)]
    try:
        path = locate(job.submission)
        rebuilt = rebuild(master, read(path))
    except Exception as error:  # Unreadable, or whatever else a malformed notebook leads to: a person must look
        if not isinstance(error, Unreadable):
            error = f"it could not be taken apart: {type(error).__name__}: {str(error)[:200]}"
        verdict["flags"].append(str(error))
        notebook = master
        for cell in cells:
            verdict["cells"][grade_id(cell)] = entry(cell, "needs_review", str(error))
    else:
        if path.name != Path(job.master).name:
            verdict["flags"].append(f"it was handed in as {path.name[:80]}, the only notebook in its folder")
        verdict["flags"] += rebuilt.flags + _odd(master, rebuilt.notebook)
        notebook = rebuilt.notebook
        try:
            verdict["machine"]["start"] = "unsafe" if job.unsafe else warm.mode(job.gpu)
            _Judge(job, notebook, verdict, rebuilt.outdated).run()
        except Exception as error:  # our fault: what was judged so far stands, the rest is tried again
            verdict["flags"].append(f"grading failed: {type(error).__name__}: {str(error)[:300]}")
        for cell in filter(is_graded, notebook.cells):
            if grade_id(cell) not in verdict["cells"]:
                cell.outputs = []
                verdict["cells"][grade_id(cell)] = entry(cell, "infrastructure_error", "this cell was never reached")
    verdict["seconds"] = round(time.time() - started, 3)
    write(job.stem, verdict, notebook)
    return verdict


def _odd(master, notebook):
    released = {c.id: c.source for c in master.cells}
    flags = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source != released.get(cell.id):
            found = oddities(cell.source)
            if found:
                flags.append(f"worth a look: cell {cell.id} has {', '.join(found[:6])}")
    return flags


def write(stem, verdict, notebook):
    """Write both files, the verdict last: a verdict that exists is whole."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".ipynb", nbformat.writes(notebook)), (".json", json.dumps(verdict, indent=1))):
        # With the host, since several may share the folder, where two processes can have one number.
        part = stem.with_name(f"{stem.name}.{platform.node()}.{os.getpid()}.part")
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # students' text may hold lone surrogates
        part.replace(stem.with_name(stem.name + suffix))


def seed_id(seed):
    """A name for a secret seed that doesn't give it away."""
    return hashlib.sha256(b"seed id" + seed).hexdigest()[:8]


def generator(seed, check):
    """The random generator for one check: the same seed gives the same cases, whoever is graded and in which order."""
    return np.random.default_rng(list(hmac.digest(seed, check.encode(), "sha256")))


def entry(cell, status, message="", results=(), seconds=0.0, rung=None, memory_rate=None):
    """What a verdict says of one graded cell of the master.

    Args:
        rung: where its cases ran, None when none did.
        memory_rate: of the card, in bytes a second: with it, timed cases give the entry a `speed` (see `leaderboard`).
    """
    points = float(cell.metadata.nbgrader.points)
    speed = [
        {
            "case": r.name,
            "seconds": r.speed[0],
            "plain_seconds": r.speed[1],
            "floor_seconds": r.moved_bytes / memory_rate,
        }
        for r in results
        if r.speed and memory_rate
    ]
    return ({"speed": speed} if speed else {}) | {
        "check": requested(cell)[0],
        "rung": rung,
        "points": points,
        "status": status,
        "earned": points if status == "passed" else 0.0,
        "message": message,
        "cases": [dataclasses.asdict(r) for r in results],
        "seconds": round(seconds, 3),
    }


class _Judge:
    def __init__(self, job, notebook, verdict, outdated):
        self.job, self.notebook, self.verdict, self.outdated = job, notebook, verdict, outdated
        self.passed = set()
        self.sources = []  # of the code cells so far
        self.driver = None
        self.kernel = None

    def run(self):
        self.kernel = Notebook(self.notebook, self.job.limits, self.job.gpu, self.job.unsafe)
        self.kernel.interruptions = self.verdict["interruptions"]
        try:
            with self.kernel:
                self.kernel.run(self.cell)
        finally:
            if self.driver is not None:
                self.driver.__exit__(None, None, None)
            self.verdict["flags"] += [
                f"cell {lost['cell']}: {lost['reason']}" for lost in self.verdict["interruptions"] if lost["by"]
            ]

    def cell(self, cell, failure):
        """Judge `cell` if it is a graded one. Raises Stop when a call took the notebook's kernel with it."""
        if not is_graded(cell):
            self.sources.append(cell.source)
            return
        started = time.monotonic()
        name, target = requested(cell)
        check = checks.find(name)
        stop = None
        if grade_id(cell) in self.outdated:
            status, results = "needs_review", []
            message = "This part was changed after it was handed out, and the submission was made from an earlier release."
        elif check.gpu and not self.job.gpu:
            status, message, results = "not_run", "It waits: it needs a GPU.", []
        elif failure is not None:
            status, message, results = "failed", failure, []
        else:
            status, message, results, stop = self.judged(check, target)
        if status == "passed":
            self.passed.add(name)
        self.verdict["cells"][grade_id(cell)] = entry(
            cell, status, message, results, time.monotonic() - started, self.rung(check) if results else None,
            self.verdict["machine"].get("memory_rate"),
        )  # fmt: skip
        cell.outputs = [_table(check, status, message, results)]
        if stop is not None:
            raise stop

    def judged(self, check, target):
        """Status, message, results, and the Stop of a call that took the notebook's kernel with it (or None)."""
        try:
            perform = (self.kernel_call if check.kind == "kernel" else self.function_call)(check, target)
        except (jitted.NotTaken, RecursionError, ValueError, MemoryError) as error:
            return "failed", str(error)[:500], [], None
        try:
            rng = generator(self.job.seed, check.name)
            results = [_withheld(r) for r in core.evaluate(check, rng, self.rung(check), perform)]
        except NotStarted as error:
            return "infrastructure_error", str(error), [], None
        for result in results:
            if result.message.startswith(UNREADABLE):
                self.verdict["flags"].append(f"{check.name}: {result.message}")
                break
        failed = any(r.passed is False for r in results)
        waiting = any(r.passed is None for r in results)
        status, message = "failed" if failed else "needs_review" if waiting or not results else "passed", ""
        missing = [n for n in check.needs if n not in self.passed]
        if status == "passed" and missing:
            status, message = "failed", f"This part is right, but it counts only once {', '.join(missing)} passes."
        return status, message, results, perform.stop

    def rung(self, check):
        return ("gpu" if self.job.gpu else "interpreter") if check.triton else "numpy"

    def function_call(self, check, target):
        return _Perform(check, lambda: self.kernel, check.name)

    def kernel_call(self, check, target):
        source = jitted.take(self.sources, target)

        def process():
            if self.driver is None:
                self.driver = Driver(self.job.limits, self.job.gpu, self.job.unsafe).__enter__()
            return self.driver

        def dropped(stop):
            self.verdict["interruptions"].append(
                {"cell": f"the kernel of {check.name}", "reason": stop.reason, "by": self.driver.sandbox.verdict}
            )
            self.driver.__exit__(None, None, None)
            self.driver = None

        return _Perform(check, process, lambda driver: driver.kernel(source, target), dropped)


class _Perform:
    """`perform` of `core.evaluate`, through a sandboxed process. After a crash or a time-out the other cases are not tried."""

    def __init__(self, check, process, name, dropped=None):
        self.check, self.process, self.name, self.dropped = check, process, name, dropped
        self.stop = None
        self.over = None

    def __call__(self, case):
        if self.over:
            return contestant.Answer(problem=f"not tried, after this happened: {self.over}"), None
        try:
            process = self.process()
            name = self.name(process) if callable(self.name) else self.name
            seconds = min(self.check.seconds, process.sandbox.limits.cell_seconds)
            answer, peak = process.ask(name, case.call, seconds, case.limit_bytes is not None)
        except Stop as stop:
            self.over = stop.reason
            if self.dropped:
                self.dropped(stop)
            else:
                self.stop = stop
            return contestant.Answer(problem=stop.reason), None
        if answer.problem and "took longer" in answer.problem:
            self.over = answer.problem
        return answer, peak


def _withheld(result):
    """`result` without the numbers that belong to the secret case: the student's own check shows them for cases of theirs."""
    return dataclasses.replace(result, expected=None, got=None)


def _table(check, status, message, results):
    title = f"{check.name}  {check.title}"
    note = message if status != "passed" else ""
    return nbformat.v4.new_output(
        "display_data",
        {"text/html": table.as_html(title, results, note), "text/plain": table.as_text(title, results, note)},
    )
