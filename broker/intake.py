"""From a door to MongoDB: pushes are merged, numbered, written, and only then confirmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.batcher import Batcher
from broker.counters import Counters
from broker.dispatch import Dispatch
from broker.job import Job
from broker.mongo import Refused, ServerClock
from broker.owners import Owners
from broker.patience import Patience
from broker.shield import shielded
from broker.store import QueueStore
from broker.store_push import Pushed
from broker.supply import Arrival
from sluicemq.errors import Duplicate, SluiceError, Unavailable

#: Jobs in one insert, at most, and inserts at once: 1000 x 2 reach 116k/s but hold the hub for 13 ms.
INSERT: Final = 500
INSERTS_AT_ONCE: Final = 2

#: Told when every job of a push is durable or refused: refusals by position, positions known before.
Told = Callable[[dict[int, SluiceError], Sequence[int]], None]


class Push:
    """Jobs for one queue that came together, and who hears what became of them."""

    __slots__ = ("jobs", "told")

    def __init__(self, jobs: list[Job], told: Told) -> None:
        self.jobs = jobs
        self.told = told


class Intake:
    """The pushes of one queue, on their way into MongoDB.

    ``kill -9`` before the insert: the jobs are gone, and nobody was told that they are safe. After
    it: they are stored, and a producer that was not told pushes them again with the same ids.
    """

    def __init__(
        self,
        store: QueueStore,
        dispatch: Dispatch,
        owners: Owners,
        clock: ServerClock,
        patience: Patience,
        counters: Counters,
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._supply = dispatch.supply
        self._owners = owners
        self._clock = clock
        self._patience = patience
        self._counters = counters
        self._last_seq = 0
        self._last_now = 0.0
        self._pushes: Batcher[Push] = Batcher(
            self._write,
            size=INSERT,
            in_flight=INSERTS_AT_ONCE,
            weigh=lambda push: len(push.jobs),
            failed=self.refuse,
            gather=self._gather,
        )

    @property
    def busy(self) -> bool:
        """Whether anything waits or is being written."""
        return self._pushes.busy

    def push(self, push: Push) -> None:
        """Take jobs in; ``push.told`` is called when all of them are durable or refused."""
        self._pushes.add(push)

    def drain(self, timeout: float) -> bool:
        """Wait until everything is written; False if time ran out before."""
        return self._pushes.drain(timeout)

    def refuse_waiting(self) -> None:
        """Give up what is not being written yet, telling whoever can hear it."""
        self.refuse(self._pushes.clear())

    def refuse(self, pushes: list[Push]) -> None:
        """Tell that these could not be stored."""
        for push in pushes:
            self._counters.add("refused", len(push.jobs))
            error = Unavailable("the broker stops, or MongoDB can't be reached: not stored")
            shielded(push.told, dict.fromkeys(range(len(push.jobs)), error), ())

    def _write(self, pushes: list[Push]) -> None:
        jobs = pushes[0].jobs if len(pushes) == 1 else [job for push in pushes for job in push.jobs]
        now = self._accept(jobs)
        arrival = self._supply.expect(jobs, now)
        pushed: Pushed | None = None
        staged: list[Job] = []
        try:
            pushed, staged = self._insert(jobs, arrival, now)
        except Unavailable:
            self.refuse(pushes)
        finally:
            self._supply.arrived(arrival, staged)  # workers first: nothing else is done with a job sooner
        if pushed:
            self._count(jobs, pushed)
            _tell(pushes, pushed)
            self._wake(jobs)

    def _count(self, jobs: list[Job], pushed: Pushed) -> None:
        self._counters.add("pushed", len(jobs) - len(pushed.existing) - len(pushed.refused))
        duplicates = sum(isinstance(error, Duplicate) for error in pushed.refused.values())
        self._counters.add("duplicates", duplicates)
        self._counters.add("refused", len(pushed.refused) - duplicates)

    def _gather(self, waiting: int) -> None:
        self._supply.await_room(min(INSERT, waiting))

    def _accept(self, jobs: list[Job]) -> float:
        """Number jobs in the order of acceptance, which is FIFO; times relative to the server's now.

        ``seq`` starts from the clock, so that it rises over restarts, and about so between brokers.
        """
        now = self._last_now = max(self._last_now, self._clock.now())
        seq = max(self._last_seq, int(now * 1e6))
        for job in jobs:
            seq += 1
            job.seq = seq
            job.created_at = now
            job.eligible_at = max(now, job.eligible_at)
        self._last_seq = seq
        return now

    def _insert(self, jobs: list[Job], arrival: Arrival, now: float) -> tuple[Pushed, list[Job]]:
        """Insert until it is known what happened; returns that, and the jobs that are ours to stage."""
        doubtful = ""

        def unclear() -> None:
            nonlocal doubtful
            doubtful = doubtful or self._disown(arrival)

        pushed = self._store_each(jobs, now, unclear)
        if doubtful:
            return pushed, self._adopt(pushed, jobs, arrival, doubtful)
        absent = {*pushed.existing, *pushed.refused}
        if not absent:
            return pushed, arrival.jobs
        return pushed, [job for at, job in enumerate(jobs) if job.owner and at not in absent]

    def _store_each(self, jobs: list[Job], now: float, unclear: Callable[[], None]) -> Pushed:
        """Push; a statement that MongoDB refuses is halved, until only the job at fault is refused."""

        def statement() -> Pushed:
            self._store.prepare()
            return self._store.push(jobs, now, self._clock.now())

        try:
            return self._patience.insist(statement, unclear)
        except Refused as error:
            if len(jobs) == 1:
                return Pushed(refused={0: error})
        unclear()  # the driver may have split the statement, and MongoDB taken a part of it
        middle = len(jobs) // 2
        first, second = (self._store_each(half, now, unclear) for half in (jobs[:middle], jobs[middle:]))
        first.add(second, range(middle, len(jobs)))
        return first

    def _disown(self, arrival: Arrival) -> str:
        """After an unclear born-reserved insert: repeat it as ready jobs, under no id."""
        owner = arrival.jobs[0].owner if arrival.jobs else ""
        self._owners.retire(owner)
        for job in arrival.jobs:
            job.owner, job.attempts = "", 0
            # No claim may find it before this push is through, else its repetition stores it again.
            arrival.ready = max(arrival.ready, job.priority)
        return owner

    def _adopt(self, pushed: Pushed, jobs: list[Job], arrival: Arrival, owner: str) -> list[Job]:
        """The jobs that the unclear insert did store: they lie reserved under its owner, so they're ours."""
        born = set(arrival.jobs)
        ids = [jobs[at].id for at in pushed.existing if jobs[at] in born]
        if not ids:
            return []
        mine = self._patience.insist(lambda: self._store.held(ids, owner)) - self._dispatch.held.keys()
        adopted = [job for job in arrival.jobs if job.id in mine]
        for job in adopted:
            job.owner, job.attempts = owner, 1
        return adopted

    def _wake(self, jobs: list[Job]) -> None:
        now = self._clock.now()
        ready = [job.priority for job in jobs if not job.owner and job.eligible_at <= now]
        if ready:
            self._supply.some_ready(max(ready), 0)  # they were counted when they were expected
        later = [job.eligible_at for job in jobs if job.eligible_at > now]
        if later:
            self._supply.due_later(later)


def _tell(pushes: list[Push], pushed: Pushed) -> None:
    if not pushed.existing and not pushed.refused:
        for push in pushes:
            shielded(push.told, {}, ())
        return
    start = 0
    for push in pushes:
        end = start + len(push.jobs)
        refused = {at - start: error for at, error in pushed.refused.items() if start <= at < end}
        shielded(push.told, refused, [at - start for at in pushed.existing if start <= at < end])
        start = end
