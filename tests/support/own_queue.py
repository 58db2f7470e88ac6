"""A queue of a test's own at a broker that looks often, with the library and all that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from secrets import token_hex
from time import monotonic
from typing import Any

from pymongo.change_stream import ChangeStream
from pymongo.collection import Collection

from sluicemq import Claim, ClaimedJob, Client, Job, Producer, Worker
from sluicemq.protocol import wire
from sluicemq.protocol.enums import JobState
from sluicemq.protocol.rows import plain
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving
from support.raw_sockets import Smq
from support.waiting import wait_until

#: How long a test waits for what must come.
SECONDS = 60.0
#: Who knows it may change something at :func:`quick_broker` over HTTP.
TOKEN = "a-token-for-tests-only"  # noqa: S105 - of a broker of tests
#: The reservation of a job that is not to be settled in time; and one that is.
SHORT, LONG = 3.0, 1000.0


class OwnQueue:
    """A queue of one test's own, and the library for it."""

    def __init__(self, broker: BrokerUnderTest, producer: Producer, client: Client) -> None:
        self.broker = broker
        self.producer = producer
        self.client = client
        self.endpoint = broker.doors["smq"]
        self.queue = token_hex(6)
        self._claims: list[Claim] = []

    def push(self, payload: bytes = b"job", **settings: Any) -> str:
        """Push one job; its id, once it is durable."""
        receipt = self.producer.push(self.queue, payload, **settings)
        receipt.wait(SECONDS)
        return receipt.id

    def reserve(self, limit: int = 1, wait: float = SECONDS) -> Claim:
        """Reserve up to ``limit`` jobs."""
        claim = self.client.jobs.reserve(self.queue, limit, wait)
        self._claims.append(claim)
        return claim

    def take(self, wait: float = SECONDS) -> ClaimedJob:
        """Reserve one job; AssertionError if none comes."""
        claim = self.reserve(1, wait)
        assert len(claim) == 1, f"no job came within {wait} s"
        return claim.jobs[0]

    def ready(self) -> bool:
        """Return whether a consumer would get a job now."""
        with self.reserve(1, wait=0) as claim:
            return len(claim) > 0

    def in_order(self, count: int) -> list[bytes]:
        """Take ``count`` jobs; return their payloads in the order in which they came."""
        return [job.payload for job in self.reserve(count)]

    def await_ready(self, *ids: str) -> None:
        """Wait until these are ready, in this order; some may have been on their way to a worker."""
        wait_until(lambda: self.ids("ready") == list(ids), SECONDS, f"{ids} ready")

    def show(self, job_id: str) -> dict[str, Any]:
        """All that is known of a job."""
        found: dict[str, Any] = plain(self.client.jobs.get(self.queue, job_id))
        return found

    def state(self, job_id: str) -> str:
        """In which state a job is shown; ``gone`` if it is not there."""
        return next((state for state in STATES if job_id in self.ids(state)), "gone")

    def ids(self, state: str) -> list[str]:
        """The ids of all jobs in a state, in the order of peek."""
        return [job.id for job in self.client.jobs.list(self.queue, JobState(state), 100)]

    def counts(self) -> dict[str, Any]:
        """The queue's counts by state, and all else that `queue` shows of it."""
        found: dict[str, Any] = plain(self.client.queues.get(self.queue))
        return found

    @property
    def collection(self) -> Collection[dict[str, Any]]:
        """Where the jobs lie in MongoDB."""
        return self.broker.collection(self.queue)

    def now(self) -> datetime:
        """MongoDB's present."""
        present: datetime = self.collection.database.command("hello")["localTime"]
        return present.replace(tzinfo=UTC)

    @contextmanager
    def waiting_worker(self) -> Iterator[list[str]]:
        """A worker that waits already; the ids of the jobs that have come to it."""
        came: list[str] = []
        with Worker(self.queue, lambda job: came.append(job.id), prefetch=8, endpoint=self.endpoint):
            wait_until(lambda: self.client.queues.get(self.queue).workers)
            yield came

    def close(self) -> None:
        """Give back what is still reserved."""
        for claim in self._claims:
            claim.release()

    def stranger(self) -> tuple[Smq, list[Any]]:
        """A worker of raw messages that has one job, and can say anything or die without a word."""
        worker = self.broker.smq()
        worker.ask(wire.HELLO, {"client": "stranger"})
        worker.ask(wire.READY, self.queue, 1)
        (job,) = worker.delivery()
        return worker, job


STATES = ("ready", "scheduled", "waiting", "reserved", "dead", "done")


@contextmanager
def quick_broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    """A broker that looks often, and whose jobs come again without a wait."""
    queues = {**AT_ONCE, "late": {"delay": LONG}}
    with serving(
        mongo_uri, [], poll=0.5, lease=2.0, queues=queues, http="127.0.0.1:0", http_token=TOKEN, history=True
    ) as broker:
        yield broker


@contextmanager
def working(endpoint: str, handlers: Mapping[str, Callable[[Job], Any]], prefetch: int = 8) -> Iterator[None]:
    """A worker of each of these queues."""
    with ExitStack() as workers:
        for queue, handler in handlers.items():
            workers.enter_context(Worker(queue, handler, prefetch=prefetch, endpoint=endpoint))
        yield


@contextmanager
def own_queue(broker: BrokerUnderTest) -> Iterator[OwnQueue]:
    """A new queue, with a producer and a client that are closed at the end."""
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        jobs = OwnQueue(broker, producer, client)
        broker.make(jobs.queue)
        try:
            yield jobs
        finally:
            jobs.close()
    broker.close_sockets()
    assert "Traceback" not in broker.process.log_text(), broker.process.log_text()[-4000:]


def written(changes: ChangeStream[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the changes that MongoDB writes, one after the other."""
    while True:
        yield wait_until(changes.try_next, SECONDS, "another write")


def passed(since: float) -> float:
    """Seconds since then, by the clock that nobody sets; a little more, for MongoDB's milliseconds."""
    return monotonic() - since + 0.01
