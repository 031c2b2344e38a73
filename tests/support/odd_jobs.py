"""Jobs that take a moment and need no sandbox, and some of which do odd things to the worker that grades them."""

import os
import time
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

import nbformat
from small_assignment import master

from autograder import judge


@dataclass(frozen=True)
class OddJob(judge.Job):
    """Nothing was handed in, so the verdict comes at once. Before that, in a worker, `deed` happens (`DEED once`: only once)."""

    deed: str = ""

    def __getattribute__(self, name):
        if name == "seed" and parent_process() is not None:
            self.do(*self.deed.split())
        return super().__getattribute__(name)

    def do(self, what="", once=""):
        done = Path(f"{self.stem}.{what}")
        if done.exists():
            return
        if once:
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
        if what == "die":
            os._exit(1)
        elif what == "sleep":
            time.sleep(60)
        elif what == "raise":
            raise OSError("the disk is full")
        elif what == "linger":
            time.sleep(0.5)


def jobs(folder, **deeds):
    """A job for each student named, in a class at `folder`."""
    released = folder / "release" / "small" / "small.ipynb"
    released.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(master(), released)
    return [
        OddJob("small", student, str(released), str(folder / "submitted" / student / "small" / "small.ipynb"), b"secret",
               str(folder / ".autograder" / "verdicts" / "small" / student / "key-cpu"), "key", deed=deed)
        for student, deed in deeds.items()
    ]  # fmt: skip


def log(job):
    """The text of the job's log."""
    path = Path(job.stem).parents[3] / "logs" / job.assignment / f"{job.student}.log"
    return path.read_text() if path.exists() else ""
