"""The order of the files: `make test` gives whole files to its workers, and one that begins late and takes long is waited for."""

from pathlib import Path

# By what they took, the longest first. All others come after these, in the order of their names. None of tests/site: Playwright's
# event loop stays with its process, and a later test there could run no other.
LONGEST = (
    "autograder/test_sample.py",
    "autograder/test_guide.py",
    "kernels/test_triton_forward.py",
    "solutions/test_mutants.py",
    "autograder/test_bench.py",
    "autograder/test_judge.py",
)
HERE = Path(__file__).parent
PLACES = {HERE / name: place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items):
    missing = [path for path in PLACES if not path.exists()]
    assert not missing, f"tests/conftest.py names files that are not there: {missing}"
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
