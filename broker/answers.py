"""Who waits for the result of which job: REQ and DEALER clients at a QUEUE, library clients by its id."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple

from broker.batcher import Batcher
from broker.job import State
from broker.patience import Patience
from broker.store import QueueStore
from broker.store_verdicts import Found
from sluicemq.errors import Dead, Expired, NotFound, SluiceError, Unavailable, Uncertain

#: Told once: the result of the job, or why there is none.
Answer = Callable[[bytes | SluiceError], None]

_LOOKED_UP_AT_ONCE: Final = 1000


class _Question(NamedTuple):
    """Someone asks by the id alone, who can't know that there is such a job."""

    answer: Answer
    on_its_way: Callable[[], None]


class Answers:
    """The askers of one queue. A crash forgets them: they ask again with the same id and wait on.

    ``held``: the ids of the jobs that this broker holds; it hears itself when one of those ends.
    """

    def __init__(self, store: QueueStore, patience: Patience, held: Container[str] = ()) -> None:
        self._store = store
        self._patience = patience
        self._held = held
        self._questions: dict[str, list[_Question]] = {}
        self._askers: dict[str, dict[Answer, None]] = {}
        self._durable: set[str] = set()
        self._missing: set[str] = set()
        self._look_ups: Batcher[str] = Batcher(self._look_up, size=_LOOKED_UP_AT_ONCE)

    def __len__(self) -> int:
        """Jobs that somebody waits for."""
        return len(self._askers)

    def wait(self, job_id: str, answer: Answer) -> None:
        """Call ``answer`` when this job has ended, whoever ends it."""
        self._askers.setdefault(job_id, {})[answer] = None

    def ask(self, job_id: str, answer: Answer, on_its_way: Callable[[], None]) -> None:
        """Call ``answer`` with what became of this job; ``on_its_way`` first if it has not ended yet.

        A job that is not there answers :class:`~sluicemq.errors.NotFound`.
        """
        self.wait(job_id, answer)
        self._questions.setdefault(job_id, []).append(_Question(answer, on_its_way))
        self._look_ups.add(job_id)

    def forget(self, job_id: str, answer: Answer) -> None:
        """Whoever gave this to :meth:`wait` or :meth:`ask` has gone."""
        waiting = self._askers.get(job_id, {})
        waiting.pop(answer, None)
        if job_id in self._askers and not waiting:
            del self._askers[job_id]
            self._durable.discard(job_id)
            self._missing.discard(job_id)

    def durable(self, ids: Iterable[str], existing: Iterable[str]) -> None:
        """These jobs are stored now; those that existed may have ended before they were asked for."""
        self._durable.update(job_id for job_id in ids if job_id in self._askers)
        self._look_ups.extend(existing)

    def look_up_elsewhere(self) -> None:
        """Look for the jobs that this broker doesn't hold, since nobody tells it when they end."""
        if self._durable and not self._look_ups.busy:
            self._look_ups.extend([job_id for job_id in self._durable if job_id not in self._held])

    def committed(self, job_id: str, result: bytes) -> None:
        """The job is done, durably."""
        self._tell(job_id, result)

    def failed(self, job_id: str, error: SluiceError) -> None:
        """There will be no result."""
        self._tell(job_id, error)

    def expired(self, ids: Iterable[str]) -> None:
        """These jobs were not taken in time."""
        for job_id in ids:
            self._tell(job_id, _expired(job_id))

    def refuse_all(self) -> None:
        """The broker stops: whoever still waits may ask again, with the same id."""
        self._tell_all(Unavailable("the broker stops; ask again with the same id"))

    def removed(self) -> None:
        """The queue was removed with all its jobs."""
        self._tell_all(NotFound("the queue was removed with all its jobs"))

    def _tell_all(self, error: SluiceError) -> None:
        for job_id in list(self._askers):
            self._tell(job_id, error)

    def _tell(self, job_id: str, outcome: bytes | SluiceError) -> None:
        self._durable.discard(job_id)
        self._missing.discard(job_id)
        for answer in self._askers.pop(job_id, ()):
            answer(outcome)

    def _look_up(self, ids: list[str]) -> None:
        # Who asks from here on is looked up by the next batch: the job may be stored meanwhile.
        asked = {job_id: self._questions.pop(job_id, ()) for job_id in dict.fromkeys(ids)}
        found = self._patience.insist(lambda: self._store.find(list(asked)))
        for job_id, questions in asked.items():
            if job_id not in found:
                self._not_there(job_id, questions)
            elif (outcome := _outcome(job_id, found[job_id])) is not None:
                self._tell(job_id, outcome)
            else:
                self._wait_on(job_id, questions)

    def _wait_on(self, job_id: str, asked: Iterable[_Question]) -> None:
        """The job is on its way: from now on those who asked by its id wait like those who pushed it."""
        for each in asked:
            if self._waits(job_id, each.answer):
                self._durable.add(job_id)
                each.on_its_way()

    def _waits(self, job_id: str, answer: Answer) -> bool:
        return answer in self._askers.get(job_id, ())

    def _not_there(self, job_id: str, asked: Iterable[_Question]) -> None:
        """A job that is gone may have been committed here this moment; the second time it is not so."""
        if job_id in self._missing:
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
                self.forget(job_id, each.answer)
                each.answer(NotFound(f"there is no job {job_id}: never pushed, or ended and not remembered"))


def _outcome(job_id: str, found: Found) -> bytes | SluiceError | None:
    """What to answer; None while the job is on its way."""
    if found.state is State.DONE:
        return found.result
    if found.state is State.DEAD:
        if found.expired:
            return _expired(job_id)
        return Dead(f"job {job_id} is among the dead letters: {found.reason}")
    return None


def _expired(job_id: str) -> Expired:
    return Expired(f"job {job_id}: its time to live is over")
