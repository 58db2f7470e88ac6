"""The foundation of a broker: MongoDB, the clock, the lease, memory bounds, counters, the event bus."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, TypeVar

import gevent

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.bus import EventBus, LocalTransport, RedisTransport, Transport
from sluicemq_broker.config import BusForm, Config, RedisUrl
from sluicemq_broker.context import Context, Memory, NewNames, Owners, Schema
from sluicemq_broker.process.duties import Duty, poll
from sluicemq_broker.runtime import Count, Counters, Turns
from sluicemq_broker.store import (
    ASIDE,
    CONFIRMED_EVERY,
    EVERY,
    Documents,
    EventRing,
    LeaseStore,
    NewerSchema,
    NoMajority,
    SchemaStore,
    ServerClock,
    StoreAvailability,
    Unclear,
    UnsafeStore,
    confirm,
    connect,
    connect_for_leases,
    require_safe,
    why_no_primary,
)
from sluicemq_devices.sockets import Outgoing

#: Seconds for which a starting broker tries each statement, as long as an election takes.
_RETRIED: Final = 15.0

Result = TypeVar("Result")
log = logging.getLogger("broker")


class Foundation:
    """MongoDB, the lease, the clock, counters and the event bus, for queues, doors and parts.

    ``alone``: no other broker can come. ``why``: as in :class:`StoreAvailability`.
    """

    def __init__(
        self,
        config: Config,
        uri: str,
        *,
        alone: bool,
        why: Callable[[], str] = lambda: "",
    ) -> None:
        settings = config.broker
        self.settings = settings
        self._alone = alone
        self.host = socket.gethostname()
        self.name = f"{self.host}:{os.getpid()}"
        self.counters = Counters()
        ASIDE.tell = partial(self.counters.add, Count.SET_ASIDE)
        self.turns = Turns(self.counters)
        self.clock = ServerClock()
        self.store = StoreAvailability(why=why)
        self._uri = uri
        self._mongo = connect(uri, self.counters.answered)
        self._mongo_for_leases = connect_for_leases(uri, settings.lease)
        others = sorted(config.databases - {settings.database})
        self.schema = Schema(
            [SchemaStore(self._mongo_for_leases[database]) for database in (settings.database, *others)]
        )
        leases = {database: LeaseStore(self._mongo_for_leases[database]) for database in config.databases}
        own = leases.pop(settings.database)
        self.owners = Owners(
            own,
            self.clock,
            self.name,
            settings.lease,
            leases,
            worked=self._worked,
            admit=self.schema.follow,
        )
        largest = max(settings.hwm_bytes, *(device.hwm_bytes for device in config.devices), 0)
        self.memory = Memory(settings.hwm, settings.hwm_bytes, outgoing=Outgoing(3 * largest // 2))
        self.context = Context(
            self.owners,
            self.clock,
            self.counters,
            memory=self.memory,
            names=NewNames(self.counters),
            schema=self.schema,
        )
        self.bus = EventBus(self._transport, self.owners.shares, self.counters)

    def _worked(self) -> float:
        """Return how many jobs went from push to commit: other brokers see by it that this one is busy."""
        values = self.counters.values
        return (values[Count.PUSHED] + values[Count.COMMITTED]) / 2

    def database(self, name: str) -> Documents:
        """Return a database of MongoDB."""
        return self._mongo[name]

    def prepare(self) -> None:
        """Check that MongoDB is there and keeps what it confirms; read its clock. Raises SluiceError."""
        try:
            warning = retried(
                lambda: require_safe(self._mongo, allow_unsafe=self.settings.allow_unsafe_store), only=Unclear
            )
            retried(lambda: confirm(self._mongo, self.settings.database))
        except UnavailableError as error:
            is_said = isinstance(error, UnsafeStore | NoMajority)
            why = None if is_said else why_no_primary(self._uri)
            if why is None:
                raise
            raise UnavailableError(why) from error
        if warning:
            log.warning("%s", warning)
        retried(lambda: self.clock.set(self._mongo_for_leases))

    def begin_lease(self) -> None:
        """Take a lease: from now on other brokers see this one. Raises :class:`NewerSchema`."""
        retried(self.owners.use)

    def end_other_leases(self) -> None:
        """Declare all other leases dead: no other broker can be there."""
        retried(self.owners.end_others)

    def watching(self) -> Iterator[Duty]:
        """Return the duties that begin before MongoDB has answered for the first time."""
        yield Duty("whether MongoDB answers", EVERY, self._watch)
        yield Duty("whether a majority of its members confirms", CONFIRMED_EVERY, self._watch_majority)

    def duties(self) -> Iterator[Duty]:
        """Return the other duties."""
        yield Duty("measuring the server's clock", self.owners.pause, self._measure)
        yield poll("the schema of the store", self.settings.poll, self.schema.follow)
        yield Duty("brokers of older versions", self.settings.lease, self._look_for_old)

    def leave(self) -> None:
        """End the lease and the connections."""
        with suppress(SluiceError):
            self.owners.end()
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._mongo_for_leases.close()
        self._mongo.close()

    def _watch(self) -> None:
        self.store.watch(self._mongo_for_leases)

    def _watch_majority(self) -> None:
        self.store.watch_majority(self._mongo_for_leases, self.settings.database)

    def _measure(self) -> None:
        self.clock.measure(self._mongo_for_leases)

    def _look_for_old(self) -> None:
        self.schema.look_for_old(self.owners.living())

    def _transport(self, database: str) -> Transport | None:
        """Return the transport of events between the brokers on a database; None: they only poll."""
        form = self.settings.event_bus
        if form == BusForm.OFF:
            return None
        if form == BusForm.LOCAL or (form == BusForm.AUTO and self._alone):
            return LocalTransport(database)
        if isinstance(form, RedisUrl):
            return RedisTransport(form.text, database)
        return EventRing(self.database(database))


def retried(statement: Callable[[], Result], only: type[UnavailableError] = UnavailableError) -> Result:
    """Run a statement of the start, and try it again for some seconds; returns its answer.

    So a broker starts during an election, or with the short time-outs of a short lease. The statement must be
    repeatable: MongoDB may have applied it, or a part. ``only``: the errors that are tried again; an unsafe
    MongoDB and a newer schema are not.
    """
    began, logged = monotonic(), False
    while True:
        try:
            return statement()
        except (UnsafeStore, NewerSchema):
            raise
        except only as error:
            if monotonic() > began + _RETRIED:
                raise
            if not logged:
                log.warning("starting: %s; it is tried again for %.0f s", error, _RETRIED)
                logged = True
        gevent.sleep(0.1)
