"""The paths of ``/api/v1``, and of health and metrics: one row for each. Parts of the broker add theirs.

A change is a POST with JSON. It calls a method of :class:`~sluicemq_broker.admin.Admin`, as verbs of SMQ/1
do, and is an act of the audit. A long operation on many jobs is answered with its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import falcon

from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import (
    BrokersRow,
    CountersRow,
    DevicesRow,
    KindsRow,
    MeRow,
    OperationRow,
    OperationsRow,
    ReadinessRow,
    ScheduleDetailRow,
    ScheduleRow,
    SchedulesRow,
    WorkersRow,
)
from sluicemq_broker.http import health
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.callers import Callers
from sluicemq_broker.http.inputs import (
    KindsQuery,
    LoginBody,
    OfQueue,
    ScheduleBody,
    WorkerBody,
)
from sluicemq_broker.http.queue_table import OF_QUEUES
from sluicemq_broker.http.route import BASE, PLAIN_TEXT, Call, Method, Route, read_body
from sluicemq_broker.http.sources import Sources
from sluicemq_broker.security import NOTHING, Caller, Effect, Need, Needs, visible

_GET, _POST = Method.GET, Method.POST


def _me(caller: Caller, callers: Callers, *, session: bool) -> MeRow:
    permissions = caller.principal.permissions.plain()
    return MeRow(
        name=caller.name,
        permissions={action: tuple(patterns) for action, patterns in permissions.items()},
        session=session,
        actions=callers.any,
    )


def _serve_me(of: Sources, request: falcon.Request, response: falcon.Response) -> None:
    context = request.context
    write(response, _me(context.caller, of.callers, session=bool(context.session)))


def _log_in(of: Sources, request: falcon.Request, response: falcon.Response) -> None:
    """Answer as :func:`_serve_me` does, with the cookie of a session."""
    caller = of.callers.log_in(request, response, read_body(request))
    write(response, _me(caller, of.callers, session=True))


def _log_out(of: Sources, request: falcon.Request, response: falcon.Response) -> None:
    of.callers.log_out(request, response)
    write(response, {"answer": None})


def _workers(of: Sources, call: Call) -> WorkersRow:
    seen = visible.names(call.caller, Action.READ)
    queue, fleet = call.query.queue, of.admin.fleet
    here = tuple(of.admin.queues.workers(queue, seen))
    return WorkersRow(workers=here, elsewhere=fleet.workers(queue), gone=fleet.gone(queue))


def _order_worker(action: str) -> Any:
    return lambda of, call: of.admin.queues.order_worker(action, call.body.name, call.caller)


def _kinds(of: Sources, call: Call) -> KindsRow:
    seen = visible.names(call.caller, Action.READ)
    query: KindsQuery = call.query
    found = of.admin.queues.kinds(query.queue, seen, query.contains, query.limit)
    return KindsRow(kinds=tuple(found))


def _schedule(action: str) -> Any:
    return lambda of, call, name: of.admin.schedules.do(action, {"name": name}, call.caller)


def _of_operation(request: falcon.Request, task_id: str) -> Iterator[Need]:
    """Yield what an operation needs: its queue is not in the path."""
    yield Action.MANAGE, request.context.subject.admin.tasks.find(task_id).queue


def _of_schedule(request: falcon.Request, name: str) -> Iterator[Need]:
    """Yield what a change of a schedule needs: its queue is not in the path."""
    yield Action.MANAGE, request.context.subject.admin.schedules.queue_of(name)


def _of_schedule_detail(request: falcon.Request, name: str) -> Iterator[Need]:
    """Yield what a look at a schedule needs: its jobs are shown, too."""
    for need in _of_schedule(request, name):
        yield need
        yield Action.READ, need[1]


def _of_new_schedule(request: falcon.Request, name: str) -> list[Need]:
    schedules, body = request.context.subject.admin.schedules, request.context.body
    needs: list[Need] = schedules.needs(wire.ADD, {**body, "name": name})
    return needs


#: Its queues are known only where the worker is found.
_OF_WORKER: Final = Needs(
    Action.MANAGE, more=lambda _request: (), also=(Effect(Action.MANAGE, "all queues of the worker"),)
)
_OPERATES: Final = Needs(Action.OPERATE)
_OPERATION: Final = Needs(Action.MANAGE, more=_of_operation, hidden=True)
_SCHEDULE: Final = Needs(Action.MANAGE, more=_of_schedule, hidden=True)
_SCHEDULES: Final = f"{BASE}/schedules/{{name}}"
_OPERATIONS: Final = f"{BASE}/operations"

#: All paths that are answered from :class:`Sources`.
CORE: Final = (
    Route(
        _GET, "/healthz", "health.live", "The process lives", None, Any,
        writes=True, do=health.live, media=PLAIN_TEXT, asks_store=False,
    ),
    Route(
        _GET, "/readyz", "health.ready", "The broker can take and hand out jobs; 503 says what is wrong",
        None,
        ReadinessRow, writes=True, do=lambda of, _request, response: health.ready(of.admin.broker, response),
        asks_store=False,
    ),
    Route(
        _GET, "/metrics", "metrics.get", "All figures, as OpenMetrics for a client that accepts it", NOTHING,
        Any, writes=True, do=lambda of, request, response: of.metrics.on_get(request, response),
        media=PLAIN_TEXT, asks_store=False,
    ),
    Route(
        _GET, f"{BASE}/me", "me.get", "Who the caller is, and what it may do", NOTHING, MeRow,
        writes=True, do=_serve_me, asks_store=False,
    ),
    Route(_POST, f"{BASE}/login", "me.login", "Begin a session, whose cookie is set", None, MeRow,
          writes=True, do=_log_in, body=LoginBody),
    Route(_POST, f"{BASE}/logout", "me.logout", "End the session", NOTHING, None, writes=True, do=_log_out),
    Route(_POST, f"{BASE}/token", "me.check", "Check the token", NOTHING, None,
          do=lambda _of, _call: None, act="token"),
    Route(
        _GET, f"{BASE}/broker", "brokers.counters", "The broker and its counters", _OPERATES, CountersRow,
        do=lambda of, _call: of.admin.broker.about(), asks_store=False,
    ),
    Route(_GET, f"{BASE}/brokers", "brokers.list", "The brokers on this database", _OPERATES, BrokersRow,
          do=lambda of, _call: of.admin.brokers()),
    Route(
        _GET, f"{BASE}/devices", "devices.list", "The devices: their doors, and the messages that they hold",
        _OPERATES, DevicesRow, do=lambda of, _call: DevicesRow(devices=of.admin.devices.all()),
        asks_store=False,
    ),
    Route(
        _GET, f"{BASE}/workers", "workers.list",
        "The workers at this broker, the first 1,000; those elsewhere; those that have gone",
        Needs(Action.READ, "queue", shows=visible.all_workers), WorkersRow,
        do=_workers, query=OfQueue, asks_store=False,
    ),
    Route(
        _POST, f"{BASE}/workers/quiet", "workers.quiet", "Give no more jobs to a worker",
        _OF_WORKER, int, do=_order_worker(wire.QUIET), body=WorkerBody, act="worker quiet",
    ),
    Route(
        _POST, f"{BASE}/workers/stop", "workers.stop", "Give no more jobs to a worker, and end it",
        _OF_WORKER, int, do=_order_worker(wire.END), body=WorkerBody, act="worker stop",
    ),
    Route(
        _GET, f"{BASE}/kinds", "kinds.list", "The kinds of jobs, as this broker has counted them",
        Needs(Action.READ, "queue", shows=visible.all_kinds), KindsRow,
        do=_kinds, query=KindsQuery, asks_store=False,
    ),
    *OF_QUEUES,
    Route(
        _GET, f"{BASE}/schedules", "schedules.list", "Recurring jobs",
        Needs(Action.MANAGE, shows=visible.all_schedules), SchedulesRow,
        do=lambda of, call: SchedulesRow(
            schedules=tuple(of.admin.schedules.do(wire.LIST, {}, call.caller))
        ),
    ),
    Route(
        _GET, _SCHEDULES, "schedules.get", "A schedule, its next five runs, the jobs of its latest runs",
        Needs(Action.MANAGE, more=_of_schedule_detail, hidden=True, also=(Effect(Action.READ, "its queue"),)),
        ScheduleDetailRow, do=lambda of, _call, name: of.admin.schedules.show(name),
    ),
    Route(
        _POST, f"{_SCHEDULES}/add", "schedules.add", "Push a job again and again; replaces one of this name",
        Needs(Action.MANAGE, more=_of_new_schedule, hidden=True), ScheduleRow,
        do=lambda of, call, name: of.admin.schedules.do(wire.ADD, call.body.fields(name), call.caller),
        body=ScheduleBody, act="schedule add",
    ),
    Route(_POST, f"{_SCHEDULES}/delete", "schedules.delete", "Remove a schedule", _SCHEDULE, None,
          do=_schedule(wire.REMOVE), act="schedule remove"),
    Route(_POST, f"{_SCHEDULES}/pause", "schedules.pause", "Pause a schedule", _SCHEDULE, None,
          do=_schedule(wire.SUSPEND), act="schedule pause"),
    Route(_POST, f"{_SCHEDULES}/resume", "schedules.resume", "Resume a schedule at its next run", _SCHEDULE,
          ScheduleRow, do=_schedule(wire.GO_ON), act="schedule resume"),
    Route(_POST, f"{_SCHEDULES}/run", "schedules.run", "Push one job of a schedule now", _SCHEDULE, str,
          do=_schedule(wire.RUN), act="schedule run"),
    Route(
        _GET, _OPERATIONS, "operations.list", "Operations on many jobs of the last day, the latest first",
        Needs(Action.MANAGE, shows=visible.all_operations), OperationsRow,
        do=lambda of, _call: OperationsRow(operations=tuple(of.admin.tasks.latest())),
    ),
    Route(
        _GET, f"{_OPERATIONS}/{{task_id}}", "operations.get", "One operation", _OPERATION, OperationRow,
        do=lambda of, _call, task_id: of.admin.tasks.find(task_id), former=f"{BASE}/tasks/{{task_id}}",
    ),
    Route(
        _POST, f"{_OPERATIONS}/{{task_id}}/cancel", "operations.cancel",
        "End an operation after the jobs that it is working on", _OPERATION, None,
        do=lambda of, _call, task_id: of.admin.tasks.cancel(task_id), act="tcancel",
        former=f"{BASE}/tasks/{{task_id}}/cancel",
    ),
)  # fmt: skip
