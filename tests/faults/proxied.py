"""Two brokers on one database, each behind a proxy of its own, and clients that say each word by hand."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from secrets import token_hex
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import zmq
from pymongo import MongoClient

from faults.mongo_messages import Command
from faults.mongo_proxy import Chosen, CuttingProxy
from sluicemq import Client, Job, Worker
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: The clients here send no signs of life; leases outlast whatever a test holds back; brokers look often.
SETTINGS: Mapping[str, Any] = MappingProxyType(
    {"heartbeat": 20.0, "silence": 100.0, "lease": 30.0, "poll": 0.5, "stop_timeout": 3.0}
)


class ProxiedBroker(NamedTuple):
    """A broker and what lies between it and MongoDB."""

    proxy: CuttingProxy
    process: BrokerProcess

    @property
    def endpoint(self) -> str:
        return self.process.doors["smq"]

    def counter(self, name: str) -> int:
        with Client(endpoint=self.endpoint) as client:
            return int(client.counters().counters.get(name, 0))


class SharedQueue:
    """A queue that nobody else uses, at several brokers."""

    def __init__(self, brokers: list[ProxiedBroker], mongo: MongoClient[dict[str, Any]], name: str) -> None:
        self.brokers = brokers
        self.name = name
        self.database = mongo[brokers[0].process.config["broker"]["database"]]
        self.jobs = self.database[f"queue.{name}"]
        if self.jobs.name not in self.database.list_collection_names():
            self.database.create_collection(self.jobs.name)  # as if it had been pushed to
        self._open = ExitStack()

    @property
    def a(self) -> ProxiedBroker:
        """The first broker, to whose statements things happen."""
        return self.brokers[0]

    @property
    def b(self) -> ProxiedBroker:
        """The second."""
        return self.brokers[1]

    def on(self, name: str, state: str = "") -> Chosen:
        """Choose commands of this name about the queue; of updates, those that make jobs be in this state."""
        collection = f"queue.{self.name}"

        def chosen(command: Command) -> bool:
            return (
                command.name == name
                and command.collection == collection
                and (not state or state in made(command))
            )

        return chosen

    def client(self, broker: ProxiedBroker) -> RawClient:
        """A client of the library's door; closed at the end of the test."""
        return self._open.enter_context(RawClient(broker.endpoint, self.name))

    @contextmanager
    def working(
        self, broker: ProxiedBroker, prefetch: int = 10, *, work: Callable[[], object] = lambda: None
    ) -> Iterator[Counter[bytes]]:
        """A worker of the library, known to the broker; yields how often it has begun each payload.

        ``work`` is what it does then.
        """
        handled: Counter[bytes] = Counter()
        lock = threading.Lock()

        def handle(job: Job) -> None:
            with lock:
                handled[job.payload] += 1
            work()

        with (
            Worker(self.name, handle, prefetch=prefetch, endpoint=broker.endpoint),
            Client(endpoint=broker.endpoint) as client,
        ):
            wait_until(lambda: any(_works(queue, self.name) for queue in client.queues()), what="the worker")
            yield handled

    def stored(self) -> int:
        return int(self.jobs.count_documents({}))

    def wait_empty(self, timeout: float = TIMEOUT) -> None:
        wait_until(lambda: not self.stored(), timeout, f"the end of all jobs of {self.name}")

    def close(self) -> None:
        """Let everything pass again, and close the clients."""
        for broker in self.brokers:
            broker.proxy.connect()
            broker.proxy.pass_all()
        self._open.close()


@contextmanager
def proxied_brokers(
    mongo_uri: str,
    database: str,
    count: int = 2,
    config: Mapping[str, Any] = MappingProxyType({}),
    **broker: Any,
) -> Iterator[list[ProxiedBroker]]:
    """Start ``count`` brokers on one database; ``config`` and ``broker`` (its table) add settings."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(CuttingProxy(mongo_uri)) for _ in range(count)]
        settings = {**config, "broker": {**SETTINGS, **config.get("broker", {}), **broker}}
        yield [
            ProxiedBroker(proxy, stack.enter_context(BrokerProcess(proxy.uri, database, config=settings)))
            for proxy in proxies
        ]


@contextmanager
def shared_queue(
    mongo_uri: str,
    count: int = 2,
    queue: str = "",
    config: Mapping[str, Any] = MappingProxyType({}),
    **broker: Any,
) -> Iterator[SharedQueue]:
    """Brokers for one test, on a database of its own."""
    database = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        try:
            with proxied_brokers(mongo_uri, database, count, config, **broker) as brokers:
                shared = SharedQueue(brokers, mongo, queue or f"q{token_hex(4)}")
                try:
                    yield shared
                finally:
                    shared.close()
        finally:
            mongo.drop_database(database)


class Delivered(NamedTuple):
    """One job as it was delivered."""

    receipt: bytes
    id: str
    payload: bytes
    headers: dict[str, Any] | None
    attempt: int


class RawClient:
    """Producer and worker of one queue over SMQ/1: each message is sent and awaited when the test says so."""

    def __init__(self, endpoint: str, queue: str) -> None:
        self.queue = queue
        self.taken: list[Delivered] = []
        self._numbers = itertools.count(1)
        self._answers: dict[int, wire.Message] = {}
        self._waiting: list[Delivered] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvhwm = 0
        self._socket.connect(endpoint)

    def send(self, verb: bytes, *fields: Any) -> int:
        """Send a request; returns its number."""
        number = next(self._numbers)
        self._socket.send_multipart(wire.encode(verb, number, *fields))
        return number

    def answer(self, number: int, timeout: float = TIMEOUT) -> Any:
        """The value that a request was answered with; AssertionError if it was an error, or none came."""
        self._until(lambda: number in self._answers, timeout, f"an answer to request {number}")
        message = self._answers.pop(number)
        assert message.verb == wire.OK, f"refused: {message}"
        return message.fields[0] if message.fields else None

    def ask(self, verb: bytes, *fields: Any) -> Any:
        """Send a request and wait for its answer."""
        return self.answer(self.send(verb, *fields))

    def push(self, payload: bytes, job_id: str | None = None, **headers: Any) -> None:
        """Push one job; returns when it is confirmed."""
        assert self.ask(wire.PUSH, self.queue, [[job_id, payload, headers or None]]) == []

    def push_all(self, payloads: list[bytes]) -> int:
        """Send one push of many; returns its number, to wait for its answer."""
        return self.send(wire.PUSH, self.queue, [[None, payload, None] for payload in payloads])

    def ready(self, credit: int) -> None:
        """Want work, also of a queue that its first push makes."""
        self.ask(wire.READY, self.queue, credit, {"wait": True})

    def take(self, count: int = 1, timeout: float = TIMEOUT) -> list[Delivered]:
        """Wait for ``count`` deliveries; return the next ones."""
        self._until(lambda: len(self._waiting) >= count, timeout, f"delivery of {count} jobs")
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self.taken += taken
        return taken

    def take_all(self) -> list[Delivered]:
        """Return the deliveries so far that were not taken; they are not kept in ``taken``."""
        taken, self._waiting = self._waiting, []
        return taken

    def offered(self, timeout: float) -> bool:
        """Return whether a delivery comes within this time."""
        end = time.monotonic() + timeout
        while not self._waiting and (left := end - time.monotonic()) > 0:
            self._receive(left)
        return bool(self._waiting)

    def settle(self, job: Delivered, verdict: str, detail: Any = None, delay: float | None = None) -> int:
        """Send a verdict; returns the request's number."""
        return self.send(wire.SETTLE, [[job.receipt, verdict, detail, delay]])

    def commit(self, job: Delivered) -> None:
        """Commit, which must be accepted."""
        refused = self.answer(self.settle(job, wire.COMMIT))
        assert refused == [], refused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)

    def _until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        end = time.monotonic() + timeout
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"{what} did not come within {timeout} s"
            self._receive(left)

    def _receive(self, timeout: float) -> None:
        if not self._socket.poll(max(1, int(timeout * 1000))):
            return
        message = wire.decode(self._socket.recv_multipart())
        if message.verb in (wire.OK, wire.ERROR):
            self._answers[message.number] = message
        elif message.verb == wire.DELIVER:
            self._waiting += [Delivered(*field[:5]) for field in message.fields[1]]


def wait_quiet(count: Callable[[], int], seconds: float) -> None:
    """Wait until the count has not changed for so long."""
    last, since = count(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.05)
        if count() != last:
            last, since = count(), time.monotonic()


def made(command: Command) -> set[str]:
    """The states that the updates of a command set, in a pipeline or not."""
    found = set()
    for statement in command.statements:
        update = statement.get("u", {})
        for step in update if isinstance(update, list) else [update]:
            found.add(str(step.get("$set", {}).get("state", "")))
    return found - {""}


def _works(queue: dict[str, Any], name: str) -> bool:
    return bool(queue["name"] == name and queue["workers"])
