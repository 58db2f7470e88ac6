"""Tutorials and how-to pages are typed as they stand, in a fresh folder, and print what they say."""

import os
import re
import sys
from pathlib import Path

import pytest

from support.ports import free_ports
from support.typed_page import blocks, type_page

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIALS = [page.name for page in sorted(DOCS.glob("tutorial-*.md"))]
#: Pages of which the reader has a broker, with the configuration that the page shows if it shows one.
HOW_TO = [
    page.name
    for page in sorted(DOCS.glob("*.md"))
    if page.name not in TUTORIALS and any(block.kind == "terminal" for block in blocks(page.read_text()))
]
BROKER = """
<!-- terminal: broker, runs on -->
```console
$ sluicemq serve OPTIONS
…
… ready (pid …); Ctrl-C stops it
```
"""


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_is_typed_as_it_stands(name: str, tmp_path: Path) -> None:
    type_it((DOCS / name).read_text(), tmp_path)


@pytest.mark.parametrize("name", HOW_TO)
def test_a_how_to_page_is_typed_as_it_stands(name: str, tmp_path: Path) -> None:
    page = (DOCS / name).read_text()
    file, _, rest = page.partition("<!-- terminal: ")
    options = "--config sluicemq.toml" if any(block.kind == "save" for block in blocks(page)) else ""
    type_it(file + BROKER.replace("OPTIONS", options) + "<!-- terminal: " + rest, tmp_path)


def type_it(page: str, tmp_path: Path) -> None:
    first = free_ports()
    home, folder = tmp_path / "home", tmp_path / "tutorial"
    home.mkdir()
    folder.mkdir()
    environ = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "SLUICEMQ_PORTS": str(first),
        "SLUICEMQ_ENDPOINT": f"tcp://127.0.0.1:{first}",
    }

    def put(text: str) -> str:
        """Other ports than those of the page, where a broker may run on this machine."""
        return re.sub(r"127\.0\.0\.1:55([58]\d)", lambda at: f"127.0.0.1:{first + int(at[1]) - 50}", text)

    type_page(page, folder, environ, put)


def test_there_is_one_for_each_of_three_readers() -> None:
    assert TUTORIALS == ["tutorial-jobs.md", "tutorial-operator.md", "tutorial-zeromq.md"]
    assert len(HOW_TO) > 3
