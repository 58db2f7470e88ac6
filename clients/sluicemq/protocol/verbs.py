"""Nouns and verbs: each order and question of administration, as library, command line and HTTP name it.

Tests hold the namespaces of ``Client``, the commands of ``sluicemq`` and the paths of HTTP to this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Verb(NamedTuple):
    """One verb of a noun. ``smq``: the verb of SMQ/1; empty: it is made of others.

    ``command``: the command, ``queues show``; empty: the command line has it elsewhere. ``http``: method and
    path below ``/api/v1``; empty: HTTP does not have it.
    """

    noun: str
    name: str
    smq: str
    command: str
    http: str = ""

    @property
    def method(self) -> str:
        """Return the method of the library, as in ``queues.get``."""
        return f"{self.noun}.{self.name}"


_Rows = tuple[tuple[str, ...], ...]

#: By noun: verb, verb of SMQ/1, its name on the command line (``-``: none), method and path of HTTP.
_TABLE: Final[dict[str, _Rows]] = {
    "queues": (
        ("list", "QUEUES", "list", "GET /queues"),
        ("get", "QUEUE", "show", "GET /queues/{queue}"),
        ("settings", "SETTINGS", "settings", "GET /queues/{queue}/settings"),
        ("set_settings", "SET", "set-settings", "POST /queues/{queue}/set"),
        ("unset_settings", "UNSET", "unset-settings", "POST /queues/{queue}/unset"),
        ("pause", "PAUSE", "pause", "POST /queues/{queue}/pause"),
        ("resume", "RESUME", "resume", "POST /queues/{queue}/resume"),
        ("purge", "PURGE", "purge", "POST /queues/{queue}/purge"),
        ("delete", "DELETE", "delete"),
        ("wait_until_empty", "", "wait-until-empty"),
    ),
    "jobs": (
        ("list", "PEEK", "list", "GET /queues/{queue}/jobs"),
        ("get", "SHOW", "show", "GET /queues/{queue}/jobs/{job_id}"),
        ("change", "CHANGE", "change"),
        ("promote", "PROMOTE", "promote", "POST /queues/{queue}/jobs/{job_id}/promote"),
        ("cancel", "CANCEL", "cancel", "POST /queues/{queue}/jobs/{job_id}/cancel"),
        ("result", "RESULT", "result"),
        ("reserve", "READY", "-"),
        ("pop", "READY", "-"),
    ),
    "dead_letters": (
        ("list", "PEEK", "list", "GET /queues/{queue}/dead"),
        ("count", "DEAD", "count", "GET /queues/{queue}/dead/count"),
        ("by_reason", "DEAD", "by-reason", "GET /queues/{queue}/dead/reasons"),
        ("redrive", "REDRIVE", "redrive", "POST /queues/{queue}/dead/redrive"),
        ("discard", "DISCARD", "discard", "POST /queues/{queue}/dead/delete"),
    ),
    "streams": (
        ("list", "STREAMS", "list", "GET /streams"),
        ("get", "STREAM", "show"),
        ("trim", "TRIM", "trim"),
        ("erase", "ERASE", "erase"),
    ),
    "subscriptions": (
        ("list", "SUBS", "list"),
        ("seek", "SEEK", "seek"),
        ("release", "FREE", "release"),
        ("delete", "FORGET", "delete"),
    ),
    "schedules": (
        ("list", "SCHEDULE list", "list", "GET /schedules"),
        ("get", "SCHEDULE list", "show"),
        ("add", "SCHEDULE add", "add"),
        ("remove", "SCHEDULE remove", "remove"),
        ("pause", "SCHEDULE pause", "pause", "POST /schedules/{name}/pause"),
        ("resume", "SCHEDULE resume", "resume", "POST /schedules/{name}/resume"),
        ("run", "SCHEDULE run", "run", "POST /schedules/{name}/run"),
    ),
    "principals": (
        ("list", "USERS list", "list"),
        ("get", "USERS show", "show"),
        ("add", "USERS add", "add"),
        ("grant", "USERS permit", "grant"),
        ("rotate", "USERS rotate", "rotate"),
        ("remove", "USERS remove", "remove"),
    ),
    "operations": (
        ("list", "TASKS", "list", "GET /tasks"),
        ("get", "TASK", "show", "GET /tasks/{task_id}"),
        ("cancel", "TCANCEL", "cancel", "POST /tasks/{task_id}/cancel"),
        ("wait", "TASK", "wait"),
    ),
    "brokers": (
        ("list", "BROKERS", "list", "GET /brokers"),
        ("schema", "BROKERS", "-"),
        ("upgrade", "UPGRADE", "upgrade"),
    ),
    "workers": (("list", "WORKERS", "list", "GET /workers"),),
    "events": (("read", "EVENTS", "read"), ("follow", "EVENTS", "follow")),
    "history": tuple(
        (each, "HISTORY", each, "GET /history/{subject}/{name}")
        for each in ("queue", "stream", "device", "broker")
    ),
    "audit": (("list", "AUDIT", "list", "GET /audit"), ("iterate", "AUDIT", "-")),
}


def _verbs() -> Iterator[Verb]:
    for noun, rows in _TABLE.items():
        for name, smq, command, *http in rows:
            whole = "" if command == "-" else f"{noun.replace('_', '-')} {command}"
            yield Verb(noun, name, smq, whole, *http)


VERBS: Final[tuple[Verb, ...]] = tuple(_verbs())
