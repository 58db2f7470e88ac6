"""The audit: each administrative act, login and refusal is logged, and recorded in MongoDB, without secrets.

An act is recorded before its answer goes out, unless MongoDB takes longer than two seconds for that: then the
record is written when MongoDB answers again. Logins and refusals that are alike are counted in one record a
minute (an hour for logins), so that a flood of them makes few records.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from gevent.event import Event
from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.permissions import Action
from sluicemq_broker.runtime import Batcher, Count, Counters
from sluicemq_broker.security.acts import LONGEST, Act, Door, Outcome, address_of, details
from sluicemq_broker.security.authorize import Caller
from sluicemq_broker.store import MOST_AUDITED, AuditKind, AuditRecord
from sluicemq_devices.hub import in_parts
from sluicemq_devices.sockets import owner_of

#: Seconds within which refusals that are alike are one record; and logins.
REFUSALS_IN_ONE: Final = 60.0
LOGINS_IN_ONE: Final = 3600.0
#: Records of logins and refusals that are counted at one time: of one address, and of all. More of them are
#: counted together, without a name, and then without an address.
MOST_OF_ONE: Final = 50
MOST_COUNTED: Final = 1000
#: Acts that wait in memory while MongoDB does not answer, at most.
MOST_UNWRITTEN: Final = 10_000
#: Records that are written until the next look at how many there are.
TRIMMED_AFTER: Final = 10_000


class Records(Protocol):
    """Where records are written."""

    def write(self, records: Sequence[AuditRecord], /) -> None:
        """Write them; raises Unavailable."""

    def trim(self, before: float, most: int, /) -> int:
        """Remove old ones, and those that are too many; raises Unavailable."""


class _Alike(NamedTuple):
    """Fields by which logins or refusals are one record."""

    principal: str
    key: str
    peer: str
    door: str
    action: str
    name: str
    code: str


class Audit:
    """Records of one broker. Until :meth:`begin` they are only logged, and counted ones forgotten."""

    def __init__(
        self, counters: Counters, now: Callable[[], float] = time.time, longest_wait: float = 2.0
    ) -> None:
        self._counters = counters
        self._now = now
        self._longest_wait = longest_wait
        self._records: Records | None = None
        self._broker = ""
        self._unwritten: dict[str, AuditRecord] = {}
        self._counted: dict[_Alike, AuditRecord] = {}
        self._of_owner: Counter[str] = Counter()  # of the addresses
        self._flushing = BoundedSemaphore()
        self._flushes: Batcher[Event] = Batcher(self._flush, size=MOST_UNWRITTEN)
        self._since_trim = 0
        self.retention = 0.0
        """Seconds for which records are kept; 0: none are made."""

    def begin(self, records: Records, broker: str, now: Callable[[], float], retention: float) -> None:
        """Record from now on."""
        self._records, self._broker, self._now, self.retention = records, broker, now, retention

    # ----------------------------------------------------------------- what happens

    def act(
        self,
        caller: Caller,
        door: str,
        action: str,
        name: str,
        given: Mapping[str, Any],
        queue: str | None = None,
    ) -> Act:
        """Return the act of a caller on ``name``; ``given``: what the request says.

        ``queue``: the one that it is about, for the log.
        """
        return Act(self, self._by(caller, door, action, name), given, queue)

    def note(self, action: str, about: Mapping[str, Any], code: str = "") -> None:
        """Record an act of this broker itself; with ``code``: it was refused. Never waits."""
        record = replace(self._new(), door=Door.BROKER, action=action, about=details(about), code=code)
        self._add(replace(record, outcome=Outcome.REFUSED if code else Outcome.DONE))
        self._flushes.add(Event())

    def login(self, caller: Caller, door: str) -> None:
        """Count that somebody got in; never waits."""
        self.count(replace(self._by(caller, door, "login", ""), outcome=Outcome.DONE))

    def logout(self, caller: Caller, door: str) -> None:
        """Count that somebody has ended a login; never waits."""
        self.count(replace(self._by(caller, door, "logout", ""), outcome=Outcome.DONE))

    def failed_login(self, peer: str, door: str, name: str, code: str) -> None:
        """Count that somebody did not get in; never waits.

        ``name``: of the principal that was meant; not what was typed, which may be a password.
        """
        record = replace(self._new(), peer=address_of(peer), door=door, action="login", name=name)
        self.count(replace(record, outcome=Outcome.REFUSED, code=code))

    def keep(self, record: AuditRecord) -> None:
        """Write a record; returns when it is stored, or after two seconds."""
        if self._is_off:
            return
        self._add(record)
        stored = Event()
        self._flushes.add(stored)
        stored.wait(self._longest_wait)

    def count(self, record: AuditRecord) -> None:
        """Count a login or a refusal among those that are alike; never waits."""
        if self._is_off:
            return
        like = self._place(_Alike(*(str(getattr(record, name))[:LONGEST] for name in _Alike._fields)))
        before = self._counted.get(like)
        if before is None or not self._is_open(before):
            self._of_owner[owner_of(like.peer)] += before is None
            new = replace(record, **like._asdict(), kind=AuditKind.COUNTED, until=record.at)
            self._flushes.add(Event())
        else:
            new = replace(before, count=before.count + 1, until=record.at)
        self._counted[like] = self._unwritten[new.id] = new

    # ---------------------------------------------------------------- MongoDB

    @property
    def unwritten(self) -> list[AuditRecord]:
        """Records that are not written yet, or were counted on since."""
        return list(self._unwritten.values())

    def flush(self) -> None:
        """Write what is not written yet; raises Unavailable."""
        records = self._records
        if records is None:
            return
        with self._flushing:
            left = self.unwritten
            for some in in_parts(left, 200):
                records.write(some)
                self._since_trim += len(some)
                for record in some:
                    if self._unwritten.get(record.id) is record:  # else it was counted on meanwhile
                        del self._unwritten[record.id]
            self._forget()

    def tick(self) -> None:
        """Write what is left, and remove what is too much after many records; raises Unavailable."""
        self.flush()
        if self._since_trim > TRIMMED_AFTER:
            self.trim()

    def trim(self) -> None:
        """Remove records that are older than the retention, or too many; raises Unavailable."""
        if self._records and self.retention:
            self._since_trim = 0
            self._records.trim(self._now() - self.retention, MOST_AUDITED)

    @property
    def _is_off(self) -> bool:
        return self._records is None or not self.retention

    def _flush(self, waiting: list[Event]) -> None:
        try:
            self.flush()
        except UnavailableError as error:
            self._counters.notice(Count.STORE_UNAVAILABLE, f"records of the audit must wait: {error}")
        finally:
            for record in waiting:
                record.set()

    def _add(self, record: AuditRecord) -> None:
        if self._is_off:
            return
        if len(self._unwritten) >= MOST_UNWRITTEN:
            del self._unwritten[next(iter(self._unwritten))]
            self._counters.notice(Count.AUDIT_LOST, "MongoDB takes no records of the audit: the log has them")
        self._unwritten[record.id] = record

    def _is_open(self, counted: AuditRecord) -> bool:
        """Return whether more may be counted in a record: it is young, or not written since."""
        lasts = LOGINS_IN_ONE if counted.outcome == Outcome.DONE else REFUSALS_IN_ONE
        return counted.id in self._unwritten or self._now() - counted.at < lasts

    def _place(self, like: _Alike) -> _Alike:
        """Return where to count: with others that are less alike, where there are too many."""
        owner = owner_of(like.peer)
        if like not in self._counted and self._of_owner[owner] >= MOST_OF_ONE:
            like = like._replace(key="", peer=owner, name="")
        if like not in self._counted and len(self._counted) >= MOST_COUNTED:
            like = like._replace(principal="", key="", peer="", name="")
        return like

    def _forget(self) -> None:
        """Forget counted records that are written and over."""
        self._counted = {like: counted for like, counted in self._counted.items() if self._is_open(counted)}
        self._of_owner = Counter(owner_of(like.peer) for like in self._counted)

    def _new(self) -> AuditRecord:
        return AuditRecord(id=secrets.token_hex(12), at=self._now(), broker=self._broker)

    def _by(self, caller: Caller, door: str, action: str, name: str) -> AuditRecord:
        who: dict[str, Any] = {
            "principal": caller.name,
            "key": caller.key[:12],
            "peer": address_of(caller.peer),
            "kind": AuditKind.OPERATORS if caller.may(Action.OPERATE) else AuditKind.OTHERS,
        }
        return replace(self._new(), **who, door=door, action=action, name=name[:LONGEST])
