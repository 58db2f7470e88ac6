"""The connection against brokers that die, come back, fall silent, or are no brokers."""

import re
import threading
from typing import Any

import pytest
import zmq

from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
from sluicemq import (
    BadVersionError,
    Client,
    Job,
    LeaseLostError,
    Producer,
    TimeoutError,
    UnavailableError,
    Worker,
)
from sluicemq.protocol import wire
from sluicemq.transport.link import Link
from sluicemq.transport.native import Wakeup
from support.traces import traced
from support.waiting import wait_until


def test_unconfirmed_pushes_are_repeated_in_order_when_the_broker_is_back(broker: ScriptedBroker) -> None:
    # Given: messages on their way, none confirmed
    broker.on[wire.PUSH] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        first = [producer.push("q", b"%d" % number) for number in range(600)]
        before = [row for message in broker.wait_for(wire.PUSH, 2) for row in message.fields[1]]
        # When: it dies, more is pushed, and it comes back on the same port
        broker.stop()
        second = [producer.push("q", b"%d" % number) for number in range(600, 1000)]
        broker.on[wire.PUSH] = lambda _message: []
        broker.received.clear()
        broker.start()
        for receipt in first + second:
            receipt.wait(SECONDS)
    assert broker.pushed() == [(r.id, b"%d" % number) for number, r in enumerate(first + second)]
    assert [row[0] for row in before] == [receipt.id for receipt in first[: len(before)]]


def test_hello_comes_first_on_every_connection(broker: ScriptedBroker) -> None:
    with Client(endpoint=broker.endpoint) as client:
        client.ping(SECONDS)
        broker.stop()
        broker.start()
        client.ping(SECONDS)
    peers = {message.peer for message in broker.received}
    firsts = [next(m for m in broker.received if m.peer == peer) for peer in peers]
    assert len(peers) == 2
    assert [message.verb for message in firsts] == [wire.HELLO, wire.HELLO]
    assert firsts[0].fields[0]["client"] == "python"


def test_a_restart_is_noticed_by_the_cut_connection_not_only_by_silence() -> None:
    # Given: a broker that would have to be silent for a minute
    broker = ScriptedBroker(silence=60.0).start()
    try:
        with Client(endpoint=broker.endpoint) as client:
            client.ping(SECONDS)
            broker.stop()
            broker.start()
            client.ping(SECONDS)
    finally:
        broker.stop()


def test_a_broker_that_falls_silent_is_left_and_greeted_anew(broker: ScriptedBroker) -> None:
    broker.hello |= {"heartbeat": 60.0, "silence": 2.0}
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", b"one").wait(SECONDS)
        # When: it answers nothing more, though its TCP connection stands
        answers = iter([SILENCE, []])
        broker.on[wire.PUSH] = lambda _message: next(answers)
        producer.push("q", b"two", id="two").wait(SECONDS)
    # Then: it was said again, to the new connection
    repeats = [m.peer for m in broker.of(wire.PUSH) if m.fields[1][0][0] == "two"]
    assert len(repeats) == len(set(repeats)) == 2


def test_a_client_with_nothing_to_say_sends_a_ping_every_heartbeat(broker: ScriptedBroker) -> None:
    with Client(endpoint=broker.endpoint):
        broker.wait_for(wire.PING, 3)
    assert len(broker.of(wire.HELLO)) == 1


def test_questions_asked_without_a_broker_are_answered_by_the_next(broker: ScriptedBroker) -> None:
    broker.stop()
    broker.on[wire.STATS] = lambda _message: {"broker": {"id": "b"}, "counters": {}, "queues": []}
    with Client(timeout=SECONDS, endpoint=broker.endpoint) as client:
        answers: list[Any] = []
        asker = threading.Thread(target=lambda: answers.append(client.stats()))
        asker.start()
        broker.start()
        asker.join(SECONDS)
        assert [answer.broker for answer in answers] == [{"id": "b"}]


def test_a_read_is_asked_again_after_a_lost_connection_but_a_removal_is_not(broker: ScriptedBroker) -> None:
    broker.on[wire.QUEUES] = broker.on[wire.PURGE] = lambda _message: SILENCE
    results: dict[str, Any] = {}

    def run(name: str, call: Any) -> None:
        try:
            results[name] = call()
        except UnavailableError as error:
            results[name] = error

    with Client(timeout=SECONDS, endpoint=broker.endpoint) as client:
        calls = {"queues": client.queues, "purge": lambda: client.queues.purge("q").result()}
        threads = [threading.Thread(target=run, args=item) for item in calls.items()]
        for thread in threads:
            thread.start()
        broker.wait_for(wire.QUEUES)
        broker.wait_for(wire.PURGE)
        broker.stop()
        broker.on[wire.QUEUES] = lambda _message: [{"name": "q"}]
        broker.start()
        for thread in threads:
            thread.join(SECONDS)
    assert results["queues"] == [{"name": "q"}]
    assert isinstance(results["purge"], UnavailableError)
    assert len(broker.of(wire.PURGE)) == 1


def test_no_broker_is_a_time_out_that_says_so() -> None:
    nobody = ScriptedBroker().start()
    nobody.stop()
    with (
        Client(endpoint=nobody.endpoint) as client,
        pytest.raises(TimeoutError, match="no broker answers at tcp://127"),
    ):
        client.ping(0.1)


def test_a_client_without_patience_raises_at_once_where_nobody_listens() -> None:
    nobody = ScriptedBroker().start()
    nobody.stop()
    with (
        Client(wait=False, endpoint=nobody.endpoint) as client,
        pytest.raises(UnavailableError, match="no broker answers"),
    ):
        client.ping(SECONDS)


def test_a_client_without_patience_comes_back_to_a_broker_that_was_there(broker: ScriptedBroker) -> None:
    with Client(wait=False, endpoint=broker.endpoint) as client:
        client.ping(SECONDS)
        broker.stop()
        with pytest.raises(TimeoutError):
            client.ping(0.3)
        broker.start()
        client.ping(SECONDS)


def test_that_there_is_no_broker_is_told_once_and_not_as_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    nobody = ScriptedBroker().start()
    nobody.stop()

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if nobody.endpoint in line]

    # When: many tries, of which the library hears through its monitor
    with Client(endpoint=nobody.endpoint) as client:
        wait_until(told, SECONDS)
        with pytest.raises(TimeoutError):
            client.ping(0.6)
    assert told() == [f"can't reach {nobody.endpoint}: is a broker running there?"]


@pytest.mark.parametrize("kind", [zmq.PULL, zmq.REP])
def test_a_door_of_another_kind_is_told_from_nobody(kind: int) -> None:
    with zmq.Context() as context, context.socket(kind) as door:
        port = door.bind_to_random_port("tcp://127.0.0.1")
        # Either end may find out first that they don't fit, and hang up.
        with Client(endpoint=f"tcp://127.0.0.1:{port}") as client:
            wait_until(lambda: re.search(r"something answers at .* (as an|or no) SMQ/1 door", why(client)))


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "heard before the monitor"])
def test_another_protocol_is_told_from_nobody(monkeypatch: pytest.MonkeyPatch, *, watched: bool) -> None:
    if not watched:
        monkeypatch.setattr(Link, "broken", lambda _link: False)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as door:
        port = door.bind_to_random_port("tcp://127.0.0.1")
        with Client(endpoint=f"tcp://127.0.0.1:{port}") as client:
            peer = door.recv_multipart()[0]
            door.send_multipart([peer, b"", b"no such request"])
            said = r"something answers at .* it does not greet as an SMQ/1 door"
            wait_until(lambda: re.search(said, why(client)))


def why(client: Client) -> str:
    """What a ping that nobody answers in time says; who answers at all is heard of a little later."""
    with pytest.raises(TimeoutError) as error:
        client.ping(0.3)
    return str(error.value)


def test_an_unanswered_question_is_a_time_out_that_says_so(broker: ScriptedBroker) -> None:
    broker.on[wire.STATS] = lambda _message: SILENCE
    with Client(timeout=0.3, endpoint=broker.endpoint) as client:
        client.ping(SECONDS)
        with pytest.raises(TimeoutError, match="no answer to STATS"):
            client.stats()


def test_a_broker_of_another_version_ends_everything_with_its_error(broker: ScriptedBroker) -> None:
    broker.on[wire.HELLO] = lambda _message: BadVersionError("I speak SMQ/2")
    # When, Then
    with Client(endpoint=broker.endpoint) as client, pytest.raises(BadVersionError, match="SMQ/2"):
        client.ping(SECONDS)
    producer = Producer(endpoint=broker.endpoint)
    with pytest.raises(BadVersionError):
        producer.push("q", b"").wait(SECONDS)
    with pytest.raises(BadVersionError):
        producer.push("q", b"")
    producer.close()
    with pytest.raises(BadVersionError):
        Worker("q", lambda _job: None, endpoint=broker.endpoint).run()


def test_a_broker_that_is_still_starting_is_greeted_again(broker: ScriptedBroker) -> None:
    answers = iter([UnavailableError("starting"), UnavailableError("starting"), broker.hello])
    broker.on[wire.HELLO] = lambda _message: next(answers)
    with Client(endpoint=broker.endpoint) as client:
        client.ping(SECONDS)
    assert len(broker.of(wire.HELLO)) == 3


def test_a_peer_that_sends_garbage_is_left_and_tried_again(broker: ScriptedBroker) -> None:
    with Client(endpoint=broker.endpoint) as client:
        client.ping(SECONDS)
        broker.send(broker.received[0].peer, [b"garbage"])
        broker.wait_for(wire.HELLO, 2)
        client.ping(SECONDS)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:5550", "http://host", "tcp://*:5550", ""])
def test_what_is_no_endpoint_is_refused_with_what_to_write(endpoint: str) -> None:
    with pytest.raises(ValueError, match="tcp://HOST:PORT"):
        Client(endpoint=endpoint)


def test_a_worker_asks_again_and_drops_what_a_lost_connection_delivered(broker: ScriptedBroker) -> None:
    # Given: one job running, one more in the worker's hands
    started, go_on = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def handler(job: Job) -> None:
        seen.append(job.payload)
        started.set()
        assert go_on.wait(SECONDS)

    with Worker("q", handler, prefetch=2, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"running", b"dropped"])
        assert started.wait(SECONDS)
        broker.stop()
        broker.start()
        asked = broker.wait_for(wire.READY, 2)[1]
        go_on.set()
        ready = broker.wait_for(wire.READY, 3)[2]
        broker.deliver(ready.peer, "q", [b"new"])
        broker.wait_for(wire.SETTLE)
    # Then: nothing was asked for while its only thread was busy; no verdict on the void job, and the dropped
    # one never ran
    assert asked.fields[:2] == ["q", 0]
    assert ready.fields[:2] == ["q", 2]
    assert seen == [b"running", b"new"]
    assert list(broker.settled()) == [b"r-new"]


def test_verdicts_that_are_lost_failed_in_it(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: one verdict that is not answered, and one that is not even sent
    started, go_on = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        if job.payload == b"unsent":
            started.set()
            assert go_on.wait(SECONDS)

    broker.on[wire.SETTLE] = lambda _message: SILENCE
    with traced(monkeypatch) as spans, Worker("q", handler, prefetch=2, endpoint=broker.endpoint):
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"unanswered", b"unsent"])
        broker.wait_for(wire.SETTLE)
        assert started.wait(SECONDS)
        broker.stop()
        broker.start()
        broker.wait_for(wire.READY, 2)
        go_on.set()
        wait_until(lambda: len(spans.find("commit q")) == 2)
        ended = {(span.attributes or {})["messaging.message.id"]: span for span in spans.find("commit q")}
        assert set(ended) == {"id-unanswered", "id-unsent"}
        assert {(span.attributes or {})["error.type"] for span in ended.values()} == {"UNAVAILABLE"}


def test_a_job_of_a_lost_connection_can_not_be_extended(broker: ScriptedBroker) -> None:
    started, restarted = threading.Event(), threading.Event()
    results: list[BaseException] = []

    def handler(job: Job) -> None:
        started.set()
        assert restarted.wait(SECONDS)
        try:
            job.extend(30)
        except LeaseLostError as error:
            results.append(error)

    with Worker("q", handler, endpoint=broker.endpoint):
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"a"])
        assert started.wait(SECONDS)
        broker.stop()
        broker.start()
        broker.wait_for(wire.READY, 2)
        restarted.set()
    assert len(results) == 1
    assert broker.of(wire.EXTEND) == []


def test_what_finds_no_peer_any_more_is_lost_with_the_connection_and_not_an_end_of_the_thread() -> None:
    # Given: as when libzmq has given up the peer, and nobody has read of it yet
    with zmq.Context() as context:
        wakeup = Wakeup()
        link = Link(context, wakeup.fd)
        assert not link.broken()
        link.send([b"a question"])
        assert link.broken()
        link.close()


def test_a_connection_that_is_lost_is_said_and_so_is_that_it_is_there_again(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def said(words: str) -> bool:
        return any(words in record.getMessage() for record in caplog.records)

    broker.on[wire.QUEUES] = lambda _message: []
    with Client(timeout=SECONDS, endpoint=broker.endpoint) as client:
        client.queues.list()
        assert not said("there again")
        broker.stop()
        wait_until(lambda: said(f"connection to {broker.endpoint} lost"), what="the loss")
        broker.start()
        client.queues.list()
        wait_until(lambda: said(f"connected to {broker.endpoint} again"), what="the return")
