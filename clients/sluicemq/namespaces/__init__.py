"""The namespaces of a client: ``client.queues``, ``client.jobs`` and so on, each with its verbs."""

from __future__ import annotations

from time import monotonic
from typing import Any

from sluicemq.arguments import checked
from sluicemq.namespaces.audit import Audit, AuditChoice
from sluicemq.namespaces.brokers import Brokers, Kinds, Workers
from sluicemq.namespaces.calls import Calls, PlainCalls
from sluicemq.namespaces.dead_letters import DeadLetters
from sluicemq.namespaces.events import Events
from sluicemq.namespaces.history import History, Incidents
from sluicemq.namespaces.jobs import Jobs
from sluicemq.namespaces.operations import Operations
from sluicemq.namespaces.principals import Grants, Principals
from sluicemq.namespaces.queues import Queues
from sluicemq.namespaces.schedules import Schedules
from sluicemq.namespaces.streams import Streams, Subscriptions
from sluicemq.protocol import wire
from sluicemq.protocol.rows import CountersRow, HealthRow, StatsRow
from sluicemq.steps import Ask, Steps
from sluicemq.transport.asker import Asker

__all__ = ["AuditChoice", "Grants", "Namespaces", "as_sent"]


@checked()
class Namespaces:
    """All namespaces, and the questions about the broker itself; a client is one."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.queues = Queues(calls)
        self.jobs = Jobs(calls)
        self.dead_letters = DeadLetters(calls)
        self.streams = Streams(calls)
        self.subscriptions = Subscriptions(calls)
        self.schedules = Schedules(calls)
        self.principals = Principals(calls)
        self.operations = Operations(calls)
        self.brokers = Brokers(calls)
        self.workers = Workers(calls)
        self.kinds = Kinds(calls)
        self.events = Events(calls)
        self.history = History(calls)
        self.incidents = Incidents(calls)
        self.audit = Audit(calls)

    def stats(self) -> StatsRow:
        """Return the state of the broker, its counters and its queues."""
        return self._calls.read(StatsRow, wire.STATS)

    def counters(self) -> CountersRow:
        """Return :meth:`stats` without the queues: it costs next to nothing, and works without MongoDB."""
        return self._calls.read(CountersRow, wire.COUNTERS)

    def health(self, timeout: float | None = None) -> HealthRow:
        """Return the health of the broker's MongoDB: ``store``, which is "ok" or says what is wrong.

        ``store_silent`` is the seconds since a question to MongoDB that has no answer. The broker answers at
        once, also without MongoDB.
        """
        about_mongodb = Ask(wire.PING, (True,), timeout=timeout)
        return self._calls.run(self._calls.reading(HealthRow, about_mongodb, lambda health: health or {}))

    def ping(self, timeout: float | None = None) -> float:
        """Return the seconds of one round trip to the broker; the first call waits for the connection too."""
        return self._calls.run(_round_trip(timeout))


def _round_trip(timeout: float | None) -> Steps[float]:
    start = monotonic()
    yield Ask(wire.PING, timeout=timeout)
    return monotonic() - start


def as_sent(asker: Asker) -> Any:
    """Return namespaces whose answers stay as the broker sent them, to show them whole."""
    return Namespaces(PlainCalls(asker))
