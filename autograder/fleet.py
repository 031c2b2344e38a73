"""Grade many submissions: the same tasks on a local cluster in this command, or on a Dask cluster that is already there.

What keeps a class going whatever one submission does is Dask's own: a nanny starts a worker anew when it dies, the scheduler
gives its submission to another worker, and gives up on one that keeps killing workers (`KilledWorker`). Ours is only to hand
out no more submissions than can run, to end a worker that got stuck, and to write down what happened.

A worker never runs student code in its own process: `judge.grade` starts sandboxes, which die with it.
"""

import contextlib
import dataclasses
import logging
import os
import platform
import threading
import time
import uuid
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from dask import config as dask_config
from dask.base import tokenize
from dask.system import CPU_COUNT
from distributed import Client, KilledWorker, Nanny, Scheduler, SpecCluster, wait

from autograder import judge
from autograder.rebuild import grade_id, is_graded
from autograder.sandbox import SandboxUnavailable
from autograder.sandbox import doctor as try_sandbox

_LOOK_AGAIN = 5.0  # seconds after which it is counted anew how many workers there are
_ANSWER = 10.0  # seconds that a scheduler gets to answer
_SILENCE = logging.CRITICAL + 1


class FleetError(RuntimeError):
    """The cluster can't be used. The message says what to do."""


@dataclass
class Tally:
    """How far a run is; `grade_all` keeps it."""

    total: int
    done: int = 0
    running: int = 0
    failed: int = 0  # could not be graded, our fault
    retried: int = 0  # needed more than one try
    started: float = field(default_factory=time.monotonic)

    def seconds_left(self):
        """Estimate from the pace so far; None before the first is done."""
        return (time.monotonic() - self.started) / self.done * (self.total - self.done) if self.done else None


# -- clusters ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def local(submissions, workers=None, gpu=False):
    """A `distributed.Client` of a cluster of this command's own, which ends with it.

    Args:
        submissions: how many there are to grade; there are no more processes than that.
        workers: how many processes; None for one a core, or with `gpu` one a card. With `gpu` never more than there are cards:
            each process is given one of its own, and grades one submission at a time.
    """
    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    # No memory limit: the sandboxes watch over memory, and a worker holds nothing.
    common = here | {"nthreads": 1, "memory_limit": 0, "silence_logs": _SILENCE}
    if gpu:
        each = [common | {"resources": {"GPU": 1}, "env": {"CUDA_VISIBLE_DEVICES": card}} for card in _cards()]
    else:
        each = [common] * (workers or CPU_COUNT)
    each = each[: min(submissions, workers or len(each))]
    spec = {i: {"cls": Nanny, "options": options} for i, options in enumerate(each)}
    scheduler = {"cls": Scheduler, "options": here | {"dashboard": False}}
    settings = {
        # The second time that a submission's worker dies is the last: `grade_all` then makes sure that it was to blame.
        "distributed.scheduler.allowed-failures": 1,
        "distributed.logging.distributed": "critical",
        # Dask's statistical profiler keeps an hour of stacks, some 200 KiB for each submission.
        "distributed.worker.profile.enabled": False,
    }
    with (
        dask_config.set(settings),
        SpecCluster(workers=spec, scheduler=scheduler, silence_logs=_SILENCE) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def remote(address):
    """A `distributed.Client` of the cluster at `address`, whose workers see the class folder under the same path.

    With `tls://...` the certificates are those of Dask's own configuration (`distributed.comm.tls`).

    Raises:
        FleetError: nobody answers there, or the certificates are missing.
    """
    try:
        client = Client(address, timeout=_ANSWER)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise FleetError(
            f"no Dask scheduler can be used at {address} ({type(error).__name__}: {str(error)[:200]}); give the address that "
            "`dask scheduler` prints, such as tcp://10.0.0.1:8786; for tls:// set distributed.comm.tls in Dask's configuration"
        ) from None
    with client:
        yield client


def has_gpu(client):
    """Whether a worker of the cluster declares a GPU (`dask worker ... --resources GPU=1`)."""
    return any(_slots_of(worker, True) for worker in _workers(client))


def try_workers(client, gpu):
    """Try the sandbox on every worker.

    Raises:
        SandboxUnavailable: one of them has none; the message names it.
    """
    addresses = [a for a, w in client.scheduler_info(n_workers=-1)["workers"].items() if _slots_of(w, gpu)]
    for address, answer in client.run(try_sandbox, gpu, workers=addresses, on_error="return").items():
        if isinstance(answer, BaseException):
            raise SandboxUnavailable(f"on the worker {address}: {answer}")


def _cards():
    """CUDA's names of this machine's GPUs, those that CUDA_VISIBLE_DEVICES allows."""
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    import pynvml

    # Names, not numbers: CUDA and the driver need not count in the same order.
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]


def _workers(client):
    return client.scheduler_info(n_workers=-1)["workers"].values()


def _slots_of(worker, gpu):
    """How many submissions a worker can grade at once."""
    return min(worker["nthreads"], int(worker["resources"].get("GPU", 0))) if gpu else worker["nthreads"]


# -- the coordinator's side ----------------------------------------------------------------------------------------


def grade_all(jobs, client, tally=None, job_seconds=None):
    """Grade `jobs` on the cluster of `client`; yield (job, verdict) as each is done.

    A submission whose worker died is tried again, and so is one that our own code failed on. One that goes on like that becomes
    an `infrastructure_error`, which a later run of the same command tries again, and the others go on.

    Args:
        jobs: a list of `judge.Job`, all for a GPU or none.
        tally: a `Tally` to keep.
        job_seconds: a worker that has spent longer on one submission is stuck, and is ended. By default well above what the
            limits of the sandbox add up to.

    Raises:
        FleetError: the scheduler is gone.
    """
    jobs = list(jobs)
    tally = tally or Tally(len(jobs))
    run = uuid.uuid4().hex[:8]
    suspects = []
    for job, result in _run(client, jobs, tally, run, job_seconds):
        if isinstance(result, KilledWorker):
            suspects.append(job)
        else:
            yield _finished(job, result, tally, run)
    # A worker may have died of another submission that was waiting there. Each of these gets the cluster for itself.
    for job, result in _run(client, suspects, tally, run, job_seconds, alone=True):
        yield _finished(job, result, tally, run)


def _run(client, jobs, tally, run, job_seconds, alone=False):
    """Yield (job, verdict or exception) as each is done."""
    waiting, running = deque(jobs), {}
    while waiting or running:
        # As many as can run, so that a dying worker takes no more with it than it was working on.
        slots = 1 if alone else max(1, sum(_slots_of(w, jobs[0].gpu) for w in _workers(client)))
        while waiting and len(running) < slots:
            job = waiting.popleft()
            future = client.submit(
                _grade, job, run, job_seconds or _longest(job.limits),
                # The same name in every run, by which a coordinator started anew finds what its workers are still at.
                key=f"grade{'-alone' if alone else ''}-{tokenize(job.stem)}", retries=1, resources={"GPU": 1} if job.gpu else None,
            )  # fmt: skip
            running[future] = job
        with contextlib.suppress(TimeoutError, CancelledError):
            wait(list(running), timeout=_LOOK_AGAIN, return_when="FIRST_COMPLETED")
        for future in [f for f in running if f.done()]:
            job = running.pop(future)
            if future.status in ("cancelled", "lost"):
                raise FleetError("the scheduler is gone; start it, and run the same command again: it goes on where it was")
            error = future.exception()
            result = future.result() if error is None else error
            future.release()
            tally.running = min(slots, len(running) + len(waiting))
            yield job, result


def _finished(job, result, tally, run):
    tries = _tries(job, run)
    verdict = failed(job, result, tries) if isinstance(result, BaseException) else result
    tally.done += 1
    tally.retried += tries > 1
    tally.failed += any(c["status"] == "infrastructure_error" for c in verdict["cells"].values())
    return job, verdict


def failed(job, error, tries=1):
    """The verdict of a job that our side could not finish: no zeros, and a reason."""
    master = nbformat.read(job.master, as_version=4)
    if isinstance(error, KilledWorker):
        message = f"grading failed: the worker died each time, {tries} times; see the log"
    else:
        message = f"grading failed: {type(error).__name__}: {str(error)[:300]}"
    verdict = {
        "schema": judge.SCHEMA, "key": job.key, "assignment": job.assignment, "student": job.student,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": {}, "seed_id": judge.seed_id(job.seed),
        "rung": "gpu" if job.gpu else "cpu", "unsafe": job.unsafe, "grader": judge.fingerprint(master),
        "limits": dataclasses.asdict(job.limits), "flags": [message], "interruptions": [], "seconds": 0.0, "retries": tries - 1,
        "cells": {grade_id(c): judge.entry(c, "infrastructure_error", message) for c in master.cells if is_graded(c)},
    }  # fmt: skip
    judge.write(job.stem, verdict, master)
    _note(job, f"given up: {message}")
    return verdict


# -- the worker's side ---------------------------------------------------------------------------------------------


class Stuck(RuntimeError):
    """The submission has kept a worker for longer than it may."""


def _grade(job, run, seconds):
    """Grade `job` in this worker, unless it has got one stuck before. Returns the verdict."""
    retries = _tries(job, run)
    if retries and _STUCK.format(run) in _log(job).read_text(errors="replace"):
        raise Stuck(f"it kept a worker for more than {seconds:.0f} s, though the limits of its sandbox add up to less")
    where = f"{platform.node()}, process {os.getpid()}, {'gpu' if job.gpu else 'cpu'}{', unsafe' if job.unsafe else ''}"
    _note(job, f"{_TRY.format(run)} {retries + 1} on {where}" + "; the one before did not finish" * bool(retries))
    # What a killed try left. The verdict goes first and comes back last, so that it never stands beside another notebook.
    stem = Path(job.stem)
    for left in [*stem.parent.glob("*.part"), stem.with_name(stem.name + ".json")]:
        left.unlink(missing_ok=True)

    def end():
        _note(job, f"{_STUCK.format(run)} {seconds:.0f} s")
        os._exit(1)  # with all its sandboxes; the nanny starts another

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        verdict = judge.grade(job)
        if retries:
            verdict["retries"] = retries
            judge.write(job.stem, verdict, nbformat.read(f"{job.stem}.ipynb", as_version=4))
    except Exception as error:
        _note(job, f"failed: {type(error).__name__}: {error}")
        raise
    finally:
        timer.cancel()
    for lost in verdict["interruptions"]:
        _note(job, f"interrupted: {lost['cell']}: {lost['reason']}")
    for flag in verdict["flags"]:
        _note(job, f"flag: {flag}")
    for name, cell in verdict["cells"].items():
        _note(job, f"{name}: {cell['status']}, {cell['seconds']:.1f} s" + f", {cell['message']}" * bool(cell["message"]))
    _note(job, f"graded in {verdict['seconds']:.1f} s")
    return verdict


def _longest(limits):
    """Seconds that no submission can need: the notebook, once more after each of several crashes, and the calls besides."""
    return 4 * limits.notebook_seconds + 600


# -- a log for each submission -------------------------------------------------------------------------------------

_TRY, _STUCK = "run {}, try", "run {}: the worker was ended, after"


def _log(job):
    # The stem is CLASS/.autograder/verdicts/ASSIGNMENT/STUDENT/KEY-cpu.
    return Path(job.stem).parents[3] / "logs" / job.assignment / f"{job.student}.log"


def _note(job, text):
    """Add a line to the submission's log. A short one: what a student's code said stands in the verdict, not here."""
    text = " ".join(text.split())
    path = _log(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text if len(text) <= 240 else text[:237] + '...'}\n")


def _tries(job, run):
    """How often this run has begun to grade the submission."""
    return _log(job).read_text(errors="replace").count(_TRY.format(run)) if _log(job).exists() else 0
