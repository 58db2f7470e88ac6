"""Files that the documents name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Where a file may lie that a page names by its room alone.
PLACES = ["", "docs", "broker/sluicemq_broker", "devices/sluicemq_devices", "clients/sluicemq", "tests"]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_file_that_a_page_links_or_names_is_there(page: Path) -> None:
    text = page.read_text()
    linked = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    named = re.findall(r"`([\w/-]+/[\w-]+\.(?:py|md|toml))`", text)
    missing = [link for link in linked if link and not (page.parent / link).exists()]
    missing += [name for name in named if not any((ROOT / place / name).exists() for place in PLACES)]
    assert missing == []
