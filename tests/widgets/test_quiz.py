"""The quiz's Python side: reading a file, and saying what is wrong with it."""

import copy

import pytest
import yaml

from widgets import Quiz
from widgets.quiz import QUIZZES, load_quiz

GOOD = [
    {
        "question": "Is `m` <b>?",
        "choices": ["one", "two", "three", "`four` & more"],
        "answer": 3,
        "explain": ["no", "nor this", "nor that", "yes"],
        "section": "sec-a",
        "section_title": "A",
    }
]


def write(tmp_path, content):
    path = tmp_path / "quiz.yml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), "utf-8")
    return path


def test_a_path_gives_the_questions_and_one_explanation_serves_all(tmp_path):
    content = copy.deepcopy(GOOD)
    content[0]["explain"] = "because"
    quiz = Quiz(write(tmp_path, content))
    assert quiz.questions[0]["explain"] == ["because"] * 4
    assert quiz.answers == [None] and quiz.score == 0
    quiz.answers = [3]
    assert quiz.score == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in QUIZZES.glob("*.yml")))
def test_the_courses_quizzes_load_by_name(name):
    assert len(load_quiz(name)) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer": 4}, "answer"),
        ({"answer": -1}, "answer"),
        ({"answer": True}, "answer"),
        ({"answer": "3"}, "answer"),
        ({"choices": ["a", "b", "c"]}, "choices"),
        ({"choices": ["a", "a", "b", "c"]}, "choices"),
        ({"choices": ["a", "b", "c", 16]}, "quote them"),
        ({"choices": "abcd"}, "choices"),
        ({"explain": ["a", "b"]}, "explain"),
        ({"explain": ["a", "b", "c", ""]}, "explain"),
        ({"question": ""}, "question"),
        ({"section": None}, "section"),
        ({"hint": "x"}, "unknown: hint"),
    ],
)
def test_a_bad_question_is_named(tmp_path, change, said):
    content = [GOOD[0], {**GOOD[0], **change}]
    with pytest.raises(ValueError, match=f"quiz.yml, question 2: .*{said}"):
        load_quiz(write(tmp_path, content))


def test_a_missing_key_is_named(tmp_path):
    content = [{key: value for key, value in GOOD[0].items() if key != "section"}]
    with pytest.raises(ValueError, match="question 1: keys missing: section"):
        load_quiz(write(tmp_path, content))


@pytest.mark.parametrize("text", ["", "a: b", "[", "- 3", "- [x]"])
def test_a_file_that_is_no_quiz(tmp_path, text):
    with pytest.raises(ValueError, match="quiz.yml"):
        load_quiz(write(tmp_path, text))


def test_a_quiz_that_does_not_exist():
    with pytest.raises(ValueError, match="no_such_quiz.yml"):
        Quiz("no_such_quiz")


def test_the_still_escapes_marks_code_and_folds_the_answer(tmp_path):
    still = Quiz(write(tmp_path, GOOD)).fallback()
    assert "Is <code>m</code> &lt;b&gt;?" in still
    assert "<details><summary>Answer</summary><p>d. yes</p></details>" in still
    assert "<code>four</code> &amp; more" in still
