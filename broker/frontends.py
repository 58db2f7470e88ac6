"""Where producers connect with plain sockets: PUSH at a STREAMER, REQ and DEALER at a QUEUE.

A frontend turns messages into jobs, hands them to their queues in batches, and closes its gates
when as much is on its way as its high-water mark allows: then TCP and ZeroMQ's own marks fill up,
and the producer blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from broker.config import BrokerSettings, DeviceSettings
from broker.counters import Counters
from broker.frames import ACCEPTED, RESULT, JobMaker, split
from broker.intake import Push
from broker.job import Job
from broker.queue import Queue
from broker.queues import Queues
from devices.doors import SharedDoor
from devices.flow import Watermark
from devices.switchboard import Switchboard
from sluicemq.errors import BadFrames, SluiceError, TooLarge

#: Of a message that can't be read, so much of its payload is kept; of an over-long one the first KiB.
_KEPT: Final = 64 * 1024
_KEPT_OF_LONG: Final = 1024
#: A frame longer than this cuts the connection, and with it what else was in its pipe; so the true
#: limit is checked here, where the sender can be told.
FRAME_FACTOR: Final = 4


class Frontend:
    """The doors of one device where jobs come in, and the mark that bounds what is on its way."""

    kind: str

    def __init__(
        self,
        settings: DeviceSettings,
        broker: BrokerSettings,
        board: Switchboard,
        queues: Queues,
        maker: JobMaker,
        counters: Counters,
    ) -> None:
        self._queue = queues.open(settings.queue)
        self._queues = queues
        self._maker = maker
        self._counters = counters
        self._closing = False
        self._mark = Watermark(settings.hwm, settings.hwm_bytes, self._close_gates, self._open_gates)
        longest = FRAME_FACTOR * broker.max_job_bytes
        self.doors = [
            SharedDoor(board, endpoint, self.kind, partial(self._receive, at), max_frame=longest)
            for at, endpoint in enumerate(settings.frontends)
        ]

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return sum(door.received for door in self.doors)

    def start(self) -> None:
        """Open the doors."""
        for door in self.doors:
            door.start()

    def close_gates(self) -> None:
        """Let nothing in any more, after what has been read from the wire was taken in."""
        for door in self.doors:
            door.close_gate()

    def stop(self) -> None:
        """Close the doors."""
        for door in self.doors:
            door.stop()

    def _close_gates(self) -> None:
        self._counters.add("gates_closed")
        for door in self.doors:
            door.pause()

    def _open_gates(self) -> None:
        for door in self.doors if not self._closing else ():
            door.resume()

    def _receive(self, door: int, messages: list[list[bytes]]) -> None:
        raise NotImplementedError

    def _read(self, frames: list[bytes]) -> tuple[Queue, Job, dict[str, Any]]:
        plain = split(frames)
        queue = self._queues.for_push(plain.queue) if plain.queue else self._queue
        return queue, self._maker.make(queue.settings, plain.payload, plain.headers), plain.headers


class PushFrontend(Frontend):
    """PULL doors for PUSH producers, who hear nothing: what can't be read goes to the dead letters."""

    kind = "PULL"

    def _receive(self, door: int, messages: list[list[bytes]]) -> None:  # noqa: ARG002 - nobody is answered
        self._counters.add("received", len(messages))
        batches: dict[Queue, list[Job]] = {}
        for frames in messages:
            try:
                queue, job, _ = self._read(frames)
            except SluiceError as error:
                self._bury(frames, error)
            else:
                batches.setdefault(queue, []).append(job)
        for queue, jobs in batches.items():
            size = sum(len(job.payload) for job in jobs)
            self._mark.take(len(jobs), size)
            queue.push(Push(jobs, partial(self._stored, len(jobs), size)))

    def _stored(
        self, count: int, size: int, refused: dict[int, SluiceError], existing: Sequence[int]
    ) -> None:
        self._mark.give(count, size)
        self._counters.add("repeated", len(existing))
        for error in refused.values():
            self._counters.notice("jobs_refused", f"a job of a PUSH producer was not stored: {error}")

    def _bury(self, frames: list[bytes], error: SluiceError) -> None:
        size = sum(map(len, frames))
        self._counters.add("unreadable")
        self._counters.notice(
            error.code.lower(), f"a PUSH message of {size} bytes to queue {self._queue.name}: {error}"
        )
        kept = _KEPT_OF_LONG if isinstance(error, TooLarge) else _KEPT
        letter = {"_id": self._maker.new_id(), "payload": frames[-1][:kept], "size": size}
        headers = frames[1][:_KEPT] if len(frames) > 2 else b""
        self._queue.bury({**letter, "raw_headers": headers, "reason": f"{error.code}: {error}"})


class RequestFrontend(Frontend):
    """ROUTER doors for REQ and DEALER clients: one reply each, with the return envelope unchanged."""

    kind = "ROUTER"

    def close_gates(self) -> None:
        """Read no more; the connections stay until the answers that are still owed have gone out."""
        self._closing = True
        self._close_gates()

    def _receive(self, door: int, messages: list[list[bytes]]) -> None:
        self._counters.add("received", len(messages))
        batches: dict[Queue, list[_Request]] = {}
        for frames in messages:
            request = _Request(self, door, frames)
            try:
                queue = request.read(self._read)
            except SluiceError as error:
                self._counters.add("unreadable")
                self._counters.notice(error.code.lower(), f"a request to queue {self._queue.name}: {error}")
                request.answer(error)
            else:
                batches.setdefault(queue, []).append(request)
        for queue, requests in batches.items():
            self._push(queue, requests)

    def _push(self, queue: Queue, requests: list[_Request]) -> None:
        for request in requests:
            request.taken = True
            self._mark.take(1, request.size)
            if request.wants_result:
                queue.answers.wait(request.job.id, request.answer)
        queue.push(Push([request.job for request in requests], partial(self._stored, queue, requests)))

    def _stored(
        self, queue: Queue, requests: list[_Request], refused: dict[int, SluiceError], existing: Sequence[int]
    ) -> None:
        self._counters.add("repeated", len(existing))
        for at, request in enumerate(requests):
            self._mark.give(0, request.size)
            if at in refused and request.wants_result:
                queue.answers.failed(request.job.id, refused[at])
            elif at in refused or not request.wants_result:
                request.answer(refused.get(at, request.job.id.encode()))
        asked = [
            request.job.id
            for at, request in enumerate(requests)
            if request.wants_result and at not in refused
        ]
        queue.answers.durable(asked, [requests[at].job.id for at in existing if requests[at].wants_result])

    def reply(self, request: _Request, outcome: bytes | SluiceError) -> None:
        """Send the one answer to a request; an asker who has gone is counted by the door."""
        if request.taken:
            self._mark.give(1, 0)
        body = [outcome] if isinstance(outcome, bytes) else error_frames(outcome)
        self.doors[request.door].send([*request.envelope, *body])


class _Request:
    """One question: where its answer goes, and the job that it became."""

    __slots__ = ("door", "envelope", "frames", "frontend", "job", "size", "taken", "wants_result")

    def __init__(self, frontend: RequestFrontend, door: int, frames: list[bytes]) -> None:
        self.frontend = frontend
        self.door = door
        self.frames = frames
        self.envelope = frames[:1]
        self.job: Job
        self.size = 0
        self.taken = False
        self.wants_result = True

    def read(self, reader: Callable[[list[bytes]], tuple[Queue, Job, dict[str, Any]]]) -> Queue:
        """Take the message apart; the envelope is everything up to the first empty frame."""
        frames = self.frames
        self.frames = []
        try:
            body = frames.index(b"", 1) + 1
        except ValueError:
            raise BadFrames("no empty frame after the envelope: a DEALER sends one before the job") from None
        self.envelope = frames[:body]
        queue, self.job, headers = reader(frames[body:])
        self.wants_result = headers.get("reply", RESULT) != ACCEPTED
        if "id" in headers and self.wants_result:
            self.job.remember = queue.settings.remember
        self.size = len(self.job.payload)
        return queue

    def answer(self, outcome: bytes | SluiceError) -> None:
        """Send the answer."""
        self.frontend.reply(self, outcome)


def error_frames(error: SluiceError) -> list[bytes]:
    """How an error looks to a plain socket: ``["ERROR"][JSON {code, message}]``."""
    return [b"ERROR", json.dumps({"code": error.code, "message": str(error)}).encode()]
