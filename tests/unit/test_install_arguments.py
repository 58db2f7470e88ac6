"""``deploy/install`` says what it is called with, and what it can't do, before it does anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

INSTALL = Path(__file__).resolve().parents[2] / "deploy" / "install"


def install(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "SYSTEMCTL"}
    return subprocess.run([INSTALL, *words], env=environ, capture_output=True, text=True, check=False)


def test_its_help_has_every_option() -> None:
    shown = install("--help").stdout
    text = INSTALL.read_text().split("read_arguments()")[1].split("esac\n        shift")[0]
    options = {word for word in text.replace("|", " ").replace(")", " ").split() if word.startswith("--")}
    assert len(options) > 8
    assert {option for option in options if option not in shown} <= {"--help"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--frobnicate"], "there is no option --frobnicate"),
        (["--wheels"], "--wheels needs a value"),
        (["--version", ""], "--version needs a value"),
    ],
)
def test_wrong_usage_is_named_and_shows_the_right_one(words: list[str], says: str) -> None:
    done = install(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"deploy/install: {says}\n")
    assert "--rollback" in done.stderr


def test_the_keys_of_another_host_have_to_be_there_and_to_be_those_of_this_host(tmp_path: Path) -> None:
    keys, host = tmp_path / "keys", tmp_path / "host"
    keys.mkdir()
    words = ("--root", str(host), "--embedded", "--keys", str(keys))
    # When one is missing
    (keys / "secret.key").write_text("secret")
    missing = install(*words)
    assert missing.returncode == 1
    assert f"{keys} has no client.key: copy it from /etc/sluicemq of the first host" in missing.stderr
    # And when this host has another one
    (keys / "client.key").write_text("client")
    (host / "etc" / "sluicemq").mkdir(parents=True)
    (host / "etc" / "sluicemq" / "secret.key").write_text("other")
    other = install(*words)
    assert other.returncode == 1
    assert f"secret.key is another key than {keys}/secret.key" in other.stderr
    assert not (host / "opt").exists()


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="this host runs systemd")
def test_a_host_without_systemd_is_refused() -> None:
    done = install("--embedded")
    assert done.returncode == 1
    wanted = "does not run systemd" if os.geteuid() == 0 else "only root can"
    assert wanted in done.stderr


def test_a_first_installation_has_to_name_a_mongodb(tmp_path: Path) -> None:
    done = install("--root", str(tmp_path / "host"))
    assert done.returncode == 2
    assert "say --mongodb-uri URI, or --embedded" in done.stderr
    assert not (tmp_path / "host" / "opt").exists()
