"""Pages run once for all tests: what they glued, and what their cells put out."""

import json
import os
from ast import literal_eval

import jupytext
import nbformat
import pytest
import yaml
from chapter_pages import CHAPTERS, ROOT, SOURCES, newest
from nbclient import NotebookClient


@pytest.fixture(scope="session", autouse=True)
def importable():
    """Pages import `figures` from their folder and the course's packages from the repository."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def built(page):
    """(glued outputs, outputs) of a page as the book's build ran it, or None where a source is newer than that."""
    path = ROOT / "_build" / "jupyter_execute" / "chapters" / f"{page}.ipynb"
    if not path.exists() or path.stat().st_mtime < newest(ROOT / name for name in SOURCES):
        return None
    glued = path.with_suffix(".glue.json")  # the build takes what was glued out of the notebook
    found = json.loads(glued.read_text("utf-8")).values() if glued.exists() else ()
    return [nbformat.from_dict(out) for out in found], outputs_of(nbformat.read(path, as_version=4))


def executed(page, timeout):
    """The same of a page that is run here, as the build does."""
    notebook = jupytext.read(CHAPTERS / f"{page}.md")
    NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(CHAPTERS)}}
    ).execute()
    outputs = outputs_of(notebook)
    return [out for out in outputs if name_of(out)], outputs


def outputs_of(notebook):
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


def name_of(out):
    return out.get("metadata", {}).get("scrapbook", {}).get("name")


@pytest.fixture(scope="session")
def run():
    """run(page) -> (glued values by name, outputs). Of the built book where it is up to date, else run once a session."""
    done = {}
    timeout = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["execute"]["timeout"]

    def run_page(page):
        if page not in done:
            found, outputs = built(page) or executed(page, timeout)
            glued = {}
            for out in found:
                name = name_of(out)
                text = next(value for mime, value in out.data.items() if mime.endswith("text/plain"))
                assert name not in glued, f"{page} glues {name} twice"
                glued[name] = literal_eval(text)
            done[page] = glued, outputs
        return done[page]

    return run_page
