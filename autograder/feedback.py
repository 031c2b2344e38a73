"""The page that a student gets back: nbgrader's feedback, with the verdict behind each score and in the course's look.

The page stands alone: no script, no request to anywhere (a policy in its head forbids both), formulas as MathML. So a student
can read it anywhere, and what another student's output might try does nothing.
"""

import dataclasses
import glob
import html
import json
from pathlib import Path

from docutils.utils.math.latex2mathml import tex2mathml
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat.v4 import new_output
from nbgrader.preprocessors import GetGrades
from pygments.formatters import HtmlFormatter
from traitlets import Unicode

from autograder import checks, judge
from autograder.checks import core, table
from autograder.classroom import ClassError
from autograder.gradebook import VerdictPreprocessor
from autograder.rebuild import grade_id

# What a student reads for each status: a sign and a word, and the class of the look that colours the sign.
_STATUS = {
    "passed": ("✓", "passed", "exact"),
    "failed": ("✗", "failed", "danger"),
    "not_run": ("…", "waits for a GPU", "absent"),
    "needs_review": ("…", "waits for a person to look", "absent"),
    "infrastructure_error": ("…", "waits: our fault, it is graded again", "absent"),
    "by hand": ("✎", "marked by hand", "query"),
    "unmarked": ("…", "waits for its mark", "absent"),
}
_LONGEST_FORMULA = 5000


def write(classroom, assignment, student):
    """Write the student's feedback page from what the gradebook has; returns its path.

    Raises:
        ClassError: nothing was recorded for this student yet.
    """
    name = classroom.notebook(assignment).name
    if glob.escape(student) != student:
        raise ClassError(f"nbgrader takes the name {student!r} for a pattern; rename the student's folders")
    if not (classroom.folder / "autograded" / student / assignment / name).is_file():
        raise ClassError(f"nothing is recorded for {student} and {assignment}; run `autograder grade` first")
    classroom._nbgrader(lambda api: api.generate_feedback(assignment, student))
    return (classroom.folder / "feedback" / student / assignment / name).with_suffix(".html")


class FeedbackGrades(VerdictPreprocessor, GetGrades):
    """Put what the gradebook and the recorded verdict say where the template finds it, as `resources["feedback"]`."""

    def preprocess(self, nb, resources):
        """nbconvert's hook. The check tables are made again, without what belongs to the grader alone.

        What other cells put out after the first check is left out. By then code of the student's has been called with secret
        inputs and may have kept them in a file, which any later cell could show. The instructor's copy has it all.
        """
        nb, resources = GetGrades.preprocess(self, nb, resources)
        verdict = self.recorded(nb, resources)
        rows = []
        called = False
        for cell in nb.cells:
            if not cell.metadata.get("nbgrader", {}).get("grade") or cell.metadata.nbgrader.get("solution"):
                if called and cell.cell_type == "code":
                    cell.outputs = []
            elif cell.cell_type == "code":
                called = True
            if not cell.metadata.get("nbgrader", {}).get("grade"):
                continue
            entry = verdict["cells"].get(grade_id(cell))
            row = self._row(cell, entry)
            rows.append(row)
            cell.metadata.nbgrader["feedback"] = row
            if entry is not None:
                cell.outputs = [_table(entry)]
        judged = [r for r in rows if r["score"] is not None]
        graded = resources["nbgrader"]
        resources["feedback"] = {
            "rows": rows,
            "earned": graded["score"],
            "available": sum(r["points"] for r in judged),
            "waiting": sum(r["points"] for r in rows if r["score"] is None),
            "late": graded["late_penalty"],
            "verdict": verdict,
        }
        return nb, resources

    def recorded(self, nb, resources):
        """The verdict that the recorded scores were taken from."""
        names = resources["nbgrader"]
        stem = nb.metadata.get("autograder", {}).get("verdict", "none")
        folder = Path(self.class_dir) / ".autograder" / "verdicts" / names["assignment"] / names["student"]
        try:
            return json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the verdict behind the scores of {names['student']} can't be read ({error}); run `autograder grade` again"
            ) from None

    def _row(self, cell, entry):
        """One graded cell: what the page says of it."""
        with self.gradebook:
            names = (self.notebook_id, self.assignment_id, self.student_id)
            grade = self.gradebook.find_grade(grade_id(cell), *names)
            by_hand = grade.manual_score is not None
            judged = by_hand or (entry is not None and entry["status"] not in judge.WAITING)
            status = "by hand" if by_hand else entry["status"] if entry is not None else "unmarked"
            sign, word, tone = _STATUS[status]
            return {
                "id": grade_id(cell),
                "check": entry["check"] if entry is not None else "answer",
                "title": checks.find(entry["check"]).title if entry is not None else "read by a person",
                "sign": sign,
                "word": word,
                "tone": tone,
                "points": grade.max_score,
                "score": grade.score if judged else None,
                "seconds": entry["seconds"] if entry is not None else None,
            }


def _table(entry):
    known = {f.name for f in dataclasses.fields(core.Result)}
    results = [core.Result(**{k: v for k, v in case.items() if k in known}) for case in entry["cases"]]
    note = entry["message"] if entry["status"] != "passed" else ""
    return new_output("display_data", {"text/html": table.as_html("", results, note, hide=True)})


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML, which a browser shows without any script."""

    def block_math(self, body):
        return _formula(body, block=True)

    def inline_math(self, body):
        return _formula(body, block=False)

    def latex_environment(self, name, body):
        return _formula(rf"\begin{{{name}}}{body}\end{{{name}}}", block=True)


def _formula(tex, block):
    try:
        if len(tex) > _LONGEST_FORMULA:
            raise ValueError("too long")
        formula = tex2mathml(tex, as_block=block)
        return (
            f'<div class="formula" tabindex="0">{formula}</div>' if block else formula
        )  # a wide one is scrolled
    except Exception:  # whatever the converter makes of a student's TeX: then the TeX itself is shown
        return f"<code>{html.escape(tex)}</code>"


class FeedbackPage(HTMLExporter):
    """nbconvert's HTML exporter with our template, whatever template nbgrader's configuration names."""

    raw_template = Unicode(Path(__file__).with_name("feedback.html.j2").read_text(encoding="utf-8"))

    def markdown2html(self, context, source):
        """The template's filter for Markdown; see `_Renderer`."""
        attachments = context.get("cell", {}).get("attachments", {})
        return MarkdownWithMath(
            renderer=_Renderer(escape=False, attachments=attachments, exclude_anchor_links=True)
        ).render(source)

    markdown2html.jinja_pass_arg = HTMLExporter.markdown2html.jinja_pass_arg

    def from_notebook_node(self, nb, resources=None, **kw):
        """Convert `nb`; `resources` gets the style sheet besides."""
        resources = dict(resources or {}) | {"style": style()}
        return super().from_notebook_node(nb, resources, **kw)


def style():
    """The custom properties of the look in both themes, and the colours of the code."""
    from widgets import look

    def theme(which, pygments):
        lines = "".join(f"{name}:{value};" for name, value in look.properties(which).items())
        return f":root{{{lines}}}\n{HtmlFormatter(style=pygments).get_style_defs('.highlight')}\n"

    dark = theme(look.DARK, "github-dark")
    return f"{theme(look.LIGHT, 'default')}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
