"""Producers for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Unpack

from sluicemq import producer, tracing
from sluicemq.aio.confirming import Confirming, InLoop, PushReceipt, ResultReceipt
from sluicemq.aio.reply import Reply
from sluicemq.arguments import checked, number
from sluicemq.codec import JSON, CodecArgument, encoded, with_content_type
from sluicemq.producer import JOB_OVERHEAD
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.options import RESULT, JobOptions, NewJob
from sluicemq.receipt import PushReceipt as PushReceiptOfThreads
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions


class _Core(InLoop[PushReceiptOfThreads], producer.Producer):
    """A producer of threads, whose answers come in the event loop."""

    _Receipt = PushReceipt

    async def pushed(
        self,
        queue: str,
        payload: bytes,
        id: str | None,  # noqa: A002
        options: JobOptions,
    ) -> PushReceipt:
        """Push one job once there is room."""
        receipt = self._made(PushReceipt, queue, payload, id, options)
        if not self.has_room(receipt._size):
            await self._wait_to_send(receipt)
        self._enqueue(receipt)
        return receipt

    async def submitted(
        self,
        queue: str,
        payload: bytes,
        id: str | None,  # noqa: A002
        options: JobOptions,
    ) -> Reply:
        """Push one job once there is room, whose result is wanted."""
        reply = Reply(self._codec)
        receipt = self._made(ResultReceipt, queue, payload, id, options, reply=RESULT)
        if not self.has_room(receipt._size):
            await self._wait_to_send(receipt)
        self._submit(reply, receipt)
        return reply

    async def pushed_many(
        self, queue: str, jobs: Iterable[bytes | NewJob], start: int, options: JobOptions
    ) -> list[PushReceipt]:
        """Push many jobs, each once there is room."""
        receipts: list[Any] = []
        with tracing.sending_many(queue, self._connection.server) as sending:
            for position, job in enumerate(jobs, start):
                payload = job.get("payload") if isinstance(job, Mapping) else job
                size = JOB_OVERHEAD + (len(payload) if isinstance(payload, bytes) else 0)
                if not self.has_room(size):
                    await self.wait_for_room(size)
                receipts.append(self._push_at(position, queue, job, options, sending))
        return receipts

    async def _wait_to_send(self, receipt: PushReceipt) -> None:
        try:
            await self.wait_for_room(receipt._size)
        except BaseException as error:
            if receipt._sending is not None:
                receipt._sending.answered(error)
            raise


@checked(skip={"push", "push_many", "submit", "call"})
class Producer(Confirming[_Core]):
    """Pushes jobs to one broker, for the tasks of one event loop: ``async with Producer() as producer``.

    ``await producer.push(...)`` returns the job's receipt at once; only while too much is unconfirmed it
    waits, as :class:`sluicemq.Producer` does. ``await receipt`` returns once the job is stored durably, or
    raises the broker's refusal. Arguments are those of :class:`sluicemq.Producer`. ``on_refused`` is called
    in the event loop, for each refusal.

    A push that is cancelled while it waits has pushed nothing. Leaving the block waits for all confirmations,
    up to ``close_timeout`` seconds, and raises the first refusal that nobody has seen.
    """

    def __init__(
        self,
        *,
        window: int = 20_000,
        window_bytes: int = 64 << 20,
        push_timeout: float | None = None,
        close_timeout: float = 60.0,
        on_refused: Callable[[Any, SluiceError], None] | None = None,
        codec: CodecArgument = JSON,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._codec = codec
        self._make = partial(
            _Core,
            window=window,
            window_bytes=window_bytes,
            push_timeout=push_timeout,
            close_timeout=close_timeout,
            on_refused=on_refused,
            codec=codec,
        )
        self._access = Access.at_start(endpoint, access)

    @property
    def refused(self) -> int:
        """Return how many jobs the broker has refused so far."""
        return self._here.refused

    async def push(
        self,
        queue: str,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002 - the word that jobs use everywhere
        **options: Unpack[JobOptions],
    ) -> PushReceipt:
        """Push one job; waits only while too much is unconfirmed.

        Options and errors are those of :meth:`sluicemq.Producer.push`.
        """
        return await self._here.pushed(queue, payload, id, options)

    async def push_many(
        self, queue: str, jobs: Iterable[bytes | NewJob], *, start: int = 0, **options: Unpack[JobOptions]
    ) -> list[PushReceipt]:
        """Push many jobs, as :meth:`sluicemq.Producer.push_many` does; cancelled, the rest is not pushed."""
        return await self._here.pushed_many(queue, jobs, start, options)

    async def push_value(
        self,
        queue: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> PushReceipt:
        """Push one job whose payload the producer's codec makes of ``value``; ``job.value()`` returns it."""
        payload = encoded(self._codec, value)
        return await self._here.pushed(queue, payload, id, with_content_type(options, self._codec))

    async def push_json(
        self,
        queue: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> PushReceipt:
        """Push one job whose payload is ``value`` as JSON, whatever the codec; ``job.json()`` returns it."""
        return await self._here.pushed(queue, encoded(JSON, value), id, with_content_type(options, JSON))

    async def push_many_values(
        self, queue: str, values: Iterable[Any], *, start: int = 0, **options: Unpack[JobOptions]
    ) -> list[PushReceipt]:
        """Push many jobs, as :meth:`push_many` does, whose payloads the codec makes of ``values``."""
        payloads = (encoded(self._codec, value) for value in values)
        return await self._here.pushed_many(queue, payloads, start, with_content_type(options, self._codec))

    async def submit(
        self,
        queue: str,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> Reply:
        """Push one job and return its result: ``await reply`` waits for it.

        Options and errors are those of :meth:`sluicemq.Producer.submit`.
        """
        return await self._here.submitted(queue, payload, id, options)

    async def submit_value(
        self,
        queue: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> Reply:
        """Push one job as :meth:`push_value` does, and return its result as :meth:`submit` does."""
        payload = encoded(self._codec, value)
        return await self._here.submitted(queue, payload, id, with_content_type(options, self._codec))

    async def call(
        self,
        queue: str,
        payload: bytes,
        timeout: float | None = 30.0,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> bytes:
        """Push one job and wait for its result, up to ``timeout`` seconds.

        Raises :class:`~sluicemq.TimeoutError` while the job goes on, and every error of :meth:`submit`'s
        reply. Cancelled, nobody waits for the result any longer; the job is done nevertheless.
        """
        if timeout is not None:
            number("timeout", timeout)
        core = self._here
        reply = await core.submitted(queue, payload, id, options)
        try:
            return await reply.result(timeout)
        finally:
            reply.give_up()
