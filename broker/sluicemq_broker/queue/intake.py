"""From a door to MongoDB: pushes are merged, numbered, written, and only then confirmed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Final, cast

from gevent.event import Event

from sluicemq.protocol.errors import DuplicateError, UnavailableError
from sluicemq_broker.bus import BusKind
from sluicemq_broker.job import Job
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.ledger import HIGHEST, NOTHING, Arrival
from sluicemq_broker.queue.ports import OnStored, Pusher
from sluicemq_broker.runtime import Batcher, Count, Timing, shielded
from sluicemq_broker.store import Pushed, Refused, by_bytes, in_halves

#: The first schema in which jobs may lie in packs.
PACKS: Final = 4
#: Jobs in one insert, at most, and inserts at once: 1000 x 2 reach 116k/s but hold the hub for 13 ms.
INSERT: Final = 500
INSERTS_AT_ONCE: Final = 2
#: Bytes of their payloads and headers, at most, unless one has more: MongoDB takes 16 MiB in a statement.
INSERT_BYTES: Final = 8 * 2**20

_NO_GROUP: Final = {None}
_SIZE: Final = attrgetter("size")
_UNCLEAR: Final = (
    "the broker stops, or MongoDB can't be reached: it may be stored, or not; push it again with the same id"
)


class Push:
    """Jobs for one queue that came together, and who hears what became of them."""

    __slots__ = ("began", "by", "grouped", "jobs", "on_stored", "size")

    def __init__(self, jobs: list[Job], on_stored: OnStored, by: Pusher | None = None) -> None:
        self.jobs = jobs
        self.by = by
        self.size = sum([job.size for job in jobs])
        """Bytes of their payloads and headers."""
        self.grouped = {job.group for job in jobs} != _NO_GROUP
        """True if any of them has a group."""
        self.on_stored = on_stored
        self.began = 0.0
        """When it was taken in, in monotonic seconds."""


class Intake:
    """The pushes of one queue, on their way into MongoDB.

    ``kill -9`` before the insert: the jobs are gone, and no producer got a confirmation. After it: they are
    stored, and a producer without a confirmation pushes them again with their ids. Before a job of a group
    is promoted: the sweep does that.
    """

    def __init__(self, core: QueueCore, groups: Groups) -> None:
        self._core = core
        self._groups = groups
        self._changed = Event()
        self._on_their_way = core.memory.pushes
        self.waiting = self.waiting_bytes = 0
        """Jobs that are not written yet, and their bytes."""
        self.taken_bytes = 0
        """Bytes of all jobs that were ever taken in."""
        self._last_seq = 0
        self._last_now = 0.0
        self._pushes: Batcher[Push] = Batcher(
            self._write_all,
            size=INSERT,
            in_flight=INSERTS_AT_ONCE,
            weigh=_weight,
            failed=self._failed,
            gather=self._gather,
        )
        # One at a time, so that the lines of groups are as they came: a batch gets its places, which a
        # majority has to know, while the one before it is inserted.
        self._grouped: Batcher[Push] = Batcher(self._line_up, size=INSERT, weigh=_weight, failed=self._failed)
        self._in_line: Batcher[Push] = Batcher(
            self._write_all, size=INSERT, weigh=_weight, failed=self._failed
        )

    @property
    def _batches(self) -> tuple[Batcher[Push], ...]:
        """All ways of a push into MongoDB, each behind those that lead to it."""
        return self._pushes, self._grouped, self._in_line

    @property
    def busy(self) -> bool:
        """True if anything waits or is being written."""
        return any(batch.busy for batch in self._batches)

    def push(self, push: Push) -> None:
        """Take jobs in; ``push.on_stored`` is called when all of them are durable or refused."""
        push.began = self._core.timer.now()
        self._on_their_way.take(len(push.jobs), push.size)
        self.waiting += len(push.jobs)
        self.waiting_bytes += push.size
        self.taken_bytes += push.size
        (self._grouped if push.grouped else self._pushes).add(push)

    def accept(self, jobs: list[Job]) -> float:
        """Number jobs that another statement than a push will store; returns when they were accepted."""
        self._groups.line_up(jobs)
        return self._number(jobs)

    def _number(self, jobs: list[Job]) -> float:
        """Number jobs in the order of acceptance, which is FIFO; times relative to the server's now.

        ``seq`` starts from the clock, so that it rises over restarts, and about so between brokers.
        """
        now = self._last_now = max(self._last_now, self._core.clock.now())
        seq = max(self._last_seq, self._core.scheduler.ledger.last_seq, int(now * 1e6))
        for job in jobs:
            seq += 1
            job.accept(seq, now)
        self._last_seq = seq
        return now

    def stored(self, jobs: Sequence[Job], existing: int) -> None:
        """Count jobs that another statement has stored, so that they are claimed; ``existing`` were there."""
        now = self._core.clock.now()
        self._core.counters.add(Count.PUSHED, len(jobs))
        self._core.counters.kinds.add(Count.PUSHED, [job.kind for job in jobs])
        self._core.counters.add(Count.REPEATED, existing)
        self._core.events.emit(Count.PUSHED, now, ({"job": job.id} for job in jobs))
        plain = [job for job in jobs if job.group is None]
        scheduler = self._core.scheduler
        scheduler.some_ready(HIGHEST, sum(job.eligible_at <= now for job in plain))
        scheduler.due_times.add([job.eligible_at for job in plain if job.eligible_at > now], now)
        scheduler.expiries.watch(jobs, now)
        self._groups.may_advance(jobs)
        self._core.dispatch()

    def workers_may_have_room(self) -> None:
        """Workers may have room for a push that waits for them."""
        self._changed.set()

    def drain(self, timeout: float) -> bool:
        """Wait until everything is written; False if time ran out before."""
        return all(batch.drain(timeout) for batch in self._batches)

    def refuse_waiting(self) -> None:
        """Give up pushes that are not being written yet; producers get an answer where their door has one."""
        waiting = [push for batch in self._batches for push in batch.clear()]
        self._refuse(waiting, Count.REFUSED)
        self._left(waiting)

    def _failed(self, pushes: list[Push]) -> None:
        self._refuse(pushes, Count.UNCLEAR)

    def _refuse(self, pushes: list[Push], count: Count, why: str = _UNCLEAR) -> None:
        """Tell that these could not be stored, or that nobody knows."""
        for push in pushes:
            self._core.counters.add(count, len(push.jobs))
            error = UnavailableError(why)
            shielded(push.on_stored, dict.fromkeys(range(len(push.jobs)), error), {})

    def _write_all(self, pushes: list[Push]) -> None:
        self._drop_repeated(pushes)
        try:
            if pushes:
                self._write(pushes)
        finally:
            self._left(pushes)

    def _line_up(self, pushes: list[Push]) -> None:
        self._drop_repeated(pushes)
        try:
            self._groups.line_up([job for push in pushes for job in push.jobs])
        except Exception:
            self._left(pushes)
            raise
        self._in_line.extend(pushes)

    def _left(self, pushes: list[Push]) -> None:
        count, size = sum([len(push.jobs) for push in pushes]), sum([push.size for push in pushes])
        self._on_their_way.give(count, size)
        self.waiting -= count
        self.waiting_bytes -= size

    def _drop_repeated(self, pushes: list[Push]) -> None:
        """Take out those that are repeated elsewhere: once done and removed there, they would run again."""
        repeated = [push for push in pushes if push.by is not None and push.by.superseded]
        if repeated:
            pushes[:] = [push for push in pushes if push.by is None or not push.by.superseded]
            self._refuse(repeated, Count.REFUSED, "its client pushes it again over another connection")
            self._left(repeated)

    def _write(self, pushes: list[Push]) -> None:
        jobs = pushes[0].jobs if len(pushes) == 1 else [job for push in pushes for job in push.jobs]
        now = self._number(jobs)
        if self._core.schema.number >= PACKS:
            for push in pushes:
                self._core.store.form_packs(push.jobs)
        repeated = any(push.by is not None and push.by.repeats for push in pushes)
        arrival = self._admit(jobs, now)
        pushed: Pushed | None = None
        staged: list[Job] = []
        try:
            pushed = self._insert(jobs, now, repeated=repeated)
            staged = _stored(arrival, jobs, pushed)
        except UnavailableError:
            self._failed(pushes)
        finally:
            self._core.scheduler.arrived(arrival, staged)
            self._core.dispatch()  # workers first: nothing else is done with a job sooner
        if pushed:
            self._wake(jobs)
            states = self._states(jobs, pushed.existing) if pushed.existing else {}
            self._count(jobs, pushed)  # in one turn with the answers, or the counters would not add up
            if self._core.events.wanted:
                absent = {*pushed.existing, *pushed.refused}
                new = ({"job": job.id} for at, job in enumerate(jobs) if at not in absent)
                self._core.events.emit(Count.PUSHED, now, new)
            durable = self._core.timer.now()
            self._core.counters.took(Timing.PUSH_CONFIRMATION, [durable - push.began for push in pushes])
            _answer(pushes, pushed, states)

    def _states(self, jobs: list[Job], existing: Sequence[int]) -> dict[int, str]:
        """Return the states of the jobs that have these ids, by position; of those that are gone, nothing."""
        ids = {at: jobs[at].id for at in existing}
        found: dict[str, str] = {}
        with suppress(UnavailableError):
            found = self._core.store.states(list(ids.values()), self._core.clock.now())
        return {at: found.get(job_id, "") for at, job_id in ids.items()}

    def _admit(self, jobs: list[Job], now: float) -> Arrival:
        number = self._core.owners.new_reservation()
        arrival = self._core.scheduler.admit(jobs, number, now, self._core.conditions())
        if arrival.ready > NOTHING:
            self._core.notify_brokers(BusKind.COMING, self._core.scheduler.ledger.last_seq)
        return arrival

    def _count(self, jobs: list[Job], pushed: Pushed) -> None:
        self._core.counters.add(Count.PUSHED, len(jobs) - len(pushed.existing) - len(pushed.refused))
        absent = {*pushed.existing, *pushed.refused}
        kinds = [job.kind for at, job in enumerate(jobs) if at not in absent]
        self._core.counters.kinds.add(Count.PUSHED, kinds)
        duplicates = sum(isinstance(error, DuplicateError) for error in pushed.refused.values())
        self._core.counters.add(Count.DUPLICATES, duplicates)
        self._core.counters.add(Count.REPEATED, len(pushed.existing))
        self._core.counters.add(Count.REFUSED, len(pushed.refused) - duplicates)

    def _gather(self, waiting: int) -> None:
        """Wait for workers that will have room for the jobs in a moment.

        A job that is inserted reserved costs MongoDB an insert and a delete; one that is ready first, a
        claim between them, which doubles that. So pushes wait for workers that are about to have room: both
        together do 45k jobs a second instead of 20k.
        """
        count, began, patience = min(INSERT, waiting), self._core.timer.now(), math.inf
        while seconds := self._core.scheduler.patience(count, self._core.conditions()):
            patience = min(patience, seconds)
            left = began + patience - self._core.timer.now()
            self._changed.clear()
            if left <= 0 or not self._core.timer.wait(self._changed, left):
                return

    def _insert(self, jobs: list[Job], now: float, *, repeated: bool) -> Pushed:
        """Insert until each is stored or refused; MongoDB refuses only the jobs that are at fault."""
        pushed = Pushed()
        start = 0
        for part in by_bytes(jobs, _SIZE, INSERT_BYTES):
            for these, answer in in_halves(part, partial(self._insert_part, now=now, repeated=repeated)):
                if not isinstance(answer, Pushed):  # these are one job
                    pushed.refused[start] = cast("Refused", answer)
                else:
                    pushed.add(answer, range(start, start + len(these)))
                start += len(these)
        return pushed

    def _insert_part(self, jobs: Sequence[Job], now: float, *, repeated: bool) -> Pushed:
        insertion = self._core.store.insertion(jobs, now, repeated=repeated)

        def statement() -> Pushed:
            self._core.store.prepare(again=True)
            pushed = insertion.send(self._core.clock.now())
            if self._core.store.removed:  # in between, and made again by this, without indexes
                self._core.store.mend()
            return pushed

        return self._core.retry.run(statement)

    def _wake(self, jobs: list[Job]) -> None:
        """Note what can be claimed of the jobs that are stored now, or later."""
        now, scheduler = self._core.clock.now(), self._core.scheduler
        groups = {job.group for job in jobs} != _NO_GROUP
        plain = [job for job in jobs if job.group is None] if groups else jobs
        ready = [job.priority for job in plain if not job.owner and job.eligible_at <= now]
        later = [job.eligible_at for job in plain if job.eligible_at > now]
        mortal = [job for job in jobs if job.expires_at is not None and not job.owner]
        if ready:
            scheduler.some_ready(max(ready), 0)  # they were counted when they were admitted
        scheduler.due_times.add(later, now)
        scheduler.expiries.watch(mortal, now)
        if groups:
            self._groups.may_advance(jobs)
        if ready or later or mortal:
            self._core.dispatch()


def _stored(arrival: Arrival, jobs: list[Job], pushed: Pushed) -> list[Job]:
    """Return the jobs that were inserted reserved; an id that was there before is another job's."""
    if not pushed.existing and not pushed.refused:
        return arrival.jobs
    absent = {*pushed.existing, *pushed.refused}
    return [job for at, job in enumerate(jobs) if job.owner and at not in absent]


def _weight(push: Push) -> int:
    size = headers = 0
    for job in push.jobs:
        size += job.size
        if job.headers:
            headers += job.size - len(job.payload)
    # This many of their bytes count as one job more: the driver writes all down in one turn of the hub.
    return len(push.jobs) + size // (32 * 1024) + headers // 1024


def _answer(pushes: list[Push], pushed: Pushed, states: Mapping[int, str]) -> None:
    if not pushed.existing and not pushed.refused:
        for push in pushes:
            shielded(push.on_stored, {}, {})
        return
    start = 0
    for push in pushes:
        end = start + len(push.jobs)
        refused = {at - start: error for at, error in pushed.refused.items() if start <= at < end}
        there = {at - start: state for at, state in states.items() if start <= at < end}
        shielded(push.on_stored, refused, there)
        start = end
