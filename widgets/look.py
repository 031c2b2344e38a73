"""One look for figures, simulators and pages.

A colour has one meaning everywhere in the course. The hues are Okabe and Ito's (distinguishable under the
common forms of colour blindness), as `(light theme, dark theme)` pairs. `TOKENS` are for marks (lines, bars,
outlines), which need a contrast of 3:1; `TEXT` are the same meanings for words, which need 4.5:1; `soft()`
gives the pale fill behind ordinary ink. `tests/widgets/test_look.py` computes every one of these contrasts.

`css()` writes them as custom properties, `matplotlib_style()` sets matplotlib up, and `figure()` turns a
matplotlib figure into inline SVG whose colours are those custom properties, so that one picture is right in
both themes.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
from contextlib import contextmanager

# Marks: 3:1 against the page and against a panel, in both themes.
TOKENS = {
    "query": ("#0072B2", "#56B4E9"),
    "key": ("#009E73", "#4CC9A0"),
    "value": ("#A0527D", "#CC79A7"),
    "current": ("#D55E00", "#F0894A"),
    "correction": ("#B87A00", "#F0B73C"),
    "discarded": ("#6B727C", "#98A0AB"),
    "absent": ("#868C96", "#7C838E"),
    "exact": ("#1B7F3B", "#6FD08C"),
    "danger": ("#B3261E", "#FF8A80"),
}

# Words: 4.5:1 on the same grounds. A hue that already has it is repeated.
TEXT = {
    "query": ("#0072B2", "#56B4E9"),
    "key": ("#00734F", "#4CC9A0"),
    "value": ("#A0527D", "#D78DB6"),
    "current": ("#A84A00", "#F0894A"),
    "correction": ("#855800", "#F0B73C"),
    "discarded": ("#5C636D", "#98A0AB"),
    "absent": ("#646A74", "#98A0AB"),
    "exact": ("#1B7F3B", "#6FD08C"),
    "danger": ("#B3261E", "#FF8A80"),
}

# Everything that carries no meaning of its own.
NEUTRAL = {
    "ground": ("#FFFFFF", "#14181E"),
    "panel": ("#F6F7F9", "#1C222B"),
    "ink": ("#1C2128", "#E6EAF0"),
    "muted": ("#565D68", "#A9B1BD"),
    "line": ("#D5D9E0", "#3A4350"),
    "control": ("#7D8490", "#7F8896"),  # the outline of an input: 3:1
}

LIGHT, DARK = 0, 1
SOFT = 0.16  # how much of the hue is in a pale fill


def luminance(colour: str) -> float:
    """Relative luminance in [0, 1] of `#RRGGBB`, as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """WCAG contrast ratio of two colours, from 1 to 21."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def soft(token: str, theme: int) -> str:
    """The pale fill of a token in a theme (`LIGHT` or `DARK`): its hue mixed into the page's ground."""
    hue, ground = TOKENS[token][theme], NEUTRAL["ground"][theme]
    mixed = (
        round(SOFT * int(hue[i : i + 2], 16) + (1 - SOFT) * int(ground[i : i + 2], 16)) for i in (1, 3, 5)
    )
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def properties(theme: int) -> dict[str, str]:
    """The custom properties of one theme: `--ft-query`, `--ft-query-text`, `--ft-query-soft`, `--ft-ink`."""
    values = {}
    for token in TOKENS:
        values[f"--ft-{token}"] = TOKENS[token][theme]
        values[f"--ft-{token}-text"] = TEXT[token][theme]
        values[f"--ft-{token}-soft"] = soft(token, theme)
    return values | {f"--ft-{name}": pair[theme] for name, pair in NEUTRAL.items()}


# How each host says that it is dark: this site, JupyterLab and Notebook, VS Code, Colab.
_DARK_HOSTS = (
    'html[data-theme="dark"]',
    'body[data-jp-theme-light="false"]',
    'body[data-vscode-theme-kind="vscode-dark"]',
    'html[theme="dark"]',
)


def css() -> str:
    """The custom properties of both themes, and the few rules that figures share."""

    def block(selector: str, theme: int) -> str:
        scheme = {"--ft-scheme": ("light", "dark")[theme]}  # for the browser's own controls
        lines = "".join(f"  {name}: {value};\n" for name, value in (properties(theme) | scheme).items())
        return f"{selector} {{\n{lines}}}\n"

    return block(":root", LIGHT) + block(",\n".join(_DARK_HOSTS), DARK) + _FIGURE_CSS


_FIGURE_CSS = """\
.ft-figure { margin: 1.5rem 0; color: var(--ft-ink); }
.ft-figure svg { display: block; width: 100%; max-width: 36rem; height: auto; margin: 0 auto; }
.ft-figure svg text { font-family: inherit !important; font-variant-numeric: tabular-nums; }
.ft-figure figcaption {
  max-width: 36rem; margin: .6rem auto 0; color: var(--ft-muted);
  font-family: inherit; font-size: .9rem; font-weight: 400; line-height: 1.5; text-align: start;
}
"""


def color(token: str, *, text: bool = False) -> str:
    """The light-theme `#rrggbb` of a token or neutral, for matplotlib; `figure()` makes it follow the theme.

    `text=True` gives the variant for words. Raises `ValueError` for a name that the look does not have.
    """
    table = (TEXT if text else TOKENS) | NEUTRAL
    if token not in table:
        raise ValueError(f"token must be one of {', '.join(table)}; got {token!r}")
    return table[token][LIGHT].lower()


@contextmanager
def matplotlib_style():
    """Context in which matplotlib figures have the course's look: sizes, axes, the tokens as colour cycle.

    Draw with `look.color(name)` and hand the result to `look.figure`: the ground is transparent.
    """
    import matplotlib as mpl
    from cycler import cycler

    ink, muted, line = color("ink"), color("muted"), color("line")
    style = {
        "figure.figsize": (5.2, 3.2),
        "figure.constrained_layout.use": True,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "svg.fonttype": "none",
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.labelcolor": ink,
        "axes.edgecolor": muted,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=[color(t) for t in ("query", "current", "key", "value")]),
        "grid.color": line,
        "grid.linewidth": 0.8,
        "lines.linewidth": 2,
        "lines.markersize": 6,
        "text.color": ink,
        "axes.titlecolor": ink,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": muted,
        "ytick.labelcolor": muted,
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        yield


def themed(svg: str) -> str:
    """Replace the look's light colours in SVG text by their custom properties, the colour itself as fallback.

    The text may name a colour in any case; a colour that is not the look's stays as it is.
    """
    light = {}
    for name, value in properties(LIGHT).items():
        light.setdefault(value.lower(), name)  # a mark before its equal text variant

    def replace(match: re.Match) -> str:
        name = light.get(match.group().lower())
        return f"var({name}, {match.group()})" if name else match.group()

    # matplotlib writes colours in style attributes only, where var() is allowed (it isn't in fill="...").
    return re.sub(r"#[0-9a-fA-F]{6}\b", replace, svg)


def figure(picture, *, alt: str, caption: str = ""):
    """Show a picture as inline SVG that follows the page's theme.

    picture: a matplotlib figure (it is closed), or SVG text, whose colours may be custom properties already.
    alt: what the picture shows, as one sentence that says the finding.  caption: HTML below it.
    Returns an `IPython.display.HTML`. Raises `ValueError` without an alt text or without an `<svg>` element.
    """
    from IPython.display import HTML

    if not alt.strip():
        raise ValueError("alt must say in a sentence what the picture shows; got an empty text")
    if isinstance(picture, str):
        svg = picture
    else:
        import matplotlib as mpl
        import matplotlib.pyplot as plt

        out = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": alt, "svg.fonttype": "none"}):  # the same bytes at every build
            picture.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        plt.close(picture)
        svg = out.getvalue()
    start = svg.find("<svg")
    if start < 0:
        raise ValueError(f"picture must be a matplotlib figure or SVG text; got {svg[:40]!r}")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[start:], flags=re.DOTALL)

    # Pictures share a page, and matplotlib names their parts alike: prefix every id and its references.
    prefix = "f" + hashlib.sha256((alt + svg).encode()).hexdigest()[:8]
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return HTML(f'<figure class="ft-figure">{themed(svg)}{below}</figure>')
