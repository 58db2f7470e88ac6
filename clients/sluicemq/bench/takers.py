"""Workers of the bench, one function for each kind that a door knows.

Each gives every payload to ``tally`` and settles the job; it ends when the tally is over or, while
nothing comes, when the board says so. It returns once what it settled has been sent (the library:
confirmed).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import zmq

from sluicemq.bench.board import Board
from sluicemq.bench.task import Task
from sluicemq.worker import Worker

_IDLE = 0.02  # seconds between looks whether it is over, while nothing comes


class Tally(Protocol):
    """What is done with each job: count it, time it."""

    @property
    def over(self) -> bool:
        """Whether this worker has seen the last job of the run."""

    def __call__(self, payload: bytes, /) -> None:
        """A job is in the worker's hands."""

    def started(self, start: int) -> None:
        """The run has begun, at ``start`` (monotonic ns)."""


#: Says that the worker is ready, and waits for the start.
AwaitGo = Callable[[], int]


def take_with_library(task: Task, board: Board, tally: Tally, await_go: AwaitGo) -> None:
    """The library's worker."""
    finished = threading.Event()

    def handler(job: Any) -> None:
        if finished.is_set():
            return  # one that had been handed over before the stop; it is not counted
        tally(job.payload)
        if tally.over:
            finished.set()
            worker.stop()  # from here it only begins, and at once

    worker = Worker(task.site.endpoint, task.site.queue, handler, prefetch=task.plan.prefetch)
    if task.early:
        worker.start()
    tally.started(await_go())
    worker.start()
    while not (finished.wait(_IDLE) or board.is_over()):
        pass
    worker.stop()


def take_with_rep(task: Task, board: Board, tally: Tally, await_go: AwaitGo) -> None:
    """A plain REP socket that answers nothing."""
    with _connected(task, zmq.REP, tally, await_go) as socket:
        for payload in _received(socket, board, tally):
            tally(payload)
            socket.send(b"")


def take_with_pull(task: Task, board: Board, tally: Tally, await_go: AwaitGo) -> None:
    """A plain PULL socket that commits each job with a PUSH socket."""
    with _connected(task, zmq.PULL, tally, await_go) as socket, _committing(task) as commits:
        for receipt in _received(socket, board, tally):
            tally(socket.recv())
            commits.send_multipart([b"COMMIT", receipt])


TAKERS: dict[str, Callable[[Task, Board, Tally, AwaitGo], None]] = {
    "library": take_with_library,
    "rep": take_with_rep,
    "pull": take_with_pull,
    "req": take_with_rep,
}


def _received(socket: zmq.Socket[bytes], board: Board, tally: Tally) -> Iterator[bytes]:
    """The first frame of each message, until it is over."""
    while not tally.over:
        if socket.poll(int(_IDLE * 1000)):
            yield socket.recv()
        elif board.is_over():
            return


@contextmanager
def _connected(task: Task, kind: int, tally: Tally, await_go: AwaitGo) -> Iterator[zmq.Socket[bytes]]:
    with _socket(kind) as socket:
        if task.early:
            socket.connect(task.site.backend)
        start = await_go()
        if not task.early:
            socket.connect(task.site.backend)
        tally.started(start)
        yield socket


@contextmanager
def _committing(task: Task) -> Iterator[zmq.Socket[bytes]]:
    with _socket(zmq.PUSH) as commits:
        commits.connect(task.site.commit)
        yield commits


@contextmanager
def _socket(kind: int) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        yield socket
