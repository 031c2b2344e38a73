"""What a page shows as text: tables of what it computed, and the course's own code; and what was measured on a card.

`table` and `source` return Markdown; the cell that shows one says `mystnb: {markdown_format: myst}`, for the default reads no tables.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

from IPython.display import Markdown

import kernels

KERNELS = Path(kernels.__file__).parent


def measured(name: str) -> dict:
    """What `kernels/bench/results/NAME.json` holds: see `python -m kernels.bench`."""
    return json.loads((KERNELS / "bench" / "results" / f"{name}.json").read_text("utf-8"))


def table(head, rows) -> Markdown:
    """A table. head: the column titles. rows: one sequence of cells a row, as many as there are titles."""
    rows = [[str(cell) for cell in row] for row in rows]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"rows must have {len(head)} cells, as head has; got {row}")
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))


def source(file: str, function: str, start: str = "") -> Markdown:
    """The code of a function of `kernels`, read from its file, without its docstring (which the text around it replaces).

    file: relative to `kernels`, such as `reference/state.py`. start: show only from the line that begins with this.
    Raises `ValueError` when the file has no such function or line.
    """
    text = (KERNELS / file).read_text("utf-8")
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == function]
    if not found:
        raise ValueError(f"function must be one that {file} defines; got {function!r}")
    node, lines = found[0], text.splitlines()
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    shown = lines[first : node.end_lineno]
    if ast.get_docstring(node) is not None:
        doc = node.body[0]
        del shown[doc.lineno - 1 - first : doc.end_lineno - first]
    if start:
        at = [i for i, line in enumerate(shown) if line.strip().startswith(start)]
        if not at:
            raise ValueError(f"start must begin a line of {function} in {file}; got {start!r}")
        indent = len(shown[at[0]]) - len(shown[at[0]].lstrip())
        shown = [line[indent:] for line in shown[at[0] :]]
    return Markdown("```python\n" + "\n".join(shown) + f"\n```\n\n*From `kernels/{file}`.*")
