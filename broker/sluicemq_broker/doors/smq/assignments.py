"""The verb READY: the queues that a session works on, and those that it waits for until they exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, NotFoundError, QueueFullError
from sluicemq.protocol.names import LONGEST_NAME
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import WorkerJobRow
from sluicemq_broker.doors.smq.fields import Fields, check_count, check_id, take
from sluicemq_broker.doors.smq.workers import PoppingWorker, SessionWorker
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import check_name
from sluicemq_broker.runtime import FLAG, read_options
from sluicemq_broker.security import with_hint

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session

_MOST_CREDIT: Final = 100_000
#: Missing queues that one session may wait for.
_MOST_MISSING: Final = 1000


class ReadyRequest(NamedTuple):
    """A READY. ``wait``: until the queue exists; ``look``: answer once the ready jobs were sent."""

    queue: str
    credit: int
    pop: bool = False
    look: bool = False
    wait: bool = False

    @property
    def waits_for_jobs(self) -> bool:
        """True if it is answered only once the ready jobs were sent."""
        return self.look or (self.pop and not self.credit)


class Assignments:
    """The workers of one session, by their queues."""

    def __init__(self, session: Session) -> None:
        self.workers: dict[str, SessionWorker] = {}
        self.stuck: dict[tuple[str, str], WorkerJobRow] = {}
        """Jobs of former connections that the client's handlers have not ended, by queue and id."""
        self._session = session
        self._queues = session.door.queues
        self._missing: dict[str, ReadyRequest | None] = {}  # missing queues; None: being looked for

    @property
    def queues(self) -> list[str]:
        """Names of the queues that it works on or waits for."""
        return [*self.workers, *self._missing]

    def ready(self, number: int, request: ReadyRequest) -> None:
        """Answer a READY: at once, if the queue is known here."""
        queue = self._queues.known(request.queue)
        if queue is None or request.queue in self._missing:
            self._note_missing(request.queue)
            self._answer_later(number, partial(self._find, request))
            return
        self._check(request)
        if request.waits_for_jobs:
            self._answer_later(number, self._assign(queue, request))
        else:
            self._session.send(wire.OK, number, None)
            self._assign(queue, request)

    def with_receipts(self, receipts: Iterable[bytes]) -> dict[bytes, SessionWorker]:
        """Return the worker that has each delivery, in time or not."""
        wanted = set(receipts)
        return {
            receipt: worker
            for worker in self.workers.values()
            for known in (worker.in_flight, worker.overdue)
            for receipt in wanted & known.keys()
        }

    def note_stuck(self, number: int, fields: Fields) -> None:
        """Note the jobs of former connections whose handlers have not ended; new ones are counted."""
        (entries,) = take(fields, list)
        check_count(entries, "a STUCK", "jobs", 100)
        before = set(self.stuck)
        self.stuck = dict(map(_stuck_entry, entries))
        caller, worker = self._session.caller, self._session.name
        for name, job_id in self.stuck.keys() - before:
            queue = self._queues.known(name) if caller.may(Action.WORK, name) else None
            if queue is not None:
                seconds = self.stuck[name, job_id].seconds
                queue.note_stuck(
                    f"job {job_id} has run for {seconds:.0f} s at worker {worker}, past its time: its "
                    "handler takes no others. Extend the job, or give it a time-out; restart the worker",
                    {"job": job_id, "worker": worker},
                )
        self._session.send(wire.OK, number, None)

    def leave(self, *, died: bool, seen: str = "") -> None:
        """Take all workers off their queues; ``died``: their client did not say so, but ``seen`` was."""
        for worker in self.workers.values():
            worker.queue.settling.worker_gone(worker, died=died, seen=seen)
        self.workers.clear()
        for name in self._missing:
            self._queues.stop_waiting_for(name, self._created)
        self._missing.clear()

    def _answer_later(self, number: int, step: Callable[[], Any]) -> None:
        """Answer a request with what a step returns or raises, which asks MongoDB."""
        requests = self._session.requests
        requests.later.add(partial(requests.answer, number, step))

    def _note_missing(self, name: str) -> None:
        if len(self._missing) >= _MOST_MISSING and name not in self._missing:
            raise QueueFullError(f"this session waits for {_MOST_MISSING} missing queues already")
        self._missing.setdefault(name, None)

    def _find(self, request: ReadyRequest) -> str | None:
        """Look for a queue that another broker may have made; returns why no jobs come yet, if none do."""
        name = request.queue
        try:
            queue = self._queues.get(name)
        except NotFoundError as error:
            if not request.wait:
                self._stop_waiting(name)
                raise
            if not self._session.disconnected:
                self._wait_for_queue(request)
            return str(with_hint(self._session.caller, error))
        except Exception:
            self._stop_waiting(name)
            raise
        self._stop_waiting(name)
        if not self._session.disconnected:
            self._check(request)
            wait = self._assign(queue, request)
            if request.waits_for_jobs:
                wait()
        return None

    def _wait_for_queue(self, request: ReadyRequest) -> None:
        before = self._missing.get(request.queue)
        if request.pop and request.credit and before:  # credit adds up
            request = request._replace(credit=before.credit + request.credit)
        self._missing[request.queue] = request
        self._queues.wait_for_queue(request.queue, self._created)

    def _stop_waiting(self, name: str) -> None:
        self._missing.pop(name, None)
        self._queues.stop_waiting_for(name, self._created)

    def _created(self, queue: Queue) -> None:
        """Start a worker: the queue exists now."""
        request = self._missing.pop(queue.name, None)
        if request:
            self._assign(queue, request)

    def _check(self, request: ReadyRequest) -> None:
        worker = self.workers.get(request.queue)
        if worker and worker.pops != request.pop:
            raise BadFramesError(
                f"this session works on queue {request.queue!r} with pop {worker.pops}, "
                f"so not with {request.pop}"
            )

    def _assign(self, queue: Queue, request: ReadyRequest) -> Callable[[], None]:
        """Start a worker, or change its credit; returns what waits until the ready jobs are sent."""
        worker = self.workers.get(queue.name)
        if worker:
            worker.grant(request.credit)
        else:
            kind = PoppingWorker if request.pop else SessionWorker
            worker = self.workers[queue.name] = kind(self._session, queue, request.credit)
            queue.attach(worker)
        # Seconds that a first look for jobs, or the removal of popped ones, may keep an answer back.
        return partial(worker.await_supply, 30.0)


def _stuck_entry(entry: Any) -> tuple[tuple[str, str], WorkerJobRow]:
    match entry:
        case [str() as queue, str() as job_id, int() as attempt, int() | float() as seconds]:
            if seconds >= 0:
                row = WorkerJobRow(id=check_id(job_id), attempt=attempt, seconds=seconds, overdue=True)
                return (queue[:LONGEST_NAME], job_id), row
    raise BadFramesError("a job in a STUCK is [queue, id, attempt, seconds]")


def read_ready(fields: Fields) -> ReadyRequest:
    """Read a READY: queue, credit, and a map of options; raises BadFrames."""
    name, credit = take(fields, str, int)
    if not 0 <= credit <= _MOST_CREDIT:
        raise BadFramesError(f"credit {credit} is not from 0 to {_MOST_CREDIT}")
    options = fields[2] if len(fields) > 2 else None
    if not isinstance(options, dict | None):
        raise BadFramesError(f"the options of a READY are a map of {', '.join(_OPTIONS)}")
    return ReadyRequest(check_name(name), credit, **read_options(options or {}, _OPTIONS, "a READY"))


_OPTIONS: Final = dict.fromkeys(("pop", "look", "wait"), FLAG)
