"""One queue at this broker: its verbs, and the one place that acts on what its scheduler decides.

A job's way: ``intake`` writes it, ``scheduler`` decides which worker gets it, ``claiming`` claims what lies
ready, ``sending`` sends it, ``settler`` writes what became of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sluicemq.protocol import wire
from sluicemq.protocol.errors import CancelledError, NotFoundError, UnavailableError
from sluicemq.protocol.rows import EndRow, WorkerRow
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.context import Context
from sluicemq_broker.queue.capacity import Capacity, Flow
from sluicemq_broker.queue.claiming import Claimer
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.endings import Endings
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.intake import Intake
from sluicemq_broker.queue.ledger import HIGHEST
from sluicemq_broker.queue.limits import QueueLimits
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.permits import Permits
from sluicemq_broker.queue.plans import Conditions, News
from sluicemq_broker.queue.progress import JobsProgress
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.scheduler import Scheduler
from sluicemq_broker.queue.sending import JobSender
from sluicemq_broker.queue.settler import Settler
from sluicemq_broker.queue.time_limits import QueueTimeLimits
from sluicemq_broker.queue.unreadable import UnreadableMessages
from sluicemq_broker.queue.worker import Worker
from sluicemq_broker.runtime import Alarm, Batcher, Count, CountedKind, QueueCounters, shielded
from sluicemq_broker.store import (
    READ_AT_ONCE,
    Documents,
    EndedParent,
    LimitStore,
    QueueDefaults,
    QueueStore,
    RemovedJob,
    collection,
    is_another_order,
    order_of,
)
from sluicemq_devices.hub import in_parts


class Queue:
    """One queue: ``scheduler`` decides, and :meth:`dispatch` does what it has decided; nothing else does.

    Others use its parts: ``store`` (its collection in MongoDB), ``capacity``, ``intake``, ``unreadable``,
    ``deliveries``, ``settling``, ``progress``, ``groups``, ``endings``, ``permits``, and ``results``, which
    has who waits for one.
    """

    def __init__(
        self,
        name: str,
        settings: QueueSettings,
        database: Documents,
        context: Context,
        others: OtherQueues,
        store: QueueStore | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.counters = QueueCounters(context.counters, context.timer.now(), name)
        defaults = QueueDefaults.of(settings)
        self.store = store or QueueStore(database, collection(name), defaults, self.counters.notice)
        self.paused: frozenset[str] = frozenset()
        self.events = context.events.of(name)
        own = replace(context, counters=self.counters, events=self.events)
        self.clock, self._timer, self._owners = own.clock, own.timer, own.owners
        self._notify_brokers = own.notify_brokers
        memory, order = own.memory, order_of(defaults).staged(defaults)
        self.scheduler = scheduler = Scheduler(QueueLimits(settings), order, memory.staged, memory.expiries)
        self.deliveries = scheduler.deliveries
        self.deliveries.time_limits = QueueTimeLimits.of(settings)
        self._core = core = QueueCore(name, self.store, own, scheduler, self)
        self._alarm = Alarm(own.timer, self.dispatch)
        self.capacity = Capacity(name, settings, self._flow)
        self.permits = Permits(core, LimitStore(database, name))
        self.groups = groups = Groups(core)
        self.results = ResultWaiters(
            self.store,
            own.retry,
            scheduler.reservations,
            watch_expiry=self._watch_expiry,
            others=lambda name: others.open(name).results,
        )
        self.endings = Endings(core, self.results, groups, others)
        self.intake = Intake(core, groups)
        self._claims = Claimer(core, self.permits, groups, self.endings)
        self.settling = Settler(core, groups, self.results, self.endings, others, settings)
        self._sender = JobSender(core, self.settling, self._alarm)
        self.progress = JobsProgress(core)
        self.unreadable = UnreadableMessages(core)
        self._looks: Batcher[None] = Batcher(self._find_cancelled, size=1000)
        self.last_stuck = ""
        """The latest job whose handler does not end, in words."""
        self._ticks_at_rest = 0

    def dispatch(self) -> None:
        """Do what the scheduler decides: give back, hand out, notify other brokers, claim, set the alarm.

        Every part calls this after it has changed what the scheduler knows.
        """
        conditions = self._core.conditions()
        self.scheduler.wake(conditions)
        self._carry_out(conditions)
        self.permits.share()
        self.capacity.resume_if_room()
        self._alarm.set(self.scheduler.next_time(conditions))

    def hand_out(self) -> None:
        """Do what follows when a worker may have room: the rest of :meth:`dispatch` costs each job 4 us."""
        self._carry_out(self._core.conditions())

    def _carry_out(self, conditions: Conditions) -> None:
        scheduler = self.scheduler
        if unwanted := scheduler.unwanted(conditions):
            self.settling.release(unwanted)
        if expired := scheduler.take_expired():
            self.endings.time_is_over(expired)
        if scheduler.open(conditions):
            self._sender.hand_out(conditions.now)
        if news := scheduler.take_news():
            self._notify_others(news)
        if claiming := scheduler.next_claiming(conditions):
            self._claims.start(claiming)
        self.intake.workers_may_have_room()

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take other settings, but for ``database``: for jobs to come, and as the next reading of others."""
        defaults = QueueDefaults.of(settings)
        order_changes = is_another_order(QueueDefaults.of(self.settings), defaults)
        self.settings = settings
        self.deliveries.time_limits = QueueTimeLimits.of(settings)
        self.store.reconfigure(defaults)
        self.settling.reconfigure(settings)
        self.capacity.reconfigure(settings)
        # Of what is held ahead, not limited so far, less may begin; or it was claimed in another order.
        if settings.max_running or settings.rate or order_changes:
            self.settling.release(self.scheduler.staging.clear())
        self.scheduler.limits.reconfigure(settings)
        if order_changes:
            self.scheduler.staging.follow(order_of(defaults).staged(defaults))
            self.scheduler.some_ready(count=0)  # those that were held back, too
        self.dispatch()

    # ---------------------------------------------------------- jobs that are ready

    def jobs_ready(self, count: float = math.inf, priority: int = HIGHEST) -> None:
        """``count`` jobs (by default an unknown number) of this priority or below may be ready."""
        self.scheduler.some_ready(priority, count)
        self.dispatch()

    def on_ready(self, seq: int) -> None:
        """Another broker has ready jobs, none of a higher number than this (0: unknown)."""
        self.scheduler.on_ready(seq, self._core.conditions())
        self.dispatch()

    def on_freed(self) -> None:
        """Another broker has fewer jobs running: jobs that the limits hold back here may begin."""
        self.scheduler.on_freed()
        self.dispatch()

    def parent_ended(self, parent: EndedParent, *, elsewhere: bool = False) -> None:
        """The last child of a job has ended: the job is done, or ready once more.

        ``elsewhere``: in the transaction of an application, so its result is known to MongoDB alone.
        """
        self.groups.freed([parent.group] if parent.group else [])
        if parent.joins:
            self.counters.add(Count.JOINED, 1)
            self.events.emit(Count.JOINED, self.clock.now(), [{"job": parent.id}])
            self.jobs_ready(1, parent.priority)
        elif elsewhere:
            self.endings.ended_elsewhere(parent.id)
        else:
            self.endings.parent_ended(parent.id, parent.result)

    def jobs_due(self, times: Iterable[float]) -> None:
        """Jobs become ready at these times of the server's clock."""
        self.scheduler.due_times.add(times, self.clock.now())
        self.dispatch()

    # --------------------------------------------------------------- workers

    @property
    def workers(self) -> int:
        """How many workers it has here."""
        return len(self.deliveries.workers)

    @property
    def in_flight(self) -> int:
        """How many jobs are at workers here."""
        return len(self.deliveries.in_flight)

    @property
    def held(self) -> int:
        """How many jobs are reserved by this broker."""
        return len(self.scheduler.reservations)

    def attach(self, worker: Worker) -> None:
        """A worker has come."""
        self.deliveries.attach(worker, self._timer.now())
        self.offer(worker)

    def offer(self, worker: Worker, *, reads: bool | None = None) -> None:
        """A worker may have become free; ``reads``: whether its connection takes more."""
        if reads is not None:
            worker.reads = reads
        self.scheduler.hand_out.offer(worker)
        self.hand_out()

    def stalled(self, worker: Worker) -> None:
        """The connection of a worker takes nothing more: nothing is held for it until it is offered again."""
        worker.reads = False
        self.deliveries.recount(worker)

    def has_worker(self, name: str) -> bool:
        """Return whether a worker of this name works on it here."""
        return any(worker.name == name for worker in self.deliveries.workers)

    def order(self, name: str, action: str) -> bool:
        """Let the workers of this name get no more jobs, and end them if wanted; False: there are none."""
        found = [worker for worker in self.deliveries.workers if worker.name == name]
        for worker in found:
            worker.quiet = True
            self.offer(worker)
            if action == wire.END:
                shielded(worker.stop)
        return bool(found)

    def note_stuck(self, text: str, about: Mapping[str, Any]) -> None:
        """Note that a handler does not end: count, log, and keep it for the incident."""
        self.last_stuck = text
        self.counters.notice(Count.WORKERS_STUCK, text, about=about)

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        """Block until all ready jobs have been claimed and given to workers, or there is enough.

        Jobs on their way back, claimed beyond the credit of a worker that has left, are waited for.
        """
        self.settling.await_releases(timeout)
        self._claims.search(enough, timeout)

    def worker_list(self, most_jobs: int) -> list[WorkerRow]:
        """Describe its workers here, the seconds since each came, and their first jobs."""
        return [worker.listed(self.name, self._timer.now(), most_jobs) for worker in self.deliveries.workers]

    def kinds(self) -> Iterator[CountedKind]:
        """Return each kind of its jobs, as they were counted here."""
        now = self._timer.now()
        return (CountedKind(self.name, kind, found, now) for kind, found in self.counters.kinds.items())

    def holds_back(self, tenant: str) -> bool:
        """Return whether jobs of a tenant wait here for what their tenant may have."""
        return tenant in self.scheduler.held_back

    # ---------------------------------------------------------------- results

    def cancelled(self, job_id: str, removed: RemovedJob) -> None:
        """A job was removed: let its group go on, answer its waiters, notify its worker.

        Another broker may have it, which looks for itself.
        """
        self.settling.cancelled({(job_id, removed.seq)})
        self._notify_brokers(BusKind.CANCELLED, 0)
        if removed.group is not None:
            self.groups.freed([removed.group])
        now = self.clock.now()
        self.endings.ends.note(Count.CANCELLED, [job_id], now)
        self.events.emit(Count.CANCELLED, now, [{"job": job_id}])
        self.results.failed(job_id, CancelledError(f"job {job_id!r} was cancelled"))

    def check_for_cancelled(self) -> None:
        """Another broker has cancelled jobs: look, soon, whether those at workers here are among them."""
        if self.held:
            self._looks.add(None)
        self.results.on_ended_at_others()

    def _find_cancelled(self, _looks: list[None]) -> None:
        """``kill -9`` meanwhile: its workers are notified of nothing, and their verdicts change nothing."""
        jobs = self.scheduler.reservations.under(self._owners.current)
        for part in in_parts(jobs, READ_AT_ONCE):
            some = {job.id: job.seq for job in part}
            missing = self._core.retry.run(partial(self.store.missing, list(some)))
            self.settling.cancelled({(job_id, some[job_id]) for job_id in missing})

    def ends(self, job_id: str | None, limit: int) -> list[EndRow]:
        """Return how a job has ended here, or the latest ends, as far as they are remembered."""
        return self.endings.ends.find(job_id, limit)

    # ----------------------------------------------------------------- pauses

    def pause(self, paused: frozenset[str], *, removing: bool = False) -> None:
        """Pause these, of ``delivery`` and ``intake``, and resume the others; again is harmless.

        Jobs that are at workers go on and are settled; pushes that were taken in are stored. ``removing``: a
        broker removes the queue, so nothing is handed out until that has ended.
        """
        self.paused = paused
        self.store.expect_removal(coming=removing)
        holds = removing or wire.DELIVERY in paused
        if holds != self.scheduler.paused:
            self.scheduler.paused = holds
            self.dispatch()
        self.capacity.pause_intake(paused=wire.INTAKE in paused)

    # --------------------------------------------------- duties from time to time

    @property
    def in_use(self) -> bool:
        """True if anybody works on it here, waits for its jobs, or has some, or anything is on its way."""
        return self._has_work or self.busy

    @property
    def busy(self) -> bool:
        """True if anything is on its way to MongoDB."""
        parts = (self.intake, self.settling, self.groups, self.unreadable, self.endings)
        return any(part.busy for part in parts)

    @property
    def working(self) -> bool:
        """True if jobs are at workers, or what became of them is not durable yet."""
        return self.in_flight > 0 or self.settling.busy

    def tick(self) -> None:
        """Every second or so: time-outs, results and jobs of other brokers; costs nothing out of use."""
        self.counters.tick(self._timer.now())
        self._ticks_at_rest = 0 if self._has_work else self._ticks_at_rest + 1
        # Ticks of a queue that has come to rest: the pace of its workers is forgotten within them
        if self._ticks_at_rest > 3:
            return
        self.settling.time_out()
        self.results.poll_others(self.clock.now(), alone=not self._owners.others)
        self.store.tick(self.clock.now())
        self.scheduler.tick(self._core.conditions())
        self.dispatch()

    @property
    def changes(self) -> int:
        """A number that changes with everything that happens to its jobs here."""
        return sum(self.counters.values.values())

    def drop(self, owner: str) -> None:
        """Forget the jobs reserved under an owner id that was declared dead, and void their receipts."""
        taken = self.scheduler.drop(owner, self._timer.now())
        self.counters.add(Count.TAKEN_AWAY, len(taken))
        self.dispatch()

    # -------------------------------------------------------------- its end

    def stop_granting(self, timeout: float) -> bool:
        """Hand out and claim no more; False if a claim is still under way after ``timeout`` seconds."""
        self.scheduler.stopping = True
        self.dispatch()
        return self._claims.at_rest(timeout)

    def release_all(self) -> None:
        """The broker stops: give back all that is held, uncharged; refuse those who wait for results."""
        self.settling.release(self.scheduler.staging.clear())
        self.settling.withdraw(self.deliveries.withdraw(self._timer.now()))
        self.results.end_all(UnavailableError("the broker stops; ask again with the same id"))

    def removed(self, timeout: float) -> None:
        """The queue was removed from MongoDB: tell those who wait for its jobs.

        What is held may have been pushed since. So what is staged goes back, where it is there, which is
        waited for, and what is at workers ends with their verdicts.
        """
        self.store.dropped()
        self.settling.release(self.scheduler.staging.clear())
        self.settling.await_releases(timeout)
        self.results.end_removed(NotFoundError("the queue was removed with all its jobs"))

    # ---------------------------------------------------------------- helpers

    def _notify_others(self, news: News) -> None:
        """Tell the claims, and other brokers, what has become ready or free."""
        if news.ready:
            self.store.on_ready(anywhere=news.anywhere)
            self._notify_brokers(
                BusKind.READY, max(self.scheduler.ledger.last_seq, int(self.clock.now() * 1e6))
            )
        if news.freed:
            self._notify_brokers(BusKind.FREED, 0)

    def _watch_expiry(self, job_id: str, expires_at: float) -> None:
        """Note a job that expires, and whose result somebody waits for."""
        self.scheduler.expiries.watch_one(job_id, expires_at)
        self.dispatch()

    def _flow(self) -> Flow:
        intake = self.intake
        storing = (intake.waiting, intake.waiting_bytes)
        return Flow.counted(self.counters.values, intake.taken_bytes, self.held, *storing)

    @property
    def _has_work(self) -> bool:
        return bool(self.workers or self.in_flight or self.held or len(self.results))
