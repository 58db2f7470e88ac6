"""``deploy/release`` builds sdists and wheels, twice and with the same bytes, and what lies beside them."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from sluicemq.version import VERSION

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def test_a_release_has_packages_notes_and_sums(tmp_path: Path) -> None:
    # When
    words = [str(ROOT / "deploy/release"), "--no-try", "--out", str(tmp_path / "dist")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    # Then
    assert done.returncode == 0, done.stderr
    names = {each.name for each in (tmp_path / "dist").iterdir()}
    projects = ("sluicemq", "sluicemq_bench")
    assert names == {
        *(f"{name}-{VERSION}.tar.gz" for name in projects),
        *(f"{name}-{VERSION}-py3-none-any.whl" for name in projects),
        "RELEASE_NOTES.md", "SHA256SUMS",
    }  # fmt: skip
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path / "dist", capture_output=True, check=False).returncode == 0
    # and the files have one time, that of the last commit
    with tarfile.open(tmp_path / "dist" / f"sluicemq-{VERSION}.tar.gz") as sdist:
        assert len({each.mtime for each in sdist}) == 1
    with zipfile.ZipFile(tmp_path / "dist" / f"sluicemq-{VERSION}-py3-none-any.whl") as wheel:
        assert len({each.date_time for each in wheel.infolist()}) == 1
        assert {each.split("/")[0] for each in wheel.namelist()} == {
            "sluicemq", "sluicemq_broker", "sluicemq_devices", f"sluicemq-{VERSION}.dist-info",
        }  # fmt: skip
