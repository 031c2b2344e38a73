"""`check`: what a student calls. It makes the public cases right here and shows a table."""

import importlib.util
import os
import tracemalloc

import numpy as np

from autograder import contestant
from autograder.checks import core, find, table

PUBLIC_SEED = 20  # known to everyone; the grader draws other inputs of the same kinds


class CheckFailed(AssertionError):
    """A check did not pass. The table above the traceback says why."""

    def _render_traceback_(self):
        # IPython asks an exception for its own traceback: the frames of this module help no student.
        return [f"CheckFailed: {self}"]


def rung(check):
    """Where `check`'s cases run here: "numpy", "interpreter", "gpu", or None when they can't run on this machine."""
    if not check.triton:
        return "numpy"
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        return None
    import torch

    if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "gpu"
    return None if check.gpu else "interpreter"


def check(name, target):
    """Check `target` on the public cases of check `name`, and show a table of them.

    Args:
        name: such as "03.step".
        target: the function or the `@triton.jit` kernel that the exercise asks for.

    Raises:
        ValueError: no check has this name.
        CheckFailed: a case failed.
    """
    the_check = find(name)
    title = f"{the_check.name}  {the_check.title}"
    where = rung(the_check)
    if where is None:
        reason = (
            "It waits: it needs a GPU, and is made on the grader's."
            if importlib.util.find_spec("triton")
            else "It waits: Triton has no build for this system. Open the notebook in Colab, the dev container or WSL."
        )
        _show(title, [], reason)
        return
    if the_check.triton and where == "interpreter" and os.environ.get("TRITON_INTERPRET") != "1":
        raise CheckFailed(
            "there is no GPU here, and TRITON_INTERPRET=1 was not set before triton was imported: "
            "restart the kernel and run the first cell first"
        )
    results = list(core.evaluate(the_check, np.random.default_rng(PUBLIC_SEED), where, _performer(target)))
    _show(title, results)
    failed = [r for r in results if r.passed is False]
    if failed:
        raise CheckFailed(f"{name}: {len(failed)} of {len(results)} cases fail; first: {failed[0].message}")


def _performer(target):
    def perform(case):
        if case.limit_bytes is None:
            return contestant.perform(target, case.call), None
        peak = _GpuPeak() if contestant.has_tensor(case.call) else _NumpyPeak()
        try:
            answer = contestant.perform(target, case.call, keep_inputs=False, ready=peak.start, done=peak.stop)
        finally:
            tracemalloc.stop()  # also when the call raised before `done`
        return answer, peak.bytes

    return perform


class _NumpyPeak:
    """What the call allocated, by tracemalloc, which NumPy reports to. The grader measures the process from outside."""

    bytes = None

    def start(self):
        tracemalloc.start()

    def stop(self):
        self.bytes = tracemalloc.get_traced_memory()[1]


class _GpuPeak:
    bytes = None

    def start(self):
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def stop(self):
        import torch

        self.bytes = torch.cuda.max_memory_allocated() - self._before


def _show(title, results, note=""):
    text = table.as_text(title, results, note)
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = None
    if get_ipython is None or get_ipython() is None:
        print(text)
        return
    display({"text/html": table.as_html(title, results, note), "text/plain": text}, raw=True)
