"""Under which id this broker holds jobs, for how long it may, and which brokers have died.

A broker's reservations carry its owner id; the id's lease in MongoDB holds a counter that the
broker raises. Others take it for dead when they have seen the counter stand still for a lease, on
their own monotonic clock, counting only time in which they reached MongoDB themselves: no clock
of any machine decides, and an outage of MongoDB kills nobody.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from gevent.lock import RLock

from broker.mongo import ServerClock
from broker.store_leases import LeaseStore
from sluicemq.errors import Unavailable

log = logging.getLogger("broker.owners")

#: Heartbeats in one lease; a broker hands out nothing after 2/3 of a lease without one.
_BEATS_PER_LEASE = 5


class Owners:
    """The owner ids of this broker, the current one and those retired, and its view of the others.

    ``lost`` is called with an id of ours that another broker has declared dead: everything held
    under it must be dropped, since its jobs go to others.
    """

    def __init__(self, leases: LeaseStore, clock: ServerClock, name: str, lease: float) -> None:
        self._leases = leases
        self._clock = clock
        self._name = name
        self.lease = lease
        self.lost: Callable[[str], None] = lambda _owner: None
        self.current = ""
        self.retired: set[str] = set()
        self.others = 0
        self._changing = RLock()
        self._confirmed = float("-inf")
        self._reached = 0.0
        self._ended = False
        self._seen: dict[str, tuple[int, float]] = {}
        self._risen: set[str] = set()  # others whose counter has risen since we look: they are there

    @property
    def pause(self) -> float:
        """Seconds between two heartbeats."""
        return self.lease / _BEATS_PER_LEASE

    @property
    def sure(self) -> bool:
        """Whether jobs may be handed out: no other broker can have declared us dead yet.

        Counted from *sending* the last confirmed heartbeat, which is when it may have been applied.
        """
        return time.monotonic() - self._confirmed < self.lease * 2 / 3

    def mine(self) -> list[str]:
        """Every id whose lease we keep."""
        return [owner for owner in (self.current, *self.retired) if owner]

    def use(self) -> str:
        """The id for new work; a new one is begun, its lease durable before it is used, if there is none.

        Raises :class:`Unavailable` once :meth:`end` was called.
        """
        if self.current:  # a heartbeat under way, which may take long, is not waited for
            return self.current
        with self._changing:
            if self._ended:
                raise Unavailable("the broker stops: it takes no jobs any more")
            if not self.current:
                self._begin()
            return self.current

    def keeps(self, owner: str) -> bool:
        """Whether nobody can have taken what we hold under this id; asks MongoDB where that is not sure."""
        if not self.sure:
            self.beat()
        return self.sure and owner in self.mine()

    def retire(self, owner: str) -> None:
        """After an unclear reservation: no new work under ``owner``; it is kept until it is settled.

        Jobs may lie reserved under it that no memory knows of; once what is known has been settled,
        :meth:`close` marks it dead, and the sweep gives the rest back, also what lands late.
        """
        if owner and owner == self.current:
            self.current = ""
            self.retired.add(owner)
            log.warning("owner %s retired after an unclear reservation", owner)

    def close(self, owner: str) -> None:
        """Mark a retired id dead, when nothing is known under it any more."""
        with self._changing:  # or a heartbeat would find it dead, and take that for another broker's doing
            self._leases.end(owner, self._clock.now())
            self.retired.discard(owner)

    def beat(self) -> None:
        """One heartbeat for all our ids; a lease found dead is dropped, and a new id taken."""
        with self._changing:
            if self._ended:
                return
            mine, sent = self.mine(), time.monotonic()
            if self._leases.beat(mine) == len(mine):
                self._confirm(sent)
            else:
                self._drop_dead(mine)
            if not self._ended:
                self.use()
        self._watch()

    def end_others(self) -> int:
        """Mark every other lease dead: for a broker whose store is its own alone. Returns how many."""
        strangers = [owner for owner in self._leases.live() if owner not in self.mine()]
        for owner in strangers:
            self._leases.end(owner, self._clock.now())
        return len(strangers)

    def live(self) -> set[str]:
        """All owners with a live lease, ours included."""
        return set(self._leases.live()) | set(self.mine())

    def end(self) -> None:
        """Mark all our leases dead, when we stop, and begin no other."""
        self._ended = True
        with self._changing:  # or a heartbeat would take it for another broker's doing
            for owner in self.mine():
                self._leases.end(owner, self._clock.now())
            self.current = ""
            self.retired.clear()
            self._confirmed = float("-inf")

    def _begin(self) -> None:
        sent = time.monotonic()
        owner = secrets.token_hex(6)
        self._leases.begin(owner, self._name, self.lease, self._clock.now())
        self.current = owner
        if not self.retired:  # of those, only a heartbeat tells whether they are still ours
            self._confirmed = max(self._confirmed, sent)

    def _confirm(self, sent: float) -> None:
        # Time without MongoDB is not counted against the others: one long gap adds one beat's worth.
        self._reached += min(sent - self._confirmed, self.pause * 2)
        self._confirmed = sent

    def _drop_dead(self, mine: list[str]) -> None:
        live = self._leases.live()
        for owner in mine:
            if owner in live:
                continue
            log.error("lease of owner %s was declared dead by another broker; dropping what it held", owner)
            self.retired.discard(owner)
            if owner == self.current:
                self.current = ""
            self.lost(owner)

    def _watch(self) -> None:
        others = {owner: beat for owner, beat in self._leases.live().items() if owner not in self.mine()}
        self._seen = {owner: seen for owner, seen in self._seen.items() if owner in others}
        for owner, (beat, lease) in others.items():
            seen = self._seen.get(owner)
            if seen is not None and seen[0] != beat:
                self._risen.add(owner)
            if seen is None or seen[0] != beat:
                self._seen[owner] = (beat, self._reached)
            elif self._reached - seen[1] >= lease and self._leases.end(owner, self._clock.now(), beat=beat):
                log.warning("broker with owner %s has been silent for %.1f s: declared dead", owner, lease)
        # One that was killed before we came leaves a lease, and nobody to share the work with.
        self._risen &= others.keys()
        self.others = len(self._risen)
