"""A MongoDB of the test's own, of one or three nodes, that can be killed and told to fail (test commands)."""

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from sluicemq_broker.embedded import mongod
from support.ports import free_port
from support.waiting import wait_until

_NAME = "chaos"
_AT_WORK = (1, 2)  # PRIMARY, SECONDARY


class ReplicaSet:
    """A number of mongods on free ports, with short elections; ended, and their data removed, on leaving."""

    def __init__(self, nodes: int = 1) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sluicemq-chaos-"))
        self.ports = [free_port() for _ in range(nodes)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def uri(self) -> str:
        """For a client that follows the primary."""
        hosts = ",".join(map(self.host, self.ports))
        return f"mongodb://{hosts}/?replicaSet={_NAME}"

    def host(self, port: int) -> str:
        """Return where clients and other nodes find the node that listens at a port."""
        return f"127.0.0.1:{port}"

    def folder(self, port: int) -> Path:
        """Return where a node has its log and its data."""
        return self._folder / str(port)

    def prefix(self, _port: int) -> list[str]:
        """Return words that stand before the command of a node."""
        return []

    def process(self, port: int) -> subprocess.Popen[bytes] | None:
        return self._processes.get(port)

    def direct(self, port: int, milliseconds: int = 5000) -> MongoClient[dict[str, Any]]:
        """A client of one node; ``milliseconds``: how long it looks for the node."""
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        return MongoClient(uri, serverSelectionTimeoutMS=milliseconds)

    def primary(self, timeout: float = 60.0) -> int:
        """The port of the node that takes writes, once there is one."""
        port: int = wait_until(
            lambda: next(
                (process for process in self._processes if self._says(process, "isWritablePrimary")), None
            ),
            timeout,
            "a primary",
        )
        return port

    def kill(self, port: int) -> None:
        """``kill -9``, and wait until it is gone."""
        process = self._processes.pop(port)
        process.kill()
        process.wait(60)

    def send_signal(self, port: int, number: int) -> None:
        self._processes[port].send_signal(number)

    def wait_member(self, port: int) -> None:
        """Wait until a node that was launched again has what the primary had by now, or is the primary.

        One that has just come calls itself a secondary while it still has to take back writes that the
        others never had: if these lose their primary meanwhile, no majority answers for minutes.
        """
        has_to_have = self._applied(self.primary())
        wait_until(lambda: self._applied(port) >= has_to_have, 90, "the node")

    def launch(self, port: int) -> None:
        folder = self.folder(port)
        data = folder / "data"  # may be a small disk, beside which the log goes on
        data.mkdir(parents=True, exist_ok=True)
        options = ["--dbpath", data, "--port", port, "--bind_ip", "127.0.0.1", "--replSet", _NAME]
        options += ["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "256", "--quiet", "--nounixsocket"]
        options += ["--logpath", folder / "mongod.log", "--logappend"]
        for parameter in ("enableTestCommands=1", "diagnosticDataCollectionEnabled=false"):
            options += ["--setParameter", parameter]
        command = [*self.prefix(port), *(str(option) for option in (mongod.find_mongod(), *options))]
        self._processes[port] = mongod.launch(command, folder / "out.log")

    def fail(self, port: int, name: str, mode: Any, data: Any = None) -> None:
        """Set a fail point of one node; mode ``off`` ends it."""
        with self.direct(port) as client:
            client.admin.command({"configureFailPoint": name, "mode": mode, "data": data or {}})

    def __enter__(self) -> Self:
        try:
            for port in self.ports:
                self.launch(port)
            self._initiate()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _initiate(self) -> None:
        first = self.ports[0]
        wait_until(lambda: self._says(first, "ok"), what="a mongod")
        members = [
            {"_id": at, "host": self.host(port), "priority": 2 if port == first else 1}
            for at, port in enumerate(self.ports)
        ]
        # Without chains: behind a secondary that is made to lag another could not be in a majority.
        settings = {"electionTimeoutMillis": 1500, "heartbeatIntervalMillis": 300, "chainingAllowed": False}
        config = {"_id": _NAME, "members": members, "settings": settings}
        with self.direct(first) as client:
            wait_until(lambda: _begun(client, config), what="the replica set")
        self.primary()
        wait_until(
            lambda: sum(self._says(port, "secondary") for port in self.ports) == len(self.ports) - 1,
            60,
            "the secondaries",
        )

    def _applied(self, port: int) -> tuple[int, Timestamp]:
        """Term and time of the newest write that a node has; none while it follows no primary."""
        with suppress(PyMongoError), self.direct(port) as client:
            status = client.admin.command("replSetGetStatus")
            if status["myState"] in _AT_WORK:
                newest = status["optimes"]["appliedOpTime"]
                return newest["t"], newest["ts"]
        return -1, Timestamp(0, 0)

    def _says(self, port: int, what: str) -> bool:
        with suppress(PyMongoError), self.direct(port) as client:
            return bool(client.admin.command("hello").get(what))
        return False


def _begun(client: MongoClient[dict[str, Any]], config: dict[str, Any]) -> bool:
    """Tried again while the other nodes are not up."""
    try:
        client.admin.command("replSetInitiate", config)
    except PyMongoError as error:
        return getattr(error, "code", 0) == 23  # AlreadyInitialized
    return True
