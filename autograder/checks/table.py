"""The table of a check's results, in HTML (notebooks, feedback pages) and in plain text (everything else)."""

import re
from html import escape

from autograder.checks.core import growth

_SIGN = {True: "✓ pass", False: "✗ fail", None: "… waits"}
# Hues of the course's look (exact, danger, absent) that keep 4.5:1 as text on white and on JupyterLab's dark ground
# only as a pair; so the words keep the page's own colour, and the hue is a bar beside them.
_HUE = {True: "#1B9A4B", False: "#D9433A", None: "#868C96"}

_SUMMARY = "display:list-item;cursor:pointer"  # formgrader's style sheet takes the fold's triangle away


def number(value, digits=6):
    """`value` with so many significant digits: 0, 1.2e-13, -inf, NaN, 0.3125. A whole number below 2^53 has all of its digits."""
    if value is None:
        return ""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 2**53:
        return f"{value:.0f}"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}g}"
    return f"{value:.{digits - 4}e}"


def apart(a, b):
    """Both as text, with as many digits as it takes to see that they differ."""
    texts = [(number(a, digits), number(b, digits)) for digits in (6, 9, 13, 17, 21)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


def _bytes(value):
    return "" if value is None else f"{value / 2**20:.1f} MiB"


def _tolerance(value):
    return "exact" if value == 0 else number(value)


def _share(value):
    return "" if value is None else f"{value:.0%}"


def _name(result, hide):
    """The case's name; with `hide`, without the sizes that the grader drew ("n keys in tiles of n").

    The sizes of a memory case are known to all: the limit is a function of them; and so are those of a timed one. "float16",
    "near 1000" and "-1000" hold no size.
    """
    if not hide or result.limit_bytes is not None or result.least_share is not None:
        return result.name
    return re.sub(r"(?<![\w.-])(?<!near )\d+", "n", result.name)


def _columns(results, hide=False):
    """Head and rows: memory cases show peak and limit, timed ones rates, where others show error and tolerance."""
    if any(r.limit_bytes is not None for r in results):
        head, pair = ("peak", "limit"), lambda r: (_bytes(r.peak_bytes), _bytes(r.limit_bytes))
    elif any(r.least_share is not None for r in results):
        head, pair = ("share of a copy's rate", "at least"), lambda r: (_share(r.share), _share(r.least_share))
    else:
        head, pair = ("largest error", "tolerance"), lambda r: (number(r.error), _tolerance(r.tolerance))
    return ("case", *head), [(r.passed, (_name(r, hide), *pair(r))) for r in results]


def _failure(result):
    """What a student needs about one failing case: label and value, in reading order."""
    lines = [("what", result.message)]
    if result.called:
        lines.append(("called with", result.called))
    if result.index is not None:
        lines.append(("first wrong", f"{result.output}{list(result.index)}" if result.index else result.output))
        if result.expected is not None:  # the grader keeps both to itself
            lines += zip(("expected", "got"), apart(result.expected, result.got), strict=True)
    if result.hint:
        lines.append(("hint", result.hint))
    return lines


def _failures(results, hide):
    """(name, lines of `_failure`, traceback or "") of each failing case that is opened out under the table."""
    shown = []
    for r in results:
        if r.passed is not False:
            continue
        if not hide or not shown:
            shown.append((r.name, _failure(r), r.detail))
        elif r.hint and all(("hint", r.hint) not in lines for _, lines, _ in shown):
            shown.append((_name(r, hide), [("hint", r.hint)], ""))
    return shown


def summary(results):
    """One line: "4 of 5 cases pass" and, for a memory check, how the peak grows."""
    passed = sum(r.passed is True for r in results)
    waiting = sum(r.passed is None for r in results)
    text = f"{passed} of {len(results)} cases pass"
    if waiting:
        text += f", {waiting} wait"
    return " ".join(filter(None, [text + ".", growth(results)]))


def as_text(title, results, note=""):
    """The table as plain text."""
    head, rows = _columns(results)
    head = ("", *head)
    cells = [head] + [(_SIGN[passed], *values) for passed, values in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [title]
    for row in cells if results else []:
        padded = [row[i].ljust(w) if i < 2 else row[i].rjust(w) for i, w in enumerate(widths)]
        lines.append("  " + "  ".join(padded).rstrip())
    first = next((r for r in results if r.passed is False), None)
    if first is not None:
        lines.append(f"  First failing case: {first.name}")
        lines += [f"    {label}: {value}" for label, value in _failure(first)]
    lines.append("  " + " ".join(filter(None, [summary(results) if results else "", note])))
    return "\n".join(lines)


def as_html(title, results, note="", hide=False):
    """The table as an HTML fragment with inline styles: no script, no class, and no colour that a dark theme can't bear.

    Args:
        title: a line above the table, or "" for none.
        hide: keep to what the hints need (for the graded page: the grader's cases are secret). Sizes are shown for the
            first failing case alone; of the others, hints that have not been given yet.
    """
    head, rows = _columns(results, hide)
    cell = "padding:2px 12px 2px 8px;text-align:{};font-variant-numeric:tabular-nums;background:none"
    align = ("left", "left", "right", "right")
    out = [
        '<div style="margin:4px 0;max-width:52em">',
        f"<div><b>{escape(title)}</b></div>" if title else "",
    ]
    if results:
        out.append('<table style="border-collapse:collapse;margin:4px 0;background:none">')
        cells = "".join(
            f'<th scope="col" style="{cell.format(align[i])};font-weight:600">{escape(h)}</th>'
            for i, h in enumerate(("result", *head))
        )
        out.append(f"<thead><tr>{cells}</tr></thead><tbody>")
        for passed, values in rows:
            bar = f"white-space:nowrap;border-left:4px solid {_HUE[passed]}"
            tds = "".join(
                f'<td style="{cell.format(align[i])};{bar if i == 0 else ""}">{escape(v)}</td>'
                for i, v in enumerate((_SIGN[passed], *values))
            )
            out.append(f'<tr style="background:none">{tds}</tr>')
        out.append("</tbody></table>")
    for position, (name, lines, trace) in enumerate(_failures(results, hide)):
        body = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell.format("left")};font-weight:600;'
            f'vertical-align:top;white-space:nowrap">{escape(label)}</th>'
            f'<td style="{cell.format("left")};white-space:normal">{escape(str(value))}</td></tr>'
            for label, value in lines
        )
        if trace:
            trace = (
                f'<details><summary style="{_SUMMARY}">the error in full</summary><pre style="white-space:pre-wrap">'
                f"{escape(trace)}</pre></details>"
            )
        out.append(
            f'<details{"" if position else " open"} style="border-left:4px solid {_HUE[False]};padding-left:8px;'
            f'margin:4px 0"><summary style="{_SUMMARY}">{escape(name)}</summary>'
            f'<table style="border-collapse:collapse;background:none"><tbody>{body}</tbody></table>{trace}</details>'
        )
    line = " ".join(filter(None, [summary(results) if results else "", note]))
    out.append(f"<div>{escape(line)}</div></div>")
    return "".join(out)
