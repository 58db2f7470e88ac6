"""The workflows on GitHub: when they run, what they may, and that they run what is in this tree."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
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
