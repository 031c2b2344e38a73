"""The student edition: it holds nothing of the answers, installs, and checks on its own."""

import ast
import functools
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import tokenize
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from typer.testing import CliRunner

from autograder import cli, exercise, release, similar
from autograder.release import ReleaseError, answers, leaks

ASSIGNMENT = "03_flash_forward"


@pytest.fixture(scope="module")
def files():
    return release.edition()


# ---------------------------------------------------------------------------------------------------------------
# Nothing of the answers


def regions():
    """(name, text) of each solution region and of each function's body in kernels/, found without release.py."""
    for path in sorted(exercise.SOLUTIONS.glob("[0-9]*.py")):
        parts = re.split(
            r"^[ \t]*### (?:BEGIN|END) SOLUTION\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        for number, region in enumerate(parts[1::2]):
            yield f"{path.name}, region {number}", region
    for path in sorted((exercise.ROOT / "kernels").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield (
                    f"{path.name}, {node.name}",
                    "\n".join(text.split("\n")[node.body[0].lineno - 1 : node.end_lineno]),
                )


def code_lines(text):
    """The lines of code in `text`, without comments and spaces; whatever is no code stays as it is."""
    try:
        kept = [
            t
            for t in tokenize.generate_tokens(io.StringIO(textwrap.dedent(text)).readline)
            if t.type != tokenize.COMMENT
        ]
        text = tokenize.untokenize([(t.type, t.string) for t in kept])
    except (tokenize.TokenError, SyntaxError):
        pass
    return [line for line in ("".join(line.split()) for line in text.splitlines()) if line]


def texts(files):
    for path, data in files.items():
        if path.endswith(".ipynb"):
            for cell in json.loads(data)["cells"]:
                yield path, "".join(cell["source"])
        else:
            yield path, data.decode()


def outside(path):
    """What an exercise gives away by intention: everything outside its regions."""
    return "".join(
        re.split(
            r"^[ \t]*### (?:BEGIN|END) SOLUTION\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )[::2]
    )


def test_no_two_lines_of_an_answer_are_in_any_file(files):
    given = "".join("".join(code_lines(outside(path))) for path in exercise.SOLUTIONS.glob("[0-9]*.py"))
    haystacks = [(path, "\n".join(code_lines(text)), "".join(text.split())) for path, text in texts(files)]
    count = 0
    for name, region in regions():
        lines = code_lines(region)
        for one, two in zip(lines, lines[1:], strict=False):
            if len(one) + len(two) < 24 or one + two in given:
                continue  # `return o, lse` after `m = m_new`, or what the exercise gives itself
            count += 1
            for path, code, plain in haystacks:
                assert f"{one}\n{two}" not in code and one + two not in plain, (name, path, one, two)
    assert count > 300


def test_no_file_is_an_answer_with_other_names(files):
    """Names and layout taken away, no file has more than a few passages of any answer."""
    known = set().union(
        *(similar.fingerprints(text) for text in map(outside, exercise.SOLUTIONS.glob("[0-9]*.py")))
    )
    for assignment in exercise.assignments():  # kernels that are given to be mended share most of their passages
        for cell in exercise.load_source(assignment).cells:
            if cell.cell_type == "code" and not exercise.is_solution(cell):
                known |= set(similar.fingerprints(cell.source))
    edition = [(path, set(similar.fingerprints(text)) - known) for path, text in texts(files)]
    for name, region in regions():
        passages = set(similar.fingerprints(textwrap.dedent(region))) - known
        if len(passages) < 30:
            continue
        for path, there in edition:
            folder = path.split("/")[-2:-1]
            if path.endswith(".ipynb") and folder and folder[0] > name.split(".")[0]:
                continue  # a later exercise may build on this one
            assert len(passages & there) < 0.2 * len(passages), (
                name,
                path,
                len(passages & there),
                len(passages),
            )


def test_nothing_of_the_graders_side_is_in_it(files):
    names = "\n".join(files)
    for forbidden in (
        "solutions",
        "mutants",
        "kernels",
        "judge",
        "sample",
        "executor",
        "sandbox",
        "classroom",
        "seed",
        "exercise.py",
        "tests",
    ):
        assert forbidden not in names, forbidden
    assert {p.split("/")[0] for p in files} == {
        *exercise.assignments(),
        "autograder",
        "widgets",
        "README.md",
        "LICENSE",
        "pyproject.toml",
    }
    everything = b"\n".join(files.values()).decode()
    for word in ("BEGIN SOLUTION", "seeds.json", "needs_review", str(exercise.ROOT)):
        assert word not in everything, word
    imports = {
        name
        for path, data in files.items() if path.endswith(".py")
        for name in release._imports(ast.parse(data), path.rpartition("/")[0].replace("/", "."))
    }  # fmt: skip
    assert not {n for n in imports if n.split(".")[0] in ("kernels", "solutions", "nbgrader")}
    assert "autograder.judge" not in imports


def test_everything_that_is_imported_is_in_it_or_is_a_dependency(files):
    provided = {
        "yaml": "pyyaml",
        "cycler": "matplotlib",
        "traitlets": "ipywidgets",
        "IPython": "ipykernel",
        "google": None,
    }  # google: Colab's own
    project = tomllib.loads(files["pyproject.toml"].decode())["project"]
    needed = {re.match(r"[\w-]+", d)[0] for d in project["dependencies"]}
    sources = [(p, d.decode()) for p, d in files.items() if p.endswith(".py")]
    sources += [
        (p, "".join(c["source"]))
        for p, d in files.items()
        if p.endswith(".ipynb")
        for c in json.loads(d)["cells"]
        if c["cell_type"] == "code"
    ]
    for path, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                continue
            names = (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for top in (name.split(".")[0] for name in names):
                ours = top in ("autograder", "widgets")
                assert ours or top in sys.stdlib_module_names or provided.get(top, top) in needed | {None}, (
                    path,
                    top,
                )
    course = tomllib.loads((exercise.ROOT / "pyproject.toml").read_text())["project"]
    assert (
        set(project["dependencies"]) <= set(course["dependencies"])
        and project["requires-python"] == course["requires-python"]
    )


@pytest.fixture
def looked_for(monkeypatch, cache=[]):  # noqa: B006 - once for all of these tests
    if not cache:
        cache.append(answers())
    monkeypatch.setattr(release, "answers", lambda: cache[0])


@functools.cache
def secrets():
    """Answers, each as a student might find it: as it is, laid out anew, with comments between the lines."""
    notebook = exercise.submission(ASSIGNMENT)
    source = {exercise.grade_id(c): c.source for c in notebook.cells}
    kernel = (exercise.ROOT / "kernels" / "reference" / "state.py").read_text()
    return {
        "as it is": source["solution-tiles"],
        "two lines": "\n".join(source["solution-step"].split("\n")[-3:-1]),
        "with comments": "  # so\n\n".join(source["solution-step"].split("\n")[-4:-1]) + "  # so",
        # Python's tokenizer gives up here; a reader does not.
        "behind an open quote": "'''\n"
        + "  # so\n".join(source["solution-step"].split("\n")[-4:-1])
        + "  # so",
        "on other columns": textwrap.indent(source["solution-kernel"], " " * 12),
        "one line": next(line for line in source["solution-kernel"].split("\n") if "tl.dot(p" in line),
        "a kernel": kernel[kernel.index("def merge") :],
    }


@pytest.mark.parametrize(
    "where",
    [
        "README.md",
        "autograder/checks/ex03.py",
        "widgets/stepper.js",
        f"{ASSIGNMENT}/flash_forward.ipynb",
        "markdown",
    ],
)
@pytest.mark.parametrize(
    "secret",
    [
        "as it is",
        "two lines",
        "with comments",
        "behind an open quote",
        "on other columns",
        "one line",
        "a kernel",
    ],
)
def test_a_leak_is_found_wherever_it_is(files, secret, where, looked_for):
    text = secrets()[secret]
    planted = {}
    if where == "markdown" or where.endswith(".ipynb"):
        path = f"{ASSIGNMENT}/flash_forward.ipynb"
        notebook = nbformat.reads(files[path].decode(), as_version=4)
        if where == "markdown":
            notebook.cells[0].source += f"\n```python\n{text}\n```"
        else:
            notebook.cells.append(new_code_cell(text))
        planted[path] = nbformat.writes(notebook).encode()
    else:
        path = where
        planted[path] = files[path] + f"\n{text}\n".encode()
    found = leaks(planted)
    assert leaks({path: files[path]}) == [] and found and all(line.startswith(path) for line in found)


def test_files_that_are_not_for_students_are_found_by_their_names(looked_for):
    for path, data in (
        ("kernels/x.py", b""),
        ("solutions/x.py", b""),
        ("autograder/mutants.py", b""),
        ("autograder/x.py", b"### BEGIN SOLUTION"),
    ):
        assert leaks({path: data}) == [f"{path} is not for students"]


def test_a_leak_stops_the_release(files, monkeypatch, tmp_path):
    notebook = exercise.submission(ASSIGNMENT)
    monkeypatch.setattr(exercise, "release", lambda name: notebook)
    result = run("release", "--to", tmp_path / "edition")
    assert (
        result.exit_code == cli.FAILED
        and "nothing was written" in result.output
        and "solution-tiles" in result.output
    )
    assert not (tmp_path / "edition").exists()


def test_every_answer_is_looked_for():
    found = answers()
    solutions = [
        c
        for name in exercise.assignments()
        for c in exercise.load_source(name).cells
        if exercise.is_solution(c)
    ]
    assert sum(where.startswith("solutions/") for where in found) == len(solutions) > 0
    # Each line of this one stands in one of the two other broken kernels, which have that part right.
    given = {"solutions/04_masks_and_nan.py, solution-band"}
    assert {w for w, windows in found.items() if w.startswith("solutions/") and not windows} == given
    assert sum(bool(w) for where, w in found.items() if where.startswith("kernels/")) > 20


def test_a_later_exercise_may_build_on_an_earlier_one_and_no_other_file_may(files):
    """Exercise 04 gives kernels to be mended, which have lines of exercise 03's answer; what it gives is no licence to 03."""
    line = secrets()["one line"]
    later = "04_masks_and_nan/masks_and_nan.ipynb"
    given = "".join(c.source for c in nbformat.reads(files[later].decode(), as_version=4).cells)
    assert "".join(line.split()) in "".join(given.split())
    assert leaks({later: files[later]}) == []
    for path in f"{ASSIGNMENT}/flash_forward.ipynb", "autograder/released/03_flash_forward/flash_forward.ipynb":
        assert leaks({path: files[later]})
    assert leaks({"autograder/checks/ex04.py": line.encode()})


def test_a_notebook_that_needs_the_answers_is_refused():
    with pytest.raises(
        ReleaseError,
        match=r"import kernels[.\w]*, which is not for students; they may import autograder, widgets",
    ):
        release.modules([new_notebook(cells=[new_code_cell("from kernels import reference")])])
    paths = release.modules(
        [new_notebook(cells=[new_code_cell("import numpy\nif False:\n    from widgets.quiz import Quiz")])]
    )
    assert (
        Path("widgets/quiz.py") in paths
        and Path("widgets/base.py") in paths
        and Path("autograder/rebuild.py") in paths
    )


# ---------------------------------------------------------------------------------------------------------------
# What is written


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_the_same_exercises_give_the_same_bytes(files, tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        release.write(files, tmp_path / name / "edition.zip")
        monkeypatch.setenv("TZ", "Asia/Kathmandu")
    first, second = ((tmp_path / name / "edition.zip").read_bytes() for name in ("one", "two"))
    assert first == second and [p.name for p in (tmp_path / "one").iterdir()] == ["edition.zip"]
    with zipfile.ZipFile(io.BytesIO(first)) as file:
        assert {i.filename.removeprefix("edition/"): file.read(i) for i in file.infolist()} == files
        assert {i.date_time for i in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    release.write(files, tmp_path / "folder")
    assert {
        p.relative_to(tmp_path / "folder").as_posix(): p.read_bytes()
        for p in (tmp_path / "folder").rglob("*")
        if p.is_file()
    } == files


def test_the_released_notebooks_are_those_of_exercises(files):
    committed = (exercise.EXERCISES / ASSIGNMENT / "flash_forward.ipynb").read_bytes()
    assert (
        files[f"{ASSIGNMENT}/flash_forward.ipynb"]
        == files[f"autograder/released/{ASSIGNMENT}/flash_forward.ipynb"]
        == committed
    )


def test_the_command(tmp_path, monkeypatch, files):
    monkeypatch.setattr(release, "edition", lambda names: files)
    assert run("release", "--to", tmp_path / "a.zip").exit_code == 0 and (tmp_path / "a.zip").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.ipynb").write_text("hours of it")
    refused = run("release", "--to", tmp_path / "mine")
    assert refused.exit_code == cli.FAILED and "is not an empty folder" in refused.output
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["work.ipynb"]
    assert "Example" in run("release", "--help").output
    monkeypatch.undo()
    unknown = run("release", "99_none", "--to", tmp_path / "b.zip")
    assert unknown.exit_code == cli.FAILED and "'99_none' does not exist; there are: " in unknown.output


# ---------------------------------------------------------------------------------------------------------------
# On its own

ALONE = """
import linecache, runpy, sys
installed, packages, here = sys.argv[1:4]
# site-packages as a folder alone: what the course's own installation adds to it by .pth files is not there.
sys.path[:] = [p for p in sys.path if "site-packages" not in p and p not in ("", here)] + [packages]
sys.path.insert(0, installed)

import importlib.util
for name in ("kernels", "autograder.judge", "autograder.exercise", "autograder.sandbox"):
    assert importlib.util.find_spec(name) is None, name
import autograder
assert autograder.__file__.startswith(installed), autograder.__file__
import nbformat
notebook = nbformat.read("mine.ipynb", as_version=4)
space = {"__name__": "notebook"}
for i, cell in enumerate(notebook.cells):
    # Slow ones that take the same way as their neighbours are left out.
    if cell.cell_type != "code" or any(slow in cell.source for slow in ("measure()", '("03.memory', ".tails", ".causal", '("03.host"')):
        continue
    name = f"<cell {i}>"
    linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
    try:
        exec(compile(cell.source.replace("handin()", "handin('mine.ipynb', to='out', student='ada')"), name, "exec"), space)
    except autograder.CheckFailed as error:
        print("FAILED", error)
print("stepper:", type(space["stepper"]).__module__)
"""


def test_it_installs_and_checks_with_nothing_else_of_the_course(files, tmp_path):
    release.write(files, tmp_path / "edition")
    # Without build isolation, dependencies and index: setuptools is here, and the network is not needed.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
               "--disable-pip-version-check", "--target", str(tmp_path / "installed"), str(tmp_path / "edition")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PIP_NO_INPUT": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "installed" / "autograder" / "released" / ASSIGNMENT / "flash_forward.ipynb").is_file()
    assert (tmp_path / "installed" / "widgets" / "stepper.js").is_file() and not (
        tmp_path / "installed" / "kernels"
    ).exists()

    packages = next(p for p in sys.path if p.endswith("site-packages"))
    work = tmp_path / "work"
    work.mkdir()
    # What a student would have: the released notebook, filled in. One part is wrong.
    notebook = nbformat.reads(
        (tmp_path / "edition" / ASSIGNMENT / "flash_forward.ipynb").read_text(encoding="utf-8"), as_version=4
    )
    sources = {exercise.grade_id(c): c.source for c in exercise.submission(ASSIGNMENT).cells}
    for cell in notebook.cells:
        if exercise.is_solution(cell):
            cell.source = sources[exercise.grade_id(cell)].replace("return o / l", "return o")
    nbformat.write(notebook, work / "mine.ipynb")
    (work / "alone.py").write_text(ALONE)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JPY", "JUPYTER"))} | {
        "CUDA_VISIBLE_DEVICES": ""
    }
    done = subprocess.run(
        [sys.executable, "-S", "-P", "alone.py", str(tmp_path / "installed"), packages, str(work)],
        cwd=work, env=clean, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert re.findall(r"FAILED (\S+):", out) == ["03.one_query"], out
    assert out.count("cases pass") == 6 and "nothing divided it by l" in out  # the hint for it
    assert "stepper: widgets.stepper" in out
    assert "nothing is missing: 5 of 5 parts" in out and "it is packed as flash_forward.ipynb" in out
    assert len(list((work / "out").glob(f"{ASSIGNMENT}--ada--*.zip"))) == 1
