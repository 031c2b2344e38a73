"""What code in a sandbox can reach, and what it costs when it misbehaves."""

import subprocess
import sys
import time

import pytest
from small_assignment import needs_sandbox

from autograder import sandbox
from autograder.sandbox import Limits, Sandbox, SandboxUnavailable

pytestmark = needs_sandbox


def run(code, timeout=60, **limits):
    with Sandbox(Limits(**limits)) as box:
        process = box.start([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err, box.verdict


def raises(code, error="OSError"):
    """Code that prints "refused" if `code` raises `error`."""
    body = "\n".join("    " + line for line in code.splitlines())
    return f"try:\n{body}\nexcept {error} as e:\n    print('refused')\nelse:\n    print('DONE')"


def test_the_course_is_not_there_but_the_libraries_are(tmp_path):
    secret = tmp_path / "gradebook.db"
    secret.write_text("grades")
    code = f"""
import importlib, os
for name in ("kernels", "widgets", "solutions", "autograder.checks", "autograder.judge"):
    try:
        importlib.import_module(name)
        print("FOUND", name)
    except ImportError:
        pass
import numpy, autograder
print(sorted(n for n in vars(autograder) if n == "check"), os.path.exists({str(secret)!r}), os.path.exists({__file__!r}))
"""
    _, out, err, _ = run(code)
    assert out.strip() == "['check'] False False", err


def test_no_network_no_other_process_no_home_no_environment():
    code = """
import os, socket
print(len([p for p in os.listdir("/proc") if p.isdigit()]) <= 3)
print([n for n in os.listdir("/sys/class/net")] if os.path.isdir("/sys/class/net") else [])
print(os.environ.get("SECRET_OF_THE_HOST"), os.path.expanduser("~"), os.listdir("/tmp/home"))
s = socket.socket()
s.settimeout(2)
try:
    s.connect(("127.0.0.1", 22))
    print("CONNECTED")
except OSError:
    print("no network")
"""
    import os

    os.environ["SECRET_OF_THE_HOST"] = "x"
    try:
        _, out, err, _ = run(code)
    finally:
        del os.environ["SECRET_OF_THE_HOST"]
    assert out.splitlines() == ["True", "[]", "None /tmp/home []", "no network"], err


@pytest.mark.parametrize(
    "code",
    [
        "open('/usr/mark', 'w')",
        "open(__import__('numpy').__file__, 'a')",
        "open('/course/autograder.py', 'a')",
        "open('/etc/passwd')",
        "__import__('os').setuid(0)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "open('/tmp/big', 'wb').write(bytes(300 * 2**20))",
        "open('/dev/shm/big', 'wb').write(bytes(300 * 2**20))",
        "open('big', 'wb').write(bytes(8 * 2**20))",
    ],
)
def test_what_must_be_refused_is_refused(code):
    _, out, err, _ = run("import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + raises(code), file_bytes=4 * 2**20)
    assert out.strip() == "refused", err


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("kept = []\nwhile True: kept.append(bytearray(2**24))", "memory"),
        ("import os\nfor _ in range(4): os.fork()\nkept = bytearray(60 * 2**20)\nimport time; time.sleep(30)", "memory"),
        ("import os, time\nfor _ in range(7): os.fork()\ntime.sleep(30)", "processes"),
    ],
)
def test_the_watchdog_ends_what_takes_too_much(code, reason):
    code, _, _, verdict = run(code, memory_bytes=500 * 2**20)
    assert code != 0 and verdict == reason


def test_thousands_of_threads_are_refused_or_ended():
    code = "import threading, time\nfor _ in range(2000): threading.Thread(target=time.sleep, args=(30,)).start()\ntime.sleep(30)"
    code, _, err, verdict = run(code)
    assert code != 0 and (verdict == "processes" or "can't start new thread" in err)


def test_leaving_ends_every_process_even_a_daemon():
    import psutil

    with Sandbox() as box:
        box.start([sys.executable, "-c", "import os, time\nif os.fork() == 0: os.setsid()\nprint('up', flush=True)\ntime.sleep(600)"],
                  stdout=subprocess.PIPE).stdout.readline()  # fmt: skip
        pids = [p.pid for p in box.processes()]
    assert len(pids) >= 3
    deadline = time.monotonic() + 10
    alive = lambda: [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != "zombie"]  # noqa: E731
    while alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive() == []
    assert not box.answers.exists()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        ("os.mkfifo('{a}/1/x')", "not a plain file"),
        ("os.symlink('/etc/hostname', '{a}/1/x')", "can't be opened"),
        ("os.mkdir('{a}/1/x')", "not a plain file"),
        ("open('{a}/1/x', 'wb').write(bytes(2000))", "at most 1000"),
        ("os.rmdir('{a}/1'); os.symlink('/etc', '{a}/1')", "not a folder"),
        ("os.rmdir('{a}/1'); open('{a}/1', 'w')", "not a folder"),
        ("import socket; socket.socket(socket.AF_UNIX).bind('{a}/1/x')", "can't be opened"),
    ],
)
def test_our_side_reads_plain_small_files_and_nothing_that_was_put_in_their_place(prepare, words):
    with Sandbox() as box:
        code = "import os\nos.mkdir('{a}/1')\n" + prepare
        box.start([sys.executable, "-c", code.format(a=box.answers)]).wait(60)
        assert box.look("2", "x", 1000) is None
        with pytest.raises(ValueError, match=words):
            box.look("1", "x", 1000)


def test_the_requests_cannot_be_written_to_and_the_folders_cannot_be_replaced():
    with Sandbox() as box:
        tries = [f"open('{box.requests}/x', 'w')", f"os.rename('{box.answers}', '{box.answers}2')",
                 f"os.rmdir('{box.requests}')", f"os.symlink('/etc', '{box.requests}/1')"]  # fmt: skip
        code = "import os\n" + "\n".join(raises(t) for t in tries)
        out = box.start([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).communicate(timeout=60)[0]
        assert out.split() == ["refused"] * len(tries)
        assert list(box.requests.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "i = 0\nwhile True:\n    open(f'{a}/{i}', 'wb').write(bytes(2**20)); i += 1",
        "i = 0\nwhile True:\n    open(f'{a}/{i}', 'wb'); i += 1",
    ],
    ids=["bytes", "files"],
)
def test_a_full_disk_is_not_what_an_answer_costs(code):
    with Sandbox(Limits(file_bytes=64 * 2**20)) as box:
        box.start([sys.executable, "-c", f"a = {str(box.answers)!r}\n" + code]).wait(60)
        assert box.verdict == "disk"


def test_memory_in_anonymous_files_counts():
    code = "import os\nfds = []\nwhile True:\n    fds.append(os.memfd_create('x')); os.write(fds[-1], bytes(2**24))"
    code, _, err, verdict = run(code, memory_bytes=500 * 2**20)
    assert verdict == "memory", err


def test_the_doctor_says_what_it_found_or_how_to_mend_it(monkeypatch, tmp_path):
    assert "Python started" in sandbox.doctor()
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sandbox, "find_bwrap", lambda: str(fake))
    with pytest.raises(SandboxUnavailable, match="uid map.*apparmor_restrict_unprivileged_userns"):
        sandbox.doctor()


def test_other_systems_are_told_where_to_grade(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux, and this is darwin"):
        sandbox.find_bwrap()
