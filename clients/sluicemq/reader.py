"""Readers: read a stream from any point on, to its end or for as long as it goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Final, Self, Unpack

from sluicemq import forks
from sluicemq._deprecated import Keyword, endpoint_first
from sluicemq.arguments import checked
from sluicemq.handlers import check_callback
from sluicemq.headers import as_bytes
from sluicemq.life import LongLived
from sluicemq.message import Message
from sluicemq.protocol.errors import BadStreamError, ForkedError, GapError, SluiceError
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.packed import topic_bytes, unpack
from sluicemq.start import OLDEST, Start, StartArgument, options_of_read, watermark_of
from sluicemq.stop_signals import StopSignals
from sluicemq.transport import native
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.connection import Connection
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.reading import Page, Reading

#: Seconds that the broker waits for messages in one READ.
_WAIT: Final = 25.0


@endpoint_first(
    "stream",
    "after",
    after=Keyword(
        "start", "Reader(start=Start.at(after + 1))", lambda after: Start.at(after + 1) if after else None
    ),
    since=Keyword(
        "start",
        "Reader(start=Start.since(since))",
        lambda since: None if since is None else Start.since(since),
    ),
    new=Keyword("start", "Reader(start=Start.new())", lambda new: Start.new() if new else None),
)
@checked(skip={"read"})
class Reader(LongLived):
    """Iterates over the messages of a stream, in their order, from one thread or greenlet.

    ``start``: where it begins, a :class:`~sluicemq.Start`; by default with the oldest message that is kept.
    ``topics``: only messages whose topic begins like this (``orders``), matches this pattern
    (``orders.*.paid``, ``orders.>``) or equals it (``=orders.17``); the broker sends no others. ``follow``:
    wait for more messages at the end, for ever; otherwise the iteration ends there.

    The reader has two pages of about ``page_bytes`` in advance, no more, so a slow reader costs nobody else
    anything. After a lost connection, or with another broker, it goes on behind the last message.

    If messages were removed before this reader had them, the iteration raises :class:`~sluicemq.GapError`
    once, and then goes on behind them. With ``on_gap``, that is called with the Gap instead. In the child of
    a fork it raises :class:`~sluicemq.ForkedError`. If the broker does not let it in, it raises
    :class:`~sluicemq.NotAdmittedError`. ``endpoint``: as for a :class:`~sluicemq.Client`.
    """

    _open_mailbox = staticmethod(native.open_mailbox)

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
        if not is_queue_name(stream):
            raise BadStreamError(f"{stream!r} is no name of a stream: {QUEUE_NAME_RULE}")
        after = max(0, watermark_of(start, _nobody_knows))
        self.position = after
        """The number of the last message that was returned; 0: none yet."""
        self.newest = 0
        """The newest number that the broker has reported."""
        check_callback("on_gap", on_gap)
        self._on_gap = on_gap
        self._passed = after
        self._page_ends = after
        self._messages: Iterator[Message] = iter(())
        self._pages: deque[tuple[Page | None, SluiceError | None]] = deque()
        self._arrived = threading.Condition(threading.Lock())
        self._gap: GapError | None = None
        self._ended: SluiceError | bool = False
        self._closed = False
        self._stop_asked = threading.Event()
        options = _options(start, topics, page_bytes)
        self._follows = follow
        if follow:
            options["wait"] = _WAIT
        self._reading = Reading(stream, options, self._on_page)
        self._stream = stream
        self._connection = Connection(
            Access.chosen(endpoint, access), self._reading, open_mailbox=self._open_mailbox
        )
        self._reading.attach(self._connection)
        self._connection.start()
        forks.on_fork(self, Reader._forked)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            message = self._next(None)
            if message is not None:
                return message
            if self._ended is True:
                raise StopIteration

    def read(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None after ``timeout`` seconds without one, or at the end."""
        return self._next(timeout)

    def read_batch(self, most: int, timeout: float | None = None) -> list[Message]:
        """Return up to ``most`` messages: waits for one like :meth:`read`, then takes those at hand."""
        found: list[Message] = []
        while len(found) < most and (message := self._next(0 if found else timeout)) is not None:
            found.append(message)
        return found

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._connection.connected_to

    @property
    def passed(self) -> int:
        """Return the number up to which all wanted messages were returned; unwanted ones count, too."""
        return max(self.position, self._passed)

    @property
    def ended(self) -> bool:
        """Return whether nothing more will come."""
        return self._ended is True

    def run(self, handler: Callable[[Message], Any] | None = None) -> None:
        """Call ``handler`` with each message, until the end, ``stop``, or SIGTERM or SIGINT; then close.

        Without a handler messages are only counted in ``position``. Raises what the handler raises, and
        errors of reading. Signals are caught in the main thread only; a second one raises KeyboardInterrupt.
        """
        with StopSignals(self._end, raises=True).caught(self._connection):
            try:
                for message in self:
                    if handler is not None:
                        handler(message)
                    if self._stop_asked.is_set():
                        break
            finally:
                self.close()

    def close(self, timeout: float | None = None) -> None:
        """Disconnect, within ``timeout`` seconds (None: 1), and end the iteration; may be called again."""
        if self._closed:
            return
        self._closed = True
        self._end()
        self._connection.close(1.0 if timeout is None else timeout)

    def _end(self) -> None:
        self._stop_asked.set()
        with self._arrived:
            self._ended = self._ended or True
            self._arrived.notify_all()

    def _forked(self) -> None:
        self._connection.abandon()
        self._arrived = threading.Condition(threading.Lock())
        self._pages.clear()
        self._messages = iter(())  # the rest of a page is the parent's too
        self._ended = ForkedError(
            "this reader belongs to the process that this one was forked from: make another"
        )

    def _next(self, timeout: float | None) -> Message | None:
        deadline = None if timeout is None else monotonic() + timeout
        while not self._closed:
            if (message := self._at_hand()) is not None:
                return message
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not self._next_page(left):
                return None
        return None

    def _at_hand(self) -> Message | None:
        """Return the next message of the page; None behind the last one."""
        for message in self._messages:
            self.position = message.sequence
            return message
        self._passed = self._page_ends
        return None

    def _next_page(self, timeout: float | None) -> bool:
        """Turn to the next page; False: there is none in time. Raises the error that ended the reading."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._pages or self._ended, timeout) or not self._pages:
                return self._over()
            page, error = self._pages.popleft()
        return self._turn_to(page, error)

    def _turn_to(self, page: Page | None, error: SluiceError | None) -> bool:
        """Turn to a page; False: it is the end. Raises the error that ended the reading."""
        if page is None:
            self._ended = True if self._stop_asked.is_set() else error or True  # its own end is no error
            return self._over()
        self._page_ends = page["after"]
        self.newest = page["newest"]
        if not page["rows"] and not page["gone"] and not self._follows:
            self._ended = True
            self._passed = self._page_ends
            return False
        self._call(self._reading.taken)
        self._messages = _messages(page)
        if page["gone"]:
            self._report_gap(page)
        return True

    def _over(self) -> bool:
        if isinstance(self._ended, SluiceError):
            raise self._ended
        return False

    def _report_gap(self, page: Page) -> None:
        first, last = page["gone"]
        what = f"messages {first} to {last} of stream {self._stream}"
        gap = GapError(f"{what} were removed before they were read", first, last)
        self.position = last
        if self._on_gap is None:
            raise gap
        self._on_gap(gap)

    def _on_page(self, page: Page | None, error: SluiceError | None) -> None:
        with self._arrived:
            self._pages.append((page, error))
            self._arrived.notify_all()

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._connection.call(function)
        except SluiceError:
            if not self._pages:
                raise


def _nobody_knows(_start: Start) -> int:
    """Return that no message is known to be before the time."""
    return 0


def _options(start: Start, topics: Iterable[str | bytes], page_bytes: int) -> dict[str, Any]:
    if isinstance(topics, str | bytes):
        raise TypeError('topics is a list: write ["orders"]')
    options: dict[str, Any] = {"bytes": page_bytes, **options_of_read(start)}
    wanted = [topic_bytes(topic) if isinstance(topic, str) else as_bytes(topic) for topic in topics]
    if wanted:
        options["topics"] = wanted
    return options


def _messages(page: Page) -> Iterator[Message]:
    for first, at, packed, places in page["rows"]:
        if places is None:
            for number, (topic, *frames) in enumerate(unpack(packed), first):
                yield _message(number, topic, frames, at)
        else:
            for place, (topic, *frames) in zip(places, unpack(packed), strict=True):
                yield _message(first + place, topic, frames, at)


def _message(number: int, topic: bytes, frames: list[bytes], at: float) -> Message:
    name = topic.decode(errors="surrogateescape")
    return Message(number, name, frames[0] if frames else b"", at, tuple(frames))
