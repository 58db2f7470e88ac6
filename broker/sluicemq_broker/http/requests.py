"""Paths, query parameters and bodies of the API, read as values; a wrong one raises BadFrames."""

from __future__ import annotations

from typing import Any, Final, Protocol

import falcon

from sluicemq.protocol.errors import BadFrames
from sluicemq_broker.admin import CHOICE, View
from sluicemq_broker.runtime import read_json
from sluicemq_broker.security import Needs
from sluicemq_broker.store import DeadLetters

BASE: Final = "/api/v1"

#: Paths of the API: each with the resource that answers it, and the permission that it needs.
Routes = dict[str, tuple[object, Needs]]


class Query(Protocol):
    """The parameters of a request."""

    def get_param(self, name: str, /) -> str | None:
        """Return the value of one parameter, if it is there."""


def view(request: falcon.Request) -> View:
    """Return which queues to show, in which order."""
    return View(
        sort=request.get_param("sort") or "name",
        contains=(request.get_param("contains") or "")[:64],
        offset=request.get_param_as_int("offset", default=0),
        limit=request.get_param_as_int("limit", default=0),
        reverse=request.get_param_as_bool("reverse", default=False, blank_as_true=True),
        only=(request.get_param("only") or "")[:64],
    ).check()


def dead_letters(request: falcon.Request) -> DeadLetters:
    """Return which dead letters are chosen by ``reason``, ``since`` and ``until``."""
    chosen = {}
    for name in ("reason", "since", "until"):
        try:
            if text := request.get_param(name):
                chosen[name] = CHOICE[name].of_text(text)
        except ValueError as error:
            raise BadFrames(f"{name} is {error}") from None
    return DeadLetters(**chosen)


def read_body(request: falcon.Request) -> dict[str, Any]:
    """Read the body of a request; raises BadFrames."""
    content = request.bounded_stream.read()
    try:
        body = read_json(content) if content else {}
    except ValueError as error:
        raise BadFrames(f"a request that changes something needs a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise BadFrames("a request that changes something needs a JSON object")
    return body


def text_of(body: dict[str, Any], name: str) -> str:
    """Return a field of a body that must be a string."""
    value = body.get(name)
    if not isinstance(value, str):
        raise BadFrames(f"{name} is a string")
    return value
