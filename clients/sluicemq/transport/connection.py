"""The connection to a broker: a native I/O thread that greets, receives, keeps alive and reconnects.

A producer, a worker and a client each have one connection and give it a
:class:`~sluicemq.transport.role.Role`: their part of the I/O thread. The life of a connection::

      open link ──HELLO──▶ waiting for the greeting ──OK──▶ greeted: requests and deliveries flow
          ▲                        │ silent, cut, put off            │ silent, cut
          └────── after a pause ◀──┴─────────────── lost ◀───────────┘

Any other refusal of HELLO ends it for good. So does a refused TCP connection with ``patient=False``. A broker
counts as lost when its TCP connection ends, or when nothing came from it for the silence that its greeting
named.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

import zmq

from sluicemq.complaints import log
from sluicemq.protocol import wire
from sluicemq.protocol.errors import Forked, NotAdmitted, SluiceError, TooLarge, Unavailable, from_code
from sluicemq.protocol.readable import escaped
from sluicemq.transport import endpoints, native
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.entry import explained
from sluicemq.transport.link import Link
from sluicemq.transport.role import Role
from sluicemq.version import VERSION

#: Used until the broker's greeting names its own, in seconds.
DEFAULT_HEARTBEAT = 2.0
DEFAULT_SILENCE = 6.0

#: First words of the obstacle if nothing is known to listen.
NOBODY_ANSWERS = "no broker answers at"

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LONGEST_PAUSE_NOT_ADMITTED = 10.0  # nobody waits for a door to open: somebody must add a key
_LONGEST_POLL = 3600.0
_WARN_EACH = 30.0  # seconds between two warnings that there is no broker
_BESIDE_JOBS = 2 << 20  # bytes of a frame beyond twice the largest job: more cuts the connection
_LINGER = 200  # ms for a last BYE to be written

Answered = Callable[[Any, SluiceError | None], None]


class Connection:
    """One endpoint, kept connected. ``start`` it once; ``close`` may be called again."""

    def __init__(
        self, broker: Broker, role: Role, *, patient: bool = True, about: dict[str, Any] | None = None
    ) -> None:
        """``about``: fields of HELLO, besides host and pid."""
        self._access = Access.chosen(broker)
        self.endpoint = self._access.endpoint
        self._dialled = endpoints.dialled(self._access.endpoints[0])
        self._families = endpoints.families(self._dialled)
        self._tries = 0
        """Addresses that were tried in vain since the last greeting; the families take turns."""
        self.greeted = False
        self.epoch = 0
        """Number of greetings so far: deliveries of another epoch are void."""
        self.max_job_bytes: int | None = None
        self._most_bytes = inf
        self.disconnect_error = Unavailable(
            f"the connection to {self.endpoint} was lost before the answer came"
        )
        self.failure: SluiceError | None = None
        self.not_admitted: NotAdmitted | None = None
        """Why the broker did not let this client in, at the last try."""
        self.signalled: Callable[[int], None] = _ignore_signal
        """Called through the mailbox for each signal that was written to ``signal_fd``."""
        self._role = role
        self._patient = patient
        self._more_about = about or {}
        self._obstacle: str | None = None
        self._warn_at = 0.0
        self._mailbox: native.Mailbox
        self._wakeup = native.Wakeup()
        self._ring = self._wakeup.ring
        self._started = False
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._pending: dict[int, tuple[Answered, bool]] = {}
        self._numbers = itertools.count(1)
        self._heartbeat, self._silence = DEFAULT_HEARTBEAT, DEFAULT_SILENCE
        self._received_at = self._sent_at = 0.0
        self._connect_at: float | None = monotonic()
        self._pause = 0.0
        self._close_by: float | None = None
        self._over = False
        self._ended = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]]
        self._link: Link

    # ------------------------------------------------------------------ from any thread

    @property
    def signal_fd(self) -> int:
        """Return the file for ``signal.set_wakeup_fd``: the I/O thread gets signals also in a wait."""
        return self._wakeup.signal_fd

    @property
    def obstacle(self) -> str:
        """Return why no broker has greeted, as far as it is known."""
        return self._obstacle or self._unexpected_peer() or f"{NOBODY_ANSWERS} {self.endpoint}"

    def start(self) -> None:
        """Start the I/O thread; it connects by itself and calls the role."""
        self._started = True
        self._mailbox = native.open_mailbox()
        self._context = zmq.Context()
        self._link = Link(self._context, self._wakeup.fd)
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
            self.failure = Forked(f"the connection to {self.endpoint} belongs to {parent}")
        self._over = True
        self.greeted = False
        self.epoch += 1  # deliveries are void here
        self._ended = threading.Event()
        self._ended.set()
        self._wakeup.abandon()
        if self._started:
            self._mailbox.abandon()
            if (tcp_fd := self._link.tcp_fd) is not None:
                native.cut_off(tcp_fd)

    def wake(self) -> None:
        """Have the role's ``turn`` called soon."""
        self._ring()

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Run ``function(*args)`` in the I/O thread soon; raises if the connection has ended."""
        if self._over:
            raise self.failure or Unavailable(f"the connection to {self.endpoint} is closed")
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

    # ------------------------------------------------------------------ from the I/O thread

    def request(self, verb: bytes, *fields: Any, answered: Answered, whole: bool = False) -> None:
        """Send a request; ``answered(value, error)`` follows exactly once, in the I/O thread.

        ``whole``: the value is a list of all fields after the number, not the first one. Only while
        ``greeted``. A lost connection answers with ``disconnect_error``. A value that can't be packed, or
        more bytes than the broker reads, is answered at once with :class:`~sluicemq.BadFrames` or
        :class:`~sluicemq.TooLarge`; other requests go on.
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
        self._mailbox.post(deliver, *args)

    def _ask(self, number: int, frames: list[bytes], answered: Answered, *, whole: bool) -> None:
        size = len(frames[2])
        if size > self._most_bytes:
            what = f"{frames[1].decode()} has {size} bytes, this broker reads {self._most_bytes} at once"
            answered(None, TooLarge(what))
            return
        self._pending[number] = answered, whole
        self._send(frames)

    # ------------------------------------------------------------------ the I/O thread's loop

    def _run(self) -> None:
        try:
            while not self._over:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - any error ends the thread here
            self._fail(Unavailable(f"the library's I/O thread failed: {error!r}"))
        finally:
            self._end()

    def _turn(self) -> None:
        self._link.wait(self._seconds_to_wait())
        for number in self._wakeup.answer():
            self.post(self.signalled, number)
        self._receive()
        self._run_calls()
        self._role.turn()
        self._keep_alive()

    def _seconds_to_wait(self) -> float:
        moments = [self._role.due, self._connect_at or self._received_at + self._silence]
        if self.greeted:
            moments.append(self._sent_at + self._heartbeat)
        if self._close_by is not None:
            moments.append(self._close_by)
        return max(0.0, min(min(moments) - monotonic(), _LONGEST_POLL))

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
            answered, whole = self._pending.pop(message.number, _NO_REQUEST)
            answered(*_outcome(message, whole=whole))
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
        elif self._connect_at is not None:
            self._connect_when_due(now)
        elif self._link.broken():
            self._disconnect("the connection was closed")
        elif now - self._received_at >= self._silence:
            self._disconnect(f"nothing heard for {self._silence:g} s")
        elif self._link.refused:
            self._try_next_address()
        elif self.greeted and now - self._sent_at >= self._heartbeat:
            self._send(wire.encode(wire.PING, next(self._numbers)))

    def _connect_when_due(self, now: float) -> None:
        if now >= (self._connect_at or 0.0):
            self._connect_at = None
            self._received_at = now
            ipv6 = self._families[self._tries % len(self._families)]
            self._link.connect(self._access, self._dialled, ipv6=ipv6)
            self.request(wire.HELLO, self._about(), answered=self._greet)

    def _about(self) -> dict[str, Any]:
        """Return what the broker's log and the history of jobs call this client."""
        about = {
            "client": "python",
            "version": VERSION,
            "host": escaped(socket.gethostname()),
            "pid": os.getpid(),
        }
        return {**about, **self._more_about}

    def _send(self, frames: list[bytes]) -> None:
        self._link.send(frames)
        self._sent_at = monotonic()

    # ------------------------------------------------------------------ greeting, losing, leaving

    def _greet(self, hello: Any, error: SluiceError | None) -> None:
        if self._over or error is self.disconnect_error:
            return
        if error is None and isinstance(hello, dict):
            self._greeted_with(hello)
        elif error is None or isinstance(error, Unavailable):
            why = f"it does not greet: {error or hello!r}"
            self._disconnect(why, f"the broker at {self.endpoint} can't serve now: {error or hello!r}")
        else:
            self._fail(error)

    def _greeted_with(self, hello: dict[str, Any]) -> None:
        self._heartbeat = float(hello.get("heartbeat", DEFAULT_HEARTBEAT))
        self._silence = float(hello.get("silence", DEFAULT_SILENCE))
        self.max_job_bytes = hello.get("max_job_bytes")
        if self.max_job_bytes is not None:
            self._most_bytes = 2 * self.max_job_bytes + _BESIDE_JOBS
        if self.epoch:
            self.post(log.warning, "connected to %s again", self.endpoint)
        self.greeted, self.epoch, self._pause = True, self.epoch + 1, 0.0
        self._obstacle, self._warn_at, self.not_admitted = None, 0.0, None
        self._role.connected()

    def _disconnect(self, why: str, obstacle: str | None = None) -> None:
        if self.greeted:
            self.post(log.warning, "connection to %s lost: %s", self.endpoint, why)
        else:
            self._note_obstacle(obstacle)
            self._tries += not self._link.handshaken
        if self.not_admitted and not self._patient and not self.epoch:
            self._fail(self.not_admitted)
        else:
            self._reconnect()

    def _note_obstacle(self, obstacle: str | None) -> None:
        failure = self._link.failure
        refusal = explained(self._access, failure) if failure else None
        self.not_admitted = refusal if isinstance(refusal, NotAdmitted) else None
        self._obstacle = obstacle or (str(refusal) if refusal else self._unexpected_peer())
        self._warn_unreachable()

    def _reconnect(self) -> None:
        """Replace this link by a new one, after a pause once every address was tried."""
        self._link.close()
        self._link = Link(self._context, self._wakeup.fd)
        self._connect_at = now = monotonic()
        if self._tries % len(self._families) == 0:
            self._connect_at = now + self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            # No pause after a good connection, a longer one after each try without a greeting.
            self._pause = min(self._longest_pause, max(_SHORTEST_PAUSE, 2 * self._pause))
        self.greeted = False
        self._answer_all(self.disconnect_error)
        self._role.disconnected()
        self._over = self._close_by is not None

    @property
    def _longest_pause(self) -> float:
        return _LONGEST_PAUSE_NOT_ADMITTED if self.not_admitted else _LONGEST_PAUSE

    def _try_next_address(self) -> None:
        """Try the host's other address, as nothing listens here; libzmq repeats a single one by itself."""
        self._tries += 1
        self._obstacle = self.not_admitted = None
        if self._tries % len(self._families) == 0:
            if not self._patient and not self.epoch:
                self._fail(Unavailable(self.obstacle))
                return
            self._warn_unreachable()
        if len(self._families) > 1:
            self._reconnect()

    def _warn_unreachable(self) -> None:
        if monotonic() >= self._warn_at:
            self._warn_at = monotonic() + _WARN_EACH
            why = self._obstacle or f"can't reach {self.endpoint}: is a broker running there?"
            self.post(log.warning, "%s", why)

    def _unexpected_peer(self) -> str | None:
        if not self._link.reached or self.greeted:
            return None
        what = "it does not greet as an SMQ/1 door (5550 by default)"
        if not self._link.handshaken:
            what = "hangs up before any greeting: a broker that has no connection left or wants a key,"
            what = f"{what} or no SMQ/1 door"
        return f"something answers at {self.endpoint}, but {what}"

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
        self.greeted = False
        error = self.failure or Unavailable(f"the connection to {self.endpoint} is closed")
        self._answer_all(error)
        self._role.ended(error)
        self._run_calls()
        self._link.close(_LINGER)
        self._context.term()
        self.post(self._ended.set)
        self._mailbox.close()


def _outcome(message: wire.Message, *, whole: bool) -> tuple[Any, SluiceError | None]:
    if message.verb == wire.OK:
        if whole:
            return message.fields, None
        return (message.fields[0] if message.fields else None), None
    code, text, detail = (*message.fields, "", "", "")[:3]
    return None, from_code(str(code), str(text), str(detail))


def _ignore(_value: Any, _error: SluiceError | None) -> None:
    """Ignore the answer to a PING, or to a request that nobody waits for."""


_NO_REQUEST = (_ignore, False)


def _ignore_signal(_number: int) -> None:
    """Ignore a signal."""
