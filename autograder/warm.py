"""Start a sandbox's Python without paying for its imports: a warm parent, of which each sandbox gets a fork.

Importing torch, triton and ipykernel takes longer than many a submission. So one process for each grader, the parent, imports
them once, and then does nothing but wait and fork. What keeps students apart, and the host out of reach:

- The parent is started by exec with the sandbox's own environment, before any submission, in a bubblewrap of its own: no
  network, and the same read-only files as inside (and `/proc`, `/dev` and the folder that holds the sandboxes' folders).
  So its memory holds no secret, and the programs and libraries that it maps, which a fork keeps, lie on read-only mounts
  (else a fork could write to the host's Python through `/proc/self/exe`).
- It only accepts and forks. The fork reads the request, so every submission starts from the same untouched image.
- The fork has bubblewrap make a sandbox as always (held open by `cat`), joins its namespaces one by one, and gives up every
  capability, file and limit that the processes in there don't have, before it runs anything.
- Before a parent is used for the first time, a trial compares what a process finds inside, started this way and by
  bubblewrap (`FACTS`). If anything differs, or namespaces can't be nested here, sandboxes start as they did without it.

What two forks of one parent do share: the layout of their addresses, Python's hash seed, and pages that none has written to.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

from autograder import fork

PROGRAM = Path(fork.__file__)
_PATIENCE = 300  # seconds: on a machine where every core is taken, imports take long
# Run inside, both ways: everything that a process can see or do there should be the same.
FACTS = r"""
import ctypes, json, os, resource, sys
def read(path):
    with open(path) as file:
        return file.read()
def attempt(call):
    try:
        return call()
    except OSError as error:
        return error.errno
fds = {fd: attempt(lambda: os.readlink(f"/proc/self/fd/{fd}")) for fd in sorted(os.listdir("/proc/self/fd"))}
own = f"/proc/{os.getpid()}/fd"
kept = ("Umask", "Uid", "Gid", "Groups", "Threads", "Sig", "Shd", "Cap", "NoNew", "Seccomp", "Specu", "Cpus", "Mems", "THP", "untag", "x86")
libc = ctypes.CDLL(None)
mounts = [line.split() for line in read("/proc/self/mountinfo").splitlines()]
print(json.dumps({
    "status": [l for l in read("/proc/self/status").splitlines() if l.startswith(kept) and not l.startswith("SigQ")],
    "mounts": sorted([m[3:6] + m[m.index("-") + 1:] for m in mounts], key=lambda m: m[1]),
    "root": sorted(os.listdir("/")),
    "fds": sorted(fd for fd, target in fds.items() if target not in (2, own)),
    "environment": [dict(os.environ), sorted(read("/proc/self/environ").split("\0"))],
    "limits": [resource.getrlimit(i) for i in range(16)],
    "prctl": [libc.prctl(option, 0, 0, 0, 0) for option in (3, 27, 39)],
    "maps": [read("/proc/self/uid_map").split(), read("/proc/self/gid_map").split(), read("/proc/self/setgroups")],
    "place": [os.getcwd(), os.uname().nodename, os.nice(0), read("/proc/self/oom_score_adj"), os.getsid(0) > 0, os.getpgid(0) > 0],
    "program": [sys.executable, os.readlink("/proc/self/exe"), sys.path, sys.argv, sys.prefix, sys.flags[:]],
    "label": attempt(lambda: read("/proc/self/attr/current")),
    "cgroup": read("/proc/self/cgroup"),
    "interfaces": sorted(l.split(":")[0].strip() for l in read("/proc/net/dev").splitlines()[2:]),
    "write to the program": attempt(lambda: os.chmod("/proc/self/exe", os.stat("/proc/self/exe").st_mode)),
    "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in sorted(os.listdir("/proc/self/ns"))},
}))
"""


class Parent:
    """A warm parent, for sandboxes with or without a GPU. Ends with the process that made it.

    Raises:
        OSError: it could not be started; the message says why.
    """

    def __init__(self, gpu=False):
        from autograder import sandbox

        folder, lock = sandbox.take_folder()
        self.folder = str(folder)
        self._address = f"{self.folder}/s"
        # As user 0, who is nobody outside: with another's capabilities bubblewrap refuses to make the sandboxes in there.
        command = [sandbox.find_bwrap(), "--unshare-user", "--unshare-net", "--die-with-parent", "--new-session", "--clearenv",
                   "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", *sandbox.view()]  # fmt: skip
        if gpu:
            command += ["--ro-bind", "/sys", "/sys"]
        for name, value in _environment(gpu):
            command += ["--setenv", name, value]
        for path, inside in ((PROGRAM, "/course/fork.py"), (sandbox.SHIM, sandbox.SHIM)):
            command += ["--ro-bind", str(path), str(inside)]
        command += ["--bind", self.folder, self.folder, "--chdir", "/tmp/home"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen()
            self._process = subprocess.Popen(
                [*command, "--", sys.executable, "/course/fork.py", "serve", str(listener.fileno())], start_new_session=True,
                pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.end = weakref.finalize(self, _end, self._process, self.folder, lock)
        timer = threading.Timer(_PATIENCE, self._process.kill)
        timer.start()
        lines = [b"it ended without a word"]
        with self._process.stdout as output:  # imports may print warnings before the word that we wait for
            for line in output:
                lines.append(line)
                if line.startswith(b"up "):
                    break
        timer.cancel()
        if not lines[-1].startswith(b"up "):
            self.end()
            raise OSError(lines[-1].decode(errors="replace").strip())
        self.pid = int(lines[-1].split()[1])

    def alive(self):
        """Whether it still waits for requests."""
        return self._process.poll() is None

    def command(self, walls, argv, reply):
        """What to run on our side to have `argv` (this Python and its arguments) run inside.

        Args:
            walls: bubblewrap and its options, with what comes before it.
            reply: a path at which `entered` will find the pids, or why there are none.
        """
        return [sys.executable, "-I", "-S", str(PROGRAM), "enter", self._address, str(reply), str(len(walls)), *walls, *argv[1:]]

    def entered(self, reply, pid):
        """The pids of bubblewrap and of the forked process, once `pid`, which runs `command`, has brought it about.

        Raises:
            OSError: the fork didn't get inside.
        """
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            # Before the reply: it closes its streams right after it has replied, and that may be between two looks of ours.
            closed = not os.path.exists(f"/proc/{pid}/fd/0")
            try:
                said = Path(reply).read_text()
            except FileNotFoundError:
                said = ""
            if said[:1].isdigit():
                return tuple(map(int, said.split()))
            if said or closed:
                break
            time.sleep(0.005)
        raise OSError(f"no process was forked into the sandbox: {said or 'nothing says why'}")


def _end(process, folder, lock):
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


_parents, _lock = {}, threading.Lock()


def parent(gpu=False):
    """This process's warm parent, tried once; None where there is none to be had (`mode` says why)."""
    found = _found(gpu)
    return found if isinstance(found, Parent) else None


def mode(gpu=False):
    """How sandboxes start here: "fork", or "exec" and why there is no warm parent."""
    found = _found(gpu)
    return "fork" if isinstance(found, Parent) else f"exec ({found})"


def _found(gpu):
    """The parent, or why there is none."""
    key = _key(gpu)
    with _lock:
        found = _parents.get(key)
        if found is None or isinstance(found, Parent) and not found.alive():
            try:
                found = Parent(gpu)
                differ = compare(found, gpu)
                if differ:
                    found.end()
                    found = f"inside, it differs in: {', '.join(differ)}"
            except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                found = str(error)[:200]
            _parents[key] = found
    return found


def _environment(gpu):
    from autograder.sandbox import Sandbox

    return Sandbox(gpu=gpu).environment().items()


def _key(gpu):
    return os.getpid(), gpu, *_environment(gpu)  # a parent serves the process that made it, and one environment


def compare(candidate, gpu=False):
    """The names of the `FACTS` in which a sandbox that `candidate` forks into differs from bubblewrap's own."""
    cold, warm = (_facts(which, gpu) for which in (None, candidate))
    # Which namespaces are its own, neither ours nor the parent's.
    for facts in (cold, warm):
        facts["namespaces"] = {
            name: link not in [os.readlink(f"/proc/{pid}/ns/{name}") for pid in (os.getpid(), candidate.pid)]
            for name, link in facts["namespaces"].items()
        }
    return [name for name in cold if cold[name] != warm[name]]


def _facts(which, gpu):
    from autograder.sandbox import Sandbox

    with Sandbox(gpu=gpu, parent=which) as box:
        process = box.start([sys.executable, "-c", FACTS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        output, _ = process.communicate(timeout=_PATIENCE)
        return json.loads(output.decode().replace(str(box.requests.parent), "BOX"))
