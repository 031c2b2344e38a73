"""What the hand-in says and what the grader does never disagree; and it says what is missing."""

import contextlib
import datetime
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from small_assignment import STEP, master, needs_sandbox, submission

from autograder import exercise, handin, judge, rebuild
from autograder.classroom import Classroom
from autograder.handin import HandInError, describe, examine, match, pack
from autograder.intake import Intake

UTC = datetime.UTC
NOW = datetime.datetime(2026, 11, 5, 12, 0, 30, tzinfo=UTC)


@pytest.fixture
def released(tmp_path):
    path = tmp_path / "released" / "small.ipynb"
    path.parent.mkdir()
    nbformat.write(master(), path)
    return {"small": path}


@pytest.fixture
def looked(tmp_path, released):
    """looked(notebook or bytes): the `Look` at a file of it."""

    def look(notebook, name="small.ipynb"):
        path = tmp_path / name
        path.write_bytes(notebook if isinstance(notebook, bytes) else nbformat.writes(notebook).encode())
        return examine(path, released)

    return look


# ---------------------------------------------------------------------------------------------------------------
# What is said


def test_a_filled_in_notebook_misses_nothing(looked):
    look = looked(submission(extra="x = 1"))
    assert (look.assignment, look.notebook, look.flags, look.untouched, look.parts) == (
        "small",
        "small.ipynb",
        [],
        [],
        1,
    )
    assert "nothing is missing: 1 of 1 parts" in "\n".join(describe(look))


@pytest.mark.parametrize(
    "source",
    [
        None,
        "def step(state, tile):\n    # my first idea\n    pass",
        "\n\ndef step(state,   tile):\n\n    pass  # later",
    ],
)
def test_a_stub_is_a_stub_however_it_is_laid_out(looked, source):
    look = looked(master() if source is None else submission(source))
    assert look.untouched == ["solution-step"]
    assert "still as released (1 of 1 parts): solution-step" in "\n".join(describe(look))


@pytest.mark.parametrize(
    "source",
    ["def step(state, tile):\n    pass\nx = 1", "def step(state, tile:\n    broken", "\0", "(" * 5000],
)
def test_what_was_written_is_no_stub_even_if_python_cannot_read_it(looked, source):
    assert looked(submission(source)).untouched == []


def test_the_parts_of_the_real_exercise(tmp_path):
    notebook = exercise.submission("03_flash_forward")
    blank = exercise.release("03_flash_forward")
    for name in ("solution-host", "solution-kernel"):
        one = next(c for c in notebook.cells if rebuild.grade_id(c) == name)
        one.source = next(c for c in blank.cells if rebuild.grade_id(c) == name).source
    path = tmp_path / "mine.ipynb"
    nbformat.write(notebook, path)
    look = examine(path)  # against the notebooks of this installation
    assert (look.assignment, look.notebook, look.parts) == ("03_flash_forward", "flash_forward.ipynb", 5)
    assert look.untouched == ["solution-kernel", "solution-host"]
    assert "it is packed as flash_forward.ipynb" in "\n".join(describe(look))


def test_it_says_when_the_file_was_saved(looked):
    look = looked(submission())
    for age, words in (
        (3, "3 seconds ago"),
        (300, "5 minutes ago"),
        (86400, "24 hours ago"),
        (-50, "0 seconds ago"),
    ):
        text = "\n".join(describe(look, look.saved + datetime.timedelta(seconds=age)))
        assert words in text and "save and run this again" in text


def test_what_is_cut_off_is_said(looked, monkeypatch):
    monkeypatch.setattr(handin, "MAX_CELL_CHARACTERS", 50)
    assert "the rest is cut off: solution-step" in "\n".join(describe(looked(submission())))


# ---------------------------------------------------------------------------------------------------------------
# The same as the grader


def graded_as(path):
    """What the grader makes of the notebook at `path`: (flags, rebuilt sources), or the reason why a person must look.

    Read from `judge.grade` itself up to the point where code would run.
    """
    job = judge.Job(
        "small",
        "ada",
        str(path.parent / "m" / "small.ipynb"),
        str(path),
        b"s",
        str(path.parent / "verdict"),
        "key",
    )
    seen = {}

    class Stop:
        def __init__(self, job, notebook, *rest):
            seen["cells"] = [(c.id, c.source) for c in notebook.cells]

        def run(self):
            pass

    Path(job.master).parent.mkdir(exist_ok=True)
    nbformat.write(master(), job.master)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "_Judge", Stop)
        patch.setattr(judge, "machine", lambda gpu: {})
        verdict = judge.grade(job)
    # What only an instructor is told is no part of a hand-in: a student could try on it what goes unseen.
    flags = [f for f in verdict["flags"] if not f.startswith("worth a look")]
    unread = any(c["status"] == "needs_review" for c in verdict["cells"].values())
    return None if unread else seen["cells"], flags


def edits():
    """Ways to change a notebook, each a function of it."""
    place = st.integers(0, 4)
    name = st.sampled_from(
        [
            "",
            "x = 1",
            "def step(state, tile):\n    return state",
            STEP,
            "### END SOLUTION",
            "é\u2028\U0001f600",
        ]
    ) | st.text(max_size=20)

    def on(index, change):
        def edit(notebook):
            if notebook.cells:
                change(notebook, index % len(notebook.cells))

        return edit

    def metadata(value):
        return lambda nb, i: nb.cells[i].__setitem__("metadata", value)

    def grade_id(value):
        def change(nb, i):
            if isinstance(nb.cells[i].metadata.get("nbgrader"), dict):
                nb.cells[i].metadata.nbgrader.grade_id = value

        return change

    def swap(nb, i):
        nb.cells.insert(0, nb.cells.pop(i))

    def kind(nb, i):
        nb.cells[i].cell_type = "raw" if nb.cells[i].cell_type == "markdown" else "markdown"

    changes = st.one_of(
        st.just(lambda nb, i: nb.cells.pop(i)),
        st.just(lambda nb, i: nb.cells.insert(i, nbformat.from_dict(nb.cells[i]))),
        st.just(swap),
        st.just(kind),
        st.just(lambda nb, i: nb.cells[i].pop("id", None)),
        name.map(lambda text: lambda nb, i: nb.cells[i].__setitem__("source", text)),
        name.map(lambda text: lambda nb, i: nb.cells[i].__setitem__("id", text)),
        name.map(lambda text: lambda nb, i: nb.cells.insert(i, new_code_cell(text))),
        name.map(grade_id),
        st.sampled_from([{}, {"tags": ["skip-execution"]}, {"nbgrader": "x"}, {"nbgrader": {"grade_id": ["x"]}}, {"tags": 3}, {"tags": [3]}]).map(metadata),
        st.sampled_from([3, None, ["a", "b"], {"a": 1}]).map(lambda v: lambda nb, i: nb.cells[i].__setitem__("source", v)),
    )  # fmt: skip
    return st.lists(st.builds(on, place, changes), max_size=6)


@given(edits(), st.none() | st.integers(0, 3000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_done_to_it_hand_in_intake_and_grader_say_the_same(tmp_path_factory, changes, cut):
    notebook = submission(extra="x = 1")
    for change in changes:
        change(notebook)
    content = json.dumps(notebook).encode()[:cut]
    agree(tmp_path_factory.mktemp("agree"), content)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"nbformat": 4}', b"\xef\xbb\xbf" + nbformat.writes(submission()).encode(),
     nbformat.writes(submission()).replace("alpha * l", '\\ud800').encode(), nbformat.writes(new_notebook()).encode(),
     nbformat.writes(new_notebook(cells=[new_markdown_cell("mine")])).encode(),
     nbformat.writes(submission()).replace('"grade_id": "solution-step"', '"grade_id": ["x"]').encode(),
     nbformat.writes(submission()).replace('"metadata": {}', '"metadata": {"tags": 3}').encode(),
     nbformat.writes(submission()).replace('"id": "setup"', '"id": ["setup"]').encode()],
)  # fmt: skip
def test_the_same_for_files_that_are_hardly_notebooks(tmp_path, content):
    agree(tmp_path, content)


def agree(folder, content):
    room = Classroom.create(folder / "class")
    master_path = room.folder / "release" / "small" / "small.ipynb"
    master_path.parent.mkdir(parents=True)
    nbformat.write(master(), master_path)
    path = folder / "small.ipynb"
    path.write_bytes(content)
    cells, flags = graded_as(path)
    run = Intake(room)
    try:
        look = examine(path, {"small": master_path})
    except HandInError as error:
        assert cells is None, f"refused ({error}), but the grader takes it"
        assert (
            str(error).replace("small.ipynb ", "") in flags[0].replace("small.ipynb ", "")
            or "taken apart" in flags[0]
        )
        (line,) = run.run(_in_a_folder(folder, path))
        assert line.status == "refused"
        return
    assert cells is not None, f"accepted, but the grader says {flags}"
    assert look.flags == flags
    package = pack(look, folder / "packed", "ada", NOW)
    (line,) = run.run(package)
    assert (line.status, line.student, line.assignment) == ("accepted", "ada", "small"), line
    job = room.job("small", "ada")
    assert graded_as(Path(job.submission)) == (cells, flags)
    empty = [
        grade_id
        for grade_id, source in cells
        if grade_id == "solution-step" and handin._bare(source) == handin._bare(master().cells[2].source)
    ]
    assert look.untouched == empty


def _in_a_folder(folder, path):
    target = folder / "source" / "ada" / path.name
    target.parent.mkdir(parents=True)
    target.write_bytes(path.read_bytes())
    return folder / "source"


@needs_sandbox
def test_a_broken_and_edited_notebook_is_graded_with_the_flags_that_were_said(tmp_path, looked, graded):
    notebook = submission(extra="x = 1")
    notebook.cells[4].source = 'check("03.step", lambda *a: a)'
    notebook.cells.append(nbformat.from_dict(notebook.cells[2]))
    del notebook.cells[5]
    look = looked(notebook, "renamed.ipynb")
    assert len(look.flags) == 3
    package = pack(look, tmp_path / "packed", None, NOW)
    with zipfile.ZipFile(package) as file:
        unpacked = tmp_path / "unpacked" / "small.ipynb"
        unpacked.parent.mkdir()
        unpacked.write_bytes(file.read("small.ipynb"))
    verdict, _ = graded(path=unpacked)
    assert verdict["flags"] == look.flags
    assert {c["status"] for c in verdict["cells"].values()} == {"passed"}


def test_a_link_a_folder_and_a_missing_file_are_refused_as_by_the_grader(tmp_path, released):
    real = tmp_path / "real.ipynb"
    nbformat.write(submission(), real)
    link = tmp_path / "small.ipynb"
    link.symlink_to(real)
    for path, words in (
        (link, "symbolic link"),
        (tmp_path, "no file"),
        (tmp_path / "none.ipynb", "no file none.ipynb"),
    ):
        with pytest.raises(HandInError, match=words):
            examine(path, released)


def test_cells_of_several_exercises_and_of_none(tmp_path, looked):
    def one(*ids):
        return new_notebook(
            cells=[new_code_cell("", id=i, metadata={"nbgrader": {"grade_id": i}}) for i in ids]
        )

    released = {"a": one("x", "y", "z"), "b": one("x", "w")}
    assert match(one("x", "y"), released) == ["a"]
    assert match(one("x"), released) == ["a", "b"]
    assert match(one("x", "w", "w", "q"), released) == ["b"]
    assert match(one("q"), released) == []
    stripped = one("w", "x")
    for cell in stripped.cells:
        cell.metadata = {}
    assert match(stripped, released) == ["b"]
    with pytest.raises(HandInError, match="none of its cells belongs to this exercise"):
        looked(one("q"))
    paths = {name: tmp_path / f"{name}.ipynb" for name in released}
    for name, notebook in released.items():
        nbformat.write(notebook, paths[name])
    nbformat.write(one("x"), tmp_path / "x.ipynb")
    with pytest.raises(HandInError, match="cells of a, b; which one it is can't be told"):
        examine(tmp_path / "x.ipynb", paths)
    with pytest.raises(HandInError, match="did not come with this installation"):
        examine(tmp_path / "x.ipynb", {})


def test_a_file_that_changes_while_it_is_read_is_not_packed(tmp_path, released, monkeypatch):
    path = tmp_path / "small.ipynb"
    nbformat.write(submission(), path)

    def saved_meanwhile(p):
        notebook = rebuild.read(p)
        path.write_text(nbformat.writes(submission("x = 1")))
        return notebook

    monkeypatch.setattr(handin, "read", saved_meanwhile)
    with pytest.raises(HandInError, match="was saved while it was read"):
        examine(path, released)


# ---------------------------------------------------------------------------------------------------------------
# The package


def test_the_package_holds_the_files_own_bytes_and_what_is_known_of_it(tmp_path, looked):
    look = looked(master(), "My try (2).ipynb")
    package = pack(look, tmp_path / "new" / "folder", "ada@x.org", NOW)
    assert re.fullmatch(r"small--ada@x\.org--20261105T120030Z--[0-9a-f]{12}\.zip", package.name)
    with zipfile.ZipFile(package) as file:
        assert file.namelist() == ["handin.json", "small.ipynb"]
        assert file.read("small.ipynb") == (tmp_path / "My try (2).ipynb").read_bytes()
        manifest = json.loads(file.read("handin.json"))
    assert manifest["created"] == "2026-11-05T12:00:30+00:00" and manifest["untouched"] == ["solution-step"]
    assert package.name.endswith(f"{manifest['sha256'][:12]}.zip") and manifest["student"] == "ada@x.org"
    again = pack(look, tmp_path / "elsewhere", "ada@x.org", NOW)
    assert again.read_bytes() == package.read_bytes()


def test_packing_again_makes_a_new_file_only_for_a_new_version(tmp_path, looked):
    later = [NOW + datetime.timedelta(minutes=m) for m in range(4)]
    first = pack(looked(submission()), tmp_path / "p", "ada", later[0])
    assert pack(looked(submission()), tmp_path / "p", "ada", later[1]) == first
    second = pack(looked(submission("x = 1")), tmp_path / "p", "ada", later[2])
    third = pack(
        looked(submission()), tmp_path / "p", "ada", later[3]
    )  # back to the first version: it has to be the newest
    assert len({first, second, third}) == 3 == len(list((tmp_path / "p").iterdir()))
    assert pack(looked(submission()), tmp_path / "p", None, later[3]).name.startswith("small--20261105")


@pytest.mark.parametrize(
    "student", ["", " ada", "a/b", "..", "a\\b", "a+b", "x" * 121, "nul", "a\nb", "-a", "\u200bada"]
)
def test_an_id_that_intake_would_refuse_is_refused(tmp_path, looked, student):
    with pytest.raises(HandInError, match="can't be used"):
        pack(looked(submission()), tmp_path / "p", student)
    assert not (tmp_path / "p").exists()


def test_an_id_is_kept_as_it_is_in_composed_form(tmp_path, looked):
    package = pack(looked(submission()), tmp_path / "p", "Zoe\u0308 Müller-O'Neil 7", NOW)
    assert package.name.startswith("small--Zoë Müller-O'Neil 7--")


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs a folder that nobody can write to"
)
def test_a_folder_that_cannot_be_written_is_named(tmp_path, looked):
    (tmp_path / "file").write_text("")
    with pytest.raises(HandInError, match="can't be written to"):
        pack(looked(submission()), tmp_path / "file", "ada")


# ---------------------------------------------------------------------------------------------------------------
# As a cell and as a command


@pytest.fixture
def in_jupyter(tmp_path, monkeypatch):
    path = tmp_path / "mine.ipynb"
    nbformat.write(exercise.submission("03_flash_forward"), path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    return path


def the_cell():
    """The last cell of the notebook, as released."""
    return exercise.release("03_flash_forward").cells[-1].source


def said_by(code):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue()


@pytest.mark.parametrize("name", ["{path}", "mine.ipynb", "work/of/the/server/mine.ipynb"])
def test_in_jupyter_the_cell_finds_its_own_file(in_jupyter, monkeypatch, name):
    monkeypatch.setenv("JPY_SESSION_NAME", name.format(path=in_jupyter))
    text = said_by(the_cell())
    assert "mine.ipynb, read as the grader" in text and "It holds no student id" in text
    assert len(list(in_jupyter.parent.glob("03_flash_forward--2*.zip"))) == 1
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    said_by(the_cell())
    assert len(list(in_jupyter.parent.glob("03_flash_forward--ada--2*.zip"))) == 1


def test_in_vs_code_it_does_as_well(in_jupyter, monkeypatch):
    import IPython

    shell = type("Shell", (), {"user_ns": {"__vsc_ipynb_file__": str(in_jupyter)}})()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert "mine.ipynb, read as the grader" in said_by(the_cell())


@pytest.mark.parametrize("stale", [None, "renamed.ipynb", "a-console-and-no-notebook"])
def test_where_nothing_says_which_file_it_is_the_student_is_asked_to(in_jupyter, monkeypatch, stale):
    if stale:
        monkeypatch.setenv("JPY_SESSION_NAME", stale)
    with pytest.raises(
        HandInError, match=r'can\'t be found out here: say it, as in handin\("mine.ipynb"\)\. In Colab'
    ) as error:
        said_by(the_cell())
    assert error.value._render_traceback_() == [f"HandInError: {error.value}"]
    assert "packed:" in said_by('from autograder import handin\nhandin("mine.ipynb", student="ada")')
    Path("other.ipynb").touch()
    with pytest.raises(
        HandInError, match=r'handin\("mine.ipynb"\); this folder holds mine.ipynb, other.ipynb'
    ):
        said_by(the_cell())


def test_a_notebook_that_is_wholly_as_released_is_packed_with_a_warning(in_jupyter):
    def said(notebook):
        nbformat.write(notebook, in_jupyter)
        return said_by('from autograder import handin\nhandin("mine.ipynb")')

    blank, filled = exercise.release("03_flash_forward"), exercise.submission("03_flash_forward")
    text = said(blank)
    assert (
        "packed:" in text and "WARNING: every part of it is as released" in text and "Upload that" not in text
    )
    one = next(i for i, c in enumerate(blank.cells) if exercise.is_solution(c))
    blank.cells[one].source = filled.cells[one].source
    for notebook in (blank, filled):
        text = said(notebook)
        assert "WARNING" not in text and "Upload that file, as it is." in text


def test_the_command(in_jupyter, capsys):
    done = subprocess.run(
        [sys.executable, "-m", "autograder.handin", "mine.ipynb", "--to", "out", "--student", "ada"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    (package,) = Path("out").iterdir()
    assert f"packed: {package}" in done.stdout and package.name.startswith("03_flash_forward--ada--")
    assert handin.main(["none.ipynb"]) == 1
    assert "handin: no file none.ipynb was handed in" in capsys.readouterr().err


def test_it_runs_nothing_of_the_students_and_needs_little(tmp_path):
    notebook = exercise.submission("03_flash_forward")
    for cell in notebook.cells:
        cell.source += "\nopen('ran', 'w')"
    nbformat.write(notebook, tmp_path / "x.ipynb")
    code = """
import sys
from autograder import handin
handin("x.ipynb")
heavy = {"torch", "triton", "nbgrader", "distributed", "autograder.judge", "kernels", "IPython", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_newest_save_is_what_is_packed(in_jupyter, capsys):
    os.utime(in_jupyter, (time.time() - 600, time.time() - 600))
    assert handin.main(["mine.ipynb"]) == 0
    assert "10 minutes ago" in capsys.readouterr().out
