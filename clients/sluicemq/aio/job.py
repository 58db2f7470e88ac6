"""Jobs as an async handler sees them."""

from __future__ import annotations

from sluicemq import job
from sluicemq.aio.asking import ask
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.transport.assignment import EXTEND_TIMEOUT, Assignment, refuse
from sluicemq.transport.pop import PopAssignment


class Job(job.Job):
    """One delivery of a job, for an async handler: ``await job.extend("5m")``; all else is as for threads."""

    __slots__ = ()

    async def extend(self, seconds: Duration) -> None:  # type: ignore[override]
        """Extend the job's time to ``seconds`` from now; from its handler.

        Raises :class:`~sluicemq.LeaseLostError` if the job is no longer this worker's.
        """
        check_span("seconds", seconds)
        source = self.source
        if isinstance(source, JobsOfTasks):
            with source.extending(self):
                receipts, span = [self.receipt], in_seconds(seconds)
                answer = await ask(
                    source._questions, wire.EXTEND, receipts, span, timeout=EXTEND_TIMEOUT, repeat=False
                )
            refuse(answer)
        else:
            self._extend(self, in_seconds(seconds))


class JobsOfTasks(Assignment):
    """The part of a connection whose jobs async handlers get."""

    _Job = Job


class PoppedJobsOfTasks(PopAssignment):
    """The part of a connection whose popped jobs async handlers get."""

    _Job = Job
