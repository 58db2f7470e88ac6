"""The plans of forwards, fan-outs and dead children, among 20,000 jobs and 5,000 dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

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
    date,
    dead_children,
    end_children,
    fail_parents,
    fan_out,
    forward,
    mark_parents_notified,
)
from sluicemq_broker.store.jobs.documents import document
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


def test_a_forward_reads_the_jobs_that_it_is_about(
    queues: tuple[QueueStore, QueueStore], explainer: Explainer
) -> None:
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


def test_fan_outs_children_and_progress_read_what_they_are_about(
    queues: tuple[QueueStore, QueueStore], explainer: Explainer
) -> None:
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
