"""One connection of a door, which speaks ZMTP itself: it is read in turns, and ended."""

from __future__ import annotations

import _socket
from collections.abc import Callable
from time import thread_time
from typing import Any, Generic, TypeVar

from gevent import get_hub, getcurrent

from sluicemq_devices.hub import (
    HEAVY,
    NEXT_TURN,
    Mishap,
    SpareTime,
    TimeUsed,
    TurnTime,
    Watermark,
    nothing,
    shielded,
    switch,
)
from sluicemq_devices.sockets.addresses import Address
from sluicemq_devices.sockets.arrivals import Arrivals
from sluicemq_devices.sockets.conduct import MOST_MALFORMED, MOST_UNHEARD, WITHIN, Conduct
from sluicemq_devices.sockets.guard import OPEN, Guard
from sluicemq_devices.sockets.incomplete import SMALL
from sluicemq_devices.sockets.kernel_state import half_close, has_left, unread
from sluicemq_devices.sockets.liveness import Life
from sluicemq_devices.sockets.sending import SendingHalf
from sluicemq_devices.sockets.switchboard import Switchboard
from sluicemq_devices.zmtp import PING, M, Peer

_READ = 1  # libev's EV_READ
_CHUNK = 65_536
_CROWDED = 8  # a turn is this many times shorter while others wait
#: Buffer for one read of a large frame; then others have their turn. A new buffer of that size for each
#: read would be taken from the system and given back each time.
_scratch = memoryview(bytearray(262_144))
_FEW = 4  # messages of a turn in spare time

_Made = TypeVar("_Made")


def _ignore(_messages: list[M]) -> None:
    pass


def _always() -> bool:
    return True


class Connection(SendingHalf, Generic[M]):
    """A ZeroMQ socket with one peer, whose end is seen and to which messages can be addressed.

    :meth:`on` sets the callbacks for its messages and its end. There is no greenlet, and a timer only while
    the connection is paused or has heartbeats.

    Messages to a PULL are handed over in any case, because their sender would not hear of a loss: while it is
    paused they stay in the kernel, also after the peer has left. A paused ROUTER ends with its peer: the
    requests that were not read have nobody to answer. Nor are many subscriptions of an XPUB's peer read after
    it has left.

    Bytes that the kernel has not taken count in the board's :class:`~sluicemq_devices.sockets.Outgoing`. A
    peer that gets answers (of a ROUTER, or with ``answers``) is not read while it leaves too much unread.

    With heartbeats, a peer that knows them is cut when it gives no sign of life for ``silence`` seconds.
    Others, and peers that must take messages first (:class:`~sluicemq_devices.sockets.arrivals.Arrivals`),
    are cut when their kernel acknowledges nothing for as many seconds.

    It is read in turns of some milliseconds, shorter ones while others wait, and light peers come first
    (:class:`~sluicemq_devices.hub.turn_time.TurnTime`). The receiver reports messages that it could not use
    (:meth:`blame`): such a peer is read in spare time, and cut if it sends little else.
    """

    _form: type[Peer[M]]
    _longest_turn: float
    """Seconds of a turn, about; messages beyond it wait for a later turn."""

    def __init__(
        self,
        socket: _socket.socket,
        peer: str,
        kind: str,
        opened: Callable[[Any], None],
        gone: Callable[[Any, str, str], None],
        *,
        max_frame: int,
        held: Watermark | None,
        heartbeat: float | None,
        silence: float | None,
        board: Switchboard,
        answers: bool = False,
        guard: Guard = OPEN,
        dials: bool = False,
    ) -> None:
        """``opened(self)``: its handshake is done. ``gone(self, kind, why)``: it is closed.

        ``kind``: the counter of the mishap that ended it, or empty; ``why``: a text for the log, or empty if
        it is worth no line. ``dials``: this end has dialled the peer. Call :meth:`start` then.
        """
        super().__init__(socket, board, held, answers=answers or kind == "ROUTER")
        self.peer = peer
        self.who: Any = None
        """Identity of the peer, as the door's guard says; set before ``opened``."""
        self._guard = guard
        self._dials = dials
        self._on_receive: Callable[[list[M]], None] = _ignore
        self._on_closed: Callable[[], None] = nothing
        self._takes_large: Callable[[], bool] = _always
        self.cut_for = ""
        """Why this end has cut the connection; empty if it has not."""
        self.received = 0
        """Number of messages handed over so far."""
        self._opened = opened
        self._gone = gone
        self._is_open = self._awaits_decision = False
        self._refused = ""  # why it did not get in
        self._deserted = False  # the peer has gone
        self._is_router = kind == "ROUTER"
        self._keeps_all = kind == "PULL"
        self._only_asks = kind == "XPUB"
        self._unfinished = board.unfinished
        self._counted = 0  # bytes of an incomplete message that are counted there
        self._paused_by: set[object] = set()
        self._turn_time = board.turn_time
        self._stranger: Address | None = None  # of a client, until its handshake is done
        self._waits = False  # for its turn, or for spare time
        self._time_used = TimeUsed()
        self.conduct = Conduct(MOST_UNHEARD if kind == "PULL" else MOST_MALFORMED)
        self._returned: list[M] = []
        self.zmtp = self._form(kind, max_frame, self.say, guard, dials=dials)
        self._arrivals: Arrivals | None = None
        self.life = Life(self, socket, self.zmtp, heartbeat, silence)
        self._make_watchers(socket.fileno())

    def _make_watchers(self, file: int) -> None:
        loop = get_hub().loop
        self._reader = loop.io(file, _READ)
        self._turn = loop.timer(NEXT_TURN)

    def start(self, handshake: float) -> None:
        """Begin the handshake, which may take ``handshake`` seconds."""
        if not self._dials:
            self._stranger = self._board.addresses.begin(self)
        self.life.begin_handshake(handshake)
        self.zmtp.greet()
        self._watch()

    def on(
        self,
        *,
        receive: Callable[[list[M]], None] | None = None,
        closed: Callable[[], None] | None = None,
        blocked: Callable[[], None] | None = None,
        unblocked: Callable[[], None] | None = None,
        large: Callable[[], bool] | None = None,
    ) -> None:
        """Set callbacks; None leaves one as it is. They run on the hub and must not block.

        ``receive(messages)``: messages came. ``closed()``, once: the connection has ended, and all that the
        peer sent was received. ``blocked()``: it takes no more, ``unblocked()``: it does again. ``large()``:
        whether more of a large message that has begun is read now; it pauses the connection if not.
        """
        if receive is not None:  # it may be a container, which is false while it is empty
            self._on_receive = receive
        if closed is not None:
            self._on_closed = closed
        if blocked is not None:
            self._on_blocked = blocked
        if unblocked is not None:
            self._on_unblocked = unblocked
        if large is not None:
            self._takes_large = large

    @property
    def reading(self) -> bool:
        """True while reading is not paused."""
        return not self._paused_by

    @property
    def awaits_arrival(self) -> bool:
        """True while a PONG is awaited that the peer may have no room to send: its silence means nothing."""
        return self._arrivals is not None and self._arrivals.awaits_pong

    @property
    def leaves_much(self) -> bool:
        """True if the peer has left and more of its messages are unread than a few turns take."""
        return self._time_used.level == HEAVY and self.peer_has_left

    def gave_sign_of_life(self) -> bool:
        """True if the peer has sent or taken bytes since the last call, or could not because it is not read.

        For protocols with heartbeats in messages of their own, which wait behind a large message.
        """
        return self.life.gave_sign(is_read=self.reading)

    def ask_for_sign_of_life(self) -> None:
        """Send a PING of ZMTP, which the peer's ZeroMQ answers by itself, if it knows it."""
        if self._is_open and self.zmtp.knows_ping:
            self.say(PING)

    def take_back(self, messages: list[M]) -> None:
        """Take back the last messages that were handed over; they come again first when there is room."""
        self._returned = messages
        self.received -= len(messages)

    def pause(self, by: object = None) -> None:
        """Stop reading this connection; with heartbeats, one paused for ``silence`` is ended.

        ``by``: who has the reason; it is read again when all of these have resumed.
        """
        self._paused_by.add(by)
        self._watch()

    def resume(self, by: object = None) -> None:
        """Read again, unless another reason to pause is left."""
        if self._paused_by:
            self._paused_by.discard(by)
            self._watch()

    def work(self, step: Callable[[], _Made]) -> _Made:
        """Return what ``step()`` does, called in a greenlet when it is this peer's turn; it must not wait.

        Its time counts as the time to read the peer does: who has much made for it waits longer for the next.
        """
        time = self._time
        if time.is_over:
            time.wait(getcurrent().switch, self._time_used)
            get_hub().switch()
        began = thread_time()
        try:
            return step()
        finally:
            self._time_used.used(thread_time() - began, more=True)

    def blame(self, *, malformed: bool = True) -> None:
        """Note that a message being handed over can't be used; ``malformed`` False: it can't be used now."""
        self.conduct.blame(malformed=malformed)

    def close(self) -> None:
        """Flush what was sent (about a second at most), then end the connection; return at once.

        Messages that the peer sends until it sees the end are still handed over, unless it is paused.
        """
        if self._closing:
            return
        if not self._is_open:
            self._end()
            return
        self._closing = True
        shielded(self._on_blocked)
        self.life.after(self._board.flush, self._end)
        if not self._outbox:
            half_close(self._socket)
        self._watch()

    def cut(self, why: str) -> None:
        """End the connection at once, and log the reason."""
        self.cut_for = why
        self._end(Mishap.CONNECTIONS_CUT, why)

    def give_way(self, why: str) -> None:
        """End the connection, whose handshake is not done: another one needs its place."""
        self._end(Mishap.HANDSHAKES_ENDED, why)

    def stalled(self, why: str) -> None:
        """End the connection with this reason, unless bytes have arrived that were not read yet."""
        if not unread(self._socket):
            self.cut(why)

    def look_for_its_end(self) -> bool:
        """True if the peer has left; what it sent before is read, or the connection has ended."""
        if not has_left(self._socket):
            return False
        if self._is_router:
            self._drop_unread()
        else:
            self._deserted = True
            self._drop_answers()
            self._watch()
        return True

    # --------------------------------------------------------------- reading

    def _readable(self) -> None:
        if not (self._counted or self.zmtp.missing) or self._may_receive:
            self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read now, or when its turn comes."""
        if not (self._stranger or self.conduct.is_bad or self._turn_time.is_over):
            self._timed(self._read)
            return
        time = self._time
        if time.is_over or self._turn_time.is_over:
            self._waits = True
            self._watch()
            time.wait(self._its_turn, self._time_used)
        else:
            self._timed(self._read)
            self._board.strangers_time.used(self._time_used.latest)

    @property
    def _time(self) -> SpareTime | TurnTime:
        """The time in which it is read: that of strangers until it is known, spare time if it is bad."""
        if self.conduct.is_bad or (self._stranger and self._stranger.fails_often):
            return self._board.spare
        return self._board.strangers_time if self._stranger else self._turn_time

    def _take_behind(self) -> list[M]:
        returned, self._returned = self._returned, []
        return returned or self.zmtp.take()

    @property
    def _is_behind(self) -> bool:
        """True if messages were read and not handed over yet."""
        return self.zmtp.behind or bool(self._returned)

    def _its_turn(self) -> None:
        self._waits = False
        if self._ended:
            return
        if self._only_asks and self.leaves_much:
            self._left()
        elif self._is_read and (self._is_behind or self._may_receive):
            self._timed(self._read)
        self._watch()

    @property
    def _may_receive(self) -> bool:
        """False if a large message is incomplete and its rest is not taken, or has no memory, now."""
        if not (self.reading and (self._counted or self.zmtp.missing)):
            return True
        if not self._takes_large():
            self._unfinished.set_aside(self)
            return False
        return not self._counted or self._unfinished.may_read(self)

    def _read(self) -> bool:
        """Hand over what was read before, or read more; True if a full read came, so there may be more."""
        if not (self.zmtp.behind or self._returned):
            return self._receive()
        self._deliver(self._take_behind())
        return False

    def _timed(self, read: Callable[[], bool]) -> None:
        """Read a piece; the time that it takes decides how much is read at once the next time."""
        zmtp = self.zmtp
        before, began = self.received, thread_time()
        more = read()
        took = thread_time() - began
        self._time_used.used(took, more=more or zmtp.behind or bool(self._returned))
        if self.received != before or zmtp.idle:
            crowded = self._turn_time.is_crowded
            zmtp.pace(took, self._longest_turn / _CROWDED if crowded else self._longest_turn)
            if self.conduct.is_bad:
                zmtp.most = min(zmtp.most, _FEW)

    def _receive(self) -> bool:
        """Read from the socket; True if that was a full read."""
        zmtp = self.zmtp
        data: bytes | memoryview
        try:
            if zmtp.missing:
                data = _scratch[: self._socket.recv_into(_scratch[: zmtp.missing])]
            else:
                data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._left()
            return False
        if self._refused:  # nobody reads what it says
            return False
        self.life.alive = True
        self._deliver(zmtp.take(data) if isinstance(data, bytes) else zmtp.take_of_large(data))
        return len(data) >= _CHUNK

    def _deliver(self, messages: list[M]) -> None:
        zmtp = self.zmtp
        if not self._is_open:
            self._get_in()
        if messages and not (self._closing and self._paused_by):
            self._hand_over(messages)
        if zmtp.unfinished > SMALL or self._counted:
            self._count(zmtp.unfinished)
        if zmtp.idle:
            self.conduct.idle()
        if zmtp.error:
            self._end(Mishap.HANDSHAKES_FAILED if zmtp.has_failed else Mishap.CONNECTIONS_CUT, zmtp.error)
        elif self._is_behind or not self._reader.active:
            self._watch()

    def _hand_over(self, messages: list[M]) -> None:
        self.received += len(messages)
        shielded(self._on_receive, messages)
        self.conduct.judge(len(messages) - len(self._returned))
        if self.conduct.is_over:
            most = self.conduct.most
            self.cut(f"{most} messages within {WITHIN:.0f} s that can't be used, and little else")

    def _count(self, size: int) -> None:
        """Count the memory of an incomplete message beyond its first bytes; this may pause the connection."""
        counted = 0 if self._ended else max(0, size - SMALL)
        if counted != self._counted:
            self._counted = counted
            self._unfinished.hold(self, counted)

    def _left(self) -> None:
        """Handle the end that the peer has made; during its handshake it is logged."""
        if self._is_open:
            self._end()
            return
        if self._refused:
            self._end(Mishap.HANDSHAKES_REFUSED, self._refused)
            return
        offered = self.zmtp.offered
        self._end(Mishap.HANDSHAKES_FAILED, offered and f"it left within its handshake, after {offered}")

    def _get_in(self) -> None:
        """Have the guard decide about a peer that has shown who it is; open a connection that is through."""
        credentials = self.zmtp.credentials
        if self.zmtp.ready:
            self._open()
        elif credentials and not self._awaits_decision:
            self._awaits_decision = True
            shielded(self._guard.admit, credentials, self.peer, self._decide)
            self._watch()

    def _decide(self, who: Any, why: str, *, for_now: bool = False) -> None:
        """Go on with the handshake as the guard has decided, and with what has come meanwhile."""
        if not self._awaits_decision or self._ended:
            return
        self._awaits_decision = False
        self.who = who
        if for_now:
            self._end(Mishap.HANDSHAKES_REFUSED, why)
            return
        self.zmtp.decide(why)
        if why:
            self._refuse(why)
        else:
            self._deliver(self.zmtp.take())

    def _refuse(self, why: str) -> None:
        """End the connection once the peer has read that it is refused, in about a second at most."""
        self._refused = why
        self._closing = True
        self.life.after(self._board.flush, self._left)
        if not self._outbox:
            half_close(self._socket)
        self._watch()

    def _open(self) -> None:
        self._is_open = True
        self._shook_hands()
        if self.zmtp.traffic:
            self._seal(self.zmtp.traffic)
        self.life.end_handshake()
        shielded(self._opened, self)
        self._watch()

    def _shook_hands(self, *, failed: bool = False) -> None:
        """Count the end of its handshake."""
        stranger, self._stranger = self._stranger, None
        if stranger:
            self._board.addresses.end(stranger, self)
            if failed:
                stranger.failed()

    def _watch(self) -> None:
        """Watch the socket for reading, or stop that, as the state says."""
        if self._ended:
            return
        allowed = self._is_read
        behind = self._is_behind
        switch(self._turn, self._read_or_wait, on=allowed and behind and not self._waits)
        switch(self._reader, self._readable, on=allowed and not (behind or self._waits))
        if not (allowed or self._keeps_all):
            self.life.look_every(self._board.glance)

    @property
    def _is_read(self) -> bool:
        """True if it is read: also while paused, during its handshake and at its end.

        Not there while paused by who has given messages back, and would do so again.
        """
        return not self._awaits_decision and (
            self.reading
            or not self._is_open
            or (self._at_its_end and not (self._keeps_all or self._returned))
        )

    @property
    def _at_its_end(self) -> bool:
        return self._closing or self._deserted

    def _sent_some(self) -> None:
        self.life.alive = True

    def _takes_nothing(self) -> None:
        self._deserted = not self._is_router  # a paused ROUTER ends at the next glance
        self._drop_answers()
        self._watch()

    # ------------------------------------------------------------------- end

    def _drop_unread(self) -> None:
        count = unread(self._socket)
        if count or self._is_behind:
            self.cut(f"it has left while it was not read: of what it sent, {count} bytes or more are dropped")
        else:
            self._end()

    def _hand_over_the_rest(self, kind: str, why: str) -> None:
        """Hand over in turns what was read, which the peer will not send again; then end."""
        self._closing = self._waits = True  # the socket is not read any more
        shielded(self._on_blocked)
        self._writer.stop()
        self.life.stop()
        self._watch()

        def turn() -> None:
            self._timed(self._read_the_rest)
            self._end(kind, why)

        self._turn_time.wait(turn, self._time_used)

    def _read_the_rest(self) -> bool:
        self._hand_over(self.zmtp.take())
        return False

    def _end(self, kind: str = "", why: str = "") -> None:
        if self._ended:
            return
        if self._keeps_all and self.zmtp.behind and not self.conduct.is_over:
            self._hand_over_the_rest(kind, why)
            return
        self._ended = self._closing = True
        for watcher in (self._reader, self._writer, self._turn):
            watcher.stop()
            watcher.close()
        if self._arrivals:
            self._arrivals.stop()
        self._socket.close()
        self._shook_hands(failed=bool(kind) and kind != Mishap.HANDSHAKES_ENDED)
        self._count(0)
        self._gone(self, kind, why)
        if self._is_open:
            shielded(self._on_closed)
        # Frees what may be megabytes, and leaves no cycle: to look for cycles takes Python a tenth of a
        # second in a device with very many topics.
        self._end_sending()
        self._returned = []
        self.zmtp.forget()
        self.life.forget()
        self._arrivals = None
        self._on_receive, self._on_closed, self._takes_large = _ignore, nothing, _always
