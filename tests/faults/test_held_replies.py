"""MongoDB has applied a statement and its reply is held or lost, while all else goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any

import pytest

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from faults.proxied import RawClient, SharedQueue, shared_queue
from sluicemq import Client
from sluicemq.protocol import wire
from sluicemq.protocol.enums import JobState
from sluicemq_broker.store import (
    DeadLetters,
    QueueRecordStore,
    QueueStore,
    RolledBack,
    Unclear,
    collection,
    connect,
)
from support.jobs import NOW, ChangesAtOnce, a_job, everything, ids, some_jobs
from support.waiting import wait_until

full = pytest.mark.full

#: A verdict, what its statement is, the state that it leaves a job in, and headers that make it so.
VERDICTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "commit": (wire.COMMIT, "delete", "", {}),
    "commit with result": (wire.COMMIT, "update", "done", {"reply": "result"}),
    "rollback": (wire.ROLLBACK, "update", "ready", {}),
    "reject": (wire.REJECT, "update", "dead", {}),
}


@pytest.mark.one_in(4)
def test_the_counters_are_told_while_mongodb_does_not_answer(shared: SharedQueue) -> None:
    with Client(endpoint=shared.a.endpoint) as client:
        shared.a.proxy.freeze()
        try:
            told = client.counters()
        finally:
            shared.a.proxy.thaw()
    assert told.broker
    assert told.counters


# ------------------------------------------------------------------ an id that is used again


@pytest.mark.one_in(4)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=[full, pytest.mark.timeout(600)])])
def test_a_repeated_verdict_spares_a_later_job(shared: SharedQueue, verdict: str, rounds: int) -> None:
    client = shared.client(shared.a)
    client.ready(10)
    for number in range(rounds):
        use_an_id_again(shared, client, verdict, b"%d" % number)


def use_an_id_again(shared: SharedQueue, client: RawClient, verdict: str, payload: bytes) -> None:
    # Given a verdict that is applied and not answered, and the same id pushed and delivered anew
    word, statement, state, headers = VERDICTS[verdict]
    client.push(b"first", "fixed", **headers)
    [first] = client.take()
    held = shared.a.proxy.hold(shared.on(statement, state))
    answer = client.settle(first, word, delay=3600 if word == wire.ROLLBACK else None)
    held.wait()
    remove(shared, state)
    client.push(payload, "fixed", **headers)
    [second] = client.take()
    assert second.payload == payload
    held.cut()
    client.answer(answer)
    stored = shared.jobs.find_one({"_id": "fixed"})
    assert stored, "a confirmed job is gone that nobody has committed"
    assert stored["state"] == "reserved"
    assert stored["payload"] == payload
    client.commit(second)
    remove(shared, "done")
    assert shared.stored() == 0


def remove(shared: SharedQueue, state: str) -> None:
    """An operator at the other broker removes what a verdict has left."""
    with Client(endpoint=shared.b.endpoint) as other:
        if state == "ready":
            other.jobs.cancel(shared.name, "fixed")
        elif state:
            other.queues.purge(shared.name, JobState(state)).result()


@pytest.mark.parametrize("at", [0, 1], ids=["at its broker", "at another broker"])
def test_a_cancellation_that_is_answered_late_spares_a_later_job_of_that_id(
    shared: SharedQueue, at: int
) -> None:
    # Given a cancelled job, whose broker hears late of it: by the deletion, or as it looks which are missing
    client, other = shared.client(shared.a), shared.client(shared.brokers[at])
    before = shared.a.counter("cancelled_at_work")
    client.ready(10)
    client.push(b"first", "fixed")
    client.take()
    looked = shared.on("findAndModify") if at == 0 else reads_ids_of(shared)
    held = shared.a.proxy.hold(looked)
    cancelled = other.send(wire.CANCEL, shared.name, "fixed", {"running": True})
    held.wait()
    # When that id is pushed and delivered again before
    client.push(b"second", "fixed")
    [second] = client.take()
    held.release()
    other.answer(cancelled)
    wait_until(lambda: shared.a.counter("cancelled_at_work") > before, what="the end of the first delivery")
    # Then that job is its worker's
    assert second.payload == b"second"
    client.commit(second)
    assert shared.stored() == 0


def reads_ids_of(shared: SharedQueue) -> Callable[[Command], bool]:
    """Choose what a broker reads to find out which of its jobs are missing."""
    finds = shared.on("find")
    return lambda command: finds(command) and command.body.get("projection") == {"_id": 1}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[full, pytest.mark.timeout(600)])])
def test_a_popped_id_that_is_used_again_is_sent_once_each_time(shared: SharedQueue, rounds: int) -> None:
    poppers = [shared.client(shared.a), shared.client(shared.a)]
    for number in range(rounds):
        pop_an_id_again(shared, poppers, [b"first %d" % number, b"second %d" % number])


def pop_an_id_again(shared: SharedQueue, poppers: list[RawClient], payloads: list[bytes]) -> None:
    # Given a pop whose removal is applied and not answered, and one of the same id that is not sent yet
    gate = threading.Event()
    for popper in poppers:
        popper.ask(wire.READY, shared.name, 1, {"pop": True})
    held = shared.a.proxy.hold(shared.on("delete"))
    poppers[0].push(payloads[0], "fixed")
    held.wait()
    second = shared.a.proxy.before(shared.on("delete"), lambda: gate.wait(30))
    poppers[0].push(payloads[1], "fixed")
    wait_until(lambda: second.met, what="the second removal")
    # When the first is repeated before the second one lands
    held.cut()
    wait_until(lambda: any(popper.offered(0.1) for popper in poppers), what="the first job")
    gate.set()
    assert sorted(other.take()[0].payload for other in poppers) == payloads
    assert shared.stored() == 0


# ------------------------------------------------------------------ a release


@pytest.mark.one_in(4)
@pytest.mark.parametrize("leaving", ["RELEASE", "BYE", "ROLLBACK"])
@pytest.mark.parametrize("rounds", [1, pytest.param(30, marks=[full, pytest.mark.timeout(600)])])
def test_a_repeated_release_takes_no_job_away(shared: SharedQueue, leaving: str, rounds: int) -> None:
    for number in range(rounds):
        release_and_claim_again(shared, leaving, b"%d" % number)


def release_and_claim_again(shared: SharedQueue, leaving: str, payload: bytes) -> None:
    # Given a release that is applied and not answered, and the job at another worker of the same broker
    first, second, third = shared.client(shared.a), shared.client(shared.a), shared.client(shared.b)
    first.ready(1)
    first.push(payload)
    [job] = first.take()
    first.ready(0)
    second.ready(1)
    held = shared.a.proxy.hold(shared.on("update", "ready"))
    if leaving == "BYE":
        first.ask(wire.BYE)
    else:
        first.settle(job, leaving, delay=0)
    held.wait()
    again = second.take() if second.offered(20) else []
    third.ready(1)
    held.cut()
    again = again or second.take() if not third.offered(1) else again
    assert again, "a broker with an idle worker did not claim the job"
    assert not third.offered(0.5), "two workers have the job"
    stored = shared.jobs.find_one({"$or": [{"_id": job.id}, {"first": job.id}]})  # itself, or its pack
    assert stored
    assert stored["state"] == "reserved"
    second.commit(again[0])
    third.ready(0)
    second.ready(0)
    assert not third.offered(0)
    assert shared.stored() == 0


# ------------------------------------------------------------------ an insert


@pytest.mark.one_in(4)
@pytest.mark.full
@pytest.mark.parametrize("coming", ["before", "after"])
@pytest.mark.parametrize("end", ["release", "cut"])
def test_one_held_insert_hides_no_later_confirmed_jobs(shared: SharedQueue, coming: str, end: str) -> None:
    first, later = [b"first %d" % n for n in range(5)], [b"later %d" % n for n in range(5)]
    producer, worker = shared.client(shared.a), shared.client(shared.a)
    if coming == "before":
        worker.ready(100)
        warm_up(producer, worker)
    held = shared.a.proxy.hold(shared.on("insert"))
    unconfirmed = producer.push_all(first)
    held.wait()
    if coming == "after":
        worker.ready(100)
    assert producer.answer(producer.push_all(later)) == []
    # Then they come before the held reply does
    came = {job.payload for job in worker.take(5, timeout=20)}
    assert came <= {*first, *later}
    (held.release if end == "release" else held.cut)()
    assert producer.answer(unconfirmed) == []
    worker.take(5)
    assert Counter(job.payload for job in worker.taken) == Counter(first + later)
    for job in worker.taken:
        worker.commit(job)
    shared.wait_empty()
    assert not worker.offered(0.5)


def warm_up(producer: RawClient, worker: RawClient) -> None:
    """Until jobs are inserted reserved, as their worker is known and nothing else lies ready."""
    for _ in range(5):
        producer.push(b"warm")
        worker.commit(worker.take()[0])
    worker.taken.clear()


@pytest.mark.one_in(4)
@full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [8, 27])
def test_jobs_behind_a_held_insert_are_not_taken_for_lost_ones(mongo_uri: str, seconds: float) -> None:
    """Longer than two audits, and than the driver's patience: each job is delivered once."""
    with shared_queue(mongo_uri, 1, lease=3.0) as shared:
        producer, worker = shared.client(shared.a), shared.client(shared.a)
        worker.ready(1000)
        warm_up(producer, worker)
        held = shared.a.proxy.hold(shared.on("insert"))
        first = producer.push_all([b"first"])
        held.wait()
        count = 1
        for number in range(int(seconds * 2)):
            producer.push(b"later %d" % number)
            count += 1
            worker.offered(0.5)
        held.cut()
        assert producer.answer(first, 60) == []
        worker.take(count, 60)
        for job in worker.taken:
            worker.commit(job)
        shared.wait_empty()
        assert not worker.offered(7)  # two audits
        assert {job.attempt for job in worker.taken} == {1}
        assert len({job.id for job in worker.taken}) == count


# ------------------------------------------------------------------ order


@pytest.mark.one_in(4)
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=full)])
def test_jobs_on_their_way_back_are_not_overtaken_by_a_new_one(shared: SharedQueue, rounds: int) -> None:
    for _ in range(rounds):
        producer, leaving, coming = (shared.client(shared.a) for _ in range(3))
        leaving.ready(1)
        for number in range(12):
            producer.push(b"%02d" % number)
        leaving.take()
        slow = shared.a.proxy.slow(shared.on("update"), 0.4)
        leaving.ask(wire.BYE)
        coming.ready(1)
        producer.push(b"12")
        for _ in range(13):
            coming.commit(coming.take()[0])
        slow.stop()
        assert [job.payload for job in coming.taken] == [b"%02d" % number for number in range(13)]
        coming.ask(wire.BYE)
        shared.wait_empty()


LATER = NOW + 9


class TwoQueues:
    """Two queues of a database behind a proxy; in the first one lie 20 dead letters."""

    def __init__(self, proxy: CuttingProxy, mail: QueueStore, other: QueueStore) -> None:
        self.proxy = proxy
        self.mail = mail
        self.other = other
        self.changes = ChangesAtOnce(mail.jobs.database)
        self.records = QueueRecordStore(mail.jobs.database)
        jobs = some_jobs(20, owner="me")
        mail.push(jobs, NOW)
        mail.roll_back([RolledBack(job, "bad", "worker", dead=True) for job in jobs], NOW)
        self.letters = set(ids(jobs))

    def cut(self, name: str, times: int = 1) -> None:
        self.proxy.cut(lambda command: command.name == name, times)


@pytest.fixture
def queues(mongo_uri: str) -> Iterator[TwoQueues]:
    name = f"test_{token_hex(6)}"
    with CuttingProxy(mongo_uri) as proxy, connect(proxy.uri) as mongo:
        mail, other = (QueueStore(mongo[name], collection(text)) for text in ("mail", "other"))
        mail.prepare()
        other.prepare()
        yield TwoQueues(proxy, mail, other)
    with connect(mongo_uri) as mongo:
        mongo.drop_database(name)


def test_a_redrive_whose_reply_is_lost_was_done_once_and_is_not_done_again(queues: TwoQueues) -> None:
    queues.cut("update")
    with pytest.raises(Unclear):
        queues.changes.redrive("mail", DeadLetters(), LATER)
    assert queues.changes.redrive("mail", DeadLetters(), LATER).moved == 0
    found = everything(queues.mail)
    assert found.keys() == queues.letters
    assert {row["state"] for row in found.values()} == {"ready"}
    assert {len(row["errors"]) for row in found.values()} == {2}


@pytest.mark.parametrize("command", ["update", "insert", "delete", "commitTransaction"])
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_move_to_another_queue_whose_replies_are_lost_leaves_each_job_in_one_of_them(
    queues: TwoQueues, command: str, times: int
) -> None:
    queues.cut(command, times)
    with suppress(Unclear):
        queues.changes.redrive("mail", DeadLetters(), LATER, queues.other)
    assert len(queues.proxy.cuts) == times
    here, there = everything(queues.mail).keys(), everything(queues.other).keys()
    assert here | there == queues.letters
    assert here & there == set()
    # When it is repeated
    queues.changes.redrive("mail", DeadLetters(), LATER, queues.other)
    assert everything(queues.mail) == {}
    assert {row["state"] for row in everything(queues.other).values()} == {"ready"}
    assert {len(row["errors"]) for row in everything(queues.other).values()} == {2}


def test_a_promotion_and_a_pause_whose_replies_are_lost_are_carried_out(queues: TwoQueues) -> None:
    queues.mail.push([a_job("a", eligible_at=NOW + 60)], NOW)
    queues.cut("update")
    queues.changes.promote("mail", "a", LATER)
    assert ids(queues.mail.reserve(1, LATER, "me").jobs) == ["a"]
    queues.cut("commitTransaction")
    queues.records.change("mail", lambda record: replace(record, paused=frozenset({"intake"})), LATER)
    assert [(queue.name, queue.paused) for queue in queues.records.read()] == [
        ("mail", frozenset({"intake"}))
    ]
    assert len(queues.proxy.cuts) == 2
