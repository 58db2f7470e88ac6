"""Endpoints as they are written in configuration: ``@tcp://…`` binds, ``>tcp://…`` connects.

@tcp://127.0.0.1:5551   @tcp://*:5551 (every interface)   @tcp://eth0:5551   @tcp://[::]:5551
@tcp://127.0.0.1:*      any free port; 0 says the same
>tcp://host:5551        >tcp://192.0.2.17:0;host:5551: from this address, or interface, of this machine
ipc:///run/jobs         ipc://jobs: in the working directory   ipc://@jobs: abstract, without a file
@ipc://*                a socket in a new folder for temporary files
"""

from __future__ import annotations

from dataclasses import dataclass

_EXAMPLES = "write tcp://HOST:PORT or ipc:///PATH, with @ before it to bind or > to connect"
_ANY_IPC = "ipc://*"
_LAST_PORT = 65535
_LONGEST_PATH = 107  # bytes in a sockaddr_un, without the closing zero


@dataclass(frozen=True)
class Endpoint:
    """One end of a device: where it is, and whether it is bound (or connected to)."""

    address: str
    bind: bool

    @property
    def is_any(self) -> bool:
        """It binds wherever there is room: two of them are not the same."""
        if self.address.startswith("tcp://"):
            return self.bind and host_and_port(self.address)[1] == 0
        return self.address == _ANY_IPC

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
    """``tcp://[::1]:5551`` -> ``("::1", 5551)``; ``*`` is given as ``""``, every interface, and as port 0.

    The address to connect from, if there is one, is left out.
    """
    return _place(address.removeprefix("tcp://").rpartition(";")[2])


def source_of(address: str) -> tuple[str, int] | None:
    """``tcp://lo:0;host:5551`` -> ``("lo", 0)``: where a connection is to come from."""
    source = address.removeprefix("tcp://").rpartition(";")[0]
    return _place(source) if source else None


def unix_path(address: str) -> str:
    """``ipc:///run/jobs`` -> ``/run/jobs``; an abstract name begins with a zero."""
    path = address.removeprefix("ipc://")
    return "\0" + path[1:] if path.startswith("@") else path


def tcp_address(host: str, port: int) -> str:
    """``("::1", 5551)`` -> ``tcp://[::1]:5551``."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host or '*'}:{port}"


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]").replace("*", ""), int(port.replace("*", "0"))


def _check(address: str, text: str, *, bind: bool) -> None:
    if address.startswith("tcp://"):
        source, between, place = address.removeprefix("tcp://").rpartition(";")
        if "," in place:
            raise _wrong(text, "it is a list: name one place here, and others as endpoints of their own")
        if between and bind:
            raise _wrong(text, "only an end that connects can have an address to connect from")
        if between:
            _check_place(source, text, may_be_any=True)
        _check_place(place, text, may_be_any=bind)
    elif address.startswith("ipc://"):
        _check_ipc(address, text, bind=bind)
    else:
        raise _wrong(text, "it starts with neither tcp:// nor ipc://")


def _check_place(place: str, text: str, *, may_be_any: bool) -> None:
    host, colon, port = place.rpartition(":")
    if not colon or not host:
        raise _wrong(text, "host or port is missing")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise _wrong(text, "an IPv6 host needs brackets, as in tcp://[::1]:5551")
    if port != "*" and (not (port.isascii() and port.isdigit()) or int(port) > _LAST_PORT):
        raise _wrong(text, f"{port!r} is not a port from 0 to {_LAST_PORT}")
    if not may_be_any and (host == "*" or not port.strip("0*")):
        raise _wrong(text, "an end that connects needs a real host and port")


def _check_ipc(address: str, text: str, *, bind: bool) -> None:
    path = address.removeprefix("ipc://")
    if path in ("", "@"):
        raise _wrong(text, "the path is missing")
    if address == _ANY_IPC and not bind:
        raise _wrong(text, "an end that connects needs a real path")
    if len(path.encode()) > _LONGEST_PATH:
        raise _wrong(text, f"the path is longer than {_LONGEST_PATH} bytes, the most that unix sockets allow")
    if "\0" in path:
        raise _wrong(text, "a path has no zero bytes")


def _wrong(text: str, what: str) -> ValueError:
    return ValueError(f"{text!r} is not an endpoint: {what}; {_EXAMPLES}")
