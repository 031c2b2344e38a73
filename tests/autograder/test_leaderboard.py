"""The leaderboard: measured speeds alone, names only of those who asked for it."""

import html.parser
import math
import re

import pytest
from graded_class import MASKED_CHECK, STEP_CHECK, make, verdict
from typer.testing import CliRunner

from autograder import cli, leaderboard
from autograder.classroom import ClassError


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def timed(*ratios, floor=1e-6, **more):
    """The `speed` of a cell: cases in which the kernel is that many times as fast as the plain formula."""
    return [
        {"case": f"case {i}", "seconds": 1e-3 / ratio, "plain_seconds": 1e-3, "floor_seconds": floor} | more
        for i, ratio in enumerate(ratios)
    ]


@pytest.fixture
def room(tmp_path):
    """Three were timed; dan's check failed, eve was graded on a CPU, fay's verdict holds no speed."""
    room = make(tmp_path / "class", "ada", "bob", "cyd", "dan", "eve", "fay")
    verdict(room, "ada", {}, gpu=True, speed=timed(1.0, 4.0))
    verdict(room, "bob", {MASKED_CHECK: "needs_review"}, gpu=True, speed=timed(3.0, 3.0))
    verdict(room, "cyd", {}, gpu=True, speed=timed(1.5))
    verdict(room, "dan", {STEP_CHECK: "failed"}, gpu=True, speed=timed(9.0))
    verdict(room, "eve", {}, speed=timed(9.0))
    verdict(room, "fay", {}, gpu=True)
    return room


def opt_in(room, *lines, head="student,name"):
    path = room.folder / leaderboard.OPT_IN
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def test_only_passing_checks_on_a_gpu_have_a_speed(room):
    found = leaderboard.speeds(room, "small")
    assert [(s.student, s.check, s.card, s.problem) for s in found] == [
        (student, "03.step", "NVIDIA Test", "") for student in ("bob", "ada", "cyd")
    ]
    assert [s.ratio for s in found] == pytest.approx([3.0, 2.0, 1.5])  # the geometric mean


def test_names_are_opt_in(room, tmp_path):
    opt_in(room, "ada,Ada L.", "eve,Eve")
    page = tmp_path / "page.html"
    result = run("leaderboard", "small", "--class", room.folder, "--html", page)
    assert result.exit_code == 0 and "Ada L." in result.output and "2.00" in result.output
    assert "2 more were measured and did not opt in" in result.output
    for text in (result.output, page.read_text()):
        assert not re.search(r"\b(bob|cyd|dan|eve|fay)\b", text, re.IGNORECASE)
    assert leaderboard.boards(leaderboard.speeds(room, "small"), {}) == {}


def test_anonymous_numbers_say_nothing_about_the_order(room):
    found = leaderboard.speeds(room, "small")
    seen = set()
    for _ in range(40):
        ((_, board),) = leaderboard.boards(found, {"ada": "Ada"}, anonymous=True).items()
        names = [name for _, name, _ in board]
        assert names[1] == "Ada" and [place for place, _, _ in board] == [1, 2, 3]
        numbers = [int(re.fullmatch(r"anonymous (\d+)", n)[1]) for n in (names[0], names[2])]
        assert numbers[0] != numbers[1]
        seen.add(numbers[0] < numbers[1])
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (timed(5.0, floor=1.0), "case 0: 200 µs, and the card needs at least 1e+06 µs"),
        (timed(1.0, 2.0, seconds=0.0), "case 0: 0 s"),
        (timed(1.0, seconds=math.nan), "nan s"),
        (timed(1.0, plain_seconds=math.inf), "against inf s"),
        (timed(1.0, seconds=-1e-3), "-0.001 s"),
    ],
)
def test_a_speed_that_cannot_be_has_no_place_and_is_shown_to_the_instructor_alone(tmp_path, speed, words):
    room = make(tmp_path / "class", "ada", "bob")
    verdict(room, "ada", {}, gpu=True, speed=timed(1.1))
    verdict(room, "bob", {}, gpu=True, speed=speed)
    opt_in(room, "ada,Ada", "bob,Bob")
    result = run("leaderboard", "small", "--class", room.folder, "--html", tmp_path / "page.html")
    assert (
        result.exit_code == 0
        and "for review, without a place: bob" in result.stderr
        and words in result.stderr
    )
    assert "Bob" not in result.stdout and "Bob" not in (tmp_path / "page.html").read_text()


def test_cards_and_checks_are_ranked_apart(room):
    machine = {"card": "Another", "python": "3", "numpy": "2", "torch": "2", "triton": "3"}
    verdict(room, "cyd", {}, gpu=True, speed=timed(1.5), machine=machine)
    boards = leaderboard.boards(leaderboard.speeds(room, "small"), dict.fromkeys(("ada", "bob", "cyd"), "x"))
    assert {key: len(board) for key, board in boards.items()} == {
        ("03.step", "NVIDIA Test"): 2,
        ("03.step", "Another"): 1,
    }


def test_a_class_without_measured_speeds_is_told_so(tmp_path):
    room = make(tmp_path / "class", "ada")
    verdict(room, "ada", {})
    result = run("leaderboard", "small", "--class", room.folder, "--html", tmp_path / "page.html")
    assert result.exit_code == cli.WAITING and "no speed has been measured for small" in result.output
    assert not (tmp_path / "page.html").exists()


def test_hostile_names_are_text(room, tmp_path):
    opt_in(
        room, 'ada,"<script>alert(1)</script>[/bold]"', 'bob,"\x1b[31m\u202e  Bob\t\tB "', f"cyd,{'y' * 500}"
    )
    result = run("leaderboard", "small", "--class", room.folder, "--html", tmp_path / "page.html")
    assert (
        result.exit_code == 0 and "[/bold]" in result.output.replace("\n", "") and "\x1b" not in result.output
    )

    class Tags(html.parser.HTMLParser):
        found = []

        def handle_starttag(self, tag, attrs):
            self.found.append((tag, dict(attrs)))

    text = (tmp_path / "page.html").read_text()
    Tags().feed(text)
    assert "script" not in {tag for tag, _ in Tags.found} and "&lt;script&gt;" in text
    assert not any(name in ("src", "href") for _, attrs in Tags.found for name in attrs)
    assert "y" * 40 in text and "y" * 41 not in text and "\u202e" not in text and "[31m Bob B<" in text


@pytest.mark.parametrize(
    ("lines", "head", "words"),
    [
        (["ada,Ada"], "name", "should be `student,name`, but is 'name'"),
        (["ada,"], "student,name", "line 2: a student and a name are needed"),
        (["ada,Ada", ",Bob"], "student,name", "line 3"),
        (["ada"], "student,name", "line 2"),
    ],
)
def test_an_opt_in_file_that_is_wrong_is_named_with_its_line(room, lines, head, words):
    opt_in(room, *lines, head=head)
    with pytest.raises(ClassError, match=re.escape(words)):
        leaderboard.opted_in(room)


def test_an_opt_in_file_from_a_spreadsheet_may_start_with_a_byte_order_mark(room):
    opt_in(room, "ada,Ada", head="\ufeffstudent,name")
    assert leaderboard.opted_in(room) == {"ada": "Ada"}
