"""A group, two brokers, and one of them killed or between two statements of the other."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pymongo.database import Database

from sluicemq.protocol import wire
from sluicemq.protocol.errors import NotFoundError
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push, Settlement, Verdict
from sluicemq_broker.queue.groups import HEADLESS_EVERY
from sluicemq_broker.store import DeadLetters, QueueStore, RolledBack, collection
from support.fakes import FakeWorker
from support.faulty_mongo import Fault, FaultyDatabase, Kind, Line
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished
from support.long_forms import short_where
from support.small_broker import BEAT, LEASE, SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest

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
        assert broker.changes.cancel("mail", job_id, NOW).group == "g"
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


@pytest.mark.full
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


class SweptGroupsRig:
    """A broker that will be killed, and another one that has a worker."""

    def __init__(self, documents: Database[dict[str, Any]], store: QueueStore) -> None:
        self.store = store
        self.time = VirtualTime()
        self.clock = VirtualClock(self.time)
        self._names = (f"owner-{number}" for number in itertools.count())
        self.first, self.second = (self._broker(documents, name) for name in ("first", "second"))
        self.worker = FakeWorker(10)
        self.second.queue.attach(self.worker)

    def _broker(self, documents: Database[dict[str, Any]], name: str) -> SmallBroker:
        line = Line(lambda *_stored: None, self.time)
        return SmallBroker(name, documents, self.time, self.clock, line, lambda: next(self._names))

    def push(self, *names: str) -> None:
        jobs = [a_job(name, group="g", eligible_at=self.clock.now()) for name in names]
        self.first.queue.intake.push(Push(jobs, lambda _refused, _existing: None))
        come_to_rest()

    def heads(self) -> list[str]:
        return [name for name, job_id in everything(self.store).items() if "head" in job_id]

    def goes_by(self, seconds: float) -> None:
        """At the broker that lives."""
        for _ in range(int(seconds / BEAT) + 1):
            self.time.passes(BEAT)
            self.second.beat()
            self.second.tick()
        self.second.sweep()
        self.second.tick()


@pytest.fixture
def rig(documents: Database[dict[str, Any]], store: QueueStore) -> Iterator[SweptGroupsRig]:
    rig = SweptGroupsRig(documents, store)
    yield rig
    for broker in (rig.first, rig.second):
        broker.line.dead = True
    rig.time.passes(1000.0)


def test_a_new_group_goes_on_before_any_sweep(rig: SweptGroupsRig) -> None:
    rig.push("a", "b")
    assert rig.heads() == ["a"]


def test_a_group_of_a_broker_that_is_killed_behind_its_insert_goes_on_elsewhere(rig: SweptGroupsRig) -> None:
    rig.first.line.fault = Fault(Kind.KILLED_AFTER, "insert")
    rig.push("a", "b")
    assert (len(everything(rig.store)), rig.heads()) == (2, [])
    rig.goes_by(3 * LEASE)
    assert rig.worker.jobs == ["a"]


@pytest.mark.parametrize(
    ("verdict", "statement"), [(wire.COMMIT, "delete_many"), (wire.REJECT, "bulk_write")]
)
def test_a_group_of_a_broker_that_is_killed_behind_a_verdict_goes_on_elsewhere(
    rig: SweptGroupsRig, verdict: str, statement: str
) -> None:
    rig.second.queue.pause(frozenset({wire.DELIVERY}))
    worker = FakeWorker(10)
    rig.first.queue.attach(worker)
    rig.push("a", "b")
    assert worker.jobs == ["a"]
    rig.first.line.fault = Fault(Kind.KILLED_AFTER, statement)
    settlement = Settlement(lambda _problems: None)
    rig.first.queue.settling.settle([Verdict(worker.deliveries[0].receipt, verdict)], settlement)
    come_to_rest()
    rig.time.passes(0.01)
    assert (rig.first.line.dead, rig.heads()) == (True, [])
    rig.second.queue.pause(frozenset())
    rig.goes_by(3 * LEASE)
    assert rig.worker.jobs == ["b"]


def test_what_is_left_behind_without_a_death_is_found_in_a_minute(rig: SweptGroupsRig) -> None:
    """Somebody has removed the first job by hand."""
    rig.second.queue.pause(frozenset({wire.DELIVERY}))
    rig.push("a", "b")
    rig.store.jobs.delete_one({"_id": "a"})
    rig.second.sweep()
    assert rig.heads() == []
    rig.goes_by(HEADLESS_EVERY)
    assert rig.heads() == ["b"]
