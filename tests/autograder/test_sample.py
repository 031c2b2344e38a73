"""The whole sample class, end to end: made, graded and recorded by the commands that an instructor uses."""

import json
import subprocess
import sys

import numpy as np
import pytest
from small_assignment import needs_sandbox

from autograder import checks, contestant, sample
from autograder.checks import core
from autograder.classroom import Classroom
from autograder.student import PUBLIC_SEED

pytestmark = needs_sandbox


def autograder(*arguments):
    command = [sys.executable, "-m", "autograder.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The graded class."""
    folder = tmp_path_factory.mktemp("sample") / "class"
    made = autograder("sample", folder, "--all")
    assert made.returncode == 0, made.stderr
    graded = autograder("grade", sample.ASSIGNMENT, "--class", folder, "--cell-seconds", 40, "--cpu")
    assert graded.returncode == 0, graded.stdout + graded.stderr
    return folder


def test_every_submission_scores_exactly_what_it_must(folder):
    wrong, count = sample.verify(Classroom(folder))
    assert wrong == [] and count == len(sample.entries())
    assert autograder("sample", folder, "--verify").returncode == 0


def test_the_reference_has_full_marks_and_the_blank_none(folder):
    report = folder / "report.json"
    assert autograder("report", "--class", folder, "--json", report, "--partial").returncode == 0
    rows = {r["student"]: r for r in json.loads(report.read_text())}
    assert rows["reference"]["earned"] == rows["reference"]["available"] == rows["reference"]["recorded"] > 0
    assert rows["blank"]["earned"] == 0 and rows["blank"]["available"] == rows["reference"]["available"]
    assert all(r["waiting"] >= 2 for r in rows.values())  # the GPU's cell, which is no zero
    assert autograder("report", "--class", folder, "--csv", folder / "x.csv").returncode == 4


def test_a_wrong_outcome_would_be_noticed(folder):
    (path,) = (folder / ".autograder" / "verdicts" / sample.ASSIGNMENT / "blank").glob("*-cpu.json")
    verdict = json.loads(path.read_text())
    original = path.read_text()
    next(iter(verdict["cells"].values()))["status"] = "passed"
    try:
        path.write_text(json.dumps(verdict))
        failed = autograder("sample", folder, "--verify")
        assert failed.returncode == 1 and "blank: 03.step is passed, must be failed" in failed.stderr
    finally:
        path.write_text(original)


def test_the_page_of_a_hostile_script_is_harmless_and_shows_the_tables(folder):
    assert autograder("feedback", sample.ASSIGNMENT, "--class", folder, "--student", "hostile-script").returncode == 0
    page = (folder / "feedback" / "hostile-script" / sample.ASSIGNMENT / "flash_forward.html").read_text()
    assert f"{sample.SCRIPT_MARK} text" in page and f"<script>window.hit = '{sample.SCRIPT_MARK}'" not in page
    assert "cases pass" in page


def test_every_mutant_and_every_entry_has_a_name_of_its_own_and_a_story():
    entries = sample.entries()
    assert len({e.name for e in entries}) == len(entries) and all(e.story for e in entries)
    small = sample.entries(small=True)
    assert {"reference", "blank", "broken-deleted-check"} <= {e.name for e in small}
    assert any(e.name.startswith("mutant-") for e in small) and any(e.name.startswith("hostile-") for e in small)


def test_every_kind_of_trick_and_accident_has_its_submission():
    entries = sample.entries()
    shown = [kind for e in entries for kind in e.kinds]
    assert set(shown) == sample.KINDS
    for e in entries:
        checked = {c for c in e.fails | e.gpu_fails | e.reviews | set(e.says) if c not in {"*", "?"}}
        assert checked <= set(checks.CHECKS), e.name
        assert e.kinds or e.name in {"reference", "blank"} or e.name.startswith("mutant-"), e.name


def test_a_message_or_flag_that_is_missing_would_be_noticed():
    entry = sample.Entry("x", "x", None, frozenset({"03.step"}), ("flagged",), says={"03.step": "signal 11"})
    cell = {"check": "03.step", "status": "failed", "message": "", "cases": [{"message": "crashed (signal 11)"}]}
    good = {"rung": "cpu", "flags": ["was flagged"], "cells": {"a": cell}}
    assert list(sample._differences(entry, good)) == []
    assert "no flag says" in next(sample._differences(entry, good | {"flags": []}))
    silent = cell | {"cases": [{"message": "something else"}]}
    assert "does not say 'signal 11'" in next(sample._differences(entry, good | {"cells": {"a": silent}}))


def test_the_answers_that_are_known_by_heart_are_those_of_the_public_cases():
    """Else the submission that returns them would show nothing."""
    found = {"np": np}
    exec(sample._known_answers(), found)
    check = checks.find("03.one_query")
    results = core.evaluate(check, np.random.default_rng(PUBLIC_SEED), "numpy",
                            lambda case: (contestant.perform(found["flash_one_query"], case.call), None))  # fmt: skip
    assert all(r.passed for r in results)
