"""What REQ and DEALER clients may ask, and what they hear."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT, AT_ONCE, BrokerUnderTest, serving, spare
from support.raw_sockets import Smq, code, message, receive
from support.waiting import wait_until

#: A queue with doors of every kind: asked for at a QUEUE, worked on at two STREAMERS.
MIXED = [
    {"kind": "queue", "queue": "mixed", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "streamer", "queue": "mixed", "ack": "explicit", "backend": ANY_PORT, "commit": ANY_PORT},
    {"kind": "streamer", "queue": "mixed", "backend": ANY_PORT},
]

#: A QUEUE with room for three questions.
NARROW = [{"kind": "queue", "queue": "narrow", "frontend": ANY_PORT, "backend": ANY_PORT, "hwm": 3}]


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    # Expired jobs are swept once a lease.
    with serving(
        mongo_uri, [*spare(ask=22 + 4), *MIXED, *NARROW], poll=0.5, lease=3, queues=AT_ONCE
    ) as broker:
        yield broker


def in_json(**headers: Any) -> bytes:
    return json.dumps(headers).encode()


def test_a_request_is_answered_with_the_result_of_its_worker(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"21")
    assert receive(worker) == [b"21"]
    worker.send(b"42")
    assert receive(asker) == [b"42"]


@pytest.mark.parametrize("headers", [None, b"", b'{"priority": 3}'])
def test_a_request_may_name_the_queue_that_answers(broker: BrokerUnderTest, headers: bytes | None) -> None:
    doors, other = broker.take("ask"), broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, other.back)
    between = [] if headers is None else [headers]
    asker.send_multipart([other.queue.encode(), *between, b"work"])
    assert receive(worker) == [b"work"]
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_reply_accepted_answers_the_id_once_the_job_is_stored(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    (given,) = broker.ask(doors.front, b"", b'{"reply": "accepted"}', b"work")
    own = broker.ask(doors.front, b"", in_json(id="mine", reply="accepted"), b"work")
    assert own == [b"mine"]
    assert [job.id for job in broker.admin.jobs.list(doors.queue)] == [given.decode(), "mine"]


def test_reply_result_says_what_holds_without_it(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send_multipart([b"", b'{"reply": "result"}', b"work"])
    receive(worker)
    worker.send(b"the result")
    assert receive(asker) == [b"the result"]


def test_the_same_id_again_hears_the_stored_result(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send_multipart([b"", in_json(id="known"), b"work"])
    receive(worker)
    worker.send(b"the result")
    receive(asker)
    again = broker.ask(doors.front, b"", in_json(id="known"), b"work")
    assert again == [b"the result"]
    assert not worker.poll(0)  # it was not worked on twice


def test_the_same_id_accepted_again_is_answered_without_another_job(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    for _ in range(2):
        answer = broker.ask(doors.front, b"", in_json(id="twice", reply="accepted"), b"work")
        assert answer == [b"twice"]
    assert len(broker.admin.jobs.list(doors.queue)) == 1


def test_the_same_id_while_the_job_runs_waits_for_its_result(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    first, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    first.send_multipart([b"", in_json(id="running"), b"work"])
    receive(worker)
    repeated = broker.counter("repeated")
    second = broker.socket(zmq.REQ, doors.front)
    second.send_multipart([b"", in_json(id="running"), b"work"])
    wait_until(lambda: broker.counter("repeated") > repeated)
    worker.send(b"for both")
    assert receive(first) == receive(second) == [b"for both"]


def test_a_client_that_comes_back_hears_what_became_of_its_job(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    gone, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    gone.send_multipart([b"", in_json(id="kept"), b"work"])
    receive(worker)
    gone.close()
    worker.send(b"nobody there")
    broker.await_count(doors.queue, "done", 1)
    assert broker.ask(doors.front, b"", in_json(id="kept"), b"work") == [b"nobody there"]


def test_a_dealer_numbers_its_requests_and_hears_the_numbers(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    dealer = broker.socket(zmq.DEALER, doors.front)
    workers = [broker.socket(zmq.REP, doors.back) for _ in range(3)]
    for number in (b"1", b"2", b"3"):
        dealer.send_multipart([number, b"", b"job " + number])
    jobs = [(worker, receive(worker)) for worker in workers]
    for worker, (job,) in sorted(jobs, key=lambda pair: pair[1], reverse=True):
        worker.send(b"result of " + job)
    answers = {bytes(number): rest for number, *rest in (receive(dealer) for _ in workers)}
    assert answers == {number: [b"", b"result of job " + number] for number in (b"1", b"2", b"3")}


def test_a_dealer_that_asks_much_and_reads_late_hears_every_answer(broker: BrokerUnderTest) -> None:
    doors, count, result = broker.take("ask"), 1500, bytes(30_000)
    dealer = broker.socket(zmq.DEALER, doors.front, rcvhwm=1, sndhwm=0)
    worker = broker.socket(zmq.REP, doors.back)
    for number in range(count):
        dealer.send_multipart([b"%d" % number, b"", b"work"])
    for _ in range(count):
        receive(worker)
        worker.send(result)
    answers = [receive(dealer) for _ in range(count)]
    assert {number for number, *_ in answers} == {b"%d" % number for number in range(count)}
    assert all(rest == [b"", result] for _, *rest in answers)


def test_questions_that_were_left_alone_shut_the_door_for_nobody(broker: BrokerUnderTest) -> None:
    device = next(row for row in broker.process.devices if row["queue"] == "narrow")
    gone = broker.socket(zmq.DEALER, device["frontend"][0])
    for number in (b"1", b"2", b"3"):
        gone.send_multipart([number, b"", b"never answered"])
    broker.await_count("narrow", "ready", 3)
    gone.close()
    asker = broker.socket(zmq.REQ, device["frontend"][0])
    asker.send_multipart([b"", b'{"priority": 1, "reply": "accepted", "id": "next"}', b"work"])
    assert receive(asker) == [b"next"]
    wait_until(lambda: broker.counter("askers_gone") >= 3, what="a count of the askers that have gone")


def test_an_envelope_of_several_frames_comes_back_unchanged(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    dealer, worker = broker.socket(zmq.DEALER, doors.front), broker.socket(zmq.REP, doors.back)
    dealer.send_multipart([b"hop 2", b"hop 1", b"", doors.queue.encode(), b"work"])
    assert receive(worker) == [b"work"]
    worker.send_multipart([b"COMMIT", b"done"])
    assert receive(dealer) == [b"hop 2", b"hop 1", b"", b"done"]


@pytest.mark.parametrize("envelope", [[b"x" * 65_537], [b"hop"] * 256], ids=["bytes", "frames"])
def test_too_large_an_envelope_is_refused(broker: BrokerUnderTest, envelope: list[bytes]) -> None:
    doors = broker.take("ask")
    dealer = broker.socket(zmq.DEALER, doors.front)
    dealer.send_multipart([*envelope, b"", doors.queue.encode(), b"work"])
    answer = receive(dealer)[len(envelope) + 1 :]
    assert code(answer) == "BAD_FRAMES"
    assert "a return envelope has at most" in message(answer)


def test_a_message_without_an_envelope_is_refused(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    dealer = broker.socket(zmq.DEALER, doors.front)
    dealer.send_multipart([b"queue", b"work"])
    answer = receive(dealer)
    assert code(answer) == "BAD_FRAMES"
    assert "no empty frame" in message(answer)


def test_an_error_is_one_answer_that_leaves_the_socket_usable(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send_multipart([b"no such name", b"work"])
    assert code(receive(asker)) == "BAD_QUEUE"
    asker.send(b"work")
    receive(worker)
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_a_rejected_job_answers_that_it_is_dead_then_and_later(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send_multipart([b"", in_json(id="hopeless"), b"work"])
    receive(worker)
    worker.send_multipart([b"REJECT", b"makes no sense"])
    for answer in (receive(asker), broker.ask(doors.front, b"", in_json(id="hopeless"), b"work")):
        assert code(answer) == "DEAD"
        assert "makes no sense" in message(answer)


def test_rolled_back_the_asker_goes_on_waiting(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)
    worker.send_multipart([b"ROLLBACK", b"once more"])
    assert receive(worker) == [b"work"]
    assert not asker.poll(0)
    worker.send(b"at last")
    assert receive(asker) == [b"at last"]


def test_a_job_that_nobody_takes_in_time_answers_that_it_has_expired(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    answer = broker.ask(doors.front, b"", in_json(ttl=0.1), b"work")
    assert code(answer) == "EXPIRED"


def _mixed(broker: BrokerProcess, kind: str, *, ack_has_commit: bool) -> dict[str, Any]:
    return next(
        device
        for device in broker.devices
        if (device["queue"], device["kind"]) == ("mixed", kind) and bool(device["commit"]) == ack_has_commit
    )


def test_a_job_committed_by_a_pull_worker_answers_an_empty_result(broker: BrokerUnderTest) -> None:
    front = _mixed(broker.process, "queue", ack_has_commit=False)["frontend"][0]
    device = _mixed(broker.process, "streamer", ack_has_commit=True)
    asker, worker = broker.socket(zmq.REQ, front), broker.socket(zmq.PULL, device["backend"][0])
    commits = broker.socket(zmq.PUSH, device["commit"][0])
    asker.send(b"work")
    receipt, payload = receive(worker)
    assert payload == b"work"
    assert not asker.poll(0)
    commits.send_multipart([b"COMMIT", receipt])
    assert receive(asker) == [b""]


def test_a_job_popped_by_a_pull_worker_answers_an_empty_result(broker: BrokerUnderTest) -> None:
    front = _mixed(broker.process, "queue", ack_has_commit=False)["frontend"][0]
    back = _mixed(broker.process, "streamer", ack_has_commit=False)["backend"][0]
    asker, worker = broker.socket(zmq.REQ, front), broker.socket(zmq.PULL, back)
    asker.send(b"work")
    assert receive(worker) == [b"work"]
    assert receive(asker) == [b""]


def test_a_job_of_a_req_client_can_be_worked_on_by_the_library(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, library = broker.socket(zmq.REQ, doors.front), broker.smq()
    library.ask(b"READY", doors.queue, 1)
    asker.send(b"work")
    ((receipt, _, payload, _, attempt, *_),) = library.delivery()
    assert (payload, attempt) == (b"work", 1)
    _commit(library, receipt, b"from afar")
    assert receive(asker) == [b"from afar"]


def _commit(library: Smq, receipt: bytes, result: bytes) -> None:
    answer = library.ask(b"SETTLE", [[receipt, "COMMIT", result, None]])
    assert answer.fields == [[]]
