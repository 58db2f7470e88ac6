"""Clients that wait for results of jobs: REQ and DEALER clients at a QUEUE, library clients by the id."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from sluicemq.protocol.errors import (
    DeadError,
    ExpiredError,
    NotFoundError,
    SluiceError,
    UnavailableError,
    UncertainError,
)
from sluicemq_broker.context import Retry
from sluicemq_broker.job import Job, State
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.store import READ_AT_ONCE, Found, QueueStore, in_halves


class StoredResult(NamedTuple):
    """A large result that lies in MongoDB: its bytes; ``read`` blocks, and raises why there is none."""

    size: int
    read: Callable[[], bytes]


#: The end of a job: its result, a large result that is to be read, or why there is none.
Outcome = bytes | StoredResult | SluiceError
#: Called once, with the outcome.
OnOutcome = Callable[[Outcome], None]
#: Called for a job that has not ended, with its progress in words, where that is known.
OnPending = Callable[[str], None]

#: Seconds by which two polls overlap: clocks differ, and writes take time.
_MARGIN: Final = 3.0


class _Question(NamedTuple):
    """A waiter that knows the id alone: the job may not exist."""

    on_outcome: OnOutcome
    on_pending: OnPending


class ResultWaiters:
    """The waiters for results of one queue. A crash forgets them: clients ask again, by the id.

    Jobs that end at this broker are answered at once, so while it is alone waiting costs next to nothing.
    With other brokers there, a poll asks MongoDB once a second which jobs have ended: a job that a client
    waits for at another broker is kept with its result for a while (``Job.result_wanted``).

    ``reserved``: the ids of jobs that this broker has reserved. ``watch_expiry`` is called with each job that
    was looked up and expires, and when. ``others`` gives the waiters of another queue, by its name.
    """

    def __init__(
        self,
        store: QueueStore,
        retry: Retry,
        reserved: Container[str] = (),
        watch_expiry: Callable[[str, float], None] = lambda _job_id, _expires_at: None,
        others: Callable[[str], ResultWaiters] | None = None,
    ) -> None:
        self._store = store
        self._retry = retry
        self._reserved = reserved
        self._watch_expiry = watch_expiry
        self._others = others
        self._waiting: dict[str, dict[OnOutcome, None]] = {}
        self._questions: dict[str, list[_Question]] = {}  # that wait for the next look-up
        self._stored: dict[str, None] = {}  # known to be in MongoDB, in the order of the next look-ups
        self._followed: dict[str, list[tuple[ResultWaiters, OnOutcome]]] = {}  # that have gone on
        self._missing: set[str] = set()  # not found by the last look-up
        self._ending = 0
        self._expired: dict[str, None] = {}  # the oldest first
        self._others_until = 0.0
        self._polled = math.inf
        self._look_ups: Batcher[str] = Batcher(self._look_up, size=READ_AT_ONCE)
        self._polls: Batcher[float] = Batcher(self._poll, size=1)

    def __len__(self) -> int:
        """Return how many jobs have waiters."""
        return len(self._waiting)

    def __contains__(self, job_id: str) -> bool:
        """Return True if this job has a waiter."""
        return job_id in self._waiting

    def wanted_by_others(self, job: Job) -> bool:
        """Return True if a client waits for the job's result, and that at another broker."""
        return job.result_wanted and job.id not in self._waiting

    # ------------------------------------------------------------------ waiters

    def wait(self, job_id: str, on_outcome: OnOutcome) -> None:
        """Call ``on_outcome`` when this job, which is pushed here, has ended, at whatever broker."""
        self._waiting.setdefault(job_id, {})[on_outcome] = None

    def stored(self, ids: Iterable[str], existing: Iterable[str]) -> None:
        """Jobs with waiters are stored; those that existed before may have ended long ago."""
        self._stored.update({job_id: None for job_id in ids if job_id in self})
        self._look_ups.extend(existing)

    def find(self, job_id: str, on_outcome: OnOutcome, on_pending: OnPending) -> None:
        """Call ``on_outcome`` with the outcome of this job; ``on_pending`` first if it has not ended yet.

        A job that does not exist answers :class:`~sluicemq.NotFoundError`.
        """
        self.wait(job_id, on_outcome)
        self._questions.setdefault(job_id, []).append(_Question(on_outcome, on_pending))
        self._look_ups.add(job_id)

    def stop(self, job_id: str, on_outcome: OnOutcome) -> None:
        """End what :meth:`wait` or :meth:`find` has begun: the client has gone."""
        waiting = self._waiting.get(job_id, {})
        waiting.pop(on_outcome, None)
        if job_id in self and not waiting:
            self._remove(job_id)

    def follow(
        self, job_id: str, queue: ResultWaiters, on_pending: OnPending = lambda _progress: None
    ) -> None:
        """The job has gone on to this queue: its waiters here get the outcome from there."""
        self._stored.pop(job_id, None)
        self._missing.discard(job_id)
        on_outcome = partial(self._answer, job_id)
        self._followed.setdefault(job_id, []).append((queue, on_outcome))
        queue.find(job_id, on_outcome, on_pending)

    # -------------------------------------------------------------- how jobs end

    def committed(self, job_id: str, result: bytes) -> None:
        """The job is done, durably."""
        self._answer(job_id, result)

    def failed(self, job_id: str, error: SluiceError) -> None:
        """The job has no result, and will have none."""
        self._answer(job_id, error)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """While jobs are being ended here, a look-up that does not find a job waits for how it ended."""
        self._ending += 1
        try:
            yield
        finally:
            self._ending -= 1

    def expired(self, ids: Iterable[str]) -> None:
        """Jobs were not taken in time."""
        for job_id in ids:
            self._answer(job_id, _expired(job_id))
            self._expired[job_id] = None
        # Jobs that expired here last: a client that pushes with a short time to live may ask after the job
        # is gone.
        for oldest in list(self._expired)[:-1000]:
            del self._expired[oldest]

    def end_removed(self, error: SluiceError) -> None:
        """Answer waiters whose jobs were removed with their queue; others have come since. Blocks."""
        for part, found in in_halves(list(self._stored), self._find, most=lambda: READ_AT_ONCE):
            for job_id in part:
                if not isinstance(found, Exception) and job_id in self._stored and job_id not in found:
                    self._answer(job_id, error)

    def end_all(self, error: SluiceError) -> None:
        """Answer all waiters with this: the broker stops."""
        for job_id in list(self._waiting):
            self._answer(job_id, error)

    def _answer(self, job_id: str, outcome: Outcome) -> None:
        for on_outcome in self._remove(job_id):
            on_outcome(outcome)

    def _remove(self, job_id: str) -> Iterable[OnOutcome]:
        """Forget this job and return its waiters."""
        self._stored.pop(job_id, None)
        self._missing.discard(job_id)
        for queue, on_outcome in self._followed.pop(job_id, ()):
            queue.stop(job_id, on_outcome)
        return self._waiting.pop(job_id, ())

    # ------------------------------------------------- jobs that end at other brokers

    def poll_others(self, now: float, *, alone: bool) -> None:
        """Every second or so: look for jobs that other brokers have ended; ``now`` is the server's time."""
        if not alone:
            # Seconds after the last sign of another broker during which jobs that it may have ended are
            # looked for.
            self._others_until = now + 60.0
        if not self._stored or self._look_ups.busy:
            return
        if now >= self._others_until:
            self._polled = math.inf
            # Seconds in which all jobs with waiters are looked up once while no other broker can end jobs,
            # and look-ups a second, at most: a net for causes that nobody has thought of, at a thousandth
            # of a processor.
            self._look_up_next(min(200, math.ceil(len(self._stored) / 30.0)))
            return
        self._look_up_next(READ_AT_ONCE)
        if len(self._stored) > READ_AT_ONCE and not self._polls.busy:
            since, self._polled = min(self._polled, now - _MARGIN), now - _MARGIN
            self._polls.add(since)

    def on_ended_at_others(self) -> None:
        """Another broker has ended jobs with waiters: look some up; the next poll finds the others."""
        # Jobs that are looked up when another broker says that it has ended some; the next poll finds the
        # others.
        self._look_up_next(100)

    def check(self, ids: Iterable[str] | None = None) -> None:
        """Look up these jobs, by default all: they may have ended, and nobody has said so."""
        self._look_ups.extend(
            list(self._stored) if ids is None else [job_id for job_id in ids if job_id in self]
        )

    def _look_up_next(self, count: int) -> None:
        """Look up ``count`` jobs, the longest not looked up first; and all that a look-up did not find.

        None while the queue is being removed: :meth:`end_removed` says what became of them.
        """
        if self._store.removal_comes:
            return
        turn = list(islice(self._stored, count))
        for job_id in turn:
            del self._stored[job_id]
            self._stored[job_id] = None
        self._look_ups.extend([job_id for job_id in {*turn, *self._missing} if job_id not in self._reserved])

    def _poll(self, since: list[float]) -> None:
        # Jobs that one poll asks about, at most
        ended = self._retry.run(lambda: self._store.ended(since[0], 10_000))
        self._look_ups.extend([job_id for job_id in ended if job_id in self._stored])

    # ------------------------------------------------------------------- look-ups

    def _look_up(self, ids: list[str]) -> None:
        # A client that asks from here on is answered by the next batch: the job may be stored meanwhile.
        wanted = {job_id: self._questions.pop(job_id, ()) for job_id in dict.fromkeys(ids) if job_id in self}
        try:
            for part, found in in_halves(list(wanted), self._find):
                if isinstance(found, Exception):
                    self._not_looked_up(wanted, part, found)
                    continue
                for job_id in part:
                    self._looked_up(job_id, wanted[job_id], found.get(job_id))
        except Exception as error:
            self._not_looked_up(wanted, wanted, error)
            raise

    def _find(self, ids: Sequence[str]) -> dict[str, Found]:
        return self._retry.run(lambda: self._store.find(ids))

    def _looked_up(self, job_id: str, questions: Sequence[_Question], found: Found | None) -> None:
        if found is None:
            self._not_found(job_id, questions)
        elif found.forwarded_to:
            self._find_in(found.forwarded_to, job_id, questions)
        elif (outcome := self._outcome(job_id, found)) is not None:
            self._answer(job_id, outcome)
        else:
            self._wait_on(job_id, questions, found.progress)
            if found.expires_at is not None and job_id in self:
                self._watch_expiry(job_id, found.expires_at)

    def _outcome(self, job_id: str, found: Found) -> Outcome | None:
        """Return the outcome; None while the job has not ended."""
        if found.state is State.DONE:
            return StoredResult(found.large, partial(self._read, job_id)) if found.large else found.result
        if found.state is not State.DEAD:
            return None
        if found.expired:
            return _expired(job_id)
        return DeadError(f"job {job_id} is among the dead letters: {found.reason}")

    def _read(self, job_id: str) -> bytes:
        result = self._retry.run(lambda: self._store.result(job_id))
        if result is None:
            raise self._unknown(job_id)
        return result

    def _not_found(self, job_id: str, questions: Sequence[_Question]) -> None:
        """A job that is gone may have been committed here this moment: the second look-up decides."""
        if self._ending and job_id in self._stored:
            self._wait_on(job_id, questions)
        elif job_id in self._missing:
            self._answer(job_id, UncertainError(f"job {job_id} has ended elsewhere and is not remembered"))
        elif job_id in self._reserved:  # it ends here this moment
            self._wait_on(job_id, questions)
        else:
            self._answer_each(job_id, questions, self._unknown(job_id))
            if job_id in self._stored:
                self._missing.add(job_id)

    def _find_in(self, queue: str, job_id: str, questions: Sequence[_Question]) -> None:
        """The job has gone on to another queue, where the waiters are answered."""

        def on_pending(progress: str) -> None:
            for question in self._still_waiting(job_id, questions):
                question.on_pending(progress)

        if self._others and job_id in self and (questions or job_id not in self._followed):
            self.follow(job_id, self._others(queue), on_pending)

    def _wait_on(self, job_id: str, questions: Iterable[_Question], progress: str = "") -> None:
        """The job has not ended: clients that asked by its id now wait like clients that pushed it."""
        for question in self._still_waiting(job_id, questions):
            self._stored[job_id] = None
            question.on_pending(progress)

    def _not_looked_up(
        self, wanted: Mapping[str, Sequence[_Question]], ids: Iterable[str], error: Exception
    ) -> None:
        """Answer those who would get no other answer; jobs known to be stored are looked up again."""
        why = (
            error if isinstance(error, SluiceError) else UnavailableError("the broker failed on this look-up")
        )
        for job_id in ids:
            if job_id in self._stored:
                self._answer_each(job_id, wanted[job_id], why)
            else:
                self._answer(job_id, why)

    def _answer_each(self, job_id: str, questions: Iterable[_Question], error: SluiceError) -> None:
        for question in self._still_waiting(job_id, questions):
            self.stop(job_id, question.on_outcome)
            question.on_outcome(error)

    def _still_waiting(self, job_id: str, questions: Iterable[_Question]) -> list[_Question]:
        return [question for question in questions if question.on_outcome in self._waiting.get(job_id, ())]

    def _unknown(self, job_id: str) -> SluiceError:
        if job_id in self._expired:
            return _expired(job_id)
        return NotFoundError(f"there is no job {job_id}: never pushed, or ended and not remembered")


def _expired(job_id: str) -> ExpiredError:
    return ExpiredError(f"job {job_id}: its time to live is over")
