"""The principals in MongoDB, which all brokers on a database share: read, changed, followed."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.bus import BusEvent, BusKind, Channel
from sluicemq_broker.runtime import Batcher, Count, Counters
from sluicemq_broker.security.principals import Principals
from sluicemq_broker.store import Follower, PrincipalRecord, PrincipalStore
from sluicemq_devices.hub import nothing

#: Events that one look answers.
_EVENTS: Final = 1000


class SharedPrincipals:
    """Follows the principals of one database; while MongoDB is away those that were read last hold."""

    def __init__(
        self,
        store: PrincipalStore,
        known: Principals,
        channel: Callable[[], Channel],
        counters: Counters,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """``now``: monotonic seconds."""
        self._store = store
        self._known = known
        self._channel = channel
        self._counters = counters
        self._changes = Follower(store, now)
        self._reading = BoundedSemaphore()  # or an older answer would come behind a newer one
        self._events: Batcher[None] = Batcher(lambda _batch: self._look(), size=_EVENTS)
        self.on_change: Callable[[], None] = nothing
        """Function that is called when principals have changed: some connections may have to end."""

    def prepare(self) -> None:
        """Make the indexes, and read all principals; raises SluiceError."""
        self._store.prepare()
        self.follow()

    def follow(self) -> None:
        """Read what has changed since the last read: one query of an index; raises Unavailable."""
        with self._reading:
            records, complete = self._changes.read()
            changed = self._known.use_stored(records, complete=complete)
        if changed:
            self.on_change()

    def on_event(self, _event: BusEvent) -> None:
        """Read: another broker has changed some; never blocks."""
        self._events.add(None)

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
        self._look()
        self._channel().announce(BusEvent(BusKind.PRINCIPALS))
        return changed

    def _look(self) -> None:
        try:
            self.follow()
        except Unavailable as error:
            text = f"a change of principals is not read yet: {error}"
            self._counters.notice(Count.STORE_UNAVAILABLE, text)
