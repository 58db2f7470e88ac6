"""The image of ``deploy/container``: built without a registry, and run as clusters run it."""

import http.client
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from deploy.bare_debian import image
from deploy.builds import ROOT, pip
from deploy.containers import Container, ImageStore
from sluicemq.version import VERSION
from support.own_mongod import a_mongod
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until

yaml = pytest.importorskip("yaml")

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

FILE = ROOT / "deploy/container/Containerfile"
#: What is in /tmp of a pod, and what a base image brings for the build alone.
COMPILERS = ("cc", "gcc", "g++", "clang", "ld", "as", "make", "rustc", "cargo")
EXTRAS = {"sluicemq": "broker,redis", "sluicemq:embedded": "embedded,redis"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the build installs, but for this project: what the locks name."""
    folder = tmp_path_factory.mktemp("wheels")
    for extras in EXTRAS.values():
        lock = ROOT / "deploy/container/lock" / f"{extras}.txt"
        words = ("--require-hashes", "--only-binary=:all:", "--python-version", "3.11", "-r", str(lock))
        pip("download", *words, "--dest", str(folder))
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path_factory.mktemp("images") / "store") as store:
        store.add_base("localhost/base", image("python3", "python3-venv"))
        for name, extras in EXTRAS.items():
            store.build(FILE, ROOT, name, wheels, BASE="localhost/base", EXTRAS=extras)
        yield store


class Broker:
    """What containers of one image have: ports, a user, and commands that are run in them."""

    def __init__(self, store: ImageStore, name: str, folder: Path, user: str) -> None:
        self.port, self.http = free_port(), free_port()
        self._root, self._user, self._folder = store.mounted(name), user, folder
        self.configuration = store.configuration(name)
        self.log = folder / "container.log"

    def run(self, *words: str, mounts: Any = (), **env: str) -> Container:
        env |= {
            "SLUICEMQ_ENDPOINT": f"tcp://127.0.0.1:{self.port}",
            "SLUICEMQ_HTTP": f"127.0.0.1:{self.http}",
        }
        return Container(
            self._root, self.configuration, *words, user=self._user, env=env, mounts=mounts, log=self.log
        )

    def await_health(self, container: Container) -> None:
        """Wait until the image's own health check says that it is healthy."""
        kind, *words = self.configuration["Healthcheck"]["Test"]
        assert kind == "CMD"
        words = [word.replace("5580", str(self.http)) for word in words]

        def is_healthy() -> bool:
            assert not container.has_ended(), self.log.read_text()
            return container.execute(*words, check=False).returncode == 0

        wait_until(is_healthy, 5 * TIMEOUT, "a healthy container")


@pytest.mark.parametrize("name", EXTRAS)
def test_an_image_says_how_it_is_run_and_has_nothing_of_its_build(store: ImageStore, name: str) -> None:
    told, root = store.configuration(name), store.mounted(name)
    print(f"{name}: {store.size(name)} MB on Debian with its Python")

    assert (told["Entrypoint"], told["Cmd"], told["StopSignal"]) == (["sluicemq"], ["serve"], "SIGTERM")
    assert int(told["User"].split(":")[0]) > 0
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in told["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("SluiceMQ", VERSION, "Apache-2.0")
    for folder in ("usr/bin", "usr/local/bin", "opt/sluicemq/bin"):
        assert not [compiler for compiler in COMPILERS if (root / folder / compiler).exists()]
    assert not list((root / "opt/sluicemq/bin").glob("pip*"))
    bill = json.loads((root / "opt/sluicemq/bill.cdx.json").read_text())
    assert {"sluicemq", "gevent", "pymongo"} <= {row["name"] for row in bill["components"]}
    for folder in ("src", "root/.cache", "var/lib/sluicemq/.cache", "wheels"):
        assert not list((root / folder).rglob("*"))
    written = [
        "find",
        str(root / "opt/sluicemq"),
        "!",
        "-user",
        "root",
        "-o",
        "-perm",
        "/022",
        "!",
        "-type",
        "l",
    ]
    assert subprocess.run(written, capture_output=True, check=True).stdout == b""


@pytest.mark.parametrize("user", ["10001:10001", "4711:0"])
def test_a_broker_without_rights_stops_and_jobs_stay(store: ImageStore, tmp_path: Path, user: str) -> None:
    with a_mongod(tmp_path, "--replSet", "rs0") as port:
        with MongoClient[dict[str, object]](port=port, directConnection=True) as client:
            members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        uri = tmp_path / "mongodb-uri"
        uri.write_text(f"mongodb://127.0.0.1:{port}/?replicaSet=rs0\n")
        uri.chmod(0o444)  # as Docker and Kubernetes give it: for everybody, on a mount that can't be written
        mounts = [(uri, "/run/secrets/mongodb-uri", "ro")]
        broker = Broker(store, "sluicemq", tmp_path, user)
        words = ("serve", "--mongodb-uri-file", "/run/secrets/mongodb-uri", "--no-devices")
        check_a_life(broker, words, mounts)
        # and principals are made in its container, where this user has no name
        with broker.run(*words, mounts=mounts) as container:
            where = ("--mongodb-uri-file", "/run/secrets/mongodb-uri")
            container.execute("sluicemq", "user", "add", "admin", "all", "--token", *where)
            assert "admin" in container.execute("sluicemq", "user", "list", *where).stdout


@pytest.mark.parametrize("user", ["10001:10001", "4711:0"])
def test_one_with_its_mongodb_keeps_jobs_in_its_volume(store: ImageStore, tmp_path: Path, user: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o1777)  # Docker gives a new volume the mode of the folder of the image
    broker = Broker(store, "sluicemq:embedded", tmp_path, user)
    assert broker.configuration["WorkingDir"] == "/var/lib/sluicemq"
    try:
        check_a_life(broker, ("serve", "--no-devices"), [(volume, "/var/lib/sluicemq", "rw")])
    finally:
        shutil.rmtree(volume)


def test_the_example_of_a_web_application_uses_it(store: ImageStore, wheels: Path, tmp_path: Path) -> None:
    folder = ROOT / "examples/fastapi"
    needed = ("--only-binary=:all:", "--python-version", "3.11", "fastapi", "uvicorn", "async-timeout")
    pip("download", *needed, "--dest", str(wheels))
    store.build(folder / "Containerfile", folder, "reports", wheels)
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    root, configuration = store.mounted("reports"), store.configuration("reports")
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o1777)
    broker = Broker(store, "sluicemq:embedded", tmp_path, "10001:10001")
    web, health = free_port(), free_port()
    env = {"SLUICEMQ_ENDPOINT": f"tcp://127.0.0.1:{broker.port}"}
    command = [service.replace("8000", str(health)) for service in services["worker"]["command"]]
    served = [argument.replace("8000", str(web)) for argument in configuration["Cmd"]]
    with ExitStack() as running:
        running.callback(shutil.rmtree, volume)
        own = running.enter_context(
            broker.run("serve", "--no-devices", mounts=[(volume, "/var/lib/sluicemq", "rw")])
        )
        broker.await_health(own)
        log = tmp_path / "application.log"
        for words in (served, command):
            running.enter_context(Container(root, configuration, *words, env=env, log=log))
        wait_until(lambda: answered(web, "GET", "/openapi.json") and answered(health, "GET", "/"))
        ordered = json.loads(answered(web, "POST", "/reports?title=Year&pages=1"))
        assert b'"Year: 1 pages"' in answered(web, "GET", f"{ordered['page']}/events")


def answered(port: int, method: str, path: str) -> bytes:
    """What a path answers; empty without an answer, or with one that says no."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.read() if answer.status < 300 else b""
    except ConnectionRefusedError:
        return b""
    finally:
        connection.close()


def check_a_life(broker: Broker, words: tuple[str, ...], mounts: Any) -> None:
    """Start a broker, work a job, stop it in order; start it again: the other job is still there."""
    with broker.run(*words, mounts=mounts) as container:
        broker.await_health(container)
        # It is the first process, has no rights, and can't write its root.
        status = container.execute("cat", "/proc/1/status", "/proc/1/cmdline").stdout
        assert "CapEff:\t0000000000000000" in status
        assert "sluicemq_broker" in status
        assert container.execute("touch", "/opt/sluicemq/x", check=False).returncode != 0
        container.execute("sleep", "0")
        container.execute("sluicemq", "push", "mail", "first")
        assert container.execute("sluicemq", "work", "mail", "--print", "--count", "1").stdout == "first\n"
        container.execute("sluicemq", "push", "mail", "kept")
        code = container.stop(signal.SIGTERM)
    assert code == 0, broker.log.read_text()
    with broker.run(*words, mounts=mounts) as container:
        broker.await_health(container)
        assert container.execute("sluicemq", "work", "mail", "--print", "--count", "1").stdout == "kept\n"
        assert container.stop(signal.SIGTERM) == 0
