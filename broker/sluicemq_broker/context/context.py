"""What every part of a broker needs: one object, given to each constructor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sluicemq_broker.bus import BusKind
from sluicemq_broker.context.memory import Memory
from sluicemq_broker.context.new_names import NewNames
from sluicemq_broker.context.owners import Owners
from sluicemq_broker.context.retry import Retry
from sluicemq_broker.runtime import Counters, Events, Timer
from sluicemq_broker.store import ServerClock

#: Tells other brokers what has happened in a queue; the number is the event's.
NotifyBrokers = Callable[[BusKind, int], None]


def no_other_broker(_kind: BusKind, _number: int) -> None:
    """There is no other broker."""


@dataclass(frozen=True, slots=True)
class Context:
    """Services that all queues of a broker share; ``counters`` and ``notify_brokers`` are each queue's own.

    ``clock``: the time of MongoDB's server, in which jobs have their times; ``timer``: that of this
    process; ``retry``: how a statement goes on when MongoDB is away; ``owners``: under which id jobs are
    held; ``memory``: the bounds over all queues; ``events``: who hears of what happens to jobs;
    ``notify_brokers``: what other brokers should look at again; ``names``: who may make new ones.
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
