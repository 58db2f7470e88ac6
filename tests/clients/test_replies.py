"""Results, batches and claims of the library against a scripted broker: what it asks, and when again."""

import threading
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from sluicemq import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    Client,
    DeadError,
    Job,
    LeaseLostError,
    Producer,
    TimeoutError,
    TooLargeError,
    UnavailableError,
    Worker,
)
from sluicemq.protocol import wire
from sluicemq.transport.replies import QUESTIONS_AT_ONCE


def scripted(answers: list[Any]) -> Any:
    """Each question gets the next of these; the last again and again."""
    return lambda _message: answers.pop(0) if len(answers) > 1 else answers[0]


# -------------------------------------------------------------------- results


def test_a_result_is_asked_for_once_its_push_is_confirmed(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: b"42"
    with Producer(endpoint=broker.endpoint) as producer:
        assert producer.call("mail", b"x", SECONDS, id="mine", priority=3) == b"42"
    verbs = [message.verb for message in broker.received if message.verb in (wire.PUSH, wire.RESULT)]
    assert verbs == [wire.PUSH, wire.RESULT]
    assert broker.of(wire.PUSH)[0].fields == ["mail", [["mine", b"x", {"priority": 3, "reply": "result"}]]]
    assert broker.of(wire.RESULT)[0].fields[:2] == ["mail", "mine"]


@pytest.mark.parametrize("not_yet", [TimeoutError("it runs"), UnavailableError("the broker stops")])
def test_a_result_that_is_not_there_yet_is_asked_for_again(broker: ScriptedBroker, not_yet: Any) -> None:
    broker.on[wire.RESULT] = scripted([not_yet, not_yet, b"42"])
    with Producer(endpoint=broker.endpoint) as producer:
        assert producer.call("mail", b"x", SECONDS) == b"42"
    assert len(broker.of(wire.RESULT)) == 3


def test_outstanding_questions_are_asked_again_by_id_after_a_reconnect(broker: ScriptedBroker) -> None:
    # Given questions that a broker has not answered when it vanishes
    broker.on[wire.RESULT] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        replies = [producer.submit("mail", b"x", id=f"job-{number}") for number in range(3)]
        broker.wait_for(wire.RESULT, 3)
        # When it comes back
        broker.stop()
        broker.on[wire.RESULT] = lambda message: message.fields[1].encode()
        broker.start()
        # Then each has its own result, and nothing was pushed again
        assert [reply.result(SECONDS) for reply in replies] == [b"job-0", b"job-1", b"job-2"]
    assert len(broker.pushed()) == 3


def test_no_more_questions_are_out_than_a_broker_takes(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        replies = [producer.submit("mail", b"") for _ in range(QUESTIONS_AT_ONCE + 5)]
        asked = broker.wait_for(wire.RESULT, QUESTIONS_AT_ONCE)
        replies[-1].receipt.wait(SECONDS)
        assert len(broker.of(wire.RESULT)) == QUESTIONS_AT_ONCE
        broker.on[wire.RESULT] = lambda _message: b"late"
        for message in asked:
            broker.answer(message, b"early")
        assert [reply.result(SECONDS) for reply in replies] == [b"early"] * QUESTIONS_AT_ONCE + [b"late"] * 5


def test_a_call_without_a_result_in_time_says_which_job_that_is(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: SILENCE
    with (
        Producer(endpoint=broker.endpoint) as producer,
        pytest.raises(TimeoutError, match=r"job mine .* after 0.05 s"),
    ):
        producer.call("mail", b"x", 0.05, id="mine")


def test_no_result_is_requested_that_nobody_waits_for(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        reply = producer.submit("mail", b"x", id="cancelled")
        (asked,) = broker.wait_for(wire.RESULT)
        assert reply.give_up()
        broker.answer(asked, TimeoutError("it runs"))
        producer.submit("mail", b"x", id="other")
        broker.wait_for(wire.RESULT, 2)
    assert [message.fields[1] for message in broker.of(wire.RESULT)] == ["cancelled", "other"]


def test_a_failed_job_raises_its_error(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: DeadError("no cat")
    with Producer(endpoint=broker.endpoint) as producer, pytest.raises(DeadError, match="no cat"):
        producer.call("mail", b"x", SECONDS)


def test_a_refused_push_fails_its_future_and_is_not_said_again_by_close(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "TOO_LARGE", "no"]]
    with Producer(endpoint=broker.endpoint) as producer, pytest.raises(TooLargeError):
        producer.call("mail", b"x", SECONDS)
    assert broker.of(wire.RESULT) == []


def test_closing_ends_the_futures_that_have_no_result(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        reply = producer.submit("mail", b"x")
        broker.wait_for(wire.RESULT)
    with pytest.raises(UnavailableError, match="closed"):
        reply.result(SECONDS)


# -------------------------------------------------------------------- batches


def test_a_receipt_says_whether_the_job_was_there_before() -> None:
    broker = ScriptedBroker()
    broker._answer = lambda message, value: broker._send(  # type: ignore[method-assign]
        message.peer,
        wire.encode(wire.OK, message.number, value, *([[1]] if message.verb == wire.PUSH else [])),
    )
    broker.start()
    try:
        with Producer(endpoint=broker.endpoint) as producer:
            broker.on[wire.PUSH] = lambda _message: []
            producer.push("mail", b"")  # is alone, so that those after it travel together
            receipts = producer.push_many("mail", [b"a", b"b", b"c"])
            producer.flush(SECONDS)
    finally:
        broker.stop()
    batches = [[row[0] for row in message.fields[1]] for message in broker.of(wire.PUSH)]
    seconds = {batch[1] for batch in batches if len(batch) > 1}
    assert {receipt.id for receipt in receipts if receipt.existed} == seconds


def test_of_many_only_what_is_wrong_is_refused_by_its_position(broker: ScriptedBroker) -> None:
    def refuse_fours(message: Received) -> Any:
        return [[at, "BAD_HEADERS", "four"] for at, row in enumerate(message.fields[1]) if row[1] == b"4"]

    broker.on[wire.PUSH] = refuse_fours
    heard: list[tuple[int | None, str]] = []
    jobs: list[Any] = [
        b"0", "text", {"payload": b"2", "id": "two"}, {"payload": b"3", "headers": {"a": object()}}, b"4",
        {"payload": b"5", "id": ""}, {"payload": b"6", "colour": "red"}, b"7",
    ]  # fmt: skip
    with Producer(
        on_refused=lambda r, error: heard.append((r.position, error.code)), endpoint=broker.endpoint
    ) as p:
        receipts = p.push_many("mail", jobs, start=10, priority=1)
    errors = {
        10: None,
        11: BadFramesError,
        12: None,
        13: BadHeadersError,
        14: BadHeadersError,
        15: BadFramesError,
        16: BadFramesError,
    }
    for receipt in receipts:
        error = errors.get(receipt.position or 0)
        if error:
            with pytest.raises(error):
                receipt.wait(SECONDS)
        else:
            receipt.wait(SECONDS)
    assert [receipt.position for receipt in receipts] == list(range(10, 18))
    assert sorted(at or 0 for at, _ in heard) == [11, 13, 14, 15, 16]
    assert [row[1:] for message in broker.of(wire.PUSH) for row in message.fields[1]] == [
        [payload, {"priority": 1}] for payload in (b"0", b"2", b"4", b"7")
    ]


def test_what_nobody_has_heard_of_a_batch_is_raised_by_the_flush_by_position(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer:
        producer.push_many("mail", [b"fine", 7])  # type: ignore[list-item]
        with pytest.raises(BadFramesError, match=r"1 jobs were refused, .* at position 1 for queue mail"):
            producer.flush(SECONDS)


def test_a_bad_queue_is_wrong_of_all_of_a_batch(broker: ScriptedBroker) -> None:
    with Producer(endpoint=broker.endpoint) as producer, pytest.raises(BadQueueError):
        producer.push_many("no queue", [b""])


# --------------------------------------------------------------------- claims


def deliver_on_ready(broker: ScriptedBroker, payloads: list[bytes], *, pop: bool = False) -> None:
    def ready(message: Received) -> None:
        if message.fields[1]:
            broker.deliver(message.peer, message.fields[0], payloads)

    broker.on[wire.READY] = ready


def test_a_claim_renews_with_one_message_and_withdraws_its_credit(broker: ScriptedBroker) -> None:
    deliver_on_ready(broker, [b"a", b"b"])
    with Client(endpoint=broker.endpoint) as client, client.jobs.reserve("mail", 2, wait=SECONDS) as claim:
        claim.extend(30)
        assert [message.fields[1] for message in broker.of(wire.READY)] == [2, 0]
        assert [message.fields for message in broker.of(wire.EXTEND)] == [[[b"r-a", b"r-b"], 30]]
        claim.commit()
    assert len(broker.of(wire.SETTLE)) == 1
    assert broker.settled() == {b"r-a": ["COMMIT", None, None], b"r-b": ["COMMIT", None, None]}


def test_jobs_beyond_the_limit_of_a_claim_are_released(broker: ScriptedBroker) -> None:
    deliver_on_ready(broker, [b"a", b"b", b"c"])
    with Client(endpoint=broker.endpoint) as client, client.jobs.reserve("mail", 2, wait=SECONDS) as claim:
        assert [job.payload for job in claim] == [b"a", b"b"]
        broker.wait_for(wire.SETTLE)
        assert broker.settled() == {b"r-c": ["RELEASE", None, 0.0]}


def test_a_job_that_comes_after_the_claim_was_over_is_released(broker: ScriptedBroker) -> None:
    deliver_on_ready(broker, [b"a"])
    with Client(endpoint=broker.endpoint) as client, client.jobs.reserve("mail", 3, wait=1.0) as claim:
        broker.deliver(broker.of(wire.READY)[0].peer, "mail", [b"late"])
        broker.wait_for(wire.SETTLE)
        assert len(claim) == 1
    assert broker.settled() == {b"r-late": ["RELEASE", None, 0.0]}


def test_a_claim_that_waits_when_the_broker_goes_asks_the_next_one(broker: ScriptedBroker) -> None:
    # Given a claim that has one of two jobs
    deliver_on_ready(broker, [b"a"])
    claims: list[Any] = []
    with Client(endpoint=broker.endpoint) as client:
        waiting = threading.Thread(target=lambda: claims.append(client.jobs.reserve("mail", 2, wait=SECONDS)))
        waiting.start()
        broker.wait_for(wire.READY)
        # When the broker is another one
        broker.stop()
        deliver_on_ready(broker, [b"b"])
        broker.start()
        again = broker.wait_for(wire.READY, 2)[1]
        broker.wait_for(wire.PING, len(broker.of(wire.PING)) + 4)
        broker.deliver(again.peer, "mail", [b"c"])
        waiting.join(SECONDS)
        # Then it has waited for that one's jobs, and does not count the void one
        with claims[0] as claim:
            assert [job.payload for job in claim] == [b"b", b"c"]


def test_jobs_that_a_renewal_does_not_find_are_lost_and_the_others_are_not(broker: ScriptedBroker) -> None:
    deliver_on_ready(broker, [b"a", b"b"])
    broker.on[wire.EXTEND] = lambda _message: [[0, "LEASE_LOST", "given to another"]]
    with Client(endpoint=broker.endpoint) as client, client.jobs.reserve("mail", 2, wait=SECONDS) as claim:
        with pytest.raises(LeaseLostError, match=r"given to another \(1 of 2 jobs: id-a\)"):
            claim.extend(30)
        assert [job.id for job in claim.unsettled] == ["id-b"]


def test_what_was_popped_before_the_broker_vanished_is_kept_and_only_the_rest_asked_for(
    broker: ScriptedBroker,
) -> None:
    deliver_on_ready(broker, [b"a"])
    popped: list[Any] = []
    with Client(endpoint=broker.endpoint) as client:
        taker = threading.Thread(target=lambda: popped.extend(client.jobs.pop("mail", 3, wait=SECONDS)))
        taker.start()
        broker.wait_for(wire.READY)
        broker.wait_for(wire.PING, len(broker.of(wire.PING)) + 4)  # it has come: both connections beat
        broker.stop()
        deliver_on_ready(broker, [b"b", b"c"])
        broker.start()
        taker.join(SECONDS)
    assert [job.payload for job in popped] == [b"a", b"b", b"c"]
    assert [message.fields[1] for message in broker.of(wire.READY)] == [3, 2, 0]
    assert {message.fields[2]["pop"] for message in broker.of(wire.READY)} == {True}


def test_a_worker_that_pops_asks_for_as_many_as_it_has_room_for(broker: ScriptedBroker) -> None:
    # Given a worker with room for four, that has two
    go_on = threading.Semaphore(0)

    def handler(_job: Job) -> None:
        assert go_on.acquire(timeout=SECONDS)

    worker = Worker("mail", handler, prefetch=4, pop=True, endpoint=broker.endpoint)
    with worker:
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "mail", [b"a", b"b"])
        # When one is done, then it wants one more
        go_on.release()
        broker.wait_for(wire.READY, 2)
        # When the connection is lost, then the next broker is asked for all but the one that it has
        broker.stop()
        broker.start()
        broker.wait_for(wire.READY, 3)
        assert [message.fields[1] for message in broker.of(wire.READY)] == [4, 1, 3]
        go_on.release()
        broker.wait_for(wire.READY, 4)
    assert [message.fields[1] for message in broker.of(wire.READY)][3] == 1
    assert broker.settled() == {}
