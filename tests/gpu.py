"""Everything that a GPU adds to the tests, in one go: `make test-gpu`.

    python tests/gpu.py [--log FOLDER]

The kernels and the checks of the exercises with compiled kernels, the autograder's sandbox with a CUDA context, a small
sample class of every exercise graded on the card, and NVIDIA's compute-sanitizer over every kernel where it is installed. Each part's
output goes to a file of FOLDER; a short table comes last, and the exit status is the number of parts that failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stages(folder):
    """Two lists of lanes, the second begun when the first is done. A lane is a list of parts, run in this order; lanes
    run side by side, for most of the time is one core's that compiles. A part: (name, commands, environment to add,
    reason to skip or None), failed when one of its commands fails."""
    python = [sys.executable, "-B"]
    pytest = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count()), "--dist=worksteal"]
    grader = [*python, "-m", "autograder.cli"]
    sanitizer = shutil.which("compute-sanitizer")

    def graded(assignment):
        room = str(folder / assignment)  # a class each, for one class is graded by one command at a time
        commands = [
            [*grader, "sample", room, assignment, "--small"],
            [*grader, "grade", assignment, "--class", room],
            [*grader, "sample", room, "--verify"],
        ]
        return [(f"sample class of {assignment}: every outcome as it must be", commands, {}, None)]

    measuring = ("01_memory_hierarchy",)  # rates, which a neighbour on the card would spoil
    assignments = sorted(path.stem for path in (ROOT / "solutions").glob("[0-9]*.py"))
    yield [
        [
            ("kernels against float64", [[*pytest, "tests/kernels"]], {}, None),
            ("checks, references and wrong solutions", [[*pytest, "tests/solutions"]], {}, None),
        ],
        [
            (
                "memory accesses (compute-sanitizer memcheck)",
                [[sanitizer or "compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", *python,
                  "tests/kernels/small_shapes.py"]],
                {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
                None if sanitizer else "compute-sanitizer is not installed (it comes with the CUDA toolkit)",
            ),
        ],
        [("sandbox: CUDA works inside", [[*grader, "doctor"]], {}, None)],
        *[graded(name) for name in assignments if name not in measuring],
    ]  # fmt: skip
    yield [graded(name) for name in measuring]


def run(part, log):
    """(outcome, name, seconds, last line) of one part."""
    name, commands, more, reason = part
    if reason is not None:
        return "skipped", name, 0.0, reason
    start = time.monotonic()
    status = 0
    with log.open("w", encoding="utf-8") as file:
        for command in commands:
            status = status or subprocess.run(
                command, cwd=ROOT, env={**os.environ, **more}, stdout=file, stderr=subprocess.STDOUT
            ).returncode
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    outcome = "passed" if status == 0 else f"FAILED ({status})"
    print(f"{outcome}: {name} ({log})", flush=True)
    return outcome, name, time.monotonic() - start, lines[-1][:90] if lines else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, default=ROOT / "_build" / "gpu", metavar="FOLDER",
                        help="where each part's output goes (default: _build/gpu)")  # fmt: skip
    folder = parser.parse_args().log.absolute()
    import torch

    if not torch.cuda.is_available():
        print("error: torch finds no GPU here; the tests that need none: make test", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = []
    for number, lanes in enumerate(stages(folder)):
        with ThreadPoolExecutor(len(lanes)) as pool:
            waiting = [
                pool.submit(lambda at, lane: [run(part, folder / f"{at}-{j}.log") for j, part in enumerate(lane)],
                            f"{number}-{i}", lane)
                for i, lane in enumerate(lanes)
            ]  # fmt: skip
            rows += [row for lane in waiting for row in lane.result()]
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for outcome, name, seconds, last in rows:
        print(f"{outcome:<12} {seconds:6.0f} s  {name:<62} {last}")
    return sum(outcome.startswith("FAILED") for outcome, *_ in rows)


if __name__ == "__main__":
    sys.exit(main())
