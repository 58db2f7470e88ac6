"""Samples of README and docs, each found by the mark above it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def block(name: str) -> str:
    """The code block that follows the mark of this name, on whichever page it is."""
    mark = re.compile(rf"<!-- {name} -->\n```\w+\n(.*?)```", re.DOTALL)
    found: list[str] = [sample for page in PAGES for sample in mark.findall(page.read_text())]
    assert len(found) == 1, f"{len(found)} blocks are called {name!r}"
    return found[0]
