"""When a push waits for workers, so that its jobs are inserted reserved; and when it must not."""

from collections.abc import Callable

import pytest
from gevent.event import Event

from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push
from sluicemq_broker.queue.scheduler import ALONE, CROWD, FAST, MOMENT
from sluicemq_broker.runtime import Timer
from support.fakes import Held, go_on
from support.jobs import some_jobs
from support.virtual_time import VirtualTime, come_to_rest
from support.waiting import wait_until
from unit.dispatch_rig import DispatchRig


class LongMoments(Timer):
    """So long that no test waits for their end."""

    def wait(self, event: Event, seconds: float) -> bool:
        return bool(event.wait(seconds * 1000))


class SupplyRig(DispatchRig):
    """A queue over a store in memory, with one worker whose pace is known."""

    def __init__(self, rate: float | None, timer: Timer | None = None) -> None:
        super().__init__(timer or LongMoments())
        self.hand = self.worker(100)
        self.scheduler.pace.rate = rate
        self.scheduler.pace.appetite = 1000
        self.work(100)

    def work(self, count: int) -> None:
        """Inserted reserved, durable, and with the worker or staged for it."""
        arrival = self.admit(*some_jobs(count))
        self.arrived(arrival, arrival.jobs)

    def finish(self) -> None:
        """The worker commits all it has, and gets more."""
        for receipt in list(self.hand.in_flight):
            self.settle(receipt)
        self.queue.offer(self.hand)

    def push(self, count: int) -> list[Job]:
        jobs = some_jobs(count)
        self.queue.intake.push(Push(jobs, lambda *_: None))
        go_on()
        return jobs

    def wait_written(self) -> None:
        wait_until(lambda: go_on() or self.store.inserts)
        go_on()


def test_a_push_waits_until_fast_workers_have_room_for_it() -> None:
    # Given: as much staged as is held for them
    rig = SupplyRig(rate=FAST)
    rig.work(1000)
    assert rig.room == 0
    rig.push(100)
    assert not rig.store.inserts
    rig.finish()
    rig.wait_written()


def test_a_push_waits_until_the_few_jobs_before_it_are_claimed() -> None:
    # Given: jobs lie ready, and a claim of them is under way
    rig = SupplyRig(rate=FAST)
    rig.store.before_claim = held = Held()
    rig.store.ready.extend(jobs := some_jobs(50))
    rig.scheduler.ledger.backlog = 0
    rig.queue.jobs_ready(50, 0)
    go_on()
    pushed = rig.push(100)
    assert not rig.store.inserts
    held.set()
    # Then: it is inserted reserved, behind them
    rig.wait_written()
    assert all(job.owner for job in [*jobs, *pushed])


def test_a_few_jobs_that_came_back_are_claimed_at_once_though_much_is_staged() -> None:
    rig = SupplyRig(rate=FAST)
    rig.scheduler.ledger.backlog = 0
    rig.work(900)
    rig.store.ready.extend(some_jobs(3))
    rig.queue.jobs_ready(3, 0)
    go_on()
    assert rig.store.ready == []


def test_a_push_with_room_waits_for_nothing() -> None:
    assert not waits(SupplyRig(rate=FAST))


@pytest.mark.parametrize("reason", ["slow", "far behind", "backlog not known", "nobody", "stopping"])
def test_a_push_does_not_wait(reason: str) -> None:
    rig = SupplyRig(rate=FAST - 1 if reason == "slow" else FAST)
    rig.work(1000)
    assert waits(rig) == (reason != "slow")
    if reason == "far behind":
        rig.only_ready(0)
        rig.scheduler.ledger.backlog = FAST * MOMENT
    if reason == "backlog not known":
        rig.queue.jobs_ready(priority=0)
    if reason == "nobody":
        rig.leave(rig.hand)
    if reason == "stopping":
        rig.queue.stop_granting(0.0)
    assert not waits(rig)


def waits(rig: SupplyRig) -> bool:
    """Return whether a push of 100 jobs would wait for room."""
    return rig.scheduler.patience(100, rig.conditions) > 0


def test_a_push_that_waits_goes_on_when_the_broker_stops() -> None:
    rig = SupplyRig(rate=FAST)
    rig.work(1000)
    rig.push(100)
    assert not rig.store.inserts
    rig.queue.stop_granting(0.0)
    rig.wait_written()


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
        rig.push(100)
        rig.wait_written()  # at the end of that moment, though there is no room
        assert rig.room <= 0
        asked.append(moments.asked[0])
    assert 0 < asked[0] <= 0.05 < asked[1] <= MOMENT


def test_nothing_is_given_back_while_later_jobs_are_on_their_way_here_to_overtake_it() -> None:
    # Given: far more is staged than a worker that has become slow will come to
    rig = SupplyRig(rate=0.0)
    rig.work(1000)
    # When: a push that is inserted reserved is under way
    rig.scheduler.pace.appetite = 2000
    arrival = rig.admit(*some_jobs(10))
    rig.tick()
    assert rig.released == []
    # Then: once it has come
    rig.arrived(arrival, arrival.jobs)
    rig.tick()
    assert rig.released


class Looking(DispatchRig):
    """A queue with an idle worker, in virtual time; ``looks``: claims at its ticks."""

    def __init__(self, others: int) -> None:
        self.time = VirtualTime()
        super().__init__(self.time, others=others)
        self.worker(10)
        come_to_rest()
        self.store.claims.clear()

    def looks(self, seconds: int) -> int:
        for _ in range(seconds):
            self.time.passes(1.0)
            self.tick()
            come_to_rest()
        return len(self.store.claims)


def test_a_broker_that_is_not_alone_looks_at_each_tick_for_what_others_have_left() -> None:
    assert Looking(others=1).looks(60) == 60


@pytest.mark.parametrize("others", [0, CROWD])
def test_a_broker_that_is_alone_or_one_of_many_looks_rarely_but_does(others: int) -> None:
    assert 60 // ALONE <= Looking(others=others).looks(60) <= 2 * 60 // ALONE


@pytest.mark.parametrize(
    "come", [lambda to: to.scheduler.promoted(0, 1, 1, to.conditions), lambda to: to.scheduler.some_ready()]
)
def test_what_lies_ready_now_and_may_be_old_is_told_to_claims(come: Callable[[Looking], None]) -> None:
    looking = Looking(others=0)
    told: list[bool] = []
    looking.store.on_ready = lambda *, anywhere: told.append(anywhere)  # type: ignore[method-assign]
    looking.queue.jobs_ready(1, 0)
    assert told == [False]
    come(looking)
    looking.queue.dispatch()
    assert told == [False, True]
    come_to_rest()


def test_who_hears_of_a_job_of_another_broker_claims_it_alone_first() -> None:
    looking = Looking(others=1)
    looking.store.ready = some_jobs(3)
    looking.queue.on_ready(0)
    come_to_rest()
    brought = [limit for limit, _ in looking.store.claims]
    assert brought[0] == 1
    assert not looking.store.ready
