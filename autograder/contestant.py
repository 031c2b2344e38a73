"""The untrusted side: call one function, or launch one kernel, on inputs that came from outside.

The sandbox binds this one file as the module `autograder`, so a notebook's `from autograder import check` finds it
and nothing else of the course. It knows no expected value, no seed and no tolerance: it receives inputs and gives back
raw arrays. A student who rewrites all of it can still only change which arrays come out.

Three users share `perform`:

- the student's own `check` (in process, on the public cases);
- the notebook's kernel in the grading sandbox: a hidden cell runs `_answer(folders)` after each graded cell;
- the kernel driver: `python -m autograder drive FOLDER`, a clean process that has only the `@triton.jit` functions of the
  submission, so that no host code of the student runs where a kernel is graded.

`_answer` forks. The call happens in the child, so that whatever it does (exit, segfault, loop, keep the inputs) costs
the notebook's own process nothing. Only when that process has used CUDA, which a fork can't inherit, does the call happen in it.
"""

import contextlib
import json
import math
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_registry = {}
_BEHIND = 1 << 16  # elements behind what a kernel writes to; no tile of the course is larger
# What makes tensors, such as torch.empty, torch.empty_like and the method new_empty.
_MAKERS = {form.format(what) for form in ("{}", "{}_like", "new_{}") for what in ("empty", "zeros", "ones", "full")}
# What outputs are filled with, as an integer of as many bytes: a NaN with bits that no arithmetic gives, so that one which was stored
# can be told from it. Converted to float32, each is the first of them.
UNTOUCHED = {"float32": 0x7FD50000, "float16": 0x7EA8, "bfloat16": 0x7FD5}
_ROUNDS = 20  # of a timed launch, and of the copy beside it


def check(name, *objects):
    """Note what the notebook hands in for check `name`. In the grading sandbox the judging happens elsewhere."""
    _registry[name] = objects


def handin(*args, **kwargs):
    """Handing in comes before grading: here it does nothing."""


# ---------------------------------------------------------------------------------------------------------------
# What is asked, and what comes back


@dataclass(frozen=True)
class Tensor:
    """A torch tensor that is to be made from `array` (NumPy has no bfloat16, hence the separate dtype)."""

    array: np.ndarray
    dtype: str = "float32"


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel, as data.

    `outputs` maps a name to (shape, dtype); each is allocated by `perform`, filled with NaN, and given back. `arguments`
    are the kernel's positional arguments: a `Tensor`, an `int`, a `float`, or `"@name"` for an output.
    `constants` are its `tl.constexpr` parameters and launch options such as `num_warps`.

    With `copies` the launch is timed, on a GPU, beside a copy of as many bytes: see `_time`. Then each tensor is laid out that
    many times, one behind the other along the first axis, and each output has room for as many results, so that a short file
    makes arrays that no cache holds. An output comes back as (2, *shape): the smallest and the largest of its copies,
    element by element. Numbers and the grid are those of the whole.
    """

    grid: tuple
    arguments: tuple
    outputs: dict
    constants: dict = field(default_factory=dict)
    copies: int = 0


def moved_bytes(launch):
    """The least that a timed launch has to move: each tensor is read once, each output written once."""

    def size(shape, dtype):
        return math.prod(shape) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)

    tensors = [(a.array.shape, a.dtype) for a in launch.arguments if isinstance(a, Tensor)]
    return launch.copies * sum(size(*each) for each in [*tensors, *launch.outputs.values()])


@dataclass
class Answer:
    """What a call gave: `arrays` (one for each value returned) or the reason why there are none."""

    arrays: list | None = None
    problem: str | None = None  # one line for the student
    detail: str = ""  # a traceback, capped
    changed: list = field(default_factory=list)  # names of inputs that the call wrote to
    seconds: float = 0.0
    speed: tuple | None = None  # of a timed launch: seconds of the launch, and of a copy of as many bytes


def perform(target, call, keep_inputs=True, ready=lambda: None, done=lambda: None):
    """Call `target` as `call` says and return an `Answer`.

    Args:
        target: a function, or for a `Launch` a `@triton.jit` kernel.
        call: a tuple of positional arguments (arrays, tensors, numbers and tuples of them), or a `Launch`.
        keep_inputs: also report which NumPy inputs the call wrote to.
        ready, done: called just before and just after the call itself (the judge measures memory between them).
    """
    before = after = time.perf_counter()
    changed = []
    speed = None
    try:
        if isinstance(call, Launch):
            import torch

            device = _device()
            outputs, behind = {}, {}
            for name, (shape, dtype) in call.outputs.items():
                # Memory behind the output, so that a store without a mask is seen there and harms nothing else.
                size = math.prod(shape) * max(call.copies, 1)
                bits = torch.int32 if dtype == "float32" else torch.int16
                whole = torch.full((size + _BEHIND,), UNTOUCHED[dtype], dtype=bits, device=device).view(getattr(torch, dtype))
                outputs[name], behind[name] = whole[:size].view(_longer(shape, call.copies)), whole[size:]
            inputs = [_materialise(a, device) for a in call.arguments]
            if call.copies:
                inputs = [a.repeat(call.copies, *[1] * (a.ndim - 1)) if isinstance(a, torch.Tensor) else a for a in inputs]
            arguments = [outputs[a[1:]] if isinstance(a, str) else a for a in inputs]

            def launch():
                target[call.grid](*arguments, **call.constants)

            ready()
            before = time.perf_counter()
            with np.errstate(divide="ignore", invalid="ignore"):  # the interpreter's log(0) is the right -inf of an empty row
                launch()
            if device == "cuda":
                torch.cuda.synchronize()
            after = time.perf_counter()
            done()
            if call.copies and device == "cuda":
                speed = _time(launch, outputs.values(), moved_bytes(call))
            for name, (shape, _) in call.outputs.items() if call.copies else ():
                every = outputs[name].view(call.copies, *shape)
                outputs[name] = torch.stack([every.amin(0), every.amax(0)])  # either is NaN where a copy is
            for name, rest in behind.items():
                if not rest.isnan().all():
                    places = int((~rest.isnan()).sum())
                    problem = (
                        f"the kernel wrote to {places} place{'s' * (places > 1)} past the end of {name}: "
                        "the store has no mask, or one that lets too much through"
                    )
                    return Answer(problem=problem, seconds=after - before)
            arrays = [_array(tensor, name) for name, tensor in outputs.items()]
        else:
            arguments = _materialise(call, _device() if has_tensor(call) else None)
            originals = _copies(arguments) if keep_inputs else []
            ready()
            before = time.perf_counter()
            with _fresh() if has_tensor(call) else contextlib.nullcontext():
                result = target(*arguments)
            if has_tensor(call):
                _synchronise()
            after = time.perf_counter()
            done()
            if keep_inputs:
                changed = [name for name, array, copy in originals if array.tobytes() != copy.tobytes()]
            values = result if isinstance(result, tuple) else (result,)
            arrays = [_array(v, f"value {i + 1}" if len(values) > 1 else "the result") for i, v in enumerate(values)]
    except _NotAnArray as error:
        return Answer(problem=str(error), changed=changed, seconds=after - before)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and "_answering" not in globals():
            raise  # in the student's own notebook, the stop button must stop
        text = "".join(traceback.format_exception(error, limit=-6))
        return Answer(problem=f"{type(error).__name__}: {_short(error)}{_line(error, target)}", detail=text[-4000:])
    return Answer(arrays, changed=changed, seconds=after - before, speed=speed)


def _fresh():
    """A context in which a new tensor is as a kernel's output is here: NaN until something is stored, and with memory behind it.

    Else what is never stored may hold the right answer of an earlier call. And in Triton's interpreter a store without a mask writes
    wherever its address points, to memory of somebody else, and the process, a student's notebook, would die of that later.
    """
    import torch

    class Fresh(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            made = func(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if name not in _MAKERS or "out" in kwargs or made.layout != torch.strided:
                return made
            if "empty" in name and made.is_floating_point():
                made.detach().fill_(float("nan"))
            if made.device.type != "cpu" or not made.is_contiguous():
                return made
            whole = torch.empty(made.numel() + _BEHIND, dtype=made.dtype)
            return whole[: made.numel()].view(made.shape).copy_(made).requires_grad_(made.requires_grad)

    return Fresh()


def _longer(shape, copies):
    return (copies * shape[0], *shape[1:]) if copies else shape


def _time(launch, outputs, moved):
    """Seconds on the GPU, medians of `_ROUNDS`: of `launch`, and of a copy on the card that moves as many bytes.

    The two take turns, so that a card that changes its clock or serves somebody else changes both. Before each, what it will
    write is overwritten (a launch that finds the last one's results has no use for them), and then a buffer that neither of
    them uses, so that the caches hold nothing of theirs. While the card is at that, the launch already waits in its queue: what
    Python takes to launch is not counted.
    """
    import torch

    outputs = list(outputs)
    source = torch.zeros(moved // 8, device=outputs[0].device)  # half of the bytes are read, half are written
    target, flush = torch.empty_like(source), torch.empty_like(source)

    def once(call, written):
        for tensor in (*written, flush):
            tensor.fill_(float("nan"))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000

    def copy():
        target.copy_(source)

    times = [(once(launch, outputs), once(copy, [target])) for _ in range(_ROUNDS)]
    return tuple(float(np.median(of_one)) for of_one in zip(*times, strict=True))


class _NotAnArray(Exception):
    pass


def _short(error, limit=300):
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its message could not be printed)"
    return text if len(text) <= limit else text[:limit] + "..."


def _line(error, target):
    """The innermost line of `target`'s file that `error` came through, as ", at `x = y`"; "" where there is none.

    Of a kernel in the interpreter the student's line is in the cause: what arrives is the interpreter's own error.
    """
    code = getattr(getattr(target, "fn", target), "__code__", None)
    frames = []
    for each in (error, error.__cause__):
        if each is not None:
            frames += traceback.extract_tb(each.__traceback__)
    lines = [frame.line for frame in frames if code and frame.filename == code.co_filename and frame.line]
    return f", at `{_short(lines[-1], 100)}`" if lines else ""


def _device():
    import torch

    return "cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1" else "cpu"


def _synchronise():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def has_tensor(value):
    """Whether a call has a `Tensor` among its arguments."""
    if isinstance(value, (tuple, list)):
        return any(has_tensor(v) for v in value)
    return isinstance(value, Tensor)


def _materialise(value, device):
    if isinstance(value, (tuple, list)):
        return tuple(_materialise(v, device) for v in value)
    if isinstance(value, Tensor):
        import torch

        return torch.from_numpy(np.ascontiguousarray(value.array)).to(device, getattr(torch, value.dtype))
    if isinstance(value, np.ndarray):
        return value.copy()  # the caller's own array stays as it was, whatever the call does
    return value


def _copies(arguments, name="argument"):
    found = []
    for i, value in enumerate(arguments):
        label = f"{name} {i + 1}"
        if isinstance(value, tuple):
            found += _copies(value, f"{label}, part")
        elif isinstance(value, np.ndarray):
            found.append((label, value, value.copy()))
    return found


def _array(value, name):
    """`value` as a plain NumPy array of numbers; 16-bit floats as float32, since NumPy has no bfloat16."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # NumPy and the shift of bfloat16 keep the bits of a NaN; torch's own conversion of float16, or a GPU's, need not.
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        value = value.astype(np.float32) if value.dtype == np.float16 else value
    if isinstance(value, (bool, int, float, np.generic)):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__[:60]
        hint = ""
        if value is None:
            hint = ": is the part still empty, or a `return` missing?"
        elif isinstance(value, list):
            hint = ": several results come back as a tuple, `return a, b`, and many numbers as one array"
        raise _NotAnArray(f"{name} should be an array or a number, but is {kind}{hint}")
    return np.array(value, subok=False)


# ---------------------------------------------------------------------------------------------------------------
# The same, through files: no pickle, so that reading an answer can't run anything


def write_request(folder, name, call, measure=False):
    """Write `call` to `folder` (trusted side). `name`: the check whose registered object is to be called."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    arrays = {}

    def encode(value):
        if isinstance(value, np.ndarray):
            arrays[f"a{len(arrays)}"] = value
            return {"array": f"a{len(arrays) - 1}"}
        if isinstance(value, Tensor):
            return {"tensor": encode(value.array), "dtype": value.dtype}
        if isinstance(value, (tuple, list)):
            return {"tuple": [encode(v) for v in value]}
        if isinstance(value, np.generic):
            value = value.item()
        return {"value": value}

    if isinstance(call, Launch):
        body = {
            "grid": list(call.grid),
            "arguments": encode(call.arguments),
            "outputs": {k: [list(shape), dtype] for k, (shape, dtype) in call.outputs.items()},
            "constants": call.constants,
            "copies": call.copies,
        }
    else:
        body = {"call": encode(call)}
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    body |= {"name": name, "measure": measure}
    (folder / "request.json").write_text(json.dumps(body))


def _read_request(folder):
    body = json.loads((folder / "request.json").read_text())

    def decode(node):
        if "array" in node:
            return np.load(folder / f"{node['array']}.npy", allow_pickle=False)
        if "tensor" in node:
            return Tensor(decode(node["tensor"]), node["dtype"])
        if "tuple" in node:
            return tuple(decode(v) for v in node["tuple"])
        return node["value"]

    if "grid" in body:
        outputs = {k: (tuple(shape), dtype) for k, (shape, dtype) in body["outputs"].items()}
        call = Launch(tuple(body["grid"]), decode(body["arguments"]), outputs, body["constants"], body["copies"])
    else:
        call = decode(body["call"])
    return body["name"], call, body["measure"]


def _write_answer(folder, answer):
    for i, array in enumerate(answer.arrays or []):
        np.save(folder / f"out{i}.npy", array, allow_pickle=False)
    body = {
        "arrays": None if answer.arrays is None else len(answer.arrays),
        "problem": answer.problem,
        "detail": answer.detail,
        "changed": answer.changed,
        "seconds": answer.seconds,
        "speed": answer.speed,
    }
    _put(folder, "answer.json", json.dumps(body))


def _put(folder, name, text):
    """Write a file that the judge waits for: it sees the whole of it or nothing."""
    partial = folder / f"{name}.part"
    partial.write_text(text)
    partial.rename(folder / name)


def _handshake(request, answers, word, reply):
    """Tell the judge `word`, and wait until it has taken its measurement (`reply`)."""

    def wait():
        (answers / word).touch()
        deadline = time.monotonic() + 30
        while not (request / reply).exists() and time.monotonic() < deadline:
            time.sleep(0.001)

    return wait


def _respond(request, answers, find):
    globals()["_answering"] = True
    name, call, measure = _read_request(request)
    try:
        target = find(name)
    except BaseException as error:
        answer = Answer(problem=f"{type(error).__name__}: {_short(error)}")
    else:
        pairs = (("ready", "go"), ("done", "measured")) if measure else ()
        answer = perform(target, call, not measure, *(_handshake(request, answers, *pair) for pair in pairs))
    _write_answer(answers, answer)


def _answer(folders, find=None):
    """Answer the request in the first of two folders, into the second. Runs in the student's kernel, or in the driver."""
    request, answers = map(Path, folders.split())
    answers.mkdir()
    find = find or (lambda name: _registry[name][0])
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        _respond(request, answers, find)
        return _put(answers, "ended", "0")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            # What the call prints is nobody's: it could carry the judge's inputs out into the notebook.
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            _respond(request, answers, find)
        finally:
            os._exit(0)
    _put(answers, "ended", str(os.waitpid(pid, 0)[1]))


def _drive(folder):
    """The kernel driver: answer the requests named on standard input until it closes.

    `FOLDER/kernels_N.py` holds the jitted functions that were taken from the submission; a request's name is
    `N:kernel`. torch and triton are imported once, CUDA is first touched in the forked child.
    """
    import gc
    import importlib.util

    import torch  # noqa: F401 - imported before the fork, so that each child finds it there
    import triton  # noqa: F401

    with contextlib.suppress(ImportError):
        import triton.experimental.gluon  # noqa: F401 - a first launch imports it, where it exists
    gc.collect()
    gc.freeze()  # else a child's garbage collection looks at all of it, and so copies it

    def find(name):
        number, kernel = name.split(":")
        spec = importlib.util.spec_from_file_location(f"kernels_{number}", Path(folder) / f"kernels_{number}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # triton reads a kernel's source through its module
        spec.loader.exec_module(module)
        return getattr(module, kernel)

    print("up", flush=True)
    for line in sys.stdin:
        _answer(line.strip(), find)


if __name__ == "__main__":
    _drive(sys.argv[2])
