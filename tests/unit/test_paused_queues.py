"""A queue whose delivery or intake is paused: who gets jobs, the doors, and who is told by whom."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from sluicemq.protocol import wire
from sluicemq.protocol.errors import PausedError
from sluicemq_broker.config import Config
from sluicemq_broker.queue import Queue
from support.fakes import Held, a_context, go_on
from support.jobs import a_job, ids, some_jobs
from unit.dispatch_rig import DispatchRig


def test_a_paused_queue_hands_out_and_claims_nothing_and_its_running_jobs_go_on(rig: DispatchRig) -> None:
    # Given a worker with a job, and others staged behind it
    worker = rig.worker()
    rig.ready(*some_jobs(5))
    assert len(rig.scheduler.staging)
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
    held = Held()
    rig.store.before_claim = held
    worker = rig.worker()
    rig.ready(a_job("a"))
    rig.pause(paused=True)
    held.set()
    go_on()
    assert (worker.jobs, len(rig.held)) == ([], 0)
    assert ids(rig.store.ready) == ["a"]


def test_what_is_inserted_reserved_and_durable_only_after_the_pause_goes_back(rig: DispatchRig) -> None:
    worker = rig.worker()
    [job] = jobs = [a_job("a")]
    arrival = rig.admit(*jobs)
    assert job.owner
    rig.pause(paused=True)
    rig.arrived(arrival, jobs)
    assert (worker.jobs, len(rig.held)) == ([], 0)
    assert rig.released == jobs


@pytest.fixture
def queue() -> Queue:
    never_asked: Any = MagicMock()
    return Queue("mail", Config.default().queue("mail"), never_asked, a_context(), never_asked)


def test_a_queue_refuses_jobs_while_its_intake_is_paused_and_says_how_to_resume_it(queue: Queue) -> None:
    told: list[bool] = []
    queue.capacity.watch_pauses(lambda: told.append(wire.INTAKE in queue.paused))
    queue.capacity.admit()
    queue.pause(frozenset({wire.INTAKE}))
    queue.pause(frozenset({wire.INTAKE}))
    with pytest.raises(PausedError, match="sluicemq queues resume mail --intake"):
        queue.capacity.admit()
    queue.pause(frozenset({wire.DELIVERY}))
    queue.capacity.admit()
    assert (told, queue.scheduler.paused) == ([True, False], True)
