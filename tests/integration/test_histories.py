"""The history of streams and devices: what brokers that share a database have counted adds up."""

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
import zmq

from sluicemq import BadFramesError, BadStreamError, Client, Publisher, Reader
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving
from support.http_reader import Web
from support.raw_sockets import receive
from support.waiting import wait_until

STREAMER = {"kind": "streamer", "queue": "mail", "frontend": ANY_PORT, "backend": ANY_PORT}
POPS = {"kind": "streamer", "queue": "pops", "ack": "auto", "frontend": ANY_PORT, "backend": ANY_PORT}
ASKED = {"kind": "queue", "queue": "sums", "frontend": ANY_PORT, "backend": ANY_PORT}
PRICES = {"kind": "forwarder", "stream": "prices", "frontend": ANY_PORT, "backend": ANY_PORT}
RELAY = {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT}
#: Two of one kind and queue count as one.
DEVICES: list[dict[str, Any]] = [STREAMER, STREAMER, ASKED, PRICES, RELAY, POPS]


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[list[BrokerUnderTest]]:
    """Two that share a database, at which all has happened; both have stopped since, and one is back."""
    shared: dict[str, Any] = {"database": f"test_{token_hex(6)}", "history": True, "http": "127.0.0.1:0"}
    with serving(mongo_uri, DEVICES, **shared) as one, serving(mongo_uri, DEVICES, **shared) as other:
        _publish_and_read(one.doors["smq"], 5, 5)
        _publish_and_read(other.doors["smq"], 3, 8)
        for broker in (one, other):
            _push_and_pull(broker, broker.process.devices[0], 4)
        _push_and_pull(one, one.process.devices[1], 2)
        _push_and_pull(one, one.process.devices[5], 3)
        _ask(one, one.process.devices[2])
        for number in (3, 4):
            _forward(one, one.process.devices[number], 10)
        one.close_sockets()
        other.close_sockets()
        other.process.terminate()
        one.process.terminate()
        one.process.restart()
        yield [one, other]


@pytest.fixture
def one(brokers: list[BrokerUnderTest]) -> BrokerProcess:
    return brokers[0].process


@pytest.fixture
def client(one: BrokerProcess) -> Iterator[Client]:
    with Client(endpoint=one.doors["smq"]) as client:
        yield client


def _publish_and_read(endpoint: str, count: int, there: int) -> None:
    with Publisher(endpoint=endpoint) as publisher:
        for number in range(count):
            publisher.publish("orders", "new", b"%d" % number, id=None)
    with Reader("orders", endpoint=endpoint) as reader:
        assert len(list(reader)) == there


def _push_and_pull(broker: BrokerUnderTest, device: dict[str, Any], count: int) -> None:
    push, pull = (
        broker.socket(kind, device[end][0]) for kind, end in ((zmq.PUSH, "frontend"), (zmq.PULL, "backend"))
    )
    for _ in range(count):
        push.send(b"job")
    for _ in range(count):
        receive(pull)
    # Not before: what a worker that has left had not confirmed is sent to another one.
    wait_until(lambda: not broker.counts(device["queue"]), what="the jobs' end")
    pull.close()


def _ask(broker: BrokerUnderTest, device: dict[str, Any]) -> None:
    asker, worker = (
        broker.socket(kind, device[end][0]) for kind, end in ((zmq.REQ, "frontend"), (zmq.REP, "backend"))
    )
    asker.send(b"1 + 1")
    receive(worker)
    worker.send(b"2")
    assert receive(asker) == [b"2"]


def _forward(broker: BrokerUnderTest, device: dict[str, Any], count: int) -> None:
    pub, sub = (
        broker.socket(kind, device[end][0]) for kind, end in ((zmq.PUB, "frontend"), (zmq.SUB, "backend"))
    )
    sub.subscribe(b"")

    def heard() -> bool:
        pub.send_multipart([b"mark", b""])
        return bool(sub.poll(50))

    wait_until(heard, what="the subscriber")
    for _ in range(count):
        pub.send_multipart([b"price", b"1.08"])
    for _ in range(count):
        while receive(sub)[0] != b"price":
            pass


def test_what_streams_have_stored_and_given_adds_up(client: Client) -> None:
    told = client.history(stream="orders")
    assert (told["subject"], told["name"]) == ("stream", "orders")
    total = told["total"]
    assert (total["published"], total["messages_read"]) == (8, 13)
    assert 0 < total["published_bytes"] < total["read_bytes"]
    assert sum(row["counted"]["published"] for row in told["points"]) == 8
    assert client.history(broker="*")["total"]["published"] >= 8
    for span in ("hour", "day"):
        assert client.history(stream="orders", span=span)["total"] == total


def test_devices_of_one_kind_and_queue_count_together(client: Client) -> None:
    total = client.history(device="streamer.mail")["total"]
    assert (total["received"], total["sent"]) == (10, 10)
    total = client.history(device="streamer.pops")["total"]
    assert (total["received"], total["sent"]) == (3, 3)
    total = client.history(device="queue.sums")["total"]
    assert (total["received"], total["sent"]) == (1, 1)


@pytest.mark.parametrize("name", ["forwarder.prices", "forwarder"])
def test_a_forwarder_counts_what_it_takes_and_gives(client: Client, name: str) -> None:
    total = client.history(device=name)["total"]
    assert 10 < total["sent"] <= total["received"]
    assert "lost" not in total


def test_a_stream_counts_what_its_publishers_sent(client: Client) -> None:
    device, stream = (
        client.history(**of)["total"] for of in ({"device": "forwarder.prices"}, {"stream": "prices"})
    )
    assert device["received"] == stream["received_published"] == stream["published"]


@pytest.mark.parametrize("path", ["stream/orders", "device/streamer.mail"])
def test_the_api_tells_the_same(one: BrokerProcess, client: Client, path: str) -> None:
    kind, name = path.split("/")
    told = client.history(**{kind: name})
    answer = Web(one.http).get(f"/api/v1/history/{path}?span=minute")
    assert {**answer.json, "until": 0} == {**told, "until": 0}


def test_devices_and_streams_are_in_metrics_and_the_list_of_devices(brokers: list[BrokerUnderTest]) -> None:
    # Given: the one that is back has counted nothing yet
    one = brokers[0]
    doors = one.process.devices[1]
    _push_and_pull(one, doors, 3)
    one.close_sockets()
    web = Web(one.process.http)
    found = wait_until(
        lambda: next(
            (row for row in web.get("/api/v1/devices").json["devices"] if row["counted"]["sent"]), None
        )
    )
    assert (found["name"], found["counted"]) == (
        "streamer.mail",
        {"received": 3, "sent": 3, "lost": 0, "paused": 0},
    )
    text = wait_until(
        lambda: 'sent_messages_total{device="1",kind="streamer",queue="mail"} 3.0' in (
            text := web.get("/metrics").body.decode()
        ) and text,
        what="the scrape",
    )  # fmt: skip
    assert 'sluicemq_device_paused_seconds_total{device="1",kind="streamer",queue="mail"} 0.0' in text
    assert 'sluicemq_published_total{stream="*"}' in text


def test_a_history_is_of_one_thing_that_can_be(client: Client) -> None:
    for wrong in ({}, {"stream": "a", "device": "b"}):
        with pytest.raises(TypeError, match="of one"):
            client.history(**wrong)
    with pytest.raises(BadStreamError):
        client.history(stream="no/name")
    with pytest.raises(BadFramesError, match="queue or broker or kind or stream or device"):
        client._asker.ask(b"HISTORY", "plant", "x", None, "day")
    assert client.history(device="streamer.nobody")["points"] == []
