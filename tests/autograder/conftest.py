import dataclasses

import nbformat
import pytest
from small_assignment import master, submission

from autograder import judge, sandbox


@pytest.fixture
def graded(tmp_path):
    """A function: grade `submission(...)` (or a given notebook or file) and return (verdict, executed notebook)."""

    def grade(*args, notebook=None, path=None, seed=b"secret", master_notebook=None, unsafe=False, **kwargs):
        limits = {k: kwargs.pop(k) for k in [f.name for f in dataclasses.fields(sandbox.Limits)] if k in kwargs}
        released = tmp_path / "release" / "small.ipynb"
        released.parent.mkdir(exist_ok=True)
        nbformat.write(master_notebook or master(), released)
        if path is None:
            path = tmp_path / "small.ipynb"
            nbformat.write(notebook or submission(*args, **kwargs), path)
        job = judge.Job(
            "small", "ada", str(released), str(path), seed, str(tmp_path / "verdict"), "key",
            unsafe=unsafe, limits=sandbox.Limits(**{"memory_bytes": 2 * 2**30, "cell_seconds": 20.0} | limits),
        )  # fmt: skip
        verdict = judge.grade(job)
        return verdict, nbformat.read(tmp_path / "verdict.ipynb", as_version=4)

    return grade
