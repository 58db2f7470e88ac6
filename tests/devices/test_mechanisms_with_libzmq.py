"""PLAIN and CURVE over TCP with libzmq on the other side, as client and as server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from devices.mechanism_wire import DEALER, ROUTER, Wire
from sluicemq.protocol.keys import encode as z85
from sluicemq_devices.zmtp import (
    COMMAND,
    MORE,
    Credentials,
    Mechanism,
    PlainClient,
    PlainServer,
    command,
    encode,
    ping,
    ready_property,
)
from sluicemq_devices.zmtp.curve import curve_client, curve_server
from sluicemq_devices.zmtp.curve.sodium import public_of
from support.waiting import TIMEOUT

S, C = bytes(range(32)), bytes(range(32, 64))  # permanent secret keys of server and client
MOST = 16 << 20
LARGE = [b"", b"l" * (12 << 20), b"e" * 70_000, b"end"]
CLIENT_KEYS: dict[str, Any] = {
    "curve_secretkey": z85(C).encode(),
    "curve_publickey": z85(public_of(C)).encode(),
    "curve_serverkey": z85(public_of(S)).encode(),
}
SERVER_KEYS: dict[str, Any] = {"curve_server": True, "curve_secretkey": z85(S).encode()}
MINE = {"plain_username": b"anna", "plain_password": b"secret"}
FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)

Zmq = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[zmq.Context[Zmq]]:
    context: zmq.Context[Zmq] = zmq.Context()
    yield context
    context.destroy(linger=0)


@contextmanager
def their_client(
    context: zmq.Context[Zmq], mechanism: Mechanism, kind: int = zmq.DEALER, *, why: str = "", **options: Any
) -> Iterator[tuple[Wire, Zmq, Zmq]]:
    """Our server's end of a connection with a socket of libzmq, that socket, and its monitor."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = _socket(context, kind, options)
        monitor = theirs.get_monitor_socket()
        monitor.rcvtimeo = int(1000 * TIMEOUT)
        theirs.connect(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        listening.settimeout(TIMEOUT)
        with listening.accept()[0] as connection:
            yield Wire(connection, mechanism, server=True, why=why), theirs, monitor


@contextmanager
def their_server(
    context: zmq.Context[Zmq], mechanism: Mechanism, kind: int = zmq.ROUTER, **options: Any
) -> Iterator[tuple[Wire, Zmq]]:
    """Our client's end of a connection with a socket of libzmq, and that socket."""
    theirs = _socket(context, kind, options)
    port = theirs.bind_to_random_port("tcp://127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        yield Wire(connection, mechanism, server=False), theirs


def _socket(context: zmq.Context[Zmq], kind: int, options: dict[str, Any]) -> Zmq:
    theirs = context.socket(kind)
    theirs.linger, theirs.rcvtimeo, theirs.sndtimeo = 0, int(1000 * TIMEOUT), int(1000 * TIMEOUT)
    for name, value in options.items():
        setattr(theirs, name, value)
    return theirs


def metadata(kind: bytes) -> bytes:
    return ready_property(b"Socket-Type", kind)


@contextmanager
def allowing(context: zmq.Context[Zmq], configure: Callable[[ThreadAuthenticator], None]) -> Iterator[None]:
    """libzmq's sockets ask an authenticator of pyzmq who may come in."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    configure(authenticator)
    yield
    authenticator.stop()


Options = dict[str, Any]
CLIENTS: dict[str, tuple[Callable[[], Mechanism], Options]] = {
    "PLAIN": (lambda: PlainServer(ROUTER), MINE),
    "CURVE": (lambda: curve_server(ROUTER, MOST, S), CLIENT_KEYS),
}
SERVERS: dict[str, tuple[Callable[[], Mechanism], Options]] = {
    "PLAIN": (lambda: PlainClient(DEALER, "anna", "secret"), {"plain_server": True}),
    "CURVE": (lambda: curve_client(DEALER, MOST, C, public_of(S)), SERVER_KEYS),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_of_libzmq_exchanges_messages(context: zmq.Context[Zmq], name: str) -> None:
    make, options = CLIENTS[name]
    with their_client(context, make(), **options) as (ours, theirs, _):
        for message in ([b"hello"], [b"", b"a", b"b" * 256], LARGE, [b""]):
            theirs.send_multipart(message)
            assert ours.message() == message
            ours.send(*message)
            assert theirs.recv_multipart() == message


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_of_libzmq_exchanges_messages(context: zmq.Context[Zmq], name: str) -> None:
    make, options = SERVERS[name]
    with ExitStack() as stack:
        if name == "PLAIN":
            passwords = {"anna": "secret"}
            stack.enter_context(allowing(context, lambda who: who.configure_plain("*", passwords)))
        ours, theirs = stack.enter_context(their_server(context, make(), **options))
        for message in ([b"hello"], [b"", b"a", b"b" * 256], LARGE, [b""]):
            ours.send(*message)
            peer, *came = theirs.recv_multipart()
            assert came == message
            theirs.send_multipart([peer, *message])
            assert ours.message() == message


def test_credentials_of_libzmq_are_seen(context: zmq.Context[Zmq]) -> None:
    for name, seen in (
        ("PLAIN", Credentials("PLAIN", user="anna", password="secret")),  # noqa: S106
        ("CURVE", Credentials("CURVE", key=public_of(C))),
    ):
        make, options = CLIENTS[name]
        with their_client(context, make(), **options) as (ours, _, _):
            assert ours.mechanism.credentials == seen


@pytest.mark.parametrize(
    ("name", "failed", "code"),
    [
        ("CURVE", zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400),
        ("PLAIN", zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_UNEXPECTED_COMMAND),
    ],
)
def test_libzmq_reports_a_refusal(context: zmq.Context[Zmq], name: str, failed: int, code: int) -> None:
    make, options = CLIENTS[name]
    with their_client(context, make(), why="it is unknown", **options) as (_, _, monitor):
        event = recv_monitor_message(monitor)
        while event["event"] not in FAILURES:
            event = recv_monitor_message(monitor)
        assert (event["event"], event["value"]) == (failed, code)


@pytest.mark.parametrize("name", SERVERS)
def test_a_refusal_of_libzmq_is_understood(context: zmq.Context[Zmq], name: str) -> None:
    make, options = SERVERS[name]

    def refuse(who: ThreadAuthenticator) -> None:
        who.configure_plain("*", {"anna": "another"})
        who.configure_curve_callback("*", credentials_provider=Nobody())

    with allowing(context, refuse), their_server(context, make(), **options) as (ours, _):
        assert ours.mechanism.error == "it says ERROR: '400'"


class Nobody:
    """Admits no key."""

    def callback(self, _domain: str, _key: bytes) -> bool:
        return False


def test_libzmq_with_another_server_key_is_refused(context: zmq.Context[Zmq]) -> None:
    options = CLIENT_KEYS | {"curve_serverkey": z85(public_of(C)).encode()}
    with their_client(context, curve_server(ROUTER, MOST, S), **options) as (ours, _, _):
        assert "made for another key" in ours.mechanism.error


def test_heartbeats_are_sealed(context: zmq.Context[Zmq]) -> None:
    make, options = CLIENTS["CURVE"]
    with their_client(context, make(), heartbeat_ivl=50, **options) as (ours, theirs, _):
        assert ours.receive() == [(COMMAND, b"\x04PING\0\0")]
        ours.say(ping(b"context"))
        while (heard := ours.receive()) != [(COMMAND, b"\x04PONGcontext")]:
            assert heard == [(COMMAND, b"\x04PING\0\0")]
        ours.say(encode([b"a", b"b"]))
        assert theirs.recv_multipart() == [b"a", b"b"]


def test_subscriptions_are_sealed(context: zmq.Context[Zmq]) -> None:
    server = curve_server(metadata(b"XPUB"), MOST, S)
    with their_client(context, server, zmq.SUB, subscribe=b"weather", **CLIENT_KEYS) as (ours, theirs, _):
        assert ours.receive() == [(COMMAND, b"\x09SUBSCRIBEweather")]
        theirs.unsubscribe(b"weather")
        assert ours.receive() == [(COMMAND, b"\x06CANCELweather")]
        theirs.subscribe(b"")
        assert ours.receive() == [(COMMAND, b"\x09SUBSCRIBE")]
        ours.send(b"weather", b"rain")
        assert theirs.recv_multipart() == [b"weather", b"rain"]


def test_our_subscriptions_are_understood(context: zmq.Context[Zmq]) -> None:
    client = curve_client(metadata(b"XSUB"), MOST, C, public_of(S))
    with their_server(context, client, zmq.XPUB, **SERVER_KEYS) as (ours, theirs):
        ours.say(command(b"SUBSCRIBE", b"weather"))
        assert theirs.recv() == b"\x01weather"
        theirs.send_multipart([b"weather", b"rain"])
        assert ours.receive() == [(MORE, b"weather"), (0, b"rain")]


def test_many_messages_at_once_come_in_order(context: zmq.Context[Zmq]) -> None:
    make, options = CLIENTS["CURVE"]
    with their_client(context, make(), **options) as (ours, theirs, _):
        for number in range(2000):
            theirs.send(b"%d" % number * (number % 80))
        for number in range(2000):
            assert ours.message() == [b"%d" % number * (number % 80)]
        for number in range(2000):
            ours.send(b"%d" % number * (number % 80))
        for number in range(2000):
            assert theirs.recv() == b"%d" % number * (number % 80)
