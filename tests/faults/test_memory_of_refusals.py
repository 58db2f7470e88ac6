"""What is refused, or left half said, takes no memory: the broker is as large as before."""

import socket as sockets
from collections.abc import Iterator

import psutil
import pytest
import zmq

from sluicemq.protocol import wire
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.raw_sockets import code, receive, shake_hands

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full

MIB = 2**20
CLIENTS, EACH = 3, 50  # so many MiB are sent, and may not be kept; one that errs 100 times is cut
MANY = CLIENTS * EACH
GROWTH = 50 * MIB
BAD = {"priority": "x"}


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(pop=1, ask=1)) as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """A broker that is not larger after the test than before."""
    before = memory(shared)
    yield shared
    shared.close_sockets()
    assert shared.serves()
    assert memory(shared) < before + GROWTH


def memory(broker: BrokerUnderTest) -> int:
    return int(psutil.Process(broker.process.pid).memory_info().rss)


def test_large_jobs_that_are_refused_at_the_library_s_door(broker: BrokerUnderTest) -> None:
    for library in [broker.smq() for _ in range(CLIENTS)]:
        for _ in range(EACH):
            [refusal] = library.ask(wire.PUSH, "q", [[None, bytes(MIB), BAD]]).fields[0]
            assert refusal[1] == "BAD_HEADERS"


def test_large_requests_that_are_refused(broker: BrokerUnderTest) -> None:
    front = broker.take("ask").front
    for asker in [broker.socket(zmq.REQ, front) for _ in range(CLIENTS)]:
        for _ in range(EACH):
            asker.send_multipart([b"", b'{"priority": "x"}', bytes(MIB)])
            assert code(receive(asker)) == "BAD_HEADERS"


def test_large_messages_of_a_verb_that_is_none(broker: BrokerUnderTest) -> None:
    body = wire.encode(wire.PUSH, 0, bytes(MIB))[2]
    for library in [broker.smq() for _ in range(CLIENTS)]:
        for _ in range(EACH):
            assert library.say(b"SMQ1", b"NONE", body).fields[0] == "BAD_FRAMES"


def test_clients_that_leave_within_a_large_message(broker: BrokerUnderTest) -> None:
    door = broker.take("pop").front
    host, port = door.removeprefix("tcp://").rsplit(":", 1)
    for _ in range(MANY):
        with sockets.create_connection((host, int(port))) as client:
            client.sendall(GREETING + READY + b"\x02" + MIB.to_bytes(8) + bytes(MIB - 1))
            client.shutdown(sockets.SHUT_WR)
            while client.recv(1000):  # until the broker hangs up, having read it all
                pass


def test_headers_that_name_a_mebibyte(broker: BrokerUnderTest) -> None:
    before = memory(broker)
    address = broker.doors["smq"]
    crowd = [shake_hands(address, b"DEALER") for _ in range(300)]
    for peer in crowd:
        peer.sendall(b"\x02" + MIB.to_bytes(8))
    broker.smq().ask(wire.PING)  # after them
    assert memory(broker) < before + GROWTH
    for peer in crowd:
        peer.close()


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
