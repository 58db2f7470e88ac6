"""Producers and workers for ``figures.py``: each prints its figure as its last word."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time

import zmq

from sluicemq import Client, Job, Producer, Worker

SIZE = 200


def push(endpoint: str, queue: str, jobs: str) -> float:
    """Push jobs with the library; jobs a second until the last one is confirmed."""
    payload = os.urandom(SIZE)
    began = time.perf_counter()
    with Producer(endpoint) as producer:
        for _ in range(int(jobs)):
            producer.push(queue, payload)
    return int(jobs) / (time.perf_counter() - began)


def work(endpoint: str, queue: str, jobs: str, prefetch: str) -> float:
    """Work with the library; jobs a second from the first job to the confirmation of the last commit."""
    wanted, finished = int(jobs), threading.Event()
    seen = 0
    began = 0.0

    def handler(_job: Job) -> None:
        nonlocal seen, began
        began = began or time.perf_counter()
        seen += 1
        if seen == wanted:
            finished.set()

    worker = Worker(endpoint, queue, handler, prefetch=int(prefetch))
    worker.start()
    print("ready", flush=True)
    finished.wait(100)
    worker.stop()
    return wanted / (time.perf_counter() - began)


def through(endpoint: str, queue: str, jobs: str) -> float:
    """Push jobs for other workers; jobs a second until the queue is empty."""
    with Client(endpoint) as client, Producer(endpoint) as producer:
        committed = client.stats()["counters"].get("committed", 0)
        began = time.perf_counter()
        for _ in range(int(jobs)):
            producer.push(queue, b"x" * SIZE)
        producer.flush()
        while client.stats()["counters"].get("committed", 0) - committed < int(jobs):
            time.sleep(0.02)
        return int(jobs) / (time.perf_counter() - began)


def latency(endpoint: str, queue: str, jobs: str) -> float:
    """Push one job at a time to an idle worker; median milliseconds from push to handler."""
    taken: list[float] = []
    arrived = threading.Event()

    def handler(_job: Job) -> None:
        taken.append((time.perf_counter() - began) * 1000)
        arrived.set()

    worker = Worker(endpoint, queue, handler)
    worker.start()
    with Producer(endpoint) as producer:
        for _ in range(int(jobs)):
            arrived.clear()
            began = time.perf_counter()
            producer.push(queue, b"x" * SIZE)
            arrived.wait(10)
            time.sleep(0.005)
    worker.stop()
    return statistics.median(taken)


def rep(endpoint: str) -> float:
    """A plain REP worker that does nothing, until it is killed."""
    worker = zmq.Context().socket(zmq.REP)
    worker.connect(endpoint)
    print("ready", flush=True)
    while True:
        worker.recv()
        worker.send(b"")


def flood(endpoint: str, messages: str) -> float:
    """A plain PUSH producer of 64-byte messages."""
    context = zmq.Context()
    producer = context.socket(zmq.PUSH)
    producer.connect(endpoint)
    for _ in range(int(messages)):
        producer.send(b"x" * 64)
    producer.close()
    context.term()
    return 0.0


def pull(endpoint: str, messages: str) -> float:
    """A plain PULL worker; messages a second from the first to the last."""
    worker = zmq.Context().socket(zmq.PULL)
    worker.connect(endpoint)
    worker.recv()
    began = time.perf_counter()
    for _ in range(int(messages) - 1):
        worker.recv()
    return int(messages) / (time.perf_counter() - began)


def purge(endpoint: str, queue: str) -> float:
    """Remove what a scenario left."""
    with Client(endpoint, timeout=60) as client:
        return float(client.purge(queue))


if __name__ == "__main__":
    print(globals()[sys.argv[1]](*sys.argv[2:]))
