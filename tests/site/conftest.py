"""The built site in a real browser, with the network cut: every test fails on a request that leaves the
machine, on a console error, and on an uncaught exception in the page."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from chapter_pages import ROOT, SOURCES, newest
from playwright.sync_api import sync_playwright

SITE = ROOT / "_build" / "html"

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
FILES = [chapter["file"] for part in TOC["parts"] for chapter in part["chapters"]]
PAGES = [f"{name}.html" for name in [TOC["root"], *FILES]]

# Root needs --no-sandbox (containers); the rest keeps Chromium from calling home.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_generate_tests(metafunc):
    """A test that takes `name` runs for every page of the table of contents."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", PAGES)


@pytest.fixture(scope="session")
def site():
    """The folder of the built site; built here if anything that it is made of is newer."""
    if not (SITE / "index.html").exists() or newest([SITE]) < newest(ROOT / name for name in SOURCES):
        jb = Path(sys.executable).with_name("jb")
        command = [jb, "build", ".", "--path-output", ".", "--all", "-W", "-n", "--keep-going"]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert built.returncode == 0, (built.stdout + built.stderr)[-4000:]
    return SITE


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def served(site):
    """The site's address on a local web server."""
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    """Chromium: the system's where there is one, else the one that Playwright installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    # `make test` has already looked: it gives the path, or "" for Playwright's own.
    found = os.environ.get("CHROMIUM", next(filter(None, map(shutil.which, names)), None)) or None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Tab:
    """Opens pages and keeps what must not happen in `trouble`. `formulas`: whether MathJax is there."""

    def __init__(self, browser, allowed, formulas, **options):
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(10_000)
        self.page = self.context.new_page()
        self.trouble = []
        self.allowed, self.formulas = allowed, formulas
        self.context.route("**/*", self._decide)
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.trouble.append(f"uncaught: {error}"))
        self.page.on("requestfailed", lambda request: self.trouble.append(f"failed: {request.url}"))
        self.page.on("response", lambda r: r.status >= 400 and self.trouble.append(f"{r.status}: {r.url}"))

    def _decide(self, route):
        if not self.formulas and "/_static/mathjax/" in route.request.url:
            route.fulfill(body="", content_type="text/javascript")
        elif route.request.url.startswith(self.allowed):
            route.continue_()
        else:
            self.trouble.append(f"left the machine: {route.request.url}")
            route.abort()

    def _listen(self, message):
        if message.type in ("error", "warning"):
            self.trouble.append(f"console {message.type}: {message.text}")

    def open(self, url):
        """Open a page of the site and wait until its widgets and formulas stand."""
        self.page.goto(url)
        if self.page.locator("script[type='application/vnd.jupyter.widget-view+json']").count():
            self.page.wait_for_function("document.documentElement.dataset.widgets === 'ready'")
        if self.formulas and self.page.locator(".math").count():
            self.page.wait_for_function("window.MathJax?.startup?.promise?.then(() => true)")
        return self.page


@pytest.fixture
def formulas():
    """Whether pages draw their formulas, which takes longer than all the rest of a page.

    Those who test one widget on a page do without; test_pages.py opens every page, widgets and all, with them.
    """
    return False


@pytest.fixture
def tab(browser, served, site, formulas):
    """Opens a tab (options as Playwright's new_context); at the end, none may have had trouble."""
    tabs = []

    def new(**options):
        tabs.append(Tab(browser, (served, site.as_uri(), "blob:", "data:"), formulas, **options))
        return tabs[-1]

    yield new
    trouble = [line for tab in tabs for line in tab.trouble]
    for one in tabs:
        one.context.close()
    assert not trouble, trouble


@pytest.fixture(params=["http", "file"])
def base(request, served, site):
    """Where the site is opened: from a web server, and from its folder."""
    return served if request.param == "http" else site.as_uri()
