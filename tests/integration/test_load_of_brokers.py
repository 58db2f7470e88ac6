"""The load and the workers of all brokers, as each of them shows it."""

from typing import Any

import pytest
from pymongo.database import Database

from sluicemq_broker.config import Config
from sluicemq_broker.queues import Census, Fleet, Queues
from sluicemq_broker.runtime import Count, Counters, Turns
from sluicemq_broker.store import FigureStore
from support.fakes import Clock, FakeOwners, FakeWorker, a_context, a_maker
from support.jobs import NOW
from support.virtual_time import VirtualTime


class LoadRig:
    """A broker with queue ``mail``, one of two."""

    def __init__(self, documents: Database[dict[str, Any]], name: str) -> None:
        self.time, self.clock, owners = VirtualTime(), Clock(), FakeOwners()
        self.clock.time = NOW
        owners.others = 1
        context = a_context(owners, clock=self.clock, timer=self.time)
        self.queues = Queues(Config.default(), context, lambda _name: documents, a_maker())
        self.turns = Turns(Counters())
        self.fleet = Fleet(self.queues, context, lambda: FigureStore(documents), self.turns, name)
        self.fleet.prepare()
        self.mail = self.queues.open("mail")
        self.rows = Census(self.queues, context).rows

    def later(self, seconds: float) -> None:
        self.time.value += seconds
        self.clock.time += seconds

    def mails(self) -> Any:
        (row,) = self.fleet.added(self.rows())
        return row


@pytest.fixture
def pair(documents: Database[dict[str, Any]]) -> tuple[LoadRig, LoadRig]:
    return LoadRig(documents, "a:1"), LoadRig(documents, "b:2")


def come(rig: LoadRig, name: str) -> FakeWorker:
    worker = FakeWorker(name=name)
    rig.mail.deliveries.attach(worker, rig.time.now())
    return worker


def look(*rigs: LoadRig) -> None:
    for rig in (*rigs, *rigs):
        rig.fleet.tick()


def test_each_broker_shows_the_rates_and_workers_of_all(pair: tuple[LoadRig, LoadRig]) -> None:
    # Given: 60 jobs in ten seconds at one, 30 at the other, whose hub was at work half of the time
    a, b = pair
    for rig, jobs in ((a, 60), (b, 30)):
        rig.mail.counters.add(Count.PUSHED, jobs)
        rig.later(10)
    b.turns.busy += 5.0
    come(a, "one")
    come(b, "two")
    look(a, b)
    for rig in pair:
        assert rig.mails().rates.pushed == pytest.approx(9.0)
        assert rig.mails().workers == 2
    assert [row.name for row in a.fleet.workers("mail")] == ["two"]
    assert [row.broker for row in a.fleet.workers(None)] == ["b:2"]
    assert a.fleet.workers("other") == ()
    assert b.fleet.loads()["a:1"] == a.fleet.loads()["a:1"]
    assert a.fleet.loads()["b:2"].workers == 1


def test_a_broker_that_says_nothing_more_is_not_counted(pair: tuple[LoadRig, LoadRig]) -> None:
    a, b = pair
    come(b, "two")
    look(a, b)
    assert a.mails().workers == 1
    a.later(16.0)
    a.fleet.tick()
    assert a.mails().workers == 0
    assert set(a.fleet.loads()) == {"a:1"}


def test_a_worker_that_has_gone_is_known_for_an_hour_at_all_brokers(pair: tuple[LoadRig, LoadRig]) -> None:
    a, b = pair
    workers = [come(b, "crashed"), come(b, "came back")]
    look(a, b)
    for worker in workers:
        b.mail.deliveries.leave(worker)
    come(b, "came back")
    look(b, a)
    assert [(row.name, row.broker) for row in a.fleet.gone("mail")] == [("crashed", "b:2")]
    assert [row.broker for row in b.fleet.gone(None)] == ["b:2"]
    a.later(3601.0)
    assert a.fleet.gone(None) == ()


def test_other_versions_are_left(pair: tuple[LoadRig, LoadRig], documents: Database[dict[str, Any]]) -> None:
    a, b = pair
    look(a, b)
    FigureStore(documents).put("b:2", b'{"load": "high"}', NOW)
    a.fleet.tick()
    assert set(a.fleet.loads()) == {"a:1"}
    assert a.mails().workers == 0
