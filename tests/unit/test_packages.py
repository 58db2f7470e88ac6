"""All that names the version of a release names one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sluicemq.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
BENCH = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())


def test_the_bench_has_the_version_of_the_library_that_it_is_made_for() -> None:
    assert BENCH["project"]["version"] == VERSION
    assert f"sluicemq[cli]=={VERSION}" in BENCH["project"]["dependencies"]


def test_the_changelog_has_it_as_the_newest_version() -> None:
    dated = re.findall(
        r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert dated[0] == VERSION
    assert len(set(dated)) == len(dated)


def test_the_example_for_kubernetes_runs_it() -> None:
    example = (ROOT / "deploy/kubernetes/example/kustomization.yaml").read_text()
    assert re.findall(r"newTag: (.+)", example) == [VERSION]


def test_the_image_for_containers_is_labelled_with_it() -> None:
    containerfile = (ROOT / "deploy/container/Containerfile").read_text()
    assert re.findall(r"^ARG VERSION=(.+)$", containerfile, re.MULTILINE) == [VERSION]
