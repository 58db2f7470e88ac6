"""The object with the services that every part of a broker needs, given to each constructor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sluicemq_broker.bus import BusKind
from sluicemq_broker.context.memory import Memory
from sluicemq_broker.context.new_names import NewNames
from sluicemq_broker.context.owners import Owners
from sluicemq_broker.context.retry import Retry
from sluicemq_broker.context.schema import Schema
from sluicemq_broker.runtime import Counters, Events, Timer
from sluicemq_broker.store import ServerClock

#: Notifies other brokers of an event in a queue; the number is the event's.
NotifyBrokers = Callable[[BusKind, int], None]


def no_other_broker(_kind: BusKind, _number: int) -> None:
    """Do nothing, as there is no other broker."""


@dataclass(frozen=True, slots=True)
class Context:
    """Services that all queues of a broker share; ``counters`` and ``notify_brokers`` are each queue's own.

    ``clock``: the time of MongoDB's server, in which jobs have their times; ``timer``: the time of this
    process; ``retry``: repeats statements while MongoDB is away; ``owners``: the id under which jobs are
    held; ``memory``: the bounds over all queues; ``events``: what happens to jobs, for those who watch;
    ``notify_brokers``: lets other brokers look again; ``names``: the rate of new names;
    ``schema``: the schema by which records may be written now.
    """

    owners: Owners
    clock: ServerClock
    counters: Counters
    retry: Retry = field(default_factory=Retry)
    memory: Memory = field(default_factory=Memory)
    timer: Timer = field(default_factory=Timer)
    events: Events = field(default_factory=Events)
    notify_brokers: NotifyBrokers = no_other_broker
    names: NewNames = field(default_factory=lambda: NewNames(Counters()))
    schema: Schema = field(default_factory=Schema)
