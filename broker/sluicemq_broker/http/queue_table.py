"""The paths of queues, their jobs and dead letters; see :mod:`table`."""

from __future__ import annotations

from typing import Any, Final

import falcon

from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import (
    BacklogRow,
    CountRow,
    EndsRow,
    ErrorsRow,
    FoundPage,
    JobPage,
    JobRow,
    QueuePage,
    QueueRow,
    ReasonsRow,
    RedriveRow,
    SettingRow,
    SettingsRow,
    plain,
)
from sluicemq_broker.admin import (
    MOST_LISTED,
    OF_ON_DEAD,
    OF_REDRIVE,
    View,
    redrive_needs,
    visible_in_turns,
)
from sluicemq_broker.http.answers import Lines, write
from sluicemq_broker.http.handler import CONNECTION
from sluicemq_broker.http.inputs import (
    CancelBody,
    ChangeBody,
    DeadBody,
    DeadPageQuery,
    DeadQuery,
    EndsQuery,
    FindQuery,
    JobQuery,
    JobsQuery,
    KeysBody,
    OfQueue,
    PushBody,
    RedriveBody,
    SettingsBody,
    StateBody,
    WhatBody,
)
from sluicemq_broker.http.route import BASE, Call, Method, Route
from sluicemq_broker.http.sources import Sources
from sluicemq_broker.security import NOTHING, Effect, Need, Needs, visible

_LINES: Final = "application/x-ndjson"
_GET, _POST = Method.GET, Method.POST


def _queues(of: Sources, call: Call) -> QueuePage:
    """Return all queues, or the page that the parameters choose, of those that the caller may read."""
    if call.query == View():
        return QueuePage(queues=tuple(visible_in_turns(call.caller, of.admin.queues.kept())))
    return of.snapshots.latest().of(call.caller).page(call.query)


def _ended(of: Sources, call: Call, queue: str) -> EndsRow:
    return EndsRow(ends=tuple(of.admin.jobs.ended(queue, call.query.id, call.query.limit, call.caller)))


def _errors(of: Sources, call: Call) -> ErrorsRow:
    return of.admin.dead_letters.errors(call.query.queue, visible.names(call.caller, Action.READ))


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
        if size <= 256 * 1024:
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


def _export(of: Sources, request: falcon.Request, response: falcon.Response, queue: str) -> None:
    """Answer with dead letters as lines of JSON; a page is read in a turn, and asks for the right again."""
    which = request.context.query.which()

    def page(after: str | None) -> JobPage:
        with of.turns.turn(request.env[CONNECTION].served):
            request.context.ask_again()
            return of.admin.dead_letters.page(queue, which, MOST_LISTED, after, whole=True)

    response.stream = Lines(queue, page(None), page)
    response.content_type = _LINES
    response.downloadable_as = f"{queue}-dead-letters.jsonl"


def _of_settings(request: falcon.Request, queue: str) -> list[Need]:
    queues, settings = request.context.subject.admin.queues, request.context.body.get("settings")
    needs: list[Need] = queues.needs(queue, settings)
    return needs


def _of_redrive(request: falcon.Request, queue: str) -> list[Need]:
    to = request.context.body.get("to")
    return redrive_needs(queue, to if isinstance(to, str) else None)


_READS: Final = Needs(Action.READ, "queue")
_MANAGES: Final = Needs(Action.MANAGE, "queue")
_QUEUE: Final = f"{BASE}/queues/{{queue}}"
_JOB: Final = f"{_QUEUE}/jobs/{{job_id}}"
_DEAD: Final = f"{_QUEUE}/dead-letters"
_OLD_DEAD: Final = f"{_QUEUE}/dead"

#: All paths of this file.
OF_QUEUES: Final = (
    Route(
        _GET, f"{BASE}/queues", "queues.list",
        "All queues, with the counts that the broker keeps; with any parameter a page of them", NOTHING,
        QueuePage, do=_queues, query=View, asks_store=False,
    ),
    Route(_GET, _QUEUE, "queues.get", "One queue, counted now", _READS, QueueRow,
          do=lambda of, _call, queue: of.admin.queues.one(queue)),
    Route(
        _GET, f"{_QUEUE}/backlog", "queues.backlog",
        "What the jobs are that wait: by kind and tenant, by group; of the first 10,000", _READS, BacklogRow,
        do=lambda of, _call, queue: of.admin.queues.backlog(queue),
    ),
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
    Route(
        _GET, f"{_QUEUE}/jobs", "jobs.list",
        "Jobs of a state, page by page: waiting jobs in the order of delivery, ended jobs with the latest "
        "first; or jobs by the beginning of their id", _READS, JobPage, do=_jobs, query=JobsQuery,
    ),
    Route(
        _POST, f"{_QUEUE}/push", "jobs.push", "Push a job; its payload is text, or bytes in base64",
        Needs(Action.PUSH, "queue", also=(Effect(Action.CREATE, "the queue, if it is not there"),)), str,
        do=lambda of, call, queue: of.admin.jobs.push(
            queue, call.body.data(), call.body.options, call.caller
        ),
        body=PushBody,
    ),
    Route(_GET, _JOB, "jobs.get", "One job", _READS, JobRow, writes=True, do=_serve_job, query=JobQuery),
    Route(
        _GET, f"{_JOB}/payload", "jobs.payload", "A job's payload as it was pushed, as a file", _READS,
        Any, writes=True, do=_serve_payload, media="application/octet-stream",
    ),
    Route(
        _GET, f"{_QUEUE}/ended", "jobs.ended", "How jobs ended at this broker, the last first",
        _READS, EndsRow, do=_ended, query=EndsQuery,
    ),
    Route(
        _GET, f"{BASE}/find", "jobs.find",
        "Search all queues for jobs, by id or conditions, a tenth of a second long: a page may be empty and "
        "have a `next` one", Needs(Action.READ, "queue", shows=lambda _caller, answer: answer), FoundPage,
        do=lambda of, call: of.admin.finder.find(
            call.query.options(), call.query.limit, call.query.after, call.caller
        ),
        query=FindQuery, asks_store=False,
    ),
    Route(_POST, f"{_JOB}/promote", "jobs.promote", "Make a delayed job due now", _MANAGES, None,
          do=lambda of, _call, queue, job_id: of.admin.jobs.promote(queue, job_id), act="promote"),
    Route(
        _POST, f"{_JOB}/change", "jobs.change", "Give a waiting job another priority, another delay, or both",
        _MANAGES, None,
        do=lambda of, call, queue, job_id: of.admin.jobs.change(queue, job_id, call.body.fields()),
        body=ChangeBody, act="change",
    ),
    Route(
        _POST, f"{_JOB}/cancel", "jobs.cancel", "Remove a job that waits, or with `running` one at a worker",
        _MANAGES._replace(also=(Effect(Action.MANAGE, "the queues of its children, with `children`"),)), None,
        do=lambda of, call, queue, job_id: of.admin.jobs.cancel(
            queue, job_id, {"running": call.body.running, "children": call.body.children}, call.caller
        ),
        body=CancelBody, act="cancel",
    ),
    Route(_POST, f"{_JOB}/delete", "jobs.delete", "Remove a job that no worker has", _MANAGES, None,
          do=lambda of, _call, queue, job_id: of.admin.jobs.remove(queue, job_id), act="remove"),
    Route(
        _POST, f"{_JOB}/redrive", "jobs.redrive", "Make a dead letter ready again", _MANAGES, RedriveRow,
        do=lambda of, _call, queue, job_id: of.admin.dead_letters.redrive(queue, {"ids": [job_id]}, None),
        act="redrive", former=f"{_JOB}/retry",
    ),
    Route(
        _GET, f"{BASE}/errors", "dead_letters.by_error",
        "The errors of the latest dead letters, of all queues or one: what was raised, and where",
        Needs(Action.READ, "queue", shows=lambda _caller, answer: answer), ErrorsRow,
        do=_errors, query=OfQueue,
    ),
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
        _GET, f"{_DEAD}/export", "dead_letters.iterate",
        "Dead letters as lines of JSON, the latest first; payloads above 1 MiB are left out", _READS, Any,
        writes=True, do=_export, query=DeadQuery, media=_LINES,
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
