"""Where the chapters are, and how to read their text: for `tests/chapters`."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "chapters"
PAGES = sorted(path.stem for path in CHAPTERS.glob("*.md"))


def text_of(page: str) -> str:
    return (CHAPTERS / f"{page}.md").read_text("utf-8")


def labels_of(page: str) -> dict[str, str]:
    """Section labels of a page, each with the heading that follows it ('' where none does)."""
    found = re.findall(r"^\(([\w-]+)\)=\n(?:#+ (.+))?", text_of(page), flags=re.MULTILINE)
    return {label: heading.strip() for label, heading in found}
