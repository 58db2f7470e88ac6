"""``deploy/release`` builds sdists and wheels, twice and with the same bytes, and what lies beside them."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from release_steps.papers import write_bill
from sluicemq.version import VERSION

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def test_a_release_has_packages_notes_and_sums(tmp_path: Path) -> None:
    words = [str(ROOT / "deploy/release"), "--no-try", "--out", str(tmp_path / "dist")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = {file.name for file in (tmp_path / "dist").iterdir()}
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
        assert len({member.mtime for member in sdist}) == 1
    with zipfile.ZipFile(tmp_path / "dist" / f"sluicemq-{VERSION}-py3-none-any.whl") as wheel:
        assert len({member.date_time for member in wheel.infolist()}) == 1
        assert {name.split("/")[0] for name in wheel.namelist()} == {
            "sluicemq", "sluicemq_broker", "sluicemq_devices", f"sluicemq-{VERSION}.dist-info",
        }  # fmt: skip


def test_the_bill_of_materials_names_the_version_and_all_that_is_installed(tmp_path: Path) -> None:
    write_bill(Path(sys.executable), ROOT, tmp_path, VERSION)
    bill = json.loads((tmp_path / f"sluicemq-{VERSION}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    own = bill["metadata"]["component"]
    assert (own["name"], own["version"], own["purl"]) == ("sluicemq", VERSION, f"pkg:pypi/sluicemq@{VERSION}")
    assert "file:" not in json.dumps(bill)
    found = {row["name"] for row in bill["components"] if row["purl"].endswith(f"@{row['version']}")}
    assert {"gevent", "pymongo", "pyzmq", "sluicemq-bench"} <= found
