"""A broker that wants keys, with that of an administrator; key files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from sluicemq import Client
from sluicemq.protocol.keys import KeyPair, read_key, write_key_file
from support.broker_process import BrokerProcess


def new_key(file: Path) -> str:
    """Make a key file; its public key."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    write_key_file(file, KeyPair(read_key(public), read_key(secret)))
    return public


class KeyedBroker(NamedTuple):
    """The broker; ``folder``: of key files, ``admin.key`` among them, whose owner may do everything."""

    process: BrokerProcess
    server_key: str
    folder: Path

    @property
    def endpoint(self) -> str:
        return self.process.doors["smq"]

    def access(self, name: str = "admin") -> Any:
        """Keywords of the library, with the key of this name."""
        return {"key_file": self.folder / f"{name}.key", "server_key": self.server_key}

    def variables(self, name: str = "admin") -> dict[str, str]:
        """Variables of a program's environment, with the key of this name."""
        key_file = str(self.folder / f"{name}.key")
        return {"SLUICEMQ_KEY_FILE": key_file, "SLUICEMQ_SERVER_KEY": self.server_key}

    def admin(self) -> Client:
        return Client(**self.access(), endpoint=self.endpoint)


@contextmanager
def keyed_broker(
    mongo_uri: str, database: str, folder: Path, config: Mapping[str, Any] | None = None
) -> Iterator[KeyedBroker]:
    """Start a broker whose doors speak CURVE and PLAIN. ``config``: more of its configuration."""
    server_key, admin = new_key(folder / "broker.key"), new_key(folder / "admin.key")
    security = {
        "mechanism": ["curve", "plain"],
        "secret_key_file": str(folder / "broker.key"),
        "principals": {"admin": {"keys": [admin], "permissions": "all"}},
    }
    broker = {"silence": 300, **(config or {}).get("broker", {})}  # to hash a password may take long
    whole = {**(config or {}), "security": security, "broker": broker}
    with BrokerProcess(mongo_uri, database, config=whole) as process:
        yield KeyedBroker(process, server_key, folder)
