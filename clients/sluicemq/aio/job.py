"""Jobs as an async handler sees them."""

from __future__ import annotations

import asyncio
from typing import Any

from sluicemq import job, transaction
from sluicemq.aio.asking import ask
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.transport.assignment import EXTEND_TIMEOUT, Assignment, JobVerdict, refuse
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
            with source.asking_about(self):
                receipts, span = [self.receipt], in_seconds(seconds)
                answer = await ask(
                    source._questions, wire.EXTEND, receipts, span, timeout=EXTEND_TIMEOUT, repeat=False
                )
            refuse(answer)
        else:
            self._extend(self, in_seconds(seconds))

    async def commit_in(self, session: Any, result: bytes | None = None) -> None:  # type: ignore[override]
        """End the job within the transaction of a session of pymongo's ``AsyncMongoClient``.

        Otherwise as ``commit_in`` of :class:`sluicemq.Job`.
        """
        ending = transaction.Ending(self, session, result, awaits=True)
        if self.receipt:
            try:
                await self._send_end(ending, session)
            except Exception as error:
                if transaction.is_conflict(error):
                    await self._ask_how_to_end(len(ending.result))
                raise
        self.committed = ending.result

    async def _send_end(self, ending: transaction.Ending, session: Any) -> None:  # type: ignore[override]
        own = True
        for collection, which, update in ending.updates(await self._ask_how_to_end(len(ending.result))):
            written = await collection.update_one(which, update, session=session)
            if not written.matched_count:
                await self._ask_how_to_end(len(ending.result))
                raise ending.not_found(own=own)
            own = False

    async def _ask_how_to_end(self, size: int) -> bytes:
        source = self.source
        if not isinstance(source, JobsOfTasks):
            return self._statements_of_end(size)
        with source.asking_about(self, "ended"):
            answer: bytes = await ask(
                source._questions, wire.COMMITIN, self.receipt, size, timeout=EXTEND_TIMEOUT, repeat=False
            )
            return answer

    def for_thread(self) -> job.Job:
        """Return this job for a plain function in a thread: its methods block from now on."""
        self.__class__ = job.Job  # type: ignore[assignment]
        return self


class _InTurns(Assignment):
    """Sends the verdicts of one turn of the event loop together: a wake-up for each costs 8 us a job."""

    _Job = Job
    _wakes = False

    def settle(self, verdict: JobVerdict) -> None:
        """Send a verdict at the end of this turn."""
        self.verdicts.append(verdict)
        if not self._wakes:
            self._wakes = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self.connection.wake()


class JobsOfTasks(_InTurns):
    """The part of a connection whose jobs async handlers get."""


class PoppedJobsOfTasks(PopAssignment, _InTurns):
    """The part of a connection whose popped jobs async handlers get."""
