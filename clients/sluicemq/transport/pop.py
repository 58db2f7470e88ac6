"""The I/O thread's part of a worker that pops: the broker removes jobs before it sends them.

There is nothing to settle, so a job that is done only makes room for another one. Jobs of a lost connection
are still this worker's.
"""

from __future__ import annotations

from math import inf
from typing import Any

from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.errors import LeaseLostError, SluiceError
from sluicemq.transport.assignment import Assignment, JobVerdict


class PopAssignment(Assignment):
    """The :class:`~sluicemq.transport.role.Role` of a worker that pops.

    The broker counts down the requested jobs, so one more is requested with each that is done.
    """

    #: Requested jobs that have not come yet. ``_held``: those that have come and are not done.
    _requested = 0
    #: All requested jobs are being called off: no more are requested before the answer.
    _calling_off = False

    @property
    def bound(self) -> int:
        """Return how many jobs it has or may still get."""
        return self._held + max(0, self._requested)

    @property
    def busy(self) -> bool:
        """Return whether jobs may still come: those that are here are nobody else's."""
        return bool(self._requested or self._settling)

    def give_back(self) -> None:
        """Do nothing: nobody else has popped jobs, so they are worked off."""

    def holds(self, _job: Job) -> bool:
        """Return True: popped jobs are this worker's for good."""
        return True

    @property
    def doubtful(self) -> bool:
        """Return False: popped jobs are nobody else's."""
        return False

    def begin(self, job: Job) -> None:
        """Do nothing: popped jobs have no timeout."""

    def keep_extending(self, job: Job) -> None:
        """Do nothing."""

    def extend(self, job: Job, seconds: float) -> None:
        """Refuse to extend."""
        refuse_extend(job, seconds)

    statements_of_end = None  # type: ignore[assignment]
    """Popped jobs have left MongoDB."""

    def note_progress(self, job: Job, progress: list[Any]) -> None:
        """Do nothing."""
        ignore_progress(job, progress)

    def delivered(self, message: wire.Message) -> None:
        """Take in the jobs of a DELIVER, also when stopping: nobody else has them."""
        if message.verb == wire.DELIVER:
            jobs = self._read(message)
            self._held += len(jobs)
            self._requested -= len(jobs)
            self._inbox.extend(jobs)
            self.connection.post(self._on_jobs, len(jobs))

    def disconnected(self) -> None:
        """Keep the jobs; the next connection is asked for as many as there is room for."""
        self._questions.disconnected()
        self._settling = self._requested = 0
        self._calling_off = False
        self._follow()
        self._shares.changed()

    def _drop_all(self) -> None:
        if self.verdicts:
            self._held -= len(self._done())
            self._shares.changed()

    def _ask_for_work(self) -> None:
        self._ask_at = inf
        room = (self.share or 0) - self._held - self._requested
        if self._calling_off:
            return
        if room > 0:
            self._request(room)
        elif not self.share or room < 0 < self._requested:
            self._request(0)

    def _settle(self) -> None:
        shrinks = self.bound > (self.share or 0)
        self._held -= len(self._done())
        if self.share and self._held + self._requested < self.share:
            self._ask_for_work()
        if shrinks:
            self._shares.changed()

    def _done(self) -> list[JobVerdict]:
        return [self.verdicts.popleft() for _ in range(len(self.verdicts))]

    def _request(self, credit: int) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            if error is self.connection.disconnect_error:
                return
            self._settling -= 1
            if not credit:
                self._called_off()
            elif error is not None:
                self._requested -= credit
            self._granted(value, error)

        self._settling += 1
        self._requested += credit
        self._calling_off = not credit
        self.connection.request(wire.READY, self._queue, credit, self._options, answered=answered)

    def _called_off(self) -> None:
        self._requested, self._calling_off = 0, False
        if self.share:
            self._ask_for_work()
        self._shares.changed()

    @property
    def _options(self) -> dict[str, bool]:
        return {"pop": True, **(super()._options if self._wait_for_queue else {})}


def refuse_extend(job: Job, _seconds: float) -> None:
    """Refuse to extend a popped job."""
    raise LeaseLostError(f"job {job.id} was popped: nobody waits for it, so there is nothing to extend")


def ignore_progress(_job: Job, _progress: list[Any]) -> None:
    """Drop the progress of a popped job: nobody can see it."""
