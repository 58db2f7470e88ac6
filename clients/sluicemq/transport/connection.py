"""The connection to a broker: a native I/O thread that greets, receives, keeps alive and reconnects.

A producer, a worker and a client each have one connection and give it a
:class:`~sluicemq.transport.role.Role`: their part of the I/O thread. The life of a connection::

      dialled ──HELLO──▶ waiting for the greeting ──OK──▶ greeted: requests and deliveries flow
         ▲                        │ silent, cut, put off          │ silent, cut, or it stops
         └─ the next candidate ◀──┴────────────── lost ◀──────────┘

:mod:`~sluicemq.transport.candidates` chooses which address is dialled, and when. Any other refusal of HELLO
ends the connection for good, if all brokers refuse. So do refused TCP connections with ``patient=False``. A
broker counts as lost when its TCP connection ends, or when nothing came from it for the silence that its
greeting named. One that stops says BYE: where there are others, nothing new is requested from it, and the
connection goes on to another once nothing is under way that only this one can end.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import zmq

from sluicemq.aside import Aside, no_user_code
from sluicemq.complaints import complain, log
from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    ForkedError,
    NotAdmittedError,
    SluiceError,
    TooLargeError,
    UnavailableError,
    from_code,
)
from sluicemq.protocol.readable import escaped
from sluicemq.transport import endpoints, native
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.candidates import LONGEST_PAUSE, Candidate, Candidates, TakenEndpoints
from sluicemq.transport.entry import CANT_ENTER, explained
from sluicemq.transport.link import Link
from sluicemq.transport.memory_link import MemoryLink
from sluicemq.transport.names import Names
from sluicemq.transport.pacing import awake_or_not
from sluicemq.transport.role import Role
from sluicemq.version import VERSION

#: Used until the broker's greeting names its own, in seconds.
DEFAULT_HEARTBEAT = 2.0
DEFAULT_SILENCE = 6.0

_SPREADS = "it is another broker's turn"

#: First words of the obstacle if nothing is known to listen.
NOBODY_ANSWERS = "no broker answers at"

_LONGEST_POLL = 3600.0

Answered = Callable[[Any, SluiceError | None], None]


class _Outcome(NamedTuple):
    """The outcome of one try to connect.

    ``refused``: nothing listens there. ``refusal``: that of the broker. ``obstacle``: what is in the way.
    """

    refused: bool = False
    refusal: SluiceError | None = None
    obstacle: str | None = None


class Connection:
    """A connection to one broker at a time, of those at all endpoints.

    ``start`` it once; ``close`` may be called again.
    """

    features: frozenset[str] = frozenset()
    """Additions to the protocol that the broker knows, as its greeting says."""

    def __init__(
        self,
        broker: Broker,
        role: Role,
        *,
        patient: bool = True,
        about: dict[str, Any] | None = None,
        taken: TakenEndpoints | None = None,
        repeats: bool = False,
        stays: tuple[float, float] = (inf, inf),
        open_mailbox: Callable[[], native.Mailbox] = native.open_mailbox,
    ) -> None:
        """``about``: fields of HELLO, besides host and pid. ``apart``: keeps it from brokers of others.

        ``repeats``: the role sends again over the next link what was not answered over this one, or reports
        it as unclear; brokers need not carry it out any more. ``stays``: seconds of the shortest and the
        longest stay at one broker of several. ``open_mailbox``: makes the way out of the I/O thread.
        """
        self.id = os.urandom(10).hex()
        """The id of this client at all brokers, over all its links."""
        self._access = Access.chosen(broker)
        self.endpoint = endpoints.printable(self._access.endpoints)
        """All endpoints, for messages."""
        self.connected_to = self._last_endpoint = ""
        """The endpoint of the broker that has greeted; empty while there is none."""
        self.greeted = False
        self.takes_more = False
        """True while new requests may be sent: the broker has greeted, and is not to be left."""
        self._moves_as = ""
        """Why the broker is to be left, once it is."""
        self.epoch = 0
        """Number of greetings so far: deliveries of another epoch are void."""
        self.max_job_bytes: int | None = None
        self.permissions: dict[str, list[str]] | None = None
        """Patterns of what this client may do, by action, as the broker said last; None: everything."""
        self._most_bytes = inf
        self.disconnect_error = UnavailableError(
            f"the connection to {self.endpoint} was lost before the answer came"
        )
        self.failure: SluiceError | None = None
        self.not_admitted: NotAdmittedError | None = None
        """Why the broker did not let this client in, at the last try."""
        self.signalled: Callable[[int], None] = _ignore_signal
        """Called through the mailbox for each signal that was written to ``signal_fd``."""
        self._role, self._patient, self._open_mailbox = role, patient, open_mailbox
        self._more_about = about or {}
        self._repeating = itertools.count(1) if repeats else None
        self._obstacle: str | None = None
        self.mailbox: native.Mailbox
        self._turned_at, self._doubtful = awake_or_not(), False
        self._callbacks = Aside("sluicemq-callbacks", _complain)
        self._wakeup = native.Wakeup()
        self._ring = self._wakeup.ring
        names = Names(self._wakeup.ring, self._access.resolve)
        self._candidates = Candidates(self._access.endpoints, names, taken=taken, stays=stays)
        self._taken = taken
        self._candidate: Candidate | None = None
        self._rounds, self._outcomes = 0, list[_Outcome]()
        """Outcomes of this round's tries."""
        self._started = self._over = False
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._pending: dict[int, tuple[Answered, bool]] = {}
        self._numbers = itertools.count(1)
        self._heartbeat, self._silence = DEFAULT_HEARTBEAT, DEFAULT_SILENCE
        self._received_at = self._sent_at = self._dialled_at = self._warn_at = 0.0
        self._close_by: float | None = None
        self._ended = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]]
        self._link: Link

    # ------------------------------------------------------------------ from any thread

    @property
    def signal_fd(self) -> int:
        """Return the file for ``signal.set_wakeup_fd``: the I/O thread gets signals also in a wait."""
        return self._wakeup.signal_fd

    @property
    def server(self) -> str:
        """Return the endpoint of the broker, for traces: the only one, or where it is connected now."""
        return self.connected_to or self.endpoint

    @property
    def obstacle(self) -> str:
        """Return why no broker has greeted, as far as it is known."""
        nobody = f"{NOBODY_ANSWERS} {self.endpoint}"
        if self._candidates.lacks_addresses:
            nobody = f"{nobody}: the name has no address"
        return self._obstacle or self._unexpected_peer() or nobody

    @property
    def doubtful(self) -> bool:
        """Return whether the broker may have given this client up: the process stood still meanwhile.

        It is settled by the broker's next answer, or by the end of the connection.
        """
        return self._doubtful or awake_or_not() - self._turned_at > self._silence / 2

    def start(self) -> None:
        """Start the I/O thread; it connects by itself and calls the role."""
        self._started = True
        self.mailbox = self._open_mailbox()
        self._context = zmq.Context()
        self._link = self._new_link()
        native.start_thread(self._run)

    def start_when_used(self, started: Callable[[], None]) -> None:
        """Start at the first ``wake`` or ``call``, and call ``started``: a forked child may never need it."""
        one_at_a_time = threading.Lock()

        def start_and_ring() -> None:
            with one_at_a_time:
                if not self._started:
                    self.start()
                    started()
                    self._ring = self._wakeup.ring
            self._wakeup.ring()

        self._ring = start_and_ring

    def abandon(self) -> None:
        """Make every call raise in the child of a fork, and let nothing reach the parent.

        Its ZeroMQ sockets stay open: pyzmq closes none in another process than their own. Only the TCP
        connection is dropped here, or the broker would not see the end of a killed parent.
        """
        if not self._over:
            parent = "the process that this one was forked from"
            self.failure = ForkedError(f"the connection to {self.endpoint} belongs to {parent}")
        self._over = True
        self.greeted = self.takes_more = False
        self.connected_to = ""
        self.epoch += 1  # deliveries are void here
        self._ended = threading.Event()
        self._ended.set()
        self._wakeup.abandon()
        if self._started:
            self.mailbox.abandon()
            if (tcp_fd := self._link.tcp_fd) is not None:
                native.cut_off(tcp_fd)

    def wake(self) -> None:
        """Have the role's ``turn`` called soon."""
        self._ring()

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Run ``function(*args)`` in the I/O thread soon; raises if the connection has ended."""
        if self._over:
            raise self.failure or UnavailableError(f"the connection to {self.endpoint} is closed")
        self._calls.append((function, args))
        self._ring()

    def close(self, timeout: float = 1.0) -> None:
        """Send BYE, wait up to ``timeout`` seconds for its answer, and end the thread."""
        if not self._started:
            self._over = True
            return
        if not self._over:
            self._calls.append((self._leave, (monotonic() + timeout,)))
            self._wakeup.ring()
        self._ended.wait(timeout + 5.0)
        self._callbacks.wait(timeout)
        log.wait(timeout)

    # ------------------------------------------------------------------ from the mailbox

    def call_back(self, function: Callable[..., None], *args: Any) -> None:
        """Run user code soon, where it may wait for this connection; one call after the other."""
        self._callbacks.post(function, *args)

    def offer_back(self, function: Callable[..., None], *args: Any) -> None:
        """Run user code soon as ``call_back`` does, or never if too much waits: that of traces."""
        self._callbacks.offer(function, *args)

    @property
    def in_callback(self) -> bool:
        """Return whether this is the thread of ``call_back``."""
        return self._callbacks.here

    # ------------------------------------------------------------------ from the I/O thread

    def request(self, verb: bytes, *fields: Any, answered: Answered, whole: bool = False) -> None:
        """Send a request; ``answered(value, error)`` follows exactly once, in the I/O thread.

        ``whole``: the value is a list of all fields after the number, not the first one. Only while
        ``greeted``. A lost connection answers with ``disconnect_error``. A value that can't be packed, or
        more bytes than the broker reads, is answered at once with :class:`~sluicemq.BadFramesError` or
        :class:`~sluicemq.TooLargeError`; other requests go on.
        """
        number = next(self._numbers)
        try:
            frames = wire.encode(verb, number, *fields)
        except Exception as error:  # noqa: BLE001 - other requests on this connection must go on
            answered(None, wire.unsendable(verb, error))
            return
        self._ask(number, frames, answered, whole=whole)

    def request_packed(self, verb: bytes, fields: list[bytes], *, answered: Answered) -> None:
        """Send a request whose fields :func:`wire.packed` has packed, as :meth:`request` does."""
        number = next(self._numbers)
        self._ask(number, wire.encode_packed(verb, number, fields), answered, whole=False)

    def post(self, deliver: Callable[..., None], *args: Any) -> None:
        """Run ``deliver(*args)`` where locks and events may be used, in the order of posting."""
        self.mailbox.post(deliver, *args)

    def _ask(self, number: int, frames: list[bytes], answered: Answered, *, whole: bool) -> None:
        size = len(frames[2])
        if size > self._most_bytes:
            what = f"{frames[1].decode()} has {size} bytes, this broker reads {self._most_bytes} at once"
            answered(None, TooLargeError(what))
            return
        self._pending[number] = answered, whole
        self._send(frames)

    # ------------------------------------------------------------------ the I/O thread's loop

    def _run(self) -> None:
        with no_user_code():
            try:
                while not self._over:
                    self._turn()
            except BaseException as error:  # noqa: BLE001 - any error ends the thread here
                self._fail(UnavailableError(f"the library's I/O thread failed: {error!r}"))
            finally:
                self._end()

    def _turn(self) -> None:
        self._link.wait(self._seconds_to_wait())
        self._note_standstill()
        for number in self._wakeup.answer():
            self.post(self.signalled, number)
        self._receive()
        self._run_calls()
        self._role.turn()
        self._keep_alive()

    def _seconds_to_wait(self) -> float:
        moments = [self._role.due]
        if self._candidate is None:
            moments.append(self._candidates.due)
        elif self.greeted:
            moments += [self._received_at + self._silence, self._sent_at + self._heartbeat]
        else:
            moments.append(self._greet_by)
        if self._close_by is not None:
            moments.append(self._close_by)
        return max(0.0, min(min(moments) - monotonic(), _LONGEST_POLL))

    @property
    def _greet_by(self) -> float:
        """Return when a candidate that has not greeted is left."""
        within = self._candidates.greet_within
        return self._dialled_at + (self._silence if within == inf else within)

    def _note_standstill(self) -> None:
        """Ask the broker whether it still has this client, if it has long not heard of it."""
        if self.greeted and not self._doubtful and self.doubtful:
            self._doubtful = True
            self.request(wire.PING, answered=self._assured)
        self._turned_at = awake_or_not()

    def _assured(self, _value: Any, error: SluiceError | None) -> None:
        self._doubtful = self._doubtful and error is not None

    def _receive(self) -> None:
        link = self._link
        for frames in link.receive():
            self._received_at = monotonic()
            try:
                self._dispatch(wire.decode(frames))
            except SluiceError as error:
                self._link.reached = self._link.handshaken = True  # the monitor may not have reported it yet
                self._disconnect(f"what it sends can't be read: {error}")
            if self._link is not link:
                return

    def _dispatch(self, message: wire.Message) -> None:
        if message.verb in (wire.OK, wire.ERROR):
            answered, whole = self._pending.pop(message.number, (_ignore, False))
            answered(*_outcome(message, whole=whole))
        elif message.verb == wire.BYE:
            self._move("the broker stops")
        elif message.verb != wire.PING and self.greeted:
            self._role.delivered(message)

    def _run_calls(self) -> None:
        while self._calls:
            function, args = self._calls.popleft()
            function(*args)

    def _keep_alive(self) -> None:
        now = monotonic()
        if self._close_by is not None and now >= self._close_by:
            self._over = True
        elif self._candidate is None:
            self._dial(now)
        elif self._link.broken():
            self._disconnect("the connection was closed")
        elif self.greeted and now - self._received_at >= self._silence and not self._link.unread:
            self._disconnect(f"nothing heard for {self._silence:g} s")
        elif not self.greeted and now >= self._greet_by:
            self._disconnect(f"no greeting for {now - self._dialled_at:.1f} s")
        elif self._link.refused:
            self._lose(_Outcome(refused=True))
        elif self.greeted and not self.takes_more and not self._role.busy:
            self._disconnect(self._moves_as)
        elif self.takes_more and (why := self._reason_to_move(now)):
            self._move(why)
        elif self.greeted and now - self._sent_at >= self._heartbeat:
            self._send(wire.encode(wire.PING, next(self._numbers)))

    def _reason_to_move(self, now: float) -> str:
        """Return why another broker is to be used from now on; empty if this one is well."""
        if self._candidates.stayed(now):
            return _SPREADS
        return "it is no address of its name any more" if self._candidates.vanished(now) else ""

    def _dial(self, now: float) -> None:
        """Dial the next candidate, if there is one now."""
        candidate = self._candidates.next(now)
        self._look_at_round()
        if candidate is not None and not self._over:
            self._candidate = candidate
            self._dialled_at = self._received_at = now
            self._link.connect(self._access, candidate.address, ipv6=candidate.ipv6)
            self.request(wire.HELLO, self._about(), answered=self._greet)

    def _about(self) -> dict[str, Any]:
        """Return what the broker's log and the history of jobs call this client."""
        about = {
            "client": "python",
            "version": VERSION,
            "host": escaped(socket.gethostname()),
            "pid": os.getpid(),
        }
        moves = {"moves": True} if self._candidates.elsewhere else {}
        repeats = {"id": self.id, "connection": next(self._repeating)} if self._repeating else {}
        return {**about, **moves, **repeats, **self._more_about}

    def _new_link(self) -> Link:
        if self.endpoint.startswith(endpoints.IN_MEMORY):
            return MemoryLink(self._wakeup.fd)
        return Link(self._context, self._wakeup.fd)

    def _send(self, frames: list[bytes]) -> None:
        self._link.send(frames)
        self._sent_at = monotonic()

    # ------------------------------------------------------------------ greeting, losing, leaving

    def _greet(self, hello: Any, error: SluiceError | None) -> None:
        if self._over or error is self.disconnect_error:
            return
        if error is None and isinstance(hello, dict):
            if hello.get("stopping") and self._candidates.elsewhere:
                self._put_off("it stops")
            else:
                self._greeted_with(hello)
        elif error is None or isinstance(error, UnavailableError):
            self._put_off(f"{error or hello!r}")
        else:
            self._lose(_Outcome(refusal=error, obstacle=f"the broker at {self._where} refuses: {error}"))

    def _put_off(self, why: str) -> None:
        self._disconnect(f"it does not greet: {why}", f"the broker at {self._where} can't serve now: {why}")

    def _greeted_with(self, hello: dict[str, Any]) -> None:
        self._heartbeat = float(hello.get("heartbeat", DEFAULT_HEARTBEAT))
        self._silence = float(hello.get("silence", DEFAULT_SILENCE))
        self.max_job_bytes, self.permissions = hello.get("max_job_bytes"), hello.get("permissions")
        features = hello.get("features")
        self.features = frozenset(map(str, features)) if isinstance(features, list) else frozenset()
        if self.max_job_bytes is not None:
            # Bytes of a frame beyond twice the largest job: more cuts the connection
            self._most_bytes = 2 * self.max_job_bytes + (2 << 20)
        self._candidates.greeted(monotonic())
        self._say_connected(hello.get("name"))
        self._say_unfit()
        self._moves_as = ""
        self.greeted, self.takes_more, self.epoch = True, True, self.epoch + 1
        self._doubtful, self._turned_at = False, awake_or_not()
        self._obstacle, self._warn_at, self.not_admitted = None, 0.0, None
        self._outcomes.clear()
        self._role.connected()

    def _say_connected(self, name: object) -> None:
        before, self.connected_to = self._last_endpoint, self._where
        self._last_endpoint = self._where
        what = f"connected to {self._where}"
        if isinstance(name, str) and name:
            what = f"{what} (broker {escaped(name)})"
        level = logging.WARNING if self.epoch and self._moves_as != _SPREADS else logging.INFO
        again = " again" if before == self._where else ""
        self.post(log.log, level, "%s%s", what, again)

    def _say_unfit(self) -> None:
        """Say which other brokers can't be entered: there is none to go on to when this one is lost."""
        for outcome in self._outcomes:
            if outcome.obstacle and outcome.obstacle.startswith(CANT_ENTER):
                what = "%s. Only some of the brokers fit what this client gets in by: all take one server_key"
                self.post(log.warning, f"{what}, connected to %s", outcome.obstacle, self._where)

    @property
    def _where(self) -> str:
        """Return the endpoint of the broker that is dialled, or all of them."""
        return self._candidate.endpoint if self._candidate else self.endpoint

    def _disconnect(self, why: str, obstacle: str | None = None) -> None:
        """Go on to the next candidate; ``obstacle``: why this one could not be used."""
        if self.greeted:
            if why == _SPREADS:
                self.post(log.info, "connection to %s left: %s", self._where, why)
            else:
                self.post(log.warning, "connection to %s lost: %s", self._where, why)
            self._lose(_Outcome())
            return
        failure = self._link.failure
        refusal = explained(replace(self._access, endpoints=(self._where,)), failure) if failure else None
        obstacle = obstacle or (str(refusal) if refusal else self._unexpected_peer())
        denied = refusal if isinstance(refusal, NotAdmittedError) else None
        self._lose(_Outcome(refusal=denied, obstacle=obstacle))

    def _move(self, why: str) -> None:
        """Send no new requests; go on to the next candidate when the answers have come."""
        self.takes_more, self._moves_as = False, why

    def _lose(self, outcome: _Outcome) -> None:
        """Replace this link by a new one, and have the next candidate dialled."""
        was_greeted = self.greeted
        self._link.close()
        self._link = self._new_link()
        self._candidate, self.connected_to = None, ""
        self.greeted = self.takes_more = False
        self._answer_all(self.disconnect_error)
        self._outcomes.append(outcome)
        self._candidates.failed(monotonic())
        self._over = self._over or self._close_by is not None
        if self._look_at_round() or was_greeted:
            self._role.disconnected()

    def _look_at_round(self) -> bool:
        """Judge the round's tries once all were in vain; return whether they were."""
        if self._candidates.rounds <= self._rounds:
            self._rounds = self._candidates.rounds
            return False
        self._rounds = self._candidates.rounds
        outcomes, self._outcomes = self._outcomes, []
        refusals = [outcome.refusal for outcome in outcomes if outcome.refusal is not None]
        self._obstacle = next((outcome.obstacle for outcome in outcomes if outcome.obstacle), None)
        self.not_admitted = next((error for error in refusals if isinstance(error, NotAdmittedError)), None)
        # Nobody waits for a door to open: somebody must add a key
        self._candidates.longest_pause = 10.0 if self.not_admitted else LONGEST_PAUSE
        impatient = not self._patient and not self.epoch
        alone = not self._candidates.passed_over
        if alone and len(refusals) == len(outcomes) > 0 and not self.not_admitted:
            self._fail(refusals[0])
        elif impatient and all(outcome.refused or outcome.refusal for outcome in outcomes):
            self._fail(refusals[0] if refusals else UnavailableError(self.obstacle))
        else:
            self._warn_unreachable()
        return True

    def _warn_unreachable(self) -> None:
        if monotonic() >= self._warn_at:
            # Seconds between two warnings that there is no broker
            self._warn_at = monotonic() + 30.0
            free = self._taken.free(self._access.endpoints) if self._taken else self._access.endpoints
            why = self._obstacle or f"can't reach {endpoints.printable(free)}: is a broker running there?"
            self.post(log.warning, "%s", why)

    def _unexpected_peer(self) -> str | None:
        if not self._link.reached or self.greeted:
            return None
        what = "it does not greet as an SMQ/1 door (5550 by default)"
        if not self._link.handshaken:
            what = "hangs up before any greeting: a broker that has no connection left or wants a key,"
            what = f"{what} or no SMQ/1 door"
        return f"something answers at {self._where}, but {what}"

    def _answer_all(self, error: SluiceError) -> None:
        pending, self._pending = self._pending, {}
        for answered, _whole in pending.values():
            answered(None, error)

    def _leave(self, close_by: float) -> None:
        self._close_by = close_by
        if self.greeted:
            self.request(wire.BYE, answered=self._left)
        else:
            self._over = True

    def _left(self, _value: Any, _error: SluiceError | None) -> None:
        self._over = True

    def _fail(self, error: SluiceError) -> None:
        self.failure = error
        self._over = True

    def _end(self) -> None:
        self.greeted = self.takes_more = False
        self.connected_to = ""
        error = self.failure or UnavailableError(f"the connection to {self.endpoint} is closed")
        self._answer_all(error)
        self._role.ended(error)
        self._run_calls()
        # Milliseconds for a last BYE to be written
        self._link.close(200)
        self._context.term()
        self.post(self._ended.set)
        self.mailbox.close()


def _outcome(message: wire.Message, *, whole: bool) -> tuple[Any, SluiceError | None]:
    if message.verb == wire.OK:
        if whole:
            return message.fields, None
        return (message.fields[0] if message.fields else None), None
    code, text, detail = (*message.fields, "", "", "")[:3]
    return None, from_code(str(code), str(text), str(detail))


def _complain() -> None:
    complain("a callback of the sluicemq library failed", level=logging.ERROR)


def _ignore(_value: Any, _error: SluiceError | None) -> None:
    """Ignore the answer to a PING, or to a request that nobody waits for."""


def _ignore_signal(_number: int) -> None:
    """Ignore a signal."""
