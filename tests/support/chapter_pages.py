"""Where the chapters are, how to read their text, and whether the built book is theirs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "chapters"
PAGES = sorted(path.stem for path in CHAPTERS.glob("*.md"))
SOURCES = ("chapters", "widgets", "kernels", "autograder", "solutions", "_config.yml", "_toc.yml")


def newest(paths) -> float:
    """When the last of these files, and of the files under these folders, was changed; 0 where there is none."""
    files = [f for path in paths for f in ([path] if path.is_file() else path.rglob("*"))]
    return max((f.stat().st_mtime for f in files if f.is_file() and "__pycache__" not in f.parts), default=0)


def text_of(page: str) -> str:
    return (CHAPTERS / f"{page}.md").read_text("utf-8")


def labels_of(page: str) -> dict[str, str]:
    """Section labels of a page, each with the heading that follows it ('' where none does)."""
    found = re.findall(r"^\(([\w-]+)\)=\n(?:#+ (.+))?", text_of(page), flags=re.MULTILINE)
    return {label: heading.strip() for label, heading in found}
