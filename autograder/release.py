"""The student edition: the exercises, and what they need to check themselves, without a word of the answers.

    autograder release [ASSIGNMENT...] --to FOLDER|FILE.zip

What goes in is found, not listed: the modules that the notebooks and the hand-in import, followed through the course's own
packages. Before anything is written every file is searched for the answers (`leaks`); where one is found nothing is written.
"""

import ast
import io
import json
import re
import textwrap
import tokenize
import tomllib
import zipfile
from pathlib import Path

import jupytext
import nbformat

from autograder import exercise
from autograder.exercise import ROOT, is_solution, notebook_name
from autograder.handin import zip_entry

# What a notebook may import of the course; `kernels` and `solutions` are the answers.
PACKAGES = ("autograder", "widgets")
# Dependencies of the course that the edition needs as well; the ranges are the course's own.
NEEDS = ("anywidget", "ipykernel", "ipywidgets", "jupyterlab", "matplotlib", "nbformat", "numpy", "pyyaml",
         "torch", "triton")  # fmt: skip

README = """# FlashAttention, Tile by Tile: the exercises

Each folder whose name starts with a number holds one exercise, a Jupyter notebook. Python 3.11, 3.12 or 3.13 is needed:

    python -m venv .venv
    . .venv/bin/activate            # on Windows: .venv\\Scripts\\activate
    pip install .
    jupyter lab

Open the notebook of an exercise, write where it says YOUR CODE HERE, and run the cells. A cell with `check` tries your answer
on public cases and shows what is wrong with it; the grader uses other sizes and other numbers of the same kinds. No GPU is
needed: without one, Triton kernels run in its interpreter. Triton has builds for Linux alone; elsewhere the NumPy parts work.

To hand in, save the notebook and run its last cell, or

    python -m autograder.handin {example}

It says what is missing and packs the notebook; upload the file that it names.

In here: {names}. The course with its text and simulators: <{repository}>.
"""

PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

# The same name as the whole course, so that one of the two is installed and never both.
[project]
name = "flash-tiles"
version = "{version}+student"
description = "FlashAttention, Tile by Tile: the exercises of the course, with their checks."
readme = "README.md"
requires-python = "{python}"
license = "MIT"
dependencies = [
{dependencies}
]

[tool.setuptools]
packages = {packages}

[tool.setuptools.package-data]
autograder = ["released/*/*.ipynb"]
widgets = ["*.js", "*.css"]
"""


class ReleaseError(ValueError):
    """The edition can't be written. The message says why."""


# ---------------------------------------------------------------------------------------------------------------
# What is in it


def _file(module):
    """Path of a module of the course, relative to the root, or None: it is not one."""
    stem = module.replace(".", "/")
    return next(
        (Path(p) for p in (f"{stem}.py", f"{stem}/__init__.py") if module and (ROOT / p).is_file()), None
    )


def _imports(tree, package):
    """Dotted names that `tree` may import, at any depth of it; `package` is what a relative import starts from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def modules(books):
    """Paths of the course's modules that notebooks `books` and the hand-in need, relative to the root.

    Raises:
        ReleaseError: one of them needs `kernels` or `solutions`.
    """
    waiting = ["autograder.handin"]
    for book in books:
        for cell in book.cells:
            if cell.cell_type == "code":
                waiting += _imports(ast.parse(cell.source), "")
    found = {}
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if path is None or path in found:
            continue
        if name.split(".")[0] not in PACKAGES:
            raise ReleaseError(
                f"the exercises import {name}, which is not for students; they may import {', '.join(PACKAGES)}"
            )
        found[path] = name
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting += [
            *_imports(ast.parse((ROOT / path).read_text(encoding="utf-8")), package),
            name.rpartition(".")[0],
        ]
    return sorted(found)


def edition(assignments=()):
    """The files of the edition: path -> bytes.

    Args:
        assignments: names; default: every exercise.

    Raises:
        ReleaseError: no such assignment; an answer is in one of the files.
    """
    known = exercise.assignments()
    unknown = [name for name in assignments if name not in known]
    if unknown:
        raise ReleaseError(f"assignment {unknown[0]!r} does not exist; there are: {', '.join(known)}")
    names = sorted(set(assignments)) or known
    books = {name: exercise.release(name) for name in names}
    files = {}
    for path in modules(books.values()):
        # A widget is a .py, a .js and a .css of one name.
        beside = (path.with_suffix(suffix) for suffix in (".py", ".js", ".css"))
        files |= {p.as_posix(): (ROOT / p).read_bytes() for p in beside if (ROOT / p).is_file()}
    for name, book in books.items():
        data = (nbformat.writes(book) + "\n").encode()
        path = f"{name}/{notebook_name(name)}.ipynb"
        files |= {path: data, f"autograder/released/{path}": data}  # one to work in, one to compare with
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [d for d in project["dependencies"] if re.match(r"[\w-]+", d)[0] in NEEDS]
    files["pyproject.toml"] = PYPROJECT.format(
        version=project["version"],
        python=project["requires-python"],
        dependencies="\n".join(f"  {json.dumps(d)}," for d in needed),
        packages=json.dumps(
            sorted({str(Path(p).parent).replace("/", ".") for p in files if p.endswith(".py")})
        ),
    ).encode()
    files["README.md"] = README.format(
        example=f"{names[0]}/{notebook_name(names[0])}.ipynb",
        names=", ".join(names),
        repository=exercise.repository(),
    ).encode()
    files["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    found = leaks(files)
    if found:
        raise ReleaseError("nothing was written, since answers would be in it:\n" + "\n".join(found[:20]))
    return dict(sorted(files.items()))


def write(files, target):
    """Write `files` to `target`: a new or empty folder, or a .zip file. The same files give the same bytes.

    Raises:
        ReleaseError: the folder has something in it (it may be a student's).
    """
    target = Path(target)
    if target.suffix.lower() == ".zip":
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        with zipfile.ZipFile(part, "w") as file:
            for path, data in files.items():
                entry = zip_entry(f"{target.stem}/{path}")
                entry.compress_type = zipfile.ZIP_STORED  # another zlib would pack it into other bytes
                file.writestr(entry, data)
        part.replace(target)
        return
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ReleaseError(
            f"{target} is not an empty folder; the edition needs a new or empty one, or a name that ends in .zip"
        )
    for path, data in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(data)


# ---------------------------------------------------------------------------------------------------------------
# What must not be in it

_RUN = 2  # so many lines of an answer in a row are a leak; one alone may be any program's
_LONG = 14  # or one line of so many tokens


def _logical_lines(code):
    """The logical lines of `code`, each a list of tokens: no comments, no docstrings, no layout."""
    lines, line = [], []
    try:
        for token in tokenize.generate_tokens(io.StringIO(textwrap.dedent(code)).readline):
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                if line and not (len(line) == 1 and line[0][0] in "\"'"):
                    lines.append(line)
                line = []
            elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                line.append(token.string)
    except (tokenize.TokenError, SyntaxError):  # a text that is not Python: what was read so far
        pass
    return lines


def _windows(code):
    """What gives `code` away: every run of `_RUN` logical lines, and every long one, as text without spaces."""
    lines = _logical_lines(code)
    texts = ["".join(line) for line in lines]
    runs = {"".join(texts[i : i + _RUN]) for i in range(len(texts) - _RUN + 1)}
    # Lines such as `continue` and `return o, lse` in a row say nothing yet.
    return {run for run in runs if len(run) >= 24} | {
        t for t, line in zip(texts, lines, strict=True) if len(line) >= _LONG
    }


def answers():
    """Where an answer stands -> the windows of it: every solution region, and the body of every function of `kernels`.

    An exercise may give away what its kernels have as well, such as the first lines, and lines of its own answers, as one
    does that gives a kernel to be mended. What only a later exercise gives is an answer still.
    """
    found, public = {}, ""
    for name in exercise.assignments():
        regions = {}
        for cell in jupytext.reads(
            (exercise.SOLUTIONS / f"{name}.py").read_text(encoding="utf-8"), fmt="py:percent"
        ).cells:
            source = cell.source
            if is_solution(cell):
                before, _, rest = source.partition("### BEGIN SOLUTION\n")
                region, _, after = rest.partition("### END SOLUTION")
                region = region.rstrip(" ")
                regions[f"solutions/{name}.py, {exercise.grade_id(cell)}"] = _windows(region)
                source = before + "\n" + after
            public += "\n" + source
        given = _squeezed(public)
        found |= {where: {w for w in windows if w not in given} for where, windows in regions.items()}
    for path in sorted((ROOT / "kernels").glob("**/*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = text.splitlines(keepends=True)[node.body[0].lineno - 1 : node.end_lineno]
                windows = _windows("".join(lines))
                found[f"{path.relative_to(ROOT).as_posix()}, {node.name}"] = {
                    w for w in windows if w not in given
                }
    return found


def _may_show(path, where):
    """Whether the file `path` may have lines of the answer at `where`: a notebook those of the exercises before its own."""
    *_, folder, name = ("", *path.split("/"))
    return name.endswith(".ipynb") and where.startswith("solutions/") and where < f"solutions/{folder}"


def _squeezed(text):
    """`text` without spaces: as written, without what follows a "#", and as code."""
    code = "".join("".join(line) for line in _logical_lines(text))
    return "\n".join("".join(t.split()) for t in (text, re.sub("#[^\n]*", "", text), code))


def leaks(files):
    """Lines that say which answer is in which of `files` (path -> bytes); empty when there is none."""
    found, hidden = [], answers()
    for path, data in files.items():
        text = data.decode("utf-8", "replace")
        if path.endswith(".ipynb"):
            cells = json.loads(text)["cells"]
            haystack = "\n".join(_squeezed("".join(c["source"])) for c in cells) + "".join(
                json.dumps(cells).split()
            )
        else:
            haystack = _squeezed(text)
        found += [
            f"{path} has lines of {where}"
            for where, windows in hidden.items()
            if not _may_show(path, where) and any(w in haystack for w in windows)
        ]
        top = path.split("/")[0]
        if (
            top in ("kernels", "solutions")
            or "mutants" in path
            or (top == "autograder" and "BEGIN SOLUTION" in text)
        ):
            found.append(f"{path} is not for students")
    return found
