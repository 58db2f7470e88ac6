"""``/api/v1``: what a broker knows, as JSON; nothing here changes anything.

``openapi.json`` beside this file is the contract; a test holds every answer against it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib import resources
from typing import Any, Final

import falcon
from gevent.lock import BoundedSemaphore

from sluicemq.errors import BadFrames
from sluicemq_broker.http.reader import Reader
from sluicemq_broker.job import State
from sluicemq_broker.store import SHOWN_STATES

BASE: Final = "/api/v1"
_MOST_PEEKED: Final = 200
#: Questions that MongoDB is asked at once: they share its connections with the jobs.
_ASKED_AT_ONCE: Final = 4


def routes(reader: Reader) -> dict[str, object]:
    """The resources by their paths."""
    turn = BoundedSemaphore(_ASKED_AT_ONCE)

    def asking(answer: Callable[..., Any]) -> _Answer:
        return _Answer(answer, turn)

    return {
        f"{BASE}/openapi.json": _Document(),
        f"{BASE}/broker": _Answer(lambda _request: reader.about()),
        f"{BASE}/queues": _Answer(lambda _request: {"queues": reader.kept()}),
        f"{BASE}/queues/{{queue}}": asking(lambda _request, queue: reader.queue(queue)),
        f"{BASE}/queues/{{queue}}/jobs": asking(
            lambda request, queue: {"jobs": reader.peek(queue, *_which_jobs(request))}
        ),
        f"{BASE}/queues/{{queue}}/jobs/{{job_id}}": asking(
            lambda _request, queue, job_id: reader.show(queue, job_id)
        ),
        f"{BASE}/workers": _Answer(lambda _request: {"workers": reader.workers()}),
        f"{BASE}/devices": _Answer(lambda _request: {"devices": reader.devices()}),
        f"{BASE}/history/{{subject}}/{{name}}": asking(
            lambda request, subject, name: reader.history(
                subject, name, request.get_param("day"), request.get_param("span") or "minute"
            )
        ),
    }


def as_json(value: Any) -> Any:
    """Bytes as text, or ``{"base64": ...}`` where they are none."""
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


class _Answer:
    """One path, whose answer is a value; ``turn``: it may wait for MongoDB, with few others."""

    def __init__(self, answer: Callable[..., Any], turn: BoundedSemaphore | None = None) -> None:
        self._answer = answer
        self._turn = turn

    def on_get(self, request: falcon.Request, response: falcon.Response, **parameters: str) -> None:
        if self._turn is None:
            response.media = self._answer(request, **parameters)
            return
        with self._turn:
            response.media = self._answer(request, **parameters)


class _Document:
    """The OpenAPI document itself."""

    def __init__(self) -> None:
        self._text = document_text()

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = falcon.MEDIA_JSON
        response.text = self._text


def document_text() -> str:
    """The contract, as it is shipped."""
    return resources.files(__package__).joinpath("openapi.json").read_text(encoding="utf-8")


def document() -> dict[str, Any]:
    """The contract, read."""
    return dict(json.loads(document_text()))


def _which_jobs(request: falcon.Request) -> tuple[str, int]:
    state = request.get_param("state") or State.READY
    if state not in SHOWN_STATES:
        raise BadFrames(f"state {state[:32]!r} is not one of {', '.join(SHOWN_STATES)}")
    limit = request.get_param_as_int("limit", min_value=1, max_value=_MOST_PEEKED, default=20)
    return state, limit
