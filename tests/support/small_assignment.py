"""A small assignment that grades in a second: two cells of exercise 03 and one kernel of ours."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder import sandbox

STEP = """
def step(state, tile):
    m, l, o = state
    s, v = tile
    m_new = max(m, s.max())
    shift = 0.0 if m_new == -np.inf else m_new
    alpha, p = np.exp(m - shift), np.exp(s - shift)
    return m_new, alpha * l + p.sum(), alpha * o + p @ v
"""


def data(grade_id, points=None):
    """nbgrader's metadata: a solution cell, or with `points` a graded and locked one."""
    graded = points is not None
    metadata = {"grade_id": grade_id, "grade": graded, "solution": not graded, "locked": graded, "task": False,
                "schema_version": 3, "cell_type": "code"}  # fmt: skip
    return {"nbgrader": metadata | ({"points": points} if graded else {})}


def master(solution="def step(state, tile):\n    pass"):
    """The released notebook (or, with a `solution`, its source)."""
    return new_notebook(
        cells=[
            new_markdown_cell("# A small one\n\n<details><summary>a fold of the course</summary>open</details>", id="cell-00"),
            new_code_cell("import numpy as np\nfrom autograder import check", id="setup"),
            new_code_cell(solution, id="solution-step", metadata=data("solution-step")),
            new_code_cell('check("03.step", step)', id="check-03-step", metadata=data("check-03-step", 3)),
            new_code_cell('check("03.step.masked", step)', id="check-03-masked", metadata=data("check-03-masked", 2)),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )


def submission(solution=STEP, extra=None):
    """What a student hands in; `extra` is a cell of their own after the solution."""
    notebook = master(solution)
    if extra is not None:
        notebook.cells.insert(3, new_code_cell(extra, id="own"))
    return notebook


needs_sandbox = pytest.mark.skipif(not sandbox.available(), reason="no sandbox can be had here (`autograder doctor`)")


def statuses(verdict):
    """check -> status."""
    return {name.removeprefix("check-03-"): cell["status"] for name, cell in verdict["cells"].items()}
