"""Plans of statements of forwards, children and streams."""

from collections.abc import Iterator
from random import Random
from secrets import token_hex
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer, Plan
from sluicemq_broker.job import Job, Parent
from sluicemq_broker.store import (
    Child,
    Completed,
    DeadLetters,
    FanOutEntry,
    ForwardEntry,
    Inspector,
    Progressed,
    QueueDefaults,
    QueueStore,
    Removals,
    RolledBack,
    StreamStore,
    date,
    dead_children,
    end_children,
    fail_parents,
    fan_out,
    forward,
    mark_parents_notified,
)
from sluicemq_broker.store.jobs.documents import document
from sluicemq_broker.streams import BatchNumber
from support.jobs import NOW, a_job, some_jobs

FEW = 10


@pytest.fixture(scope="module")
def queues(mongo_uri: str, explainer: Explainer) -> Iterator[tuple[QueueStore, QueueStore]]:
    """Two crowded queues."""
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        crowded = (QueueStore(client[name], "queue.mail"), QueueStore(client[name], "queue.next"))
        for store in crowded:
            store.prepare()
            store.claims.reply_sizes.measured(200)
            documents = [document(job, date(NOW), QueueDefaults()) for job in some_jobs(25_000)]
            for stored in documents[:5_000]:
                stored |= {"state": "dead", "ended_at": date(NOW)}
            store.jobs.insert_many(documents, ordered=False)
        yield crowded
        client.drop_database(name)


def taken(store: QueueStore, hold: int) -> list[Job]:
    return store.reserve(FEW, NOW + 5, "worker", hold).jobs


def check(plans: list[Plan], *commands: str) -> None:
    """Each reads what it is about, and no collection as a whole."""
    assert {plan.command for plan in plans} >= set(commands)
    for plan in plans:
        assert "COLLSCAN" not in plan.stages, plan
        assert max(plan.keys, plan.documents) <= 3 * FEW + 1, plan


def test_a_forward_reads_its_jobs(queues: tuple[QueueStore, QueueStore], explainer: Explainer) -> None:
    mail, other = queues
    jobs = taken(mail, 1)
    batch = []
    for job in jobs:
        on = a_job(job.id)
        batch.append(ForwardEntry(job, other, on, frozenset(), "worker", NOW, None))
    with explainer.plans() as plans:
        assert forward(mail, batch, NOW + 2) == {}
        assert forward(mail, batch, NOW + 2) == {}  # which looks what has become of them
    check(plans, "find", "delete")


def test_fan_outs_read_their_jobs(queues: tuple[QueueStore, QueueStore], explainer: Explainer) -> None:
    mail, other = queues
    (parent, *_) = taken(mail, 2)
    made = [a_job(f"{parent.id}.{number}", priority=9) for number in range(FEW)]
    for job in made:
        job.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
    family = FanOutEntry(parent, tuple(Child(other, job, inherits=True) for job in made), b"")
    with explainer.plans() as plans:
        assert fan_out(mail, [family], NOW + 2) == {}
    check(plans, "find", "update")
    children = taken(other, 3)
    assert {job.parent for job in children} == {Parent("mail", parent.id, parent.seq, parent.under)}
    with explainer.plans() as plans:
        assert other.note_progress([Progressed(children[0], 1, 2, "", NOW)]) == 1
        done = [Completed(job, b"", "worker", NOW) for job in children[1:]]
        assert end_children(other, done, NOW + 2, lambda _name: mail) == ({}, [])
    check(plans, "update", "delete")
    other.roll_back([RolledBack(children[0], "no", "worker", dead=True)], NOW + 100)
    with explainer.plans() as plans:
        (dead,) = dead_children(other, NOW + 50, 10)
        assert dead.parent
        assert fail_parents(mail, {dead.parent: "no"}, NOW + 101) == {dead.parent: []}
        mark_parents_notified(other, [dead])
        assert dead_children(other, NOW + 50, 10) == []
    check(plans, "find", "update")


def test_removing_children_and_looking_for_parents_reads_what_it_is_about(
    queues: tuple[QueueStore, QueueStore], explainer: Explainer
) -> None:
    mail, other = queues
    parents = taken(mail, 5)
    families = []
    for parent in parents:
        child = a_job(f"{parent.id}.1", priority=9)
        child.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
        families.append(FanOutEntry(parent, (Child(other, child, inherits=False),), b""))
    assert fan_out(mail, families, NOW + 2) == {}
    orders = Removals(mail.jobs.database)
    with explainer.plans() as plans:
        assert len(Inspector(mail.jobs.database).peek("mail", "waiting", FEW, 1 << 20, NOW + 3)) == FEW
        orders.cancel("next", f"{parents[0].id}.1", NOW + 3)
        letters = DeadLetters(ids=tuple(f"{above.id}.1" for above in parents))
        assert sum(orders.discarding("next", letters, NOW + 3, lambda: FEW)) == 0
        assert sum(orders.purging("mail", "waiting", NOW + 3, lambda: FEW)) == FEW - 1
    check(plans, "find", "delete")


MESSAGES = 10_000_000
#: Messages a second, as their times say.
PACE = 1000.0


@pytest.fixture(scope="module", params=[4096, pytest.param(64, marks=pytest.mark.full)])
def log(mongo_uri: str, explainer: Explainer, request: pytest.FixtureRequest) -> Iterator[StreamStore]:
    """A stream of ten million messages, so many a segment; no more of them than a test needs is stored."""
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        log = StreamStore(client[name], "prices")
        log.prepare(NOW)
        # What a majority has: reads see nothing else.
        segments = client[name].get_collection("stream.prices", write_concern=WriteConcern("majority"))
        firsts = range(1, MESSAGES + 1, request.param)
        for at in range(0, len(firsts), 10_000):
            segments.insert_many([_segment(first, request.param) for first in firsts[at : at + 10_000]])
        yield log
        client.drop_database(name)


def _segment(first: int, count: int) -> dict[str, Any]:
    return {
        "_id": Int64(first),
        "count": count,
        "at": date(NOW + first / PACE),
        "size": 0,
        "total": Int64(0),
        "mark": f"a:{first}",
        "packed": b"",
        "topics": [],
    }


def searched(plans: list[Plan]) -> list[Plan]:
    """Without the look at the head, which is found by its ``_id``."""
    return [plan for plan in plans if "IDHACK" not in plan.stages and "EXPRESS" not in str(plan.stages)]


@pytest.mark.parametrize("seed", range(5))
def test_any_number_is_found_with_two_keys(log: StreamStore, explainer: Explainer, seed: int) -> None:
    number = Random(seed).randrange(1, MESSAGES)
    with explainer.plans() as plans:
        page = log.read(number, 1)
    assert page.segments[0].first <= number < page.segments[0].next
    assert sum(plan.keys for plan in searched(plans)) <= 2
    assert all("IXSCAN" in plan.stages for plan in searched(plans))


def test_a_time_is_found_with_a_key_or_two_for_each_half(log: StreamStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        found = log.since(NOW + MESSAGES / 2 / PACE)
    assert abs(found - MESSAGES / 2) <= 4096
    assert len(plans) <= 2 * 24  # halves of ten million, and their ends
    assert all(plan.keys <= 2 for plan in plans)


def test_the_end_is_found_with_one_key(log: StreamStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        assert log.tail().next > MESSAGES
    assert [plan.keys for plan in plans] == [1]


def test_later_batches_of_a_publisher_are_searched_among_its(explainer: Explainer, mongo_uri: str) -> None:
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        log = StreamStore(client[name], "prices")
        log.prepare(NOW)
        ids = [f"#{publisher}/{number:012}" for number in range(500) for publisher in ("p", "q", "r")]
        segments = client[name].get_collection("stream.prices", write_concern=WriteConcern("majority"))
        for at in range(0, len(ids), 10):
            some = {"ids": ids[at : at + 10], "places": [0] * 10}
            segments.insert_one({**_segment(1 + at, 10), **some})
        ends = [BatchNumber(f"#{publisher}", 499).later_ids for publisher in ("p", "q", "r")]
        with explainer.plans() as plans:
            found = [log.has_between(ends), log.has_between([BatchNumber("#p", 7).later_ids])]
        client.drop_database(name)

    assert found == [False, True]
    assert all("COLLSCAN" not in plan.stages for plan in plans)
    assert sum(plan.keys for plan in plans) <= 10
