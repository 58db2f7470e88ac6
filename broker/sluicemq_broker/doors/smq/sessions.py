"""SMQ/1: the library's door. A session is one connection: it pushes, works, asks, and may vanish.

The protocol is written down in ``wire.py``; here is one method per verb.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import gevent

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, BadVerb, BadVersion, SluiceError, Unavailable
from sluicemq_broker import __version__
from sluicemq_broker.admin import READ_PACKED_SENT, Admin
from sluicemq_broker.doors.frames import FRAME_FACTOR, PROBE
from sluicemq_broker.doors.large_results import send_when_it_fits
from sluicemq_broker.doors.refusals import MALFORMED, refusal
from sluicemq_broker.doors.requests import MOST_UNREAD
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.smq.admin_verbs import ADMIN_VERBS, AdminVerb
from sluicemq_broker.doors.smq.assignments import Assignments, ReadyRequest
from sluicemq_broker.doors.smq.fields import (
    LONGEST_DELAY,
    Fields,
    check_id,
    error_fields,
    ready_options,
    seconds_to_wait,
    take,
)
from sluicemq_broker.doors.smq.pushes import Pushes
from sluicemq_broker.doors.smq.results import LookUps, Results
from sluicemq_broker.doors.smq.session_streams import SessionStreams
from sluicemq_broker.doors.smq.verdicts import Verdicts
from sluicemq_broker.queue import Outcome, Queue
from sluicemq_broker.queues import Task, check_name
from sluicemq_broker.runtime import Batcher, Count, Pulse, QuerySlots
from sluicemq_broker.streams import Stream
from sluicemq_devices.hub import Watermark, nothing
from sluicemq_devices.sockets import SMALL, Lane, LaneDoor

#: Bytes that many small jobs or results in a message may come to, however small ``max_job_bytes`` is.
_BATCH_BYTES: Final = 2 << 20
_MOST_CREDIT: Final = 100_000
#: Administrative questions of all sessions that are asked at once, but those answered together: they share
#: the connections to MongoDB with the jobs.
_ASKED_AT_ONCE: Final = 8

#: Makes what an administrative question waits for.
Turn = Callable[[], AbstractContextManager[Any]]

log = logging.getLogger("broker.sessions")


class SessionDoor:
    """The SMQ/1 door and its sessions."""

    def __init__(self, services: Services, admin: Admin, streams: SessionStreams) -> None:
        settings = services.settings
        self.settings = settings
        self.streams = streams
        self.queues = services.queues
        self.admin = admin
        self.counters = services.counters
        self.now = services.timer.now
        self._pulse = Pulse(settings.silence, self.now)
        self.sessions: set[Session] = set()
        self.places = QuerySlots(_ASKED_AT_ONCE)
        self.look_ups = LookUps()
        self.sizes = AnswerSizes(settings.max_job_bytes)
        mark = Watermark(settings.hwm, settings.hwm_bytes, nothing, nothing)
        self.pushes = Pushes(services.queues, services.maker, services.counters, mark)
        # No ZMTP heartbeats: a session that is not read for a while would not answer them in time.
        self.door = LaneDoor(
            services.board,
            settings.endpoint,
            "DEALER",
            lambda lane: self.sessions.add(Session(self, lane)),
            max_frame=FRAME_FACTOR * settings.max_job_bytes + _BATCH_BYTES,
            heartbeat=None,
            silence=None,
            kept=True,
            answers=True,
        )

    def start(self) -> None:
        """Open the door."""
        self.door.start()

    def stop(self) -> None:
        """Close the door."""
        self.door.stop()

    def close_gates(self) -> None:
        """Take no jobs in any more: the broker stops."""
        self.pushes.refuse_all()
        self.streams.refuse_all()

    def beat(self) -> None:
        """Every heartbeat: greet the silent, close those that were silent too long."""
        self._pulse.beat()
        for session in list(self.sessions):
            session.beat(self.now())

    @property
    def stood_still(self) -> bool:
        """True if this process did of late, so that nobody is to blame for silence."""
        return self._pulse.stood_still

    def leave(self, session: Session) -> None:
        """A session has ended."""
        self.sessions.discard(session)


class Session:
    """One connection of the library."""

    def __init__(self, door: SessionDoor, lane: Lane) -> None:
        self.name = self.peer = lane.peer
        self.begins = math.inf
        self.counters = door.counters
        self._door = door
        self._lane = lane
        self._now = door.now
        self._heard = self._said = self._now()
        self._held_back = False
        self._gone = False
        self._full: set[Queue | Stream] = set()  # it pushes to them, and they have too much on their way
        self._questions: Batcher[Callable[[], None]] = Batcher(lambda batch: batch[0](), size=1)
        self._guest = door.places.user()
        self.admin = door.admin
        self.holds = door.streams.holds(lambda: self.name, self.peer)
        self._results = Results(
            door.queues, self._questions, self._resulted, door.now, door.look_ups, self.read_on
        )
        self._assignments = Assignments(self, door.queues, self._questions, self._answer)
        self._verdicts = Verdicts(self, self._assignments, partial(self.send, wire.OK))
        self._reads = door.streams.reads(lane, self._tell)
        lane.on(receive=self._receive, closed=self._closed, unblocked=self.read_on)

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message; held if the client is slow to read."""
        self._post(wire.encode(verb, number, *fields))

    def _post(self, frames: list[bytes]) -> None:
        self._said = self._now()
        self._lane.send(frames)
        if self._lane.backlog > MOST_UNREAD:
            self._hold_back()

    @property
    def writable(self) -> bool:
        """True if the client reads what it is sent."""
        return self._lane.writable

    def read_on(self) -> None:
        """The reason to hold this client back may be over."""
        if self._held_back and not (self._full or self._lane.backlog or self._results.waiting):
            self._held_back = False
            self._heard = self._now()
            self._lane.resume()
        for worker in self._assignments.workers.values():
            worker.queue.offer(worker)

    def blame(self, *, malformed: bool) -> None:
        """It has sent what can't be used."""
        self._lane.blame(malformed=malformed)

    def pushed(self, queue: Queue) -> None:
        """Do not read this client while a queue that it pushes to is full, and lets everybody wait."""
        queue.capacity.hold(self._lane, hears=True)

    def wait_for(self, queue: Queue | Stream) -> None:
        """Do not read this client until so much of a queue, or stream, that it pushes to is stored."""
        if queue not in self._full:
            self._full.add(queue)
            self._hold_back()

    def drained(self, queue: Queue | Stream) -> None:
        """A queue or stream that it pushes to has room again."""
        self._full.discard(queue)
        self.read_on()

    def hang_up(self) -> None:
        """Close the connection."""
        self._lane.close()

    def beat(self, now: float) -> None:
        """Say that the broker lives; close a client that has said nothing for too long."""
        settings = self._door.settings
        # What it said may lie unread, or still come behind a large message.
        if self._lane.gave_sign_of_life() or self._door.stood_still:
            self._heard = now
        if now - self._heard > settings.silence:
            self.counters.notice(Count.SESSIONS_SILENT, f"{self.name} said nothing for {settings.silence} s")
            self._lane.close()
        elif self._lane.writable and now - self._said >= settings.heartbeat / 2:
            self.send(wire.PING, 0)

    def _hold_back(self) -> None:
        if not self._held_back:
            self._held_back = True
            self._lane.pause()

    def _receive(self, messages: list[list[bytes]]) -> None:
        self._heard = self._now()
        if self._lane.leaves_much:
            messages = [each for each in messages if len(each) > 1 and each[1] not in _UNHEARD]
        for at, frames in enumerate(messages):
            if self._lane.is_full:
                self._lane.return_unheard(messages[at:])
                return
            self._handle(frames)

    def _handle(self, frames: list[bytes]) -> None:
        number = 0
        try:
            verb, number, fields = wire.decode_request(frames)
            if verb in ADMIN_VERBS:
                self._ask(number, fields, ADMIN_VERBS[verb])
            else:
                _handler(verb)(self, number, fields)
        except Exception as error:  # noqa: BLE001 - the client must have an answer, and those after it theirs
            self._refuse(frames, number, refusal(error))

    def _refuse(self, frames: list[bytes], number: int, problem: SluiceError) -> None:
        if frames == PROBE:
            self.counters.add(Count.PROBES)
            return
        number = number or wire.number_of(frames)
        self.counters.notice(Count.of(problem), f"from {self.name}: {problem}")
        self._lane.blame(malformed=isinstance(problem, MALFORMED))
        self.send(wire.ERROR, number, problem.code, str(problem))
        if isinstance(problem, BadVersion):
            self._lane.close()

    def _closed(self) -> None:
        self._gone = True
        self._door.leave(self)
        died = not self._door.stood_still  # else it left because it heard nothing of us
        self._assignments.leave(died=died, gone=True)
        self.holds.vanish()
        self._results.forget()
        self._reads.forget()

    # ----------------------------------------------------------------- verbs

    def _hello(self, number: int, fields: Fields) -> None:
        (about,) = take(fields, dict)
        self.name = _named(about, self._lane.peer)
        self.begins = _begins(about)
        settings = self._door.settings
        self.send(
            wire.OK,
            number,
            {
                "broker": __version__,
                "heartbeat": settings.heartbeat,
                "silence": settings.silence,
                "max_job_bytes": settings.max_job_bytes,
            },
        )

    def _push(self, number: int, fields: Fields) -> None:
        self._door.pushes.push(self, number, fields)

    def _ready(self, number: int, fields: Fields) -> None:
        name, credit = take(fields, str, int)
        if not 0 <= credit <= _MOST_CREDIT:
            raise BadFrames(f"credit {credit} is not from 0 to {_MOST_CREDIT}")
        self._assignments.ready(number, ReadyRequest(check_name(name), credit, *ready_options(fields[2:])))

    def _settle(self, number: int, fields: Fields) -> None:
        self._verdicts.settle(number, fields)

    def _extend(self, number: int, fields: Fields) -> None:
        self._verdicts.extend(number, fields)

    def _progress(self, number: int, fields: Fields) -> None:
        self._verdicts.progress(number, fields)

    def _result(self, number: int, fields: Fields) -> None:
        name, job_id, wait = take(fields, str, str, int | float)
        if not 0 <= wait <= LONGEST_DELAY:
            raise BadFrames(f"{wait} is no number of seconds from 0 to ten years")
        self._results.ask(number, check_name(name), check_id(job_id), wait)
        if self._results.waiting > MOST_UNREAD:
            self._hold_back()

    def _publish(self, number: int, fields: Fields) -> None:
        self._door.streams.publish(self, number, fields)

    def _read(self, number: int, fields: Fields) -> None:
        self._reads.read(number, fields)

    def _resulted(self, number: int, outcome: Outcome) -> None:
        send_when_it_fits(self._lane, outcome, partial(self._tell, number))

    def _tell(self, number: int, outcome: bytes | dict[str, Any] | SluiceError) -> None:
        if isinstance(outcome, SluiceError):
            self.send(wire.ERROR, number, outcome.code, str(outcome))
        else:
            self.send(wire.OK, number, outcome)

    def _ping(self, number: int, fields: Fields) -> None:
        self.send(wire.OK, number, self.admin.broker.health() if fields[:1] == [True] else None)

    def _bye(self, number: int, _fields: Fields) -> None:
        self._assignments.leave(died=False, gone=False)
        self.send(wire.OK, number, None)

    def _ask(self, number: int, fields: Fields, verb: AdminVerb) -> None:
        """Administrative verbs ask MongoDB, so they wait in a greenlet, one after the other."""
        wait = seconds_to_wait(fields[len(verb.types) :]) if verb.takes_long else None
        asked = _Asked(number, attrgetter(verb.subject)(self), verb, take(fields, *verb.types))
        turn = nullcontext if verb.at_once else self._guest.slot
        if verb.reads:
            self._questions.add(partial(self._look, asked, turn))
        else:
            self._questions.add(partial(self._order, asked, turn, wait))
        if len(self._questions) > MOST_UNREAD:
            self._hold_back()

    def _order(self, asked: _Asked, turn: Turn, wait: float | None) -> None:
        """Obey when it is this one's turn, also one who has left."""
        with turn():
            self._answer(asked.number, asked.ask, wait)

    def _look(self, asked: _Asked, turn: Turn) -> None:
        """Answer what changes nothing, when what was answered before was read and there is room."""
        if not self._gone:
            self._shielded(asked.number, partial(self._look_in_turn, asked, turn))

    def _look_in_turn(self, asked: _Asked, turn: Turn) -> None:
        ration, sizes = self._lane.ration, self._door.sizes
        size = sizes.of(asked.verb)
        if asked.verb.weigh and not ration.fits(size):
            with turn():
                size = asked.verb.weigh(asked.of, *asked.fields)
        while ration.reserve(size):
            try:
                with turn():
                    if self._gone:
                        return
                    answer = wire.encode(wire.OK, asked.number, asked.ask())
                weight = len(answer[-1])
                sizes.note(asked.verb, weight)
                if weight <= size or ration.fits(weight - size):
                    self._post(answer)
                    return
            finally:
                ration.release(size)
            size = weight  # it was larger than the last one, and others have taken the room

    def _answer(self, number: int, question: Callable[[], Any], wait: float | None = None) -> None:
        self._shielded(number, partial(self._answer_or_fail, number, question, wait))

    def _answer_or_fail(self, number: int, question: Callable[[], Any], wait: float | None) -> None:
        value = question()
        if isinstance(value, Task):  # what goes on without us keeps nobody else waiting
            gevent.spawn(self._answer, number, partial(value.outcome, wait))
        else:
            self.send(wire.OK, number, value)

    def _shielded(self, number: int, step: Callable[[], None]) -> None:
        try:
            step()
        except SluiceError as error:
            self.send(wire.ERROR, number, *error_fields(error))
        except Exception:  # the client must have an answer, whatever went wrong
            log.exception("an administrative request of %s failed", self.name)
            self.send(wire.ERROR, number, Unavailable.code, "the broker failed on this; its log says why")
        if not len(self._questions):
            self._guest.answered()
            self.read_on()


class _Asked(NamedTuple):
    """One administrative request: its number, whom it asks, with which verb and fields."""

    number: int
    of: object
    verb: AdminVerb
    fields: list[Any]

    def ask(self) -> Any:
        """Return the answer, for which it may wait."""
        return self.verb.method(self.of, *self.fields)


class AnswerSizes:
    """How many bytes to expect of an answer: those of late; of jobs, what one may have, thrice."""

    def __init__(self, max_job_bytes: int) -> None:
        self._most = READ_PACKED_SENT * max_job_bytes
        self._latest: dict[AdminVerb, int] = {}

    def of(self, verb: AdminVerb) -> int:
        """Bytes to reserve for the next answer."""
        return self._most if verb.weigh else max(SMALL, self._latest.get(verb, 0))

    def note(self, verb: AdminVerb, size: int) -> None:
        """Note how many bytes an answer had."""
        self._latest[verb] = max(size, self._latest.get(verb, 0) * 7 // 8)


_PIDS: Final = 2**31  # and what is no pid
#: What only an answer comes of: of a client that has left it is not looked at.
_UNHEARD: Final = frozenset(
    {wire.HELLO, wire.PING, wire.READ, wire.READY, wire.RESULT}
    | {verb for verb, about in ADMIN_VERBS.items() if about.reads}
)


def _named(about: dict[str, Any], peer: str) -> str:
    """``mailer web-1:4711``: a client by its own name (or its kind), host and pid; else by its address."""
    called = [each[:100] for key in ("name", "client") if isinstance(each := about.get(key), str) and each]
    host, pid = about.get("host"), about.get("pid")
    place = (
        f"{host[:100]}:{pid}" if isinstance(host, str) and isinstance(pid, int) and abs(pid) < _PIDS else peer
    )
    return f"{called[0]} {place}" if called else place


def _begins(about: dict[str, Any]) -> float:
    """How many jobs a client works on at once; of one that does not say so, nobody knows."""
    said = about.get("concurrency")
    return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else math.inf


_HANDLERS: Final[dict[bytes, Callable[[Session, int, Fields], None]]] = {
    wire.HELLO: Session._hello,  # noqa: SLF001 - the table of verbs is part of the class
    wire.PUSH: Session._push,  # noqa: SLF001
    wire.READY: Session._ready,  # noqa: SLF001
    wire.SETTLE: Session._settle,  # noqa: SLF001
    wire.EXTEND: Session._extend,  # noqa: SLF001
    wire.PROGRESS: Session._progress,  # noqa: SLF001
    wire.RESULT: Session._result,  # noqa: SLF001
    wire.PUBLISH: Session._publish,  # noqa: SLF001
    wire.READ: Session._read,  # noqa: SLF001
    wire.PING: Session._ping,  # noqa: SLF001
    wire.BYE: Session._bye,  # noqa: SLF001
}


def _handler(verb: bytes) -> Callable[[Session, int, Fields], None]:
    handler = _HANDLERS.get(verb)
    if handler is None:
        raise BadVerb(f"unknown verb {verb[:32]!r}")
    return handler
