"""The whole sample class, end to end: made, graded and recorded by the commands that an instructor uses."""

import functools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from small_assignment import needs_sandbox
from typer.testing import CliRunner

from autograder import checks, cli, contestant, exercise, sample
from autograder.checks import core
from autograder.student import PUBLIC_SEED

pytestmark = needs_sandbox


def autograder(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """graded(assignment): the folder of a class in which its whole sample was handed in and graded."""

    @functools.cache
    def make(assignment):
        folder = tmp_path_factory.mktemp("sample") / "class"
        made = autograder("sample", folder, assignment, "--all")
        assert made.exit_code == 0, made.output
        # A seed that stays the same, so that a failure can be seen again; tests/solutions/test_mutants.py tries many.
        (folder / ".autograder").mkdir(exist_ok=True)
        (folder / ".autograder" / "seeds.json").write_text(json.dumps({assignment: "5e" * 32}))
        command = [sys.executable, "-m", "autograder.cli", "grade", assignment, "--class", folder, "--cell-seconds", "20", "--cpu"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return make


@pytest.fixture
def folder(graded):
    """The graded class of the exercise whose sample has the hostile and broken submissions."""
    return graded(sample.ASSIGNMENT)


@pytest.mark.parametrize("assignment", exercise.assignments())
def test_every_submission_scores_exactly_what_it_must(assignment, graded):
    compared = autograder("sample", graded(assignment), "--verify")
    assert compared.exit_code == 0, compared.output
    assert compared.output == f"All {len(sample.entries(assignment))} submissions scored exactly what they must.\n"


@pytest.mark.parametrize("assignment", exercise.assignments())
def test_the_reference_has_full_marks_and_the_blank_none(assignment, graded):
    folder = graded(assignment)
    report = folder / "report.json"
    assert autograder("report", "--class", folder, "--json", report, "--partial").exit_code == 0
    rows = {r["student"]: r for r in json.loads(report.read_text())}
    assert rows["reference"]["earned"] == rows["reference"]["available"] == rows["reference"]["recorded"] > 0
    assert rows["blank"]["earned"] == 0 and rows["blank"]["available"] == rows["reference"]["available"]
    on_gpu = 0
    for cell in exercise.load_source(assignment).cells:
        meta = cell.metadata.get("nbgrader", {})
        if meta.get("grade") and checks.find(cell.source.split('"')[1]).gpu:
            on_gpu += meta["points"]
    assert all(r["waiting"] >= on_gpu for r in rows.values())  # the GPU's cells, which are no zeros
    assert rows["reference"]["waiting"] == rows["blank"]["waiting"] == on_gpu
    complete = autograder("report", "--class", folder, "--csv", folder / "x.csv").exit_code
    assert complete == (4 if any(r["waiting"] for r in rows.values()) else 0)


def test_a_wrong_outcome_would_be_noticed(folder):
    (path,) = (folder / ".autograder" / "verdicts" / sample.ASSIGNMENT / "blank").glob("*-cpu.json")
    verdict = json.loads(path.read_text())
    original = path.read_text()
    next(iter(verdict["cells"].values()))["status"] = "passed"
    try:
        path.write_text(json.dumps(verdict))
        failed = autograder("sample", folder, "--verify")
        assert failed.exit_code == 1 and "03_flash_forward, blank: 03.step is passed, must be failed" in failed.output
        assert "blank is this one: the release, with nothing filled in" in failed.output
    finally:
        path.write_text(original)


def test_the_page_of_a_hostile_script_is_harmless_and_shows_the_tables(folder):
    assert autograder("feedback", sample.ASSIGNMENT, "--class", folder, "--student", "hostile-script").exit_code == 0
    page = (folder / "feedback" / "hostile-script" / sample.ASSIGNMENT / "flash_forward.html").read_text()
    assert f"{sample.SCRIPT_MARK} text" in page and f"<script>window.hit = '{sample.SCRIPT_MARK}'" not in page
    assert "cases pass" in page


@pytest.mark.parametrize("assignment", exercise.assignments())
def test_every_entry_has_a_name_of_its_own_and_a_story(assignment):
    entries = sample.entries(assignment)
    assert len({e.name for e in entries}) == len(entries) and all(e.story for e in entries)
    assert {"reference", "blank"} <= {e.name for e in entries}


@pytest.mark.parametrize("assignment", exercise.assignments())
def test_every_mutant_is_in_one_submission_and_no_check_sees_two(assignment):
    """Else a check that fails would not tell which of them it caught."""
    bundles, runs = sample.bundles(assignment), exercise.runs(assignment)
    names = sorted(m.name for bundle in bundles for m in bundle)
    assert names == sorted(m.name for m in exercise.mutants(assignment))
    for bundle in bundles:
        for check, cells in runs.items():
            seen = [m.name for m in bundle if cells & {cell for cell, _, _ in m.edits}]
            assert len(seen) <= 1, (check, seen)


@pytest.mark.parametrize("assignment", exercise.assignments())
def test_the_small_sample_is_a_part_of_all(assignment):
    """`verify` knows the outcomes of all, and passes over whom it does not know."""
    small, everything = (sample.entries(assignment, small) for small in (True, False))
    assert {"reference", "blank", "mutants-01"} <= {e.name for e in small} < {e.name for e in everything}


def test_the_small_sample_has_one_of_each_sort():
    small = [e.name for e in sample.entries(small=True)]
    assert "broken-deleted-check" in small and any(name.startswith("hostile-") for name in small)


def test_every_kind_of_trick_and_accident_has_its_submission():
    entries = sample.entries()
    shown = [kind for e in entries for kind in e.kinds]
    assert set(shown) == sample.KINDS
    for e in entries:
        checked = {c for c in e.fails | (e.gpu_fails or set()) | e.reviews | set(e.says) if c not in {"*", "?"}}
        assert checked <= set(checks.CHECKS), e.name
        assert e.kinds or e.name in {"reference", "blank"} or e.name.startswith(("mutant", "person-")), e.name


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


# ---------------------------------------------------------------------------------------------------------------
# What people handed in


@pytest.fixture
def handed_in(tmp_path, monkeypatch):
    """A copy of solutions/ for exercise 03, in which two people have handed something in; its folder of submissions."""
    shutil.copytree(exercise.SOLUTIONS, tmp_path / "solutions", ignore=shutil.ignore_patterns("submissions"))
    folder = tmp_path / "solutions" / "submissions" / sample.ASSIGNMENT
    folder.mkdir(parents=True)
    (folder / "ada.ipynb").write_bytes(b"as ada saved it")
    (folder / "bob.ipynb").write_bytes(b"as bob saved it")
    monkeypatch.setattr(exercise, "SOLUTIONS", tmp_path / "solutions")
    return folder


def people():
    return {e.name: e for e in sample.entries() if e.name.startswith("person-")}


def test_what_a_person_handed_in_must_pass_unless_it_is_said_otherwise(handed_in):
    (handed_in / "outcomes.yml").write_text("bob: {story: forgot the mask, fails: [03.kernel.nan]}")
    found = people()
    assert {name: e.fails for name, e in found.items()} == {"person-ada": frozenset(), "person-bob": {"03.kernel.nan"}}
    assert found["person-ada"].make() == b"as ada saved it" and found["person-bob"].story == "forgot the mask"
    assert not [e for e in sample.entries(small=True) if e.name.startswith("person-")]


@pytest.mark.parametrize("said, why", [
    ("carol: {fails: []}", "'carol' is not a notebook beside it; there are: ada, bob"),
    ("ada: {failed: [03.step]}", "of 'ada' story and fails may be said, not"),
    ("ada: 03.step", "of 'ada' story and fails may be said, not '03.step'"),
])  # fmt: skip
def test_an_outcome_that_says_nothing_is_refused(handed_in, said, why):
    (handed_in / "outcomes.yml").write_text(said)
    with pytest.raises(ValueError, match=why):
        sample.entries()


def test_a_sample_of_an_exercise_that_is_not_there_makes_nothing(tmp_path):
    made = autograder("sample", tmp_path / "class", sample.ASSIGNMENT, "04_mask")
    assert made.exit_code == 1 and "'04_mask' does not exist; there are: " in made.output
    assert not (tmp_path / "class").exists()
