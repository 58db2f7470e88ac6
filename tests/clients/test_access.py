"""Keys and passwords of the library: who gets in at libzmq's own servers, and who is told why not."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from clients.guarded_broker import CURVE, NULL, PLAIN, GuardedBroker
from clients.scripted_broker import SECONDS, SILENCE
from sluicemq import (
    Access,
    BadStreamError,
    Client,
    ForbiddenError,
    NotAdmittedError,
    Producer,
    Publisher,
    Reader,
    Subscription,
    TimeoutError,
    Worker,
)
from sluicemq.protocol import wire
from sluicemq.protocol.keys import key_id, read_key
from support.keyed_broker import new_key
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

Guarded = Callable[[str], GuardedBroker]


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    started: list[GuardedBroker] = []

    def start(mechanism: str) -> GuardedBroker:
        started.append(GuardedBroker(mechanism))
        started[-1].start()
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture
def broker(guarded: Guarded) -> GuardedBroker:
    """A broker of CURVE, that knows no key."""
    return guarded(CURVE)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "client.key"


@pytest.fixture
def key(key_file: Path) -> str:
    return new_key(key_file)


@pytest.fixture
def access(broker: GuardedBroker, key_file: Path, key: str) -> dict[str, Any]:
    """Keywords for that broker."""
    return {"key_file": key_file, "server_key": broker.server_key}


_MAKE: dict[str, Any] = {
    "Producer": Producer,
    "Publisher": Publisher,
    "Reader": lambda where, **access: Reader("stream", **access, endpoint=where),
    "Worker": lambda where, **access: Worker("queue", print, **access, endpoint=where),
    "Subscription": lambda where, **access: Subscription("stream", "name", print, **access, endpoint=where),
}


def _whole(broker: GuardedBroker, access: Any) -> Access:
    return Access.chosen(broker.endpoint, access)


class TestGettingIn:
    def test_a_known_key_gets_in(self, broker: GuardedBroker, key: str, access: dict[str, Any]) -> None:
        broker.keys.add(key)
        with Client(timeout=SECONDS, **access, endpoint=broker.endpoint) as client:
            client.ping()

    def test_a_client_with_a_password_gets_in_where_that_is_known(self, guarded: Guarded) -> None:
        broker = guarded(PLAIN)
        broker.passwords["ann"] = "s3cret"
        with Client(user="ann", password="s3cret", timeout=SECONDS, endpoint=broker.endpoint) as client:  # noqa: S106
            client.ping()

    @pytest.mark.parametrize("name", ["Producer", "Publisher", "Reader", "Worker", "Subscription"])
    @pytest.mark.parametrize("whole", [False, True], ids=["keywords", "an Access"])
    def test_everything_that_connects_takes_a_key(
        self, broker: GuardedBroker, key: str, access: dict[str, Any], name: str, *, whole: bool
    ) -> None:
        broker.keys.add(key)
        broker.on[wire.HOLD] = lambda _message: BadStreamError("there is none yet")
        made = _MAKE[name](_whole(broker, access)) if whole else _MAKE[name](broker.endpoint, **access)
        runs = isinstance(made, Worker | Subscription)
        try:
            if runs:
                made.start()
            broker.wait_for(wire.HELLO)
        finally:
            (made.stop if runs else made.close)()

    def test_jobs_that_are_fetched_over_a_connection_of_their_own_take_the_key_too(
        self, broker: GuardedBroker, key: str, access: dict[str, Any]
    ) -> None:
        broker.keys.add(key)
        with Client(timeout=SECONDS, **access, endpoint=broker.endpoint) as client:
            assert client.jobs.pop("queue") == []
            assert client.jobs.reserve("queue", 1).jobs == []

    def test_a_server_key_alone_encrypts_and_shows_no_key_that_is_known(self, broker: GuardedBroker) -> None:
        with (
            Client(server_key=broker.server_key, timeout=SECONDS, endpoint=broker.endpoint) as client,
            pytest.raises(NotAdmittedError, match="wants a key that it knows: give a key_file"),
        ):
            client.ping()


class TestStayingOut:
    """A refusal comes at once, from each call, and is logged once."""

    def test_a_key_that_the_broker_does_not_know_is_named(
        self, broker: GuardedBroker, key: str, access: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with Client(timeout=SECONDS, **access, endpoint=broker.endpoint) as client:
            with pytest.raises(NotAdmittedError) as raised:
                client.ping()
            wait_until(lambda: broker.refused >= 3, what="three tries")
        named = key_id(read_key(key))
        said = f"can't enter {broker.endpoint}: the broker refused this key (id {named})"
        assert str(raised.value).startswith(said)
        assert isinstance(raised.value, ForbiddenError)
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert warnings == [str(raised.value)]

    def test_a_wrong_password_is_said(self, guarded: Guarded) -> None:
        broker = guarded(PLAIN)
        broker.passwords["ann"] = "s3cret"
        with (
            Client(user="ann", password="wrong", timeout=SECONDS, endpoint=broker.endpoint) as client,  # noqa: S106
            pytest.raises(NotAdmittedError, match=r"can't enter .*: the broker refused user 'ann'") as raised,
        ):
            client.ping()
        assert "wrong" not in str(raised.value)

    @pytest.mark.parametrize("mechanism", [CURVE, PLAIN, NULL])
    def test_without_a_key_a_client_hears_that_one_is_wanted(self, guarded: Guarded, mechanism: str) -> None:
        with (
            Client(timeout=SECONDS, endpoint=guarded(mechanism).endpoint) as client,
            pytest.raises(NotAdmittedError, match="the broker wants a key: give key_file and server_key"),
        ):
            client.ping()

    @pytest.mark.parametrize("mechanism", [PLAIN, NULL])
    def test_a_door_that_takes_no_keys_says_so(self, guarded: Guarded, mechanism: str) -> None:
        with (
            Client(server_key="0" * 40, timeout=SECONDS, endpoint=guarded(mechanism).endpoint) as client,
            pytest.raises(NotAdmittedError, match=r"this door of the broker takes no key \(CURVE\)"),
        ):
            wait_until(client.queues)

    def test_a_door_that_takes_no_passwords_says_so(self, broker: GuardedBroker) -> None:
        with (
            Client(user="ann", password="x", timeout=SECONDS, endpoint=broker.endpoint) as client,  # noqa: S106
            pytest.raises(NotAdmittedError, match=r"takes no user and password \(PLAIN\)"),
        ):
            wait_until(client.queues)

    def test_a_wrong_server_key_is_said_within_the_time_out(
        self, broker: GuardedBroker, key: str, access: dict[str, Any]
    ) -> None:
        broker.keys.add(key)
        other = zmq.curve_keypair()[0].decode()
        with (
            Client(timeout=0.5, **access | {"server_key": other}, endpoint=broker.endpoint) as client,
            pytest.raises(TimeoutError) as raised,
        ):
            client.ping()
        assert f"can't enter {broker.endpoint}: it hangs up" in str(raised.value)
        named = key_id(read_key(other))
        assert f"its key is another one than server_key (id {named})" in str(raised.value)

    def test_a_broker_that_can_not_decide_now_is_tried_again(
        self, broker: GuardedBroker, key: str, access: dict[str, Any]
    ) -> None:
        broker.status = b"500"
        with Client(timeout=0.5, **access, endpoint=broker.endpoint) as client:
            with pytest.raises(TimeoutError, match="can't decide now"):
                client.ping()
            broker.keys.add(key)
            client.ping(SECONDS)

    def test_an_impatient_client_fails_at_once(self, broker: GuardedBroker, access: dict[str, Any]) -> None:
        with Client(wait=False, **access, endpoint=broker.endpoint) as client:
            for _ in range(2):
                with pytest.raises(NotAdmittedError):
                    client.ping()
        assert broker.refused == 1

    def test_a_key_added_later_gets_in(self, broker: GuardedBroker, key: str, access: dict[str, Any]) -> None:
        with Producer(**access, endpoint=broker.endpoint) as producer:
            receipt = producer.push("queue", b"x")
            wait_until(lambda: broker.refused, what="a refusal")
            broker.keys.add(key)
            receipt.wait(SECONDS)

    def test_a_removed_key_stays_out(self, broker: GuardedBroker, key: str, access: dict[str, Any]) -> None:
        broker.keys.add(key)
        with Client(timeout=SECONDS, **access, endpoint=broker.endpoint) as client:
            client.ping()
            broker.stop()
            broker.keys.clear()
            broker.start()
            with pytest.raises(NotAdmittedError, match="refused this key"):
                client.queues.list()

    def test_a_reader_raises_it(self, broker: GuardedBroker, access: dict[str, Any]) -> None:
        with (
            Reader("stream", follow=True, **access, endpoint=broker.endpoint) as reader,
            pytest.raises(NotAdmittedError, match="refused this key"),
        ):
            reader.read(SECONDS)

    def test_a_reader_whose_key_is_removed_raises_it(
        self, broker: GuardedBroker, key: str, access: dict[str, Any]
    ) -> None:
        broker.keys.add(key)
        broker.on[wire.READ] = lambda _message: SILENCE
        with Reader("stream", follow=True, **access, endpoint=broker.endpoint) as reader:
            broker.wait_for(wire.READ)
            broker.stop()
            broker.keys.clear()
            broker.start()
            with pytest.raises(NotAdmittedError, match="refused this key"):
                reader.read(SECONDS)

    @pytest.mark.parametrize("waits", [Producer, Publisher])
    def test_a_receipt_says_why_it_is_not_confirmed(
        self, broker: GuardedBroker, key: str, access: dict[str, Any], waits: Any
    ) -> None:
        made = waits(broker.endpoint, **access)
        receipt = made.push("queue", b"x") if waits is Producer else made.publish("stream", "topic", b"x")
        wait_until(lambda: broker.refused, what="a refusal")
        with pytest.raises(
            TimeoutError, match=r"is not confirmed after 0\.1 s: can't enter .* refused this key"
        ):
            receipt.wait(0.1)
        with pytest.raises(TimeoutError, match="can't enter"):
            made.close(0.1)

    def test_a_call_says_why_it_fails(self, broker: GuardedBroker, key: str, access: dict[str, Any]) -> None:
        producer = Producer(**access, endpoint=broker.endpoint)
        receipt = producer.push("queue", b"x")
        wait_until(lambda: broker.refused, what="a refusal")
        with pytest.raises(
            TimeoutError, match=r"has no result after 0\.1 s: can't enter .* refused this key"
        ):
            producer.call("queue", b"x", 0.1)
        assert not receipt.done
        with pytest.raises(TimeoutError, match="can't enter"):
            producer.close(0.1)

    def test_a_flush_says_why_none_is_confirmed(self, broker: GuardedBroker, access: dict[str, Any]) -> None:
        producer = Producer(**access, endpoint=broker.endpoint)
        producer.push("queue", b"x")
        wait_until(lambda: broker.refused, what="a refusal")
        with pytest.raises(
            TimeoutError, match=r"1 jobs are not confirmed after 0\.5 s: can't enter .* refused"
        ):
            producer.close(0.5)
