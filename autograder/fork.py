"""The two programs behind `warm`: `serve` is the warm parent, `enter` stands in for the forked process on our side.

They are run as scripts, and need nothing but the standard library until `serve` does its imports.
"""

import contextlib
import os
import socket
import sys

# What the notebook's kernel and the kernel driver import, and what submissions come to import by themselves: a first launch imports
# Gluon, and Matplotlib lists the machine's fonts. Not pyplot, which on import looks whether it runs in IPython.
PRELOAD = (
    "multiprocessing", "numpy", "torch", "triton", "triton.language", "triton.experimental.gluon",
    "ipykernel.kernelapp", "ipykernel.zmqshell", "matplotlib.font_manager", "matplotlib.figure", "matplotlib.backends.backend_agg",
)  # fmt: skip
_JOINED = {"mnt": 0x00020000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000, "user": 0x10000000}
_PID_NAMESPACE = 0x20000000
_LIMITS = 16  # kinds of rlimits in Linux
_PDEATHSIG, _DROP_BOUND = 1, 24  # of prctl


def serve(listener):
    """Import, then fork for each connection to the socket `listener` (a file descriptor); returns in the fork, once inside.

    Returns:
        the arguments of the Python that is to run now: `-m module ...` or `-c code`.
    """
    import gc
    import signal

    # Listing the machine's fonts takes a thread, and a process that has had one is not as it was. So a child does it, and leaves
    # the list where Matplotlib looks for it.
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            __import__("matplotlib.font_manager")
        os._exit(0)
    os.wait()
    for name in PRELOAD:
        with contextlib.suppress(ImportError):  # what is not installed, or not in this version, no submission can import either
            __import__(name)
    listener = socket.socket(fileno=listener)
    listener.set_inheritable(False)  # else what holds a sandbox open has it, and from there a submission can take it
    me = os.getpid()
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("the imports started threads, which a fork would not have")
    with open("/proc/self/maps") as maps:
        if any(line.split()[1][1::2] == "ws" for line in maps):
            sys.exit("the imports mapped shared memory, which all forks would share")
    os.write(1, f"up {me}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    # What is here stays: a fork's garbage collection need not look at it, and so copy all of it.
    gc.collect()
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)
            listener.detach()
            return _enter_sandbox(connection)
        connection.close()


def _enter_sandbox(connection):
    import json
    import resource

    message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
    for stream in streams:
        os.set_inheritable(stream, False)  # they are for the forked process alone
    count, *words = message.decode().split("\0")
    walls, argv = words[: int(count)], words[int(count) :]
    # The sandbox itself, held open by a process that ends when we do.
    feed, echo, info = os.pipe(), os.pipe(), os.pipe()
    os.set_inheritable(info[1], True)
    holder = os.posix_spawnp(
        walls[0], [*walls, "--info-fd", str(info[1]), "--", "cat"], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, feed[0], 0), (os.POSIX_SPAWN_DUP2, echo[1], 1)],
    )  # fmt: skip
    for fd in (feed[0], echo[1], info[1]):
        os.close(fd)
    os.write(feed[1], b"\n")
    if os.read(echo[0], 1) != b"\n":  # the walls stand, and `cat` runs inside
        os._exit(1)
    inside = json.loads(os.read(info[0], 2**16))["child-pid"]
    for limit in range(_LIMITS):
        resource.setrlimit(limit, resource.prlimit(holder, limit))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, holder))
    space = os.open(f"/proc/{inside}/ns/pid", os.O_RDONLY)
    spaces = [
        (os.open(f"/proc/{inside}/ns/{name}", os.O_RDONLY), kind) for name, kind in _JOINED.items()
        if os.readlink(f"/proc/{inside}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    ]  # fmt: skip
    _call("setns", space, _PID_NAMESPACE)
    pid = os.fork()  # only a child is in the new pid namespace
    if pid:
        os.close(echo[0])
        connection.send(f"{holder} {pid}".encode())
        _wait(connection, pid)
    connection.detach()
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    for space, kind in spaces:
        _call("setns", space, kind)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    os.setsid()  # else a signal to its process group would reach the parent
    _drop_capabilities()
    os.chdir(os.environ["HOME"])
    sys.path.insert(0, os.getcwd() if argv[0] == "-m" else "")
    return argv


def _wait(connection, pid):
    """Wait for the forked process, and end with it, or when our side is gone: bubblewrap then ends the sandbox."""
    import select

    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.register(connection, 0)  # only hanging up
    poll.poll()
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        code = os.waitstatus_to_exitcode(status)
        connection.send(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _drop_capabilities():
    """End with none, as bubblewrap's `--cap-drop ALL` does; joining a user namespace gave us all that there are in it.

    That no program can win any is inherited: bubblewrap has set no_new_privs for the parent.
    """
    import ctypes

    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _prctl(_DROP_BOUND, capability)
    _call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())


def _prctl(option, value):
    import ctypes

    _call("prctl", option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def _call(name, *arguments):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name} {arguments[:2]}")


def _run(argv):
    """What Python does with `-m module ...` and `-c code`."""
    import multiprocessing
    import runpy

    import numpy as np

    np.random.seed()  # noqa: NPY002 - the forks must not share what the parent drew at its start
    multiprocessing.current_process().authkey = os.urandom(32)
    sys.argv = ["-c"] if argv[0] == "-c" else argv[1:]
    if argv[0] == "-c":
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


def enter(address, reply, *request):
    """Have the parent at `address` fork into a sandbox with our standard streams.

    Args:
        reply: where to write the pids of bubblewrap and of the forked process, or why there are none.
        request: how many of the words after it are bubblewrap and its options, and these; then the arguments of Python.

    Returns:
        the exit code of the forked process.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(address)
            socket.send_fds(connection, ["\0".join(request).encode()], [0, 1, 2])
            said = connection.recv(100) or b"the parent's fork ended before it was inside"
        except OSError as error:
            said = str(error).encode()
        with open(reply + ".part", "wb") as file:
            file.write(said)
        os.rename(reply + ".part", reply)
        if not said[:1].isdigit():
            return 1
        for fd in (0, 1, 2):
            os.close(fd)
        return int(connection.recv(100) or 1)


if __name__ == "__main__":
    if sys.argv[1] == "enter":
        sys.exit(enter(*sys.argv[2:]))
    del sys.path[0]  # this file's own folder
    _run(serve(int(sys.argv[2])))
