"""Readers for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any, Self, Unpack

from sluicemq import reader
from sluicemq.aio.life import Life
from sluicemq.aio.loop import LoopMailbox, Room, disconnected
from sluicemq.arguments import checked
from sluicemq.message import Message
from sluicemq.protocol.errors import GapError
from sluicemq.start import OLDEST, StartArgument
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions


class _Core(reader.Reader):
    """A reader of threads, whose pages come in the event loop."""

    _open_mailbox = staticmethod(LoopMailbox)

    def __init__(self, *args: Any, **given: Any) -> None:
        self.readers = Room()
        super().__init__(*args, **given)

    async def next(self, timeout: float | None) -> Message | None:
        """Return the next message; None at the end, or if there is none in time."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._closed:
            if (message := self._at_hand()) is not None:
                return message
            if not self._pages and not self._ended:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                if not await self.readers.wait(lambda: bool(self._pages or self._ended), left):
                    return None
            elif not (self._turn_to(*self._pages.popleft()) if self._pages else self._over()):
                return None
        return None

    def _on_page(self, *page: Any) -> None:
        super()._on_page(*page)
        self.readers.wake_first()

    def end(self) -> None:
        """End the iteration."""
        self._closed = True
        self._end()
        self.readers.wake_first()

    async def left(self) -> None:
        """Disconnect, and end the iteration."""
        self.end()
        await disconnected(self._connection.close)


@checked(skip={"read"})
class Reader(Life[_Core]):
    """Goes over the messages of a stream, in their order: ``async for message in reader``.

    Arguments and errors are those of :class:`sluicemq.Reader`. A wait that is cancelled loses no message.
    ``on_gap`` is called in the event loop.
    """

    def __init__(
        self,
        stream: str,
        *,
        start: StartArgument = OLDEST,
        topics: Iterable[str | bytes] = (),
        follow: bool = False,
        on_gap: Callable[[GapError], None] | None = None,
        page_bytes: int = 1 << 20,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._make = partial(
            _Core,
            stream,
            start=start,
            topics=topics,
            follow=follow,
            on_gap=on_gap,
            page_bytes=page_bytes,
        )
        self._access = Access.at_start(endpoint, access)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        core = self._here
        while (message := await core.next(None)) is None:
            if core.ended:
                raise StopAsyncIteration
        return message

    async def read(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None after ``timeout`` seconds without one, or at the end."""
        return await self._here.next(timeout)

    async def read_batch(self, most: int, timeout: float | None = None) -> list[Message]:
        """Return up to ``most`` messages: waits for one like :meth:`read`, then takes those at hand."""
        core, found = self._here, list[Message]()
        while len(found) < most and (message := await core.next(0 if found else timeout)) is not None:
            found.append(message)
        return found

    @property
    def position(self) -> int:
        """Return the number of the last message that was returned; 0: none yet."""
        return self._here.position

    @property
    def newest(self) -> int:
        """Return the newest number that the broker has reported."""
        return self._here.newest

    @property
    def ended(self) -> bool:
        """Return whether nothing more will come."""
        return self._here.ended

    async def close(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as others
        """Disconnect, and end the iteration; may be called again."""
        if self._loop is not None:
            await self._here.left()
