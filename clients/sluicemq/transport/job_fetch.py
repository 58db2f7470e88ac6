"""Jobs that are fetched once, over a connection of their own: reserved for a claim, or popped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from sluicemq import forks, tracing
from sluicemq.codec import Codec
from sluicemq.job import Job, clock_offset
from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, ForkedError, SluiceError, UnavailableError
from sluicemq.steps import Ask, Leave, Step, Steps, Until, run
from sluicemq.transport import native
from sluicemq.transport.access import Access
from sluicemq.transport.asker import Asker
from sluicemq.transport.connection import Connection
from sluicemq.transport.pop import ignore_progress, refuse_extend
from sluicemq.transport.questions import Questions

#: Jobs that are fetched at once, at most: the verdicts of a claim travel in one message.
MOST_FETCHED: Final = 1000

_T = TypeVar("_T")


class JobFetch(Questions):
    """The :class:`~sluicemq.transport.role.Role` of a connection that takes some jobs once."""

    of_deliveries = True

    #: The kind of popped jobs.
    Popped: ClassVar[type[Job]] = Job
    _open_mailbox = staticmethod(native.open_mailbox)

    def __init__(
        self,
        access: Access,
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
        self._change = self._changes()
        self.attach(Connection(access, self, patient=patient, open_mailbox=self._open_mailbox))
        self._connection.start()
        forks.on_fork(self, JobFetch._forked)

    @property
    def busy(self) -> bool:
        """Return whether jobs are here that only this connection can settle, or a request is under way."""
        return super().busy or (bool(self._jobs) and not self._pop)

    def run(self, steps: Steps[_T]) -> _T:
        """Do one step after the other; return what they return."""
        return run(steps, self.do)

    def do(self, step: Step) -> Any:
        """Do one step."""
        match step:
            case Ask(verb, fields, repeat, timeout):
                return self.ask(verb, *fields, timeout=timeout, repeat=repeat)
            case Until(holds, seconds):
                with self._change:
                    return self._change.wait_for(holds, seconds)
            case Leave():
                return self.close()

    def taking(self, limit: int, wait: float, timeout: float) -> Steps[list[Any]]:
        """Return up to ``limit`` jobs: ready ones, and those that come within ``wait`` seconds.

        Then the credit is withdrawn. ``timeout``: seconds for an answer beyond ``wait``.
        """
        if not 1 <= limit <= MOST_FETCHED:
            raise ValueError(f"limit {limit} is not from 1 to {MOST_FETCHED}")
        until = monotonic() + wait
        self._limit = self._room = limit
        try:
            while not (yield from self._filled(until, timeout)):
                pass
            yield from self._ask_for(0, timeout)  # no more; after its answer no other job comes
            yield from self._renew(timeout)
        except SluiceError:
            if not (self._pop and self._jobs):  # nobody else would have the popped jobs
                raise
        self._limit = self._room = 0
        return [job for job in self._jobs if self._pop or job.epoch == self._connection.epoch]

    def _filled(self, until: float, timeout: float) -> Steps[bool]:
        """Try once; False if the connection was lost meanwhile, so that the broker must be asked again."""
        self._disconnected = False
        wanted = self._limit - len(self._jobs) if self._pop else self._limit
        left = max(0.0, until - monotonic())
        if wanted > 0 and not (yield from self._ask_for(wanted, left + timeout)):
            return False
        while not (yield from self._come(until)):
            yield from self._renew(timeout)
        return not self._disconnected or monotonic() >= until

    def _come(self, until: float) -> Steps[bool]:
        """Wait for jobs; False if half the time of a job has passed before there are enough."""

        def all_have_come() -> bool:
            return len(self._jobs) >= self._limit or self._disconnected

        due = min([until, *[job.begin_by for job in self._jobs if not self._pop]])
        yield Until(all_have_come, max(0.0, due - monotonic()))
        return all_have_come() or monotonic() >= until

    def _renew(self, timeout: float) -> Steps[None]:
        """Extend jobs that have waited here: the caller has not seen them yet."""
        late = [job for job in self._jobs if job.begins_late and not self._pop]
        for seconds in {job.visibility_timeout for job in late}:
            jobs = [job for job in late if job.visibility_timeout == seconds]
            receipts = [job.receipt for job in jobs]
            try:
                refused = yield Ask(wire.EXTEND, (receipts, seconds), repeat=False, timeout=timeout)
            except UnavailableError as error:
                if error is not self._connection.disconnect_error:
                    raise
                return
            for job in jobs:
                job.renewed()
            gone = {receipts[int(row[0])] for row in refused or ()}
            if gone:
                with self._change:
                    self._jobs = [job for job in self._jobs if job.receipt not in gone]

    def _ask_for(self, credit: int, timeout: float) -> Steps[bool]:
        """Request jobs; False if the connection was lost before the answer."""
        options = {"pop": self._pop, "look": credit > 0}
        try:
            yield Ask(wire.READY, (self._queue, credit, options), repeat=False, timeout=timeout)
        except UnavailableError as error:
            if error is not self._connection.disconnect_error:
                raise
            return False
        return True

    def asking_about(self, epoch: int, verb: bytes, *fields: Any, timeout: float) -> Steps[Any]:
        """Send a request about jobs of this epoch, and never on a later connection, where they are void."""
        if isinstance(self._connection.failure, ForkedError):
            raise self._connection.failure
        if not self.has(epoch):
            raise UnavailableError(f"the connection to {self._connection.endpoint} was lost")
        return (yield Ask(verb, fields, repeat=False, timeout=timeout))

    def has(self, epoch: int) -> bool:
        """Return whether the connection of this epoch still stands."""
        return self._connection.greeted and self._connection.epoch == epoch

    def close(self, timeout: float | None = None) -> None:
        """Disconnect: the broker takes back unsettled jobs."""
        self._connection.close(1.0 if timeout is None else timeout)

    def _changes(self) -> threading.Condition:
        """Return a condition that holds what has come."""
        return threading.Condition()

    def _forked(self) -> None:
        self._connection.abandon()
        self._change = self._changes()

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
        releases = [[row[0], wire.RELEASE, None, 0.0] for row in rows]
        self._connection.request(wire.SETTLE, releases, answered=_given_back)


def _rows(message: wire.Message) -> list[Sequence[Any]]:
    try:
        return [row[:9] for row in message.fields[1]]
    except (TypeError, IndexError) as error:
        raise BadFramesError(f"a DELIVER can't be read: {error}") from error


def _given_back(_value: Any, _error: SluiceError | None) -> None:
    """Ignore the answer: the jobs are not ours."""


class _Popped(NamedTuple):
    """Where popped jobs are from: nobody else has them."""

    codec: Codec

    def holds(self, _job: Job) -> bool:
        """Return True: they are this program's for good."""
        return True

    def is_cancelled(self, _job: Job) -> bool:
        """Return False: the broker does not have them any more."""
        return False

    def keep_extending(self, _job: Job) -> None:
        """Do nothing."""


def pop_jobs(kind: type[JobFetch], asker: Asker, queue: str, limit: int, wait: float) -> list[Job]:
    """Take up to ``limit`` jobs at most once, for ``Client.jobs.pop``."""
    source = _Popped(asker.codec)

    def made(row: Sequence[Any], epoch: int, offset: float) -> Job:
        job = kind.Popped.delivered(queue, row, epoch, refuse_extend, ignore_progress, offset)
        job.source = source
        return job

    def popping() -> Steps[list[Job]]:
        jobs: list[Job] = []
        try:
            with tracing.receiving(jobs, queue, asker.access.endpoint):
                jobs += yield from fetch.taking(limit, wait, asker.timeout)
        finally:
            fetch.close()
        return jobs

    fetch = kind(asker.access, queue, made, pop=True, patient=asker.patient)
    return fetch.run(popping())
