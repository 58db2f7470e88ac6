"""Life of an object that belongs to one event loop: ``async with``, start, stop and close."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

from sluicemq.aio.loop import require
from sluicemq.complaints import log
from sluicemq.protocol.errors import SluiceError
from sluicemq.transport.access import Access

Core = TypeVar("Core")


class Life(Generic[Core]):
    """Is started once, in the event loop to which it belongs from then on, and lives until it is closed.

    ``core``: does the work, with the classes of the library for threads; a subclass makes it.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _core: Core
    _make: Callable[..., Core]
    _access: Callable[[], Access]

    async def start(self) -> Self:
        """Begin, without waiting for the broker; raises RuntimeError if it was started before."""
        if self._loop is not None:
            raise RuntimeError(f"this {self._what} was started before: make a new one")
        loop = asyncio.get_running_loop()
        self._core = self._made()
        self._loop = loop
        return self

    async def stop(self, timeout: float | None = None) -> bool:
        """Close; False if something is left undone. Does not raise that."""
        try:
            await self.close(timeout)
        except SluiceError as undone:
            log.warning("a %s was stopped: %s", self._what, undone)
            return False
        return True

    async def close(self, timeout: float | None = None) -> None:
        """End in order, within ``timeout`` seconds, and raise what was left undone; may be called again."""
        raise NotImplementedError

    def _made(self) -> Core:
        """Return its core, in the event loop that it belongs to."""
        return self._make(endpoint=self._access())

    @property
    def _here(self) -> Core:
        """Return its core; raises RuntimeError before the start, and in another event loop."""
        loop = self._loop
        if loop is None:
            raise RuntimeError(f"this {self._what} is not started: use 'async with', or await start() first")
        require(loop, self._what)
        return self._core

    @property
    def _what(self) -> str:
        return type(self).__name__.lower()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            await self.close()
        except Exception as left:
            if error is None:
                raise
            log.error("while leaving a %s's block: %s", self._what, left)


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT call ``stop`` in the event loop, during the block, in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
