"""Where workers connect with plain sockets: REP at a QUEUE, PULL at a STREAMER.

Every connection is a lane of its own, so that a job goes to the worker that is free
and to nobody else, and a worker that dies is noticed when its connection ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Final

import gevent

from sluicemq import wire
from sluicemq.errors import BadFrames
from sluicemq.options import TEN_YEARS
from sluicemq_broker.config import BrokerSettings, DeviceSettings
from sluicemq_broker.doors.frontends import FRAME_FACTOR, PROBE
from sluicemq_broker.doors.pops import push_anew
from sluicemq_broker.job import Job
from sluicemq_broker.queue import PLAIN, Delivery, Queue, Settlement, Takes, Verdict, Worker, read_verdict
from sluicemq_broker.runtime import Count, Counters
from sluicemq_devices.doors import Endpoint, Lane, LaneDoor, Switchboard
from sluicemq_devices.hub import Watermark

#: After a worker's connection has ended, its last commits are looked for so long at the commit door.
LAST_WORDS: Final = 0.020
#: Jobs removed in one statement for a PULL worker that does not acknowledge, at most.
POPPED: Final = 64


class Backend:
    """The doors of one device where workers connect."""

    kind: str

    def __init__(
        self,
        settings: DeviceSettings,
        broker: BrokerSettings,
        board: Switchboard,
        queue: Queue,
        counters: Counters,
    ) -> None:
        self.queue = queue
        self.settings = settings
        self.counters = counters
        self.unsettled = 0
        self.unsettled_bytes = 0
        self.workers: set[LaneWorker] = set()
        self.max_frame = FRAME_FACTOR * broker.max_job_bytes
        self._board = board
        self.commit_doors: list[LaneDoor] = []
        self._broker = broker
        self.doors = [self._lanes(endpoint) for endpoint in settings.backends]

    @property
    def prefetch(self) -> int:
        """Unsettled jobs at one worker, at most; of those that pop, jobs removed at once for one."""
        return self.settings.prefetch or (POPPED if self.settings.ack == "auto" else 1)

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(door.connections for door in self._all())

    @property
    def beats(self) -> bool:
        """Whether workers are told from dead ones by heartbeats.

        Not those that pop: one that doesn't read for a while answers none, and would lose what lies
        on its way for nothing.
        """
        return self.settings.ack == "explicit" or self.kind == "DEALER"

    @property
    def room(self) -> int:
        """How many more deliveries the device's high-water marks allow."""
        return 0 if self.unsettled_bytes >= self.settings.hwm_bytes else self.settings.hwm - self.unsettled

    def took(self, deliveries: Sequence[Delivery]) -> None:
        """These are under way at a worker of this device."""
        self.unsettled += len(deliveries)
        self.unsettled_bytes += sum([each.job.size for each in deliveries])

    def freed(self, delivery: Delivery) -> None:
        """It has ended; workers that the marks had turned away are offered again."""
        was_full = self.room <= 0
        self.unsettled -= 1
        self.unsettled_bytes -= delivery.job.size
        if was_full and self.room > 0:
            for worker in list(self.workers):
                self.queue.offer(worker)

    def start(self) -> None:
        """Open the doors."""
        for door in self._all():
            door.start()

    def stop(self) -> None:
        """Close the doors; verdicts that were sent before are still taken."""
        for door in self._all():
            door.stop()

    def _all(self) -> list[LaneDoor]:
        return [*self.doors, *self.commit_doors]

    def _lanes(self, endpoint: Endpoint) -> LaneDoor:
        return LaneDoor(
            self._board,
            endpoint,
            self.kind,
            lambda lane: self.queue.attach(self._worker(lane)),
            max_frame=self.max_frame,
            heartbeat=self._broker.heartbeat if self.beats else None,
            silence=self._broker.silence if self.beats else None,
        )

    def _worker(self, lane: Lane) -> Worker:
        raise NotImplementedError


class RepBackend(Backend):
    """DEALER lanes for REP workers: one job at a time each, answered on the same connection."""

    kind = "DEALER"
    prefetch = 1

    def _worker(self, lane: Lane) -> Worker:
        return RepWorker(self, lane)


class PullBackend(Backend):
    """PUSH lanes for PULL workers, and with ``ack = "explicit"`` the door where they commit."""

    kind = "PUSH"

    def __init__(
        self,
        settings: DeviceSettings,
        broker: BrokerSettings,
        board: Switchboard,
        queue: Queue,
        counters: Counters,
    ) -> None:
        super().__init__(settings, broker, board, queue, counters)
        self.commit_doors = [
            LaneDoor(board, endpoint, "PULL", self._listen, max_frame=self.max_frame)
            for endpoint in settings.commits
        ]
        self._mark = Watermark(settings.hwm, settings.hwm_bytes, self._close_gates, self._open_gates)

    def _close_gates(self) -> None:
        for door in self.commit_doors:
            door.pause()

    def _open_gates(self) -> None:
        for door in self.commit_doors:
            door.resume()

    def _worker(self, lane: Lane) -> Worker:
        kind = PopWorker if self.settings.ack == "auto" else PullWorker
        return kind(self, lane)

    def _listen(self, lane: Lane) -> None:
        lane.receive = partial(self._verdicts, lane)

    def _verdicts(self, lane: Lane, messages: list[list[bytes]]) -> None:
        verdicts = [verdict for frames in messages if (verdict := self._verdict(lane, frames))]
        size = sum(len(each.detail) for each in verdicts)
        self._mark.take(len(verdicts), size)
        self.queue.settle(verdicts, Settlement(lambda _: self._mark.give(len(verdicts), size)))

    def _verdict(self, lane: Lane, frames: list[bytes]) -> Verdict | None:
        """What a worker says; if it can't be read, the job whose receipt it names, if any, is given back."""
        try:
            return _commit_frames(frames)
        except BadFrames as error:
            lane.blame()
            self.counters.notice(
                Count.BAD_VERDICTS, f"at the commit door of queue {self.queue.name}: {error}"
            )
            return _unreadable(frames[1], error) if len(frames) > 1 else None


class LaneWorker(Worker):
    """A worker at the end of a lane."""

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(lane.peer, backend.prefetch)
        self._backend = backend
        self._queue = backend.queue
        self._lane = lane
        lane.receive = self._receive
        lane.unblocked = partial(self._queue.offer, self)
        lane.closed = self._closed
        backend.workers.add(self)

    @property
    def free(self) -> int:
        """As many as its prefetch and the device's mark leave, once its socket takes more."""
        return min(super().free, self._backend.room) if self._lane.writable else 0

    @property
    def takes(self) -> Takes:
        """Nothing now, while its device is at its mark."""
        takes = super().takes
        return takes if self._backend.room > 0 else takes._replace(now=0)

    @property
    def reads(self) -> bool:
        """False while its socket takes nothing more."""
        return self._lane.writable

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Count and send them."""
        self._backend.took(deliveries)
        self._lane.post([self._frames(delivery) for delivery in deliveries])

    def ended(self, delivery: Delivery) -> None:
        """One fewer under way, though it may still be worked on."""
        self._backend.freed(delivery)

    def hang_up(self) -> None:
        """Close its lane."""
        self._lane.close()

    def _frames(self, delivery: Delivery) -> list[bytes]:
        raise NotImplementedError

    def _receive(self, messages: list[list[bytes]]) -> None:
        """A PULL socket says nothing."""

    def _closed(self) -> None:
        self._backend.workers.discard(self)
        self._queue.worker_gone(self)


class RepWorker(LaneWorker):
    """A REP socket: it has one job or none, and its next answer is that job's, in time or not."""

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(backend, lane)
        self._has_spoken = False
        self._full = backend.settings.envelope == "full"

    def _frames(self, delivery: Delivery) -> list[bytes]:
        return [b"", *_body(delivery.job, full=self._full)]

    def _receive(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            if frames == PROBE and not self._has_spoken:
                self._backend.counters.add(Count.PROBES)
                continue
            self._has_spoken = True
            delivery = next(iter((self.in_flight or self.overdue).values()), None)
            if delivery is None:
                self._lane.blame()
                self._backend.counters.notice(
                    Count.BAD_VERDICTS, f"worker {self.name} answered without a job"
                )
                continue
            self._queue.settle([self._verdict(delivery, frames[1:])], Settlement())

    def _verdict(self, delivery: Delivery, frames: list[bytes]) -> Verdict:
        try:
            return _answer(delivery.receipt, frames)
        except BadFrames as error:
            self._backend.counters.notice(
                Count.BAD_VERDICTS, f"worker {self.name}, job {delivery.job.id}: {error}"
            )
            return _unreadable(delivery.receipt, error)


class PullWorker(LaneWorker):
    """A PULL socket that commits: ``[receipt][payload]``, or ``[receipt][id][headers][payload]``."""

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(backend, lane)
        self._full = backend.settings.envelope == "full"

    def _frames(self, delivery: Delivery) -> list[bytes]:
        return [delivery.receipt, *_body(delivery.job, full=self._full)]

    def _closed(self) -> None:
        self.gone = True
        gevent.spawn_later(LAST_WORDS, super()._closed)


class PopWorker(LaneWorker):
    """A PULL socket without acknowledgement: its jobs are removed before they are sent.

    Those removed that the kernel has not taken when the connection ends are pushed anew: at most
    once, and lost only with what was on the wire.
    """

    pops = True

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(backend, lane)
        self._popped: list[Delivery] = []
        self._posted: list[Delivery] = []  # the lane has these; at its end, as many as its backlog did not go
        self._full = backend.settings.envelope == "full"
        lane.unblocked = self._flush

    @property
    def free(self) -> int:
        """Nothing while jobs are being removed for it, or wait here: one batch after the other, in order."""
        return 0 if self._popped or self.in_flight else super().free

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs that are no longer in MongoDB."""
        self._popped.extend(deliveries)
        self._flush()

    def _flush(self) -> None:
        if self.gone:
            self._push_anew()
            return
        if self._lane.writable:
            self._posted, self._popped = self._popped, []
            self._lane.post([_body(each.job, full=self._full) for each in self._posted])
        if self._lane.writable:
            self._posted = []
        self._queue.offer(self)  # also one that does not read: nothing is held for it then

    def _closed(self) -> None:
        # What is being removed for it right now comes back through `deliver`, and is pushed anew there.
        self._backend.workers.discard(self)
        self._queue.detach(self)
        self._push_anew()

    def _push_anew(self) -> None:
        unsent = self._posted[len(self._posted) - self._lane.backlog :] + self._popped
        self._posted, self._popped = [], []
        push_anew(self._queue, unsent, self._backend.counters)


def _body(job: Job, *, full: bool) -> list[bytes]:
    return [job.id.encode(), _headers(job), job.payload] if full else [job.payload]


def _headers(job: Job) -> bytes:
    """The headers of a full envelope: what a worker may want to know."""
    known = {"attempt": job.attempts, "priority": job.priority, "headers": job.headers or {}}
    return json.dumps(known, default=lambda value: value.decode("utf-8", "replace")).encode()


def _commit_frames(frames: list[bytes]) -> Verdict:
    """``[verdict][receipt][reason or result][delay]``; raises :class:`BadFrames`."""
    if not 2 <= len(frames) <= 4:
        raise BadFrames(
            f"a verdict has 2 to 4 frames ([verdict] [receipt] [reason] [delay]), this one has {len(frames)}"
        )
    return Verdict(frames[1], read_verdict(frames[0]), b"".join(frames[2:3]), _delay(frames[3:]))


#: Compared one by one: a result may have megabytes, and its hash would be of all of them.
_WORDS = tuple(PLAIN)


def _answer(receipt: bytes, frames: list[bytes]) -> Verdict:
    """A REP worker's answer: ``[result]``, or a verb first; raises :class:`BadFrames`."""
    if len(frames) == 1 and frames[0] not in _WORDS:
        return Verdict(receipt, wire.COMMIT, frames[0])
    if not 1 <= len(frames) <= 3:
        raise BadFrames(f"an answer has 1 to 3 frames, this one has {len(frames)}")
    return Verdict(receipt, read_verdict(frames[0]), b"".join(frames[1:2]), _delay(frames[2:]))


def _unreadable(receipt: bytes, error: BadFrames) -> Verdict:
    """What can't be read is no commit: the job is rolled back, with the reason in its history."""
    return Verdict(receipt, wire.ROLLBACK, f"bad verdict: {error}")


def _delay(frames: list[bytes]) -> float | None:
    if not frames:
        return None
    try:
        delay = float(frames[0])
    except ValueError:
        delay = -1.0
    if not 0 <= delay <= TEN_YEARS:
        raise BadFrames(f"delay {frames[0][:32]!r} is not a number of seconds from 0 to ten years")
    return delay
