"""The verbs of SMQ/1 that ask MongoDB: the method that answers each, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import EndRow, ErrorsRow, FoundPage
from sluicemq_broker.admin import (
    OF_ON_DEAD,
    OF_REDRIVE,
    Admin,
    BrokerAdmin,
    DeadLetterAdmin,
    JobAdmin,
    PrincipalAdmin,
    QueueAdmin,
    ScheduleAdmin,
    redrive_needs,
)
from sluicemq_broker.doors.smq.verbs import AdminVerb, Computed
from sluicemq_broker.queues import Tasks
from sluicemq_broker.security import Caller, Effect, Needs, authorize, visible

#: Parts of an answer that only some may see, and requests with more effects than one.
_IN_OPTIONS: Final = Needs(
    Action.READ,
    more=lambda _session, options, *_paging: (
        () if options.get("queue") is None else [(Action.READ, str(options["queue"]))]
    ),
    shows=lambda _caller, answer: answer,  # its rows are chosen where they are numbered
)
_OF_TASK: Final = Needs(
    Action.MANAGE, more=lambda tasks, task_id: [(Action.MANAGE, tasks.find(task_id).queue)], hidden=True
)
_READ: Final = Needs(Action.READ, 0)
_MANAGE: Final = Needs(Action.MANAGE, 0)


def _reads(subject: str, method: Callable[..., Any], needs: Needs, *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, needs, types, reads=True)


def _shared(subject: str, method: Callable[..., Any], needs: Needs, *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, needs, types, reads=True, at_once=True)


def _computed(subject: str, method: Callable[..., Any], needs: Needs, *types: Any) -> AdminVerb:
    return _shared(subject, lambda *request: Computed(partial(method, *request)), needs, *types)


def _changes(subject: str, method: Callable[..., Any], needs: Needs, *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, needs, types)


def _starts(subject: str, method: Callable[..., Any], needs: Needs, *types: Any) -> AdminVerb:
    return AdminVerb(attrgetter(subject), method, needs, types, takes_long=True)


def _session(session: Any) -> Any:
    return session


def _named_rows(read: Callable[..., list[Any]], shows: Callable[[Caller, Any], Any]) -> AdminVerb:
    """Return a verb whose rows, of one queue or of all that the caller reads, have this broker's name."""

    def computed(session: Any, name: str | None) -> Computed:
        def rows() -> list[Any]:
            found = read(session.admin.queues, name, visible.names(session.caller, Action.READ))
            return [replace(row, broker=session.door.name) for row in found]

        return Computed(rows)

    needs = _READ._replace(shows=shows)
    return AdminVerb(_session, computed, needs, (str | None,), reads=True, at_once=True)


def _errors(session: Any, name: str | None) -> ErrorsRow:
    admin: Admin = session.admin
    return admin.dead_letters.errors(name, visible.names(session.caller, Action.READ))


def _find(session: Any, options: dict[str, Any], limit: int, after: str | None) -> FoundPage:
    """Return jobs of queues that the caller may read, which may be none."""
    admin: Admin = session.admin
    return admin.finder.find(options, limit, after, session.caller)


def _events(session: Any, options: dict[str, Any]) -> Computed:
    """Return events of queues that the caller may read; the first look makes the broker record them."""
    caller: Caller = session.caller
    if not caller.principal.permissions.patterns(Action.READ):
        authorize(caller, Action.READ)
    admin: Admin = session.admin
    return Computed(lambda: admin.broker.events(options, visible.names(caller, Action.READ)))


def _set(session: Any, name: str, settings: dict[str, Any]) -> Any:
    admin: Admin = session.admin
    return admin.queues.set_settings(name, settings, session.caller)


def _order_worker(session: Any, action: str, name: str) -> int:
    admin: Admin = session.admin
    return admin.queues.order_worker(action, name, session.caller)


def _ended(session: Any, name: str, job_id: str | None, limit: int) -> list[EndRow]:
    admin: Admin = session.admin
    return admin.jobs.ended(name, job_id, limit, session.caller)


def _cancel(session: Any, name: str, job_id: str, options: dict[str, Any] | None) -> None:
    admin: Admin = session.admin
    admin.jobs.cancel(name, job_id, options, session.caller)


def _stats(session: Any) -> Computed:
    admin: Admin = session.admin
    queues = admin.all_queues()
    return Computed(lambda: admin.stats(queues, operates=session.caller.may(Action.OPERATE)))


ADMIN_VERBS: Final[dict[bytes, AdminVerb]] = {
    wire.STATS: AdminVerb(
        _session, _stats, Needs(Action.READ, shows=visible.stats), reads=True, at_once=True
    ),
    wire.COUNTERS: _computed("admin.broker", BrokerAdmin.counters, Needs(Action.OPERATE)),
    wire.EVENTS: AdminVerb(_session, _events, _IN_OPTIONS, (dict,), reads=True, at_once=True),
    wire.QUEUES: _shared("admin.queues", QueueAdmin.all, Needs(Action.READ, shows=visible.queues)),
    wire.QUEUE: _reads("admin.queues", QueueAdmin.one, _READ, str),
    wire.WORKERS: _named_rows(QueueAdmin.workers, visible.workers),
    wire.WORKER: AdminVerb(
        _session,
        _order_worker,
        # Its queues are known only where the worker is found.
        Needs(
            Action.MANAGE,
            more=lambda _session, _action, _name: (),
            also=(Effect(Action.MANAGE, "all queues of the worker"),),
        ),
        (str, str),
        at_once=True,
        actions=frozenset((wire.QUIET, wire.END)),
    ),
    wire.KINDS: _named_rows(QueueAdmin.kinds, visible.kinds),
    wire.PAUSE: _changes("admin.queues", QueueAdmin.pause, _MANAGE, str, str),
    wire.RESUME: _changes("admin.queues", QueueAdmin.resume, _MANAGE, str, str),
    wire.BACKLOG: _reads("admin.queues", QueueAdmin.backlog, _READ, str),
    wire.SETTINGS: _reads("admin.queues", QueueAdmin.settings, _READ, str),
    wire.SET: AdminVerb(
        _session,
        _set,
        _MANAGE._replace(
            more=lambda session, name, settings: session.admin.queues.needs(name, settings), also=OF_ON_DEAD
        ),
        (str, dict),
    ),
    wire.UNSET: _changes("admin.queues", QueueAdmin.unset_settings, _MANAGE, str, list),
    wire.PURGE: _starts("admin.queues", QueueAdmin.purge, _MANAGE, str, str),
    wire.DELETE: _starts("admin.queues", QueueAdmin.delete, _MANAGE, str),
    wire.PEEK: _reads("admin.jobs", JobAdmin.peek, _READ, str, str, int)._replace(
        optional=(dict | None,), weigh=JobAdmin.weigh_peek
    ),
    wire.SHOW: _reads("admin.jobs", JobAdmin.show, _READ, str, str)._replace(weigh=JobAdmin.weigh_show),
    wire.ENDS: AdminVerb(_session, _ended, _READ, (str, str | None, int), reads=True),
    wire.FIND: AdminVerb(_session, _find, _IN_OPTIONS, (dict, int, str | None), reads=True, at_once=True),
    wire.CANCEL: AdminVerb(
        _session,
        _cancel,
        _MANAGE._replace(also=(Effect(Action.MANAGE, "the queues of its children, with `children`"),)),
        (str, str),
        (dict | None,),
    ),
    wire.PROMOTE: _changes("admin.jobs", JobAdmin.promote, _MANAGE, str, str),
    wire.CHANGE: _changes("admin.jobs", JobAdmin.change, _MANAGE, str, str, dict),
    wire.REDRIVE: _starts(
        "admin.dead_letters",
        DeadLetterAdmin.redrive,
        _MANAGE._replace(
            more=lambda _subject, name, _selection, to: redrive_needs(name, to), also=OF_REDRIVE
        ),
        *(str, dict, str | None),
    ),
    wire.DISCARD: _starts("admin.dead_letters", DeadLetterAdmin.discard, _MANAGE, str, dict),
    wire.DEAD: _reads("admin.dead_letters", DeadLetterAdmin.about, _READ, str, str, dict),
    wire.ERRORS: AdminVerb(
        _session,
        _errors,
        _READ._replace(shows=lambda _caller, answer: answer),  # it is made of what the caller may see
        (str | None,),
        reads=True,
    ),
    wire.TASKS: _reads("admin.tasks", Tasks.latest, Needs(Action.MANAGE, shows=visible.operations)),
    wire.TASK: _reads("admin.tasks", Tasks.find, _OF_TASK, str),
    wire.TCANCEL: _changes("admin.tasks", Tasks.cancel, _OF_TASK, str),
    wire.SCHEDULE: AdminVerb(
        _session,
        lambda session, action, about: session.admin.schedules.do(action, about, session.caller),
        Needs(
            Action.MANAGE,
            more=lambda session, action, about: session.admin.schedules.needs(action, about),
            shows=visible.schedules,
            hidden=True,
            also=ScheduleAdmin.effects,
        ),
        (str, dict),
        actions=ScheduleAdmin.actions,
    ),
    wire.BROKERS: _reads("admin.broker", BrokerAdmin.brokers, Needs(Action.OPERATE)),
    wire.UPGRADE: _changes("admin.broker", BrokerAdmin.upgrade, Needs(Action.OPERATE)),
    wire.USERS: _changes("admin.principals", PrincipalAdmin.do, Needs(Action.OPERATE), str, dict)._replace(
        actions=PrincipalAdmin.actions
    ),
}
