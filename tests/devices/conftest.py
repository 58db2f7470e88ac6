"""A switchboard for doors in this process; clients are processes of their own or plain_sockets."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from gevent import subprocess

from devices.plain_sockets import Clients, LaneRecorder, Notices
from sluicemq_devices.sockets import Switchboard


class Startable(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def recorder() -> LaneRecorder:
    return LaneRecorder()


@pytest.fixture
def board(notices: Notices) -> Iterator[Switchboard]:
    board = Switchboard(notice=lambda kind, text: notices.append((kind, text)), handshake=30.0)
    board.start()
    yield board
    board.stop()


@pytest.fixture
def started(board: Switchboard) -> Iterator[Callable[[Any], Any]]:
    """Start a door or a device; it is stopped at the end."""
    with contextlib.ExitStack() as stack:

        def start(part: Startable) -> Startable:
            part.start()
            stack.callback(part.stop)
            return part

        yield start


@pytest.fixture
def clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.context.destroy(linger=0)


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen]]:
    """Run a script as a process of its own; it is killed at the end."""
    processes: list[subprocess.Popen] = []

    def run(code: str, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
