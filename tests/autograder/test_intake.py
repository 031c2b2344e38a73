"""What was handed in, in every shape that it comes in: taken in once, under the right name, and nothing lost."""

import datetime
import io
import json
import os
import re
import stat
import subprocess
import sys
import unicodedata
import zipfile

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell
from small_assignment import STEP, data, master, submission
from typer.testing import CliRunner

from autograder import cli, exercise, handin, rebuild
from autograder import intake as intakes
from autograder.classroom import ClassError, Classroom
from autograder.intake import Intake, Roster

UTC = datetime.UTC
WRONG = STEP.replace("alpha * o", "o")


def other_master():
    notebook = master()
    notebook.cells[2:] = [
        new_code_cell("def merge(a, b):\n    pass", id="solution-merge", metadata=data("solution-merge")),
        new_code_cell('check("03.merge", merge)', id="check-merge", metadata=data("check-merge", 3)),
    ]
    return notebook


@pytest.fixture
def room(tmp_path):
    """A class with two released assignments, "small" and "other"."""
    classroom = Classroom.create(tmp_path / "class")
    for name, notebook in (("small", master()), ("other", other_master())):
        (classroom.folder / "release" / name).mkdir(parents=True)
        nbformat.write(notebook, classroom.folder / "release" / name / f"{name}.ipynb")
    return classroom


def text(notebook=None, mark=""):
    """The bytes of a hand-in; `mark` makes one that differs."""
    notebook = notebook or submission(STEP + mark)
    return nbformat.writes(notebook).encode()


def tree(folder, files, mtime=None):
    """Write `files` (path -> bytes); returns the folder."""
    folder.mkdir(exist_ok=True)
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if mtime:
            os.utime(target, (mtime, mtime))
    return folder


def zipped(files, date=(2026, 11, 1, 12, 0, 0)):
    """A zip as bytes; a value is bytes, or (bytes, mode)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, date)
            if isinstance(content, tuple):
                content, mode = content
                info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, content)
    return buffer.getvalue()


def take(room, source, **options):
    run = Intake(room, **options)
    lines = run.run(source)
    # Each run: what is accepted can be graded, and lies in the class and nowhere else.
    for line in lines:
        assert line.status in ("accepted", "older", "unchanged", "ignored", "refused")
        assert line.why or line.status in ("accepted", "unchanged")
        if line.status == "accepted":
            path = (
                room.folder
                / "submitted"
                / line.student
                / line.assignment
                / room.notebook(line.assignment).name
            )
            opened = rebuild.rebuild(nbformat.read(room.notebook(line.assignment), 4), rebuild.read(path))
            assert opened.notebook.cells
    return lines


def only(lines, status):
    (line,) = [x for x in lines if x.status == status]
    return line


def submitted(room):
    """student/assignment/file -> bytes, of all that lies in submitted/."""
    root = room.folder / "submitted"
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def packed(tmp_path, notebook, student=None, assignment="small", when=None, name=None):
    """A hand-in package made by the student's own command."""
    path = tmp_path / (name or f"{assignment}.ipynb")
    nbformat.write(notebook, path)
    master_path = tmp_path / "released.ipynb"
    nbformat.write(master() if assignment == "small" else other_master(), master_path)
    look = handin.examine(path, {assignment: master_path})
    return handin.pack(look, tmp_path / "packed", student, when)


# ---------------------------------------------------------------------------------------------------------------
# The shapes


SHAPES = {
    "a folder for each student": ({"ada/small.ipynb": 0, "bob/work/small.ipynb": 1}, ("ada", "bob")),
    "nbgrader's submitted/": ({"ada/small/small.ipynb": 0, "bob/small/small.ipynb": 1}, ("ada", "bob")),
    "nbgrader's course root": ({"submitted/ada/small/small.ipynb": 0, "submitted/bob/small/small.ipynb": 1}, ("ada", "bob")),
    "Moodle, in folders": (
        {"Ada Lovelace_901_assignsubmission_file/small.ipynb": 0, "Bob Müller_17_assignsubmission_file/small.ipynb": 1},
        ("Ada Lovelace", "Bob Müller"),
    ),
    "Moodle, in folders, as before 3.9": (
        {"Ada Lovelace_901_assignsubmission_file_/small.ipynb": 0, "Bob_17_assignsubmission_file_/a/b/small.ipynb": 1},
        ("Ada Lovelace", "Bob"),
    ),
    "Moodle, without folders": (
        {"Ada Lovelace_901_assignsubmission_file_small.ipynb": 0, "Bob_17_assignsubmission_file_my_1_2_x.ipynb": 1},
        ("Ada Lovelace", "Bob"),
    ),
    "Moodle, groups": (
        {"Group A_3_assignsubmission_file/small.ipynb": 0, "Default group_assignsubmission_file/small.ipynb": 1},
        ("Group A", "Default group"),
    ),
    "Canvas": (
        {"lovelaceada_1001_555_small.ipynb": 0, "müllerbob_LATE_1002_556_small-1.ipynb": 1},
        ("lovelaceada_1001", "müllerbob_1002"),
    ),
    "Canvas, without names": ({"anon_AbC12_555_small.ipynb": 0, "LATE_anon_Xy9_556_my file.ipynb": 1}, ("anon_AbC12", "anon_Xy9")),
}  # fmt: skip


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "folder"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_hand_in(room, tmp_path, shape, as_zip):
    names, students = SHAPES[shape]
    files = {name: text(mark=f"\n# {who}") for name, who in names.items()}
    source = tmp_path / "source"
    if as_zip:
        source = tmp_path / "source.zip"
        source.write_bytes(zipped(files))
    else:
        tree(source, files)
    lines = take(room, source)
    assert {(x.status, x.student, x.assignment) for x in lines} == {
        ("accepted", s, "small") for s in students
    }
    there = submitted(room)
    for (name, _), student in zip(names.items(), students, strict=True):
        assert there[f"{student}/small/small.ipynb"] == files[name]
    late = [x for x in lines if any("Canvas marks it as late" in n for n in x.notes)]
    assert len(late) == ("Canvas" in shape)
    # The same again changes nothing.
    assert {x.status for x in take(room, source)} == {"unchanged"}
    assert submitted(room) == there


def test_the_students_own_package_is_taken_in_any_wrapping(room, tmp_path):
    when = datetime.datetime(2026, 11, 2, 10, 0, tzinfo=UTC)
    package = packed(tmp_path, submission(), "ada", when=when)
    line = only(take(room, package), "accepted")
    assert (line.student, line.assignment, line.time) == ("ada", "small", "2026-11-02T10:00:00+00:00")
    assert any("own clock" in n for n in line.notes)
    folder = tree(
        tmp_path / "folder", {package.name: package.read_bytes(), f"bob/{package.name}": package.read_bytes()}
    )
    lines = take(room, folder)
    assert [(x.status, x.student) for x in lines] == [("unchanged", "ada"), ("accepted", "bob")]
    # Who hands it in is what the LMS says. The package may claim another, and that is told.
    assert any("names 'ada' as its student" in n for n in lines[1].notes)
    assert any("byte for byte, as ada's" in n for n in lines[1].notes)
    lms = tmp_path / "moodle.zip"
    twice = zipped({package.name: package.read_bytes()})
    lms.write_bytes(zipped({f"Cy D_5_assignsubmission_file/{package.name}": package.read_bytes(),
                            "Eve_6_assignsubmission_file/all.zip": twice}))  # fmt: skip
    assert [(x.status, x.student) for x in take(room, lms)] == [("accepted", "Cy D"), ("accepted", "Eve")]


def test_a_students_zip_cannot_speak_for_another(room, tmp_path):
    theirs = text(mark="\n# forged")
    inner = zipped({"bob/small/small.ipynb": theirs})
    moodle = zipped({"Bob_2_assignsubmission_file/small.ipynb": theirs})
    forged = packed(tmp_path, submission(), "bob").read_bytes()
    files = {
        "Eve_1_assignsubmission_file/a.zip": inner,
        "Fay_2_assignsubmission_file/b.zip": moodle,
        "Gus_3_assignsubmission_file/c.zip": forged,
        "Hal_4_assignsubmission_file/Bob_2_assignsubmission_file/small.ipynb": theirs,
        "Ian_5_assignsubmission_file/submitted/bob/small/small.ipynb": theirs,
    }
    source = tmp_path / "all.zip"
    source.write_bytes(zipped(files))
    assert [x.student for x in take(room, source)] == ["Eve", "Fay", "Gus", "Hal", "Ian"]
    plain = tree(
        tmp_path / "plain", {"kim/bob/small/small.ipynb": theirs, "lea/a.zip": inner, "lea/b.zip": moodle}
    )
    assert {x.student for x in take(room, plain)} == {"kim", "lea"}
    assert not (room.folder / "submitted" / "bob").exists()


# ---------------------------------------------------------------------------------------------------------------
# Versions and time


def test_the_newest_version_counts_in_whatever_order_they_come(room, tmp_path):
    days = {
        d: packed(
            tmp_path, submission(STEP + f"\n# {d}"), "ada", when=datetime.datetime(2026, 11, d, tzinfo=UTC)
        )
        for d in (3, 5, 4)
    }
    statuses = [only_status(take(room, days[d])) for d in (3, 5, 4)]
    assert statuses == ["accepted", "accepted", "older"]
    there = submitted(room)
    assert b"# 5" in there["ada/small/small.ipynb"]
    assert there["ada/small/timestamp.txt"].startswith(b"2026-11-05 00:00:00")
    kept = room.folder / ".autograder" / "intake" / "versions" / "small" / "ada"
    assert len(list(kept.glob("*.ipynb"))) == 3
    # All of them at once, into a class of its own, end the same way.
    everything = tree(tmp_path / "all", {p.name: p.read_bytes() for p in days.values()})
    fresh = Classroom.create(tmp_path / "fresh")
    (fresh.folder / "release").symlink_to(room.folder / "release")
    assert sorted(x.status for x in take(fresh, everything)) == ["accepted", "older", "older"]
    assert submitted(fresh) == there
    assert {x.status for x in take(room, everything)} == {"unchanged"} and submitted(room) == there


def only_status(lines):
    (line,) = lines
    return line.status


def test_going_back_to_an_earlier_version_is_a_new_version(room, tmp_path):
    for day, mark in ((1, "a"), (2, "b"), (3, "a")):
        package = packed(
            tmp_path,
            submission(STEP + f"\n# {mark}"),
            "ada",
            when=datetime.datetime(2026, 11, day, tzinfo=UTC),
        )
        assert only_status(take(room, package)) == "accepted"
    assert b"# a" in submitted(room)["ada/small/small.ipynb"]
    # The same once more, later: nothing new, and the hand-in is not made later than it was.
    (tmp_path / "packed").rename(tmp_path / "before")
    package = packed(
        tmp_path, submission(STEP + "\n# a"), "ada", when=datetime.datetime(2026, 11, 9, tzinfo=UTC)
    )
    assert only_status(take(room, package)) == "unchanged"
    assert submitted(room)["ada/small/timestamp.txt"].startswith(b"2026-11-03")


def test_what_lay_in_the_class_before_is_kept(room, tmp_path):
    theirs = room.submit("small", "ada", submission(WRONG))
    stamp = theirs.with_name("timestamp.txt")
    stamp.write_text("2026-11-05 08:00:00.000000 UTC")
    older = packed(tmp_path, submission(), "ada", when=datetime.datetime(2026, 11, 4, tzinfo=UTC))
    line = only(take(room, older), "older")
    assert (
        "2026-11-05T08:00" in line.why and theirs.read_bytes() == nbformat.writes(submission(WRONG)).encode()
    )
    newer = packed(tmp_path, submission(STEP + "\n#"), "ada", when=datetime.datetime(2026, 11, 6, tzinfo=UTC))
    assert only_status(take(room, newer)) == "accepted"
    assert stamp.read_text().startswith("2026-11-06")
    kept = room.folder / ".autograder" / "intake" / "versions" / "small" / "ada"
    assert {p.read_bytes() for p in kept.glob("*.ipynb")} >= {nbformat.writes(submission(WRONG)).encode()}
    # A version without any time replaces both, and takes no one else's time with it.
    take(room, tree(tmp_path / "mail", {"ada/small.ipynb": text(mark="\n# mail")}))
    assert b"# mail" in theirs.read_bytes() and not stamp.exists()


def test_canvas_attachments_of_one_student_are_ordered_by_their_numbers(room, tmp_path):
    source = tmp_path / "canvas.zip"
    source.write_bytes(
        zipped(
            {
                "doejane_7_91_small.ipynb": text(mark="\n# second"),
                "doejane_7_90_small-1.ipynb": text(mark="\n# first"),
            }
        )
    )
    assert [x.status for x in take(room, source)] == ["accepted", "older"]
    assert b"# second" in submitted(room)["doejane_7/small/small.ipynb"]


def test_two_notebooks_of_one_time(room, tmp_path):
    pair = {"ada/small.ipynb": text(mark="\n# own name"), "ada/small-Copy1.ipynb": text(mark="\n# copy")}
    assert [x.status for x in take(room, tree(tmp_path / "a", pair, mtime=1e9))] == ["older", "accepted"]
    assert b"# own name" in submitted(room)["ada/small/small.ipynb"]
    pair = {"bob/x.ipynb": text(mark="\n# 1"), "bob/y.ipynb": text(mark="\n# 2")}
    lines = take(room, tree(tmp_path / "b", pair, mtime=1e9))
    assert {x.status for x in lines} == {"refused"} and all("can't be told" in x.why for x in lines)
    assert not (room.folder / "submitted" / "bob").exists()


def test_nbgraders_timestamps_give_nbgraders_late_penalty(room, tmp_path):
    from nbgrader.api import Gradebook

    with room.gradebook() as gradebook:
        assert isinstance(gradebook, Gradebook)
        gradebook.add_assignment("small", duedate="2026-11-03 12:00:00 UTC")
    files = {}
    for student, stamp in (
        ("ada", "2026-11-03 11:59:59.5 UTC"),
        ("bob", "2026-11-03 14:00:00 CET"),
        ("cyd", "2026-11-03 12:30:00 UTC"),
        ("dan", "about noon"),
    ):
        files |= {
            f"{student}/small/small.ipynb": text(mark=f"\n# {student}"),
            f"{student}/small/timestamp.txt": stamp.encode(),
        }
    lines = {x.student: x for x in take(room, tree(tmp_path / "submitted", files))}
    assert [lines[s].late_seconds for s in ("ada", "bob", "cyd", "dan")] == [0.0, 3600.0, 1800.0, None]
    assert any("timestamp.txt can't be read" in n for n in lines["dan"].notes)
    assert not (room.folder / "submitted" / "dan" / "small" / "timestamp.txt").exists()
    # What nbgrader itself makes of the file that was written.
    from nbgrader.coursedir import CourseDirectory

    read = CourseDirectory(root=str(room.folder)).get_existing_timestamp(
        str(room.folder / "submitted" / "bob" / "small")
    )
    assert read == datetime.datetime(2026, 11, 3, 13, 0)


# ---------------------------------------------------------------------------------------------------------------
# What is not accepted


def _truncated():
    return text()[:2000]


REFUSED = {
    "not a notebook": ("report.pdf", lambda: b"%PDF-1.4", "not a notebook"),
    "a truncated notebook": ("small.ipynb", _truncated, "not a notebook: NotJSONError"),
    "an empty file": ("small.ipynb", lambda: b"", "not a notebook"),
    "a notebook of no exercise": ("small.ipynb", lambda: text(nbformat.v4.new_notebook(cells=[new_code_cell("1", id="a")])), "none of its cells"),
    "cells without a source": ("small.ipynb", lambda: b'{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "not a notebook"),
    "metadata of the wrong kind": ("small.ipynb", lambda: text().replace(b'"grade_id": "solution-step"', b'"grade_id": ["x"]'), None),
    "not a zip": ("small.zip", lambda: b"PK\3\4 and then nothing", "not a zip that can be opened"),
    "a zip of nothing": ("small.zip", lambda: zipped({"readme.txt": b"see small.ipynb"}), "not a notebook"),
    "a zip in a zip in a zip": ("a.zip", lambda: zipped({"b.zip": zipped({"c.zip": zipped({"small.ipynb": text()})})}), "a zip in a zip in a zip"),
    "a link in a zip": ("a.zip", lambda: zipped({"small.ipynb": (b"/etc/passwd", stat.S_IFLNK | 0o777)}), "symbolic link"),
    "out of the folder": ("a.zip", lambda: zipped({"../../small.ipynb": text()}), "leads out of the folder"),
    "an absolute name": ("a.zip", lambda: zipped({"/tmp/small.ipynb": text()}), "leads out of the folder"),
    "a drive": ("a.zip", lambda: zipped({"C:\\work\\small.ipynb": text()}), "leads out of the folder"),
    "out of it, as Windows writes it": ("a.zip", lambda: zipped({"x\\..\\..\\small.ipynb": text()}), "leads out of the folder"),
    "too many files": ("a.zip", lambda: zipped({f"{i}.txt": b"" for i in range(600)}), "more than 500 files"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_listed_with_the_reason_and_costs_no_one_else(room, tmp_path, kind):
    name, content, words = REFUSED[kind]
    source = tree(tmp_path / "source", {f"ada/{name}": content(), "bob/small.ipynb": text()})
    lines = take(room, source)
    assert only(lines, "accepted").student == "bob"
    refused = only(lines, "refused")
    assert refused.student == "ada"
    if words is not None:
        assert words in refused.why
    assert list(submitted(room)) == ["bob/small/small.ipynb"]


def test_limits_hold_whatever_the_headers_say(room, tmp_path, monkeypatch):
    monkeypatch.setattr(intakes, "MAX_NOTEBOOK_BYTES", 50_000)
    monkeypatch.setattr(intakes, "MAX_ARCHIVE_BYTES", 100_000)
    bomb = zipped({"small.ipynb": b"0" * 30_000_000})
    lying = bytearray(bomb)
    for offset in (22, bomb.index(b"PK\1\2") + 24):  # the size, in the local header and in the directory
        lying[offset : offset + 4] = (100).to_bytes(4, "little")
    files = {
        "ada/a.zip": bomb,
        "bob/b.zip": bytes(lying),
        "cyd/c.ipynb": b"0" * 60_000,
        "dan/d.zip": os.urandom(150_000),
        "eve/e.zip": zipped({f"{i}.ipynb": b"0" * 40_000 for i in range(4)}),
    }
    lines = take(room, tree(tmp_path / "source", files))
    assert {x.status for x in lines} == {"refused"}
    why = {x.student: x.why for x in lines}
    assert "holds more than" in why["ada"] and "can't be read" in why["bob"]
    assert "is the most" in why["cyd"] and "is the most" in why["dan"]
    assert sum("holds more than" in x.why for x in lines if x.student == "eve") == 2


def test_a_file_that_grew_since_its_size_was_read_is_not_read_to_its_end():
    entry = intakes.Entry(
        "x",
        ("x",),
        10,
        datetime.datetime.now(UTC),
        lambda limit: intakes._capped(io.BytesIO(b"x" * 100), limit),
    )
    with pytest.raises(intakes.Refused, match="larger than"):
        intakes._load(entry, 50)


def test_links_and_pipes_in_a_folder_are_not_followed(room, tmp_path):
    secret = tree(tmp_path / "secret", {"small.ipynb": text()})
    source = tree(tmp_path / "source", {"bob/small.ipynb": text()})
    (source / "ada").mkdir()
    (source / "ada" / "small.ipynb").symlink_to(secret / "small.ipynb")
    (source / "cyd").symlink_to(secret)
    (source / "dan").mkdir()
    os.mkfifo(source / "dan" / "small.ipynb")
    lines = take(room, source)
    assert only(lines, "accepted").student == "bob"
    assert sorted(x.why for x in lines if x.status == "refused") == ["it is a symbolic link"] * 2 + [
        "it is not an ordinary file"
    ]


def test_a_link_inside_the_class_is_not_written_through(room, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (room.folder / "submitted").mkdir()
    (room.folder / "submitted" / "ada").symlink_to(outside)
    line = only(take(room, tree(tmp_path / "source", {"ada/small.ipynb": text()})), "refused")
    assert "leads out of the class" in line.why and not any(outside.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        ".hidden",
        "-rf",
        "con",
        "NUL.txt",
        "a+b",
        "a*b",
        "a[b",
        "x" * 200,
        "ends.",
        "tab\there",
        "line\nbreak",
        "\u202eada",
        "{0}",
    ],
)
def test_names_that_are_no_students_are_refused(room, tmp_path, name):
    line = only(take(room, tree(tmp_path / "source", {f"{name}/small.ipynb": text()})), "refused")
    assert "can't be a student's id" in line.why
    assert all(c.isprintable() for c in line.where)
    assert submitted(room) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_a_name_that_is_no_text_is_refused(room, tmp_path):
    source = os.fsencode(tree(tmp_path / "source", {}))
    os.mkdir(source + b"/\xff\xfe")
    with open(source + b"/\xff\xfe/small.ipynb", "wb") as file:
        file.write(text())
    result = run("intake", tmp_path / "source", "--class", room.folder)
    assert result.exit_code == cli.FAILED and "1 refused" in result.output


def test_one_person_in_two_spellings_is_one_student(room, tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Zoë Müller") for form in ("NFC", "NFD"))
    assert composed != decomposed
    take(room, tree(tmp_path / "a", {f"{decomposed}/small.ipynb": text(mark="\n# 1")}, mtime=1e9))
    take(room, tree(tmp_path / "b", {f"{composed}/small.ipynb": text(mark="\n# 2")}, mtime=1.1e9))
    assert [p.name for p in (room.folder / "submitted").iterdir()] == [composed]
    line = only(take(room, tree(tmp_path / "c", {"ZOË müller/small.ipynb": text()})), "refused")
    assert "differ in capitals alone" in line.why


def test_junk_is_ignored_and_empty_folders_are_named(room, tmp_path):
    files = {
        "__MACOSX/ada/._small.ipynb": b"x",
        "ada/small.ipynb": text(),
        "ada/.ipynb_checkpoints/small-checkpoint.ipynb": text(WRONG and submission(WRONG)),
        "bob/.DS_Store": b"x",
    }
    source = tmp_path / "s.zip"
    source.write_bytes(zipped(files | {"cyd/": b"", "dan/small/": b""}))
    lines = take(room, source)
    assert sorted(x.status for x in lines) == ["accepted"] + ["ignored"] * 3 + ["refused"] * 2
    assert sorted(x.where for x in lines if x.status == "refused") == ["s.zip: cyd", "s.zip: dan/small"]
    folder = tree(tmp_path / "f", files)
    (folder / "cyd" / "small").mkdir(parents=True)
    empty = [x.where for x in take(room, folder) if "empty folder" in x.why]
    assert empty == ["bob", "cyd/small"]


# ---------------------------------------------------------------------------------------------------------------
# Which exercise


def test_a_renamed_notebook_is_recognised_by_its_cells(room, tmp_path):
    files = {
        "ada/homework final (2).ipynb": text(),
        "ada/x.ipynb": text(other_master()),
        "bob/small.json": text(mark="\n#"),
        "cyd/small.IPYNB": text(),
    }
    lines = {x.where: x for x in take(room, tree(tmp_path / "s", files))}
    assert {(x.status, x.student, x.assignment) for x in lines.values()} == {
        ("accepted", "ada", "small"), ("accepted", "ada", "other"), ("accepted", "bob", "small"), ("accepted", "cyd", "small")
    }  # fmt: skip
    assert any("does not end in .ipynb" in n for n in lines["bob/small.json"].notes)


def test_the_exercise_that_was_asked_for_is_the_one_that_is_taken(room, tmp_path):
    source = tree(tmp_path / "s", {"ada/other.ipynb": text(), "bob/other.ipynb": text(other_master())})
    lines = {x.student: x for x in take(room, source, assignment="other")}
    assert lines["bob"].status == "accepted"
    assert lines["ada"].why == "it is a notebook of small, and was handed in for other"
    folders = tree(tmp_path / "t", {"ada/other/other.ipynb": text()})
    assert "handed in for other" in only(take(room, folders), "refused").why
    with pytest.raises(ClassError, match="no assignment 'third' is released"):
        Intake(room, assignment="third")


def test_cells_of_two_exercises_are_no_guess(room, tmp_path):
    both = master()
    both.cells[2:] = [submission().cells[2], other_master().cells[2]]
    line = only(take(room, tree(tmp_path / "s", {"ada/x.ipynb": text(both)})), "refused")
    assert line.why == "it could be other or small: say which with --assignment"
    assert only_status(take(room, tmp_path / "s", assignment="small")) == "accepted"


# ---------------------------------------------------------------------------------------------------------------
# Rosters


ROSTERS = {
    "nbgrader": "id,first_name,last_name,email,lms_user_id\nada,Ada,Lovelace,a@x.org,1001\njane,Jane,Doe,j@x.org,1002\n",
    "Moodle": "\ufeffIdentifier;Full name;Email address;Username\nParticipant 1001;Ada Lovelace;a@x.org;ada\nParticipant 1002;Jane Doe;j@x.org;jane\n",
    "Canvas": 'Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"Lovelace, Ada",1001,s1,ada,1\n"Doe, Jane",1002,s2,jane,1\n',
}  # fmt: skip


@pytest.mark.parametrize("kind", ROSTERS)
def test_a_roster_names_the_students(room, tmp_path, kind):
    path = tmp_path / "roster.csv"
    path.write_text(ROSTERS[kind], encoding="utf-8")
    roster = Roster(path)
    for files in (
        {
            "Ada Lovelace_1001_assignsubmission_file/small.ipynb": text(),
            "Nobody_5_assignsubmission_file/small.ipynb": text(),
        },
        {"lovelaceada_1001_9_small.ipynb": text(), "nobody_5_8_small.ipynb": text()},
        {"ADA/small.ipynb": text(), "nobody/small.ipynb": text()},
        {"ada.ipynb": text(), "nobody.ipynb": text()},
    ):
        source = tmp_path / "s.zip"
        source.write_bytes(zipped(files))
        lines = take(room, source, roster=roster)
        assert {x.student for x in lines if x.status != "refused"} == {"ada"}, files
        assert (
            "roster" in only(lines, "refused").why
            or "nothing says which student" in only(lines, "refused").why
        )
    assert [p.name for p in (room.folder / "submitted").iterdir()] == ["ada"]


@pytest.mark.parametrize("kind", ROSTERS)
def test_a_roster_fills_nbgraders_student_list_and_nothing_else(room, tmp_path, capfd, kind):
    path, source = tmp_path / "roster.csv", tmp_path / "s.zip"
    path.write_text(ROSTERS[kind], encoding="utf-8")
    source.write_bytes(zipped({"ada/small.ipynb": text()}))
    printed = CliRunner().invoke(cli.app, ["intake", str(source), "--class", str(room.folder), "--roster", str(path)])
    assert printed.exit_code == 0, printed.output
    with room.gradebook() as gradebook:
        gradebook.update_or_create_student("bob")  # who is in no roster keeps what he has
        found = {s.id: (s.first_name, s.last_name, s.email) for s in gradebook.students}
    ada = ("Ada", "Lovelace", None if kind == "Canvas" else "a@x.org")
    assert found.pop("ada") == ada and found["jane"][:2] == ("Jane", "Doe") and found["bob"] == (None, None, None)
    out, err = capfd.readouterr()
    assert not re.search("lovelace|x.org", printed.output + out + err, re.IGNORECASE)
    for file in room.folder.rglob("*"):
        assert file.name == "gradebook.db" or not file.is_file() or not re.search(rb"(?i)lovelace|a@x\.org", file.read_bytes()), file


def test_a_new_class_takes_a_roster_and_a_wrong_one_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise, "assignments", lambda: ["10_small"])
    monkeypatch.setattr(exercise, "load_source", lambda name: master("### BEGIN SOLUTION\n" + STEP + "### END SOLUTION"))
    wrong, right = tmp_path / "wrong.csv", tmp_path / "right.csv"
    wrong.write_text("name,points\nada,3\n")
    right.write_text(ROSTERS["nbgrader"])
    refused = CliRunner().invoke(cli.app, ["new", str(tmp_path / "class"), "--roster", str(wrong)])
    assert isinstance(refused.exception, ClassError) and not (tmp_path / "class").exists()
    assert CliRunner().invoke(cli.app, ["new", str(tmp_path / "class"), "--roster", str(right)]).exit_code == 0
    with Classroom(tmp_path / "class").gradebook() as gradebook:
        assert {s.id: s.last_name for s in gradebook.students} == {"ada": "Lovelace", "jane": "Doe"}


def test_two_students_of_one_name_are_told_apart_by_the_roster_alone(room, tmp_path):
    source = tmp_path / "s.zip"
    source.write_bytes(
        zipped({f"Jane Doe_{n}_assignsubmission_file/small.ipynb": text(mark=f"\n# {n}") for n in (1, 2)})
    )
    lines = take(room, source)
    assert {x.status for x in lines} == {"refused"} and all(
        "2 students are called 'Jane Doe'" in x.why for x in lines
    )
    path = tmp_path / "roster.csv"
    path.write_text(
        "Identifier,Full name,Email address\nParticipant 1,Jane Doe,j1@x.org\nParticipant 2,Jane Doe,j2@x.org\n"
    )
    lines = take(room, source, roster=Roster(path))
    assert {(x.status, x.student) for x in lines} == {("accepted", "j1@x.org"), ("accepted", "j2@x.org")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name,points\nada,3\n", "columns name, points"),
        ("", "columns none"),
        ("id\nada\nADA\n", "'ADA' twice"),
        (b"\xff\xfe", "can't be read"),
    ],
)
def test_a_roster_that_is_none_is_named(tmp_path, content, words):
    path = tmp_path / "roster.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ClassError, match=words):
        Roster(path)
    with pytest.raises(ClassError, match="can't be read"):
        Roster(tmp_path / "none.csv")


# ---------------------------------------------------------------------------------------------------------------
# Everything at once


@given(
    names=st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
                   | st.sampled_from(["..", "submitted", "small", "small.ipynb", "handin.json", "a_1_2_b.ipynb", "X_3_assignsubmission_file", "\\..\\", "C:"]),
                   min_size=1, max_size=4),
    content=st.sampled_from([b"", b"{}", text(), text()[:500], zipped({"../x.ipynb": text()})]),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_in_a_zip_leaves_the_class_and_every_file_is_accounted_for(
    room, tmp_path_factory, names, content
):
    folder = tmp_path_factory.mktemp("any") / "in"
    folder.mkdir()
    source = folder / "any.zip"
    source.write_bytes(zipped({"/".join(names): content, "zed/small.ipynb": text(mark="\n# zed")}))
    before = {p for p in folder.parent.rglob("*") if room.folder not in p.parents}
    lines = take(room, source)
    assert len(lines) >= 2
    assert {p for p in folder.parent.rglob("*") if room.folder not in p.parents} == before
    for path in (room.folder / "submitted").rglob("*"):
        depth = len(path.relative_to(room.folder / "submitted").parts)
        assert depth <= 3 and (depth < 3 or path.name in ("small.ipynb", "other.ipynb", "timestamp.txt"))


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_the_command_prints_and_writes_the_report(room, tmp_path):
    source = tree(
        tmp_path / "s",
        {"ada/small.ipynb": text(), "bob/[red]x[/red].pdf": b"%PDF", "c\x1b[2J/small.ipynb": text()},
    )
    result = run("intake", source, "--class", room.folder)
    assert result.exit_code == cli.FAILED
    assert "1 accepted, 2 refused" in result.output
    assert "refused: bob/[red]x[/red].pdf (bob): it is not a notebook (.ipynb)" in result.output
    assert "\x1b[2J" not in result.output
    (path,) = (room.folder / ".autograder" / "intake").glob("*.json")
    body = json.loads(path.read_text())
    assert body["counts"] == {"accepted": 1, "refused": 2} and len(body["files"]) == 3
    assert (
        run("intake", tree(tmp_path / "t", {"ada/small.ipynb": text()}), "--class", room.folder).exit_code
        == cli.OK
    )
    assert "Example" in run("intake", "--help").output


def test_a_source_that_is_none_is_named(room, tmp_path):
    command = [
        sys.executable,
        "-m",
        "autograder.cli",
        "intake",
        str(tmp_path / "none"),
        "--class",
        str(room.folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        done.returncode == cli.FAILED
        and "does not exist; intake takes a folder" in done.stderr
        and "Traceback" not in done.stderr
    )
