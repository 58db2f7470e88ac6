"""Jobs that are fetched once, over a connection of their own: reserved for a claim, or popped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

from sluicemq import forks, tracing
from sluicemq.codec import JSON, Codec
from sluicemq.job import Job, clock_offset
from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, ForkedError, SluiceError, UnavailableError
from sluicemq.transport.access import Access
from sluicemq.transport.connection import Connection
from sluicemq.transport.pop import ignore_progress, refuse_extend
from sluicemq.transport.questions import Questions

#: Jobs that are fetched at once, at most: the verdicts of a claim travel in one message.
MOST_FETCHED: Final = 1000


class JobFetch(Questions):
    """The :class:`~sluicemq.transport.role.Role` of a connection that takes some jobs once."""

    of_deliveries = True

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
        self._change = threading.Condition()
        self.attach(Connection(access, self, patient=patient))
        self._connection.start()
        forks.on_fork(self, JobFetch._forked)

    @property
    def busy(self) -> bool:
        """Return whether jobs are here that only this connection can settle, or a request is under way."""
        return super().busy or (bool(self._jobs) and not self._pop)

    def take(self, limit: int, wait: float, timeout: float) -> list[Any]:
        """Return up to ``limit`` jobs: ready ones, and those that come within ``wait`` seconds.

        Then the credit is withdrawn. ``timeout``: seconds for an answer beyond ``wait``.
        """
        if not 1 <= limit <= MOST_FETCHED:
            raise ValueError(f"limit {limit} is not from 1 to {MOST_FETCHED}")
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

    def _ask_for(self, credit: int, timeout: float) -> bool:
        """Request jobs; False if the connection was lost before the answer."""
        options = {"pop": self._pop, "look": credit > 0}
        try:
            self.ask(wire.READY, self._queue, credit, options, timeout=timeout, repeat=False)
        except UnavailableError as error:
            if error is not self._connection.disconnect_error:
                raise
            return False
        return True

    def ask_about(self, epoch: int, verb: bytes, *fields: Any, timeout: float) -> Any:
        """Send a request about jobs of this epoch, and never on a later connection, where they are void."""
        if isinstance(self._connection.failure, ForkedError):
            raise self._connection.failure
        if not self._connection.greeted or self._connection.epoch != epoch:
            raise UnavailableError(f"the connection to {self._connection.endpoint} was lost")
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


def pop_jobs(
    access: Access, queue: str, limit: int, wait: float, *, timeout: float, patient: bool, codec: Codec = JSON
) -> list[Job]:
    """Take up to ``limit`` jobs at most once, for ``Client.jobs.pop``."""
    source = _Popped(codec)

    def made(row: Sequence[Any], epoch: int, offset: float) -> Job:
        job = Job.delivered(queue, row, epoch, refuse_extend, ignore_progress, offset)
        job.source = source
        return job

    fetch = JobFetch(access, queue, made, pop=True, patient=patient)
    try:
        return tracing.receive(partial(fetch.take, limit, wait, timeout), queue, access.endpoint)
    finally:
        fetch.close()
