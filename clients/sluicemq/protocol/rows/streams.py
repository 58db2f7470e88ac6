"""Rows of streams, of their subscriptions, and of routes into queues."""

from __future__ import annotations

from sluicemq.protocol.rows.base import Row


class StreamRow(Row, frozen=True, kw_only=True):
    """A stream: the numbers of its ``first`` and ``last`` message, and how much it keeps.

    ``max_age``, ``max_messages``, ``max_bytes``, ``max_unread``: its bounds, where one stream is asked for.
    """

    name: str
    first: int
    last: int
    messages: int
    bytes: int
    last_at: float | None
    max_age: float | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    max_unread: int | None = None


class SubscriptionRow(Row, frozen=True, kw_only=True):
    """A subscription: the number of the last message that was worked on, and how far it is behind.

    ``kind``: of its holder, or its last one. ``fence``: of a hold of this session.
    """

    stream: str
    name: str
    watermark: int
    behind: int
    seconds_behind: float
    kind: str | None
    holder: str | None
    held_at: float | None
    marked_at: float | None
    fence: int | None = None


class RouteRow(Row, frozen=True, kw_only=True):
    """A route of messages with these topics into a queue, and how far its subscription is."""

    stream: str
    topics: tuple[str, ...]
    queue: str
    subscription: str
    behind: int | None
    seconds_behind: float | None
    holder: str | None
    watermark: int | None


class MessageRow(Row, frozen=True, kw_only=True):
    """A message of a stream: its number, when it was published, its topic.

    ``body``: the beginning of what follows the topic; ``size``: bytes of all of that, in all its
    ``frames``.
    """

    number: int
    at: float
    topic: bytes
    body: bytes
    size: int
    frames: int


class MessagesRow(Row, frozen=True, kw_only=True):
    """Some messages of a stream; ``after``: of the next question, with numbers up to which it has looked.

    ``first``, ``newest``: the oldest and the newest number; ``more``: there are more behind.
    """

    messages: tuple[MessageRow, ...]
    after: int
    first: int
    newest: int
    more: bool


class StreamsRow(Row, frozen=True, kw_only=True):
    """All streams, their subscriptions, and routes into queues."""

    streams: tuple[StreamRow, ...]
    subscriptions: tuple[SubscriptionRow, ...]
    routes: tuple[RouteRow, ...]
