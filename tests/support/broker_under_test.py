"""A broker with spare devices, and plain clients for it; what tests of its doors share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from secrets import token_hex
from types import MappingProxyType
from typing import Any, NamedTuple

import zmq
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from sluicemq import Client
from sluicemq.protocol import rows
from support.broker_process import BrokerProcess
from support.raw_sockets import Smq, receive
from support.waiting import TIMEOUT, wait_until

#: Devices by what their workers are: each takes jobs its own way, on a queue of its own.
SHAPES: dict[str, dict[str, Any]] = {
    "ask": {"kind": "queue"},
    "ask_full": {"kind": "queue", "envelope": "full"},
    "received": {"kind": "streamer"},
    "received_full": {"kind": "streamer", "envelope": "full"},
    "pop": {"kind": "streamer", "ack": "auto"},
    "pop_full": {"kind": "streamer", "ack": "auto", "envelope": "full"},
    "ack": {"kind": "streamer", "ack": "explicit", "prefetch": 2},
    "ack_full": {"kind": "streamer", "ack": "explicit", "envelope": "full"},
}

#: The broker says in its ready file which port it got.
ANY_PORT = "tcp://127.0.0.1:0"
_SILENCE = 300.0  # seconds


#: For tests in which a job that was rolled back comes again without a wait.
AT_ONCE: dict[str, Any] = {"*": {"backoff": "none"}}


class Doors(NamedTuple):
    """One device: its queue and an address at each end."""

    queue: str
    front: str
    back: str
    commit: str


class BrokerUnderTest:
    """A broker with spare devices, and clients for it. Each test takes devices that nobody has used."""

    def __init__(self, process: BrokerProcess, jobs: Database[dict[str, Any]]) -> None:
        self.process = process
        self._jobs = jobs
        self.admin = Client(endpoint=process.doors["smq"])
        self.longest_turn_cpu = 0.0  # seconds; the broker tells of each turn once, so it is kept here
        self._own = 3  # connections: of the administrator, and of those who prove that it serves
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._spare: dict[str, list[Doors]] = defaultdict(list)
        for device in process.devices:
            self._spare[device["queue"].partition("-")[0]].append(_doors(device))

    @property
    def doors(self) -> dict[str, str]:
        """One address for each kind of door, see :attr:`BrokerProcess.doors`."""
        return self.process.doors

    @property
    def is_running(self) -> bool:
        """Return whether its process has not ended."""
        return self.process.process.poll() is None

    def take(self, shape: str) -> Doors:
        """A device of this shape (see :data:`SHAPES`) with an empty queue."""
        return self._spare[shape].pop()

    def socket(self, kind: int, address: str, *, bind: bool = False, **options: Any) -> zmq.Socket[bytes]:
        """A plain socket; closed at the end of the test."""
        plain = self._context.socket(kind)
        self._sockets.append(plain)
        plain.linger = 0
        for name, value in options.items():
            setattr(plain, name, value)
        if bind:
            wait_until(lambda: _bound(plain, address), what=f"binding {address}")
        else:
            plain.connect(address)
        return plain

    def push(self, address: str, *frames: bytes) -> None:
        """Send one job as a PUSH producer that leaves at once."""
        plain = self.socket(zmq.PUSH, address, linger=10_000)
        plain.send_multipart(frames)
        plain.close()

    def ask(self, address: str, *frames: bytes, seconds: float = TIMEOUT) -> list[bytes]:
        """Ask as a REQ client; the answer."""
        plain = self.socket(zmq.REQ, address)
        plain.send_multipart(frames)
        return receive(plain, seconds)

    def smq(self) -> Smq:
        """A raw SMQ/1 connection."""
        return Smq(self.socket(zmq.DEALER, self.doors["smq"]))

    def counter(self, name: str) -> int:
        """Return how much the broker has counted under this name."""
        return int(self.ask_counters()["counters"].get(name, 0))

    def ask_counters(self) -> dict[str, Any]:
        """Ask for the counters of the broker; counting all queues, as ``stats`` does, would take it long."""
        told: dict[str, Any] = rows.plain(self.admin.counters())
        self.longest_turn_cpu = max(self.longest_turn_cpu, told["broker"]["longest_turn_cpu"])
        return told

    def counts(self, queue: str) -> Counter[str]:
        """Jobs of a queue by state as it is shown; read in MongoDB, for a broker counts all queues."""
        stored = self.collection(queue).find({}, {"state": 1, "eligible_at": 1, "created_at": 1, "left": 1})
        now = datetime.now(UTC).replace(tzinfo=None)
        found: Counter[str] = Counter()
        for row in stored:
            # What was not delayed is ready, though the broker may take the server's clock to be ahead.
            later = row["state"] == "ready" and row["eligible_at"] > max(now, row["created_at"])
            found["scheduled" if later else row["state"]] += row.get("left", 1)
        return found

    def await_count(self, queue: str, state: str, count: int) -> None:
        """Wait until ``count`` jobs of a queue are in this state."""
        wait_until(lambda: self.counts(queue)[state] == count, what=f"{count} {state} in {queue}")

    def collection(self, queue: str) -> Collection[dict[str, Any]]:
        """Where the jobs of a queue lie in MongoDB."""
        return self._jobs[f"queue.{queue}"]

    def make(self, queue: str) -> None:
        """Make a queue that nobody has pushed to, as if another broker had."""
        made = self.collection(queue)
        if made.name not in self._jobs.list_collection_names():
            self._jobs.create_collection(made.name)

    def workers(self, queue: str) -> int:
        """How many workers a queue has."""
        return int(self.admin.queues.get(queue).workers)

    def dead_letter(self, queue: str) -> dict[str, Any]:
        """The one dead letter of a queue, once it is there; ``reason`` is its last failure's."""
        (letter,) = wait_until(lambda: self.admin.peek(queue, "dead"), what=f"a dead letter in {queue}")
        return {**letter, "reason": letter["errors"][-1]["reason"]}

    def serves(self) -> bool:
        """Return whether a job still goes all the way: pushed, worked on, answered."""
        queue = "serves"
        worker, asker = self._proof
        asker.send_multipart([queue.encode(), b"still there?"])
        job = receive(worker)
        worker.send(job[-1])
        return receive(asker) == [b"still there?"]

    def connect_proof(self) -> None:
        """Open what :meth:`serves` needs; it takes the device of queue ``serves``."""
        doors = self.take("serves")
        worker, asker = self._context.socket(zmq.REP), self._context.socket(zmq.REQ)
        for plain, address in ((worker, doors.back), (asker, doors.front)):
            plain.linger = 0
            plain.connect(address)
        self._proof = (worker, asker)
        wait_until(lambda: self._connections() == self._own)

    def close_sockets(self) -> None:
        """Close the sockets of one test; what the broker counts after this belongs to the next."""
        for plain in self._sockets:
            plain.close()
        self._sockets.clear()
        if self.is_running:
            wait_until(lambda: self._connections() <= self._own, what="the end of a test's connections")

    def _connections(self) -> int:
        return int(self.ask_counters()["broker"]["connections"])

    def close(self) -> None:
        """Close everything."""
        self.admin.close()
        self._context.destroy(0)


@contextmanager
def serving(
    mongo_uri: str,
    devices: list[dict[str, Any]],
    *,
    process: Mapping[str, Any] = MappingProxyType({}),
    queues: Mapping[str, Any] = MappingProxyType({}),
    database: str = "",
    **settings: Any,
) -> Iterator[BrokerUnderTest]:
    """A broker with these devices and one more for :meth:`BrokerUnderTest.serves`.

    ``database``: its name, if others have it, too; else one of its own. It is dropped at the end.
    ``process``: arguments for :class:`BrokerProcess`; ``queues``: the tables of ``[queues]``;
    ``settings``: of ``[broker]``; plain sockets answer no PING, and a busy machine makes them wait long.
    """
    database = database or f"test_{token_hex(6)}"
    config = {
        "broker": {"stop_timeout": 3, "silence": _SILENCE, **settings},
        "queues": dict(queues),
        "devices": [*devices, _device("serves", "queue")],
    }
    with MongoClient[dict[str, Any]](mongo_uri, serverSelectionTimeoutMS=60_000) as mongo:
        try:
            with BrokerProcess(mongo_uri, database, config=config, **process) as running:
                broker = BrokerUnderTest(running, mongo[database])
                try:
                    broker.connect_proof()
                    yield broker
                finally:
                    broker.close()
        finally:
            mongo.drop_database(database)


def spare(**shapes: int) -> list[dict[str, Any]]:
    """Return the configuration of a number of devices of each shape."""
    return [_device(f"{shape}-{n}", **SHAPES[shape]) for shape, count in shapes.items() for n in range(count)]


def _device(queue: str, kind: str, **settings: Any) -> dict[str, Any]:
    commit = {"commit": ANY_PORT} if kind == "streamer" else {}
    return {"kind": kind, "queue": queue, "frontend": ANY_PORT, "backend": ANY_PORT, **commit, **settings}


def _doors(device: dict[str, Any]) -> Doors:
    front, back, commit = ("".join(device[end][:1]) for end in ("frontend", "backend", "commit"))
    return Doors(device["queue"], front, back, commit)


def _bound(plain: zmq.Socket[bytes], address: str) -> bool:
    """Bind, unless a socket that was just closed is still there."""
    try:
        plain.bind(address)
    except zmq.ZMQError as error:
        if error.errno != zmq.EADDRINUSE:
            raise
        return False
    return True
