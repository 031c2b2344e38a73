"""The folded solutions: each chapter shows all of its exercise's, after the quiz, and none of it is typed twice."""

import re

import pytest
from chapter_pages import labels_of, text_of
from sphinx.testing.util import SphinxTestApp

from autograder import exercise


@pytest.mark.parametrize("assignment", exercise.assignments())
def test_every_solution_is_on_the_chapters_page_folded_and_after_the_quiz(assignment):
    before, _, after = text_of(assignment).partition("\n## Quiz\n")
    assert "{solution-cell}" not in before
    (label,) = [label for label in labels_of(assignment) if label.endswith("-solution")]
    assert f"({label})=\n" in after
    folded = re.findall(r"^::::\{dropdown\} .+?^::::$", after, re.MULTILINE | re.DOTALL)
    cells = re.compile(r"^```\{solution-cell\} (\S+) (\S+)\n```$", re.MULTILINE)
    shown = [pair for fold in folded for pair in cells.findall(fold)]
    assert shown == cells.findall(after)
    assert shown == [(assignment, cell) for cell in exercise.solutions(assignment)]
    for fold in folded:
        assert len(cells.sub("", fold).split()) > 30, "a commentary, not the code alone"


@pytest.fixture
def build(tmp_path):
    """build(text) -> (the HTML page, the warnings)."""
    (tmp_path / "conf.py").write_text(
        'extensions = ["myst_parser", "widgets.site"]\nhtml_title = "Page"\nhtml_theme = "basic"\n'
        'root_doc = "page"\n'  # the extension makes index.html a redirect to it
    )

    def make(text):
        (tmp_path / "page.md").write_text(text)
        app = SphinxTestApp("html", srcdir=tmp_path)
        try:
            app.build()
            return (app.outdir / "page.html").read_text("utf-8"), app.warning.getvalue()
        finally:
            app.cleanup()

    return make


def test_a_solution_cell_shows_the_source_without_its_marks(build):
    page, warnings = build("# Page\n\n```{solution-cell} 03_flash_forward solution-one-query\n```\n")
    text = re.sub("<[^>]+>", "", page)
    assert warnings == "" and "def flash_one_query(q, k, v, tile):" in text and "return o / l" in text
    assert "SOLUTION" not in text


@pytest.mark.parametrize("arguments, why", [
    ("03_flash_forward solution-two", "03_flash_forward has no solution cell 'solution-two'; it has: solution-step, "),
    ("03_flash solution-step", "assignment '03_flash' does not exist; there are: "),
])  # fmt: skip
def test_a_solution_that_is_not_there_is_a_warning_that_says_what_is(build, arguments, why):
    page, warnings = build(f"# Page\n\n```{{solution-cell}} {arguments}\n```\n")
    assert why in warnings and "page.md:3" in warnings
