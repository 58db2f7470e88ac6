"""Common part of producer and publisher: waiting for room, for answers, and for the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from sluicemq import confirming
from sluicemq.aio.life import Life
from sluicemq.aio.loop import LoopMailbox, Noticed, Room, disconnected, in_time, require
from sluicemq.receipt import PublishReceipt as PublishReceiptOfThreads
from sluicemq.receipt import PushReceipt as PushReceiptOfThreads
from sluicemq.receipt import Receipt, late
from sluicemq.transport.replies import ResultReceipt as ResultReceiptOfThreads


class _AwaitedReceipt(Receipt):
    """Is awaited: for the broker's answer, without limit, or by ``wait`` for some seconds."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> Any:  # type: ignore[override]
        """Return once the broker has answered; raises its refusal, or :class:`~sluicemq.TimeoutError`.

        To cancel it ends this wait only: what was sent is on its way, and the receipt may be awaited again.
        """
        if not self.done:
            way: Any = self._connection
            require(way.mailbox.loop, "receipt")
            event: Any = self._event
            if event is None:
                event = self._event = asyncio.Event()  # type: ignore[assignment]
            if not await in_time(event, timeout):
                raise self._unconfirmed(timeout)
        self._raise_refusal()
        return self._answer

    def __await__(self) -> Generator[Any, None, Any]:
        return self.wait().__await__()

    @property
    def _answer(self) -> Any:
        return None


class PushReceipt(_AwaitedReceipt, PushReceiptOfThreads):  # type: ignore[misc]
    """One pushed job: its ``id`` at once, and, once it is awaited, that it is stored durably.

    ``await receipt`` raises the broker's error if it refused the job. ``existed``, ``state`` and ``position``
    are those of :class:`sluicemq.PushReceipt`.
    """

    __slots__ = ()


class ResultReceipt(PushReceipt, ResultReceiptOfThreads):  # type: ignore[misc]
    """The receipt of a job whose result is wanted."""

    __slots__ = ()


class PublishReceipt(_AwaitedReceipt, PublishReceiptOfThreads):  # type: ignore[misc]
    """One message on its way into a stream; ``await receipt`` returns its number, once it is durable."""

    __slots__ = ()

    @property
    def _answer(self) -> int:
        return self._sequence


R = TypeVar("R", bound=Receipt)


class InLoop(confirming.Confirming[R]):
    """Makes a producer or publisher of threads one that never blocks: its tasks wait for room."""

    _open_mailbox = staticmethod(LoopMailbox)

    def has_room(self, size: int) -> bool:
        """Return whether a message of this size may be sent now, or raise that it never may."""
        return not self.room.crowded and self._has_room(size)

    async def wait_for_room(self, size: int) -> None:
        """Return once a message of this size may be sent; raises a time-out."""

        def free() -> bool:
            return self._has_room(size) or self._closed or self._connection.failure is not None

        if not await self.room.wait(free, self._room_timeout):
            what = f"{self._unconfirmed} {self._things} are unconfirmed"
            raise late(f"{what}, no room after {self._room_timeout:g} s", self._connection.not_admitted)

    async def flushed(self, timeout: float | None) -> None:
        """Wait until nothing is unconfirmed, as ``flush`` does."""
        if not await self.flushes.wait(lambda: not self._unconfirmed, timeout):
            raise self._not_flushed(timeout)
        self._refusals.raise_unseen()

    async def left(self, timeout: float | None) -> None:
        """Flush and disconnect, as ``close`` does; cancelled, it disconnects at once."""
        if self._closed:
            return
        self._end_pushes()
        try:
            await self.flushed(self._close_timeout if timeout is None else timeout)
            self._ended_well = True
        finally:
            self._left = True
            await disconnected(self._connection.close)

    def _begin(self) -> None:
        self.room, self.flushes = Room(), Room()
        super()._begin()
        self._room = Noticed(self._lock, self._wake_waiting)

    def _wake_waiting(self) -> None:
        self.room.wake_first()
        self.flushes.wake_first()

    def _wait_for_room(self, size: int) -> None:
        """Do nothing: the task has waited; headers and jobs made meanwhile may go a little beyond."""

    def _free_when_run(self, count: int, size: int, run: Callable[..., None], *args: Any) -> None:
        """Have user code hear of it in the loop, and count."""
        try:
            run(*args)
        finally:
            self._free(count, size)


C = TypeVar("C", bound=InLoop[Any])


class Confirming(Life[C]):
    """The common part of both as the program has them."""

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._here.connected_to

    @property
    def unconfirmed(self) -> int:
        """Return how many messages are neither confirmed nor refused."""
        return self._here._unconfirmed

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is unconfirmed.

        Raises :class:`~sluicemq.TimeoutError` with the number of those that still are, and the first refusal
        that nobody has seen yet.
        """
        await self._here.flushed(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds (None: ``close_timeout``), then disconnect.

        Raises what ``flush`` raises. Cancelled, it disconnects at once: what is not confirmed by then may be
        stored or not.
        """
        if self._loop is not None:
            await self._here.left(timeout)
