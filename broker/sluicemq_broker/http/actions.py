"""``/api/v1``: changes. Each is a POST with JSON, which :mod:`authorization` must allow first.

Each calls a method of :class:`~sluicemq_broker.admin.Admin`, as the verbs of SMQ/1 do, and is logged with the
client's address. A long operation on many jobs is answered with its task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import falcon

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames
from sluicemq.protocol.wire import TaskField
from sluicemq_broker.admin import CHOICE, Admin
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.api import BASE
from sluicemq_broker.queues import Task
from sluicemq_broker.runtime import read_json

log = logging.getLogger("broker.http")

#: Seconds to wait for an operation on many jobs before the answer is its task.
_WAIT: Final = 2.0


def routes(admin: Admin) -> dict[str, object]:
    """Return the resources by their paths."""
    queue, job = f"{BASE}/queues/{{queue}}", f"{BASE}/queues/{{queue}}/jobs/{{job_id}}"
    schedule = f"{BASE}/schedules/{{name}}"
    dead = admin.dead_letters

    def scheduled(action: str) -> Callable[..., Any]:
        return lambda _ignored, name: admin.schedules.do(action, {"name": name})

    changes: dict[str, Callable[..., Any]] = {
        f"{BASE}/token": lambda _ignored: None,
        f"{queue}/pause": lambda body, queue: admin.queues.pause(queue, _what(body)),
        f"{queue}/resume": lambda body, queue: admin.queues.resume(queue, _what(body)),
        f"{queue}/purge": lambda body, queue: admin.queues.purge(queue, _text(body, "state")),
        f"{job}/retry": lambda _ignored, queue, job_id: dead.redrive(queue, {"ids": [job_id]}, None),
        f"{job}/promote": lambda _ignored, queue, job_id: admin.jobs.promote(queue, job_id),
        f"{job}/cancel": lambda _ignored, queue, job_id: admin.jobs.cancel(queue, job_id),
        f"{job}/delete": lambda _ignored, queue, job_id: admin.jobs.remove(queue, job_id),
        f"{queue}/dead/redrive": lambda body, queue: dead.redrive(queue, _dead_letters(body), _to(body)),
        f"{queue}/dead/delete": lambda body, queue: dead.discard(queue, _dead_letters(body)),
        f"{schedule}/pause": scheduled(wire.SUSPEND),
        f"{schedule}/resume": scheduled(wire.GO_ON),
        f"{schedule}/run": scheduled(wire.RUN),
        f"{BASE}/tasks/{{task_id}}/cancel": lambda _ignored, task_id: admin.tasks.cancel(task_id),
    }
    return {path: _Change(change) for path, change in changes.items()}


class _Change:
    """A path that changes something."""

    def __init__(self, change: Callable[..., Any]) -> None:
        self._change = change

    def on_post(self, request: falcon.Request, response: falcon.Response, **parameters: str) -> None:
        """Answer ``{answer}``, or ``{task, done, total}`` of an operation that goes on."""
        body = _body(request)
        outcome = self._change(body, **parameters)
        if isinstance(outcome, Task):
            outcome = outcome.outcome(_WAIT)
        about = {"queue": parameters.get("queue"), "job": parameters.get("job_id")}
        log.info("%s by %s: %s", request.path, request.remote_addr, body or "-", extra=about)
        goes_on = isinstance(outcome, dict) and TaskField.TASK in outcome
        write(response, outcome if goes_on else {"answer": outcome})


def _body(request: falcon.Request) -> dict[str, Any]:
    text = request.bounded_stream.read()
    try:
        body = read_json(text) if text else {}
    except ValueError as error:
        raise BadFrames(f"a request that changes something needs a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise BadFrames("a request that changes something needs a JSON object")
    return body


def _dead_letters(body: dict[str, Any]) -> dict[str, Any]:
    """Return which dead letters are chosen: by at least one field, or ``all``."""
    which = {name: body[name] for name in CHOICE if body.get(name) is not None}
    if not which and body.get("all") is not True:
        raise BadFrames(f"choose dead letters by {', '.join(CHOICE)}, or all: true")
    return which


def _to(body: dict[str, Any]) -> str | None:
    return _text(body, "to") if body.get("to") is not None else None


def _what(body: dict[str, Any]) -> str:
    return _text(body, "what") if "what" in body else wire.DELIVERY


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise BadFrames(f"{name} is a string")
    return value
