"""``deploy/install`` on a bare Debian: installed, upgraded under load, rolled back, removed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bare_debian import BareDebian, image
from deploy.builds import build, download_requirements
from deploy.hosts import CONFIGURATION, ENVIRONMENT, Host
from deploy.load import Load, await_more
from sluicemq import Worker
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]


class Builds(Host):
    """A host with wheels of three builds."""

    def __init__(self, debian: BareDebian, folder: Path) -> None:
        super().__init__(debian)
        newer = build(folder / "newer", "7.0.0")
        broken = build(
            folder / "broken", "8.0.0",
            {"broker/sluicemq_broker/command/serve.py": (
                "if not self._starts(server):\n", 'raise OSError("this build is broken")\n        if 0:\n')},
        )  # fmt: skip
        download_requirements(self.wheels, newer, "embedded,redis", "3.11")
        for file in self.wheels.glob("sluicemq-*.whl"):
            file.unlink()
        for name, wheel in (("newer", newer), ("broken", broken)):
            debian.path(f"/{name}").mkdir()
            shutil.copy(wheel, debian.path(f"/{name}"))

    def install(self, *words: str, code: int = 0) -> str:
        """Run deploy/install, and return what it says."""
        return self.deploy("install", *words, code=code)

    def version(self) -> str:
        return self.sluicemq("--version").split()[-1]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    folder = tmp_path_factory.mktemp("install")
    with BareDebian(image(), folder / "debian") as debian:
        yield Builds(debian, folder)


def test_it_is_installed_upgraded_under_load_rolled_back_and_removed(host: Builds) -> None:
    debian = host.debian
    # A first one has to say which MongoDB it shall have.
    assert "say --mongodb-uri URI, or --embedded" in host.install(code=2)

    # Given one from a checkout, on a host without Python
    host.install("--embedded", "--no-start")
    first = host.version()
    for path, kept in {
        "/etc/sluicemq": "750 root:sluicemq", CONFIGURATION: "640 root:sluicemq",
        "/etc/sluicemq/secret.key": "600 sluicemq:sluicemq", "/etc/sluicemq/client.key": "600 root:root",
        "/var/lib/sluicemq": "700 sluicemq:sluicemq",
    }.items():  # fmt: skip
        assert debian.run("stat", "-c", "%a %U:%G", path).stdout.strip() == kept, path
    host.take_port()
    # When it is installed again it is started
    assert f"SluiceMQ {first} is installed, and runs" in host.install()
    # Then jobs are taken, and the administrator's key is let in
    host.sluicemq("push", "mail", "hello")
    server = host.sluicemq("key", "show", "/etc/sluicemq/secret.key").split()[-1]
    key = ("--key-file", "/etc/sluicemq/client.key", "--server-key", server)
    assert "admin" in host.sluicemq(*key, "user", "list")
    assert f"SluiceMQ {first} is installed already, and runs" in host.install()

    # Given a second broker on this host
    second = free_port()
    debian.path("/etc/sluicemq/second.toml").write_text(f"[broker]\nports = {second}\n")
    host.systemctl("enable", "--now", "sluicemq@second")

    with Load(host.endpoint) as load:
        wait_until(lambda: len(load.done) > 10, what="jobs done")
        # When an upgrade is killed in the middle, the old one runs on
        kill_in_the_middle(host)
        assert host.version() == first
        # When it is repeated
        assert f"SluiceMQ 7.0.0 is installed, and runs; before: {first}" in host.install("--wheels", "/newer")
        # Then the new one runs
        assert host.version() == "7.0.0"
        for endpoint in (host.endpoint, f"tcp://127.0.0.1:{second}"):
            assert "7.0.0" in host.sluicemq("brokers", "--endpoint", endpoint)
        await_more(load)
        # When a build is broken, the former one runs on
        said = host.install("--wheels", "/broken", code=1)
        assert "this build is broken" in said
        assert "rolled back: 7.0.0 runs" in said
        assert host.version() == "7.0.0"
        await_more(load)
        # When one wants the version before
        host.install("--rollback")
        assert host.version() == first
        await_more(load)
    # Then no push failed, and each job was done
    assert load.errors == []
    with Worker("load", lambda job: load.done.append(int(job.payload)), endpoint=host.endpoint):
        wait_until(lambda: set(load.done) == set(range(load.pushed)), what="all jobs done")
    assert "hello" in host.sluicemq("peek", "mail")

    # When it is removed
    assert "left: /etc/sluicemq, /var/lib/sluicemq" in host.install("--uninstall")
    # Then its data are kept
    assert not debian.path("/opt/sluicemq").exists()
    assert not debian.path("/etc/systemd/system/sluicemq.service").exists()
    assert debian.path("/var/lib/sluicemq/mongo").exists()
    # and with --purge nothing is, once somebody has said yes
    assert "--purge needs --yes" in host.install("--uninstall", "--purge", code=1)
    host.install("--uninstall", "--purge", "--yes")
    assert not debian.path("/var/lib/sluicemq").exists()
    assert not debian.path("/etc/sluicemq").exists()
    assert debian.run("getent", "passwd", "sluicemq", check=False).returncode != 0


def test_a_folder_for_a_package_gets_programs_that_do_not_name_it(host: Builds) -> None:
    debian, uri = host.debian, "mongodb://somebody:secret@db/?replicaSet=rs0"
    said = host.install("--root", "/of-a-package", "--mongodb-uri", uri, "--wheels", "/newer")
    assert debian.run("grep", "-rl", "/of-a-package", "/of-a-package", check=False).stdout == ""
    debian.run("cp", "-a", "/of-a-package/opt/sluicemq", "/opt/")
    assert debian.run("/opt/sluicemq/current/bin/sluicemq", "--version").stdout.split()[-1] == "7.0.0"
    debian.run("test", "-e", "/of-a-package/etc/systemd/system/sluicemq@.service")
    # and the URI has a file of its own
    assert "secret@" not in said
    kept = debian.path("/of-a-package/etc/sluicemq/mongodb-uri")
    assert (kept.read_text().strip(), kept.stat().st_mode & 0o777) == (uri, 0o600)
    configuration = debian.path(f"/of-a-package{CONFIGURATION}").read_text()
    assert '\nmongodb_uri_file = "/etc/sluicemq/mongodb-uri"\n' in configuration
    assert "@ADMIN_KEY@" not in configuration


def kill_in_the_middle(host: Builds) -> None:
    words = "echo $$ >/tmp/pid; exec /src/deploy/install --wheels /newer"
    upgrade = host.debian.start("sh", "-c", words, env=ENVIRONMENT)
    begun = host.debian.path("/opt/sluicemq/versions/7.0.0/bin")
    wait_until(begun.exists, 10 * TIMEOUT, "a new version that begins")
    host.debian.run("sh", "-c", "kill -9 $(cat /tmp/pid)")
    assert upgrade.wait(TIMEOUT) != 0
