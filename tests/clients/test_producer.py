"""The producer against a scripted broker: batches, confirmations, refusals, bounds, its end."""

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from sluicemq import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    Producer,
    PushReceipt,
    QueueFullError,
    SluiceError,
    TimeoutError,
    TooLargeError,
    UnavailableError,
)
from sluicemq.protocol import wire
from sluicemq.transport.pacing import IN_FLIGHT


def rows(message: Received) -> list[list[Any]]:
    return message.fields[1]  # type: ignore[no-any-return]


def test_a_confirmed_push_is_done_and_has_sent_what_was_given(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        receipt = producer.push("mail", b"hello", id="mine")
        receipt.wait(SECONDS)
    assert receipt.done
    assert receipt.id == "mine"
    assert broker.of(wire.PUSH)[0].fields == ["mail", [["mine", b"hello", None]]]


def test_times_of_python_are_times(broker: ScriptedBroker) -> None:
    then = datetime(2030, 1, 1, tzinfo=UTC)
    minute = timedelta(minutes=1)
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push(
            "q", b"", not_before=then, delay=minute, ttl=timedelta(milliseconds=1500), dedupe_id="d",
            visibility_timeout=minute, keep_done=minute, dedupe_window=minute,
        )  # fmt: skip
        producer.push_many("q", [{"payload": b"", "delay": timedelta(0)}])
    sent = [row[2] for message in broker.of(wire.PUSH) for row in message.fields[1]]
    spans = {"delay": 60.0, "ttl": 1.5, "visibility_timeout": 60.0, "keep_done": 60.0, "dedupe_window": 60.0}
    assert sent == [{"not_before": then.timestamp(), "dedupe_id": "d", **spans}, {"delay": 0.0}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": 300}, "'priority' is 300, expected a whole number from 0 to 255"),
        ({"not_before": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is what is wrong with it
        ({"ttl": timedelta(seconds=-1)}, "'ttl' is .*, expected seconds above 0"),
        ({"priority": timedelta(seconds=1)}, "'priority' is"),
        ({"backoff": "quadratic"}, "'backoff' is 'quadratic', expected"),
    ],
)
def test_what_no_job_may_have_is_refused_at_once(broker: ScriptedBroker, options: Any, why: str) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        with pytest.raises(BadHeadersError, match=why):
            producer.push("q", b"", **options)
        with pytest.raises(ValueError, match=why):
            producer.submit("q", b"", **options)
        with pytest.raises(BadHeadersError, match=why):
            producer.push_many("q", [b""], **options)[0].wait(SECONDS)
    assert broker.pushed() == []


def test_only_options_that_are_set_are_sent(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", b"", priority=3, ttl=1.5, headers={"user": 1}).wait(SECONDS)
        producer.push(
            "q", b"", delay=2, not_before="2030-01-01T00:00:00Z", max_attempts=1, visibility_timeout=9,
            backoff={"kind": "fixed", "base": 5}, keep_done=60, priority=0, reply="result",
        ).wait(SECONDS)  # fmt: skip
        producer.push("q", b"", dedupe_id="d", dedupe_window=0.5).wait(SECONDS)
    first, second, third = (message.fields[1][0][2] for message in broker.of(wire.PUSH))
    assert first == {"priority": 3, "ttl": 1.5, "headers": {"user": 1}}
    assert second == {
        "delay": 2, "not_before": "2030-01-01T00:00:00Z", "max_attempts": 1, "visibility_timeout": 9,
        "backoff": {"kind": "fixed", "base": 5}, "keep_done": 60, "priority": 0, "reply": "result",
    }  # fmt: skip
    assert third == {"dedupe_id": "d", "dedupe_window": 0.5}


def test_headers_are_sent_as_they_were_when_pushed(broker: ScriptedBroker) -> None:
    headers = {"step": 1}
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", b"", headers=headers)
        headers["step"] = 2
    assert broker.of(wire.PUSH)[0].fields[1][0][2] == {"headers": {"step": 1}}


def test_ids_of_the_library_are_unique_and_sort_in_the_order_of_the_pushes(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer, Producer(endpoint=broker.endpoint) as other:
        ids = [producer.push("q", b"").id for _ in range(3000)]
        others = [other.push("q", b"").id for _ in range(3000)]
    assert ids == sorted(ids)
    assert len({*ids, *others}) == 6000


def test_the_first_push_goes_alone_and_those_behind_it_in_full_messages(broker: ScriptedBroker) -> None:
    # Given: a broker that holds back its answers
    broker.on[wire.PUSH] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", b"first")
        first = broker.wait_for(wire.PUSH)[0]
        producer.push("q", b"second")
        broker.wait_for(wire.PUSH, 2)
        for number in range(700):
            producer.push("q", b"%d" % number)
        held = broker.wait_for(wire.PUSH, 4)
        # Then: two full messages, and the rest waits for an answer
        assert [len(rows(message)) for message in held] == [1, 1, 256, 256]
        broker.on[wire.PUSH] = lambda _message: []
        for message in held[1:]:
            broker.answer(message, [])
        assert len(rows(broker.wait_for(wire.PUSH, 5)[4])) == 188
        broker.answer(first, [])


def test_no_more_than_eight_messages_are_in_flight(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        for number in range(256 * 12):
            producer.push("q", b"%d" % number)
        held = broker.wait_for(wire.PUSH, 8)
        # When: a heartbeat later there are still no more
        broker.wait_for(wire.PING, 2)
        assert len(broker.of(wire.PUSH)) == 8
        broker.on[wire.PUSH] = lambda _message: []
        for message in held:
            broker.answer(message, [])


def test_a_message_holds_one_queue_and_at_most_a_mebibyte(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        for number in range(20):
            producer.push("a" if number % 2 else "b", bytes(300_000))
    for message in broker.of(wire.PUSH):
        assert len(rows(message)) <= 3
    assert sum(len(rows(message)) for message in broker.of(wire.PUSH)) == 20
    assert {message.fields[0] for message in broker.of(wire.PUSH)} == {"a", "b"}


def test_a_refusal_hits_the_job_at_its_position_and_no_other(broker: ScriptedBroker) -> None:
    def script(message: Received) -> Any:
        return [[at, "TOO_LARGE", "too big"] for at, row in enumerate(rows(message)) if row[1] == b"big"]

    broker.on[wire.PUSH] = script
    with Producer(endpoint=broker.endpoint) as producer:
        receipts = [producer.push("q", b"big" if number == 7 else b"ok") for number in range(20)]
        with pytest.raises(TooLargeError, match="too big"):
            receipts[7].wait(SECONDS)
        for number in set(range(20)) - {7}:
            receipts[number].wait(SECONDS)
        assert producer.refused == 1


def test_an_error_for_the_whole_message_refuses_all_its_jobs(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: QueueFullError("1000 queues are enough")
    producer = Producer(endpoint=broker.endpoint)
    with pytest.raises(QueueFullError, match="enough"):
        producer.push("q", b"").wait(SECONDS)
    producer.close()


def test_a_refusal_that_nobody_waited_for_is_raised_at_the_end_of_the_block(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "QUEUE_FULL", "full"]]

    def push_two() -> None:
        with Producer(endpoint=broker.endpoint) as producer:
            producer.push("q", b"", id="one")
            broker.wait_for(wire.PUSH)
            producer.push("q", b"", id="two")

    # When, Then
    with pytest.raises(QueueFullError, match=r"^2 jobs were refused, the first: one for queue q: full"):
        push_two()


def test_a_refusal_that_was_heard_is_not_raised_again(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda message: [[0, "QUEUE_FULL", "full"]]
    heard: list[tuple[PushReceipt, SluiceError]] = []
    with Producer(on_refused=lambda *refusal: heard.append(refusal), endpoint=broker.endpoint) as producer:
        receipt = producer.push("q", b"")
        producer.flush(SECONDS)
    with Producer(endpoint=broker.endpoint) as producer:
        other = producer.push("q", b"")
        with pytest.raises(QueueFullError):
            other.wait(SECONDS)
    assert [(refused, type(error)) for refused, error in heard] == [(receipt, QueueFullError)]


def test_a_broker_that_is_unavailable_for_a_moment_is_asked_again(broker: ScriptedBroker) -> None:
    # Given: it can't store the first message, nor the second job of the next one
    answers = iter([UnavailableError("no MongoDB"), [[0, "UNCERTAIN", "who knows"]], []])
    broker.on[wire.PUSH] = lambda _message: next(answers)
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", b"", id="one").wait(SECONDS)
    assert [id_ for id_, _payload in broker.pushed()] == ["one"] * 3


def test_push_blocks_at_the_window_until_confirmations_make_room(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE
    through = threading.Event()
    with Producer(window=10, endpoint=broker.endpoint) as producer:
        for _ in range(10):
            producer.push("q", b"")

        def push_one_more() -> None:
            producer.push("q", b"last")
            through.set()

        pusher = threading.Thread(target=push_one_more)
        pusher.start()
        broker.wait_for(wire.PUSH)
        broker.wait_for(wire.PING, 2)
        assert not through.is_set()
        held = broker.of(wire.PUSH)
        broker.on[wire.PUSH] = lambda _message: []
        for message in held:
            broker.answer(message, [])
        assert through.wait(SECONDS)
        pusher.join(SECONDS)
    assert broker.pushed()[-1][1] == b"last"


def test_push_gives_up_after_its_time_out_when_there_is_no_room(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE
    producer = Producer(window_bytes=1000, push_timeout=0.05, endpoint=broker.endpoint)
    producer.push("q", bytes(900))
    with pytest.raises(TimeoutError, match="1 jobs are unconfirmed"):
        producer.push("q", bytes(900))
    with pytest.raises(TimeoutError):
        producer.close(0.05)


def test_a_job_larger_than_the_window_is_pushed_alone(broker: ScriptedBroker) -> None:
    with Producer(window_bytes=1000, endpoint=broker.endpoint) as producer:
        producer.push("q", bytes(5000)).wait(SECONDS)


def test_the_end_of_the_block_waits_for_every_confirmation(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        receipts = [producer.push("q", b"%d" % number) for number in range(5000)]
    assert all(receipt.done for receipt in receipts)
    assert [payload for _id, payload in broker.pushed()] == [b"%d" % number for number in range(5000)]
    assert broker.wait_for(wire.BYE)


def test_an_end_without_confirmations_names_how_many_are_missing(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE
    with (
        pytest.raises(TimeoutError, match="3 jobs are not confirmed"),
        Producer(close_timeout=0.1, endpoint=broker.endpoint) as producer,
    ):
        receipts = [producer.push("q", b"") for _ in range(3)]
    with pytest.raises(UnavailableError, match="closed"):
        receipts[0].wait(SECONDS)


def test_a_program_that_just_ends_has_its_pushes_stored(broker: ScriptedBroker) -> None:
    program = f"import sluicemq; sluicemq.Producer('{broker.endpoint}').push('q', b'from a script')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)
    assert [payload for _id, payload in broker.pushed()] == [b"from a script"]


def test_what_the_broker_would_refuse_for_its_size_is_refused_at_once() -> None:
    broker = ScriptedBroker(limit=100).start()
    try:
        with Producer(endpoint=broker.endpoint) as producer:
            producer.push("q", bytes(100)).wait(SECONDS)
            # When, Then
            with pytest.raises(TooLargeError, match="101 bytes, this broker takes 100"):
                producer.push("q", bytes(101))
        assert len(broker.pushed()) == 1
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("error", "queue", "payload", "options"),
    [
        (BadQueueError, "", b"", {}),
        (BadQueueError, ".hidden", b"", {}),
        (BadQueueError, "ends.", b"", {}),
        (BadQueueError, "a..b", b"", {}),
        (BadQueueError, "x" * 65, b"", {}),
        (BadQueueError, "with space", b"", {}),
        (TypeError, "q", "text", {}),
        (TypeError, "q", None, {}),
        (TypeError, "q", b"", {"id": 7}),
        (ValueError, "q", b"", {"id": ""}),
        (ValueError, "q", b"", {"id": "é" * 65}),
        (BadHeadersError, "q", b"", {"headers": {"when": object()}}),
        (BadHeadersError, "q", b"", {"headers": {"big": 2**70}}),
    ],
)
def test_what_is_no_job_is_refused_at_once(
    broker: ScriptedBroker, error: type[Exception], queue: str, payload: Any, options: dict[str, Any]
) -> None:
    with Producer(endpoint=broker.endpoint) as producer, pytest.raises(error):
        producer.push(queue, payload, **options)
    assert broker.pushed() == []


@pytest.mark.parametrize("option", ["prority", "position"])
def test_an_option_that_there_is_not_is_refused_at_once(broker: ScriptedBroker, option: str) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
            producer.push("q", b"", **{option: None})
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
            producer.submit("q", b"", **{option: None})


def test_a_job_of_many_that_is_no_job_is_refused_at_its_position(broker: ScriptedBroker) -> None:
    jobs: list[Any] = [{"payload": b"", "prority": 1}, {"payload": b""}, {"priority": 1, "id": "mine"}]
    with Producer(endpoint=broker.endpoint) as producer:
        first, second, third = producer.push_many("q", jobs)
        second.wait(SECONDS)
        for receipt, why in ((first, "prority"), (third, "a payload is bytes")):
            with pytest.raises(BadFramesError, match=why):
                receipt.wait(SECONDS)
    assert [first.position, third.position, third.id] == [0, 2, "mine"]


def test_bytes_in_another_wrapping_are_taken(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push("q", bytearray(b"a"))  # type: ignore[arg-type]
        producer.push("q", memoryview(b"b"))  # type: ignore[arg-type]
    assert [payload for _id, payload in broker.pushed()] == [b"a", b"b"]


def test_a_closed_producer_takes_nothing_and_closes_again(broker: ScriptedBroker) -> None:
    producer = Producer(endpoint=broker.endpoint)
    producer.close()
    producer.close()
    with pytest.raises(ValueError, match="closed"):
        producer.push("q", b"")


def test_many_threads_push_through_one_producer(broker: ScriptedBroker) -> None:
    with Producer(window=500, endpoint=broker.endpoint) as producer:

        def push_some(who: int) -> None:
            for number in range(1000):
                producer.push("q", b"%d-%d" % (who, number))

        threads = [threading.Thread(target=push_some, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    payloads = [payload for _id, payload in broker.pushed()]
    assert sorted(payloads) == sorted(b"%d-%d" % (who, number) for who in range(4) for number in range(1000))


def test_queues_that_do_not_answer_hold_up_no_other(broker: ScriptedBroker) -> None:
    # Given: a broker that answers no push yet
    broker.on[wire.PUSH] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        # When: a job for each of twelve queues
        for number in range(12):
            producer.push(f"q{number}", b"x")
        # Then: all are on their way
        sent = broker.wait_for(wire.PUSH, 12)
        assert {message.fields[0] for message in sent} == {f"q{number}" for number in range(12)}
        # And one that is full of messages in flight lets others through, too
        producer.push_many("q0", [b"y"] * 256 * 20)
        broker.wait_for(wire.PUSH, 12 + IN_FLIGHT - 1)
        producer.push("other", b"z")
        sent = broker.wait_for(wire.PUSH, 12 + IN_FLIGHT)
        assert sent[-1].fields[0] == "other"
        broker.on.pop(wire.PUSH)
        for message in sent:
            broker.answer(message, [])


def test_a_queue_that_can_not_be_written_now_lets_others_go_on(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda message: UnavailableError("away") if message.fields[0] == "away" else []
    with Producer(endpoint=broker.endpoint) as producer:
        waits = producer.push("away", b"x")
        broker.wait_for(wire.PUSH)
        for _ in range(20):
            producer.push("q", b"x").wait(SECONDS)
        # Then: they have not waited for each pause of that queue
        assert sum(message.fields[0] == "away" for message in broker.of(wire.PUSH)) < 10
        broker.on.pop(wire.PUSH)
        waits.wait(SECONDS)
