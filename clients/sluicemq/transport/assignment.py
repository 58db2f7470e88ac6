"""The worker's part of one I/O thread: requests jobs, takes them in, sends the verdicts in batches.

A worker has one such part for each of its connections. They share its inbox, and its prefetch by
:class:`~sluicemq.transport.shares.Shares`.

Jobs that a lost connection has delivered are void: the broker has taken them back. They are removed from the
worker's inbox, and no verdict on them is sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple

from sluicemq import tracing
from sluicemq.codec import JSON, Codec
from sluicemq.complaints import log
from sluicemq.job import BEGIN_WITHIN, BEGUN_LATE, PROGRESS_EACH, Job, clock_offset
from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, LeaseLostError, SluiceError, UnavailableError, from_code
from sluicemq.protocol.readable import escaped
from sluicemq.transport.alone import AT_MOST, LOOK, PATIENCE
from sluicemq.transport.connection import Connection
from sluicemq.transport.pacing import RETRY_AFTER
from sluicemq.transport.questions import Questions
from sluicemq.transport.shares import Grant, Shares

MESSAGE_VERDICTS = 512
MESSAGE_BYTES = 1 << 20
EXTEND_TIMEOUT = 30.0


_STUCK: Final = (
    "the handler of job %s of queue %s has run for %.0f s, past its time: the job is another worker's by "
    "now, and the handler takes no others until it returns. Call job.extend, raise visibility_timeout, give "
    "the task a timeout, or restart this process"
)
#: Jobs that one STUCK names.
_MOST_STUCK: Final = 100


class JobVerdict(NamedTuple):
    """One verdict on a job, with its result or reason, a delay, and the queue that the job goes on to.

    ``options``: those of a fan-out; else the exception behind a failure. ``span``: that of its settlement, if
    the program traces.
    """

    job: Job
    verb: str
    detail: bytes | str | None = None
    delay: float | None = None
    onward: list[Any] | None = None
    options: dict[str, Any] | None = None
    span: Any = None

    @property
    def size(self) -> int:
        """Return about how many bytes the verdict has."""
        if self.options and self.onward is None:
            return len(self.detail or "") + len(self.options["traceback"])
        onward = (self.onward if self.verb == wire.FAN_OUT else [self.onward]) if self.onward else ()
        return len(self.detail or "") + sum([len(forward[1] or b"") for forward in onward])


def not_begun(job: Job, delay: float = 0.0) -> JobVerdict:
    """Return the verdict on a job that no handler has begun: others may have it at once, or after a delay."""
    return JobVerdict(job, wire.RELEASE, delay=delay)


class Assignment:
    """The :class:`~sluicemq.transport.role.Role` of a worker; ``verdicts`` is filled by any thread."""

    _Job = Job

    def __init__(
        self,
        queue: str,
        inbox: deque[Job],
        shares: Shares,
        on_jobs: Callable[[int], None],
        on_failure: Callable[[SluiceError], None],
        at_work: Sequence[Job | None],
        *,
        wait_for_queue: bool = False,
        codec: Codec = JSON,
    ) -> None:
        """``inbox``: jobs that no handler has begun; any thread takes from it.

        ``at_work``: the job that each thread of the worker has begun, kept by the worker.
        """
        self.codec = codec
        """Decodes the payloads that have no content type of their own."""
        self.open = 0
        """The epoch of its connection, while it takes part in the sharing of the prefetch; else 0."""
        self.share: int | None = None
        """The jobs that it has requested at most; None before the first request of an epoch."""
        self.seen: Grant | None = None
        self._ask_at = self._look_at = self._alone_at = inf
        self._inbox = inbox
        self._shares = shares
        self.late_from = inf
        """No job begins late before this monotonic time."""
        self._shortest = inf  # visibility timeout so far
        self._at_work = at_work
        self._credit = 0  # the broker may act on it: a smaller one counts once it is answered
        self._held = 0  # jobs that are here and not settled
        self._ending = False
        self._kept: dict[bytes, Job] = {}
        """Jobs that are extended until they are settled."""
        self._extend_at = inf
        self.on_stop: Callable[[], None] = _nothing
        """Called through the mailbox when an operator wants the worker to end."""
        self._stuck: set[bytes] = set()
        """Receipts of jobs whose handlers go on past their time, as the broker knows."""
        self._stuck_at = inf
        self._cancelled: dict[bytes, str] = {}
        """Why jobs should end whose verdicts are not answered, by their receipts."""
        self._when_cancelled: dict[bytes, Callable[[], Any]] = {}
        self._progress: dict[bytes, tuple[Job, list[Any]]] = {}
        self._progress_at = 0.0
        self.verdicts: deque[JobVerdict] = deque()
        self.late: Counter[str] = Counter()
        """Verdicts that came too late, by kind: the job was no longer this worker's."""
        self._queue = queue
        self._wait_for_queue = wait_for_queue
        self._on_jobs = on_jobs
        self._on_failure = on_failure
        self._questions = Questions()
        self._questions.of_deliveries = True
        self.connection: Connection
        self._settling = 0
        self._idle: list[Callable[[], None]] = []
        shares.add(self)

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self.connection = connection
        self._questions.attach(connection)

    @property
    def due(self) -> float:
        """Return when something is to be sent that could not be sent at once."""
        due = min(self._ask_at, self._look_at, self._alone_at, self._extend_at, self._stuck_at)
        return min(due, self._progress_at) if self._progress else due

    @property
    def busy(self) -> bool:
        """Return whether jobs are here, or may come, that only this connection can settle."""
        return bool(self.bound or self.verdicts or self._settling or self._questions.busy)

    # ------------------------------------------------------------------ for the shares of the prefetch

    @property
    def bound(self) -> int:
        """Return how many jobs it has or may still get."""
        return max(self._credit, self._held)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Run a function in the I/O thread; raises if the connection has ended."""
        self.connection.call(function, *args)

    def set_share(self, grant: Grant) -> None:
        """Request as many jobs, if the connection is still of this epoch."""
        if grant.epoch == self.open and grant.share != self.share and not self._ending:
            self.share = grant.share
            self._ask_for_work()
            if grant.share and self._alone_at < inf:  # all else is at rest
                self._alone_at = monotonic() + PATIENCE
        self.seen = grant
        if grant.most > grant.share:  # larger ones are no longer on their way
            self._shares.changed()

    def give_back(self) -> None:
        """Give back, uncounted, the jobs that no handler has begun."""
        self._give_back([job for job in list(self._inbox) if job.source is self])

    # ------------------------------------------------------------------ through Connection.call

    def ask_for_no_more(self) -> None:
        """Request no more jobs; jobs that still come are released."""
        self._ending = True
        self.share = 0
        self._shares.alone.end(self)
        if self.connection.greeted:
            self._ask_for_work()

    def when_settled(self, settled: Callable[[], None]) -> None:
        """Call ``settled`` once every verdict so far has been answered."""
        self._idle.append(settled)

    # ------------------------------------------------------------------ from a handler's thread

    def holds(self, job: Job) -> bool:
        """Return whether a job of this part is still its worker's."""
        return self.connection.greeted and job.epoch == self.connection.epoch

    @property
    def doubtful(self) -> bool:
        """Return whether its jobs may be others' by now, as this process stood still."""
        return self.connection.doubtful

    def still_holds(self, job: Job) -> bool:
        """Return whether a job is still its worker's, once the broker has answered, or is lost."""
        with suppress(SluiceError):
            self._questions.ask(wire.PING, timeout=EXTEND_TIMEOUT, repeat=False)
        return self.holds(job)

    def settle(self, verdict: JobVerdict) -> None:
        """Send a verdict soon."""
        self.verdicts.append(verdict)
        self.connection.wake()

    def begin(self, job: Job) -> None:
        """Extend the time of a job whose handler begins, if much of it has passed in the inbox.

        To be called from ``late_from`` on.
        """
        self.late_from = job.came + self._shortest * BEGUN_LATE  # jobs behind it came later
        if job.begins_late:
            with suppress(SluiceError):
                self.connection.call(self._renew, job)

    def keep_extending(self, job: Job) -> None:
        """Extend a job until it is settled."""
        with suppress(SluiceError):
            self.connection.call(self._keep, job)

    def extend(self, job: Job, seconds: float) -> None:
        """Extend a job, for :meth:`Job.extend`."""
        with self.asking_about(job):
            refuse(
                self._questions.ask(wire.EXTEND, [job.receipt], seconds, timeout=EXTEND_TIMEOUT, repeat=False)
            )

    def statements_of_end(self, job: Job, size: int) -> bytes:
        """Ask how a job ends within a transaction, for :meth:`Job.commit_in`."""
        with self.asking_about(job, "ended"):
            answer: bytes = self._questions.ask(
                wire.COMMITIN, job.receipt, size, timeout=EXTEND_TIMEOUT, repeat=False
            )
            return answer

    @contextmanager
    def asking_about(self, job: Job, what: str = "extended") -> Iterator[None]:
        """Raise LeaseLostError where a job can't be extended, or ended, as its connection is lost."""
        if not self.holds(job):
            raise LeaseLostError(f"job {job.id} can't be {what}: the connection that delivered it is lost")
        try:
            yield
        except UnavailableError as error:
            raise LeaseLostError(f"job {job.id} can't be {what}: {error}") from error

    def is_cancelled(self, job: Job) -> bool:
        """Return whether a job was cancelled while it was here."""
        return job.receipt in self._cancelled

    def why_cancelled(self, job: Job) -> str:
        """Return why a job should end; empty: it need not."""
        return self._cancelled.get(job.receipt, "")

    def when_cancelled(self, job: Job, call: Callable[[], Any]) -> None:
        """Call this, through the mailbox, if the job is cancelled before its end; or now, if it is."""
        self._when_cancelled[job.receipt] = call
        if self.is_cancelled(job):
            call()

    def note_progress(self, job: Job, progress: list[Any]) -> None:
        """Keep the newest progress of a job, for :meth:`Job.progress`; it is sent once a second."""
        self._progress[job.receipt] = job, progress
        self.connection.wake()

    # ------------------------------------------------------------------ the role

    def connected(self) -> None:
        """Have a share of the prefetch, and send the questions that have waited."""
        self._questions.connected()
        self._stuck_at, self._stuck = monotonic(), set()
        self.share = None
        self._follow()

    def turn(self) -> None:
        """Send all verdicts that are there."""
        self._follow()
        if self.verdicts and self._shares.stuck:
            self._shares.handler_ended()
        if self.connection.greeted:
            self._do_what_is_due()
        else:
            self._drop_all()
        if self._idle and not self._settling and not self.verdicts:
            self._notify_idle()

    def _do_what_is_due(self) -> None:
        now = monotonic()
        if now >= self._ask_at:
            self._ask_for_work()
        if self.verdicts:
            self._settle()
        if now >= self._look_at:
            self._give_back_late(now)
        if now >= self._alone_at:
            self._look_if_alone(now)
        if now >= self._extend_at:
            self._extend_kept(now)
        if now >= self._stuck_at:
            self._report_stuck(now)
        if self._progress and monotonic() >= self._progress_at:
            self._send_progress()

    def delivered(self, message: wire.Message) -> None:
        """Take in the jobs of a DELIVER, or give them back at once when stopping.

        Also where one is to run alone and something else is here, or another part has such a job.
        """
        if message.verb == wire.CANCEL:
            self._cancel(*message.fields[1:3])
        elif message.verb == wire.STOP:
            self.connection.post(self.on_stop)
        if message.verb != wire.DELIVER:
            return
        jobs = self._read(message)
        self._held += len(jobs)
        alone = len(message.fields) > 3 and message.fields[3] is True
        if not self._ending and self._admits(alone=alone):
            self._inbox.extend(jobs)
            self._await_begin(jobs)
            self.connection.post(self._on_jobs, len(jobs))
        else:
            pauses = alone and not self._ending and self._shares.alone.part is None
            delay = AT_MOST if pauses else 0.0  # it would come back at once
            self.verdicts.extend(not_begun(job, delay) for job in jobs)

    def disconnected(self) -> None:
        """Forget void jobs and their verdicts."""
        self._questions.disconnected()
        self._ask_at = self._look_at = self._alone_at = self._extend_at = inf
        self._shares.alone.end(self)
        self._forget_inbox()
        for table in (self._kept, self._progress, self._cancelled, self._when_cancelled):
            table.clear()
        self._drop_all()
        self._settling = self._held = self._credit = 0
        self._follow()
        self._shares.changed()

    def ended(self, error: SluiceError) -> None:
        """End: the worker can't go on."""
        self._questions.ended(error)
        self._drop_all()
        self._settling = self._held = self._credit = 0
        self._shares.alone.end(self)
        self._follow()
        self._notify_idle()
        self.connection.post(self._on_failure, error)

    # ------------------------------------------------------------------ below

    def _follow(self) -> None:
        """Take part in the sharing while the connection takes more."""
        epoch = self.connection.epoch if self.connection.takes_more else 0
        if self.open != epoch:
            self.open = epoch
            if self.connection.greeted and not epoch:  # the broker stops: nothing more from there
                self.share = 0
                self._ask_for_work()
            self._shares.changed()

    def _admits(self, *, alone: bool) -> bool:
        """Return whether jobs may begin here; where one is to run alone that may be possible soon."""
        admitted, chosen = self._shares.alone.admits(self, alone=alone), self._shares.alone.part is self
        if chosen and not admitted:
            self.share = 0
            self._ask_for_work()  # first, or the job would come back here
        self._alone_at = monotonic() + (PATIENCE if admitted else LOOK) if chosen else inf
        return admitted

    def _look_if_alone(self, now: float) -> None:
        """Request jobs once all else is at rest; if none comes then, the others have jobs again."""
        self._shares.alone.end_when_due(self)
        if self._shares.alone.part is not self:
            self._alone_at = inf
            return
        self._alone_at = now + (PATIENCE if self.share else LOOK)
        if self.share:
            self._end_alone()
        else:
            self._shares.changed()

    def _end_alone(self) -> None:
        if not (self._held or self._settling):
            self._alone_at = inf
            self._shares.alone.end(self)

    def _forget_inbox(self) -> None:
        """Remove the jobs of this part that no handler has begun; others keep their order."""
        kept = 0
        for _ in range(len(self._inbox)):
            with suppress(IndexError):  # the handlers take from it meanwhile
                job = self._inbox.popleft()
                if job.source is not self:
                    self._inbox.append(job)
                    kept += 1
        if kept:
            self.connection.post(self._on_jobs, kept)

    def _give_back_late(self, now: float) -> None:
        """Give back, uncounted, jobs that no handler could begin in time; request none until one ends."""
        mine = [job for job in list(self._inbox) if job.source is self]
        late = [job for job in mine if job.begin_by <= now]
        self._look_at = min([job.begin_by for job in mine if job.begin_by > now], default=inf)
        if late and any(job is not None for job in self._at_work):
            self._shares.stuck = True
            self.share = 0
            self._ask_for_work()  # first, or the jobs would come back here
        count = self._give_back(late)
        if count:
            what = "%d jobs of queue %s go back to the broker: no handler could begin them in half their time"
            self.connection.post(log.warning, what, count, self._queue)

    def _give_back(self, jobs: list[Job]) -> int:
        """Give back those of these jobs that no handler has begun; returns how many."""
        back: list[Job] = []
        for job in jobs:
            with suppress(ValueError):  # a handler has begun it meanwhile
                self._inbox.remove(job)
                back.append(job)
        if back:
            self._held -= len(back)
            self._shares.changed()
        for start in range(0, len(back), MESSAGE_VERDICTS):
            self._send([not_begun(job) for job in back[start : start + MESSAGE_VERDICTS]])
        return len(back)

    def _report_stuck(self, now: float) -> None:
        """Report handlers that go on with jobs of former connections, past their time; and when to look."""
        lost = [
            job for job in self._at_work if job is not None and job.source is self and not self.holds(job)
        ]
        times = [job.came + job.visibility_timeout for job in lost]
        stuck = [job for job, time in zip(lost, times, strict=True) if time <= now]
        self._stuck_at = min([time for time in times if time > now], default=inf)
        found = {job.receipt for job in stuck}
        if found == self._stuck:
            return
        for job in stuck:
            if job.receipt not in self._stuck:
                self.connection.post(log.error, _STUCK, job.id, job.queue, now - job.began)
        self._stuck = found
        if wire.STICKS in self.connection.features:
            rows = [
                [job.queue, job.id, job.attempt, round(now - job.began, 3)] for job in stuck[:_MOST_STUCK]
            ]
            self.connection.request(wire.STUCK, rows, answered=_ignore)

    def _cancel(self, receipts: list[bytes], why: str = "it was cancelled") -> None:
        """Drop cancelled jobs that no handler has begun, and interrupt the others where that is possible."""
        self._cancelled.update(dict.fromkeys(receipts, str(why)))
        self._give_back([job for job in list(self._inbox) if job.receipt in self._cancelled])
        for receipt in receipts:
            if (call := self._when_cancelled.get(receipt)) is not None:
                self.connection.post(call)

    def _await_begin(self, jobs: list[Job]) -> None:
        """Note when to look whether handlers have begun these jobs."""
        self._shortest = min(self._shortest, *[job.visibility_timeout for job in jobs])
        now = monotonic()
        self.late_from = min(self.late_from, now + self._shortest * BEGUN_LATE)
        self._look_at = min(self._look_at, now + self._shortest * BEGIN_WITHIN)

    def _renew(self, job: Job) -> None:
        if self.holds(job):
            self.connection.request(wire.EXTEND, [job.receipt], job.visibility_timeout, answered=_ignore)

    def _keep(self, job: Job) -> None:
        if self.holds(job):
            self._kept[job.receipt] = job
            self._extend_at = min(self._extend_at, job.extend_by)

    def _extend_kept(self, now: float) -> None:
        """Extend the jobs whose time it is, each to all of its visibility timeout."""
        due = [job for job in self._kept.values() if job.extend_by <= now]
        for seconds in {job.visibility_timeout for job in due}:
            jobs = [job for job in due if job.visibility_timeout == seconds]
            for start in range(0, len(jobs), MESSAGE_VERDICTS):
                self._extend_some(jobs[start : start + MESSAGE_VERDICTS], seconds)
        self._extend_at = min([job.extend_by for job in self._kept.values()], default=inf)

    def _extend_some(self, jobs: list[Job], seconds: float) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            for position, *_ in value or () if error is None else ():
                job = jobs[position]
                if self._kept.pop(job.receipt, None) is not None:
                    what = "job %s can't be extended: it is no longer this worker's, and may run elsewhere"
                    self.connection.post(log.warning, what, job.id)

        for job in jobs:
            job.renewed()
        receipts = [job.receipt for job in jobs]
        self.connection.request(wire.EXTEND, receipts, seconds, answered=answered)

    def _ask_for_work(self) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            if error is None and share == self.share and share < self._credit:
                self._credit = share
                self._shares.changed()
            self._granted(value, error)

        self._ask_at = inf
        share = self.share or 0
        self._credit = max(self._credit, share)
        fields = (self._queue, share, *([self._options] if self._wait_for_queue else []))
        self.connection.request(wire.READY, *fields, answered=answered)

    @property
    def _options(self) -> dict[str, bool]:
        """Return the options of its READYs."""
        return {"wait": self._wait_for_queue}

    def _granted(self, value: Any, error: SluiceError | None) -> None:
        if error is None and value and not self._ending:
            self.connection.post(log.warning, "%s. The worker waits for it", value)
        if error is None or error is self.connection.disconnect_error or self._ending:
            return
        if isinstance(error, UnavailableError):
            self._ask_at = monotonic() + RETRY_AFTER
        else:
            self.connection.post(self._on_failure, error)

    def _read(self, message: wire.Message) -> list[Job]:
        epoch = self.connection.epoch
        try:
            queue, rows = message.fields[:2]
            extend, offset = self.extend, clock_offset(message.fields)
            jobs = [
                self._Job.delivered(queue, row, epoch, extend, self.note_progress, offset) for row in rows
            ]
        except (TypeError, ValueError) as error:
            raise BadFramesError(f"a DELIVER can't be read: {error}") from error
        for job in jobs:
            job.source = self
        return jobs

    def _settle(self) -> None:
        shrinks = self._held > (self.share or 0)
        while self.verdicts:
            batch = self._take_batch()
            if batch:
                self._held -= len(batch)
                self._send(batch)
        if shrinks:
            self._shares.changed()

    def _take_batch(self) -> list[JobVerdict]:
        batch: list[JobVerdict] = []
        size = 0
        epoch, verdicts = self.connection.epoch, self.verdicts
        while verdicts and len(batch) < MESSAGE_VERDICTS and size < MESSAGE_BYTES:
            verdict = verdicts.popleft()
            if verdict.job.epoch == epoch:
                if self._progress:  # the job is over
                    self._progress.pop(verdict.job.receipt, None)
                if self._kept:
                    self._kept.pop(verdict.job.receipt, None)
                if self._when_cancelled:
                    self._when_cancelled.pop(verdict.job.receipt, None)
                batch.append(verdict)
                size += verdict.size
            else:
                self._drop(verdict)
        return batch

    def _send(self, batch: list[JobVerdict]) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            if error is not self.connection.disconnect_error:
                self._settling -= 1
                if error is not None and len(batch) > 1:
                    self._send_by_halves(batch)
                    return
                self._note_refused(batch, value, error)
                if self.share and self._alone_at < inf and batch[0].verb != wire.RELEASE:
                    self._end_alone()
            if spans:
                self._end_spans(spans, value, error)

        self._settling += 1
        spans = [(at, verdict.span) for at, verdict in enumerate(batch) if verdict.span is not None]
        keeps = wire.FAILURES in self.connection.features
        rows = [
            wire.verdict_row(job.receipt, verb, detail, delay, onward, options if onward or keeps else None)
            for job, verb, detail, delay, onward, options, _span in batch
        ]
        self.connection.request(wire.SETTLE, rows, answered=answered)

    def _send_progress(self) -> None:
        self._progress_at = monotonic() + PROGRESS_EACH
        rows: list[list[Any]] = []
        while self._progress and len(rows) < MESSAGE_VERDICTS:
            receipt, (job, progress) = self._progress.popitem()
            if job.epoch == self.connection.epoch:
                rows.append([receipt, *progress])
        if rows:
            self.connection.request(wire.PROGRESS, rows, answered=_ignore)

    def _note_refused(self, batch: list[JobVerdict], value: Any, error: SluiceError | None) -> None:
        """Log refused verdicts. The broker ends their jobs, unless it could not read the message."""
        if error is not None:
            value = [(0, error.code, str(error))]
            self._give_back_refused(batch[0], f"{error.code}: {error}")
        for position, code, text, *_ in value or ():
            verdict = batch[position]
            if verdict.job.receipt in self._cancelled:  # it was to be expected
                del self._cancelled[verdict.job.receipt]
                continue
            self._note_late(verdict)
            self.connection.post(
                log.warning, "%s of job %s refused: %s %s", verdict.verb, verdict.job.id, code, text
            )

    def _send_by_halves(self, batch: list[JobVerdict]) -> None:
        """Send a refused message again in two halves: one verdict is the reason, or there are too many."""
        half = len(batch) // 2
        self._send(batch[:half])
        self._send(batch[half:])

    def _give_back_refused(self, verdict: JobVerdict, why: str) -> None:
        """Give back a job whose verdict was refused, with the refusal as its reason; then without any."""
        self._held += verdict.verb != wire.RELEASE  # it is settled once more
        if verdict.verb == wire.ROLLBACK:
            self.verdicts.append(JobVerdict(verdict.job, wire.RELEASE))
        elif verdict.verb != wire.RELEASE:
            reason = escaped(f"its {verdict.verb} was refused: {why}")
            self.verdicts.append(JobVerdict(verdict.job, wire.ROLLBACK, reason))
        self.connection.wake()

    def _drop_all(self) -> None:
        while self.verdicts:
            self._drop(self.verdicts.popleft())

    def _drop(self, verdict: JobVerdict) -> None:
        """Don't send a verdict whose connection is lost; its handler is free again."""
        if self._stuck:  # it may have been one of those
            self._stuck_at = monotonic()
        self._note_late(verdict)
        self._shares.changed()
        if verdict.span is not None:
            self._end_spans([(0, verdict.span)], None, self.connection.disconnect_error)

    def _end_spans(self, spans: list[tuple[int, Any]], value: Any, error: SluiceError | None) -> None:
        refused = {position: from_code(str(code), str(text)) for position, code, text in value or ()}
        ended = [(span, error or refused.get(position)) for position, span in spans]
        self.connection.post(self.connection.offer_back, tracing.settled, ended, time_ns())

    def _note_late(self, verdict: JobVerdict) -> None:
        if verdict.verb != wire.RELEASE:
            self.late[verdict.verb] += 1

    def _notify_idle(self) -> None:
        for settled in self._idle:
            self.connection.post(settled)
        self._idle = []


def refuse(answer: Any) -> None:
    """Raise the first refusal in the answer to an EXTEND."""
    for _position, code, text in answer or ():
        raise from_code(str(code), str(text))


def _nothing() -> None:
    """Do nothing."""


def _ignore(_value: Any, _error: SluiceError | None) -> None:
    """Ignore the answer: if the job is another worker's by now, there is nothing to do."""
