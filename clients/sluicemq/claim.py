"""Claims: up to N jobs, extended and released together; and jobs that are taken at most once.

Each has a connection of its own, and ends with it: the broker then gives the jobs to other workers at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self, Unpack

from sluicemq import arguments, forks, tracing
from sluicemq.complaints import log
from sluicemq.forward import Forward
from sluicemq.headers import as_bytes
from sluicemq.job import PROGRESS_EACH, Job, clock_offset
from sluicemq.protocol import wire
from sluicemq.protocol.durations import check_span, delay_of, in_seconds
from sluicemq.protocol.errors import (
    BadFrames,
    Forked,
    LeaseLost,
    Release,
    SluiceError,
    Unavailable,
    from_code,
)
from sluicemq.protocol.options import JobOptions, Seconds
from sluicemq.protocol.readable import said
from sluicemq.transport import exits
from sluicemq.transport.connection import Connection
from sluicemq.transport.pop import ignore_progress, refuse_extend
from sluicemq.transport.questions import Questions

#: Jobs in one claim, at most: its verdicts travel in one message.
MOST_CLAIMED = 1000


class ClaimedJob(Job):
    """A job of a claim; settled with it, or alone: ``commit``, ``rollback``, ``reject`` or ``forward``.

    Each method returns when its verdict is durable. It raises :class:`~sluicemq.LeaseLost` if the job is no
    longer the claim's, and :class:`~sluicemq.Uncertain` if the job is gone and it is not known by which
    verdict.
    """

    __slots__ = ("_claim",)

    _claim: Claim

    @classmethod
    def of(cls, claim: Claim, row: Sequence[Any], epoch: int, offset: float) -> Self:
        """Return one job of the claim."""
        job = cls.delivered(claim.queue, row, epoch, claim.extend_one, claim.send_progress, offset)
        job._claim = claim  # noqa: SLF001 - its own class
        return job

    def commit(self, result: bytes | None = None) -> None:
        """Mark the job as done, with this result."""
        self._claim.settle([self], wire.COMMIT, None if result is None else as_bytes(result))

    def rollback(self, reason: str = "", delay: Seconds | None = None) -> None:
        """Give the job back, for a delivery after ``delay`` (None: its back-off; a negative one: at once)."""
        why, wait = arguments.words("reason", reason), delay_of("delay", delay)
        self._claim.settle([self], wire.ROLLBACK, why, wait)

    def reject(self, reason: str = "") -> None:
        """Make the job a dead letter at once."""
        self._claim.settle([self], wire.REJECT, arguments.words("reason", reason))

    def forward(self, queue: str, payload: bytes | None = None, **options: Unpack[JobOptions]) -> None:
        """Move the job to another queue, as :class:`~sluicemq.Forward` does.

        Raises also the errors of that queue, such as :class:`~sluicemq.Duplicate`; the job is given back
        then.
        """
        self._claim.settle([self], wire.FORWARD, onward=Forward(queue, payload, **options).onward)


class Claim:
    """Jobs that were reserved together, made by ``Client.reserve``; iterate over it, or use ``jobs``.

    Leaving its ``with`` block, or :meth:`release`, gives unsettled jobs back without counting the attempt. An
    exception that leaves the block (except :class:`~sluicemq.Release`) rolls them back, with its text;
    otherwise a job that breaks its worker would come again for ever. The connection is closed when no job is
    left to settle. In a child that was forked since, the jobs are still the parent's: settling them raises
    :class:`~sluicemq.Forked`, and leaving the block gives nothing back.
    """

    def __init__(self, endpoint: str, queue: str, *, timeout: float, patient: bool) -> None:
        self.queue = queue
        self._endpoint = endpoint
        self.jobs: list[ClaimedJob] = []
        """All jobs of the claim, settled or not."""
        self._timeout = timeout
        self._unsettled: dict[bytes, ClaimedJob] = {}
        self._progress_at: dict[bytes, float] = {}
        self._fetch = JobFetch(endpoint, queue, self._made, pop=False, patient=patient)

    @property
    def unsettled(self) -> list[ClaimedJob]:
        """Return the jobs that are still to be settled."""
        return list(self._unsettled.values())

    def fill(self, limit: int, wait: float) -> Self:
        """Reserve up to ``limit`` jobs, for ``Client.reserve``."""
        try:
            take = partial(self._fetch.take, limit, wait, self._timeout)
            for job in tracing.receive(take, self.queue, self._endpoint):
                self.jobs.append(job)
                self._unsettled[job.receipt] = job
        except BaseException:
            self._fetch.close()
            raise
        exits.close_at_exit(self)
        self._close_if_settled()
        return self

    def extend(self, seconds: Seconds) -> None:
        """Extend the time of the unsettled jobs to ``seconds`` from now, with one message for all.

        Raises :class:`~sluicemq.LeaseLost` with the ids of jobs that are no longer the claim's. The others
        are extended.
        """
        check_span("seconds", seconds)
        self._extend(self.unsettled, in_seconds(seconds))

    def commit(self) -> None:
        """Commit all unsettled jobs, without a result; raises what a job's ``commit`` raises."""
        self.settle(self.unsettled, wire.COMMIT)

    def release(self) -> None:
        """Give back all unsettled jobs, as if they had not been delivered; may be called again."""
        self._unsettled.clear()
        self._fetch.close()

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002 - like other parts that close
        """Release; equal to :meth:`release`."""
        self.release()

    def settle(
        self,
        jobs: Sequence[ClaimedJob],
        verb: str,
        detail: bytes | str | None = None,
        delay: float | None = None,
        onward: list[Any] | None = None,
    ) -> None:
        """Send one verdict on some of the jobs, in one message."""
        mine = [job for job in jobs if job.receipt in self._unsettled]
        if len(mine) < len(jobs):
            first = next(job for job in jobs if job not in mine)
            raise LeaseLost(f"job {first.id} was settled before, or is no longer the claim's")
        if mine:
            rows = [wire.verdict_row(job.receipt, verb, detail, delay, onward) for job in mine]
            problems = tracing.settle(partial(self._ask, mine, wire.SETTLE, rows), mine, verb, self._endpoint)
            for job in mine:
                self._unsettled.pop(job.receipt, None)
            self._close_if_settled()
            _raise_first(mine, problems)

    def extend_one(self, job: Job, seconds: float) -> None:
        """Extend one job."""
        self._extend([each for each in self.unsettled if each is job] or [job], seconds)

    def send_progress(self, job: Job, progress: list[Any]) -> None:
        """Send the progress of one job, about once a second; raises as ``extend`` does."""
        now = monotonic()
        if now >= self._progress_at.get(job.receipt, 0.0):
            self._progress_at[job.receipt] = now + PROGRESS_EACH
            _raise_first([job], self._ask([job], wire.PROGRESS, [[job.receipt, *progress]]))

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, Release):
                self._fail(error)
        finally:
            self.release()

    def _fail(self, error: Exception) -> None:
        try:
            self.settle(self.unsettled, wire.ROLLBACK, said(error, named=True))
        except SluiceError as unsettled:
            log.warning("while leaving a claim's block: %s", unsettled)

    def _made(self, row: Sequence[Any], epoch: int, offset: float) -> ClaimedJob:
        return ClaimedJob.of(self, row, epoch, offset)

    def _extend(self, jobs: Sequence[Job], seconds: float) -> None:
        if not jobs:
            return
        problems = self._ask(jobs, wire.EXTEND, [job.receipt for job in jobs], seconds)
        for position in problems:
            self._unsettled.pop(jobs[position].receipt, None)
        self._close_if_settled()
        _raise_first(jobs, problems)

    def _ask(self, jobs: Sequence[Job], verb: bytes, *fields: Any) -> dict[int, SluiceError]:
        try:
            answer = self._fetch.ask_about(jobs[0].epoch, verb, *fields, timeout=self._timeout)
        except Forked:
            raise
        except Unavailable as error:
            self._unsettled.clear()
            self._fetch.close()
            raise LeaseLost(f"the claim is lost, its jobs go to others: {error}") from error
        return {int(position): from_code(str(code), *map(str, why)) for position, code, *why in answer or ()}

    def _close_if_settled(self) -> None:
        if not self._unsettled:
            self._fetch.close()


class JobFetch(Questions):
    """The :class:`~sluicemq.transport.role.Role` of a connection that takes some jobs once."""

    def __init__(
        self,
        endpoint: str,
        queue: str,
        made: Callable[[Sequence[Any], int, float], Any],
        *,
        pop: bool,
        patient: bool,
    ) -> None:
        super().__init__()
        self._queue = queue
        self._made = made
        self._pop = pop
        self._limit = self._room = 0
        self._jobs: list[Any] = []
        self._disconnected = False
        self._change = threading.Condition()
        self.attach(Connection(endpoint, self, patient=patient))
        self._connection.start()
        forks.on_fork(self, JobFetch._forked)

    def take(self, limit: int, wait: float, timeout: float) -> list[Any]:
        """Return up to ``limit`` jobs: ready ones, and those that come within ``wait`` seconds.

        Then the credit is withdrawn. ``timeout``: seconds for an answer beyond ``wait``.
        """
        if not 1 <= limit <= MOST_CLAIMED:
            raise ValueError(f"limit {limit} is not from 1 to {MOST_CLAIMED}")
        until = monotonic() + wait
        self._limit = self._room = limit
        try:
            while not self._filled(until, timeout):
                pass
            self._ask_for(0, timeout)  # no more; after its answer no other job comes
            self._renew(timeout)
        except SluiceError:
            if not (self._pop and self._jobs):  # nobody else would have the popped jobs
                raise
        self._limit = self._room = 0
        return [job for job in self._jobs if self._pop or job.epoch == self._connection.epoch]

    def _filled(self, until: float, timeout: float) -> bool:
        """Try once; False if the connection was lost meanwhile, so that the broker must be asked again."""
        self._disconnected = False
        wanted = self._limit - len(self._jobs) if self._pop else self._limit
        left = max(0.0, until - monotonic())
        if wanted > 0 and not self._ask_for(wanted, left + timeout):
            return False
        while not self._come(until):
            self._renew(timeout)
        return not self._disconnected or monotonic() >= until

    def _come(self, until: float) -> bool:
        """Wait for jobs; False if half the time of a job has passed before there are enough."""
        with self._change:
            due = min([until, *[job.begin_by for job in self._jobs if not self._pop]])
            self._change.wait_for(
                lambda: len(self._jobs) >= self._limit or self._disconnected, max(0.0, due - monotonic())
            )
            return len(self._jobs) >= self._limit or self._disconnected or monotonic() >= until

    def _renew(self, timeout: float) -> None:
        """Extend jobs that have waited here: the caller has not seen them yet."""
        late = [job for job in self._jobs if job.begins_late and not self._pop]
        for seconds in {job.visibility_timeout for job in late}:
            jobs = [job for job in late if job.visibility_timeout == seconds]
            receipts = [job.receipt for job in jobs]
            try:
                refused = self.ask(wire.EXTEND, receipts, seconds, timeout=timeout, repeat=False)
            except Unavailable as error:
                if error is not self._connection.disconnect_error:
                    raise
                return
            for job in jobs:
                job.renewed()
            gone = {receipts[int(row[0])] for row in refused or ()}
            if gone:
                with self._change:
                    self._jobs = [job for job in self._jobs if job.receipt not in gone]

    def _ask_for(self, credit: int, timeout: float) -> bool:
        """Request jobs; False if the connection was lost before the answer."""
        options = {"pop": self._pop, "look": credit > 0}
        try:
            self.ask(wire.READY, self._queue, credit, options, timeout=timeout, repeat=False)
        except Unavailable as error:
            if error is not self._connection.disconnect_error:
                raise
            return False
        return True

    def ask_about(self, epoch: int, verb: bytes, *fields: Any, timeout: float) -> Any:
        """Send a request about jobs of this epoch, and never on a later connection, where they are void."""
        if isinstance(self._connection.failure, Forked):
            raise self._connection.failure
        if not self._connection.greeted or self._connection.epoch != epoch:
            raise Unavailable(f"the connection to {self._connection.endpoint} was lost")
        return self.ask(verb, *fields, timeout=timeout, repeat=False)

    def close(self) -> None:
        """Disconnect: the broker takes back unsettled jobs."""
        self._connection.close()

    def _forked(self) -> None:
        self._connection.abandon()
        self._change = threading.Condition()

    # ------------------------------------------------------------------ the role

    def delivered(self, message: wire.Message) -> None:
        """Take in the jobs of a DELIVER; jobs beyond the limit, or late ones, are given back at once."""
        if message.verb != wire.DELIVER:
            return
        rows = _rows(message)
        room = len(rows) if self._pop else max(0, self._room)
        self._room -= len(rows)
        epoch, offset = self._connection.epoch, clock_offset(message.fields)
        self._connection.post(self._take_in, [self._made(row, epoch, offset) for row in rows[:room]])
        if rows[room:]:
            self._give_back(rows[room:])

    def disconnected(self) -> None:
        """Note that reserved jobs are void and wanted again; popped jobs stay."""
        super().disconnected()
        self._room = self._limit
        self._connection.post(self._note_disconnect)

    def _take_in(self, jobs: list[Any]) -> None:
        with self._change:
            self._jobs.extend(jobs)
            self._change.notify_all()

    def _note_disconnect(self) -> None:
        with self._change:
            self._disconnected = True
            if not self._pop:
                self._jobs = []
            self._change.notify_all()

    def _give_back(self, rows: Sequence[Sequence[Any]]) -> None:
        releases = [[row[0], wire.RELEASE, None, None] for row in rows]
        self._connection.request(wire.SETTLE, releases, answered=_given_back)


def _rows(message: wire.Message) -> list[Sequence[Any]]:
    try:
        return [row[:9] for row in message.fields[1]]
    except (TypeError, IndexError) as error:
        raise BadFrames(f"a DELIVER can't be read: {error}") from error


def _given_back(_value: Any, _error: SluiceError | None) -> None:
    """Ignore the answer: the jobs are not ours."""


def _raise_first(jobs: Sequence[Job], problems: dict[int, SluiceError]) -> None:
    if problems:
        first = problems[min(problems)]
        names = ", ".join(jobs[position].id for position in sorted(problems))
        raise type(first)(f"{first} ({len(problems)} of {len(jobs)} jobs: {names})") from first


def pop(endpoint: str, queue: str, limit: int, wait: float, *, timeout: float, patient: bool) -> list[Job]:
    """Take up to ``limit`` jobs at most once, for ``Client.pop``."""

    def made(row: Sequence[Any], epoch: int, offset: float) -> Job:
        return Job.delivered(queue, row, epoch, refuse_extend, ignore_progress, offset)

    fetch = JobFetch(endpoint, queue, made, pop=True, patient=patient)
    try:
        return tracing.receive(partial(fetch.take, limit, wait, timeout), queue, endpoint)
    finally:
        fetch.close()
