"""What lies in ``deploy/`` works from any folder."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import TIMEOUT, wait_until

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
def test_failures_stand_last_behind_what_was_checked_beside_the_tests(tmp_path: Path, broken: int) -> None:
    # Given a checkout whose checks and tests are played
    checkout = tmp_path / "checkout"
    environ = set_up_tests(checkout, broken)
    failed = fail(checkout, *[f"tests/test_a.py::test_{n:02}" for n in range(11)])
    done = run_tests(checkout, environ)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-12:] == ["== failed tests", *failed]
    assert ("a.py: error" in done.stderr) == bool(broken)
    assert "a banner" not in done.stderr


@pytest.mark.parametrize(("count", "again"), [(1, True), (10, True), (11, False)])
def test_a_few_that_failed_are_tried_once_more(tmp_path: Path, count: int, *, again: bool) -> None:
    checkout = tmp_path / "checkout"
    environ = set_up_tests(checkout)
    fail(checkout, *[f"tests/test_a.py::test_{n}" for n in range(count)])
    done = run_tests(checkout, environ)
    assert done.returncode == 1  # they fail again, too
    assert "UNSTABLE" not in done.stderr
    assert done.stderr.count("== pytest") == 1 + again


def test_what_passes_at_its_second_try_is_named_unstable(tmp_path: Path) -> None:
    # Given a test that fails once
    checkout = tmp_path / "checkout"
    environ = set_up_tests(checkout)
    fail(checkout, "tests/test_a.py::test_0")
    once = checkout / ".venv-test" / "bin" / "pytest"
    once.write_text(once.read_text().replace("exit 1", 'case "$*" in *--last-failed*) exit 0;; esac; exit 1'))
    done = run_tests(checkout, environ)
    assert done.returncode == 0
    assert "tests/test_a.py::test_0\n" in done.stderr
    assert "== tests.test_a::test_0\nit waited too long" in done.stderr
    assert "UNSTABLE" in done.stderr.splitlines()[-1]
    assert "it waited too long" in (checkout / "test-reports" / "unstable.txt").read_text()


@pytest.mark.parametrize(
    ("locked", "says"), [("test", "another ./deploy/test runs in"), ("setup.sh", "another set-up runs in")]
)
def test_one_that_begins_meanwhile_says_so_and_waits(tmp_path: Path, locked: str, says: str) -> None:
    # Given one that is under way
    checkout = tmp_path / "checkout"
    environ = set_up_tests(checkout)
    with (checkout / "deploy" / locked).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # When another is begun
        log = tmp_path / "log"
        with log.open("w") as screen:
            waiting = subprocess.Popen([checkout / "deploy" / "test"], env=environ, stderr=screen)
        wait_until(lambda: f"{says} {checkout}; waiting for its end" in log.read_text(), what="the message")
        assert waiting.poll() is None
        assert "== ruff check" not in log.read_text()
    # Then it goes on when the first has ended
    assert waiting.wait(TIMEOUT) == 1
    assert "== pytest" in log.read_text()


def run_tests(checkout: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "deploy" / "test"], env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def fail(checkout: Path, *tests: str) -> tuple[str, ...]:
    """Let these be what pytest reports, and remembers, to have failed."""
    cached = checkout / ".pytest_cache" / "v" / "cache"
    cached.mkdir(parents=True)
    (cached / "lastfailed").write_text(json.dumps(dict.fromkeys(tests, True)))
    failed = [test.replace("/", ".").replace(".py::", '" name="') for test in tests]
    cases = [
        f'<testcase classname="{name}"><failure>it waited too long</failure></testcase>' for name in failed
    ]
    (checkout / "report.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    pytest_played = "mkdir -p test-reports; cp report.xml test-reports/first-try.xml; echo F >&2; exit 1"
    (checkout / ".venv-test" / "bin" / "pytest").write_text(f"#!/bin/sh\n{pytest_played}\n")
    return tests


def played(program: Path, says: str, code: int) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)


def set_up_tests(checkout: Path, broken: int = 0) -> dict[str, str]:
    """Make a checkout whose checks and failing tests are played, and return the environment for them.

    ``broken``: the exit code of mypy. They have all that they need, so that nothing is installed.
    """
    set_up(checkout)
    (checkout / ".venv").rename(checkout / ".venv-test")
    venv = checkout / ".venv-test"
    (venv / "wanted.stamp").write_text((venv / "wanted.stamp").read_text().replace("embedded", "dev ./bench"))
    (checkout / "tools").mkdir()
    (checkout / "tools" / "size.py").touch()  # played, too
    second_try = "tests/support/second_try.py"
    (checkout / second_try).parent.mkdir(parents=True)
    shutil.copy(ROOT / second_try, checkout / second_try)
    (venv / "libzmq-4.1").mkdir()
    (venv / "libzmq-4.1" / "libzmq.so.5").touch()
    for program, says, code in (
        ("ruff", "", 0), ("mypy", "a.py: error", broken), ("lint-imports", "a banner", 0), ("pytest", "F", 1),
        ("check-jsonschema", "", 0), ("shellcheck", "", 0),
    ):  # fmt: skip
        played(venv / "bin" / program, says, code)
    programs = checkout / "programs"
    for program in ("gcc", "node", "npm", "redis-server"):
        played(programs / program, "", 0)
    return os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}", "SLUICEMQ_TEST_CHROMIUM": "/bin/true"
    }  # fmt: skip


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
