"""The library with several endpoints: it goes on at another broker, and says where it is."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
from click.testing import CliRunner

from clients.guarded_broker import CURVE, PLAIN, GuardedBroker
from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from sluicemq import (
    BadVersionError,
    Client,
    NotAdmittedError,
    Producer,
    Publisher,
    PushReceipt,
    Reader,
    SluiceError,
    Start,
    TimeoutError,
    UnavailableError,
)
from sluicemq.cli.app import app
from sluicemq.protocol import wire
from sluicemq.protocol.keys import KeyPair, decode
from sluicemq.transport.access import Access
from sluicemq.transport.connection import Connection
from sluicemq.transport.names import Address, Resolve
from sluicemq.transport.send_buffer import SendBuffer
from support.ports import tcp
from support.waiting import wait_until

Brokers = list[ScriptedBroker]


@pytest.fixture
def two() -> Iterator[Brokers]:
    with ExitStack() as stack:
        made = []
        for name in ("a", "b"):
            broker = ScriptedBroker().start()
            broker.hello["name"] = name
            stack.callback(broker.stop)
            made.append(broker)
        yield made


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def endpoints(brokers: Brokers) -> list[str]:
    return [broker.endpoint for broker in brokers]


def used(brokers: Brokers, at: str) -> tuple[ScriptedBroker, ScriptedBroker]:
    first, other = brokers if brokers[0].endpoint == at else reversed(brokers)
    return first, other


def connected(client: Client) -> str:
    client.ping(SECONDS)
    return client.connected_to


def test_pushes_that_were_not_confirmed_are_repeated_at_the_next_broker_in_their_order(two: Brokers) -> None:
    for broker in two:
        broker.on[wire.PUSH] = lambda _message: SILENCE
    with Producer(endpoint=endpoints(two)) as producer:
        receipts = [producer.push("q", b"%d" % number) for number in range(900)]
        wait_until(lambda: producer.connected_to, what="a connection")
        first, other = used(two, producer.connected_to)
        first.wait_for(wire.PUSH, 2)
        other.on[wire.PUSH] = lambda _message: []
        first.stop()
        for receipt in receipts:
            receipt.wait(SECONDS)
        assert producer.connected_to == other.endpoint
    assert [job_id for job_id, _ in other.pushed()] == [receipt.id for receipt in receipts]


@pytest.mark.parametrize("put_off", ["0", "1"])
def test_jobs_put_off_or_on_their_way_are_pushed_again_in_order(two: Brokers, put_off: str) -> None:
    # Given: of two messages one is put off, the other has no answer
    answers = {name: UnavailableError("later") if name == put_off else SILENCE for name in ("0", "1")}
    for broker in two:
        broker.on[wire.PUSH] = lambda message: answers[message.fields[1][0][0]]
    with Producer(endpoint=endpoints(two)) as producer:
        receipts = [producer.push("q", bytes(1 << 20), id=str(number)) for number in range(2)]
        wait_until(lambda: producer.connected_to, what="a connection")
        first, other = used(two, producer.connected_to)
        first.wait_for(wire.PUSH, 2)
        other.on[wire.PUSH] = lambda _message: []
        first.stop()
        for receipt in receipts:
            receipt.wait(SECONDS)
    assert [job_id for job_id, _ in other.pushed()] == ["0", "1"]


def test_a_question_is_asked_again_elsewhere_and_a_change_is_not(two: Brokers) -> None:
    for broker in two:
        broker.on[wire.QUEUES] = broker.on[wire.CANCEL] = lambda _message: SILENCE
    with Client(timeout=SECONDS, endpoint=endpoints(two)) as client:
        first, other = used(two, connected(client))
        other.on[wire.QUEUES] = lambda _message: [{"name": "here"}]
        outcomes: list[Any] = []
        threads = [
            threading.Thread(target=_note, args=(outcomes, call))
            for call in (client.queues, lambda: client.cancel("q", "id"))
        ]
        for thread in threads:
            thread.start()
        first.wait_for(wire.QUEUES)
        first.wait_for(wire.CANCEL)
        first.stop()
        for thread in threads:
            thread.join(SECONDS)
        assert [{"name": "here"}] in outcomes
        assert any(isinstance(outcome, UnavailableError) for outcome in outcomes)
        assert not other.of(wire.CANCEL)


def test_a_result_is_asked_for_at_another_broker(two: Brokers) -> None:
    for broker in two:
        broker.on[wire.RESULT] = lambda _message: SILENCE
    with Producer(endpoint=endpoints(two)) as producer:
        reply = producer.submit("q", b"x")
        reply.receipt.wait(SECONDS)
        first, other = used(two, producer.connected_to)
        first.wait_for(wire.RESULT)
        other.on[wire.RESULT] = lambda _message: b"result"
        first.stop()
        assert reply.result(SECONDS) == b"result"


def test_a_publisher_and_a_reader_go_on_where_they_were(two: Brokers) -> None:
    for broker in two:
        broker.on[wire.PUBLISH] = broker.on[wire.READ] = lambda _message: SILENCE
    with (
        Publisher(endpoint=endpoints(two)) as publisher,
        Reader("s", start=Start.at(8), endpoint=endpoints(two)) as reader,
    ):
        published = publisher.publish("s", "topic", b"x")
        wait_until(lambda: publisher.connected_to and reader.connected_to, what="the connections")
        used(two, publisher.connected_to)[0].wait_for(wire.PUBLISH)
        used(two, reader.connected_to)[0].wait_for(wire.READ)
        first, other = used(two, publisher.connected_to)
        number = first.of(wire.PUBLISH)[0].fields[2]
        other.on[wire.PUBLISH] = lambda _message: 1
        first.stop()
        published.wait(SECONDS)
        again = other.of(wire.PUBLISH)[0].fields[2]
        assert {**number, "again": True} == again
        wait_until(lambda: other.of(wire.READ), what="the reading")
        assert other.of(wire.READ)[0].fields[1]["after"] == 7


class TestLeaving:
    """A broker that stops says BYE."""

    def test_what_is_under_way_ends_there_and_what_is_new_goes_elsewhere(self, two: Brokers) -> None:
        for broker in two:
            broker.on[wire.CANCEL] = lambda _message: SILENCE
        with Client(timeout=SECONDS, endpoint=endpoints(two)) as client:
            first, other = used(two, connected(client))
            done: list[Any] = []
            before = threading.Thread(target=_note, args=(done, lambda: client.cancel("q", "before")))
            before.start()
            (asked,) = first.wait_for(wire.CANCEL)
            # When: it stops while a change is under way, and another one is made
            bid_farewell(first, asked)
            after = threading.Thread(target=_note, args=(done, lambda: client.cancel("q", "after")))
            other.on[wire.CANCEL] = lambda _message: None
            wait_until(lambda: not client._asker._connection.takes_more, what="its leaving")  # noqa: SLF001
            after.start()
            first.answer(asked, None)
            for thread in (before, after):
                thread.join(SECONDS)
            # Then: both have their answers, each of the broker that was asked once
            assert done == [None, None]
            assert [m.fields[1] for m in other.of(wire.CANCEL)] == ["after"]
            assert client.connected_to == other.endpoint

    def test_a_push_that_is_put_off_does_not_wait_for_its_end(self, two: Brokers) -> None:
        for broker in two:
            broker.on[wire.PUSH] = lambda _message: UnavailableError("the broker stops")
        with Producer(endpoint=endpoints(two)) as producer:
            receipt = producer.push("q", b"x")
            wait_until(lambda: producer.connected_to, what="a connection")
            first, other = used(two, producer.connected_to)
            (asked, *_) = first.wait_for(wire.PUSH)
            other.on[wire.PUSH] = lambda _message: []
            bid_farewell(first, asked)
            receipt.wait(SECONDS)
            assert [job_id for job_id, _ in other.pushed()] == [receipt.id]

    def test_a_client_of_one_broker_does_not_say_that_it_moves(self, broker: ScriptedBroker) -> None:
        with Client(endpoint=broker.endpoint) as client:
            client.ping(SECONDS)
        with Client(endpoint=[broker.endpoint, tcp()]) as client:
            client.ping(SECONDS)
        assert [job.fields[0].get("moves") for job in broker.of(wire.HELLO)] == [None, True]

    def test_a_stopping_broker_is_not_chosen_while_there_is_another(self, two: Brokers) -> None:
        two[0].hello["stopping"] = True
        for _ in range(6):
            with Client(endpoint=endpoints(two)) as client:
                assert connected(client) == two[1].endpoint
        with Client(endpoint=two[0].endpoint) as alone:
            alone.ping(SECONDS)


def bid_farewell(broker: ScriptedBroker, to: Received) -> None:
    broker.send(to.peer, wire.encode(wire.BYE, 0))


def test_commands_take_several_endpoints_and_ping_names_the_one_that_answers(two: Brokers) -> None:
    two[0].stop()
    for named in (",".join(endpoints(two)), f"{tcp()},{two[1].endpoint}"):
        result = CliRunner().invoke(app, ["--endpoint", named, "ping"])
        assert result.stdout.startswith(f"{two[1].endpoint} answers in")
    nobody = f"{tcp()},{tcp()}"
    result = CliRunner().invoke(app, ["ping", "--endpoint", nobody])
    assert (result.exit_code, f"no broker answers at {nobody}" in result.stderr) == (3, True)


class TestAtTheBegin:
    """Endpoints of which some are dead, deaf, or refuse."""

    def test_a_listener_that_never_greets_costs_little(self, broker: ScriptedBroker, silent: str) -> None:
        for _ in range(4):
            with Client(timeout=SECONDS, endpoint=[silent, broker.endpoint]) as client:
                assert connected(client) == broker.endpoint

    def test_an_impatient_client_is_refused_only_by_all(self, broker: ScriptedBroker) -> None:
        for _ in range(6):
            with Client(wait=False, endpoint=[tcp(), broker.endpoint, tcp()]) as client:
                client.ping(SECONDS)
        nobody = [tcp(), tcp(), tcp()]
        with Client(wait=False, endpoint=nobody) as client, pytest.raises(UnavailableError) as caught:
            client.ping(SECONDS)
        assert str(caught.value) == f"no broker answers at {','.join(nobody)}"

    def test_a_time_out_of_a_call_holds_where_nobody_greets(self, silent: str) -> None:
        with Client(timeout=0.2, endpoint=[silent, tcp()]) as client, pytest.raises(TimeoutError):
            client.queues()

    def test_a_broker_that_refuses_hello_is_passed_over(self, two: Brokers) -> None:
        two[0].on[wire.HELLO] = lambda _message: BadVersionError("too old")
        for _ in range(6):
            with Client(endpoint=endpoints(two)) as client:
                assert connected(client) == two[1].endpoint
        two[1].on[wire.HELLO] = lambda _message: BadVersionError("too old")
        with Client(endpoint=endpoints(two)) as client, pytest.raises(BadVersionError):
            client.ping(SECONDS)

    def test_a_broker_that_does_not_let_the_client_in_is_passed_over(self) -> None:
        with ExitStack() as stack:
            guarded = [GuardedBroker(PLAIN) for _ in range(2)]
            for broker in guarded:
                broker.start()
                stack.callback(broker.stop)
            entering: Any = {"user": "ann", "password": "secret", "timeout": SECONDS}
            for patient in (False, True, False, True):
                guarded[1].passwords = {"ann": "secret"}
                with Client(wait=patient, **entering, endpoint=endpoints([*guarded])) as client:
                    assert connected(client) == guarded[1].endpoint
                guarded[1].passwords = {}
                outside = Client(wait=patient, **entering, endpoint=endpoints([*guarded]))
                with outside, pytest.raises(NotAdmittedError, match="ann"):
                    outside.ping()

    def test_all_are_dead_and_one_comes_back(self, two: Brokers) -> None:
        with Client(timeout=SECONDS, endpoint=endpoints(two)) as client:
            client.ping(SECONDS)
            for broker in two:
                broker.stop()
            wait_until(lambda: not client.connected_to, what="the loss")
            two[1].start()
            assert connected(client) == two[1].endpoint

    def test_a_thousand_endpoints_of_which_one_lives(self, broker: ScriptedBroker) -> None:
        dead = [f"tcp://127.0.0.1:{port}" for port in range(1, 1000)]
        with Client(timeout=SECONDS, endpoint=[*dead, broker.endpoint]) as client:
            assert connected(client) == broker.endpoint


class TestNames:
    """Names whose addresses change; the resolver is handed in."""

    def test_an_address_that_changes_behind_a_name_is_found(self) -> None:
        with ExitStack() as stack:
            first = ScriptedBroker(host="127.0.0.2").start()
            stack.callback(first.stop)
            second = ScriptedBroker(host="127.0.0.3", port=first.port)
            addresses = {"moves": [Address("127.0.0.2", ipv6=False)]}
            access = by(addresses.__getitem__, f"tcp://moves:{first.port}")
            client = stack.enter_context(Client(timeout=SECONDS, endpoint=access))
            client.ping(SECONDS)
            first.stop()
            addresses["moves"] = [Address("127.0.0.3", ipv6=False)]
            stack.callback(second.stop)
            second.start()
            client.ping(SECONDS)
            assert client.connected_to == f"tcp://moves:{first.port}"

    def test_all_addresses_of_a_name_are_tried(self) -> None:
        broker = ScriptedBroker(host="127.0.0.9").start()
        try:
            addresses = [Address(f"127.0.0.{number}", ipv6=False) for number in range(1, 20)]
            access = by(lambda _host: addresses, f"dns+tcp://all:{broker.port}")
            with Client(timeout=SECONDS, endpoint=access) as client:
                assert connected(client) == f"tcp://127.0.0.9:{broker.port}"
        finally:
            broker.stop()

    def test_a_dead_dns_holds_up_no_other_endpoint_no_call_and_no_close(self, broker: ScriptedBroker) -> None:
        gate = threading.Event()

        def resolve(_host: str) -> Sequence[Address]:
            gate.wait(SECONDS)
            raise OSError

        dead = by(resolve, "tcp://dead:1")
        several = by(resolve, "tcp://dead:1", broker.endpoint, "dns+tcp://dead-too:1")
        try:
            with Client(timeout=SECONDS, endpoint=several) as client:
                assert connected(client) == broker.endpoint
            with Client(timeout=0.2, endpoint=dead) as client, pytest.raises(TimeoutError):
                client.queues()
            assert not gate.is_set()
            with Client(wait=False, endpoint=dead) as client, pytest.raises(UnavailableError):
                client.ping(SECONDS)
        finally:
            gate.set()


def test_the_log_names_endpoint_and_broker(two: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "sluicemq"),
        Client(timeout=SECONDS, endpoint=endpoints(two)) as client,
    ):
        first, other = used(two, connected(client))
        first.stop()
        client.ping(SECONDS)

    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    assert said(f"connected to {first.endpoint} (broker {first.hello['name']})")
    assert said(f"connection to {first.endpoint} lost: the connection was closed")
    assert said(f"connected to {other.endpoint} (broker {other.hello['name']})")


def by(resolve: Resolve, *given: str) -> Access:
    """Access to these endpoints, whose names are looked up so."""
    return Access(given, resolve=resolve)


def _note(outcomes: list[Any], call: Callable[[], Any]) -> None:
    try:
        outcomes.append(call())
    except SluiceError as error:
        outcomes.append(error)


def test_a_producer_moves_on_and_loses_nothing(two: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    # Given: a producer whose stay at each broker is short, and what it has pushed is not answered yet
    caplog.set_level("INFO", logger="sluicemq")
    for broker in two:
        broker.on[wire.PUSH] = lambda _message: SILENCE
    settled: list[PushReceipt] = []
    buffer = SendBuffer(lambda batch, refused: settled.extend(batch) if not refused else None)
    connection = Connection(endpoints(two), buffer, stays=(1.0, 1.1))
    buffer.attach(connection)
    connection.start()
    buffer.jobs.append(PushReceipt("q", "first", b"x", None, 1))
    connection.wake()
    wait_until(lambda: any(broker.of(wire.PUSH) for broker in two))
    first, other = two if two[0].of(wire.PUSH) else reversed(two)
    try:
        # When: its time is over, and it pushes on
        wait_until(lambda: not connection.takes_more)
        buffer.jobs.append(PushReceipt("q", "second", b"x", None, 1))
        connection.wake()
        first.answer(first.of(wire.PUSH)[0], [])
        # Then: that goes to the other broker, and nothing was sent twice
        message = other.wait_for(wire.PUSH)[0]
        assert [reply.id for reply in settled] == ["first"]
        assert [row[0] for row in message.fields[1]] == ["second"]
        assert len(first.of(wire.PUSH)) == 1
        assert "it is another broker's turn" in caplog.text
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
    finally:
        connection.close()


def test_a_producer_says_that_only_some_brokers_fit_its_server_key(caplog: pytest.LogCaptureFixture) -> None:
    # Given: two brokers, each with a key of its own
    with ExitStack() as stack:
        guarded = [GuardedBroker(CURVE) for _ in range(2)]
        public, secret = map(bytes.decode, zmq.curve_keypair())
        for broker in guarded:
            broker.keys = {public}
            broker.start()
            stack.callback(broker.stop)
        pair = KeyPair(decode(public), decode(secret))
        access = Access(tuple(endpoints([*guarded])), pair, decode(guarded[0].server_key))

        def says_so() -> bool:
            with Producer(endpoint=access) as producer:
                producer.push("q", b"x").wait(SECONDS)
            return "all take one server_key" in caplog.text

        # When: it dials the other one first, as chance will have it
        wait_until(says_so)
    (line,) = {record.getMessage() for record in caplog.records if "all take one" in record.getMessage()}
    assert f"can't enter {guarded[1].endpoint}: it hangs up: its key is another one" in line
    assert line.endswith(f"connected to {guarded[0].endpoint}")
