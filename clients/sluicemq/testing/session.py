"""One client at a broker in memory: its requests, as the door of a broker reads and answers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadFramesError,
    BadVerbError,
    LeaseLostError,
    NotFoundError,
    SluiceError,
    TimeoutError,
)
from sluicemq.protocol.options import RESULT
from sluicemq.testing.queue import MemoryQueue, MemoryWorker
from sluicemq.testing.stored import StoredJob
from sluicemq.testing.streams import STREAM_VERBS
from sluicemq.transport.memory_link import MemoryLink
from sluicemq_broker.doors import (
    Fields,
    ReadyRequest,
    error_fields,
    job_entry,
    listed,
    more_about,
    progress_entry,
    read_ready,
    refusal,
    take,
    verdict_entry,
)
from sluicemq_broker.job import State
from sluicemq_broker.queue import Delivery, check_headers
from sluicemq_broker.security import ANYBODY, plain
from sluicemq_broker.store import UNKNOWN, type_of

if TYPE_CHECKING:
    from sluicemq.testing.broker import MemoryBroker


class _Later:
    """The value of a request that is answered later, or was already."""


_LATER: Final = _Later()


class Session:
    """One connection. The broker's lock is held in each method."""

    def __init__(self, broker: MemoryBroker, link: MemoryLink) -> None:
        self._broker = broker
        self._queues = broker.queues
        self._link = link
        self._workers: dict[str, MemoryWorker] = {}
        self._missing: dict[str, ReadyRequest] = {}
        self._waits: dict[int, tuple[float, Callable[[], None]]] = {}
        """Requests by their numbers that wait until a time of the real, monotonic clock."""
        self.name, self._concurrency = "client", inf
        self._queues.created.append(self._created)

    # ------------------------------------------------------------------ the link's peer

    @property
    def due(self) -> float:
        """Return the real seconds until a request has waited long enough."""
        with self._broker.lock:
            until = min((end for end, _ in self._waits.values()), default=inf)
        return max(0.0, until - monotonic())

    def wake(self) -> None:
        """Answer requests that have waited long enough."""
        with self._broker.changes():
            for number, (until, give_up) in list(self._waits.items()):
                if monotonic() >= until:
                    del self._waits[number]
                    give_up()

    def receive(self, frames: list[bytes]) -> None:
        """Handle a message."""
        with self._broker.changes():
            number = wire.number_of(frames)
            try:
                verb, number, fields = wire.decode_request(frames)
                value = self._handled(verb, number, fields)
                if value is not _LATER:
                    self.send(wire.OK, number, plain(value))
            except Exception as error:  # noqa: BLE001 - the client must have an answer
                self._refuse(number, refusal(error))

    def _handled(self, verb: bytes, number: int, fields: Fields) -> Any:
        if (handle := VERBS.get(verb)) is not None:
            return handle(self, number, fields)
        if (of_streams := STREAM_VERBS.get(verb)) is not None:
            return of_streams(self._broker.streams, self, number, fields)
        words = (
            f"the broker in memory has no {verb.decode()}: use a real one, as of the fixture sluicemq_broker"
        )
        raise BadVerbError(words)

    def leave(self, *, died: bool = True) -> None:
        """Take the workers off their queues."""
        with self._broker.changes():
            if self._created in self._queues.created:
                self._queues.created.remove(self._created)
            workers, self._workers = self._workers, {}
            for name, worker in workers.items():
                if queue := self._queues.known.get(name):
                    queue.leave(worker, died=died)
            self._missing.clear()
            self._waits.clear()
            self._broker.streams.leave(self)
            self._broker.sessions.discard(self)

    def cut(self) -> None:
        """End the connection, as a broker does that stops or is killed."""
        self._link.cut()

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message."""
        self._link.deliver(wire.encode(verb, number, *fields))

    def _refuse(self, number: int, error: SluiceError) -> None:
        self.send(wire.ERROR, number, *error_fields(error))

    def answer(self, number: int, outcome: Any) -> None:
        """Answer a request that has waited, once."""
        if self._waits.pop(number, None) is None:
            return
        if isinstance(outcome, SluiceError):
            self._refuse(number, outcome)
        else:
            self.send(wire.OK, number, outcome)

    def wait(self, number: int, seconds: float, give_up: Callable[[], None]) -> _Later:
        """Let a request wait for up to these real seconds."""
        self._waits[number] = monotonic() + seconds, give_up
        return _LATER

    # ------------------------------------------------------------------ clients

    def _hello(self, _number: int, fields: Fields) -> Any:
        (about,) = take(fields, dict)
        self.name = str(about.get("name") or about.get("client") or "client")
        self._concurrency = about.get("concurrency") or inf
        # The time of a test does not pass by itself, so nobody is silent for long.
        return {
            "broker": "memory", "heartbeat": 3600.0, "silence": 86_400.0, "name": self._broker.name,
            "max_job_bytes": self._broker.max_job_bytes,
        }  # fmt: skip

    def _ping(self, _number: int, fields: Fields) -> Any:
        return {"store": "ok", "store_silent": 0.0} if fields[:1] == [True] else None

    def _bye(self, _number: int, _fields: Fields) -> Any:
        self.leave(died=False)

    def _push(self, number: int, fields: Fields) -> Any:
        name, entries = take(fields, str, list)
        queue = self._queues.for_push(name)
        queue.admit()
        jobs, positions, problems = [], [], dict[int, SluiceError]()
        for at, entry in enumerate(entries):
            try:
                job_id, payload, headers = job_entry(entry)
                job = self._queues.make(queue, payload, headers, job_id)
                if headers.get("reply") == RESULT:
                    job.keep_result(queue.settings.remember)
                jobs.append(job)
                positions.append(at)
            except Exception as error:  # noqa: BLE001 - the jobs around it must not be lost with it
                problems[at] = refusal(error)
        refused, existing = queue.push(jobs)
        problems |= {positions[at]: error for at, error in refused.items()}
        new = [at for at in range(len(jobs)) if at not in refused and at not in existing]
        self._broker.note_pushed(queue.name, [jobs[at] for at in new])
        known = [[positions[at] for at in existing], list(existing.values())] if existing else []
        self.send(wire.OK, number, listed(problems), *known)
        return _LATER

    def _result(self, number: int, fields: Fields) -> Any:
        name, job_id, seconds = take(fields, str, str, int | float)
        late = TimeoutError(f"job {job_id} has not ended yet: ask again")
        self.wait(number, seconds, lambda: self._refuse(number, late))
        self._queues.get(name).wait_for_result(job_id, lambda outcome: self.answer(number, outcome))
        if not seconds and number in self._waits:
            self.answer(number, late)
        return _LATER

    # ------------------------------------------------------------------ workers

    def _ready(self, number: int, fields: Fields) -> Any:
        request = read_ready(fields)
        queue = self._queues.known.get(request.queue)
        if queue is None:
            if not request.wait:
                raise NotFoundError(f"there is no queue {request.queue!r}")
            self._missing[request.queue] = request
            return f"there is no queue {request.queue!r} yet"
        if request.waits_for_jobs:
            self._assign(queue, request)
            return None
        self.send(wire.OK, number, None)
        self._assign(queue, request)
        return _LATER

    def _created(self, queue: MemoryQueue) -> None:
        if request := self._missing.pop(queue.name, None):
            self._assign(queue, request)

    def _assign(self, queue: MemoryQueue, request: ReadyRequest) -> None:
        worker = self._workers.get(queue.name)
        if worker is None:
            worker = MemoryWorker(self.name, request.credit, partial(self._deliver, queue))
            worker.pops, worker.concurrency = request.pop, self._concurrency
            self._workers[queue.name] = worker
            queue.attach(worker)
        else:
            adds = worker.pops and request.credit > 0
            worker.prefetch = worker.prefetch * adds + request.credit
            queue.offer(worker)

    def _deliver(self, queue: MemoryQueue, deliveries: Sequence[Delivery]) -> None:
        alone = (True,) if deliveries[0].job.isolated else ()
        rows = [delivered_row(delivery) for delivery in deliveries]
        self.send(wire.DELIVER, 0, queue.name, rows, queue.now, *alone)

    def _settle(self, _number: int, fields: Fields) -> Any:
        def settle(entry: Any) -> None:
            verdict = verdict_entry(entry)
            if problem := self._holder(verdict.receipt)[0].settle(verdict):
                raise problem

        return _refused(settle, *take(fields, list))

    def _extend(self, _number: int, fields: Fields) -> Any:
        receipts, seconds = take(fields, list, int | float)

        def extend(receipt: bytes) -> None:
            queue, worker = self._holder(receipt)
            if not queue.extend(receipt, worker, seconds):
                raise _void()

        return _refused(extend, receipts)

    def _progress(self, _number: int, fields: Fields) -> Any:
        def note(entry: Any) -> None:
            receipt, done, total, words = progress_entry(entry)
            queue, worker = self._holder(receipt)
            if delivery := queue.deliveries.at(receipt, worker):
                queue.note_progress(delivery, done, total, words)

        return _refused(note, *take(fields, list))

    def _holder(self, receipt: bytes) -> tuple[MemoryQueue, MemoryWorker]:
        for name, worker in self._workers.items():
            if receipt in worker.in_flight or receipt in worker.overdue:
                return self._queues.get(name), worker
        raise _void()

    # ------------------------------------------------------------------ administration

    def _all_queues(self, _number: int, _fields: Fields) -> Any:
        return [self._queues.known[name].row() for name in sorted(self._queues.known)]

    def _one_queue(self, _number: int, fields: Fields) -> Any:
        return self._queue(fields).row()

    def _peek(self, _number: int, fields: Fields) -> Any:
        _, state, limit = take(fields, str, str, int)
        options = fields[3] if len(fields) > 3 and fields[3] else {}
        found = self._queue(fields).shown(state)
        found = found[limit:] if limit < 0 else found[:limit]
        return [job.row(self._queues.clock.now(), options.get("first")) for job in found]

    def _show(self, _number: int, fields: Fields) -> Any:
        return self._job(fields)[1].row(self._queues.clock.now())

    def _cancel(self, _number: int, fields: Fields) -> Any:
        queue, stored = self._job(fields)
        if stored.ended or stored.state is State.RESERVED:
            raise NotFoundError(f"job {stored.job.id!r} of queue {queue.name!r} does not wait")
        why = NotFoundError(f"there is no job {stored.job.id}: it was cancelled")
        queue.remove(stored, why, "was cancelled")

    def _promote(self, _number: int, fields: Fields) -> Any:
        queue, stored = self._job(fields)
        queue.change(stored, priority=None, due=queue.now)

    def _change(self, _number: int, fields: Fields) -> Any:
        queue, stored = self._job(fields)
        _, _, given = take(fields, str, str, dict)
        read = check_headers(given)
        due = queue.now + read["delay"] if "delay" in read else None
        queue.change(stored, priority=read.get("priority"), due=due)

    def _purge(self, _number: int, fields: Fields) -> Any:
        _, state = take(fields, str, str)
        queue = self._queue(fields)
        return self._removed(queue, queue.shown(state))

    def _delete(self, _number: int, fields: Fields) -> Any:
        queue = self._queue(fields)
        if queue.deliveries.workers:
            raise BadFramesError(f"queue {queue.name!r} has workers: stop them first")
        count = self._removed(queue, list(queue.jobs.values()))
        self._queues.delete(queue)
        return count

    def _removed(self, queue: MemoryQueue, jobs: Sequence[StoredJob]) -> int:
        for removed in jobs:
            why = NotFoundError(f"there is no job {removed.job.id}: it was removed")
            queue.remove(removed, why, "was removed")
        return len(jobs)

    def _redrive(self, _number: int, fields: Fields) -> Any:
        queue, chosen, every = self._dead(fields, 1)
        to = fields[2] if len(fields) > 2 else None
        target = queue if to is None else self._queues.get(to)
        moved = queue.redrive(chosen, target)
        there = "a job of this id is there already"
        refused = [
            [stored.job.id, "DUPLICATE", there]
            for stored in chosen
            if queue.jobs.get(stored.job.id) is stored
        ]
        return {"moved": moved, "left": len(every) - moved, "refused": refused}

    def _discard(self, _number: int, fields: Fields) -> Any:
        queue, chosen, _ = self._dead(fields, 1)
        return self._removed(queue, chosen)

    def _about_dead(self, _number: int, fields: Fields) -> Any:
        _, what = take(fields, str, str)
        _, _, every = self._dead(fields, 2)
        if what == wire.COUNT:
            return {"count": len(every), "exact": True}
        if what in (wire.LETTERS, wire.WHOLE):
            return {"jobs": [job.row(self._queues.clock.now()) for job in reversed(every)], "next": None}
        reasons = Counter(stored.reason for stored in every)
        return {"reasons": [{"reason": reason, "count": count} for reason, count in reasons.most_common()]}

    def _pause(self, _number: int, fields: Fields) -> Any:
        queue, (_, what) = self._queue(fields), take(fields, str, str)
        queue.paused.add(what)
        return sorted(queue.paused)

    def _resume(self, _number: int, fields: Fields) -> Any:
        queue, (_, what) = self._queue(fields), take(fields, str, str)
        queue.paused.discard(what)
        queue.dispatch()
        return sorted(queue.paused)

    def _schedule(self, _number: int, fields: Fields) -> Any:
        action, about = take(fields, str, dict)
        return self._queues.schedules.do(action, about, ANYBODY)

    def _queue(self, fields: Fields) -> MemoryQueue:
        return self._queues.get(take(fields, str)[0])

    def _job(self, fields: Fields) -> tuple[MemoryQueue, StoredJob]:
        queue, (_, job_id) = self._queue(fields), take(fields, str, str)
        return queue, queue.one(job_id)

    def _dead(self, fields: Fields, place: int) -> tuple[MemoryQueue, list[StoredJob], list[StoredJob]]:
        """Return a queue, the dead letters that are chosen, and all that would be without a limit."""
        queue = self._queue(fields)
        which = fields[place] if len(fields) > place else {}
        since, until = which.get("since", 0), which.get("until", inf)
        ids, reason = which.get("ids"), which.get("reason", "")
        every = [
            stored
            for stored in queue.shown(State.DEAD)
            if (ids is None or stored.job.id in ids)
            and reason in stored.reason
            and since <= (stored.ended_at or 0) <= until
            and which.get("error") in (None, type_of(stored.reason) or UNKNOWN)
            and which.get("place") in (None, UNKNOWN)  # these workers say only a reason
            and which.get("kind") in (None, stored.job.kind)
        ]
        return queue, every[: which.get("limit")], every

    def _publish(self, number: int, fields: Fields) -> Any:
        self.send(wire.OK, number, *self._broker.streams.publish(fields))
        return _LATER


def delivered_row(delivery: Delivery) -> list[Any]:
    """Return a job as a DELIVER has it."""
    job = delivery.job
    return [
        delivery.receipt, job.id, job.payload, job.headers, job.attempts, job.priority,
        job.created_at, job.max_attempts, job.visibility_timeout, *more_about(delivery),
    ]  # fmt: skip


def _refused(act: Callable[[Any], None], entries: Sequence[Any]) -> list[list[Any]]:
    """Do it with each entry; return the refusals by position."""
    problems: dict[int, SluiceError] = {}
    for at, entry in enumerate(entries):
        try:
            act(entry)
        except SluiceError as error:
            problems[at] = error
    return listed(problems)


def _void() -> LeaseLostError:
    return LeaseLostError("this receipt is void: the delivery has ended")


#: Answers of the verbs; what is not here is of real brokers only.
VERBS: Final[dict[bytes, Callable[[Session, int, Fields], Any]]] = {
    wire.HELLO: Session._hello,
    wire.PING: Session._ping,
    wire.BYE: Session._bye,
    wire.PUSH: Session._push,
    wire.RESULT: Session._result,
    wire.READY: Session._ready,
    wire.SETTLE: Session._settle,
    wire.EXTEND: Session._extend,
    wire.PROGRESS: Session._progress,
    wire.QUEUES: Session._all_queues,
    wire.QUEUE: Session._one_queue,
    wire.PEEK: Session._peek,
    wire.SHOW: Session._show,
    wire.CANCEL: Session._cancel,
    wire.PROMOTE: Session._promote,
    wire.CHANGE: Session._change,
    wire.PURGE: Session._purge,
    wire.DELETE: Session._delete,
    wire.REDRIVE: Session._redrive,
    wire.DISCARD: Session._discard,
    wire.DEAD: Session._about_dead,
    wire.PAUSE: Session._pause,
    wire.RESUME: Session._resume,
    wire.SCHEDULE: Session._schedule,
    wire.PUBLISH: Session._publish,
}
