"""The broker, put together: its core, its parts, and the order in which they start and stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import gevent

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.admin import at_broker
from sluicemq_broker.config import Config, ConfigError, Problem
from sluicemq_broker.doors import Services
from sluicemq_broker.process.deadline import Deadline
from sluicemq_broker.process.duties import Duties, poll
from sluicemq_broker.process.foundation import Foundation, retried
from sluicemq_broker.process.jobs import Jobs
from sluicemq_broker.process.listeners import Listeners, switchboard
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.runtime import BALANCES
from sluicemq_broker.security import Audit, Security, Shared, SharedLogins, SharedPrincipals
from sluicemq_broker.store import LoginStore, PrincipalStore, log_in_again
from sluicemq_devices.sockets import Switchboard

log = logging.getLogger("broker")

#: A stopping broker reads its doors until ten looks in a row, 0.01 s apart, have found nothing new, or for a
#: fifth of its deadline. Looks are counted, because the hub reads sockets between two of them; on a busy
#: machine time may pass without that.
_READING_SHARE: Final = 0.2
_WRITING_SHARE: Final = 0.3
#: Seconds that MongoDB gets in any case: to write what is given back; to end the lease.
_LAST_WRITES: Final = 0.2
_LEAVING: Final = 1.0


#: Why a connection ends whose principal, or key, was removed.
_UNKNOWN: Final = "its key, or its principal, was removed, or the door lets nobody in by that any more"


class Server:
    """One broker on a MongoDB: a core that works queues, and parts.

    ``alone``: no other broker can use this MongoDB, so all leases there are void. ``why``: what is known of
    an embedded MongoDB that does not answer. ``give_up(error)``: called when this broker must stop by itself.
    """

    def __init__(
        self,
        config: Config,
        uri: str,
        parts: Sequence[type[Part]] = (),
        *,
        alone: bool,
        why: Callable[[], str] = lambda: "",
        give_up: Callable[[SluiceError], None] = lambda _error: None,
    ) -> None:
        _require_parts(config, parts)
        self.config = config
        self._alone = alone
        self._give_up = give_up
        self._foundation = foundation = Foundation(config, uri, alone=alone, why=why)
        self.counters = foundation.counters
        self._duties = Duties(self.counters)
        maker = JobMaker(foundation.clock, config.broker.max_job_bytes)
        security = self._security = Security(
            foundation.counters, config.security, config.principals, foundation.clock.now
        )
        self._jobs = jobs = Jobs(config, foundation, maker, self._duties, security.principals.caller_of)
        timer, board = foundation.context.timer, switchboard(foundation)
        services = Services(
            config.broker, foundation.counters, board, jobs.queues, maker, timer, security, foundation.name
        )
        subjects = [jobs.queues.subjects, jobs.queues.kinds]
        core = Core(config, foundation, jobs, services, subjects, [jobs.kept], [], {})
        self._parts = [part(core) for part in parts]
        core.subjects.extend(subject for part in self._parts for subject in part.subjects)
        self._principals = self._shared_principals(board)
        self._followed: list[Shared[Any]] = [self._principals, *self._shared_logins()]
        administered = at_broker(security, self._principals, foundation.clock.now)
        self._listeners = Listeners(core, self._parts, administered, lambda: self._open)
        self._deadline = Deadline()
        self._started = self._open = self._given_up = False

    def start(self) -> None:
        """Check MongoDB, take over jobs of dead brokers, open the doors.

        Raises :class:`SluiceError` if MongoDB is not there or not safe, OSError if a door's address is taken.
        """
        self._started = True
        self._listeners.start_http()
        self._duties.start(self._foundation.watching())
        self._foundation.prepare()
        self._jobs.prepare()
        for shared in self._followed:
            retried(shared.prepare)
        for part in self._parts:
            part.prepare()
        self._jobs.take_over(alone=self._alone)
        if self._given_up:
            return
        self._foundation.bus.start(self._jobs.queues.databases)
        self._listeners.start()
        for part in self._parts:
            part.start()
        following = [
            poll(followed.what, self.config.broker.poll, followed.follow) for followed in self._followed
        ]
        duties = [self._foundation.duties(), self._jobs.duties(), self._listeners.duties(), following]
        self._duties.start(chain(*duties, *(part.duties() for part in self._parts)))
        self._foundation.turns.start()  # no greenlet: the hub itself measures its turns
        self._open = True
        self._foundation.schema.on_newer = self._give_up
        self._security.announce()

    def give_up_start(self) -> None:
        """Open no door once the statement under way has its answer: this process is about to end."""
        self._given_up = True

    def describe(self) -> dict[str, Any]:
        """Return the open doors, as :meth:`Listeners.describe` does."""
        return self._listeners.describe()

    def reconfigure(self, config: Config) -> None:
        """Use another configuration, of which only live settings differ."""
        uri = config.broker.mongodb_uri
        if uri is not None and uri != self.config.broker.mongodb_uri:
            log_in_again(uri)
        doors = [(before[1:], now[1:]) for before, now in zip(self.config.doors, config.doors, strict=True)]
        self.config = config
        self._security.audit.retention = config.broker.audit_retention
        self._jobs.queues.reconfigure(config)
        self._security.reconfigure(config.security, config.principals, doors)
        self._principals.on_change()
        self._listeners.reconfigure(config.broker)

    @property
    def audit(self) -> Audit:
        """Records of what is done to this broker."""
        return self._security.audit

    @property
    def status(self) -> str:
        """The state of the broker in one line, for a service manager."""
        queues = list(self._jobs.queues)
        workers = sum(queue.workers for queue in queues)
        figures = f"{len(queues)} queues, {workers} workers, {self._jobs.running} jobs running"
        return "; ".join(filter(None, (self._foundation.store.problem, figures)))

    def stop(self) -> None:
        """Stop without losing what was received; returns when stopped. Harmless before start, or twice.

        Hand out no more jobs; tell clients that know other brokers; read the doors until they are quiet;
        close them and write what came; wait for running jobs; give back the rest; end the lease.
        ``stop_timeout`` bounds all of it. After a start that failed half-way these steps are not logged.
        """
        if not self._started:
            return
        self._started = False
        was_open, self._open = self._open, False  # /readyz answers 503 from now on
        timeout = self.config.broker.stop_timeout
        self._deadline.begin(timeout)
        if was_open:
            log.info("stopping: reading the doors until they are quiet")
        self._jobs.stop_orders()
        self._deadline.until(self._jobs.stop_granting, within=timeout * _READING_SHARE)
        self._listeners.announce_stop()
        self._read_until_quiet(timeout * _READING_SHARE)
        self._listeners.close_gates()
        for part in self._parts:
            part.close_gates()
        self._write_what_came(timeout * _WRITING_SHARE)
        self._await_workers(self._deadline.left - timeout * _WRITING_SHARE)
        self._deadline.until(lambda: self._listeners.quiet, within=_LEAVING)
        self._release_all()
        self._foundation.bus.stop()  # after sending events about jobs that were given back
        self._duties.stop()
        self._deadline.until(lambda: self._duties.ended, at_least=_LAST_WRITES)
        if was_open:
            self._log_counters()
        self._close()

    def hurry(self) -> None:
        """End all waits: a second signal came."""
        self._deadline.hurry()
        self._foundation.context.retry.give_up()

    def _shared_principals(self, board: Switchboard) -> SharedPrincipals:
        """Return what follows the principals in MongoDB, and ends connections of those that are removed."""
        foundation, database = self._foundation, self.config.broker.database
        principals = SharedPrincipals(
            PrincipalStore(foundation.database(database)),
            self._security.principals,
            lambda: foundation.bus.channel(database),
            foundation.counters,
        )
        principals.on_change = lambda: board.cut_if(lambda caller: not caller.is_known, _UNKNOWN)
        foundation.bus.on(principals.kind, principals.on_event)
        return principals

    def _shared_logins(self) -> Iterator[SharedLogins]:
        """Yield what follows the logins in MongoDB, where there is an HTTP door."""
        foundation, settings = self._foundation, self.config.broker
        if settings.http:
            logins = SharedLogins(
                LoginStore(foundation.database(settings.database)),
                self._security.logins,
                lambda: foundation.bus.channel(settings.database),
                foundation.counters,
            )
            foundation.bus.on(logins.kind, logins.on_event)
            yield logins

    # ----------------------------------------------------------- steps of a stop

    def _read_until_quiet(self, seconds: float) -> None:
        """Read the doors until nothing comes: closing them first would lose what is in socket buffers."""
        latest = Deadline()
        latest.begin(min(seconds, self._deadline.left))
        self._listeners.read_all()
        quiet, before = 0, self._listeners.received
        while quiet < 10 and latest.left and self._deadline.left:
            self._deadline.until(lambda: False, within=0.01)
            now = self._listeners.received
            # A door may be held back by messages on their way to MongoDB, and is not quiet then.
            quiet = quiet + 1 if now == before and not self._listeners.taking_in else 0
            before = now

    @property
    def _storing(self) -> bool:
        return self._jobs.storing or any(part.busy for part in self._parts)

    def _write_what_came(self, seconds: float) -> None:
        if not self._deadline.until(lambda: not self._storing, within=seconds):
            for queue in self._jobs.queues:
                queue.intake.refuse_waiting()

    def _await_workers(self, seconds: float) -> None:
        running = self._jobs.running
        if running:
            log.info("waiting for %d running jobs, until %.0f s from now", running, max(0.0, seconds))
        self._deadline.until(lambda: not self._jobs.working, within=seconds)

    def _release_all(self) -> None:
        """Give back reserved jobs, then close the doors; popped jobs that were not sent are pushed again."""
        self._jobs.release_all()
        self._listeners.stop()
        # Closing a door may push jobs: those that were popped for a worker and not sent.
        self._deadline.until(lambda: not self._jobs.busy, at_least=_LAST_WRITES)
        self._foundation.context.retry.give_up()

    def _log_counters(self) -> None:
        """Log jobs that came in with their outcomes, and deliveries with theirs."""
        self.counters.say_rest()
        self._security.say_rest()
        figures = {**self.counters.values, **self._jobs.queues.under_way()}
        names = dict.fromkeys(count for balance in BALANCES for side in balance for count in side)
        log.info("counted: %s", " ".join(f"{name}={figures.get(name, 0)}" for name in names))

    def _close(self) -> None:
        """End the lease and all connections, without waiting long for a MongoDB that does not answer."""
        leaving = gevent.spawn(self._leave)
        self._deadline.until(lambda: bool(leaving.ready()), at_least=_LEAVING)
        self._listeners.stop_http()
        self._foundation.turns.stop()

    def _leave(self) -> None:
        self._jobs.leave()
        for part in self._parts:
            with suppress(SluiceError):
                part.leave()
        self._foundation.leave()


def _require_parts(config: Config, parts: Iterable[type[Part]]) -> None:
    """Raise ConfigError for a table that none of the parts reads."""
    read = {table for part in parts for table in part.settings}
    unread = [table for table in ("streams", "routes") if getattr(config, table) and table not in read]
    if unread:
        raise ConfigError(Problem(f"[{table}]", "this broker runs without that part") for table in unread)
