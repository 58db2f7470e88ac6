"""What REP and PULL workers receive, and the verdicts that they may give."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from sluicemq_devices.zmtp import COMMAND, MORE
from support.broker_under_test import AT_ONCE, BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import code, message, receive, shake_hands
from support.waiting import wait_until


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    devices = spare(ask=24, ask_full=2, pop=5, pop_full=2, ack=16, ack_full=2)
    with serving(mongo_uri, devices, queues=AT_ONCE) as broker:
        yield broker


# ------------------------------------------------------------------------ REP


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        ([b"plain result"], b"plain result"),
        ([b""], b""),
        ([b"commit"], b"commit"),  # verbs are in capitals
        ([b"COMMIT", b"result"], b"result"),
        ([b"COMMIT", b"COMMIT"], b"COMMIT"),
        ([b"COMMIT", b""], b""),
        ([b"COMMIT"], b""),
    ],
)
def test_a_rep_worker_commits(broker: BrokerUnderTest, verdict: list[bytes], result: bytes) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)
    worker.send_multipart(verdict)
    assert receive(asker) == [result]
    assert broker.counts(doors.queue)["reserved"] == 0


@pytest.mark.parametrize("verdict", [[b"ROLLBACK"], [b"ROLLBACK", b""], [b"ROLLBACK", b"", b"0"]])
def test_a_rep_worker_rolls_back_and_a_job_comes_again(broker: BrokerUnderTest, verdict: list[bytes]) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)
    worker.send_multipart(verdict)
    assert receive(worker) == [b"work"]
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_a_rep_worker_rolls_back_with_a_reason_and_a_delay(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", b'{"reply": "accepted"}', b"work")
    receive(worker)
    rolled_back = time.monotonic()
    worker.send_multipart([b"ROLLBACK", b"too early", b"0.5"])
    assert receive(worker) == [b"work"]
    assert time.monotonic() - rolled_back >= 0.48
    (job,) = broker.admin.peek(doors.queue, "reserved")
    assert [(row["attempt"], row["reason"]) for row in job["errors"]] == [(1, "too early")]


@pytest.mark.parametrize(
    ("verdict", "reason"), [([b"REJECT", b"nonsense"], "nonsense"), ([b"REJECT"], "reject")]
)
def test_a_rep_worker_makes_dead_letters(broker: BrokerUnderTest, verdict: list[bytes], reason: str) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)
    worker.send_multipart(verdict)
    assert broker.dead_letter(doors.queue)["reason"] == reason
    answer = receive(asker)
    assert code(answer) == "DEAD"
    assert reason in message(answer)


def test_a_rep_worker_can_have_id_and_headers_too(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask_full")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send_multipart([b"", b'{"id": "full", "headers": {"of": "mine"}}', b"work"])
    job_id, headers, payload = receive(worker)
    assert (job_id, payload) == (b"full", b"work")
    assert json.loads(headers) == {"attempt": 1, "priority": 0, "headers": {"of": "mine"}}
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_a_rep_worker_that_is_busy_gets_no_other_job(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    busy, free = (broker.socket(zmq.REP, doors.back) for _ in range(2))
    askers = [broker.socket(zmq.REQ, doors.front) for _ in range(5)]
    askers[0].send(b"long")
    wait_until(lambda: busy.poll(0) or free.poll(0))
    busy, free = (busy, free) if busy.poll(0) else (free, busy)
    receive(busy)

    for asker in askers[1:]:
        asker.send(b"short")
    for _ in askers[1:]:
        assert receive(free) == [b"short"]
        free.send(b"done")
    assert [receive(asker) for asker in askers[1:]] == [[b"done"]] * 4

    busy.send(b"at last")
    assert receive(askers[0]) == [b"at last"]


def _short_frames(worker: socket.socket) -> list[bytes]:
    """The next message, of short frames, whose heartbeats are passed over."""
    frames: list[bytes] = []
    more = True
    while more:
        flags, size = worker.recv(2, socket.MSG_WAITALL)
        body = worker.recv(size, socket.MSG_WAITALL)
        if not flags & COMMAND:
            frames.append(body)
            more = bool(flags & MORE)
    return frames


def _say(worker: socket.socket, *frames: bytes) -> None:
    flags = [MORE] * (len(frames) - 1) + [0]
    parts = zip(flags, frames, strict=True)
    worker.sendall(b"".join(bytes((flag, len(part))) + part for flag, part in parts))


def test_an_answer_over_the_next_connection_is_for_its_job(broker: BrokerUnderTest) -> None:
    # Given a worker whose connection ended while it had a job, and which has another one on the next. libzmq
    # sends its answer to the first on that
    doors, late = broker.take("ask"), broker.counter("late_verdicts")
    worker = shake_hands(doors.back, b"REP")
    broker.ask(doors.front, b"", b'{"reply": "accepted", "max_attempts": 1}', b"first")
    *envelope, payload = _short_frames(worker)
    assert payload == b"first"
    worker.close()
    assert broker.dead_letter(doors.queue)["id"]
    worker = shake_hands(doors.back, b"REP")
    asker = broker.socket(zmq.REQ, doors.front)
    asker.send(b"second")
    *second, payload = _short_frames(worker)
    assert payload == b"second"
    # When it answers the first
    _say(worker, *envelope, b"of the first")
    # Then the second is not done, but waits for its own answer
    wait_until(lambda: broker.counter("late_verdicts") == late + 1)
    assert broker.counts(doors.queue)["reserved"] == 1
    _say(worker, *second, b"of the second")
    assert receive(asker) == [b"of the second"]
    worker.close()


def test_a_worker_that_gives_back_no_envelope_answers_the_job_that_it_has(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    worker = shake_hands(doors.back, b"REP")
    asker = broker.socket(zmq.REQ, doors.front)
    asker.send(b"work")
    assert _short_frames(worker)[1:] == [b"", b"work"]
    _say(worker, b"", b"done")
    assert receive(asker) == [b"done"]
    worker.close()


# ----------------------------------------------------------------------- PULL


def test_a_popped_job_is_gone_when_its_worker_has_it(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"work")
    assert receive(worker) == [b"work"]
    counts = broker.counts(doors.queue)
    assert (counts["ready"], counts["reserved"], counts["done"], counts["dead"]) == (0, 0, 0, 0)


def test_a_popped_job_that_its_worker_did_not_take_whole_goes_to_another(broker: BrokerUnderTest) -> None:
    # Given a worker that reads nothing, and a job larger than what the kernel takes for it
    doors, anew, large = broker.take("pop"), broker.counter("pushed_anew"), bytes(range(256)) * (12 << 12)
    silent = shake_hands(doors.back, b"PULL")
    producer = broker.socket(zmq.PUSH, doors.front)
    producer.send(large)
    assert silent.recv(1)
    # When it goes
    silent.close()
    # Then another gets it
    worker = broker.socket(zmq.PULL, doors.back)
    assert receive(worker) == [large]
    assert broker.counter("pushed_anew") == anew + 1


def test_a_popping_worker_that_has_read_a_large_job_late_gets_the_next_one(broker: BrokerUnderTest) -> None:
    # Given a worker whose connection was full of its job
    doors, large = broker.take("pop"), bytes(range(256)) * (12 << 12)
    slow = shake_hands(doors.back, b"PULL")
    producer = broker.socket(zmq.PUSH, doors.front)
    producer.send(large)
    came = len(slow.recv(1))
    # When it has read that
    while came < 9 + len(large):
        came += len(slow.recv(2**20))
    producer.send(b"next")
    assert slow.recv(100) == b"\0\4next"
    slow.close()


def test_a_pull_worker_can_have_id_and_headers_too(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop_full")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"", b'{"id": "full"}', b"work")
    job_id, headers, payload = receive(worker)
    assert (job_id, json.loads(headers)["attempt"], payload) == (b"full", 1, b"work")


def _delivered(broker: BrokerUnderTest, doors: Doors) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes]:
    """A worker with one job, its way to the commit door, and the receipt."""
    worker, commits = broker.socket(zmq.PULL, doors.back), broker.socket(zmq.PUSH, doors.commit)
    broker.push(doors.front, b"work")
    receipt, payload = receive(worker)
    assert payload == b"work"
    return worker, commits, receipt


@pytest.mark.parametrize("rest", [[], [b"a result that nobody waits for"]])
def test_a_pull_worker_commits_by_receipt(broker: BrokerUnderTest, rest: list[bytes]) -> None:
    doors = broker.take("ack")
    _, commits, receipt = _delivered(broker, doors)
    assert broker.counts(doors.queue)["reserved"] == 1
    commits.send_multipart([b"COMMIT", receipt, *rest])
    broker.await_count(doors.queue, "reserved", 0)
    assert broker.counts(doors.queue)["ready"] == 0


def test_a_pull_worker_rolls_back_with_a_reason_and_a_delay(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    worker, commits, receipt = _delivered(broker, doors)
    rolled_back = time.monotonic()
    commits.send_multipart([b"ROLLBACK", receipt, b"too early", b"0.5"])
    again, _ = receive(worker)
    assert again != receipt
    assert time.monotonic() - rolled_back >= 0.48
    (job,) = broker.admin.peek(doors.queue, "reserved")
    assert job["errors"][-1]["reason"] == "too early"


def test_a_pull_worker_rejects_to_the_dead_letters(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    _, commits, receipt = _delivered(broker, doors)
    commits.send_multipart([b"REJECT", receipt, b"nonsense"])
    assert broker.dead_letter(doors.queue)["reason"] == "nonsense"


def test_a_receipt_names_one_delivery_so_a_late_verdict_changes_nothing(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    worker, commits, receipt = _delivered(broker, doors)
    commits.send_multipart([b"ROLLBACK", receipt])
    again, _ = receive(worker)
    late = broker.counter("late_verdicts")
    for verdict in (b"COMMIT", b"REJECT", b"ROLLBACK"):
        commits.send_multipart([verdict, receipt])
    wait_until(lambda: broker.counter("late_verdicts") == late + 3)
    assert broker.counts(doors.queue)["reserved"] == 1
    commits.send_multipart([b"COMMIT", again])
    broker.await_count(doors.queue, "reserved", 0)


def test_a_pull_worker_has_no_more_unsettled_jobs_than_its_prefetch(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")  # prefetch = 2
    worker, commits = broker.socket(zmq.PULL, doors.back), broker.socket(zmq.PUSH, doors.commit)
    producer = broker.socket(zmq.PUSH, doors.front)
    for number in range(5):
        producer.send(b"%d" % number)
    unsettled = [receive(worker), receive(worker)]
    wait_until(lambda: sum(broker.counts(doors.queue)[state] for state in ("ready", "reserved")) == 5)
    assert not worker.poll(100)

    seen = [payload for _, payload in unsettled]
    while unsettled:
        commits.send_multipart([b"COMMIT", unsettled.pop(0)[0]])
        if len(seen) < 5:
            unsettled.append(receive(worker))
            seen.append(unsettled[-1][1])

    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    broker.await_count(doors.queue, "reserved", 0)


def test_a_committing_pull_worker_can_have_id_and_headers_too(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack_full")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"", b'{"id": "full", "priority": 9}', b"work")
    receipt, job_id, headers, payload = receive(worker)
    assert receipt not in (b"", job_id)
    assert (job_id, payload) == (b"full", b"work")
    assert json.loads(headers) == {"attempt": 1, "priority": 9, "headers": {}}


def test_any_connection_may_commit_what_it_has_the_receipt_of(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    _, _, receipt = _delivered(broker, doors)
    broker.push(doors.commit, b"COMMIT", receipt)
    broker.await_count(doors.queue, "reserved", 0)
