"""``sluicemq device`` with keys: who gets in, which server is dialled, and what it refuses to do."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from devices.keyed_sockets import CLIENT, SERVER, Events, as_client, as_server, new_pair
from devices.plain_sockets import Clients, receive, send
from devices.test_devices import Alone, Run, alone  # noqa: F401 - a fixture
from sluicemq.protocol.keys import encode, key_id, write_key_file

LOCAL = "tcp://127.0.0.1:*"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    write_key_file(tmp_path / "device.key", SERVER)
    return tmp_path / "device.key"


@pytest.fixture
def allow(tmp_path: Path) -> Path:
    path = tmp_path / "allow"
    path.write_text(f"# producers and workers\n\n{encode(CLIENT.public)} mailer 1\n")
    return path


@pytest.fixture
def keys(key_file: Path, allow: Path) -> list[object]:
    return ["--curve-secret-key-file", key_file, "--allow", allow]


def next_line(device: Alone) -> str:
    return str(device.process.stderr.readline().decode())


def test_a_device_lets_its_keys_in(
    alone: Run,  # noqa: F811
    clients: Clients,
    keys: list[object],
    allow: Path,
) -> None:
    device = alone("streamer", LOCAL, LOCAL, *keys)
    front, back = device.doors()
    push, pull = (
        clients.connect(zmq.PUSH, front, **as_client()),
        clients.connect(zmq.PULL, back, **as_client()),
    )
    send(push, b"sealed")
    assert receive(pull) == [b"sealed"]
    stranger = new_pair()
    other = clients.connect(zmq.PUSH, front, **as_client(stranger))
    line = next_line(device)
    assert f"its key {encode(stranger.public)} ({key_id(stranger.public)}) is not in {allow}" in line
    assert "handshakes_refused" in line
    other.close()


def test_a_device_dials_a_server_that_has_the_key(
    alone: Run,  # noqa: F811
    clients: Clients,
    keys: list[object],
) -> None:
    server, end = clients.bind(zmq.PULL, **as_server())
    front, _ = alone("streamer", LOCAL, end, *keys, "--server-key", encode(SERVER.public)).doors()
    send(clients.connect(zmq.PUSH, front, **as_client()), b"sealed")
    push = clients.connect(zmq.PUSH, front, **as_client())
    send(push, b"sealed")
    assert receive(server) == [b"sealed"]


def test_a_device_alone_reads_its_keys_again_and_ends_the_connections_of_those_that_are_gone(
    alone: Run,  # noqa: F811
    clients: Clients,
    keys: list[object],
    allow: Path,
) -> None:
    # Given a client that is allowed, and one that is not yet
    device, later = alone("streamer", LOCAL, LOCAL, *keys), new_pair()
    front, back = device.doors()
    first, second = (clients.connect(zmq.PUSH, front, **as_client(pair)) for pair in (CLIENT, later))
    send(first, b"first")
    assert f"({key_id(later.public)}) is not in" in next_line(device)
    assert receive(clients.connect(zmq.PULL, back, **as_client())) == [b"first"]
    # When the file is broken, all stays as it is
    allow.write_text("not a key")
    device.process.send_signal(signal.SIGHUP)
    line = next_line(device)
    assert f"{allow}:1: a line begins with a key of 40 characters in Z85, or with #" in line
    assert "still get in" in line
    # When the second is allowed, and the first no more
    allow.write_text(encode(later.public))
    device.process.send_signal(signal.SIGHUP)
    assert "its key is not allowed any more" in next_line(device)
    third = clients.connect(zmq.PUSH, front, **as_client(later))
    send(third, b"later")
    assert receive(clients.connect(zmq.PULL, back, **as_client(later))) == [b"later"]
    again = clients.context.socket(zmq.PUSH)
    events = Events(again)
    for name, value in as_client().items():
        setattr(again, name, value)
    again.connect(front)
    assert events.next() == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
    for peer in (first, second, third):
        peer.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--allow", "{allow}"], "belong together"),
        (["--curve-secret-key-file", "{key}"], "belong together"),
        (["--curve-secret-key-file", "{key}", "--allow", "/nowhere"], "can't read /nowhere"),
        (["--curve-secret-key-file", "{allow}", "--allow", "{allow}"], "key file"),
        (["--curve-secret-key-file", "{key}", "--allow", "{allow}"], "would be connected to without a key"),
        (["--server-key", "short"], "not a key of 40 characters in Z85"),
    ],
)
def test_what_is_wrong_with_keys_is_usage(key_file: Path, allow: Path, words: list[str], what: str) -> None:
    allow.chmod(0o600)
    options = [word.format(key=key_file, allow=allow) for word in words]
    command = [sys.executable, "-m", "sluicemq_devices", "streamer", LOCAL, ">tcp://127.0.0.1:1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert what in done.stderr


def test_other_machines_may_reach_a_door_that_asks_for_keys(alone: Run, keys: list[object]) -> None:  # noqa: F811
    assert alone("streamer", "tcp://*:*", LOCAL, *keys).doors()
