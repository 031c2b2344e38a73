"""The workflows on GitHub: what starts them, what they may do, what they run, and that their logs hold no names."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from autograder import cli, exercise

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEXT = {path.name: path.read_text("utf-8") for path in FILES}
# YAML 1.1 reads the key `on` as true.
FLOWS = {name: {("on" if key is True else key): value for key, value in yaml.safe_load(text).items()}
         for name, text in TEXT.items()}  # fmt: skip
JOBS = [(name, job) for name, flow in FLOWS.items() for job in flow["jobs"]]
BIN = Path(sys.executable).parent

# By hand: what may start each workflow, and what each job may do. Everything else is a failure.
TRIGGERS = {
    "tests.yml": {"push", "pull_request", "workflow_dispatch"},
    "pages.yml": {"push", "workflow_dispatch"},
    "grade.yml": {"workflow_dispatch"},
}
READ = {"contents": "read"}
PERMISSIONS = {
    ("tests.yml", "test"): READ,
    ("pages.yml", "build"): READ,
    ("pages.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("grade.yml", "grade"): READ,
}


def job_of(name, job):
    return FLOWS[name]["jobs"][job]


def steps():
    return [(name, job, step) for name, job in JOBS for step in job_of(name, job)["steps"]]


def scripts():
    return [
        (name, job, step.get("name", "no name"), step["run"]) for name, job, step in steps() if "run" in step
    ]


def test_each_workflow_is_started_by_what_it_may_and_nothing_else():
    assert {name: set(flow["on"]) for name, flow in FLOWS.items()} == TRIGGERS


def test_each_job_may_do_what_it_must_and_no_workflow_gives_more():
    assert {(name, job): job_of(name, job)["permissions"] for name, job in JOBS} == PERMISSIONS
    assert all(flow["permissions"] == {} for flow in FLOWS.values())


def test_the_job_that_may_write_runs_no_code_of_the_repository():
    for name, job in JOBS:
        if "write" in job_of(name, job)["permissions"].values():
            assert [set(step) & {"run", "uses"} for step in job_of(name, job)["steps"]] == [{"uses"}]
            assert "checkout" not in job_of(name, job)["steps"][0]["uses"]


def test_actions_are_pinned_to_a_commit_with_its_version_beside_it():
    named = [line for text in TEXT.values() for line in text.splitlines() if "uses:" in line]
    assert len(named) == sum("uses" in step for _, _, step in steps()) > 0
    for line in named:
        assert re.fullmatch(r" +(?:- )?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    # One action, one version, in all workflows.
    pins = {line.split("uses: ")[1] for line in named}
    assert len(pins) == len({pin.split("@")[0] for pin in pins})


def test_a_checkout_leaves_no_token_behind():
    checkouts = [step for _, _, step in steps() if "checkout" in step.get("uses", "")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize(
    ("name", "job", "title", "script"), scripts(), ids=lambda v: v if len(v) < 40 else ""
)
def test_no_expression_is_pasted_into_a_script_and_bash_can_read_it(name, job, title, script):
    assert "${{" not in script, "put it into env, and quote the variable"
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_secrets_are_in_reach_of_one_step_that_only_the_instructor_can_start():
    holders = [(name, job, step["name"]) for name, job, step in steps() if "secrets." in json.dumps(step)]
    assert holders == [("grade.yml", "grade", "Fetch the students' notebooks, as data")]
    assert sum(text.count("secrets.") for text in TEXT.values()) == 1
    assert "environment" in job_of("grade.yml", "grade"), "which says on which branch the secret can be had"


def test_a_runner_of_ones_own_serves_private_repositories_and_the_default_branch_alone():
    for name, job in JOBS:
        if "self-hosted" in job_of(name, job)["runs-on"]:
            assert TRIGGERS[name] == {"workflow_dispatch"}
            guard = {part.strip() for part in job_of(name, job)["if"].split("&&")}
            assert guard == {
                "github.event.repository.private",
                "github.ref_name == github.event.repository.default_branch",
            }
            assert "gpu" in job_of(name, job)["runs-on"]


def test_grades_are_not_uploaded_anywhere():
    used = {step["uses"].split("@")[0] for step in job_of("grade.yml", "grade")["steps"] if "uses" in step}
    assert used == {"actions/checkout"}


def test_jobs_end_and_two_never_write_to_one_gradebook():
    assert all(job_of(name, job)["timeout-minutes"] <= 720 for name, job in JOBS)
    assert FLOWS["grade.yml"]["concurrency"] == {"group": "grade", "cancel-in-progress": False}


def test_every_exercise_can_be_chosen():
    assert (
        FLOWS["grade.yml"]["on"]["workflow_dispatch"]["inputs"]["assignment"]["options"]
        == exercise.assignments()
    )


def test_the_graders_commands_have_the_options_that_are_given_to_them():
    used = re.findall(r"bin/autograder (\w+)((?:\s+(?:\\\n\s*)?[^|>&\n]+)?)", TEXT["grade.yml"])
    assert {command for command, _ in used} == {"doctor", "intake", "grade", "report"}
    for command, rest in used:
        helped = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert helped.exit_code == 0, command
        assert set(re.findall(r"--[a-z-]+", rest)) <= set(re.findall(r"--[a-z-]+", helped.output)), command


# --- the grading job, with stand-ins for what it calls ---------------------------------------------------------

NAME = "ada-lovelace"
STAND_IN = f"""#!/bin/bash
echo "$*" >> calls.txt
case "$1" in doctor) ;; *) echo "{NAME}"; echo "{NAME}" >&2;; esac
if [ "$1" = report ]; then
  while [ "$1" != --json ]; do shift; done
  echo '[{{"student": "{NAME}", "graded": true, "waiting": 2.0, "flags": ["{NAME}"]}}, {{"student": "bob", "graded": false}}]' > "$2"
fi
exit "${{STATUS:-0}}"
"""


@pytest.fixture
def grading(tmp_path):
    """A function: run the grading job's scripts in order, with variables; (what they print, the summary, the statuses)."""
    room = tmp_path / "a class"
    room.mkdir()
    (room / "nbgrader_config.py").touch()
    (room / "repositories.csv").write_text(f"student,repository\n{NAME},https://127.0.0.1:1/{NAME}\n")
    work = tmp_path / "work"
    (work / ".venv/bin").mkdir(parents=True)
    (work / "tools").mkdir()
    shutil.copy(ROOT / "tools/fetch_class.py", work / "tools")
    (work / ".venv/bin/autograder").write_text(STAND_IN)
    (work / ".venv/bin/autograder").chmod(0o755)
    (work / ".venv/bin/python").symlink_to(sys.executable)
    summary = tmp_path / "summary.md"

    def run(**variables):
        printed, status = "", {}
        for step in job_of("grade.yml", "grade")["steps"]:
            if (
                "run" not in step
                or "make venv" in step["run"]
                or (any(status.values()) and "always()" not in step.get("if", ""))
            ):
                continue
            env = {"PATH": os.environ["PATH"], "CLASS_DIR": str(room), "ASSIGNMENT": "03_flash_forward",
                   "LOG": str(room / ".autograder/runs/7-1"), "GITHUB_STEP_SUMMARY": str(summary), **variables}  # fmt: skip
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", step["run"]], cwd=work, env=env, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
            printed += done.stdout
            status[step["name"]] = done.returncode
        return printed, summary.read_text() if summary.exists() else "", status

    run.room, run.work = room, work
    return run


def test_a_run_prints_counts_and_no_names_and_keeps_the_rest_in_the_class(grading):
    printed, summary, status = grading()
    assert set(status.values()) == {0}, printed
    assert NAME not in printed + summary
    assert "0 of 1 fetched, 1 refused" in printed  # nobody answers at that address, and the others are graded
    assert summary.startswith("1 of 2 submissions graded; 1 with points that wait, 1 flagged.\n")
    log = grading.room / ".autograder/runs/7-1"
    assert log.stat().st_mode & 0o077 == 0
    assert all(
        NAME in (log / name).read_text() for name in ("fetched.csv", "intake.txt", "grade.txt", "report.txt")
    )
    assert [line.split()[0] for line in (grading.work / "calls.txt").read_text().splitlines()] == [
        "doctor", "intake", "grade", "report"]  # fmt: skip


def test_a_step_that_fails_is_seen_and_still_says_no_name(grading):
    printed, summary, status = grading(STATUS="1")
    assert [name for name, code in status.items() if code] == ["A sandbox with the GPU in it", "Count"]
    assert NAME not in printed + summary
    (grading.room / "nbgrader_config.py").unlink()
    printed, _, status = grading()
    assert status["The class folder"] == 1 and "CLASS_DIR names no class folder" in printed


# --- linters, where they are -----------------------------------------------------------------------------------


def lint(program, *arguments):
    found = shutil.which(program, path=os.pathsep.join([str(BIN), os.environ["PATH"]]))
    if not found:
        pytest.skip(f"{program} is not installed here; .github/workflows/tests.yml runs it")
    return subprocess.run([found, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_actionlint_has_nothing_to_say():
    done = lint("actionlint", "-no-color", *(str(path.relative_to(ROOT)) for path in FILES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_has_nothing_to_say():
    done = lint("zizmor", "--offline", "--no-progress", "--persona", "pedantic", ".github")
    assert done.returncode == 0, done.stdout + done.stderr
