"""What lies in ``deploy/`` works from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def set_up(checkout: Path) -> None:
    """A checkout whose virtual environment is this one, so that nothing has to be installed."""
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    for folder in ("broker", "devices", "clients/sluicemq", ".venv/bin"):
        (checkout / folder).mkdir(parents=True)
    for program in ("python", "sluicemq"):
        (checkout / ".venv" / "bin" / program).symlink_to(Path(sys.executable).with_name(program))
    stamps = """
        . deploy/setup.sh
        printf '%s\\n' "embedded $(cksum <pyproject.toml)" >.venv/wanted.stamp
        sources_sum >.venv/sources.stamp
        """
    subprocess.run(["bash", "-c", stamps], cwd=checkout, check=True)
