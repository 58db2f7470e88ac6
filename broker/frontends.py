"""Where producers connect with plain sockets: PUSH at a STREAMER, REQ and DEALER at a QUEUE.

A frontend turns messages into jobs, hands them to their queues in batches, and closes its gates
when as much is on its way as its high-water mark allows: then TCP and ZeroMQ's own marks fill up,
and the producer blocks.
"""

from __future__ import annotations

import json
import logging
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
from devices.callbacks import nothing
from devices.doors import Lane, LaneDoor
from devices.endpoints import Endpoint
from devices.flow import Watermark
from devices.switchboard import Switchboard
from sluicemq import wire
from sluicemq.errors import (
    BadFrames,
    BadHeaders,
    Duplicate,
    Paused,
    SluiceError,
    TooLarge,
    Unavailable,
)

#: Of a message that can't be read, so much of its payload is kept; of an over-long one the first KiB.
_KEPT: Final = 64 * 1024
_KEPT_OF_LONG: Final = 1024
#: A frame longer than this cuts the connection, and with it what else was in its pipe; so the true
#: limit is checked here, where the sender can be told.
FRAME_FACTOR: Final = 4
#: A return envelope is kept until the answer, and counted nowhere: so it is short.
_ENVELOPE_FRAMES: Final = 256
_ENVELOPE_BYTES: Final = 64 * 1024
#: Answers that an asker has not read, before its requests are no longer read.
MOST_UNREAD: Final = 1000

log = logging.getLogger("broker.frontends")


class Frontend:
    """The doors of one device where jobs come in, and the mark that bounds what is on its way."""

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
        self.doors = [self._door(board, endpoint, longest) for endpoint in settings.frontends]

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return sum(door.received for door in self.doors)

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
        self._counters.add("gates_closed")
        for door in self.doors:
            door.pause()

    def _open_gates(self) -> None:
        for door in self.doors if not self._shut else ():
            door.resume()

    @property
    def _shut(self) -> bool:
        """Whether the gates must stay closed."""
        return self._closing or self._mark.is_full

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        raise NotImplementedError

    def _read(self, frames: list[bytes]) -> tuple[Queue, Job, dict[str, Any]]:
        plain = split(frames)
        queue = self._queues.for_push(plain.queue) if plain.queue else self._queue
        return queue, self._maker.make(queue.settings, plain.payload, plain.headers), plain.headers


class PushFrontend(Frontend):
    """PULL doors for PUSH producers, who hear nothing: what can't be read goes to the dead letters.

    While intake of their own queue is paused the doors are not read, so that the producers block. What
    names a paused queue at another's door is stored all the same: nobody could be told.
    """

    _reads_all = False

    def start(self) -> None:
        """Open the doors; nothing is read of them while intake is paused."""
        super().start()
        self._queue.gates.append(self._follow_pause)
        self._follow_pause()

    def read_all(self) -> None:
        """Read on although intake is paused: what lies in socket buffers would be lost with a stop."""
        self._reads_all = True
        self._follow_pause()

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
        lane.receive = self._receive

    def _receive(self, messages: list[list[bytes]]) -> None:
        self._counters.add("received", len(messages))
        batches: dict[Queue, list[Job]] = {}
        for frames in messages:
            try:
                queue, job = self._read_push(frames)
            except Exception as error:  # noqa: BLE001 - the jobs around it must not be lost with it
                self._bury(frames, refusal(error))
            else:
                batches.setdefault(queue, []).append(job)
        for queue, jobs in batches.items():
            size = sum(job.size for job in jobs)
            self._mark.take(len(jobs), size)
            queue.push(Push(jobs, partial(self._stored, len(jobs), size)))

    def _read_push(self, frames: list[bytes]) -> tuple[Queue, Job]:
        queue, job, headers = self._read(frames)
        if "reply" in headers:
            raise BadHeaders("header 'reply' is for REQ and DEALER: nobody hears an answer to a PUSH")
        return queue, job

    def _stored(
        self, count: int, size: int, refused: dict[int, SluiceError], existing: Sequence[int]
    ) -> None:
        self._mark.give(count, size)
        self._counters.add("repeated", len(existing))
        for error in [each for each in refused.values() if not isinstance(each, Duplicate)]:
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
    """ROUTER doors for REQ and DEALER clients: one reply each, with the return envelope unchanged.

    Every connection is a lane: answers wait for an asker that is slow to read them, and questions of
    one that has gone are forgotten.
    """

    def __init__(
        self,
        settings: DeviceSettings,
        broker: BrokerSettings,
        board: Switchboard,
        queues: Queues,
        maker: JobMaker,
        counters: Counters,
    ) -> None:
        super().__init__(settings, broker, board, queues, maker, counters)
        self.most_unread_bytes = settings.hwm_bytes

    def close_gates(self) -> None:
        """Read no more; the connections stay until the answers that are still owed have gone out."""
        self._closing = True
        self._close_gates()

    def receive(self, asker: Asker, messages: list[list[bytes]]) -> None:
        """Take in questions; those that can't be read are answered at once."""
        self._counters.add("received", len(messages))
        batches: dict[Queue, list[tuple[_Request, Job]]] = {}
        for frames in messages:
            request = _Request(self, asker, frames)
            try:
                queue, job = request.read(self._read)
                queue.admit()
            except Paused as error:
                self._counters.add("refused")
                self._counters.notice("paused", str(error))
                request.answer(error)
            except Exception as error:  # noqa: BLE001 - those who asked with it must not go unanswered
                self._refuse(request, refusal(error))
            else:
                batches.setdefault(queue, []).append((request, job))
        for queue, batch in batches.items():
            self._push(queue, [request for request, _ in batch], [job for _, job in batch])

    def reply(self, request: _Request, outcome: bytes | SluiceError) -> None:
        """Send the one answer to a question; it is dropped if the asker has gone."""
        if request in request.asker.waiting:
            request.asker.waiting.discard(request)
            request.forget = nothing  # which holds the request
            self._mark.give(1, 0)
        body = [outcome] if isinstance(outcome, bytes) else error_frames(outcome)
        request.asker.send([*request.envelope, *body])

    def left(self, asker: Asker) -> None:
        """An asker has gone: its questions no longer count, though their jobs are done all the same."""
        waiting, asker.waiting = asker.waiting, set()
        count = len(waiting)
        for request in waiting:
            request.forget()
        if count:
            self._counters.add("askers_gone", count)
            self._mark.give(count, 0)

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        return LaneDoor(
            board,
            endpoint,
            "ROUTER",
            lambda lane: Asker(self, lane).listen(),
            max_frame=longest,
            heartbeat=None,  # one that is paused would not answer in time
        )

    def _refuse(self, request: _Request, error: SluiceError) -> None:
        self._counters.add("unreadable")
        self._counters.notice(error.code.lower(), f"a request to queue {self._queue.name}: {error}")
        request.answer(error)

    def _push(self, queue: Queue, requests: list[_Request], jobs: list[Job]) -> None:
        for request in requests:
            request.asker.waiting.add(request)
            self._mark.take(1, request.size)
            if request.wants_result:
                queue.answers.wait(request.job_id, request.answer)
                request.forget = partial(queue.answers.forget, request.job_id, request.answer)
        queue.push(Push(jobs, partial(self._stored, queue, requests)))

    def _stored(
        self, queue: Queue, requests: list[_Request], refused: dict[int, SluiceError], existing: Sequence[int]
    ) -> None:
        self._counters.add("repeated", len(existing))
        for at, request in enumerate(requests):
            self._mark.give(0, request.size)
            if at in refused and request.wants_result:
                queue.answers.failed(request.job_id, refused[at])
            elif at in refused or not request.wants_result:
                request.answer(refused.get(at, request.job_id.encode()))
        asked = [
            request.job_id
            for at, request in enumerate(requests)
            if request.wants_result and at not in refused
        ]
        queue.answers.durable(asked, [requests[at].job_id for at in existing if requests[at].wants_result])


class Asker:
    """One connection of a REQ or DEALER client, and the questions that it waits for."""

    def __init__(self, frontend: RequestFrontend, lane: Lane) -> None:
        self.waiting: set[_Request] = set()
        self._frontend = frontend
        self._lane = lane

    def listen(self) -> None:
        """Take what comes on its lane."""
        self._lane.receive = partial(self._frontend.receive, self)
        self._lane.closed = partial(self._frontend.left, self)
        self._lane.unblocked = self._lane.resume

    def send(self, frames: list[bytes]) -> None:
        """Send an answer, or keep it until it is read; who leaves too many unread asks no more."""
        self._lane.send(frames)
        held = self._lane.held
        if held.count > MOST_UNREAD or held.bytes > self._frontend.most_unread_bytes:
            self._lane.pause()


class _Request:
    """One question: who asks, and where in that the answer goes. Its job is not kept: it may be large."""

    __slots__ = ("asker", "envelope", "forget", "frames", "frontend", "job_id", "size", "wants_result")

    def __init__(self, frontend: RequestFrontend, asker: Asker, frames: list[bytes]) -> None:
        self.frontend = frontend
        self.asker = asker
        self.frames = frames
        self.envelope = frames[:1]
        self.job_id = ""
        self.forget: Callable[[], None] = nothing
        self.size = 0
        self.wants_result = True

    def read(self, reader: Callable[[list[bytes]], tuple[Queue, Job, dict[str, Any]]]) -> tuple[Queue, Job]:
        """Take the message apart; the envelope is everything up to the first empty frame."""
        frames = self.frames
        self.frames = []
        try:
            body = frames.index(b"", 1) + 1
        except ValueError:
            raise BadFrames("no empty frame after the envelope: a DEALER sends one before the job") from None
        self.envelope = frames[:body]
        if body > _ENVELOPE_FRAMES or sum(map(len, self.envelope)) > _ENVELOPE_BYTES:
            raise BadFrames(
                f"a return envelope has at most {_ENVELOPE_FRAMES} frames and {_ENVELOPE_BYTES} bytes"
            )
        queue, job, headers = reader(frames[body:])
        self.wants_result = headers.get("reply", RESULT) != ACCEPTED
        if "id" in headers and self.wants_result:
            job.remember = queue.settings.remember
        self.job_id, self.size = job.id, job.size
        return queue, job

    def answer(self, outcome: bytes | SluiceError) -> None:
        """Send the answer."""
        self.frontend.reply(self, outcome)


def refusal(error: Exception) -> SluiceError:
    """What to say of an error in reading a message; one that nobody foresaw is told to the log."""
    if isinstance(error, SluiceError):
        return error
    log.error("a message could not be read", exc_info=error)
    return Unavailable("the broker failed on this; its log says why")


def error_frames(error: SluiceError) -> list[bytes]:
    """How an error looks to a plain socket: ``["ERROR"][JSON {code, message}]``; a DUPLICATE's has ``id``."""
    told = {"code": error.code, "message": str(error)}
    if isinstance(error, Duplicate):
        told["id"] = error.id
    return [b"ERROR", json.dumps(told).encode()]
