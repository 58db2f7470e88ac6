"""When a push waits for workers, so that its jobs are inserted reserved; and when it must not."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.supply import ALONE, FAST, MOMENT, Supply
from sluicemq_broker.runtime.timer import Timer
from support.fakes import FakeOutlet, FakeOwners, FakeStore, FakeWorker, Held, a_context, go_on, no_limits
from support.jobs import NOW, some_jobs
from support.virtual_time import VirtualTime, come_to_rest

Waits = Callable[[int], bool]


class LongMoments(Timer):
    """So long that no test waits for their end."""

    def wait(self, event: Event, seconds: float) -> bool:
        return bool(event.wait(seconds * 1000))


class SupplyRig(FakeOutlet):
    """A dispatcher over a store in memory, with one worker whose pace is known."""

    def __init__(self, rate: float | None, timer: Timer | None = None) -> None:
        super().__init__()
        self.store = FakeStore()
        context = a_context(timer=timer or LongMoments())
        self.dispatch = Dispatch(self.store, context, self, no_limits(context))  # type: ignore[arg-type]
        self.supply = self.dispatch.supply
        self.worker = FakeWorker(100)
        self.dispatch.attach(self.worker)
        go_on()
        self.dispatch.pace.rate = rate
        self.dispatch.pace.appetite = 1000
        self.work(100)

    def work(self, count: int) -> None:
        """Inserted reserved, durable, and with the worker or staged for it."""
        jobs = some_jobs(count)
        arrival = self.supply.expect(jobs, NOW)
        self.supply.arrived(arrival, arrival.jobs)

    def finish(self) -> None:
        """The worker commits all it has, and gets more."""
        for receipt in list(self.worker.in_flight):
            self.dispatch.settle(receipt)
        self.dispatch.offer(self.worker)


def test_a_push_waits_until_fast_workers_have_room_for_it() -> None:
    # Given: as much staged as is held for them
    rig = SupplyRig(rate=FAST)
    rig.work(1000)
    assert rig.dispatch.room == 0
    # When
    push = gevent.spawn(rig.supply.await_room, 100)
    go_on()
    assert not push.ready()
    rig.finish()
    # Then
    push.join(60)
    assert push.ready()


def test_a_push_waits_until_the_few_jobs_before_it_are_claimed() -> None:
    # Given: jobs lie ready, and a claim of them is under way
    rig = SupplyRig(rate=FAST)
    rig.store.before_claim = held = Held()
    rig.store.ready.extend(jobs := some_jobs(50))
    rig.supply._ledger.backlog = 0
    rig.supply.some_ready(0, 50)
    go_on()
    # When
    push = gevent.spawn(rig.supply.await_room, 100)
    go_on()
    assert not push.ready()
    held.set()
    # Then: it is inserted reserved, behind them
    push.join(60)
    assert push.ready()
    assert len(rig.supply.expect(some_jobs(100), NOW).jobs) == 100
    assert all(job.owner for job in jobs)


def test_a_few_jobs_that_came_back_are_claimed_at_once_though_much_is_staged() -> None:
    # Given
    rig = SupplyRig(rate=FAST)
    rig.supply._ledger.backlog = 0
    rig.work(900)
    # When
    rig.store.ready.extend(some_jobs(3))
    rig.supply.some_ready(0, 3)
    go_on()
    # Then
    assert rig.store.ready == []


def test_a_push_with_room_waits_for_nothing() -> None:
    assert not waits(SupplyRig(rate=FAST))


@pytest.mark.parametrize("reason", ["slow", "far behind", "backlog not known", "nobody", "stopping"])
def test_a_push_does_not_wait(reason: str) -> None:
    rig = SupplyRig(rate=FAST - 1 if reason == "slow" else FAST)
    rig.work(1000)
    assert waits(rig) == (reason != "slow")
    if reason == "far behind":
        rig.supply._ledger._ready, rig.supply._ledger.backlog = 0, FAST * MOMENT
    if reason == "backlog not known":
        rig.supply.some_ready(0)
    if reason == "nobody":
        rig.dispatch.detach(rig.worker)
    if reason == "stopping":
        rig.dispatch.stop_granting(0.0)
    assert not waits(rig)


def waits(rig: SupplyRig) -> bool:
    """Push 100 jobs; return whether they wait for room."""
    push = gevent.spawn(rig.supply.await_room, 100)
    go_on()
    waiting = not push.ready()
    push.kill()
    return waiting


def test_a_push_that_waits_goes_on_when_the_broker_stops() -> None:
    rig = SupplyRig(rate=FAST)
    rig.work(1000)
    push = gevent.spawn(rig.supply.await_room, 100)
    go_on()
    rig.dispatch.stop_granting(0.0)
    push.join(60)
    assert push.ready()


class Moments(Timer):
    """Notes for how long it was asked to wait, and says at once that this is over."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def wait(self, event: Event, seconds: float) -> bool:
        self.asked.append(seconds)
        return False


def test_for_workers_of_unknown_pace_a_push_waits_only_a_shorter_moment() -> None:
    asked = []
    for rate in (None, FAST):
        moments = Moments()
        rig = SupplyRig(rate=rate, timer=moments)
        rig.work(1000)
        rig.supply.await_room(100)  # to the end of that moment, though there is no room
        assert rig.dispatch.room <= 0
        asked += moments.asked
    assert 0 < asked[0] <= 0.05 < asked[1] <= MOMENT


def test_nothing_is_given_back_while_later_jobs_are_on_their_way_here_to_overtake_it() -> None:
    # Given: far more is staged than a worker that has become slow will come to
    rig = SupplyRig(rate=0.0)
    rig.work(1000)
    # When: a push that is inserted reserved is under way
    rig.dispatch.pace.appetite = 2000
    arrival = rig.supply.expect(some_jobs(10), NOW)
    rig.dispatch.tick()
    assert rig.released == []
    # Then: once it has come
    rig.supply.arrived(arrival, arrival.jobs)
    rig.dispatch.tick()
    assert rig.released


# --------------------------------------------------------------------------- looks


class Looking(FakeOutlet):
    """A dispatcher with an idle worker, in time that passes when told to; ``looks``: claims at its ticks."""

    def __init__(self, others: int) -> None:
        super().__init__()
        self.time, owners = VirtualTime(), FakeOwners()
        owners.others = others
        self.store = FakeStore()
        context = a_context(owners, timer=self.time)
        self.dispatch = Dispatch(self.store, context, self, no_limits(context))  # type: ignore[arg-type]
        self.dispatch.attach(FakeWorker(10))
        come_to_rest()
        self.store.claims.clear()

    def looks(self, seconds: int) -> int:
        for _ in range(seconds):
            self.time.passes(1.0)
            self.dispatch.tick()
            come_to_rest()
        return len(self.store.claims)


def test_a_broker_that_is_not_alone_looks_at_each_tick_for_what_others_have_left() -> None:
    assert Looking(others=1).looks(60) == 60


def test_a_broker_that_is_alone_looks_rarely_but_does() -> None:
    assert 60 // ALONE <= Looking(others=0).looks(60) <= 2 * 60 // ALONE


@pytest.mark.parametrize("come", [lambda to: to.promoted(0, 1, 1), lambda to: to.some_ready()])
def test_what_lies_ready_now_and_may_be_old_is_told_to_claims(come: Callable[[Supply], None]) -> None:
    looking = Looking(others=0)
    told: list[bool] = []
    looking.store.on_ready = lambda *, anywhere: told.append(anywhere)  # type: ignore[method-assign]
    looking.dispatch.supply.some_ready(0, 1)
    assert told == [False]
    come(looking.dispatch.supply)
    assert told == [False, True]
    come_to_rest()


def test_who_hears_of_a_job_of_another_broker_claims_it_alone_first() -> None:
    # Given
    looking = Looking(others=1)
    looking.store.ready = some_jobs(3)
    # When
    looking.dispatch.supply.on_ready(0)
    come_to_rest()
    # Then
    brought = [limit for limit, _ in looking.store.claims]
    assert brought[0] == 1
    assert not looking.store.ready
