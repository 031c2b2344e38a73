"""Many submissions on several workers: whatever becomes of a worker or of the coordinator, the class is graded."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from dask import config as dask_config
from distributed import LocalCluster, Nanny
from odd_jobs import jobs, log
from small_assignment import STEP, master, needs_sandbox, submission

from autograder import fleet
from autograder.classroom import Classroom

SOURCE = master("### BEGIN SOLUTION\n" + STEP + "### END SOLUTION")


@pytest.fixture(scope="module")
def cluster():
    with fleet.local(submissions=100, workers=2) as client:
        yield client


@pytest.fixture
def client(cluster):
    """With both workers, also after a test that has killed one."""
    cluster.wait_for_workers(2, timeout=120)
    return cluster


def statuses(verdict):
    return {c["status"] for c in verdict["cells"].values()}


def run(todo, client, **options):
    """student -> verdict, and the tally."""
    tally = fleet.Tally(len(todo))
    return {job.student: verdict for job, verdict in fleet.grade_all(todo, client, tally, **options)}, tally


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def test_no_worker_keeps_a_profile(client):
    """Dask's profiler would hold an hour of stacks."""
    running = client.run(lambda dask_worker: sorted(dask_worker.periodic_callbacks))
    assert running and not any("profile" in name for names in running.values() for name in names)


def test_a_submission_that_kills_every_worker_is_given_up_and_the_rest_is_graded(client, tmp_path):
    innocent = {f"s{i}": "linger" for i in range(6)}
    todo = jobs(tmp_path, s00="", poison="die", **innocent)
    found, tally = run(todo, client)
    assert statuses(found.pop("poison")) == {"infrastructure_error"}
    assert {frozenset(statuses(v)) for v in found.values()} == {frozenset({"needs_review"})} and len(found) == 7
    assert (tally.done, tally.failed) == (8, 1) and tally.retried >= 1
    poison = todo[1]
    written = json.loads(Path(poison.stem + ".json").read_text())
    assert "the worker died each time" in written["flags"][0] and written["retries"] == log(poison).count(", try ") - 1 == 3
    assert "given up: " in log(poison)


def test_a_submission_that_gets_its_worker_stuck_is_ended_and_not_tried_again(client, tmp_path):
    todo = jobs(tmp_path, stuck="sleep", ada="", bob="")
    found, _ = run(todo, client, job_seconds=15)  # the others must never take that long, on a busy machine either
    assert statuses(found["stuck"]) == {"infrastructure_error"} and "more than 15 s" in found["stuck"]["flags"][0]
    assert statuses(found["ada"]) == statuses(found["bob"]) == {"needs_review"}
    assert log(todo[0]).count(", try ") == 1 and "the worker was ended, after 15 s" in log(todo[0])


def test_what_is_tried_again_is_written_down(client, tmp_path):
    todo = jobs(tmp_path, always="raise", once="raise once", died="die once", ada="")
    found, tally = run(todo, client)
    assert statuses(found["always"]) == {"infrastructure_error"} and "OSError: the disk is full" in found["always"]["flags"][0]
    for student in ("once", "died"):
        assert statuses(found[student]) == {"needs_review"} and found[student]["retries"] == 1
    assert "retries" not in found["ada"] and tally.retried == 3
    assert "failed: OSError" in log(todo[1]) and "the one before did not finish" in log(todo[2])
    assert log(todo[1]).splitlines()[-1].endswith(" s")


def test_a_worker_that_is_killed_loses_nothing(client, tmp_path):
    todo = jobs(tmp_path, ada="sleep once", bob="linger", cyd="linger")
    stream = fleet.grade_all(todo, client)
    next(stream)
    pid = until(lambda: re.search(r"try 1 on .*process (\d+)", log(todo[0])))[1]
    os.kill(int(pid), signal.SIGKILL)
    rest = {job.student: verdict for job, verdict in stream}
    assert statuses(rest["ada"]) == {"needs_review"} and rest["ada"]["retries"] == 1


def test_what_a_killed_try_left_behind_is_gone_before_the_next(tmp_path, monkeypatch):
    """The old verdict above all: else a kill between the two files leaves it beside a new notebook."""
    (job,) = jobs(tmp_path, ada="")
    folder = Path(job.stem).parent
    folder.mkdir(parents=True)
    for name in ("key-cpu.123.part", "key-cpu.json", "key-cpu.ipynb", "other-cpu.json"):
        (folder / name).write_text("half")
    grade, seen = fleet.judge.grade, []
    monkeypatch.setattr(fleet.judge, "grade", lambda job: seen.extend(sorted(p.name for p in folder.iterdir())) or grade(job))
    fleet._grade(job, "a run", 60.0)
    assert seen == ["key-cpu.ipynb", "other-cpu.json"]
    assert sorted(p.name for p in folder.iterdir()) == ["key-cpu.ipynb", "key-cpu.json", "other-cpu.json"]
    assert json.loads((folder / "key-cpu.json").read_text())["student"] == "ada"


def test_each_local_worker_has_a_card_of_its_own(monkeypatch):
    monkeypatch.setattr(fleet, "_cards", lambda: ["GPU-a", "GPU-b", "GPU-c"])
    with fleet.local(submissions=10, workers=2, gpu=True) as client:
        pinned = client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
        assert sorted(pinned.values()) == ["GPU-a", "GPU-b"]
        assert fleet.has_gpu(client) and [fleet._slots_of(w, True) for w in fleet._workers(client)] == [1, 1]


def test_a_submission_for_a_gpu_goes_only_to_a_worker_that_declares_one(tmp_path):
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        cluster.worker_spec["card"] = {"cls": Nanny, "options": {"nthreads": 2, "resources": {"GPU": 1}, "memory_limit": 0}}
        cluster.sync(cluster._correct_state)
        with fleet.remote(cluster.scheduler_address) as client:
            client.wait_for_workers(2)
            pids = client.run(lambda dask_worker: (dask_worker.state.total_resources, os.getpid())).values()
            assert fleet.has_gpu(client)
            todo = [dataclasses.replace(job, gpu=True) for job in jobs(tmp_path, ada="", bob="", cyd="")]
            found, _ = run(todo, client)
    # There is no card here, so that none is graded; but each was tried, there and nowhere else.
    assert len(found) == 3
    assert {int(pid) for job in todo for pid in re.findall(r"process (\d+), gpu", log(job))} == {p for has, p in pids if has}


def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(fleet, "_ANSWER", 1.0)
    for address in ("tcp://127.0.0.1:9", "tls://127.0.0.1:9", "nonsense"):
        with pytest.raises(fleet.FleetError, match=address), fleet.remote(address):
            pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_certificates_of_dasks_own_configuration_are_used(tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=class",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)  # fmt: skip
    tls = {"distributed.comm.tls.ca-file": certificate}
    for role in ("client", "scheduler", "worker"):
        tls |= {f"distributed.comm.tls.{role}.cert": certificate, f"distributed.comm.tls.{role}.key": key}
    (job,) = jobs(tmp_path, ada="")
    with (
        dask_config.set(tls),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, protocol="tls://") as cluster,
        fleet.remote(cluster.scheduler_address) as client,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        found, _ = run([job], client)
    assert statuses(found["ada"]) == {"needs_review"}


def test_the_estimate_follows_the_pace():
    tally = fleet.Tally(10)
    assert tally.seconds_left() is None
    tally.started -= 20
    tally.done = 4
    assert tally.seconds_left() == pytest.approx(30, rel=0.01)


# -- the whole command, killed at any moment -----------------------------------------------------------------------


def command(folder, *more):
    return [sys.executable, "-m", "autograder.cli", "grade", "small", "--class", str(folder), "--jobs", "2", *more]


def tries(room):
    """student -> how often it was begun to be graded, over all runs."""
    return {p.stem: p.read_text().count(", try ") for p in (room.folder / ".autograder" / "logs" / "small").glob("*.log")}


def count(room, what):
    return len(list((room.folder / ".autograder").glob(what)))


def kill_when(room, what, number):
    """Start to grade, and kill that process (not its workers) as soon as there are `number` files like `what`."""
    process = subprocess.Popen(command(room.folder, "--unsafe"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: count(room, what) >= number or process.poll() is not None)
    assert process.poll() is None, "it was too quick to be killed"
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(workers, timeout=20)
    assert not [w for w in workers if w.is_running() and w.status() != psutil.STATUS_ZOMBIE], "workers outlive the coordinator"


def test_the_coordinator_may_be_killed_at_any_moment(tmp_path):
    room = Classroom.create(tmp_path / "class")
    room.add("small", SOURCE, "small")
    students = [f"s{i:02d}" for i in range(16)]
    for student in students:  # nothing was handed in: graded in a moment, without a sandbox
        (room.folder / "submitted" / student / "small").mkdir(parents=True)
    kill_when(room, "verdicts/small/*/*.json", 5)
    assert count(room, "recorded/small/*") == 0
    kill_when(room, "recorded/small/*", 5)
    before = tries(room)
    done = subprocess.run(command(room.folder, "--unsafe"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"0 graded (0 of them in more than one try), {len(students)} unchanged" in done.stdout.replace("\n", " ")
    assert tries(room) == before and set(before) == set(students)
    assert sum(before.values()) <= len(students) + 2, "only what the two workers were at is graded twice"
    assert count(room, "**/*.part") == 0 and count(room, "staged/*") == 0
    assert count(room, "verdicts/small/*/*.json") == count(room, "recorded/small/*") == len(students)
    with room.gradebook() as gradebook:
        assert sorted(s.student_id for s in gradebook.assignment_submissions("small")) == students
    assert list(room.unrecorded("small")) == []


@needs_sandbox
def test_a_killed_worker_takes_its_sandbox_with_it_and_the_scores_are_right(tmp_path):
    room = Classroom.create(tmp_path / "class")
    room.add("small", SOURCE, "small")
    room.submit("small", "slow", submission(STEP, extra="import time\ntime.sleep(2)"))
    room.submit("small", "wrong", submission(STEP.replace("alpha * o", "o")))
    process = subprocess.Popen(command(room.folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    path = room.folder / ".autograder" / "logs" / "small" / "slow.log"
    worker = psutil.Process(int(until(lambda: path.exists() and re.search(r"process (\d+)", path.read_text()))[1]))
    inside = until(lambda: [p for p in worker.children(recursive=True) if p.name().startswith("python")])
    worker.kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    psutil.wait_procs(inside, timeout=10)
    assert not [p for p in inside if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert "1 of them in more than one try" in output and "slow" not in output
    with room.gradebook() as gradebook:
        assert {s.student_id: s.score for s in gradebook.assignment_submissions("small")} == {"slow": 5.0, "wrong": 0.0}
