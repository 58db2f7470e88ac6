"""All queues of this broker: found at the start, made on their first push, counted, removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import BadQueue, NotFound, Unavailable
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq_broker.bus import BusEvent, BusKind, Channel, silent
from sluicemq_broker.config import Config, QueueSettings
from sluicemq_broker.context import Context
from sluicemq_broker.queue import MakeJob, Queue
from sluicemq_broker.queues.names import nearest
from sluicemq_broker.queues.pauses import Pauses
from sluicemq_broker.runtime import Batcher, Count, Gauge, Subjects, shielded
from sluicemq_broker.store import Documents, Inspector, LimitStore, PauseStore, Surveyed, survey_queues

log = logging.getLogger("broker.queue")

#: What is staged of a queue that is removed, if anything, is given back within this time, or later.
_FEW_SECONDS: Final = 5.0
#: However many have told something, it is looked at once.
_MANY: Final = 1_000_000


class Queues:
    """The queues by name. ``database`` gives what lies in MongoDB under the name of a database.

    ``make`` makes the jobs that go on from one of them to another. ``channel``: that of a database, where
    brokers tell each other what they have done.
    """

    def __init__(
        self,
        config: Config,
        context: Context,
        database: Callable[[str], Documents],
        make: MakeJob,
        channel: Callable[[str], Channel] = lambda _database: silent(),
    ) -> None:
        self.make = make
        self._config = config
        self._context = context
        self._database = database
        self._open: dict[str, Queue] = {}
        self._channel = channel
        self._orders: Batcher[None] = Batcher(lambda _told: self._look(self.follow_pauses), size=_MANY)
        self._made: Batcher[None] = Batcher(lambda _told: self._look(self.look_for_awaited), size=_MANY)
        self._removed: set[Queue] = set()
        #: Held by whoever removes a queue: another order finds it gone, or made again.
        self.one_removal = BoundedSemaphore()
        self._awaited: dict[str, dict[Callable[[Queue], None], None]] = {}
        self._one_look = BoundedSemaphore()
        self._looks_begun = self._looks_done = 0
        #: The names of all databases with queues, each once.
        self.databases = databases(config)
        self._pauses = Pauses(database, self.databases)

    @property
    def subjects(self) -> Subjects:
        """The queues with their counters."""
        return Subjects(
            "queue",
            lambda: ((each.name, each.counters.values) for each in self),
            lambda name: self.database_name(check_name(name)),
        )

    def __iter__(self) -> Iterator[Queue]:
        """Every queue that is known."""
        return iter(list(self._open.values()))

    def open(self, name: str) -> Queue:
        """The queue of this name, known or not: for the configuration, and for those found in MongoDB."""
        queue = self._open.get(name)
        if queue is None:
            settings, database = self._config.queue(check_name(name)), self.database_name(name)
            channel = self._channel(database)

            def notify(kind: BusKind, number: int) -> None:
                channel.announce(BusEvent(kind, name, number))

            context = replace(self._context, notify_brokers=notify)
            queue = self._open[name] = Queue(name, settings, self._database(database), context, self)
            queue.pause(self._pauses.of(database, name))
            for came in self._awaited.pop(name, ()):
                shielded(came, queue)
        return queue

    def reconfigure(self, config: Config) -> None:
        """Take other settings of queues, and of those to come; where their jobs lie is as it was."""
        self._config = config
        for queue in self:
            queue.reconfigure(config.queue(queue.name))
        self.open_configured()

    def open_configured(self) -> None:
        """Open those that the configuration names, also as a device's: they are there from the start."""
        for name in self._configured():
            self.open(name)

    def discover(self) -> None:
        """Open the queues that MongoDB has and that are not known here: other brokers have made them."""
        for database in self.databases:
            for name in Inspector(self._database(database)).names():
                if is_queue_name(name) and self.database_name(name) == database:
                    self.open(name)

    def survey(self) -> dict[str, Surveyed]:
        """Survey all queues that are known; a queue that MongoDB can't survey is left out."""
        found: dict[str, Surveyed] = {}
        for database, names in self.by_database(self).items():
            found |= survey_queues(database, names)
        return found

    def by_database(self, queues: Iterable[Queue]) -> dict[Documents, list[str]]:
        """Return the names of these queues by the database in which their jobs lie."""
        names: dict[Documents, list[str]] = {}
        for queue in queues:
            names.setdefault(self.database_of(queue), []).append(queue.name)
        return names

    def known(self, name: str) -> Queue | None:
        """The queue of this name, if this broker knows one."""
        return self._open.get(name)

    def get(self, name: str) -> Queue:
        """The queue of this name, whoever made it; raises :class:`NotFound` if there is none."""
        if name not in self._open:
            self._discover_together()
        queue = self._open.get(name)
        if queue is None:
            raise NotFound(f"{self._absent(check_name(name))}: the first push makes it, or [queues.{name}]")
        return queue

    def _discover_together(self) -> None:
        """Discover queues; all who ask while one look is under way share the next."""
        asked = self._looks_begun
        with self._one_look:
            if self._looks_done > asked:  # it began after this was asked for
                return
            self._looks_begun = number = self._looks_begun + 1
            self.discover()
            self._looks_done = number

    def wait_for_queue(self, name: str, came: Callable[[Queue], None]) -> None:
        """Call ``came`` once, when a queue of this name is there; it must not block."""
        self._awaited.setdefault(name, {})[came] = None

    def stop_waiting_for(self, name: str, came: Callable[[Queue], None]) -> None:
        """Whoever gave this to :meth:`wait_for_queue` has gone."""
        waiting = self._awaited.get(name, {})
        waiting.pop(came, None)
        if name in self._awaited and not waiting:
            del self._awaited[name]

    def look_for_awaited(self) -> None:
        """Every second or so: other brokers may have made the queues that somebody waits for."""
        if self._awaited:
            self.discover()

    def settings_for_push(self, name: str) -> QueueSettings:
        """The settings of a queue that will be pushed to; raises :class:`NotFound` if that can't make it."""
        if not self._config.broker.auto_create:
            self.get(name)
        return self._config.queue(check_name(name))

    def for_push(self, name: str, *, by: str, peer: str | None = None) -> Queue:
        """The queue of this name, made if that is allowed, for the library and the commands.

        ``by`` is who pushes, for the log; ``peer`` the connection, for which the rate of new names holds;
        None: the operator wants it. Raises :class:`BadQueue` (name not allowed, or unknown while
        ``auto_create`` is off) and :class:`QueueFull` (``max_queues`` reached, or too many made just before).
        """
        return self._open.get(name) or self._make(name, by, peer, allowed=self._config.broker.auto_create)

    def for_plain_push(self, name: str, *, auto_create: bool | None, by: str) -> Queue:
        """As :meth:`for_push`, for plain sockets, whose every typing error makes a queue.

        ``auto_create`` is their device's (None: that of the broker). They leave a tenth of ``max_queues``
        to the library.
        """
        queue = self._open.get(name)
        if queue is not None:
            return queue
        allowed = self._config.broker.auto_create if auto_create is None else auto_create
        return self._make(name, by, by, allowed=allowed, plain=True)

    def _make(self, name: str, by: str, peer: str | None, *, allowed: bool, plain: bool = False) -> Queue:
        check_name(name)
        if not allowed:
            raise BadQueue(f"{self._absent(name)}, and auto_create is off")
        now, most = self._context.timer.now(), self._config.broker.max_queues
        self._context.names.ask(f"queue {name!r}", peer, now, there=len(self._open), most=most, plain=plain)
        text = "queue %s: its first push here comes from %s, and makes it if no other broker has"
        log.info(text, name, by, extra={"queue": name})
        return self.open(name)

    def _absent(self, name: str) -> str:
        meant = nearest(name, self._open)
        return f"there is no queue {name!r}" + (f" (did you mean {meant!r}?)" if meant else "")

    def removed(self, queue: Queue) -> None:
        """The queue's collection was removed: tell who waits for its jobs, hold none of them."""
        queue.removed(_FEW_SECONDS)
        self._removed.add(queue)

    def forget(self, name: str) -> None:
        """What was said of a queue that was removed holds no more; may be repeated after an error."""
        self.let_go_removed()
        self._order(name, lambda store: store.forget(name))

    def let_go_removed(self) -> None:
        """Every second or so: what was removed stands empty where it is used, and is known no more elsewhere.

        Something of it may have been under way then: that is waited for.
        """
        unknown = False
        for queue in list(self._removed):
            if queue.workers or queue.name in self._configured():
                queue.prepare(again=True)
            elif queue.store.removed:
                if queue.in_use:
                    continue
                if self._open.get(queue.name) is queue:
                    del self._open[queue.name]
                    unknown = True
            self._removed.discard(queue)
        if unknown:
            self.discover()  # of what was under way some may have made it again

    def follow_pauses(self) -> None:
        """Every second or so, and at the start: do as MongoDB says of all queues, whoever was told."""
        if self._pauses.read():
            self._apply_pauses()

    def pause(self, queue: Queue, what: str) -> None:
        """Pause ``delivery`` or ``intake`` of a queue, at all brokers."""
        self._order(queue.name, lambda store: store.pause(queue.name, what))

    def resume(self, queue: Queue, what: str) -> None:
        """Resume it."""
        self._order(queue.name, lambda store: store.resume(queue.name, what))

    def _order(self, name: str, statement: Callable[[PauseStore], None]) -> None:
        database = self.database_name(name)
        self._pauses.order(database, statement)
        self._channel(database).announce(BusEvent(BusKind.PAUSES))
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        for queue in self:
            queue.pause(self._pauses.of(self.database_name(queue.name), queue.name))

    # ------------------------------------------------ told by other brokers

    def on_ready(self, event: BusEvent) -> None:
        """Another broker has jobs ready in a queue."""
        for queue in self._meant(event):
            queue.on_ready(event.number)
        if not event.name or event.name in self._awaited:
            self._made.add(None)

    def on_coming(self, event: BusEvent) -> None:
        """Another broker is about to have some; that it has them it tells, too."""
        if event.name:
            self.on_ready(event)

    def on_ended(self, event: BusEvent) -> None:
        """Another broker has ended jobs of a queue that somebody waits for."""
        for queue in self._meant(event):
            queue.results.on_ended_at_others()

    def on_freed(self, event: BusEvent) -> None:
        """At another broker less is running of a queue that is limited."""
        for queue in self._meant(event):
            queue.on_freed()

    def on_orders(self, _event: BusEvent) -> None:
        """Another broker was told to pause or resume a queue."""
        self._orders.add(None)

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Unavailable as error:
            text = f"what another broker has told of is not looked at yet: {error}"
            self._context.counters.notice(Count.STORE_UNAVAILABLE, text)

    def _meant(self, event: BusEvent) -> Iterable[Queue]:
        if not event.name:
            return self
        queue = self._open.get(event.name)
        return () if queue is None else (queue,)

    def drop_owner(self, owner: str) -> None:
        """Another broker has taken what we held under this owner id."""
        for queue in self:
            queue.drop(owner)

    def leave(self) -> None:
        """The broker stops, and has given back its jobs: others may have the permits for them."""
        for owner in self._context.owners.mine():
            for name in self.databases:
                LimitStore.leave(self._database(name), owner)

    def database_of(self, queue: Queue) -> Documents:
        """Where the jobs of a queue lie."""
        return self._database(self.database_name(queue.name))

    def documents(self) -> list[Documents]:
        """All databases in which queues lie."""
        return [self._database(name) for name in self.databases]

    def database_name(self, name: str) -> str:
        """The name of the database in which the jobs of this queue lie, or would."""
        return self._config.queue(name).database or self._config.broker.database

    def _configured(self) -> set[str]:
        config = self._config
        devices, routes = (each.queue for each in config.devices), (each.queue for each in config.routes)
        return {*config.queues, *devices, *routes}

    def under_way(self) -> dict[str, int]:
        """How many jobs are being written, at workers, and being committed, in all queues together."""
        return {
            Gauge.STORING: self._context.memory.pushes.count,
            Gauge.IN_FLIGHT: sum(queue.in_flight for queue in self),
            Gauge.COMMITTING: sum(queue.committing for queue in self),
        }

    def summary(self, queue: Queue, counts: dict[str, Any]) -> dict[str, Any]:
        """One line of the list of queues: what MongoDB holds and what is going on here."""
        here = {
            Gauge.WORKERS: queue.workers,
            Gauge.IN_FLIGHT: queue.in_flight,
            "rates": queue.rates(),
            "paused": sorted(queue.paused),
            Gauge.PERMITS: queue.limits.permits,
            Gauge.HELD_BACK: queue.held_back,
            Gauge.FULL: int(queue.capacity.full),
        }
        return {"name": queue.name, **counts, **here}


def databases(config: Config) -> set[str]:
    """The names of all databases in which queues or streams lie, or may come to lie: our lease is in each."""
    queues = [each.database for each in (*config.queues.values(), config.other_queues)]
    streams = [each.database for each in (*config.streams.values(), config.other_streams)]
    return {each or config.broker.database for each in (*queues, *streams)}


def check_name(name: object) -> str:
    """The name, if it may be one; raises :class:`BadQueue`."""
    if isinstance(name, str) and is_queue_name(name):
        return name
    raise BadQueue(f"{str(name)[:80]!r} is no queue name: {QUEUE_NAME_RULE}")
