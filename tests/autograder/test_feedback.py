"""The page that a student gets back: the scores as they are, what they rest on, and nothing that is not the student's."""

import html.parser
import os
import re
import subprocess
import sys

import nbformat
import pytest
from graded_class import FAILED, HINT, MASKED_CHECK, STEP_CHECK, make, record, verdict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from small_assignment import submission
from typer.testing import CliRunner

from autograder import cli, feedback
from autograder.checks import table
from autograder.checks.core import Result
from autograder.classroom import ClassError
from autograder.judge import seed_id
from widgets import look

HOSTILE = "<script>MARK</script><img src=x onerror=MARK><a href='javascript:MARK'>x</a>"


class Page(html.parser.HTMLParser):
    """A page's tags and, for each id, the words under it."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags, self.text = [], []
        self.feed(self.source)
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] != "style":
            self.text.append(data)

    def row(self, check):
        """The cells of a check's line in the table at the top."""
        line = next(r for r in re.findall(r"<tr>.*?</tr>", self.source, re.DOTALL) if f">{check}</a>" in r)
        return [
            " ".join(re.sub(r"<[^>]*>", " ", cell).split())
            for cell in re.findall(r"<td.*?</td>", line, re.DOTALL)
        ]


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """ada fails a check and another waits; bob's was marked by hand, late; eve put hostile text wherever there is room."""
    room = make(tmp_path_factory.mktemp("feedback") / "class", "ada", "bob", "eve", "dan")
    verdict(room, "ada", {STEP_CHECK: ("failed", "", FAILED), MASKED_CHECK: "not_run"},
            interruptions=[{"cell": "own-cell", "reason": "it took too long", "by": "time"}])  # fmt: skip
    verdict(room, "bob", {STEP_CHECK: "needs_review"}, gpu=True)
    executed = submission(extra="print('own')")
    executed.cells[3].id = "extra-1"
    executed.cells[3].outputs = [new_output("display_data", {"text/html": HOSTILE, "text/plain": "x"})]
    executed.cells.append(
        new_markdown_cell(HOSTILE + r" $\text{<script>MARK</script>}$ $\notex{$ $$x^2$$", id="extra-2")
    )
    failed = [Result(HOSTILE, False, HOSTILE, detail=HOSTILE)]
    verdict(room, "eve", {STEP_CHECK: ("failed", HOSTILE, failed)}, flags=[HOSTILE], notebook=executed,
            machine={"python": HOSTILE, "card": HOSTILE})  # fmt: skip
    record(room, "ada", "bob", "eve")
    with room.gradebook() as gradebook:
        gradebook.find_grade(STEP_CHECK, "small", "small", "bob").manual_score = 2.5
        gradebook.find_submission_notebook("small", "small", "bob").late_submission_penalty = 1.0
        gradebook.find_comment(
            "solution-step", "small", "small", "bob"
        ).manual_comment = "Look at **alpha** once more."
        gradebook.db.commit()
    return room


@pytest.fixture(scope="module")
def pages(room):
    result = run("feedback", "small", "--class", room.folder)
    assert (
        result.exit_code == cli.FAILED and "nothing is recorded for dan" in result.output
    )  # and the others have theirs
    return {s: Page(room.folder / "feedback" / s / "small" / "small.html") for s in ("ada", "bob", "eve")}


def test_what_waits_is_no_zero(pages):
    ada = pages["ada"]
    assert "0 of 3 points. 2 more wait: not judged yet, and not a zero." in ada.words
    assert ada.row("03.step") == ["✗ failed", "03.step one step of the recurrence", "0.25", "0 / 3"]
    assert ada.row("03.step.masked")[0] == "… waits for a GPU" and ada.row("03.step.masked")[-1] == "– / 2"
    assert "0 / 2" not in ada.words and "Score:" not in ada.words  # as nbgrader's own page has it


def test_marks_by_hand_late_penalties_and_comments_are_on_it(pages):
    bob = pages["bob"]
    assert "3.5 of 5 points, after 1 for handing in late." in bob.words
    assert bob.row("03.step")[0] == "✎ marked by hand" and bob.row("03.step")[-1] == "2.5 / 3"
    assert "<strong>alpha</strong>" in bob.source


def test_the_audit_trail_is_on_it_and_the_seed_is_not(room, pages):
    for student, card in (("ada", "a CPU: Triton kernels in its interpreter"), ("bob", "NVIDIA Test")):
        page = pages[student]
        graded = nbformat.read(room.folder / "autograded" / student / "small" / "small.ipynb", as_version=4)
        stem = graded.metadata.autograder.verdict
        assert (room.folder / ".autograder" / "verdicts" / "small" / student / f"{stem}.json").exists()
        for fact in (
            card,
            "torch 2.13.0",
            "4.5 seconds",
            "2026-03-01 12:00:00 UTC",
            stem,
        ):
            assert fact in page.words, fact
        seed = room.seed("small")
        assert f"seed {seed_id(seed)}" in page.words
        assert seed.hex() not in page.source and seed.hex()[:8] not in page.source
    assert "own-cell: it took too long" in pages["ada"].words


def test_hidden_sizes_are_shown_for_the_first_failing_case_alone(pages):
    ada = pages["ada"]
    assert "2223 scores" in ada.words and "o[5] is wrong" in ada.words and HINT in ada.words
    assert not re.search(r"1117|3331|o\[7\]", ada.source.split("</style>")[1])
    assert "the first tile, n scores" in ada.words


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("90 keys in tiles of 30, the scores rise", "n keys in tiles of n, the scores rise"),
        ("one score near 1000, in the second of 3 tiles", "one score near 1000, in the second of n tiles"),
        ("every score near -1000, float16, 2 heads", "every score near -1000, float16, n heads"),
        ("a tile of one score", "a tile of one score"),
    ],
)
def test_what_counts_as_a_size(name, hidden):
    shown = table.as_html("", [Result(name, True)], hide=True)
    assert f">{hidden}<" in shown
    assert f">{name}<" in table.as_html("", [Result(name, True)])  # a student's own check hides nothing


def test_a_memory_cases_size_is_no_secret_and_every_other_hint_is_given_once():
    big = Result("N = 8192", True, peak_bytes=1, limit_bytes=2, size=8192)
    assert "N = 8192" in table.as_html("", [big], hide=True)
    others = [
        Result(f"case {i} of 44", False, f"bad {i}", hint=hint, detail="trace 77")
        for i, hint in enumerate("ABAB")
    ]
    shown = table.as_html("", others, hide=True)
    assert shown.count("<details") == 3  # two cases, and the first one's traceback
    assert (
        shown.count(">A<") == shown.count(">B<") == 1
        and "bad 1" not in shown
        and shown.count("trace 77") == 1
    )


def test_nothing_of_the_students_runs_and_nothing_leaves_the_page(pages):
    for page in pages.values():
        for tag, attrs in page.tags:
            assert tag not in ("script", "iframe", "object", "embed", "form", "link", "base"), tag
            assert not any(name.startswith("on") or name == "srcdoc" for name in attrs), (tag, attrs)
            assert not attrs.get("src", "data:").strip() or attrs.get("src", "data:").startswith("data:"), (
                attrs
            )
            assert not re.match(r"\s*javascript:", attrs.get("href") or "", re.IGNORECASE), attrs
        (policy,) = [
            a["content"]
            for t, a in page.tags
            if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policy.startswith("default-src 'none'") and "script-src" not in policy
        # The policy comes before anything that it is to stop.
        assert [t for t, _ in page.tags[:4]] == ["html", "head", "meta", "meta"]
    assert "MARK" in pages["eve"].words  # shown, as text


def test_what_cells_put_out_after_the_first_check_is_not_on_the_page(tmp_path):
    """By then secret inputs may lie in a file: which the student's code shows in any cell, even in one of the release."""
    room = make(tmp_path / "class", "ada")
    executed = submission()
    for place, words in ((5, "LATE1"), (4, "LATE2"), (3, "EARLY")):
        executed.cells.insert(place, new_code_cell("show()", id=f"extra-{place}", outputs=[new_output("stream", text=words)]))
    executed.cells[2].outputs = [new_output("stream", text="FIRST")]
    executed.cells.append(new_code_cell("f()", id="cell-09", outputs=[new_output("stream", text="LATE3")]))  # of the release
    verdict(room, "ada", {}, notebook=executed)
    record(room, "ada")
    page = Page(feedback.write(room, "small", "ada"))
    assert "EARLY" in page.words and "FIRST" in page.words and "LATE" not in page.source
    assert "put out after the first check is left out" in page.words and page.words.count("cases pass") == 2
    kept = (room.folder / "autograded" / "ada" / "small" / "small.ipynb").read_text()
    assert all(f"LATE{i}" in kept for i in (1, 2, 3))  # for the instructor


def test_formulas_need_no_script(pages):
    eve = pages["eve"].source
    assert "<math" in eve and "<msup>" in eve and "MathJax" not in eve
    assert r"<code>\notex{" in eve  # what is no TeX stays as it was written
    for tex in ("{" * 3000, "x" * 6000, r"\frac", "\x00", "<b>"):
        assert "<b>" not in feedback._formula(tex, block=False)


def test_it_shows_the_verdict_that_was_recorded_whatever_came_since(tmp_path):
    room = make(tmp_path / "class", "ada")
    verdict(room, "ada", {})
    record(room, "ada")
    room.submit("small", "ada", submission("def step(state, tile):\n    return None"))
    verdict(room, "ada", {STEP_CHECK: ("failed", "", FAILED)})
    assert "5 of 5 points" in Page(feedback.write(room, "small", "ada")).words
    for path in room.folder.glob(".autograder/verdicts/small/ada/*.json"):
        path.unlink()
    with pytest.raises(ClassError, match="the verdict behind the scores of ada can't be read"):
        feedback.write(room, "small", "ada")


def test_a_name_that_is_a_pattern_touches_no_one_elses_page(tmp_path):
    # nbgrader reads a[bc]d as a pattern, and would write abd's page instead.
    room = make(tmp_path / "class", "abd", "a[bc]d")
    with pytest.raises(ClassError, match="for a pattern"):
        feedback.write(room, "small", "a[bc]d")


def test_nbgraders_own_command_writes_the_same_page(room, pages):
    path = room.folder / "feedback" / "ada" / "small" / "small.html"
    path.unlink()
    env = os.environ | {"PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    command = [sys.executable, "-m", "nbgrader", "generate_feedback", "small", "--student", "ada", "--force"]
    done = subprocess.run(command, cwd=room.folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert path.read_text() == pages["ada"].source


@pytest.mark.parametrize("theme", [look.LIGHT, look.DARK])
def test_the_colours_of_code_can_be_read(theme):
    """Pygments' styles are made for grounds of their own; here the page's is behind them."""
    css = feedback.style().split("@media (prefers-color-scheme: dark)")[theme]
    # All kinds of token but `w`, which is white space.
    colours = set(re.findall(r"\.highlight \.(?!w )\w+ \{[^}]*?(?<!-)color: (#[0-9A-Fa-f]{6})", css))
    assert len(colours) > 5
    for colour in colours:
        assert look.contrast(colour, look.NEUTRAL["ground"][theme]) >= 4.5, colour
