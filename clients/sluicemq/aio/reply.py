"""The result of a job, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from sluicemq.aio.loop import in_time, require
from sluicemq.codec import JSON, Codec, decoded
from sluicemq.protocol.errors import CancelledError, SluiceError
from sluicemq.receipt import PushReceipt, late
from sluicemq.reply import CANCEL_WITHIN


class Reply:
    """The result of one pushed job; ``await reply`` returns its bytes, or raises the job's error.

    ``receipt`` is that of its push. To cancel a wait ends that wait only. :meth:`cancel` cancels the job.
    """

    receipt: PushReceipt
    send_cancel: Callable[[Callable[[bool], None]], None]

    def __init__(self, codec: Codec) -> None:
        self.given_up = False
        self._cancelling = False
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._there = asyncio.Event()
        self._value = b""
        self._error: SluiceError | None = None

    def done(self) -> bool:
        """Return whether the result, or the error, is there."""
        return self._there.is_set()

    async def cancel(self) -> bool:
        """Cancel the job; False if a worker has it, or it has ended.

        False, too, without an answer of the broker in 10 seconds, or without the permission to manage the
        queue. Who awaits the result of a cancelled job gets :class:`asyncio.CancelledError`.
        """
        if self.done():
            return self.given_up
        require(self._loop, "result")
        answered = asyncio.Event()

        def end(is_cancelled: bool) -> None:  # noqa: FBT001 - the answer
            if is_cancelled:
                self.give_up()
            answered.set()

        self._cancelling = True
        with suppress(SluiceError, TimeoutError):  # it is refused, or the connection has ended
            async with asyncio.timeout(CANCEL_WITHIN):
                await self.receipt.wait()  # type: ignore[misc, func-returns-value]
                self.send_cancel(end)
                await answered.wait()
        return self.given_up

    def give_up(self) -> bool:
        """Stop waiting for the result: the job is done nevertheless; False if the result is there."""
        if not self.done():
            self.given_up = True
            self._there.set()
        return self.given_up

    async def result(self, timeout: float | None = None) -> bytes:
        """Return the result, waiting up to ``timeout`` seconds; raises TimeoutError, or the job's error."""
        if not self.done():
            require(self._loop, "result")
            if not await in_time(self._there, timeout):
                raise late(self._missing(timeout), None, self.receipt.id)
        if self.given_up:
            raise asyncio.CancelledError(f"the result of job {self.receipt.id} was given up")
        if self._error is not None:
            raise self._error
        return self._value

    async def value(self, timeout: float | None = None) -> Any:
        """Return the result as the producer's codec decodes it; raises as :meth:`result`, and ValueError."""
        return decoded(self._codec, await self.result(timeout), self._named)

    async def json(self, timeout: float | None = None) -> Any:
        """Return the result, which is JSON; raises as :meth:`result`, and ValueError for other bytes."""
        return decoded(JSON, await self.result(timeout), self._named)

    async def text(self, timeout: float | None = None) -> str:
        """Return the result, which is text in UTF-8; raises as :meth:`result`, and ValueError."""
        return (await self.result(timeout)).decode()

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.result().__await__()

    def __repr__(self) -> str:
        state = "given up" if self.given_up else "there" if self.done() else "not there yet"
        return f"<Reply of job {self.receipt.id}: {state}>"

    def resolve(self, value: Any, error: SluiceError | None) -> None:
        """Set the result or the error; in the loop."""
        if self._cancelling and isinstance(error, CancelledError):
            self.give_up()
        elif not self.done():
            self._value, self._error = value, error
            self._there.set()

    @property
    def _named(self) -> str:
        return f"the result of job {self.receipt.id}"

    def _missing(self, timeout: float | None) -> str:
        job = f"job {self.receipt.id} for queue {self.receipt.queue}"
        return f"{job} has no result after {timeout:g} s"
