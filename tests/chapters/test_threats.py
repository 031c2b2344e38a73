"""The threat model page against the sample class: it speaks of every kind of trick that there is, once, and of no other."""

import re
from collections import Counter

from chapter_pages import text_of

from autograder import sample


def rows():
    """(kinds, what happens, strength) of each line of the page's tables."""
    tables = re.findall(
        r'^tricks\("[^"]+", """\n(.*?)^"""\)$', text_of("threat_model"), re.MULTILINE | re.DOTALL
    )
    assert len(tables) == 3
    return [line.split(" | ") for table in tables for line in table.splitlines()]


def test_every_kind_of_the_sample_is_on_the_page_once():
    counts = Counter(kind for kinds, _, _ in rows() for kind in kinds.split("; "))
    assert counts == Counter(sample.KINDS)


def test_each_says_what_happens_and_how_strong_that_is():
    for kinds, what, strength in rows():
        assert len(what) > 8, kinds
        assert re.match(r"guarantee|mitigation", strength), kinds


def test_each_shows_the_submissions_that_prove_it(run):
    _, outputs = run("threat_model")
    shown = [out.data["text/markdown"] for out in outputs if "text/markdown" in out.get("data", {})]
    lines = [line for table in shown if "| trick |" in table for line in table.splitlines()[2:]]
    named = {name for line in lines for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
    assert named == {entry.name for entry in sample.entries() if entry.kinds}
    for kinds, what, _ in rows():
        (line,) = [line for line in lines if line.startswith(f"| {kinds} (")]
        assert what in line and "(`" in line
