"""Nouns and verbs: each order and question of administration, as library, command line and HTTP name it.

Tests hold the namespaces of ``Client``, the commands of ``sluicemq`` and the paths of HTTP to this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Verb(NamedTuple):
    """One verb of a noun. ``smq``: the verb of SMQ/1; empty: it is made of others.

    ``command``: the command, ``queues show``; empty: the command line has it elsewhere.
    """

    noun: str
    name: str
    smq: str
    command: str

    @property
    def method(self) -> str:
        """Return the method of the library, and the name of the path of HTTP, as in ``queues.get``."""
        return f"{self.noun}.{self.name}"


_Rows = tuple[tuple[str, str, str], ...]

#: By noun: verb, verb of SMQ/1, its name on the command line (``-``: none).
_TABLE: Final[dict[str, _Rows]] = {
    "queues": (
        ("list", "QUEUES", "list"),
        ("get", "QUEUE", "show"),
        ("backlog", "BACKLOG", "-"),
        ("settings", "SETTINGS", "settings"),
        ("set_settings", "SET", "set-settings"),
        ("unset_settings", "UNSET", "unset-settings"),
        ("pause", "PAUSE", "pause"),
        ("resume", "RESUME", "resume"),
        ("purge", "PURGE", "purge"),
        ("delete", "DELETE", "delete"),
        ("wait_until_empty", "", "wait-until-empty"),
    ),
    "jobs": (
        ("list", "PEEK", "list"),
        ("get", "SHOW", "show"),
        ("ended", "ENDS", "ended"),
        ("find", "FIND", "-"),
        ("change", "CHANGE", "change"),
        ("promote", "PROMOTE", "promote"),
        ("cancel", "CANCEL", "cancel"),
        ("result", "RESULT", "result"),
        ("reserve", "READY", "-"),
        ("pop", "READY", "-"),
    ),
    "dead_letters": (
        ("list", "PEEK", "list"),
        ("latest", "DEAD", "-"),
        ("iterate", "DEAD", "export"),
        ("count", "DEAD", "count"),
        ("by_reason", "DEAD", "by-reason"),
        ("by_error", "ERRORS", "by-error"),
        ("redrive", "REDRIVE", "redrive"),
        ("discard", "DISCARD", "discard"),
    ),
    "streams": (
        ("list", "STREAMS", "list"),
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
        ("list", "SCHEDULE list", "list"),
        ("get", "SCHEDULE list", "show"),
        ("add", "SCHEDULE add", "add"),
        ("delete", "SCHEDULE remove", "delete"),
        ("pause", "SCHEDULE pause", "pause"),
        ("resume", "SCHEDULE resume", "resume"),
        ("run", "SCHEDULE run", "run"),
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
        ("list", "TASKS", "list"),
        ("get", "TASK", "show"),
        ("cancel", "TCANCEL", "cancel"),
        ("wait", "TASK", "wait"),
    ),
    "brokers": (
        ("list", "BROKERS", "list"),
        ("schema", "BROKERS", "-"),
        ("upgrade", "UPGRADE", "upgrade"),
    ),
    "workers": (
        ("list", "WORKERS", "list"),
        ("quiet", "WORKER quiet", "quiet"),
        ("stop", "WORKER stop", "stop"),
    ),
    "kinds": (("list", "KINDS", "list"),),
    "events": (("read", "EVENTS", "read"), ("follow", "EVENTS", "follow")),
    "history": tuple((of, "HISTORY", of) for of in ("queue", "kind", "stream", "device", "broker")),
    "incidents": (("list", "INCIDENTS", "list"),),
    "audit": (("list", "AUDIT", "list"), ("iterate", "AUDIT", "-")),
}


def _verbs() -> Iterator[Verb]:
    for noun, rows in _TABLE.items():
        for name, smq, command in rows:
            whole = "" if command == "-" else f"{noun.replace('_', '-')} {command}"
            yield Verb(noun, name, smq, whole)


VERBS: Final[tuple[Verb, ...]] = tuple(_verbs())
