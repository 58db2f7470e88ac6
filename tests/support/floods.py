"""Floods of strangers at a broker with keys, passwords and TLS: what they send, and the broker for them."""

import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sluicemq.protocol.keys import KEY_BYTES, KeyPair, encode, read_key, read_key_file, write_key_file
from sluicemq_broker.security import hash_password
from sluicemq_devices.zmtp.curve.client import CurveClient
from sluicemq_devices.zmtp.curve.sodium import public_of
from support.broker_process import BrokerProcess
from support.certificates import Authority

HALF = 2000  # connections that stop within their handshake
PASSWORD = "the right one"  # noqa: S105 - of the principal admin
PROCESSES, _AT_ONCE = 2, 50  # of a flood; connections of each that show keys or passwords
_PATIENCE = 60.0  # seconds
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"


class Event(Protocol):
    """The end of a flood, in this process or in another one."""

    def is_set(self) -> bool: ...
    def wait(self) -> object: ...


class Target(NamedTuple):
    """Addresses of the doors, and the broker's public key."""

    door: tuple[str, int]
    http: tuple[str, int]
    server_key: bytes


def greeting(mechanism: bytes) -> bytes:
    """Return a client's greeting."""
    return _GREETING + mechanism.ljust(20, b"\0") + bytes(32)


def curve(target: Target) -> CurveClient:
    """Return a client whose key nobody knows."""
    own = secrets.token_bytes(KEY_BYTES)
    return CurveClient(_METADATA, 1 << 20, own, target.server_key)


_METADATA = b"\x0bSocket-Type\0\0\0\x06DEALER"


def silent(target: Target) -> bytes:
    """Return nothing."""
    return b""


def greeted(target: Target) -> bytes:
    """Return a greeting without a command."""
    return greeting(b"CURVE")


def said_hello(target: Target) -> bytes:
    """Return a greeting and a HELLO that costs the server curve work."""
    return greeting(b"CURVE") + curve(target).begin()


def hold(said: Callable[[Target], bytes], target: Target, until: Event) -> None:
    """Hold half handshakes; each that is ended is begun again."""
    _hold(target.door, lambda: said(target), until)


def slow_tls(target: Target, until: Event) -> None:
    """Hold connections to HTTP that have sent the first bytes of TLS, and say nothing more."""
    _hold(target.http, lambda: b"\x16\x03\x01\x02", until)


def _hold(address: tuple[str, int], said: Callable[[], bytes], until: Event) -> None:
    """Hold a part of the connections; each that is ended is begun again."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    there: list[socket.socket] = []
    while not until.is_set():
        there = [peer for peer in there if not _has_ended(peer)]
        while len(there) < HALF // PROCESSES and not until.is_set():
            with suppress(OSError):
                there.append(one := socket.create_connection(address))
                one.sendall(said())
                one.settimeout(0)
        time.sleep(0.01)
    for peer in there:
        peer.close()


def bad_keys(target: Target, until: Event) -> None:
    """Show one unknown key after the other, each in a whole handshake."""
    at_once(_show_keys, target, until)


def at_once(work: Callable[[Target, Event], None], target: Target, until: Event) -> None:
    """Do the same on many connections."""
    threads = [threading.Thread(target=work, args=(target, until), daemon=True) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    until.wait()
    for thread in threads:
        thread.join(_PATIENCE)


def _show_keys(target: Target, until: Event) -> None:
    while not until.is_set():
        with suppress(OSError), socket.create_connection(target.door) as one:
            client = curve(target)
            one.sendall(greeting(b"CURVE") + client.begin())
            heard = _hear(one, 64 + 170)
            one.sendall(client.take(heard[66:234]))
            _hear_all(one)


def bad_passwords(target: Target, until: Event) -> None:
    """Show one wrong password after the other."""
    at_once(_show_passwords, target, until)


def _show_passwords(target: Target, until: Event) -> None:
    while not until.is_set():
        with suppress(OSError), socket.create_connection(target.door) as one:
            password = secrets.token_hex(8).encode()
            body = b"\x05HELLO\x05admin" + bytes([len(password)]) + password
            one.sendall(greeting(b"PLAIN") + b"\x04" + bytes([len(body)]) + body)
            _hear_all(one)


def comings(target: Target, until: Event) -> None:
    """Connect and leave without end."""
    while not until.is_set():
        with suppress(OSError):
            socket.create_connection(target.door).close()


FLOODS: dict[str, Callable[[Target, Event], None]] = {
    "2000 that say nothing": lambda *place: hold(silent, *place),
    "2000 after the greeting": lambda *place: hold(greeted, *place),
    "2000 after HELLO": lambda *place: hold(said_hello, *place),
    "bad keys": bad_keys,
    "bad passwords": bad_passwords,
    "connect and leave": comings,
    "slow TLS": slow_tls,
}


def _has_ended(one: socket.socket) -> bool:
    try:
        while data := one.recv(4096):
            del data
    except BlockingIOError:
        return False
    except OSError:
        pass
    one.close()
    return True


def _hear(one: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        data = one.recv(4096)
        if not data:
            raise ConnectionError
        heard += data
    return heard


def _hear_all(one: socket.socket) -> None:
    one.settimeout(_PATIENCE)
    while one.recv(4096):
        pass


@contextmanager
def serving(
    folder: Path, *mongo: str, **settings: Any
) -> Iterator[tuple[BrokerProcess, Target, dict[str, Any]]]:
    """Start a broker with keys; its addresses, and how the honest client gets in.

    ``mongo``: URI and database, its own MongoDB by default; ``settings`` of ``[broker]``.
    """
    for name in ("broker", "admin"):
        secret = secrets.token_bytes(KEY_BYTES)
        write_key_file(folder / f"{name}.key", KeyPair(public_of(secret), secret))
    server_key, admin = (public_in(folder / f"{name}.key") for name in ("broker", "admin"))
    certificate = Authority(folder).certificate("127.0.0.1")
    config = {
        "broker": {
            **settings,
            "http": "127.0.0.1:0",
            "http_tls_cert": str(certificate.chain),
            "http_tls_key": str(certificate.key),
        },
        "devices": [],
        "security": {
            "mechanism": ["curve", "plain"],
            "secret_key_file": str(folder / "broker.key"),
            "principals": {
                "admin": {"keys": [admin], "password": hash_password(PASSWORD), "permissions": "all"}
            },
        },
    }
    with BrokerProcess(*mongo, config=config) as broker:
        target = Target(_place(broker.doors["smq"]), _place(broker.http), read_key(server_key))
        yield broker, target, {"key_file": folder / "admin.key", "server_key": server_key}


def public_in(file: Path) -> str:
    """Return the public key of a key file."""
    return encode(read_key_file(file).public)


def _place(address: str) -> tuple[str, int]:
    host, port = address.rpartition("//")[2].rsplit(":", 1)
    return host, int(port)
