"""Free ports of 127.0.0.1, and addresses on them."""

import socket
from collections import deque
from random import SystemRandom

_given: deque[int] = deque(maxlen=500)
_random = SystemRandom()  # not as that of another process

#: Below those of outgoing connections (32768), so that none takes one before its door does.
_ALL = range(10_000, 32_000)
_ports = _ALL


def take_share(number: int, count: int) -> None:
    """From now on give only ports of this share: what one process has found free another one would, too."""
    global _ports  # noqa: PLW0603 - of this process
    _ports = _ALL[number::count]


def free_port() -> int:
    """A port on 127.0.0.1 that is free, another one at each call for a while."""
    while True:
        port = _random.choice(_ports)
        if port not in _given and is_free(port):
            _given.append(port)
            return port


def is_free(port: int) -> bool:
    """Return whether nobody listens at a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def free_ports() -> int:
    """The first of eight free ports in a row, of which the one 30 higher is free, too."""
    while True:
        first = free_port()
        if all(is_free(port) for port in (*range(first, first + 8), first + 30)):
            return first


def tcp(port: int | None = None) -> str:
    """An address on 127.0.0.1, by default on a free port."""
    return f"tcp://127.0.0.1:{port or free_port()}"
