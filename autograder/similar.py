"""Near-duplicates: pairs of submissions that are alike beyond what the exercise itself makes alike, for a person to look at.

    autograder similar ASSIGNMENT --class DIR

This is no proof and no score: short programs that answer one question are alike by nature, and friends who talked are alike
too. What the release gives, and what more than a few of the class have, is left out before anything is compared.

How: the student's own code is read as tokens, local names replaced by the order in which a passage uses them, so that renaming
changes nothing; every `PASSAGE` tokens in a row are one passage. Two submissions are compared by the passages that few have
(Jaccard: those of both, divided by those of either). Passages are short, so that moving whole statements or functions changes
few of them. An index from passages to submissions does the comparing, so that 2,000 submissions take seconds. A pair is shown
for all of its code, or for one part of it, since the hardest part is the one that gets around.
"""

import ast
import builtins
import html
import io
import json
import keyword
import tokenize
import zlib
from dataclasses import dataclass

import numpy as np

from autograder.rebuild import Unreadable, grade_id, is_extra, is_solution, read, rebuild

# Set so that answers written in words of their own stay far below (those of tests/support/own_words.py: at most 0.12, and 0.23
# in one part), and copies with names changed, functions moved and idle lines added stay above (0.68).
PASSAGE = 10  # tokens; about one line
COMMON = 0.05  # a passage that a larger share of the class has is everyone's, and so is
COMMON_AT_LEAST = 10  # in a small class one that more than so many have
FEWEST = 20  # shared passages, below which nothing can be said
ALIKE = 0.4  # from here on a pair is shown
ALIKE_PART = 0.7  # the same for one part alone: short programs that are right are alike sooner
_KEPT = set(keyword.kwlist) | set(dir(builtins))
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Code:
    """One submission's own code.

    Attributes:
        passages: fingerprint -> (part, first line, last line), counted from 1 in `lines`.
    """

    lines: list
    passages: dict


@dataclass(frozen=True)
class Pair:
    """Two submissions that are alike in `part`: "all parts", or the grade_id of one solution cell.

    `alike` is from 0 to 1; `shared` is how many passages both have that few others have.
    """

    first: str
    second: str
    part: str
    alike: float
    shared: int


def _own_names(source):
    """Names that `source` binds: parameters, targets, functions. Those of modules, and attributes, are everyone's."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found - _KEPT


def _tokens(source):
    """(text, line) of each token that counts, docstrings left out; as far as Python can read."""
    found, start = [], True
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in _LAYOUT:
                start = start or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
                continue
            if not (
                start and token.type == tokenize.STRING
            ):  # a string where a statement starts is a comment
                found.append(("''" if token.type == tokenize.STRING else token.string, token.start[0]))
            start = False
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


def fingerprints(source):
    """Passages of `source`: fingerprint -> (first line, last line), from 1."""
    own = _own_names(source)
    tokens, found = _tokens(source), {}
    # Where Python can't read the code, every name might be its own.
    renamed = [
        own is None and t.isidentifier() and t not in _KEPT or own is not None and t in own for t, _ in tokens
    ]
    attribute = [False] + [t == "." for t, _ in tokens]
    for i in range(len(tokens) - PASSAGE + 1):
        numbers, texts = {}, []
        for j in range(i, i + PASSAGE):
            text = tokens[j][0]
            texts.append(
                f"${numbers.setdefault(text, len(numbers))}" if renamed[j] and not attribute[j] else text
            )
        code = " ".join(texts)
        found.setdefault(
            zlib.crc32(code.encode("utf-8", "replace")), (tokens[i][1], tokens[i + PASSAGE - 1][1])
        )
    return found


def given(master):
    """The passages that the released notebook has already."""
    return {
        passage for cell in master.cells if cell.cell_type == "code" for passage in fingerprints(cell.source)
    }


def own_code(master, path, known):
    """The student's `Code` in the submission at `path`: solution cells and cells of their own, without the passages `known`.

    Raises:
        Unreadable: the grader can't read it either.
    """
    released = {c.id: c.source for c in master.cells}
    lines, passages = [], {}
    for cell in rebuild(master, read(path)).notebook.cells:
        if (
            cell.cell_type != "code"
            or not (is_solution(cell) or is_extra(cell))
            or cell.source == released.get(cell.id)
        ):
            continue
        part = grade_id(cell) or "cells of their own"
        lines.append(f"# {part}")
        for passage, (first, last) in fingerprints(cell.source).items():
            if passage not in known:
                passages.setdefault(passage, (part, len(lines) + first, len(lines) + last))
        lines += cell.source.split("\n")
    return Code(lines, passages)


def pairs(codes):
    """Pairs of `codes` (student -> `Code`) that are alike, the most alike first.

    Returns:
        a list of `Pair`, and the set of passages that few have.
    """
    students = sorted(codes)
    holders, parts = {}, {}
    for number, student in enumerate(students):
        for passage, (part, _, _) in codes[student].passages.items():
            holders.setdefault(passage, []).append(number)
            parts.setdefault(part, {}).setdefault(passage, []).append(number)
    most = max(COMMON_AT_LEAST, COMMON * len(students))
    rare = {passage for passage, who in holders.items() if len(who) <= most}
    found = {}
    for part, index in {"all parts": holders, **parts}.items():
        share, both = _shares([who for passage, who in index.items() if passage in rare], len(students))
        enough = (share >= (ALIKE if index is holders else ALIKE_PART)) & (both >= FEWEST)
        for i, j in zip(*np.nonzero(np.triu(enough, 1)), strict=True):
            # The whole comes first, and is what counts.
            found.setdefault(
                (i, j), Pair(students[i], students[j], part, float(share[i, j]), int(both[i, j]))
            )
    return sorted(found.values(), key=lambda p: (-p.alike, -p.shared, p.first, p.second)), rare


def _shares(holders, count):
    """Jaccard similarity and shared passages of all pairs, both (count, count), from who holds each passage."""
    alone = np.bincount([who[0] for who in holders if len(who) == 1], minlength=count)  # most of them
    both = np.diag(alone.astype(np.int32))
    for who in holders:
        if len(who) > 1:
            both[np.ix_(who, who)] += 1
    each = both.diagonal()
    return both / np.maximum(each[:, None] + each[None, :] - both, 1), both


def compare(classroom, assignment):
    """Compare all submissions of `assignment`.

    Returns:
        (pairs, codes, rare, unread): see `pairs`; `unread` are students whose notebook can't be read.
    """
    import nbformat

    path = classroom.notebook(assignment)
    master = nbformat.read(path, as_version=4)
    codes, unread, known = {}, [], given(master)
    for student in classroom.students(assignment):
        try:
            codes[student] = own_code(
                master, classroom.folder / "submitted" / student / assignment / path.name, known
            )
        except Exception as error:  # as in the grader: a malformed notebook raises whatever it leads to
            unread.append(f"{student}: {error if isinstance(error, Unreadable) else type(error).__name__}")
    found, rare = pairs(codes)
    return found, codes, rare, unread


CAUTION = (
    "Alike is not copied. Two people who learnt from the same page, worked as a pair, or write few lines can look like this, and "
    "who copies with care does not appear at all. Look at both, and at what they say about it; never mark by this number."
)


def page(found, codes, rare, assignment):
    """The pairs side by side, as one HTML page without scripts: shared passages that few others have are marked."""
    out = [
        "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>Alike</title><style>body{font:15px/1.5 system-ui,sans-serif;"
        "margin:2em auto;max-width:100em;padding:0 1em}.two{display:grid;grid-template-columns:1fr 1fr;gap:1em}pre{overflow:auto;"
        "border:1px solid #868C96;padding:.6em;font-size:13px}mark{background:#F7E3B0;color:#000}</style>",
        f"<h1>{html.escape(assignment)}: alike</h1><p>{html.escape(CAUTION)}</p>",
    ]
    for pair in found:
        first, second = codes[pair.first], codes[pair.second]
        shared = first.passages.keys() & second.passages.keys() & rare
        out.append(
            f"<h2>{html.escape(pair.first)} and {html.escape(pair.second)}</h2>"
            f"<p>{html.escape(pair.part)}: {pair.alike:.0%} of what few others have, {pair.shared} passages.</p><div class='two'>"
        )
        for code in (first, second):
            marked = {n for p in shared for n in range(code.passages[p][1], code.passages[p][2] + 1)}
            rows = (
                f"<mark>{html.escape(t)}</mark>" if n in marked else html.escape(t)
                for n, t in enumerate(code.lines, 1)
            )
            out.append("<pre>" + "\n".join(rows) + "</pre>")
        out.append("</div>")
    return "\n".join(out) + "\n"


def write(classroom, assignment, found, codes, rare):
    """Write the page and its figures to the class's `.autograder/similar/`; returns the page's path."""
    folder = classroom.folder / ".autograder" / "similar"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{assignment}.html"
    target.write_text(page(found, codes, rare, assignment), encoding="utf-8", errors="backslashreplace")
    body = {"caution": CAUTION, "pairs": [vars(pair) for pair in found]}
    target.with_suffix(".json").write_text(json.dumps(body, indent=1), encoding="utf-8")
    return target
