"""Who waits for the result of which job: REQ and DEALER clients at a QUEUE, library clients by its id."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from sluicemq.protocol.errors import Dead, Expired, NotFound, SluiceError, Unavailable, Uncertain
from sluicemq_broker.context import Retry
from sluicemq_broker.job import Job, State
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.store import Found, QueueStore, Refused


class StoredResult(NamedTuple):
    """A result of so many bytes that lies in MongoDB; ``read`` waits for it, or raises why there is none."""

    size: int
    read: Callable[[], bytes]


#: What became of a job: its result, that there is a large one, or why there is none.
Outcome = bytes | StoredResult | SluiceError
#: Told it, once.
OnOutcome = Callable[[Outcome], None]
#: Told how far its worker is with a job that has not ended, in words, where that is known.
OnPending = Callable[[str], None]

_LOOKED_UP_AT_ONCE: Final = 1000
#: Jobs that have expired here of late: who pushes with a short time to live may ask when they are gone.
_EXPIRED_KNOWN: Final = 1000
#: Seconds for a round of looks at all jobs that are waited for while nobody else can end them, and looks a
#: second, at most: a net for what nobody has thought of, at a thousandth of a processor.
_ROUND: Final = 30.0
_FEW: Final = 200
#: Jobs that are looked at when another broker says that it has ended some; of more the next look tells.
_SOON: Final = 100
#: So many seconds after the last sight of another broker, what it has ended is looked for still.
_GRACE: Final = 60.0
#: What other brokers have ended so many seconds ago is read again: their clocks, and writes that take long.
_MARGIN: Final = 3.0
_MOST_ENDED: Final = 10_000  # at one look


class ResultSource(Protocol):
    """Another queue, that can be asked for a job."""

    def find_result(self, job_id: str, answer: OnOutcome, on_pending: OnPending) -> None:
        """Call ``answer`` with what became of this job."""

    def stop_waiting(self, job_id: str, answer: OnOutcome) -> None:
        """Whoever gave this to :meth:`find_result` does not want it any more."""


class _Question(NamedTuple):
    """Someone asks by the id alone, who can't know that there is such a job."""

    answer: OnOutcome
    on_pending: OnPending


class ResultWaiters:
    """The askers of one queue. A crash forgets them: they ask again with the same id and wait on.

    What ends at this broker it hears itself, so while it is alone waiting costs next to nothing. With
    other brokers there it asks MongoDB, once a second, for what has ended, not for who waits: a job
    that somebody waits for elsewhere is kept with its result for a while (``Job.result_wanted``).

    ``held``: the ids of the jobs that this broker holds; ``mortal`` is told which of those that were looked
    up expire, and when; ``others`` gives another queue, to which a job has gone on.
    """

    def __init__(
        self,
        store: QueueStore,
        retry: Retry,
        held: Container[str] = (),
        mortal: Callable[[str, float], None] = lambda _job_id, _expires_at: None,
        others: Callable[[str], ResultSource] | None = None,
    ) -> None:
        self._store = store
        self._retry = retry
        self._held = held
        self._mortal = mortal
        self._others = others
        self._followed: dict[str, list[tuple[ResultSource, OnOutcome]]] = {}
        self._questions: dict[str, list[_Question]] = {}
        self._askers: dict[str, dict[OnOutcome, None]] = {}
        self._durable: dict[str, None] = {}  # stored, in the order in which they are looked at next
        self._watchful_until = 0.0
        self._looked = math.inf
        self._missing: set[str] = set()
        self._ending = 0
        self._expired: dict[str, None] = {}  # of late, the oldest first
        self._look_ups: Batcher[str] = Batcher(self._look_up, size=_LOOKED_UP_AT_ONCE)
        self._looks: Batcher[float] = Batcher(self._look_for_ended, size=1)

    def __len__(self) -> int:
        """Jobs that somebody waits for."""
        return len(self._askers)

    def __contains__(self, job_id: str) -> bool:
        """True if somebody waits for this job."""
        return job_id in self._askers

    def wanted_by_others(self, job: Job) -> bool:
        """True if a client waits for the job's result, and that at another broker."""
        return job.result_wanted and job.id not in self._askers

    def wait(self, job_id: str, answer: OnOutcome) -> None:
        """Call ``answer`` when this job has ended, whoever ends it."""
        self._askers.setdefault(job_id, {})[answer] = None

    def find(self, job_id: str, answer: OnOutcome, on_pending: OnPending) -> None:
        """Call ``answer`` with what became of this job; ``on_pending`` first if it has not ended yet.

        A job that is not there answers :class:`~sluicemq.NotFound`.
        """
        self.wait(job_id, answer)
        self._questions.setdefault(job_id, []).append(_Question(answer, on_pending))
        self._look_ups.add(job_id)

    def stop(self, job_id: str, answer: OnOutcome) -> None:
        """Whoever gave this to :meth:`wait` or :meth:`find` has gone."""
        waiting = self._askers.get(job_id, {})
        waiting.pop(answer, None)
        if job_id in self._askers and not waiting:
            del self._askers[job_id]
            self._forget(job_id)
            self._follow_no_more(job_id)

    def durable(self, ids: Iterable[str], existing: Iterable[str]) -> None:
        """These jobs are stored now; those that existed may have ended before they were asked for."""
        self._durable.update({job_id: None for job_id in ids if job_id in self._askers})
        self._look_ups.extend(existing)

    def follow(self, job_id: str, queue: ResultSource, on_pending: OnPending | None = None) -> None:
        """The job has gone on to this queue: whoever waits for it here hears what becomes of it there."""
        self._forget(job_id)
        hears = partial(self._tell, job_id)
        self._followed.setdefault(job_id, []).append((queue, hears))
        queue.find_result(job_id, hears, on_pending or _nobody)

    def poll_others(self, now: float, *, alone: bool) -> None:
        """Every second or so: look for jobs that other brokers have ended; ``now`` is the server's time."""
        if not alone:
            self._watchful_until = now + _GRACE
        if not self._durable or self._look_ups.busy:
            return
        if now >= self._watchful_until:
            self._looked = math.inf
            self._look_at_next(min(_FEW, math.ceil(len(self._durable) / _ROUND)))
            return
        self._look_at_next(_LOOKED_UP_AT_ONCE)
        if len(self._durable) > _LOOKED_UP_AT_ONCE and not self._looks.busy:
            since, self._looked = min(self._looked, now - _MARGIN), now - _MARGIN
            self._looks.add(since)

    def on_ended_at_others(self) -> None:
        """Another broker has ended jobs that somebody waits for: look at some, the others have their turn."""
        self._look_at_next(_SOON)

    def check(self, ids: Iterable[str] | None = None) -> None:
        """These jobs, by default all, may have ended without a word: look whether they have."""
        self._look_ups.extend(list(self._durable) if ids is None else [each for each in ids if each in self])

    def committed(self, job_id: str, result: bytes) -> None:
        """The job is done, durably."""
        self._tell(job_id, result)

    def failed(self, job_id: str, error: SluiceError) -> None:
        """There will be no result."""
        self._tell(job_id, error)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """While jobs are being ended here: a look-up that finds one gone waits to hear how it ended."""
        self._ending += 1
        try:
            yield
        finally:
            self._ending -= 1

    def expired(self, ids: Iterable[str]) -> None:
        """These jobs were not taken in time."""
        for job_id in ids:
            self._tell(job_id, _expired(job_id))
            self._expired[job_id] = None
        for oldest in list(self._expired)[:-_EXPIRED_KNOWN]:
            del self._expired[oldest]

    def refuse_all(self) -> None:
        """The broker stops: whoever still waits may ask again, with the same id."""
        self._tell_all(Unavailable("the broker stops; ask again with the same id"))

    def removed(self) -> None:
        """The queue was removed with all its jobs."""
        self._tell_all(NotFound("the queue was removed with all its jobs"))

    def _tell_all(self, error: SluiceError) -> None:
        for job_id in list(self._askers):
            self._tell(job_id, error)

    def _tell(self, job_id: str, outcome: Outcome) -> None:
        self._forget(job_id)
        self._follow_no_more(job_id)
        for answer in self._askers.pop(job_id, ()):
            answer(outcome)

    def _forget(self, job_id: str) -> None:
        self._durable.pop(job_id, None)
        self._missing.discard(job_id)

    def _follow_no_more(self, job_id: str) -> None:
        for queue, hears in self._followed.pop(job_id, ()):
            queue.stop_waiting(job_id, hears)

    def _look_at_next(self, count: int) -> None:
        """Look up so many that were not looked at for longest, and those that were not found just now."""
        turn = list(islice(self._durable, count))
        for job_id in turn:
            del self._durable[job_id]
            self._durable[job_id] = None
        self._look_ups.extend([job_id for job_id in {*turn, *self._missing} if job_id not in self._held])

    def _look_for_ended(self, since: list[float]) -> None:
        """Find out which jobs have ended since then, and look up those that somebody waits for."""
        ended = self._retry.run(lambda: self._store.ended(since[0], _MOST_ENDED))
        self._look_ups.extend([job_id for job_id in ended if job_id in self._durable])

    def _look_up(self, ids: list[str]) -> None:
        # Who asks from here on is looked up by the next batch: the job may be stored meanwhile.
        awaited = [job_id for job_id in dict.fromkeys(ids) if job_id in self]
        if not awaited:  # all who asked have gone
            return
        asked = {job_id: self._questions.pop(job_id, ()) for job_id in awaited}
        try:
            self._answer_all(asked)
        except Exception as error:
            self._not_looked_up(asked, error)
            raise

    def _answer_all(self, asked: Mapping[str, Sequence[_Question]]) -> None:
        """Tell what became of these; a look-up that MongoDB refuses is halved, until only one is refused."""
        try:
            found = self._retry.run(lambda: self._store.find(list(asked)))
        except Refused as error:
            if len(asked) == 1:
                self._not_looked_up(asked, error)
                return
            each = list(asked.items())
            for half in (each[: len(each) // 2], each[len(each) // 2 :]):
                self._answer_all(dict(half))
            return
        for job_id, questions in asked.items():
            if job_id not in found:
                self._not_there(job_id, questions)
            elif found[job_id].forwarded_to:
                self._goes_on(job_id, found[job_id].forwarded_to, questions)
            elif (outcome := self._outcome(job_id, found[job_id])) is not None:
                self._tell(job_id, outcome)
            else:
                self._wait_on(job_id, questions, found[job_id].progress)
                self._may_expire(job_id, found[job_id])

    def _outcome(self, job_id: str, found: Found) -> Outcome | None:
        """Return the answer; None while the job is on its way."""
        if found.state is State.DONE:
            return StoredResult(found.large, partial(self._read, job_id)) if found.large else found.result
        if found.state is State.DEAD:
            if found.expired:
                return _expired(job_id)
            return Dead(f"job {job_id} is among the dead letters: {found.reason}")
        return None

    def _read(self, job_id: str) -> bytes:
        result = self._retry.run(lambda: self._store.result(job_id))
        if result is None:
            raise self._unknown(job_id)
        return result

    def _goes_on(self, job_id: str, queue: str, asked: Sequence[_Question]) -> None:
        """It is in another queue by now; whoever has asked by its id hears from there if it has not ended."""

        def on_pending(progress: str) -> None:
            for each in asked:
                if self._waits(job_id, each.answer):
                    each.on_pending(progress)

        if self._others and job_id in self and (asked or job_id not in self._followed):
            self.follow(job_id, self._others(queue), on_pending)

    def _may_expire(self, job_id: str, found: Found) -> None:
        """It waits for a worker, and somebody for it."""
        if found.expires_at is not None and job_id in self:
            self._mortal(job_id, found.expires_at)

    def _not_looked_up(self, asked: Mapping[str, Sequence[_Question]], error: Exception) -> None:
        """Tell those who would hear nothing else; jobs known to be stored are looked for again."""
        why = error if isinstance(error, SluiceError) else Unavailable("the broker failed on this look-up")
        for job_id, questions in asked.items():
            if job_id not in self._durable:
                self._tell(job_id, why)
                continue
            for each in questions:
                if self._waits(job_id, each.answer):
                    self.stop(job_id, each.answer)
                    each.answer(why)

    def _wait_on(self, job_id: str, asked: Iterable[_Question], progress: str = "") -> None:
        """The job is on its way: from now on those who asked by its id wait like those who pushed it."""
        for each in asked:
            if self._waits(job_id, each.answer):
                self._durable[job_id] = None
                each.on_pending(progress)

    def _waits(self, job_id: str, answer: OnOutcome) -> bool:
        return answer in self._askers.get(job_id, ())

    def _not_there(self, job_id: str, asked: Iterable[_Question]) -> None:
        """A job that is gone may have been committed here this moment; the second time it is not so."""
        if self._ending and job_id in self._durable:
            self._wait_on(job_id, asked)
        elif job_id in self._missing:
            self._tell(job_id, Uncertain(f"job {job_id} has ended elsewhere and is not remembered"))
        elif job_id in self._held:  # it ends here this moment: who asks hears of it like all others
            self._wait_on(job_id, asked)
        else:
            self._answer_unknown(job_id, asked)
            if job_id in self._durable:
                self._missing.add(job_id)

    def _answer_unknown(self, job_id: str, asked: Iterable[_Question]) -> None:
        for each in asked:
            if self._waits(job_id, each.answer):
                self.stop(job_id, each.answer)
                each.answer(self._unknown(job_id))

    def _unknown(self, job_id: str) -> SluiceError:
        if job_id in self._expired:
            return _expired(job_id)
        return NotFound(f"there is no job {job_id}: never pushed, or ended and not remembered")


def _expired(job_id: str) -> Expired:
    return Expired(f"job {job_id}: its time to live is over")


def _nobody(_progress: str) -> None:
    """Nobody waits for it only so long."""
