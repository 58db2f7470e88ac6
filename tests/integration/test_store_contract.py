"""What users of a store rely on, for the real one over MongoDB and for the one of the tests in memory."""

from collections.abc import Sequence
from copy import copy
from typing import Protocol

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import LeaseLostError, SluiceError, UncertainError
from sluicemq_broker.job import Job, State
from sluicemq_broker.store import Claim, Completed, Found, Pushed, QueueStore, RolledBack, collection
from support.fakes import FakeStore
from support.jobs import NOW, a_job, finished, ids, some_jobs

ME, OTHER = "me", "other"
LATER = NOW + 100


class Insertion(Protocol):
    def send(self, at: float) -> Pushed: ...


class Store(Protocol):
    """The verbs that both have."""

    def push(self, jobs: Sequence[Job], now: float) -> Pushed: ...
    def form_packs(self, jobs: Sequence[Job]) -> None: ...
    def insertion(self, jobs: Sequence[Job], now: float, *, repeated: bool = False) -> Insertion: ...
    def reserve(
        self,
        limit: int,
        now: float,
        owner: str,
        hold: int = 0,
        *,
        before: int | None = None,
        most_bytes: int = 0,
    ) -> Claim: ...
    def claimed(self, owner: str, hold: int) -> list[Job]: ...
    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]: ...
    def complete(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]: ...
    def roll_back(self, entries: Sequence[RolledBack], now: float) -> int: ...
    def release(self, jobs: Sequence[Job]) -> int: ...
    def free(self, job_id: str, owner: str, hold: int) -> int: ...
    def owners(self) -> set[str]: ...
    def reservations(self, owner: str) -> set[tuple[str, int]]: ...
    def reclaim(self, owner: str, max_losses: int, now: float) -> tuple[int, int]: ...
    def will_expire(self) -> bool: ...
    def ended(self, since: float, limit: int) -> list[str]: ...
    def find(self, ids: Sequence[str]) -> dict[str, Found]: ...


@pytest.fixture(params=["MongoDB", "memory"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        return FakeStore()
    documents: Database[dict[str, object]] = request.getfixturevalue("documents")
    real = QueueStore(documents, collection("mail"))
    real.prepare()
    return real


def pushed(store: Store, *jobs: Job) -> list[Job]:
    assert store.push(jobs, NOW) == Pushed()
    return list(jobs)


def claimed(store: Store, limit: int = 100, *, now: float = NOW, owner: str = ME, hold: int = 1) -> list[Job]:
    """What a claim brings, as it was then: a store in memory hands out its own."""
    return [copy(job) for job in store.reserve(limit, now, owner, hold, most_bytes=1 << 20).jobs]


def kinds(problems: dict[str, SluiceError]) -> dict[str, type[SluiceError]]:
    return {job_id: type(error) for job_id, error in problems.items()}


# ------------------------------------------------------------------------- push


def test_a_pushed_job_is_claimed_once_under_its_owner_and_hold(store: Store) -> None:
    pushed(store, a_job("a", b"work"))
    [job] = claimed(store, hold=7)
    assert (job.id, job.payload, job.owner, job.reservation.number, job.attempts) == ("a", b"work", ME, 7, 1)
    assert claimed(store, owner=OTHER) == []


def test_an_id_that_is_there_is_told_by_position_and_not_stored_again(store: Store) -> None:
    pushed(store, a_job("waits"), a_job("reserved", owner=ME, hold=1))
    jobs = [a_job("new"), a_job("waits"), a_job("reserved"), a_job("new")]
    assert store.push(jobs, NOW) == Pushed(existing=[1, 2, 3])
    assert sorted(ids(claimed(store, owner=OTHER))) == ["new", "waits"]


def test_the_id_of_a_job_that_is_done_and_kept_is_there(store: Store) -> None:
    [job] = pushed(store, a_job("a", remember=60.0, owner=ME, hold=1))
    assert store.complete([finished(job)], NOW) == {}
    assert store.push([a_job("a")], NOW) == Pushed(existing=[0])


def test_a_job_inserted_reserved_is_held_by_its_owner_and_claimed_by_nobody(store: Store) -> None:
    jobs = pushed(store, *some_jobs(2, owner=ME, hold=3))
    assert claimed(store, owner=OTHER) == []
    assert ids(store.claimed(ME, 3)) == ids(jobs)
    assert store.commit(jobs) == {}


def test_an_insertion_sent_again_answers_alike_and_stores_nothing_done(store: Store) -> None:
    # Given an insertion whose job was done after it was applied
    insertion = store.insertion([a_job("a"), a_job("b", owner=ME, hold=1)], NOW)
    first = insertion.send(NOW)
    assert store.commit([a_job("b", owner=ME, hold=1)]) == {}
    again = insertion.send(NOW + 1)
    assert (first, again) == (Pushed(), Pushed())
    assert ids(claimed(store)) == ["a"]


# ---------------------------------------------------------------------- reserve


def test_jobs_come_by_priority_then_time_then_acceptance(store: Store) -> None:
    settings = {"fourth": (5, 0), "last": (0, 99), "third": (5, 1), "second": (5, 2), "first": (9, 0)}
    pushed(
        store,
        *(
            a_job(name, priority=priority, eligible_at=NOW - age)
            for name, (priority, age) in settings.items()
        ),
        a_job("fifth", priority=5),
    )
    assert ids(claimed(store)) == ["first", "second", "third", "fourth", "fifth", "last"]


def test_a_claim_takes_no_more_than_its_limit_and_says_whether_more_may_lie_ready(store: Store) -> None:
    jobs = pushed(store, *some_jobs(5))
    first, second = (store.reserve(3, NOW, ME, hold, most_bytes=1 << 20) for hold in (1, 2))
    assert (ids(first.jobs), first.more) == (ids(jobs[:3]), True)
    assert (ids(second.jobs), second.more) == (ids(jobs[3:]), False)


def test_a_claim_leaves_jobs_from_a_number_on(store: Store) -> None:
    jobs = pushed(store, *some_jobs(3))
    assert ids(store.reserve(9, NOW, ME, before=jobs[1].seq, most_bytes=1 << 20).jobs) == ids(jobs[:1])


def test_a_claim_brings_no_more_bytes_than_there_is_room_for_but_one_job_at_least(store: Store) -> None:
    jobs = pushed(store, *some_jobs(4, payload=bytes(1000)))
    assert ids(store.reserve(9, NOW, ME, most_bytes=1).jobs) == ids(jobs[:1])
    assert ids(store.reserve(9, NOW, ME, most_bytes=2000).jobs) == ids(jobs[1:3])


def test_a_job_is_claimed_when_it_is_due_and_not_when_its_time_to_live_is_over(store: Store) -> None:
    pushed(store, a_job("delayed", eligible_at=NOW + 5), a_job("expired", expires_at=NOW - 1))
    assert claimed(store, now=NOW + 4.999) == []
    assert ids(claimed(store, now=NOW + 5)) == ["delayed"]


def test_a_job_without_attempts_left_is_buried_instead_of_claimed(store: Store) -> None:
    spent = a_job("spent", max_attempts=2)
    spent.attempts = 2
    pushed(store, spent, a_job("next"))
    claim = store.reserve(9, NOW, ME, most_bytes=1 << 20)
    assert (ids(claim.jobs), claim.died) == (["next"], ("spent",))
    assert store.push([a_job("spent")], NOW) == Pushed(existing=[0])


def test_what_was_reserved_is_found_under_its_hold_while_it_is_held(store: Store) -> None:
    jobs = pushed(store, *some_jobs(3))
    first, *_ = claimed(store, hold=4)
    assert ids(store.claimed(ME, 4)) == ids(jobs)
    assert store.commit([first]) == {}
    assert ids(store.claimed(ME, 4)) == ids(jobs[1:])
    assert store.claimed(ME, 5) == store.claimed(OTHER, 4) == []


# ----------------------------------------------------------------------- settle


def test_a_committed_job_is_gone_and_its_id_is_free(store: Store) -> None:
    pushed(store, *some_jobs(2))
    assert store.commit(claimed(store)) == {}
    assert claimed(store) == []
    pushed(store, a_job("a"))


def test_a_commit_says_what_it_did_not_remove_and_why(store: Store) -> None:
    # Given a job that another holds by now, one that is gone, and one of ours
    pushed(store, a_job("another's"), a_job("gone"), a_job("ours"))
    jobs = claimed(store)
    assert store.commit([job for job in jobs if job.id == "gone"]) == {}
    assert store.release([job for job in jobs if job.id == "another's"]) == 1
    assert ids(claimed(store, owner=OTHER, hold=2)) == ["another's"]
    # When, then
    problems = kinds(store.commit(jobs))
    assert problems.pop("ours", UncertainError) is UncertainError  # MongoDB tells numbers, not ids
    assert problems == {"another's": LeaseLostError, "gone": UncertainError}
    assert ids(store.claimed(OTHER, 2)) == ["another's"]


def test_finishing_twice_is_harmless_and_under_another_hold_it_changes_nothing(store: Store) -> None:
    pushed(store, a_job("a", remember=60.0), a_job("b", remember=60.0))
    first, second = claimed(store)
    assert store.complete([finished(first)], NOW) == {}
    assert store.complete([finished(first)], NOW) == {}
    late = copy(second)
    late.reservation = late.reservation._replace(number=99)
    assert kinds(store.complete([finished(late)], NOW)) == {"b": LeaseLostError}
    assert ids(store.claimed(ME, 1)) == ["b"]


def test_a_finish_of_a_job_that_is_gone_is_uncertain(store: Store) -> None:
    pushed(store, a_job("a", remember=60.0))
    jobs = claimed(store)
    store.commit(jobs)
    assert kinds(store.complete([finished(jobs[0])], NOW)) == {"a": UncertainError}


def test_a_job_given_back_is_ready_when_it_is_due_and_its_attempt_is_counted(store: Store) -> None:
    pushed(store, a_job("a"), a_job("b"))
    now, later = claimed(store)
    entries = [RolledBack(now, "why", "worker"), RolledBack(later, "why", "worker", due=LATER)]
    assert store.roll_back(entries, NOW) == 2
    assert [(job.id, job.attempts) for job in claimed(store, hold=2)] == [("a", 2)]
    assert [(job.id, job.attempts) for job in claimed(store, now=LATER, hold=3)] == [("b", 2)]


def test_a_job_given_back_uncounted_keeps_its_place_and_its_history(store: Store) -> None:
    pushed(store, a_job("a"), a_job("b"))
    first, _ = claimed(store)
    assert store.roll_back([RolledBack(first, "why", "worker", counted=False)], NOW) == 1
    assert [(job.id, job.attempts) for job in claimed(store, hold=2)] == [("a", 1)]


def test_a_rejected_job_is_handed_out_no_more_and_its_id_is_there(store: Store) -> None:
    pushed(store, a_job("a"))
    [job] = claimed(store)
    assert store.roll_back([RolledBack(job, "no", "worker", dead=True)], NOW) == 1
    assert claimed(store, now=LATER) == []
    assert store.push([a_job("a")], NOW) == Pushed(existing=[0])


def test_a_released_job_keeps_its_place_and_its_attempt_is_not_counted(store: Store) -> None:
    jobs = pushed(store, *some_jobs(3))
    claim = claimed(store)
    assert store.release(claim[:2]) == 2
    again = claimed(store, hold=2)
    assert [(job.id, job.attempts) for job in again] == [(job.id, 1) for job in jobs[:2]]


@pytest.mark.parametrize("verb", ["roll_back", "release"])
def test_only_what_is_held_still_goes_back(store: Store, verb: str) -> None:
    # Given a job that was released, and reserved again by the same owner
    pushed(store, a_job("a"))
    late = claimed(store, hold=1)
    store.release(late)
    assert ids(claimed(store, hold=2)) == ["a"]
    # When its former hold gives it back, then nothing happens
    if verb == "release":
        assert store.release(late) == 0
    else:
        assert store.roll_back([RolledBack(late[0], "why", "worker")], NOW) == 0
    assert ids(store.claimed(ME, 2)) == ["a"]


# ------------------------------------------------------------- owners and sweeps


def test_the_owners_are_those_of_reserved_jobs_and_each_reservation_has_its_hold(store: Store) -> None:
    pushed(store, a_job("ready"), a_job("mine", owner=ME, hold=3), a_job("other's", owner=OTHER, hold=4))
    assert store.owners() == {ME, OTHER}
    assert (store.reservations(ME), store.reservations("nobody")) == ({("mine", 3)}, set())


def test_one_reservation_is_freed_under_its_hold_only_and_its_attempt_is_not_counted(store: Store) -> None:
    pushed(store, a_job("a"))
    claimed(store, hold=3)
    assert [store.free("a", OTHER, 3), store.free("a", ME, 4), store.free("b", ME, 3)] == [0, 0, 0]
    assert (store.free("a", ME, 3), store.free("a", ME, 3)) == (1, 0)
    assert [(job.id, job.attempts) for job in claimed(store)] == [("a", 1)]


def test_the_jobs_of_an_owner_that_is_gone_are_ready_until_lost_too_often(store: Store) -> None:
    # Given jobs of two owners
    pushed(store, a_job("a"), a_job("other's", owner=OTHER, hold=1))
    claimed(store)
    # When, then
    assert store.reclaim(ME, 2, NOW) == (1, 0)
    assert store.owners() == {OTHER}
    [again] = claimed(store, hold=2)
    assert (again.id, again.attempts, again.losses) == ("a", 1, 1)
    assert store.reclaim(ME, 2, NOW) == (0, 1)
    assert store.find(["a"])["a"].state is State.DEAD


def test_a_queue_will_expire_as_long_as_a_job_with_a_time_to_live_waits(store: Store) -> None:
    pushed(store, a_job("a"))
    assert not store.will_expire()
    pushed(store, a_job("b", expires_at=LATER))
    assert store.will_expire()
    assert len(claimed(store)) == 2
    assert not store.will_expire()


# ------------------------------------------------------------------------- find


def test_what_became_of_a_job_is_found_by_its_id_while_it_is_there(store: Store) -> None:
    # Given jobs of which some have ended
    pushed(store, a_job("ready", expires_at=LATER), a_job("reserved", owner=OTHER, hold=1))
    done, dead, gone = pushed(
        store, *(a_job(name, remember=60.0, owner=ME, hold=1) for name in ("done", "dead", "gone"))
    )
    assert store.complete([finished(done, b"42")], NOW) == {}
    assert store.roll_back([RolledBack(dead, "no", "worker", dead=True)], NOW) == 1
    assert store.commit([gone]) == {}
    # When, then
    assert store.find(["ready", "reserved", "done", "dead", "gone"]) == {
        "ready": Found(State.READY, "", b"", "", expires_at=LATER),
        "reserved": Found(State.RESERVED, OTHER, b"", ""),
        "done": Found(State.DONE, "", b"42", ""),
        "dead": Found(State.DEAD, "", b"", "no"),
    }


def test_what_has_ended_since_a_moment_is_told_up_to_a_limit(store: Store) -> None:
    early, late, dead = pushed(
        store, *(a_job(name, remember=60.0, owner=ME, hold=1) for name in ("early", "late", "dead"))
    )
    store.complete([finished(early)], NOW)
    store.complete([finished(late)], LATER)
    store.roll_back([RolledBack(dead, "no", "worker", dead=True)], LATER)
    assert sorted(store.ended(LATER, 9)) == ["dead", "late"]
    assert len(store.ended(NOW, 2)) == 2
