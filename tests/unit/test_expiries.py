"""When jobs expire, to the tick, in virtual time; and that nothing is handed out after its time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq_broker.context.memory import MOST_EXPIRIES, Memory
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.expiries import SOON, TICK, Expiries
from sluicemq_broker.store.clock import ServerClock
from support.fakes import FakeOutlet, FakeStore, FakeWorker, a_context, go_on, no_limits
from support.jobs import NOW, a_job, ids, some_jobs
from support.virtual_time import VirtualTime


class SetClock(ServerClock):
    """The server's clock: it goes with the timer, and can be set."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.ahead = NOW - time.value

    def now(self) -> float:
        return self._time.value + self.ahead


class ExpiriesRig:
    """The expiries of one queue; ``over`` has what was told when: seconds after :data:`NOW`, ids."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.clock = SetClock(self.time)
        self.memory = Memory()
        self.over: list[tuple[float, list[str]]] = []
        context = a_context(clock=self.clock, timer=self.time, memory=self.memory)
        self.expiries = Expiries(context, self._note)

    def _note(self, ids: list[str]) -> None:
        self.over.append((self.clock.now() - NOW, ids))


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
    rig.expiries.watch(jobs)
    rig.time.passes(SOON + TICK)
    told = {job_id: at for at, ids in rig.over for job_id in ids}
    assert len(told) == len(ttls)
    for at, ttl in enumerate(ttls):
        assert -1e-6 < told[f"{at}"] - ttl < TICK + 1e-6


def test_a_thousand_of_one_moment_are_told_at_once(rig: ExpiriesRig) -> None:
    rig.expiries.watch([with_ttl(5.001 + number / 25_000) for number in range(1000)])
    rig.time.passes(10)
    assert [len(ids) for _, ids in rig.over] == [1000]


def test_a_job_given_to_a_worker_is_forgotten(rig: ExpiriesRig) -> None:
    stays, goes = with_ttl(1, "stays"), with_ttl(1, "goes")
    rig.expiries.watch([stays, goes])
    rig.expiries.forget([goes, a_job("never expires")])
    rig.time.passes(2)
    assert [ids for _, ids in rig.over] == [["stays"]]
    assert not rig.expiries
    assert rig.memory.expiries == 0


def test_what_comes_back_after_its_time_ends_at_once(rig: ExpiriesRig) -> None:
    rig.time.passes(10)
    rig.expiries.watch([with_ttl(3, "late")])
    assert rig.over == [(10, ["late"])]


def test_a_longer_time_to_live_is_left_to_the_sweep_unless_somebody_waits(rig: ExpiriesRig) -> None:
    rig.expiries.watch([with_ttl(SOON + 1, "left"), with_ttl(SOON + 1, "asked", asked=True), a_job("never")])
    rig.expiries.watch_one("asked by its id", NOW + SOON + 1)
    rig.time.passes(2 * SOON)
    assert sorted(*(ids for _, ids in rig.over)) == ["asked", "asked by its id"]


@pytest.mark.parametrize(("jump", "late"), [(-30.0, 0.0), (30.0, 1.0)])
def test_a_clock_that_is_set_is_followed_within_a_second(rig: ExpiriesRig, jump: float, late: float) -> None:
    rig.expiries.watch([with_ttl(40)])
    rig.clock.ahead += jump
    rig.time.passes(100)
    [(told, _)] = rig.over
    assert 40 - 1e-6 <= told <= 40 + TICK + late


def test_what_is_beyond_the_bound_is_left_to_the_sweep(rig: ExpiriesRig) -> None:
    elsewhere = MOST_EXPIRIES - 10
    rig.memory.watch(elsewhere)
    other = Expiries(a_context(clock=rig.clock, timer=rig.time, memory=rig.memory), lambda _ids: None)
    other.watch(some_jobs(4, expires_at=NOW + 5))
    rig.expiries.watch([with_ttl(1) for _ in range(20)])
    rig.time.passes(2)
    assert [len(ids) for _, ids in rig.over] == [6]
    rig.expiries.watch([with_ttl(4) for _ in range(20)])
    rig.time.passes(10)
    assert [len(ids) for _, ids in rig.over] == [6, 6]
    assert rig.memory.expiries == elsewhere


def test_ticks_of_jobs_that_went_to_workers_take_no_memory(rig: ExpiriesRig) -> None:
    for number in range(3000):
        job = with_ttl(100 + number, asked=True)
        rig.expiries.watch([job])
        rig.expiries.forget([job])
    assert len(rig.expiries._ticks) < 1100


# ----------------------------------------------------------- what is staged


class Hands(FakeOutlet):
    """A dispatcher with one worker that takes one job at a time, and virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = VirtualTime()
        self.clock = SetClock(self.time)
        context = a_context(clock=self.clock, timer=self.time)
        self.dispatch = Dispatch(FakeStore(), context, self, no_limits(context))  # type: ignore[arg-type]
        self.worker = FakeWorker(1)
        self.dispatch.attach(self.worker)
        go_on()

    def born(self, *jobs: Job) -> None:
        """A push whose jobs are inserted reserved."""
        arrival = self.dispatch.supply.expect(jobs, NOW)
        assert len(arrival.jobs) == len(jobs)
        self.dispatch.supply.arrived(arrival, list(jobs))

    def commit(self) -> None:
        delivery = self.dispatch.settle(next(iter(self.worker.in_flight)))
        assert delivery
        self.dispatch.forget([delivery.job])
        self.dispatch.offer(self.worker)


def at_its_time(hands: Hands) -> None:
    hands.time.passes(1.0 + TICK)
    assert ids(hands.released) == ["staged"]


def without_its_alarm(hands: Hands) -> None:
    """As when the hub stood still: the worker is heard before the alarm."""
    hands.time.value += 1.0 + TICK


@pytest.mark.parametrize("passes", [at_its_time, without_its_alarm])
def test_what_expires_while_it_is_staged_goes_to_nobody(passes: Callable[[Hands], None]) -> None:
    # Given a worker that has a job, one more staged for it that expires, and one that doesn't
    hands = Hands()
    hands.born(with_ttl(1, "at the worker"), with_ttl(1, "staged"), a_job("stays"))
    assert hands.worker.jobs == ["at the worker"]
    # When
    passes(hands)
    hands.commit()
    # Then
    assert hands.worker.jobs == ["at the worker", "stays"]
    assert ids(hands.released) == ["staged"]


def test_a_job_at_a_worker_does_not_expire() -> None:
    hands = Hands()
    hands.born(with_ttl(1, "at the worker"))
    hands.time.passes(SOON)
    assert not hands.over
    assert not hands.released
