"""Jobs of one group go one after the other: their lines in MongoDB, verb by verb."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from sluicemq.protocol.errors import BadFramesError
from sluicemq_broker.job import Job
from sluicemq_broker.store import (
    DeadLetters,
    ExpiredJobs,
    Inspector,
    Listing,
    Promoted,
    QueueStore,
    RolledBack,
    collection,
    date,
)
from sluicemq_broker.store.jobs.groups import GroupStore
from support.between import before
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished, ids, stored

ME, OTHER = "me", "other"


def lined_up(store: QueueStore, *names: str, group: str = "g", **settings: Any) -> list[Job]:
    """Jobs of a group, pushed one after the other; nobody promotes."""
    jobs = [a_job(name, group=group, **settings) for name in names]
    for place, job in enumerate(jobs, store.groups.places(len(jobs))):
        job.line_up(place)
    answer = store.push(jobs, NOW)
    assert (answer.existing, answer.refused) == ([], {})
    return jobs


def promote(store: QueueStore, *groups: str, now: float = NOW) -> list[str]:
    """The heads of these groups, after a promotion."""
    store.groups.promote(groups or ("g",), now)
    return sorted(job["_id"] for job in store.jobs.find({"head": {"$exists": True}}))


def claim(store: QueueStore, owner: str = ME, now: float = NOW) -> list[Job]:
    return store.reserve(100, now, owner).jobs


@pytest.fixture
def line(store: QueueStore) -> QueueStore:
    """Three jobs of one group, in their line."""
    lined_up(store, "a", "b", "c")
    return store


# ------------------------------------------------------------------------- the line


def test_places_rise_over_all_brokers_of_a_queue(store: QueueStore) -> None:
    other = QueueStore(store.jobs.database, store.name)
    elsewhere = QueueStore(store.jobs.database, collection("elsewhere"))
    taken = [rig.groups.places(count) for rig, count in ((store, 3), (other, 2), (store, 1))]
    assert [job - taken[0] for job in taken] == [0, 3, 5]
    assert elsewhere.groups.places(1) == 1


def test_a_job_of_a_group_waits_until_it_is_promoted_and_one_has_its_turn(line: QueueStore) -> None:
    assert claim(line) == []
    assert promote(line) == ["a"]
    assert promote(line) == ["a"]
    assert ids(claim(line)) == ["a"]
    assert promote(line) == ["a"]
    assert claim(line) == []


def test_a_push_without_a_place_stores_nothing(store: QueueStore) -> None:
    with pytest.raises(ValueError, match="no place"):
        store.push([a_job("a", group="g")], NOW)
    assert everything(store) == {}


def test_groups_do_not_wait_for_each_other_and_a_group_goes_before_priority(store: QueueStore) -> None:
    lined_up(store, "a1", group="a", priority=1)
    lined_up(store, "a2", group="a", priority=9)
    lined_up(store, "b1", group="b", priority=5)
    store.push([a_job("plain")], NOW)
    promote(store, "a", "b")
    assert ids(claim(store)) == ["b1", "a1", "plain"]


def test_the_index_refuses_a_second_head(line: QueueStore) -> None:
    promote(line)
    with pytest.raises(DuplicateKeyError):
        line.jobs.update_one({"_id": "b"}, {"$set": {"head": "g"}})


ENDS: dict[str, Callable[[QueueStore, Job], object]] = {
    "commit": lambda store, job: store.commit([job]),
    "finish": lambda store, job: store.complete([finished(job)], NOW),
    "reject": lambda store, job: store.roll_back([RolledBack(job, "bad", "worker", dead=True)], NOW),
    "lost too often": lambda store, _job: store.reclaim(ME, 1, NOW),
}
GOES_ON: dict[str, Callable[[QueueStore, Job], object]] = {
    "rollback": lambda store, job: store.roll_back([RolledBack(job, "bad", "worker")], NOW),
    "rollback with delay": lambda store, job: store.roll_back([RolledBack(job, "x", "w", NOW + 9)], NOW),
    "release": lambda store, job: store.release([job]),
    "reclaim": lambda store, _job: store.reclaim(ME, 20, NOW),
    "free": lambda store, job: store.free(job.id, ME, 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_who_has_ended_lets_the_next_one_go(line: QueueStore, end: str) -> None:
    promote(line)
    (job,) = claim(line)
    ENDS[end](line, job)
    assert promote(line) == ["b"]


@pytest.mark.parametrize("verb", GOES_ON)
def test_who_comes_again_keeps_its_turn(line: QueueStore, verb: str) -> None:
    promote(line)
    (job,) = claim(line)
    GOES_ON[verb](line, job)
    assert promote(line) == ["a"]
    assert ids(claim(line, OTHER, NOW + 10)) == ["a"]


def test_a_delayed_job_keeps_its_place_and_its_group_waits(store: QueueStore) -> None:
    lined_up(store, "later", eligible_at=NOW + 60)
    lined_up(store, "now")
    assert promote(store) == ["later"]
    assert claim(store) == []
    assert ids(claim(store, now=NOW + 60)) == ["later"]


def test_a_claim_that_ends_a_job_tells_its_group(store: QueueStore) -> None:
    job = a_job("spent", group="g", max_attempts=1)
    job.attempts = 1
    job.line_up(store.groups.places(1))
    store.push([job], NOW)
    promote(store)
    claimed = store.reserve(10, NOW, ME)
    assert (claimed.died, set(claimed.freed)) == (("spent",), {"g"})


def test_a_popped_job_that_was_not_sent_comes_before_those_behind_it(store: QueueStore) -> None:
    lined_up(store, "a", "b", keep_done=60.0)
    promote(store)
    (job,) = claim(store)
    store.complete([finished(job)], NOW)
    store.undo_pop([job])
    assert promote(store) == ["a"]


# -------------------------------------------------------------------------- races


def test_a_promotion_past_a_head_goes_on(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker has promoted between the look for heads and the update."""
    for group in "vwxyz":
        lined_up(store, f"{group}1", f"{group}2", group=group)
    promote(store, "v", "x", "z")
    look = GroupStore.with_heads

    def blind(_self: GroupStore, _groups: object) -> set[str]:
        monkeypatch.setattr(GroupStore, "with_heads", look)
        return set()

    monkeypatch.setattr(GroupStore, "with_heads", blind)
    assert promote(store, *"vwxyz") == ["v1", "w1", "x1", "y1", "z1"]


@pytest.mark.parametrize("what", ["cancel", "expire"])
def test_a_promotion_whose_first_job_goes_takes_the_next(
    line: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whoever cancels a job that waits sees no head end: so the promotion must look again."""

    def first_goes() -> None:
        if what == "cancel":
            assert changes.cancel("mail", "a", NOW).group == "g"
        else:
            line.jobs.update_one({"_id": "a"}, {"$set": {"expires_at": date(NOW)}})
            assert line.expire(NOW, ids=["a"]).groups == {"g"}

    before(monkeypatch, GroupStore, "make_heads", first_goes)
    assert promote(line) == ["b"]


def test_a_promotion_that_lands_late_spares_a_later_life_of_the_id(line: QueueStore) -> None:
    """The first was cancelled and pushed anew, behind the others."""
    first = line.groups.first(["g"])
    line.jobs.delete_one({"_id": "a"})
    lined_up(line, "a")
    promoted = line.groups.promote(["nobody"], NOW)
    assert not line.groups.make_heads(first, promoted)
    assert promote(line) == ["b"]


def test_a_group_that_nobody_promotes_is_found(store: QueueStore) -> None:
    for group in "abc":
        lined_up(store, f"{group}1", f"{group}2", group=group)
    lined_up(store, "alone", group="d")
    promote(store, "a", "d")
    assert sorted(group for page in store.groups.headless() for group in page) == ["b", "c"]


# ------------------------------------------------------------------- time to live


def test_a_job_that_waits_expires_like_others(store: QueueStore) -> None:
    lined_up(store, "first")
    lined_up(store, "over", expires_at=NOW + 1)
    lined_up(store, "last")
    promote(store)
    assert store.will_expire()
    assert store.expire(NOW).ids == []
    assert store.expire(NOW + 1) == ExpiredJobs(["over"], frozenset("g"))
    assert not store.will_expire()
    assert everything(store).keys() == {"first", "last"}


def test_who_is_over_when_its_turn_comes_is_told_and_not_promoted(store: QueueStore) -> None:
    lined_up(store, "over", expires_at=NOW)
    lined_up(store, "next")
    promoted = store.groups.promote(["g"], NOW)
    assert promoted == Promoted([], ["over"])
    assert store.expire(NOW, ids=promoted.expired).groups == {"g"}
    assert promote(store) == ["next"]


def test_a_head_that_expires_frees_its_group(store: QueueStore) -> None:
    lined_up(store, "a", expires_at=NOW + 1)
    lined_up(store, "b")
    promote(store)
    assert store.expire(NOW + 1) == ExpiredJobs(["a"], frozenset("g"))
    assert promote(store) == ["b"]


# ------------------------------------------------------------------------- orders


@pytest.fixture
def dead(store: QueueStore) -> QueueStore:
    """Two dead letters of one group, the later of which was pushed first; two others wait."""
    lined_up(store, "first", "second", "third", "fourth")
    for at in (NOW + 1, NOW):
        promote(store)
        jobs = claim(store)
        store.roll_back([RolledBack(job, "bad", "worker", dead=True) for job in jobs], at)
    promote(store)
    return store


def test_a_redriven_job_joins_its_group_at_the_end(dead: QueueStore, changes: ChangesAtOnce) -> None:
    redriven = changes.redrive("mail", DeadLetters(), NOW + 9)
    assert (redriven.moved, set(redriven.groups)) == (2, {"g"})
    assert order_of(dead) == ["third", "fourth", "second", "first"]


def test_a_redrive_elsewhere_lines_up_there(
    dead: QueueStore, changes: ChangesAtOnce, documents: Database[dict[str, Any]]
) -> None:
    there = QueueStore(documents, collection("there"))
    there.prepare()
    lined_up(there, "old")
    assert changes.redrive("mail", DeadLetters(), NOW + 9, there).moved == 2
    assert order_of(there) == ["old", "second", "first"]
    assert order_of(dead) == ["third", "fourth"]


def order_of(store: QueueStore) -> list[str]:
    """In which order the jobs of the group come, if each is done at once."""
    came = []
    while promote(store):
        (job,) = claim(store, now=NOW + 99)
        came.append(job.id)
        store.commit([job])
    return came


def test_what_waits_can_be_purged(line: QueueStore, changes: ChangesAtOnce, inspector: Inspector) -> None:
    lined_up(line, "z", group="a group before")
    promote(line)
    counts = inspector.counts("mail", NOW)
    assert (counts["waiting"], counts["ready"], counts["exact"]) == (3, 1, True)
    shown = inspector.peek("mail", "waiting", 10, 10**6, NOW)
    assert [(row["id"], row["state"], row["group"]) for row in shown] == [
        ("z", "waiting", "a group before"), ("b", "waiting", "g"), ("c", "waiting", "g"),
    ]  # fmt: skip
    assert inspector.show("mail", "a", NOW)["group"] == "g"
    assert changes.purge("mail", "waiting", NOW) == 3
    assert everything(line).keys() == {"a"}


def test_what_waits_is_leafed_through_by_group(line: QueueStore, documents: Database[dict[str, Any]]) -> None:
    lined_up(line, "y", "z", group="f")
    lined_up(line, "d")
    listing, after, seen = Listing(documents), None, list[str]()
    while True:
        page = listing.page("mail", "waiting", 2, after, NOW)
        seen += [job["id"] for job in page.jobs]
        assert all(job["state"] == "waiting" and job["group"] in "fg" for job in page.jobs)
        if page.next is None:
            break
        after = page.next
    assert seen == ["y", "z", "a", "b", "c", "d"]
    with pytest.raises(BadFramesError):
        listing.page("mail", "waiting", 2, [1, 2, 3], NOW)


def test_a_cancelled_job_tells_its_group(line: QueueStore, changes: ChangesAtOnce) -> None:
    promote(line)
    assert changes.cancel("mail", "a", NOW).group == "g"
    assert promote(line) == ["b"]
    line.push([a_job("plain")], NOW)
    assert changes.cancel("mail", "plain", NOW).group is None


def test_documents_that_somebody_wrote_by_hand_stop_no_group(line: QueueStore) -> None:
    strange: list[Any] = [
        {"group": ["h"], "place": 1}, {"group": 5}, {"group": "h"}, [{"group": "i", "place": 1}],
        {"group": "j", "place": 1, "expires_at": "never"}, "nothing",
    ]  # fmt: skip
    line.jobs.insert_many({"_id": f"strange-{at}", "wait": wait} for at, wait in enumerate(strange))
    line.jobs.insert_one(
        {"_id": "k", "state": "waiting", "wait": {"group": "k", "place": 1}, "priority": "high"}
    )
    groups = {group for page in line.groups.headless() for group in page}
    assert groups >= {"g", "k"}
    assert "a" in promote(line, *groups)
    assert stored(line, "k")["state"] == "ready"
