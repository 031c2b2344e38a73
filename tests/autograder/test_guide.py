"""The instructor guide: its commands run, in its order, in an empty copy of the course; its example exercise is built there.

A block of shell is run as it stands. One that needs a cluster, a GPU, a browser or other people's repositories has the class
`elsewhere` and a caption that says so; of those the options are held against our command line.
"""

import copy
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from chapter_pages import text_of
from dask import config as dask_config
from distributed.cli import dask_scheduler, dask_worker
from small_assignment import STEP, master, needs_sandbox, submission
from typer.main import get_command
from typer.testing import CliRunner

from autograder import cli, exercise
from autograder.checks import CHECKS
from autograder.classroom import Classroom

ROOT = Path(__file__).resolve().parents[2]
PAGE = "instructor_guide"
NEEDED = ("autograder", "exercises", "kernels", "solutions", "tools", "widgets", "LICENSE", "README.md", "_config.yml",
          "pyproject.toml")  # fmt: skip
EXERCISE = "90_logsumexp"


@dataclass(frozen=True)
class Block:
    """A fenced block of the page: its language, options, text, and the label of the section that it stands in."""

    language: str
    options: dict
    text: str
    section: str

    @property
    def elsewhere(self):
        return self.options.get("class") == "elsewhere"


def _blocks():
    found = []
    text = text_of(PAGE)
    for match in re.finditer(r"^```(?:\{code-block\} )?(bash|python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        options, body = {}, match[2]
        while option := re.match(r":(\w+): (.*)\n", body):
            options[option[1]] = option[2]
            body = body[option.end() :]
        label = re.findall(r"^\(([\w-]+)\)=$", text[: match.start()], re.MULTILINE)[-1]
        found.append(Block(match[1], options, body.lstrip("\n"), label.removeprefix("sec-guide-")))
    return found


BLOCKS = _blocks()
SHELL = [b for b in BLOCKS if b.language == "bash" and not b.elsewhere]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course with the guide's exercise in it, where the blocks are run; `course(n)` runs those up to number n."""
    here = tmp_path_factory.mktemp("course")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, here / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, here / name)
    bins = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # PYTHONPATH: the copy's packages, and not those of this checkout, which is what is installed.
    env = os.environ | {"PATH": bins, "PYTHONPATH": str(here), "COLUMNS": "140"}
    done = []

    def run(number):
        while len(done) <= number:
            block = SHELL[len(done)]
            if block.section == "exercise" and not (here / f"solutions/{EXERCISE}.py").exists():
                _add_exercise(here)
            done.append(subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], cwd=here, env=env, check=False,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))  # fmt: skip
        return done[number]

    run.folder = here
    return run


def _add_exercise(folder):
    """Write the files of the page's example, and register its checks as the text says."""
    for block in BLOCKS:
        if block.language == "python" and "/" in block.options.get("caption", ""):
            (folder / block.options["caption"]).write_text(block.text, encoding="utf-8")
    register = folder / "autograder/checks/__init__.py"
    text = register.read_text(encoding="utf-8")
    text, imports = re.subn(r"^(from autograder\.checks import .*)$", r"\1, ex90", text, flags=re.MULTILINE)
    text, lists = re.subn(r"(\*ex03\.CHECKS)", r"\1, *ex90.CHECKS", text)
    assert (imports, lists) == (1, 1)
    register.write_text(text, encoding="utf-8")


# --- what must be so after a section's commands -----------------------------------------------------------------


def _released(folder, printed):
    assert Classroom(folder / "class/2026").assignments() == exercise.assignments()
    names = zipfile.ZipFile(folder / "class/student-edition.zip").namelist()
    assert any(n.endswith("flash_forward.ipynb") for n in names)
    assert not [n for n in names if re.search(r"solutions|mutants|kernels|judge|sandbox", n)]


def _handed_in(folder, printed):
    packed = sorted(p.name for p in (folder / "class/hand-ins").iterdir())
    assert [name.split("--")[:2] for name in packed] == [["03_flash_forward", "ada"], ["03_flash_forward", "bob"]]


def _taken_in(folder, printed):
    assert Classroom(folder / "class/2026").students("03_flash_forward") == ["ada", "bob"]


def _graded(folder, printed):
    assert re.search(r"\b2 graded .*; 2 recorded", " ".join(printed.split())), printed
    room = Classroom(folder / "class/2026")
    statuses = {s: {c["status"] for c in room.verdict("03_flash_forward", s)[0]["cells"].values()} for s in ("ada", "bob")}
    assert "failed" not in statuses["ada"] and "failed" in statuses["bob"]


def _looked(folder, printed):
    assert "03_flash_forward" in printed and "ada" in printed and "bob" in printed
    for name in set(exercise.assignments()) - {"03_flash_forward"}:
        assert f"{name}: nothing was handed in" in printed


def _given_back(folder, printed):
    pages = {p.parts[-3]: p.read_text("utf-8") for p in (folder / "class/2026/feedback").glob("*/*/*.html")}
    assert pages.keys() == {"ada", "bob"}
    # The mutant of the rehearsal forgets to rescale o, which its page says.
    assert "o does not" in pages["bob"] and "o does not" not in pages["ada"]


def _exported(folder, printed):
    for name in ("grades.csv", "canvas.csv", "moodle.csv", "audit.csv"):
        cells = {cell for line in csv.reader((folder / "class" / name).open(encoding="utf-8")) for cell in line}
        assert {"ada", "bob"} <= cells, name
    assert {row["student"] for row in json.loads((folder / "class/grades.json").read_text())} == {"ada", "bob"}


def _exercise(folder, printed):
    room = Classroom(folder / "class/try")
    found = {}
    for student in room.students(EXERCISE):
        path = max((room.folder / ".autograder/verdicts" / EXERCISE / student).glob("*.json"))
        (cell,) = json.loads(path.read_text())["cells"].values()
        found[student] = cell["earned"], {case["mistake"] for case in cell["cases"]} - {None}
    mutants = {"no-maximum": "no_max", "maximum-lost": "m_lost"}
    assert found.pop("reference") == (2.0, set()) and found.pop("blank")[0] == 0.0
    assert found == {name: (0.0, {mistake}) for name, mistake in mutants.items()}
    written = {}
    exec(next(b.text for b in BLOCKS if b.options.get("caption") == "autograder/checks/ex90.py"), written)
    for name in ("reference", *mutants):
        page = (folder / f"class/try/feedback/{name}/{EXERCISE}/logsumexp.html").read_text()
        assert {mistake for mistake, hint in written["HINTS"].items() if hint in page} == {mutants.get(name)} - {None}
    notebook = (folder / f"exercises/{EXERCISE}/logsumexp.ipynb").read_text()
    assert "YOUR CODE HERE" in notebook and "s.max()" not in notebook


def _deleted(folder, printed):
    room = folder / "class/2026"
    assert Classroom(room).students("03_flash_forward") == ["bob"]
    for path in [*room.rglob("*"), *(folder / "class/hand-ins").iterdir()]:
        assert not re.search(r"\bada\b", path.relative_to(folder).as_posix()), path
        # The database's free pages count: what is deleted stays in them for a while.
        if path.is_file() and path.is_relative_to(room) and path.relative_to(room).parts[0] not in ("source", "release"):
            assert not re.search(rb"\bada\b|Lovelace", path.read_bytes()), path


def _upgraded(folder, printed):
    assert Classroom(folder / "class/2026").assignments() == exercise_names(folder)
    assert (folder / "class/before.csv").read_bytes() == (folder / "class/after.csv").read_bytes()


def exercise_names(folder):
    return sorted(path.stem for path in folder.glob("solutions/[0-9]*.py"))


AFTER = {
    "release": _released, "handin": _handed_in, "intake": _taken_in, "grade": _graded, "look": _looked,
    "feedback": _given_back, "export": _exported, "exercise": _exercise,
    "stored": _deleted, "upgrade": _upgraded,
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize("number", range(len(SHELL)), ids=lambda n: f"{n}-{SHELL[n].section}")
def test_the_commands_run_in_the_guides_order(course, number):
    done = course(number)
    assert done.returncode == 0, f"{SHELL[number].text}\n{done.stdout}"
    section = SHELL[number].section
    last = max(n for n, b in enumerate(SHELL) if b.section == section)
    if section in AFTER and number == last:
        AFTER[section](course.folder, done.stdout)


def test_each_section_with_a_result_is_on_the_page():
    assert AFTER.keys() <= {b.section for b in SHELL}
    assert len(SHELL) >= 10


def test_a_block_that_is_not_run_says_where_it_can_be():
    for block in BLOCKS:
        assert block.language != "bash" or block.elsewhere == bool(block.options.get("caption")), block.text


def test_the_commands_fit_the_page():
    for block in BLOCKS:
        if block.language == "bash":
            assert max(map(len, block.text.splitlines())) <= 77, block.text  # what a wide window shows of a line


def test_the_leaderboard_is_of_an_exercise_that_is_timed():
    ranked = re.findall(r"^autograder leaderboard (\d\d)_", "\n".join(b.text for b in BLOCKS), re.MULTILINE)
    assert ranked
    for number in ranked:
        assert any(name.startswith(f"{number}.") and name.endswith(".speed") for name in CHECKS), number


def _calls(text):
    """(command, rest of the line) of each call of ours in a shell script."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"^(?:srun .*? )?autograder ([a-z]+)(.*)$", joined, flags=re.MULTILINE)


def test_commands_that_are_not_run_have_the_options_that_exist():
    commands = get_command(cli.app).commands
    seen = 0
    for block in BLOCKS:
        if block.language == "python":
            compile(block.text, block.options["caption"], "exec")
        if not block.elsewhere:
            continue
        assert subprocess.run(["bash", "-n"], input=block.text, text=True, check=False).returncode == 0 or block.language != "bash"
        for name, rest in _calls(block.text):
            known = {o for p in commands[name].params for o in [*p.opts, *p.secondary_opts]}
            assert set(re.findall(r"--[a-z-]+", rest)) <= known, block.text
            seen += 1
    assert seen >= 2


def _keys(node, path=""):
    return {path} if not isinstance(node, dict) else {k for name, below in node.items() for k in _keys(below, f"{path}.{name}")}


def test_what_the_cluster_section_says_to_dask_is_understood():
    (settings,) = [yaml.safe_load(b.text) for b in BLOCKS if b.language == "yaml"]
    assert _keys(settings) <= _keys({"distributed": dask_config.get("distributed")})
    cluster = "".join(b.text for b in BLOCKS if b.section == "slurm" and b.language == "bash").replace("\\\n", " ")
    calls = dict(re.findall(r"dask (worker|scheduler)(.*)", cluster))
    for name, program in (("worker", dask_worker.main), ("scheduler", dask_scheduler.main)):
        known = {option for p in program.params for option in [*p.opts, *p.secondary_opts]}
        assert set(re.findall(r"--[a-z-]+", calls[name])) <= known
    # A scheduler without encryption would run anybody's code as the instructor.
    assert "--protocol tls" in calls["scheduler"] and "tls://" in cluster
    assert settings["distributed"]["comm"]["require-encryption"] is True
    assert "--resources GPU=1" in calls["worker"]


def test_every_command_of_the_command_line_is_in_the_guide():
    text = text_of(PAGE)
    missing = [name for name in get_command(cli.app).commands if f"autograder {name}" not in text]
    assert not missing


def test_the_exit_statuses_are_those_of_the_command_line():
    told = {int(status) for status in re.findall(r"^\| (\d) \|", text_of(PAGE), re.MULTILINE)}
    usage = 2  # click's own, for a command line that it can't read
    assert told == {cli.OK, cli.FAILED, usage, cli.NO_SANDBOX, cli.WAITING}
    for name, command in get_command(cli.app).commands.items():
        named = re.search(r"Exit codes: (.*?)\n", (command.epilog or "") + "\n")
        if named:
            assert set(map(int, re.findall(r"\b(\d)\b(?= |;)", named[1]))) <= told, name


def test_the_example_is_not_in_the_course_itself():
    assert not [name for name in CHECKS if name.startswith("90.")]
    assert EXERCISE not in exercise.assignments()


# --- autograder add, which the guide needs for a class that has begun --------------------------------------------


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A class with the small assignment in it, and a course whose exercises are that one and another."""
    source = {name: master("### BEGIN SOLUTION\n" + STEP + "### END SOLUTION") for name in ("10_small", "11_other")}
    monkeypatch.setattr(exercise, "assignments", lambda: sorted(source))
    monkeypatch.setattr(exercise, "load_source", lambda name: copy.deepcopy(source[name]))
    room = Classroom.create(tmp_path / "class")
    room.add("10_small", source["10_small"], "small")
    room.submit("10_small", "ada", submission())
    room.source = source
    return room


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_add_releases_what_the_class_does_not_have_and_leaves_the_rest_alone(running):
    before = running.notebook("10_small").read_bytes()
    running.source["10_small"].cells[0].source = "# Another title"
    # The second name is wrong, so the first is not released either.
    refused = run("add", "11_other", "12_none", "--class", running.folder)
    assert refused.exit_code == cli.FAILED
    assert "assignment '12_none' does not exist; there are: 10_small, 11_other" in refused.output
    assert running.assignments() == ["10_small"]
    assert run("add", "--class", running.folder).exit_code == 0
    assert running.assignments() == ["10_small", "11_other"]
    assert running.notebook("10_small").read_bytes() == before
    assert "has every exercise" in " ".join(run("add", "--class", running.folder).output.split())


def test_add_releases_anew_only_when_told_to(running):
    running.source["10_small"].cells[0].source = "# Another title"
    refused = run("add", "10_small", "--class", running.folder)
    assert refused.exit_code == cli.FAILED and "1 have handed it in; --again" in refused.output
    assert "Another title" not in running.notebook("10_small").read_text("utf-8")
    assert run("add", "10_small", "--class", running.folder, "--again").exit_code == 0
    assert "Another title" in running.notebook("10_small").read_text("utf-8")
    assert running.students("10_small") == ["ada"]
