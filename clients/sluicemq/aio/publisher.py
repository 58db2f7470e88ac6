"""Publishers for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack, cast

from sluicemq import publisher
from sluicemq.aio.confirming import Confirming, InLoop, PublishReceipt
from sluicemq.arguments import checked
from sluicemq.protocol.errors import SluiceError
from sluicemq.publisher import BESIDE
from sluicemq.receipt import PublishReceipt as PublishReceiptOfThreads
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions


class _Core(InLoop[PublishReceiptOfThreads], publisher.Publisher):
    """A publisher of threads, whose answers come in the event loop."""

    _Receipt = PublishReceipt


@checked(skip={"publish"})
class Publisher(Confirming[_Core]):
    """Publishes to any streams of one broker, for the tasks of one event loop.

    ``await publisher.publish(...)`` returns the message's receipt at once; only while too much is unconfirmed
    it waits, as :class:`sluicemq.Publisher` does. ``await receipt`` returns the message's number, once it is
    durable, or raises the broker's refusal. ``on_refused`` is called in the event loop.
    """

    def __init__(
        self,
        *,
        window: int = 50_000,
        window_bytes: int = 64 << 20,
        publish_timeout: float | None = None,
        close_timeout: float = 60.0,
        on_refused: Callable[[Any, SluiceError], None] | None = None,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._make = partial(
            _Core,
            window=window,
            window_bytes=window_bytes,
            publish_timeout=publish_timeout,
            close_timeout=close_timeout,
            on_refused=on_refused,
        )
        self._access = Access.at_start(endpoint, access)

    async def publish(
        self,
        stream: str,
        topic: str | bytes,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002 - the word that jobs use everywhere
        expect: int | None = None,
        expect_topic: int | None = None,
    ) -> PublishReceipt:
        """Publish one message; arguments and errors are those of :meth:`sluicemq.Publisher.publish`."""
        core = self._here
        size = BESIDE + (len(payload) if isinstance(payload, bytes) else 0)
        if not core.has_room(size):
            await core.wait_for_room(size)
        receipt = core.publish(stream, topic, payload, id=id, expect=expect, expect_topic=expect_topic)
        return cast("PublishReceipt", receipt)
