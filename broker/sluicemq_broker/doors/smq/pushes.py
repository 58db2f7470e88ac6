"""The pushes of the library: what sessions bring, and who is not read while a queue has too much of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, SluiceError, Unavailable
from sluicemq.protocol.options import RESULT
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.doors.smq.fields import Fields, job_entry, listed, take
from sluicemq_broker.job import Job
from sluicemq_broker.queue import JobMaker, Push, Queue
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import Count, Counters
from sluicemq_devices.hub import Fillers, Watermark

#: Jobs in one PUSH, at most.
MOST_PUSHED: Final = 1000


class Pusher(Protocol):
    """The session that pushes; ``peer``: its connection."""

    name: str
    peer: str

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message."""

    def blame(self, *, malformed: bool) -> None:
        """It has sent what can't be used."""

    def pushed(self, queue: Queue) -> None:
        """It has pushed to a queue that may be full now."""

    def wait_for(self, queue: Queue) -> None:
        """Read no more of it until :meth:`drained`."""

    def drained(self, queue: Queue) -> None:
        """A queue that it pushes to has room again."""


class Pushes:
    """All jobs of the library on their way to MongoDB, bounded by ``mark``.

    MongoDB may be slow for one queue alone: what waits for it must leave room for the others.
    """

    def __init__(self, queues: Queues, maker: JobMaker, counters: Counters, mark: Watermark) -> None:
        self._queues = queues
        self._maker = maker
        self._counters = counters
        self._taking = True
        self._on_their_way: Fillers[Queue, Pusher] = Fillers(
            mark, lambda pusher, queue: pusher.wait_for(queue), lambda pusher, queue: pusher.drained(queue)
        )

    @property
    def count(self) -> int:
        """Jobs on their way."""
        return self._on_their_way.mark.count

    def refuse_all(self) -> None:
        """The broker stops: take none any more."""
        self._taking = False

    def push(self, pusher: Pusher, number: int, fields: Fields) -> None:
        """Answer a PUSH, once all its jobs are durable or refused; raises what refuses all of them."""
        name, entries = take(fields, str, list)
        self._counters.add(Count.RECEIVED, len(entries))
        try:
            queue = self._open(name, len(entries), pusher)
        except SluiceError:
            self._counters.add(Count.REFUSED, len(entries))
            raise
        jobs, positions, refused = self._jobs(queue, entries)
        full = self._cut(queue, jobs, positions)
        size = sum(job.size for job in jobs)
        if not jobs:
            pusher.blame(malformed=bool(refused))
            self._answer(pusher, number, [], refused, full, {}, ())
            return
        self._on_their_way.take(queue, pusher, len(jobs), size)
        answer = partial(self._answer, pusher, number, positions, refused, full)
        queue.push(Push(jobs, partial(self._stored, queue, pusher, len(jobs), size, answer)))
        pusher.pushed(queue)

    def _open(self, name: str, count: int, pusher: Pusher) -> Queue:
        """The queue that takes so many jobs; raises what refuses all of them."""
        if not self._taking:
            raise Unavailable("the broker stops: push again when it is back")
        if count > MOST_PUSHED:
            raise BadFrames(f"a PUSH has at most {MOST_PUSHED} jobs, this one has {count}")
        queue = self._queues.for_push(name, by=pusher.name, peer=pusher.peer)
        queue.admit()
        return queue

    def _jobs(self, queue: Queue, entries: list[Any]) -> tuple[list[Job], list[int], dict[int, SluiceError]]:
        make, settings = self._maker.make, queue.settings
        jobs: list[Job] = []
        positions: list[int] = []
        refused: dict[int, SluiceError] = {}
        for at, entry in enumerate(entries):
            try:
                job_id, payload, headers = job_entry(entry)
                job = make(settings, payload, headers, job_id)
                if headers and headers.get("reply") == RESULT:
                    job.keep_result(settings.remember)
                jobs.append(job)
                positions.append(at)
            except Exception as error:  # noqa: BLE001 - the jobs around it must not be lost with it
                refused[at] = refusal(error)
        return jobs, positions, refused

    def _cut(self, queue: Queue, jobs: list[Job], positions: list[int]) -> dict[int, SluiceError]:
        """Leave the jobs for which the queue has room; the others are refused, by their positions."""
        if len(jobs) <= queue.capacity.room:
            return {}
        room = int(queue.capacity.room)
        error = queue.capacity.refusal()
        full: dict[int, SluiceError] = dict.fromkeys(positions[room:], error)
        del jobs[room:], positions[room:]
        self._counters.add(Count.REFUSED, len(full))
        self._counters.notice(Count.QUEUE_FULL, str(error))
        return full

    def _stored(
        self,
        queue: Queue,
        pusher: Pusher,
        count: int,
        size: int,
        answer: partial[None],
        refused: dict[int, SluiceError],
        existing: Sequence[int],
    ) -> None:
        answer(refused, existing)
        self._on_their_way.give(queue, pusher, count, size)

    def _answer(
        self,
        pusher: Pusher,
        number: int,
        positions: list[int],
        unreadable: dict[int, SluiceError],
        full: dict[int, SluiceError],
        refused: dict[int, SluiceError],
        existing: Sequence[int],
    ) -> None:
        problems = unreadable | full | {positions[at]: error for at, error in refused.items()}
        for error in unreadable.values():
            self._counters.add(Count.UNREADABLE)
            self._counters.notice(Count.of(error), f"a job from {pusher.name}: {error}")
        known = [sorted(positions[at] for at in existing)] if existing else []
        pusher.send(wire.OK, number, listed(problems), *known)
