"""Producers: push jobs one by one; the library makes batches of them and waits for the confirmations."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sluicemq import tracing
from sluicemq._deprecated import endpoint_first
from sluicemq.arguments import checked, number, plain_text
from sluicemq.codec import JSON, CodecArgument, encoded, with_content_type
from sluicemq.confirming import Confirming
from sluicemq.headers import Headers, as_bytes, as_headers, checked_id
from sluicemq.protocol.errors import (
    BadFramesError,
    BadQueueError,
    SluiceError,
    TooLargeError,
    UnavailableError,
)
from sluicemq.protocol.errors import TimeoutError as SluiceTimeoutError
from sluicemq.protocol.names import QUEUE_NAME_RULE, is_queue_name
from sluicemq.protocol.options import RESULT, JobOptions, NewJob
from sluicemq.protocol.readable import brief, escaped, said
from sluicemq.receipt import PushReceipt, late
from sluicemq.reply import Reply
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.connection import Connection
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.replies import ResultReceipt, Wanted
from sluicemq.transport.send_buffer import PushBatch, SendBuffer

if TYPE_CHECKING:
    from sluicemq.spans import Sending

JOB_OVERHEAD = 64  # bytes that a job counts beside its payload, so that empty ones count too

_R = TypeVar("_R", bound=PushReceipt)


@endpoint_first()
@checked(skip={"push", "push_many", "submit", "call"})
class Producer(Confirming[PushReceipt]):
    """Pushes jobs to one broker; for any number of threads or greenlets.

    ``endpoint``: where the broker is; None means ``SLUICEMQ_ENDPOINT``, else the profile's, else
    ``tcp://127.0.0.1:5550``.

    ``push`` returns at once. A native I/O thread sends the collected jobs, several messages in flight. After
    a reconnect it repeats unconfirmed jobs, by their ids. The order of the pushes to a queue is kept, also
    then.

    ``window`` jobs and ``window_bytes`` may be unconfirmed. Beyond that ``push`` blocks, up to
    ``push_timeout`` seconds (None: without limit), and raises :class:`~sluicemq.TimeoutError`.

    **No refusal is lost.** ``PushReceipt.wait`` raises it. ``on_refused(receipt, error)``, if given, is
    called for each one, in a thread for callbacks: it may wait, also for this producer. A refused job counts
    as unconfirmed until it returns. The next ``flush`` or ``close`` raises a refusal that neither has seen.

    ``codec``: makes bytes of the values of ``push_value``, and of ``push_many_values`` and ``submit_value``.

    ``now``: nanoseconds since 1970, with which the ids begin that the producer chooses; used for nothing
    else.

    Leaving the ``with`` block waits for all confirmations, up to ``close_timeout`` seconds. A producer that
    is still open when the program ends is flushed for 5 s.

    In the child of a fork it starts empty and connects at its first use. Receipts of the parent's pushes
    raise :class:`~sluicemq.ForkedError` there. A child that ends with ``os._exit`` must ``close`` or
    ``flush`` it before.
    """

    _things, _verb, _who = "jobs", "push", "producer"
    _Receipt = PushReceipt

    def __init__(
        self,
        *,
        window: int = 20_000,
        window_bytes: int = 64 << 20,
        push_timeout: float | None = None,
        close_timeout: float = 60.0,
        on_refused: Callable[[PushReceipt, SluiceError], None] | None = None,
        now: Callable[[], int] = time_ns,
        codec: CodecArgument = JSON,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._now = now
        self._codec = codec
        broker = Access.chosen(endpoint, access)
        super().__init__(broker, window, window_bytes, push_timeout, close_timeout, on_refused)

    @property
    def unconfirmed(self) -> int:
        """Return how many pushed jobs are neither confirmed nor refused."""
        return self._unconfirmed

    @property
    def refused(self) -> int:
        """Return how many jobs the broker has refused so far."""
        return self._refusals.count

    def push(
        self,
        queue: str,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002 - the word that jobs use everywhere
        **options: Unpack[JobOptions],
    ) -> PushReceipt:
        """Push one job; blocks only while too much is unconfirmed.

        * ``id``: up to 128 bytes; None: the library chooses one;
        * ``priority``: higher first;
        * ``delay``, ``ttl``, ``visibility_timeout``, ``keep_done``: seconds, or a ``timedelta``;
        * ``not_before``: a ``datetime`` with a time zone, Unix seconds or RFC 3339;
        * ``max_attempts``: deliveries before the job is dead, 0: no limit;
        * ``backoff``: ``exponential``, ``linear``, ``fixed``, ``none``, or a map of ``kind``, ``base``,
          ``factor``, ``cap``, ``jitter``;
        * ``soft_time_limit``, ``hard_time_limit``: seconds after which its handler is interrupted, and after
          which the attempt has failed and its worker ends if the handler does not; the smallest of the job's,
          its kind's and its queue's holds;
        * ``dedupe_id``: other jobs with it are refused within ``dedupe_window`` seconds, as
          :class:`~sluicemq.DuplicateError`, whose ``id`` is the first one's;
        * ``group``: jobs of one group run one at a time, in the order of their pushes;
        * ``tenant``: a fair queue serves its tenants in turn;
        * ``kind``: what sort of work it is, such as ``send_mail``: jobs are counted and shown by it;
        * ``reply``: ``result`` keeps the job's result for ``Client.result``, ``accepted`` does not;
        * ``headers``: a map of your own, handed to the worker.

        None means the queue's setting. Raises TypeError or ValueError for wrong arguments,
        :class:`~sluicemq.BadQueueError`, :class:`~sluicemq.BadHeadersError`, :class:`~sluicemq.TooLargeError`
        (once the broker's limit is known), and the error that ended the connection, if it has ended.
        """
        receipt = self._made(self._Receipt, queue, payload, id, options)
        self._enqueue(receipt)
        return receipt

    def push_many(
        self, queue: str, jobs: Iterable[bytes | NewJob], *, start: int = 0, **options: Unpack[JobOptions]
    ) -> list[PushReceipt]:
        """Push many jobs; only wrong ones are refused, each by its receipt's ``position``.

        Each is a payload, or a map of arguments of ``push`` (``{"payload": b"...", "delay": 5}``), which
        override the ``options`` of all. ``start``: the position of the first. Returns a receipt for every
        job, in their order. An error that ``push`` would raise for one job is raised by its receipt's
        ``wait``, and counts as a refusal. Raises :class:`~sluicemq.BadQueueError`, and the error that ended
        the connection.
        """
        with tracing.sending_many(queue, self._connection.server) as sending:
            return [
                self._push_at(position, queue, job, options, sending)
                for position, job in enumerate(jobs, start)
            ]

    def push_value(
        self,
        queue: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> PushReceipt:
        """Push one job whose payload the producer's codec makes of ``value``; ``job.value()`` returns it.

        The job's own header ``content-type`` names the codec. ``options`` are those of :meth:`push`. Raises
        TypeError or ValueError for a value that the codec has no form for, and what :meth:`push` raises.
        """
        return self.push(queue, encoded(self._codec, value), id=id, **with_content_type(options, self._codec))

    def push_json(
        self,
        queue: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> PushReceipt:
        """Push one job whose payload is ``value`` as JSON, whatever the codec; ``job.json()`` returns it."""
        return self.push(queue, encoded(JSON, value), id=id, **with_content_type(options, JSON))

    def push_many_values(
        self, queue: str, values: Iterable[Any], *, start: int = 0, **options: Unpack[JobOptions]
    ) -> list[PushReceipt]:
        """Push many jobs, as :meth:`push_many` does, whose payloads the codec makes of ``values``.

        A value that the codec has no form for raises TypeError or ValueError; those before it are pushed.
        """
        payloads = (encoded(self._codec, value) for value in values)
        return self.push_many(queue, payloads, start=start, **with_content_type(options, self._codec))

    def submit_value(
        self,
        queue: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> Reply:
        """Push one job as :meth:`push_value` does, and return its result as :meth:`submit` does.

        ``reply.value()`` waits for the result, and decodes it.
        """
        payload = encoded(self._codec, value)
        return self.submit(queue, payload, id=id, **with_content_type(options, self._codec))

    def submit(
        self,
        queue: str,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> Reply:
        """Push one job and return its result as a :class:`concurrent.futures.Future` of bytes.

        ``options`` are those of ``push``. With an ``id`` that was pushed before, the result is the stored one
        (for the queue's ``remember`` seconds), or that of the running job. The future raises the error of a
        refused push, :class:`~sluicemq.DeadError`, :class:`~sluicemq.ExpiredError`, or
        :class:`~sluicemq.UncertainError`. After a lost connection the producer asks again, by id. Close it
        only when you have the results: closing ends the other futures with
        :class:`~sluicemq.UnavailableError`, though their jobs are done nevertheless.
        """
        reply = Reply(self._connection.call_back, self._codec)
        self._submit(reply, self._made(ResultReceipt, queue, payload, id, options, reply=RESULT))
        return reply

    def call(
        self,
        queue: str,
        payload: bytes,
        timeout: float | None = 30.0,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> bytes:
        """Push one job and wait for its result, up to ``timeout`` seconds.

        Raises :class:`~sluicemq.TimeoutError` while the job goes on (get its result with ``Client.result``,
        or with another call with its ``id``), and every error of :meth:`submit`'s future.
        """
        if timeout is not None:
            number("timeout", timeout)
        reply = self.submit(queue, payload, id=id, **options)
        try:
            return reply.result(timeout)
        except TimeoutError:
            reply.give_up()
            job = f"job {reply.receipt.id} for queue {queue}"
            why = self._connection.not_admitted
            raise late(f"{job} has no result after {timeout:g} s", why, reply.receipt.id) from None

    def _submit(self, reply: Wanted, receipt: ResultReceipt) -> None:
        receipt.attach(reply, self._buffer.replies)
        self._enqueue(receipt)

    def _begin(self) -> None:
        super()._begin()
        self._new_id = _id_maker(self._now)
        self._buffer = SendBuffer(self._settled)
        self._connect(self._buffer)

    def _named(self, receipt: PushReceipt) -> str:
        place = "" if receipt.position is None else f" at position {receipt.position}"
        return f"{receipt.id}{place} for queue {receipt.queue}"

    def _made(
        self,
        kind: type[_R],
        queue: str,
        payload: bytes,
        id: str | None,  # noqa: A002
        options: JobOptions,
        reply: str | None = None,
    ) -> _R:
        """Return the receipt of one push, with a span of its own if the program traces."""
        spans = tracing.current()
        if spans is None:
            return kind(*self._checked(queue, payload, id, options, reply))
        sending = spans.sending(queue, self._connection.server, options.get("headers"))
        with sending.begun():
            receipt = kind(*self._checked(queue, payload, id, sending.carried(options), reply))
            sending.add(receipt)
        return receipt

    def _checked(
        self,
        queue: str,
        payload: bytes,
        id: str | None,  # noqa: A002
        options: JobOptions,
        reply: str | None = None,
    ) -> tuple[str, str, bytes, Headers | None, int, int, Connection]:
        """Return the parts of a receipt; raises as ``push`` does."""
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        limit = self._connection.max_job_bytes
        if limit is not None and len(payload) > limit:
            raise TooLargeError(f"the payload has {len(payload)} bytes, this broker takes {limit}")
        if not is_queue_name(queue):
            raise BadQueueError(f"{brief(queue)} is no queue name: {QUEUE_NAME_RULE}")
        if type(queue) is not str:
            queue = plain_text(queue)
        headers, header_bytes = as_headers(options, reply) if options or reply else (None, 0)
        size = JOB_OVERHEAD + len(payload) + header_bytes
        job_id = self._new_id() if id is None else checked_id(id)
        return queue, job_id, payload, headers, size, header_bytes, self._connection

    def _push_at(
        self, position: int, queue: str, job: bytes | NewJob, options: JobOptions, sending: Sending | None
    ) -> PushReceipt:
        given: Any = {**options, **(job if isinstance(job, Mapping) else {"payload": job})}
        job_id = given.pop("id", None)
        try:
            payload = given.pop("payload", None)
            if sending is not None:
                given = sending.carried(given)
            receipt = self._Receipt(*self._checked(queue, payload, job_id, given))
            receipt.position = position
            if sending is not None:
                sending.add(receipt)
            self._enqueue(receipt)
        except (BadQueueError, SluiceTimeoutError, UnavailableError):
            raise
        except Exception as error:  # noqa: BLE001 - of many jobs only wrong ones are refused
            return self._refused_at_once(position, queue, job_id, error, sending)
        return receipt

    def _refused_at_once(
        self, position: int, queue: str, job_id: object, error: Exception, sending: Sending | None
    ) -> PushReceipt:
        kind = type(error) if isinstance(error, SluiceError) else BadFramesError
        shown = escaped(job_id) if isinstance(job_id, str) else "" if job_id is None else brief(job_id)
        receipt = self._Receipt(queue, shown or self._new_id(), b"", None, JOB_OVERHEAD)
        receipt.position = position
        with self._lock:
            self._count(receipt._size)
        if sending is not None:
            sending.add(receipt)
        self._connection.call(self._connection.post, self._settled, [receipt], {0: kind(said(error))})
        return receipt

    def _enqueue(self, receipt: PushReceipt) -> None:
        try:
            with self._lock:
                if not self._has_room(receipt._size):
                    self._wait_for_room(receipt._size)
                self._count(receipt._size)
                self._buffer.jobs.append(receipt)
        except BaseException as error:
            if receipt._sending is not None:
                receipt._sending.answered(error)
            raise
        self._connection.wake()

    def _enqueue_message(self, jobs: PushBatch) -> None:
        """Enqueue the jobs of one message, which the broker takes in order: none behind one without room.

        The message may go beyond the window.
        """
        with self._lock:
            if not self._has_room(jobs[0]._size):
                self._wait_for_room(jobs[0]._size)
            for job in jobs:
                self._count(job._size)
            self._buffer.jobs.extend(jobs)
        self._connection.wake()

    def _settled(self, batch: PushBatch, refused: dict[int, SluiceError]) -> None:
        size, heard = 0, False
        for receipt in batch:
            size += receipt._size
            heard = heard or receipt._sending is not None
        if refused:
            heard = self._settle_each(batch, refused) or heard
        else:
            for receipt in batch:
                receipt._settle()
        if heard:
            self._free_when_run(len(batch), size, self._report, batch, refused, time_ns())
        else:
            self._free(len(batch), size)

    def _settle_each(self, batch: PushBatch, refused: dict[int, SluiceError]) -> bool:
        """Settle a batch; return whether ``on_refused`` is to hear of one."""
        heard = False
        for position, receipt in enumerate(batch):
            error = refused.get(position)
            if error is not None:
                heard = self._add_refusal(receipt, error) or heard
            receipt._settle(error)
        return heard

    def _report(self, batch: PushBatch, refused: dict[int, SluiceError], at: int) -> None:
        """Have spans and ``on_refused`` hear of answers that came ``at`` nanoseconds since 1970."""
        for position, receipt in enumerate(batch):
            error = refused.get(position)
            if receipt._sending is not None:
                receipt._sending.answered(error, at)
            if error is not None:
                self._refuse(receipt, error)


def _id_maker(now: Callable[[], int]) -> Callable[[], str]:
    """Return a maker of ids that sort by time: milliseconds, this producer's random mark, a counter.

    ``now``: nanoseconds since 1970.
    """
    mark = os.urandom(5).hex()
    counter = itertools.count()

    def new_id() -> str:
        return f"{now() // 1_000_000:012x}{mark}{next(counter) & 0xFFFFFFFF:08x}"

    return new_id
