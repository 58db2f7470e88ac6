"""The doors where producers connect with plain sockets: what all have in common, and PUSH at a STREAMER.

A frontend makes jobs of messages and hands them to their queues in batches. It stops reading when as much is
on its way to MongoDB as its high-water mark allows: then TCP and ZeroMQ's own marks fill up, and the producer
blocks. Long before, it stops reading producers whose queue has more on its way than is left for the other
queues, for MongoDB may be slow, or refuse, for one queue alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadHeadersError,
    DuplicateError,
    ForbiddenError,
    SluiceError,
    TooLargeError,
)
from sluicemq.protocol.permissions import Action
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors.door_group import DoorGroup
from sluicemq_broker.doors.frames import FRAME_FACTOR, split
from sluicemq_broker.doors.inflow import Inflow
from sluicemq_broker.doors.refusals import MALFORMED, refusal
from sluicemq_broker.doors.services import Services
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Queue
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import Caller, authorize, charge, may_use, put_back, takes
from sluicemq_devices.hub import Watermark
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor, Switchboard

#: Bytes that are kept of the payload of an unreadable message.
_UNREADABLE_BYTES: Final = 64 * 1024


class Frontend:
    """The doors of one device where jobs come in, and the mark that bounds what is on its way."""

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        self._queue = services.queues.open(settings.queue)
        self._queues = services.queues
        self._auto_create = settings.auto_create
        self._maker = services.maker
        self._counters = services.counters
        self._guard = partial(services.security.guard, device=settings)
        self._closing = False
        self.lost = 0
        """Jobs that were not stored, which only the log says."""
        self.mark = Watermark(settings.hwm, settings.hwm_bytes, self._close_gates, self._open_gates)
        self._inflow = Inflow(self.mark, self._counters)
        longest = FRAME_FACTOR * services.settings.max_job_bytes
        self.doors = DoorGroup(
            self._door(services.board, endpoint, longest) for endpoint in settings.frontends
        )

    def start(self) -> None:
        """Open the doors."""
        self.doors.start()

    def read_all(self) -> None:
        """Read on although intake is paused: a stop would lose what is in socket buffers."""

    def close_gates(self) -> None:
        """Close the doors to producers; what has been read is stored."""
        self.doors.stop()

    def stop(self) -> None:
        """Close the doors."""
        self.doors.stop()

    def takes_large(self, lane: Lane) -> bool:
        """Return whether a large message of a producer is read now."""
        return takes(lane, self._counters)

    @property
    def is_shut(self) -> bool:
        """True while nothing is read."""
        return self._closing or self.mark.is_full

    def _close_gates(self) -> None:
        self._counters.add(Count.GATES_CLOSED)
        self.doors.pause()

    def _open_gates(self) -> None:
        if not self.is_shut:
            self.doors.resume()

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        raise NotImplementedError

    def _read(
        self, caller: Caller, frames: list[bytes], *, may_push: bool
    ) -> tuple[Queue, Job, dict[str, Any]]:
        """Return the job of a message and its queue; raises what is wrong with it, or Forbidden.

        ``may_push``: into the device's queue, as is asked once for many messages.
        """
        plain = split(frames)
        queue = self._queue
        if plain.queue or not may_push:
            authorize(caller, Action.PUSH, plain.queue or queue.name)
        if plain.queue:
            queue = self._queues.for_plain_push(plain.queue, auto_create=self._auto_create, caller=caller)
        return queue, self._maker.make(caller, queue.settings, plain.payload, plain.headers), plain.headers


class PushFrontend(Frontend):
    """PULL doors for PUSH producers, which get no answers: unreadable messages become dead letters.

    While intake of the device's queue is paused, its doors are not read, so that producers block. A message
    for another queue whose intake is paused is stored, because its producer can't be made to wait.
    """

    _drains = False

    def start(self) -> None:
        """Open the doors; they are not read while intake is paused."""
        super().start()
        self._queue.capacity.watch_pauses(self._follow_pause)
        self._follow_pause()

    def read_all(self) -> None:
        """Read on although intake is paused: a stop would lose what is in socket buffers."""
        self._drains = True
        self._follow_pause()
        for queue in self._queues:
            queue.capacity.open()

    @property
    def is_shut(self) -> bool:
        """True while nothing is read."""
        return super().is_shut or self._intake_is_paused

    @property
    def _intake_is_paused(self) -> bool:
        return wire.INTAKE in self._queue.paused and not self._drains

    def _follow_pause(self) -> None:
        if self._intake_is_paused:
            self._close_gates()
        else:
            self._open_gates()

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        return LaneDoor(board, endpoint, "PULL", self._opened, max_frame=longest, guard=self._guard(endpoint))

    def _opened(self, lane: Lane) -> None:
        if may_use(lane, Action.PUSH):
            lane.on(receive=partial(self._receive, lane), large=partial(self.takes_large, lane))

    def _receive(self, lane: Lane, messages: list[list[bytes]]) -> None:
        if put_back(lane, messages, self._counters):
            return
        self._counters.add(Count.RECEIVED, len(messages))
        caller: Caller = lane.who
        may_push = caller.may(Action.PUSH, self._queue.name)
        batches: dict[Queue, list[Job]] = {}
        for frames in messages:
            try:
                queue, job = self._read_push(caller, frames, may_push=may_push)
            except ForbiddenError:
                self.lost += 1
                self._counters.add(Count.REFUSED)
                self._counters.add(Count.JOBS_REFUSED)
                lane.blame(malformed=False)
            except Exception as error:  # noqa: BLE001 - the jobs around it must not be lost with it
                self._keep_unreadable(lane, frames, problem := refusal(error))
                lane.blame(malformed=isinstance(problem, MALFORMED))
            else:
                batches.setdefault(queue, []).append(job)
        for queue, jobs in batches.items():
            self._inflow.push(queue, jobs, lane, self._stored, answered=False)

    def _read_push(self, caller: Caller, frames: list[bytes], *, may_push: bool) -> tuple[Queue, Job]:
        queue, job, headers = self._read(caller, frames, may_push=may_push)
        if "reply" in headers:
            raise BadHeadersError("header 'reply' is for REQ and DEALER: a PUSH gets no answer")
        return queue, job

    def _stored(self, refused: dict[int, SluiceError], _existing: Mapping[int, str]) -> None:
        for error in refused.values():
            if not isinstance(error, DuplicateError):
                self.lost += 1
                text = f"a job of a PUSH producer was not stored: {error}"
                self._counters.notice(Count.JOBS_REFUSED, text)

    def _keep_unreadable(self, lane: Lane, frames: list[bytes], error: SluiceError) -> None:
        caller: Caller = lane.who
        size = sum(map(len, frames))
        charge(lane, 1, size, self._counters)
        self._counters.add(Count.UNREADABLE)
        self._counters.refused(error, f"a PUSH message of {size} bytes to queue {self._queue.name}: {error}")
        if not caller.may(Action.PUSH, self._queue.name):
            return
        limit = 1024 if isinstance(error, TooLargeError) else _UNREADABLE_BYTES
        payload, headers = frames[-1][:limit], frames[1][:_UNREADABLE_BYTES] if len(frames) > 2 else b""
        dead_letter = {
            "_id": self._maker.new_id(),
            "payload": payload,
            "size": size,
            "raw_headers": headers,
            "reason": f"{error.code}: {error}",
            "pushed_by": caller.name,
        }
        self._queue.unreadable.keep(dead_letter, self.mark, len(payload) + len(headers))
