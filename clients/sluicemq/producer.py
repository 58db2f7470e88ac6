"""Push jobs, one by one; the library makes batches of them and waits for the confirmations."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from sluicemq import forks, tracing, wire
from sluicemq.errors import BadFrames, BadHeaders, BadQueue, SluiceError, Timeout, TooLarge
from sluicemq.headers import Headers, as_bytes, as_headers, checked_id
from sluicemq.options import RESULT, JobOptions, NewJob
from sluicemq.receipt import Receipt
from sluicemq.reply import Reply
from sluicemq.transport import exits, native
from sluicemq.transport.connection import Connection
from sluicemq.transport.outbox import Batch, Outbox
from sluicemq.transport.replies import AskingReceipt

if TYPE_CHECKING:
    from sluicemq.spans import Sending

_JOB_OVERHEAD = 64  # bytes that a job costs here beside its payload, so that empty ones count too
_REFUSALS_KEPT = 1000

_R = TypeVar("_R", bound=Receipt)


class Producer:
    """Pushes jobs to one broker; from any number of threads or greenlets.

    ``endpoint``: without one, what ``SLUICEMQ_ENDPOINT`` names, or ``tcp://127.0.0.1:5550``.

    ``push`` returns at once; a native I/O thread sends what has been collected, several messages in
    flight, and repeats by id after a reconnect what was not confirmed. The order of the pushes to a
    queue is kept, also then.

    ``window`` and ``window_bytes`` bound what is unconfirmed: ``push`` blocks there, up to
    ``push_timeout`` seconds (None: as long as it takes) and raises :class:`~sluicemq.Timeout`.

    **No refusal vanishes.** ``Receipt.wait`` raises it; ``on_refused(receipt, error)``, if given,
    hears of every one (it runs in the I/O thread, so it must be short and must not wait for this
    producer); what neither has heard is raised by the next ``flush`` or ``close``.

    Leaving the ``with`` block waits for all confirmations, up to ``close_timeout`` seconds. A
    producer that is still open when the program ends is flushed for 5 s.

    In the child of a fork it is as new: it connects again when it is first used there, and has nothing of
    what the parent has pushed, whose receipts raise :class:`~sluicemq.Forked`. A child that ends with
    ``os._exit`` must ``close`` it, or ``flush``, before.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        window: int = 20_000,
        window_bytes: int = 64 << 20,
        push_timeout: float | None = None,
        close_timeout: float = 60.0,
        on_refused: Callable[[Receipt, SluiceError], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._window, self._window_bytes = window, window_bytes
        self._push_timeout, self._close_timeout = push_timeout, close_timeout
        self._on_refused = on_refused
        self._closed = False
        self._begin()
        self._connection.start()
        exits.close_at_exit(self)
        forks.tell(self, Producer._forked)

    @property
    def unconfirmed(self) -> int:
        """Jobs pushed of which the broker has not yet said what became of them."""
        return self._unconfirmed

    @property
    def refused(self) -> int:
        """Jobs that the broker has refused so far."""
        return self._refusals.count

    def push(
        self,
        queue: str,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002 - the word that jobs use everywhere
        **options: Unpack[JobOptions],
    ) -> Receipt:
        """Push one job; blocks only while too much is unconfirmed.

        ``id``: up to 128 bytes, chosen by the library if None; ``priority``: higher first;
        ``delay``, ``ttl``, ``visibility_timeout``, ``keep_done``: seconds, or a ``timedelta``;
        ``not_before``: a ``datetime`` with a time zone, Unix seconds or RFC 3339; ``max_attempts``:
        deliveries before it is dead, 0: no end; ``backoff``: ``exponential``, ``linear``, ``fixed``,
        ``none``, or a map of ``kind``, ``base``, ``factor``, ``cap``, ``jitter``; ``dedupe_id``: within
        ``dedupe_window`` seconds no other job with it is taken, but refused as
        :class:`~sluicemq.Duplicate`, whose ``id`` is the first one's; ``group``: jobs of one group run one
        at a time, in the order in which they were pushed; ``headers``: a map of your own, handed to the
        worker.
        What is None is as the queue's settings have it.

        Raises TypeError or ValueError for what is no job, :class:`~sluicemq.BadQueue`,
        :class:`~sluicemq.BadHeaders`, :class:`~sluicemq.TooLarge` (once the broker has told its
        limit), and what ended the connection if it has ended.
        """
        receipt = self._made(Receipt, queue, payload, id, options)
        self._enqueue(receipt)
        return receipt

    def push_many(
        self, queue: str, jobs: Iterable[bytes | NewJob], *, start: int = 0, **options: Unpack[JobOptions]
    ) -> list[Receipt]:
        """Push many jobs; of those only what is wrong is refused, each by its receipt's ``position``.

        Each is a payload, or a map of what ``push`` takes (``{"payload": b"...", "delay": 5}``) over the
        ``options`` of all; ``start``: the position of the first. Returns a receipt for every job, in
        their order. What ``push`` would raise of one job is raised by its receipt's ``wait``, and counts
        as refused. Raises :class:`~sluicemq.BadQueue`, and what ended the connection.
        """
        with tracing.sending_many(queue, self._connection.endpoint) as sending:
            return [
                self._push_at(position, queue, job, options, sending)
                for position, job in enumerate(jobs, start)
            ]

    def submit(
        self,
        queue: str,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002
        **options: Unpack[JobOptions],
    ) -> Reply:
        """Push one job and have its result in time: a :class:`concurrent.futures.Future` of bytes.

        ``options`` are those of ``push``; with an ``id`` that was pushed before, the result is the stored
        one (for the queue's ``remember`` seconds), or that of the running job. The future raises the
        error of a refused push, :class:`~sluicemq.Dead`, :class:`~sluicemq.Expired`, or
        :class:`~sluicemq.Uncertain`. A lost connection changes nothing: it is asked again by id. Close
        the producer only when you have the results: closing ends the rest with
        :class:`~sluicemq.Unavailable`, though their jobs are done all the same.
        """
        reply = Reply()
        receipt = self._made(AskingReceipt, queue, payload, id, options, reply=RESULT)
        receipt.asks(reply, self._outbox.replies)
        self._enqueue(receipt)
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

        Raises :class:`~sluicemq.Timeout`, the job being still on its way then (ask for it with
        ``Client.result``, or call again with the same ``id``), and what :meth:`submit`'s future raises.
        """
        reply = self.submit(queue, payload, id=id, **options)
        try:
            return reply.result(timeout)
        except TimeoutError:
            reply.cancel()
            job = f"job {reply.receipt.id} for queue {queue}"
            raise Timeout(f"{job} has no result after {timeout:g} s", reply.receipt.id) from None

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is unconfirmed.

        Raises :class:`~sluicemq.Timeout` naming how many jobs still are; and if jobs were refused
        of which nobody has heard yet, the error of the first, naming how many.
        """
        with self._room:
            if not self._room.wait_for(lambda: not self._unconfirmed, timeout):
                raise Timeout(f"{self._unconfirmed} jobs are not confirmed after {timeout:g} s")
        self._refusals.raise_unheard()

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds (None: ``close_timeout``), then end the connection.

        Raises what ``flush`` raises; the connection is closed in any case. Again is harmless.
        """
        if self._closed:
            return
        with self._room:
            self._closed = True
            self._room.notify_all()  # a push that waits for room raises now
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
            native.log.error("while leaving a producer's block: %s", unkept)

    def _begin(self) -> None:
        """All that belongs to one process: its connection and locks, what is under way, its ids."""
        self._refusals = _Refusals()
        self._unconfirmed = self._unconfirmed_bytes = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._new_id = _id_maker()
        self._outbox = Outbox(self._settled)
        self._connection = Connection(self._endpoint, self._outbox)
        self._outbox.attach(self._connection)

    def _forked(self) -> None:
        self._connection.abandon()
        self._begin()
        self._connection.start_when_used(partial(exits.close_at_exit, self))

    def _made(
        self,
        kind: type[_R],
        queue: str,
        payload: bytes,
        id: str | None,  # noqa: A002
        options: JobOptions,
        reply: str | None = None,
    ) -> _R:
        """The receipt of one push, with a span of its own where somebody traces."""
        spans = tracing.current()
        if spans is None:
            return kind(*self._checked(queue, payload, id, options, reply))
        sending = spans.sending(queue, self._connection.endpoint, options.get("headers"))
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
    ) -> tuple[str, str, bytes, Headers | None, int, int]:
        """What a receipt is made of; raises what ``push`` raises of a job."""
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        limit = self._connection.max_job_bytes
        if limit is not None and len(payload) > limit:
            raise TooLarge(f"the payload has {len(payload)} bytes, this broker takes {limit}")
        if not wire.is_queue_name(queue):
            raise BadQueue(f"{queue!r} is no queue name: {wire.QUEUE_NAME_RULE}")
        headers, header_bytes = as_headers(options, reply) if options or reply else (None, 0)
        size = _JOB_OVERHEAD + len(payload) + header_bytes
        return queue, self._new_id() if id is None else checked_id(id), payload, headers, size, header_bytes

    def _push_at(
        self, position: int, queue: str, job: bytes | NewJob, options: JobOptions, sending: Sending | None
    ) -> Receipt:
        given: Any = {**options, **(job if isinstance(job, Mapping) else {"payload": job})}
        job_id = given.pop("id", None)
        try:
            payload = given.pop("payload", None)
            if sending is not None:
                given = sending.carried(given)
            receipt = Receipt(*self._checked(queue, payload, job_id, given))
            receipt.position = position
            if sending is not None:
                sending.add(receipt)
            self._enqueue(receipt)
        except (TypeError, ValueError, BadHeaders, TooLarge) as error:
            return self._refused_at_once(position, queue, job_id, error, sending)
        return receipt

    def _refused_at_once(
        self, position: int, queue: str, job_id: object, error: Exception, sending: Sending | None
    ) -> Receipt:
        kind = type(error) if isinstance(error, SluiceError) else BadFrames
        receipt = Receipt(queue, str(job_id or self._new_id()), b"", None, _JOB_OVERHEAD)
        receipt.position = position
        with self._lock:
            self._count(receipt)
        if sending is not None:
            sending.add(receipt)
        self._connection.call(self._connection.post, self._settled, [receipt], {0: kind(str(error))})
        return receipt

    def _enqueue(self, receipt: Receipt) -> None:
        try:
            with self._lock:
                if not self._has_room(receipt.size):
                    self._wait_for_room(receipt.size)
                self._count(receipt)
                self._outbox.jobs.append(receipt)
        except BaseException as error:
            if receipt.sending is not None:
                receipt.sending.answered(error)
            raise
        self._connection.wake()

    def _count(self, receipt: Receipt) -> None:
        if self._closed or self._connection.failure:
            raise self._connection.failure or ValueError("push to a closed producer")
        self._unconfirmed += 1
        self._unconfirmed_bytes += receipt.size

    def _has_room(self, size: int) -> bool:
        if self._unconfirmed == 0:
            return True  # or a job larger than the window would wait for ever
        return self._unconfirmed < self._window and self._unconfirmed_bytes + size <= self._window_bytes

    def _wait_for_room(self, size: int) -> None:
        def free() -> bool:
            return self._has_room(size) or self._closed or self._connection.failure is not None

        if not self._room.wait_for(free, self._push_timeout):
            raise Timeout(f"{self._unconfirmed} jobs are unconfirmed, no room after {self._push_timeout:g} s")

    def _settled(self, batch: Batch, refused: dict[int, SluiceError]) -> None:
        size = 0
        for receipt in batch:
            size += receipt.size
        self._settle_each(batch, refused)
        with self._lock:
            self._unconfirmed -= len(batch)
            self._unconfirmed_bytes -= size
            if self._roomy():
                self._room.notify_all()

    def _roomy(self) -> bool:
        """Whether it is worth waking those who wait: not for every few jobs of a full window."""
        return (
            self._unconfirmed <= self._window * 3 // 4
            and self._unconfirmed_bytes <= self._window_bytes * 3 // 4
        )

    def _settle_each(self, batch: Batch, refused: dict[int, SluiceError]) -> None:
        if not refused:
            for receipt in batch:
                receipt.settle()
            return
        for position, receipt in enumerate(batch):
            error = refused.get(position)
            if error is not None:
                self._refusals.add(receipt, error)
            receipt.settle(error)
            if error is not None and self._on_refused is not None:
                self._tell(receipt, error)

    def _tell(self, receipt: Receipt, error: SluiceError) -> None:
        receipt.heard = True
        try:
            self._on_refused(receipt, error)  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - the others must be told all the same
            native.log.exception("on_refused failed for job %s", receipt.id)


class _Refusals:
    """Counts refused jobs and keeps the first of them until somebody has heard of them."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[tuple[Receipt, SluiceError]] = []
        self._beyond = 0

    def add(self, receipt: Receipt, error: SluiceError) -> None:
        self.count += 1
        if self.count & (self.count - 1) == 0:  # 1, 2, 4, 8, ...: seen in the log, never flooding it
            native.log.warning("%d pushes refused, the last: %s to %s: %s", self.count, receipt.id,
                               receipt.queue, error)  # fmt: skip
        if len(self._kept) < _REFUSALS_KEPT:
            self._kept.append((receipt, error))
        else:
            self._beyond += 1

    def raise_unheard(self) -> None:
        kept, self._kept = self._kept, []
        beyond, self._beyond = self._beyond, 0
        unheard = [(receipt, error) for receipt, error in kept if not receipt.heard]
        if unheard:
            first, error = unheard[0]
            place = "" if first.position is None else f" at position {first.position}"
            name = f"{first.id}{place} for queue {first.queue}"
            what = f"{len(unheard) + beyond} jobs were refused, the first: {name}"
            told = type(error)(f"{what}: {error}")
            vars(told).update(vars(error))  # the id in a Duplicate
            raise told from error


def _id_maker() -> Callable[[], str]:
    """Ids that sort by time: milliseconds, then this producer's random mark, then a counter."""
    mark = os.urandom(5).hex()
    counter = itertools.count()

    def new_id() -> str:
        return f"{time_ns() // 1_000_000:012x}{mark}{next(counter) & 0xFFFFFFFF:08x}"

    return new_id
