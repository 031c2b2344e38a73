"""The quiz of a chapter: a few questions with four choices, an explanation for each, and where to reread."""

from __future__ import annotations

import html
from pathlib import Path

import traitlets
import yaml

from widgets.base import Widget, style

HERE = Path(__file__).parent
QUIZZES = HERE.parent / "chapters" / "quizzes"
CHOICES = 4


def load_quiz(source: str | Path) -> list[dict]:
    """Read and check a quiz: a path to a `.yml` file, or the name of one in `chapters/quizzes`.

    The file holds a list of questions: `question`, `choices` (four), `answer` (the right one's index, from 0),
    `explain` (a text for each choice, or one for all), `section` (the label to reread) and `section_title`.
    Returns the questions with `explain` always a list. Raises `ValueError` that names file, question and key.
    """
    path = Path(source)
    if path.suffix not in (".yml", ".yaml"):
        path = QUIZZES / f"{source}.yml"
    if not path.is_file():
        raise ValueError(f"source must name a quiz; there is no {path.name} in {path.parent}")
    try:
        questions = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not valid YAML: {error}") from None
    if not isinstance(questions, list) or not questions:
        raise ValueError(f"{path.name} must hold a list of questions; got {type(questions).__name__}")
    return [_checked(question, f"{path.name}, question {i}") for i, question in enumerate(questions, 1)]


def _checked(question, where: str) -> dict:
    def fail(message: str):
        raise ValueError(f"{where}: {message}")

    keys = {"question", "choices", "answer", "explain", "section", "section_title"}
    if not isinstance(question, dict):
        fail(f"must be a mapping with the keys {', '.join(sorted(keys))}; got {question!r}")
    if question.keys() != keys:
        missing, unknown = sorted(keys - question.keys()), sorted(map(str, question.keys() - keys))
        fail(f"keys missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}")
    for key in ("question", "section", "section_title"):
        if not isinstance(question[key], str) or not question[key].strip():
            fail(f"{key} must be a text; got {question[key]!r}")
    choices, answer, explain = question["choices"], question["answer"], question["explain"]
    if not isinstance(choices, list) or len(choices) != CHOICES or len({str(c) for c in choices}) != CHOICES:
        fail(f"choices must be {CHOICES} different texts; got {choices!r}")
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < CHOICES:
        fail(f"answer must be an index from 0 to {CHOICES - 1}; got {answer!r}")
    if isinstance(explain, str):
        explain = [explain] * CHOICES
    if not isinstance(explain, list) or len(explain) != CHOICES:
        fail(f"explain must be one text, or {CHOICES} of them; got {explain!r}")
    for key, texts in (("choices", choices), ("explain", explain)):
        for text in texts:
            # YAML reads 16 as a number and yes as a boolean: say so, rather than show another text.
            if not isinstance(text, str) or not text.strip():
                fail(f"{key} must be texts (quote them); got {text!r}")
    return {**question, "explain": explain}


class Quiz(Widget):
    """A quiz with its score kept in the page.

    source: the name of a file in `chapters/quizzes` without `.yml`, or a path to one.
    `answers` reads back the choice that was checked first for each question, None where there was none;
    `score` is how many of them were right. Raises `ValueError` for a file that is missing or not a quiz.
    """

    _esm = HERE / "quiz.js"
    _css = style("quiz.css")

    questions = traitlets.List().tag(sync=True)
    answers = traitlets.List().tag(sync=True)

    def __init__(self, source: str | Path):
        questions = load_quiz(source)
        super().__init__(questions=questions, answers=[None] * len(questions))

    @property
    def score(self) -> int:
        return sum(given == q["answer"] for given, q in zip(self.answers, self.questions, strict=True))

    def fallback(self) -> str:
        """The questions with their choices, and each answer folded, as HTML."""
        items = []
        for q in self.questions:
            choices = "".join(f"<li>{_marked(choice)}</li>" for choice in q["choices"])
            right = q["answer"]
            answer = f"{'abcd'[right]}. {_marked(q['explain'][right])}"
            items.append(
                f"<li><p>{_marked(q['question'])}</p><ol type='a'>{choices}</ol>"
                f"<details><summary>Answer</summary><p>{answer}</p></details></li>"
            )
        return f"<ol>{''.join(items)}</ol>"


def _marked(text: str) -> str:
    """Text with `code` spans as HTML."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
