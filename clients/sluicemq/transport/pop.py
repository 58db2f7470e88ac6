"""The I/O thread's part of a worker that pops: the broker removes jobs before it sends them.

There is nothing to settle, so a job that is done only makes room for another one. Jobs of a lost connection
are still this worker's.
"""

from __future__ import annotations

from typing import Any

from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.errors import LeaseLost, SluiceError
from sluicemq.transport.assignment import Assignment, JobVerdict


class PopAssignment(Assignment):
    """The :class:`~sluicemq.transport.role.Role` of a worker that pops.

    The broker counts down the requested jobs, so one more is requested with each that is done.
    """

    #: Jobs that have come and are not done. ``_requested``: those that have not come yet.
    _here = 0

    def begin(self, job: Job) -> None:
        """Do nothing: popped jobs have no timeout."""

    def extend(self, job: Job, seconds: float) -> None:
        """Refuse to extend."""
        refuse_extend(job, seconds)

    def note_progress(self, job: Job, progress: list[Any]) -> None:
        """Do nothing."""
        ignore_progress(job, progress)

    def delivered(self, message: wire.Message) -> None:
        """Take in the jobs of a DELIVER, also when stopping: nobody else has them."""
        if message.verb == wire.DELIVER:
            jobs = self._read(message)
            self._here += len(jobs)
            self._requested -= len(jobs)
            self.inbox.extend(jobs)
            self._connection.post(self._on_jobs, len(jobs))

    def disconnected(self) -> None:
        """Keep the jobs; the next connection is asked for as many as there is room for."""
        self._questions.disconnected()
        self._settling = self._requested = 0

    def _drop_all(self) -> None:
        self._here -= len(self._done())

    def _ask_for_work(self) -> None:
        room = self._credit - self._here - self._requested
        if not self._credit:
            self._request(0)
        elif room > 0:
            self._request(room)

    def _ask_again(self) -> None:
        """Do nothing: :meth:`_settle` requests more with each job that is done."""

    def _settle(self) -> None:
        done = self._done()
        self._here -= len(done)
        if done and self._credit:
            self._ask_for_work()

    def _done(self) -> list[JobVerdict]:
        return [self.verdicts.popleft() for _ in range(len(self.verdicts))]

    def _request(self, credit: int) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            if error is self._connection.disconnect_error:
                return
            self._settling -= 1
            if error is not None:
                self._requested -= credit
            self._granted(value, error)

        self._settling += 1
        self._requested = self._requested + credit if credit else 0
        self._connection.request(wire.READY, self._queue, credit, self._options, answered=answered)

    @property
    def _options(self) -> dict[str, bool]:
        return {"pop": True, **(super()._options if self._wait_for_queue else {})}


def refuse_extend(job: Job, _seconds: float) -> None:
    """Refuse to extend a popped job."""
    raise LeaseLost(f"job {job.id} was popped: nobody waits for it, so there is nothing to extend")


def ignore_progress(_job: Job, _progress: list[Any]) -> None:
    """Drop the progress of a popped job: nobody can see it."""
