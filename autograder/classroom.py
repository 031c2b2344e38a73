"""A class on disk: nbgrader's course root, with the grader's own files in `.autograder/` beside the gradebook.

    class/
      nbgrader_config.py  gradebook.db  source/  release/  submitted/  autograded/  feedback/
      .autograder/seeds.json                                     secret: who reads it can predict the cases
      .autograder/verdicts/ASSIGNMENT/STUDENT/KEY-cpu.json       what each score rests on; KEY-cpu.ipynb: the run notebook
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import sys
import warnings
from pathlib import Path

import nbformat
import psutil
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from autograder import judge
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
            part = path.with_suffix(".part")
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(seeds, file, indent=1)
            part.replace(path)
        return bytes.fromhex(seeds[assignment])

    def job(self, assignment, student, unsafe=False, cell_seconds=None, cpu=False):
        """What it takes to grade one submission: a `judge.Job`."""
        master = self.notebook(assignment)
        submission = self.folder / "submitted" / student / assignment / master.name
        seed = self.seed(assignment)
        gpu = bool(gpu_nodes()) and not cpu
        digest = hashlib.sha256()
        for part in (_bytes(submission), master.read_bytes(), judge.fingerprint().encode(), judge.seed_id(seed).encode()):
            digest.update(hashlib.sha256(part).digest())
        key = digest.hexdigest()[:20]
        stem = self.folder / ".autograder" / "verdicts" / assignment / student / f"{key}-{'gpu' if gpu else 'cpu'}"
        memory = min(6 * 2**30, psutil.virtual_memory().total // 4)
        limits = Limits(memory_bytes=memory, **({"cell_seconds": cell_seconds} if cell_seconds else {}))
        return judge.Job(assignment, student, str(master), str(submission), seed, str(stem), key, gpu, unsafe, limits)

    def verdict(self, assignment, student):
        """(verdict, executed notebook) of the submission as it is now, from a GPU where there is one; or None."""
        job = self.job(assignment, student)
        for rung in ("gpu", "cpu"):
            path = Path(job.stem).with_name(f"{job.key}-{rung}.json")
            if path.exists():
                return json.loads(path.read_text()), nbformat.read(path.with_suffix(".ipynb"), as_version=4)
        return None

    def pending(self, assignment, **options):
        """Jobs of all submissions that have no verdict yet, or one that our own fault spoilt."""
        for student in self.students(assignment):
            job = self.job(assignment, student, **options)
            path = Path(job.stem + ".json")
            if path.exists():
                statuses = {c["status"] for c in json.loads(path.read_text())["cells"].values()}
                if "infrastructure_error" not in statuses:
                    continue
            yield job

    # -- nbgrader ----------------------------------------------------------------------------------------------

    def record(self, assignment, student):
        """Run nbgrader's own pipeline for one submission, which takes the scores from the verdict."""
        # nbgrader parses the notebook before any preprocessor sees it, so it gets a copy that surely parses.
        found = self.verdict(assignment, student)
        if found is None:
            raise ClassError(f"{student} has no verdict for {assignment} as it is now; run `autograder grade` first")
        staged = self.folder / ".autograder" / "staged" / student / assignment
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        nbformat.write(found[1], staged / self.notebook(assignment).name)
        timestamp = self.folder / "submitted" / student / assignment / "timestamp.txt"
        if timestamp.is_file() and not timestamp.is_symlink():
            shutil.copy(timestamp, staged)
        self._nbgrader(lambda api: api.autograde(assignment, student), submitted=".autograder/staged")
        shutil.rmtree(self.folder / ".autograder" / "staged" / student)

    def feedback(self, assignment, student):
        """Write the student's feedback page; returns its path."""
        self._nbgrader(lambda api: api.generate_feedback(assignment, student))
        return self.folder / "feedback" / student / assignment / self.notebook(assignment).with_suffix(".html").name

    def config(self):
        """nbgrader's configuration of this class."""
        self.require()
        return PyFileConfigLoader("nbgrader_config.py", path=str(self.folder)).load_config()

    def gradebook(self):
        """nbgrader's gradebook of this class (a context manager)."""
        from nbgrader.api import Gradebook

        _alembic_on_path()
        return Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}")

    def _nbgrader(self, call, submitted=None):
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        _alembic_on_path()
        config = self.config()
        if submitted:
            config.merge(Config({"CourseDirectory": {"submitted_directory": submitted}}))
        logger = logging.getLogger("traitlets")
        level = logger.level
        with contextlib.chdir(self.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbgrader's own, about its queries and templates
            api = NbGraderAPI(CourseDirectory(config=config), config=config)
            result = call(api)
        logger.setLevel(level)
        if not result["success"]:
            raise ClassError(f"nbgrader failed:\n{result.get('error') or ''}{result.get('log') or ''}"[-4000:])


def _alembic_on_path():
    """nbgrader calls `alembic` as a bare command: the environment's bin has to be on PATH, activated or not."""
    here = str(Path(sys.executable).parent)
    if here not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = here + os.pathsep + os.environ["PATH"]


def _bytes(path):
    if path.is_symlink() or not path.is_file():
        return b"no file"
    return path.read_bytes()
