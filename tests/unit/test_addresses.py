"""Doors that are taken are told before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.command import addresses
from sluicemq_broker.config import Config, load
from support.ports import tcp


def config(folder: Path, endpoint: str, **ends: str) -> Config:
    """A broker with one streamer."""
    device = {"kind": "streamer", "frontend": tcp(), "backend": tcp(), **ends}
    file = folder / "broker.toml"
    broker = {"endpoint": endpoint, "http": "", "data_dir": str(folder / "my data")}
    file.write_text(tomli_w.dumps({"broker": broker, "devices": [device]}))
    return load(file, {}, {})


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that another program listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield tcp(listener.getsockname()[1])


def test_a_door_that_is_taken_is_named_with_what_to_do(tmp_path: Path, taken: str) -> None:
    text = (
        f"{taken} is taken, perhaps by another broker; a second broker on this machine starts with "
        r"--ports 6550 --data-dir '.*/my data-6550', and with addresses of its own in \[\[devices\]\]"
    )
    for wrong in (config(tmp_path, taken), config(tmp_path, tcp(), backend=taken)):
        with pytest.raises(UnavailableError, match=text):
            addresses.require_free(wrong)


def test_who_has_the_default_doors_and_a_mongodb_is_told_of_ports_alone(taken: str) -> None:
    flags = {"ports": "60100", "http": taken.removeprefix("tcp://"), "mongodb_uri": "mongodb://db/"}
    with pytest.raises(UnavailableError, match=r"on this machine starts with --ports 59100$"):
        addresses.require_free(load(None, {}, flags))


def test_a_unix_socket_is_taken_only_while_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "door"
    wanted = config(tmp_path, tcp(), frontend=f"ipc://{path}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(UnavailableError, match="is taken"):
            addresses.require_free(wanted)
    addresses.require_free(wanted)


def test_doors_that_are_free_or_that_connect_are_fine(tmp_path: Path, taken: str) -> None:
    addresses.require_free(config(tmp_path, tcp(), frontend=f">{taken}", backend="tcp://127.0.0.1:0"))


def test_an_address_of_the_environment_is_named_with_its_variable() -> None:
    environ = {"SLUICEMQ_ENDPOINT": "tcp://192.0.2.1:5550", "SLUICEMQ_DEVICES": "off", "SLUICEMQ_HTTP": ""}
    with pytest.raises(
        UnavailableError, match=r"192\.0\.2\.1:5550 \(of SLUICEMQ_ENDPOINT\) is no address of"
    ):
        addresses.require_free(load(None, environ, {}))
