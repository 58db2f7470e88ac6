"""When jobs expire, to the tick, in virtual time; and that nothing is handed out after its time."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq_broker.context.memory import MOST_EXPIRIES
from sluicemq_broker.job import Job
from sluicemq_broker.queue.times import SOON, TICK, DueTimes, Expiries
from sluicemq_broker.runtime import Budget
from sluicemq_broker.store import ExpiredJobs, ServerClock
from support.jobs import NOW, a_job, ids, some_jobs
from support.virtual_time import VirtualTime
from unit.dispatch_rig import DispatchRig


class SetClock(ServerClock):
    """The server's clock: it goes with the timer, and can be set."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.ahead = NOW - time.value

    def now(self) -> float:
        return self._time.value + self.ahead


class ExpiriesRig:
    """The expiries of one queue, asked at each time they name; ``over``: seconds after :data:`NOW`, ids."""

    def __init__(self) -> None:
        self.now = NOW
        self.budget = Budget(MOST_EXPIRIES)
        self.over: list[tuple[float, list[str]]] = []
        self.expiries = Expiries(self.budget)

    def watch(self, jobs: list[Job]) -> None:
        self.expiries.watch(jobs, self.now)

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.expiries.next <= end:
            self.now = max(self.now, self.expiries.next)
            if over := self.expiries.take(self.now):
                self.over.append((self.now - NOW, over))
        self.now = end


@pytest.fixture
def rig() -> ExpiriesRig:
    return ExpiriesRig()


def with_ttl(ttl: float, job_id: str | None = None, *, asked: bool = False) -> Job:
    job = a_job(job_id, expires_at=NOW + ttl)
    if asked:
        job.want_result()
    return job


@settings(deadline=None, max_examples=30)
@given(ttls=st.lists(st.floats(0.001, SOON - 0.001), min_size=1, max_size=30))
def test_each_expires_at_its_time_or_a_tick_later_and_never_before(ttls: list[float]) -> None:
    rig = ExpiriesRig()
    jobs = [with_ttl(ttl, f"{at}") for at, ttl in enumerate(ttls)]
    rig.watch(jobs)
    rig.passes(SOON + TICK)
    told = {job_id: at for at, ids in rig.over for job_id in ids}
    assert len(told) == len(ttls)
    for at, ttl in enumerate(ttls):
        assert -1e-6 < told[f"{at}"] - ttl < TICK + 1e-6


def test_a_thousand_of_one_moment_are_told_at_once(rig: ExpiriesRig) -> None:
    rig.watch([with_ttl(5.001 + number / 25_000) for number in range(1000)])
    rig.passes(10)
    assert [len(ids) for _, ids in rig.over] == [1000]


def test_a_job_given_to_a_worker_is_forgotten(rig: ExpiriesRig) -> None:
    stays, goes = with_ttl(1, "stays"), with_ttl(1, "goes")
    rig.watch([stays, goes])
    rig.expiries.forget([goes, a_job("never expires")])
    rig.passes(2)
    assert [ids for _, ids in rig.over] == [["stays"]]
    assert not rig.expiries
    assert rig.budget.used == 0


def test_what_comes_back_after_its_time_ends_at_once(rig: ExpiriesRig) -> None:
    rig.passes(10)
    rig.watch([with_ttl(3, "late")])
    rig.passes(0)
    assert rig.over == [(10, ["late"])]


def test_a_longer_time_to_live_is_left_to_the_sweep_unless_somebody_waits(rig: ExpiriesRig) -> None:
    rig.watch([with_ttl(SOON + 1, "left"), with_ttl(SOON + 1, "asked", asked=True), a_job("never")])
    rig.expiries.watch_one("asked by its id", NOW + SOON + 1)
    rig.passes(2 * SOON)
    assert sorted(*(ids for _, ids in rig.over)) == ["asked", "asked by its id"]


def test_what_is_beyond_the_bound_is_left_to_the_sweep(rig: ExpiriesRig) -> None:
    elsewhere = MOST_EXPIRIES - 10
    rig.budget.take(elsewhere)
    other = Expiries(rig.budget)
    other.watch(some_jobs(4, expires_at=NOW + 5), NOW)
    rig.watch([with_ttl(1) for _ in range(20)])
    rig.passes(2)
    assert [len(ids) for _, ids in rig.over] == [6]
    rig.watch([with_ttl(4) for _ in range(20)])
    rig.passes(10)
    assert [len(ids) for _, ids in rig.over] == [6, 6]
    other.take(rig.now)
    assert rig.budget.used == elsewhere


def test_ticks_of_jobs_that_went_to_workers_take_no_memory(rig: ExpiriesRig) -> None:
    for number in range(3000):
        job = with_ttl(100 + number, asked=True)
        rig.watch([job])
        rig.expiries.forget([job])
    assert len(rig.expiries._ticks) < 1100


def test_delayed_jobs_are_due_at_their_times_and_those_of_the_next_minute_are_timed() -> None:
    due = DueTimes()
    due.add([NOW + 1, NOW + 5, NOW + 1, NOW + 60], NOW)
    assert due.next == pytest.approx(NOW + 1, abs=TICK)
    assert [due.take(NOW + seconds) for seconds in (0.9, 1.1, 9, 99)] == [0, 2, 1, 0]
    assert due.next == math.inf


class Hands(DispatchRig):
    """A queue with one worker that takes one job at a time, and virtual time."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.server = SetClock(self.time)
        super().__init__(self.time, clock=self.server)
        self.expired: list[str] = []
        self.store.expire = self._expire  # type: ignore[attr-defined]
        self.hand = self.worker(1)

    def _expire(self, _now: float, ids: list[str]) -> ExpiredJobs:
        self.expired += ids
        return ExpiredJobs(ids, frozenset())

    def insert(self, *jobs: Job) -> None:
        """A push whose jobs are inserted reserved."""
        arrival = self.admit(*jobs)
        assert len(arrival.jobs) == len(jobs)
        self.arrived(arrival, list(jobs))

    def commit_one(self) -> None:
        self.commit(self.hand, next(iter(self.hand.in_flight)))


def at_its_time(hands: Hands) -> None:
    hands.time.passes(1.0 + TICK)
    assert ids(hands.released) == ["staged"]


def without_its_alarm(hands: Hands) -> None:
    """As when the hub stood still: the worker is heard before the alarm."""
    hands.time.value += 1.0 + TICK


@pytest.mark.parametrize(
    ("passes", "timed"), [(at_its_time, 0), (without_its_alarm, 0), (without_its_alarm, MOST_EXPIRIES)]
)
def test_what_expires_while_it_is_staged_goes_to_nobody_though_no_more_expiries_are_timed(
    passes: Callable[[Hands], None], timed: int
) -> None:
    # Given a worker that has a job, one more staged for it that expires, and one that doesn't
    hands = Hands()
    hands.memory.expiries.take(timed)
    hands.insert(with_ttl(1, "at the worker"), with_ttl(1, "staged"), a_job("stays"))
    assert hands.hand.jobs == ["at the worker"]
    passes(hands)
    hands.commit_one()
    assert hands.hand.jobs == ["at the worker", "stays"]
    assert ids(hands.released) == ["staged"]


def test_a_job_at_a_worker_does_not_expire() -> None:
    hands = Hands()
    hands.insert(with_ttl(1, "at the worker"))
    hands.time.passes(SOON)
    assert not hands.expired
    assert not hands.released


@pytest.mark.parametrize(("jump", "late"), [(-30.0, 0.0), (30.0, 1.0)])
def test_a_clock_that_is_set_is_followed_within_a_second(jump: float, late: float) -> None:
    # Given a job that waits, as somebody waits for its result
    hands = Hands()
    hands.queue.scheduler.expiries.watch_one("a", NOW + 40)
    hands.queue.dispatch()
    hands.events.read(None, None, 1)
    hands.server.ahead += jump
    told = 0.0
    while not hands.expired:
        hands.time.passes(0.01)
        told = hands.server.now() - NOW
    assert 40 - 1e-6 <= told <= 40 + TICK + late + 0.01
    assert [(row["event"], row["job"]) for row in hands.events.read(0, None, 9)["events"]] == [
        ("expired", "a")
    ]
