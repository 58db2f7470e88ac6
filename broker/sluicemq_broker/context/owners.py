"""The owner id under which this broker holds jobs, its lease, and the leases of other brokers.

A broker's reservations carry its owner id. The lease of the id in MongoDB has a counter that the broker
raises. Others declare it dead when they have seen the counter unchanged for a lease, on their own monotonic
clock, counting only time in which they reached MongoDB themselves. So no machine's clock decides, and an
outage of MongoDB ends no lease.

There is a lease in every database where this broker has queues, and the owner of a job is looked up in the
job's database: brokers that share one queue need to share nothing else.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import gevent
from gevent.lock import RLock

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.rows import BrokerRow
from sluicemq_broker.runtime import Timer
from sluicemq_broker.store import LeaseStore, Seen, ServerClock

log = logging.getLogger("broker.owners")


Result = TypeVar("Result")
_TIMER: Final = Timer()
_NOWHERE: Final[Mapping[str, LeaseStore]] = {}


def _new_id() -> str:
    return secrets.token_hex(6)


class Owners:
    """The owner id of this broker, and its view of the others.

    ``leases``: those in the broker's own database; ``elsewhere``: by name, those in other databases with
    queues. An id has a lease in each, and is dead if it is declared dead in one. ``new_id`` makes an id that
    no other broker has. ``worked()``: jobs that this broker has worked so far. ``admit()`` is
    called under each new lease, before its id is used, and raises if this broker can't read the store.
    """

    def __init__(
        self,
        leases: LeaseStore,
        clock: ServerClock,
        name: str,
        lease: float,
        elsewhere: Mapping[str, LeaseStore] = _NOWHERE,
        *,
        timer: Timer = _TIMER,
        worked: Callable[[], float] = lambda: 0.0,
        new_id: Callable[[], str] = _new_id,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self._leases = leases
        self._elsewhere = dict(elsewhere)
        self._clock = clock
        self.name = name
        self.lease = lease
        self._on_dead: list[Callable[[Seen], None]] = []
        self._on_lost: list[Callable[[str], None]] = []
        self._now = timer.now
        self._new_id = new_id
        self._admit = admit
        self.current = ""
        self.others = 0
        """Number of other brokers that live."""
        self.place = 0
        """How many of these have an id before ours: a number that no two of them share."""
        self.others_at_work = False
        """True if another broker has worked on jobs between its last two heartbeats, or does not say."""
        self._worked = worked
        self._work_of: dict[str, float | None] = {}  # of the others, as of the last look
        self._reservations = itertools.count(1)
        self._changing = RLock()
        self._watching = RLock()
        self._confirmed = float("-inf")
        self._reached = 0.0
        self._ended = False
        self._seen: dict[tuple[LeaseStore, str], tuple[int, float]] = {}
        self._shared: set[LeaseStore] = set()
        self._risen: set[str] = set()  # others whose counter has risen since we look: they are there

    @property
    def pause(self) -> float:
        """Seconds between two heartbeats."""
        # Heartbeats in one lease; a broker hands out nothing after 2/3 of a lease without one
        return self.lease / 5

    @property
    def look_pause(self) -> float:
        """Seconds between two looks at the leases of others."""
        # Seconds between two looks at the leases of other brokers, at most: a killed broker is declared
        # dead within twice that after its lease.
        return min(self.pause, 0.4)

    @property
    def sure(self) -> bool:
        """True if jobs may be handed out: no other broker can have declared this one dead yet.

        Counted from *sending* the last confirmed heartbeat, which is when it may have been applied.
        """
        return self._now() - self._confirmed < self.lease * 2 / 3

    def brokers(self) -> tuple[BrokerRow, ...]:
        """Return brokers with a live lease, and those of the last day that fell silent, the oldest first."""
        return tuple(
            BrokerRow(
                name=broker.name,
                since=broker.since,
                seen=broker.seen,
                ended=broker.ended,
                here=broker.name == self.name and broker.ended is None,
                version=broker.version,
                reads=tuple(broker.reads),
            )
            for broker in self._leases.brokers()
        )

    def living(self) -> list[Seen]:
        """Return the brokers with a live lease in any database with queues of this one, each once."""
        found = {
            (broker.name, broker.since): broker
            for brokers in self._at_all_databases(LeaseStore.brokers)
            for broker in brokers
            if broker.ended is None
        }
        return list(found.values())

    def own_ids(self) -> list[str]:
        """Return the id whose lease this broker keeps, if there is one."""
        return [self.current] if self.current else []

    def use(self) -> str:
        """Return the id for new work; a new one gets a durable lease before it is used.

        Raises :class:`Unavailable` once :meth:`end` was called.
        """
        if self.current:  # a heartbeat under way, which may take long, is not waited for
            return self.current
        with self._changing:
            if self._ended:
                raise UnavailableError("the broker stops: it takes no jobs any more")
            if not self.current:
                self._begin()
            return self.current

    def new_reservation(self) -> int:
        """Return the number of a new reservation, unique for this process."""
        return next(self._reservations)

    def keeps(self, owner: str) -> bool:
        """Return True if no broker can have taken our jobs under this id; ask MongoDB if it is not sure."""
        if not self.sure:
            self.beat()
        return self.sure and owner in self.own_ids()

    def beat(self) -> None:
        """Send one heartbeat for our id; if its lease was declared dead, take a new id."""
        with self._changing:
            if self._ended:
                return
            own = self.own_ids()
            sent, live = self._raise(own)
            if live == len(own):
                self._confirm(sent)
            else:
                self._drop_dead(own)
            if not self._ended:
                self.use()
        with self._watching:
            self._look_at_work(self._watch())

    def watch_others(self) -> None:
        """Read the leases of other brokers between two heartbeats; a broker that is alone reads nothing.

        So a killed broker is declared dead soon after its lease, not at the second heartbeat after it.
        """
        if self._seen and self.sure:
            with self._watching:
                self._watch()

    def on_lost(self, call: Callable[[str], None]) -> None:
        """Call ``call`` with each id of ours that another broker has declared dead.

        Jobs held under the id must be dropped: other brokers get them.
        """
        self._on_lost.append(call)

    def on_dead(self, call: Callable[[Seen], None]) -> None:
        """Call ``call`` with each other broker whose lease this one ends."""
        self._on_dead.append(call)

    def end_others(self) -> int:
        """End every other lease, for a broker whose MongoDB is its own alone; return how many."""
        strangers = {
            owner for store in self._stores() for owner in store.live() if owner not in self.own_ids()
        }
        for owner in strangers:
            for dead in self._end_at_all_databases(owner, silent=True):
                if dead:
                    self._found_dead(dead)
                    break
        return len(strangers)

    def shares(self, database: str) -> bool:
        """Return True if another broker may have jobs in this database: its lease there was live of late."""
        return self._store(database) in self._shared

    def live(self, database: str | None = None) -> set[str]:
        """Return all owners with a live lease in this database, with ours."""
        return set(self._store(database).live()) | set(self.own_ids())

    def is_live(self, owner: str, database: str | None = None) -> bool:
        """Return True if an owner surely has a live lease there, or is ours; slower than :meth:`live`."""
        return owner in self.own_ids() or self._store(database).is_live(owner)

    def end(self) -> None:
        """End our leases, at a stop, and begin no other."""
        self._ended = True
        with self._changing:  # or a heartbeat would think that another broker ended them
            for owner in self.own_ids():
                self._end_at_all_databases(owner)
            self.current = ""
            self._confirmed = float("-inf")

    def _stores(self) -> list[LeaseStore]:
        return [self._leases, *self._elsewhere.values()]

    def _store(self, database: str | None) -> LeaseStore:
        return self._leases if database is None else self._elsewhere.get(database, self._leases)

    def _at_all_databases(self, statement: Callable[[LeaseStore], Result]) -> list[Result]:
        """Run a statement in all databases at once; an error is raised after all have ended."""
        if not self._elsewhere:
            return [statement(self._leases)]
        failed: list[UnavailableError] = []
        results: list[Result] = []

        def run(store: LeaseStore) -> None:
            try:
                results.append(statement(store))
            except UnavailableError as error:
                failed.append(error)

        gevent.joinall([gevent.spawn(run, store) for store in self._stores()])
        if failed:
            raise failed[0]
        return results

    def _end_at_all_databases(self, owner: str, *, silent: bool = False) -> list[Seen | None]:
        return self._at_all_databases(lambda store: store.end(owner, self._clock.now(), silent=silent))

    def _raise(self, own: list[str]) -> tuple[float, int]:
        """Raise our counters in all databases; return when the first was sent, and the least of live ones."""
        raised = self._at_all_databases(lambda store: self._beat_surely(store, own))
        return min(sent for sent, _ in raised), min(live for _, live in raised)

    def _beat_surely(self, store: LeaseStore, own: list[str]) -> tuple[float, int]:
        """Send a heartbeat, again if it gets no answer; return when it was sent, and the answer."""
        # A heartbeat that is not answered is sent again at once: it may have been applied, and so may this
        # one. The driver gives each try a fifth of a lease, so one lost answer still leaves time before
        # those 2/3.
        for left in reversed(range(2)):
            sent = self._now()
            try:
                return sent, store.beat(own, self._clock.now(), self._worked())
            except UnavailableError:
                if not left:
                    raise
        raise AssertionError

    def _begin(self) -> None:
        sent = self._now()
        owner = self._new_id()
        self._at_all_databases(
            lambda database: database.begin(owner, self.name, self.lease, self._clock.now())
        )
        try:
            self._admit()
        except UnavailableError:
            with suppress(UnavailableError):
                self._end_at_all_databases(owner)
            raise
        self.current = owner
        self._confirmed = max(self._confirmed, sent)

    def _confirm(self, sent: float) -> None:
        # Time without MongoDB is not counted against the others: one long gap adds one beat's worth.
        self._reached += min(sent - self._confirmed, self.pause * 2)
        self._confirmed = sent

    def _drop_dead(self, own: list[str]) -> None:
        live = set.intersection(*self._at_all_databases(lambda store: set(store.live())))
        for owner in own:
            if owner in live:
                continue
            log.error("lease of owner %s was declared dead by another broker; dropping what it held", owner)
            if owner == self.current:
                self.current = ""
            for call in self._on_lost:
                call(owner)
            if self._elsewhere:  # our jobs in the other databases are given back, too
                self._end_at_all_databases(owner)

    def _watch(self) -> dict[str, float | None]:
        """Declare dead whose counter stands still for too long; return how much work the others have done."""
        live = self._at_all_databases(
            lambda store: [((store, owner), of) for owner, of in store.leases().items()]
        )
        # Until the next heartbeat is due this broker reaches MongoDB, as far as it knows.
        reached = self._reached + min(self._now() - self._confirmed, self.pause)
        own = set(self.own_ids())
        others = {lease: of for leases in live for lease, of in leases if lease[1] not in own}
        self._seen = {lease: seen for lease, seen in self._seen.items() if lease in others}
        for (store, owner), (beat, lease, _) in others.items():
            seen = self._seen.get((store, owner))
            if seen is not None and seen[0] != beat:
                self._risen.add(owner)
            if seen is None or seen[0] != beat:
                self._seen[store, owner] = (beat, reached)
            elif reached - seen[1] >= lease:
                self._declare_dead(store, owner, beat, lease)
        # A broker that was killed before we started leaves a lease, but does not share the work.
        self._risen &= {owner for _, owner in others}
        self._shared = {store for store, _ in others}
        self.others = len(self._risen)
        self.place = sum(owner < self.current for owner in self._risen)
        return {lease[1]: of.worked for lease, of in others.items()}

    def _look_at_work(self, worked: dict[str, float | None]) -> None:
        before, self._work_of = self._work_of, worked
        self.others_at_work = any(
            worked[owner] is None or worked[owner] != before.get(owner, worked[owner])
            for owner in self._risen
        )

    def _declare_dead(self, store: LeaseStore, owner: str, beat: int, lease: float) -> None:
        dead = store.end(owner, self._clock.now(), beat=beat, silent=True)
        if dead:
            log.warning("%s (owner %s) has been silent for %.1f s: declared dead", dead.name, owner, lease)
            self._found_dead(dead)

    def _found_dead(self, broker: Seen) -> None:
        for call in self._on_dead:
            call(broker)
