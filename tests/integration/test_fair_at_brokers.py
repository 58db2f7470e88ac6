"""Fair queues at brokers with a virtual clock: what is staged, inserted reserved, or was claimed before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gevent
from pymongo.database import Database

from integration.test_limits import LimitsRig
from sluicemq_broker.queue import Push
from support.fakes import FakeWorker
from support.jobs import some_jobs
from support.small_broker import SmallBroker
from support.virtual_time import come_to_rest

FAIR = {"fair": True}


class FairRig(LimitsRig):
    """Brokers that share the queue ``mail``, to which tenants push."""

    def tenant(self, broker: SmallBroker, name: str, count: int = 1, **options: Any) -> None:
        jobs = some_jobs(count, tenant=name, eligible_at=self.clock.now(), **options)
        for number, job in enumerate(jobs):
            job.payload = f"{name} {number}".encode()
        broker.queue.intake.push(Push(jobs, lambda *_told: None))
        come_to_rest()
        self.time.passes(0.01)

    def worker(self, broker: SmallBroker, prefetch: int = 100) -> FakeWorker:
        worker = super().worker(broker, prefetch)
        while broker.queue.scheduler.ledger.under_way(self.time.now()):
            gevent.sleep(1e-9)  # as a claim that takes several replies does between them
        come_to_rest()
        return worker

    def next(self, worker: FakeWorker, broker: SmallBroker) -> str:
        """Its one job is done; whose the next one is."""
        self.finish(worker, broker)
        return worker.messages[-1][0].job.turn


def test_what_is_staged_goes_back_when_its_queue_becomes_fair(documents: Database[dict[str, Any]]) -> None:
    # Given a plain queue, all of whose jobs a broker has claimed
    rig = FairRig(documents, {})
    broker = rig.broker()
    rig.tenant(broker, "flood", 8)
    rig.tenant(broker, "zed")
    worker = rig.worker(broker, prefetch=1)
    assert broker.queue.held == 9
    broker.queue.reconfigure(replace(broker.queue.settings, fair=True))
    come_to_rest()
    rig.time.passes(0.1)
    assert {rig.next(worker, broker), rig.next(worker, broker)} == {"flood", "zed"}


def test_other_weights_hold_for_what_is_staged(documents: Database[dict[str, Any]]) -> None:
    rig = FairRig(documents, FAIR)
    broker = rig.broker()
    for name in ("acme", "bolt"):
        rig.tenant(broker, name, 7)
    worker = rig.worker(broker, prefetch=1)
    broker.queue.reconfigure(replace(broker.queue.settings, weights={"bolt": 3}))
    come_to_rest()
    rig.time.passes(0.1)
    came = [rig.next(worker, broker) for _ in range(8)]
    assert came.count("bolt") == 6


def test_nothing_is_inserted_reserved_before_what_lies_ready(documents: Database[dict[str, Any]]) -> None:
    # Given a flood, more than a broker holds for its worker
    rig = FairRig(documents, FAIR)
    broker = rig.broker()
    worker = rig.worker(broker, prefetch=1)
    rig.tenant(broker, "flood", 60)
    held = broker.queue.held
    assert held < 60
    # And room for some, but for too few to claim again
    broker.queue.scheduler.pace.appetite = held + 2
    assert broker.queue.scheduler.room == 3
    rig.tenant(broker, "flood", 5, priority=255)
    assert broker.queue.held == held
    assert documents["queue.mail"].count_documents({"state": "ready", "priority": 255}) == 5
    assert worker.jobs


def test_jobs_inserted_reserved_take_their_turns(documents: Database[dict[str, Any]]) -> None:
    rig = FairRig(documents, FAIR)
    broker = rig.broker()
    worker = rig.worker(broker, prefetch=1)
    rig.tenant(broker, "flood", 8)
    rig.tenant(broker, "zed")
    assert documents["queue.mail"].count_documents({"state": "ready"}) == 0
    assert rig.next(worker, broker) == "flood"
    assert rig.next(worker, broker) == "zed"


def test_what_another_broker_pushes_has_its_turn_here(documents: Database[dict[str, Any]]) -> None:
    rig = FairRig(documents, FAIR)
    here, there = rig.broker(), rig.broker()
    rig.tenant(here, "flood", 200)
    worker = rig.worker(here, prefetch=1)
    rig.tenant(there, "zed")
    rig.passes(1.0)
    # Then it comes as soon as what is held here is done
    assert "zed" in [rig.next(worker, here) for _ in range(here.queue.held + 3)]


def test_a_restarted_broker_goes_on_with_all_tenants(documents: Database[dict[str, Any]]) -> None:
    # Given a broker that was killed with jobs of its own
    rig = FairRig(documents, FAIR)
    first = rig.broker()
    for name in ("acme", "bolt"):
        rig.tenant(first, name, 40)
    rig.worker(first, prefetch=4)
    held = first.queue.held
    assert held > 0
    first.line.dead = True
    second = rig.broker()
    worker = rig.worker(second, prefetch=10)
    # Then what is left is shared, and what was held comes when the lease is over
    came = [delivery.job.turn for delivery in worker.deliveries]
    assert abs(came.count("acme") - came.count("bolt")) <= 1
    rig.passes(30)
    second.sweep()
    while worker.in_flight:
        rig.finish(worker, second, len(worker.in_flight))
        rig.passes(1.0)
        second.sweep()
    assert documents["queue.mail"].count_documents({}) == 0
