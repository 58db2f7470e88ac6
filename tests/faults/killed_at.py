"""One kill of a broker at a failpoint, while another broker runs; and what must hold afterwards.

A script does some things at broker A, which dies on the way, and notes in its book what may have become of
each job::

    book.perhaps(job, ENDED)   its verdict was sent
    book.surely(job, ENDED)    its verdict was answered

Then clients repeat at broker B what had no answer, workers at B take all that is left, and each job must have
come to one of the ends that its book allows.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self

from pymongo import MongoClient
from pymongo.database import Database

from sluicemq import Client, Job, Producer, SluiceError, Worker
from sluicemq.claim import Claim, ClaimedJob
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.waiting import TIMEOUT, wait_until

#: What becomes of a job, beside ``worked QUEUE`` (a worker at B gets it) and ``dead QUEUE``.
ENDED: Final = "ended"
LEASE: Final = 2.5
_BEING_REMOVED: Final = {"removing": {"$exists": True}}
UNFINISHED: Final = {"state": {"$in": ["ready", "reserved", "waiting"]}}


#: As each look asks MongoDB, and many kills run at one time.
until = partial(wait_until, pause=0.1)


#: Claims of two seconds each.
_CLAIMS: Final = 20


class Died(Exception):
    """Broker A is dead, as it was to be."""


class FatedBroker(BrokerProcess):
    """A broker with failpoints, forked as others are."""

    def __init__(
        self, uri: str, database: str, config: Mapping[str, Any], failpoints: str, start_timeout: float
    ) -> None:
        super().__init__(uri, database, config=config, start_timeout=start_timeout, failpoints=failpoints)

    @property
    def dead(self) -> bool:
        return self.process.poll() is not None


class Book:
    """What clients of A have heard, and so what may have become of their jobs."""

    def __init__(self) -> None:
        self.fates: dict[str, set[str]] = {}
        self.rolled_back: set[str] = set()
        """Jobs whose attempt was counted; a broker's death gives it back."""
        self.unconfirmed: dict[str, Callable[[Producer], Any]] = {}
        """Pushes without an answer, which the producer repeats at B."""
        self.at_b: list[Callable[[Client], Any]] = []
        """Orders that are given again at B; what is done already is refused there."""
        self.checks: list[Callable[[], None]] = []
        """What else must hold when all is over."""

    def perhaps(self, job: str, *fates: str) -> None:
        """Note what a job may have come to by a request that is about to be sent."""
        self.fates.setdefault(job, set()).update(fates)

    def surely(self, job: str, *fates: str) -> None:
        """Note what a job has come to by the answer."""
        self.fates[job] = set(fates)


class Hand:
    """A client of A that keeps its book; all names are new for each kill."""

    def __init__(self, lane: Lane, broker: FatedBroker, run: str) -> None:
        self.lane = lane
        self.broker = broker
        self.run = run
        self.book = Book()
        self.documents: Database[dict[str, Any]] = lane.documents
        self.groups: dict[str, list[str]] = defaultdict(list)
        self._open = ExitStack()
        self._claims: dict[ClaimedJob, Claim] = {}

    def connect(self) -> None:
        endpoint = self.broker.doors["smq"]
        self.client = Client(timeout=15, wait=False, endpoint=endpoint)
        self._open.callback(self.client.close)
        self.producer = Producer(endpoint=endpoint)
        self._open.callback(self._close_producer)

    def name(self, job: str) -> str:
        """Return the id of a job of this run."""
        return f"{self.run}-{job}"

    def jobs(self, queue: str) -> Any:
        return self.documents[f"queue.{queue}"]

    def push(self, queue: str, *jobs: str, payload: bytes = b"x", **options: Any) -> None:
        """Push jobs, one after the other, each confirmed."""
        for job in map(self.name, jobs):
            self.book.perhaps(job, f"worked {queue}")
            if group := options.get("group"):
                self.groups[group].append(job)
            self.book.unconfirmed[job] = partial(_push, queue, payload, job, options)
            self.heard(self.producer.push(queue, payload, id=job, **options))
            del self.book.unconfirmed[job]

    def heard(self, receipt: Any) -> Any:
        """Wait for a receipt, or for the end of A."""
        while not receipt.done:
            with suppress(TimeoutError):
                return receipt.wait(0.2)
            if self.broker.dead:
                raise Died
        return receipt.wait(0)

    def take(self, queue: str, limit: int = 1) -> list[ClaimedJob]:
        """Reserve so many jobs; they are the claim's until the end.

        A claim that waits asks again, for as long as it waits, at whoever has the broker's port by then: so
        each waits for a short time.
        """
        for _ in range(_CLAIMS):
            if self.broker.dead:
                raise Died
            with suppress(SluiceError):
                claim = self.client.jobs.reserve(queue, limit, wait=2.0)
                self._open.callback(claim.release)
                if len(claim.jobs) == limit:
                    self._claims |= dict.fromkeys(claim.jobs, claim)
                    return claim.jobs
                claim.release()
        raise AssertionError(f"there are no {limit} jobs of {queue}")

    def leave(self, job: ClaimedJob) -> None:
        """Disconnect the claim that has a job, without a verdict."""
        self._claims[job].requeue()

    @contextmanager
    def fate(self, jobs: list[str], *fates: str) -> Iterator[None]:
        """Do something by which these jobs come to one of these ends, or stay as they are until answered."""
        for job in jobs:
            self.book.perhaps(job, *fates)
        yield
        for job in jobs:
            self.book.surely(job, *fates)

    def commit(self, *jobs: ClaimedJob, result: bytes | None = None) -> None:
        for job in jobs:
            with self.fate([job.id], ENDED):
                job.commit(result)

    def close(self) -> None:
        with suppress(SluiceError):
            self._open.close()

    def _close_producer(self) -> None:
        with suppress(SluiceError):
            self.producer.close(0)


def _push(queue: str, payload: bytes, job: str, options: dict[str, Any], at: Producer) -> None:
    at.push(queue, payload, id=job, **options)


Script = Callable[[Hand], None]


def nothing(_hand: Hand) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Scenario:
    """A script, and what it needs."""

    script: Script
    prepare: Script = nothing
    """What is in MongoDB before A starts."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What A alone is configured for; after its death a broker is started that is, too."""
    alone: bool = False
    """B is started when A is dead: it would be faster than A."""
    waits: str = ""
    """Other failpoints, at which A waits."""


class NotMet(AssertionError):
    """A script has not met its failpoint: broker B was faster, say."""


def _wait_for_death(broker: FatedBroker, failpoints: str) -> None:
    try:
        until(lambda: broker.dead, 20)
    except AssertionError:
        raise NotMet(f"A lives, though it was to die at {failpoints}") from None
    assert broker.process.returncode == -signal.SIGKILL, broker.log_text()[-3000:]


class Lane:
    """A database with its broker B, for one kill after the other."""

    def __init__(self, uri: str, config: Mapping[str, Any]) -> None:
        self.database = f"test_{token_hex(6)}"
        self._uri, self._config = uri, config
        self._mongo = MongoClient[dict[str, Any]](uri)
        self.documents = self._mongo[self.database]
        self.b = BrokerProcess(uri, self.database, config=config)
        self.worked: Counter[tuple[str, str]] = Counter()
        """How often workers at B have had each job of each queue."""
        self.order: list[str] = []
        self.attempts: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.b.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.b.close()
        self._mongo.drop_database(self.database)
        self._mongo.close()

    # ------------------------------------------------------------------ a kill

    def trace(self, scenario: Scenario, file: Path) -> set[str]:
        """Return the failpoints that a script meets at A."""
        self._run(scenario, f"trace:{file}", dies=False)
        return set(file.read_text().splitlines())

    def kill(self, scenario: Scenario, point: str, time: int = 1) -> None:
        """Run a script at A, which dies at this point, when it meets it for this time.

        AssertionError if anything is lost, doubled, stuck.
        """
        self._run(scenario, f"{point}=die@{time}", dies=True)

    def _run(self, scenario: Scenario, failpoints: str, *, dies: bool) -> None:
        text = ",".join(filter(None, (failpoints, scenario.waits)))
        extra = self._named(scenario.extra)
        a = FatedBroker(self._uri, self.database, {**self._config, **extra}, text, TIMEOUT)
        hand = Hand(self, a, token_hex(3))
        if scenario.alone:
            self.b.terminate()
        try:
            scenario.prepare(hand)
            a.launch()
            with suppress(Died):
                self._at_a(hand, scenario.script, dies=dies)
            hand.close()
            if dies:
                _wait_for_death(a, failpoints)
            else:
                a.kill()
            self._start_b()
            self._at_b(hand, extra)
            if dies:
                self._check(hand)
            log = a.log_text()
            assert "Traceback" not in log, log[-5000:]
            assert "Traceback" not in self.b.log_text(), self.b.log_text()[-5000:]
        finally:
            hand.close()
            a.close()
            self._start_b()
            self._clean()

    def _named(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return what A alone is configured for, with the name of the database."""
        return dict(json.loads(json.dumps(dict(extra)).replace("{database}", self.database)))

    def _start_b(self) -> None:
        """Start it, if it does not run; its former port may be another's by now."""
        if self.b.process.poll() is not None:
            self.b.config["broker"]["endpoint"] = tcp()
            self.b.restart()

    def _at_a(self, hand: Hand, script: Script, *, dies: bool) -> None:
        try:
            hand.broker.wait_ready()
        except AssertionError:
            if dies and hand.broker.dead:
                raise Died from None
            raise
        hand.connect()
        try:
            script(hand)
        except (SluiceError, TimeoutError):
            with suppress(AssertionError):
                until(lambda: hand.broker.dead, 10)
            if not (dies and hand.broker.dead):
                raise

    def _at_b(self, hand: Hand, extra: Mapping[str, Any]) -> None:
        book, endpoint = hand.book, self.b.doors["smq"]
        with ExitStack() as stack:
            alive = {self.b.pid}
            if extra:  # what only A was configured for
                again = FatedBroker(self._uri, self.database, {**self._config, **extra}, "", TIMEOUT)
                stack.callback(again.close)
                alive.add(again.start().pid)
            client = stack.enter_context(Client(endpoint=endpoint))
            with Producer(endpoint=endpoint) as producer:
                for push in book.unconfirmed.values():
                    push(producer)
            for order in book.at_b:
                with suppress(SluiceError):
                    order(client)
            working: set[str] = set()

            def all_over() -> bool:
                left = {queue for queue, _, _ in self._unfinished()}
                for queue in left - working:
                    handler = partial(self._work, queue)
                    stack.enter_context(
                        Worker(queue, handler, prefetch=10, stop_timeout=1.0, endpoint=endpoint)
                    )
                working.update(left)
                return not left and not self.left_over(alive) and not self._awaited(book)

            with suppress(AssertionError):
                until(all_over, TIMEOUT)
            assert not self._unfinished(), f"unfinished: {self._unfinished()}"
            assert not self.left_over(alive), f"left over: {self.left_over(alive)}"

    def _awaited(self, book: Book) -> list[str]:
        """Return jobs that are to come to an end that can be seen, and have not yet."""
        seen = {job: fates for job, fates in book.fates.items() if ENDED not in fates}
        ends = self.ends() if seen else {}
        return [job for job, fates in seen.items() if fates.isdisjoint(ends.get(job, ()))]

    def _work(self, queue: str, job: Job) -> None:
        with self._lock:
            self.worked[queue, job.id] += 1
            self.order.append(job.id)
            self.attempts[job.id] = job.attempt

    def _queues(self) -> list[str]:
        names = self.documents.list_collection_names(filter={"name": {"$regex": "^queue\\."}})
        return [name.removeprefix("queue.") for name in names]

    def _unfinished(self) -> list[Any]:
        return [
            (queue, document["_id"], document["state"])
            for queue in self._queues()
            for document in self.documents[f"queue.{queue}"].find(UNFINISHED, {"state": 1})
        ]

    def left_over(self, alive: set[int]) -> list[str]:
        """Return what dead brokers have left: leases, permits, tasks, queues that were put aside."""
        live = {
            document["_id"]: document["name"] for document in self.documents["owners"].find({"state": "live"})
        }
        here = {owner for owner, name in live.items() if int(name.rpartition(":")[2]) in alive}
        permits = {
            owner for document in self.documents["limits"].find() for owner in document.get("running", {})
        }
        return [
            *(f"lease {owner}" for owner in live.keys() - here),
            *(f"permits {owner}" for owner in permits - here),
            *(f"removal of {document['_id']}" for document in self.documents["queues"].find(_BEING_REMOVED)),
            *(f"task {document['_id']}" for document in self.documents["tasks"].find({"state": "running"})),
            *self.documents.list_collection_names(filter={"name": {"$regex": "^removed[.]"}}),
        ]

    def _check(self, hand: Hand) -> None:
        found = self.ends()
        for job, fates in hand.book.fates.items():
            ends = found.get(job) or [ENDED]
            assert len(ends) == 1, f"{job} has come to {ends}, not to one of {fates}"
            assert ends[0] in fates, f"{job} has come to {ends[0]}, not to one of {fates}"
        charged = {job for job, attempt in self.attempts.items() if attempt > 1} - hand.book.rolled_back
        assert not charged, f"jobs whose attempt was counted: {charged}"
        for group, jobs in hand.groups.items():
            came = [done for done in self.order if done in jobs]
            assert came == [known for known in jobs if known in came], f"group {group}: {came}"
        for check in hand.book.checks:
            check()

    def ends(self) -> Mapping[str, list[str]]:
        """Return all that each job has come to; one end is right, and ``ended`` is that of all others."""
        ends: dict[str, list[str]] = defaultdict(list)
        for queue, job in self.worked.elements():
            ends[job].append(f"worked {queue}")
        for queue in self._queues():
            for document in self.documents[f"queue.{queue}"].find({"state": "dead"}, {"_id": 1}):
                ends[document["_id"]].append(f"dead {queue}")
        return ends

    def _clean(self) -> None:
        for queue in self._queues():
            self.documents[f"queue.{queue}"].delete_many({})
        for name in ("schedules", "tasks"):
            self.documents[name].delete_many({})
        self.worked.clear()
        self.order.clear()
        self.attempts.clear()
