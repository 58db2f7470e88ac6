"""Fair queues at brokers: one tenant's flood holds up nobody, over doors, brokers, restarts and settings."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner
from pymongo import MongoClient

from sluicemq import Client, Forward, Job, Producer, Worker
from sluicemq.cli.app import app
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.long_forms import first_of
from support.own_queue import OwnQueue, own_queue
from support.waiting import TIMEOUT, wait_until

FLOOD = 3000
#: Jobs of the flood that a broker may hold for one worker that takes one at a time, and the one it has: what
#: is claimed ahead for workers that are not known yet, or a quarter second of work of one of these.
HELD = 64

FAIR = {"fair": True, "weights": {"heavy": 3}}
QUEUES = {"*": {"backoff": "none", **FAIR}}


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(received=1), poll=0.5, lease=3.0, queues=QUEUES) as running:
        yield running


@pytest.fixture
def jobs(broker: BrokerUnderTest) -> Iterator[OwnQueue]:
    with own_queue(broker) as jobs:
        yield jobs


class Paced:
    """A handler of slow work, as fast as the test lets it be: notes who comes."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self._moment = threading.Event()  # nobody sets it

    def __call__(self, job: Job) -> None:
        self.came.append(job.payload.decode())
        self._moment.wait(0.005)

    def before(self, payload: str, since: int) -> int:
        """How many jobs came between that moment and this one."""
        wait_until(lambda: payload in self.came, TIMEOUT, payload)
        return self.came.index(payload) - since


def flood(producer: Producer, queue: str, count: int = FLOOD) -> None:
    receipts = producer.push_many(queue, [b"flood"] * count, tenant="flood")
    for receipt in receipts:
        receipt.wait(TIMEOUT)


def test_a_single_job_goes_before_the_flood_that_was_pushed_first(jobs: OwnQueue) -> None:
    flood(jobs.producer, jobs.queue)
    jobs.push(b"single", tenant="zed")
    jobs.push(b"nobody")
    # When and then
    assert set(jobs.in_order(3)) == {b"single", b"nobody", b"flood"}


def test_a_single_job_amid_a_flood_waits_for_what_is_held_and_no_more(jobs: OwnQueue) -> None:
    flood(jobs.producer, jobs.queue)
    handler = Paced()
    with Worker(jobs.queue, handler, prefetch=1, endpoint=jobs.endpoint):
        wait_until(lambda: len(handler.came) > 20, TIMEOUT)
        jobs.push(b"single", tenant="zed")
        since = len(handler.came)
        assert handler.before("single", since) <= HELD


def test_a_flood_that_goes_straight_to_workers_holds_up_nobody_either(jobs: OwnQueue) -> None:
    # Given jobs that are inserted reserved for a worker with room for many
    with jobs.reserve(1, wait=0):
        pass
    handler = Paced()
    with Worker(jobs.queue, handler, prefetch=2, endpoint=jobs.endpoint):
        wait_until(lambda: jobs.counts()["workers"], TIMEOUT)
        flood(jobs.producer, jobs.queue, 500)
        jobs.push(b"single", tenant="zed")
        since = len(handler.came)
        assert handler.before("single", since) <= HELD


def test_groups_without_tenants_take_turns_one_job_each(jobs: OwnQueue) -> None:
    for number in range(3):
        jobs.push(b"g %d" % number, group="g")
    flood(jobs.producer, jobs.queue, 50)
    assert set(jobs.in_order(2)) == {b"g 0", b"flood"}


def test_the_tenant_is_shown_and_goes_on_with_the_job(broker: BrokerUnderTest, jobs: OwnQueue) -> None:
    job_id = jobs.push(b"x", tenant="acme")
    assert jobs.show(job_id)["tenant"] == "acme"
    onward = token_hex(6)
    with Worker(jobs.queue, lambda _job: Forward(onward), endpoint=jobs.endpoint):
        found = wait_until(lambda: broker.collection(onward).find_one({"_id": job_id}), TIMEOUT)
    assert found["tenant"] == "acme"


def test_a_forwarded_job_of_no_tenant_has_its_groups_turn(broker: BrokerUnderTest, jobs: OwnQueue) -> None:
    job_id = jobs.push(b"x", group="here")
    onward = token_hex(6)
    with Worker(jobs.queue, lambda _job: Forward(onward, group="there"), endpoint=jobs.endpoint):
        found = wait_until(lambda: broker.collection(onward).find_one({"_id": job_id}), TIMEOUT)
    assert (found["group"], found["tenant"]) == ("there", "there")


def test_commands_and_plain_doors_take_a_tenant(broker: BrokerUnderTest, jobs: OwnQueue) -> None:
    command = ["--endpoint", jobs.endpoint, "push", jobs.queue, "x", "--tenant", "acme"]
    assert CliRunner().invoke(app, command).exit_code == 0
    broker.push(broker.take("received").front, jobs.queue.encode(), b'{"tenant": "bolt"}', b"y")
    wait_until(lambda: jobs.collection.count_documents({}) == 2, TIMEOUT)
    assert {row["payload"]: row["tenant"] for row in jobs.collection.find()} == {b"x": "acme", b"y": "bolt"}


class Pair:
    """Brokers on one database, whose queue ``mail`` is fair."""

    def __init__(self, mongo_uri: str, database: str, folder: Path, **queue: Any) -> None:
        self.config = {
            "broker": {"poll": 0.5, "lease": 3.0, "silence": 30, "stop_timeout": 1},
            "queues": {"mail": {"backoff": "none", **queue}},
        }
        self.mongo_uri, self.database, self.folder = mongo_uri, database, folder

    def broker(self, name: str) -> BrokerProcess:
        folder = self.folder / name
        folder.mkdir()
        return BrokerProcess(self.mongo_uri, self.database, config=self.config, folder=folder)


@pytest.mark.full
def test_single_jobs_at_two_brokers_pass_the_flood(mongo_uri: str, database: str, tmp_path: Path) -> None:
    pair, handler = Pair(mongo_uri, database, tmp_path, fair=True), Paced()
    with (
        pair.broker("one") as one,
        pair.broker("two") as two,
        Producer(endpoint=one.doors["smq"]) as producer,
    ):
        flood(producer, "mail")
        with (
            Worker("mail", handler, prefetch=1, endpoint=one.doors["smq"]),
            Worker("mail", handler, prefetch=1, endpoint=two.doors["smq"]),
            Producer(endpoint=two.doors["smq"]) as other,
        ):
            wait_until(lambda: len(handler.came) > 20, TIMEOUT)
            for name, where in (("here", producer), ("there", other)):
                where.push("mail", name.encode(), tenant=name).wait(TIMEOUT)
                since = len(handler.came)
                assert handler.before(name, since) <= 2 * HELD


@pytest.mark.full
@pytest.mark.parametrize("end", first_of("kill", "terminate"))
def test_a_broker_that_ends_leaves_nobody(mongo_uri: str, database: str, tmp_path: Path, end: str) -> None:
    # Given a flood, of which some is with a worker
    pair, handler = Pair(mongo_uri, database, tmp_path, fair=True), Paced()
    with pair.broker("one") as broker:
        with Producer(endpoint=broker.doors["smq"]) as producer:
            flood(producer, "mail", 400)
        with Client(endpoint=broker.doors["smq"]) as client:
            held = client.jobs.reserve("mail", 50, TIMEOUT)
            getattr(broker, end)()
        broker.restart()
        # Then who comes now does not wait for it, and what was held comes again
        assert len(held) == 50
        held.release()
        with Producer(endpoint=broker.doors["smq"]) as producer:
            for name in ("a", "b", "c"):
                producer.push("mail", name.encode(), tenant=name).wait(TIMEOUT)
        with Worker("mail", handler, prefetch=1, endpoint=broker.doors["smq"]):
            for name in ("a", "b", "c"):
                assert handler.before(name, 0) <= HELD
            wait_until(lambda: len(handler.came) >= 403, TIMEOUT, "all")
    assert "Traceback" not in broker.log_text()


@pytest.mark.full
def test_a_queue_is_fair_from_one_sighup_to_another(mongo_uri: str, database: str, tmp_path: Path) -> None:
    pair = Pair(mongo_uri, database, tmp_path)
    with (
        pair.broker("one") as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
        Client(endpoint=broker.doors["smq"]) as client,
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
    ):
        # Given a backlog
        flood(producer, "mail", 200)
        producer.push("mail", b"single", tenant="zed").wait(TIMEOUT)
        reload(broker, {"mail": {"fair": True}})
        # Then what was there is handed out in turns
        with client.jobs.reserve("mail", 2, TIMEOUT) as claim:
            assert {job.payload for job in claim.jobs} == {b"flood", b"single"}
        indexes = mongo[database]["queue.mail"].index_information
        assert "fair" in indexes()
        # And when it is plain again
        reload(broker, {"mail": {"fair": False}})
        wait_until(lambda: client.queues.get("mail").ready == 201, TIMEOUT)
        with client.jobs.reserve("mail", 2, TIMEOUT) as claim:
            assert [job.payload for job in claim.jobs] == [b"flood", b"flood"]
        wait_until(lambda: "fair" not in indexes(), TIMEOUT, "the end of the index")


def reload(broker: BrokerProcess, queues: dict[str, Any]) -> None:
    before = broker.log_text().count("SIGHUP: read ")
    (broker.folder / "broker.toml").write_text(tomli_w.dumps({**broker.config, "queues": queues}))
    broker.send_signal(signal.SIGHUP)
    wait_until(
        lambda: broker.log_text().count("SIGHUP: read ") > before, TIMEOUT, "a word on the new settings"
    )
