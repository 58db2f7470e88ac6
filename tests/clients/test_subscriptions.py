"""The library's Subscription: one holder works, the next goes on where it was."""

import threading
from collections.abc import Iterator
from secrets import token_hex
from typing import Any, Self

import pytest

from sluicemq import (
    BadStreamError,
    Batch,
    Client,
    GapError,
    HeldError,
    LeaseLostError,
    Publisher,
    Start,
    Subscription,
    TimeoutError,
)
from sluicemq.protocol import wire
from sluicemq.transport.connection import Connection
from sluicemq.transport.questions import Questions
from support.broker_under_test import BrokerUnderTest
from support.own_queue import quick_broker
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with quick_broker(mongo_uri) as broker:
        yield broker


@pytest.fixture(scope="module")
def endpoint(broker: BrokerUnderTest) -> str:
    return broker.doors["smq"]


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint=endpoint) as client:
        yield client


@pytest.fixture
def stream(endpoint: str) -> str:
    """A new one with ten messages, of topics ``a`` and ``b`` in turn."""
    name = f"orders.{token_hex(4)}"
    publish(endpoint, name, 10)
    return name


def publish(endpoint: str, stream: str, count: int) -> None:
    with Publisher(endpoint=endpoint) as publisher:
        for number in range(count):
            publisher.publish(stream, "ab"[number % 2], b"%d" % number)


class Worker:
    """A subscription that notes what it was given, in a thread of its own."""

    def __init__(self, endpoint: str, stream: str, **options: Any) -> None:
        self.seen: list[int] = []
        self.fences: set[int] = set()
        self.subscription = Subscription(
            stream, "sums", options.pop("handler", self._handle), **options, endpoint=endpoint
        )

    def _handle(self, batch: Batch) -> None:
        self.seen += [message.sequence for message in batch]
        self.fences.add(batch.fence)

    def __enter__(self) -> Self:
        self.subscription.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.subscription.stop()


def row(client: Client, stream: str) -> dict[str, Any]:
    none = dict.fromkeys(("kind", "holder", "watermark", "behind"))
    return next(iter(client.subscriptions(stream)), none)


def test_each_message_is_given_once_before_the_watermark(endpoint: str, stream: str, client: Client) -> None:
    with Worker(endpoint, stream, batch=3) as worker:
        wait_until(lambda: len(worker.seen) == 10)
        publish(endpoint, stream, 5)
        wait_until(lambda: row(client, stream)["watermark"] == 15)
    assert worker.seen == list(range(1, 16))
    assert (row(client, stream)["kind"], row(client, stream)["behind"]) == (None, 0)


def test_a_stream_that_is_not_there_yet_is_waited_for(
    endpoint: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a name under which nobody has published
    name = f"late.{token_hex(4)}"
    with Worker(endpoint, name) as worker:
        wait_until(lambda: "waits for it" in caplog.text)
        # When somebody does
        publish(endpoint, name, 3)
        # Then it works on that, and has said once what it waited for
        wait_until(lambda: worker.seen == [1, 2, 3])
    assert caplog.text.count(f"there is no stream '{name}'. Subscription sums waits for it") == 1


def test_who_does_not_wait_hears_that_there_is_no_stream(endpoint: str) -> None:
    with pytest.raises(BadStreamError, match="there is no stream 'nobodys'"):
        Worker(endpoint, "nobodys", wait=False).subscription.run()


@pytest.mark.parametrize(
    ("kind", "error", "why"),
    [
        ("", BadStreamError, "1 to 64 visible characters"),
        ("x" * 65, BadStreamError, "1 to 64 visible characters"),
        ("a\nb", BadStreamError, "1 to 64 visible characters"),
        (7, TypeError, "kind is a str"),
    ],
)
def test_an_impossible_kind_is_refused_before_it_is_sent(kind: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        Subscription("orders", "sums", print, kind=kind, endpoint=None)


def test_the_next_goes_on_where_the_last_was(endpoint: str, stream: str, client: Client) -> None:
    Worker(endpoint, stream, follow=False).subscription.run()
    publish(endpoint, stream, 2)
    worker = Worker(endpoint, stream, follow=False)
    worker.subscription.run()
    assert worker.seen == [11, 12]


def test_one_that_is_new_may_begin_with_what_comes(endpoint: str, stream: str) -> None:
    with Worker(endpoint, stream, start=Start.new()) as worker:
        wait_until(lambda: worker.subscription.position == 10)
        publish(endpoint, stream, 1)
        wait_until(lambda: worker.seen == [11])


def test_messages_that_are_not_wanted_count_as_worked_on(endpoint: str, stream: str, client: Client) -> None:
    worker = Worker(endpoint, stream, topics=["a"], follow=False)
    worker.subscription.run()
    assert worker.seen == [1, 3, 5, 7, 9]
    assert row(client, stream)["behind"] == 0


def test_one_of_another_kind_is_told_who_works(endpoint: str, stream: str, client: Client) -> None:
    with Worker(endpoint, stream):
        wait_until(lambda: row(client, stream)["kind"] == "update")
        with pytest.raises(HeldError, match="'update'") as held:
            Worker(endpoint, stream, kind="rebuild").subscription.run()
        assert held.value.kind == "update"


def test_one_of_the_same_kind_stands_by_and_takes_over(endpoint: str, stream: str, client: Client) -> None:
    with Worker(endpoint, stream) as first:
        wait_until(lambda: row(client, stream)["watermark"] == 10)
        with Worker(endpoint, stream) as second:
            # When the first one's connection ends without a word
            first.subscription._stop_asked.set()
            first.subscription._connection.close(0)
            publish(endpoint, stream, 3)
            wait_until(lambda: second.seen == [11, 12, 13])
    assert second.fences.isdisjoint(first.fences)


def test_or_is_told_at_once_if_it_does_not_want_to_wait(endpoint: str, stream: str, client: Client) -> None:
    with Worker(endpoint, stream):
        wait_until(lambda: row(client, stream)["kind"] == "update")
        with pytest.raises(HeldError):
            Worker(endpoint, stream, wait=False).subscription.run()


def test_an_unanswered_watermark_is_stored_again(endpoint: str, stream: str, client: Client) -> None:
    worker, lost = Worker(endpoint, stream, batch=5), list[bytes]()
    ask = worker.subscription._ask

    def unanswered_once(verb: bytes, *fields: Any) -> Any:
        answer = ask(verb, *fields)
        if verb == wire.MARK and not lost:
            lost.append(verb)
            raise TimeoutError("no answer")
        return answer

    worker.subscription._ask = unanswered_once  # type: ignore[method-assign]
    with worker:
        wait_until(lambda: row(client, stream)["watermark"] == 10)
    assert lost == [wire.MARK]
    assert worker.seen == list(range(1, 11))
    assert len(worker.fences) == 1


def test_a_handler_that_fails_is_given_the_same_batch_until_it_does_not(endpoint: str, stream: str) -> None:
    failed = threading.Event()
    seen: list[int] = []

    def handler(batch: Batch) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("not now")
        seen.extend(message.sequence for message in batch)

    with Worker(endpoint, stream, handler=handler, batch=4):
        wait_until(lambda: seen == list(range(1, 11)))
    assert failed.is_set()


def test_one_whose_hold_was_taken_begins_at_the_watermark(endpoint: str, stream: str, client: Client) -> None:
    # Given one that is in its handler when its hold is taken away
    inside, go_on = threading.Event(), threading.Event()
    seen: list[tuple[int, int]] = []

    def handler(batch: Batch) -> None:
        seen.append((batch.fence, batch.last))
        inside.set()
        assert go_on.wait(TIMEOUT)

    with Worker(endpoint, stream, handler=handler, batch=10) as worker:
        assert inside.wait(TIMEOUT)
        client.subscriptions.release(stream, "sums")
        go_on.set()
        # Then its watermark is refused, and the batch comes again under another fence
        wait_until(lambda: worker.subscription.position == 10)
    assert [last for _, last in seen] == [10, 10]
    assert seen[0][0] < seen[1][0]


def test_a_rebuild_begins_anew_and_ends_with_the_newest(endpoint: str, stream: str, client: Client) -> None:
    Worker(endpoint, stream, follow=False).subscription.run()
    cleared: list[int] = []
    rebuild = Worker(
        endpoint, stream, kind="rebuild", restart=Start.oldest(), on_restart=cleared.append, follow=False
    )
    rebuild.subscription.run()
    assert rebuild.seen == list(range(1, 11))
    assert cleared == list(rebuild.fences)
    assert (row(client, stream)["kind"], row(client, stream)["watermark"]) == (None, 10)


def test_nothing_is_missed_or_comes_twice_at_the_seam(endpoint: str, stream: str, client: Client) -> None:
    # Given somebody who publishes all the while
    done = threading.Event()

    def publish_on() -> None:
        with Publisher(endpoint=endpoint) as publisher:
            while not done.is_set():
                publisher.publish(stream, "a", b"x").wait(TIMEOUT)

    publishing = threading.Thread(target=publish_on)
    publishing.start()
    try:
        # When a rebuild ends, and an update goes on
        rebuild = Worker(endpoint, stream, kind="rebuild", restart=Start.oldest(), follow=False)
        rebuild.subscription.run()
        with Worker(endpoint, stream) as update:
            wait_until(lambda: len(update.seen) > 20)
    finally:
        done.set()
        publishing.join()
    both = rebuild.seen + update.seen
    assert both == list(range(1, len(both) + 1))


def test_a_rebuild_broken_off_goes_on_where_it_was(endpoint: str, stream: str, client: Client) -> None:
    # Given a rebuild that has come to 4 and ends without a word
    options: dict[str, Any] = {"kind": "rebuild", "after": 0, "follow": False, "batch": 4}
    holder = Connection(endpoint, asker := Questions())
    asker.attach(holder)
    holder.start()
    found = asker.ask(wire.HOLD, stream, "sums", "rebuild", {"after": 0}, timeout=TIMEOUT)
    asker.ask(wire.MARK, stream, "sums", found["fence"], 4, timeout=TIMEOUT)
    holder.close()
    # Then an update can't begin, and another rebuild goes on
    wait_until(lambda: row(client, stream)["holder"] is None)
    with pytest.raises(HeldError, match="gone without releasing"):
        Worker(endpoint, stream).subscription.run()
    cleared: list[int] = []
    rebuild = Worker(endpoint, stream, begin=cleared.append, **options)
    rebuild.subscription.run()
    assert rebuild.seen == [5, 6, 7, 8, 9, 10]
    assert cleared == []


def test_its_own_watermark_goes_before_the_stored_one(endpoint: str, stream: str) -> None:
    worker = Worker(endpoint, stream, watermark=lambda: 7, follow=False)
    worker.subscription.run()
    assert worker.seen == [8, 9, 10]


def test_messages_that_are_gone_are_told(endpoint: str, stream: str, client: Client) -> None:
    client.subscriptions.seek(stream, "sums", 2)
    client.streams.trim(stream, 6)
    with pytest.raises(GapError):
        Worker(endpoint, stream, follow=False).subscription.run()
    gaps: list[GapError] = []
    worker = Worker(endpoint, stream, follow=False, on_gap=gaps.append)
    worker.subscription.run()
    assert worker.seen == [6, 7, 8, 9, 10]
    assert [(gap.first, gap.last) for gap in gaps] == [(3, 5)]


def test_it_can_be_set_to_another_place_and_be_forgotten(endpoint: str, stream: str, client: Client) -> None:
    client.subscriptions.seek(stream, "sums", 8)
    worker = Worker(endpoint, stream, follow=False)
    worker.subscription.run()
    assert worker.seen == [9, 10]
    client.subscriptions.delete(stream, "sums")
    assert client.subscriptions.list(stream) == []


def test_a_late_watermark_is_refused(endpoint: str, stream: str, client: Client) -> None:
    asker = Questions()
    connection = Connection(endpoint, asker)
    asker.attach(connection)
    connection.start()
    found = asker.ask(wire.HOLD, stream, "sums", "update", {}, timeout=TIMEOUT)
    client.subscriptions.release(stream, "sums")
    with pytest.raises(LeaseLostError):
        asker.ask(wire.MARK, stream, "sums", found["fence"], 5, timeout=TIMEOUT)
    connection.close()
    assert row(client, stream)["watermark"] == 0


def test_what_handles_nothing_is_refused() -> None:
    async def handler(_batch: Batch) -> None:
        """Would only begin."""

    with pytest.raises(TypeError, match="async def"):
        Subscription("prices", "sums", handler, endpoint="tcp://127.0.0.1:1")
