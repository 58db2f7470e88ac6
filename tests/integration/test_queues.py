"""The queues of one broker: what becomes of those who wait when one is removed, or when one fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadQueueError,
    NotFoundError,
    PausedError,
    QueueFullError,
    UnavailableError,
)
from sluicemq_broker.config import BrokerSettings, Config, QueueSettings
from sluicemq_broker.doors.lane_workers import PopWorker
from sluicemq_broker.job import Dedupe
from sluicemq_broker.process.deadline import Deadline
from sluicemq_broker.process.server import Server
from sluicemq_broker.queue import Marks, Push, Settlement, Verdict
from sluicemq_broker.queues import Census, Delete, Queues
from sluicemq_broker.queues.removals import Removal
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import ANYBODY, Caller
from sluicemq_broker.store import Inspector, Pushed, Refused, Removals, Unclear, collection
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX, READY_INDEX
from sluicemq_broker.store.jobs.inserts import Insertion
from sluicemq_devices.hub import boundless
from support.fakes import FakeWorker, Held, a_context, a_maker, go_on
from support.jobs import NOW, a_job

FEW_QUEUES = BrokerSettings(max_queues=20)


@pytest.fixture
def queues(documents: Database[dict[str, Any]]) -> Queues:
    return Queues(Config.default(), a_context(), lambda _name: documents, a_maker())


@pytest.fixture
def server() -> Iterator[Server]:
    """A broker that is not started."""
    server = Server(Config.default(), "mongodb://127.0.0.1:9", alone=False)
    yield server
    server._foundation.close()


def test_who_waits_for_a_job_of_a_removed_queue_is_told_and_nothing_of_it_is_held(queues: Queues) -> None:
    queue, told = queues.open("mail"), list[Any]()
    queue.results.wait("a", told.append)
    queue.results.stored(["a"], [])
    staged = a_job("a", owner="owner-1")
    queue.scheduler.reservations.add([staged])
    queue.scheduler.staging.add([staged])
    queues.removed(queue)
    queues.let_go_removed()
    assert [type(event) for event in told] == [NotFoundError]
    assert not queue.held
    assert queue.scheduler.staging.clear() == []
    assert list(queues) == []


def test_a_job_that_came_during_the_removal_is_held_until_it_is_settled(queues: Queues) -> None:
    # Given: it was stored after the collection was removed, and before that was known here
    queue, worker, told, deadline = queues.open("mail"), FakeWorker(1), list[Any](), Deadline()
    queue.attach(worker)
    queue.intake.push(Push([a_job("a"), a_job("b")], lambda *_: None))
    deadline.begin(60.0)
    assert deadline.until(lambda: bool(worker.jobs) and not queue.busy)
    queues.removed(queue)
    queues.let_go_removed()
    # Then no audit gives it to another
    [delivery] = worker.deliveries
    assert not queue.scheduler.reservations.unknown([(delivery.job.id, delivery.job.reservation.number)])
    queue.settling.settle([Verdict(delivery.receipt, wire.COMMIT)], Settlement(told.append))
    assert deadline.until(lambda: bool(told))
    assert told == [{}]
    assert deadline.until(lambda: worker.jobs == ["a", "b"])


def test_a_queue_that_was_removed_beside_a_verdict_is_known_until_that_is_durable(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a commit that has no answer yet, of a worker that has left
    queue, worker, told, deadline = queues.open("mail"), FakeWorker(1), list[Any](), Deadline()
    held = Held()
    queue.attach(worker)
    queue.intake.push(Push([a_job("a")], lambda *_: None))
    deadline.begin(60.0)
    assert deadline.until(lambda: bool(worker.jobs) and not queue.busy)
    monkeypatch.setattr(queue.store, "commit", lambda *_jobs: held() or {})
    queue.settling.settle([Verdict(worker.deliveries[0].receipt, wire.COMMIT)], Settlement(told.append))
    go_on()
    queue.settling.worker_gone(worker)
    queue.store.jobs.drop()
    queues.removed(queue)
    queues.let_go_removed()
    early = queues.known("mail")
    held.set()
    assert deadline.until(lambda: not queue.busy)
    queues.let_go_removed()
    assert (early, told) == (queue, [{}])
    assert queues.known("mail") is None


def test_a_queue_that_was_removed_and_pushed_to_is_known_still(queues: Queues) -> None:
    queue, stored, deadline = queues.open("mail"), list[Any](), Deadline()
    queue.store.jobs.drop()
    queues.removed(queue)
    queue.intake.push(Push([a_job("a")], lambda *told: stored.append(told)))
    deadline.begin(60.0)
    assert deadline.until(lambda: bool(stored) and not queue.busy)
    queues.let_go_removed()
    # Then it is the same, with its indexes
    assert queues.known("mail") is queue
    assert DEDUPE_INDEX in queue.store.jobs.index_information()


@pytest.mark.parametrize("used", ["by a worker", "by the configuration"])
def test_a_queue_that_is_used_is_there_anew_when_it_was_removed(queues: Queues, used: str) -> None:
    queue = queues.open("mail")
    queue.store.jobs.drop()
    if used == "by a worker":
        queue.attach(FakeWorker())
    else:
        queues.reconfigure(replace(Config.default(), queues={"mail": QueueSettings()}))
    queues.removed(queue)
    queues.let_go_removed()
    assert queues.known("mail") is queue
    assert {READY_INDEX, DEDUPE_INDEX} <= queue.store.jobs.index_information().keys()


def test_a_failed_deletion_spares_later_jobs(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: the queue is dropped, then MongoDB is away for a moment, and it is pushed to
    queue, stored, deadline = queues.open("mail"), list[Any](), Deadline()
    deletion = Delete(queues, queues.context, queue, NOW)
    with monkeypatch.context() as patch:
        patch.setattr(Removal, "end", failing)
        with pytest.raises(UnavailableError):
            next(deletion.pages())
    queue.intake.push(Push([a_job("a")], lambda *told: stored.append(told)))
    deadline.begin(60.0)
    assert deadline.until(lambda: bool(stored))
    # When it is gone on with
    assert list(deletion.pages()) == [0]
    assert queue.store.find(["a"]).keys() == {"a"}


def test_an_order_to_delete_a_queue_that_another_one_has_deleted_meanwhile_finds_none(queues: Queues) -> None:
    # Given two orders
    queue = queues.open("mail")
    first, second = (Delete(queues, queues.context, queue, NOW) for _ in range(2))
    assert list(first.pages()) == [0]
    with pytest.raises(NotFoundError):
        next(second.pages())


def test_an_insert_that_lands_after_the_removal_has_its_indexes_at_once(queues: Queues) -> None:
    # Given a push whose insert is sent when the queue is removed
    queue, stored, deadline = queues.open("mail"), list[Any](), Deadline()
    send = Insertion.send

    def removed_meanwhile(insertion: Insertion, now: float) -> Pushed:
        queue.store.dropped()
        queue.store.jobs.drop()
        return send(insertion, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Insertion, "send", removed_meanwhile)
        queue.intake.push(Push([a_job("a")], lambda *told: stored.append(told)))
        deadline.begin(60.0)
        assert deadline.until(lambda: bool(stored))
    assert {READY_INDEX, DEDUPE_INDEX} <= queue.store.jobs.index_information().keys()
    assert queue.store.find(["a"]).keys() == {"a"}


def test_a_queue_not_deleted_is_looked_at_as_ever(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given somebody who waits for one of its jobs
    queue, told = queues.open("mail"), list[Any]()
    queue.results.wait("a", told.append)
    deletion = Delete(queues, queues.context, queue, NOW)
    monkeypatch.setattr(Removals, "dropping", failing)
    with pytest.raises(UnavailableError):
        next(deletion.pages())
    queues.let_go_removed()
    queue.store.jobs.drop()  # nobody knows whether it was
    queue.store.prepare()
    assert (queues.known("mail"), told) == (queue, [])
    assert DEDUPE_INDEX in queue.store.jobs.index_information()


def failing(*_arguments: Any, **_named: Any) -> None:
    raise UnavailableError("MongoDB is away")


def test_what_landed_in_a_queue_after_its_removal_is_found_again(queues: Queues) -> None:
    queue = queues.open("mail")
    queues.removed(queue)
    queue.store.jobs.insert_one({"_id": "late"})
    queues.let_go_removed()
    found = queues.known("mail")
    assert found is not None
    found.store.prepare()
    assert DEDUPE_INDEX in found.store.jobs.index_information()


def test_a_search_waits_for_what_is_on_its_way_back(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a release that has no answer yet
    queue, held = queues.open("mail"), Held()
    monkeypatch.setattr(queue.store, "release", held)
    queue.settling.release([a_job("a", owner="owner-1")])
    searching = gevent.spawn(queue.search, lambda: False, 60.0)
    go_on()
    early = searching.ready()
    held.set()
    searching.join(60.0)
    assert (early, searching.ready()) == (False, True)


@pytest.mark.parametrize("fault", [Refused("bad hint"), Unclear("cut"), KeyError("a mistake")])
def test_a_queue_that_can_not_be_counted_is_listed_with_the_reason_beside_the_others(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    for name in ("good", "sick"):
        queues.open(name).store.prepare()
    count = Inspector.counts

    def counts(inspector: Inspector, queue: str, now: float) -> dict[str, Any]:
        if queue == "sick":
            raise fault
        return count(inspector, queue, now)

    monkeypatch.setattr(Inspector, "counts", counts)
    monkeypatch.setattr(Inspector, "small_counts", lambda *_: {})  # each is counted by itself
    rows = {row.name: row for row in Census(queues, queues.context).all()}
    assert rows["good"].error is None
    assert "queue 'sick' can't be counted" in str(rows["sick"].error)


def test_a_queue_that_fails_costs_the_others_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues = server._jobs.queues
    failing, others = queues.open("failing"), [queues.open(name) for name in ("b", "c")]
    ticked: list[str] = []
    monkeypatch.setattr(failing, "tick", lambda: 1 / 0)
    for queue in others:
        monkeypatch.setattr(queue, "tick", lambda name=queue.name: ticked.append(name))
    with caplog.at_level(logging.ERROR, "broker"):
        server._jobs.tick()
    assert ticked == ["b", "c"]
    assert "queue failing failed" in caplog.text


class LaneThatFills:
    """Takes jobs until one is on its way."""

    who = ANYBODY
    peer = "peer"
    backlog = 0  # nothing was sent
    cut_for = ""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def on(self, **_handlers: object) -> None:
        """Nothing is ever received."""

    @property
    def writable(self) -> bool:
        return not self._counters.values["delivered"]


@pytest.mark.parametrize(
    "settings", [{}, {"keep_done": 60.0}, {"remember": 60.0}, {"dedupe": Dedupe("d", 60.0)}]
)
def test_what_was_popped_and_could_not_be_sent_is_ready_again_also_where_it_is_kept_as_done(
    queues: Queues, settings: dict[str, Any]
) -> None:
    # Given a worker whose socket takes nothing more once a job was popped for it
    queue, deadline, counters = queues.open("mail"), Deadline(), queues.context.counters
    device = SimpleNamespace(envelope="payload")
    backend: Any = SimpleNamespace(
        sent=0, queue=queue, prefetch=1, marks=Marks(9, 2**20), counters=counters, settings=device
    )
    worker = PopWorker(backend, LaneThatFills(counters))  # type: ignore[arg-type]
    queue.attach(worker)
    queue.intake.push(Push([a_job("a", b"payload", **settings)], lambda *_: None))
    deadline.begin(60.0)
    assert deadline.until(lambda: bool(worker._popped))
    worker.gone = True
    worker._closed()
    assert deadline.until(lambda: not queue.busy)
    [stored] = queue.store.jobs.find()
    expected = {"_id": "a", "state": "ready", "payload": b"payload", "attempts": 0}
    assert {name: stored[name] for name in expected} == expected
    assert "remove_at" not in stored


def test_what_a_pop_that_ends_late_pushes_anew_is_waited_for(
    documents: Database[dict[str, Any]], queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a queue where nothing is taken in, and a removal for a worker that is gone is under way
    queue, ending, deadline = queues.open("mail"), Held(), Deadline()

    def pushes_anew(_pops: object) -> None:
        ending()
        queue.intake.push(Push([a_job("again")], lambda *_: None))

    monkeypatch.setattr(queue.settling._pops, "_write", pushes_anew)
    queue.settling._pops.add(([], lambda _gone: None))
    gevent.spawn_later(0.05, ending.set)
    deadline.begin(60.0)
    assert deadline.until(lambda: not queue.busy)
    assert documents[collection("mail")].count_documents({"_id": "again"}) == 1


def test_a_queue_that_is_opened_after_it_was_paused_elsewhere_is_paused_from_its_first_moment(
    documents: Database[dict[str, Any]], queues: Queues
) -> None:
    elsewhere = Queues(Config.default(), queues.context, lambda _name: documents, a_maker())
    elsewhere.pause(elsewhere.open("mail"), wire.INTAKE)
    queues.follow_records()
    assert queues.open("mail").paused == {"intake"}
    with pytest.raises(PausedError):
        queues.for_push("mail", by="a test", caller=ANYBODY).capacity.admit()
    assert queues.open("other").paused == frozenset()


# ------------------------------------------------------------------------- memory


def test_no_large_message_is_read_on_while_jobs_on_their_way_take_all_memory(server: Server) -> None:
    size = server.config.broker.hwm_bytes
    server._foundation.memory.pushes.take(1, size)
    closed = server._listeners._board.unfinished.closed
    server._foundation.memory.pushes.give(1, size)
    assert (closed, server._listeners._board.unfinished.closed) == (True, False)


def test_unreadable_messages_count_at_the_mark_of_their_door_until_they_are_kept(
    documents: Database[dict[str, Any]], queues: Queues
) -> None:
    queue, mark, deadline = queues.open("mail"), boundless(), Deadline()
    letter = {"_id": "x", "payload": b"", "size": 1, "raw_headers": b"", "reason": "BAD_FRAMES: no"}
    queue.unreadable.keep(letter, mark, 128 * 1024)
    counted = (mark.count, mark.bytes)
    deadline.begin(60.0)
    assert deadline.until(lambda: not queue.busy)
    assert counted == (1, 128 * 1024)
    assert (mark.count, mark.bytes) == (0, 0)
    assert documents[collection("mail")].count_documents({"state": "dead"}) == 1


# ------------------------------------------------------------------------- leases


def test_a_lease_lies_in_all_databases_with_queues_and_has_a_client_of_its_own() -> None:
    queues = {"here": QueueSettings(), "elsewhere": QueueSettings(database="other")}
    server = Server(replace(Config.default(), queues=queues), "mongodb://127.0.0.1:9", alone=False)
    databases = [store._leases.database for store in server._foundation.owners._stores()]
    assert {database.name for database in databases} == {server.config.broker.database, "other"}
    assert {id(database.client) for database in databases} == {id(server._foundation._mongo_for_leases)}
    assert server._foundation._mongo is not server._foundation._mongo_for_leases
    server._foundation.close()


# ------------------------------------------------------------------ made by accident


def test_all_who_ask_for_unknown_queues_share_a_look(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, names = list[str](), Inspector.names

    def counted(inspector: Inspector) -> list[str]:
        looks.append("look")
        gevent.idle()  # MongoDB answers a moment later
        return names(inspector)

    monkeypatch.setattr(Inspector, "names", counted)
    asked = [gevent.spawn(queues.get, f"unknown-{number}") for number in range(50)]
    gevent.joinall(asked)
    assert all(isinstance(future.exception, NotFoundError) for future in asked)
    assert 1 <= len(looks) <= 2 * len(queues.databases)


def make_many(queues: Queues, count: int) -> None:
    for number in range(count):
        queues.for_plain_push(f"error-{number}", auto_create=None, caller=Caller(ANYBODY.principal, "a test"))


def test_one_peer_makes_so_many_queues_at_once_and_leaves_some_to_others(queues: Queues) -> None:
    with pytest.raises(QueueFullError, match="too many were made just before"):
        make_many(queues, 1000)
    assert 100 <= len(list(queues)) < 900
    assert queues.for_push("honest", by="a test", caller=ANYBODY, peer="another").name == "honest"
    assert queues.for_push("wanted", by="the operator", caller=ANYBODY).name == "wanted"


def test_a_tenth_of_all_queues_is_the_librarys(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "config", config := replace(queues.config, broker=FEW_QUEUES))
    assert config.broker.max_queues == 20
    make_many(queues, 18)
    with pytest.raises(QueueFullError, match="max_queues = 20"):
        queues.for_plain_push("error", auto_create=None, caller=Caller(ANYBODY.principal, "a test"))
    queues.for_push("one", by="a test", caller=ANYBODY)
    queues.for_push("other", by="a test", caller=ANYBODY)


@pytest.mark.parametrize(("device", "broker", "made"), [(False, True, False), (True, False, True)])
def test_a_device_says_for_itself_whether_its_messages_make_queues(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, *, device: bool, broker: bool, made: bool
) -> None:
    settings = replace(FEW_QUEUES, auto_create=broker)
    monkeypatch.setattr(queues, "config", replace(queues.config, broker=settings))
    with nullcontext() if made else pytest.raises(BadQueueError, match="auto_create is off"):
        queues.for_plain_push("new", auto_create=device, caller=Caller(ANYBODY.principal, "a test"))
    assert [queue.name for queue in queues] == (["new"] if made else [])


def test_an_unused_queue_has_nothing_to_do(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, ticks = queues.open("mail"), list[str]()
    monkeypatch.setattr(queue.scheduler, "tick", lambda _conditions: ticks.append("tick"))
    for _ in range(100):
        queue.tick()
    at_rest = len(ticks)
    queue.scheduler.deliveries.attach(FakeWorker(), 0.0)
    queue.tick()
    assert at_rest < 10
    assert len(ticks) == at_rest + 1
