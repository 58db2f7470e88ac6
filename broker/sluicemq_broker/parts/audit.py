"""The audit as a part of the broker: it is written, read and bounded here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import AuditPage, AuditRow
from sluicemq.protocol.rules import Rule, kept, number, whole
from sluicemq_broker import __version__
from sluicemq_broker.doors import AdminVerb
from sluicemq_broker.process.duties import Duty
from sluicemq_broker.process.foundation import retried
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.runtime import read_options
from sluicemq_broker.security import Needs, Outcome
from sluicemq_broker.store import AuditChoice, AuditStore

if TYPE_CHECKING:
    from sluicemq_broker.http import Site

NEEDS: Final = {wire.AUDIT: Needs(Action.OPERATE)}
#: Records in one answer, at most.
MOST_READ: Final = 1000
#: Largest time in Unix seconds: the end of the year 9999, MongoDB's dates and Python's end there.
_LATEST: Final = 253_402_300_799


class AuditPart(Part):
    """Records of administrative acts, logins and refusals."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        foundation = core.foundation
        self._store = AuditStore(foundation.database(foundation.settings.database))
        self._audit = core.services.security.audit
        self._audit.begin(
            self._store, foundation.name, foundation.clock.now, foundation.settings.audit_retention
        )
        self._there = False
        self.verbs = {
            wire.AUDIT: AdminVerb(lambda _: self, AuditPart.read, NEEDS[wire.AUDIT], (dict,), reads=True)
        }

    def add_paths(self, site: Site) -> None:
        """Add the list of records."""
        site.ask(
            "/audit",
            "audit.list",
            "Administrative acts, logins and refusals of all brokers, the newest first",
            NEEDS[wire.AUDIT],
            AuditPage,
            lambda call: self.read({name: getattr(call.query, name) for name in _OPTIONS}),
            query=AuditQuery,
        )

    def prepare(self) -> None:
        """Make the indexes, and record that the broker has started."""
        retried(self._store.prepare)
        self._there = True
        self._audit.note("start", {"version": __version__, "pid": os.getpid()})

    def duties(self) -> Iterator[Duty]:
        """Return what writes counted records, and removes old ones."""
        yield Duty("records of the audit", 5.0, self._audit.tick)
        yield Duty("old records of the audit", 1800.0, self._audit.trim)

    def leave(self) -> None:
        """Record that the broker stops, and write what is left."""
        if self._there:
            self._audit.note("stop", {"pid": os.getpid()})
            with suppress(SluiceError):
                self._audit.flush()

    def read(self, options: dict[str, Any]) -> AuditPage:
        """Return records, the newest first."""
        given = read_options(options, _OPTIONS, "an AUDIT")
        most = given.pop("limit", 100)
        with suppress(SluiceError):
            self._audit.flush()
        rows, last = self._store.page(AuditChoice(**given), most)
        place = last and f"{round(last[0] * 1000)}-{last[1]}"
        return AuditPage(records=tuple(AuditRow(**row) for row in rows), next=place)


class AuditQuery(Struct, frozen=True):
    """Records of the audit."""

    principal: str | None = None
    action: Annotated[str, Meta(description="such as purge; its first word alone chooses all")] | None = None
    name: Annotated[str, Meta(description="of the queue, stream, schedule or principal")] | None = None
    outcome: Outcome | None = None
    since: float | None = None
    until: float | None = None
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


def _place(value: Any) -> tuple[float, str]:
    """Return time and id of the last record of a page, from its ``next``."""
    at, _, last = value.partition("-") if isinstance(value, str) else ("", "", "")
    if not (at.isascii() and at.isdecimal() and len(at) <= 15 and last):
        raise ValueError
    return min(int(at) / 1000, _LATEST), last


_OUTCOMES: Final = tuple(str(outcome) for outcome in Outcome)
_OPTIONS: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        ("principal", "action", "name"),
        kept("a text of up to 128 characters", lambda value: isinstance(value, str) and len(value) <= 128),
    ),
    "outcome": kept(" or ".join(_OUTCOMES), lambda value: value in _OUTCOMES),
    **dict.fromkeys(("since", "until"), number(0, _LATEST, "Unix seconds")),
    "after": Rule("the next of the page before", _place),
    "limit": whole(1, MOST_READ),
}
