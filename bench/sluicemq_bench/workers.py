"""Workers of the bench, one function for each kind; a process may be many of them.

Each gives every payload to ``tally`` and settles the job. It ends when the tally is over or, while nothing
comes, when the counts says so. It returns once its verdicts have been sent (the library's: confirmed).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import zmq

from sluicemq.protocol.errors import Requeue
from sluicemq.worker import Worker
from sluicemq_bench.access import connect
from sluicemq_bench.shared_counts import SharedCounts
from sluicemq_bench.task import Task

Socket = zmq.Socket[bytes]

_IDLE = 0.02  # seconds between looks for the end, while nothing comes


class Tally(Protocol):
    """The action for each job: count it, time it."""

    @property
    def over(self) -> bool:
        """Return whether this worker has seen the last job of the run."""

    def __call__(self, payload: bytes, /) -> None:
        """Note a job in the worker's worker_numbers."""

    def started(self, start: int) -> None:
        """Note the start of the run, at ``start`` (monotonic ns)."""


#: Reports that the worker is ready, and waits for the start.
AwaitGo = Callable[[], int]


def work_with_library(task: Task, counts: SharedCounts, tally: Tally, await_go: AwaitGo) -> None:
    """Run the library's workers."""
    finished = threading.Event()
    counting = threading.Lock()

    def handler(job: Any) -> None:
        with counting:
            if finished.is_set():
                raise Requeue("it had been handed over before the stop")
            tally(job.payload)
            if tally.over:
                finished.set()

    with ExitStack() as stack:
        workers = _library_workers(task, handler)
        for worker in workers:
            stack.callback(worker.stop)
            if task.early:
                worker.start()
        tally.started(await_go())
        for worker in workers:
            worker.start()
        while not (finished.wait(_IDLE) or counts.is_over()):
            pass
        finished.set()


def work_with_rep(task: Task, counts: SharedCounts, tally: Tally, await_go: AwaitGo) -> None:
    """Run plain REP sockets with empty answers."""
    with _connected(task, zmq.REP, tally, await_go) as sockets:
        for socket, payload in _received(sockets, counts, tally):
            tally(payload)
            socket.send(b"")


def work_with_pull(task: Task, counts: SharedCounts, tally: Tally, await_go: AwaitGo) -> None:
    """Run plain PULL sockets; with explicit commits, a PUSH socket commits each job."""
    if task.plan.ack == "explicit":
        _take_and_commit(task, counts, tally, await_go)
        return
    with _connected(task, zmq.PULL, tally, await_go) as sockets:
        for socket, payload in _received(sockets, counts, tally):
            if socket.getsockopt(zmq.RCVMORE):
                sys.exit(
                    f"{task.site.backend} hands out jobs of several frames: "
                    'its device needs ack = "received" or "auto", or this run --ack explicit'
                )
            tally(payload)


WORKERS_OF: dict[str, Callable[[Task, SharedCounts, Tally, AwaitGo], None]] = {
    "library": work_with_library,
    "rep": work_with_rep,
    "pull": work_with_pull,
    "req": work_with_rep,
}


def _take_and_commit(task: Task, counts: SharedCounts, tally: Tally, await_go: AwaitGo) -> None:
    with _connected(task, zmq.PULL, tally, await_go) as sockets, _committing(task) as commits:
        for socket, receipt in _received(sockets, counts, tally):
            if not socket.getsockopt(zmq.RCVMORE):
                sys.exit(
                    f'{task.site.backend} hands out jobs without receipts: its device needs ack = "explicit"'
                )
            tally(socket.recv())
            commits.send_multipart([b"COMMIT", receipt])


def _library_workers(task: Task, handler: Callable[[Any], None]) -> list[Worker]:
    queues = task.site.queues(task.plan)
    return [
        Worker(
            queues[number % len(queues)], handler, prefetch=task.plan.prefetch, endpoint=task.site.endpoint
        )
        for number in task.worker_numbers
    ]


def _received(
    sockets: Sequence[Socket], counts: SharedCounts, tally: Tally
) -> Iterator[tuple[Socket, bytes]]:
    """Yield the first frame of each message and its receiver, until the run is over."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    while not tally.over:
        ready = poller.poll(int(_IDLE * 1000))
        if not ready and counts.is_over():
            return
        for socket, _ in ready:
            yield socket, socket.recv()
            if tally.over:
                return


@contextmanager
def _connected(task: Task, kind: int, tally: Tally, await_go: AwaitGo) -> Iterator[list[Socket]]:
    with _sockets(kind, len(task.worker_numbers)) as sockets:
        start = 0 if task.early else await_go()
        for socket in sockets:
            connect(socket, task.site.backend)
        tally.started(start or await_go())
        yield sockets


@contextmanager
def _committing(task: Task) -> Iterator[Socket]:
    with _sockets(zmq.PUSH, 1) as [commits]:
        connect(commits, task.site.commit)
        yield commits


@contextmanager
def _sockets(kind: int, count: int) -> Iterator[list[Socket]]:
    """Open sockets of one context; a PUSH socket sends all it has before it is closed."""
    with zmq.Context() as context, ExitStack() as stack:
        yield [stack.enter_context(context.socket(kind)) for _ in range(count)]
