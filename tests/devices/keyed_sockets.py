"""Guards, keys and peers of doors with PLAIN and CURVE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import zmq
from gevent import socket as sockets
from zmq.utils.monitor import recv_monitor_message

from devices.plain_sockets import dial, eventually
from sluicemq.protocol.keys import KeyPair, encode, key_id, read_key
from sluicemq_devices.sockets import Decide, Guard, unix_path
from sluicemq_devices.zmtp import CURVE, PLAIN, Credentials, FramePeer, Message, Terms

FAILED: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(read_key(public.decode()), read_key(secret.decode()))


#: Keys of the door, or of the server that it dials; and of a client.
SERVER, CLIENT = new_pair(), new_pair()


class KeyGuard(Guard):
    """Lets in who has one of these keys, by CURVE, or one of these passwords, by PLAIN."""

    def __init__(
        self,
        allowed: Iterable[bytes] = (CLIENT.public, SERVER.public),
        passwords: dict[str, str] | None = None,
        own: KeyPair = SERVER,
        server: bytes = b"",
    ) -> None:
        self.mechanisms = frozenset({CURVE, PLAIN} if passwords else {CURVE})
        self.secret_key, self.server_key = own.secret, server
        self.allowed, self.passwords = set(allowed), passwords or {}

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        if credentials.mechanism == CURVE:
            known = credentials.key in self.allowed
            decide(credentials.key, "" if known else f"key {key_id(credentials.key)} is not allowed")
        elif self.passwords.get(credentials.user) == credentials.password:
            decide(credentials.user, "")
        else:
            decide(None, f"user {credentials.user}: a wrong password")


class LateGuard(KeyGuard):
    """Asks for decisions, which the test takes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[tuple[Credentials, Decide]] = []

    def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
        self.asked.append((credentials, decide))


#: Rule of a door that dials a server with the key of SERVER.
DIALLING = KeyGuard(own=CLIENT, server=SERVER.public)


def as_client(pair: KeyPair = CLIENT, server: bytes = SERVER.public) -> dict[str, Any]:
    """Options of a plain socket that shows this key to the server with that one."""
    keys = {"publickey": pair.public, "secretkey": pair.secret, "serverkey": server}
    return {f"curve_{name}": encode(key).encode() for name, key in keys.items()}


def as_server(pair: KeyPair = SERVER) -> dict[str, Any]:
    """Options of a plain socket that is a server of CURVE and lets everybody in."""
    return {"curve_server": 1, "curve_secretkey": encode(pair.secret).encode()}


class Events:
    """Failed handshakes of a plain socket: the event, and the code of libzmq."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._monitor = socket.get_monitor_socket(FAILED)

    def next(self) -> tuple[int, int]:
        eventually(lambda: self._monitor.poll(0))
        event = recv_monitor_message(self._monitor)
        return event["event"], event["value"]


class KeyedPeer:
    """A peer of our own make over a bare connection, which keeps all that it has sent."""

    def __init__(self, address: str, kind: str, terms: Terms = DIALLING) -> None:
        self.sent: list[bytes] = []
        self.messages: list[Message] = []
        self.socket = _dial_path(address) if address.startswith("ipc:") else dial(address)
        self.zmtp = FramePeer(kind, 64 << 20, self.say, terms, dials=True)
        self.zmtp.greet()

    def say(self, data: bytes) -> None:
        """Send bytes, sealed once the handshake is done."""
        data = self.seal(data)
        self.sent.append(data)
        self.socket.sendall(data)

    def seal(self, data: bytes) -> bytes:
        return self.zmtp.traffic.seal(data) if self.zmtp.traffic else data

    def hear(self, until: Callable[[], Any]) -> Any:
        """Read until this is true."""
        while not (value := until()):
            data = self.socket.recv(65_536)
            assert data, "the door has ended the connection"
            while data or self.zmtp.behind:
                count = self.zmtp.missing or len(data)
                self._took(self.zmtp.take(data[:count]))
                data = data[count:]
            assert not self.zmtp.error
        return value

    def open(self) -> KeyedPeer:
        self.hear(lambda: self.zmtp.ready)
        return self

    def _took(self, messages: list[Message]) -> None:
        self.messages += messages
        if self.zmtp.credentials:
            self.zmtp.decide("")
            self._took(self.zmtp.take())


def _dial_path(address: str) -> sockets.socket:
    client = sockets.socket(sockets.AF_UNIX)
    client.connect(unix_path(address))
    return client


def read_all(client: sockets.socket) -> bytes:
    """All that comes until the door ends the connection."""
    heard = b""
    try:
        while data := client.recv(65_536):
            heard += data
    except ConnectionError:
        pass
    return heard
