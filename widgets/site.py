"""Sphinx extension: what turns the Jupyter Book pages into a site that asks the network for nothing.

`_config.yml` names it under `extra_extensions`. It
- serves the pages' style (the look and `site.css`), their script (`site.js`: it starts the widgets), and
  MathJax,
- puts each widget's static fallback beside it, for readers without JavaScript,
- drops the thebe scripts, which would be fetched from a CDN (and are declared twice by the theme), and 1.5 MB
  of icons a page,
- gives MyST the link schemes `repo:` and `colab:`, made from the `repository` block of `_config.yml`,
- shows the reference's code of an exercise: `{solution-cell} 03_flash_forward solution-step`.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from widgets import look

HERE = Path(__file__).parent
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# MathJax 3.2.2 as sphinx-mathjax-offline carries it: one renderer, its fonts, and the TeX extensions that it
# loads on demand. Version 4 would still ask a CDN.
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")


def mathjax_source() -> Path:
    """The folder with MathJax's files. Raises `FileNotFoundError` without sphinx-mathjax-offline."""
    spec = importlib.util.find_spec(
        "sphinx-mathjax-offline"
    )  # a module name with hyphens: not importable by `import`
    if spec is None or spec.origin is None:
        raise FileNotFoundError("MathJax's files are missing: pip install sphinx-mathjax-offline")
    return Path(spec.origin).parent / "static" / "mathjax"


def configure(app, config) -> None:
    """Settings that follow from others, or are no business of `_config.yml`'s. Before extensions read theirs."""
    # No require.js and no html-manager of ipywidgets (3.7 MB from a CDN): site.js starts the widgets.
    config.nb_ipywidgets_js = {}
    config.mathjax_path = "mathjax/tex-chtml.js"
    # The menu would make every formula a tab stop and load further files on demand.
    config.mathjax3_config = {"options": {"enableMenu": False}}

    url = config.html_theme_options.get("repository_url", "").rstrip("/")
    branch = config.html_theme_options.get("repository_branch", "main")
    schemes = config.myst_url_schemes
    schemes = dict(schemes) if isinstance(schemes, dict) else dict.fromkeys(schemes)
    schemes["repo"] = f"{url}/blob/{branch}/{{{{path}}}}"
    colab = url.replace("https://github.com/", "https://colab.research.google.com/github/")
    schemes["colab"] = f"{colab}/blob/{branch}/{{{{path}}}}"
    config.myst_url_schemes = schemes


def write_assets(app) -> None:
    """Put the extension's files into the output: before the pages, so that their links carry checksums."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    (static / "flash-tiles.css").write_text(look.css() + (HERE / "site.css").read_text("utf-8"), "utf-8")
    shutil.copyfile(HERE / "site.js", static / "flash-tiles.js")
    source = mathjax_source()
    for name in MATHJAX:
        target = static / "mathjax" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(
                source / name, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("all-packages.js")
            )
        else:
            shutil.copyfile(source / name, target)
    app.add_css_file("flash-tiles.css", priority=900)
    app.add_js_file("flash-tiles.js", defer="defer")


class SolutionCell(SphinxDirective):
    """The code that the reference has in a cell of an exercise, as it stands in `solutions/`, so that no page repeats it.

    Arguments: the exercise and the cell's grade_id, such as `03_flash_forward solution-step`. A page names either wrongly: a
    warning that lists what there is, which stops the build under `-W`.
    """

    required_arguments = 2

    def run(self):
        # Where a page asks for it: reading an exercise takes nbformat and jupytext.
        from autograder import exercise

        assignment, cell = self.arguments
        try:
            cells = exercise.solutions(assignment)
            code = cells[cell]
        except ValueError as error:
            return [self.state.document.reporter.warning(str(error), line=self.lineno)]
        except KeyError:
            known = ", ".join(cells)
            message = f"{assignment} has no solution cell {cell!r}; it has: {known}"
            return [self.state.document.reporter.warning(message, line=self.lineno)]
        self.env.note_dependency(str(exercise.SOLUTIONS / f"{assignment}.py"))
        block = nodes.literal_block(code, code, language="python")
        self.set_source_info(block)
        return [block]


def place_fallbacks(app, doctree) -> None:
    """Put the `text/html` form of a widget's output into the element that the hydrator will fill.

    myst-nb keeps one representation of an output; here both are wanted, the static one until the live one
    stands.
    """
    for bundle in list(doctree.findall(nodes.container)):
        if bundle.get("nb_element") != "mime_bundle":
            continue
        forms = {child["mime_type"]: child for child in bundle.children}
        view, static = forms.get(WIDGET_VIEW), forms.get("text/html")
        if view is None:
            continue
        view.insert(0, nodes.raw("", '<div class="ft-widget">', format="html"))
        if static is not None:
            view.extend(static.children)
        view.append(nodes.raw("", "</div>", format="html"))


def drop_repeated_ids(app, doctree) -> None:
    """sphinx-proof calls the text of every statement "proof-content" and every proof "proof": on a page an id occurs once."""
    for node in doctree.findall(nodes.Element):
        if node.get("ids") == ["proof-content"]:
            node["ids"] = [f"{node.parent['ids'][0]}-content"]  # a section has to have one
        elif node.get("ids") == ["proof"] and isinstance(node, nodes.admonition):
            node["ids"] = []


def finish_page(app, pagename, templatename, context, doctree) -> None:
    """Remove the scripts that sphinx-thebe adds to every page, and describe the page that nobody wrote."""

    def is_thebe(script) -> bool:
        return "thebe" in (str(script.filename or "") + (script.attributes.get("body") or "")).lower()

    context["script_files"] = [script for script in context["script_files"] if not is_thebe(script)]
    if pagename == "search":
        title = escape(app.config.html_title)
        context["metatags"] = (
            f'<meta name="description" content="Search {title}: every chapter, in your browser, without a server.">'
        )


def lighten(app, exception) -> None:
    """Take out what no reader needs: the theme's 1.5 MB of icons as a script, since its style sheet brings
    the same icons as a font; source maps; the theme's own templates. The theme's template names them, so it
    is done last. Then make `index.html`, a bare redirect, a page with a title and a link.
    """
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for page in out.rglob("*.html"):
        text = page.read_text("utf-8")
        page.write_text(re.sub(r"<script [^>]*fontawesome\.js[^>]*></script>", "", text), "utf-8")
    root = app.config.root_doc + ".html"
    title = escape(app.config.html_title)
    (out / "index.html").write_text(
        f'<!doctype html><html lang="{app.config.language}"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="description" content="{title}: a course that starts at its first page, {root}.">'
        f'<meta http-equiv="refresh" content="0; url={root}"></head>'
        f'<body><a href="{root}">{title}</a></body></html>\n',
        "utf-8",
    )
    for pattern in ("*.map", "fontawesome.js*", "*webpack-macros.html"):
        for unused in (out / "_static").rglob(pattern):
            unused.unlink()


def setup(app) -> dict:
    app.add_directive("solution-cell", SolutionCell)
    app.connect("config-inited", configure, priority=900)
    app.connect("builder-inited", write_assets, priority=900)
    app.connect("doctree-read", place_fallbacks)
    app.connect("doctree-read", drop_repeated_ids)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", lighten, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
