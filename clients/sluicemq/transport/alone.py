"""A job that is to run alone: a worker died with it, so nothing else of the process may die with it again.

A broker sees one connection, and delivers such a job where nothing else is under way. But a process has
several connections: those of a worker at several brokers, those of other workers::

    it comes, and something else is here ──▶ it is given back, and its part is chosen
    other parts request nothing, give back what no handler has begun, and end the rest
    all are at rest ──▶ the chosen part requests jobs; one that is to run alone begins
    it is settled, another kind of job comes, or none for a second ──▶ all request jobs again

Nobody waits for another one without a bound::

    something is still at work after 5 s ──▶ all request jobs again; while that is at work no part is
                                             chosen for 30 s: jobs that are to run alone go back
    so it is with the third part in a row ──▶ its job runs beside what is still at work
    a job has run alone for 5 s ──▶ all request jobs again: it may wait for one of them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from sluicemq import forks
from sluicemq.job import Job

#: Seconds between two looks whether all else is at rest, and those that the chosen part then waits for a job.
LOOK: Final = 0.05
PATIENCE: Final = 1.0

#: Seconds for which all else is kept from jobs: until it is at rest, and then while a job runs alone.
AT_MOST: Final = 5.0
#: Seconds without a choice after one that was in vain, while what was at work then still is.
PAUSE: Final = 30.0
#: Choices in a row of which the last one has its job, whatever is at work.
CHOICES: Final = 3


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
    """The chosen part, until that time; ``alone``: all else was at rest since, so that it may have jobs."""

    __slots__ = ("alone", "part", "until")

    def __init__(self, part: AlonePart, until: float) -> None:
        self.part = part
        self.alone = False
        self.until = until

    def let_begin(self, until: float) -> None:
        """Let it have jobs, until then."""
        self.until = until
        self.alone = True


class Alone:
    """The part of this process that may have jobs while it has one that is to run alone.

    Used by all I/O threads: every change is one operation on a dict, which is atomic. ``clock``: monotonic.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._workers: dict[Company, None] = {}
        self._chosen: dict[None, _Choice] = {}
        self._in_vain = 0
        """Choices in a row that had no job, as something else was at work."""
        self._pause_until = 0.0
        self._older: frozenset[bytes] = frozenset()
        """Receipts of what was at work when the last choice was in vain."""
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
            return self.may_request(part)
        if self.part is None and self._pauses:
            return False
        choice = self._chosen.setdefault(None, _Choice(part, self.clock() + AT_MOST))
        if choice.part is part:
            self._changed()
        admitted = self.may_request(part)
        if admitted:
            choice.let_begin(self.clock() + AT_MOST)
            self._in_vain = 0
        return admitted

    def may_request(self, part: AlonePart) -> bool:
        """Return whether a part may have jobs now."""
        choice = self._chosen.get(None)
        if choice is None or choice.part is not part:
            return choice is None
        if not choice.alone and self._at_rest_but(part):
            choice.let_begin(self.clock() + AT_MOST)
        return choice.alone

    def end_when_due(self, part: AlonePart) -> None:
        """End the choice of this part if it has lasted too long; the last one of a row has its job first."""
        choice = self._chosen.get(None)
        if choice is None or choice.part is not part or self.clock() < choice.until:
            return
        if choice.alone:
            self.end(part)
        elif self._in_vain + 1 < CHOICES:
            self._in_vain += 1
            self._older = frozenset([job.receipt for job in self._at_work])
            self._pause_until = self.clock() + PAUSE
            self.end(part)
        else:
            choice.let_begin(self.clock() + AT_MOST)

    def end(self, part: AlonePart) -> None:
        """Let all have jobs again, if this part was chosen."""
        if self.part is part:
            self._chosen.pop(None, None)
            self._changed()

    def _changed(self) -> None:
        for worker in list(self._workers):
            worker.changed()

    @property
    def _pauses(self) -> bool:
        in_time = self.clock() < self._pause_until
        return in_time and any(job.receipt in self._older for job in self._at_work)

    @property
    def _at_work(self) -> list[Job]:
        return [job for worker in list(self._workers) for job in list(worker.at_work) if job is not None]

    def _at_rest_but(self, part: AlonePart) -> bool:
        others = (other for worker in list(self._workers) for other in worker.parts if other is not part)
        return not any(other.bound or other.busy for other in others) and not self._at_work

    def _forked(self) -> None:
        self._workers, self._chosen = {}, {}
        self._in_vain, self._pause_until = 0, 0.0


#: Of this process.
ALONE: Final = Alone()
