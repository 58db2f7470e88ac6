"""What REP and PULL workers receive, and the verdicts that they may give."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import zmq

from launcher import wait_until
from plain_clients import AT_ONCE, Doors, House, code, message, receive, serving, shake_hands, spare


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[House]:
    devices = spare(ask=22, ask_full=2, pop=4, pop_full=2, ack=16, ack_full=2)
    with serving(mongo_uri, devices, queues=AT_ONCE) as house:
        yield house


@pytest.fixture
def house(shared: House) -> Iterator[House]:
    yield shared
    shared.leave()


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
def test_a_rep_worker_commits(house: House, verdict: list[bytes], result: bytes) -> None:
    doors = house.take("ask")
    asker, worker = house.socket(zmq.REQ, doors.front), house.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)

    worker.send_multipart(verdict)

    assert receive(asker) == [result]
    assert house.counts(doors.queue)["reserved"] == 0


@pytest.mark.parametrize("verdict", [[b"ROLLBACK"], [b"ROLLBACK", b""], [b"ROLLBACK", b"", b"0"]])
def test_a_rep_worker_rolls_back_and_the_job_comes_again(house: House, verdict: list[bytes]) -> None:
    doors = house.take("ask")
    asker, worker = house.socket(zmq.REQ, doors.front), house.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)

    worker.send_multipart(verdict)

    assert receive(worker) == [b"work"]
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_a_rep_worker_rolls_back_with_a_reason_and_a_delay(house: House) -> None:
    doors = house.take("ask")
    worker = house.socket(zmq.REP, doors.back)
    house.ask(doors.front, b"", b'{"reply": "accepted"}', b"work")
    receive(worker)
    given_back = time.monotonic()

    worker.send_multipart([b"ROLLBACK", b"too early", b"0.5"])

    assert receive(worker) == [b"work"]
    assert time.monotonic() - given_back >= 0.48
    (job,) = house.admin.peek(doors.queue, "reserved")
    assert [(each["attempt"], each["reason"]) for each in job["errors"]] == [(1, "too early")]


@pytest.mark.parametrize(
    ("verdict", "reason"), [([b"REJECT", b"nonsense"], "nonsense"), ([b"REJECT"], "reject")]
)
def test_a_rep_worker_rejects_to_the_dead_letters(house: House, verdict: list[bytes], reason: str) -> None:
    doors = house.take("ask")
    asker, worker = house.socket(zmq.REQ, doors.front), house.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)

    worker.send_multipart(verdict)

    assert house.dead_letter(doors.queue)["reason"] == reason
    answer = receive(asker)
    assert code(answer) == "DEAD"
    assert reason in message(answer)


def test_a_rep_worker_can_have_id_and_headers_too(house: House) -> None:
    doors = house.take("ask_full")
    asker, worker = house.socket(zmq.REQ, doors.front), house.socket(zmq.REP, doors.back)
    asker.send_multipart([b"", b'{"id": "full", "headers": {"of": "mine"}}', b"work"])

    job_id, headers, payload = receive(worker)

    assert (job_id, payload) == (b"full", b"work")
    assert json.loads(headers) == {"attempt": 1, "priority": 0, "headers": {"of": "mine"}}
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_a_rep_worker_that_is_busy_gets_no_other_job(house: House) -> None:
    doors = house.take("ask")
    busy, free = (house.socket(zmq.REP, doors.back) for _ in range(2))
    askers = [house.socket(zmq.REQ, doors.front) for _ in range(5)]
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


# ----------------------------------------------------------------------- PULL


def test_a_popped_job_is_gone_when_its_worker_has_it(house: House) -> None:
    doors = house.take("pop")
    worker = house.socket(zmq.PULL, doors.back)

    house.push(doors.front, b"work")

    assert receive(worker) == [b"work"]
    counts = house.counts(doors.queue)
    assert (counts["ready"], counts["reserved"], counts["done"], counts["dead"]) == (0, 0, 0, 0)


def test_a_popped_job_that_its_worker_did_not_take_whole_goes_to_another(house: House) -> None:
    # Given a worker that reads nothing, and a job larger than what the kernel takes for it
    doors, anew, large = house.take("pop"), house.counter("pushed_anew"), bytes(range(256)) * (12 << 12)
    silent = shake_hands(doors.back, b"PULL")
    producer = house.socket(zmq.PUSH, doors.front)
    producer.send(large)
    assert silent.recv(1)
    # When it goes
    silent.close()
    # Then another gets it
    worker = house.socket(zmq.PULL, doors.back)
    assert receive(worker) == [large]
    assert house.counter("pushed_anew") == anew + 1


def test_a_pull_worker_can_have_id_and_headers_too(house: House) -> None:
    doors = house.take("pop_full")
    worker = house.socket(zmq.PULL, doors.back)

    house.push(doors.front, b"", b'{"id": "full"}', b"work")

    job_id, headers, payload = receive(worker)
    assert (job_id, json.loads(headers)["attempt"], payload) == (b"full", 1, b"work")


def _delivered(house: House, doors: Doors) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes]:
    """A worker with one job, its way to the commit door, and the receipt."""
    worker, commits = house.socket(zmq.PULL, doors.back), house.socket(zmq.PUSH, doors.commit)
    house.push(doors.front, b"work")
    receipt, payload = receive(worker)
    assert payload == b"work"
    return worker, commits, receipt


@pytest.mark.parametrize("rest", [[], [b"a result that nobody waits for"]])
def test_a_pull_worker_commits_by_receipt(house: House, rest: list[bytes]) -> None:
    doors = house.take("ack")
    _, commits, receipt = _delivered(house, doors)
    assert house.counts(doors.queue)["reserved"] == 1

    commits.send_multipart([b"COMMIT", receipt, *rest])

    house.await_count(doors.queue, "reserved", 0)
    assert house.counts(doors.queue)["ready"] == 0


def test_a_pull_worker_rolls_back_with_a_reason_and_a_delay(house: House) -> None:
    doors = house.take("ack")
    worker, commits, receipt = _delivered(house, doors)
    given_back = time.monotonic()

    commits.send_multipart([b"ROLLBACK", receipt, b"too early", b"0.5"])

    again, _ = receive(worker)
    assert again != receipt
    assert time.monotonic() - given_back >= 0.48
    (job,) = house.admin.peek(doors.queue, "reserved")
    assert job["errors"][-1]["reason"] == "too early"


def test_a_pull_worker_rejects_to_the_dead_letters(house: House) -> None:
    doors = house.take("ack")
    _, commits, receipt = _delivered(house, doors)

    commits.send_multipart([b"REJECT", receipt, b"nonsense"])

    assert house.dead_letter(doors.queue)["reason"] == "nonsense"


def test_a_receipt_names_one_delivery_so_a_late_verdict_changes_nothing(house: House) -> None:
    doors = house.take("ack")
    worker, commits, receipt = _delivered(house, doors)
    commits.send_multipart([b"ROLLBACK", receipt])
    again, _ = receive(worker)
    late = house.counter("late_verdicts")

    for verdict in (b"COMMIT", b"REJECT", b"ROLLBACK"):
        commits.send_multipart([verdict, receipt])
    wait_until(lambda: house.counter("late_verdicts") == late + 3)

    assert house.counts(doors.queue)["reserved"] == 1
    commits.send_multipart([b"COMMIT", again])
    house.await_count(doors.queue, "reserved", 0)


def test_a_pull_worker_has_no_more_unsettled_jobs_than_its_prefetch(house: House) -> None:
    doors = house.take("ack")  # prefetch = 2
    worker, commits = house.socket(zmq.PULL, doors.back), house.socket(zmq.PUSH, doors.commit)
    producer = house.socket(zmq.PUSH, doors.front)
    for number in range(5):
        producer.send(b"%d" % number)
    unsettled = [receive(worker), receive(worker)]
    wait_until(lambda: sum(house.counts(doors.queue)[state] for state in ("ready", "reserved")) == 5)
    assert not worker.poll(100)

    seen = [payload for _, payload in unsettled]
    while unsettled:
        commits.send_multipart([b"COMMIT", unsettled.pop(0)[0]])
        if len(seen) < 5:
            unsettled.append(receive(worker))
            seen.append(unsettled[-1][1])

    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    house.await_count(doors.queue, "reserved", 0)


def test_a_committing_pull_worker_can_have_id_and_headers_too(house: House) -> None:
    doors = house.take("ack_full")
    worker = house.socket(zmq.PULL, doors.back)

    house.push(doors.front, b"", b'{"id": "full", "priority": 9}', b"work")

    receipt, job_id, headers, payload = receive(worker)
    assert receipt not in (b"", job_id)
    assert (job_id, payload) == (b"full", b"work")
    assert json.loads(headers) == {"attempt": 1, "priority": 9, "headers": {}}


def test_any_connection_may_commit_what_it_has_the_receipt_of(house: House) -> None:
    doors = house.take("ack")
    _, _, receipt = _delivered(house, doors)

    house.push(doors.commit, b"COMMIT", receipt)

    house.await_count(doors.queue, "reserved", 0)
