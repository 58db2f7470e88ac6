"""What packages, ``docs/support.md`` and workflows say of versions and of this tree is so."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pymongo import common

from release_steps.trying import LAST_WITH_LOWEST, PYTHONS
from sluicemq.version import VERSION
from sluicemq_broker.doctor.mongodb_checks import OLDEST
from sluicemq_broker.embedded.mongod import find_mongod
from sluicemq_broker.store import READS, SCHEMA

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


yaml = pytest.importorskip("yaml")

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
LOADED = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
RELEASE, CI = LOADED["release"]["jobs"], LOADED["ci"]["jobs"]
#: YAML 1.1 reads the key `on` as a truth.
ON = True


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}: {job_name}", step)
        for name, workflow in LOADED.items()
        for job_name, job in workflow["jobs"].items()
        for step in job.get("steps", [job])
    ]


def test_a_release_begins_with_a_tag_of_a_version_alone() -> None:
    assert LOADED["release"][ON] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    [words] = [step["run"] for step in RELEASE["tag"]["steps"] if "run" in step]
    assert words == './deploy/release --check-tag "$GITHUB_REF_NAME"'


def test_tests_run_at_each_change_and_before_a_release() -> None:
    assert set(LOADED["ci"][ON]) == {"push", "pull_request", "workflow_call"}
    assert LOADED["ci"][ON]["push"] == {"branches": ["main"]}
    assert RELEASE["test"]["uses"] == "./.github/workflows/ci.yml"
    [words] = [step["run"] for step in CI["test"]["steps"] if "run" in step]
    assert words == "./deploy/test ${{ matrix.part }}"
    assert set(LOADED["nightly"][ON]) == {"schedule", "workflow_dispatch"}


def test_they_run_in_order() -> None:
    order = ["tag", "test", "build", "debian", "publish", "github", "site"]
    assert list(RELEASE) == order
    assert [job.get("needs") for job in RELEASE.values()] == [None, *order[:-1]]


def test_nothing_is_allowed_but_what_a_job_needs_and_there_is_no_secret() -> None:
    for name, workflow in LOADED.items():
        assert workflow["permissions"] == {"contents": "read"}, name
    allowed = {name: job["permissions"] for name, job in RELEASE.items() if "permissions" in job}
    assert allowed == {
        "publish": {"id-token": "write"},
        "github": {"contents": "write", "id-token": "write", "attestations": "write"},
        "site": {"contents": "write"},
    }
    assert LOADED["site"]["jobs"]["site"]["permissions"] == {"contents": "write"}
    assert not any("permissions" in job for job in CI.values())
    texts = "".join(file.read_text() for file in FILES)
    assert not re.search(r"secrets\.|password|pull_request_target", texts)
    # What runs code of the tree keeps no credential for the repository.
    for where, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, where


def test_actions_of_others_are_named_by_commit_with_their_version_beside_it() -> None:
    pinned: dict[str, set[str]] = {}
    for file in FILES:
        for used in re.findall(r"uses: (.+)", file.read_text()):
            if not used.startswith("./"):
                found = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", used)
                assert found, used
                pinned.setdefault(found[1], set()).add(found[2])
    assert len(pinned) == 6
    assert {name for name, commits in pinned.items() if len(commits) > 1} == set()


def test_new_versions_of_actions_come_by_themselves() -> None:
    told = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    assert [row["package-ecosystem"] for row in told["updates"]] == ["github-actions"]


def test_each_project_is_published_from_an_environment_of_its_own() -> None:
    published = RELEASE["publish"]["strategy"]["matrix"]["include"]
    projects = {
        tomllib.loads(file.read_text())["project"]["name"]
        for file in (ROOT / "pyproject.toml", ROOT / "bench/pyproject.toml")
    }
    assert {row["project"] for row in published} == projects
    assert len({row["environment"] for row in published}) == len(projects)
    assert {row["files"] for row in published} == {name.replace("-", "_") + "-" for name in projects}
    for row in published:
        assert f"`{row['environment']}`" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_commands_of_the_tree_are_there_with_their_options() -> None:
    shown = subprocess.run([ROOT / "deploy/release", "--help"], capture_output=True, text=True, check=True)
    found = [line for _, step in steps() for line in step.get("run", "").splitlines() if "./" in line]
    ours = [re.search(r"(?<!\S)(\./\S+)(.*)", line) for line in found]
    named = {our[1] for our in ours if our}
    assert named == {"./deploy/docs", "./deploy/release", "./deploy/test"}
    for name in named:
        assert os.access(ROOT / name, os.X_OK)
    for our in ours:
        if our and our[1] == "./deploy/release":
            assert set(re.findall(r"--[\w-]+", our[2])) <= set(re.findall(r"--[\w-]+", shown.stdout))
