"""``/api/v1``: what can be read of a broker, as JSON. Changes are in :mod:`actions`.

``openapi.json`` beside this file is the contract; a test checks every answer against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import resources
from typing import Any, Final

import falcon

from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import (
    DevicesRow,
    JobPage,
    OperationsRow,
    QueuePage,
    SchedulesRow,
    WorkersRow,
    plain,
)
from sluicemq_broker.admin import Admin, Snapshots, visible_in_turns
from sluicemq_broker.http.actions import of_task
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.handler import CONNECTION
from sluicemq_broker.http.requests import BASE, Routes, dead_letters, view
from sluicemq_broker.job import State
from sluicemq_broker.security import NOTHING, Needs, visible

_MOST_PEEKED: Final = 200
#: Requests that ask MongoDB at one time, for they share its connections with the jobs; and that wait.
AT_ONCE: Final = 4
WAITING: Final = 100
#: Bytes in memory from which on a job is large.
_LARGE: Final = 256 * 1024
_READS: Final = Needs(Action.READ, "queue")
_OPERATES: Final = Needs(Action.OPERATE)


def routes(admin: Admin, snapshots: Snapshots, turns: FairTurns, memory: AnswerMemory) -> Routes:
    """Return the resources by their paths."""
    stored = partial(Answer, turns=turns)

    return {
        f"{BASE}/openapi.json": (_Document(), NOTHING),
        f"{BASE}/broker": (Answer(lambda _request: admin.broker.about()), _OPERATES),
        f"{BASE}/brokers": (stored(lambda _request: admin.broker.brokers()), _OPERATES),
        f"{BASE}/queues": (Answer(lambda request: _queues(admin, snapshots, request)), NOTHING),
        **_of_a_queue(admin, turns, memory),
        f"{BASE}/workers": (
            Answer(partial(_workers, admin)),
            Needs(Action.READ, "queue", shows=visible.all_workers),
        ),
        f"{BASE}/devices": (Answer(lambda _request: DevicesRow(devices=admin.devices.all())), _OPERATES),
        f"{BASE}/schedules": (
            stored(lambda _request: SchedulesRow(schedules=tuple(admin.schedules.do(wire.LIST, {})))),
            Needs(Action.MANAGE, shows=visible.all_schedules),
        ),
        f"{BASE}/operations": (
            stored(lambda _request: OperationsRow(operations=tuple(admin.tasks.latest()))),
            Needs(Action.MANAGE, shows=visible.all_operations),
        ),
        f"{BASE}/operations/{{task_id}}": (
            stored(lambda _request, task_id: admin.tasks.find(task_id)),
            Needs(Action.MANAGE, more=partial(of_task, admin), hidden=True),
        ),
    }


def _of_a_queue(admin: Admin, turns: FairTurns, memory: AnswerMemory) -> Routes:
    """Return the resources of one queue and its jobs."""
    stored = partial(Answer, turns=turns)
    queue, job = f"{BASE}/queues/{{queue}}", f"{BASE}/queues/{{queue}}/jobs/{{job_id}}"
    resources: dict[str, object] = {
        queue: stored(lambda _request, queue: admin.queues.one(queue)),
        f"{queue}/settings": stored(lambda _request, queue: admin.queues.settings(queue)),
        f"{queue}/jobs": stored(lambda request, queue: _jobs(admin, request, queue)),
        job: _Job(admin, turns, memory),
        f"{job}/payload": _Payload(admin, turns, memory),
        f"{queue}/dead": stored(
            lambda request, queue: admin.dead_letters.page(queue, dead_letters(request), *_page(request))
        ),
        f"{queue}/dead/count": stored(
            lambda request, queue: admin.dead_letters.count(queue, dead_letters(request))
        ),
        f"{queue}/dead/reasons": stored(
            lambda request, queue: admin.dead_letters.reasons(queue, dead_letters(request))
        ),
    }
    return {path: (resource, _READS) for path, resource in resources.items()}


class Answer:
    """A path whose answer is a value, of which each caller gets what it may see.

    ``turns``: to ask MongoDB, for a few requests at one time.
    """

    def __init__(self, answer: Callable[..., Any], turns: FairTurns | None = None) -> None:
        self._answer = answer
        self._turns = turns

    def on_get(self, request: falcon.Request, response: falcon.Response, **parameters: str) -> None:
        """Write the answer as JSON."""
        turn = self._turns.turn(request.env[CONNECTION].served) if self._turns else nullcontext()
        with turn:
            request.context.ask_again()  # it may have waited for its turn
            write(response, request.context.show(self._answer(request, **parameters)))


class _OneJob:
    """A job; a large one is read from MongoDB only when there is memory for it."""

    def __init__(self, admin: Admin, turns: FairTurns, memory: AnswerMemory) -> None:
        self._jobs = admin.jobs
        self._turns = turns
        self._memory = memory

    def read(self, request: falcon.Request, queue: str, job_id: str) -> dict[str, Any]:
        """Read one job with all its fields."""
        connection = request.env[CONNECTION]
        with self._turns.turn(connection.served):
            request.context.ask_again()
            size = self._jobs.weigh_show(queue, job_id)
            if size <= _LARGE:
                return dict(plain(self._jobs.show(queue, job_id)))
        with self._memory.for_large(size, connection), self._turns.turn(connection.served):
            request.context.ask_again()
            return dict(plain(self._jobs.show(queue, job_id)))


class _Job(_OneJob):
    """One job; with ``payload``, that many bytes of the payload and result, and their true lengths."""

    def on_get(self, request: falcon.Request, response: falcon.Response, queue: str, job_id: str) -> None:
        most = request.get_param_as_int("payload", min_value=0)
        shown = self.read(request, queue, job_id)
        for name in ("payload", "result"):
            value = shown.get(name)
            if isinstance(value, bytes):
                shown[f"{name}_bytes"] = len(value)
                if most is not None and len(value) > most:
                    shown[name] = value[:most]
        write(response, shown)


class _Payload(_OneJob):
    """A job's payload as a file to save; a browser never interprets it."""

    def on_get(self, request: falcon.Request, response: falcon.Response, queue: str, job_id: str) -> None:
        response.data = self.read(request, queue, job_id).get("payload", b"")
        response.content_type = "application/octet-stream"
        response.downloadable_as = "payload.bin"


class _Document:
    """The OpenAPI document itself."""

    def __init__(self) -> None:
        self._text = document_text()

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = falcon.MEDIA_JSON
        response.text = self._text


def document_text() -> str:
    """Return the text of openapi.json."""
    return resources.files(__package__).joinpath("openapi.json").read_text(encoding="utf-8")


def document() -> dict[str, Any]:
    """Return openapi.json."""
    return dict(json.loads(document_text()))


def _workers(admin: Admin, request: falcon.Request) -> WorkersRow:
    seen = visible.names(request.context.caller, Action.READ)
    return WorkersRow(workers=tuple(admin.queues.workers(request.get_param("queue"), seen)))


def _queues(admin: Admin, snapshots: Snapshots, request: falcon.Request) -> QueuePage:
    """Return all queues, or the page that the parameters choose, of those that the caller may read."""
    caller = request.context.caller
    if not request.params:
        return QueuePage(queues=tuple(visible_in_turns(caller, admin.queues.kept())))
    return snapshots.latest().of(caller).page(view(request))


def _jobs(admin: Admin, request: falcon.Request, queue: str) -> JobPage:
    limit, after = _page(request)
    beginning = request.get_param("id")
    if beginning is not None:
        return admin.jobs.with_ids(queue, beginning, limit)
    return admin.jobs.page(queue, request.get_param("state") or State.READY, limit, after)


def _page(request: falcon.Request) -> tuple[int, str | None]:
    limit = request.get_param_as_int("limit", min_value=1, max_value=_MOST_PEEKED, default=20)
    return limit, request.get_param("after")
