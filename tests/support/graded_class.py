"""A graded class without grading: verdicts as the judge writes them, with outcomes that a test chooses, and a gradebook."""

import functools
import shutil
import tempfile

import nbformat
from small_assignment import STEP, master, submission

from autograder import judge
from autograder.checks.core import Result
from autograder.classroom import Classroom
from autograder.rebuild import grade_id, is_graded

SOURCE = master("### BEGIN SOLUTION\n" + STEP + "### END SOLUTION")
STEP_CHECK, MASKED_CHECK = "check-03-step", "check-03-masked"  # 3 and 2 points
HINT = "The sum follows the maximum, but o does not. Look at what is applied to both."
PASSED = [Result("the first tile, 1117 scores", True, error=0.0, tolerance=1e-12, output="m")]
FAILED = [
    Result("the first tile, 1117 scores", True, error=0.0, tolerance=1e-12, output="m"),
    Result(
        "the maximum moves up, 2223 scores",
        False,
        "o[5] is wrong",
        1.5,
        1e-12,
        "o",
        (5,),
        mistake="correction_o",
        hint=HINT,
    ),
    Result(
        "a tile of 3331 scores",
        False,
        "o[7] is wrong",
        1.5,
        1e-12,
        "o",
        (7,),
        mistake="correction_o",
        hint=HINT,
    ),
]


@functools.cache
def _empty():
    # nbgrader takes seconds to make a gradebook and a release: once is enough for all tests.
    folder = tempfile.TemporaryDirectory()
    Classroom.create(folder.name).add("small", SOURCE, "small")
    return folder


def make(folder, *students):
    """A class with the small assignment, handed in by `students`."""
    shutil.copytree(_empty().name, folder)
    room = Classroom(folder)
    for student in students:
        room.submit("small", student, submission())
    return room


def verdict(room, student, outcomes, gpu=False, notebook=None, **more):
    """Write a verdict for the submission as it is now, and return it.

    Args:
        outcomes: grade_id -> (status, message, results), or a status; cells that are not named passed.
        notebook: the executed notebook; by default what was handed in.
        more: replaces entries of the verdict; `speed` goes to its first cell.
    """
    job = room.job("small", student, gpu=gpu)
    notebook = notebook or submission()
    speed = more.pop("speed", None)
    made = {
        "schema": judge.SCHEMA, "key": job.key, "assignment": "small", "student": student, "made": "2026-03-01T12:00:00Z",
        "machine": {"python": "3.12.9", "numpy": "2.4.6", "torch": "2.13.0", "triton": "3.7.1",
                    "card": "NVIDIA Test" if gpu else None},
        "seed_id": judge.seed_id(job.seed), "rung": "gpu" if gpu else "cpu", "unsafe": False, "flags": [],
        "interruptions": [], "seconds": 4.5, "cells": {},
    } | more  # fmt: skip
    for cell in filter(is_graded, nbformat.read(job.master, as_version=4).cells):
        outcome = outcomes.get(grade_id(cell), "passed")
        status, message, results = (
            (outcome, "", PASSED if outcome == "passed" else []) if isinstance(outcome, str) else outcome
        )
        made["cells"][grade_id(cell)] = judge.entry(cell, status, message, results, 0.25)
    if speed is not None:
        made["cells"][STEP_CHECK]["speed"] = speed
    judge.write(job.stem, made, notebook)
    return made


def record(room, *students):
    """Have nbgrader take the scores from the verdicts."""
    for student, problem in room.record("small", students):
        assert problem is None, (student, problem)
