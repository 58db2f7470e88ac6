"""The verbs of SMQ/1 that ask MongoDB: the method that answers each, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq_broker.admin import (
    Admin,
    BrokerAdmin,
    DeadLetterAdmin,
    JobAdmin,
    QueueAdmin,
    ScheduleAdmin,
)
from sluicemq_broker.doors.smq.verbs import AdminVerb
from sluicemq_broker.queues import Tasks


def _reads(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, types, reads=True)


def _shared(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, types, reads=True, at_once=True)


def _changes(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, types)


def _starts(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, types, takes_long=True)


ADMIN_VERBS: Final[dict[bytes, AdminVerb]] = {
    wire.STATS: _shared("admin", Admin.stats),
    wire.COUNTERS: _shared("admin.broker", BrokerAdmin.counters),
    wire.EVENTS: _shared("admin.broker", BrokerAdmin.events, dict),
    wire.QUEUES: _shared("admin.queues", QueueAdmin.all),
    wire.QUEUE: _reads("admin.queues", QueueAdmin.one, str),
    wire.WORKERS: _shared("admin.queues", QueueAdmin.workers, str | None),
    wire.PAUSE: _changes("admin.queues", QueueAdmin.pause, str, str),
    wire.RESUME: _changes("admin.queues", QueueAdmin.resume, str, str),
    wire.PURGE: _starts("admin.queues", QueueAdmin.purge, str, str),
    wire.DELETE: _starts("admin.queues", QueueAdmin.delete, str),
    wire.PEEK: _reads("admin.jobs", JobAdmin.peek, str, str, int)._replace(weigh=JobAdmin.weigh_peek),
    wire.SHOW: _reads("admin.jobs", JobAdmin.show, str, str)._replace(weigh=JobAdmin.weigh_show),
    wire.CANCEL: _changes("admin.jobs", JobAdmin.cancel, str, str),
    wire.PROMOTE: _changes("admin.jobs", JobAdmin.promote, str, str),
    wire.CHANGE: _changes("admin.jobs", JobAdmin.change, str, str, dict),
    wire.REDRIVE: _starts("admin.dead_letters", DeadLetterAdmin.redrive, str, dict, str | None),
    wire.DISCARD: _starts("admin.dead_letters", DeadLetterAdmin.discard, str, dict),
    wire.TASKS: _reads("admin.tasks", Tasks.latest),
    wire.TASK: _reads("admin.tasks", Tasks.find, str),
    wire.TCANCEL: _changes("admin.tasks", Tasks.cancel, str),
    wire.SCHEDULE: _changes("admin.schedules", ScheduleAdmin.do, str, dict),
}
