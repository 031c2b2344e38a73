"""The quizzes: well formed, with explanations that differ and sections that exist on the same page."""

import pytest
import yaml
from chapter_pages import CHAPTERS, PAGES, labels_of, text_of

from widgets import Quiz

QUIZZES = sorted(path.stem for path in (CHAPTERS / "quizzes").glob("*.yml"))


def questions_of(name):
    return yaml.safe_load((CHAPTERS / "quizzes" / f"{name}.yml").read_text("utf-8"))


def test_each_quiz_is_on_its_page():
    assert QUIZZES
    for name in QUIZZES:
        assert name in PAGES
        assert f'Quiz("{name}")' in text_of(name)


@pytest.mark.parametrize("name", QUIZZES)
def test_six_questions_of_four_choices_that_explain_themselves(name):
    questions = questions_of(name)
    assert len(questions) == 6
    for question in questions:
        assert question["question"].strip().endswith("?")
        assert len(set(question["choices"])) == 4
        assert 0 <= question["answer"] < 4
        assert len(set(question["explain"])) == 4, "an explanation for each choice"


@pytest.mark.parametrize("name", QUIZZES)
def test_the_position_of_the_answer_gives_nothing_away(name):
    answers = [question["answer"] for question in questions_of(name)]
    assert len(set(answers)) >= 3 and max(answers.count(a) for a in answers) <= 3
    longest = [
        max(range(4), key=lambda i, q=q: len(q["choices"][i])) == q["answer"] for q in questions_of(name)
    ]
    assert sum(longest) <= 4, "the right answer is too often the longest one"


@pytest.mark.parametrize("name", QUIZZES)
def test_sections_to_reread_exist_under_the_title_given(name):
    labels = labels_of(name)
    for question in questions_of(name):
        assert labels[question["section"]] == question["section_title"]


@pytest.mark.parametrize("name", QUIZZES)
def test_the_widget_takes_it(name):
    assert [q["answer"] for q in Quiz(name).questions] == [q["answer"] for q in questions_of(name)]
