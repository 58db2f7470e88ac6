"""Hook of MkDocs: tables are made from the code, links out of docs/ lead to the repository.

Pages of docstrings and commands lose their noise.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parent))  # MkDocs loads this file by its path
from reference import TABLES

_DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
_TABLE: Final = re.compile(r"^::: reference ([a-z-]+)$", re.MULTILINE)
#: Tells readers of the repository where the tables are.
_NOTE: Final = re.compile(r"^\*In the repository\*: .*\n\n", re.MULTILINE)
_LINK: Final = re.compile(r"\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
#: A role of a docstring and the tilde of its target; and the default of an option that has none.
_NOISE: Final = re.compile(r":\w+:(?=<code>)|(?<=<code>)(?:~(?=\w)|Sentinel\.UNSET(?=</code>))")
_LOG: Final = logging.getLogger("mkdocs.hooks.docs")


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
