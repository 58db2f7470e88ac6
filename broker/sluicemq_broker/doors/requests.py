"""The doors where REQ and DEALER clients connect, at a QUEUE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final
from weakref import WeakMethod

from sluicemq.protocol.errors import BadFramesError, ForbiddenError, PausedError, QueueFullError, SluiceError
from sluicemq.protocol.json_values import dumps
from sluicemq.protocol.options import ACCEPTED, RESULT
from sluicemq.protocol.permissions import Action
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors.frames import split_envelope, without_probes
from sluicemq_broker.doors.frontends import Frontend
from sluicemq_broker.doors.large_results import send_when_it_fits
from sluicemq_broker.doors.refusals import MALFORMED, error_frames, refusal
from sluicemq_broker.doors.services import Services
from sluicemq_broker.job import Job, State
from sluicemq_broker.queue import Outcome, Queue
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import Caller, Need, authorize, may_not, put_back, with_hint
from sluicemq_devices.hub import Shares, Watermark, nothing
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor, Switchboard

#: A return envelope is kept until the answer and counts nowhere, so it must be short.
_ENVELOPE_FRAMES: Final = 256
_ENVELOPE_BYTES: Final = 64 * 1024
#: Answers that a client has not read, before its requests are no longer read.
MOST_UNREAD: Final = 1000
#: Requests of one device that wait for results, and the share of what is left of that for one client: the
#: first client is read until 991 of its requests wait. They only cost memory, so they are no part of what is
#: on its way to MongoDB.
MOST_WAITING: Final = 100_000
WAITING_PART: Final = 0.01


class RequestFrontend(Frontend):
    """ROUTER doors for REQ and DEALER clients: one answer each, behind the request's return envelope.

    Answers wait for a client that reads slowly; requests of a client that has left are forgotten. A client
    that waits for many results is not read until it has some of them.
    """

    most_waiting: ClassVar[int] = MOST_WAITING

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        super().__init__(settings, services)
        # Bytes of their envelopes
        mark = Watermark(self.most_waiting, 64 * 2**20, nothing, nothing)
        self._waiting: Shares[Requester] = Shares(
            mark, lambda requester: requester.lane.resume(requester), WAITING_PART
        )

    def close_gates(self) -> None:
        """Read no more; connections stay open for the answers that clients wait for."""
        self._closing = True
        self._close_gates()

    def receive(self, requester: Requester, messages: list[list[bytes]]) -> None:
        """Take in requests; unreadable ones are answered at once."""
        if put_back(requester.lane, messages, self._counters):
            return
        messages = without_probes(messages, self._counters)
        self._counters.add(Count.RECEIVED, len(messages))
        caller: Caller = requester.lane.who
        reader = partial(self._read, caller, may_push=caller.may(Action.PUSH, self._queue.name))
        batches: dict[Queue, list[tuple[Request, Job]]] = {}
        for frames in messages:
            request = Request(self, requester, frames)
            try:
                queue, job = request.read(reader)
                queue.capacity.admit(len(batches.get(queue, ())))
                self._count_waiting(request)
            except (PausedError, QueueFullError, ForbiddenError) as error:
                self._counters.add(Count.REFUSED)
                self._counters.refused(error, str(error))
                requester.lane.blame(malformed=False)
                request.answer(error)
            except Exception as error:  # noqa: BLE001 - the requests around it need their answers
                self._refuse(request, refusal(error))
            else:
                batches.setdefault(queue, []).append((request, job))
        for queue, batch in batches.items():
            self._push(queue, [request for request, _ in batch], [job for _, job in batch])

    def reply(self, request: Request, outcome: Outcome) -> None:
        """Send the one answer to a request; it is dropped if the client has left.

        A large result for a client that leaves much unread becomes an error: the client can ask again if the
        job has an id of its own.
        """
        if request in request.requester.waiting:
            request.requester.waiting.discard(request)
            request.forget = nothing  # it refers to the request
            if request.wants_result:
                self._waiting.give(request.requester, 1, request.weight)
        send_when_it_fits(request.requester.lane, outcome, request.send)

    def disconnected(self, requester: Requester) -> None:
        """Forget the requests of a client that has left; their jobs go on."""
        waiting, requester.waiting = requester.waiting, set()
        for request in waiting:
            request.forget()
        self._waiting.forget(requester)
        if waiting:
            self._counters.add(Count.ASKERS_GONE, len(waiting))

    def _door(self, board: Switchboard, endpoint: Endpoint, longest: int) -> LaneDoor:
        return LaneDoor(
            board,
            endpoint,
            "ROUTER",
            lambda lane: Requester(self, lane).listen(),
            max_frame=longest,
            heartbeat=None,  # a client that is not read would not answer in time
            guard=self._guard(endpoint),
        )

    def _refuse(self, request: Request, error: SluiceError) -> None:
        self._counters.add(Count.UNREADABLE)
        self._counters.refused(error, f"a request to queue {self._queue.name}: {error}")
        request.requester.lane.blame(malformed=isinstance(error, MALFORMED))
        request.answer(error)

    def _count_waiting(self, request: Request) -> None:
        """Count a request that waits for a result; raises :class:`QueueFull` where too many wait.

        A client with no other request waiting is never refused.
        """
        requester = request.requester
        if request.wants_result:
            if self._waiting.mark.is_full and requester.waiting:
                raise QueueFullError(
                    f"{self._waiting.mark.count} requests wait for results here: wait for some of "
                    "yours, or send the header reply = accepted"
                )
            if self._waiting.take(requester, 1, request.weight):
                requester.lane.pause(requester)
        requester.waiting.add(request)

    def _push(self, queue: Queue, requests: list[Request], jobs: list[Job]) -> None:
        for request in requests:
            if request.wants_result:
                queue.results.wait(request.job_id, request.answer)
                request.forget = partial(queue.results.stop, request.job_id, request.answer)
        lane = requests[0].requester.lane
        self._inflow.push(queue, jobs, lane, partial(self._stored, queue, requests))

    def _stored(
        self,
        queue: Queue,
        requests: list[Request],
        refused: dict[int, SluiceError],
        existing: Mapping[int, str],
    ) -> None:
        for at, request in enumerate(requests):
            if at in refused and request.wants_result:
                queue.results.failed(request.job_id, refused[at])
            elif at in refused:
                request.answer(refused[at])
            elif not request.wants_result:
                request.accepted(existing.get(at))
        waiting = [
            request.job_id
            for at, request in enumerate(requests)
            if request.wants_result and at not in refused
        ]
        queue.results.stored(waiting, [requests[at].job_id for at in existing if requests[at].wants_result])


class Requester:
    """One connection of a REQ or DEALER client, and its requests that wait for an answer."""

    def __init__(self, frontend: RequestFrontend, lane: Lane) -> None:
        self.waiting: set[Request] = set()
        self.lane = lane
        self._frontend = frontend
        self._follows_permissions = False

    def listen(self) -> None:
        """Take in what comes on the connection."""
        self.lane.on(
            receive=partial(self._frontend.receive, self),
            closed=partial(self._frontend.disconnected, self),
            unblocked=self.lane.resume,
            large=partial(self._frontend.takes_large, self.lane),
        )

    def follow_permissions(self) -> None:
        """Answer at once requests whose client may no longer have the answer, when permissions change."""
        if not self._follows_permissions:
            self._follows_permissions = True
            caller, refuse_forbidden = self.lane.who, WeakMethod(self._refuse_forbidden)
            caller.principal.keep(self.lane, lambda: found() if (found := refuse_forbidden()) else ())

    def _refuse_forbidden(self) -> Sequence[Need]:
        for request in [request for request in self.waiting if request.forbidden]:
            request.forget()
            request.answer(may_not(self.lane.who, Action.READ, request.reads))
        return ()

    def send(self, frames: list[bytes]) -> None:
        """Send an answer; a client with too many unread ones is not read until it reads them."""
        self.lane.send(frames)
        if self.lane.backlog > MOST_UNREAD:
            self.lane.pause()


class Request:
    """One request and the envelope of its answer. The job is not kept, for it may be large."""

    __slots__ = (
        "envelope",
        "forget",
        "frames",
        "frontend",
        "job_id",
        "note",
        "queue",
        "reads",
        "requester",
        "wants_result",
        "weight",
    )

    def __init__(self, frontend: RequestFrontend, requester: Requester, frames: list[bytes]) -> None:
        self.frontend = frontend
        self.requester = requester
        self.frames = frames
        self.envelope = frames[:1]
        self.job_id = self.queue = ""
        self.note: list[bytes] = []
        self.forget: Callable[[], None] = nothing
        self.weight = 0  # bytes that are kept while it waits
        self.wants_result = True
        self.reads = ""
        """The queue that its client must be permitted to read until the answer: it may be another's job."""

    @property
    def forbidden(self) -> bool:
        """True if its client may no longer have the answer."""
        caller: Caller = self.requester.lane.who
        return bool(self.reads) and not caller.may(Action.READ, self.reads)

    def read(self, reader: Callable[[list[bytes]], tuple[Queue, Job, dict[str, Any]]]) -> tuple[Queue, Job]:
        """Read the message; the envelope ends with the first empty frame.

        Raises Forbidden for an id of its own without permission to read: another's result may have that id.
        """
        frames, self.frames = self.frames, []
        self.envelope, content = split_envelope(frames, "job")
        if len(self.envelope) > _ENVELOPE_FRAMES or sum(map(len, self.envelope)) > _ENVELOPE_BYTES:
            raise BadFramesError(
                f"a return envelope has at most {_ENVELOPE_FRAMES} frames and {_ENVELOPE_BYTES} bytes"
            )
        queue, job, headers = reader(content)
        self.wants_result = headers.get("reply", RESULT) != ACCEPTED
        if self.wants_result:
            job.want_result()
        if "id" in headers and self.wants_result:
            authorize(self.requester.lane.who, Action.READ, queue.name)
            self.reads = queue.name
            self.requester.follow_permissions()
            job.keep_result(queue.settings.remember)
        self.job_id, self.queue = job.id, queue.name
        self.weight = len(job.id) + sum(map(len, self.envelope))
        return queue, job

    def accepted(self, existed: str | None) -> None:
        """Answer that the job is durable; ``existed``: the state of one that was there before, if any was.

        A second frame says so where nobody works on that job any more: programs that read one frame go on.
        """
        if existed in (State.DONE, State.DEAD):
            may_read = self.requester.lane.who.may(Action.READ, self.queue)
            self.note = [dumps({"existed": True, "state": (may_read and existed) or None}).encode()]
        self.answer(self.job_id.encode())

    def answer(self, outcome: Outcome) -> None:
        """Answer with the outcome of the job."""
        self.frontend.reply(self, outcome)

    def send(self, outcome: bytes | SluiceError) -> None:
        """Send the answer."""
        who = self.requester.lane.who
        if self.forbidden and not isinstance(outcome, ForbiddenError):
            outcome = may_not(who, Action.READ, self.reads)
        body = [outcome, *self.note] if isinstance(outcome, bytes) else error_frames(with_hint(who, outcome))
        self.requester.send([*self.envelope, *body])
