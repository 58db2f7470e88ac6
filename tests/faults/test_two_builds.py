"""A broker of the last schema beside one of this: what both know works across them, until the upgrade."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import gt
from pathlib import Path
from secrets import token_hex
from threading import Event, Semaphore, Thread
from typing import Any, NamedTuple

import pytest
from pymongo import MongoClient

from sluicemq import (
    Batch,
    Client,
    DuplicateError,
    FanOut,
    Forward,
    Job,
    Producer,
    Publisher,
    Reader,
    Reject,
    Subscription,
    UnavailableError,
    Worker,
)
from sluicemq import OldBrokerError as TooOld
from sluicemq_broker.store import READS, SCHEMA
from support.broker_process import BrokerProcess
from support.old_build import OldBroker, unpack
from support.waiting import TIMEOUT, wait_until

full = pytest.mark.full
LAST = READS[0]
#: A killed broker's jobs are with others after this, and it is in the way of an upgrade until then.
SETTINGS = {"lease": 8.0, "poll": 0.5}
CONFIG: dict[str, Any] = {"broker": SETTINGS, "devices": [], "queues": {"work": {}}}


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(LAST, tmp_path_factory.mktemp("build"))


class Brokers:
    """An old broker, which made the store, and a new one beside it."""

    def __init__(self, stack: ExitStack, build: Path, mongo_uri: str) -> None:
        name = f"builds_{token_hex(6)}"
        self.database = stack.enter_context(MongoClient[dict[str, Any]](mongo_uri))[name]
        stack.callback(self.database.client.drop_database, name)
        self.old = stack.enter_context(OldBroker(build, mongo_uri, name, config=CONFIG))
        assert self.number == LAST
        self.new = stack.enter_context(a_broker(mongo_uri, name))

    @property
    def number(self) -> int:
        found = self.database["meta"].find_one()
        assert found
        assert set(found) == {"_id", "number"}, "an upgrade is not over"
        return int(found["number"])


@contextmanager
def two_builds(build: Path, mongo_uri: str) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack, build, mongo_uri)


@pytest.mark.full
def test_an_upgrade_waits_for_the_last_old_broker_and_refuses_it(mongo_uri: str, build: Path) -> None:
    with two_builds(build, mongo_uri) as brokers, Client(endpoint=brokers.new.doors["smq"]) as client:
        # Given: a store of the old schema, and both brokers of it
        told = client.brokers()
        assert (told["schema"], told["newest"]) == (LAST, SCHEMA)
        living = {row["here"]: row for row in told["brokers"] if row["ended"] is None}
        assert (living[False]["reads"], living[True]["reads"]) == ([LAST - 1, LAST], list(READS))
        old = living[False]["name"]
        # When the old one lives, or is silent only
        with pytest.raises(TooOld, match=old):
            client.upgrade()
        brokers.old.kill()
        with pytest.raises(TooOld, match=old):
            client.upgrade()
        # Then: the store is upgraded when its lease is over
        wait_until(
            lambda: all(broker["ended"] for broker in client.brokers()["brokers"] if not broker["here"])
        )
        assert client.upgrade() == {"schema": SCHEMA, "before": LAST}
        assert brokers.number == SCHEMA
        assert client.set_settings("work", {"max_attempts": 3})
        # And: the old one is refused with what to do, and the new one takes jobs
        brokers.old.launch()
        assert brokers.old.process.wait(TIMEOUT) == 1
        assert f"schema {SCHEMA}, this one reads {LAST - 1} to {LAST}" in brokers.old.log_text()
        with (
            Producer(endpoint=brokers.new.doors["smq"]) as producer,
            Worker("work", payload_of, endpoint=brokers.new.doors["smq"]),
        ):
            assert producer.call("work", b"after", TIMEOUT) == b"after"


@contextmanager
def held_at(broker: BrokerProcess, pushed_at: BrokerProcess) -> Iterator[None]:
    """A job, pushed at one broker, is at a worker of another, which keeps it."""
    begun, over = Event(), Event()

    def hold(_job: Job) -> None:
        begun.set()
        over.wait(TIMEOUT)

    with (
        Worker("work", hold, endpoint=broker.doors["smq"]),
        Producer(endpoint=pushed_at.doors["smq"]) as producer,
    ):
        producer.push("work", b"held").wait(TIMEOUT)
        assert begun.wait(TIMEOUT)
        try:
            yield
        finally:
            over.set()


def payload_of(job: Job) -> bytes:
    return bytes(job.payload)


def test_a_broker_stops_when_the_store_becomes_newer_than_it_reads(mongo_uri: str, database: str) -> None:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo, a_broker(mongo_uri, database) as broker:
        mongo[database]["meta"].update_one({}, {"$set": {"number": SCHEMA + 1}})
        assert broker.process.wait(TIMEOUT) == 1
        assert f"newer SluiceMQ (schema {SCHEMA + 1}, this one reads {LAST} to {SCHEMA})" in broker.log_text()
        assert "stopped" in broker.log_text()
        assert mongo[database]["owners"].count_documents({"state": "live"}) == 0


# ---------------------------------------------- what both builds know, pushed at one and worked at the other


class Between(NamedTuple):
    """Clients of two brokers of different builds, and a name for queues that no other test uses."""

    here: str
    there: str
    producer: Producer
    client: Client
    other: Client
    name: str


@pytest.fixture(scope="module", params=["old to new", "new to old"])
def ends(request: pytest.FixtureRequest, mongo_uri: str, build: Path) -> Iterator[tuple[str, str]]:
    """The endpoints of two brokers of different builds."""
    with two_builds(build, mongo_uri) as brokers:
        ends = brokers.old.doors["smq"], brokers.new.doors["smq"]
        yield ends if request.param == "old to new" else ends[::-1]
        assert brokers.number == LAST


@pytest.fixture
def between(ends: tuple[str, str]) -> Iterator[Between]:
    here, there = ends
    with (
        Producer(endpoint=here) as producer,
        Client(endpoint=here) as client,
        Client(endpoint=there) as other,
    ):
        yield Between(here, there, producer, client, other, f"q{token_hex(4)}")


@full
def test_results_forwards_and_children_go_from_one_build_to_the_other(between: Between) -> None:
    name, there = between.name, between.there
    children = [Forward(f"{name}.child", b"%d" % number) for number in range(3)]
    with (
        Worker(name, lambda _job: Forward(f"{name}.next", b"moved"), endpoint=there),
        Worker(f"{name}.next", payload_of, endpoint=between.here),
        Worker(f"{name}.parent", lambda _job: FanOut(*children, result=b"all"), endpoint=there),
        Worker(f"{name}.child", payload_of, endpoint=between.here),
    ):
        assert between.producer.call(name, b"job", TIMEOUT) == b"moved"
        assert between.producer.call(f"{name}.parent", b"job", TIMEOUT) == b"all"


@full
def test_groups_keep_their_order_and_limits_hold_over_both_builds(between: Between) -> None:
    done: list[int] = []
    running = Semaphore(1)

    def note(job: Job) -> None:
        assert running.acquire(blocking=False), "two jobs of one group at once"
        done.append(int(job.payload))
        running.release()

    with Producer(endpoint=between.there) as second, ExitStack() as stack:
        for number in range(40):
            producer = (between.producer, second)[number % 2]
            producer.push(between.name, b"%d" % number, group="one").wait(TIMEOUT)
        for endpoint in (between.here, between.there):
            stack.enter_context(Worker(between.name, note, prefetch=4, concurrency=2, endpoint=endpoint))
        wait_until(lambda: len(done) >= 40, what="all jobs of the group")
    assert done == list(range(40))


@full
def test_options_of_jobs_hold_at_the_other_build(between: Between) -> None:
    name, producer = between.name, between.producer
    with Producer(endpoint=between.there) as second:
        producer.push(name, b"late", id="late", delay=3600).wait(TIMEOUT)
        producer.push(name, b"low", id="low", priority=1).wait(TIMEOUT)
        producer.push(name, b"high", id="high", priority=9, dedupe_id="once").wait(TIMEOUT)
        with pytest.raises(DuplicateError):
            second.push(name, b"again", dedupe_id="once").wait(TIMEOUT)
    assert [job.id for job in between.other.pop(name, 2, wait=TIMEOUT)] == ["high", "low"]
    between.other.promote(name, "late")
    assert [job.id for job in between.client.jobs.pop(name, 1, wait=TIMEOUT)] == ["late"]


@full
def test_pauses_dead_letters_and_deletions_are_shared(between: Between) -> None:
    name, client, other = between.name, between.client, between.other
    between.producer.push(name, b"job", id="job").wait(TIMEOUT)
    client.pause(name)
    wait_until(lambda: other.queue(name)["paused"] == ["delivery"], what="the pause at the other build")
    other.queues.resume(name)
    with Worker(name, reject, endpoint=between.there):
        wait_until(lambda: other.queues.get(name).dead == 1, what="the dead letter")
    assert client.redrive(name)["moved"] == 1
    assert [job.id for job in other.jobs.pop(name, 1, wait=TIMEOUT)] == ["job"]
    between.producer.push(name, b"job").wait(TIMEOUT)
    assert other.queues.purge(name).result() == 1
    between.producer.push(name, b"job").wait(TIMEOUT)
    assert other.queues.delete(name).result() == 1
    between.producer.push(name, b"job", id="made again").wait(TIMEOUT)
    assert [job.id for job in other.jobs.pop(name, 1, wait=TIMEOUT)] == ["made again"]


@full
def test_schedules_and_principals_of_one_build_are_the_others(between: Between) -> None:
    name, client, other = between.name, between.client, between.other
    client.add_schedule(name, name, b"due", every=3600)
    assert name in [schedule.name for schedule in other.schedules.list()]
    client.users("add", name=name, permissions={"push": "x"}, token=True)
    wait_until(
        lambda: any(principal.name == name for principal in other.principals.list()),
        what=f"{name} at the other",
    )


@full
def test_streams_are_read_at_the_other_build(between: Between) -> None:
    with Publisher(endpoint=between.here) as here, Publisher(endpoint=between.there) as there:
        for number in range(10):
            (here, there)[number % 2].publish(between.name, b"topic", b"%d" % number).wait(TIMEOUT)
    for endpoint in (between.here, between.there):
        with Reader(between.name, endpoint=endpoint) as reader:
            assert [read(reader) for _ in range(10)] == [b"%d" % number for number in range(10)]
    taken: list[bytes] = []

    def take(batch: Batch) -> None:
        taken.extend(bytes(job.payload) for job in batch)

    for endpoint in (between.here, between.there):  # the second one goes on where the first one was
        with Publisher(endpoint=endpoint) as publisher:
            publisher.publish(between.name, b"topic", endpoint.encode()).wait(TIMEOUT)
        Subscription(between.name, "sums", take, follow=False, endpoint=endpoint).run()
    assert taken == [*(b"%d" % number for number in range(10)), between.here.encode(), between.there.encode()]


@full
@pytest.mark.parametrize("killed", ["old", "new"])
def test_a_killed_broker_of_either_build_leaves_its_jobs(mongo_uri: str, build: Path, killed: str) -> None:
    with two_builds(build, mongo_uri) as brokers:
        dead, alive = (brokers.old, brokers.new)[:: 1 if killed == "old" else -1]
        with held_at(dead, alive):
            dead.kill()
            with Client(endpoint=alive.doors["smq"]) as client:
                assert [job.payload for job in client.pop("work", 1, wait=TIMEOUT)] == [b"held"]


def reject(_job: Job) -> None:
    raise Reject("no")


def read(reader: Reader) -> bytes:
    message = reader.read(TIMEOUT)
    assert message
    return bytes(message.payload)


@full
@pytest.mark.parametrize(
    ("killed", "before"), [("close.after", LAST), ("finish.before", LAST), ("finish.after", SCHEMA)]
)
def test_an_upgrade_whose_broker_is_killed_half_way_is_repeated(
    mongo_uri: str, database: str, build: Path, killed: str, before: int
) -> None:
    dies = f"schema.{killed}=die"
    with MongoClient[dict[str, Any]](mongo_uri) as mongo, ExitStack() as stack:
        mongo[database]["meta"].insert_one({"_id": "schema", "number": LAST})
        broker = stack.enter_context(BrokerProcess(mongo_uri, database, config=CONFIG, failpoints=dies))
        with Client(endpoint=broker.doors["smq"]) as client, pytest.raises(UnavailableError):
            client.upgrade()
        assert broker.process.wait(TIMEOUT) != 0
        # Then the old build is refused all the same
        old = OldBroker(build, mongo_uri, database, config=CONFIG)
        stack.callback(old.close)
        old.launch()
        assert old.process.wait(TIMEOUT) == 1
        # And the next broker ends what was begun
        client = stack.enter_context(
            Client(endpoint=stack.enter_context(a_broker(mongo_uri, database)).doors["smq"])
        )
        assert client.upgrade() == {"schema": SCHEMA, "before": before}
        assert mongo[database]["meta"].find_one() == {"_id": "schema", "number": SCHEMA}


def a_broker(mongo_uri: str, database: str) -> BrokerProcess:
    return BrokerProcess(mongo_uri, database, config=CONFIG)


# -------------------------------------------------------------------- one after the other, under load


class Load:
    """Clients that know both brokers, each in a thread of its own, and what went wrong for them."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.endpoints = list(endpoints)
        self.errors: list[BaseException] = []
        self.handled: set[bytes] = set()
        self.confirmed: list[bytes] = []
        self.answered = self.looked = 0
        self._over = Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [Thread(target=self._run, args=(part,)) for part in (self._push, self._call, self._look)]
        with ExitStack() as stack:
            for endpoint in self.endpoints:
                stack.enter_context(Worker("work", self._handle, prefetch=8, endpoint=endpoint))
            for thread in threads:
                thread.start()
            try:
                yield
                self.goes_on()
            finally:
                self._over.set()
                for thread in threads:
                    thread.join(TIMEOUT)
            wait_until(lambda: self.handled.issuperset(self.confirmed), what="all confirmed jobs")

    def goes_on(self) -> None:
        """Return when each client has done something more; AssertionError if one does not get on."""
        enough = [count + 5 for count in self._done()]
        wait_until(lambda: self.errors or all(map(gt, self._done(), enough)), what="progress of each client")
        assert self.errors == []

    def _done(self) -> tuple[int, ...]:
        return len(self.confirmed), self.answered, self.looked, len(self.handled)

    def _run(self, client: Callable[[], None]) -> None:
        try:
            client()
        except Exception as error:  # noqa: BLE001 - each is counted
            self.errors.append(error)

    def _handle(self, job: Job) -> bytes:
        self.handled.add(job.payload)
        return job.payload

    def _push(self) -> None:
        with Producer(endpoint=self.endpoints) as producer:
            while not self._over.wait(0.005):
                payload = b"%d" % len(self.confirmed)
                producer.push("work", payload).wait(TIMEOUT)
                self.confirmed.append(payload)

    def _call(self) -> None:
        with Producer(endpoint=self.endpoints) as producer:
            while not self._over.wait(0.005):
                assert producer.call("work", b"call", TIMEOUT) == b"call"
                self.answered += 1

    def _look(self) -> None:
        with Client(timeout=TIMEOUT, endpoint=self.endpoints) as client:
            while not self._over.wait(0.005):
                client.queue("work")
                self.looked += 1


@full
def test_brokers_are_upgraded_in_turn_without_an_error(mongo_uri: str, database: str, build: Path) -> None:
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(OldBroker(build, mongo_uri, database, config=CONFIG)) for _ in range(2)
        ]
        load = Load([broker.doors["smq"] for broker in brokers])
        with load.running():
            load.goes_on()
            for broker in brokers:
                assert broker.terminate() == 0
                load.goes_on()
                broker.renew()
                broker.restart()
                load.goes_on()
            with Client(timeout=TIMEOUT, endpoint=load.endpoints) as client:
                assert client.upgrade() == {"schema": SCHEMA, "before": LAST}
            load.goes_on()
            for broker in brokers:  # and once more, both of this build
                assert broker.terminate() == 0
                broker.restart()
                load.goes_on()
