"""What every page must have, and that everything that it refers to exists."""

import re
import tomllib

import pytest
import yaml
from chapter_pages import CHAPTERS, PAGES, ROOT, labels_of, text_of

BIB = set(
    re.findall(r"^@\w+\{([^,]+),", (CHAPTERS / "references.bib").read_text("utf-8"), flags=re.MULTILINE)
)
LABELS = {label for page in PAGES for label in labels_of(page)}


def front_matter(page):
    return yaml.safe_load(text_of(page).split("---\n")[1])


def chapters_in_toc():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def citations(page):
    """(prefix of the page, keys cited without it)."""
    text = text_of(page)
    keys = [key.strip() for group in re.findall(r"\{cite:[pt]\}`([^`]+)`", text) for key in group.split(",")]
    prefix = re.search(r"^:keyprefix: (\S+)", text, flags=re.MULTILINE)
    return (prefix.group(1) if prefix else ""), keys


def test_the_table_of_contents_has_every_page_and_no_other():
    assert sorted(chapters_in_toc()) == sorted(f"chapters/{page}" for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_page_opens_with_a_description_and_one_question(page):
    description = front_matter(page)["myst"]["html_meta"]["description"]
    assert 60 <= len(description) <= 250
    question = re.search(
        r"^# .+\n\n:::\{div\} subtitle\n(.+)\n:::\n", text_of(page), flags=re.MULTILINE
    ).group(1)
    assert question.endswith("?") and question.count("?") == 1 and ". " not in question
    assert "```{admonition} In one breath\n:class: one-breath\n" in text_of(page)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "intro"])
def test_chapter_ends_with_what_one_can_do(page):
    assert "```{admonition} What you can now do\n:class: can-now\n- " in text_of(page)


@pytest.mark.parametrize("page", PAGES)
def test_citations_are_in_the_bibliography(page):
    prefix, keys = citations(page)
    assert all(key.startswith(prefix) for key in keys)
    assert {key.removeprefix(prefix) for key in keys} <= BIB


def test_every_reference_is_cited_somewhere():
    cited = set()
    for page in PAGES:
        prefix, keys = citations(page)
        cited |= {key.removeprefix(prefix) for key in keys}
    assert cited == BIB


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith("#"):
            assert target[1:] in LABELS, target
        elif target.startswith(("repo:", "colab:")):
            path = target.split(":", 1)[1]
            assert not path.startswith("/") and ".." not in path
        else:
            assert not target.startswith("http"), f"cite {target} instead: pages ask the network for nothing"
            assert (CHAPTERS / target).is_file(), target


def test_the_course_map_links_exactly_what_is_written():
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", text_of("intro"), flags=re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(13))
    for number, title, notebook in rows:
        page = re.fullmatch(r"\[.+\]\((.+)\.md\)", title)
        assert bool(page) == any(name.startswith(f"{int(number):02d}_") for name in PAGES), title
        (book,) = ROOT.glob(f"exercises/{int(number):02d}_*/*.ipynb") if page else [None]
        assert notebook == (f"[notebook](repo:{book.relative_to(ROOT).as_posix()})" if page else "planned"), (
            title
        )


def test_python_versions_are_those_of_the_package():
    required = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", required).groups()
    versions = [f"3.{minor}" for minor in range(int(low), int(high))]
    text = text_of("00_start_here")
    assert f"Python {versions[0]} to {versions[-1]}" in text
    assert f"Python {', '.join(versions[:-1])} or {versions[-1]}" in text


@pytest.mark.parametrize("page", PAGES)
def test_code_that_is_shown_fits_the_page(page):
    cells = re.findall(
        r"^```\{code-cell\} ipython3\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL
    )
    for cell in cells:
        if "remove-input" not in cell and "remove-cell" not in cell:
            assert all(len(line) <= 79 for line in cell.splitlines()), max(cell.splitlines(), key=len)


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_and_shows_every_number_that_it_glues(page, run):
    glued, outputs = run(page)
    used = set(re.findall(r"\{glue:text\}`(\w+)(?::[^`]*)?`", text_of(page)))
    assert used == glued.keys()
    assert not [out for out in outputs if out.output_type == "stream" and out.name == "stderr"]
