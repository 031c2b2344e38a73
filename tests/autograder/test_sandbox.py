"""What code in a sandbox can reach, and what it costs when it misbehaves."""

import subprocess
import sys
import time
import types

import pytest
from small_assignment import needs_sandbox
from typer.testing import CliRunner

from autograder import cli, judge, sandbox
from autograder.sandbox import CudaUnavailable, Limits, Sandbox, SandboxUnavailable

pytestmark = needs_sandbox


def run(code, timeout=60, **limits):
    with Sandbox(Limits(**limits)) as box:
        process = box.start(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
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
    _, out, err, _ = run(
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + raises(code), file_bytes=4 * 2**20
    )
    assert out.strip() == "refused", err


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("kept = []\nwhile True: kept.append(bytearray(2**24))", "memory"),
        (
            "import os\nfor _ in range(4): os.fork()\nkept = bytearray(60 * 2**20)\nimport time; time.sleep(30)",
            "memory",
        ),
        ("import os, time\nfor _ in range(7): os.fork()\ntime.sleep(30)", "processes"),
        ("import os\nwhile True: os.fork()", "processes"),
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
    alive = lambda: [p.pid for p in psutil.process_iter(["status"]) if p.pid in pids and p.info["status"] != "zombie"]  # noqa: E731
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
        out = box.start([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).communicate(
            timeout=60
        )[0]
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


def test_one_run_leaves_nothing_for_another_not_even_beside_it():
    """Caches, /tmp and /dev/shm are a sandbox's own, while it runs and after it."""
    places = "import os; places = ['/tmp', '/dev/shm', os.path.expanduser('~'), os.environ['TRITON_CACHE_DIR']]\n"
    leave = places + "for p in places:\n    os.makedirs(p, exist_ok=True); open(p + '/mark', 'w').close()\nprint('left', flush=True)\ninput()"
    look = places + "print([p for p in places if os.path.exists(p + '/mark')], [n for n in os.listdir('/tmp') if n.startswith('ag-')])"
    with Sandbox() as first:
        process = first.start([sys.executable, "-c", leave], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "left\n"
        with Sandbox() as second:
            out = second.start([sys.executable, "-c", look], stdout=subprocess.PIPE, text=True).communicate(timeout=60)[0]
            assert out.strip() == f"[] ['{second.answers.parent.name}']"
    assert run(look)[1].startswith("[] ")


def test_memory_in_anonymous_files_counts():
    code = "import os\nfds = []\nwhile True:\n    fds.append(os.memfd_create('x')); os.write(fds[-1], bytes(2**24))"
    code, _, err, verdict = run(code, memory_bytes=500 * 2**20)
    assert verdict == "memory", err


def _fake_bwrap(monkeypatch, tmp_path, script):
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sandbox, "find_bwrap", lambda: str(fake))
    return str(fake)


def test_the_doctor_says_what_it_found_or_how_to_mend_it(monkeypatch, tmp_path):
    assert "Python started" in sandbox.doctor()
    _fake_bwrap(monkeypatch, tmp_path, "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    monkeypatch.setattr(sandbox, "_text", {"/proc/sys/user/max_user_namespaces": "0\n"}.get)
    with pytest.raises(
        SandboxUnavailable,
        match=r"uid map: Permission denied\n.*\n    sudo sysctl -w user.max_user_namespaces",
    ):
        sandbox.doctor()


DENIED = "bwrap: setting up uid map: Permission denied\n"
USUAL = {"/proc/sys/user/max_user_namespaces": "95000\n"}
APPARMOR = {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}


@pytest.mark.parametrize(
    ("files", "words", "others"),
    [
        ({"/proc/sys/user/max_user_namespaces": "0\n"}, ["sudo sysctl -w user.max_user_namespaces=15000"], ["AppArmor", "docker"]),
        (USUAL | {"/proc/sys/kernel/unprivileged_userns_clone": "0\n"}, ["sysctl -w kernel.unprivileged_userns_clone=1"], ["docker"]),
        (USUAL | APPARMOR, ["/etc/apparmor.d/flash-tiles-bwrap", "'  userns,'", "sudo apparmor_parser -r"], ["docker", "None of"]),
        (USUAL | {"/.dockerenv": ""}, ["docker run --security-opt seccomp=unconfined", "systempaths=unconfined"], ["apparmor_parser"]),
        (USUAL | {"/run/.containerenv": ""}, ["podman run --security-opt seccomp=unconfined"], ["apparmor_parser"]),
        # In a container the host's rule can be read, but the profile can't be mended from inside.
        (USUAL | APPARMOR | {"/.dockerenv": ""}, ["docker run", "on the host"], ["apparmor_parser"]),
        ({"/var/run/secrets/kubernetes.io/serviceaccount/namespace": "default"}, ["procMount: Unmasked"], ["apparmor_parser"]),
        (USUAL, ["None of the usual causes", "unshare --user"], ["docker run", "AppArmor does"]),
    ],
    ids=["off", "root alone", "AppArmor", "docker", "podman", "docker under AppArmor", "kubernetes", "unknown"],
)  # fmt: skip
def test_each_cause_that_closes_user_namespaces_is_explained_with_its_fix(files, words, others):
    text = sandbox.explain(DENIED, files.get)
    assert text.startswith("bwrap: setting up uid map: Permission denied\n")
    assert all(w in text for w in words) and not any(o in text for o in others), text


def test_the_profile_that_is_proposed_names_the_program_that_is_used_and_can_be_pasted(monkeypatch, tmp_path):
    path = _fake_bwrap(monkeypatch, tmp_path, "exit 1")
    text = sandbox.explain(DENIED, APPARMOR.get)
    command = (
        next(row for row in text.splitlines() if "printf" in row)
        .replace("sudo tee", "tee")
        .replace("/etc/apparmor.d", str(tmp_path))
    )
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
    profile = (tmp_path / "flash-tiles-bwrap").read_text().splitlines()
    assert profile[2] == f'profile flash-tiles-bwrap "{path}" flags=(unconfined) {{' and profile[3:] == [
        "  userns,",
        "}",
    ]


@pytest.mark.parametrize(
    "error", ["ImportError: no numpy", "bwrap: execvp /home/x/.venv/bin/python: No such file or directory"]
)
def test_python_that_fails_inside_is_not_blamed_on_the_system(error):
    text = sandbox.explain(error, APPARMOR.get)
    assert text.startswith(error) and "does not run in it" in text and "sysctl" not in text


@pytest.mark.parametrize(
    ("status", "out", "err", "words"),
    [
        (
            1,
            "",
            "RuntimeError: No CUDA GPUs are available",
            ["No CUDA GPUs", "outside as well", "/dev/nvidia0, /dev/nvidia-uvm"],
        ),
        (
            1,
            "a CUDA context on X\n",
            "RuntimeError: Failed to find C compiler.",
            ["Failed to find C compiler", "apt install gcc"],
        ),
        (1, "", "\nit was still running after 180 s", ["still running"]),
    ],
)
def test_a_sandbox_without_cuda_is_told_apart_from_none(monkeypatch, status, out, err, words):
    answers = {False: (0, "inside\n", ""), True: (status, out, err)}
    monkeypatch.setattr(sandbox, "_attempt", lambda code, gpu: answers[gpu])
    monkeypatch.setattr(sandbox, "gpu_nodes", lambda: ["/dev/nvidia0", "/dev/nvidia-uvm"])
    assert "Python started" in sandbox.doctor()
    with pytest.raises(CudaUnavailable) as raised:
        sandbox.doctor(gpu=True)
    assert all(w in str(raised.value) for w in [*words, "autograder grade --cpu"]), raised.value
    monkeypatch.setattr(sandbox, "gpu_nodes", lambda: ["/dev/nvidia0"])
    with pytest.raises(CudaUnavailable) as raised:
        sandbox.doctor(gpu=True)
    assert bool(out) != ("nvidia-modprobe -u" in str(raised.value))
    result = CliRunner().invoke(cli.app, ["doctor", "--sandbox"], catch_exceptions=False)
    assert result.exit_code == cli.OK  # there is no GPU here
    monkeypatch.setattr(cli, "gpu_nodes", lambda: ["/dev/nvidia0"])
    result = CliRunner().invoke(cli.app, ["doctor", "--sandbox"], catch_exceptions=False)
    assert result.exit_code == cli.NO_SANDBOX and "FIX  the sandbox has no CUDA" in result.output


def test_what_works_with_a_gpu_is_said(monkeypatch):
    monkeypatch.setattr(
        sandbox,
        "_attempt",
        lambda code, gpu: (
            0,
            "a CUDA context on X\nand a kernel compiled by Triton\n" if gpu else "inside\n",
            "",
        ),
    )
    assert "a CUDA context on X and a kernel compiled by Triton" in sandbox.doctor(gpu=True)


@pytest.mark.skipif(not sandbox.gpu_nodes(), reason="no GPU here")
def test_a_sandbox_has_cuda_where_there_is_a_gpu():
    assert "a kernel compiled by Triton" in sandbox.doctor(gpu=True)


def test_gpus_are_found_by_their_nodes_under_linux_and_wsl(tmp_path):
    (tmp_path / "dev").mkdir()
    assert sandbox.gpu_nodes(tmp_path) == []
    (tmp_path / "dev" / "dxg").symlink_to("/dev/null")
    assert sandbox.gpu_nodes(tmp_path) == []  # a GPU, of whatever maker
    library = tmp_path / "usr/lib/wsl/lib/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert sandbox.gpu_nodes(tmp_path) == [str(tmp_path / "dev" / "dxg")]
    for name in ("nvidia0", "nvidiactl"):
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    (tmp_path / "dev" / "nvidia-caps").mkdir()
    assert [n.rsplit("/", 1)[1] for n in sandbox.gpu_nodes(tmp_path)] == ["dxg", "nvidia0", "nvidiactl"]


def test_other_systems_are_told_where_to_grade(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux, and this is darwin"):
        sandbox.find_bwrap()


_HOLD = """
import sys, time
from autograder import sandbox, warm
with sandbox.Sandbox() as box:
    parent = warm.Parent()
    print(box.requests.parent, parent.folder, flush=True)
    time.sleep(100)
"""


def test_what_a_killed_grader_left_is_removed_and_no_one_elses(tmp_path):
    graders = [subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    bare = sandbox.Path(sandbox.tempfile.mkdtemp(prefix="ag-", dir="/tmp"))  # just made: its lock is not there yet
    try:
        dead, alive = ([sandbox.Path(p) for p in g.stdout.readline().split()] for g in graders)
        graders[0].kill()
        graders[0].wait()
        assert all(p.exists() for p in (*dead, *alive)) and len(dead) == len(alive) == 2
        sandbox._remove_left_behind.cache_clear()
        with Sandbox() as box:
            assert not any(p.exists() for p in dead)
            assert all(p.exists() for p in (*alive, bare, box.requests))
    finally:
        for g in graders:
            g.kill()
            g.communicate()
        for folder in (*alive, bare):
            sandbox.remove(folder)


@pytest.fixture
def cards(monkeypatch):
    """Two cards that NVML tells of; the driver numbers their nodes the other way round."""
    nvml = types.SimpleNamespace(
        NVMLError=type("NVMLError", (Exception,), {}), NVML_CLOCK_MEM=2, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetUUID=["GPU-aa11-0", "GPU-bb22-0"].__getitem__,
        nvmlDeviceGetMinorNumber=[1, 0].__getitem__, nvmlDeviceGetName=["H100", "L4"].__getitem__,
        nvmlSystemGetDriverVersion=lambda: "580", nvmlDeviceGetMaxClockInfo=lambda handle, clock: [2619, 6251][handle],
        nvmlDeviceGetMemoryBusWidth=[5120, 192].__getitem__,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    nodes = ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
    monkeypatch.setattr(sandbox, "gpu_nodes", lambda: nodes)
    sandbox._card.cache_clear()
    yield nvml
    sandbox._card.cache_clear()


def inside(monkeypatch, visible):
    """(CUDA_VISIBLE_DEVICES, the device nodes) of a sandbox that is made while CUDA_VISIBLE_DEVICES is `visible`."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with Sandbox(gpu=True) as box:
        command = box.command(["python"])
        devices = [command[i + 1] for i, word in enumerate(command) if word == "--dev-bind"]
        return box.environment().get("CUDA_VISIBLE_DEVICES"), [node.removeprefix("/dev/") for node in devices]


@pytest.mark.parametrize(("visible", "uuid", "name", "node"), [
    (None, "GPU-aa11-0", "H100", "nvidia1"), ("GPU-bb22-0", "GPU-bb22-0", "L4", "nvidia0"), ("GPU-bb", "GPU-bb22-0", "L4", "nvidia0"),
    ("1", "GPU-bb22-0", "L4", "nvidia0"), ("1,0", "GPU-bb22-0", "L4", "nvidia0"),
])  # fmt: skip
def test_a_sandbox_gets_the_card_that_its_verdict_names_and_no_other(monkeypatch, cards, visible, uuid, name, node):
    assert inside(monkeypatch, visible) == (uuid, ["nvidia-uvm", node, "nvidiactl"])
    facts = judge.machine(gpu=True)
    assert facts["card"] == name and facts["driver"] == "580"
    assert facts["memory_rate"] == {"H100": 2 * 2619 * 10**6 * 640, "L4": 2 * 6251 * 10**6 * 24}[name]


def test_a_card_that_nvml_does_not_know_is_not_taken_for_another(monkeypatch, cards):
    every = ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert inside(monkeypatch, "MIG-cc33") == ("MIG-cc33", every)
    assert judge.machine(gpu=True)["card"] == "a card that NVML does not name (CUDA_VISIBLE_DEVICES=MIG-cc33)"

    def refused(*handle):
        raise cards.NVMLError

    cards.nvmlDeviceGetMinorNumber = refused  # WSL
    assert inside(monkeypatch, "0") == ("GPU-aa11-0", every)
    cards.nvmlInit = refused
    sandbox._card.cache_clear()
    assert inside(monkeypatch, "0") == ("0", every)
