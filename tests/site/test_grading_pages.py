"""What grading shows in a browser: nbgrader's formgrader on a class of ours, and the page that a student gets back."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from graded_class import FAILED, MASKED_CHECK, STEP_CHECK, make, record, verdict
from jupyterlab_server import serve
from nbformat.v4 import new_output
from small_assignment import submission

from autograder import feedback, leaderboard
from autograder.checks import table
from autograder.rebuild import grade_id


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """ada failed a check and another waits for a GPU; her notebook has an output that would run in the reader's browser."""
    room = make(tmp_path_factory.mktemp("grading") / "class", "ada", "bob")
    executed = submission(extra="display(HTML('...'))\n" + "x = 1  # a long line " * 20)
    executed.cells[3].outputs = [
        new_output(
            "display_data",
            {"text/html": "<b>own</b><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"},
        )
    ]
    for cell in executed.cells:  # as the judge leaves it
        if grade_id(cell) == STEP_CHECK:
            cell.outputs = [new_output("display_data", {"text/html": table.as_html("03.step", FAILED)})]
    verdict(
        room,
        "ada",
        {STEP_CHECK: ("failed", "", FAILED), MASKED_CHECK: "not_run"},
        notebook=executed,
        flags=["an odd tag"],
    )
    verdict(room, "bob", {})
    record(room, "ada", "bob")
    return room


def test_formgrader_opens_on_the_class_and_shows_our_tables(browser, room):
    with serve(room.folder) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(30_000)
        page.goto(f"{address}/lab")
        page.get_by_role("menuitem", name="Nbgrader").click()
        page.get_by_role("menuitem", name="Formgrader", exact=True).click()
        form = page.frame_locator("iframe[src*=formgrader]")
        link = form.locator("tr", has_text="small").get_by_role(
            "link", name="2", exact=True
        )  # how many were handed in
        page.goto(address + link.get_attribute("href"))
        rows = page.locator("tbody tr")
        rows.nth(1).wait_for()
        assert [row.split()[2:] for row in rows.all_inner_texts()] == [
            ["ada", "None", "needs", "manual", "grading", "0", "/", "5"],
            ["bob", "None", "graded", "5", "/", "5"],
        ]

        page.goto(f"{address}/formgrader/gradebook/small/small")
        page.locator("tbody tr").nth(1).wait_for()
        links = page.locator("tbody a[href*='/formgrader/submissions/']")
        ours = next(
            link for link in links.all() if "0 / 5" in link.locator("xpath=ancestor::tr").inner_text()
        )
        page.goto(address + ours.get_attribute("href"))
        page.wait_for_function("document.querySelector('#check-03-step.score').placeholder === '0'")
        # A score that waits is an empty box, not a zero.
        waiting = page.locator("#check-03-masked.score")
        assert not waiting.get_attribute("placeholder") and waiting.input_value() == ""
        shown = page.locator("#notebook").first
        assert "o[5] is wrong" in shown.inner_text() and "own" in shown.inner_text()
        assert shown.get_by_text("a tile of 3331 scores").count() == 2  # in the table, and folded below
        assert page.evaluate("window.hit") is None
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_feedback_page_fits_and_can_be_read(browser, room, scheme, width):
    path = feedback.write(room, "small", "ada")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    trouble = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on(
        "request", lambda request: request.url.startswith(("file:", "data:")) or trouble.append(request.url)
    )
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("window.hit") is None
    page.get_by_role("link", name="03.step", exact=True).click()
    panel = page.locator("#check-03-step")
    assert panel.get_by_text("o[5] is wrong").is_visible()
    page.get_by_text("How this was graded").click()
    assert page.get_by_text("seed", exact=False).first.is_visible()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert not trouble, trouble
    page.close()


def test_the_published_leaderboard_fits_and_asks_for_nothing(browser, tmp_path):
    board = {("08.speed", "NVIDIA <b>"): [(1, "x" * 40, 12.5), (2, "<script>window.hit = 1</script>", 1.0)]}
    (tmp_path / "page.html").write_text(leaderboard.as_html("08_capstone", board), encoding="utf-8")
    page = browser.new_page(viewport={"width": 360, "height": 600}, color_scheme="dark")
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("window.hit") is None and page.get_by_text("<script>").count() == 1
    page.close()
