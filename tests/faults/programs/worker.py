"""A worker for tests that kill, stop or poison it.

::

    worker.py rep ADDRESS
    worker.py pull ADDRESS COMMIT_ADDRESS
    worker.py library ENDPOINT QUEUE PREFETCH CONCURRENCY

It says ``got TIME JOB ATTEMPT`` (monotonic seconds, the same clock in all processes) when it has a
job, and ``done JOB`` when it has answered. A job that begins with ``hold`` is answered after a
line on stdin; one that begins with ``poison`` kills its worker.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

import zmq

import sluicemq


def main() -> None:
    kind, *arguments = sys.argv[1:]
    kinds: dict[str, Callable[..., None]] = {"rep": rep, "pull": pull, "library": library}
    kinds[kind](*arguments)


def rep(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.connect(address)
        say("ready")
        while True:
            payload = socket.recv()
            work(payload)
            socket.send(b"")
            say("done", payload.decode())


def pull(address: str, commit_address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as jobs, context.socket(zmq.PUSH) as commits:
        jobs.rcvhwm = 1
        jobs.connect(address)
        commits.connect(commit_address)
        say("ready")
        while True:
            receipt, payload = jobs.recv_multipart()
            work(payload)
            commits.send_multipart([b"COMMIT", receipt])
            say("done", payload.decode())


def library(endpoint: str, queue: str, prefetch: str, concurrency: str) -> None:
    def handler(job: sluicemq.Job) -> None:
        work(job.payload, job.attempt)
        say("done", job.payload.decode())

    worker = sluicemq.Worker(
        queue, handler, prefetch=int(prefetch), concurrency=int(concurrency), endpoint=endpoint
    )
    say("ready")
    worker.run()


def work(payload: bytes, attempt: int = 0) -> None:
    say("got", repr(time.monotonic()), payload.decode(), str(attempt))
    if payload.startswith(b"poison"):
        os.kill(os.getpid(), signal.SIGKILL)
    if payload.startswith(b"hold"):
        os.read(0, 1)  # not readline: one thread would take the lines of all


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


main()
