"""The broker, put together: its parts, its greenlets, and the order in which it starts and stops."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from sluicemq.errors import SluiceError, Unavailable
from sluicemq_broker.config import Config, DeviceSettings
from sluicemq_broker.doors import (
    Admin,
    Device,
    ForwarderDevice,
    JobMaker,
    QueueDevice,
    Route,
    SessionDoor,
    StreamDevice,
    StreamSide,
)
from sluicemq_broker.process.deadline import Deadline
from sluicemq_broker.queue import (
    Census,
    Context,
    History,
    Memory,
    Owners,
    Queues,
    Schedules,
    Sweeper,
    Tasks,
    databases,
)
from sluicemq_broker.runtime import BALANCES, Count, Counters, Turns
from sluicemq_broker.store import (
    EVERY,
    Documents,
    Inspector,
    LeaseStore,
    ScheduleStore,
    ServerClock,
    StoreState,
    SubscriptionStore,
    connect,
    connect_for_leases,
    require_safe,
)
from sluicemq_broker.streams import Stream, StreamContext, Streams, Subscriptions
from sluicemq_devices.doors import Switchboard
from sluicemq_devices.relays import Kind

if TYPE_CHECKING:
    from sluicemq_broker.http import HttpDoor

log = logging.getLogger("broker")

#: A stopping broker reads its doors until nothing has come for so long, or for this share of its deadline.
_QUIET = 0.1
_READING_SHARE = 0.2
_WRITING_SHARE = 0.3
#: Seconds that a MongoDB gets in any case: to write what is given back; to mark the lease dead.
_LAST_WRITES = 0.2
_LEAVING = 1.0
#: Seconds between two looks for days that are over.
_ROLL_UP = 1800.0
#: How often a starting broker tries to write its lease.
_LEASE_TRIES = 5


class Server:
    """One broker on a MongoDB. ``alone``: no other broker can use it, so all leases there are void."""

    def __init__(self, config: Config, uri: str, *, alone: bool) -> None:
        settings = config.broker
        self.config = config
        self.counters = Counters()
        self._alone = alone
        self._mongo = connect(uri, self.counters.answered)
        self._mongo_for_leases = connect_for_leases(uri, settings.lease)
        self._clock = ServerClock()
        name = f"{socket.gethostname()}:{os.getpid()}"
        leases = {each: LeaseStore(self._mongo_for_leases[each]) for each in databases(config)}
        own = leases.pop(settings.database)
        self._owners = Owners(own, self._clock, name, settings.lease, leases, lost=self._drop)
        self._memory = Memory(settings.hwm, settings.hwm_bytes)
        self._context = Context(self._owners, self._clock, self.counters, memory=self._memory)
        self._queues = Queues(config, self._context, self._database)
        self._tasks = Tasks(self._queues, self._context, self._database)
        self._sweeper = Sweeper(self._queues, self._context, self._tasks.expire)
        self._board = Switchboard(
            notice=self.counters.notice,
            count=self.counters.add,
            max_connections=settings.max_connections,
            keep=True,
            unfinished_bytes=settings.hwm_bytes // 2,
        )
        self._memory.follow(self._follow_memory)
        maker = JobMaker(self._clock, settings.max_job_bytes)
        self._turns = Turns(self.counters)
        self._store = StoreState()
        self._census = Census(self._queues, self._context, trusted=lambda: self._store.reachable)
        host = socket.gethostname()
        self._history = History(
            self._queues, self._census, self._context, self._database, settings.database, host
        )
        schedules = ScheduleStore(self._mongo[settings.database])
        self._schedules = Schedules(schedules, self._queues, self._context, maker.make)
        admin = Admin(
            self._queues,
            self._census,
            self._tasks,
            self._context,
            self._turns,
            self._board,
            self._store,
            history=self._history,
            schedules=self._schedules,
        )
        streaming = StreamContext(self._clock, self.counters, self._context.retry)
        self._streams = Streams(config, streaming, self._database)
        subscriptions = Subscriptions(self._streams, streaming, self._owners, self._subscriptions_of)
        self._streams.keep(subscriptions.unread)
        streams = StreamSide(settings, self._streams, subscriptions, self.counters)
        self._sessions = SessionDoor(
            settings, self._board, self._queues, maker, admin, self.counters, streams
        )
        self._devices: list[Device] = [self._device(each, maker) for each in config.devices]
        self._routes = [
            Route(
                each,
                self._streams.open(each.stream),
                self._queues.open(each.queue),
                *(subscriptions, maker, streaming, name),
            )
            for each in config.routes
        ]
        admin.forwarders = self._forwarders
        self._http = self._http_door(admin) if settings.http else None
        self._greenlets: list[gevent.Greenlet[..., None]] = []
        self._stopping = Event()
        self._deadline = Deadline()
        self._started = self._open = False

    # ----------------------------------------------------------------- start

    def start(self) -> None:
        """Check the store, take back what is ours, open the doors.

        Raises :class:`SluiceError` where MongoDB is not there or not safe, OSError where a door's
        address is taken.
        """
        self._started = True
        if self._http:
            self._http.start()
        self._watching = self._repeat("whether MongoDB answers", EVERY, self._watch_store)
        self._prepare_store()
        self._board.start()
        for part in (self._sessions, *self._devices, *self._routes):
            part.start()
        settings = self.config.broker
        self._greenlets = [
            self._repeat("heartbeat of the lease", self._owners.pause, self._beat),
            self._repeat("measuring the server's clock", self._owners.pause, self._measure),
            self._repeat("sweep of gone owners and expired jobs", settings.lease, self._sweeper.sweep),
            self._repeat("audit of our reservations against memory", settings.lease, self._sweeper.audit),
            self._repeat("long orders of brokers that are gone", settings.lease, self._tasks.take_up),
            self._repeat("time-outs, askers, jobs of other brokers", settings.poll, self._tick),
            self._repeat("queues that workers wait for", settings.poll, self._queues.look_for_awaited),
            self._repeat("streams: what is kept of them", settings.lease, self._streams.sweep),
            self._repeat(
                "streams: a look for who waits, whatever was told", settings.poll, self._streams.look
            ),
            self._repeat("pauses that any broker was told of", settings.poll, self._queues.follow_pauses),
            self._repeat("counts of the queues, one after the other", settings.poll, self._census.tick),
            *self._history_duties(),
            self._repeat("recurring jobs", settings.poll, self._schedules.tick),
            self._repeat("heartbeats of library sessions", settings.heartbeat / 2, self._sessions.beat),
        ]
        self._turns.start()  # no greenlet: the hub itself tells how long each of its turns was
        self._open = True

    def describe(self) -> dict[str, Any]:
        """The doors that are open: ``{endpoint, devices: [{kind, queue, frontend, backend, commit}]}``."""
        return {
            "endpoint": self._sessions.door.address,
            "http": self._http.address if self._http else "",
            "devices": [each.describe() for each in self._devices],
        }

    def reconfigure(self, config: Config) -> None:
        """Take another configuration, of which only live settings differ."""
        self.config = config
        self._queues.reconfigure(config)

    # ------------------------------------------------------------------ stop

    def stop(self) -> None:
        """Stop without losing what was received; returns when stopped. Harmless before start, or twice.

        Grant no more work; read the doors until they are quiet; close them and write what came; wait
        for running jobs; give back the rest; end the lease. ``stop_timeout`` bounds all of it. After a
        start that failed half-way it does the same, and says nothing.
        """
        if not self._started:
            return
        self._started = False
        was_open, self._open = self._open, False  # whoever asks whether it is ready hears at once
        timeout = self.config.broker.stop_timeout
        self._deadline.begin(timeout)
        if was_open:
            log.info("stopping: reading the doors until they are quiet")
        self._tasks.stop()
        self._grant_no_more(timeout * _READING_SHARE)
        self._read_until_quiet(timeout * _READING_SHARE)
        _all_at_once(device.close_gates for device in self._devices)
        self._sessions.close_gates()
        for route in self._routes:
            route.close_gates()
        self._write_what_came(timeout * _WRITING_SHARE)
        self._await_workers(self._deadline.left - timeout * _WRITING_SHARE)
        self._release_all()
        self._stopping.set()
        self._streams.stop()
        self._deadline.until(lambda: all(each.ready() for each in self._greenlets), at_least=_LAST_WRITES)
        if was_open:
            self._say_what_was_counted()
        self._close()

    def hurry(self) -> None:
        """Wait for nothing any more: a second signal came."""
        self._deadline.hurry()
        self._context.retry.give_up()

    # ----------------------------------------------------------- parts of it

    def _database(self, name: str) -> Documents:
        return self._mongo[name]

    def _drop(self, owner: str) -> None:
        """Another broker has declared us dead, under this id."""
        self._queues.drop_owner(owner)

    def _subscriptions_of(self, stream: Stream) -> SubscriptionStore:
        return SubscriptionStore(self._database(stream.settings.database or self.config.broker.database))

    def _forwarders(self) -> list[dict[str, Any]]:
        """Each forwarder's doors, and what each of its subscribers has lost."""
        return [
            {**each.describe(), "subscribers": each.subscribers()}
            for each in self._devices
            if isinstance(each, ForwarderDevice | StreamDevice)
        ]

    def _device(self, settings: DeviceSettings, maker: JobMaker) -> Device:
        if settings.kind == Kind.FORWARDER:
            if settings.stream is not None:
                broker, streams = self.config.broker, self._streams
                return StreamDevice(settings, broker, self._board, streams, settings.stream, self.counters)
            return ForwarderDevice(settings, self._board)
        return QueueDevice(settings, self.config.broker, self._board, self._queues, maker, self.counters)

    def _history_duties(self) -> list[gevent.Greenlet[..., None]]:
        if not self.config.broker.history:
            return []
        return [
            self._repeat("history of every minute", self.config.broker.poll, self._history.tick),
            self._repeat("months and old minutes of the history", _ROLL_UP, self._history.roll_up),
        ]

    def _http_door(self, admin: Admin) -> HttpDoor:
        from sluicemq_broker import http  # noqa: PLC0415 - 7 MB and 0.1 s that a broker without it need not have

        settings, health = self.config.broker, http.Health(self._store, self._owners, lambda: self._open)
        reader = http.Reader(
            admin,
            self._queues,
            self._census,
            self._devices,
            self.counters,
            self._turns,
            self._store,
            health,
        )
        application = http.application(settings.http, health, http.Metrics(reader), reader)
        return http.HttpDoor(settings.http, application, self.counters)

    def _watch_store(self) -> None:
        self._store.watch(self._mongo_for_leases)

    def _prepare_store(self) -> None:
        broker = self.config.broker
        warning = require_safe(self._mongo, allow_unsafe=broker.allow_unsafe_store)
        if warning:
            log.warning("%s", warning)
        self._clock.set(self._mongo_for_leases)
        for database in self._queues.databases:
            LeaseStore(self._database(database)).prepare()
            Inspector(self._database(database)).check_schema()
        if broker.history:
            self._history.prepare()
        self._queues.open_configured()
        self._queues.discover()
        self._queues.follow_pauses()
        self._begin_lease()
        if self._alone:
            self._owners.end_others()
        self._schedules.configure(self.config.schedules)
        self._sweeper.sweep()
        self._tasks.prepare()
        self._tasks.take_up()

    def _begin_lease(self) -> None:
        """A short lease makes for short time-outs: one slow answer is no reason not to start."""
        for left in reversed(range(_LEASE_TRIES)):
            try:
                self._owners.use()
            except Unavailable:
                if not left:
                    raise
            else:
                return

    def _repeat(self, duty: str, seconds: float, step: Callable[[], None]) -> gevent.Greenlet[..., None]:
        """A greenlet that has one duty; MongoDB being away is no reason to end it."""

        def run() -> None:
            while not self._stopping.wait(seconds):
                self._do(duty, step)

        return gevent.spawn(run)

    def _do(self, duty: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Unavailable as error:
            self.counters.notice(Count.STORE_UNAVAILABLE, f"{duty}: {error}")
        except Exception:
            log.exception("%s failed", duty)

    def _beat(self) -> None:
        sure = self._owners.sure
        self._owners.beat()
        if self._owners.sure and not sure:
            for queue in self._queues:
                queue.hand_out()

    def _measure(self) -> None:
        self._clock.measure(self._mongo_for_leases)

    def _tick(self) -> None:
        for queue in self._queues:  # one that fails costs the others nothing
            self._do(f"time-outs, askers, jobs of other brokers of queue {queue.name}", queue.tick)

    def _follow_memory(self) -> None:
        """What is complete and has to be stored leaves no memory for more large messages, or does again."""
        if self._memory.takes_no_more:
            self._board.unfinished.close()
        else:
            self._board.unfinished.open()

    # -------------------------------------------------------- steps of a stop

    def _grant_no_more(self, seconds: float) -> None:
        self._deadline.until(
            lambda: all([queue.stop_granting(0.0) for queue in self._queues]),  # noqa: C419 - each is told
            within=seconds,
        )

    def _read_until_quiet(self, seconds: float) -> None:
        """Closing the doors first would lose what lies in socket buffers."""
        latest = Deadline()
        latest.begin(min(seconds, self._deadline.left))
        for device in self._devices:
            device.read_all()
        before, now = -1, self._received()
        while now != before and latest.left and self._deadline.left:
            self._deadline.until(lambda: False, within=_QUIET)
            before, now = now, self._received()

    def _received(self) -> int:
        return sum(device.received for device in self._devices)

    def _write_what_came(self, seconds: float) -> None:
        def stored() -> bool:
            writing = [each.storing for each in self._queues]
            return not any((*writing, *(each.busy for each in (*self._streams, *self._routes))))

        if not self._deadline.until(stored, within=seconds):
            for queue in self._queues:
                queue.refuse_waiting()

    def _await_workers(self, seconds: float) -> None:
        running = sum(queue.in_flight for queue in self._queues)
        if running:
            log.info("waiting for %d running jobs, until %.0f s from now", running, max(0.0, seconds))
        # Their verdicts too: whoever has asked is answered when they are durable.
        self._deadline.until(
            lambda: not any(queue.working for queue in self._queues),
            within=seconds,
        )

    def _release_all(self) -> None:
        """Give back what is held, then close the doors: what a lane still held is pushed anew."""
        for queue in self._queues:
            queue.release_all()
            queue.refuse_askers()
        _all_at_once(part.stop for part in (*self._devices, self._sessions))
        # What ends in one part may begin in another: jobs removed for a worker that is gone are pushed anew.
        self._deadline.until(
            lambda: not (self._tasks.busy or any(q.busy for q in self._queues)), at_least=_LAST_WRITES
        )
        self._context.retry.give_up()

    def _say_what_was_counted(self) -> None:
        """What came in and what became of it, what was delivered and what became of that."""
        self.counters.say_rest()
        figures = {**self.counters.values, **self._queues.under_way()}
        names = [each for balance in BALANCES for side in balance for each in side]
        log.info("counted: %s", " ".join(f"{name}={figures.get(name, 0)}" for name in names))

    def _close(self) -> None:
        """End the lease and all connections; a MongoDB that does not answer is not waited for."""
        leaving = gevent.spawn(self._leave_store)
        self._deadline.until(lambda: bool(leaving.ready()), at_least=_LEAVING)
        self._board.stop()
        self._turns.stop()
        if self._http:
            self._http.stop()

    def _leave_store(self) -> None:
        if self.config.broker.history:
            with suppress(SluiceError):
                self._history.close()
        with suppress(SluiceError):
            self._owners.end()
        self._mongo_for_leases.close()
        self._mongo.close()


def _all_at_once(steps: Iterable[Callable[[], None]]) -> None:
    """Each may take a second or two to flush; one after the other they would take the deadline."""
    gevent.joinall([gevent.spawn(step) for step in steps])
