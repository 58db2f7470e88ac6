"""A year of all that a broker keeps, in minutes: at its end there is no more than after half of it.

Time is the test's. MongoDB removes by its own clock what has a ``remove_at``, so the test does that: by the
indexes that are there, which shows that they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.packed import pack
from sluicemq.protocol.wire import TaskState
from sluicemq_broker.config import Config, StreamSettings
from sluicemq_broker.history import History, Incidents
from sluicemq_broker.history.incidents import IncidentKind
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import (
    AuditRecord,
    AuditStore,
    ConfigurationStore,
    FigureStore,
    LeaseStore,
    LimitStore,
    RolledBack,
    SubscriptionStore,
    TaskStore,
    date,
)
from sluicemq_broker.store.jobs.groups import GroupStore
from sluicemq_broker.streams import Streams, StreamServices, Subscriptions, Wish, read_batch
from support.faulty_mongo import Line
from support.jobs import finished, some_jobs
from support.small_broker import SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest

DAY = 86_400.0
#: Days that pass at once, and how many there are of each thing then.
DAYS = 4
EACH_TIME = 20
#: Every bound of time, so that half a year is longer than all of them; and of number.
KEPT = 60 * DAY
MOST = 200
HALF = 183 // DAYS


def in_memory(part: object) -> int:
    """Return how many entries the tables of a part have, and those of what belongs to it alone."""
    tables = [var for var in vars(part).values() if isinstance(var, dict | set | list)]
    own = [var for var in vars(part).values() if type(var).__module__ == type(part).__module__]
    return sum(map(len, tables)) + sum(map(in_memory, own))


class Year:
    """One broker on one store, and a day of work."""

    def __init__(self, documents: Database[dict[str, Any]]) -> None:
        self.documents = documents
        self.time = VirtualTime()
        self.clock = VirtualClock(self.time)
        line = Line(lambda *_stored: None, self.time)
        kept = {"dead_retention": KEPT, "max_dead": MOST}
        self.broker = broker = SmallBroker("b", documents, self.time, self.clock, line, lambda: "b", kept)

        queues = broker.queues
        queues.records.prepare()
        ours = replace(queues.config.broker, history_retention=KEPT, incident_retention=KEPT)
        queues.config = replace(queues.config, broker=ours)
        context = queues.context
        own = (lambda _name: documents, "own", "host")
        self.history = History(broker.queues, broker.census, context, [broker.queues.subjects], *own)
        self.incidents = Incidents(broker.queues, broker.census, context, *own)
        self.audit = AuditStore(documents)
        self.tasks, self.leases = TaskStore(documents), LeaseStore(documents)
        self.configurations = ConfigurationStore(documents)
        self.figures = FigureStore(documents)
        for writer in (
            self.history,
            self.incidents,
            self.audit,
            self.tasks,
            self.leases,
            self.configurations,
            self.figures,
        ):
            writer.prepare()
        services = StreamServices(self.clock, broker.counters, broker.retry, passed=self.time.now)
        bounded = StreamSettings(max_age=KEPT, unread_retention=KEPT)
        config = Config.default()
        config = replace(config, other_streams=bounded)
        self.streams = Streams(config, services, lambda _name: documents)
        store = SubscriptionStore(documents)
        self.subscriptions = Subscriptions(self.streams, services, broker.owners, lambda _stream: store)
        self.streams.keep(self.subscriptions.unread)

    @property
    def now(self) -> float:
        return self.clock.now()

    def days(self, number: int) -> None:
        """Do the work of some days, and what brokers do about it."""
        self._jobs(number)
        self._names(number)
        self._stream(number)
        self._records(number)
        self.time.value += DAYS * DAY
        self._duties()
        self._removed_by_mongodb()

    def _jobs(self, number: int) -> None:
        """Jobs die, are done and remembered, and expire."""
        store = self.broker.queue.store
        jobs = some_jobs(3 * EACH_TIME, owner="b", hold=number + 1)
        for job in jobs:
            job.created_at = self.now
        store.push(jobs, self.now)
        dies, done, removed = (jobs[at::3] for at in range(3))
        store.roll_back([RolledBack(dy, "bad", "worker", dead=True) for dy in dies], self.now)
        store.complete([finished(job) for job in done], self.now)
        store.commit(removed)
        self.broker.queue.counters.add("pushed", len(jobs))
        self.broker.queue.counters.add("dead", len(dies))

    def _names(self, number: int) -> None:
        """Make queues that come and go, with groups, limits and tenants."""
        name = f"temporary-{number}"
        queue = self.broker.queues.open(name)
        queue.store.prepare()
        queue.counters.add("pushed")
        GroupStore(queue.store.jobs).places(1)
        limits = LimitStore(self.documents, name)
        limits.permit("b", 1, 5, number + 1)
        limits.take_each({f"tenant-{number}": 1}, 1.0, 1, self.now, "b", number + 1)
        self._flush()
        self.broker.tasks.begin("delete", name)
        come_to_rest()
        self.time.passes(10.0)
        self.broker.queues.let_go_removed()

    def _stream(self, number: int) -> None:
        stream = self.streams.for_publish("orders", caller=ANYBODY)
        answers: list[Any] = []
        stream.publish(read_batch(pack(b"a", b"x") * EACH_TIME, answers.append))
        while not answers:
            come_to_rest()
        if number == 1:
            held = self.subscriptions.hold(Wish("orders", "nobody", "update", "somebody"))
            self.subscriptions.release("orders", "nobody", held.fence)
            self.documents["subscriptions"].update_one({}, {"$set": {"used_at": date(self.now)}})

    def _records(self, number: int) -> None:
        """Make incidents, records of the audit, tasks, brokers that come and go with their files."""
        for place in range(EACH_TIME):
            self.incidents.note(IncidentKind.FLOOD, f"queue-{place}", since=self.now - place)
            self.audit.write([AuditRecord(id=f"{number}-{place}", at=self.now)])
            task = {"kind": "purge", "queue": "mail", "state": TaskState.RUNNING, "owner": "b", "done": 0}
            self.tasks.begin(f"{number}-{place}", task)
            self.tasks.end(f"{number}-{place}", "b", self.now, {"state": TaskState.DONE})
            self.leases.begin(f"{number}-{place}", "other", 15.0, self.now)
            self.leases.end(f"{number}-{place}", self.now)
        self.configurations.put([], f"digest-{number}", ["{}"], self.now)
        self.figures.put(f"other-{number}", b"{}", self.now)

    def _duties(self) -> None:
        self.broker.beat()
        self.broker.census.tick()
        self.broker.sweep()
        self.broker.dead_retention.sweep()
        self.broker.round()
        self.streams.sweep()
        self.incidents.tick()
        self._flush()
        self.history.roll_up()
        self.incidents.trim()
        self.audit.trim(self.now - KEPT, MOST)
        self.time.passes(10.0)

    def _flush(self) -> None:
        self.history.tick()
        self.history.flush()
        self.incidents.flush()

    def _removed_by_mongodb(self) -> None:
        """Remove what MongoDB would, by the indexes of each collection."""
        for name in self.documents.list_collection_names():
            for index in self.documents[name].index_information().values():
                if (after := index.get("expireAfterSeconds")) is not None:
                    [(field, _way)] = index["key"]
                    self.documents[name].delete_many({field: {"$lte": date(self.now - float(after))}})

    def sizes(self) -> dict[str, int]:
        """Return how many documents each collection has, and names each table in memory."""
        found: Counter[str] = Counter()
        for name in self.documents.list_collection_names():
            kind = name.partition(".")[0] if "." in name and "mail" not in name else name
            found[kind] += self.documents[name].estimated_document_count()
            found[f"collections: {kind}"] += 1
        broker = self.broker
        for part in (
            broker.queues,
            broker.census,
            broker.sweeper,
            broker.tasks,
            self.history,
            self.incidents,
        ):
            found[f"in memory: {type(part).__name__}"] = in_memory(part)
        return dict(found)


@pytest.mark.full  # a minute
def test_after_a_year_no_more_is_kept_than_after_half_of_it(documents: Database[dict[str, Any]]) -> None:
    year = Year(documents)
    for number in range(HALF):
        year.days(number)
    half = year.sizes()
    for number in range(HALF, 2 * HALF):
        year.days(number)
    whole = year.sizes()
    assert half["queue.mail"] == MOST
    assert half["audit"] >= MOST - EACH_TIME
    months = whole.pop("history_months"), half.pop("history_months")
    assert months[0] <= 2 * months[1] + EACH_TIME  # kept for five years
    before = {name: half.get(name, 0) for name in whole}
    grown = {name: (before[name], size) for name, size in whole.items() if size > 1.1 * before[name] + 3}
    assert grown == {}
