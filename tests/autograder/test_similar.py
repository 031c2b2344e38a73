"""Copies are found whatever was changed to hide them; answers in words of their own are not."""

import ast
import random
import re

import nbformat
import pytest
from own_words import ANSWERS
from small_assignment import STEP, master, submission
from typer.testing import CliRunner

from autograder import cli, exercise, similar
from autograder.classroom import Classroom
from autograder.similar import Code, fingerprints, given, own_code, pairs

ASSIGNMENT = "03_flash_forward"


@pytest.fixture(scope="module")
def released():
    return exercise.release(ASSIGNMENT)


@pytest.fixture(scope="module")
def reference():
    return exercise.submission(ASSIGNMENT)


@pytest.fixture
def code(released, tmp_path):
    """code(notebook): its `Code`."""
    known = given(released)

    def read(notebook):
        path = tmp_path / "one.ipynb"
        path.write_text(nbformat.writes(notebook), encoding="utf-8")
        return own_code(released, path, known)

    return read


def filled(released, answers):
    notebook = nbformat.from_dict(released)
    for cell in notebook.cells:
        cell.source = answers.get(exercise.grade_id(cell), cell.source).strip("\n")
    return notebook


def changed(notebook, change):
    """`notebook` with `change` made to the source of each solution cell."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        if exercise.is_solution(cell):
            cell.source = change(cell.source)
    return notebook


# What a copyist does. Each gives the text of a cell, changed.


def renamed(source):
    """Every local name another one."""
    names = similar._own_names(source) - {
        node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    fixed = set(re.findall(r"\w+", source.split('"""')[0]))  # the signature is given
    for i, name in enumerate(sorted(names - fixed)):
        source = re.sub(rf"(?<![.\w]){name}\b(?!=[^=])", f"thing_{i}", source)
    return source


def laid_out_anew(source):
    """Without comments, other spaces, other quotes, other docstrings."""
    return ast.unparse(ast.parse(source)).replace('"""', "'''").replace("one tile", "a single tile")


def padded(source):
    """An idle statement after every fourth line of the body."""
    lines, out = source.split("\n"), []
    for i, line in enumerate(lines):
        out.append(line)
        inside = (
            line.startswith("    ")
            and line.rstrip()[-1:] not in ("", ",", "(", ":", '"')
            and not line.strip().startswith(("#", "q", "k,", "v"))
        )
        if inside and i % 4 == 3:
            out.append(re.match(" *", line)[0] + f"note_{i} = {i} + 1")
    text = "\n".join(out)
    ast.parse(text)
    return text


def assert_found(codes, first, second, part="all parts", least=similar.ALIKE):
    found, _ = pairs(codes)
    (pair,) = [p for p in found if {p.first, p.second} == {first, second}]
    assert pair.part == part and pair.alike >= least
    return found


@pytest.mark.parametrize(
    "tricks", [(), (renamed,), (laid_out_anew,), (padded,), (renamed, laid_out_anew, padded)], ids=len
)
def test_a_copy_is_found_whatever_was_done_to_hide_it(code, reference, released, tricks):
    copy = reference
    for trick in tricks:
        copy = changed(copy, trick)
        assert not tricks or nbformat.writes(copy) != nbformat.writes(reference)
    codes = {name: code(filled(released, answers)) for name, answers in ANSWERS.items()}
    codes |= {"original": code(reference), "copy": code(copy)}
    found = assert_found(codes, "original", "copy", least=0.5)
    assert len(found) == 1


def test_functions_in_another_order_and_another_cell_are_found(code, released):
    answers = ANSWERS["structured"]
    helpers = answers["solution-step"].strip() + "\n\n\n" + answers["solution-one-query"].strip()
    functions = [ast.unparse(node) for node in ast.parse(helpers).body]
    moved = filled(
        released, answers | {"solution-step": "\n\n".join(reversed(functions)), "solution-one-query": "pass"}
    )
    assert_found({"a": code(filled(released, answers)), "b": code(moved)}, "a", "b", least=0.7)


def test_a_part_that_was_copied_alone_is_found_and_named(code, released, reference):
    kernel = next(c.source for c in reference.cells if exercise.grade_id(c) == "solution-kernel")
    one = code(filled(released, ANSWERS["terse"] | {"solution-kernel": kernel}))
    other = code(filled(released, ANSWERS["careful"] | {"solution-kernel": renamed(kernel)}))
    whole = len(one.passages.keys() & other.passages.keys()) / len(
        one.passages.keys() | other.passages.keys()
    )
    one.passages.update(
        {n: ("solution-tiles", 1, 1) for n in range(600)}
    )  # so much more of their own that the whole is not alike
    assert whole > 0.1
    assert_found({"one": one, "other": other}, "one", "other", "solution-kernel", similar.ALIKE_PART)


def test_every_mutant_is_a_copy_of_the_reference(code, reference):
    mutants = exercise.mutants(ASSIGNMENT)[:6]
    codes = {"reference": code(reference)} | {
        m.name: code(exercise.submission(ASSIGNMENT, m)) for m in mutants
    }
    found, _ = pairs(codes)
    assert len(found) == 7 * 6 // 2 and min(p.alike for p in found) > 0.8


def test_answers_in_words_of_their_own_are_far_from_alike(code, released, reference, monkeypatch):
    """Four people's right answers, the reference, and each with a mutant's mistake in its place."""
    codes = {name: code(filled(released, answers)) for name, answers in ANSWERS.items()} | {
        "reference": code(reference)
    }
    assert pairs(codes)[0] == []
    # And by a wide margin: at half the limit, nothing is shown for all parts.
    monkeypatch.setattr(similar, "ALIKE", similar.ALIKE / 2)
    monkeypatch.setattr(similar, "ALIKE_PART", similar.ALIKE_PART / 2)
    assert pairs(codes)[0] == []


def test_those_answers_are_right():
    """Else they would show nothing."""
    import numpy as np

    from autograder.checks import CHECKS, core
    from autograder.student import _performer

    for answers in ANSWERS.values():
        namespace = {"np": np}
        for part in ("solution-step", "solution-one-query", "solution-tiles"):
            exec(answers[part], namespace)
        for name, target in (
            ("03.step", "step"),
            ("03.step.masked", "step"),
            ("03.one_query", "flash_one_query"),
            ("03.tiles", "flash_attention"),
        ):
            with np.errstate(all="ignore"):
                results = list(
                    core.evaluate(
                        CHECKS[name], np.random.default_rng(5), "numpy", _performer(namespace[target])
                    )
                )
            assert all(r.passed for r in results), (
                answers[target if target in answers else "solution-step"][:60],
                name,
            )


def test_the_blank_is_never_alike(code, released):
    blank = code(released)
    assert blank.passages == {}
    commented = code(changed(released, lambda source: source + "\n    # I could not do this one"))
    assert commented.passages == {}
    assert pairs({"a": blank, "b": blank, "c": commented})[0] == []
    assert pairs({})[0] == [] and pairs({"a": blank})[0] == []


def test_what_more_than_a_few_have_is_left_out(code, reference, released):
    """A page that the whole class read makes nobody a copyist; two who share more than the page are."""
    tutorial = code(reference).passages
    own = {f"{s:02}": {-100 * s - i: ("solution-tiles", 1, 1) for i in range(1, 51)} for s in range(30)}
    codes = {s: Code([""], tutorial | passages) for s, passages in own.items()}
    assert pairs(codes)[0] == []
    assert len(pairs({s: codes[s] for s in list(codes)[:5]})[0]) == 10
    codes["07"].passages.update(own["08"])
    assert [(p.first, p.second) for p in pairs(codes)[0]] == [("07", "08")]


def test_a_few_lines_are_too_few_to_say_anything():
    def pair(count):
        return {s: Code([""], dict.fromkeys(range(count), ("solution-step", 1, 1))) for s in "ab"}

    assert pairs(pair(similar.FEWEST - 1))[0] == []
    assert [p.alike for p in pairs(pair(similar.FEWEST))[0]] == [1.0]


def test_two_thousand_are_compared_and_the_pairs_in_them_found():
    draw = random.Random(3)
    pool = range(10**6, 10**6 + 40_000)
    codes = {
        f"s{n:04}": Code([""], dict.fromkeys(draw.sample(pool, 200), ("solution-tiles", 1, 1)))
        for n in range(2000)
    }
    planted = [("s0001", "s1999"), ("s0700", "s0701"), ("s0100", "s1500")]
    for first, second in planted:
        codes[second].passages.clear()
        codes[second].passages.update(list(codes[first].passages.items())[:180])
    assert sorted((p.first, p.second) for p in pairs(codes)[0]) == sorted(planted)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def f(:\n  x = 1",
        "\0",
        "(" * 3000,
        "'''",
        "x = 1\n  y = 2",
        "%timeit f()",
        "\ud800 = 3",
        "lambda: " * 2000,
    ],
)
def test_code_that_python_cannot_read_is_compared_as_far_as_it_goes(source):
    assert isinstance(fingerprints(source), dict)


def test_names_change_nothing_but_attributes_and_modules_do():
    one = fingerprints("def f(a, b):\n    c = np.exp(a - b)\n    return c * a + np.sum(c) / b\n")
    same = fingerprints(
        "def g(left, right):\n    # mine\n    total = np.exp(left - right)\n    return total*left + np.sum(total) / right\n"
    )
    other = fingerprints("def f(a, b):\n    c = np.log(a - b)\n    return c * a + np.max(c) / b\n")
    crossed = fingerprints("def f(a, b):\n    c = np.exp(b - a)\n    return c * b + np.sum(c) / b\n")
    assert set(one) == set(same) != set()
    field = "def f({0}, a):\n    b = a.total + {0} * a.total - {0}\n    return b * a.total\n"
    assert set(fingerprints(field.format("total"))) == set(fingerprints(field.format("t"))) != set()
    assert len(set(one) & set(other)) < len(one) / 2 and set(one) != set(crossed)


def test_the_command_shows_the_pairs_and_writes_them_side_by_side(tmp_path):
    room = Classroom.create(tmp_path / "class")
    (room.folder / "release" / "small").mkdir(parents=True)
    nbformat.write(master(), room.folder / "release" / "small" / "small.ipynb")
    extra = "def help(x):\n    total = 0\n    for part in range(len(x)):\n        total += x[part] * (part + 1) - x[-part] ** 2\n    return total / len(x)"
    room.submit("small", "ada", submission(STEP, extra=extra))
    room.submit("small", "<script>bob", submission(STEP.replace("alpha", "a"), extra=extra + "  # </pre><b>"))
    room.submit("small", "cyd", master())
    room.submit("small", "dan", b"{ broken")
    result = CliRunner().invoke(cli.app, ["similar", "small", "--class", str(room.folder)])
    assert result.exit_code == 0, result.output
    assert "<script>bob" in result.output and "Alike is not copied" in " ".join(result.output.split())
    assert "not compared, since it can't be read: dan" in result.output and "cyd" not in result.output
    text = (room.folder / ".autograder" / "similar" / "small.html").read_text()
    assert "<script" not in text and "<mark>" in text and "Alike is not copied" in text
    for student in ("<script>bob", "cyd"):
        room.submit("small", student, master())
    again = CliRunner().invoke(cli.app, ["similar", "small", "--class", str(room.folder)])
    assert "No two of 3 submissions are alike" in again.output
    assert "Example" in CliRunner().invoke(cli.app, ["similar", "--help"]).output
