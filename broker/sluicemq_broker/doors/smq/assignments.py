"""The verb READY: on which queues a session works, and for which it waits until they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, NotFound, QueueFull
from sluicemq_broker.doors.smq.workers import Connection, PoppingWorker, SessionWorker
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import Batcher

#: Seconds that a first look for jobs, or the removal of popped ones, may keep an answer back.
_LOOK: Final = 30.0
#: Queues that are not there, for which one session may wait.
_MOST_AWAITED: Final = 1000


class ReadyRequest(NamedTuple):
    """What a READY asks for: ``wait`` is for the queue, ``look`` for what lies ready in it."""

    queue: str
    credit: int
    pop: bool = False
    look: bool = False
    wait: bool = False

    @property
    def waits_for_jobs(self) -> bool:
        """True if it is answered only once what lies ready was sent."""
        return self.look or (self.pop and not self.credit)


class Assignments:
    """The workers of one session, by their queues.

    ``later`` runs what has to ask MongoDB; ``answer`` sends what came of it under a request's number.
    """

    def __init__(
        self,
        session: Connection,
        queues: Queues,
        later: Batcher[Callable[[], None]],
        answer: Callable[[int, Callable[[], Any]], None],
    ) -> None:
        self.workers: dict[str, SessionWorker] = {}
        self._session = session
        self._queues = queues
        self._later = later
        self._answer = answer
        self._gone = False
        self._absent: dict[str, ReadyRequest | None] = {}  # what waits for them; None: being looked for

    def ready(self, number: int, wanted: ReadyRequest) -> None:
        """Answer a READY: at once, if the queue is known here."""
        queue = self._queues.known(wanted.queue)
        if queue is None or wanted.queue in self._absent:
            self._make_absent(wanted.queue)
            self._later.add(partial(self._answer, number, partial(self._look_for, wanted)))
            return
        self._check(wanted)
        if wanted.waits_for_jobs:
            self._later.add(partial(self._answer, number, self._assign(queue, wanted)))
        else:
            self._session.send(wire.OK, number, None)
            self._assign(queue, wanted)

    def with_receipts(self, receipts: Iterable[bytes]) -> dict[bytes, SessionWorker]:
        """Which worker here has each delivery, in time or not: one look at each of its workers."""
        wanted = set(receipts)
        return {
            receipt: worker
            for worker in self.workers.values()
            for known in (worker.in_flight, worker.overdue)
            for receipt in wanted & known.keys()
        }

    def leave(self, *, died: bool, gone: bool) -> None:
        """They all have left; ``gone``: for good, with the session."""
        self._gone = gone
        for worker in self.workers.values():
            worker.queue.worker_gone(worker, died=died)
        self.workers.clear()
        for name in self._absent:
            self._queues.stop_waiting_for(name, self._came)
        self._absent.clear()

    def _make_absent(self, name: str) -> None:
        if len(self._absent) >= _MOST_AWAITED and name not in self._absent:
            raise QueueFull(f"{_MOST_AWAITED} queues that are not there are waited for here already")
        self._absent.setdefault(name, None)

    def _look_for(self, wanted: ReadyRequest) -> str | None:
        """Another broker may have made the queue; the answer is why nothing comes yet, if nothing does."""
        name = wanted.queue
        try:
            queue = self._queues.get(name)
        except NotFound as error:
            if not wanted.wait:
                self._forget(name)
                raise
            if not self._gone:
                self._wait_for(wanted)
            return str(error)
        except Exception:
            self._forget(name)
            raise
        self._forget(name)
        if not self._gone:
            self._check(wanted)
            wait = self._assign(queue, wanted)
            if wanted.waits_for_jobs:
                wait()
        return None

    def _wait_for(self, wanted: ReadyRequest) -> None:
        before = self._absent.get(wanted.queue)
        if wanted.pop and wanted.credit and before:  # so many more
            wanted = wanted._replace(credit=before.credit + wanted.credit)
        self._absent[wanted.queue] = wanted
        self._queues.wait_for_queue(wanted.queue, self._came)

    def _forget(self, name: str) -> None:
        self._absent.pop(name, None)
        self._queues.stop_waiting_for(name, self._came)

    def _came(self, queue: Queue) -> None:
        """It is there now."""
        wanted = self._absent.pop(queue.name, None)
        if wanted:
            self._assign(queue, wanted)

    def _check(self, wanted: ReadyRequest) -> None:
        worker = self.workers.get(wanted.queue)
        if worker and worker.pops != wanted.pop:
            raise BadFrames(
                f"this session works on queue {wanted.queue!r} with pop {worker.pops}, "
                f"so not with {wanted.pop}"
            )

    def _assign(self, queue: Queue, wanted: ReadyRequest) -> Callable[[], None]:
        """Put a worker to it, or change what that takes; returns what waits for what lies ready."""
        worker = self.workers.get(queue.name)
        if worker:
            worker.grant(wanted.credit)
        else:
            kind = PoppingWorker if wanted.pop else SessionWorker
            worker = self.workers[queue.name] = kind(self._session, queue, wanted.credit)
            queue.attach(worker)
        return partial(worker.await_supply, _LOOK)
