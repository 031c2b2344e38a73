"""Where verdicts meet nbgrader: preprocessors that take its place for running and scoring a submission.

nbgrader stays the system of record. A class's `nbgrader_config.py` names these two in `Autograde.sanitize_preprocessors` and
`Autograde.autograde_preprocessors`, so that `nbgrader autograde`, formgrader's button and `autograder grade` all take the
same scores from the same verdicts.
"""

import json

import nbformat
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat.v4 import new_notebook
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets import Unicode

from autograder import judge
from autograder.rebuild import is_extra, is_graded


class VerdictPreprocessor(NbGraderPreprocessor):
    """What both have in common: they find the verdict on the notebook at hand."""

    class_dir = Unicode(help="The class folder (nbgrader's course root).").tag(config=True)

    def verdict_path(self, resources):
        """Path of the verdict of the submission that `resources` names; made now if there is none."""
        from autograder.classroom import Classroom

        classroom = Classroom(self.class_dir)
        names = resources["nbgrader"]
        found = classroom.current(names["assignment"], names["student"])
        if found is None:
            # `nbgrader autograde` was called before `autograder grade`: the verdict is made now, here.
            judge.grade(classroom.job(names["assignment"], names["student"]))
            found = classroom.current(names["assignment"], names["student"])
        return found


class ApplyVerdict(VerdictPreprocessor):
    """Replace the submitted notebook by the one that was rebuilt and run, its outputs sanitised."""

    def preprocess(self, nb, resources):
        """nbconvert's hook. Returns the executed notebook and `resources`."""
        path = self.verdict_path(resources)
        executed = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
        # So that the feedback page shows the verdict that was recorded, whatever has been handed in since.
        executed.metadata["autograder"] = {"verdict": path.stem}
        return sanitised(executed), resources


class SaveVerdict(VerdictPreprocessor, SaveAutoGrades):
    """Write each graded cell's score from the verdict to the gradebook. Manual scores stay as they are."""

    def preprocess(self, nb, resources):
        """nbconvert's hook: reads the verdict, then goes over the cells as nbgrader's own class does."""
        self._verdict = json.loads(self.verdict_path(resources).read_text(encoding="utf-8"))
        return SaveAutoGrades.preprocess(self, nb, resources)

    def _add_score(self, cell, resources):
        # Overrides nbgrader's method, which would read the score out of the cell's outputs.
        name = cell.metadata.nbgrader["grade_id"]
        grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        entry = self._verdict["cells"].get(name)
        known = entry is not None and entry["status"] not in judge.WAITING
        grade.auto_score = entry["earned"] if known else None
        grade.needs_manual_grade = not known or grade.manual_score is not None
        self.gradebook.db.commit()


def sanitised(notebook):
    """`notebook` without anything of the student's that could run in the reader's browser.

    nbconvert's own sanitiser goes over the cells that the student added and over all outputs but our tables: scripts, event
    handlers and unknown output types go. The course's text is from the master, and keeps its folds.
    """
    for i, cell in enumerate(notebook.cells):
        if not is_graded(cell) and (cell.cell_type == "code" or is_extra(cell)):
            clean, _ = SanitizeHTML(enabled=True).preprocess(new_notebook(cells=[cell]), {})
            notebook.cells[i] = clean.cells[0]
    return notebook
