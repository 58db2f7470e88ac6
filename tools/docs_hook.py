"""Hook of MkDocs: tables and pages of classes are made from the code, links out of docs/ lead to the forge.

Pages of docstrings and commands lose their noise.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))  # MkDocs loads this file by its path
from reference import TABLES, class_pages

_DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
_TABLE: Final = re.compile(r"^::: reference ([a-z-]+)$", re.MULTILINE)
#: Tells readers of the repository where the tables are.
_NOTE: Final = re.compile(r"^\*In the repository\*: .*\n\n", re.MULTILINE)
_LINK: Final = re.compile(r"\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
#: A role of a docstring and the tilde of its target; and the default of an option that has none.
_NOISE: Final = re.compile(r":\w+:(?=<code>)|(?<=<code>)(?:~(?=\w)|Sentinel\.UNSET(?=</code>))")
_LOG: Final = logging.getLogger("mkdocs.hooks.docs")


def on_config(config: Any, **_: Any) -> None:
    """Put the pages of classes into the navigation, below the one that lists them."""
    pages = [{title: list(paths)} for title, paths in class_pages().items()]
    _put_below("api.md", {"Classes": ["api.md", *pages]}, config.nav)


def _put_below(page: str, section: dict[str, Any], nav: list[Any]) -> None:
    """Put a section in the place of a page, however deep that is."""
    for number, entry in enumerate(nav):
        if entry == page:
            nav[number] = section
        elif isinstance(entry, dict):
            for below in entry.values():
                _put_below(page, section, below) if isinstance(below, list) else None


def on_files(files: Files, *, config: Any, **_: Any) -> None:
    """Add the pages of classes."""
    for pages in class_pages().values():
        for path, text in pages.items():
            files.append(File.generated(config, path, content=text))


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with its tables, and its links to files beside docs/ as addresses in the repository."""

    def moved(found: re.Match[str]) -> str:
        file = (_DOCS / found[1]).resolve()
        if not file.exists():  # a warning ends a strict build
            _LOG.warning("%s links %s, which is not there", page.file.src_uri, found[1])
        kind = "tree" if file.is_dir() else "blob"
        name = file.relative_to(_DOCS.parent)
        return f"]({config.repo_url.rstrip('/')}/{kind}/main/{name}{found[2] or ''})"

    return _LINK.sub(moved, _TABLE.sub(lambda asked: TABLES[asked[1]](), _NOTE.sub("", markdown)))


def on_page_content(html: str, **_: Any) -> str:
    """Return the page without what Sphinx and click alone understand: roles, the sign for no default."""
    return _NOISE.sub("", html).replace("<code></code>", "")
