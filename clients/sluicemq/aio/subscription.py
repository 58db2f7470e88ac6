"""Subscriptions for asyncio: holds and watermarks are in a thread, handlers in the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Unpack

from sluicemq import subscription
from sluicemq.aio.life import Life, stop_signals
from sluicemq.aio.loop import in_thread
from sluicemq.arguments import checked
from sluicemq.protocol.errors import GapError
from sluicemq.start import OLDEST, StartArgument
from sluicemq.subscription import UPDATE, Batch
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions


class _Core(subscription.Subscription):
    """A subscription of threads, which waits for what its functions begin in the event loop."""

    def __init__(self, stream: str, name: str, handler: Callable[[Batch], Any], **given: Any) -> None:
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._running: Future[Any] | None = None
        functions = {option: self._in_loop(given.pop(option)) for option in ("on_restart", "position")}
        super().__init__(stream, name, self._in_loop(handler), **functions, **given)
        self.start()
        self.ended = self._loop.create_task(in_thread(self.join), name=f"sluicemq-{name}")

    async def stopped(self, timeout: float | None) -> bool:
        """Stop behind the current batch; cancelled, its handler is cancelled at once."""
        self._stop_asked.set()
        if self._stop_asked_inside:
            return False
        try:
            await asyncio.wait([self.ended], timeout=timeout)
        except asyncio.CancelledError:
            if self._running is not None:
                self._running.cancel()
            raise
        return self.ended.done()

    @property
    def _stop_asked_inside(self) -> bool:
        return _within.get(None) is self

    def _in_loop(self, function: Callable[..., Any] | None) -> Any:
        """Return what calls a function, and waits for what that begins in the loop."""
        if function is None:
            return None

        @wraps(function)
        def call(*args: Any) -> Any:
            begun = function(*args)
            return self._awaited(begun) if inspect.iscoroutine(begun) else begun

        return call

    def _awaited(self, coroutine: Any) -> Any:
        context = self._context.copy()
        context.run(_within.set, self)
        try:
            self._running = context.run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            self._stop_asked.set()
            raise
        try:
            return self._running.result()
        finally:
            self._running = None


_within: contextvars.ContextVar[_Core] = contextvars.ContextVar("sluicemq subscription")


@checked()
class Subscription(Life[_Core]):
    """Gives the messages of a stream to ``await handler(batch)``, one batch after the other.

    Arguments, guarantees and errors are those of :class:`sluicemq.Subscription`. ``handler``, ``on_restart``
    and ``position`` are each an ``async def``, which runs in the event loop, or a plain function, which runs
    in the subscription's thread, as ``on_gap`` does.

    ``async with``, or ``await subscription.run()``. A stop waits for the handler of the current batch. If the
    stop is cancelled, so is the handler, and the batch comes again to the next holder.
    """

    def __init__(
        self,
        stream: str,
        name: str,
        handler: Callable[[Batch], Awaitable[Any] | Any],
        *,
        kind: str = UPDATE,
        batch: int = 100,
        topics: Iterable[str | bytes] = (),
        start: StartArgument = OLDEST,
        restart: StartArgument | None = None,
        on_restart: Callable[[int], Any] | None = None,
        position: Callable[[], Any] | None = None,
        follow: bool = True,
        wait: bool = True,
        on_gap: Callable[[GapError], None] | None = None,
        timeout: float = 10.0,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        if not callable(handler):
            raise TypeError(f"a handler is called with each batch; {type(handler).__name__} can't be called")
        self._make = partial(
            _Core,
            stream,
            name,
            handler,
            kind=kind,
            batch=batch,
            topics=topics,
            start=start,
            restart=restart,
            on_restart=on_restart,
            position=position,
            follow=follow,
            wait=wait,
            on_gap=on_gap,
            timeout=timeout,
        )
        self._access = Access.at_start(endpoint, access)

    @property
    def position(self) -> int:
        """Return the watermark that was stored last."""
        return self._here.position

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, :meth:`stop`, a cancel, or the end with ``follow=False``.

        Raises what :meth:`sluicemq.Subscription.run` does.
        """
        async with self:
            with stop_signals(self._core._stop_asked.set):
                await asyncio.wait([self._core.ended])

    async def stop(self, timeout: float | None = None) -> bool:
        """Finish the current batch, store the watermark, release the hold; True once that is done.

        In the handler it returns False at once.
        """
        return True if self._loop is None else await self._here.stopped(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Stop, and raise the error that ended it."""
        if self._loop is not None and await self.stop(timeout):
            await self._core.ended
