"""The queues of a broker, and what cares for their jobs, put together; no door is known here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import Config
from sluicemq_broker.process.duties import Duties, Duty, poll
from sluicemq_broker.process.foundation import Foundation, retried
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import (
    Census,
    DeadRetention,
    Disagreements,
    Fleet,
    OnDead,
    Queues,
    Schedules,
    Sweeper,
    Tasks,
)
from sluicemq_broker.runtime import ALL, DEAD_LETTERS, Batcher, Kept, of_time
from sluicemq_broker.security import Caller
from sluicemq_broker.store import FigureStore, LeaseStore, ScheduleStore, Seen


class Jobs:
    """The queues of a broker, and the duties for all of them.

    ``maker`` makes jobs of schedules and forwards. ``duties`` counts and logs the errors of one queue.
    """

    def __init__(
        self,
        config: Config,
        foundation: Foundation,
        maker: JobMaker,
        duties: Duties,
        caller: Callable[[str], Caller],
    ) -> None:
        """``caller``: returns the caller for a principal, by its name."""
        context, database = foundation.context, foundation.settings.database
        self.queues = Queues(config, context, foundation.database, maker.make, foundation.bus.channel)
        foundation.bus.on(BusKind.READY, self.queues.on_ready)
        foundation.bus.on(BusKind.COMING, self.queues.on_coming)
        foundation.bus.on(BusKind.ENDED, self.queues.on_ended)
        foundation.bus.on(BusKind.CANCELLED, self.queues.on_cancelled)
        foundation.bus.on(BusKind.FREED, self.queues.on_freed)
        foundation.bus.on(BusKind.RECORDS, self.queues.on_records)
        self.tasks = Tasks(self.queues, context, foundation.database)
        self.disagreements = Disagreements(self.queues, context)
        self.fleet = Fleet(
            self.queues,
            context,
            lambda: FigureStore(foundation.database(database)),
            foundation.turns,
            foundation.name,
        )
        self.census = Census(self.queues, context, trusted=lambda: foundation.store.reachable)
        self.schedules = Schedules(
            ScheduleStore(foundation.database(database)), self.queues, context, maker.make, caller
        )
        self._on_dead = OnDead(self.queues, context)
        self.dead_retention = DeadRetention(
            self.queues, context.clock.now, self.census.dead, self.tasks.retire
        )
        self._sweeper = Sweeper(self.queues, context, self.tasks.expire, self.queues.survey)
        # Brokers that have died, whose jobs one sweep takes over.
        self._deaths: Batcher[Seen] = Batcher(self._take_over_jobs, size=1000)
        foundation.owners.on_dead(self._deaths.add)
        foundation.owners.on_lost(self.queues.drop_owner)
        self._config = config
        self._foundation = foundation
        self._duties = duties

    def prepare(self) -> None:
        """Check the databases, find the queues, take a lease."""
        foundation = self._foundation
        retried(foundation.schema.open)
        for database in self.queues.databases:
            retried(LeaseStore(foundation.database(database)).prepare)
        self.queues.open_configured()
        retried(self.queues.discover)
        retried(self.queues.records.prepare)
        retried(self.disagreements.prepare)
        retried(self.fleet.prepare)
        retried(self.queues.follow_records)
        foundation.begin_lease()

    def take_over(self, *, alone: bool) -> None:
        """Take over the jobs and tasks of dead brokers. ``alone``: all other leases are void."""
        foundation = self._foundation
        if alone:
            foundation.end_other_leases()
        else:
            self._duties.attempt("a look for other brokers", foundation.owners.beat)
        retried(lambda: self.schedules.configure(self._config.schedules))
        retried(self._sweeper.sweep)  # it reads leases first
        retried(self.census.count_bounded)
        retried(self.tasks.prepare)
        retried(self.tasks.take_up)

    def duties(self) -> Iterator[Duty]:
        """Return what is repeated for the queues."""
        settings = self._foundation.settings
        lease, poll_every = settings.lease, settings.poll
        yield Duty("heartbeat of the lease", self._foundation.owners.pause, self._beat)
        owners = self._foundation.owners
        yield Duty("leases of other brokers", owners.look_pause, owners.watch_others)
        yield Duty("sweep of dead owners and expired jobs", lease, self._sweeper.sweep)
        yield Duty("old dead letters, and too many", lease, self.dead_retention.sweep)
        yield Duty("audit of our reservations against memory", lease, self._sweeper.audit)
        yield Duty("tasks of dead brokers", lease, self.tasks.take_up)
        yield poll("time-outs, results, jobs of other brokers", poll_every, self.tick)
        yield poll("queues that workers wait for", poll_every, self.queues.look_for_awaited)
        yield poll("queues that were removed", poll_every, self.queues.let_go_removed)
        yield poll("records of queues: pauses, removals", poll_every, self.queues.follow_records)
        yield Duty("counts of the queues, one after the other", poll_every, self.census.tick)
        yield Duty("dead letters: parents, and queues with on_dead", poll_every, self._on_dead.tick)
        yield Duty("dead letters of other brokers", lease, partial(self._on_dead.round, lease))
        differ = self.disagreements
        yield Duty("what brokers' files say differently", differ.every, differ.tick)
        yield Duty("load and workers, for all dashboards", self.fleet.every, self.fleet.tick)
        yield Duty("recurring jobs", poll_every, self.schedules.tick)

    def kept(self) -> Iterator[Kept]:
        """Yield what the queues keep: dead letters of each, done jobs, and the queues themselves."""
        for queue, dead, oldest, time, number in self.dead_retention.used():
            settings = self.queues.get(queue).settings
            bound = f"{of_time(settings.dead_retention)}, {settings.max_dead:,}"
            yield Kept(DEAD_LETTERS, queue, bound, dead, oldest=oldest, used=max(time, number))
        rows, most = self.census.rows(), self._foundation.settings.max_queues
        yield Kept("done jobs", ALL, "keep_done, remember", sum(row.done for row in rows))
        yield Kept("queues", ALL, f"max_queues: {most:,}", len(rows), used=len(rows) / most)

    def tick(self) -> None:
        """Take a turn of every queue; an error of one leaves the others theirs."""
        self._foundation.context.events.tick()
        for queue in self.queues:
            self._duties.attempt(f"time-outs, results, other brokers' jobs of queue {queue.name}", queue.tick)

    def stop_orders(self) -> None:
        """Begin no other page of a task: the next broker goes on."""
        self.tasks.stop()
        self._on_dead.stop()

    def stop_granting(self) -> bool:
        """Give workers no more jobs; True when none is on its way to one."""
        return all([queue.stop_granting(0.0) for queue in self.queues])  # noqa: C419 - each must stop

    @property
    def running(self) -> int:
        """Jobs that workers have."""
        return sum(queue.in_flight for queue in self.queues)

    @property
    def storing(self) -> bool:
        """True if a push is not stored yet."""
        return any(queue.intake.busy for queue in self.queues)

    @property
    def working(self) -> bool:
        """True if a worker has a job, or its verdict is not durable yet."""
        return any(queue.working for queue in self.queues)

    @property
    def busy(self) -> bool:
        """True if a statement about a job is under way."""
        return self.tasks.busy or any(queue.busy for queue in self.queues)

    def release_all(self) -> None:
        """Give back all reserved jobs; refuse workers that wait for jobs."""
        for queue in self.queues:
            queue.release_all()

    def leave(self) -> None:
        """Give back permits."""
        with suppress(SluiceError):
            self.queues.leave()

    def _take_over_jobs(self, dead: list[Seen]) -> None:
        """Make the jobs of dead brokers ready at once; other brokers do it at their next sweeps.

        Notify the parents of children that died just before their broker.
        """
        self._duties.attempt("sweep behind a dead broker", self._sweeper.sweep)
        since = min(broker.seen for broker in dead)
        self._duties.attempt(
            "parents behind a dead broker", partial(self._on_dead.notify_parents_since, since)
        )

    def _beat(self) -> None:
        owners = self._foundation.owners
        sure = owners.sure
        owners.beat()
        if owners.sure and not sure:
            for queue in self.queues:
                queue.dispatch()
