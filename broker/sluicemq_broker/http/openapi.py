"""``/api/v1/openapi.json``, made of the table of paths and the rows of their answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from inspect import cleandoc
from typing import Any, Final

import msgspec
from msgspec import Struct

from sluicemq.protocol.rows import BegunRow, ErrorRow
from sluicemq_broker.http.authorization import HEADER
from sluicemq_broker.http.route import BASE, Method, Nothing, Route, Table

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": ("BadRequest", "the request is wrong: the message says how"),
    "401": ("Unauthorized", "a token or a login is needed, or the token is wrong"),
    "403": (
        "Forbidden",
        "the caller may not do this, or changes are not allowed here, or not from this page",
    ),
    "404": ("NotFound", "not found"),
    "415": ("NotJson", "not JSON"),
    "429": ("TooMany", "too many wrong tokens"),
    "503": ("Unavailable", "MongoDB does not answer, or too much is asked at once"),
}
#: Names in paths.
_NAMES: Final = {
    "queue": "the name of a queue",
    "stream": "the name of a stream",
    "job_id": "the id of a job",
    "name": "the name of the subject",
    "task_id": "the id of an operation",
    "subject": "queue, stream, device or broker",
}


def document(table: Table) -> dict[str, Any]:
    """Return the OpenAPI document of these paths."""
    routes = {
        (path, method): route
        for path, by_method in table.items()
        for method, (route, _) in by_method.items()
        if not path.startswith("/dashboard/")
    }
    schemas = _Schemas(routes.values())
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), route in sorted(routes.items()):
        paths.setdefault(path, {})[method.lower()] = _operation(route, schemas, former=path != route.path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SluiceMQ",
            "version": "1",
            "description": "Read and change a broker. A caller shows `Authorization: Bearer` with the token "
            "of `[broker] http_token` or of a principal, or has a session: the cookie that `/api/v1/login` "
            "sets. A caller with neither is anonymous and may read what `[security] anonymous` permits. An "
            "answer has only what its caller may see. A POST changes something: it needs a token or a "
            "session, the header `X-SluiceMQ-Action` with any value, and `Content-Type: application/json`. "
            "Times are Unix seconds where nothing else is said. Later versions only add fields: a client "
            "ignores those that it does not know.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {
                name: {"description": text, "content": {"application/json": {"schema": schemas.of(ErrorRow)}}}
                for name, text in _ERRORS.values()
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "sluicemq_session"},
            },
        },
    }


def text(table: Table) -> str:
    """Return :func:`document` as JSON."""
    return json.dumps(document(table), indent=1, ensure_ascii=False) + "\n"


class _Schemas:
    """The schemas of all types that paths take and answer with."""

    def __init__(self, routes: Iterable[Route]) -> None:
        types = [BegunRow, ErrorRow]
        for route in routes:
            types += [kind for kind in (route.answer, route.query, route.body) if _is_a_type(kind)]
        self._types = list(dict.fromkeys(types))
        found, components = msgspec.json.schema_components(self._types, ref_template=_REF)
        self._found = dict(zip(map(repr, self._types), map(_corrected, found), strict=True))
        self._components = {name: _corrected(component) for name, component in components.items()}

    @property
    def components(self) -> dict[str, Any]:
        """Return the schemas by name, without defaults: generators take those fields for required ones."""
        return {
            "Bytes": {
                "description": "text, or base64 for bytes that are no text",
                "oneOf": [
                    {"type": "string"},
                    {"type": "object", "properties": {"base64": {"type": "string"}}, "required": ["base64"]},
                ],
            },
            **{name: _without_defaults(component) for name, component in self._components.items()},
        }

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type; of Any the one that fits everything."""
        return self._found[repr(kind)] if _is_a_type(kind) else ({"type": "null"} if kind is None else {})

    def fields(self, kind: type[Struct]) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the schemas of a struct's fields by name, and which of them are required."""
        name = self.of(kind)["$ref"].rpartition("/")[2]
        schema = self._components[name]
        return schema.get("properties", {}), schema.get("required", ())


def _is_a_type(kind: Any) -> bool:
    return kind is not None and kind is not Any and kind is not Nothing


def _corrected(schema: Any) -> Any:
    """Return a schema with bytes as this door writes them; msgspec says that they are always base64."""
    if isinstance(schema, dict):
        if schema.get("contentEncoding") == "base64":
            return {"$ref": _REF.format(name="Bytes")}
        found = {key: _corrected(value) for key, value in schema.items()}
        if isinstance(words := found.get("description"), str):
            found["description"] = cleandoc(words)
        return found
    return [_corrected(item) for item in schema] if isinstance(schema, list) else schema


def _without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    fields = {
        name: {key: value for key, value in property_.items() if key != "default"}
        for name, property_ in schema.get("properties", {}).items()
    }
    return {**schema, "properties": fields} if fields else schema


def _operation(route: Route, schemas: _Schemas, *, former: bool) -> dict[str, Any]:
    is_change = route.method is Method.POST
    parameters = [_in_path(name) for name in route.names]
    if route.query is not Nothing:
        properties, required = schemas.fields(route.query)
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in properties.items()
        ]
    if is_change:
        parameters.insert(0, _action_header())
    words = route.name.replace(".", "_")
    return {
        "operationId": f"{words}_former" if former else words,
        "tags": [route.name.partition(".")[0]],
        "summary": route.summary,
        **({"deprecated": True} if former else {}),
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": _body(route, schemas)} if is_change else {}),
        "responses": {
            "200": {
                "description": route.summary,
                "content": {route.media: {"schema": _answer(route, schemas)}},
            },
            **{status: {"$ref": f"#/components/responses/{_ERRORS[status][0]}"} for status in _errors(route)},
        },
        **_security(route),
    }


def _answer(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """Return the schema of an answer; that of a change is in ``answer``, or goes on as an operation."""
    schema = schemas.of(route.answer)
    if route.media != "application/json":
        return {"type": "string"}
    if route.method is Method.GET or route.path == f"{BASE}/login":
        return schema
    done = {"type": "object", "properties": {"answer": schema}, "required": ["answer"]}
    return {"anyOf": [done, schemas.of(BegunRow)]}


def _body(route: Route, schemas: _Schemas) -> dict[str, Any]:
    schema = {"type": "object"} if route.body is Nothing else schemas.of(route.body)
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _errors(route: Route) -> list[str]:
    """Return the statuses with which a path may refuse."""
    is_change = route.method is Method.POST
    when = {
        "400": is_change or route.query is not Nothing,
        "401": is_change or route.needs is not None,
        "403": is_change or route.needs is not None,
        "404": bool(route.names),
        "415": is_change,
        "429": is_change or route.needs is not None,
        "503": is_change or route.asks_store or route.name == "health.ready",
    }
    return [status for status, may in when.items() if may]


def _security(route: Route) -> dict[str, Any]:
    if route.needs is None:
        return {"security": []}
    anonymous: list[dict[str, list[str]]] = [] if route.method is Method.POST else [{}]
    return {"security": [{"token": []}, {"session": []}, *anonymous]}


def _action_header() -> dict[str, Any]:
    words = "any value: pages of other sites can't send this header"
    return {
        "name": HEADER,
        "in": "header",
        "required": True,
        "description": words,
        "schema": {"type": "string"},
    }


def _in_path(name: str) -> dict[str, Any]:
    about = {"name": name, "in": "path", "required": True, "description": _NAMES[name]}
    return {**about, "schema": {"type": "string"}}
