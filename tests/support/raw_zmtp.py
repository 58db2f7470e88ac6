"""ZMTP spoken by hand."""

from typing import Any, Final

_GREETING: Final = 64  # bytes


def hear_handshake(client: Any) -> None:
    """Read greeting and READY from a socket, and nothing of what may have come behind them already."""
    _flags, size = _receive(client, _GREETING + 2)[_GREETING:]
    assert b"READY" in _receive(client, size)


def _receive(client: Any, size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = client.recv(size - len(got))
        assert more, "the door ended the connection during the handshake"
        got += more
    return got
