"""Run a rebuilt notebook in a sandbox, cell by cell, and carry the judge's calls into it.

A cell that kills its kernel, hangs, floods its output or takes all the memory costs that cell alone: the sandbox is thrown
away, a new one replays the cells that had completed, and the run goes on.
"""

import contextlib
import io
import json
import math
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import zmq
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat.v4 import new_code_cell, new_output

from autograder import contestant, warm
from autograder.sandbox import Sandbox, anonymous_bytes

MAX_ANSWER_BYTES = 256 * 2**20
UNREADABLE = "no readable answer came back"
_MAX_JSON = 2**16
_FEW_FAULTS = 256  # page faults after which it is counted anew which pages were written to: 1 MiB of them
_CUDA_CONTEXT = 3 * 2**29  # bytes on the card that a CUDA context with its libraries and our inputs may take before a call
_PATIENCE = 2.0  # seconds that a killed call's parent gets to notice
_START = 120  # seconds that a process of ours has to come up on a busy machine


@dataclass
class Stop(Exception):
    """The kernel is gone. `reason`: one line for the student."""

    reason: str


class NotStarted(Exception):
    """A process of ours did not come up in its sandbox, before any code of the submission ran: our fault."""


class _Manager(AsyncKernelManager):
    """Its client's sockets take no message larger than `limit` bytes: libzmq drops the connection before it takes memory."""

    limit = 0

    def client(self, **kwargs):
        self.context.setsockopt(zmq.MAXMSGSIZE, self.limit)  # for every socket that is made from now on
        return super().client(context=self.context, **kwargs)


class _Client(NotebookClient):
    """nbclient with a cap on what a cell may print."""

    output_limit = 0
    _monitors = ()
    flooded = None  # called once when a cell prints more than that

    def reset(self):
        self._printed, self._capped = 0, False

    def watch(self):
        """Notice connections that break while the kernel lives: a message was larger than its socket takes."""
        channels = (self.kc.iopub_channel, self.kc.shell_channel, self.kc.control_channel)
        self._monitors = [c.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) for c in channels]

    async def _async_check_alive(self):
        await super()._async_check_alive()
        for monitor in self._monitors:
            if await monitor.poll(0):
                self._cap()

    def _cap(self):
        if not self._capped:
            self._capped = True
            self.flooded()

    def process_message(self, msg, cell, cell_index):
        # Counted as it arrives, so that a flood never piles up here.
        self._printed += 200 + _size(msg["content"], self.output_limit)
        if self._printed > self.output_limit and msg["msg_type"] != "status":
            self._cap()
            return None
        return super().process_message(msg, cell, cell_index)


def _size(value, enough):
    """About how many bytes `value` (decoded JSON) takes as text; stops counting once it is more than `enough`."""
    total, waiting = 0, [value]
    while waiting and total <= enough:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += item
        total += len(item) if isinstance(item, str) else 8
    return total


class _Process:
    """A process in a sandbox that answers requests (the notebook's kernel, or the kernel driver)."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self._requests = 0
        self.main = None

    def trigger(self, folders):
        """Have the process answer the request in the first of two folders, into the second."""
        raise NotImplementedError

    def find_main(self, root_pid, timeout=30):
        """The Python process inside: below bubblewrap's own two, unless a warm parent forked it.

        Raises:
            NotStarted: there is none.
        """
        if self.sandbox.main:
            self.main = psutil.Process(self.sandbox.main)
            return
        deadline = time.monotonic() + timeout
        process = psutil.Process(root_pid)
        while time.monotonic() < deadline:
            try:
                if process.name() not in {"nice", "prlimit", "bwrap", "env"}:
                    self.main = process
                    return
                children = process.children()
                if children:
                    process = children[0]
                    continue
            except psutil.Error:
                break
            time.sleep(0.01)
        raise NotStarted("the sandbox did not start")

    def ask(self, name, call, seconds, measure=False):
        """Have `call` made inside. Returns an `Answer` and, when measured, the peak in bytes."""
        self._requests += 1
        number = str(self._requests)
        contestant.write_request(self.sandbox.requests / number, name, call, measure)
        # Measured from before the call is asked for until its answer is here: when it begins is not for the contestant to say.
        meter = _Meter(self, number, contestant.has_tensor(call)) if measure else None
        try:
            self.trigger(f"{self.sandbox.requests / number} {self.sandbox.answers / number}")
        except OSError:
            raise Stop(self.reason("its Python process had ended")) from None
        deadline = time.monotonic() + seconds
        pause = 0.001
        try:
            with self.sandbox.listening():
                while self.sandbox.look(number, "answer.json", _MAX_JSON) is None:
                    ended = self.sandbox.look(number, "ended", 20)
                    if ended is not None and self.sandbox.look(number, "answer.json", _MAX_JSON) is None:
                        return contestant.Answer(problem=_ending(ended)), None
                    if not self._alive():
                        raise Stop(self.reason("the call ended the whole Python process"))
                    if time.monotonic() > deadline:
                        return self._overdue(number, seconds), None
                    if meter:
                        meter.step()
                    time.sleep(pause)
                    pause = min(pause * 1.5, 0.02)
            answer = read_answer(self.sandbox, number)
        except ValueError as error:
            answer = unreadable(error)
        self._finish(number)
        return answer, meter.peak if meter else None

    def _alive(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.main.is_running() and self.main.status() != psutil.STATUS_ZOMBIE
        return False

    def _end_others(self):
        """Kill all but the process itself and bubblewrap's: a call may leave nothing behind, however it was started."""
        ours = {self.main.pid, *self.sandbox.helpers}
        others = [process for process in self.sandbox.processes() if process.pid not in ours]
        if others:  # without a warm parent, bubblewrap's own are among them
            ours.update(p.pid for p in self.main.parents())
        for process in others:
            if process.pid not in ours:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _finish(self, number):
        """Wait until the process is free again, so that the next request doesn't race with it. Returns whether it is."""
        deadline = time.monotonic() + _PATIENCE
        ended = None
        while ended is None and time.monotonic() < deadline:
            with contextlib.suppress(ValueError):
                ended = self.sandbox.look(number, "ended", 20)
            time.sleep(0.001)
        with contextlib.suppress(psutil.Error):
            self._end_others()
        return ended is not None

    def _overdue(self, number, seconds):
        late = f"the call took longer than {seconds:.0f} s"
        if len(self.sandbox.pids()) > self.sandbox.limits.processes:
            # On a machine this busy the watchdog may not have had its turn.
            self.sandbox.verdict = self.sandbox.verdict or "processes"
            self.sandbox.kill()
            raise Stop(self.reason(late))
        with contextlib.suppress(psutil.Error):
            self._end_others()
        if not self._finish(number):
            self.sandbox.kill()
            raise Stop(late)
        return contestant.Answer(problem=f"{late} and was stopped")

    def reason(self, otherwise):
        if self.sandbox.verdict == "memory":
            return f"it used more than {self.sandbox.limits.memory_bytes / 2**30:.1f} GiB of memory and was stopped"
        if self.sandbox.verdict == "disk":
            return "it filled the disk and was stopped"
        if self.sandbox.verdict == "processes":
            return "it started too many processes or threads and was stopped"
        if self.sandbox.verdict == "flood":
            return "it sent more to the grader than an answer can be and was stopped"
        return otherwise


def _ending(ended):
    try:
        status = int(ended)
    except ValueError:
        status = 0
    if status & 0x7F:
        return f"the call crashed the Python process (signal {status & 0x7F})"
    return f"the call ended the Python process (exit code {status >> 8}) instead of returning"


def unreadable(error):
    """The answer in place of one that can't be read."""
    return contestant.Answer(problem=f"{UNREADABLE} ({type(error).__name__}: {str(error)[:100]})")


def read_answer(sandbox, number):
    """The answer in the folder `number`, which untrusted code wrote: sizes are capped and nothing is unpickled."""
    try:
        body = json.loads(sandbox.look(number, "answer.json", _MAX_JSON))
        count = body["arrays"]
        arrays = None
        if count is not None:
            if not isinstance(count, int) or not 0 <= count <= 16:
                raise ValueError("more than 16 values came back")
            arrays, left = [], MAX_ANSWER_BYTES  # of all of them together
            for i in range(count):
                data = sandbox.look(number, f"out{i}.npy", left)
                left -= len(data)
                arrays.append(_read_array(data))
        problem = None if body["problem"] is None else _without_numbers(str(body["problem"])[:500])
        changed = [str(c)[:60] for c in list(body["changed"])[:16]]
        speed = None
        if body.get("speed") is not None:
            seconds, copy_seconds = map(float, body["speed"])
            if not (0 < seconds < math.inf and 0 < copy_seconds < math.inf):
                raise ValueError("a time that cannot be")
            speed = seconds, copy_seconds
        return contestant.Answer(
            arrays, problem, _traceback(str(body["detail"])[:4000]), changed, float(body["seconds"]), speed
        )
    except (Exception, RecursionError) as error:  # whatever stands in the file, the judge goes on
        return unreadable(error)


def _without_numbers(text):
    """`text` with each number replaced by "#": an exception's message quotes the secret inputs and their shapes."""
    return re.sub(r"(?<![\w.])\d[\w.]*(?:(?<=[eE])[-+]\d+)?", "#", text)


def _traceback(text):
    """A traceback whose frames keep their line numbers and source, and whose messages lose their numbers."""
    lines = text.splitlines()
    frame = re.compile(r'  File "[^"]*", line \d+, in ')
    for i, line in enumerate(lines):
        source = i and line.startswith("    ") and frame.match(lines[i - 1])
        if not frame.match(line) and not source:
            lines[i] = _without_numbers(line)
    return "\n".join(lines)


def _read_array(data):
    """The array in an .npy file's bytes. Its size is checked against the data before any memory is taken for it."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array's file has another format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    count = math.prod(shape)
    if dtype.kind not in "fiub" or count * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an array's header does not fit its data")
    return np.frombuffer(data, dtype, count, file.tell()).reshape(shape, order="F" if fortran else "C")


class _Meter:
    """The peak memory of one call, seen from outside.

    It runs from before the call is asked for until its answer is there; "ready" and "done", at which an honest call waits,
    only make sure that one as short as a blink is seen. Counted: growth of each process's high-water mark (`VmHWM`) beyond what a
    fork starts with and the libraries' pages that it looks at, pages that the forked child wrote to (`Private_Dirty`: memory that was set up before the fork and is used as scratch), and what is
    in the tmpfs and in anonymous files, or was written to any file until "done" (a file may be gone between two readings). For tensors on a GPU instead what NVML says of these processes: from "ready"
    on, when the CUDA context and the inputs are there, but never leaving out more than such a context takes. Where NVML tells
    nothing of these processes (WSL, some containers) there is no peak, and a person must look: 0 would pass.
    """

    def __init__(self, process, number, tensors):
        self.process, self.number = process, number
        self._dirty, self._faults = {}, 0
        self._peak = 0
        self._told = False
        self._gpu = _nvml() if tensors and process.sandbox.gpu else None
        self._start = self._read(reset=True)
        self._wrote = 0
        self._files_seen = {}  # pid -> bytes of files that it had mapped at most
        self._ready = 0
        self._let = set()

    @property
    def peak(self):
        """Bytes, or None when they could not be measured."""
        return self._peak if self._told or not self._gpu else None

    def step(self):
        """Called again and again until the answer is there."""
        sandbox = self.process.sandbox
        said = [word for word in ("ready", "done") if word not in self._let and sandbox.look(self.number, word, 0) is not None]
        high, dirty, files, gpu, wrote = self._read(bool(said))
        grown = sum(max(self._grown(pid, *sizes), 0) for pid, sizes in high.items())
        written = sum(max(size - self._start[1].get(pid, 0), 0) for pid, size in dirty.items())
        if "ready" in said:
            self._ready = gpu
        if "done" not in self._let:  # after it comes the answer, and that is no scratch
            self._wrote = max(self._wrote, sum(max(size - self._start[4].get(pid, 0), 0) for pid, size in wrote.items()))
        now = max(grown, written) + max(files - self._start[2], self._wrote)
        if self._gpu:
            base = min(self._ready, self._start[3] + _CUDA_CONTEXT)
            now = max(gpu - base, 0) if self._ready else 0
            self._told |= gpu > 0
        self._peak = max(self._peak, now)
        for word in said:  # measured since it was said: the call may go on
            self._let.add(word)
            (sandbox.requests / self.number / {"ready": "go", "done": "measured"}[word]).touch()

    def _grown(self, pid, size, mapped):
        """Bytes that the high-water mark `size` is above what the process had, or began with."""
        if pid in self._start[0]:
            return size - self._start[0][pid][0]
        # A fork starts with its parent's pages but for those of files, which come as it looks at them. They count up to what
        # its parent had of them: so nobody gains by looking at more.
        whole, of_files = self._start[0].get(self.process.main.pid, (0, 0))
        self._files_seen[pid] = max(mapped, self._files_seen.get(pid, 0))
        return size - (whole - of_files) - min(self._files_seen[pid], of_files)

    def _read(self, exactly=True, reset=False):
        high, wrote, files, faults = {}, {}, 0, 0
        pids = self.process.sandbox.pids()
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                root = Path(f"/proc/{pid}")
                if reset:
                    (root / "clear_refs").write_text("5")
                status = (root / "status").read_text()
                high[pid] = _field(status, "VmRSS" if reset else "VmHWM"), _field(status, "RssFile")
                # Of its own and of the children that it has waited for, minor and major ones.
                faults += sum(map(int, (root / "stat").read_text().rpartition(")")[2].split()[7:11]))
                files += anonymous_bytes(pid)
                wrote[pid] = _field((root / "io").read_text(), "wchar", 1)  # last: not every kernel counts it
        # What was written to takes long to count. A page that was shared since a fork becomes a process's own by a fault, so as long
        # as there were few, and the processes are the same, there is nothing to count.
        if exactly or set(high) != set(self._dirty) or not 0 <= faults - self._faults <= _FEW_FAULTS:
            self._dirty, self._faults = {}, faults
            for pid in high:
                with contextlib.suppress(OSError, ValueError):
                    self._dirty[pid] = _field(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Private_Dirty")
        files += self._tmpfs()
        return high, self._dirty, files, self._gpu(pids) if self._gpu else 0, wrote

    def _tmpfs(self):
        used = 0
        for mount in ("tmp", "dev/shm") if not self.process.sandbox.unsafe else ():
            with contextlib.suppress(OSError, psutil.Error):
                stat = psutil.disk_usage(f"/proc/{self.process.main.pid}/root/{mount}")
                used += stat.used
        return used


def _field(text, name, unit=1024):
    for line in text.splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * unit
    raise ValueError(name)


def _nvml():
    """A function: bytes of GPU memory that NVML counts for some pids."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def used(pids):
        total = 0
        for handle in handles:
            for entry in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if entry.pid in pids:
                    total += entry.usedGpuMemory or 0
        return total

    return used


def _sandbox(limits, gpu, unsafe):
    return Sandbox(limits, gpu, unsafe, None if unsafe else warm.parent(gpu))


class Driver(_Process):
    """The process that launches kernels taken from the submission: see `contestant._drive`."""

    def __init__(self, limits, gpu, unsafe):
        super().__init__(_sandbox(limits, gpu, unsafe))
        self._sources = {}
        self._popen = None

    def __enter__(self):
        self.sandbox.__enter__()
        try:
            self._popen = self.sandbox.start(
                [sys.executable, "-m", "autograder", "drive", str(self.sandbox.requests)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            # "up" comes when torch and triton are imported; nothing of the submission has run by then.
            ready, _, _ = select.select([self._popen.stdout], [], [], _START)
            if not ready or self._popen.stdout.readline().strip() != "up":
                raise NotStarted("the kernel driver did not start")
            self.find_main(self._popen.pid)
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, OSError):
                raise NotStarted(f"the kernel driver did not start: {error}") from error
            raise
        return self

    def __exit__(self, *exc):
        self.sandbox.__exit__(*exc)
        if self._popen is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
            self._popen.stdout.close()
            self._popen.wait()

    def kernel(self, source, name):
        """Put `source` where the driver finds it; returns the name to ask for."""
        number = self._sources.setdefault(source, len(self._sources))
        (self.sandbox.requests / f"kernels_{number}.py").write_text(source)
        return f"{number}:{name}"

    def trigger(self, folders):
        self._popen.stdin.write(f"{folders}\n")
        self._popen.stdin.flush()


class Notebook(_Process):
    """A notebook's kernel in a sandbox. `run` executes all of it."""

    def __init__(self, notebook, limits, gpu=False, unsafe=False):
        super().__init__(None)  # made by `_start`
        self.notebook, self.limits, self.gpu, self.unsafe = notebook, limits, gpu, unsafe
        self.interruptions = []  # one dict for each time that the kernel was lost: see `_lost`
        self._completed = []  # (cell id, source)
        self._gone = None  # the last of them, until there is a new kernel
        self._client = None
        self._setup = None
        self._context = None

    def __enter__(self):
        self._start()
        return self

    def __exit__(self, *exc):
        self._shut()

    def _start(self):
        self.sandbox = _sandbox(self.limits, self.gpu, self.unsafe).__enter__()
        try:
            connection = str(self.sandbox.kernel / "kernel.json")
            manager = _Manager(transport="ipc", ip=str(self.sandbox.kernel / "k"), connection_file=connection)
            self._context = manager.context
            manager.limit = 4 * self.limits.output_bytes  # what is to be printed may need more characters in JSON
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", connection, "--HistoryManager.enabled=False"]
            manager._kernel_spec = KernelSpec(argv=self.sandbox.command(argv), display_name="sandbox", language="python")
            client = _Client(self.notebook, km=manager, timeout=self.limits.cell_seconds, startup_timeout=_START,
                             allow_errors=True, record_timing=False, store_widget_state=False,
                             skip_cells_with_tag="")  # fmt: skip
            client.output_limit, client.flooded = self.limits.output_bytes, self._flooded
            client.reset()
            client.reset_execution_trackers()
            client.on_cell_executed = self._note_exit
            self._client = client
            setup = client.setup_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            setup.__enter__()
            self._setup = setup
            pid = manager.provisioner.pid
            self.sandbox.adopt(pid)
            self.find_main(pid)
            client.watch()
        except BaseException as error:
            self._shut()
            if isinstance(error, Exception) and not isinstance(error, NotStarted):
                raise NotStarted(f"the kernel did not start: {type(error).__name__}: {str(error)[:200]}") from error
            raise

    def _shut(self):
        self.sandbox.kill()
        if self._setup is not None:
            with contextlib.suppress(Exception):
                self._client.kc.stop_channels()
            with contextlib.suppress(Exception):
                self._setup.__exit__(None, None, None)
            self._setup = None
        if self._context is not None:
            # With all of its sockets, the monitors' too: what stays open here would add up over a class.
            self._context.destroy(linger=0)
            self._context = None
        self.sandbox.__exit__(None, None, None)

    def _flooded(self):
        self._flood = True
        self.sandbox.kill()

    def _note_exit(self, execute_reply, **_):
        # `exit()` and `quit()` end the kernel only after the cell has been answered for.
        payload = execute_reply["content"].get("payload") or []
        self._exited = any(isinstance(p, dict) and p.get("source") == "ask_exit" for p in payload)

    def restart(self):
        """A new kernel in a new sandbox, with the completed cells run again (their outputs stay as they were).

        A cell that does not survive being run again is left out from then on, and its successors get a new kernel.
        """
        while self._gone:
            started = time.monotonic()
            lost, self._gone = self._gone, None
            self._shut()
            self._start()
            again = 0
            for entry in self._completed:
                try:
                    self._execute(new_code_cell(entry[1]), 0)
                except Stop as stop:
                    self._lost(entry[0], f"when it was run again: {stop.reason}")
                    self._completed = [e for e in self._completed if e is not entry]
                    break
                again += 1
            lost |= {"cells_run_again": again, "seconds": round(time.monotonic() - started, 3)}

    def _lost(self, cell_id, reason):
        self._gone = {"cell": cell_id, "reason": reason, "by": self.sandbox.verdict}
        self.interruptions.append(self._gone)

    def _execute(self, cell, index):
        """Run one cell; raises Stop when the kernel is gone."""
        self._flood = self._exited = False
        self._client.reset()
        self._client.reset_execution_trackers()  # so that no display of an earlier cell can be changed by this one
        otherwise = "this cell ended its Python process"
        try:
            with self.sandbox.listening():
                self._client.execute_cell(cell, index)
        except CellExecutionError:
            pass
        except CellTimeoutError:
            self.sandbox.kill()
            raise Stop(f"this cell ran longer than {self.limits.cell_seconds:.0f} s and was stopped") from None
        except Exception:  # DeadKernelError, or whatever the messages of a kernel gone wild lead to
            if not self._flood:
                self.sandbox.kill()
                raise Stop(self.reason(otherwise)) from None
        if self._flood:
            raise Stop(f"this cell printed more than {self.limits.output_bytes >> 20} MiB and was stopped")
        if self._exited:
            raise Stop(otherwise)
        if self.sandbox.verdict:  # it was ended just after it had answered
            raise Stop(self.reason(otherwise))

    def run(self, judge):
        """Execute all code cells in order; after each, call `judge(cell, failure)`.

        `failure` is None, or one line that says why the cell did not complete. After a Stop that `judge` raises (a call that
        took the kernel with it) the next cell gets a new kernel, too.

        Raises:
            NotStarted: no kernel came up; the rest of the cells was not run.
        """
        deadline = time.monotonic() + self.limits.notebook_seconds
        for index, cell in enumerate(self.notebook.cells):
            if cell.cell_type != "code":
                continue
            failure = None
            if time.monotonic() > deadline:
                failure = f"the notebook had run for {self.limits.notebook_seconds:.0f} s before this cell"
                judge(cell, failure)
                continue
            if not cell.source.strip():
                continue
            try:
                self.restart()
                self._execute(cell, index)
                errors = [o for o in cell.outputs if o.output_type == "error"]
                failure = _without_numbers(f"{errors[0].ename}: {errors[0].evalue}"[:500]) if errors else None
            except Stop as stop:
                failure = stop.reason
                cell.outputs.append(new_output("error", ename="Stopped", evalue=failure, traceback=[f"Stopped: {failure}"]))
                self._lost(cell.id, failure)
            else:
                self._completed.append((cell.id, cell.source))
            try:
                judge(cell, failure)
            except Stop as stop:
                self._lost(cell.id, stop.reason)

    def trigger(self, folders):
        self._client.kc.execute(
            f"__import__('autograder')._answer({folders!r})", silent=True, store_history=False, allow_stdin=False
        )
