"""Principals and logins in MongoDB, which all brokers on a database share: read, changed, followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.bus import BusEvent, BusKind, Channel
from sluicemq_broker.runtime import Batcher, Count, Counters
from sluicemq_broker.security.logins import Login, Logins
from sluicemq_broker.security.principals import Principals
from sluicemq_broker.store import (
    SECRET_RENEWED,
    Follower,
    LoginRecord,
    LoginStore,
    PrincipalRecord,
    PrincipalStore,
    Readable,
    Revised,
)
from sluicemq_devices.hub import nothing

Record = TypeVar("Record", bound=Revised)
Record_co = TypeVar("Record_co", bound=Revised, covariant=True)


class Store(Readable[Record_co], Protocol[Record_co]):
    """A store of documents that are followed."""

    def prepare(self) -> None:
        """Make the indexes; raises SluiceError."""


class Shared(Generic[Record]):
    """Follows documents of one database; while MongoDB is away those that were read last hold.

    ``use(records, complete)``: takes over what was read; True if that changes anything. ``now``: monotonic
    seconds.
    """

    kind: BusKind
    what: str

    def __init__(
        self,
        store: Store[Record],
        use: Callable[[Iterable[Record], bool], bool],
        channel: Callable[[], Channel],
        counters: Counters,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._documents = store
        self._use = use
        self._channel = channel
        self._counters = counters
        self._changes = Follower(store, now)
        self._reading = BoundedSemaphore()  # or an older answer would come behind a newer one
        self._events: Batcher[None] = Batcher(lambda _batch: self._try_to_follow(), size=1000)
        self.on_change: Callable[[], None] = nothing
        """Function that is called when something has changed: some connections may have to end."""

    def prepare(self) -> None:
        """Make the indexes, and read all; raises SluiceError."""
        self._documents.prepare()
        self.follow()

    def follow(self) -> None:
        """Read what has changed since the last read: one query of an index; raises Unavailable."""
        with self._reading:
            records, complete = self._changes.read()
            changed = self._use(records, complete)
        if changed:
            self.on_change()

    def on_event(self, _event: BusEvent) -> None:
        """Read: another broker has changed something; never blocks."""
        self._events.add(None)

    def _announce(self) -> None:
        self._channel().announce(BusEvent(self.kind))

    def _try_to_follow(self) -> None:
        try:
            self.follow()
        except UnavailableError as error:
            text = f"a change of {self.what} is not read yet: {error}"
            self._counters.notice(Count.STORE_UNAVAILABLE, text)


class SharedPrincipals(Shared[PrincipalRecord]):
    """The principals of one database."""

    kind = BusKind.PRINCIPALS
    what = "principals"

    def __init__(
        self,
        store: PrincipalStore,
        known: Principals,
        channel: Callable[[], Channel],
        counters: Counters,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store

        def use(records: Iterable[PrincipalRecord], complete: bool) -> bool:  # noqa: FBT001
            return known.use_stored(records, complete=complete)

        super().__init__(store, use, channel, counters, now)

    def change(
        self,
        name: str,
        change: Callable[[PrincipalRecord | None], PrincipalRecord | None],
        now: float,
        *,
        keep_operator: bool,
    ) -> PrincipalRecord | None:
        """Change a principal as :meth:`PrincipalStore.change`; returns when it holds at this broker.

        If MongoDB goes away right behind the change, it holds from the next look on; an error would lose a
        new token.
        """
        changed = self._store.change(name, change, now, keep_operator=keep_operator)
        self._try_to_follow()
        self._announce()
        return changed


class SharedLogins(Shared[LoginRecord]):
    """The logins of one database: the secrets that sign them, and those that were ended."""

    kind = BusKind.LOGINS
    what = "logins"

    def __init__(
        self,
        store: LoginStore,
        known: Logins,
        channel: Callable[[], Channel],
        counters: Counters,
        now: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(store, lambda records, _complete: known.use(records), channel, counters, now)
        self._store = store
        self._known = known
        self._unstored: dict[str, Login] = {}
        known.on_end = self._end

    def follow(self) -> None:
        """Store what could not be stored before, read what has changed, and renew an old secret."""
        for item in list(self._unstored.values()):
            self._end(item)
        super().follow()
        if self._known.now() - self._known.newest > SECRET_RENEWED:
            self._store.renew(self._known.now())
            super().follow()
            self._announce()

    def _end(self, login: Login) -> None:
        """Store that a login was ended, and notify other brokers; raises Unavailable: it is repeated."""
        # Logouts that wait in memory while MongoDB does not answer, at most
        if len(self._unstored) < 10_000:
            self._unstored[login.id] = login
        self._store.end(login.id, login.principal, self._known.now())
        self._unstored.pop(login.id, None)
        self._announce()
