"""Administrative acts: from a request to its record, in which there are no secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import gevent

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq.protocol.json_values import dumps
from sluicemq_broker.store import AuditRecord
from sluicemq_devices.sockets import host_and_port

if TYPE_CHECKING:
    from sluicemq_broker.security.audit import Audit

log = logging.getLogger("broker.audit")

#: Characters of a text, and fields, in the details of an act, at most.
LONGEST: Final = 128
_MOST_FIELDS: Final = 50
#: Fields whose values are recorded. Of others, which may be secret, there is only the name.
_SHOWN: Final = frozenset(
    (
        *("what", "state", "to", "all", "ids", "job_id", "task_id", "reason", "since", "until", "limit"),
        *("priority", "delay", "first", "watermark", "name", "id"),
        *("queue", "cron", "every", "timezone", "misfire"),
        *("permissions", "tenant", "kind", "drop", "force"),
        *("version", "pid"),
    )
)


class Outcome(StrEnum):
    """How an act ended. ``begun``: it went on as a task, whose end is not known, or is its code."""

    DONE = "done"
    BEGUN = "begun"
    REFUSED = "refused"


class Door(StrEnum):
    """Ways by which acts come, beside the names of devices: their doors have logins."""

    SMQ = "smq"
    HTTP = "http"
    STORE = "store"
    BROKER = "broker"


class Unchanged(NamedTuple):
    """Answer of an order that says what holds already: it has changed nothing, so it is not recorded."""

    answer: Any = None


def plain(answer: Any) -> Any:
    """Return an answer as it goes out."""
    return answer.answer if isinstance(answer, Unchanged) else answer


class Act:
    """One administrative act, from its request to its record. As a context it records how it failed."""

    __slots__ = ("_audit", "_given", "_queue", "_record")

    def __init__(
        self, audit: Audit, record: AuditRecord, given: Mapping[str, Any], queue: str | None
    ) -> None:
        self._audit = audit
        self._record = record
        self._given = given
        self._queue = queue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if error is not None:
            self.refused(error.code if isinstance(error, SluiceError) else UnavailableError.code)

    def done(self, answer: object = None) -> None:
        """Record that it is done; a number that it answered is how many it concerned. Waits for MongoDB.

        An order that says what holds already is not recorded.
        """
        if isinstance(answer, Unchanged):
            return
        counted = isinstance(answer, int) and not isinstance(answer, bool)
        self._over(Outcome.DONE, {"count": answer} if counted else {})

    def begun(self, task: str, outcome: Callable[[], object]) -> None:
        """Record that it goes on as this task, and how that ends; waits for MongoDB, but not for the end.

        ``outcome()`` waits for it, and returns the answer or raises the error.
        """
        self._over(Outcome.BEGUN, {"task": task})
        gevent.spawn(self._follow, task, outcome)

    def refused(self, code: str) -> None:
        """Count it as refused; never waits."""
        self._audit.count(replace(self._record, outcome=Outcome.REFUSED, code=code))

    def _follow(self, task: str, outcome: Callable[[], object]) -> None:
        try:
            answer = outcome()
        except SluiceError as error:
            self._over(Outcome.BEGUN, {"task": task}, error.code)
            return
        if isinstance(answer, int):  # else somebody has ended it, or another broker takes it up
            self._over(Outcome.DONE, {"task": task, "count": answer})

    def _over(self, outcome: Outcome, more: Mapping[str, Any], code: str = "") -> None:
        about = {key: value for key, value in details(self._given).items() if value != self._record.name}
        record = replace(self._record, about={**about, **more}, outcome=outcome, code=code)
        extra = {"queue": self._queue, "job": self._given.get("job_id")} if self._queue else {}
        log.info("%s", _sentence(record), extra=extra)
        self._audit.keep(record)


def address_of(peer: str) -> str:
    """Return the address of a peer without its port, which changes with each connection."""
    with suppress(ValueError):
        return host_and_port(peer)[0] if peer.startswith("tcp://") else peer
    return peer


def details(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request says, without secrets: values of known fields, names of the others.

    Lists are shown as their length. Maps in it are read as if their fields were given beside it.
    """
    about: dict[str, Any] = {}
    hidden: list[str] = []
    for name, value in _flat(given):
        if value is None:
            continue
        if name in _SHOWN and len(about) < _MOST_FIELDS:
            about[name] = _printable(name, value)
        elif len(hidden) < _MOST_FIELDS:
            hidden.append(name[:LONGEST])
    return {**about, "fields": sorted(hidden)} if hidden else about


def _flat(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, dict) and name != "permissions":
            yield from ((str(key), item) for key, item in value.items())
        else:
            yield name, value


def _printable(name: str, value: Any) -> Any:
    if name == "permissions":
        return (value if isinstance(value, str) else dumps(value))[:512]
    if isinstance(value, list | dict):
        return len(value)
    return value if isinstance(value, bool | int | float) else str(value)[:LONGEST]


def _sentence(record: AuditRecord) -> str:
    about = " ".join(f"{key}={value}" for key, value in record.about.items())
    who = record.principal or "an anonymous client"
    what = " ".join(filter(None, (record.action, record.name)))
    return f"{who} from {record.peer} ({record.door}): {what}: {record.outcome} {about}".rstrip()
