"""Publishers: publish to streams; the library makes batches and waits for the confirmations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Unpack

from sluicemq import arguments
from sluicemq._deprecated import endpoint_first
from sluicemq.confirming import Confirming
from sluicemq.headers import as_bytes, checked_id
from sluicemq.protocol.errors import BadStreamError, BadTopicError, SluiceError, TooLargeError
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.packed import LONGEST_TOPIC, pack, topic_bytes
from sluicemq.protocol.readable import brief
from sluicemq.receipt import PublishReceipt
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.publishing import PublishBatch, Publishing

#: Bytes that a message counts beside its own, so that empty ones count too.
BESIDE: Final = 32


@endpoint_first()
@arguments.checked(skip={"publish"})
class Publisher(Confirming[PublishReceipt]):
    """Publishes to any streams of one broker; for any number of threads or greenlets.

    ``publish`` returns at once. A native I/O thread sends the collected messages, several batches in flight.
    After a reconnect, to this broker or another one, it repeats unconfirmed batches: each message is stored
    once, and in the order of the calls.

    ``window`` messages and ``window_bytes`` may be unconfirmed. Beyond that ``publish`` blocks, up to
    ``publish_timeout`` seconds (None: without limit), and raises :class:`~sluicemq.TimeoutError`.

    **No refusal is lost.** ``PublishReceipt.wait`` raises it. ``on_refused(receipt, error)``, if given, is
    called for each one, in a thread for callbacks: it may wait, also for this publisher. A refused message
    counts as unconfirmed until it returns. The next ``flush`` or ``close`` raises a refusal that neither has
    seen. Leaving the ``with`` block waits for all confirmations, up to
    ``close_timeout`` seconds. In the child of a fork the publisher starts empty. ``endpoint``: as for a
    :class:`~sluicemq.Producer`.
    """

    _things, _verb, _who = "messages", "publish", "publisher"
    _Receipt = PublishReceipt

    def __init__(
        self,
        *,
        window: int = 50_000,
        window_bytes: int = 64 << 20,
        publish_timeout: float | None = None,
        close_timeout: float = 60.0,
        on_refused: Callable[[PublishReceipt, SluiceError], None] | None = None,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._names: set[str] = set()
        broker = Access.chosen(endpoint, access)
        super().__init__(broker, window, window_bytes, publish_timeout, close_timeout, on_refused)

    @property
    def unconfirmed(self) -> int:
        """Return how many published messages are neither confirmed nor refused."""
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
    ) -> PublishReceipt:
        """Publish one message; blocks only while too much is unconfirmed.

        ``id``: up to 128 bytes. Within the stream's ``dedupe_window`` no other message with it is stored, and
        the receipt has the number of the first one. ``expect``: store the message only if the stream ends
        with that number (0: is empty). ``expect_topic``: only if its topic ends with that number. Otherwise
        it is refused as :class:`~sluicemq.ConflictError`, whose ``last`` is the number at the end.

        Raises TypeError or ValueError for wrong arguments, :class:`~sluicemq.BadStreamError`,
        :class:`~sluicemq.BadTopicError`, :class:`~sluicemq.TooLargeError`, and the error that ended the
        connection.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        name = topic if type(topic) is bytes else _topic(topic)
        if len(name) > LONGEST_TOPIC:
            raise BadTopicError(f"a topic of {len(name)} bytes, at most {LONGEST_TOPIC} are taken")
        if stream not in self._names:
            self._check(stream)
        limit = self._connection.max_job_bytes
        if limit is not None and len(payload) > limit:
            raise TooLargeError(f"the payload has {len(payload)} bytes, this broker takes {limit}")
        packed = pack(name, payload)
        expected = None if expect is expect_topic is None else _expected(expect, expect_topic, name)
        if id is not None:
            id = checked_id(id)  # noqa: A001
        if type(stream) is not str:
            stream = arguments.plain_text(stream)
        message = self._Receipt(stream, packed, len(packed) + BESIDE, id, expected, self._connection)
        self._enqueue(message)
        return message

    def _begin(self) -> None:
        super()._begin()
        self._publishing = Publishing(self._settled)
        self._connect(self._publishing)

    def _named(self, receipt: PublishReceipt) -> str:
        return f"one for stream {receipt.stream}"

    def _check(self, stream: str) -> None:
        if not is_queue_name(stream):
            raise BadStreamError(f"{brief(stream)} is no name of a stream: {QUEUE_NAME_RULE}")
        self._names.add(arguments.plain_text(stream))

    def _enqueue(self, message: PublishReceipt) -> None:
        with self._lock:
            if not self._has_room(message._size):
                self._wait_for_room(message._size)
            self._count(message._size)
            self._publishing.messages.append(message)
        self._connection.wake()

    def _settled(
        self, batch: PublishBatch, first: int, there: dict[int, int], error: SluiceError | None
    ) -> None:
        messages = batch.messages
        size = sum([message._size for message in messages])
        heard = False
        if error is None and not there:
            for number, message in enumerate(messages, first):
                message._settle(number)
        elif error is None:
            for place, message in enumerate(messages):
                message.existed = place in there
                message._settle(there.get(place, first))
                first += place not in there
        else:
            for message in messages:
                heard = self._add_refusal(message, error)
                message._settle(0, error)
        if error is not None and heard:
            self._free_when_run(len(messages), size, self._report, messages, error)
        else:
            self._free(len(messages), size)

    def _report(self, messages: list[PublishReceipt], error: SluiceError) -> None:
        for message in messages:
            self._refuse(message, error)


def _topic(topic: Any) -> bytes:
    return topic_bytes(topic) if isinstance(topic, str) else as_bytes(topic)


def _expected(expect: int | None, expect_topic: int | None, topic: bytes) -> dict[str, Any]:
    if expect is not None and expect_topic is not None:
        raise ValueError("expect something of the stream or of the topic, not both")
    last = expect if expect is not None else expect_topic
    if not isinstance(last, int) or isinstance(last, bool) or not 0 <= last < 2**63:
        raise ValueError(f"what is expected is the number of a message, or 0, not {last!r}")
    return {"last": last, **({} if expect_topic is None else {"topic": topic})}
