"""The set-up: `make` and tools/course.py, in a copy of the tree whose programs only record how they are called.

Nothing here needs the network. These stand-ins are shell scripts, so the tests run where there is a POSIX shell.
"""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(os.name == "nt" or MAKE is None, reason="needs make and a POSIX shell")


def script(path, body):
    """Write an executable shell script at path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body + "\n")
    path.chmod(0o755)


def load(root):
    """The module tools/course.py of a copied tree."""
    spec = importlib.util.spec_from_file_location("course_under_test", root / "tools" / "course.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    """A copy of the set-up files alone, in a folder with a space in its name."""
    root = tmp_path / "a course"
    (root / "tools").mkdir(parents=True)
    for name in ("Makefile", "tools/course.py", "requirements.txt", "pyproject.toml"):
        shutil.copyfile(REPOSITORY / name, root / name)
    return root


@pytest.fixture
def ready(tree):
    """A tree whose .venv counts as installed; its programs write what they are called with to calls.txt."""
    record = f'echo "$(basename "$0") $*" >> "{tree}/calls.txt"\n'
    script(
        tree / ".venv/bin/python",
        'case "$*" in -c*) echo 3 11; exit 0;; esac\n'
        + record
        + 'case "$*" in *pytest*) echo "3 passed in 0.1s"; '
        "exit $PYTEST_STATUS;; *playwright*) exit 1;; esac\nexit ${PYTHON_STATUS:-0}",
    )
    script(
        tree / ".venv/bin/jb",
        record + "echo 'reading sources... [ 50%] chapters/intro'\n"
        'if [ -n "$JB_FAILS" ]; then echo "[IPKernelApp] WARNING | no encryption"\n'
        'echo "intro.md:3: WARNING: a broken reference"; exit 1; fi\n'
        "mkdir -p _build/html && : > _build/html/index.html",
    )
    script(tree / ".venv/bin/autograder", record + 'case "$*" in *"$AUTOGRADER_FAILS"*) exit $STATUS;; esac')
    script(tree / "stand-ins/chromium", "echo Chromium 1")
    course = load(tree)
    inputs = course.digest([tree / "requirements.txt", tree / "pyproject.toml"])
    (tree / ".venv/course.json").write_text(json.dumps({"root": str(tree), "inputs": inputs}))
    (tree / "chapters").mkdir()
    (tree / "chapters/intro.md").write_text("# Intro\n")
    (tree / "widgets").mkdir()
    (tree / "widgets/look.py").write_text("A = 1\n")
    return tree


def calls(root):
    """What the stand-ins were called with, in order."""
    path = root / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def make(root, target, **variables):
    """Run make in a tree with a Python that it accepts; variables are added to the environment."""
    environment = {**os.environ, "PYTHON": "", "PORT": "", "CI": "", "AUTOGRADER_FAILS": "nothing"}
    environment["PATH"] = os.pathsep.join(
        [str(root / "stand-ins"), str(Path(sys.executable).parent), environment["PATH"]]
    )
    environment.update(variables)
    return subprocess.run(
        [MAKE, target], check=False, cwd=root, env=environment, capture_output=True, text=True, timeout=120
    )


def error_lines(done):
    """The lines of stderr that explain the failure; make's own closing line is left out."""
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


# --- the search for a Python --------------------------------------------------------------------------------


def stand_in_python(path, version):
    """A Python that claims a version, and prints the command it is given."""
    script(path, f'if [ "$1" = -c ]; then echo {version}; else echo "ran: $0 $*"; fi')


def test_no_python_is_one_clear_line(tree, tmp_path):
    (tmp_path / "empty").mkdir()
    done = make(tree, "course", PATH=str(tmp_path / "empty"))
    assert done.returncode == 2
    (line,) = error_lines(done)
    assert line.startswith(
        "error: no Python found: install Python 3.11, 3.12 or 3.13, or name one: make course PYTHON="
    )


def test_wrong_versions_are_named_with_the_accepted_ones(tree, tmp_path):
    stand_in_python(tmp_path / "bin/python3", "3.9")
    stand_in_python(tmp_path / "bin/python", "2.7")
    done = make(tree, "course", PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    (line,) = error_lines(done)
    assert "needs Python 3.11, 3.12 or 3.13" in line
    assert "python3 is 3.9, python is 2.7" in line


@pytest.mark.parametrize("version", ["3.10", "3.14", "3.1", "4.11"])
def test_neighbouring_versions_are_refused(tree, tmp_path, version):
    stand_in_python(tmp_path / "bin/python3", version)
    assert f"python3 is {version}" in error_lines(make(tree, "venv", PATH=str(tmp_path / "bin")))[0]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_an_accepted_python_is_found_behind_an_old_one(tree, tmp_path, version):
    stand_in_python(tmp_path / "bin/python3", "3.8")
    stand_in_python(tmp_path / f"bin/python{version}", version)
    done = make(tree, "venv", PATH=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"ran: {tmp_path}/bin/python{version} -B tools/course.py venv\n"


def test_a_named_python_goes_first_even_with_a_space_in_its_path(tree, tmp_path):
    stand_in_python(tmp_path / "bin/python3", "3.11")
    stand_in_python(tmp_path / "my python/python", "3.13")
    done = make(tree, "lab", PATH=str(tmp_path / "bin"), PYTHON=str(tmp_path / "my python/python"))
    assert done.stdout == f"ran: {tmp_path}/my python/python -B tools/course.py lab\n"


def test_a_named_python_that_does_not_run_is_not_replaced_by_another(tree, tmp_path):
    stand_in_python(tmp_path / "bin/python3", "3.11")
    done = make(tree, "venv", PATH=str(tmp_path / "bin"), PYTHON="/nowhere/python3.12")
    assert done.returncode == 2
    assert error_lines(done) == [
        "error: PYTHON=/nowhere/python3.12 does not run. Give the path of a Python 3.11, 3.12 or 3.13"
    ]


def test_the_script_alone_refuses_a_wrong_version(tree, monkeypatch):
    course = load(tree)
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(course.Stop, match=r"needs Python 3\.11, 3\.12 or 3\.13"):
        course.check_machine()


def test_an_intel_mac_is_sent_to_the_dev_container(tree, monkeypatch):
    course = load(tree)
    import ensurepip  # noqa: F401 - before the platform is changed, which their own imports look at
    import venv  # noqa: F401

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(course.platform, "machine", lambda: "arm64")
    course.check_machine()
    monkeypatch.setattr(course.platform, "machine", lambda: "x86_64")
    with pytest.raises(course.Stop, match="Intel Macs.*dev container"):
        course.check_machine()


# --- the environment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_says_which_package_to_install(tree, tmp_path, module):
    (tmp_path / "broken").mkdir()
    (tmp_path / f"broken/{module}.py").write_text(
        f"raise ModuleNotFoundError('no {module}', name='{module}')\n"
    )
    done = make(tree, "venv", PYTHONPATH=str(tmp_path / "broken"))
    assert done.returncode == 2
    (line,) = error_lines(done)
    assert f"has no {module} module" in line
    assert f"apt-get install python3.{sys.version_info[1]}-venv" in line
    assert not (tree / ".venv").exists()


def test_no_network_is_one_clear_line(tree):
    """A real .venv and a real pip, whose index is a port of this machine that nobody listens on."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        offline = {
            "PIP_INDEX_URL": index,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_CONFIG_FILE": os.devnull,
        }
        done = make(tree, "venv", PIP_RETRIES="1", **offline)
    assert done.returncode == 2
    (line,) = error_lines(done)
    assert line.startswith("error: pip cannot reach the package index: check the network")
    assert not (tree / ".venv/course.json").exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "disk is full",
        ),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'",
            "cannot reach the package index",
        ),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "pip failed: No matching distribution found",
        ),
        (
            "  error: package directory 'kernels' does not exist\nerror: metadata-generation-failed",
            "'kernels' does not",
        ),
        ("", "pip failed: no reason given"),
    ],
)
def test_each_failure_of_pip_has_its_own_line(tree, output, expected):
    course = load(tree)
    log = tree / ".venv/pip.log"
    log.parent.mkdir()
    noise = "WARNING: Location 'file:///somewhere' is ignored\n" * 100
    log.write_text(f"Collecting torch\n{output}\n{noise}")
    line = course.pip_failure(log)
    assert expected in line
    assert "\n" not in line
    assert str(Path(".venv/pip.log")) in line


def test_little_disk_stops_before_anything_is_downloaded(tree, monkeypatch, capsys):
    course = load(tree)
    usage = shutil.disk_usage(tree)
    monkeypatch.setattr(course, "follow", lambda *_: pytest.fail("pip was started"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * 2**30))
    with pytest.raises(course.Stop, match=r"2\.0 GiB free .* need 3 GiB"):
        course.make_venv()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 * 2**30))
    course.check_disk()
    assert "5.0 GiB free" in capsys.readouterr().out
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=50 * 2**30))
    course.check_disk()
    assert capsys.readouterr().out == ""


class Pip:
    """Stands in for `follow`: keeps the commands; answers with the exit statuses it is given, then with 0."""

    def __init__(self, *statuses):
        self.statuses, self.commands = list(statuses), []

    def __call__(self, command, log, interesting):
        self.commands.append(" ".join(map(str, command[3:])))
        log.write_text("ERROR: refused\n")
        return self.statuses.pop(0) if self.statuses else 0


@pytest.fixture
def pip(ready, monkeypatch):
    """(course module, Pip, list of other commands that were run) on a tree that counts as installed."""
    course, stand_in, others = load(ready), Pip(), []
    monkeypatch.setattr(course, "follow", stand_in)
    monkeypatch.setattr(course, "venv_version", lambda: (3, 11))
    monkeypatch.setattr(course, "ask", lambda command: others.append(" ".join(map(str, command))) or (0, ""))
    monkeypatch.delenv("PYTHON", raising=False)
    return course, stand_in, others


def test_an_installed_environment_is_reused_without_pip(pip):
    course, stand_in, others = pip
    course.make_venv()
    assert stand_in.commands == []
    assert others == []


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_a_changed_lock_is_installed_into_the_same_environment(pip, ready, name):
    course, stand_in, others = pip
    with open(ready / name, "a") as file:
        file.write("\n")
    course.make_venv()
    assert others == []
    assert [command.split("off ")[1] for command in stand_in.commands] == [
        "-r requirements.txt",
        "--no-deps --no-build-isolation -e .",
    ]
    course.make_venv()
    assert len(stand_in.commands) == 2, "the second run has nothing to do"


@pytest.mark.parametrize("statuses", [(1,), (0, 1)])
def test_a_failed_install_is_not_taken_for_a_finished_one(pip, ready, statuses):
    course, stand_in, _ = pip
    stand_in.statuses = list(statuses)
    (ready / "requirements.txt").write_text("six==1.17.0\n")
    with pytest.raises(course.Stop, match="pip failed: refused"):
        course.make_venv()
    done = len(stand_in.commands)
    course.make_venv()
    assert len(stand_in.commands) == done + 2


def test_a_moved_folder_gets_a_new_environment(pip, ready):
    course, stand_in, others = pip
    stamp = json.loads(course.STAMP.read_text())
    course.STAMP.write_text(json.dumps({**stamp, "root": "/somewhere/else"}))
    course.make_venv()
    assert others == [f"{sys.executable} -m venv --clear {ready / '.venv'}"]
    assert len(stand_in.commands) == 2


@pytest.mark.parametrize(
    ("have", "named", "new"),
    [
        (None, False, True),  # it does not run
        ((3, 10), False, True),  # it is too old
        ((3, 13), False, False),  # the search found another version: what is there is good
        ((3, 13), True, True),  # PYTHON= names another version
    ],
)
def test_an_environment_of_another_python(pip, monkeypatch, have, named, new):
    course, _, others = pip
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    monkeypatch.setattr(course, "venv_version", lambda: have)
    if named:
        monkeypatch.setenv("PYTHON", "python3.12")
    course.make_venv()
    assert bool(others) == new


def test_the_users_python_variables_do_not_reach_the_environment(tree, monkeypatch):
    course = load(tree)
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "MAKEFLAGS"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PATH", "/usr/bin")
    variables = course.environment()
    assert not {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "MAKEFLAGS"} & set(variables)
    assert variables["PIP_USER"] == "0"
    assert variables["PATH"] == f"{tree}/.venv/bin:/usr/bin", "nbgrader calls alembic by its bare name"


def test_progress_of_pip_is_short(tree):
    progress = load(tree).PipProgress(3)
    lines = [
        "Collecting numpy==2.4.6 (from -r requirements.txt (line 90))",
        "Downloading numpy-2.4.6-cp311.whl (16.9 MB)",
        "Requirement already satisfied: six==1.17.0 in ./lib (1.17.0)",
        "Downloading https://an.index/packages/triton-3.7.1-cp311.whl (197.2 MB)",
        "Installing collected packages: numpy, six, triton",
    ]
    assert [progress(line) for line in lines] == [
        "package 1 of about 3: numpy",
        None,
        "package 2 of about 3: six",
        "downloading triton-3.7.1-cp311.whl (197 MB)",
        "installing 3 packages, a few minutes",
    ]


# --- the book -----------------------------------------------------------------------------------------------


def test_the_book_is_built_once_until_a_source_changes(ready):
    course = load(ready)
    course.build_book()
    course.build_book()
    assert calls(ready) == ["jb build . --all -W -n --keep-going"]
    (ready / "_build/html/gone.html").write_text("a page of a chapter that was removed")
    for number, name in enumerate(["chapters/intro.md", "widgets/look.py", "_toc.yml"], start=2):
        (ready / name).write_text("changed\n")
        course.build_book()
        assert len(calls(ready)) == number, name
    assert not (ready / "_build/html/gone.html").exists()
    shutil.rmtree(ready / "_build/html")
    course.build_book()
    assert len(calls(ready)) == 5


def test_a_book_with_a_warning_fails_shows_it_and_is_built_again(ready, monkeypatch, capsys):
    course = load(ready)
    monkeypatch.setenv("JB_FAILS", "yes")
    with pytest.raises(course.Stop, match="warnings or errors"):
        course.build_book()
    shown = capsys.readouterr().out
    assert "intro.md:3: WARNING: a broken reference" in shown
    assert "IPKernelApp" not in shown
    monkeypatch.delenv("JB_FAILS")
    course.build_book()
    assert len(calls(ready)) == 2


# --- make course --------------------------------------------------------------------------------------------


def test_course_goes_from_the_environment_to_the_grades(ready):
    done = make(ready, "course")
    assert done.returncode == 0, done.stderr
    assert calls(ready) == [
        "jb build . --all -W -n --keep-going",
        "python -m autograder.exercise compare",
        "autograder doctor --sandbox",
        "autograder sample class/sample --small",
        "autograder grade 03_flash_forward --class class/sample",
        "autograder report --class class/sample",
        "autograder sample class/sample --verify",
    ]
    steps = re.findall(r"^\[(\d)/6\] \d+:\d\d  ", done.stdout, flags=re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "5", "6"]
    assert f"{ready}/_build/html/index.html" in done.stdout
    assert "make lab" in done.stdout
    assert f"{ready}/class/sample" in done.stdout


def test_course_without_a_sandbox_still_succeeds_and_grades_nothing(ready):
    done = make(ready, "course", AUTOGRADER_FAILS="doctor", STATUS="3")
    assert done.returncode == 0, done.stderr
    assert calls(ready)[-1] == "autograder doctor --sandbox"
    assert "No sandbox can be had here, so grading is left out" in done.stdout
    assert (ready / "_build/html/index.html").exists()
    assert f"{ready}/class/sample" not in done.stdout


@pytest.mark.parametrize("command", ["sample class/sample --small", "grade", "report", "--verify"])
@pytest.mark.parametrize("status", ["1", "3"])
def test_course_fails_where_a_step_of_grading_fails(ready, command, status):
    done = make(ready, "course", AUTOGRADER_FAILS=command, STATUS=status)
    assert done.returncode == 2
    assert command in calls(ready)[-1]
    assert len(error_lines(done)) == 1


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere there is never a sandbox, whatever the doctor says"
)
def test_a_broken_doctor_is_not_taken_for_a_missing_sandbox(ready):
    done = make(ready, "course", AUTOGRADER_FAILS="doctor", STATUS="1")
    assert done.returncode == 2
    assert error_lines(done) == ["error: autograder doctor failed (above)"]


def test_course_fails_where_exercises_and_solutions_differ(ready):
    done = make(ready, "course", PYTHON_STATUS="1")
    assert done.returncode == 2
    assert "exercises/ does not match solutions/" in error_lines(done)[0]
    assert not any(call.startswith("autograder ") for call in calls(ready))


# --- make test ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 5])
def test_tests_end_with_pytests_own_line_and_status(ready, status):
    done = make(ready, "test", PYTEST_STATUS=str(status))
    assert done.stdout.splitlines()[-1] == "3 passed in 0.1s"
    assert done.returncode == (2 if status else 0)
    assert calls(ready)[-2] == "python -m ruff check ."
    assert calls(ready)[-1].startswith("python -m pytest -n logical ")


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_browser_the_rest_is_tested_except_on_a_build_server(ready, monkeypatch, ci):
    course = load(ready)
    ended = []
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(course, "get_browser", lambda: None)
    monkeypatch.setattr(course, "become", lambda command, **_: ended.append(command[1:]) or sys.exit(0))
    with pytest.raises(course.Stop if ci else SystemExit):
        course.test()
    assert [(command[:2], command[-1]) for command in ended] == (
        [] if ci else [(["-m", "pytest"], "--ignore=tests/site")]
    )


def test_findings_of_ruff_stop_the_tests(ready):
    done = make(ready, "test", PYTHON_STATUS="1", PYTEST_STATUS="0")
    assert done.returncode == 2
    assert not any(call.startswith("python -m pytest") for call in calls(ready))


@pytest.fixture
def no_browser(ready, monkeypatch):
    """A tree on a machine with no browser on PATH but a chromium-browser that does not start, as Ubuntu's."""
    machine = ready / "machine"
    script(machine / "chromium-browser", "echo 'install the snap' >&2; exit 1")
    for name in ("env", "mv", "sh", "basename"):
        (machine / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(machine))
    monkeypatch.delenv("CHROMIUM", raising=False)
    # -c is the probe for Playwright's own browser: it answers yes once `playwright install` has run.
    record = f'echo "$(basename "$0") $*" >> "{ready}/calls.txt"\n'
    installed = f'"{ready}/playwright-has-it"'
    script(
        ready / ".venv/bin/python",
        f'if [ "$1" = -c ]; then [ -e {installed} ]; exit; fi\n{record}[ -z "$OFFLINE" ] && : > {installed}',
    )
    course = load(ready)
    found = course.find_browser()
    if found and not found.startswith(str(machine)):
        pytest.skip("this machine has a browser outside PATH")
    assert found is None
    return course, machine


def test_root_installs_the_systems_chromium(no_browser, ready, monkeypatch):
    course, machine = no_browser
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script(machine / "chromium.deb", "echo Chromium 1")
    script(
        machine / "apt-get",
        f'echo "apt-get $* $DEBIAN_FRONTEND" >> "{ready}/calls.txt"\n'
        f'case "$*" in *install*) mv "{machine}/chromium.deb" "{machine}/chromium";; esac',
    )
    assert course.get_browser() == str(machine / "chromium")
    assert calls(ready) == [
        "apt-get -q -y update noninteractive",
        "apt-get -q -y install --no-install-recommends chromium noninteractive",
    ]


def test_others_get_playwrights_own(no_browser, ready, monkeypatch):
    course, machine = no_browser
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    script(machine / "apt-get", "exit 100")
    assert course.get_browser() == ""
    assert course.get_browser() == "", "the second time it is there"
    assert calls(ready) == ["python -m playwright install chromium"]


def test_no_browser_to_be_had(no_browser, monkeypatch):
    course, _ = no_browser
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("OFFLINE", "yes")
    assert course.get_browser() is None


# --- make lab -----------------------------------------------------------------------------------------------


def test_lab_copies_what_is_new_and_never_writes_over_a_students_file(ready):
    release, mine = ready / "exercises/03/flash.ipynb", ready / "work/03/flash.ipynb"
    release.parent.mkdir(parents=True)
    release.write_text("release 1")
    (ready / "exercises/03/data.txt").write_text("data")
    done = make(ready, "lab")
    assert done.returncode == 0, done.stderr
    assert mine.read_text() == "release 1"
    assert "new: work/03/flash.ipynb" in done.stdout
    mine.write_text("hours of work")
    release.write_text("release 2")
    (ready / "exercises/03/more.txt").write_text("more")
    (ready / "work/03/data.txt").unlink()
    (ready / "work/03/data.txt").symlink_to(ready / "nowhere")  # even a broken link is not ours to replace
    done = make(ready, "lab")
    assert mine.read_text() == "hours of work"
    assert "kept: work/03/flash.ipynb is yours" in done.stdout
    assert (ready / "work/03/more.txt").read_text() == "more"
    assert (ready / "work/03/data.txt").is_symlink()
    assert not (ready / "nowhere").exists()


def test_lab_opens_jupyterlab_on_the_copies(ready):
    (ready / "exercises").mkdir()
    make(ready, "lab", PORT="9999")
    (call,) = calls(ready)
    assert call.startswith(f"python -m jupyterlab --port=9999 --ServerApp.root_dir={ready}/work")
    assert ("--allow-root" in call) == (os.geteuid() == 0)


def test_lab_without_exercises_says_how_to_get_them_back(ready):
    done = make(ready, "lab")
    assert done.returncode == 2
    assert "git checkout exercises" in error_lines(done)[0]


# --- make serve, exercises, lock, clean ---------------------------------------------------------------------


def test_serve_shows_the_book(ready):
    (ready / "_build/html").mkdir(parents=True)
    (ready / "_build/html/index.html").write_text("the book")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ready / "tools/course.py"), "serve"]
    server = subprocess.Popen(
        command, env={**os.environ, "PORT": str(port)}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert f"http://localhost:{port}/" in server.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=10) as page:
            assert page.read() == b"the book"
        done = make(ready, "serve", PORT=str(port))
        assert f"choose another, make serve PORT={port + 1}" in error_lines(done)[0]
    finally:
        server.terminate()
        server.wait(timeout=10)
        server.stdout.close()


def test_serve_without_a_book_says_how_to_build_it(ready):
    assert error_lines(make(ready, "serve")) == ["error: there is no book yet: run make course first"]


@pytest.mark.parametrize("port", ["0", "65536", "80a", "-1", "٣"])
def test_a_port_that_is_none_is_refused(ready, port):
    (ready / "_build/html").mkdir(parents=True)
    (ready / "_build/html/index.html").write_text("the book")
    assert error_lines(make(ready, "serve", PORT=port)) == [
        f"error: PORT={port}: a port is a number from 1 to 65535"
    ]


def test_exercises_are_made_by_their_generator(ready):
    assert make(ready, "exercises").returncode == 0
    assert calls(ready) == ["python -m autograder.exercise build"]
    assert make(ready, "exercises", PYTHON_STATUS="1").returncode == 2


def test_lock_leaves_the_cuda_packages_out(ready):
    output = r"cuda-toolkit==13.0\nnumpy==2.4.6\nnvidia-cublas==13.1\nnvidia-ml-py==13.6\nnvidia-nvtx==13.0\n"
    script(ready / "stand-ins/uv", f'echo "uv $*" >> "{ready}/calls.txt"; printf "{output}"')
    assert make(ready, "lock").returncode == 0
    assert (ready / "requirements.txt").read_text() == "numpy==2.4.6\nnvidia-ml-py==13.6\n"
    (call,) = calls(ready)
    assert "--universal --python-version 3.11 --extra test" in call


def test_a_lock_that_cannot_be_made_leaves_the_old_one(ready):
    before = (ready / "requirements.txt").read_bytes()
    script(ready / "stand-ins/uv", "echo half==1; exit 1")
    done = make(ready, "lock")
    assert done.returncode == 2
    assert "requirements.txt is as it was" in error_lines(done)[0]
    assert (ready / "requirements.txt").read_bytes() == before


def test_clean_removes_what_was_built_and_no_ones_work(ready):
    keep = [
        "work/03/mine.ipynb",
        "work/.ipynb_checkpoints/mine.ipynb",
        "class/submitted/__pycache__/theirs.pyc",
    ]
    keep += [
        "class/gradebook.db",
        ".venv/lib/__pycache__/a.pyc",
        ".git/__pycache__/b",
        "chapters/intro.md",
        "elsewhere/c",
    ]
    drop = ["_build/html/index.html", "kernels/__pycache__/a.pyc", "exercises/03/.ipynb_checkpoints/x.ipynb"]
    drop += [".pytest_cache/v", ".ruff_cache/v", ".hypothesis/v"]
    for name in [*keep, *drop]:
        (ready / name).parent.mkdir(parents=True, exist_ok=True)
        (ready / name).write_text("x")
    (ready / "jupyter_execute").symlink_to(ready / "elsewhere")
    done = make(ready, "clean")
    assert done.returncode == 0, done.stderr
    assert [name for name in keep if not (ready / name).exists()] == []
    assert [name for name in [*drop, "jupyter_execute"] if os.path.lexists(ready / name)] == []


# --- the rest -----------------------------------------------------------------------------------------------


def test_a_long_silence_is_broken(tree, monkeypatch, capsys):
    """Off a terminal, a command that prints nothing still shows a line every 30 s (of a clock that runs faster)."""
    course = load(tree)
    real = time.monotonic
    monkeypatch.setattr(course.time, "monotonic", lambda: real() * 40)
    monkeypatch.setattr(course, "LIVE", False)
    assert (
        course.follow([sys.executable, "-c", "import time; time.sleep(2.5)"], tree / "log", lambda line: None)
        == 0
    )
    assert capsys.readouterr().out.count("started") >= 2


def test_the_log_has_everything_and_the_screen_only_progress(tree, capsys):
    course = load(tree)
    program = "import sys; print('first'); print('second', file=sys.stderr); sys.exit(7)"
    status = course.follow([sys.executable, "-c", program], tree / "logs/log", lambda line: None)
    assert status == 7
    assert sorted((tree / "logs/log").read_text().splitlines()) == ["first", "second"]
    assert "first" not in capsys.readouterr().out


def test_an_unknown_command_lists_the_known_ones(tree):
    done = subprocess.run(
        [sys.executable, str(tree / "tools/course.py"), "cours"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "course, test, test-gpu, lab, serve" in done.stderr
    assert "got cours" in done.stderr


def test_make_alone_lists_every_target(tree):
    done = subprocess.run([MAKE], check=False, cwd=tree, capture_output=True, text=True)
    listed = re.findall(r"^  make ([\w-]+) +\S", done.stdout, flags=re.MULTILINE)
    assert listed[0] == "help"
    assert sorted(listed[1:]) == sorted(load(tree).COMMANDS)


def test_ci_runs_make_test_from_anywhere_and_passes_its_status_on(tmp_path):
    script(tmp_path / "bin/make", 'echo "make $* in $PWD"; exit 3')
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", str(REPOSITORY / ".ci/run")],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"make test in {REPOSITORY}\n"
    assert done.returncode == 3


@pytest.mark.parametrize("name", ["README.md", ".devcontainer/devcontainer.json", "CHANGELOG.md"])
def test_every_make_target_that_is_named_exists(name):
    named = set(re.findall(r"(?:`|\"|^ *)make ([a-z-]+)", (REPOSITORY / name).read_text(), flags=re.MULTILINE))
    assert named <= {"help", *load(REPOSITORY).COMMANDS}
    assert named or name == "CHANGELOG.md"


def test_the_dev_container_is_valid_and_lets_the_sandbox_run():
    text = (REPOSITORY / ".devcontainer/devcontainer.json").read_text()
    settings = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    major, minor = re.match(r"python:(\d+)\.(\d+)-", settings["image"]).groups()
    assert (int(major), int(minor)) in load(REPOSITORY).ACCEPTED
    pairs = set(zip(settings["runArgs"], settings["runArgs"][1:], strict=False))
    assert {
        ("--security-opt", f"{what}=unconfined") for what in ("seccomp", "apparmor", "systempaths")
    } <= pairs
    assert settings["hostRequirements"]["gpu"] == "optional"
