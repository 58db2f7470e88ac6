"""A queue whose delivery or intake is paused: who gets jobs, the doors, and who is told by whom."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import gevent
import pytest

from sluicemq.protocol import wire
from sluicemq.protocol.errors import Paused, Unavailable
from sluicemq_broker.config import Config
from sluicemq_broker.queue.queue import Queue
from sluicemq_broker.queues.pauses import Pauses
from support.fakes import FakePauses, Held, a_context, go_on
from support.jobs import a_job, ids, some_jobs
from unit.dispatch_rig import DispatchRig


@pytest.fixture
def rig() -> DispatchRig:
    return DispatchRig()


# ---------------------------------------------------------------------- delivery


def test_a_paused_queue_hands_out_and_claims_nothing_and_its_running_jobs_go_on(rig: DispatchRig) -> None:
    # Given a worker with a job, and others staged behind it
    worker = rig.worker()
    rig.ready(*some_jobs(5))
    assert len(rig.scheduler.staging)
    # When
    rig.pause(paused=True)
    rig.ready(a_job("new"))
    rig.tick()
    rig.commit(worker)
    # Then the running one was settled, and nothing is held
    assert len(worker.jobs) == 1
    assert not rig.held
    assert len(rig.store.ready) == 5
    assert rig.admitted(a_job("next")) == []


def test_a_resumed_queue_hands_out_at_once_what_has_come_meanwhile(rig: DispatchRig) -> None:
    worker = rig.worker(prefetch=10)
    rig.pause(paused=True)
    rig.ready(*(jobs := some_jobs(5)))
    assert worker.jobs == []
    rig.pause(paused=False)
    go_on()
    assert worker.jobs == ids(jobs)


def test_what_a_claim_under_way_brings_after_the_pause_goes_back(rig: DispatchRig) -> None:
    # Given
    held = Held()
    rig.store.before_claim = held
    worker = rig.worker()
    rig.ready(a_job("a"))
    # When
    rig.pause(paused=True)
    held.set()
    go_on()
    # Then
    assert (worker.jobs, len(rig.held)) == ([], 0)
    assert ids(rig.store.ready) == ["a"]


def test_what_is_inserted_reserved_and_durable_only_after_the_pause_goes_back(rig: DispatchRig) -> None:
    # Given
    worker = rig.worker()
    [job] = jobs = [a_job("a")]
    arrival = rig.admit(*jobs)
    assert job.owner
    # When
    rig.pause(paused=True)
    rig.arrived(arrival, jobs)
    # Then
    assert (worker.jobs, len(rig.held)) == ([], 0)
    assert rig.released == jobs


# ------------------------------------------------------------------------ intake


@pytest.fixture
def queue() -> Queue:
    never_asked: Any = MagicMock()
    return Queue("mail", Config.default().queue("mail"), never_asked, a_context(), never_asked)


def test_a_queue_refuses_jobs_while_its_intake_is_paused_and_says_how_to_resume_it(queue: Queue) -> None:
    # Given
    told: list[bool] = []
    queue.at_pause(lambda: told.append(wire.INTAKE in queue.paused))
    queue.admit()
    # When
    queue.pause(frozenset({wire.INTAKE}))
    queue.pause(frozenset({wire.INTAKE}))
    # Then
    with pytest.raises(Paused, match="sluicemq resume mail --intake"):
        queue.admit()
    queue.pause(frozenset({wire.DELIVERY}))
    queue.admit()
    assert (told, queue.scheduler.paused) == ([True, False], True)


# ----------------------------------------------------------------- what is known


@pytest.fixture
def pauses(store: FakePauses) -> Pauses:
    pauses = Pauses(lambda _name: None, [])  # type: ignore[arg-type,return-value]
    pauses._stores = {"db": store}  # type: ignore[dict-item]
    return pauses


@pytest.fixture
def store() -> FakePauses:
    return FakePauses()


def test_what_is_paused_is_one_read_for_all_queues_of_a_database(pauses: Pauses, store: FakePauses) -> None:
    store.pause("a", "intake")
    store.pause("b", "delivery")
    pauses.read()
    assert [pauses.of("db", queue) for queue in "abc"] == [{"intake"}, {"delivery"}, frozenset()]
    assert store.reads == 1


def test_while_mongodb_is_away_what_was_known_holds_on(pauses: Pauses, store: FakePauses) -> None:
    pauses.change("db", lambda each: each.pause("a", "intake"))

    def away() -> None:
        raise Unavailable("no primary")

    store.before_read = away
    with pytest.raises(Unavailable):
        pauses.read()
    assert pauses.of("db", "a") == {"intake"}


def test_a_look_that_began_before_an_order_does_not_undo_it(pauses: Pauses, store: FakePauses) -> None:
    # Given a look that has read, and whose answer takes long
    held = Held()
    store.before_read = held
    look = gevent.spawn(pauses.read)
    go_on()
    # When
    store.before_read = lambda: None
    order = gevent.spawn(pauses.change, "db", lambda each: each.pause("a", "intake"))
    go_on()
    held.set()
    gevent.joinall([look, order], timeout=60, raise_error=True)
    # Then
    assert pauses.of("db", "a") == {"intake"}
