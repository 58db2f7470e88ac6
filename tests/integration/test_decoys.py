"""The commands run what is installed, whatever lies in the folder in which they are started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DECOY = "raise SystemExit('a decoy was run')\n"
FILES = ["broker.py", "devices.py", "zmq.py", "config.py", "msgpack.py", "click.py", "logging.py"]
FOLDERS = ["broker", "devices", "gevent", "pymongo", "sluicemq", "store", "queue"]
SCRIPT = [sys.executable, str(Path(sys.executable).parent / "sluicemq")]


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).write_text(DECOY)
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text(DECOY)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([*SCRIPT, "serve", "--check-config"], "lease"),
        ([*SCRIPT, "config", "check"], "lease"),
        ([*SCRIPT, "device", "--help"], "forwarder"),
        ([sys.executable, "-m", "sluicemq_broker", "--check-config"], "lease"),
        ([sys.executable, "-m", "sluicemq_devices", "--help"], "forwarder"),
    ],
    ids=lambda value: " ".join(value[1:]).rpartition("/")[2] if isinstance(value, list) else "",
)
def test_a_folder_full_of_decoys_changes_nothing(decoys: Path, command: list[str], said: str) -> None:
    ended = subprocess.run(command, cwd=decoys, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, "decoy" in ended.stdout + ended.stderr) == (0, False), ended.stderr
    assert said in ended.stdout


def test_nothing_is_installed_under_a_name_that_can_be_anybody_s() -> None:
    names = {"broker", "devices", "clients", "config", "store", "queue_store"}
    found = [each for each in names if any((Path(entry) / each).is_dir() for entry in _site_packages())]
    assert found == []


def _site_packages() -> list[str]:
    return [entry for entry in sys.path if entry.endswith("site-packages")]
