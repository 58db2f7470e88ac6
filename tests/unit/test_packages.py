"""What is built: two distributions of one version."""

from __future__ import annotations

import tomllib
from pathlib import Path

from sluicemq.version import VERSION

BENCH = tomllib.loads((Path(__file__).resolve().parents[2] / "bench" / "pyproject.toml").read_text())


def test_the_bench_has_the_version_of_the_library_that_it_is_made_for() -> None:
    assert BENCH["project"]["version"] == VERSION
    assert f"sluicemq[cli]=={VERSION}" in BENCH["project"]["dependencies"]
