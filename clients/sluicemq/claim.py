"""Claims: up to N jobs that are reserved, extended and released together.

Each has a connection of its own, and ends with it: the broker then gives the jobs to other workers at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, ClassVar, Self, Unpack

from sluicemq import arguments, tracing
from sluicemq._deprecated import Moved
from sluicemq.codec import Codec
from sluicemq.complaints import log
from sluicemq.forward import Forward
from sluicemq.headers import as_bytes
from sluicemq.job import PROGRESS_EACH, Job
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, check_span, delay_of, in_seconds
from sluicemq.protocol.errors import (
    ForkedError,
    LeaseLostError,
    Requeue,
    SluiceError,
    UnavailableError,
    from_code,
)
from sluicemq.protocol.options import JobOptions
from sluicemq.protocol.readable import said
from sluicemq.steps import Leave, Steps
from sluicemq.transport import exits
from sluicemq.transport.asker import Asker
from sluicemq.transport.job_fetch import JobFetch


class ClaimedJob(Job):
    """A job of a claim, settled alone by ``commit``, ``retry``, ``requeue``, ``reject`` or ``forward``.

    Each method returns when its verdict is durable. It raises :class:`~sluicemq.LeaseLostError` if the job is
    no longer the claim's, and :class:`~sluicemq.UncertainError` if the job is gone and it is not known by
    which verdict.
    """

    __slots__ = ("_claim",)

    _claim: Claim

    @classmethod
    def of(cls, claim: Claim, row: Sequence[Any], epoch: int, offset: float) -> Self:
        """Return one job of the claim."""
        job = cls.delivered(claim.queue, row, epoch, claim.extend_one, claim.send_progress, offset)
        job._claim = claim
        return job

    @property
    def _codec(self) -> Codec:
        return self._claim.codec

    def _statements_of_end(self, size: int) -> bytes:
        return self._claim.statements_of_end(self, size)

    def commit(self, result: bytes | None = None) -> None:
        """Mark the job as done, with this result; after ``commit_in``, and its transaction, with that one."""
        return self._claim.settle([self], wire.COMMIT, None if result is None else as_bytes(result))

    def retry(self, reason: str = "", delay: Duration | None = None) -> None:
        """Give the job back, for a delivery after ``delay`` (None: its back-off; a negative one: at once)."""
        why, wait = arguments.words("reason", reason), delay_of("delay", delay)
        return self._claim.settle([self], wire.ROLLBACK, why, wait)

    rollback = Moved("retry")

    def requeue(self, delay: Duration | None = None) -> None:
        """Give the job back as if never delivered, for a delivery after ``delay`` (None: at once)."""
        return self._claim.settle([self], wire.RELEASE, delay=delay_of("delay", delay) or 0.0)

    def reject(self, reason: str = "") -> None:
        """Make the job a dead letter at once."""
        return self._claim.settle([self], wire.REJECT, arguments.words("reason", reason))

    def forward(self, queue: str, payload: bytes | None = None, **options: Unpack[JobOptions]) -> None:
        """Move the job to another queue, as :class:`~sluicemq.Forward` does.

        Raises also the errors of that queue, such as :class:`~sluicemq.DuplicateError`; the job is given back
        then.
        """
        return self._claim.settle([self], wire.FORWARD, onward=Forward(queue, payload, **options).onward)


class Claim:
    """Jobs that were reserved together, made by ``Client.reserve``; iterate over it, or use ``jobs``.

    Leaving its ``with`` block, or :meth:`requeue`, gives unsettled jobs back without counting the attempt. An
    exception that leaves the block (except :class:`~sluicemq.Requeue`) rolls them back, with its text;
    otherwise a job that breaks its worker would come again for ever. The connection is closed when no job is
    left to settle. In a child that was forked since, the jobs are still the parent's: settling them raises
    :class:`~sluicemq.ForkedError`, and leaving the block gives nothing back.
    """

    #: The kind of its jobs, and of its connection.
    _Job: ClassVar[type[ClaimedJob]] = ClaimedJob
    _Fetch: ClassVar[type[JobFetch]] = JobFetch

    def __init__(self, asker: Asker, queue: str) -> None:
        self.queue = queue
        self.codec = asker.codec
        """Decodes the payloads that have no content type of their own."""
        self._endpoint = asker.access.endpoint
        self.jobs: list[ClaimedJob] = []
        """All jobs of the claim, settled or not."""
        self._timeout = asker.timeout
        self._unsettled: dict[bytes, ClaimedJob] = {}
        self._progress_at: dict[bytes, float] = {}
        self._fetch = self._Fetch(asker.access, queue, self._made, pop=False, patient=asker.patient)

    @property
    def unsettled(self) -> list[ClaimedJob]:
        """Return the jobs that are still to be settled."""
        return list(self._unsettled.values())

    def fill(self, limit: int, wait: float) -> Self:
        """Reserve up to ``limit`` jobs, for ``Client.reserve``."""
        return self._fetch.run(self._filling(limit, wait))

    def extend(self, seconds: Duration) -> None:
        """Extend the time of the unsettled jobs to ``seconds`` from now, with one message for all.

        Raises :class:`~sluicemq.LeaseLostError` with the ids of jobs that are no longer the claim's. The
        others are extended.
        """
        check_span("seconds", seconds)
        return self._fetch.run(self._extending(self.unsettled, in_seconds(seconds)))

    def commit(self) -> None:
        """Commit all unsettled jobs, without a result; raises what a job's ``commit`` raises."""
        return self.settle(self.unsettled, wire.COMMIT)

    def requeue(self) -> None:
        """Give back all unsettled jobs, as if they had not been delivered; may be called again."""
        return self._fetch.run(self._giving_back())

    release = Moved("requeue")

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002 - like other parts that close
        """Give back what is not settled; equal to :meth:`requeue`."""
        return self.requeue()

    def settle(
        self,
        jobs: Sequence[ClaimedJob],
        verb: str,
        detail: bytes | str | None = None,
        delay: float | None = None,
        onward: list[Any] | None = None,
    ) -> None:
        """Send one verdict on some of the jobs, in one message."""
        return self._fetch.run(self._settling(jobs, verb, detail, delay, onward))

    def extend_one(self, job: Job, seconds: float) -> None:
        """Extend one job."""
        mine = [held for held in self.unsettled if held is job]
        return self._fetch.run(self._extending(mine or [job], seconds))

    def statements_of_end(self, job: ClaimedJob, size: int) -> bytes:
        """Ask how one job ends within a transaction."""
        answer: bytes = self._fetch.run(self._questioning([job], wire.COMMITIN, job.receipt, size))
        return answer

    def send_progress(self, job: Job, progress: list[Any]) -> None:
        """Send the progress of one job, about once a second; raises as ``extend`` does."""
        now = monotonic()
        if now >= self._progress_at.get(job.receipt, 0.0):
            self._progress_at[job.receipt] = now + PROGRESS_EACH
            self._report(job, [job.receipt, *progress])

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """Leave the ``with`` block, with the error that leaves it."""
        return self._fetch.run(self._leaving(error))

    def _made(self, row: Sequence[Any], epoch: int, offset: float) -> ClaimedJob:
        return self._Job.of(self, row, epoch, offset)

    def _report(self, job: Job, row: list[Any]) -> None:
        _raise_first([job], self._fetch.run(self._refusals([job], wire.PROGRESS, [row])))

    # ------------------------------------------------------------------ its verbs, as steps

    def _filling(self, limit: int, wait: float) -> Steps[Self]:
        try:
            with tracing.receiving(self.jobs, self.queue, self._endpoint):
                self.jobs += yield from self._fetch.taking(limit, wait, self._timeout)
        except BaseException:
            self._fetch.close()
            raise
        self._unsettled = {job.receipt: job for job in self.jobs}
        exits.close_at_exit(self._fetch)
        self._close_if_settled()
        return self

    def _settling(
        self,
        jobs: Sequence[ClaimedJob],
        verb: str,
        detail: bytes | str | None = None,
        delay: float | None = None,
        onward: list[Any] | None = None,
    ) -> Steps[None]:
        mine = [job for job in jobs if job.receipt in self._unsettled]
        if len(mine) < len(jobs):
            first = next(job for job in jobs if job not in mine)
            raise LeaseLostError(f"job {first.id} was settled before, or is no longer the claim's")
        if not mine:
            return
        rows = [
            wire.verdict_row(
                job.receipt, verb, detail if job.committed is None else job.committed, delay, onward
            )
            for job in mine
        ]
        refused: dict[int, SluiceError] = {}
        with tracing.settling(mine, refused, verb, self._endpoint):
            refused |= yield from self._refusals(mine, wire.SETTLE, rows)
        for job in mine:
            self._unsettled.pop(job.receipt, None)
        self._close_if_settled()
        _raise_first(mine, refused)

    def _extending(self, jobs: Sequence[Job], seconds: float) -> Steps[None]:
        if not jobs:
            return
        refused = yield from self._refusals(jobs, wire.EXTEND, [job.receipt for job in jobs], seconds)
        for position in refused:
            self._unsettled.pop(jobs[position].receipt, None)
        self._close_if_settled()
        _raise_first(jobs, refused)

    def _leaving(self, error: BaseException | None) -> Steps[None]:
        if isinstance(error, Exception) and not isinstance(error, Requeue):
            try:
                yield from self._settling(self.unsettled, wire.ROLLBACK, said(error, named=True))
            except SluiceError as unsettled:
                log.warning("while leaving a claim's block: %s", unsettled)
            except BaseException:
                self._fetch.close()
                raise
        yield from self._giving_back()

    def _giving_back(self) -> Steps[None]:
        self._unsettled.clear()
        yield Leave()

    def _refusals(self, jobs: Sequence[Job], verb: bytes, *fields: Any) -> Steps[dict[int, SluiceError]]:
        answer = yield from self._questioning(jobs, verb, *fields)
        return {int(position): from_code(str(code), *map(str, why)) for position, code, *why in answer or ()}

    def _questioning(self, jobs: Sequence[Job], verb: bytes, *fields: Any) -> Steps[Any]:
        try:
            return (yield from self._fetch.asking_about(jobs[0].epoch, verb, *fields, timeout=self._timeout))
        except ForkedError:
            raise
        except UnavailableError as error:
            self._unsettled.clear()
            self._fetch.close()
            raise LeaseLostError(f"the claim is lost, its jobs go to others: {error}") from error

    def _close_if_settled(self) -> None:
        if not self._unsettled:
            self._fetch.close()


def _raise_first(jobs: Sequence[Job], problems: dict[int, SluiceError]) -> None:
    if problems:
        first = problems[min(problems)]
        names = ", ".join(jobs[position].id for position in sorted(problems))
        raise type(first)(f"{first} ({len(problems)} of {len(jobs)} jobs: {names})") from first
