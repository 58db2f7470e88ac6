"""Producers of the bench, one class for each kind."""

from __future__ import annotations

import json
from itertools import cycle
from time import monotonic_ns
from typing import Protocol, Self

import zmq

from sluicemq.producer import Producer
from sluicemq_bench.access import connect
from sluicemq_bench.due_times import Times
from sluicemq_bench.task import Task

#: The times of this kind of operation are reported under its name.
CONFIRMED = "confirmed"

_ACCEPTED = json.dumps({"reply": "accepted"}).encode()


class Source(Protocol):
    """Sends jobs one by one."""

    times: Times
    """Nanoseconds from each job's stamp to its confirmation, if the source waits for that."""

    def send(self, payload: bytes, stamp: int) -> None:
        """Send one job; returns as soon as the next may be sent."""

    def confirmed(self) -> int:
        """Return how many jobs are stored durably; sent ones if nobody confirms."""

    def send_together(self, payloads: list[bytes]) -> None:
        """Send these at once, like as many publishers, and time each up to its confirmation."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None:
        """Wait until all that was sent is confirmed."""


class LibrarySource:
    """The library's producer."""

    def __init__(self, task: Task) -> None:
        self.times = Times()
        self._queues = cycle(task.site.queues(task.plan))
        self._sent = 0
        self._headers = task.plan.headers
        self._producer = Producer(window=task.plan.window, endpoint=task.site.endpoint)

    def send(self, payload: bytes, stamp: int) -> None:  # noqa: ARG002 - the worker times it
        """Push; the library makes batches."""
        self._sent += 1
        self._producer.push(next(self._queues), payload, **self._headers)

    def confirmed(self) -> int:
        """Return how many jobs the broker has confirmed."""
        return self._sent - self._producer.unconfirmed

    def send_together(self, payloads: list[bytes]) -> None:
        """Push all, then wait for each in its turn."""
        pushed = [
            (monotonic_ns(), self._producer.push(next(self._queues), payload, **self._headers))
            for payload in payloads
        ]
        for began, receipt in pushed:
            receipt.wait()
            self.times.add(monotonic_ns() - began)
        self._sent += len(payloads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._producer.close()


class OneByOneSource(LibrarySource):
    """The library's producer, waiting for each confirmation."""

    def send(self, payload: bytes, stamp: int) -> None:
        """Push and wait."""
        self._producer.push(next(self._queues), payload, **self._headers).wait()
        self._sent += 1
        self.times.add(monotonic_ns() - stamp)


class _SocketSource:
    """Common part of the plain sockets."""

    def __init__(self, kind: int, address: str) -> None:
        self.times = Times()
        self._sent = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        connect(self._socket, address)

    def confirmed(self) -> int:
        """Return how many jobs were sent."""
        return self._sent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()
        self._context.term()  # waits until all is written


class PushSource(_SocketSource):
    """A plain PUSH socket: it gets no confirmation."""

    def __init__(self, task: Task) -> None:
        super().__init__(zmq.PUSH, task.site.frontend)

    def send(self, payload: bytes, stamp: int) -> None:  # noqa: ARG002 - the worker times it
        """Send; blocks at the broker's high-water mark."""
        self._socket.send(payload)
        self._sent += 1

    def send_together(self, payloads: list[bytes]) -> None:
        """Not used: there is nothing to time."""
        raise NotImplementedError


class AskSource(_SocketSource):
    """A plain REQ socket; it waits for the result, or without workers for the acceptance."""

    def __init__(self, task: Task) -> None:
        super().__init__(zmq.REQ, task.site.frontend)
        self._accepted_only = task.plan.scenario in ("push", "simulate")

    def send(self, payload: bytes, stamp: int) -> None:
        """Ask and wait for the answer."""
        self._socket.send_multipart([b"", _ACCEPTED, payload] if self._accepted_only else [payload])
        answer = self._socket.recv_multipart()
        if answer[0] == b"ERROR":
            raise RuntimeError(answer[1].decode())
        self._sent += 1
        self.times.add(monotonic_ns() - stamp)

    def send_together(self, payloads: list[bytes]) -> None:
        """Send one after the other: a REQ socket can't do otherwise."""
        for payload in payloads:
            self.send(payload, monotonic_ns())


def source_for(task: Task) -> Source:
    """Return the producer for the plan's door and window."""
    if task.plan.door in ("library", "rep"):
        return OneByOneSource(task) if task.plan.window == 1 else LibrarySource(task)
    return PushSource(task) if task.plan.door == "pull" else AskSource(task)
