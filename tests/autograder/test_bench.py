"""The bench measures what it says: the same cases for both graders, and scores that are compared with the right ones."""

import json
import subprocess
import sys

import numpy as np
import pytest
from small_assignment import needs_sandbox

from autograder import bench, judge


@pytest.fixture(scope="module")
def right():
    source, ((book, _), *_) = bench.quick()
    return source, book


def test_stock_nbgraders_checks_draw_the_judges_cases():
    code = bench.CASES.format(seed=b"a seed".hex()) + (
        "import autograder, numpy as np\n"
        "student.core.evaluate = lambda the_check, rng, rung, perform: print(rng.integers(2**60)) or []\n"
        "from autograder import check\n"
        "check('03.step', None), check('03.tiles', None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers = [int(line) for line in done.stdout.split() if line.isdigit()]
    assert numbers == [judge.generator(b"a seed", name).integers(2**60) for name in ("03.step", "03.tiles")]
    assert numbers[0] != np.random.default_rng(20).integers(2**60)


def test_the_quick_class_has_right_and_wrong_answers():
    source, kinds = bench.quick()
    earned = {tuple(score.values()) for _, score in kinds}
    assert {(3.0, 2.0), (0.0, 0.0), (3.0, 0.0)} <= earned and len(kinds) >= 5
    assert all(len(book.cells) == len(source.cells) == 4 for book, _ in kinds)


@needs_sandbox
def test_both_graders_are_measured_and_compared_with_what_is_right(tmp_path, right):
    source, book = right
    stock, ours = bench.compare(tmp_path, source, book, 2)
    for row in (stock, ours):
        assert row["right"] == row["scores"] == 4 and not row["wrong"] and "problem" not in row, row
        assert row["per_minute"] > 0 and row["cpu_seconds_each"] > 0 and 50 < row["peak_mib"] < 8000
    assert (stock["grader"], ours["grader"]) == ("stock nbgrader", "autograder")


def test_a_run_that_is_cut_off_leaves_what_it_had_measured(tmp_path, monkeypatch):
    def compare(*_):
        yield {"grader": "stock nbgrader", "per_minute": 5.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "compare", compare)
    with pytest.raises(KeyboardInterrupt):
        bench.main(count=2, class_size=None, jobs=None, to=tmp_path / "bench.json")
    left = json.loads((tmp_path / "bench.json").read_text())
    assert left["graders"] == [{"grader": "stock nbgrader", "per_minute": 5.0}] and left["machine"]["numpy"]
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


@needs_sandbox
def test_every_second_has_a_phase(tmp_path, right):
    found = bench.phases(tmp_path / "phases", *right)
    assert found["sandbox and Jupyter kernel: start"]["seconds"] > 0.05
    assert {"the notebook's cells", "recording, by nbgrader", "comparing, and all else"} <= set(found)
    calls = found["calls in the notebook's process"]
    assert calls["cpu_sandbox"] > 0 and calls["cpu_grader"] > 0  # ten calls, each in a fork
    assert all(took[kind] >= 0 for took in found.values() for kind in ("cpu_grader", "cpu_sandbox")), found
    assert found["recording, by nbgrader"]["cpu_sandbox"] == 0


@needs_sandbox
def test_a_class_in_which_workers_and_the_coordinator_die_ends_with_every_score_right(tmp_path):
    saved = []
    found = bench.simulate(tmp_path / "class", 12, jobs=2, save=lambda so_far: saved.append(len(so_far["memory"])))
    assert saved == list(range(1, len(found["memory"]) + 1))
    assert found["right"] == 12 and found["crashing"] == 1 and "problem" not in found, found
    assert [text.split(" after")[0] for text in found["happened"]] == [
        "a worker is killed", "the coordinator is killed", "a worker is killed"]  # fmt: skip
    assert found["memory"] and all(0 < m["coordinator_mib"] < 2000 for m in found["memory"][:-1])
