"""A host that is backed up, destroyed and restored, as a bare Debian with ``deploy/install`` is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bare_debian import BareDebian, image
from deploy.builds import build, copy_sources, download_requirements
from support.ports import free_port

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

STAND_IN = Path(__file__).with_name("systemctl")
ENVIRONMENT = {
    "SYSTEMCTL": "/stand-in/systemctl", "JOURNALCTL": "/stand-in/journalctl",
    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "SLUICEMQ_INSTALL_WAIT": "120",
}  # fmt: skip
CONFIGURATION = "/etc/sluicemq/sluicemq.toml"
BACKUPS = "/var/lib/sluicemq-backup"


class Host:
    """A bare Debian with SluiceMQ, its embedded MongoDB, and a stand-in for systemd."""

    def __init__(self, debian: BareDebian, folder: Path) -> None:
        self.debian = debian
        port = free_port()
        self.endpoint = f"tcp://127.0.0.1:{port}"
        wheels = debian.path("/wheels")
        wheels.mkdir()
        download_requirements(wheels, build(folder / "wheel", "7.0.0"), "embedded,redis", "3.11")
        copy_sources(debian.path("/src"))
        debian.path("/stand-in").mkdir()
        for name in ("systemctl", "journalctl"):
            shutil.copy(STAND_IN, debian.path(f"/stand-in/{name}"))
        self.deploy("install", "--embedded", "--no-start")
        text = debian.path(CONFIGURATION).read_text()
        debian.path(CONFIGURATION).write_text(text.replace("#ports = 5550", f"ports = {port}"))
        self.deploy("install")

    def deploy(self, script: str, *words: str, code: int = 0) -> str:
        """Run a script of ``deploy/``, and return what it says."""
        done = self.debian.run(f"/src/deploy/{script}", *words, env=ENVIRONMENT, check=False, timeout=900)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def systemctl(self, *words: str) -> None:
        self.debian.run("/stand-in/systemctl", *words)

    def sluicemq(self, *words: str) -> str:
        return self.debian.run("sluicemq", *words, env={"SLUICEMQ_ENDPOINT": self.endpoint}).stdout

    def backups(self) -> list[str]:
        return sorted(self.debian.run("ls", BACKUPS).stdout.split())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with BareDebian(image(), tmp_path / "debian") as debian:
        yield Host(debian, tmp_path)


def test_a_host_is_backed_up_destroyed_and_restored(host: Host) -> None:
    # Given jobs, of which five are done
    host.debian.run("sh", "-c", "seq 20 > /jobs")
    host.debian.run("sh", "-c", f"sluicemq --endpoint {host.endpoint} push mail --lines < /jobs")
    host.sluicemq("work", "mail", "--exec", "cat", "--count", "5")
    # When it is backed up as the timer does, and by hand
    host.systemctl("start", "sluicemq-backup")
    host.deploy("backup", "--keep", "2")
    # Then
    first, second = host.backups()
    assert host.debian.run("stat", "-c", "%a %U", f"{BACKUPS}/{first}").stdout == "600 sluicemq\n"
    # Given five more that are done, and a host that is destroyed
    host.sluicemq("work", "mail", "--exec", "cat", "--count", "5")
    assert "a broker runs with /var/lib/sluicemq: stop it first" in host.deploy(
        "restore", f"{BACKUPS}/{second}", "--yes", code=1
    )
    host.systemctl("stop", "sluicemq")
    assert "is not empty: it has queue.mail" in host.deploy("restore", f"{BACKUPS}/{second}", "--yes", code=1)
    host.debian.run("sh", "-c", "rm -rf /var/lib/sluicemq/*")
    # When
    said = host.deploy("restore", f"{BACKUPS}/{second}", "--yes")
    host.systemctl("start", "sluicemq")
    # Then jobs run on, and those that were done after the backup run again
    assert "collections are restored into sluicemq" in said
    ran = host.sluicemq("work", "mail", "--exec", "cat", "--drain", "--json")
    assert '"committed": 15' in ran
    # Given somebody who does not want it each night
    timer = host.debian.path("/opt/sluicemq/sluicemq-backup.timer.enabled")
    assert timer.exists()
    host.systemctl("disable", "--now", "sluicemq-backup.timer")
    # When SluiceMQ is installed again, and its broker is restarted
    host.debian.run("touch", "/opt/sluicemq/restart")
    host.deploy("install")
    # Then the timer stays as it is
    host.debian.run("test", "!", "-e", "/run/stand-in/sluicemq-backup.timer.enabled")
    # and backups are no part of the installation
    host.deploy("install", "--uninstall", "--purge", "--yes")
    assert host.backups() == [first, second]
