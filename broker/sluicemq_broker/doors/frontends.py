"""Where producers connect with plain sockets: what all frontends do, and PUSH at a STREAMER.

A frontend turns messages into jobs, hands them to their queues in batches, and closes its gates
when as much is on its way as its high-water mark allows: then TCP and ZeroMQ's own marks fill up,
and the producer blocks. Long before, it stops reading those connections whose queue holds more of
the mark than it leaves to the others, since MongoDB may be slow, or refuse, for one queue alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadHeaders,
    Duplicate,
    SluiceError,
    TooLarge,
)
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors.frames import split
from sluicemq_broker.doors.refusals import MALFORMED, refusal
from sluicemq_broker.doors.services import Services
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push, Queue
from sluicemq_broker.runtime import Count
from sluicemq_devices.hub import Fillers, Watermark
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor, Switchboard

#: Of a message that can't be read, so much of its payload is kept; of an over-long one the first KiB.
_KEPT: Final = 64 * 1024
_KEPT_OF_LONG: Final = 1024
#: A frame longer than this cuts the connection, and with it what else was in its pipe; so the true
#: limit is checked here, where the sender can be told.
FRAME_FACTOR: Final = 2
#: What a socket with ``ZMQ_PROBE_ROUTER`` begins with.
PROBE: Final = [b""]


class Frontend:
    """The doors of one device where jobs come in, and the mark that bounds what is on its way."""

    _answers = True  # who pushes can be told that a queue is full

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        self._queue = services.queues.open(settings.queue)
        self._queues = services.queues
        self._auto_create = settings.auto_create
        self._maker = services.maker
        self._counters = services.counters
        self._closing = False
        self.lost = 0
        """Jobs that were not stored, of which nobody but the log was told."""
        mark = Watermark(settings.hwm, settings.hwm_bytes, self._close_gates, self._open_gates)
        self._on_their_way: Fillers[Queue, Lane] = Fillers(
            mark, lambda lane, queue: lane.pause(queue), lambda lane, queue: lane.resume(queue)
        )
        longest = FRAME_FACTOR * services.settings.max_job_bytes
        self.doors = [self._door(services.board, endpoint, longest) for endpoint in settings.frontends]

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return sum(door.received for door in self.doors)

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(door.connections for door in self.doors)

    @property
    def mark(self) -> Watermark:
        """What is on its way into MongoDB."""
        return self._on_their_way.mark

    @property
    def is_shut(self) -> bool:
        """True if nothing is read for now."""
        return self._shut

    def start(self) -> None:
        """Open the doors."""
        for door in self.doors:
            door.start()

    def read_all(self) -> None:
        """Read on although intake is paused: what lies in socket buffers would be lost with a stop."""

    def close_gates(self) -> None:
        """Let nothing in any more, after what has been read from the wire was taken in."""
        for door in self.doors:
            door.stop()

    def stop(self) -> None:
        """Close the doors."""
        for door in self.doors:
            door.stop()

    def _close_gates(self) -> None:
        self._counters.add(Count.GATES_CLOSED)
        for door in self.doors:
            door.pause()

    def _open_gates(self) -> None:
        for door in self.doors if not self._shut else ():
            door.resume()

    @property
    def _shut(self) -> bool:
        """True if the gates must stay closed."""
        return self._closing or self._on_their_way.mark.is_full

    def _push_to(self, queue: Queue, push: Push, size: int, lane: Lane | None) -> None:
        """Hand jobs of this lane to their queue; ``_on_their_way`` is given to when they are stored."""
        self._on_their_way.take(queue, lane, len(push.jobs), size)
        queue.push(push)
        if lane:
            queue.capacity.hold(lane, hears=self._answers)

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        raise NotImplementedError

    def _read(self, frames: list[bytes], lane: Lane | None) -> tuple[Queue, Job, dict[str, Any]]:
        plain = split(frames)
        queue = self._queue
        if plain.queue:
            by = lane.peer if lane else "a former worker"
            queue = self._queues.for_plain_push(plain.queue, auto_create=self._auto_create, by=by)
        return queue, self._maker.make(queue.settings, plain.payload, plain.headers), plain.headers


class PushFrontend(Frontend):
    """PULL doors for PUSH producers, who hear nothing: what can't be read goes to the dead letters.

    While intake of their own queue is paused the doors are not read, so that the producers block. What
    names a paused queue at another's door is stored all the same: nobody could be told.
    """

    _answers = False
    _reads_all = False

    def start(self) -> None:
        """Open the doors; nothing is read of them while intake is paused."""
        super().start()
        self._queue.at_pause(self._follow_pause)
        self._follow_pause()

    def read_all(self) -> None:
        """Read on although intake is paused: what lies in socket buffers would be lost with a stop."""
        self._reads_all = True
        self._follow_pause()
        for queue in self._queues:
            queue.capacity.open()

    @property
    def _shut(self) -> bool:
        return super()._shut or self._held_up

    @property
    def _held_up(self) -> bool:
        return wire.INTAKE in self._queue.paused and not self._reads_all

    def _follow_pause(self) -> None:
        if self._held_up:
            self._close_gates()
        else:
            self._open_gates()

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        return LaneDoor(board, endpoint, "PULL", self._opened, max_frame=longest)

    def _opened(self, lane: Lane) -> None:
        lane.on(receive=partial(self._receive, lane=lane))

    def _receive(self, messages: list[list[bytes]], lane: Lane | None = None) -> None:
        self._counters.add(Count.RECEIVED, len(messages))
        batches: dict[Queue, list[Job]] = {}
        for frames in messages:
            try:
                queue, job = self._read_push(frames, lane)
            except Exception as error:  # noqa: BLE001 - the jobs around it must not be lost with it
                self._keep_unreadable(frames, problem := refusal(error))
                if lane:
                    lane.blame(malformed=isinstance(problem, MALFORMED))
            else:
                batches.setdefault(queue, []).append(job)
        for queue, jobs in batches.items():
            size = sum(job.size for job in jobs)
            told = partial(self._stored, queue, lane, len(jobs), size)
            self._push_to(queue, Push(jobs, told), size, lane)

    def _read_push(self, frames: list[bytes], lane: Lane | None) -> tuple[Queue, Job]:
        queue, job, headers = self._read(frames, lane)
        if "reply" in headers:
            raise BadHeaders("header 'reply' is for REQ and DEALER: nobody hears an answer to a PUSH")
        return queue, job

    def _stored(
        self,
        queue: Queue,
        lane: Lane | None,
        count: int,
        size: int,
        refused: dict[int, SluiceError],
        _existing: Sequence[int],
    ) -> None:
        self._on_their_way.give(queue, lane, count, size)
        for error in [each for each in refused.values() if not isinstance(each, Duplicate)]:
            self.lost += 1
            self._counters.notice(Count.JOBS_REFUSED, f"a job of a PUSH producer was not stored: {error}")

    def _keep_unreadable(self, frames: list[bytes], error: SluiceError) -> None:
        size = sum(map(len, frames))
        self._counters.add(Count.UNREADABLE)
        self._counters.notice(
            Count.of(error), f"a PUSH message of {size} bytes to queue {self._queue.name}: {error}"
        )
        kept = _KEPT_OF_LONG if isinstance(error, TooLarge) else _KEPT
        payload, headers = frames[-1][:kept], frames[1][:_KEPT] if len(frames) > 2 else b""
        letter = {
            "_id": self._maker.new_id(),
            "payload": payload,
            "size": size,
            "raw_headers": headers,
            "reason": f"{error.code}: {error}",
        }
        self._queue.keep_unreadable(letter, self._on_their_way.mark, len(payload) + len(headers))
