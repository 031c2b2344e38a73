"""`make test-gpu` (tests/gpu.py): what it says and returns, with parts of our own in place of the real ones."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[1] / "gpu.py"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("gpu", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--log", str(tmp_path / "log")])
    return module


def with_a_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")


def python(code):
    return [sys.executable, "-c", code]


def test_each_part_is_a_line_and_the_failed_are_counted(gpu, monkeypatch, tmp_path, capsys):
    with_a_card(monkeypatch)
    first = [
        [("good", [python("print('well')"), python("print('all well')")], {}, None), ("bad", [python("print('worse'); exit(3)"), python("print('never')")], {}, None)],
        [("told", [python("import os; assert os.environ['A'] == 'b'")], {"A": "b"}, None), ("left out", [["none"]], {}, "no tool")],
    ]  # fmt: skip
    after = f"import pathlib; assert pathlib.Path({str(tmp_path / 'log' / '0-1-0.log')!r}).exists()"
    monkeypatch.setattr(gpu, "stages", lambda folder: [first, [[("last", [python(after)], {}, None)]]])
    assert gpu.main() == 1
    table = capsys.readouterr().out.split("A card, torch ")[1].splitlines()[1:]
    assert [line.split()[0] for line in table] == ["passed", "FAILED", "passed", "skipped", "passed"]
    assert "all well" in table[0]
    assert "FAILED (3)" in table[1]
    assert "worse" in table[1]
    assert "no tool" in table[3]
    assert (tmp_path / "log" / "0-0-1.log").read_text() == "worse\n"


def test_without_a_card_it_says_what_to_run(gpu, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "stages", lambda folder: pytest.fail("nothing can run"))
    assert gpu.main() == 1
    assert "make test" in capsys.readouterr().err


@pytest.mark.parametrize("installed", [True, False])
def test_the_real_parts(gpu, monkeypatch, tmp_path, installed):
    """They name files, commands and exercises that exist; without compute-sanitizer that part alone is left out."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if installed else None)
    parts = [part for lanes in gpu.stages(tmp_path) for lane in lanes for part in lane]
    left_out = [name for name, *_, reason in parts if reason]
    assert [name.split()[0] for name in left_out] == ([] if installed else ["memory"])
    root = PATH.parents[1]
    commands = [command for _, commands, *_ in parts for command in commands]
    words = [word for command in commands for word in command]
    assert [word for word in words if word.startswith("tests/") and not (root / word).exists()] == []
    graded = {command[command.index("grade") + 1] for command in commands if "grade" in command}
    assert graded == {path.stem for path in (root / "solutions").glob("[0-9]*.py")}
