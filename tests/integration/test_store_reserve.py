"""A claim takes jobs in their order, once, and leaves what is not due, not its own or too much."""

from typing import Any

import pytest

from integration.store_verbs import ME, OTHER, between_read_and_update, claim, pushed, rolled_back
from sluicemq_broker.job import State
from sluicemq_broker.store import Claim, Found, QueueStore, date
from sluicemq_broker.store.jobs.priority_order import MANY, ROUND
from support.jobs import NOW, a_job, ids, some_jobs, stored


def test_jobs_are_claimed_by_priority_then_time_then_acceptance(store: QueueStore) -> None:
    last, third, second, first = (
        a_job("last", priority=0, eligible_at=NOW - 99),
        a_job("third", priority=5),
        a_job("second", priority=5, eligible_at=NOW - 1),
        a_job("first", priority=9),
    )
    fourth = a_job("fourth", priority=5)
    pushed(store, last, fourth, third, second, first)
    jobs = claim(store).jobs
    assert ids(jobs) == ["first", "second", "third", "fourth", "last"]


def test_a_claim_takes_no_more_than_its_limit_and_says_whether_more_may_lie_ready(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(5))
    first, second = claim(store, 3), claim(store, 3)
    assert (ids(first.jobs), first.more) == (ids(jobs[:3]), True)
    assert (ids(second.jobs), second.more) == (ids(jobs[3:]), False)


def test_a_claim_leaves_jobs_from_a_number_on(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(3))
    assert ids(claim(store, before=jobs[1].seq).jobs) == ids(jobs[:1])


def test_a_claim_brings_no_more_bytes_than_there_is_room_for_but_one_job_at_least(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(4, payload=bytes(1000)))
    assert ids(claim(store, most_bytes=1).jobs) == ids(jobs[:1])
    assert ids(claim(store, most_bytes=2000).jobs) == ids(jobs[1:3])


def test_a_delayed_job_is_claimed_when_it_is_due_and_not_before(store: QueueStore) -> None:
    pushed(store, a_job("a", eligible_at=NOW + 5))
    assert claim(store, now=NOW + 4.999).jobs == []
    assert ids(claim(store, now=NOW + 5).jobs) == ["a"]


def test_a_claimed_job_counts_its_attempt_and_is_nobody_elses(store: QueueStore) -> None:
    pushed(store, a_job("a"))
    [job] = claim(store).jobs
    assert (job.attempts, job.owner, stored(store, "a")["attempts"]) == (1, ME, 1)
    assert stored(store, "a")["reserved_at"].timestamp() != 0
    assert claim(store, owner=OTHER).jobs == []


def test_an_expired_job_is_not_claimed_and_does_not_stand_before_others(store: QueueStore) -> None:
    pushed(store, *some_jobs(10, expires_at=NOW - 1), a_job("alive"), a_job("later", expires_at=NOW + 1))
    first = claim(store, 2)
    assert ids(first.jobs) == ["alive", "later"]
    assert claim(store, 2) == Claim([], ME, more=False)


def test_a_job_without_attempts_left_goes_to_the_dead_letters_instead_of_a_worker(store: QueueStore) -> None:
    spent = a_job("spent", max_attempts=2)
    spent.attempts = 2
    pushed(store, spent, a_job("next"))
    claimed = claim(store)
    assert (ids(claimed.jobs), claimed.died) == (["next"], ("spent",))
    assert claim(store).died == ()
    assert store.find(["spent"])["spent"] == Found(State.DEAD, "", b"", "no attempt is left")


def test_a_job_with_max_attempts_0_never_runs_out_of_them(store: QueueStore) -> None:
    endless = a_job("a", max_attempts=0)
    endless.attempts = 1_000
    pushed(store, endless)
    assert ids(claim(store).jobs) == ["a"]


def test_several_brokers_claim_the_first_jobs_as_one_does_while_none_is_too_late(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(10))
    claimed = [ids(claim(store, 4, brokers=3, place=2).jobs) for _ in range(3)]
    assert claimed == [ids(jobs[:4]), ids(jobs[4:8]), ids(jobs[8:])]


def test_a_late_broker_claims_its_part(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = pushed(store, *some_jobs(40))
    be_too_late(store, monkeypatch)
    left = jobs[1:]
    first, second = (claim(store, 8, brokers=2, place=place) for place in (0, 1))
    parts = {job.seq % 2 for job in first.jobs}, {job.seq % 2 for job in second.jobs}
    assert parts in (({0}, {1}), ({1}, {0}))
    assert (first.more, second.more) == (True, True)
    # When its part comes to its end, with 23 jobs left of both
    rest = claim(store, 20, brokers=2, place=0)
    others = claim(store, 20, brokers=2, place=0)
    # Then it has all of that, and after it a few of the others
    mine = [job for job in left if job.seq % 2 == first.jobs[0].seq % 2]
    assert set(ids(rest.jobs)) == set(ids(mine)) - set(ids(first.jobs))
    assert rest.more
    assert {job.seq % 2 for job in others.jobs} == {job.seq % 2 for job in second.jobs}
    assert len(others.jobs) == 10
    together = [first, second, rest, others]
    while (more := claim(store, 20, brokers=2, place=0)).jobs:
        together.append(more)
    assert sorted(job.id for claimed in together for job in claimed.jobs) == sorted(ids(left))


def test_parts_go_round_and_end(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = pushed(store, *some_jobs(2 * MANY))
    be_too_late(store, monkeypatch)
    first = claim(store, 4, brokers=2, place=0)
    later = claim(store, 4, NOW + ROUND, brokers=2, place=0)
    assert {job.seq % 2 for job in first.jobs} != {job.seq % 2 for job in later.jobs}
    # When all of one part are claimed, and many of the other are left
    claim(store, MANY, NOW + ROUND, brokers=2, place=0)
    # Then claims of few jobs take some of those
    few = [len(claim(store, 8, NOW + ROUND, brokers=2, place=0).jobs) for _ in range(3)]
    assert few == [4, 4, 4]
    # But after one that would take many the first of all are claimed
    claim(store, MANY, NOW + ROUND, brokers=2, place=0)
    left = [job for job in jobs if store.jobs.find_one({"_id": job.id, "state": State.READY})]
    assert ids(claim(store, 8, NOW + ROUND, brokers=2, place=0).jobs) == ids(left[:8])


def be_too_late(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another broker claim the first job just before this one does."""
    between_read_and_update(store, monkeypatch, lambda: claim(store, 1, owner=OTHER))
    late = claim(store, 1, brokers=2)
    assert (late.jobs, late.lost) == ([], 1)


def test_of_jobs_taken_elsewhere_none_is_claimed(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed(store, a_job("a"), a_job("b"), a_job("c"))
    between_read_and_update(store, monkeypatch, lambda: claim(store, 2, owner=OTHER))
    mine = claim(store)
    assert ids(mine.jobs) == ["c"]
    assert store.reservations(OTHER) == {("a", 0), ("b", 0)}
    assert [stored(store, job_id)["attempts"] for job_id in "abc"] == [1, 1, 1]


def test_a_job_given_back_with_a_delay_between_read_and_update_is_not_claimed_early(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(store, a_job("a"))

    def claimed_and_delayed() -> None:
        [job] = claim(store, owner=OTHER).jobs
        store.roll_back([rolled_back(job, due=NOW + 60)], NOW)

    between_read_and_update(store, monkeypatch, claimed_and_delayed)
    mine = claim(store)
    assert mine.jobs == []
    assert stored(store, "a")["state"] == "ready"


def one_first(store: QueueStore) -> Claim:
    return store.reserve(10, NOW, "me", 7, one_first=True)


def test_a_job_that_was_just_heard_of_is_claimed_alone_and_others_come_next(store: QueueStore) -> None:
    jobs = some_jobs(3)
    urgent = a_job(priority=9)
    store.push([*jobs, urgent], NOW)
    claim = one_first(store)
    (job,) = claim.jobs
    assert (job.id, job.attempts, job.owner, job.reservation.number) == (urgent.id, 1, "me", 7)
    assert claim.more
    assert stored(store, job.id)["attempts"] == 1
    assert ids(store.claimed("me", 7)) == [urgent.id]
    assert store.commit([job]) == {}


def test_one_is_claimed_with_what_a_claim_asks_for(store: QueueStore) -> None:
    store.push([a_job(eligible_at=NOW + 5), a_job(expires_at=NOW - 1)], NOW)
    assert one_first(store).jobs == []


def test_where_the_first_has_no_attempt_left_a_claim_as_ever_follows(store: QueueStore) -> None:
    spent, other = a_job(max_attempts=1), a_job()
    store.push([spent, other], NOW)
    store.jobs.update_one({"_id": spent.id}, {"$set": {"attempts": 1}})
    claim = one_first(store)
    assert (ids(claim.jobs), claim.died) == ([other.id], (spent.id,))
    assert stored(store, spent.id)["attempts"] == 1


def test_one_without_an_attempt_left_is_not_handed_out_after_a_lost_one(store: QueueStore) -> None:
    spent = a_job(max_attempts=1)
    store.push([spent], NOW)
    held = {"state": "reserved", "owner": "me", "hold": 7, "reserved_at": date(NOW), "attempts": 2}
    store.jobs.update_one({"_id": spent.id}, {"$set": held})
    brought = store.claimed("me", 7)
    store.free(spent.id, "me", 7)  # as the audit does
    assert brought == []
    assert one_first(store).died == (spent.id,)


@pytest.mark.parametrize("wrong", [{"attempts": "many"}, {"payload": 7}])
def test_where_the_first_is_no_job_a_claim_as_ever_follows(store: QueueStore, wrong: dict[str, Any]) -> None:
    odd, other = a_job(), a_job()
    store.push([odd, other], NOW)
    store.jobs.update_one({"_id": odd.id}, {"$set": wrong})
    assert ids(one_first(store).jobs) == [other.id]
    assert stored(store, odd.id)["state"] == "dead"
