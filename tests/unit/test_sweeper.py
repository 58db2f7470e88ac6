"""The sweep and the audit over several queues, of which one fails."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.job import Job
from sluicemq_broker.queue.reservations import Reservations
from sluicemq_broker.queues import Sweeper
from sluicemq_broker.runtime import Counters
from sluicemq_broker.store import Surveyed, Unclear
from support.fakes import FakeOwners, FakeStore, a_context, go_on
from support.jobs import NOW, a_job, ids


class SweptStore(FakeStore):
    """One queue's, of which a test asks how often it was looked at, and which fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.asked = 0
        self.mended = 0

    def mend_ownerless(self, now: float) -> None:
        self.mended += 1

    def prepare(self, *, again: bool = False) -> None:
        if self.fault:
            raise self.fault

    def owners(self) -> set[str]:
        self.asked += 1
        return super().owners()

    def reservations(self, owner: str) -> set[tuple[str, int]]:
        self.prepare()
        return super().reservations(owner)


def surveyed(queues: list[Any]) -> dict[str, Surveyed]:
    """As MongoDB would tell it of these."""
    return {
        queue.name: Surveyed(
            frozenset(super(SweptStore, queue.store).owners()),
            min((job.expires_at for job in queue.store.ready if job.expires_at), default=math.inf),
        )
        for queue in queues
    }


class Owners(FakeOwners):
    others_live: frozenset[str] = frozenset()

    def live(self, _database: str | None = None) -> set[str]:
        return {"owner-1", *self.others_live}

    def is_live(self, owner: str, _database: str | None = None) -> bool:
        return owner == "owner-1"


def a_queue(name: str) -> Any:
    held, store = Reservations(), SweptStore()
    settings = SimpleNamespace(max_losses=3, database=None)
    return SimpleNamespace(
        name=name,
        store=store,
        scheduler=SimpleNamespace(reservations=held),
        jobs_ready=go_on,
        settings=settings,
        permits=SimpleNamespace(limited=False, holders=set, forget=lambda _owner: None),
        endings=SimpleNamespace(expire=lambda _limit: 0),
        looks=(looks := list[bool]()),
        groups=SimpleNamespace(promote_headless=lambda *, now: looks.append(now)),
        counters=Counters(),
        capacity=SimpleNamespace(recount=go_on),
        in_use=False,
    )


LOST, ORPHANED = "lost, under our id", "of an owner that is gone"


def lost_job() -> Job:
    return a_job(LOST, owner="owner-1", hold=7)


def orphaned_job() -> Job:
    return a_job(ORPHANED, owner="gone", hold=1)


class SweeperRig:
    """A sweeper over three queues, in each of which lie two jobs; the first fails when told to."""

    def __init__(self) -> None:
        self.queues = [a_queue(name) for name in ("first", "second", "third")]
        for queue in self.queues:
            queue.store.push([lost_job(), orphaned_job()], NOW)
        self.counters = Counters()
        queues: Any = self.queues
        owners: Any = Owners()
        context = a_context(owners, counters=self.counters)
        self.sweeper = Sweeper(queues, context, lambda _queue: None, lambda: surveyed(self.queues))

    def fail(self, fault: Exception) -> None:
        self.queues[0].store.fault = fault

    def given_back(self) -> list[list[str]]:
        """Of each queue the jobs that are ready again."""
        return [ids(queue.store.ready) for queue in self.queues]


@pytest.fixture
def rig() -> SweeperRig:
    return SweeperRig()


@pytest.mark.parametrize("fault", [Unclear("cut"), ValueError("a mistake")])
def test_a_queue_that_fails_keeps_no_other_from_being_swept(rig: SweeperRig, fault: Exception) -> None:
    rig.fail(fault)
    rig.sweeper.sweep()
    assert rig.given_back() == [[], [ORPHANED], [ORPHANED]]
    assert rig.counters.values["unswept"] == 1


@pytest.mark.parametrize("fault", [Unclear("cut"), ValueError("a mistake")])
def test_a_queue_that_fails_keeps_no_other_from_being_audited(rig: SweeperRig, fault: Exception) -> None:
    rig.fail(fault)
    rig.sweeper.audit()
    rig.sweeper.audit()
    assert rig.given_back() == [[], [LOST], [LOST]]
    assert rig.counters.values["orphans"] == 2


def test_what_is_dead_by_its_losses_counts_as_a_death_of_its_queue(rig: SweeperRig) -> None:
    queue = rig.queues[0]
    queue.settings.max_losses = 1
    rig.sweeper.sweep()
    assert queue.counters.values["dead"] == 1


def test_headless_groups_are_looked_for_at_once(rig: SweeperRig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rig.queues[0]
    queue.store.commit([orphaned_job()])
    for live, found in (((), ()), (("other",), ()), (("other",), ()), ((), ()), ((), [orphaned_job()])):
        queue.store.push(found, NOW)
        monkeypatch.setattr(Owners, "others_live", frozenset(live))
        rig.sweeper.sweep()
    # At the start, not as another comes, when it has gone, and when jobs of one that has gone are found.
    assert queue.looks == [True, False, False, True, True]


def test_when_mongodb_is_away_not_every_queue_waits_for_it(rig: SweeperRig) -> None:
    rig.fail(UnavailableError("no primary"))
    with pytest.raises(UnavailableError, match="no primary"):
        rig.sweeper.sweep()
    assert rig.given_back() == [[], [], []]


def test_a_job_in_no_memory_is_freed_at_the_second_audit_unless_it_came(rig: SweeperRig) -> None:
    rig.sweeper.audit()
    first = rig.given_back()
    rig.queues[1].scheduler.reservations.begin(7)
    rig.sweeper.audit()
    assert first == [[], [], []]
    assert rig.given_back() == [[LOST], [], [LOST]]


def test_jobs_of_an_owner_that_only_seems_gone_stay(rig: SweeperRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owners, "is_live", lambda *_: True)  # the leases were read from a former primary
    rig.sweeper.sweep()
    assert rig.given_back() == [[], [], []]


def test_what_came_into_memory_after_the_read_is(rig: SweeperRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.sweeper.audit()
    missing = rig.sweeper.missing

    def then_staged(queue: Any) -> Any:
        found = missing(queue)
        queue.scheduler.reservations.begin(7)
        return found

    monkeypatch.setattr(rig.sweeper, "missing", then_staged)
    rig.sweeper.audit()
    assert rig.given_back()[0] == []


def test_a_sweep_sets_aside_what_is_reserved_by_nobody(rig: SweeperRig) -> None:
    rig.sweeper.sweep()
    assert [queue.store.mended for queue in rig.queues] == [1, 1, 1]


@pytest.fixture
def many() -> list[Any]:
    """Queues that nobody uses, more than have their turn in one sweep."""
    return [a_queue(f"queue-{number}") for number in range(100)]


@pytest.fixture
def owners() -> Owners:
    return Owners()


@pytest.fixture
def sweeper(many: Any, owners: Any) -> Sweeper:
    sweeper = Sweeper(many, a_context(owners), lambda _queue: None, lambda: surveyed(many))
    sweeper.sweep()
    return sweeper


def asked(queues: list[Any]) -> list[int]:
    return [queue.store.asked for queue in queues]


def test_queues_out_of_use_have_their_turn_one_after_the_other(many: list[Any], sweeper: Sweeper) -> None:
    assert sum(asked(many)) == 32
    for _ in range(3):
        sweeper.sweep()
    assert set(asked(many)) == {1, 2}


def test_a_queue_in_use_is_swept_each_time(many: list[Any], sweeper: Sweeper) -> None:
    used, pushed_to = many[98:]
    used.in_use = True
    pushed_to.counters.add("pushed")
    sweeper.sweep()
    assert asked([used, pushed_to]) == [1, 1]
    sweeper.sweep()
    assert asked([used]) == [2]


def test_a_queue_out_of_use_is_swept_when_something_is_there(many: list[Any], sweeper: Sweeper) -> None:
    held, orphaned, later, expired = many[96:]
    held.store.push([lost_job()], NOW)
    orphaned.store.push([orphaned_job()], NOW)
    later.store.push([a_job("later", expires_at=NOW + 1000)], NOW)
    expired.store.push([a_job("expired", expires_at=NOW - 1)], NOW)
    sweeper.sweep()
    assert asked([held, orphaned, later, expired]) == [0, 1, 0, 1]
    assert ids(orphaned.store.ready) == [ORPHANED]


def test_a_queue_that_no_survey_shows_is_swept(many: Any, owners: Any) -> None:
    sweeper = Sweeper(many, a_context(owners), lambda _queue: None, dict[str, Surveyed])
    sweeper.sweep()
    assert asked(many) == [1] * 100


def test_after_a_death_all_queues_are_searched(many: list[Any], owners: Owners, sweeper: Sweeper) -> None:
    owners.others_live = frozenset({"other"})
    sweeper.sweep()
    before = [len(queue.looks) for queue in many]
    owners.others_live = frozenset()
    sweeper.sweep()
    assert [len(queue.looks) for queue in many] == [count + 1 for count in before]
    assert all(queue.looks[-1] for queue in many)
