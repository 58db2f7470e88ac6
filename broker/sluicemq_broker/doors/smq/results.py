"""The verb RESULT: a session asks for the result of a job, and waits for it up to a deadline."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import gevent

from sluicemq.protocol.errors import NotFoundError, QueueFullError, TimeoutError
from sluicemq.protocol.permissions import Action
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.queue import Outcome, Queue
from sluicemq_broker.security import Caller, authorize
from sluicemq_devices.hub import NEXT_TURN

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session

#: Results that one session may wait for.
MOST_REQUESTS: Final = 10_000
#: Requests of all sessions that are looked up at one time, about: as many as one statement takes. A session
#: with thousands of them has its share of these, and a few at least.
MOST_LOOKUPS: Final = 960


class Lookups:
    """The number of sessions whose requests are looked up in MongoDB; all have equal shares."""

    def __init__(self) -> None:
        self.sessions = 0
        """Sessions with a request that is being looked up."""

    @property
    def per_session(self) -> int:
        """How many requests of one session are looked up at one time: its part of all, but not too few."""
        return max(16, MOST_LOOKUPS // max(1, self.sessions))


class Results:
    """The requests for results of one session: a few are looked up at one time, the others after them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queues = session.door.queues
        self._lookups = session.door.lookups
        self._now = session.door.now
        self._later = session.requests.later
        self._closed = False
        self._requests: set[_Request] = set()
        self._unknown_queues: list[str] = []  # queues that MongoDB is asked for
        self._in_lookup: set[_Request] = set()  # MongoDB is being asked for these
        self._queued: deque[_Request] = deque()  # those that are looked up after these

    def __len__(self) -> int:
        """Requests that are not answered."""
        return len(self._requests)

    @property
    def queues(self) -> set[str]:
        """Names of the queues whose results are awaited."""
        return {*self._unknown_queues, *(request.queue.name for request in self._requests if not request.own)}

    @property
    def queues_of_own_jobs(self) -> set[str]:
        """Names of the queues where results of jobs that the client pushed itself are awaited."""
        return {request.queue.name for request in self._requests if request.own}

    @property
    def waiting(self) -> int:
        """Requests that are looked up after others."""
        return len(self._queued)

    def ask(self, number: int, name: str, job_id: str, wait: float, pusher: Caller | None = None) -> None:
        """Reply with the result of a job once it has one, within ``wait`` seconds.

        ``pusher``: the caller, if it may not read the queue: then only if its principal pushed the job.
        """
        if len(self._requests) >= MOST_REQUESTS:
            raise QueueFullError(
                f"{MOST_REQUESTS} requests of this session wait for results: ask again later"
            )
        until = self._now() + wait
        queue = self._queues.known(name)
        if pusher:
            self._later.add(partial(self._ask_for_own, number, name, job_id, until, pusher))
        elif queue:
            self._ask(number, queue, job_id, until)
        else:
            self._unknown_queues.append(name)
            self._later.add(partial(self._ask_unknown, number, name, job_id, until))

    def forget(self) -> None:
        """Forget all requests: the session has ended."""
        self._closed = True
        for request in self._requests.difference(self._queued):
            request.stop_timer()
            request.unsubscribe()
        self._requests.clear()
        self._lookups.sessions -= bool(self._in_lookup)
        self._in_lookup.clear()
        self._queued.clear()

    def answer(self, request: _Request, outcome: Outcome) -> None:
        """Reply with the outcome of a job."""
        request.stop_timer()
        self._requests.discard(request)
        self._lookup_done(request)
        self._session.send_result(request.number, outcome)

    def pending(self, request: _Request) -> None:
        """Wait for a job that has not ended, until the deadline."""
        self._lookup_done(request)
        request.start_timer(request.deadline - self._now())

    def _ask(self, number: int, queue: Queue, job_id: str, until: float, *, own: bool = False) -> None:
        request = _Request(self, number, queue, job_id, until, own=own)
        self._requests.add(request)
        if len(self._in_lookup) < self._lookups.per_session:
            self._start_lookup(request)
        else:
            self._queued.append(request)

    def _start_lookup(self, request: _Request) -> None:
        self._lookups.sessions += not self._in_lookup
        self._in_lookup.add(request)
        request.queue.results.find(request.job_id, request.answer, request.pending)

    def _lookup_done(self, request: _Request) -> None:
        """Look up the next request."""
        if request not in self._in_lookup:
            return
        self._in_lookup.discard(request)
        self._lookups.sessions -= not self._in_lookup
        while self._queued and len(self._in_lookup) < self._lookups.per_session:
            self._start_lookup(self._queued.popleft())
        if not self._in_lookup:
            self._session.resume_reading()

    def _ask_unknown(self, number: int, name: str, job_id: str, until: float) -> None:
        """Another broker may have made the queue."""
        try:
            queue = self._queues.get(name)
            if not self._closed:
                self._ask(number, queue, job_id, until)
        except Exception as error:  # noqa: BLE001 - the client must have an answer
            self._session.send_result(number, refusal(error))
        finally:
            self._unknown_queues.remove(name)

    def _ask_for_own(self, number: int, name: str, job_id: str, until: float, pusher: Caller) -> None:
        """Ask for the result of a job of a caller who may not read; what is not there is forbidden, too."""
        try:
            with suppress(NotFoundError):
                queue = self._queues.known(name) or self._queues.get(name)
                # The permission to push may have gone while MongoDB was asked.
                if queue.store.is_pushed_by(pusher.name, job_id) and pusher.may(Action.PUSH, name):
                    if not self._closed:
                        self._ask(number, queue, job_id, until, own=True)
                    return
            authorize(pusher, Action.READ, name)
            self.ask(number, name, job_id, max(0.0, until - self._now()))  # it may read by now
        except Exception as error:  # noqa: BLE001 - the client must have an answer
            self._session.send_result(number, refusal(error))
        finally:
            if not len(self._later):
                self._session.resume_reading()


class _Request:
    """One request: its number, job and deadline; ``own``: the job is one of its client's principal."""

    __slots__ = ("deadline", "job_id", "number", "own", "progress", "queue", "results", "timer")

    def __init__(
        self, results: Results, number: int, queue: Queue, job_id: str, deadline: float, *, own: bool
    ) -> None:
        self.own = own
        self.results = results
        self.number = number
        self.queue = queue
        self.job_id = job_id
        self.deadline = deadline
        self.progress = ""
        self.timer: Any = None  # while it waits for a job

    def answer(self, outcome: Outcome) -> None:
        """Reply: the job has ended, or does not exist."""
        self.results.answer(self, outcome)

    def pending(self, progress: str) -> None:
        """Wait on: the job has not ended yet."""
        self.progress = progress
        self.results.pending(self)

    def start_timer(self, seconds: float) -> None:
        """Wait for these seconds."""
        if self.timer is None:
            self.timer = gevent.get_hub().loop.timer(max(NEXT_TURN, seconds))
            self.timer.start(self._time_out)

    def stop_timer(self) -> None:
        """Wait no longer."""
        if self.timer is not None:
            self.timer.close()
            self.timer = None

    def unsubscribe(self) -> None:
        """Give up the job's result."""
        self.queue.results.stop(self.job_id, self.answer)

    def _time_out(self) -> None:
        self.unsubscribe()
        so_far = f" ({self.progress})" if self.progress else ""
        self.answer(TimeoutError(f"job {self.job_id} has not ended yet{so_far}: ask again"))
