"""The bus over Redis: PUBLISH and SUBSCRIBE on one channel for each database (the extra ``redis``)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sluicemq.installed import to_install
from sluicemq.protocol.errors import UnavailableError

#: Seconds after which a feed returns no lines.
_AWAIT: Final = 1.0
#: Seconds for a connection, and for an answer, at most.
_TIMEOUT: Final = 3.0


class RedisTransport:
    """Connects all brokers that use one database name at one Redis.

    Redis keeps nothing for an absent listener: after a reconnect events may have been missed.
    """

    in_store = False

    def __init__(self, url: str, database: str) -> None:
        """Connect later to ``url``, which is valid; raises Unavailable if the extra is not installed."""
        try:
            from redis import Redis  # noqa: PLC0415 - an extra, and 60 ms that nobody else need wait
            from redis.backoff import NoBackoff  # noqa: PLC0415
            from redis.retry import Retry  # noqa: PLC0415
        except ImportError:
            raise UnavailableError(f"events over Redis: {to_install('redis')}") from None
        self._me = secrets.token_hex(6)
        self._channel = "sluicemq:" + database
        # Seconds of silence after which a connection is checked
        self._client: Any = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            health_check_interval=10,
            retry=Retry(NoBackoff(), 0),
        )

    @contextmanager
    def listen(self, greeting: Sequence[str]) -> Iterator[RedisFeed]:
        """See :meth:`Transport.listen`."""
        with _translated():
            subscription: Any = self._client.pubsub()
        try:
            with _translated():
                subscription.subscribe(self._channel)
                feed = RedisFeed(subscription, self._me)
                feed.begin()
            self.send(greeting)
            yield feed
        finally:
            subscription.close()

    def send(self, lines: Sequence[str]) -> None:
        """See :meth:`Transport.send`."""
        with _translated():
            self._client.publish(self._channel, "\n".join([self._me, *lines]))


class RedisFeed:
    """A subscription to the channel. The client reconnects and subscribes again by itself."""

    def __init__(self, subscription: Any, me: str) -> None:
        self._subscription = subscription
        self._me = me

    def begin(self) -> None:
        """Wait until the server has confirmed the subscription."""
        for _ in range(int(_TIMEOUT / _AWAIT)):
            answer = self._subscription.get_message(timeout=_AWAIT)
            if answer is not None and answer["type"] == "subscribe":
                return
        raise UnavailableError("Redis does not answer")

    def next(self) -> Sequence[str]:
        """See :meth:`Feed.next`."""
        with _translated():
            message = self._subscription.get_message(timeout=_AWAIT)
        if message is None:
            return ()
        if message["type"] != "message":
            raise UnavailableError("the connection to Redis was lost")
        sender, *lines = message["data"].decode(errors="replace").split("\n")
        return () if sender == self._me else lines


@contextmanager
def _translated() -> Iterator[None]:
    """Raise Unavailable for errors of Redis, with the cause kept; its text contains no password."""
    from redis.exceptions import RedisError  # noqa: PLC0415 - as above

    try:
        yield
    except (RedisError, OSError) as error:
        raise UnavailableError(f"Redis: {type(error).__name__}: {str(error)[:200]}") from error
