"""The same widgets in JupyterLab, with a kernel behind them: traits travel both ways."""

import re
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

CELLS = [
    "from widgets import Quiz, Stepper\nw = Stepper('masked', guard=False, position=4)\nw",
    "w.guard = True\nw.tile = 8\nw.position = 2",
    "print('trace', len(w.trace), w.tile, w.trace[0]['m'], round(w.trace[-1]['error'], 12))",
    "print('tile', w.tile, 'preset', w.preset, 'first', w.scores[0])",
    "q = Quiz('02_online_softmax')\nq",
    "print('answers', q.answers, 'score', q.score)",
    "from widgets import Tiles\nt = Tiles(n=512, position=3)\nt",
    "t.tile_k = 64",
    "print('visit', t.position, 'of', t.count['visits'], 'card', t.card)",
]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab with one notebook."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "widgets.ipynb")
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--port=0",
    ]
    command += ["--port-retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}"]
    command += ["--LabApp.extension_manager=readonly", "--LabApp.news_url=", "--expose-app-in-browser"]
    log = (tmp_path / "log.txt").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(600):
            log.seek(0)
            found = re.search(r"http://127\.0\.0\.1:(\d+)/lab", log.read())
            if found and urllib.request.urlopen(found[0].replace("/lab", "/api")).status == 200:
                break
            assert process.poll() is None, (tmp_path / "log.txt").read_text()
            time.sleep(0.2)
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


def test_traits_travel_both_ways(browser, lab):
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    page.set_default_timeout(60_000)
    page.goto(f"{lab}/tree/widgets.ipynb")
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.nth(len(CELLS) - 1).wait_for()
    # A cell that is run before the kernel is there is not queued: it is lost.
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")

    def run(index):
        """Run a cell and return the text that it printed."""
        cells.nth(index).locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        output = cells.nth(index).locator(".jp-OutputArea-output")
        page.wait_for_function(
            "(e) => /\\d/.test(e.textContent)",
            arg=cells.nth(index).locator(".jp-InputPrompt").element_handle(),
        )
        return output

    run(0)
    root = page.locator(".ft-stepper")
    root.wait_for()
    assert root.locator("select").input_value() == "masked"
    assert root.locator("tbody >> text=⚠ NaN").count() > 0

    # Python to the page.
    run(1)
    page.wait_for_function("document.querySelector('.ft-stepper output').textContent === '8 keys'")
    assert root.locator("text=⚠ NaN").count() == 0

    # The page's rows to Python, minus infinity and all: key 1 to 8 hold four masked keys.
    assert run(2).inner_text().split() == ["trace", "2", "8", "1.95", "0.0"]

    # The page's controls to Python.
    root.locator("input[type=range]").fill("2")
    root.locator("select").select_option("falling")
    assert run(3).inner_text().split() == ["tile", "2", "preset", "falling", "first", "3.0"]

    # A quiz, which finds no sections to link to here and names them instead.
    run(4)
    form = page.locator(".ft-quiz form").first
    form.locator("input").nth(2).check()
    form.get_by_role("button", name="Check").click()
    assert "Right" in form.locator(".ft-result").inner_text()
    assert form.locator("cite").count() == 1 and form.locator("a").count() == 0
    assert run(5).inner_text().strip() == "answers [2, None, None, None, None, None] score 1"

    # The tiles: what Python sets is drawn, where a reader walks to is known in Python.
    run(6)
    tiles = page.locator(".ft-tiles")
    tiles.wait_for()
    run(7)
    page.wait_for_function(
        "document.querySelector('.ft-tiles [for$=tile_k] output').textContent === '64 keys'"
    )
    tiles.locator("select").nth(4).select_option("A100")
    tiles.locator(".ft-orders").press("Space")
    assert run(8).inner_text().split() == ["visit", "4", "of", "32", "card", "A100"]
    page.close()
