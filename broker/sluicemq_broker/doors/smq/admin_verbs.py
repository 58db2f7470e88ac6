"""The verbs of SMQ/1 that ask MongoDB: the method that answers each, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sluicemq.protocol import wire
from sluicemq_broker.admin import (
    Admin,
    BrokerAdmin,
    DeadLetterAdmin,
    JobAdmin,
    QueueAdmin,
    ScheduleAdmin,
    StreamAdmin,
)
from sluicemq_broker.doors.smq.subscriptions import SessionSubscriptions
from sluicemq_broker.history import History
from sluicemq_broker.queues import Tasks


class AdminVerb(NamedTuple):
    """One verb: ``method`` of the session's ``subject`` answers, and takes fields of these ``types``.

    ``weigh``: returns about how many bytes an answer takes, where it may be as large as jobs.
    """

    subject: str
    method: Callable[..., Any]
    types: tuple[Any, ...] = ()
    weigh: Callable[..., int] | None = None
    reads: bool = False
    """True for a verb that changes nothing: a client that has left needs no answer."""
    at_once: bool = False
    """True for a verb that waits for no other session: its cost is small, or shared by many requests."""
    takes_long: bool = False
    """True for a verb that returns a task; one more field says how many seconds to wait for it."""


def _reads(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(subject, method, types, reads=True)


def _shared(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(subject, method, types, reads=True, at_once=True)


def _changes(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(subject, method, types)


def _starts(subject: str, method: Callable[..., Any], *types: Any) -> AdminVerb:
    return AdminVerb(subject, method, types, takes_long=True)


def _holds(method: Callable[..., Any], *types: Any) -> AdminVerb:
    """Return a verb that each holder of a subscription sends now and then, for one statement."""
    return AdminVerb("subscriptions", method, types, at_once=True)


ADMIN_VERBS: Final[dict[bytes, AdminVerb]] = {
    wire.STATS: _shared("admin", Admin.stats),
    wire.COUNTERS: _shared("admin.broker", BrokerAdmin.counters),
    wire.EVENTS: _shared("admin.broker", BrokerAdmin.events, dict),
    wire.HISTORY: _reads("admin.history", History.read, str, str, str | None, str),
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
    wire.STREAMS: _reads("admin.streams", StreamAdmin.list),
    wire.STREAM: _reads("admin.streams", StreamAdmin.show, str),
    wire.TRIM: _changes("admin.streams", StreamAdmin.trim, str, int),
    wire.ERASE: _changes("admin.streams", StreamAdmin.erase, str),
    wire.HOLD: _holds(SessionSubscriptions.hold, str, str, str, dict),
    wire.MARK: _holds(SessionSubscriptions.mark, str, str, int, int),
    wire.FREE: _holds(SessionSubscriptions.free, str, str, int | None),
    wire.SUBS: _changes("subscriptions", SessionSubscriptions.listed, str | None),
    wire.SEEK: _changes("subscriptions", SessionSubscriptions.seek, str, str, int),
    wire.FORGET: _changes("subscriptions", SessionSubscriptions.forget, str, str),
}
