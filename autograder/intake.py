"""Take in what was handed in: a folder, nbgrader's layout, or the zip of an LMS (Moodle, Canvas), into a class.

    autograder intake SOURCE --class DIR [--assignment NAME] [--roster FILE.csv]

Every file of SOURCE ends in the report: accepted, an older version, unchanged, ignored, or refused with a reason. Who handed a
file in comes from the outermost name alone, which the LMS or the instructor gave; no name inside a student's own zip can speak
for another student. What is accepted is a notebook that the grader can take apart, of an exercise of this class.

    .autograder/intake/versions/ASSIGNMENT/STUDENT/   every version that was ever accepted, and versions.json about them
    .autograder/intake/TIME.json                      the report of one run
    submitted/STUDENT/ASSIGNMENT/                     the newest version, and timestamp.txt where its time is known

Nothing is unpacked to disk by the names in an archive, so there is no path for them to leave the class by.
"""

import contextlib
import csv
import datetime
import hashlib
import io
import json
import os
import platform
import re
import stat
import tempfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import nbformat

from autograder.classroom import ClassError
from autograder.handin import MANIFEST, match, student_problem
from autograder.rebuild import MAX_NOTEBOOK_BYTES, Unreadable, read, rebuild

# A zip that a student handed in; the outermost one may be of any size.
MAX_ARCHIVE_BYTES = 2 * MAX_NOTEBOOK_BYTES
MAX_ENTRIES = 500  # in such a zip
MAX_DEPTH = 2  # the LMS's zip, the student's zip in it, and one more in that

# Moodle: a folder "Full name_1234_assignsubmission_file" (older versions end it with "_"), or that before the file's own name.
# In the name itself Moodle turns every "_" into a space; a group without an id has no number.
_MOODLE = re.compile(
    r"(?P<name>[^_]+)(?:_(?P<id>\d+))?_assignsubmission_(?P<plugin>file|onlinetext)(?:_(?P<rest>.*))?", re.S
)
# Canvas: "lastnamefirst_LATE_1234_5678_own name.ipynb": the user's id, then the attachment's, which grows with time. Without names
# the user is "anon_AbC12". The name has no number between underscores, so the first match is the right one.
_CANVAS = re.compile(
    r"(?:(?P<name>\w+?)_)??(?P<late>LATE_)?(?P<id>\d+|anon_[A-Za-z0-9]+)_(?P<file>\d+)_(?P<rest>.+)", re.S
)
_JUNK = re.compile(r"__MACOSX|\._.*|\.DS_Store|Thumbs\.db|desktop\.ini|\.ipynb_checkpoints|\.git", re.I)


class Refused(Exception):
    """This file is not accepted. The message says why."""


@dataclass(frozen=True)
class Who:
    """Whom the outermost name says a file is from: `kind` is "folder", "moodle", "canvas" or "manifest"."""

    kind: str
    name: str
    id: str | None = None

    def __str__(self):
        return f"{self.name} ({self.id})" if self.id else self.name


@dataclass(frozen=True)
class Entry:
    """A file of SOURCE, not read yet.

    Attributes:
        where: what the report calls it.
        parts: its path, outermost name first.
        problem: why it can't be read, if so.
        modified: when the file says it was written (UTC); decides between versions, never about lateness.
        load: reads it; the argument is the most bytes that it may have.
    """

    where: str
    parts: tuple
    size: int
    modified: datetime.datetime
    load: Callable
    problem: str | None = None


@dataclass
class Line:
    """What the report says of one file. `status`: accepted, older, unchanged, ignored, refused."""

    where: str
    status: str
    student: str | None = None
    assignment: str | None = None
    why: str = ""
    time: str | None = None  # when it was handed in, where that is known
    late_seconds: float | None = None
    notes: list = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------
# What there is


def _entries(source):
    """(entries, empty folders) of a folder, a zip, or a single file."""
    if source.is_dir():
        return _in_folder(source)
    if source.is_file() and zipfile.is_zipfile(source):
        try:
            return _in_zip(zipfile.ZipFile(source), source.name)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise ClassError(f"{source} can't be opened as a zip: {error}") from None
    if source.is_file():
        return [_on_disk(source, source.name, (source.name,))], []
    raise ClassError(f"{source} does not exist; intake takes a folder, a .zip or a notebook")


def _on_disk(path, where, parts):
    info = path.lstat()

    def load(limit):
        with open(path, "rb") as file:
            return _capped(file, limit)

    plain = stat.S_ISREG(info.st_mode)
    problem = (
        None
        if plain
        else "it is a symbolic link"
        if stat.S_ISLNK(info.st_mode)
        else "it is not an ordinary file"
    )
    return Entry(
        _shown(where),
        parts,
        info.st_size,
        datetime.datetime.fromtimestamp(int(info.st_mtime), datetime.UTC),
        load,
        problem,
    )


def _in_folder(folder):
    entries, empty = [], []
    for root, folders, files in os.walk(folder):
        here = Path(root)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - set(links) - {n for n in folders if _JUNK.fullmatch(n)})
        for name in sorted(files + links):
            path = here / name
            parts = path.relative_to(folder).parts
            entries.append(_on_disk(path, "/".join(parts), parts))
        if here != folder and not folders and not [n for n in files if not _JUNK.fullmatch(n)]:
            empty.append(_shown(here.relative_to(folder).as_posix()))
    return entries, empty


def _in_zip(archive, where):
    entries, folders = [], set()
    for info in archive.infolist():
        # Windows programs write "\\" as well, and zipfile leaves it as it is.
        name = info.filename.replace("\\", "/")
        parts = tuple(p for p in name.split("/") if p not in ("", "."))
        problem = None
        if name.startswith("/") or ".." in parts or "\0" in name or re.match(r"[A-Za-z]:", name):
            problem = "its name in the zip leads out of the folder"
        elif stat.S_ISLNK(info.external_attr >> 16):
            problem = "it is a symbolic link"
        elif info.flag_bits & 1:
            problem = "it is encrypted"
        if problem is None and info.is_dir():
            folders.add(parts)
            continue
        try:
            modified = datetime.datetime(*info.date_time, tzinfo=datetime.UTC)
        except ValueError:
            modified = datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC)

        def load(limit, info=info):
            with archive.open(info) as file:
                return _capped(file, limit)

        entries.append(
            Entry(_shown(f"{where}: {name}"), parts or ("?",), info.file_size, modified, load, problem)
        )
    used = {e.parts[:i] for e in entries for i in range(1, len(e.parts)) if not _is_junk(e)} | {
        f[:-1] for f in folders
    }
    return entries, sorted(
        _shown(f"{where}: {'/'.join(f)}") for f in folders - used if f and not any(map(_JUNK.fullmatch, f))
    )


def _shown(name):
    # A name may hold what moves a terminal's cursor, or bytes that are no text at all.
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name)
    return text if len(text) <= 300 else text[:300] + "..."


def _capped(file, limit):
    # The size that a header or the file system states is not believed.
    data = file.read(limit + 1)
    if len(data) > limit:
        raise Refused(f"it is larger than {limit >> 20} MiB")
    return data


def _is_junk(entry):
    return any(_JUNK.fullmatch(part) for part in entry.parts)


def _load(entry, limit):
    if entry.problem:
        raise Refused(entry.problem)
    if entry.size > limit:
        raise Refused(f"it has {entry.size / 2**20:.0f} MiB; {limit >> 20} is the most")
    try:
        return entry.load(limit)
    except Refused:
        raise
    except Exception as error:  # a damaged zip raises whatever its damage leads to
        raise Refused(f"it can't be read: {type(error).__name__}: {str(error)[:120]}") from None


# ---------------------------------------------------------------------------------------------------------------
# Who, which exercise, when


def _outermost(parts, assignments, canvas):
    """(who, assignment or None, file name, late, order) by the outermost names of an entry; who is None where they don't say."""
    if parts[0] == "submitted" and len(parts) > 2:
        parts = parts[1:]
    moodle = _MOODLE.fullmatch(parts[0])
    if moodle and moodle["plugin"] == "onlinetext":
        raise Refused("it is text typed into Moodle, not a notebook")
    if moodle:
        name = parts[-1] if len(parts) > 1 else moodle["rest"] or parts[0]
        return Who("moodle", moodle["name"], moodle["id"]), None, name, False, 0
    if len(parts) > 1:
        assignment = parts[1] if len(parts) > 2 and parts[1] in assignments else None
        return Who("folder", parts[0]), assignment, parts[-1], False, 0
    if canvas and (found := _CANVAS.fullmatch(parts[0])):
        who = Who("canvas", found["name"] or "", found["id"])
        return who, None, found["rest"], bool(found["late"]), int(found["file"])
    return None, None, parts[0], False, 0


class Roster:
    """Who is in the class, by a CSV file: nbgrader's student list, Moodle's grading worksheet, or Canvas's gradebook export.

    The header decides which it is: `SIS Login ID` is Canvas's, `Identifier` (or `Full name`) Moodle's, `id` nbgrader's. The
    student's id in the class is the login, user name or ID number where there is one, else the e-mail address; nbgrader's own `id`.

    Raises:
        ClassError: the file can't be read, has none of these columns, or gives one id to two students.
    """

    def __init__(self, path):
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            head = text.partition("\n")[0]
            table = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=head.count))
            rows = [
                {(k or "").strip().lower(): (v or "").strip() for k, v in row.items() if isinstance(v, str)}
                for row in table
            ]
        except (OSError, UnicodeError, csv.Error) as error:
            raise ClassError(f"the roster {path} can't be read: {error}") from None
        columns = set(rows[0]) if rows else set()
        if "sis login id" in columns:
            student, number, name = ("sis login id", "sis user id"), "id", lambda r: r.get("student", "")
        elif columns & {"identifier", "full name"}:
            student, number = ("username", "id number", "email address"), "identifier"
            name = lambda r: r.get("full name", "")  # noqa: E731
        elif "id" in columns:
            student, number = ("id",), "lms_user_id"
            name = lambda r: f"{r.get('first_name', '')} {r.get('last_name', '')}"  # noqa: E731
        else:
            raise ClassError(
                f"the roster {path} has the columns {', '.join(sorted(columns)) or 'none'}; it should have id (nbgrader), "
                "Identifier and Email address (Moodle's grading worksheet), or ID and SIS Login ID (Canvas's gradebook)"
            )
        self.students, self._numbers, names = {}, {}, Counter()
        self._names, self._facts = {}, {}
        for row in rows:
            chosen = next((row[c] for c in student if row.get(c)), None)
            if not chosen:
                continue  # Canvas's second line, "Points Possible", is no student
            chosen = unicodedata.normalize("NFC", chosen)
            if chosen.casefold() in self.students:
                raise ClassError(f"the roster {path} has {chosen!r} twice")
            self.students[chosen.casefold()] = chosen
            self._facts[chosen] = _facts(row, name(row))
            if digits := re.search(r"\d+$", row.get(number, "")):
                self._numbers[digits[0]] = chosen
            key = _name_key(name(row))
            names[key] += 1
            self._names[key] = chosen
        self._names = {key: s for key, s in self._names.items() if key and names[key] == 1}

    def find(self, who):
        """The student's id for a `Who`, or None."""
        if who.kind in ("folder", "manifest"):
            return self.students.get(unicodedata.normalize("NFC", who.name).casefold())
        return self._numbers.get(who.id) or self._names.get(_name_key(who.name))

    def fill(self, classroom):
        """Put the students into nbgrader's gradebook, with the names and addresses that the file has. Nowhere else."""
        with classroom.gradebook() as gradebook:
            for student, facts in self._facts.items():
                gradebook.update_or_create_student(student, **facts)


def _facts(row, name):
    """What nbgrader keeps of a student besides the id, as far as a roster's `row` says it."""
    last, comma, first = name.partition(",")  # Canvas's order
    if not comma:
        first, _, last = name.strip().rpartition(" ")  # which words are the family name, Moodle does not say
    facts = {"first_name": first, "last_name": last, "email": row.get("email") or row.get("email address", "")}
    facts |= {column: row[column] for column in ("first_name", "last_name") if column in row}  # nbgrader's own
    return {column: value.strip() for column, value in facts.items() if value.strip()}


def _name_key(name):
    # Moodle shows "_" as a space; Canvas's file names hold "Doe, Jane" as "doejane".
    return "".join(c for c in unicodedata.normalize("NFC", name).casefold() if c.isalnum())


def _parse_time(text):
    """A time of nbgrader's or of a manifest, in UTC; None where it can't be read."""
    from nbgrader.utils import parse_utc

    try:
        return parse_utc(text.strip()).replace(tzinfo=datetime.UTC) if text.strip() else None
    except (ValueError, OverflowError, TypeError, AttributeError):
        return None


# ---------------------------------------------------------------------------------------------------------------
# Taking in


@dataclass
class _Candidate:
    """A notebook that is accepted: the newest of a student's will count."""

    line: Line
    path: Path  # its bytes, out of memory until all of SOURCE was seen
    digest: str
    time: datetime.datetime | None
    order: tuple
    own_name: str


class Intake:
    """One run. `lines` is the report."""

    def __init__(self, classroom, assignment=None, roster=None):
        self.classroom = classroom
        self.masters = {
            a: nbformat.read(classroom.notebook(a), as_version=4) for a in classroom.assignments()
        }
        if assignment is not None:
            classroom.notebook(assignment)  # raises with the list of what there is
        self.assignment, self.roster = assignment, roster
        self.lines = []
        self.folder = classroom.folder / ".autograder" / "intake"
        there = [
            p.name for p in classroom.folder.glob("submitted/*") if p.is_dir() and not p.name.startswith(".")
        ]
        self._students = {_fold(name): name for name in there}
        self._moodle = {}  # name -> number, to see two students of one name
        self._exported = None  # when Canvas made the zip
        self._digests = {}  # digest -> student, to see one file from two students
        self._due = {}

    def run(self, source):
        """Take in everything of `source`; returns the report's lines."""
        entries, empty = _entries(Path(source))
        loose = [e for e in entries if len(e.parts) == 1 and not _is_junk(e)]
        if loose and all(_CANVAS.fullmatch(e.parts[0]) for e in loose):
            # Canvas stamps its entries while it writes them: that orders exports, and the attachments' ids the files in one.
            self._exported = max(e.modified for e in loose)
        names = {(m["name"], m["id"]) for m in (_MOODLE.fullmatch(e.parts[0]) for e in entries) if m}
        self._moodle = Counter(name for name, _ in names)
        times = {e.parts[:-1]: e for e in entries if e.parts[-1] == "timestamp.txt" and len(e.parts) > 1}
        with tempfile.TemporaryDirectory(prefix="intake-") as self._spool:
            if any(e.parts == (MANIFEST,) and self._manifest(e) for e in entries):  # SOURCE is one hand-in
                found = self._archive(entries, None, None, 0, 0, False)
            else:
                found = [
                    c for e in entries if e is not times.get(e.parts[:-1]) for c in self._entry(e, times)
                ]
            groups = {}
            for one in found:
                groups.setdefault((one.line.assignment, one.line.student), []).append(one)
            for group in groups.values():
                self._settle(group)
        for where in empty:
            self._add(where, "refused", why="an empty folder: nothing was handed in")
        return self.lines

    def _add(self, where, status, **rest):
        line = Line(where, status, **rest)
        self.lines.append(line)
        return line

    # -- one file ----------------------------------------------------------------------------------------------

    def _entry(self, entry, times):
        """The candidates in one file at the outermost level: one, none, or those of a zip."""
        if _is_junk(entry):
            self._add(entry.where, "ignored", why="made by an operating system or an editor")
            return []
        student = None
        try:
            who, hint, name, late, order = _outermost(entry.parts, self.masters, self._exported is not None)
            if who is None and self.roster is not None:  # ada.ipynb, ada.zip
                stem = Who("folder", Path(name).stem)
                who = stem if self.roster.find(stem) else None
            student = None if who is None else self._student(who)
            stamp = times.get(entry.parts[:-1])
            if name.lower().endswith(".zip"):
                return self._archive(self._open(entry), who, hint, order, 0, late)
            return [self._notebook(entry, name, who, hint, None, stamp, (order,), late)]
        except Refused as refused:
            self._add(entry.where, "refused", student=student, why=str(refused))
            return []

    def _open(self, entry):
        data = _load(entry, MAX_ARCHIVE_BYTES)
        # Counted before zipfile builds an object for each.
        if data.count(b"PK\1\2") > MAX_ENTRIES:
            raise Refused(f"the zip has more than {MAX_ENTRIES} files")
        try:
            return _in_zip(zipfile.ZipFile(io.BytesIO(data)), entry.where)[0]
        except Exception as error:
            raise Refused(
                f"it is not a zip that can be opened: {type(error).__name__}: {str(error)[:120]}"
            ) from None

    def _archive(self, entries, who, hint, order, depth, late):
        """Candidates in a student's zip. Only its manifest may say who it is from, and only where nothing outside says so."""
        manifest = next((self._manifest(e) for e in entries if e.parts == (MANIFEST,)), {})
        if who is None and manifest.get("student"):
            who = Who("manifest", manifest["student"])
        found, left = [], 2 * MAX_NOTEBOOK_BYTES
        for entry in entries:
            if _is_junk(entry) or entry.parts == (MANIFEST,):
                continue
            student = None
            try:
                student = None if who is None else self._student(who)
                left -= entry.size
                if left < 0:
                    raise Refused(f"its zip holds more than {2 * MAX_NOTEBOOK_BYTES >> 20} MiB")
                if entry.parts[-1].lower().endswith(".zip"):
                    if depth + 1 >= MAX_DEPTH:
                        raise Refused("it is a zip in a zip in a zip; hand in the notebook")
                    found += self._archive(self._open(entry), who, hint, order, depth + 1, late)
                else:
                    found.append(
                        self._notebook(entry, entry.parts[-1], who, hint, manifest, None, (order,), late)
                    )
            except Refused as refused:
                self._add(entry.where, "refused", student=student, why=str(refused))
        return found

    def _manifest(self, entry):
        try:
            content = json.loads(_load(entry, 2**16))
            return {k: v for k, v in content.items() if isinstance(v, str)}
        except (Refused, ValueError, AttributeError, RecursionError):
            return {}  # what it says is only ever a hint

    def _student(self, who):
        """The id of `who` in this class: a name that is safe as a folder's."""
        if self.roster is not None:
            student = self.roster.find(who)
            if student is None:
                raise Refused(f"{who} is not in the roster")
        elif who.kind == "canvas":
            student = "_".join(filter(None, [who.name, who.id]))  # the number is the same in every assignment
        elif who.kind == "moodle" and self._moodle[who.name] > 1:
            raise Refused(
                f"{self._moodle[who.name]} students are called {who.name!r}: tell them apart with --roster"
            )
        else:
            student = who.name
        student = unicodedata.normalize("NFC", student)
        if problem := student_problem(student):
            raise Refused(f"{student[:80]!r} can't be a student's id: {problem}")
        there = self._students.setdefault(_fold(student), student)
        if unicodedata.normalize("NFC", there) != student:
            raise Refused(f"{student!r} and {there!r} differ in capitals alone: rename one, or give --roster")
        return there

    def _notebook(self, entry, name, who, hint, manifest, stamp, order, late):
        """The candidate that this file is. Raises Refused."""
        data = _load(entry, MAX_NOTEBOOK_BYTES)
        notes = []
        if not name.lower().endswith(".ipynb"):
            if not (data.lstrip()[:1] == b"{" and b'"cells"' in data):
                raise Refused("it is not a notebook (.ipynb)")
            notes.append("a notebook whose name does not end in .ipynb")
        if who is None:
            raise Refused(
                "nothing says which student it is from: put it in a folder of that name, or use a hand-in with an id"
            )
        student = self._student(who)
        assignment, flags = self._recognise(data, hint or (manifest or {}).get("assignment"))
        notes += flags
        time = None
        if stamp is not None:
            with contextlib.suppress(Refused):
                time = _parse_time(_load(stamp, 1000).decode("utf-8", "replace"))
            if time is None:
                notes.append("its timestamp.txt can't be read, so no time of hand-in is recorded")
        digest = hashlib.sha256(data).hexdigest()
        if manifest:
            time = _parse_time(manifest.get("created", ""))
            notes.append(
                "the time is by the student's own clock"
                if time
                else "its manifest has no time that can be read"
            )
            if manifest.get("sha256") != digest:
                notes.append("it is not the notebook that was packed: the hand-in was changed afterwards")
            if manifest.get("student") and who.kind != "manifest" and manifest["student"] != student:
                notes.append(f"the hand-in names {manifest['student']!r} as its student")
        if late and time is None:
            notes.append("Canvas marks it as late but does not say by how much: the penalty is set by hand")
        other = self._digests.setdefault((assignment, digest), student)
        if other != student:
            notes.append(f"the same file, byte for byte, as {other}'s")
        if time is not None and time > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1):
            notes.append("its time lies in the future")
        line = self._add(entry.where, "accepted", student=student, assignment=assignment, notes=notes)
        line.time = time and time.isoformat()
        line.late_seconds = self._late(assignment, time)
        path = Path(self._spool) / digest
        path.write_bytes(data)
        moment = time or self._exported or entry.modified
        return _Candidate(line, path, digest, time, (moment.timestamp(), *order), name)

    def _recognise(self, data, hint):
        """(assignment, the grader's flags) of a notebook, by its cells; `hint` decides only between exercises that fit as well."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "it.ipynb"
            path.write_bytes(data)
            try:
                notebook = read(path)
                names = match(notebook, self.masters)
                wanted = self.assignment or (hint if hint in self.masters else None)
                if not names:
                    raise Refused("none of its cells belongs to an exercise of this class")
                if wanted is not None and wanted not in names:
                    raise Refused(f"it is a notebook of {', '.join(names)}, and was handed in for {wanted}")
                if wanted is None and len(names) > 1:
                    raise Refused(f"it could be {' or '.join(names)}: say which with --assignment")
                chosen = wanted or names[0]
                return chosen, rebuild(self.masters[chosen], notebook).flags
            except Unreadable as error:
                raise Refused(str(error).replace("it.ipynb", "it")) from None
            except Refused:
                raise
            except Exception as error:
                raise Refused(
                    f"it could not be taken apart: {type(error).__name__}: {str(error)[:200]}"
                ) from None

    def _late(self, assignment, time):
        """Seconds after the due date that the gradebook has, or None where one of the two is not known."""
        if assignment not in self._due:
            due = None
            if (self.classroom.folder / "gradebook.db").exists():
                with self.classroom.gradebook() as gradebook:
                    due = next((a.duedate for a in gradebook.assignments if a.name == assignment), None)
            self._due[assignment] = due and due.replace(tzinfo=datetime.UTC)
        due = self._due[assignment]
        return None if due is None or time is None else max(0.0, (time - due).total_seconds())

    # -- all files of one student ------------------------------------------------------------------------------

    def _settle(self, found):
        """Keep all versions in `found` (one student, one assignment); the newest of these and of earlier runs is submitted."""
        assignment, student = found[0].line.assignment, found[0].line.student
        master = self.classroom.notebook(assignment).name
        target = self.classroom.folder / "submitted" / student / assignment
        store = self.folder / "versions" / assignment / student
        for folder in (target, store):
            if not folder.resolve().is_relative_to(self.classroom.folder):
                for one in found:
                    one.line.status, one.line.why = (
                        "refused",
                        f"{folder} leads out of the class (a symbolic link?)",
                    )
                return
        # Of versions with the same time, the one with the exercise's own name counts.
        found.sort(key=lambda c: (c.order, c.own_name == master))
        last = {c.digest for c in found if c.order == found[-1].order}
        if len(last) > 1 and sum(c.own_name == master for c in found if c.order == found[-1].order) != 1:
            for one in found:
                one.line.status = "refused"
                one.line.why = f"several notebooks of {student}, of the same time: which one counts can't be told by their names"
            return
        ledger = _Ledger(store)
        ledger.keep_submitted(target / master)
        for one in found:
            before = ledger.newest()
            if ledger.knows(one.digest, one.order[0]):
                one.line.status = "unchanged"
                continue
            ledger.keep(one.path.read_bytes(), one.digest, one.time, one.order[0], one.line.where)
            if before is not None and one.order[0] < before["order"]:
                one.line.status, one.line.why = "older", f"an older version; that of {_when(before)} counts"
        newest = ledger.newest()
        for one in found:
            if one.line.status == "accepted" and one.digest != newest["sha256"]:
                one.line.status, one.line.why = "older", f"an older version; that of {_when(newest)} counts"
        ledger.write()
        target.mkdir(parents=True, exist_ok=True)
        stamp = target / "timestamp.txt"
        if not (target / master).is_file() or _digest(target / master) != newest["sha256"]:
            _write(target / master, (store / newest["file"]).read_bytes())
            stamp.unlink(missing_ok=True)  # it was another version's
        if newest["time"] is not None:
            text = datetime.datetime.fromisoformat(newest["time"]).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
            if not stamp.is_file() or stamp.read_text(encoding="utf-8") != text:
                _write(stamp, text.encode())

    def write_report(self):
        """Write the report of this run; returns its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S.%fZ}.json"
        counts = Counter(line.status for line in self.lines)
        body = {
            "schema": 1,
            "counts": dict(sorted(counts.items())),
            "files": [asdict(line) for line in self.lines],
        }
        _write(path, json.dumps(body, indent=1, ensure_ascii=True).encode())
        return path


class _Ledger:
    """All versions of one student's notebook, oldest first: {sha256, time, order, file, where}."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "versions.json"
        self.versions = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else []

    def newest(self):
        # max takes the first of equals; the last one that was kept counts.
        return max(reversed(self.versions), key=lambda v: v["order"], default=None)

    def knows(self, digest, order):
        """Whether this version is here, or is the same as the one that it would follow (a copy handed in once more)."""
        before = max(
            (v for v in reversed(self.versions) if v["order"] <= order),
            key=lambda v: v["order"],
            default=None,
        )
        same = [v for v in self.versions if v["sha256"] == digest]
        return any(v["order"] == order for v in same) or (before is not None and before["sha256"] == digest)

    def keep(self, data, digest, time, order, where):
        name = f"{datetime.datetime.fromtimestamp(order, datetime.UTC):%Y%m%dT%H%M%SZ}-{digest[:12]}.ipynb"
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / name, data)
        self.versions.append(
            {
                "sha256": digest,
                "time": time and time.isoformat(),
                "order": order,
                "file": name,
                "where": where,
            }
        )

    def keep_submitted(self, path):
        """Keep what lies in submitted/ but did not come through here, so that it can't be lost."""
        if path.is_symlink() or not path.is_file():
            return
        digest = _digest(path)
        if any(v["sha256"] == digest for v in self.versions):
            return
        stamp = path.with_name("timestamp.txt")
        time = _parse_time(stamp.read_text(encoding="utf-8", errors="replace")) if stamp.is_file() else None
        order = time.timestamp() if time else float(int(path.stat().st_mtime))
        self.keep(path.read_bytes(), digest, time, order, "submitted/ (it was there)")

    def write(self):
        self.versions.sort(key=lambda v: v["order"])
        text = json.dumps(self.versions, indent=1, ensure_ascii=True)
        if not self.path.exists() or self.path.read_text(encoding="utf-8") != text:
            _write(self.path, text.encode())


def _when(version):
    return (
        version["time"]
        or f"{datetime.datetime.fromtimestamp(version['order'], datetime.UTC):%Y-%m-%d %H:%M} (file time)"
    )


def _fold(name):
    return unicodedata.normalize("NFC", name).casefold()


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path, data):
    part = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)
