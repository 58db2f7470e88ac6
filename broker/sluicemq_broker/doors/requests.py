"""Where those connect who ask: REQ and DEALER clients at a QUEUE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from sluicemq.protocol.errors import BadFrames, Paused, QueueFull, SluiceError
from sluicemq.protocol.options import ACCEPTED, RESULT
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors.frontends import Frontend
from sluicemq_broker.doors.large_results import tell_when_it_fits
from sluicemq_broker.doors.probes import without_probes
from sluicemq_broker.doors.refusals import MALFORMED, error_frames, refusal
from sluicemq_broker.doors.services import Services
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Outcome, Push, Queue
from sluicemq_broker.runtime import Count
from sluicemq_devices.hub import Shares, Watermark, nothing
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor, Switchboard

#: A return envelope is kept until the answer, and counted nowhere: so it is short.
_ENVELOPE_FRAMES: Final = 256
_ENVELOPE_BYTES: Final = 64 * 1024
#: Answers that an asker has not read, before its requests are no longer read.
MOST_UNREAD: Final = 1000
#: Questions of one device that wait for results, bytes of their envelopes, and how much of what is left of
#: that one asker may have: the first is read until 991 of its own wait. They only cost memory, so they
#: are no part of what is on its way to MongoDB.
MOST_WAITING: Final = 100_000
MOST_WAITING_BYTES: Final = 64 * 2**20
WAITING_PART: Final = 0.01


class RequestFrontend(Frontend):
    """ROUTER doors for REQ and DEALER clients: one reply each, with the return envelope unchanged.

    Every connection is a lane: answers wait for an asker that is slow to read them, and questions of
    one that has gone are forgotten. One that waits for many results is not read until it has some of
    them; others are.
    """

    most_waiting: ClassVar[int] = MOST_WAITING

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        super().__init__(settings, services)
        mark = Watermark(self.most_waiting, MOST_WAITING_BYTES, nothing, nothing)
        self._waiting: Shares[Asker] = Shares(mark, lambda asker: asker.read_on(), WAITING_PART)

    def close_gates(self) -> None:
        """Read no more; the connections stay until the answers that somebody waits for have gone out."""
        self._closing = True
        self._close_gates()

    def receive(self, asker: Asker, messages: list[list[bytes]]) -> None:
        """Take in questions; those that can't be read are answered at once."""
        messages = without_probes(messages, self._counters)
        self._counters.add(Count.RECEIVED, len(messages))
        batches: dict[Queue, list[tuple[Request, Job]]] = {}
        for frames in messages:
            request = Request(self, asker, frames)
            try:
                queue, job = request.read(self._read)
                queue.admit(len(batches.get(queue, ())))
                self._wait(request)
            except (Paused, QueueFull) as error:
                self._counters.add(Count.REFUSED)
                self._counters.notice(Count.of(error), str(error))
                asker.lane.blame(malformed=False)
                request.answer(error)
            except Exception as error:  # noqa: BLE001 - those who asked with it must not go unanswered
                self._refuse(request, refusal(error))
            else:
                batches.setdefault(queue, []).append((request, job))
        for queue, batch in batches.items():
            self._push(queue, [request for request, _ in batch], [job for _, job in batch])

    def reply(self, request: Request, outcome: Outcome) -> None:
        """Send the one answer to a question; it is dropped if the asker has gone.

        Of one that leaves much unread the answer is an error where the result is large: it may be asked for
        again if the job has an id of its own.
        """
        if request in request.asker.waiting:
            request.asker.waiting.discard(request)
            request.forget = nothing  # which holds the request
            if request.wants_result:
                self._waiting.give(request.asker, 1, request.weight)
        tell_when_it_fits(request.asker.lane, outcome, request.send)

    def left(self, asker: Asker) -> None:
        """An asker has gone: its questions no longer count, though their jobs are done all the same."""
        waiting, asker.waiting = asker.waiting, set()
        for request in waiting:
            request.forget()
        self._waiting.forget(asker)
        if waiting:
            self._counters.add(Count.ASKERS_GONE, len(waiting))

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        return LaneDoor(
            board,
            endpoint,
            "ROUTER",
            lambda lane: Asker(self, lane).listen(),
            max_frame=longest,
            heartbeat=None,  # one that is paused would not answer in time
        )

    def _refuse(self, request: Request, error: SluiceError) -> None:
        self._counters.add(Count.UNREADABLE)
        self._counters.notice(Count.of(error), f"a request to queue {self._queue.name}: {error}")
        request.asker.lane.blame(malformed=isinstance(error, MALFORMED))
        request.answer(error)

    def _wait(self, request: Request) -> None:
        """Count a question among those that wait; raises :class:`QueueFull` where there are too many.

        Not for one that waits for nothing else: whoever asks one thing at a time is always heard.
        """
        asker = request.asker
        if request.wants_result:
            if self._waiting.mark.is_full and asker.waiting:
                raise QueueFull(
                    f"{self._waiting.mark.count} questions wait for results here: wait for some of "
                    "yours, or ask with the header reply = accepted"
                )
            if self._waiting.take(asker, 1, request.weight):
                asker.wait()
        asker.waiting.add(request)

    def _push(self, queue: Queue, requests: list[Request], jobs: list[Job]) -> None:
        for request in requests:
            if request.wants_result:
                queue.wait_for_result(request.job_id, request.answer)
                request.forget = partial(queue.stop_waiting, request.job_id, request.answer)
        size = sum(job.size for job in jobs)
        push = Push(jobs, partial(self._stored, queue, requests, size))
        self._push_to(queue, push, size, requests[0].asker.lane)

    def _stored(
        self,
        queue: Queue,
        requests: list[Request],
        size: int,
        refused: dict[int, SluiceError],
        existing: Sequence[int],
    ) -> None:
        self._on_their_way.give(queue, requests[0].asker.lane, len(requests), size)
        for at, request in enumerate(requests):
            if at in refused and request.wants_result:
                queue.no_result(request.job_id, refused[at])
            elif at in refused or not request.wants_result:
                request.answer(refused.get(at, request.job_id.encode()))
        asked = [
            request.job_id
            for at, request in enumerate(requests)
            if request.wants_result and at not in refused
        ]
        queue.durable(asked, [requests[at].job_id for at in existing if requests[at].wants_result])


class Asker:
    """One connection of a REQ or DEALER client, and the questions that it waits for."""

    def __init__(self, frontend: RequestFrontend, lane: Lane) -> None:
        self.waiting: set[Request] = set()
        self.lane = lane
        self._frontend = frontend

    def listen(self) -> None:
        """Take what comes on its lane."""
        self.lane.on(
            receive=partial(self._frontend.receive, self),
            closed=partial(self._frontend.left, self),
            unblocked=self.lane.resume,
        )

    def send(self, frames: list[bytes]) -> None:
        """Send an answer, or keep it until it is read; who leaves too many unread asks no more."""
        self.lane.send(frames)
        if self.lane.backlog > MOST_UNREAD:
            self.lane.pause()

    def wait(self) -> None:
        """Ask no more until there are answers."""
        self.lane.pause(self)

    def read_on(self) -> None:
        """Ask on: there were answers."""
        self.lane.resume(self)


class Request:
    """One question: who asks, and where in that the answer goes. Its job is not kept: it may be large."""

    __slots__ = ("asker", "envelope", "forget", "frames", "frontend", "job_id", "wants_result", "weight")

    def __init__(self, frontend: RequestFrontend, asker: Asker, frames: list[bytes]) -> None:
        self.frontend = frontend
        self.asker = asker
        self.frames = frames
        self.envelope = frames[:1]
        self.job_id = ""
        self.forget: Callable[[], None] = nothing
        self.weight = 0  # bytes that it keeps while it waits
        self.wants_result = True

    def read(
        self, reader: Callable[[list[bytes], Lane], tuple[Queue, Job, dict[str, Any]]]
    ) -> tuple[Queue, Job]:
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
        queue, job, headers = reader(frames[body:], self.asker.lane)
        self.wants_result = headers.get("reply", RESULT) != ACCEPTED
        if self.wants_result:
            job.want_result()
        if "id" in headers and self.wants_result:
            job.keep_result(queue.settings.remember)
        self.job_id = job.id
        self.weight = len(job.id) + sum(map(len, self.envelope))
        return queue, job

    def answer(self, outcome: Outcome) -> None:
        """Answer it."""
        self.frontend.reply(self, outcome)

    def send(self, outcome: bytes | SluiceError) -> None:
        """Send the answer."""
        body = [outcome] if isinstance(outcome, bytes) else error_frames(outcome)
        self.asker.send([*self.envelope, *body])
