"""The bus over Redis: PUBLISH and SUBSCRIBE on one channel for each database (the extra ``redis``)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sluicemq.installed import to_install
from sluicemq.protocol.errors import Unavailable

#: Seconds after which a feed answers that nothing has come.
_AWAIT: Final = 1.0
#: Seconds for a connection, and for an answer, at most.
_TIMEOUT: Final = 3.0
#: A connection that is silent for so many seconds is asked whether it is there.
_CHECKED: Final = 10
_CHANNEL: Final = "sluicemq:"


class RedisTransport:
    """Between all brokers that name the same database at one Redis.

    Redis forgets what nobody hears: a connection that had to be made anew may have missed something.
    """

    in_store = False

    def __init__(self, url: str, database: str) -> None:
        """``url``: as the configuration has checked it; raises Unavailable where the extra is missing."""
        try:
            from redis import Redis  # noqa: PLC0415 - an extra, and 60 ms that nobody else need wait
            from redis.backoff import NoBackoff  # noqa: PLC0415
            from redis.retry import Retry  # noqa: PLC0415
        except ImportError:
            raise Unavailable(f"events over Redis: {to_install('redis')}") from None
        self._me = secrets.token_hex(6)
        self._channel = _CHANNEL + database
        self._client: Any = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            health_check_interval=_CHECKED,
            retry=Retry(NoBackoff(), 0),
        )

    @contextmanager
    def listen(self, greeting: Sequence[str]) -> Iterator[RedisFeed]:
        """As :meth:`Transport.listen`."""
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
        """As :meth:`Transport.send`."""
        with _translated():
            self._client.publish(self._channel, "\n".join([self._me, *lines]))


class RedisFeed:
    """A subscription of the channel. The client makes a lost connection anew, and subscribes again."""

    def __init__(self, subscription: Any, me: str) -> None:
        self._subscription = subscription
        self._me = me

    def begin(self) -> None:
        """Wait until the server has subscribed us."""
        for _ in range(int(_TIMEOUT / _AWAIT)):
            answer = self._subscription.get_message(timeout=_AWAIT)
            if answer is not None and answer["type"] == "subscribe":
                return
        raise Unavailable("Redis does not answer")

    def next(self) -> Sequence[str]:
        """As :meth:`Feed.next`."""
        with _translated():
            message = self._subscription.get_message(timeout=_AWAIT)
        if message is None:
            return ()
        if message["type"] != "message":
            raise Unavailable("the connection to Redis was lost")
        sender, *lines = message["data"].decode(errors="replace").split("\n")
        return () if sender == self._me else lines


@contextmanager
def _translated() -> Iterator[None]:
    """Raise this project's error for Redis's, with the cause kept; its words name no password."""
    from redis.exceptions import RedisError  # noqa: PLC0415 - as above

    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis: {type(error).__name__}: {str(error)[:200]}") from error
