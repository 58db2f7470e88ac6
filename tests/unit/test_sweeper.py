"""The sweep and the audit over several queues, of which one fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.counters import Counters
from broker.mongo import Unclear
from broker.sweeper import Sweeper
from fakes import Clock, FakeOwners, go_on
from sluicemq.errors import Unavailable


class Store:
    """One queue's: jobs ``lost`` lie reserved by us, and others by an owner that is gone."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.reclaimed: list[str] = []
        self.released: list[str] = []

    def mend(self) -> None:
        """There is nothing to mend."""

    def prepare(self) -> None:
        if self.fault:
            raise self.fault

    def owners(self) -> set[str]:
        return {"gone", "owner-1"}

    def reclaim(self, owner: str, max_losses: int, now: float) -> tuple[int, int]:
        self.reclaimed.append(owner)
        return 1, 0

    def held_ids(self, owner: str) -> set[str]:
        self.prepare()
        return {"lost"}

    def release(self, ids: list[str], owner: str) -> int:
        self.released += ids
        return len(ids)


class Owners(FakeOwners):
    def live(self) -> set[str]:
        return {"owner-1"}


def a_queue(name: str) -> Any:
    dispatch = SimpleNamespace(held={}, supply=SimpleNamespace(some_ready=go_on))
    settings = SimpleNamespace(max_losses=3)
    return SimpleNamespace(name=name, store=Store(), dispatch=dispatch, settings=settings, expire=go_on)


class House:
    """A sweeper over three queues; the first fails when told to."""

    def __init__(self) -> None:
        self.queues = [a_queue(name) for name in ("first", "second", "third")]
        self.counters = Counters()
        queues: Any = self.queues
        owners: Any = Owners()
        self.sweeper = Sweeper(queues, owners, Clock(), self.counters)

    def fail(self, fault: Exception) -> None:
        self.queues[0].store.fault = fault


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.parametrize("fault", [Unclear("cut"), ValueError("a mistake")])
def test_a_queue_that_fails_keeps_no_other_from_being_swept(house: House, fault: Exception) -> None:
    house.fail(fault)
    house.sweeper.sweep()
    assert [queue.store.reclaimed for queue in house.queues] == [[], ["gone"], ["gone"]]
    assert house.counters.values["unswept"] == 1


@pytest.mark.parametrize("fault", [Unclear("cut"), ValueError("a mistake")])
def test_a_queue_that_fails_keeps_no_other_from_being_audited(house: House, fault: Exception) -> None:
    house.fail(fault)
    house.sweeper.audit()
    house.sweeper.audit()
    assert [queue.store.released for queue in house.queues] == [[], ["lost"], ["lost"]]
    assert house.counters.values["orphans"] == 2


def test_when_mongodb_is_away_not_every_queue_waits_for_it(house: House) -> None:
    house.fail(Unavailable("no primary"))
    with pytest.raises(Unavailable, match="no primary"):
        house.sweeper.sweep()
    assert [queue.store.reclaimed for queue in house.queues] == [[], [], []]


def test_a_job_that_is_in_no_memory_is_freed_at_the_second_audit_unless_it_came_there(house: House) -> None:
    house.sweeper.audit()
    first = [list(queue.store.released) for queue in house.queues]
    house.queues[1].dispatch.held["lost"] = object()
    house.sweeper.audit()
    assert first == [[], [], []]
    assert [queue.store.released for queue in house.queues] == [["lost"], [], ["lost"]]
