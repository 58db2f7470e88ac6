"""The services of ``compose.yaml`` with a real replica set: users, two brokers, commands, metrics."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from deploy.builds import ROOT
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.own_mongod import a_mongod
from support.ports import tcp

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

FOLDER = ROOT / "deploy/container"


class Installation:
    """What ``prepare`` has made, and three members with the key of it."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.ports = ports
        self.local = folder / "local"
        uri = (self.local / "mongodb-uri").read_text()
        members = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.uri_file = self.local / "mongodb-uri"
        self.uri_file.write_text(uri.replace("mongo1,mongo2,mongo3", members))
        self.uri_file.chmod(0o600)
        (self.local / "secret.key").chmod(0o600)

    @property
    def uri(self) -> str:
        return self.uri_file.read_text()

    def make_replica_set(self) -> str:
        """Run the service replica-set, and return what it says."""
        files = [self.uri_file, self.local / "mongodb-admin-password"]
        done = subprocess.run(
            [sys.executable, FOLDER / "replica_set.py", *files, str(self.ports[0])],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    def configuration(self) -> dict[str, Any]:
        text = (self.local / "broker/sluicemq.toml").read_text().replace("/run/secrets", str(self.local))
        config = tomllib.loads(text)
        del config["broker"]["mongodb_uri_file"]
        config["broker"] |= {"endpoint": tcp(), "http": "127.0.0.1:0"}
        return config

    def commands(self, *endpoints: str) -> dict[str, str]:
        """The environment of the service sluicemq, for brokers of this machine."""
        folder = self.local / "home/sluicemq"
        folder.mkdir(parents=True)
        text = (self.local / "client/config.toml").read_text()
        for number, endpoint in enumerate(endpoints, 1):
            text = text.replace(f"tcp://broker{number}:5550", endpoint)
        (folder / "config.toml").write_text(text)
        (folder / "admin.key").write_bytes((self.local / "client/admin.key").read_bytes())
        (folder / "admin.key").chmod(0o600)
        return os.environ | {"XDG_CONFIG_HOME": str(folder.parent)}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("compose")
    for name in ("prepare", "sluicemq.toml"):
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    environ = os.environ | {"SLUICEMQ": f"{sys.executable} -m sluicemq"}
    subprocess.run(["bash", folder / "prepare"], env=environ, check=True, capture_output=True)
    key = folder / "local/mongodb-keyfile"
    key.chmod(0o400)
    with ExitStack() as stack:
        ports = []
        for number in range(3):
            (folder / str(number)).mkdir()
            member = a_mongod(folder / str(number), "--replSet", "rs0", "--keyFile", str(key))
            ports.append(stack.enter_context(member))
        yield Installation(folder, ports)


def test_a_replica_set_is_made_with_users_and_made_again_without_harm(installation: Installation) -> None:
    said = installation.make_replica_set()
    assert "making the replica set rs0" in said
    assert "made the user admin" in said
    assert "made the user sluicemq" in said
    # When it runs again, as with the next `docker compose up`
    again = installation.make_replica_set()
    # Then nothing is made
    assert "made the user" not in again
    assert "making" not in again
    # and nobody gets in without a password
    with (
        MongoClient[dict[str, Any]](port=installation.ports[0], directConnection=True) as stranger,
        pytest.raises(OperationFailure, match="requires authentication"),
    ):
        stranger["sluicemq"]["queue.mail"].find_one()
    # When the password in the URI is another one
    others = installation.uri.split("@")[1]
    installation.uri_file.write_text(f"mongodb://sluicemq:another@{others}")
    installation.make_replica_set()
    # Then the broker is let in with it
    with MongoClient[dict[str, Any]](installation.uri) as client:
        assert len(client.admin.command("replSetGetStatus")["members"]) == 3


def test_two_brokers_have_an_administrator_and_metrics_for_prometheus(installation: Installation) -> None:
    installation.make_replica_set()
    with (
        BrokerProcess(installation.uri, "sluicemq", config=installation.configuration()) as first,
        BrokerProcess(installation.uri, "sluicemq", config=installation.configuration()) as second,
    ):
        environ = installation.commands(first.doors["smq"], second.doors["smq"])

        def sluicemq(*words: str) -> str:
            words = (sys.executable, "-m", "sluicemq", *words)
            done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        sluicemq("push", "mail", "hello")
        assert sluicemq("work", "mail", "--print", "--count", "1") == "hello\n"
        assert sluicemq("brokers").count("0.") >= 2
        token = (installation.local / "metrics-token").read_text()
        for broker in (first, second):
            web = Web(broker.http.removeprefix("http://"))
            assert web.get("/metrics").status == 401
            assert web.get("/metrics", Authorization=f"Bearer {token}").status == 200
            sluicemq("ping", "--http", web.address)


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool")
def test_prometheus_takes_its_configuration(installation: Installation) -> None:
    folder = installation.local / "prometheus"
    folder.mkdir()
    token = str(installation.local / "metrics-token")
    text = (FOLDER / "prometheus.yml").read_text().replace("/run/secrets/metrics-token", token)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(ROOT / "deploy/prometheus/alerts.yml", folder)
    words = ["promtool", "check", "config", str(folder / "prometheus.yml")]
    checked = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
