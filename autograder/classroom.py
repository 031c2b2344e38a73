"""A class on disk: nbgrader's course root, with the grader's own files in `.autograder/` beside the gradebook.

    class/
      nbgrader_config.py  gradebook.db  source/  release/  submitted/  autograded/  feedback/
      .autograder/seeds.json                                     secret: who reads it can predict the cases
      .autograder/verdicts/ASSIGNMENT/STUDENT/KEY-cpu.json       what each score rests on; KEY-cpu.ipynb: the run notebook
      .autograder/logs/ASSIGNMENT/STUDENT.log                    what happened while it was graded, one line an event
      .autograder/recorded/ASSIGNMENT/STUDENT                    which verdict nbgrader's gradebook has
      .autograder/lock, lock.json                                held while `autograder grade` runs; who holds it
"""

import contextlib
import functools
import glob
import hashlib
import json
import logging
import os
import platform
import secrets
import shutil
import sys
import time
import warnings
from pathlib import Path

import filelock
import nbformat
import psutil
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from autograder import judge, rebuild
from autograder.sandbox import Limits, gpu_nodes

CONFIG = '''"""nbgrader's configuration of this class: scores come from the autograder's verdicts."""

import os

c = get_config()  # noqa: F821 - nbgrader provides it
here = os.path.dirname(os.path.abspath(__file__))
c.CourseDirectory.root = here
# Only the lists are replaced: formgrader and the command line name the classes themselves.
c.Autograde.sanitize_preprocessors = ["autograder.gradebook.ApplyVerdict"]
c.Autograde.autograde_preprocessors = [
    "autograder.gradebook.SaveVerdict",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.VerdictPreprocessor.class_dir = here
c.GenerateFeedback.exporter_class = "autograder.feedback.FeedbackPage"
c.GenerateFeedback.preprocessors = ["autograder.feedback.FeedbackGrades"]
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE"}
c.ClearSolutions.text_stub = ""
'''


class ClassError(ValueError):
    """Something is wrong with the class folder or with what was asked of it."""


class Classroom:
    """The class in `folder`.

    Raises:
        ClassError: (by methods) the folder is not a class, or an assignment or student is not in it.
    """

    def __init__(self, folder):
        self.folder = Path(folder).resolve()

    # -- making one --------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder):
        """Make `folder` a class: nbgrader's configuration, and nothing else yet."""
        classroom = cls(folder)
        classroom.folder.mkdir(parents=True, exist_ok=True)
        config = classroom.folder / "nbgrader_config.py"
        if not config.exists():
            config.write_text(CONFIG, encoding="utf-8")
        return classroom

    def add(self, assignment, notebook, name):
        """Put `notebook` (with solutions) under source/ and have nbgrader make the release from it."""
        source = self.folder / "source" / assignment
        source.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, source / f"{name}.ipynb")
        self._nbgrader(lambda api: api.generate_assignment(assignment, force=True))

    def submit(self, assignment, student, notebook):
        """Hand in `notebook` (a notebook, or raw bytes for one that is broken) for `student`."""
        target = self.folder / "submitted" / student / assignment / self.notebook(assignment).name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(notebook, bytes):
            target.write_bytes(notebook)
        else:
            target.write_text(nbformat.writes(notebook), encoding="utf-8")
        return target

    # -- looking at one ----------------------------------------------------------------------------------------

    def require(self):
        """Raise ClassError unless this folder is a class."""
        if not (self.folder / "nbgrader_config.py").exists():
            raise ClassError(f"{self.folder} is not a class folder (no nbgrader_config.py); `autograder sample DIR` makes one")

    def assignments(self):
        """Names of the released assignments."""
        return sorted(p.parent.name for p in self.folder.glob("release/*/*.ipynb"))

    def notebook(self, assignment):
        """Path of the master: the released notebook of `assignment`."""
        found = sorted(self.folder.glob(f"release/{assignment}/*.ipynb"))
        if len(found) != 1:
            known = ", ".join(self.assignments()) or "none"
            raise ClassError(f"no assignment {assignment!r} is released in {self.folder}; released: {known}")
        return found[0]

    def students(self, assignment):
        """Who has handed something in for `assignment`."""
        self.notebook(assignment)
        return sorted(p.parent.name for p in self.folder.glob(f"submitted/*/{assignment}") if p.is_dir())

    def seed(self, assignment, rotate=False):
        """The class's secret seed for `assignment`; made at first use, replaced with `rotate`."""
        path = self.folder / ".autograder" / "seeds.json"
        seeds = json.loads(path.read_text()) if path.exists() else {}
        if rotate or assignment not in seeds:
            seeds[assignment] = secrets.token_hex(32)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{platform.node()}.{os.getpid()}.part")
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(seeds, file, indent=1)
            part.replace(path)
        return bytes.fromhex(seeds[assignment])

    def job(self, assignment, student, unsafe=False, cell_seconds=None, cpu=False, gpu=None):
        """What it takes to grade one submission: a `judge.Job`.

        Its key names all that the outcome rests on: the submission, the master, the checks that the master asks for, the seed,
        the limits, and whether there is a sandbox and a GPU. Another key means that it is graded afresh.

        Args:
            gpu: whether the machine that grades has a GPU; by default whether this one does.
            cpu: grade on the CPU even so.
        """
        master = self.notebook(assignment)
        gpu = (bool(gpu_nodes()) if gpu is None else gpu) and not cpu
        # In steps, so that the same machine is given the same limit after every start.
        memory = min(6 * 2**30, psutil.virtual_memory().total // 4 // 2**28 * 2**28)
        limits = Limits(memory_bytes=memory, **({"cell_seconds": cell_seconds} if cell_seconds else {}))
        seed = self.seed(assignment)
        key = self._content(assignment, student) + _digest(repr((limits, unsafe, gpu)).encode())[:8]
        stem = self._verdicts(assignment, student) / f"{key}-{'gpu' if gpu else 'cpu'}"
        submission = self._submission(assignment, student)
        return judge.Job(assignment, student, str(master), str(submission), seed, str(stem), key, gpu, unsafe, limits)

    def verdict(self, assignment, student):
        """(verdict, executed notebook) of the submission as it is now, from a GPU where there is one; or None.

        When it was graded more than once, with other limits, the last run counts.
        """
        path = self.current(assignment, student)
        if path is None:
            return None
        return json.loads(path.read_text()), nbformat.read(path.with_suffix(".ipynb"), as_version=4)

    def pending(self, assignment, **options):
        """Jobs of all submissions that have no verdict yet, or one that our own fault spoilt. `options`: those of `job`."""
        for student in self.students(assignment):
            job = self.job(assignment, student, **options)
            path = Path(job.stem + ".json")
            if path.exists():
                statuses = {c["status"] for c in json.loads(path.read_text())["cells"].values()}
                if "infrastructure_error" not in statuses:
                    if self.current(assignment, student) != path:
                        path.touch()  # these limits are asked for again: this verdict counts, not that of the run between
                    continue
            yield job

    def _submission(self, assignment, student):
        return self.folder / "submitted" / student / assignment / self.notebook(assignment).name

    def _verdicts(self, assignment, student):
        return self.folder / ".autograder" / "verdicts" / assignment / student

    def _content(self, assignment, student):
        """The first half of a verdict's key: what is graded, and by which checks."""
        master = self.notebook(assignment).read_bytes()
        try:
            checks = _fingerprint(master)
        except ValueError as error:
            raise ClassError(f"the released notebook of {assignment} can't be graded: {error}") from None
        submission = _handed_in(self._submission(assignment, student))
        seed = judge.seed_id(self.seed(assignment))
        return _digest(*(_digest(part).encode() for part in (submission, master, checks.encode(), seed.encode())))[:12]

    def current(self, assignment, student):
        """Path of the verdict that counts now, or None."""
        content = self._content(assignment, student)
        for rung in ("gpu", "cpu"):
            found = self._verdicts(assignment, student).glob(f"{content}????????-{rung}.json")
            newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
            if newest is not None:
                return newest
        return None

    # -- one at a time -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self):
        """While this is open no other `autograder grade` works on this class. It ends with the process, however that ends.

        Raises:
            ClassError: another one holds it; the message names that process.
        """
        folder = self.folder / ".autograder"
        folder.mkdir(exist_ok=True)
        note = folder / "lock.json"
        try:
            with filelock.FileLock(folder / "lock", timeout=0):
                command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
                since = time.strftime("%Y-%m-%d %H:%M:%S")
                note.write_text(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since, "command": command}))
                yield
        except filelock.Timeout:
            try:
                other = json.loads(note.read_text())
                who = f"process {other['pid']} on {other['host']} since {other['since']} (`{other['command']}`)"
            except (OSError, ValueError, KeyError):
                who = "another process"
            raise ClassError(f"{self.folder} is being graded by {who}; wait until it has ended, or stop it") from None

    # -- nbgrader ----------------------------------------------------------------------------------------------

    def auto_scores(self, assignment):
        """What nbgrader's gradebook has from checks: student -> {grade_id: points, or None where a score waits}."""
        from nbgrader.api import Assignment, BaseCell, Grade, SubmittedAssignment, SubmittedNotebook

        scores = {}
        with self.gradebook() as gradebook:
            found = (
                gradebook.db.query(SubmittedAssignment.student_id, BaseCell.name, Grade.auto_score)
                .select_from(Grade)
                .join(BaseCell, Grade.cell_id == BaseCell.id)
                .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
                .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
                .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
                .filter(Assignment.name == assignment)
            )
            for student, cell, score in found:
                scores.setdefault(student, {})[cell] = score
        return scores

    def unrecorded(self, assignment):
        """Students whose submission, as it is now, nbgrader's gradebook does not have: never recorded, or changed since.

        Manual marks are nobody's business here: setting one does not make a record stale.
        """
        scores = self.auto_scores(assignment)
        for student in self.students(assignment):
            path = self.current(assignment, student)
            notebook = self.folder / "autograded" / student / assignment / self.notebook(assignment).name
            receipt = self._receipt_path(assignment, student)
            known = receipt.read_text() if receipt.exists() and notebook.exists() else None
            if path is not None and known == self._receipt(path, assignment, student):
                # The gradebook may be older than the receipt: a backup was put back, or it was deleted.
                cells = json.loads(path.read_text())["cells"]
                expected = {name: None if c["status"] in judge.WAITING else c["earned"] for name, c in cells.items()}
                if expected.items() <= scores.get(student, {}).items():
                    continue
            yield student

    def record(self, assignment, students):
        """Run nbgrader's own pipeline for `students`, one after another; it takes the scores from the verdicts.

        Yields:
            (student, problem): problem is None, or text that says why this one could not be recorded. Manual marks stay.
        """
        staged = self.folder / ".autograder" / "staged"
        shutil.rmtree(staged, ignore_errors=True)  # what a run that was killed left
        name = self.notebook(assignment).name
        autograde = self._autograde(assignment)
        for student in students:
            path = self.current(assignment, student)
            if path is None:
                yield student, f"{student} has no verdict for {assignment} as it is now; run `autograder grade` first"
                continue
            receipt = self._receipt(path, assignment, student)
            # What is in the notebook plays no part: ApplyVerdict replaces all of it. But nbgrader has to be able to read it.
            folder = staged / student / assignment
            folder.mkdir(parents=True)
            nbformat.write(nbformat.v4.new_notebook(), folder / name)
            timestamp = self._timestamp(assignment, student)
            if timestamp is not None:
                shutil.copy(timestamp, folder)
            problem = autograde(student)
            shutil.rmtree(staged / student)
            if problem is None:
                target = self._receipt_path(assignment, student)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(receipt)
            yield student, problem

    def _receipt_path(self, assignment, student):
        return self.folder / ".autograder" / "recorded" / assignment / student

    def _receipt(self, path, assignment, student):
        """A hash of what a record is made from: the verdict in `path`, the time of submission and nbgrader's configuration."""
        timestamp = self._timestamp(assignment, student)
        parts = [path.read_bytes(), timestamp.read_bytes() if timestamp else b"", (self.folder / "nbgrader_config.py").read_bytes()]
        return _digest(*(_digest(part).encode() for part in parts))

    def _timestamp(self, assignment, student):
        """Path of the file that says when the submission was handed in, or None."""
        path = self.folder / "submitted" / student / assignment / "timestamp.txt"
        return path if path.is_file() and not path.is_symlink() else None

    def _autograde(self, assignment):
        """A function: run nbgrader's autograde for one of the students staged, and return None or what went wrong.

        One converter serves all: making nbgrader's objects costs as much as a submission takes to record.
        """
        from nbgrader.converters import Autograde
        from nbgrader.coursedir import CourseDirectory
        from nbgrader.utils import capture_log

        config = self.config()
        # The time-out is for formgrader, which may be writing to the gradebook as well.
        where = {"submitted_directory": ".autograder/staged", "assignment_id": assignment,
                 "db_url": f"sqlite:///{self.folder / 'gradebook.db'}?timeout=60"}  # fmt: skip
        config.merge(Config({"CourseDirectory": where, "Autograde": {"force": True, "create_student": True}}))
        converter = Autograde(coursedir=CourseDirectory(config=config), config=config)

        def autograde(student):
            converter.coursedir.student_id = glob.escape(student)  # nbgrader takes it for a pattern
            with self._quiet():
                result = capture_log(converter)
            return None if result["success"] else _nbgraders_words(result)

        return autograde

    def config(self):
        """nbgrader's configuration of this class."""
        self.require()
        return PyFileConfigLoader("nbgrader_config.py", path=str(self.folder)).load_config()

    def gradebook(self):
        """nbgrader's gradebook of this class (a context manager)."""
        from nbgrader.api import Gradebook

        _alembic_on_path()
        return Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}?timeout=60")

    def _nbgrader(self, call):
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        config = self.config()
        with self._quiet():
            result = call(NbGraderAPI(CourseDirectory(config=config), config=config))
        if not result["success"]:
            raise ClassError(_nbgraders_words(result))

    @contextlib.contextmanager
    def _quiet(self):
        """In the class's folder, with nbgrader's log left as it was, and without its warnings about its own queries and templates."""
        _alembic_on_path()
        logger = logging.getLogger("traitlets")
        level = logger.level
        try:
            with contextlib.chdir(self.folder), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logger.setLevel(level)


def _nbgraders_words(result):
    return f"nbgrader failed:\n{result.get('error') or ''}{result.get('log') or ''}"[-4000:]


def _alembic_on_path():
    """nbgrader calls `alembic` as a bare command: the environment's bin has to be on PATH, activated or not."""
    here = str(Path(sys.executable).parent)
    if here not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = here + os.pathsep + os.environ["PATH"]


def _handed_in(path):
    """What was handed in as `path`, as bytes: its name and content, or what there is instead."""
    try:
        found = rebuild.locate(path)
    except rebuild.Unreadable as error:
        return str(error).encode()
    if found.is_symlink() or not found.is_file():
        return repr(("no file", found.is_symlink(), sorted(p.name for p in path.parent.glob("*.ipynb")))).encode()
    return found.name.encode() + b"\0" + found.read_bytes()


def _digest(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


@functools.lru_cache(maxsize=32)
def _fingerprint(master):
    return judge.fingerprint(nbformat.reads(master.decode(), as_version=4))
