"""Publish messages to streams; the library makes batches of them and waits for the confirmations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from sluicemq import forks, wire
from sluicemq.errors import BadStream, BadTopic, SluiceError, Timeout, TooLarge
from sluicemq.headers import as_bytes, checked_id
from sluicemq.message import Published
from sluicemq.packed import LONGEST_TOPIC, pack
from sluicemq.transport import exits, native
from sluicemq.transport.connection import Connection
from sluicemq.transport.publishing import Batch, Publishing

#: Bytes that a message counts for beside its own, so that empty ones count too.
_BESIDE: Final = 32


class Publisher:
    """Publishes to any streams of one broker; from any number of threads or greenlets.

    ``publish`` returns at once; a native I/O thread sends what has been collected, several batches in
    flight, and sends again after a reconnect, to this broker or another, what was not confirmed: it is
    stored once, and in the order of the calls.

    ``window`` messages and ``window_bytes`` may be unconfirmed: ``publish`` blocks there, up to
    ``publish_timeout`` seconds (None: as long as it takes), and raises :class:`~sluicemq.Timeout`.

    **No refusal vanishes.** ``Published.wait`` raises it; ``on_refused(published, error)``, if given,
    hears of every one (in the I/O thread, so it must be short); what neither has heard is raised by the
    next ``flush`` or ``close``. Leaving the ``with`` block waits for all, up to ``close_timeout`` seconds.
    In the child of a fork it is as new.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        window: int = 50_000,
        window_bytes: int = 64 << 20,
        publish_timeout: float | None = None,
        close_timeout: float = 60.0,
        on_refused: Callable[[Published, SluiceError], None] | None = None,
    ) -> None:
        self._window, self._window_bytes = window, window_bytes
        self._publish_timeout, self._close_timeout = publish_timeout, close_timeout
        self._on_refused = on_refused
        self._endpoint = endpoint
        self._closed = False
        self._names: set[str] = set()
        self._refused: tuple[Published, SluiceError] | None  # the first of which nobody has heard
        self._refused_count: int
        self._room: threading.Condition
        self._connection: Connection
        self._begin()
        self._connection.start()
        exits.close_at_exit(self)
        forks.tell(self, Publisher._forked)

    @property
    def unconfirmed(self) -> int:
        """Messages published of which the broker has not yet said what became of them."""
        return self._unconfirmed

    def publish(
        self,
        stream: str,
        topic: str | bytes,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002 - the word that jobs use everywhere
        expect: int | None = None,
        expect_topic: int | None = None,
    ) -> Published:
        """Publish one message; blocks only while too much is unconfirmed.

        ``id``: up to 128 bytes; within the stream's ``dedupe_window`` no other message with it is stored,
        and the receipt has the number of the first. ``expect``: store it only if the stream ends with
        that number (0: is empty), ``expect_topic``: only if its topic does, else it is refused as
        :class:`~sluicemq.Conflict`, whose ``last`` says where it ends.

        Raises TypeError or ValueError for what is no message, :class:`~sluicemq.BadStream`,
        :class:`~sluicemq.BadTopic`, :class:`~sluicemq.TooLarge`, and what ended the connection.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        name = topic if type(topic) is bytes else _topic(topic)
        if len(name) > LONGEST_TOPIC:
            raise BadTopic(f"a topic of {len(name)} bytes, at most {LONGEST_TOPIC} are taken")
        if stream not in self._names:
            self._check(stream)
        limit = self._connection.max_job_bytes
        if limit is not None and len(payload) > limit:
            raise TooLarge(f"the payload has {len(payload)} bytes, this broker takes {limit}")
        packed = pack(name, payload)
        expected = None if expect is expect_topic is None else _expected(expect, expect_topic, name)
        if id is not None:
            id = checked_id(id)  # noqa: A001
        message = Published(stream, packed, len(packed) + _BESIDE, id, expected)
        self._enqueue(message)
        return message

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is unconfirmed.

        Raises :class:`~sluicemq.Timeout`, and the error of the first message that was refused without
        anybody having heard of it.
        """
        with self._room:
            if not self._room.wait_for(lambda: not self._unconfirmed, timeout):
                raise Timeout(f"{self._unconfirmed} messages are not confirmed after {timeout:g} s")
            refused, self._refused = self._refused, None
            count, self._refused_count = self._refused_count, 0
        if refused and not refused[0].heard:
            first, error = refused
            told = type(error)(f"{count} messages were refused, the first for stream {first.stream}: {error}")
            vars(told).update(vars(error))  # where it ends, of a Conflict
            raise told from error

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds (None: ``close_timeout``), then end the connection.

        Raises what ``flush`` raises; the connection is closed in any case. Again is harmless.
        """
        if self._closed:
            return
        with self._room:
            self._closed = True
            self._room.notify_all()  # a publish that waits for room raises now
        try:
            self.flush(self._close_timeout if timeout is None else timeout)
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SluiceError as unkept:
            if error is None:
                raise
            native.log.error("while leaving a publisher's block: %s", unkept)

    def _begin(self) -> None:
        """All that belongs to one process: its connection and lock, what is under way."""
        self._unconfirmed = self._unconfirmed_bytes = 0
        self._refused = None
        self._refused_count = 0
        self._room = threading.Condition(threading.Lock())
        self._publishing = Publishing(self._settled)
        self._connection = Connection(self._endpoint, self._publishing)
        self._publishing.attach(self._connection)

    def _forked(self) -> None:
        self._connection.abandon()
        self._begin()
        self._connection.start_when_used(partial(exits.close_at_exit, self))

    def _check(self, stream: str) -> None:
        if not wire.is_queue_name(stream):
            raise BadStream(f"{stream!r} is no name of a stream: {wire.QUEUE_NAME_RULE}")
        self._names.add(stream)

    def _enqueue(self, message: Published) -> None:
        with self._room:
            if not self._has_room(message.size):
                self._wait_for_room(message.size)
            if self._closed or self._connection.failure:
                raise self._connection.failure or ValueError("publish to a closed publisher")
            self._unconfirmed += 1
            self._unconfirmed_bytes += message.size
            self._publishing.messages.append(message)
        self._connection.wake()

    def _has_room(self, size: int) -> bool:
        if self._unconfirmed == 0:
            return True  # or a message larger than the window would wait for ever
        return self._unconfirmed < self._window and self._unconfirmed_bytes + size <= self._window_bytes

    def _wait_for_room(self, size: int) -> None:
        def free() -> bool:
            return self._has_room(size) or self._closed or self._connection.failure is not None

        if not self._room.wait_for(free, self._publish_timeout):
            raise Timeout(
                f"{self._unconfirmed} messages are unconfirmed, no room after {self._publish_timeout:g} s"
            )

    def _settled(self, batch: Batch, first: int, there: dict[int, int], error: SluiceError | None) -> None:
        messages = batch.messages
        if error is None and not there:
            for number, message in enumerate(messages, first):
                message.settle(number)
        elif error is None:
            for place, message in enumerate(messages):
                message.existed = place in there
                message.settle(there.get(place, first))
                first += place not in there
        else:
            for message in messages:
                message.settle(0, error)
                self._tell(message, error)
        size = sum(each.size for each in messages)
        with self._room:
            self._unconfirmed -= len(messages)
            self._unconfirmed_bytes -= size
            if error is not None:
                self._refused = self._refused or (messages[0], error)
                self._refused_count += len(messages)
            if self._unconfirmed <= self._window * 3 // 4:  # not for every few of a full window
                self._room.notify_all()

    def _tell(self, message: Published, error: SluiceError) -> None:
        if self._on_refused is None:
            return
        message.heard = True
        try:
            self._on_refused(message, error)
        except Exception:  # noqa: BLE001 - the others must be told all the same
            native.log.exception("on_refused failed for a message of stream %s", message.stream)


def _topic(topic: Any) -> bytes:
    if isinstance(topic, str):
        return topic.encode(errors="surrogateescape")
    return as_bytes(topic)


def _expected(expect: int | None, expect_topic: int | None, topic: bytes) -> dict[str, Any]:
    if expect is not None and expect_topic is not None:
        raise ValueError("expect something of the stream or of the topic, not both")
    last = expect if expect is not None else expect_topic
    if not isinstance(last, int) or isinstance(last, bool) or last < 0:
        raise ValueError(f"what is expected is the number of a message, or 0, not {last!r}")
    return {"last": last, **({} if expect_topic is None else {"topic": topic})}
