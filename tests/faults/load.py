"""Load on several brokers that keeps the books: confirmed, handled, committed, run again after that."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from pymongo.collection import Collection

from faults.proxied import RawClient
from sluicemq import Producer
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.waiting import wait_until

_AT_ONCE = 100


class Load:
    """A producer and a worker at each broker, in threads, from entering until :meth:`finish`.

    A worker's commit counts from its acknowledgement on: a job that comes again after it is a fault.
    """

    def __init__(self, brokers: Sequence[BrokerProcess], queue: str) -> None:
        self.confirmed: set[str] = set()
        self.committed: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.again: list[str] = []
        self.errors: list[BaseException] = []
        self._queue = queue
        self._lock = threading.Lock()
        self._enough, self._over = threading.Event(), threading.Event()
        endpoints = [broker.doors["smq"] for broker in brokers]
        self._producers = [
            self._thread(self._produce, endpoint, number) for number, endpoint in enumerate(endpoints)
        ]
        self._workers = [self._thread(self._work, endpoint) for endpoint in endpoints]

    def go_on(self, jobs: int = 300, timeout: float = 90.0) -> None:
        """Wait until ``count`` more jobs are confirmed, and committed."""
        confirmed, committed = len(self.confirmed) + jobs, len(self.committed) + jobs
        wait_until(
            lambda: self.errors or (len(self.confirmed) >= confirmed and len(self.committed) >= committed),
            timeout,
            "going on",
        )
        assert self.errors == []

    def finish(self, stored: Collection[dict[str, Any]], timeout: float = 120.0) -> None:
        """Push no more, wait until all is done, and look into the books."""
        self._enough.set()
        for producer in self._producers:
            producer.join(timeout)
        wait_until(lambda: self.errors or not stored.count_documents({}), timeout, "the end of all jobs")
        self._end()
        assert self.errors == []
        assert self.confirmed - self.handled.keys() == set(), "confirmed, and lost"
        assert self.again == [], "run again after an acknowledged commit"

    def __enter__(self) -> Self:
        for producer in (*self._producers, *self._workers):
            producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._enough.set()
        self._over.set()
        for producer in (*self._producers, *self._workers):
            producer.join(60)

    def _thread(self, target: Any, *arguments: Any) -> threading.Thread:
        return threading.Thread(target=self._noting_errors, args=(target, *arguments), daemon=True)

    def _noting_errors(self, target: Any, *arguments: Any) -> None:
        try:
            target(*arguments)
        except BaseException as error:  # noqa: BLE001 - reported by go_on() and finish()
            self.errors.append(error)

    def _produce(self, endpoint: str, number: int) -> None:
        with Producer(endpoint=endpoint) as producer:
            pushed = 0
            while not self._enough.is_set():
                names = [f"{number}-{pushed + place}" for place in range(_AT_ONCE)]
                for receipt in [producer.push(self._queue, b"payload", id=name) for name in names]:
                    receipt.wait(90)
                    self.confirmed.add(receipt.id)
                pushed += _AT_ONCE

    def _work(self, endpoint: str) -> None:
        with RawClient(endpoint, self._queue) as client:
            client.ready(_AT_ONCE)
            while not self._over.is_set():
                if client.offered(0.2):
                    self._work_on(client)

    def _work_on(self, client: RawClient) -> None:
        jobs = client.take_all()
        with self._lock:
            self.again += [job.id for job in jobs if job.id in self.committed]
            self.handled.update(job.id for job in jobs)
        verdicts = [[job.receipt, wire.COMMIT, None, None] for job in jobs]
        problems = {verdict[0] for verdict in client.answer(client.send(wire.SETTLE, verdicts), 120)}
        with self._lock:
            self.committed.update(job.id for at, job in enumerate(jobs) if at not in problems)
