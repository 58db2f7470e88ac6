"""A job that is to run alone: a worker died with it, so nothing else of the process may die with it again.

A broker sees one connection, and delivers such a job where nothing else is under way. But a process has
several connections: those of a worker at several brokers, those of other workers::

    it comes, and something else is here ──▶ it is given back, and its part is chosen
    other parts request nothing, give back what no handler has begun, and end the rest
    all are at rest ──▶ the chosen part requests jobs; one that is to run alone begins
    it is settled, another kind of job comes, or none for a second ──▶ all request jobs again
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from sluicemq import forks
from sluicemq.job import Job

#: Seconds between two looks whether all else is at rest, and those that the chosen part then waits for a job.
LOOK: Final = 0.05
PATIENCE: Final = 1.0


class AlonePart(Protocol):
    """One connection's part of a worker. Its attributes are read by other threads."""

    @property
    def bound(self) -> int:
        """Return how many jobs it has or may still get."""

    @property
    def busy(self) -> bool:
        """Return whether a verdict or another request is under way."""


class Company(Protocol):
    """The parts of one worker, and the job that each of its threads has begun."""

    @property
    def parts(self) -> Sequence[AlonePart]:
        """Return its parts."""

    @property
    def at_work(self) -> Sequence[Job | None]:
        """Return the jobs that have begun, None for each idle thread."""

    def changed(self) -> None:
        """Share out again, soon."""


class _Choice:
    """The chosen part; ``alone``: all else was at rest since, so that it may have jobs."""

    __slots__ = ("alone", "part")

    def __init__(self, part: AlonePart) -> None:
        self.part = part
        self.alone = False


class Alone:
    """The part of this process that may have jobs while it has one that is to run alone.

    Used by all I/O threads: every change is one operation on a dict, which is atomic.
    """

    def __init__(self) -> None:
        self._workers: dict[Company, None] = {}
        self._chosen: dict[None, _Choice] = {}
        forks.on_fork(self, Alone._forked)

    @property
    def part(self) -> AlonePart | None:
        """Return the chosen part; None: all have jobs."""
        choice = self._chosen.get(None)
        return choice.part if choice else None

    def join(self, worker: Company) -> None:
        """Have a worker rest while a job of another one runs alone."""
        self._workers[worker] = None

    def leave(self, worker: Company) -> None:
        """Forget a worker, which has stopped."""
        self._workers.pop(worker, None)
        for part in worker.parts:
            self.end(part)

    def admits(self, part: AlonePart, *, alone: bool) -> bool:
        """Return whether jobs that have come may begin; ``alone``: only while nothing else is here."""
        if not alone:
            self.end(part)
        elif self._chosen.setdefault(None, _Choice(part)).part is part:
            self._changed()
        return self.may_request(part)

    def may_request(self, part: AlonePart) -> bool:
        """Return whether a part may have jobs now."""
        choice = self._chosen.get(None)
        if choice is None or choice.part is not part:
            return choice is None
        choice.alone = choice.alone or self._at_rest_but(part)
        return choice.alone

    def end(self, part: AlonePart) -> None:
        """Let all have jobs again, if this part was chosen."""
        if self.part is part:
            self._chosen.pop(None, None)
            self._changed()

    def _changed(self) -> None:
        for each in list(self._workers):
            each.changed()

    def _at_rest_but(self, part: AlonePart) -> bool:
        workers = list(self._workers)
        others = (each for worker in workers for each in worker.parts if each is not part)
        at_work = (job for worker in workers for job in list(worker.at_work))
        return not any(each.bound or each.busy for each in others) and not any(map(_is_job, at_work))

    def _forked(self) -> None:
        self._workers, self._chosen = {}, {}


def _is_job(job: Job | None) -> bool:
    return job is not None


#: Of this process.
ALONE: Final = Alone()
