"""The processes around a relay: plain sockets that send, receive and ask as fast as Python can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns

import zmq
import zmq.backend

from sluicemq_bench.shared_counts import SharedCounts
from sluicemq_bench.task import Site, Task, await_go, report

# Methods of the C class: those of zmq.Socket wrap them at twice the cost, and two cores do all the work.
_put = zmq.backend.Socket.send
_take = zmq.backend.Socket.recv
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE)

_COUNT_EVERY = 100
_IN_FLIGHT = 1_000  # questions without an answer yet; a queue surely takes 5,000 answers for one client
#: Messages that a publisher sends ahead of its slowest reader. libzmq exceeds its own mark by half,
#: since it learns only every 5,000 how many have gone: with a mark of 5,000 it drops some by itself.
_AHEAD = 4_000
_OWN_HWM = 10_000  # so that the relay's mark counts
_PROBE = b"?"
_TIMEOUT_MS = 10_000


def flood(task: Task, counts: SharedCounts) -> None:
    """Send through a PUSH socket."""
    with _socket(zmq.PUSH, task.site.frontend, task.site) as socket:
        await_go()
        message = bytes(task.plan.size)
        for _ in range(task.jobs):
            _put(socket, message)
        counts.set(task.jobs)
    report(task.jobs)


def sink(task: Task, counts: SharedCounts) -> None:
    """Receive through a PULL socket, until all of them together have everything."""
    with _socket(zmq.PULL, task.site.backend, task.site) as socket:
        await_go()
        _receive(socket, counts, 0)


def broadcast(task: Task, counts: SharedCounts) -> None:
    """Send through a PUB socket that waits for its subscribers, so that nothing is dropped."""
    with _socket(zmq.PUB, task.site.frontend, task.site) as socket:
        while counts.worked() < task.plan.workers:  # until all have heard a probe
            socket.send(_PROBE)
            time.sleep(0.01)
        await_go()
        message = bytes(task.plan.size)
        for sent in range(task.jobs):
            if sent % _COUNT_EVERY == 0:
                _let_them_follow(counts, sent, task.plan.workers)
            _put(socket, message)
        counts.set(task.jobs)
        report(task.jobs)


def listen(task: Task, counts: SharedCounts) -> None:
    """Receive through a SUB socket."""
    with _socket(zmq.SUB, task.site.backend, task.site) as socket:
        socket.subscribe(b"")
        socket.recv()
        counts.set(1)
        await_go()
        counts.set(0)
        _receive(socket, counts, len(_PROBE))


def call(task: Task, counts: SharedCounts) -> None:
    """Ask through a DEALER socket with many questions in flight; an answer counts."""
    with _socket(zmq.DEALER, task.site.frontend, task.site) as socket:
        await_go()
        question = bytes(task.plan.size)
        for _ in range(min(task.jobs, _IN_FLIGHT)):
            _ask(socket, question)
        for answered in range(1, task.jobs + 1):
            _take(socket)  # the empty frame
            _take(socket)
            if answered + _IN_FLIGHT <= task.jobs:
                _ask(socket, question)
            if answered % _COUNT_EVERY == 0:
                counts.set(answered)
        counts.set(task.jobs)
        report(task.jobs)


def echo(task: Task, counts: SharedCounts) -> None:
    """Answer through a REP socket."""
    done = 0
    with _socket(zmq.REP, task.site.backend, task.site) as socket:
        await_go()
        while not counts.is_over():
            done += _echo_all(socket)
            counts.set(done)
            socket.poll(20)
    report(done)


def _ask(socket: zmq.Socket[bytes], question: bytes) -> None:
    _put(socket, b"", _MORE)
    _put(socket, question)


def _echo_all(socket: zmq.Socket[bytes]) -> int:
    """Answer what is there, with a limit so that the count stays fresh; returns how many."""
    for echoed in range(_COUNT_EVERY):
        try:
            question = _take(socket, _NOBLOCK)
        except zmq.Again:
            return echoed
        _put(socket, question)
    return _COUNT_EVERY


def _receive(socket: zmq.Socket[bytes], counts: SharedCounts, ignored: int) -> None:
    """Count messages, but not those of the ignored size; a silence ends it too."""
    done = last = 0
    while not counts.is_over() and socket.poll(_TIMEOUT_MS if not done else 500):
        for _ in range(_COUNT_EVERY):
            try:
                done += len(_take(socket, _NOBLOCK)) != ignored
            except zmq.Again:
                break
        counts.set(done)
        last = monotonic_ns()
    report(done, ended=last)


def _let_them_follow(counts: SharedCounts, sent: int, readers: int) -> None:
    """Wait until the readers are near; not for ever, since a lost message never comes."""
    until = time.monotonic() + 1.0
    while sent - counts.worked() // readers > _AHEAD and time.monotonic() < until:
        time.sleep(0.0002)


@contextmanager
def _socket(kind: int, address: str, site: Site) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.set_hwm(_OWN_HWM)
        if site.server_key:
            socket.curve_serverkey = site.server_key.encode()
            socket.curve_publickey = site.public_key.encode()
            socket.curve_secretkey = site.secret_key.encode()
        socket.connect(address)
        yield socket
