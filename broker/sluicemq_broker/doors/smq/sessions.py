"""SMQ/1, the library's protocol. A session is one connection: it pushes, works, asks, and may vanish.

:mod:`sluicemq.protocol.wire` describes the protocol. Verbs that ask MongoDB are in :mod:`admin_verbs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakMethod

import gevent

from sluicemq.protocol import wire
from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.errors import BadFramesError, BadVerbError, BadVersionError, SluiceError
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker import __version__
from sluicemq_broker.admin import Admin
from sluicemq_broker.doors.frames import FRAME_FACTOR, PROBE
from sluicemq_broker.doors.large_results import send_when_it_fits
from sluicemq_broker.doors.refusals import MALFORMED, refusal
from sluicemq_broker.doors.requests import MOST_UNREAD
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.smq.admin_requests import AdminBounds, AdminRequests
from sluicemq_broker.doors.smq.admin_verbs import ADMIN_VERBS
from sluicemq_broker.doors.smq.assignments import Assignments, read_ready
from sluicemq_broker.doors.smq.clients import ClientConnection, Clients
from sluicemq_broker.doors.smq.fields import Fields, check_id, error_fields, take
from sluicemq_broker.doors.smq.pushes import Pushes
from sluicemq_broker.doors.smq.results import Lookups, Results
from sluicemq_broker.doors.smq.verbs import AdminVerb, Extension, SessionVerb, Verbs
from sluicemq_broker.doors.smq.verdicts import Verdicts
from sluicemq_broker.queue import Outcome
from sluicemq_broker.queues import check_name
from sluicemq_broker.runtime import Count, Pulse
from sluicemq_broker.security import NOTHING, Caller, Effect, Need, Needs, takes, with_hint
from sluicemq_devices.hub import NEXT_TURN
from sluicemq_devices.sockets import Lane, LaneDoor


class SessionDoor:
    """The SMQ/1 door and its sessions; ``extensions``: parts of the broker that add verbs."""

    def __init__(self, services: Services, admin: Admin, extensions: Sequence[Extension] = ()) -> None:
        self.name = services.name
        self.settings = settings = services.settings
        self.queues = services.queues
        self.extensions = extensions
        self.admin = admin
        self.counters = services.counters
        self.audit = services.security.audit
        self.now = services.timer.now
        self.sessions: set[Session] = set()
        self.stopping = False
        """True once clients had notice to go on to another broker."""
        self.accepting = True
        """False while the broker stops: jobs and messages are refused."""
        self.lookups = Lookups()
        self.admin_bounds = AdminBounds(settings.max_job_bytes)
        self.pushes = Pushes(services)
        self.verbs: dict[bytes, SessionVerb | AdminVerb] = {**ADMIN_VERBS, **VERBS}
        for extension in extensions:
            self.verbs.update(extension.verbs)
        self.end_with_client = frozenset(name for name, verb in self.verbs.items() if verb.ends_with_client)
        """Verbs that are not handled for a client that has left: questions and administrative orders."""
        self.charged = frozenset(
            name for name, verb in self.verbs.items() if isinstance(verb, SessionVerb) and verb.charged
        )
        """Verbs that wait while their principal is in debt."""
        self.clients = Clients(self.now)
        # Heartbeats that a client misses, at most, until it leaves the broker.
        self.patience = min(settings.silence, 3 * settings.heartbeat)
        """Seconds after which a client takes this broker for lost, so that frozen ones are left soon."""
        self._pulse = Pulse(self.patience, self.now)
        # No heartbeats of ZMTP by themselves: a session that is not read for a while would not answer them in
        # time. Its beat asks for one where the client's own signs of life are missing.
        # Bytes of many small jobs or results in one message, with any ``max_job_bytes``.
        self.door = LaneDoor(
            services.board,
            settings.endpoint,
            "DEALER",
            lambda lane: self.sessions.add(Session(self, lane)),
            max_frame=FRAME_FACTOR * settings.max_job_bytes + (2 << 20),
            heartbeat=None,
            silence=None,
            kept=True,
            answers=True,
            guard=services.security.guard(settings.endpoint),
        )

    def start(self) -> None:
        """Open the door."""
        self.door.start()

    def stop(self) -> None:
        """Close the door."""
        self.door.stop()

    def announce_stop(self) -> None:
        """Tell clients that know other brokers to go on there; this one stops."""
        self.stopping = True
        for count, session in enumerate(list(self.sessions), 1):
            if session.moves:
                session.send(wire.BYE, 0)
            # Sessions that get notice of a stop in one go of the hub.
            if not count % 100:
                gevent.sleep(NEXT_TURN)

    @property
    def quiet(self) -> bool:
        """True if clients that move have left, and the others have the answers to their requests."""
        return not any(session.moves or session.requests.busy for session in self.sessions)

    def close_gates(self) -> None:
        """Refuse jobs and messages from now on: the broker stops."""
        self.accepting = False

    def beat(self) -> None:
        """Send heartbeats, and close sessions that were silent for too long."""
        self._pulse.beat()
        for session in list(self.sessions):
            session.beat(self.now())

    @property
    def was_frozen(self) -> bool:
        """True if this process did not run for a while, so that no client is to blame for silence."""
        return self._pulse.was_frozen

    def verb(self, name: bytes) -> SessionVerb | AdminVerb:
        """Return a verb by its name; raises BadVerb for one that neither queues nor parts have."""
        found = self.verbs.get(name)
        if found is None:
            raise BadVerbError(f"unknown verb {name[:32]!r}")
        return found


class Session:
    """One connection of the library."""

    def __init__(self, door: SessionDoor, lane: Lane) -> None:
        self.name = self.peer = lane.peer
        self.process: tuple[str, int] | None = None
        """Host and process id of the client, once it has said them."""
        self.concurrency = math.inf
        """How many jobs the client works on at one time, in the order in which it got them."""
        self.disconnected = False
        self.features: frozenset[str] = frozenset()
        """Additions to the protocol that the client knows."""
        self.moves = False
        """The client goes on to another broker when this one stops."""
        self.client = ""
        """The id of a client that repeats over its next connection what was not answered; else empty."""
        self.door = door
        self.lane = lane
        self.caller: Caller = lane.who
        self.counters = door.counters
        self.admin = door.admin
        self._now = door.now
        self._received_at = self._sent_at = self._now()
        self._connection: ClientConnection | None = None
        self._superseded = False
        self._silence = ""
        """Why the client is taken for dead, once it is."""
        self._patience, self._clients = door.patience, door.clients
        self._reading_paused = False
        self.requests = AdminRequests(self)
        self.results = Results(self)
        self.assignments = Assignments(self)
        self.verdicts = Verdicts(self)
        self._states = {extension: extension.join(self) for extension in door.extensions}
        needs = WeakMethod(self.needs)
        self.caller.principal.keep(lane, lambda: found() if (found := needs()) else ())
        lane.on(
            receive=self._receive,
            closed=self._closed,
            blocked=self._blocked,
            unblocked=self._unblocked,
            large=self._takes_large,
        )

    @property
    def writable(self) -> bool:
        """True if the client reads what it is sent."""
        return self.lane.writable

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message; it waits here if the client reads slowly."""
        self.post(wire.encode(verb, number, *fields))

    @property
    def superseded(self) -> bool:
        """True once the client repeats elsewhere what it has sent here and was not answered.

        The client has a newer connection, or has heard nothing for as long as it waits for a sign of life:
        then this broker stood still. Nothing of what was read late is carried out. Never true of other
        clients.
        """
        connection = self._connection
        if connection is None or self._superseded:
            return self._superseded
        timed_out = (
            self._now() - self._sent_at > self._patience and self.lane.writable and not self.disconnected
        )
        if timed_out or self._clients.has_newer_connection(connection):
            self._supersede()
        return self._superseded

    @property
    def repeats(self) -> bool:
        """True if the client may have sent before what it sends here, over an earlier connection."""
        return self._connection is not None and self._connection.connection > 1

    def _supersede(self) -> None:
        self._superseded = True
        text = f"{self.name} has gone on over another connection, and repeats there what was not answered"
        self.counters.notice(Count.SESSIONS_LEFT_BEHIND, text)
        self.lane.close()

    def post(self, frames: list[bytes]) -> None:
        """Send an encoded message."""
        now = self._now()
        if now - self._sent_at > self._patience and self.superseded:
            return
        self._sent_at = now
        self.lane.send(frames)
        if self.lane.backlog > MOST_UNREAD:
            self.pause_reading()

    def answer(self, number: int, outcome: bytes | dict[str, Any] | SluiceError) -> None:
        """Answer a request with a value or an error."""
        if isinstance(outcome, SluiceError):
            self.send(wire.ERROR, number, *error_fields(with_hint(self.caller, outcome)))
        else:
            self.send(wire.OK, number, outcome)

    def send_result(self, number: int, outcome: Outcome) -> None:
        """Answer a request for a result, when there is memory for it."""
        send_when_it_fits(self.lane, outcome, partial(self.answer, number))

    def pause_reading(self) -> None:
        """Do not read the client until :meth:`resume_reading`."""
        if not self._reading_paused:
            self._reading_paused = True
            self.lane.pause()

    def resume_reading(self) -> None:
        """Read the client again if there is no other reason against it; offer its workers."""
        if self._reading_paused and not (self.lane.backlog or self.results.waiting):
            self._reading_paused = False
            self._received_at = self._now()
            self.lane.resume()
        for worker in self.assignments.workers.values():
            worker.queue.offer(worker, reads=self.writable)

    def _blocked(self) -> None:
        for worker in self.assignments.workers.values():
            worker.queue.stalled(worker)

    def _unblocked(self) -> None:
        self._sent_at = self._now()  # the client was busy with reading
        self.resume_reading()

    def state(self, extension: Extension) -> Any:
        """Return what a part of the broker keeps of this session."""
        return self._states[extension]

    def needs(self) -> Iterator[Need]:
        """Yield the permissions without which its connection is cut: it gets jobs and results by them."""
        yield from ((Action.WORK, name) for name in self.assignments.queues)
        yield from ((Action.READ, name) for name in self.results.queues)
        for name in self.results.queues_of_own_jobs:
            yield Action.READ if self.caller.may(Action.READ, name) else Action.PUSH, name
        for state in filter(None, self._states.values()):
            yield from state.needs()

    def hang_up(self) -> None:
        """Close the connection."""
        self.lane.close()

    def beat(self, now: float) -> None:
        """Send a heartbeat if nothing else was sent; close a client that was silent for too long.

        A client may be unable to speak while its ZeroMQ can: a handler holds Python's lock. A PONG is a sign
        of life.
        """
        settings = self.door.settings
        if self.superseded:
            return
        # What the client sent may lie unread, or still come behind a large message.
        if self.lane.gave_sign_of_life() or self.door.was_frozen:
            self._received_at = now
        quiet = now - self._received_at
        if quiet > settings.silence:
            self._silence = f"nothing heard for {settings.silence:g} s"
            self.counters.notice(Count.SESSIONS_SILENT, f"{self.name} sent nothing for {settings.silence} s")
            self.lane.close()
            return
        if quiet > settings.heartbeat:
            self.lane.ask_for_sign_of_life()
        if self.lane.writable and now - self._sent_at >= settings.heartbeat / 2:
            self.send(wire.PING, 0)

    def _receive(self, messages: list[list[bytes]]) -> None:
        self._received_at = self._now()
        if self.superseded:
            return
        if self.lane.leaves_much:
            messages = [
                frames
                for frames in messages
                if len(frames) > 1 and frames[1] not in self.door.end_with_client
            ]
        for at, frames in enumerate(messages):
            if self.lane.is_full or not self._takes(frames):
                self.lane.take_back(messages[at:])
                return
            self._handle(frames)

    def _takes(self, begun: Sequence[bytes]) -> bool:
        """Return False for a message, or its first frames, that waits until its principal has paid."""
        return (
            self.caller.principal.rates is None
            or len(begun) < 2
            or begun[1] not in self.door.charged
            or takes(self.lane, self.counters)
        )

    def _takes_large(self) -> bool:
        return self._takes(self.lane.zmtp.begun)

    def _handle(self, frames: list[bytes]) -> None:
        number = 0
        try:
            verb, number, fields = wire.decode_request(frames)
            known = self.door.verb(verb)
            if isinstance(known, SessionVerb):
                known.needs.ask(self.caller, known.needs.named_in(fields))
                known.handle(self, number, fields)
            else:
                self.requests.ask(verb, number, fields, known)
        except Exception as error:  # noqa: BLE001 - this request and those behind it need their answers
            self._refuse(frames, number, refusal(error))

    def _refuse(self, frames: list[bytes], number: int, problem: SluiceError) -> None:
        if frames == PROBE:
            self.counters.add(Count.PROBES)
            return
        number = number or wire.number_of(frames)
        self.counters.refused(problem, f"from {self.name}: {problem}")
        self.lane.blame(malformed=isinstance(problem, MALFORMED))
        self.answer(number, problem)
        if isinstance(problem, BadVersionError):
            self.lane.close()

    def _closed(self) -> None:
        self._superseded = self.superseded  # it is not asked later what it has heard
        self.disconnected = True
        self.door.sessions.discard(self)
        died = not self.door.was_frozen  # else it left because this broker was silent
        self.assignments.leave(died=died, seen=self._silence or self.lane.cut_for)
        self.results.forget()
        for state in self._states.values():
            if state is not None:
                state.leave()

    # ----------------------------------------------------------------- verbs

    def hello(self, number: int, fields: Fields) -> None:
        """Note who the client is; answer how to behave."""
        (about,) = take(fields, dict)
        self.name, self.process = _client_name(about, self.lane.peer), _process(about)
        self.concurrency = _concurrency(about)
        self.moves = about.get("moves") is True
        features = about.get("features")
        self.features = frozenset(map(str, features[:100])) if isinstance(features, list) else frozenset()
        if self._connection is None:
            self.client, self._connection = ClientConnection.read(about, self.caller.name)
            if self._connection is not None:
                self._clients.arrived(self._connection)
                if self.superseded:
                    return
        settings, permitted = self.door.settings, self.caller.principal.permissions
        self.send(
            wire.OK,
            number,
            {
                "broker": __version__,
                "heartbeat": settings.heartbeat,
                "silence": self.door.patience,
                "max_job_bytes": settings.max_job_bytes,
                "name": self.door.name,
                "features": [wire.FAILURES, wire.STICKS],
                **({"stopping": True} if self.door.stopping else {}),
                **({} if permitted == Permissions.all() else {"permissions": permitted.plain()}),
            },
        )

    def ask_for_result(self, number: int, fields: Fields) -> None:
        """Answer the result of a job, once it has one."""
        name, job_id, wait = take(fields, str, str, int | float)
        if not 0 <= wait <= TEN_YEARS:
            raise BadFramesError(f"{wait} is no number of seconds from 0 to ten years")
        name, job_id = check_name(name), check_id(job_id)
        self.results.ask(
            number, name, job_id, wait, None if self.caller.may(Action.READ, name) else self.caller
        )
        if max(self.results.waiting, len(self.requests.later)) > MOST_UNREAD:
            self.pause_reading()

    def ping(self, number: int, fields: Fields) -> None:
        """Answer at once, with the broker's health where the client wants it."""
        self.send(wire.OK, number, self.admin.broker.health() if fields[:1] == [True] else None)

    def bye(self, number: int, _fields: Fields) -> None:
        """Take the client's workers off their queues."""
        self.assignments.leave(died=False)
        self.send(wire.OK, number, None)


#: The verbs that are handled at once; those of ADMIN_VERBS ask MongoDB.
VERBS: Final[Verbs] = {
    wire.HELLO: SessionVerb(Session.hello, NOTHING, reads=True),
    wire.PUSH: SessionVerb(
        lambda session, *request: session.door.pushes.push(session, *request),
        Needs(
            Action.PUSH,
            0,
            also=(
                Effect(Action.CREATE, "the queue, if it is not there"),
                Effect(Action.READ, "the queue, with `reply` = `result` of a client without a name"),
            ),
        ),
        charged=True,
    ),
    wire.READY: SessionVerb(
        lambda session, number, fields: session.assignments.ready(number, read_ready(fields)),
        Needs(Action.WORK, 0),
        reads=True,
    ),
    # These four are about jobs that the session's own workers have.
    wire.SETTLE: SessionVerb(
        lambda session, *request: session.verdicts.settle(*request),
        NOTHING._replace(
            also=(
                Effect(Action.PUSH, "the next queue, with FORWARD or FANOUT"),
                Effect(Action.CREATE, "the next queue, if it is not there"),
            )
        ),
    ),
    wire.EXTEND: SessionVerb(lambda session, *request: session.verdicts.extend(*request), NOTHING),
    wire.PROGRESS: SessionVerb(lambda session, *request: session.verdicts.progress(*request), NOTHING),
    wire.COMMITIN: SessionVerb(lambda session, *request: session.verdicts.commit_in(*request), NOTHING),
    wire.STUCK: SessionVerb(lambda session, *request: session.assignments.note_stuck(*request), NOTHING),
    wire.RESULT: SessionVerb(Session.ask_for_result, Needs(Action.READ, 0, own=True), reads=True),
    wire.PING: SessionVerb(Session.ping, NOTHING, reads=True),
    wire.BYE: SessionVerb(Session.bye, NOTHING),
}


def _client_name(about: dict[str, Any], peer: str) -> str:
    """Return a client's name, as ``mailer web-1:4711``: its name or kind, host and pid, or address."""
    names = [name[:100] for key in ("name", "client") if isinstance(name := about.get(key), str) and name]
    process = _process(about)
    place = peer if process is None else f"{process[0]}:{process[1]}"
    return f"{names[0]} {place}" if names else place


def _process(about: dict[str, Any]) -> tuple[str, int] | None:
    host, pid = about.get("host"), about.get("pid")
    # no process id is as large
    return (host[:100], pid) if isinstance(host, str) and isinstance(pid, int) and abs(pid) < 2**31 else None


def _concurrency(about: dict[str, Any]) -> float:
    """Return how many jobs a client works on at one time; infinity for one that does not say so."""
    concurrency = about.get("concurrency")
    if isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency > 0:
        return concurrency
    return math.inf
