"""The Debian package on a bare Debian: installed, used, upgraded under load, removed, purged."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.bare_debian import BareDebian, image
from deploy.builds import build, copy_sources, download_requirements
from deploy.hosts import STAND_IN
from deploy.load import Load, await_more
from faults.replica_set import ReplicaSet
from sluicemq.version import VERSION
from support.ports import free_port
from support.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

NEWER = "7.0.0"
ETC = "/etc/sluicemq"
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


class Packages(NamedTuple):
    first: Path
    newer: Path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packages]:
    """The packages of this build and of a newer one, made on a Debian of their own."""
    folder = tmp_path_factory.mktemp("packages")
    with BareDebian(image(), folder / "builder") as builder:
        builder.run("apt-get", "update", "-qq")
        builder.run("apt-get", "install", "-qq", "-y", "--no-install-recommends", "python3-venv", env=QUIET)
        copy_sources(builder.path("/src"))
        wheels = builder.path("/wheels")
        wheels.mkdir()
        made = [build(folder / version, version) for version in (VERSION, NEWER)]
        download_requirements(wheels, made[0], "broker,redis", "3.11")
        for wheel in wheels.glob("sluicemq-*.whl"):
            wheel.unlink()
        first, again, newer = (pack(builder, made[number], f"/{at}") for at, number in enumerate((0, 0, 1)))
        assert first.read_bytes() == again.read_bytes()
        yield Packages(first, newer)


def pack(builder: BareDebian, wheel: Path, dist: str) -> Path:
    """Return the package of a wheel, made in a folder of the builder."""
    environ = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "SOURCE_DATE_EPOCH": "1700000000"}
    builder.path(dist).mkdir()
    shutil.copy(wheel, builder.path(dist))
    builder.run("/src/deploy/release", "--deb", "--out", dist, env=environ, timeout=900)
    builder.run("sh", "-c", f"cd {dist} && sha256sum --check --strict SHA256SUMS")
    [made] = builder.path(dist).glob("*.deb")
    return made


class Host:
    """A bare Debian with a stand-in for systemd, and packages to install."""

    def __init__(self, debian: BareDebian, packages: Packages) -> None:
        self.debian = debian
        self.port = free_port()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        for package in packages:
            shutil.copy(package, debian.path("/"))
        shutil.copy(STAND_IN, debian.path("/usr/bin/systemctl"))
        debian.run("mkdir", "/run/systemd", "/run/systemd/system")
        debian.run("apt-get", "update", "-qq")

    def dpkg(self, *words: str, code: int = 0) -> str:
        done = self.debian.run("dpkg", *words, env=QUIET, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def sluicemq(self, *words: str) -> str:
        return self.debian.run("sluicemq", *words, env={"SLUICEMQ_ENDPOINT": self.endpoint}).stdout

    def change(self, old: str, new: str) -> None:
        file = self.debian.path(f"{ETC}/sluicemq.toml")
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def runs(self, version: str) -> bool:
        return version in self.sluicemq("brokers")


@pytest.fixture
def host(tmp_path: Path, packages: Packages) -> Iterator[Host]:
    with BareDebian(image(), tmp_path / "host") as debian:
        yield Host(debian, packages)


def test_it_is_installed_used_upgraded_under_load_removed_and_purged(host: Host, packages: Packages) -> None:
    debian, first, newer = host.debian, f"/{packages.first.name}", f"/{packages.newer.name}"
    # When it is installed with nothing but what it says that it needs
    said = debian.run("apt-get", "install", "-y", "--no-install-recommends", first, env=QUIET).stdout
    # Then it asks for a MongoDB, and has what is of this host
    assert f"write the URI of your MongoDB into {ETC}/mongodb-uri, then: systemctl start sluicemq" in said
    for path, kept in {
        ETC: "750 root:sluicemq", f"{ETC}/sluicemq.toml": "640 root:sluicemq",
        f"{ETC}/secret.key": "600 sluicemq:sluicemq", f"{ETC}/client.key": "600 root:root",
        f"{ETC}/mongodb-uri": "600 sluicemq:sluicemq", "/var/lib/sluicemq": "700 sluicemq:sluicemq",
    }.items():  # fmt: skip
        assert debian.run("stat", "-c", "%a %U:%G", path).stdout.strip() == kept, path
    assert host.sluicemq("--version").split()[-1] == VERSION
    secret = debian.path(f"{ETC}/secret.key").read_text()

    with ReplicaSet() as mongo:
        # When it has one, and is started
        debian.path(f"{ETC}/mongodb-uri").write_text(mongo.uri)
        host.change("#ports = 5550", f"ports = {host.port}")
        debian.run("systemctl", "is-enabled", "sluicemq")
        debian.run("systemctl", "start", "sluicemq")
        # Then jobs are pushed and worked off
        host.sluicemq("push", "mail", "hello")
        assert "hello" in host.sluicemq("work", "mail", "--print", "--count", "1")

        with Load(host.endpoint) as load:
            wait_until(lambda: len(load.done) > 10, what="jobs done")
            # When a configuration is not valid for the newer one
            host.change("#lease = ", "lease = 0 # ")
            assert "lease" in host.dpkg("-i", newer, code=1)
            # Then the older one runs on
            await_more(load)
            assert host.runs(VERSION)
            # When it is mended
            host.change("lease = 0 # ", "#lease = ")
            host.dpkg("--configure", "sluicemq")
            # Then the newer one runs, and clients have noticed nothing
            assert host.runs(NEWER)
            await_more(load)
        assert load.errors == []
        # and what was changed by hand, or made at the first installation, is kept
        assert f"\nports = {host.port}\n" in debian.path(f"{ETC}/sluicemq.toml").read_text()
        assert debian.path(f"{ETC}/secret.key").read_text() == secret
        assert [folder.name for folder in debian.path("/opt/sluicemq/versions").iterdir()] == [NEWER]

        # When it is removed and installed again, it runs as before
        host.dpkg("--remove", "sluicemq")
        assert debian.run("systemctl", "is-active", "sluicemq", check=False).returncode != 0
        host.dpkg("-i", newer)
        debian.run("systemctl", "is-enabled", "sluicemq", "sluicemq-backup.timer")
        assert host.runs(NEWER)

        # When it is removed
        host.dpkg("--remove", "sluicemq")
    # Then nothing runs, and what is of this host stays
    assert debian.run("systemctl", "is-active", "sluicemq", check=False).returncode != 0
    assert debian.run("systemctl", "is-enabled", "sluicemq", check=False).returncode != 0
    for path in ("/opt/sluicemq", "/usr/bin/sluicemq", "/usr/lib/systemd/system/sluicemq.service"):
        assert not debian.path(path).is_symlink(), path
        assert not debian.path(path).exists(), path
    assert debian.path(f"{ETC}/secret.key").read_text() == secret
    assert debian.path(f"{ETC}/sluicemq.toml").exists()
    # When it is purged, nothing does
    host.dpkg("--purge", "sluicemq")
    for path in (ETC, "/var/lib/sluicemq"):
        assert not debian.path(path).exists(), path
    assert debian.run("getent", "passwd", "sluicemq", check=False).returncode != 0


def test_it_and_an_installation_by_hand_do_not_overwrite_each_other(host: Host, packages: Packages) -> None:
    debian = host.debian
    debian.run("apt-get", "install", "-qq", "-y", "--no-install-recommends", "python3", env=QUIET)
    debian.run("mkdir", "-p", "/opt/sluicemq/current")
    assert "first run: ./deploy/install --uninstall" in host.dpkg("-i", f"/{packages.first.name}", code=1)
    debian.run("rmdir", "/opt/sluicemq/current")
    host.dpkg("-i", f"/{packages.first.name}")
    copy_sources(debian.path("/src"))
    for words in ("--embedded", "--uninstall"):
        done = debian.run("/src/deploy/install", words, "--no-start", check=False)
        assert (done.returncode, "this host has the Debian package sluicemq" in done.stderr) == (1, True)
    assert host.sluicemq("--version").split()[-1] == VERSION
