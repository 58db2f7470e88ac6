"""All queues of this broker: found at the start, made by their first push, paused, removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import (
    BadQueueError,
    NotFoundError,
    SluiceError,
    UnavailableError,
)
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.permissions import Action
from sluicemq_broker.bus import BusEvent, BusKind, Channel, silent
from sluicemq_broker.config import Config, QueueSettings
from sluicemq_broker.context import Context
from sluicemq_broker.queue import MakeJob, Queue
from sluicemq_broker.queues.names import nearest
from sluicemq_broker.queues.records import QueueRecords
from sluicemq_broker.queues.settings import SharedSettings
from sluicemq_broker.runtime import Batcher, Count, Gauge, Subjects, shielded
from sluicemq_broker.security import ANYBODY, Caller, authorize
from sluicemq_broker.store import (
    ALL_QUEUES,
    Documents,
    Inspector,
    LimitStore,
    QueueRecord,
    Surveyed,
    survey_queues,
)
from sluicemq_devices.hub import in_pieces

log = logging.getLogger("broker.queue")

#: Events that cause one look together.
_MANY: Final = 1_000_000


class Queues:
    """The queues by name.

    ``database(name)``: a database of MongoDB. ``channel(name)``: the events between brokers on a database.
    ``make`` makes jobs that are forwarded from one queue to another.
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
        self.config = config
        self.context = context
        self._database = database
        self._open: dict[str, Queue] = {}
        self._channel = channel
        self._record_events: Batcher[None] = Batcher(
            lambda _events: self._handle_event(self.follow_records), size=_MANY
        )
        self._ready_events: Batcher[None] = Batcher(
            lambda _events: self._handle_event(self.look_for_awaited), size=_MANY
        )
        self._removed: set[Queue] = set()
        #: Held while a queue is removed: a second removal finds it gone, or made again.
        self.one_removal = BoundedSemaphore()
        self._one_order = BoundedSemaphore()  # several at once would meet in a write conflict
        #: Tokens of the removals that this broker carries out.
        self.removing: set[str] = set()
        self._awaited: dict[str, dict[Callable[[Queue], None], None]] = {}
        self._one_look = BoundedSemaphore()
        self._looks_begun = self._looks_done = 0
        self._looks_again = False  # at the next poll
        #: The names of all databases with queues or streams.
        self.databases = config.databases
        self.records = QueueRecords(database, self.databases, context.timer)
        #: The settings of queues in force.
        self.settings = SharedSettings(config, self.records)

    @property
    def subjects(self) -> Subjects:
        """The queues with their counters."""
        return Subjects(
            "queue",
            lambda: ((queue.name, queue.counters.values) for queue in self),
            lambda name: self.database_name(check_name(name)),
        )

    @property
    def kinds(self) -> Subjects:
        """The kinds of jobs with their counters, each named behind its queue: ``mail:send_receipt``."""
        return Subjects(
            "kind",
            lambda: (
                (f"{queue.name}:{kind}".replace("/", "_"), found.values)
                for queue in self
                for kind, found in queue.counters.kinds.items()
            ),
            lambda name: self.database_name(check_name(name.partition(":")[0])),
        )

    def __iter__(self) -> Iterator[Queue]:
        """Yield every queue that is known."""
        return iter(list(self._open.values()))

    def open(self, name: str) -> Queue:
        """Return the queue of this name, opened if need be: for configured queues, and those in MongoDB."""
        queue = self._open.get(name)
        if queue is None:
            settings, database = self.settings.of(check_name(name)), self.database_name(name)
            channel = self._channel(database)

            def notify(kind: BusKind, number: int) -> None:
                channel.announce(BusEvent(kind, name, number))

            context = replace(self.context, notify_brokers=notify)
            queue = self._open[name] = Queue(name, settings, self._database(database), context, self)
            record = self.records.of(database, name)
            queue.pause(record.paused, removing=record.removing is not None)
            for on_queue in self._awaited.pop(name, ()):
                shielded(on_queue, queue)
        return queue

    def reconfigure(self, config: Config) -> None:
        """Use other settings for all queues, and for new ones; their databases stay."""
        self.config = self.settings.config = config
        self._use_all_settings()
        self.open_configured()

    def open_configured(self) -> None:
        """Open the queues that the configuration names, for devices and routes, too."""
        for name in self.config.queue_names:
            self.open(name)

    def discover(self) -> None:
        """Open queues in MongoDB that are not known here: other brokers have made them."""
        for database in self.databases:
            for name in Inspector(self._database(database)).names():
                if is_queue_name(name) and self.database_name(name) == database:
                    self.open(name)

    def survey(self) -> dict[str, Surveyed]:
        """Return surveys of all known queues; a queue that MongoDB can't survey is left out."""
        found: dict[str, Surveyed] = {}
        for database, names in self.by_database(self).items():
            found |= survey_queues(database, names)
        return found

    def by_database(self, queues: Iterable[Queue]) -> dict[Documents, list[str]]:
        """Return the names of these queues by the database with their jobs."""
        names: dict[Documents, list[str]] = {}
        for queue in queues:
            names.setdefault(self.database_of(queue), []).append(queue.name)
        return names

    def known(self, name: str) -> Queue | None:
        """Return the queue of this name, if this broker knows it."""
        return self._open.get(name)

    def get(self, name: str) -> Queue:
        """Return the queue of this name, made by any broker; raises :class:`NotFound` if there is none."""
        if name not in self._open:
            self._discover_together()
        queue = self._open.get(name)
        if queue is None:
            absent = f"there is no queue {check_name(name)!r}"
            raise self._near(NotFoundError(f"{absent}: the first push makes it, or [queues.{name}]"), name)
        return queue

    def _discover_together(self) -> None:
        """Discover queues; all calls during one look share the next."""
        begun = self._looks_begun
        with self._one_look:
            if self._looks_done > begun:  # that look began after this call
                return
            self._looks_begun = number = self._looks_begun + 1
            self.discover()
            self._looks_done = number

    def wait_for_queue(self, name: str, on_queue: Callable[[Queue], None]) -> None:
        """Call ``came`` once when a queue of this name is opened; it must not block."""
        self._awaited.setdefault(name, {})[on_queue] = None

    def stop_waiting_for(self, name: str, on_queue: Callable[[Queue], None]) -> None:
        """Undo :meth:`wait_for_queue`."""
        waiting = self._awaited.get(name, {})
        waiting.pop(on_queue, None)
        if name in self._awaited and not waiting:
            del self._awaited[name]

    def look_for_awaited(self) -> None:
        """Look for awaited queues, which other brokers may have made; called every second or so."""
        if self._awaited or self._looks_again:
            self._looks_again = False
            self.discover()

    def settings_for_push(self, name: str) -> QueueSettings:
        """Return a queue's settings for a later push; raises :class:`NotFound` if a push can't make it."""
        if not self.config.broker.auto_create:
            self.get(name)
        return self.settings.of(check_name(name))

    def for_push(self, name: str, *, by: str, caller: Caller, peer: str | None = None) -> Queue:
        """Return the queue of this name for a push of the library or a command; made if that is allowed.

        ``by``: the producer, for the log. ``peer``: the connection, whose rate of new names is limited; None:
        the operator. Raises :class:`BadQueue` (a bad name, or unknown while ``auto_create`` is off),
        :class:`Forbidden` (the caller may not make it) and :class:`QueueFull` (``max_queues`` reached, or too
        many made just before).
        """
        allowed = self.config.broker.auto_create
        return self._open.get(name) or self._make(name, by, peer, caller, allowed=allowed)

    def for_dead_letters(self, queue: Queue, to: str) -> Queue:
        """Return the queue of ``on_dead``, into which dead letters of this queue are moved.

        Where the file says it the operator makes it. What was stored as a setting was made by who set it, or
        is there no more: raises :class:`NotFound`.
        """
        if self.config.queue(queue.name).on_dead == to:
            return self.for_push(to, by=f"on_dead of queue {queue.name}", caller=ANYBODY)
        return self.get(to)

    def is_missing(self, name: str) -> bool:
        """Return True if no broker has made the queue."""
        try:
            self.get(name)
        except NotFoundError:
            return True
        return False

    def for_plain_push(self, name: str, *, auto_create: bool | None, caller: Caller) -> Queue:
        """Return the queue of this name for a push of a plain socket, whose every typing error makes a queue.

        ``auto_create``: the device's; None: the broker's. Plain sockets leave a tenth of ``max_queues`` to
        the library.
        """
        queue = self._open.get(name)
        if queue is not None:
            return queue
        allowed = self.config.broker.auto_create if auto_create is None else auto_create
        return self._make(name, caller.peer, caller.maker, caller, allowed=allowed, plain=True)

    def _make(
        self, name: str, by: str, peer: str | None, caller: Caller, *, allowed: bool, plain: bool = False
    ) -> Queue:
        check_name(name)
        if not allowed:
            raise self._near(BadQueueError(f"there is no queue {name!r}, and auto_create is off"), name)
        if not caller.may(Action.CREATE, name):
            self._looks_again = True  # another broker may have made it
        authorize(caller, Action.CREATE, name)
        now, most = self.context.timer.now(), self.config.broker.max_queues
        self.context.names.ask(f"queue {name!r}", peer, now, there=len(self._open), most=most, plain=plain)
        text = "queue %s: its first push here comes from %s, and makes it if no other broker has"
        log.info(text, name, by, extra={"queue": name})
        return self.open(name)

    def _near(self, error: SluiceError, name: str) -> SluiceError:
        """Return an error about a queue that is not there, with the queue that may have been meant."""
        error.meant = nearest(name, self._open) or ""
        return error

    def removed(self, queue: Queue) -> None:
        """Release a queue's jobs, and answer clients that wait for them: its collection was removed."""
        queue.removed(5.0)  # seconds in which jobs staged from a removed queue are given back, or later
        self._removed.add(queue)

    def let_go_removed(self) -> None:
        """Close removed queues, once nothing of them is under way; those in use are made again, empty.

        Called every second or so.
        """
        closed = False
        for queue in list(self._removed):
            if queue.workers or queue.name in self.config.queue_names:
                queue.store.prepare(again=True)
            elif queue.store.removed:
                if queue.in_use:
                    continue
                if self._open.get(queue.name) is queue:
                    del self._open[queue.name]
                    closed = True
            self._removed.discard(queue)
        if closed:
            self.discover()  # a push that was under way may have made it again

    def follow_records(self) -> None:
        """Read the records of queues and apply changes; called at the start, and every second or so."""
        self.records.read()
        self.records.apply(self._follow)

    def pause(self, queue: Queue, what: str) -> bool:
        """Pause ``delivery`` or ``intake`` of a queue, at all brokers; False: that held already."""
        return self.order(queue.name, lambda record: replace(record, paused=record.paused | {what}))

    def resume(self, queue: Queue, what: str) -> bool:
        """Resume ``delivery`` or ``intake`` of a queue; False: that held already."""
        return self.order(queue.name, lambda record: replace(record, paused=record.paused - {what}))

    def set_settings(self, name: str, values: Mapping[str, str | None]) -> bool:
        """Store settings of a queue, or of all, which count before those of files; None: no longer.

        False: that held already. Raises BadFrames if they can't be together.
        """

        def change(record: QueueRecord) -> QueueRecord:
            merged = {**record.settings, **values}
            stored = {key: value for key, value in merged.items() if value is not None}
            self.settings.check(name, stored)
            return replace(record, settings=stored)

        return self.order(name, change)

    def order(self, name: str, change: Callable[[QueueRecord], QueueRecord]) -> bool:
        """Change the record of a queue, durably; returns when it holds here. Other brokers hear of it.

        False: it said all that already.
        """
        differs = changed = False

        def noted(record: QueueRecord) -> QueueRecord:
            nonlocal differs
            after = change(record)
            differs = after != record
            return after

        with self._one_order:
            for database in self.databases if name == ALL_QUEUES else [self.database_name(name)]:
                self.records.store(database).change(name, noted, self.context.clock.now())
                if differs:
                    self._channel(database).announce(BusEvent(BusKind.RECORDS))
                    changed = True
        self.follow_records()
        return changed

    def _follow(self, database: str, name: str, removed: bool) -> None:  # noqa: FBT001 - a callback
        """Apply the record of a queue; one that is not open yet gets it when it is opened."""
        if name == ALL_QUEUES:
            self._use_all_settings()
            return
        record, queue = self.records.of(database, name), self._open.get(name)
        if self.database_name(name) != database:
            queue = None  # a queue of this name lies elsewhere for this broker
        if queue:
            queue.pause(record.paused, removing=record.removing is not None)
            self._use_settings(queue)
            if removed:
                self.removed(queue)
                self.let_go_removed()
        if record.removing and (own := self.context.owners.own_ids()):
            workers = dict.fromkeys(own, 0) | {own[0]: queue.workers if queue else 0}
            self.records.store(database).note_workers(name, record.removing.token, workers)

    def _use_all_settings(self) -> None:
        for queue in in_pieces(self):
            self._use_settings(queue)

    def _use_settings(self, queue: Queue) -> None:
        settings = self.settings.of(queue.name)
        if settings != queue.settings:
            queue.reconfigure(settings)

    # ---------------------------------------------- events of other brokers

    def on_ready(self, event: BusEvent) -> None:
        """Look for jobs that another broker has made ready."""
        for queue in self._meant(event):
            queue.on_ready(event.number)
        if not event.name or event.name in self._awaited:
            self._ready_events.add(None)

    def on_coming(self, event: BusEvent) -> None:
        """Look for jobs that another broker is inserting; a READY event follows."""
        if event.name:
            self.on_ready(event)

    def on_ended(self, event: BusEvent) -> None:
        """Another broker has ended jobs of a queue that somebody waits for."""
        for queue in self._meant(event):
            queue.results.on_ended_at_others()

    def on_cancelled(self, event: BusEvent) -> None:
        """Another broker has cancelled jobs of a queue."""
        for queue in self._meant(event):
            queue.check_for_cancelled()

    def on_freed(self, event: BusEvent) -> None:
        """At another broker less is running of a queue that is limited."""
        for queue in self._meant(event):
            queue.on_freed()

    def on_records(self, _event: BusEvent) -> None:
        """Read the records of queues: another broker has changed some."""
        self._record_events.add(None)

    def _handle_event(self, handle: Callable[[], None]) -> None:
        try:
            handle()
        except UnavailableError as error:
            text = f"an event of another broker is not handled yet: {error}"
            self.context.counters.notice(Count.STORE_UNAVAILABLE, text)

    def _meant(self, event: BusEvent) -> Iterable[Queue]:
        if not event.name:
            return self
        queue = self._open.get(event.name)
        return () if queue is None else (queue,)

    def drop_owner(self, owner: str) -> None:
        """Drop jobs that we held under an owner id: other brokers have taken them."""
        for queue in self:
            queue.drop(owner)

    def leave(self) -> None:
        """Give back permits when the broker stops: its jobs are given back already."""
        for owner in self.context.owners.own_ids():
            for name in self.databases:
                LimitStore.leave(self._database(name), owner)

    def database(self, name: str) -> Documents:
        """Return a database with queues."""
        return self._database(name)

    def database_of(self, queue: Queue) -> Documents:
        """Return the database with the jobs of a queue."""
        return self._database(self.database_name(queue.name))

    def documents(self) -> list[Documents]:
        """Return all databases with queues."""
        return [self._database(name) for name in self.databases]

    def database_name(self, name: str) -> str:
        """Return the name of the database with the jobs of this queue, if there are any."""
        return self.settings.database(name)

    def under_way(self) -> dict[str, int]:
        """Return how many jobs are being written, at workers, and being committed, in all queues."""
        return {
            Gauge.STORING: self.context.memory.pushes.count,
            Gauge.IN_FLIGHT: sum(queue.in_flight for queue in self),
            Gauge.COMMITTING: sum(queue.settling.under_way for queue in self),
        }


def check_name(name: object) -> str:
    """Return the name, if a queue may have it; raises :class:`BadQueue`."""
    if isinstance(name, str) and is_queue_name(name):
        return name
    raise BadQueueError(f"{str(name)[:80]!r} is no queue name: {QUEUE_NAME_RULE}")
