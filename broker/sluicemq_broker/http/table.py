"""The paths of ``/api/v1``, and of health and metrics: one row for each. Parts of the broker add theirs.

A change is a POST with JSON. It calls a method of :class:`~sluicemq_broker.admin.Admin`, as verbs of SMQ/1
do, and is an act of the audit. A long operation on many jobs is answered with its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import falcon

from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import (
    BrokersRow,
    CountersRow,
    CountRow,
    DevicesRow,
    JobPage,
    JobRow,
    KindsRow,
    MeRow,
    OperationRow,
    OperationsRow,
    QueuePage,
    QueueRow,
    ReadinessRow,
    ReasonsRow,
    RedriveRow,
    ScheduleRow,
    SchedulesRow,
    SettingRow,
    SettingsRow,
    WorkersRow,
    plain,
)
from sluicemq_broker.admin import (
    OF_ON_DEAD,
    OF_REDRIVE,
    Admin,
    Snapshots,
    View,
    redrive_needs,
    visible_in_turns,
)
from sluicemq_broker.http import health
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.callers import Callers
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.handler import CONNECTION
from sluicemq_broker.http.inputs import (
    ChangeBody,
    DeadBody,
    DeadPageQuery,
    DeadQuery,
    JobQuery,
    JobsQuery,
    KeysBody,
    LoginBody,
    OfQueue,
    RedriveBody,
    ScheduleBody,
    SettingsBody,
    StateBody,
    WhatBody,
)
from sluicemq_broker.http.metrics import Metrics
from sluicemq_broker.http.requests import read_body
from sluicemq_broker.http.route import BASE, PLAIN_TEXT, Call, Method, Route
from sluicemq_broker.security import NOTHING, Caller, Need, Needs, visible

#: Bytes in memory from which on a job is large.
_LARGE: Final = 256 * 1024
_GET, _POST = Method.GET, Method.POST


class Sources(NamedTuple):
    """The sources of the answers of the door's paths."""

    admin: Admin
    snapshots: Snapshots
    callers: Callers
    metrics: Metrics
    turns: FairTurns
    memory: AnswerMemory


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


def _queues(of: Sources, call: Call) -> QueuePage:
    """Return all queues, or the page that the parameters choose, of those that the caller may read."""
    if call.query == View():
        return QueuePage(queues=tuple(visible_in_turns(call.caller, of.admin.queues.kept())))
    return of.snapshots.latest().of(call.caller).page(call.query)


def _workers(of: Sources, call: Call) -> WorkersRow:
    seen = visible.names(call.caller, Action.READ)
    queue, fleet = call.query.queue, of.admin.fleet
    here = tuple(of.admin.queues.workers(queue, seen))
    return WorkersRow(workers=here, elsewhere=fleet.workers(queue), gone=fleet.gone(queue))


def _kinds(of: Sources, call: Call) -> KindsRow:
    seen = visible.names(call.caller, Action.READ)
    return KindsRow(kinds=tuple(of.admin.queues.kinds(call.query.queue, seen)))


def _jobs(of: Sources, call: Call, queue: str) -> JobPage:
    query: JobsQuery = call.query
    if query.id is not None:
        return of.admin.jobs.with_ids(queue, query.id, query.limit)
    return of.admin.jobs.page(queue, query.state, query.limit, query.after)


def _read_job(of: Sources, request: falcon.Request, queue: str, job_id: str) -> dict[str, Any]:
    """Read one job with all its fields; a large one only when there is memory for it."""
    connection, jobs = request.env[CONNECTION], of.admin.jobs
    with of.turns.turn(connection.served):
        request.context.ask_again()
        size = jobs.weigh_show(queue, job_id)
        if size <= _LARGE:
            return dict(plain(jobs.show(queue, job_id)))
    with of.memory.for_large(size, connection), of.turns.turn(connection.served):
        request.context.ask_again()
        return dict(plain(jobs.show(queue, job_id)))


def _serve_job(
    of: Sources, request: falcon.Request, response: falcon.Response, queue: str, job_id: str
) -> None:
    """Answer with one job; of its payload and result with as many bytes as are wanted, and their lengths."""
    most = request.context.query.payload
    shown = _read_job(of, request, queue, job_id)
    for name in ("payload", "result"):
        value = shown.get(name)
        if isinstance(value, bytes):
            shown[f"{name}_bytes"] = len(value)
            if most is not None and len(value) > most:
                shown[name] = value[:most]
    write(response, shown)


def _serve_payload(
    of: Sources, request: falcon.Request, response: falcon.Response, queue: str, job_id: str
) -> None:
    """Answer with a payload as a file to save; a browser never interprets it."""
    response.data = _read_job(of, request, queue, job_id).get("payload", b"")
    response.content_type = "application/octet-stream"
    response.downloadable_as = "payload.bin"


def _schedule(action: str) -> Any:
    return lambda of, call, name: of.admin.schedules.by(call.caller).do(action, {"name": name})


def _of_operation(request: falcon.Request, task_id: str) -> Iterator[Need]:
    """Yield what an operation needs: its queue is not in the path."""
    yield Action.MANAGE, request.context.subject.admin.tasks.find(task_id).queue


def _of_schedule(request: falcon.Request, name: str) -> Iterator[Need]:
    """Yield what a change of a schedule needs: its queue is not in the path."""
    yield Action.MANAGE, request.context.subject.admin.schedules.queue_of(name)


def _of_new_schedule(request: falcon.Request, name: str) -> list[Need]:
    schedules, body = request.context.subject.admin.schedules, request.context.body
    needs: list[Need] = schedules.needs(wire.ADD, {**body, "name": name})
    return needs


def _of_settings(request: falcon.Request, queue: str) -> list[Need]:
    queues, settings = request.context.subject.admin.queues, request.context.body.get("settings")
    needs: list[Need] = queues.needs(queue, settings)
    return needs


def _of_redrive(request: falcon.Request, queue: str) -> list[Need]:
    to = request.context.body.get("to")
    return redrive_needs(queue, to if isinstance(to, str) else None)


_READS: Final = Needs(Action.READ, "queue")
_MANAGES: Final = Needs(Action.MANAGE, "queue")
_OPERATES: Final = Needs(Action.OPERATE)
_OPERATION: Final = Needs(Action.MANAGE, more=_of_operation, hidden=True)
_SCHEDULE: Final = Needs(Action.MANAGE, more=_of_schedule, hidden=True)
_QUEUE: Final = f"{BASE}/queues/{{queue}}"
_JOB: Final = f"{_QUEUE}/jobs/{{job_id}}"
_DEAD: Final = f"{_QUEUE}/dead-letters"
_OLD_DEAD: Final = f"{_QUEUE}/dead"
_SCHEDULES: Final = f"{BASE}/schedules/{{name}}"
_OPERATIONS: Final = f"{BASE}/operations"

HEALTH: Final = (
    Route(
        _GET, "/healthz", "health.live", "The process lives", None,
        serve=health.live, media=PLAIN_TEXT, asks_store=False,
    ),
    Route(
        _GET, "/readyz", "health.ready", "The broker can take and hand out jobs; 503 says what is wrong",
        None,
        ReadinessRow, serve=lambda of, _request, response: health.ready(of.admin.broker, response),
        asks_store=False,
    ),
    Route(
        _GET, "/metrics", "metrics.get", "All figures, as OpenMetrics for a client that accepts it", NOTHING,
        serve=lambda of, request, response: of.metrics.on_get(request, response),
        media=PLAIN_TEXT, asks_store=False,
    ),
)  # fmt: skip
CALLERS: Final = (
    Route(
        _GET, f"{BASE}/me", "me.get", "Who the caller is, and what it may do", NOTHING, MeRow,
        serve=_serve_me, asks_store=False,
    ),
    Route(_POST, f"{BASE}/login", "me.login", "Begin a session, whose cookie is set", None, MeRow,
          serve=_log_in, body=LoginBody),
    Route(_POST, f"{BASE}/logout", "me.logout", "End the session", NOTHING, None, serve=_log_out),
    Route(_POST, f"{BASE}/token", "me.check", "Check the token", NOTHING, None,
          do=lambda _of, _call: None, act="token"),
)  # fmt: skip
BROKERS: Final = (
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
        _GET, f"{BASE}/kinds", "kinds.list", "The kinds of jobs, as this broker has counted them",
        Needs(Action.READ, "queue", shows=visible.all_kinds), KindsRow,
        do=_kinds, query=OfQueue, asks_store=False,
    ),
)  # fmt: skip
QUEUES: Final = (
    Route(
        _GET, f"{BASE}/queues", "queues.list",
        "All queues, with the counts that the broker keeps; with any parameter a page of them", NOTHING,
        QueuePage, do=_queues, query=View, asks_store=False,
    ),
    Route(_GET, _QUEUE, "queues.get", "One queue, counted now", _READS, QueueRow,
          do=lambda of, _call, queue: of.admin.queues.one(queue)),
    Route(
        _GET, f"{_QUEUE}/settings", "queues.settings",
        "The settings of a queue, and what brokers' files say differently; * is all queues", _READS,
        SettingsRow, do=lambda of, _call, queue: of.admin.queues.settings(queue),
    ),
    Route(
        _POST, f"{_QUEUE}/settings/set", "queues.set_settings",
        "Set settings of a queue at all brokers; * is all queues",
        Needs(Action.MANAGE, "queue", more=_of_settings, also=OF_ON_DEAD), list[SettingRow],
        do=lambda of, call, queue: of.admin.queues.set_settings(queue, call.body.settings, call.caller),
        body=SettingsBody, act="set", former=f"{_QUEUE}/set",
    ),
    Route(
        _POST, f"{_QUEUE}/settings/unset", "queues.unset_settings",
        "Take settings of a queue back, so that files count again", _MANAGES, list[SettingRow],
        do=lambda of, call, queue: of.admin.queues.unset_settings(queue, list(call.body.keys)),
        body=KeysBody, act="unset", former=f"{_QUEUE}/unset",
    ),
    Route(
        _POST, f"{_QUEUE}/pause", "queues.pause", "Pause delivery or intake of a queue", _MANAGES, list[str],
        do=lambda of, call, queue: of.admin.queues.pause(queue, call.body.what), body=WhatBody, act="pause",
    ),
    Route(
        _POST, f"{_QUEUE}/resume", "queues.resume", "Resume delivery or intake of a queue", _MANAGES,
        list[str], do=lambda of, call, queue: of.admin.queues.resume(queue, call.body.what),
        body=WhatBody, act="resume",
    ),
    Route(
        _POST, f"{_QUEUE}/purge", "queues.purge", "Remove all jobs of a state", _MANAGES, int,
        do=lambda of, call, queue: of.admin.queues.purge(queue, call.body.state), body=StateBody, act="purge",
    ),
    Route(_POST, f"{_QUEUE}/delete", "queues.delete", "Remove a queue with all its jobs", _MANAGES, int,
          do=lambda of, _call, queue: of.admin.queues.delete(queue), act="delete"),
)  # fmt: skip
JOBS: Final = (
    Route(
        _GET, f"{_QUEUE}/jobs", "jobs.list",
        "Jobs of a state, page by page: waiting jobs in the order of delivery, ended jobs with the latest "
        "first; or jobs by the beginning of their id", _READS, JobPage, do=_jobs, query=JobsQuery,
    ),
    Route(_GET, _JOB, "jobs.get", "One job", _READS, JobRow, serve=_serve_job, query=JobQuery),
    Route(
        _GET, f"{_JOB}/payload", "jobs.payload", "A job's payload as it was pushed, as a file", _READS,
        serve=_serve_payload, media="application/octet-stream",
    ),
    Route(_POST, f"{_JOB}/promote", "jobs.promote", "Make a delayed job due now", _MANAGES, None,
          do=lambda of, _call, queue, job_id: of.admin.jobs.promote(queue, job_id), act="promote"),
    Route(
        _POST, f"{_JOB}/change", "jobs.change", "Give a waiting job another priority, another delay, or both",
        _MANAGES, None,
        do=lambda of, call, queue, job_id: of.admin.jobs.change(queue, job_id, call.body.fields()),
        body=ChangeBody, act="change",
    ),
    Route(_POST, f"{_JOB}/cancel", "jobs.cancel", "Remove a waiting job", _MANAGES, None,
          do=lambda of, _call, queue, job_id: of.admin.jobs.cancel(queue, job_id), act="cancel"),
    Route(_POST, f"{_JOB}/delete", "jobs.delete", "Remove a job that no worker has", _MANAGES, None,
          do=lambda of, _call, queue, job_id: of.admin.jobs.remove(queue, job_id), act="remove"),
    Route(
        _POST, f"{_JOB}/redrive", "jobs.redrive", "Make a dead letter ready again", _MANAGES, RedriveRow,
        do=lambda of, _call, queue, job_id: of.admin.dead_letters.redrive(queue, {"ids": [job_id]}, None),
        act="redrive", former=f"{_JOB}/retry",
    ),
)  # fmt: skip
DEAD_LETTERS: Final = (
    Route(
        _GET, _DEAD, "dead_letters.list",
        "Dead letters, the latest first; a page may have fewer than `limit` and still have a next one",
        _READS, JobPage,
        do=lambda of, call, queue: of.admin.dead_letters.page(
            queue, call.query.which(), call.query.limit, call.query.after
        ),
        query=DeadPageQuery, former=_OLD_DEAD,
    ),
    Route(
        _GET, f"{_DEAD}/count", "dead_letters.count", "How many dead letters match", _READS, CountRow,
        do=lambda of, call, queue: of.admin.dead_letters.count(queue, call.query.which()),
        query=DeadQuery, former=f"{_OLD_DEAD}/count",
    ),
    Route(
        _GET, f"{_DEAD}/reasons", "dead_letters.by_reason",
        "Why the latest 900 died, the most frequent reasons first", _READS, ReasonsRow,
        do=lambda of, call, queue: of.admin.dead_letters.reasons(queue, call.query.which()),
        query=DeadQuery, former=f"{_OLD_DEAD}/reasons",
    ),
    Route(
        _POST, f"{_DEAD}/redrive", "dead_letters.redrive", "Make dead letters ready again, the oldest first",
        Needs(Action.MANAGE, "queue", more=_of_redrive, also=OF_REDRIVE), RedriveRow,
        do=lambda of, call, queue: of.admin.dead_letters.redrive(queue, call.body.which(), call.body.to),
        body=RedriveBody, act="redrive", former=f"{_OLD_DEAD}/redrive",
    ),
    Route(
        _POST, f"{_DEAD}/discard", "dead_letters.discard", "Remove dead letters, the oldest first", _MANAGES,
        int, do=lambda of, call, queue: of.admin.dead_letters.discard(queue, call.body.which()),
        body=DeadBody, act="discard", former=f"{_OLD_DEAD}/delete",
    ),
)  # fmt: skip
SCHEDULES: Final = (
    Route(
        _GET, f"{BASE}/schedules", "schedules.list", "Recurring jobs",
        Needs(Action.MANAGE, shows=visible.all_schedules), SchedulesRow,
        do=lambda of, _call: SchedulesRow(schedules=tuple(of.admin.schedules.do(wire.LIST, {}))),
    ),
    Route(
        _POST, f"{_SCHEDULES}/add", "schedules.add", "Push a job again and again; replaces one of this name",
        Needs(Action.MANAGE, more=_of_new_schedule, hidden=True), ScheduleRow,
        do=lambda of, call, name: of.admin.schedules.by(call.caller).do(wire.ADD, call.body.fields(name)),
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
)  # fmt: skip
OPERATIONS: Final = (
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
#: All paths that are answered from :class:`Sources`.
CORE: Final = (
    *HEALTH, *CALLERS, *BROKERS, *QUEUES, *JOBS, *DEAD_LETTERS, *SCHEDULES, *OPERATIONS,
)  # fmt: skip
