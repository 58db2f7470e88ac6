"""Jobs of one message lie in one document; each of them is delivered, settled, found and counted alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from inspect import isclass, isfunction, signature
from typing import Any

import msgpack
import pytest
from bson.binary import Binary
from pymongo import MongoClient

from integration.explained_plans import Explainer
from integration.store_verbs import ME, OTHER, claim, rolled_back
from sluicemq.protocol.errors import LeaseLostError, NotFoundError, UncertainError
from sluicemq_broker import store as store_room
from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.store import (
    Child,
    Documents,
    FanOutEntry,
    ForwardEntry,
    Inspector,
    JobPage,
    Listing,
    Progressed,
    QueueDefaults,
    QueueStore,
    collection,
    end_children,
    fan_out,
    forward,
    statements_of_end,
)
from sluicemq_broker.store.jobs import pack_marks
from sluicemq_broker.store.jobs.packs import LEAST, MOST, form_packs
from sluicemq_broker.store.jobs.transactions import Move
from support.between import before
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished, ids
from support.waiting import TIMEOUT, wait_until

PACKED = QueueDefaults(packs=True)


@pytest.fixture
def packs(store: QueueStore) -> QueueStore:
    """The store of a queue with packs."""
    store.reconfigure(PACKED)
    return store


def made(count: int, first: int = 1, owner: str = "", hold: int = 7, **fields: Any) -> list[Job]:
    """Jobs with ids of one producer, in a row, as one message brings them."""
    jobs = [a_job(f"{0:012x}{1:010x}{first + n:08x}", b"payload %d" % n, **fields) for n in range(count)]
    form_packs(jobs, PACKED)
    for job in jobs if owner else ():
        job.reserve(Reservation(owner, hold))
    return jobs


def stored_as(store: QueueStore) -> list[int]:
    """How many jobs each document has, by its id."""
    found = sorted(everything(store).values(), key=lambda document: str(document["_id"]))
    return [document.get("left", 1) for document in found]


def pushed(store: QueueStore, jobs: list[Job]) -> list[Job]:
    answer = store.push(jobs, NOW)
    assert (answer.existing, answer.refused) == ([], {})
    return jobs


# ---------------------------------------------------------------------- pushing


def test_jobs_of_one_message_are_one_document_and_come_in_their_order(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100))
    assert stored_as(packs) == [100]
    claimed = claim(packs, 1000).jobs
    assert [(job.id, job.payload, job.seq, job.attempts) for job in claimed] == [
        (job.id, job.payload, job.seq, 1) for job in jobs
    ]


@pytest.mark.parametrize("count", [LEAST - 1, LEAST, MOST, MOST + LEAST])
def test_packs_have_from_32_to_256_jobs(packs: QueueStore, count: int) -> None:
    pushed(packs, made(count))
    assert (
        stored_as(packs)
        == {
            LEAST - 1: [1] * (LEAST - 1),
            LEAST: [LEAST],
            MOST: [MOST],
            MOST + LEAST: [MOST, LEAST],
        }[count]
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"a": 1}}, {"eligible_at": NOW + 1}, {"expires_at": NOW + 1}, {"max_attempts": 7},
        {"keep_done": 7.0}, {"remember": 7.0}, {"group": "a"}, {"tenant": "a"},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_a_job_that_is_not_plain_lies_alone(fields: dict[str, Any]) -> None:
    assert {job.pack for job in made(2 * LEAST, **fields)} == {None}


def test_ids_that_a_producer_has_given_are_never_packed(packs: QueueStore) -> None:
    jobs = [a_job() for _ in range(LEAST)]
    form_packs(jobs, PACKED)
    pushed(packs, jobs)
    assert stored_as(packs) == [1] * LEAST


def test_a_repeated_message_finds_its_pack_in_whatever_state(packs: QueueStore) -> None:
    pushed(packs, made(100, owner=ME))
    assert packs.push(made(100), NOW).existing == list(range(100))
    assert stored_as(packs) == [100]


def test_a_repetition_with_other_jobs_is_looked_up_in_packs(packs: QueueStore) -> None:
    pushed(packs, made(100))
    repeated = made(60, first=61)
    answer = packs.insertion(repeated, NOW, repeated=True).send(NOW)
    assert answer.existing == list(range(40))
    assert stored_as(packs) == [*[1] * 20, 100]


# --------------------------------------------------------------------- settling


def test_a_pack_is_marked_with_each_commit_and_removed_with_the_last(packs: QueueStore) -> None:
    jobs = pushed(packs, made(200, owner=ME))
    for part, left in ((jobs[:50], 150), (jobs[63:130], 83), (jobs[50:63], 70)):
        assert packs.commit(part) == {}
        assert stored_as(packs) == [left]
    assert packs.commit(jobs[130:]) == {}
    assert stored_as(packs) == []


def test_a_repeated_commit_changes_nothing_and_says_that_nobody_knows(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.commit(jobs[:50])
    jobs[0].pack.done = 0  # type: ignore[union-attr]
    assert set(map(type, packs.commit(jobs[:50]).values())) == {UncertainError}
    assert stored_as(packs) == [50]
    assert packs.commit(jobs[50:]) == {}
    assert set(map(type, packs.commit(jobs[50:]).values())) == {UncertainError}


def test_of_two_commits_at_once_the_second_removes_the_pack(
    packs: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    jobs[0].pack.done = sum(1 << n for n in range(50))  # type: ignore[union-attr]
    assert packs.commit(jobs[50:]) == {}, "it is not the last, though this broker took it for that"
    assert stored_as(packs) == [50]
    jobs[0].pack.done &= ~1  # type: ignore[union-attr]
    assert packs.commit(jobs[:50]) == {}
    assert stored_as(packs) == []


def test_a_pack_that_a_commit_empties_while_a_lift_has_no_answer_yet_is_removed(
    packs: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    jobs = pushed(packs, made(100, owner=ME))
    leave = Job.leave_pack

    def commit_the_others_first(job: Job) -> None:
        assert packs.commit(jobs[1:]) == {}
        leave(job)

    monkeypatch.setattr(Job, "leave_pack", commit_the_others_first)
    # When
    packs.roll_back([rolled_back(jobs[0])], NOW)
    # Then
    assert [stored["_id"] for stored in everything(packs).values()] == [jobs[0].id]


def test_an_empty_pack_that_nobody_remembers_is_removed(packs: QueueStore) -> None:
    [pack] = {job.pack.id for job in pushed(packs, made(100, owner=ME)) if job.pack}
    packs.jobs.update_one({}, {"$set": {"left": 0}})
    assert packs.free(pack, ME, 7) == 0
    assert stored_as(packs) == []


def test_a_commit_under_a_reservation_that_has_ended_changes_nothing(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.reclaim(ME, 20, NOW)
    claim(packs, 1000, owner=OTHER)
    assert set(map(type, packs.commit(jobs[:50]).values())) == {LeaseLostError}
    assert set(map(type, packs.commit(jobs).values())) == {LeaseLostError}
    assert stored_as(packs) == [100]


def _fan_out(queues: _Queues, job: Job) -> object:
    child = a_job(f"{job.id}.1")
    return fan_out(
        queues.mail, [FanOutEntry(job, (Child(queues.mail, child, inherits=False),), b"", None)], NOW
    )


def _forward(queues: _Queues, job: Job) -> object:
    on = ForwardEntry(job, queues.next, a_job(job.id), frozenset({"payload"}), "worker", NOW, None)
    return forward(queues.mail, [on], NOW)


class _Queues:
    """The queue with packs, another one, and orders about jobs."""

    def __init__(self, mail: QueueStore, documents: Documents) -> None:
        self.mail = mail
        self.next = QueueStore(documents, collection("next"))
        self.changes = ChangesAtOnce(documents)


_Does = Callable[[_Queues, Job], object]

#: Every verb that is about one job alone, and the fields by which its job has changed then; None: it is gone.
ALONE: dict[str, tuple[_Does, dict[str, Any] | None]] = {
    "QueueStore.roll_back": (
        lambda queues, job: queues.mail.roll_back([rolled_back(job)], NOW),
        {"state": "ready", "attempts": 1},
    ),
    "QueueStore.complete": (
        lambda queues, job: queues.mail.complete([finished(job)], NOW),
        {"state": "done", "result": b"result"},
    ),
    "QueueStore.note_progress": (
        lambda queues, job: queues.mail.note_progress([Progressed(job, 1, 2, "", NOW)]),
        {"state": "reserved", "progress.done": 1},
    ),
    "QueueStore.lift": (lambda queues, job: queues.mail.lift([job]), {"state": "reserved", "hold": 7}),
    "QueueStore.release": (lambda queues, job: queues.mail.release([job]), {"state": "ready", "attempts": 0}),
    "fan_out": (_fan_out, {"state": "waiting"}),
    "forward": (_forward, None),
    "end_children": (
        lambda queues, job: end_children(queues.mail, [finished(job)], NOW, lambda _name: queues.mail),
        None,
    ),
    "statements_of_end": (
        lambda queues, job: statements_of_end(queues.mail, finished(job), 0, NOW, lambda _name: queues.mail),
        {"state": "reserved", "hold": 7},
    ),
    "Removals.cancel": (lambda queues, job: queues.changes.cancel("mail", job.id, NOW, running=True), None),
}
#: Those that are about a job that waits.
ALONE_READY: dict[str, tuple[_Does, dict[str, Any] | None]] = {
    "Changes.change": (
        lambda queues, job: queues.changes.change("mail", job.id, NOW, priority=9),
        {"priority": 9},
    ),
    "Changes.promote": (lambda queues, job: queues.changes.promote("mail", job.id, NOW), {"state": "ready"}),
}
#: Verbs that name jobs and lift none, and why.
NOT_LIFTED = {
    "QueueStore.commit": "marks, or removes, the pack",
    "QueueStore.free": "of the audit: a pack is given back whole",
    "QueueStore.form_packs": "puts jobs into packs",
    **dict.fromkeys(("QueueStore.insertion", "QueueStore.push", "QueueStore.insert_within"), "inserts jobs"),
    **dict.fromkeys(("OutboxStore.carry", "RouteStore.route", "ScheduleStore.push"), "inserts jobs"),
    **dict.fromkeys(("QueueStore.is_pushed_by", "Inspector.show", "Inspector.weigh"), "reads the pack"),
    **dict.fromkeys(("FairOrder.as_claimed", "StagedByPriority.add"), "in memory"),
    **dict.fromkeys(
        ("QueueStore.result", "QueueStore.undo_pop", "confirm_ends"), "of done jobs: they lie alone"
    ),
    "Removals.remove_ended": "of jobs that have ended: they lie alone",
    "Removals.children_of": "of jobs with children: they lie alone",
}


def verbs_that_name_jobs() -> set[str]:
    """Return public functions and methods of the store that are given jobs, verdicts, or the id of one."""
    things = {name: thing for name, thing in vars(store_room).items() if not name.startswith("_")}
    verdicts = [name for name, thing in things.items() if "job" in getattr(thing, "__annotations__", {})]
    named = re.compile(rf"\b({'|'.join(['Job', *verdicts])})\b")

    def names_jobs(function: Callable[..., Any]) -> bool:
        given = signature(function).parameters.items()
        return any(name == "job_id" or named.search(str(given.annotation)) for name, given in given)

    methods = {
        f"{name}.{method}": function
        for name, thing in things.items()
        if isclass(thing) and name not in verdicts
        for method, function in vars(thing).items()
        if not method.startswith("_") and isfunction(function)
    }
    functions = {name: thing for name, thing in things.items() if isfunction(thing)}
    return {name for name, function in {**methods, **functions}.items() if names_jobs(function)}


def test_each_verb_that_names_jobs_lifts_them_or_knows_packs() -> None:
    """A new one: lift its jobs (``QueueStore.lift``), and name it in ``ALONE``."""
    assert verbs_that_name_jobs() == {*ALONE, *ALONE_READY, *NOT_LIFTED}
    assert [move for move in Move.__subclasses__() if "run" in vars(move)] == [], "it does not lift"


@pytest.mark.parametrize("verb", [*ALONE, *ALONE_READY])
def test_a_verb_about_one_job_lifts_it_out_and_leaves_the_others(
    packs: QueueStore, documents: Documents, verb: str
) -> None:
    # Given
    does, fields = {**ALONE, **ALONE_READY}[verb]
    jobs = pushed(packs, made(100, owner=ME if verb in ALONE else ""))
    if verb in ALONE:
        packs.commit(jobs[:10])
    # When
    does(_Queues(packs, documents), jobs[70])
    # Then
    found = everything(packs)
    [pack] = [document for document in found.values() if "left" in document]
    assert pack["left"] == (89 if verb in ALONE else 99)
    assert (jobs[70].id in found) == (fields is not None)
    if fields is not None:
        assert packs.jobs.find_one({"_id": jobs[70].id, **fields}), found[jobs[70].id]
        assert found[jobs[70].id].get("payload", b"") == (b"" if "complete" in verb else b"payload 70")
    if verb in ALONE:
        assert packs.commit([job for job in jobs[10:] if job is not jobs[70]]) == {}
        assert not packs.jobs.find_one({"left": {"$gte": 1}})


def test_of_packs_that_others_write_to_all_the_time_each_is_lifted_from_alone(packs: QueueStore) -> None:
    # Given two packs, to one of which another transaction writes
    jobs = [*pushed(packs, made(40, owner=ME)), *pushed(packs, made(40, first=100, owner=ME))]
    client = packs.jobs.database.client

    def aborted() -> int:
        return int(client.admin.command("serverStatus")["transactions"]["totalAborted"])

    before = aborted()
    with client.start_session() as session, ThreadPoolExecutor() as threads:
        session.start_transaction()
        packs.jobs.update_one({"_id": jobs[0].pack.id}, {"$set": {"kind": "x"}}, session=session)  # type: ignore[union-attr]
        # When a job of each is lifted, until more conflicts were met than both at once are tried for
        lifting = threads.submit(packs.lift, [jobs[3], jobs[43]])
        wait_until(lambda: aborted() > before + 3)
        session.abort_transaction()
        lifting.result(TIMEOUT)
    # Then
    assert stored_as(packs) == [1, 1, 39, 39]
    assert packs.commit(jobs) == {}
    assert stored_as(packs) == []


def test_a_commit_ends_a_job_that_a_lift_without_an_answer_has_stored_alone(packs: QueueStore) -> None:
    jobs = pushed(packs, made(40, owner=ME))
    for first, last in ((3, 5), (30, 40)):
        unanswered = [copy(job) for job in jobs[first:last]]
        pack = copy(jobs[0].pack)
        for job in unanswered:
            job.pack_into(pack)
        packs.lift(unanswered)
    assert stored_as(packs) == [*[1] * 12, 28]
    assert packs.commit(jobs[:10]) == {}
    assert packs.commit(jobs[10:]) == {}
    assert stored_as(packs) == []


def test_a_commit_of_two_packs_ends_what_such_a_lift_has_stored_alone(packs: QueueStore) -> None:
    jobs = pushed(packs, made(MOST * 2, owner=ME))
    unanswered, pack = copy(jobs[3]), copy(jobs[3].pack)
    unanswered.pack_into(pack)
    packs.lift([unanswered])
    assert packs.commit([jobs[3], jobs[MOST]]) == {}


def test_a_pack_that_is_written_and_removed_beside_one_that_is_not_is_certain(
    packs: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two packs, one of which a lift without an answer has changed
    one, two = pushed(packs, made(40, owner=ME)), pushed(packs, made(40, first=100, owner=ME))
    lifted, two_as_it_was = copy(two[3]), copy(two[0].pack)
    assert two_as_it_was
    lifted.pack_into(two_as_it_was)
    packs.lift([lifted])

    def empty_the_other() -> None:
        assert packs.commit(one[20:]) == {}
        packs.jobs.delete_many({"left": 0})  # as a lift does, too

    before(monkeypatch, pack_marks, "_not_all", empty_the_other)
    # When
    problems = packs.commit([*one[:20], *two[3:5]])
    # Then
    assert problems == {}
    assert stored_as(packs) == [38]


def test_the_job_whose_id_its_pack_has_is_lifted_as_any(packs: QueueStore) -> None:
    jobs = pushed(packs, made(40, owner=ME))
    for job in jobs:
        packs.roll_back([rolled_back(job)], NOW)
    assert sorted(everything(packs)) == ids(jobs)


def test_all_that_is_left_is_given_back_by_one_update_and_a_part_is_lifted(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.commit(jobs[:20])
    assert packs.release(jobs[90:]) == 10
    assert stored_as(packs) == [*[1] * 10, 70]
    assert packs.release(jobs[20:90]) == 70
    again = [*claim(packs, 1000, owner=OTHER).jobs, *claim(packs, 1000, owner=OTHER).jobs]
    assert ids(again) == ids(jobs[20:])
    assert {job.attempts for job in again} == {1}


def test_a_repeated_release_leaves_what_was_reserved_again(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.release(jobs)
    claim(packs, 1000, owner=ME, number=8)
    assert packs.release(jobs) == 0
    assert [row["hold"] for row in everything(packs).values()] == [8]


def test_a_dead_broker_loses_its_packs_and_dies_with_them_too_often(packs: QueueStore) -> None:
    pushed(packs, made(100, owner=ME))
    assert packs.reclaim(ME, 2, NOW) == (100, 0)
    assert stored_as(packs) == [100]
    claim(packs, 1000, owner=OTHER)
    assert packs.reclaim(OTHER, 2, NOW) == (0, 100)
    assert {row["state"] for row in everything(packs).values()} == {"dead"}


def test_what_a_claim_without_an_answer_has_reserved_is_found(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100))
    claim(packs, 1000, number=3)
    assert ids(packs.claimed(ME, 3)) == ids(jobs)


def test_a_claim_of_one_takes_its_pack(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100))
    assert ids(claim(packs, 1, one_first=True).jobs) == ids(jobs)


def test_a_queue_of_which_many_jobs_are_lifted_is_not_packed_for_a_while(packs: QueueStore) -> None:
    def is_packed(first: int) -> bool:
        jobs = [a_job(f"{0:012x}{1:010x}{first + n:08x}") for n in range(LEAST)]
        packs.form_packs(jobs)
        return jobs[0].pack is not None

    for number in range(20):
        assert is_packed(1000 * number)
    jobs = pushed(packs, [*made(250, owner=ME), *made(255, first=1000, owner=ME)])
    packs.roll_back([rolled_back(job) for job in jobs[:500]], NOW)
    assert is_packed(50_000)
    packs.roll_back([rolled_back(job) for job in jobs[500:]], NOW)
    assert not is_packed(51_000)
    assert [is_packed(52_000 + number) for number in range(3)] == [False, True, True]


def test_a_limited_queue_lifts_all_as_not_all_may_begin(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100))
    packs.reconfigure(QueueDefaults(limited=True))
    assert claim(packs, 3).more
    assert ids(claim(packs, 3).jobs) == ids(jobs[:3])
    assert stored_as(packs) == [1] * 100


def test_an_entry_that_is_no_job_costs_that_one_alone(packs: QueueStore) -> None:
    # Given
    jobs = pushed(packs, made(100))
    [pack] = everything(packs).values()
    strange = msgpack.unpackb(pack["jobs"])
    strange[5] = ["no job", 7]
    packs.jobs.update_one({}, {"$set": {"jobs": Binary(msgpack.packb(strange))}})
    # When
    assert claim(packs, 1000).more
    found = claim(packs, 1000).jobs
    # Then
    assert ids(found) == [job.id for job in jobs if job is not jobs[5]]
    [dead] = [row for row in everything(packs).values() if row["state"] == "dead"]
    assert (dead["payload"], "unreadable" in dead) == (b"['no job', 7]", True)


def test_a_pack_that_is_none_is_set_aside(packs: QueueStore) -> None:
    pushed(packs, made(100))
    pushed(packs, made(50, first=1000))
    packs.jobs.update_one({"left": 100}, {"$set": {"jobs": b"nonsense"}})
    assert len(claim(packs, 1000).jobs) == 50
    assert sorted(row["state"] for row in everything(packs).values()) == ["dead", "reserved"]


# ---------------------------------------------------------------------- finding


def test_a_job_in_a_pack_is_found_by_its_id_until_it_is_done(packs: QueueStore) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.commit(jobs[:1])
    assert packs.which_exist(ids(jobs)) == set(ids(jobs[1:]))
    assert packs.states(ids(jobs[:2]), NOW) == {jobs[1].id: "reserved"}
    assert {pack: found.owner for pack, found in packs.find(ids(jobs[:2])).items()} == {jobs[1].id: ME}


# --------------------------------------------------------------- administration


def test_counts_are_of_jobs(packs: QueueStore, inspector: Inspector) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    pushed(packs, made(70, first=1000))
    pushed(packs, [a_job()])
    packs.commit(jobs[:25])
    counts = inspector.counts(packs.queue, NOW)
    assert (counts["ready"], counts["reserved"], counts["exact"]) == (71, 75, True)
    assert inspector.small_counts([packs.queue], NOW)[packs.queue] == counts
    few = Inspector(packs.jobs.database, exactly=2, surely_many=1).counts(packs.queue, NOW)
    assert (few["ready"], few["reserved"], few["exact"]) == (71, 75, False)


def test_a_job_in_a_pack_is_shown_by_its_id(packs: QueueStore, inspector: Inspector) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.commit(jobs[:1])
    shown = inspector.show(packs.queue, jobs[7].id, NOW)
    assert (shown["id"], shown["payload"], shown["state"], shown["seq"], shown["owner"]) == (
        *(jobs[7].id, b"payload 7", "reserved", jobs[7].seq),
        ME,
    )
    assert not {"left", "jobs", "count", "d0"} & shown.keys()
    assert 0 < inspector.weigh(packs.queue, jobs[7].id) < 1000
    with pytest.raises(NotFoundError):
        inspector.show(packs.queue, jobs[0].id, NOW)


def test_the_first_and_the_last_jobs_are_peeked_at(packs: QueueStore, inspector: Inspector) -> None:
    jobs = pushed(packs, made(100))
    more = pushed(packs, [a_job()])
    first = inspector.peek(packs.queue, "ready", 3, 1 << 20, NOW, first=4)
    assert [(row["id"], row["payload"], row["payload_bytes"]) for row in first] == [
        (job.id, b"payl", 9) for job in jobs[:3]
    ]
    last = inspector.peek(packs.queue, "ready", -3, 1 << 20, NOW)
    assert [row["id"] for row in last] == [more[0].id, jobs[99].id, jobs[98].id]


def test_pages_show_each_job_once(packs: QueueStore, documents: Documents) -> None:
    jobs = [a_job(), *made(100), a_job(), *made(40, first=1000), a_job()]
    pushed(packs, jobs)
    listing, after, seen = Listing(documents), None, []
    for _ in range(10):
        page: JobPage = listing.page(packs.queue, "ready", 30, after, NOW)
        assert len(page.jobs) < 30 + MOST
        seen += [job["id"] for job in page.jobs]
        after = page.next
        if after is None:
            break
    assert seen == ids(jobs)


def test_jobs_are_searched_for_by_the_beginning_of_their_ids(packs: QueueStore, documents: Documents) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    packs.roll_back([rolled_back(jobs[20])], NOW)
    packs.commit(jobs[:17])
    found = Listing(documents).with_ids(packs.queue, jobs[16].id[:-1], 5, NOW).jobs
    assert [(row["id"], row["state"]) for row in found] == [
        (job.id, "ready" if job is jobs[20] else "reserved") for job in jobs[17:22]
    ]
    assert Listing(documents).with_ids(packs.queue, "pack/", 5, NOW).jobs == []


def test_an_order_about_a_ready_job_lifts_it(packs: QueueStore, changes: ChangesAtOnce) -> None:
    jobs = pushed(packs, made(100))
    changes.cancel(packs.queue, jobs[3].id, NOW)
    changes.change(packs.queue, jobs[50].id, NOW, priority=9)
    assert not changes.promote(packs.queue, jobs[51].id, NOW)
    assert sorted(stored_as(packs)) == [1, 1, 97]
    assert claim(packs, 1).jobs[0].id == jobs[50].id


def test_an_order_about_a_job_that_a_broker_has_is_refused_with_its_state(
    packs: QueueStore, changes: ChangesAtOnce
) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    with pytest.raises(NotFoundError, match="is reserved"):
        changes.cancel(packs.queue, jobs[3].id, NOW)
    assert stored_as(packs) == [100]


def test_a_running_job_is_cancelled_and_its_broker_goes_on_with_the_others(
    packs: QueueStore, changes: ChangesAtOnce
) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    changes.cancel(packs.queue, jobs[3].id, NOW, running=True)
    assert packs.missing(ids(jobs)) == {jobs[3].id}
    packs.roll_back([rolled_back(job) for job in jobs[:5]], NOW)
    assert sorted(job["_id"] for job in packs.jobs.find({"state": "ready"})) == ids([*jobs[:3], jobs[4]])
    assert packs.commit(jobs[5:50]) == packs.commit(jobs[50:]) == {}
    assert not packs.jobs.find_one({"left": {"$exists": True}})


@pytest.mark.parametrize("count", [1, 5])
def test_a_commit_of_a_job_that_was_cancelled_meanwhile_does_not_say_that_it_is_done(
    packs: QueueStore, changes: ChangesAtOnce, count: int
) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    changes.cancel(packs.queue, jobs[0].id, NOW, running=True)
    assert set(map(type, packs.commit(jobs[:1]).values())) == {UncertainError}
    changes.cancel(packs.queue, jobs[9].id, NOW, running=True)
    problems = packs.commit(jobs[10 - count : 10])
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {jobs[9].id: UncertainError}
    assert packs.commit([*jobs[1 : 10 - count], *jobs[10:]]) == {}
    assert stored_as(packs) == []


def test_a_commit_of_many_packs_says_it_of_the_cancelled_job(
    packs: QueueStore, changes: ChangesAtOnce
) -> None:
    jobs = pushed(packs, made(MOST * 3, owner=ME))
    changes.cancel(packs.queue, jobs[3].id, NOW, running=True)
    assert packs.commit([*jobs[:8], *jobs[MOST : MOST + 8], *jobs[-8:]]).keys() == {jobs[3].id}
    assert stored_as(packs) == [MOST - 8] * 3


def test_all_that_is_left_beside_a_cancelled_job_is_given_back(
    packs: QueueStore, changes: ChangesAtOnce
) -> None:
    jobs = pushed(packs, made(100, owner=ME))
    changes.cancel(packs.queue, jobs[3].id, NOW, running=True)
    assert packs.release(jobs) == 99
    assert {row["state"] for row in everything(packs).values()} == {"ready"}


def test_a_purge_removes_packs_and_counts_their_jobs(packs: QueueStore, changes: ChangesAtOnce) -> None:
    jobs = pushed(packs, made(100))
    changes.cancel(packs.queue, jobs[3].id, NOW)
    pushed(packs, [a_job(), *made(40, first=1000)])
    held = pushed(packs, made(40, first=2000, owner=ME))
    assert changes.purge(packs.queue, "ready", NOW) == 99 + 41
    assert packs.which_exist(ids(held)) == set(ids(held))
    assert stored_as(packs) == [40]


def test_counting_and_a_search_for_ids_read_no_pack_in_vain(
    packs: QueueStore, mongo_uri: str, explainer: Explainer
) -> None:
    # Given many packs, of which one has the id
    for number in range(1, 309):
        pushed(packs, made(40, first=1000 * number))
    jobs = pushed(packs, made(40))
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        documents = client[packs.jobs.database.name]
        # When
        with explainer.plans() as plans:
            counts = Inspector(documents, exactly=1000).counts(packs.queue, NOW)
            counted = [plan.documents for plan in plans if plan.command == "aggregate"]
        with explainer.plans() as plans:
            found = Listing(documents).with_ids(packs.queue, jobs[7].id, 5, NOW).jobs
            searched = [plan.documents for plan in plans]
    # Then
    assert (counts["ready"], [row["id"] for row in found]) == (309 * 40, [jobs[7].id])
    assert (max(counted), sum(searched)) == (300, 1)
