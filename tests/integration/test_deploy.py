"""What lies in ``deploy/`` works from any folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_run_reads_a_configuration_of_the_folder_in_which_it_is_called(tmp_path: Path) -> None:
    checkout, folder = tmp_path / "checkout", tmp_path / "elsewhere"
    set_up(checkout)
    folder.mkdir()
    (folder / "mail.toml").write_text("[queues.mail]\nttl = 77\n")

    done = subprocess.run(
        [checkout / "deploy" / "run", "--config", "mail.toml", "--check-config"],
        cwd=folder, env=os.environ | {"SLUICEMQ_MONGODB_URI": "mongodb://db"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "ttl = 77.0" in done.stdout


@pytest.mark.parametrize("broken", [0, 1], ids=["types are right", "types are wrong"])
def test_what_has_failed_stands_last_behind_what_was_checked_beside_the_tests(
    tmp_path: Path, broken: int
) -> None:
    # Given a checkout whose checks and tests are played
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    set_up_tests(checkout)
    venv = checkout / ".venv-test"
    cached = checkout / ".pytest_cache" / "v" / "cache"
    cached.mkdir(parents=True)
    failed = {f"tests/test_a.py::test_{n}": True for n in range(4)}
    (cached / "lastfailed").write_text(json.dumps(failed))
    for program, says, code in (
        ("ruff", "", 0), ("mypy", "a.py: error", broken), ("lint-imports", "a banner", 0), ("pytest", "F", 1),
    ):  # fmt: skip
        played(venv / "bin" / program, says, code)
    for program in ("gcc", "node", "npm", "redis-server"):
        played(programs / program, "", 0)
    # When
    done = subprocess.run(
        [checkout / "deploy" / "test"],
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SLUICEMQ_TEST_CHROMIUM": "/bin/true"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    # Then
    assert done.returncode == 1
    assert done.stderr.splitlines()[-5:] == ["== failed tests", *failed]
    assert ("a.py: error" in done.stderr) == bool(broken)
    assert "a banner" not in done.stderr


def played(program: Path, says: str, code: int) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)


def set_up_tests(checkout: Path) -> None:
    """A checkout whose tests have all that they need, so that nothing is installed."""
    set_up(checkout)
    (checkout / ".venv").rename(checkout / ".venv-test")
    venv = checkout / ".venv-test"
    (venv / "wanted.stamp").write_text((venv / "wanted.stamp").read_text().replace("embedded", "dev ./bench"))
    (venv / "libzmq-4.1").mkdir()
    (venv / "libzmq-4.1" / "libzmq.so.5").touch()


def set_up(checkout: Path) -> None:
    """A checkout whose virtual environment is this one, so that nothing has to be installed."""
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    for folder in ("broker", "devices", "clients/sluicemq", "bench", ".venv/bin"):
        (checkout / folder).mkdir(parents=True)
    for project in ("pyproject.toml", "bench/pyproject.toml"):
        shutil.copy(ROOT / project, checkout / project)
    for program in ("python", "sluicemq"):
        (checkout / ".venv" / "bin" / program).symlink_to(Path(sys.executable).with_name(program))
    stamps = """
        . deploy/setup.sh
        wanted_sum embedded >.venv/wanted.stamp
        sources_sum >.venv/sources.stamp
        """
    subprocess.run(["bash", "-c", stamps], cwd=checkout, check=True)
