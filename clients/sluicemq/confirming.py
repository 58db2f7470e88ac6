"""What a producer and a publisher share: a window of what is unconfirmed, refusals, and how they end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from sluicemq import forks
from sluicemq.arguments import checked
from sluicemq.complaints import complain, log
from sluicemq.protocol.errors import SluiceError, Timeout
from sluicemq.transport import exits
from sluicemq.transport.connection import Connection

_REFUSALS_KEPT = 1000


class Sent(Protocol):
    """A receipt: of what was sent, until it is confirmed."""

    seen: bool
    """True if somebody was told of its refusal."""


R = TypeVar("R", bound=Sent)


@checked()
class Confirming(Generic[R]):
    """Sends over one connection, of its own in each process; ``window`` bounds what is unconfirmed.

    A subclass begins its role in :meth:`_begin`, counts what it sends (:meth:`_count`, once there is room),
    and tells what became of it (:meth:`_refuse`, :meth:`_free`).
    """

    #: What is sent, what doing so is called, and who does it.
    _things: ClassVar[str]
    _verb: ClassVar[str]
    _who: ClassVar[str]

    def __init__(
        self,
        endpoint: str | None,
        window: int,
        window_bytes: int,
        room_timeout: float | None,
        close_timeout: float,
        on_refused: Callable[[R, SluiceError], None] | None,
    ) -> None:
        """``room_timeout``: seconds that one waits for room, at most; None: as long as it takes."""
        self._endpoint = endpoint
        self._window, self._window_bytes = window, window_bytes
        self._room_timeout, self._close_timeout = room_timeout, close_timeout
        self._on_refused = on_refused
        self._closed = False
        self._begin()
        self._connection.start()
        exits.close_at_exit(self)
        forks.on_fork(self, Confirming._forked)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is unconfirmed.

        Raises :class:`~sluicemq.Timeout` naming how much still is; and if something was refused of which
        nobody has heard yet, the error of the first, naming how many.
        """
        with self._room:
            if not self._room.wait_for(lambda: not self._unconfirmed, timeout):
                raise Timeout(f"{self._unconfirmed} {self._things} are not confirmed after {timeout:g} s")
        self._refusals.raise_unseen()

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds (None: ``close_timeout``), then end the connection.

        Raises what ``flush`` raises; the connection is closed in any case. Again is harmless.
        """
        if self._closed:
            return
        with self._room:
            self._closed = True
            self._room.notify_all()  # who waits for room is told now
        try:
            self.flush(self._close_timeout if timeout is None else timeout)
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SluiceError as unkept:
            if error is None:
                raise
            log.error("while leaving a %s's block: %s", self._who, unkept)

    # --------------------------------------------------------- for the subclass

    def _begin(self) -> None:
        """All that belongs to one process; the subclass goes on with its role and :meth:`_connect`."""
        self._refusals: Refusals[R] = Refusals(self._things, self._named)
        self._unconfirmed = self._unconfirmed_bytes = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)

    def _connect(self, role: Any) -> None:
        self._connection = Connection(self._endpoint, role)
        role.attach(self._connection)

    def _named(self, receipt: R) -> str:
        """What a receipt is of, for people."""
        raise NotImplementedError

    def _count(self, size: int) -> None:
        """One more is unconfirmed, of so many bytes; raises what ended this one."""
        if self._closed or self._connection.failure:
            raise self._connection.failure or ValueError(f"{self._verb} to a closed {self._who}")
        self._unconfirmed += 1
        self._unconfirmed_bytes += size

    def _has_room(self, size: int) -> bool:
        if self._unconfirmed == 0:
            return True  # or what is larger than the window would wait for ever
        return self._unconfirmed < self._window and self._unconfirmed_bytes + size <= self._window_bytes

    def _wait_for_room(self, size: int) -> None:
        def free() -> bool:
            return self._has_room(size) or self._closed or self._connection.failure is not None

        if not self._room.wait_for(free, self._room_timeout):
            what = f"{self._unconfirmed} {self._things} are unconfirmed"
            raise Timeout(f"{what}, no room after {self._room_timeout:g} s")

    def _refuse(self, receipt: R, error: SluiceError) -> None:
        """Tell whoever wants to hear that one was refused."""
        if self._on_refused is None:
            return
        receipt.seen = True
        try:
            self._on_refused(receipt, error)
        except BaseException:  # noqa: BLE001 - the others must be told all the same
            complain("on_refused failed: %s", self._named(receipt), level=logging.ERROR)

    def _free(self, count: int, size: int) -> None:
        """So many, of so many bytes together, are confirmed or refused."""
        with self._lock:
            self._unconfirmed -= count
            self._unconfirmed_bytes -= size
            if self._roomy():
                self._room.notify_all()

    def _roomy(self) -> bool:
        """True if it is worth waking those who wait: not for every few of a full window."""
        return (
            self._unconfirmed <= self._window * 3 // 4
            and self._unconfirmed_bytes <= self._window_bytes * 3 // 4
        )

    def _forked(self) -> None:
        self._connection.abandon()
        self._begin()
        self._connection.start_when_used(partial(exits.close_at_exit, self))


class Refusals(Generic[R]):
    """Counts what was refused, and keeps the first of it until somebody has heard of it."""

    def __init__(self, things: str, named: Callable[[R], str]) -> None:
        self.count = 0
        self._things = things
        self._named = named
        self._kept: list[tuple[R, SluiceError]] = []
        self._beyond = 0

    def add(self, receipt: R, error: SluiceError) -> None:
        """One was refused."""
        self.count += 1
        if self.count & (self.count - 1) == 0:  # 1, 2, 4, 8, ...: seen in the log, never flooding it
            log.warning(
                "%d %s refused, the last: %s: %s", self.count, self._things, self._named(receipt), error
            )
        if len(self._kept) < _REFUSALS_KEPT:
            self._kept.append((receipt, error))
        else:
            self._beyond += 1

    def raise_unseen(self) -> None:
        """Raise the error of the first of which nobody has heard, if there is one."""
        kept, self._kept = self._kept, []
        beyond, self._beyond = self._beyond, 0
        unseen = [(receipt, error) for receipt, error in kept if not receipt.seen]
        if unseen:
            first, error = unseen[0]
            count = len(unseen) + beyond
            what = f"{count} {self._things} were refused, the first: {self._named(first)}"
            raised = type(error)(f"{what}: {error}")
            vars(raised).update(vars(error))  # the id in a Duplicate, where it ends in a Conflict
            raise raised from error
