"""Where verdicts meet nbgrader: preprocessors that take its place for running and scoring a submission.

nbgrader stays the system of record. A class's `nbgrader_config.py` names these two in `Autograde.sanitize_preprocessors` and
`Autograde.autograde_preprocessors`, so that `nbgrader autograde`, formgrader's button and `autograder grade` all take the
same scores from the same verdicts.
"""

from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets import Unicode

from autograder import judge
from autograder.rebuild import is_graded


class VerdictPreprocessor(NbGraderPreprocessor):
    """What both have in common: they find the verdict of the notebook at hand."""

    class_dir = Unicode(help="The class folder (nbgrader's course root).").tag(config=True)

    def verdict(self, resources):
        """(verdict, executed notebook) of the submission that `resources` names; made now if there is none."""
        from autograder.classroom import Classroom

        classroom = Classroom(self.class_dir)
        names = resources["nbgrader"]
        found = classroom.verdict(names["assignment"], names["student"])
        if found is None:
            # `nbgrader autograde` was called before `autograder grade`: the verdict is made now, here.
            judge.grade(classroom.job(names["assignment"], names["student"]))
            found = classroom.verdict(names["assignment"], names["student"])
        return found


class ApplyVerdict(VerdictPreprocessor):
    """Replace the submitted notebook by the one that was rebuilt and run, its outputs sanitised."""

    def preprocess(self, nb, resources):
        """nbconvert's hook. Returns the executed notebook and `resources`."""
        _, executed = self.verdict(resources)
        return sanitised(executed), resources


class SaveVerdict(VerdictPreprocessor, SaveAutoGrades):
    """Write each graded cell's score from the verdict to the gradebook. Manual scores stay as they are."""

    def preprocess(self, nb, resources):
        """nbconvert's hook: reads the verdict, then goes over the cells as nbgrader's own class does."""
        self._verdict, _ = self.verdict(resources)
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
    """`notebook` without anything in it that could run in the reader's browser, but for the tables, which are ours.

    nbconvert's own sanitiser does it: scripts, event handlers and unknown output types of the student's cells go.
    """
    tables = {i: c.outputs for i, c in enumerate(notebook.cells) if is_graded(c) and c.cell_type == "code"}
    for i in tables:
        notebook.cells[i].outputs = []
    notebook, _ = SanitizeHTML(enabled=True).preprocess(notebook, {})
    for i, outputs in tables.items():
        # A graded cell whose kernel died still holds the student's outputs, not a table.
        notebook.cells[i].outputs = [o for o in outputs if o.output_type == "display_data"]
    return notebook


