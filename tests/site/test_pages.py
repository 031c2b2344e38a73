"""Every page: complete, self-contained, readable on a phone and with a screen reader."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe

ROOT = Path(__file__).resolve().parents[2]
PHONE = {"width": 360, "height": 740}


class Scan(HTMLParser):
    """The ids, links, loaded files and descriptions of a page. `repeated`: ids that occur more than once."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.files, self.descriptions = set(), [], [], []
        self.repeated = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("id") in self.ids:
            self.repeated.append(attrs["id"])
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag == "link" and attrs.get("rel") in ("stylesheet", "icon", "preload"):
            self.files.append(attrs["href"])
        if tag in ("script", "img", "source", "iframe") and attrs.get("src"):
            self.files.append(attrs["src"])
        if tag == "meta" and attrs.get("name") == "description":
            self.descriptions.append(attrs.get("content") or "")


@pytest.fixture
def formulas():
    return True


@pytest.fixture(scope="session")
def scans(site):
    return {path: Scan(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_a_page_opens_without_a_complaint(tab, base, name):
    page = tab().open(f"{base}/{name}")
    assert page.locator(".bd-article h1").count() == 1
    assert page.locator(".ft-failed").count() == 0
    for host in page.locator(".ft-widget").all():
        assert host.get_attribute("data-state") == "live"
        assert host.locator(".ft-fallback").count() == 0
    assert page.locator(".math").count() == page.locator("mjx-container").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_on_a_phone(tab, served, name, scheme):
    page = tab(viewport=PHONE, color_scheme=scheme).open(f"{served}/{name}")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    style = page.evaluate(
        "(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))"
    )
    ground, ink = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in style]
    assert (ground < 120 and ink > 600) if scheme == "dark" else (ground > 700 and ink < 180)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    # Nor is anything cut off: what is wider than the screen must be inside a box that scrolls.
    cut = page.evaluate("""() => [...document.querySelectorAll('.bd-article *')].filter((e) => {
        const box = e.getBoundingClientRect();
        if (!box.width || e.closest('mjx-assistive-mml')) return false;
        if (box.left < -1) return true;  // no scrolling reaches what is left of the start
        if (box.right <= innerWidth + 1) return false;
        for (let up = e; up && up !== document.body; up = up.parentElement)
          if (/auto|scroll/.test(getComputedStyle(up).overflowX)) return false;
        return true;
      }).map((e) => e.tagName + '.' + e.className)""")
    assert not cut


# What others render and we can't reach, each with its reason. Everything else on the page counts.
EXCLUDED = {
    "mjx-container": "MathJax's drawn glyphs, hidden from screen readers beside the MathML that it gives them",
    ".citation-list": "docutils gives the bibliography role=list and its entries roles that a list may not hold",
}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_axe_finds_nothing_serious(tab, served, name, scheme, width):
    page = tab(color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce").open(
        f"{served}/{name}"
    )
    # preload: axe would fetch style sheets again, at the wrong address for an @import.
    result = Axe().run(
        page,
        context={"exclude": [[css] for css in EXCLUDED]},
        options={"preload": False, "resultTypes": ["violations"]},
    )
    serious = [
        f"{finding['id']}: {node['target']} {node['failureSummary']}"
        for finding in result.response["violations"]
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
    ]
    assert not serious, "\n".join(serious)


def test_every_page_describes_itself(scans, site):
    for path, scan in scans.items():
        (description,) = scan.descriptions
        assert 50 <= len(description) <= 300, path


def test_internal_links_and_files_exist(scans, site):
    wrong = []
    for path, scan in scans.items():
        for target in scan.links + scan.files:
            if urlsplit(target).scheme:
                continue
            address, anchor = urldefrag(target)
            file = path if not address else (path.parent / unquote(urlsplit(address).path)).resolve()
            if not file.is_file():
                wrong.append(f"{path.relative_to(site)}: no file {target}")
            elif anchor and file.suffix == ".html" and unquote(anchor) not in scans[file].ids:
                wrong.append(f"{path.relative_to(site)}: no anchor {target}")
    assert not wrong, "\n".join(wrong)


def test_no_id_occurs_twice_on_a_page(scans):
    assert not {path.name: scan.repeated for path, scan in scans.items() if scan.repeated}


def test_no_page_loads_a_file_from_elsewhere(scans):
    assert not [file for scan in scans.values() for file in scan.files if urlsplit(file).netloc]


def test_links_to_the_repository_follow_the_one_setting(scans, site):
    address = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["repository"]["url"]
    slug = address.removeprefix("https://github.com/")
    links = [link for path, scan in scans.items() for link in scan.links if path.parent.name == "chapters"]
    ours = [link for link in links if "/blob/" in link and slug.split("/")[1] in link]
    assert ours
    for link in ours:
        assert link.startswith(
            (f"{address}/blob/main/", f"https://colab.research.google.com/github/{slug}/blob/main/")
        )
        assert (ROOT / link.split("/blob/main/")[1].split("#")[0]).exists(), link


def test_without_javascript_a_still_stands_in_for_each_widget(browser, served, name):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{served}/{name}")
    for host in page.locator(".ft-widget").all():
        assert len(host.locator(".ft-fallback").inner_text()) > 200
    context.close()


def test_what_goes_on_to_the_right_fades_out_there(tab, served):
    page = tab(viewport=PHONE).open(f"{served}/chapters/03_flash_forward.html")

    def wait(what):
        page.wait_for_function(f"""() => {{
            const boxes = [...document.querySelectorAll('.pst-scrollable-table-container')];
            const marked = boxes.filter((box) => box.hasAttribute('data-more'));
            return {what};
        }}""")

    wait("0 < marked.length && marked.length < boxes.length")  # a narrow table fits
    assert "linear-gradient" in page.locator("[data-more]").first.evaluate(
        "(box) => getComputedStyle(box).maskImage"
    )
    page.set_viewport_size({"width": 1280, "height": 740})
    wait("!marked.length")
    page.set_viewport_size(PHONE)
    wait("marked.length")
    page.evaluate(
        "document.querySelectorAll('[data-more]').forEach((box) => box.scrollTo(box.scrollWidth, 0))"
    )
    wait("!marked.length")
