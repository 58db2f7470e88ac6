"""Common part of producer and publisher: a window of unconfirmed messages, and refusals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from sluicemq import forks
from sluicemq.arguments import checked
from sluicemq.aside import refuse_to_wait
from sluicemq.complaints import complain, log
from sluicemq.handlers import check_callback
from sluicemq.life import LongLived
from sluicemq.protocol.errors import SluiceError
from sluicemq.receipt import Receipt, late
from sluicemq.transport import exits, native
from sluicemq.transport.access import Access
from sluicemq.transport.candidates import STAYS
from sluicemq.transport.connection import Connection

R = TypeVar("R", bound=Receipt)


@checked()
class Confirming(LongLived, Generic[R]):
    """Sends over one connection, which each process has for itself; ``window`` bounds what is unconfirmed.

    A subclass creates its role in :meth:`_begin`, counts what it sends (:meth:`_count`, once there is room),
    and reports each outcome: :meth:`_free`, or :meth:`_free_when_run` where user code hears of it.
    """

    #: Nouns and verb of messages: what is sent, how, and by whom.
    _things: ClassVar[str]
    _verb: ClassVar[str]
    _who: ClassVar[str]

    _open_mailbox = staticmethod(native.open_mailbox)

    def __init__(
        self,
        broker: Access,
        window: int,
        window_bytes: int,
        room_timeout: float | None,
        close_timeout: float,
        on_refused: Callable[[R, SluiceError], None] | None,
    ) -> None:
        """``room_timeout``: seconds to wait for room, at most; None: without limit."""
        self._access = broker
        self._window, self._window_bytes = window, window_bytes
        self._room_timeout, self._close_timeout = room_timeout, close_timeout
        check_callback("on_refused", on_refused)
        self._on_refused = on_refused
        self._closed = self._ended_well = False
        self._stop_asked = threading.Event()
        self._left = False
        """Closed for callbacks too: until then these may push on, and are waited for."""
        self._begin()
        self._connection.start()
        exits.close_at_exit(self)
        forks.on_fork(self, Confirming._forked)

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._connection.connected_to

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is unconfirmed.

        Raises :class:`~sluicemq.TimeoutError` with the number of those that still are. Raises the first
        refusal that nobody has seen yet, with the number of such refusals. ``on_refused`` has been called
        then for each refusal, unless this is called by it.
        """
        refuse_to_wait("flush")
        with self._room:
            if not self._room.wait_for(lambda: not self._open.number, timeout):
                raise self._not_flushed(timeout)
        self._refusals.raise_unseen()

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds (None: ``close_timeout``), then disconnect.

        Raises what ``flush`` raises; the connection is closed in any case. May be called again.
        """
        if self._closed:
            return
        self._end_pushes()
        try:
            self.flush(self._close_timeout if timeout is None else timeout)
            self._ended_well = True
        finally:
            with self._lock:
                self._left = True
            self._connection.close()

    def stop(self, timeout: float | None = None) -> bool:
        """Close; False if something was not confirmed in time, or refused and nobody has seen it."""
        try:
            self.close(timeout)
        except SluiceError as unkept:
            log.warning("a %s was stopped: %s", self._who, unkept)
        return self._ended_well

    # --------------------------------------------------------- for the subclass

    def _begin(self) -> None:
        """Create all that belongs to one process; the subclass adds its role and calls :meth:`_connect`."""
        self._refusals: Refusals[R] = Refusals(self._things, self._named)
        self._unconfirmed = self._unconfirmed_bytes = 0
        self._unheard = _Amount(0, 0)
        """Answered, and counted until user code has heard of it: a slow callback slows the pushes down."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)

    def _connect(self, role: Any) -> None:
        self._connection = Connection(
            self._access, role, repeats=True, stays=STAYS, open_mailbox=self._open_mailbox
        )
        role.attach(self._connection)

    def _end_pushes(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify_all()  # threads that wait for room raise now
        self._stop_asked.set()

    def _not_flushed(self, timeout: float | None) -> SluiceError:
        what = f"{self._unconfirmed} {self._things} are not confirmed after {timeout:g} s"
        return late(what, self._connection.not_admitted)

    def _named(self, receipt: R) -> str:
        """Return the name of a receipt, for people."""
        raise NotImplementedError

    def _count(self, size: int) -> None:
        """Count one more unconfirmed, of ``size`` bytes; raises the error that ended this object."""
        closed = self._left or (self._closed and not self._connection.in_callback)
        if closed or self._connection.failure:
            raise self._connection.failure or ValueError(f"{self._verb} to a closed {self._who}")
        self._unconfirmed += 1
        self._unconfirmed_bytes += size

    @property
    def _open(self) -> _Amount:
        """Return what a caller waits for; a callback does not wait for those behind it."""
        unconfirmed = _Amount(self._unconfirmed, self._unconfirmed_bytes)
        return unconfirmed.less(*self._unheard) if self._connection.in_callback else unconfirmed

    def _has_room(self, size: int) -> bool:
        if self._unconfirmed == 0:
            return True  # or something larger than the window would wait for ever
        if self._unconfirmed < self._window and self._unconfirmed_bytes + size <= self._window_bytes:
            return True
        number, open_bytes = self._open
        return not number or (number < self._window and open_bytes + size <= self._window_bytes)

    def _wait_for_room(self, size: int) -> None:
        def free() -> bool:
            return self._has_room(size) or self._closed or self._connection.failure is not None

        refuse_to_wait(self._verb)
        if not self._room.wait_for(free, self._room_timeout):
            what = f"{self._unconfirmed} {self._things} are unconfirmed"
            raise late(f"{what}, no room after {self._room_timeout:g} s", self._connection.not_admitted)

    def _add_refusal(self, receipt: R, error: SluiceError) -> bool:
        """Keep a refusal; return whether ``on_refused`` is to hear of it."""
        receipt._seen = receipt._seen or self._on_refused is not None
        self._refusals.add(receipt, error)
        return self._on_refused is not None

    def _refuse(self, receipt: R, error: SluiceError) -> None:
        """Report a refusal to ``on_refused``; in the thread of callbacks."""
        if self._on_refused is None:
            return
        try:
            self._on_refused(receipt, error)
        except BaseException:  # noqa: BLE001 - others must get their reports nevertheless
            complain("on_refused failed: %s", self._named(receipt), level=logging.ERROR)

    def _free_when_run(self, count: int, size: int, run: Callable[..., None], *args: Any) -> None:
        """Count as :meth:`_free` does, once user code, which ``run(*args)`` calls, has heard of it."""

        def run_and_free() -> None:
            try:
                run(*args)
            finally:
                with self._lock:
                    self._unheard = self._unheard.less(count, size)
                self._free(count, size)

        with self._lock:
            self._unheard = self._unheard.less(-count, -size)
            self._room.notify_all()  # a callback may wait for room
        self._connection.call_back(run_and_free)

    def _free(self, count: int, size: int) -> None:
        """Count ``count`` as confirmed or refused, of ``size`` bytes together."""
        with self._lock:
            self._unconfirmed -= count
            self._unconfirmed_bytes -= size
            if self._roomy():
                self._room.notify_all()

    def _roomy(self) -> bool:
        """Return whether it is worth waking waiting threads: not for every few of a full window."""
        number, size = self._unconfirmed - self._unheard.number, self._unconfirmed_bytes - self._unheard.size
        return number <= self._window * 3 // 4 and size <= self._window_bytes * 3 // 4

    def _forked(self) -> None:
        self._connection.abandon()
        self._begin()
        self._connection.start_when_used(partial(exits.close_at_exit, self))


class _Amount(NamedTuple):
    """A number of messages, and their bytes."""

    number: int
    size: int

    def less(self, number: int, size: int) -> _Amount:
        """Return the rest."""
        return _Amount(self.number - number, self.size - size)


class Refusals(Generic[R]):
    """Counts refusals, and keeps the first ones until somebody has seen them."""

    def __init__(self, things: str, named: Callable[[R], str]) -> None:
        self.count = 0
        self._things = things
        self._named = named
        self._kept: list[tuple[R, SluiceError]] = []
        self._beyond = 0

    def add(self, receipt: R, error: SluiceError) -> None:
        """Count a refusal."""
        self.count += 1
        if self.count & (self.count - 1) == 0:  # 1, 2, 4, 8, ...: seen in the log without flooding it
            log.warning(
                "%d %s refused, the last: %s: %s", self.count, self._things, self._named(receipt), error
            )
        if len(self._kept) < 1000:
            self._kept.append((receipt, error))
        else:
            self._beyond += 1

    def raise_unseen(self) -> None:
        """Raise the first refusal that nobody has seen, if there is one."""
        kept, self._kept = self._kept, []
        beyond, self._beyond = self._beyond, 0
        unseen = [(receipt, error) for receipt, error in kept if not receipt._seen]
        if unseen:
            first, error = unseen[0]
            count = len(unseen) + beyond
            what = f"{count} {self._things} were refused, the first: {self._named(first)}"
            raised = type(error)(f"{what}: {error}")
            vars(raised).update(vars(error))  # the id in a Duplicate, where it ends in a Conflict
            raise raised from error
