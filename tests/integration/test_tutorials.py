"""The tutorials are true: each is typed as it stands, in a fresh folder, and prints what it says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from support.ports import free_ports
from support.typed_page import type_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [page.name for page in sorted(DOCS.glob("tutorial-*.md"))]


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_is_typed_as_it_stands(name: str, tmp_path: Path) -> None:
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

    type_page((DOCS / name).read_text(), folder, environ, put)


def test_there_is_one_for_each_of_three_readers() -> None:
    assert PAGES == ["tutorial-jobs.md", "tutorial-operator.md", "tutorial-zeromq.md"]
