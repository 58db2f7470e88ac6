"""The pages of the reference say what the code declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq_broker.command.reference import COMMAND, PAGES, main

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_as_the_code_has_it(name: str) -> None:
    page = DOCS / name
    assert page.exists() and page.read_text() == PAGES[name](), f"docs/{name} is stale: `{COMMAND}` renews it"  # noqa: PT018


def test_the_command_writes_all_pages(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        name: page() for name, page in PAGES.items()
    }


def test_without_a_folder_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert COMMAND in capsys.readouterr().err
