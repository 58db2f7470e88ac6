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
from sluicemq_broker.admin import Admin
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.api import BASE
from sluicemq_broker.queues import Task
from sluicemq_broker.runtime import read_json

log = logging.getLogger("broker.http")

#: Seconds to wait for an operation on many jobs before the answer is its task.
_WAIT: Final = 2.0
_CHOSEN_BY: Final = ("ids", "reason", "since", "until", "limit")


def routes(admin: Admin) -> dict[str, object]:
    """Return the resources by their paths."""
    queue, job = f"{BASE}/queues/{{queue}}", f"{BASE}/queues/{{queue}}/jobs/{{job_id}}"
    schedule = f"{BASE}/schedules/{{name}}"
    dead = admin.dead_letters

    def scheduled(action: str) -> Callable[..., Any]:
        return lambda _said, name: admin.schedules.do(action, {"name": name})

    orders: dict[str, Callable[..., Any]] = {
        f"{BASE}/token": lambda _said: None,
        f"{queue}/pause": lambda said, queue: admin.queues.pause(queue, _what(said)),
        f"{queue}/resume": lambda said, queue: admin.queues.resume(queue, _what(said)),
        f"{queue}/purge": lambda said, queue: admin.queues.purge(queue, _text(said, "state")),
        f"{job}/retry": lambda _said, queue, job_id: dead.redrive(queue, {"ids": [job_id]}, None),
        f"{job}/promote": lambda _said, queue, job_id: admin.jobs.promote(queue, job_id),
        f"{job}/cancel": lambda _said, queue, job_id: admin.jobs.cancel(queue, job_id),
        f"{job}/delete": lambda _said, queue, job_id: admin.jobs.remove(queue, job_id),
        f"{queue}/dead/redrive": lambda said, queue: dead.redrive(queue, _dead_letters(said), _to(said)),
        f"{queue}/dead/delete": lambda said, queue: dead.discard(queue, _dead_letters(said)),
        f"{schedule}/pause": scheduled(wire.SUSPEND),
        f"{schedule}/resume": scheduled(wire.GO_ON),
        f"{schedule}/run": scheduled(wire.RUN),
        f"{BASE}/tasks/{{task_id}}/cancel": lambda _said, task_id: admin.tasks.cancel(task_id),
    }
    return {path: _Order(order) for path, order in orders.items()}


class _Order:
    """A path that changes something."""

    def __init__(self, order: Callable[..., Any]) -> None:
        self._order = order

    def on_post(self, request: falcon.Request, response: falcon.Response, **parameters: str) -> None:
        """Answer ``{answer}``, or ``{task, done, total}`` of an operation that goes on."""
        said = _said(request)
        outcome = self._order(said, **parameters)
        if isinstance(outcome, Task):
            outcome = outcome.outcome(_WAIT)
        about = {"queue": parameters.get("queue"), "job": parameters.get("job_id")}
        log.info("%s by %s: %s", request.path, request.remote_addr, said or "-", extra=about)
        goes_on = isinstance(outcome, dict) and TaskField.TASK in outcome
        write(response, outcome if goes_on else {"answer": outcome})


def _said(request: falcon.Request) -> dict[str, Any]:
    text = request.bounded_stream.read()
    try:
        said = read_json(text) if text else {}
    except ValueError as error:
        raise BadFrames(f"a request that changes something needs a JSON object: {error}") from error
    if not isinstance(said, dict):
        raise BadFrames("a request that changes something needs a JSON object")
    return said


def _dead_letters(said: dict[str, Any]) -> dict[str, Any]:
    """Return which dead letters are chosen: by at least one field, or ``all``."""
    which = {name: said[name] for name in _CHOSEN_BY if said.get(name) is not None}
    if not which and said.get("all") is not True:
        raise BadFrames(f"choose dead letters by {', '.join(_CHOSEN_BY)}, or all: true")
    return which


def _to(said: dict[str, Any]) -> str | None:
    return _text(said, "to") if said.get("to") is not None else None


def _what(said: dict[str, Any]) -> str:
    return _text(said, "what") if "what" in said else wire.DELIVERY


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str):
        raise BadFrames(f"{name} is a string")
    return value
