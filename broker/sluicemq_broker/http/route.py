"""A path of the HTTP door, as the tables of them describe it.

A row says what the path takes, answers and needs. Authorization, the checks of parameters and bodies, the
status 405, the audit, and OpenAPI (:mod:`openapi`) are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import falcon
import msgspec
from msgspec import Struct

from sluicemq.protocol.errors import BadFramesError
from sluicemq_broker.runtime import read_json
from sluicemq_broker.security import Caller, Needs

BASE: Final = "/api/v1"
#: What a path answers with that is not JSON.
PLAIN_TEXT: Final = "text/plain"
EVENT_STREAM: Final = "text/event-stream"

S = TypeVar("S", bound=Struct)


class Method(StrEnum):
    """The methods of HTTP that this door knows; a HEAD is a GET."""

    GET = "GET"
    POST = "POST"


class Nothing(Struct, frozen=True):
    """Parameters, or a body, of a path that takes none."""


class Call(NamedTuple):
    """A request, as a path's function gets it: its caller, and its checked parameters and body."""

    caller: Caller
    query: Any
    body: Any


class Route(NamedTuple):
    """One path with one method. ``name``: noun and verb, as the library has them.

    ``summary``: for people. ``needs``: None: everybody may, also before a login. ``answer``: the type of the
    answer. ``do(subject, call, **names)`` returns it; ``names`` are those of the path. ``writes``: it is
    ``do(subject, request, response, **names)`` and writes an answer that is no JSON, or has a rule of its
    own. ``query`` and ``body``: what the path takes. ``act``: its name in the audit. ``asks_store``: it waits
    for MongoDB, so it takes a turn. ``former``: the path in version 0.3, which works for one more.
    """

    method: Method
    path: str
    name: str
    summary: str
    needs: Needs | None
    answer: Any
    do: Callable[..., Any]
    writes: bool = False
    query: type[Struct] = Nothing
    body: type[Struct] = Nothing
    act: str = ""
    asks_store: bool = True
    media: str = falcon.MEDIA_JSON
    former: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names in the path, such as ``queue``."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


#: The routes of a door by path and method, each with the subject that its function gets.
Table = dict[str, dict[str, tuple[Route, Any]]]


def add(table: Table, routes: Iterable[Route], subject: Any) -> list[str]:
    """Add routes to a table; return the paths that are new there."""
    new: list[str] = []
    for route in routes:
        for path in filter(None, (route.path, route.former)):
            if path not in table:
                new.append(path)
            table.setdefault(path, {})[route.method] = route, subject
    return new


def read_query(route: Route, request: falcon.Request) -> Struct:
    """Return the parameters of a request; raises BadFrames, which names the one that is wrong.

    Of a parameter that comes twice the last counts. One without a value is as if it were not there, or true.
    """
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(route.query):
        value = request.params.get(field.encode_name)
        value = value[-1] if isinstance(value, list) else value
        if value:
            given[field.encode_name] = value
        elif value is not None and field.type is bool:
            given[field.encode_name] = True
    return read(route.query, given, strict=False)


def read(kind: type[S], given: Mapping[str, Any], *, strict: bool = True) -> S:
    """Return a map of values as this type; raises BadFrames, which says what is wrong where."""
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = f"{where.rstrip('`')}: " if where else ""
        raise BadFramesError(f"{name}{what[:1].lower()}{what[1:]}") from None


def read_body(request: falcon.Request) -> dict[str, Any]:
    """Read the body of a request; raises BadFrames."""
    content = request.bounded_stream.read()
    try:
        body = read_json(content) if content else {}
    except ValueError as error:
        raise BadFramesError(f"a request that changes something needs a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise BadFramesError("a request that changes something needs a JSON object")
    return body
