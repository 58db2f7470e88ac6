"""A bare Debian, as tests of installations use it."""

from pathlib import Path

import pytest

from deploy.bare_debian import BareDebian, image
from support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full


def test_a_command_runs_as_root_on_a_host_of_its_own(debian: BareDebian) -> None:
    assert debian.run("id", "-u").stdout == "0\n"
    assert debian.run("sh", "-c", "echo $$").stdout != debian.run("sh", "-c", "echo $$").stdout
    assert debian.run("cat", "/etc/debian_version").stdout.startswith("12.")
    assert debian.run("sh", "-c", "command -v python3", check=False).returncode != 0


def test_its_processes_end_with_it(tmp_path: Path) -> None:
    with BareDebian(image(), tmp_path / "debian") as host:
        left = host.start("sleep", "1000")
        wait_until(lambda: "sleep" in host.run("sh", "-c", "cat /proc/[0-9]*/comm", check=False).stdout)
    assert left.wait(TIMEOUT) != 0
    assert not (tmp_path / "debian").exists()
