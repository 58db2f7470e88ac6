"""The units for systemd in ``deploy/systemd``."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
#: The exposure, from 0 to 10 and in tenths, up to which the sandbox is closed enough.
MOST = "25"


@pytest.fixture
def analyze() -> str:
    """The program that judges units."""
    found = shutil.which("systemd-analyze")
    if not found:
        pytest.skip("there is no systemd-analyze")
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(analyze: str, tmp_path: Path, unit: Path) -> None:
    # Given all units, with programs that are here
    for file in UNITS:
        text = re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", file.read_text(), flags=re.MULTILINE)
        (tmp_path / file.name).write_text(text)
    name = unit.name.replace("@.", "@second.")
    (tmp_path / name).write_text((tmp_path / unit.name).read_text())
    done = subprocess.run(
        [analyze, "verify", "--man=no", tmp_path / name], capture_output=True, text=True, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if str(tmp_path) in line or name in line]
    assert about_it == []


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_service_reaches_little_of_its_host(analyze: str, unit: Path) -> None:
    done = subprocess.run(
        [analyze, "security", "--offline=true", f"--threshold={MOST}", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_broker_differs_by_its_name_alone() -> None:
    one, many = (ROOT / "deploy/systemd" / name for name in ("sluicemq.service", "sluicemq@.service"))
    named = many.read_text().replace("%i.toml", "sluicemq.toml").replace("/%i", "").replace(" (%i)", "")
    assert named == one.read_text()
