"""Changes over HTTP as acts in the audit: each POST whose path needs ``manage`` or ``operate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon

from sluicemq_broker.queues import Task
from sluicemq_broker.security import Audit, Door, Needs

#: Answers from this status on are refusals.
_REFUSED = 400


class Recorded:
    """Records changes when they are answered; ``needs``: of all paths."""

    def __init__(self, audit: Audit, needs: Mapping[str, Needs | None]) -> None:
        self._audit = audit
        self._needs = needs

    def answered(self, request: falcon.Request, response: falcon.Response, resource: object) -> None:
        """Record a change before its answer goes out; waits for MongoDB.

        A request whose caller is not known is none: a wrong token is counted as a login.
        """
        path, context = request.uri_template, request.context
        needs = self._needs.get(path) if path else None
        changes = request.method == "POST" and hasattr(resource, "on_post")
        if not (changes and needs and needs.administers and hasattr(context, "caller")):
            return
        parameters: dict[str, str] = context.parameters
        queue = parameters.get("queue")
        act = self._audit.act(
            context.caller,
            Door.HTTP,
            getattr(resource, "action", str(path)),
            queue if queue is not None else parameters.get("name", ""),
            {**getattr(context, "body", {}), **parameters},
            queue,
        )
        outcome = getattr(context, "answer", None)
        if response.status_code >= _REFUSED:
            act.refused(_code_of(response))
        elif isinstance(outcome, Task):
            act.begun(outcome.id, outcome.outcome)
        else:
            act.done(outcome)


def _code_of(response: falcon.Response) -> str:
    media: Any = response.media
    return str(media["code"]) if isinstance(media, dict) and "code" in media else str(response.status_code)
