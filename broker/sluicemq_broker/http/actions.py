"""``/api/v1``: changes. Each is a POST with JSON, which :mod:`authorization` must allow first and reads.

Each calls a method of :class:`~sluicemq_broker.admin.Admin`, as the verbs of SMQ/1 do, and is an act of the
audit (:mod:`authorization`). A long operation on many jobs is answered with its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import falcon

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.wire import TaskField
from sluicemq_broker.admin import CHOICE, OF_ON_DEAD, OF_REDRIVE, Admin, redrive_needs
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.requests import BASE, Routes, text_of
from sluicemq_broker.queues import Task
from sluicemq_broker.security import NOTHING, Need, Needs, plain

#: Seconds to wait for an operation on many jobs before the answer is its task.
_WAIT: Final = 2.0


def routes(admin: Admin) -> Routes:
    """Return the resources by their paths."""
    queue, job = f"{BASE}/queues/{{queue}}", f"{BASE}/queues/{{queue}}/jobs/{{job_id}}"
    schedule = f"{BASE}/schedules/{{name}}"
    dead = admin.dead_letters

    def scheduled(action: str) -> Callable[..., Any]:
        return lambda _ignored, name, caller: admin.schedules.by(caller).do(action, {"name": name})

    changes = {
        f"{queue}/pause": Change("pause", lambda body, queue: admin.queues.pause(queue, _what(body))),
        f"{queue}/resume": Change("resume", lambda body, queue: admin.queues.resume(queue, _what(body))),
        f"{queue}/unset": Change(
            "unset", lambda body, queue: admin.queues.unset_settings(queue, _of_type(body, "keys", list))
        ),
        f"{queue}/purge": Change(
            "purge", lambda body, queue: admin.queues.purge(queue, text_of(body, "state"))
        ),
        f"{job}/retry": Change(
            "redrive", lambda _ignored, queue, job_id: dead.redrive(queue, {"ids": [job_id]}, None)
        ),
        f"{job}/promote": Change(
            "promote", lambda _ignored, queue, job_id: admin.jobs.promote(queue, job_id)
        ),
        f"{job}/cancel": Change("cancel", lambda _ignored, queue, job_id: admin.jobs.cancel(queue, job_id)),
        f"{job}/delete": Change("remove", lambda _ignored, queue, job_id: admin.jobs.remove(queue, job_id)),
        f"{queue}/dead/delete": Change(
            "discard", lambda body, queue: dead.discard(queue, _dead_letters(body))
        ),
    }
    of_schedules = {
        f"{schedule}/{action}": Change(f"schedule {action}", scheduled(action), by_caller=True)
        for action in (wire.SUSPEND, wire.GO_ON, wire.RUN)
    }
    of_tasks = {
        f"{BASE}/operations/{{task_id}}/cancel": Change(
            "tcancel", lambda _ignored, task_id: admin.tasks.cancel(task_id)
        )
    }
    return {
        f"{BASE}/token": (Change("token", lambda _ignored: None), NOTHING),
        **_needing(Needs(Action.MANAGE, "queue"), changes),
        f"{queue}/set": (
            Change(
                "set",
                lambda body, queue, caller: admin.queues.set_settings(
                    queue, _of_type(body, "settings", dict), caller
                ),
                by_caller=True,
            ),
            Needs(
                Action.MANAGE,
                "queue",
                more=lambda request, queue: admin.queues.needs(queue, request.context.body.get("settings")),
                also=OF_ON_DEAD,
            ),
        ),
        f"{queue}/dead/redrive": (
            Change("redrive", lambda body, queue: dead.redrive(queue, _dead_letters(body), _to(body))),
            Needs(
                Action.MANAGE,
                "queue",
                more=lambda request, queue: redrive_needs(queue, _to(request.context.body)),
                also=OF_REDRIVE,
            ),
        ),
        **_needing(Needs(Action.MANAGE, more=partial(_of_schedule, admin), hidden=True), of_schedules),
        **_needing(Needs(Action.MANAGE, more=partial(of_task, admin), hidden=True), of_tasks),
    }


def _needing(needs: Needs, changes: Mapping[str, Change]) -> Routes:
    return {path: (change, needs) for path, change in changes.items()}


class Change:
    """A path that changes something; ``action``: its name in the audit, that of the verb of SMQ/1.

    ``by_caller``: the change gets the caller, too, as ``caller``.
    """

    def __init__(self, action: str, change: Callable[..., Any], *, by_caller: bool = False) -> None:
        self.action = action
        self._change = change
        self._by_caller = by_caller

    def on_post(self, request: falcon.Request, response: falcon.Response, **parameters: str) -> None:
        """Answer ``{answer}``, or ``{task, done, total}`` of an operation that goes on."""
        context = request.context
        by = {"caller": context.caller} if self._by_caller else {}
        outcome = context.answer = self._change(context.body, **parameters, **by)
        if isinstance(outcome, Task):
            outcome = outcome.outcome(_WAIT)
        outcome = plain(outcome)
        goes_on = isinstance(outcome, dict) and TaskField.TASK in outcome
        write(response, outcome if goes_on else {"answer": outcome})


def _of_schedule(admin: Admin, _request: falcon.Request, name: str) -> Iterator[Need]:
    """Yield what a change of a schedule needs: its queue is not in the path."""
    yield Action.MANAGE, admin.schedules.queue_of(name)


def of_task(admin: Admin, request: falcon.Request, task_id: str) -> Iterator[Need]:
    """Yield what a task needs: its queue is not in the path."""
    if request.method in ("GET", "HEAD") or request.path.endswith("/cancel"):  # others are not answered
        yield Action.MANAGE, admin.tasks.find(task_id).queue


def _dead_letters(body: dict[str, Any]) -> dict[str, Any]:
    """Return which dead letters are chosen: by at least one field, or ``all``."""
    which = {name: body[name] for name in CHOICE if body.get(name) is not None}
    if not which and body.get("all") is not True:
        raise BadFrames(f"choose dead letters by {', '.join(CHOICE)}, or all: true")
    return which


def _to(body: dict[str, Any]) -> str | None:
    return text_of(body, "to") if body.get("to") is not None else None


def _of_type(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind):
        raise BadFrames(f"{name} is no {'object' if kind is dict else 'array'}")
    return value


def _what(body: dict[str, Any]) -> str:
    return text_of(body, "what") if "what" in body else wire.DELIVERY
