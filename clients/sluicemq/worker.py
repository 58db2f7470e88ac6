"""Workers: run a handler for the jobs of a queue."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Unpack
from weakref import WeakSet

from sluicemq import forks, handlers
from sluicemq._deprecated import Keyword, endpoint_first
from sluicemq.arguments import checked
from sluicemq.codec import JSON, CodecArgument
from sluicemq.complaints import complain, log
from sluicemq.handlers import Handler
from sluicemq.job import Job
from sluicemq.life import LongLived
from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.readable import said
from sluicemq.stop_signals import StopSignals
from sluicemq.time_limits import log_hung
from sluicemq.transport import exits, native
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.assignment import Assignment, JobVerdict, not_begun
from sluicemq.transport.candidates import TakenEndpoints
from sluicemq.transport.connection import Connection
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.endpoints import most_brokers
from sluicemq.transport.pop import PopAssignment
from sluicemq.transport.role import Roles
from sluicemq.transport.shares import Shares
from sluicemq.verdicts import Verdicts
from sluicemq.worker_queues import QueueOrder, Queues, one_inbox, prefetch_of, weights_of

#: Seconds that running handlers have by default when a worker is stopped.
STOP_TIMEOUT: Final = 30.0
#: Connections of one worker to brokers, at most.
MOST_CONNECTIONS: Final = 4

_started: WeakSet[Worker] = WeakSet()
"""Workers of this process that were started: a signal is for all of them."""


@endpoint_first("queue", "handler", wait_for_queue=Keyword("wait"))
@checked()
class Worker(LongLived):
    """Takes jobs of a queue, or of several, and gives each to ``handler``, in ``concurrency`` threads.

    ``queue``: a name, a list of names, or a map of weights: of ``{"mail": 3, "bulk": 1}`` three mails begin
    for each bulk job while both queues have jobs. With ``order="strict"`` no job of a queue begins while one
    of a queue before it is here. All queues share the connection and the threads.

    ``endpoint``: where the broker is; None means ``SLUICEMQ_ENDPOINT``, else the profile's, else
    ``tcp://127.0.0.1:5550``. With several endpoints it works for several brokers at once, by one connection
    to each, or to four of many, chosen at random. They share its ``prefetch``. When one is lost the others
    get its share.

    The handler's end settles the job:

    * it returns bytes or None: **commit**, with that result;
    * it returns a :class:`~sluicemq.Forward`: the job goes on to another queue;
    * it returns a :class:`~sluicemq.FanOut`: the job waits for its children;
    * it raises :class:`~sluicemq.Reject`: the job becomes a dead letter, with the exception's text;
    * it raises :class:`~sluicemq.Retry`, or any other exception: the job is given back with the text, and
      is delivered again (after ``Rollback.delay``, or else the job's back-off) until its ``max_attempts`` are
      used;
    * it raises :class:`~sluicemq.Requeue`: the job is given back as if it had not been delivered, and comes
      again after ``Release.delay``, or a second.

    The worker has ``prefetch`` jobs at a time, and never fewer than ``concurrency``. 1 is fair for slow jobs.
    Hundreds make short jobs fast, since their verdicts travel in batches. A worker of several queues has so
    many for each of them, shared out by their weights, and twice ``concurrency`` of each at least, so that
    the next one is here when a handler ends.

    Heartbeats and verdicts go on in a native thread while handlers block. After a lost connection the worker
    connects again. The broker takes back jobs that were not settled by then: the worker drops those that it
    has not started, and sends no late verdict. A job can therefore run twice.

    ``pop=True`` means at most once. The broker removes each job before it sends it, so there is nothing to
    settle. If a handler raises, the job is logged, counted in ``failed`` and gone; so are all jobs here if
    the process dies. ``stop`` first works off the jobs that have come.

    A queue is made by its first push, or by the configuration. The worker waits for a queue that does not
    exist, with a warning in the log that names the most similar queue; with ``wait=False``,
    ``run()`` raises :class:`~sluicemq.NotFoundError`.

    ``codec`` decodes the payloads of ``job.value()`` whose content type is not JSON, and encodes results that
    are not bytes.

    A handler that runs for longer than the ``soft_time_limit`` of its job is interrupted, by a
    :class:`~sluicemq.SoftTimeLimitError`: at once, unless it is in a call of C. At the ``hard_time_limit``
    its job has failed, and it gets a :class:`~sluicemq.HardTimeLimitError`. If it goes on nevertheless, the
    worker stops 5 seconds later, and ``run`` raises that error, for the process to be replaced. Under gevent
    only the broker ends the job.

    ``name`` is the worker's name in the broker's log and in the history of jobs, beside host and pid.

    ``on_stop``, if given, is called once when the worker begins to stop, before it waits for handlers. It
    runs in a thread of its own and has as much time as the handlers.

    ``run()`` blocks until SIGTERM or SIGINT, which stop all workers of the process. Or use ``start()`` and
    ``stop()``, or ``with``. In a process patched by gevent the threads are greenlets.

    Fork before ``start``: in a child, a worker that was started raises :class:`~sluicemq.ForkedError`, and
    its jobs stay the parent's. A worker that was not started can be used in the child.
    """

    _check = staticmethod(handlers.check)
    _open_mailbox = staticmethod(native.open_mailbox)
    _Verdicts: type[Verdicts] = Verdicts
    _Assignment: type[Assignment] = Assignment
    _PopAssignment: type[PopAssignment] = PopAssignment

    def __init__(
        self,
        queue: Queues,
        handler: Handler,
        *,
        order: QueueOrder = "weights",
        prefetch: int = 1,
        concurrency: int = 1,
        stop_timeout: float = STOP_TIMEOUT,
        pop: bool = False,
        wait: bool = True,
        on_stop: Callable[[], None] | None = None,
        name: str | None = None,
        codec: CodecArgument | None = None,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        if prefetch < 1 or concurrency < 1:
            raise ValueError("prefetch and concurrency are at least 1")
        self._check(handler)
        self._weights = weights_of(queue, order)
        self._order = order
        self._several = len(self._weights) > 1
        self.queue = ", ".join(self._weights)
        """The queue, or the queues with commas between them."""
        self._access = Access.chosen(endpoint, access)
        self._handler = handler
        self._prefetch = prefetch_of(self._weights, max(prefetch, concurrency), concurrency)
        self._concurrency = concurrency
        self._stop_timeout = stop_timeout
        self._on_stop = on_stop
        self._name = name
        self._pop = pop
        self._wait_for_queue = wait
        self._codec = codec
        self._started_in: int | None = None
        self._begin()
        forks.on_fork(self, Worker._forked)

    def _begin(self) -> None:
        """Create all that belongs to one process: connection, threads, locks, the jobs that have come."""
        self._change = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._stop_asked = threading.Event()
        self._signals = StopSignals(self._signalled)
        self._ending = False
        self._stopped = False
        self._stopping = threading.Lock()
        self._on_stop_thread: threading.Thread | None = None
        self._at_work: list[Job | None] = [None] * self._concurrency
        """The job that each thread has begun."""
        self._busy = 0
        self._failed = 0
        self._hung = 0
        """Handlers that have not ended after their hard time limits."""
        self._failure: Exception | None = None
        self._inboxes: dict[str, deque[Job]] = {queue: deque() for queue in self._weights}
        self._inbox = one_inbox(self._weights, self._inboxes, self._order)
        self._taken = TakenEndpoints()
        self._shares = {queue: Shares(count, self._at_work) for queue, count in self._prefetch.items()}
        self._assignments: list[Assignment] = []
        """One for each queue and connection."""
        count = min(MOST_CONNECTIONS, most_brokers(self._access.endpoints))
        self._connections = [self._connected() for _ in range(count)]
        self._verdicts = self._Verdicts(
            self._handler,
            self._access.endpoint,
            pop=self._pop,
            on_unusable=self._on_unusable,
            codec=self._codec,
            on_hung=self._on_hung,
        )

    def _connected(self) -> Connection:
        """Create a connection, with a part for each queue."""
        parts = {queue: self._assigned(queue) for queue in self._weights}
        self._assignments += parts.values()
        role = Roles(parts) if len(parts) > 1 else parts[self.queue]
        about = {
            "concurrency": self._concurrency,
            "features": [wire.CANCELS, wire.STOPS],
            **({} if self._name is None else {"name": self._name}),
        }
        connection = Connection(
            self._access, role, about=about, taken=self._taken, open_mailbox=self._open_mailbox
        )
        for part in parts.values():
            part.attach(connection)
        return connection

    def _assigned(self, queue: str) -> Assignment:
        """Create the part that one connection has of one queue."""
        kind = self._PopAssignment if self._pop else self._Assignment
        part = kind(
            queue,
            self._inboxes[queue],
            self._shares[queue],
            self._on_jobs,
            self._on_failure,
            self._at_work,
            wait_for_queue=self._wait_for_queue,
            codec=self._codec or JSON,
        )
        part.on_stop = self._stop_as_ordered
        return part

    def _stop_as_ordered(self) -> None:
        """Stop, as an operator wants it; ``run`` returns then."""
        log.info("worker of queue %s stops: an operator wants it", self.queue)
        threading.Thread(target=self.stop, name="sluicemq-stop").start()

    def _on_hung(self, job: Job) -> None:
        """Stop, as a handler does not end at its job's hard time limit; ``run`` raises that."""
        self._hung += 1
        self._failure = log_hung(job)
        threading.Thread(target=self.stop, name="sluicemq-stop").start()

    def _forked(self) -> None:
        """Drop jobs and signals in the child of a fork; a worker that was started can't be used there."""
        self._signals.forked()
        _started.discard(self)
        self._abandon()
        self._begin()
        if self._started_in is not None:
            self._abandon()
            self._ending = self._stopped = True  # a handler that forked and returns ends its thread
            self._stop_asked.set()

    def _abandon(self) -> None:
        for connection in self._connections:
            connection.abandon()

    @property
    def late(self) -> int:
        """Return how many verdicts came too late: the job was no longer this worker's."""
        return sum(self.late_by_kind.values())

    @property
    def late_by_kind(self) -> dict[str, int]:
        """Return the late verdicts by kind: COMMIT, ROLLBACK and REJECT."""
        return dict(sum((assignment.late for assignment in self._assignments), Counter()))

    @property
    def failed(self) -> int:
        """Return how many popped jobs were not done: their handler raised, or there was no time for them."""
        return self._failed

    def run(self, *others: Worker) -> None:
        """Work until SIGTERM, SIGINT or ``stop()`` from another thread; then finish or give back.

        ``others`` work beside it, until one of them all is stopped or can't go on. Signals are caught only in
        the main thread, and stop every worker of the process; a second one stops them at once. Raises the
        error that made it impossible to go on, such as :class:`~sluicemq.BadQueueError`.
        """
        together = [self, *others]
        for other in others:
            if other._started_in is not None:
                raise ValueError(f"the worker of queue {other.queue} was started before: give new ones")
            other._stop_asked = self._stop_asked
        with self._signals.caught(self._connections[0]):
            for worker in together:
                worker.start()
            self._stop_asked.wait()
            self._stop_all([*_started] if self._signals.count else together)
        for worker in together:
            if worker._failure is not None:
                raise worker._failure

    def start(self) -> None:
        """Begin to work in the background, without waiting for the broker; may be called again.

        Raises :class:`~sluicemq.ForkedError` in a child that was forked after the start.
        """
        if self._started_in is not None:
            forks.refuse("this worker, which was started", self._started_in, "make a new Worker here")
            return
        self._started_in = forks.generation
        for share in self._shares.values():
            share.alone.join(share)
        _started.add(self)
        for connection in self._connections:
            connection.start()
        exits.close_at_exit(self)
        for number in range(self._concurrency):
            name = f"sluicemq-{self.queue}-{number}"
            self._threads.append(threading.Thread(target=self._work, args=(number,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Take no more jobs, wait for running handlers, settle, give back the rest, disconnect.

        ``timeout`` (None: ``stop_timeout``) is for the handlers. Returns True if all have finished; jobs of
        the others are given back while they still run. May be called before ``start``, and again. In a
        handler it returns False at once, and the worker stops after that handler.
        """
        self._stop_asked.set()
        if threading.current_thread() in self._threads:
            if not self._pop:
                self._begin_no_more()
            threading.Thread(target=self.stop, args=(timeout,), name="sluicemq-stop").start()
            return False
        if threading.current_thread() is self._on_stop_thread:  # `on_stop` itself, which a stop waits for
            return False
        with self._stopping:
            if self._threads and not self._stopped:
                self._stopped = True
                try:
                    self._stop_in_order(self._stop_timeout if timeout is None else timeout)
                finally:
                    for share in self._shares.values():
                        share.alone.leave(share)
                    for connection in self._connections:
                        connection.close()
        return not self._busy

    def close(self, timeout: float | None = None) -> None:
        """Stop, and raise the error that made it impossible to go on."""
        self.stop(timeout)
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------ handler threads

    def _work(self, number: int) -> None:
        """Take jobs until the end; the last guard around a handler, for any exception.

        An exception that another thread raises in this one (``PyThreadState_SetAsyncExc``) ends a job too,
        and not the thread.
        """
        while True:
            try:
                self._take_jobs(number)
            except BaseException as error:
                job, self._at_work[number] = self._at_work[number], None
                if job is None and type(error).__name__ == "GreenletExit":  # gevent ends an idle one
                    raise
                complain("a thread of the worker of queue %s goes on", self.queue)
                if job is not None:
                    self._settle(JobVerdict(job, wire.ROLLBACK, said(error, named=True)))
            else:
                return

    def _take_jobs(self, number: int) -> None:
        while self._wait_for_jobs():
            try:
                while (job := self._next_job()) is not None:
                    if job.is_held and (not job.source.doubtful or self._may_begin(job)):
                        self._at_work[number] = job
                        if monotonic() >= job.source.late_from:
                            job.source.begin(job)
                        verdict = self._verdicts.on(job)
                        self._at_work[number] = None
                        self._settle(verdict)
            finally:
                self._be_idle()

    def _may_begin(self, job: Job) -> bool:
        """Return whether a job is still held after a standstill; it goes back if the worker ends."""
        held: bool = job.source.still_holds(job)
        if held and self._ending:
            self._release([job])
            return False
        return held

    def _settle(self, verdict: JobVerdict) -> None:
        if self._pop and verdict.verb != wire.COMMIT:
            self._note_failed(1, f"{verdict.detail!r}; job {verdict.job.id} was popped, so it is")
        verdict.job.source.settle(verdict)
        if self._several:
            for share in self._shares.values():
                if share.stuck:  # this handler makes room for jobs of any queue
                    share.handler_ended()

    def _note_failed(self, count: int, what: str) -> None:
        with self._change:
            self._failed += count
        log.warning("%s lost", what)

    def _next_job(self) -> Job | None:
        try:
            return None if self._ending else self._inbox.popleft()
        except IndexError:
            return None

    def _wait_for_jobs(self) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._inbox or self._ending)
            if not self._ending:
                self._busy += 1
            return not self._ending

    def _be_idle(self) -> None:
        with self._change:
            self._busy -= 1
            if self._ending or self._stopped:
                self._change.notify_all()

    def _on_unusable(self, error: TypeError) -> None:
        """Stop: the handler does nothing, for any job."""
        self._failure = error
        log.error("worker of queue %s stops: %s", self.queue, error)
        self.stop()

    # ------------------------------------------------------------------ from the mailbox

    def _on_jobs(self, count: int) -> None:
        """Note that jobs have come."""
        if self._ending:
            self._release(self._rest())
        else:
            with self._change:
                self._change.notify(count)

    def _on_failure(self, error: SluiceError) -> None:
        if not self._stopped:
            self._failure = error
            self._stop_asked.set()

    # ------------------------------------------------------------------ stopping

    def _begin_no_more(self) -> None:
        with self._change:
            self._ending = True
            self._change.notify_all()

    def _stop_all(self, workers: list[Worker]) -> None:
        """Stop these workers at one time, and this one."""
        threads = [threading.Thread(target=worker.stop, name="sluicemq-stop") for worker in workers]
        for worker, thread in zip(workers, threads, strict=True):
            worker._signals = self._signals
            thread.start()
        self.stop()
        for thread in threads:
            thread.join()

    def _stop_in_order(self, seconds: float) -> None:
        if self._on_stop:
            # Seconds that ``on_stop`` has at least
            self._call_on_stop(self._on_stop, max(seconds, 1.0))
        if self._pop:
            self._work_off(seconds)
        self._give_back_the_rest()
        self._wait_for_handlers(seconds)
        self._wait_for_verdicts()

    def _call_on_stop(self, on_stop: Callable[[], None], seconds: float) -> None:
        """Call ``on_stop`` in a thread of its own: the stop goes on if it raises or does not return."""
        returned = threading.Event()

        def call() -> None:
            try:
                on_stop()
            except BaseException:  # noqa: BLE001 - any exception
                complain(
                    "on_stop of the worker of queue %s failed; the worker stops nevertheless", self.queue
                )
            with self._change:
                returned.set()
                self._change.notify_all()

        self._on_stop_thread = threading.Thread(target=call, name="sluicemq-on-stop", daemon=True)
        try:
            self._on_stop_thread.start()
        except RuntimeError:  # the program ends: Python starts no threads any more
            call()
        with self._change:
            self._change.wait_for(lambda: returned.is_set() or self._signals.count > 1, seconds)

    def _work_off(self, timeout: float) -> None:
        """Request no more jobs, and let the handlers work off the popped ones: nobody else has them."""
        self._ask_for_no_more()
        self._wait_for_verdicts()
        with self._change:
            self._change.wait_for(lambda: not (self._inbox or self._busy) or self._signals.count > 1, timeout)

    def _give_back_the_rest(self) -> None:
        self._begin_no_more()
        rest = self._rest()
        self._ask_for_no_more()
        self._release(rest)

    def _rest(self) -> list[Job]:
        """Remove the jobs that no handler has begun."""
        rest: list[Job] = []
        with suppress(IndexError):
            while True:
                rest.append(self._inbox.popleft())
        return rest

    def _release(self, jobs: list[Job]) -> None:
        if self._pop and jobs:
            self._note_failed(len(jobs), f"no time for {len(jobs)} popped jobs, they are")
        for job in jobs:
            job.source.settle(not_begun(job))

    def _wait_for_handlers(self, timeout: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._busy <= self._hung or self._signals.count > 1, timeout)
            busy = self._busy
        if busy == 1:
            log.warning("1 handler still runs; its job is given back")
        elif busy:
            log.warning("%d handlers still run; their jobs are given back", busy)

    def _ask_for_no_more(self) -> None:
        for assignment in self._assignments:
            with suppress(SluiceError):
                assignment.call(assignment.ask_for_no_more)

    def _wait_for_verdicts(self) -> None:
        answered: list[threading.Event] = []
        for assignment in self._assignments:
            with suppress(SluiceError):
                settled = threading.Event()
                assignment.call(assignment.when_settled, settled.set)
                answered.append(settled)
        # Seconds that the last verdicts have to be answered
        until = monotonic() + 2.0
        for settled in answered:
            settled.wait(max(0.0, until - monotonic()))

    def _signalled(self) -> None:
        self._stop_asked.set()
        for worker in (self, *_started):
            with worker._change:
                worker._change.notify_all()
