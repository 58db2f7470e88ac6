"""Fixtures of tests on a bare Debian."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bare_debian import BareDebian, image


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[BareDebian]:
    with BareDebian(image(), tmp_path / "debian") as host:
        yield host
