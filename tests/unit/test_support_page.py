"""What ``docs/support.md`` names is what pyproject.toml, the workflows, deploy/release and the code say."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from pymongo import common

from release_steps.trying import LAST_WITH_LOWEST, PYTHONS
from sluicemq_broker.doctor.mongodb_checks import OLDEST
from sluicemq_broker.embedded.mongod import find_mongod
from sluicemq_broker.store import READS, SCHEMA

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "support.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of a table below a heading, by the first one."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"
    ]
    return {first: rest for first, *rest in cells[2:]}


PYTHON, MONGODB = (
    {name: said for name, [said] in rows(heading).items()} for heading in ("Python", "MongoDB")
)


def with_words(table: dict[str, str], word: str) -> list[str]:
    return [name for name, said in table.items() if said.startswith(word)]


def test_the_pythons_are_those_of_the_project_its_workflows_and_its_releases() -> None:
    tested = with_words(PYTHON, "tested")
    named = "Programming Language :: Python :: 3."
    assert tested == [
        "3." + classifier.removeprefix(named)
        for classifier in PROJECT["classifiers"]
        if classifier.startswith(named)
    ]
    assert [f"python{word}" for word in (*tested, *with_words(PYTHON, "expected"))] == list(PYTHONS)
    assert [f"before {tested[0]}"] == with_words(PYTHON, "refused")
    bench = tomllib.loads((ROOT / "bench/pyproject.toml").read_text())["project"]
    assert PROJECT["requires-python"] == bench["requires-python"] == f">={tested[0]}"
    lowest = [name for name, said in PYTHON.items() if "the lowest and the newest" in said]
    assert tuple(map(int, lowest[-1].split("."))) == LAST_WITH_LOWEST
    assert lowest == tested


@pytest.mark.parametrize("workflow", ["ci", "release"])
def test_the_workflows_have_the_pythons_that_are_tested(workflow: str) -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text())["jobs"]
    if workflow == "ci":
        found = jobs["test"]["strategy"]["matrix"]["python"]
    else:
        [found] = [job["with"]["python-version"].split() for job in jobs["build"]["steps"]
                   if "setup-python" in job.get("uses", "")]  # fmt: skip
    assert found == with_words(PYTHON, "tested")


def test_the_mongodb_that_is_tested_is_the_one_that_tests_run() -> None:
    said = subprocess.run([find_mongod(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+\.\d+)", said)
    assert found
    assert with_words(MONGODB, "tested") == [found[1]]


def test_what_is_older_than_the_oldest_mongodb_is_refused_by_the_driver_and_named_by_the_doctor() -> None:
    oldest = ".".join(map(str, OLDEST))
    assert oldest == common.MIN_SUPPORTED_SERVER_VERSION
    assert with_words(MONGODB, "refused") == [f"before {oldest}"]
    assert oldest in with_words(MONGODB, "expected")
    numbers = sorted(tuple(map(int, name.split("."))) for name in MONGODB if name[0].isdecimal())
    assert numbers[0] == OLDEST


def test_the_schemas_are_those_that_this_version_reads() -> None:
    readers = {int(number): cells[0].split(", ") for number, cells in rows("Schemas").items()}
    here = max(name for names in readers.values() for name in names)
    assert max(readers) == SCHEMA
    assert [number for number, names in readers.items() if here in names] == [
        *range(READS[1], READS[0] - 1, -1)
    ]
    shown = (ROOT / "docs/operations.md").read_text()
    assert f"raises the *schema* number: {SCHEMA} now." in shown


def test_the_packages_of_a_release_are_for_the_distributions_that_are_named() -> None:
    yaml = pytest.importorskip("yaml")
    matrix = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["debian"][
        "strategy"
    ]
    named = " ".join(rows("Operating systems"))
    for image in matrix["matrix"]["image"]:
        assert image.replace(":", " ").title() in named
    assert "arm64" in named
    assert any(runner.endswith("-arm") for runner in matrix["matrix"]["runner"])


def test_other_pages_lead_to_it() -> None:
    for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/README.md", "docs/operations.md"):
        assert "support.md" in (ROOT / name).read_text(), name
