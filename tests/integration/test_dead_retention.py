"""Dead letters that are older than ``dead_retention``, or more than ``max_dead``, are removed and counted."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.wire import TaskState
from sluicemq_broker.queues.bulk_operations import PAGE
from sluicemq_broker.queues.retention import MOVING
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import QueueStore, date
from support.faulty_mongo import Line
from support.jobs import NOW
from support.small_broker import LEASE, SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest

DAY = 86_400.0
KEPT = 90 * DAY
MOST = 1_000


class Rig:
    """One queue ``mail`` with dead letters, and brokers on it whose time passes when the test says so."""

    def __init__(self, documents: Database[dict[str, Any]], store: QueueStore) -> None:
        self.documents = documents
        self.store = store
        self.time = VirtualTime()
        self.clock = VirtualClock(self.time)
        self._brokers: list[SmallBroker] = []

    def broker(self, **settings: Any) -> SmallBroker:
        """Start a broker on the store as it is now."""
        name = f"broker-{len(self._brokers)}"
        broker = SmallBroker(
            name,
            self.documents,
            self.time,
            self.clock,
            Line(lambda *_stored: None, self.time),
            lambda: name,
            {"max_dead": MOST, **settings},
        )
        self._brokers.append(broker)
        return broker

    def bury(self, *deaths: float, **fields: Any) -> None:
        """Put dead letters into the queue that died at these times; their ids rise with them."""
        base = self.store.jobs.estimated_document_count()
        letters = [
            {
                "_id": f"{base + place:08}",
                "state": "dead",
                "priority": 0,
                "seq": place,
                "created_at": date(died),
                "ended_at": date(died),
                "payload": b"",
                **fields,
            }
            for place, died in enumerate(deaths)
        ]
        self.store.jobs.insert_many(letters)

    def sweep(self, *brokers: SmallBroker) -> None:
        """Let brokers count and sweep, and do what follows."""
        for broker in brokers or self._brokers:
            broker.census.tick()
            broker.dead_retention.sweep()
        come_to_rest()
        self.time.passes(100.0)

    def left(self) -> list[str]:
        """Return the ids that are there, in order."""
        return [str(job["_id"]) for job in self.store.jobs.find({}, {"_id": 1}).sort("_id", 1)]

    def removed(self) -> int:
        return sum(broker.queue.counters.values[Count.DEAD_REMOVED] for broker in self._brokers)

    def stop(self) -> None:
        for broker in self._brokers:
            broker.tasks.stop()
        self.time.passes(100.0)


@pytest.fixture
def rig(documents: Database[dict[str, Any]], store: QueueStore) -> Iterator[Rig]:
    rig = Rig(documents, store)
    yield rig
    rig.stop()


def test_a_dead_letter_is_removed_when_its_retention_is_over_and_counted(rig: Rig) -> None:
    broker = rig.broker()
    rig.bury(NOW + 1, NOW + DAY)
    # When it is almost over
    rig.time.passes(KEPT - 10)
    rig.sweep()
    assert len(rig.left()) == 2
    # When it is over for one
    rig.time.passes(20)
    rig.sweep()
    assert rig.left() == ["00000001"]
    assert rig.removed() == 1
    assert broker.counters.values[Count.DEAD_REMOVED] == 1


def test_of_too_many_dead_letters_the_newest_stay(rig: Rig) -> None:
    rig.broker()
    rig.bury(*(NOW + place / 100 for place in range(MOST + 2 * PAGE + 7)))
    everything = rig.left()
    rig.time.passes(DAY)
    rig.sweep()
    assert rig.left() == everything[-MOST:]
    assert rig.removed() == 2 * PAGE + 7
    # When nothing has come since
    rig.sweep()
    assert len(rig.left()) == MOST


def test_of_many_that_died_at_one_moment_no_more_than_too_many_are_removed(rig: Rig) -> None:
    rig.broker()
    rig.bury(*[NOW + 1] * (MOST + 50))
    rig.time.passes(DAY)
    rig.sweep()
    assert (len(rig.left()), rig.removed()) == (MOST, 50)


def test_two_brokers_that_sweep_at_once_remove_no_more_than_one(rig: Rig) -> None:
    rig.broker()
    rig.broker()
    rig.bury(*(NOW + place / 100 for place in range(MOST + 3 * PAGE)))
    rig.time.passes(DAY)
    rig.sweep()
    assert (len(rig.left()), rig.removed()) == (MOST, 3 * PAGE)


SPARED: dict[str, Callable[[], dict[str, Any]]] = {
    "its parent does not know yet": lambda: {"parent": {"queue": "mail", "id": "p", "seq": 1}},
    "its dedupe_id holds": lambda: {"dedupe_id": "x", "dedupe_until": date(NOW + 3 * KEPT)},
}


@pytest.mark.parametrize("why", SPARED)
def test_a_dead_letter_that_still_matters_is_not_removed_yet(rig: Rig, why: str) -> None:
    rig.broker()
    rig.bury(NOW + 1, **SPARED[why]())
    rig.bury(NOW + 2)
    rig.time.passes(KEPT + DAY)
    rig.sweep()
    assert rig.left() == ["00000000"]
    # When it matters no more
    rig.store.jobs.update_one(
        {}, {"$set": {"parent.told": True}} if "parent" in why else {"$unset": {"dedupe_until": ""}}
    )
    rig.sweep()
    assert rig.left() == []


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"dead_retention": 30.0}, 30.0),
        ({"dead_retention": 30.0, "on_dead": "mail"}, 30.0),  # they stay
        ({"dead_retention": 30.0, "on_dead": "letters"}, MOVING),
        ({"on_dead": "letters"}, KEPT),
    ],
)
def test_a_dead_letter_that_goes_on_stays_for_that(rig: Rig, settings: dict[str, Any], kept: float) -> None:
    broker = rig.broker(**settings)
    rig.time.passes(10 * KEPT)
    bounds = broker.dead_retention.bounds(broker.queue)
    assert bounds.until == pytest.approx(rig.clock.now() - kept)


def test_a_removal_that_its_broker_leaves_half_done_is_ended_by_another(rig: Rig) -> None:
    rig.broker()
    rig.bury(*[NOW + 1] * (20 * PAGE))
    rig.time.passes(KEPT + DAY)
    first = rig.broker()
    first.tasks.stop()  # after its first pages
    rig.sweep(first)
    rig.time.passes(2 * LEASE)
    rig.sweep()
    assert rig.left() == []
    assert {task.state for task in first.tasks.latest()} <= {TaskState.DONE, TaskState.INTERRUPTED}


def test_how_much_of_its_bounds_a_queue_has_used_is_known_before_anything_is_removed(rig: Rig) -> None:
    broker = rig.broker()
    assert list(broker.dead_retention.used()) == []
    rig.bury(*[NOW + 1] * 800)
    rig.time.passes(KEPT / 2)
    rig.sweep()
    [used] = broker.dead_retention.used()
    assert (used.queue, used.dead, used.oldest, used.number) == ("mail", 800, NOW + 1, 0.8)
    assert used.time == pytest.approx(0.5, abs=0.01)
