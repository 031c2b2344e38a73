"""The quizzes, from the keyboard, and where their explanations lead."""

from pathlib import Path

import pytest
import yaml

CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"
QUIZZES = sorted(path.stem for path in (CHAPTERS / "quizzes").glob("*.yml"))


@pytest.fixture(params=QUIZZES)
def quiz(request):
    return request.param, yaml.safe_load((CHAPTERS / "quizzes" / f"{request.param}.yml").read_text("utf-8"))


def test_a_quiz_by_keyboard(tab, base, quiz):
    """Answer the first question wrong and then right, all others right: one short of the full score."""
    chapter, questions = quiz
    assert len(questions) == 6
    page = tab().open(f"{base}/chapters/{chapter}.html")
    root = page.locator(".ft-quiz")
    press = page.keyboard.press
    tally = root.locator(".ft-tally")
    forms = root.locator("form")
    assert forms.count() == len(questions)
    forms.first.locator("input").first.focus()
    press("Shift+Tab")
    for i, question in enumerate(questions):
        form, right = forms.nth(i), question["answer"]
        press("Tab")  # into the radio group
        press("Space")
        result = form.locator(".ft-result")

        def choose(index, form=form):
            while not form.locator("input").nth(index).is_checked():
                press("ArrowDown")
            press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Check"
            press("Enter")

        if i == 0:
            choose((right + 1) % 4)
            assert result.inner_text().startswith("✗ Not so.")
            assert "Reread" in result.inner_text()
            assert tally.inner_text() == "0 right of 1 answered, 5 to go."
            press("Shift+Tab")
        choose(right)
        assert result.inner_text().startswith("✓ Right.")
        explain = question["explain"] if isinstance(question["explain"], str) else question["explain"][right]
        assert explain.replace("`", "")[:60] in result.inner_text()
        press("Tab")  # the link to the section
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"#{question['section']}"
    assert tally.inner_text() == "5 right of 6 answered: that was the last one."


def test_explanations_lead_to_sections_of_the_page(tab, served, quiz):
    chapter, questions = quiz
    page = tab().open(f"{served}/chapters/{chapter}.html")
    for question in questions:
        # The label stands on the section itself or on a span before its heading.
        heading = page.evaluate(
            """(id) => { const at = document.getElementById(id);
                return at && (at.querySelector('h1, h2, h3') || at.closest('section').querySelector('h1, h2, h3')).innerText; }""",
            question["section"],
        )
        assert heading and question["section_title"].lower() in heading.lower()


def test_checking_without_a_choice_says_so(tab, served, quiz):
    page = tab().open(f"{served}/chapters/{quiz[0]}.html")
    form = page.locator(".ft-quiz form").first
    form.locator("button").click()
    assert form.locator(".ft-result").inner_text() == "Choose an answer first."
    assert "6 questions" in page.locator(".ft-tally").inner_text()


def test_a_screen_reader_gets_a_group_a_name_and_a_verdict(tab, served, quiz):
    chapter, questions = quiz
    page = tab().open(f"{served}/chapters/{chapter}.html")
    first = questions[0]
    group = page.get_by_role("group", name=first["question"].replace("`", "").strip()[:40])
    assert group.get_by_role("radio").count() == 4
    assert group.get_by_role("status").get_attribute("aria-live") == "polite"
