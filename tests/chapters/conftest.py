"""Pages run once for all tests: what they glued, and what their cells put out."""

import os
from ast import literal_eval

import jupytext
import pytest
import yaml
from chapter_pages import CHAPTERS, ROOT
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


@pytest.fixture(scope="session")
def run():
    """run(page) -> (glued values by name, outputs). Runs as the build does; each page once a session."""
    done = {}
    timeout = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["execute"]["timeout"]

    def run_page(page):
        if page not in done:
            notebook = jupytext.read(CHAPTERS / f"{page}.md")
            NotebookClient(
                notebook,
                timeout=timeout,
                kernel_name="python3",
                resources={"metadata": {"path": str(CHAPTERS)}},
            ).execute()
            outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
            glued = {}
            for out in outputs:
                name = out.get("metadata", {}).get("scrapbook", {}).get("name")
                if name:
                    text = next(value for mime, value in out.data.items() if mime.endswith("text/plain"))
                    assert name not in glued, f"{page} glues {name} twice"
                    glued[name] = literal_eval(text)
            done[page] = glued, outputs
        return done[page]

    return run_page
