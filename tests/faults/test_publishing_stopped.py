"""Brokers that stop store first what their doors have read."""

from __future__ import annotations

import signal
import threading

import pytest

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Message, Producer, Reader
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.raw_sockets import shake_hands
from support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

STREAM = "orders"
_STORED = (f"stream.{STREAM}", "queue.mail")
SETTINGS = {"broker": {"poll": 0.5}}


def test_what_a_pub_socket_gave_the_kernel_is_stored_by_a_stop(mongo_uri: str, database: str) -> None:
    count = 20_000
    ends = {"frontend": tcp(), "backend": tcp()}
    device = {"kind": "forwarder", "stream": STREAM, "hwm": 200, **ends}  # read as it is stored
    with BrokerProcess(mongo_uri, database, config={**SETTINGS, "devices": [device]}) as broker:
        with shake_hands(broker.doors["pub"], b"PUB") as pub:
            pub.sendall(b"".join(b"\x01\x01a\x00\x08%08d" % number for number in range(count)))
            assert broker.terminate() == 0  # it is in the buffers of both ends by now, most of it unread
        broker.restart()
        found = all_of(broker)
    assert [job.payload for job in found] == [b"%08d" % number for number in range(count)]


def frames(device: str, number: int) -> bytes:
    """As PUB and PUSH sockets send them, 16 KiB of zeros behind the number."""
    body = b"%08d" % number + bytes(1 << 14)
    return (b"\x01\x01a" if device == "forwarder" else b"") + b"\x02" + len(body).to_bytes(8) + body


@pytest.mark.parametrize(
    ("device", "door", "kind"), [("forwarder", "pub", b"PUB"), ("streamer", "push", b"PUSH")]
)
def test_a_stopping_broker_reads_on_when_a_slow_mongodb_has_stored_what_held_its_doors_back(
    mongo_uri: str, database: str, device: str, door: str, kind: bytes
) -> None:
    # Given doors that take in a few messages, and a MongoDB that takes longer than a broker looks for more
    count = 40
    of_kind = {"stream": STREAM, "backend": tcp()} if device == "forwarder" else {"queue": "mail"}
    ends = {"kind": device, "hwm": 4, "frontend": tcp(), **of_kind}
    with CuttingProxy(mongo_uri) as proxy:
        slow = proxy.slow(lambda command: command.name == "insert" and command.collection in _STORED, 0.3)
        with BrokerProcess(proxy.uri, database, config={**SETTINGS, "devices": [ends]}) as broker:
            # When it stops while most lies in the buffers of the sockets
            with shake_hands(broker.doors[door], kind) as producer:
                producer.sendall(b"".join(frames(device, number) for number in range(count)))
                assert broker.terminate() == 0
            slow.stop()
            broker.restart()
            if device == "forwarder":
                found = [job.payload[:8] for job in all_of(broker)]
            else:
                with Client(endpoint=broker.doors["smq"]) as client:
                    found = [row["payload"][:8] for row in client.peek("mail", "ready", count)]
    assert found == [b"%08d" % number for number in range(count)]


def test_a_stopping_broker_reads_on_when_what_others_sent_has_left_memory_for_large_messages(
    mongo_uri: str, database: str
) -> None:
    # Given a job of the library that takes all memory for what is not stored, for longer than a look
    count, size, stored = 5, 200_000, threading.Event()
    ends = {"kind": "streamer", "queue": "mail", "frontend": tcp()}
    config = {"broker": {**SETTINGS["broker"], "hwm_bytes": 1 << 20}, "devices": [ends]}
    with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database, config=config) as broker:
        with (
            Producer(endpoint=broker.doors["smq"]) as library,
            Client(endpoint=broker.doors["smq"]) as client,
        ):
            library.push("large", b"first").wait(TIMEOUT)
            proxy.before(_is_large, lambda: stored.wait(TIMEOUT))
            library.push("large", bytes(2 << 20))
            wait_until(lambda: client.counters()["broker"]["storing"], what="the large job on its way")
            # When it stops while most of what a PUSH socket has sent lies in buffers
            with shake_hands(broker.doors["push"], b"PUSH") as producer:
                bodies = [b"%08d" % number + bytes(size) for number in range(count)]
                sent = b"".join(b"\x02" + len(body).to_bytes(8) + body for body in bodies)
                producer.sendall(sent[: size // 2])
                wait_until(lambda: client.counters().counters.get("large_messages_waited"), what="no room")
                producer.sendall(sent[size // 2 :])
                broker.send_signal(signal.SIGTERM)
                wait_until(lambda: "stopping" in broker.log_text(), what="its stop")
                threading.Event().wait(2)  # longer than it looks for more, and than a door takes to close
                stored.set()
                assert broker.terminate() == 0
        broker.restart()
        with Client(endpoint=broker.doors["smq"]) as client:
            found = [row["payload"][:8] for row in client.peek("mail", "ready", count)]
    assert found == [b"%08d" % number for number in range(count)]


def _is_large(command: Command) -> bool:
    return command.name == "insert" and command.collection == "queue.large"


def all_of(broker: BrokerProcess) -> list[Message]:
    with Reader(STREAM, endpoint=broker.doors["smq"]) as reader:
        return list(reader)
