"""A group and two brokers: the other one does a whole verb before each statement of a verb of this one.

Whatever the order: one job of the group is its head, none that waits stands before it, none waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import NotFoundError
from sluicemq_broker.job import Job
from sluicemq_broker.store import DeadLetters, QueueStore, RolledBack, collection
from support.faulty_mongo import Fault, FaultyDatabase, Kind, Line
from support.jobs import NOW, ChangesAtOnce, a_job, finished
from support.long_forms import short_where

#: Explores at random: by default test_model_brokers and the unit models do, for a shorter time.
pytestmark = pytest.mark.full

#: No verb has more statements.
MOST = 12
#: The jobs of the group before each verb, in their order.
NAMES = ("dead", "head", "over", "next", "last")


class GroupsRig(NamedTuple):
    """What one broker does for the queue; what it was given before the test: the head, and who is dead."""

    name: str
    store: QueueStore
    changes: ChangesAtOnce

    def promote(self) -> None:
        """As its queue does, with what has expired."""
        promoted = self.store.groups.promote(["g"], NOW)
        if promoted.expired and self.store.expire(NOW, ids=promoted.expired).groups:
            self.promote()

    def head(self) -> list[Job]:
        """Reserve it, if it is ready."""
        return self.store.reserve(10, NOW, self.name, 1).jobs


def push(broker: GroupsRig) -> None:
    job = a_job(f"pushed by {broker.name}", group="g")
    job.line_up(broker.store.groups.places(1))
    broker.store.push([job], NOW)
    broker.promote()


def work(broker: GroupsRig, end: Callable[[GroupsRig, list[Job]], object]) -> None:
    if jobs := broker.head():
        end(broker, jobs)
        broker.promote()


def cancel(broker: GroupsRig, job_id: str) -> None:
    try:
        assert broker.changes.cancel("mail", job_id, NOW) == "g"
    except NotFoundError:
        return
    broker.promote()


def expire(broker: GroupsRig) -> None:
    if broker.store.expire(NOW).groups:
        broker.promote()


def redrive(broker: GroupsRig) -> None:
    broker.changes.redrive("mail", DeadLetters(), NOW)
    broker.promote()


VERBS: dict[str, Callable[[GroupsRig], object]] = {
    "push": push,
    "commit": lambda broker: work(broker, lambda broker, jobs: broker.store.commit(jobs)),
    "finish": lambda broker: work(
        broker, lambda broker, jobs: broker.store.complete([finished(job) for job in jobs], NOW)
    ),
    "reject": lambda broker: work(
        broker,
        lambda broker, jobs: broker.store.roll_back(
            [RolledBack(job, "bad", "worker", dead=True) for job in jobs], NOW
        ),
    ),
    "release": lambda broker: work(broker, lambda broker, jobs: broker.store.release(jobs)),
    "cancel of the head": lambda broker: cancel(broker, "head"),
    "cancel of the next": lambda broker: cancel(broker, "next"),
    "expire": expire,
    "redrive": redrive,
    "look": lambda broker: [
        broker.store.groups.promote(groups, NOW) for groups in broker.store.groups.headless()
    ],
}


#: What another one may do within a verb, of each kind one; with ``--full`` all.
_GO_ON = ("push", "commit", "cancel of the head", "look")


@pytest.fixture
def pair(documents: Database[dict[str, Any]]) -> tuple[GroupsRig, GroupsRig, Line]:
    """Two brokers, the first over a line on which the second may act; four jobs of one group, one dead."""
    line = Line(lambda *_stored: None)
    ours: Any = FaultyDatabase(documents, line)
    brokers = [
        GroupsRig(name, QueueStore(database, collection("mail")), _AllPages(database))
        for name, database in (("us", ours), ("them", documents))
    ]
    them = brokers[1]
    them.store.prepare()
    jobs = [a_job(name, group="g", expires_at=NOW if name == "over" else None) for name in NAMES]
    for place, job in enumerate(jobs, them.store.groups.places(len(jobs))):
        job.line_up(place)
    them.store.push(jobs, NOW)
    them.promote()
    them.store.roll_back([RolledBack(job, "bad", "worker", dead=True) for job in them.head()], NOW)
    them.promote()
    return brokers[0], them, line


class _AllPages(ChangesAtOnce):
    """Of a database that may fail."""


@pytest.mark.parametrize("theirs", short_where(VERBS, _GO_ON.__contains__))
@pytest.mark.parametrize("verb", VERBS)
def test_one_is_the_head_whatever_another_broker_does_inside_a_verb(
    pair: tuple[GroupsRig, GroupsRig, Line], verb: str, theirs: str
) -> None:
    us, them, line = pair
    before = list(us.store.jobs.real.find())

    def act() -> None:
        VERBS[theirs](them)

    for statement in range(MOST):
        # Given the same jobs as before
        us.store.jobs.real.delete_many({})
        us.store.jobs.real.insert_many(before)
        line.inside = act
        line.fault = Fault(Kind.INSIDE_BEFORE, skip=statement)
        fired = line.fired
        VERBS[verb](us)
        check(us.store, f"{theirs} inside {verb}, statement {statement}")
        if line.fired == fired:
            assert statement > 0
            return
    pytest.fail(f"{verb} has more than {MOST} statements")


def check(store: QueueStore, what: str) -> None:
    found = list(store.jobs.real.find())
    heads = [document for document in found if "head" in document]
    waiting = [row for row in found if row["state"] == "waiting"]
    assert len(heads) <= 1, what
    assert heads or not waiting, f"{what}: {waiting} wait for nobody"
    for head in heads:
        assert head["state"] in ("ready", "reserved"), f"{what}: {head}"
        passed = [document["_id"] for document in waiting if rank(document) < rank(head)]
        assert not passed, f"{what}: {head['_id']} goes before {passed}"


def rank(job: dict[str, Any]) -> int:
    """Of those that were there from the start; all that came, or came back, since stand behind these."""
    return len(NAMES) if "errors" in job or job["_id"] not in NAMES else NAMES.index(job["_id"])
