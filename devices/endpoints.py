"""Endpoints as they are written in configuration: ``@tcp://…`` binds, ``>tcp://…`` connects."""

from __future__ import annotations

from dataclasses import dataclass

_EXAMPLES = "write tcp://HOST:PORT or ipc:///PATH, with @ before it to bind or > to connect"
_LAST_PORT = 65535
_LONGEST_PATH = 107  # bytes in a sockaddr_un, without the closing zero


@dataclass(frozen=True)
class Endpoint:
    """One end of a device: where it is, and whether it is bound (or connected to)."""

    address: str
    bind: bool

    def __str__(self) -> str:
        return ("@" if self.bind else ">") + self.address


def parse(text: str) -> Endpoint:
    """Read an endpoint; unmarked ones bind.

    Raises ValueError, which names what is wrong and what to write.
    """
    bind = not text.startswith(">")
    address = text[1:] if text[:1] in ("@", ">") else text
    _check(address, text, bind=bind)
    return Endpoint(address, bind)


def host_and_port(address: str) -> tuple[str, int]:
    """``tcp://[::1]:5551`` -> ``("::1", 5551)``; the host ``*`` is given as ``""``: every interface."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.removeprefix("[").removesuffix("]").replace("*", ""), int(port)


def tcp_address(host: str, port: int) -> str:
    """``("::1", 5551)`` -> ``tcp://[::1]:5551``."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host or '*'}:{port}"


def _check(address: str, text: str, *, bind: bool) -> None:
    if address.startswith("tcp://"):
        _check_tcp(address, text, bind=bind)
    elif address.startswith("ipc://"):
        _check_ipc(address, text)
    else:
        raise _wrong(text, "it starts with neither tcp:// nor ipc://")


def _check_tcp(address: str, text: str, *, bind: bool) -> None:
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon or not host:
        raise _wrong(text, "host or port is missing")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise _wrong(text, "an IPv6 host needs brackets, as in tcp://[::1]:5551")
    if not (port.isascii() and port.isdigit()) or int(port) > _LAST_PORT:
        raise _wrong(text, f"{port!r} is not a port from 0 to {_LAST_PORT}")
    if not bind and (int(port) == 0 or host == "*"):
        raise _wrong(text, "an end that connects needs a real host and port")


def _check_ipc(address: str, text: str) -> None:
    path = address.removeprefix("ipc://")
    if not path.startswith("/"):
        raise _wrong(text, "the path of an ipc end must begin with /")
    if len(path.encode()) > _LONGEST_PATH:
        raise _wrong(text, f"the path is longer than {_LONGEST_PATH} bytes, the most that unix sockets allow")


def _wrong(text: str, what: str) -> ValueError:
    return ValueError(f"{text!r} is not an endpoint: {what}; {_EXAMPLES}")
