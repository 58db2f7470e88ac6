"""The way from a connection's I/O thread into an event loop, and what waits there.

The I/O thread posts what it has to its mailbox, as in every process. Here that is the event loop: it runs
what was posted, all that has come in one wake-up. So the cores of producer, worker and client are those of
threads; only the waits are different.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from sluicemq.transport.native import run_posted

_T = TypeVar("_T")


class LoopMailbox:
    """Runs posted calls in the event loop in which it was made, in their order.

    Once the loop is closed they run at once, in the thread that posts: a producer is still flushed when the
    program ends.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._rung = False

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Have ``call(*args)`` run in the loop soon; from any thread."""
        self._posted.append((call, args))
        if not self._rung:
            self._rung = True
            try:
                self.loop.call_soon_threadsafe(self._deliver_all)
            except RuntimeError:  # the loop is closed
                self._deliver_all()
        elif self.loop.is_closed():
            self._deliver_all()

    def close(self) -> None:
        """Do nothing: the loop delivers the rest."""

    def abandon(self) -> None:
        """Deliver nothing in the child of a fork: the loop is the parent's."""
        self._posted.clear()
        self._rung = True

    def _deliver_all(self) -> None:
        self._rung = False
        while self._posted:
            with suppress(IndexError):  # another thread takes some: the loop is closed
                call, args = self._posted.popleft()
                run_posted(call, args)


class Event(Protocol):
    """An event of asyncio."""

    async def wait(self) -> Any:
        """Return once it is set."""


async def in_time(event: Event, timeout: float | None) -> bool:
    """Return whether an event is set within ``timeout`` seconds (None: without limit)."""
    if timeout is None:
        await event.wait()
        return True
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await event.wait()
            return True
    return False


def require(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Raise RuntimeError unless this loop is the one that runs here."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("no event loop runs here: call it from a coroutine") from None
    if here is not loop:
        state = "is closed" if loop.is_closed() else "runs elsewhere"
        raise RuntimeError(f"this {what} belongs to another event loop, which {state}: make one in each loop")


async def in_thread(function: Callable[..., _T], *args: Any) -> _T:
    """Run what blocks in a thread of its own; cancelled, it goes on there, and nobody waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(*args)
        except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, future, result, error)

    threading.Thread(target=run, name=f"sluicemq-{function.__name__}", daemon=True).start()
    return await future


async def disconnected(close: Callable[[float], Any]) -> None:
    """Close a connection; the close goes on if this wait is cancelled."""
    # Seconds that the broker has to hear of the end of a connection
    await in_thread(close, 1.0)


def resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
    """Set the outcome of a future, unless somebody has cancelled it."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Room:
    """Tasks that wait until there is room, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def crowded(self) -> bool:
        """Return whether tasks wait: others have to wait behind them."""
        return bool(self._waiting)

    async def wait(self, free: Callable[[], bool], timeout: float | None = None) -> bool:
        """Return once ``free()`` is true and all that waited before have gone; False after ``timeout``."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(timeout):
                while not (self._waiting[0] is mine and free()):
                    await mine
                    at = self._waiting.index(mine)
                    mine = self._waiting[at] = asyncio.get_running_loop().create_future()
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(mine)
            self.wake_first()
        return True

    def wake_first(self) -> None:
        """Have the first task look again."""
        if self._waiting:
            resolve(self._waiting[0], None)


class Noticed(threading.Condition):
    """A condition whose ``notify_all`` tasks notice, too."""

    def __init__(self, lock: Any, wake: Callable[[], None]) -> None:
        super().__init__(lock)
        self._wake = wake

    def notify_all(self) -> None:
        """Wake up threads and tasks."""
        super().notify_all()
        with suppress(RuntimeError):  # the loop is closed, and its tasks are gone
            self._wake()
