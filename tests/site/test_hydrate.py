"""The script that starts widgets on a static page, on pages written for the purpose."""

import base64
import json
from pathlib import Path

import pytest

WIDGETS = Path(__file__).resolve().parents[2] / "widgets"
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"


def entry(esm, **state):
    return {"model_name": "AnyModel", "model_module": "anywidget", "state": {"_esm": esm, **state}}


@pytest.fixture
def show(browser, tmp_path):
    """A function that opens a page with these models, each shown once, and returns (page, console errors)."""
    pages = []

    def show(models, extra=""):
        views = "".join(
            f'<div class="ft-widget" id="at-{key}"><script type="{VIEW}">{json.dumps({"model_id": key})}</script>'
            f'<div class="ft-fallback">still of {key}</div></div>'
            for key in models
        )
        state = json.dumps({"version_major": 2, "version_minor": 0, "state": models}).replace("</", "<\\/")
        script = (WIDGETS / "site.js").read_text("utf-8")
        path = tmp_path / "page.html"
        path.write_text(
            f'<!doctype html><html lang="en"><title>t</title><body>{views}{extra}<script type="{STATE}">{state}</script>'
            f"<script>{script}</script></body></html>",
            "utf-8",
        )
        page = browser.new_page()
        pages.append(page)
        errors = []
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.widgets === 'ready'")
        return page, errors

    yield show
    for page in pages:
        page.close()


def test_a_widget_gets_state_initialize_render_and_style(show):
    esm = """export default {
      initialize({ model }) { model.set("n", model.get("n") + 1); },
      render({ model, el }) {
        const log = [];
        const heard = (_, value) => log.push(value);
        model.on("change:n", heard);
        model.set("n", 8); model.set("n", 8); model.off("change:n", heard); model.set("n", 9);
        model.save_changes();
        el.textContent = JSON.stringify([log, model.get("n"), model.get("bytes").getUint8(1)]);
      } };"""
    model = entry(esm, n=1, bytes=None, _css="#at-a { color: rgb(1, 2, 3) }")
    model["buffers"] = [
        {"path": ["bytes"], "encoding": "base64", "data": base64.b64encode(b"\x05\x07").decode()}
    ]
    page, errors = show({"a": model})
    host = page.locator("#at-a")
    assert json.loads(host.locator("div").inner_text()) == [[8], 9, 7]
    assert host.locator(".ft-fallback").count() == 0
    assert host.evaluate("(e) => getComputedStyle(e).color") == "rgb(1, 2, 3)"
    assert not errors


@pytest.mark.parametrize(
    ("esm", "reason"),
    [
        ("export default { render() { throw new Error('no luck') } }", "no luck"),
        ("export default {}", "no render function"),
        ("export default { render( }", "Unexpected token"),
        (None, "brings no script"),
    ],
)
def test_one_that_fails_says_so_in_place_and_leaves_the_others_alone(show, esm, reason):
    good = entry("export default { render({ el }) { el.textContent = 'alive'; } }")
    page, errors = show({"bad": entry(esm), "good": good})
    bad = page.locator("#at-bad")
    assert reason in bad.locator(".ft-failed").inner_text()
    assert bad.locator(".ft-fallback").inner_text() == "still of bad"
    assert page.locator("#at-good").inner_text() == "alive"
    assert page.locator("#at-good .ft-failed").count() == 0
    assert len(errors) == 1


def test_a_view_without_a_model_says_so(show):
    extra = f'<div class="ft-widget" id="lost"><script type="{VIEW}">{{"model_id": "gone"}}</script></div>'
    page, _ = show({}, extra)
    assert "state is not in this page" in page.locator("#lost").inner_text()


def test_two_views_share_one_model(show):
    esm = """export default { render({ model, el }) {
        const draw = () => { el.textContent = model.get("n"); };
        model.on("change:n", draw); draw();
        el.onclick = () => model.set("n", model.get("n") + 1); } };"""
    extra = f'<div class="ft-widget" id="again"><script type="{VIEW}">{{"model_id": "a"}}</script></div>'
    page, _ = show({"a": entry(esm, n=1)}, extra)
    page.locator("#again div").click()
    assert page.locator("#at-a").inner_text() == page.locator("#again").inner_text() == "2"
