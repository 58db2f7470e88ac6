"""Settings of queues in MongoDB, settings of files, and brokers whose files differ."""

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from time import thread_time
from typing import Any

import gevent
import pytest
import tomli_w
from pymongo import MongoClient
from pymongo.database import Database

from sluicemq import BadFramesError, Client, NotFoundError, Producer
from sluicemq_broker.config import Config
from sluicemq_broker.queues import Disagreements, Queues
from sluicemq_broker.store import ConfigurationStore, LeaseStore, QueueRecord
from sluicemq_devices.hub import let_others_run
from support.broker_process import BrokerProcess
from support.fakes import FakeOwners, a_context, a_maker
from support.http_reader import Web
from support.jobs import NOW
from support.waiting import TIMEOUT, wait_until

FILES = ({"*": {"max_attempts": 7}, "named": {"ttl": 60}}, {"*": {"max_attempts": 7}, "named": {"ttl": 60}})


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[list[BrokerProcess]]:
    database = f"test_{token_hex(6)}"
    one, other = ({"broker": {"poll": 0.5}, "queues": file} for file in FILES)
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        BrokerProcess(mongo_uri, database, config=one) as first,
        BrokerProcess(mongo_uri, database, config=other) as second,
    ):
        yield [first, second]
        mongo.drop_database(database)


class Pair:
    """A queue of one test's own, and a client at each broker."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.brokers = brokers
        self.name = f"q{token_hex(4)}"
        self.here, self.elsewhere = (
            Client(timeout=TIMEOUT, endpoint=broker.doors["smq"]) for broker in brokers
        )
        with Producer(endpoint=brokers[0].doors["smq"]) as producer:
            producer.push(self.name, b"x").wait(TIMEOUT)
        self.elsewhere.queues.get(self.name)

    def row(self, key: str, client: Client | None = None, name: str = "") -> dict[str, Any]:
        rows = (client or self.here).settings(name or self.name)["settings"]
        return next(row for row in rows if row["key"] == key)

    def source(self, key: str, client: Client | None = None) -> tuple[Any, str]:
        row = self.row(key, client)
        return row["value"], row["source"]

    def close(self) -> None:
        self.here.close()
        self.elsewhere.close()


@pytest.fixture
def pair(brokers: list[BrokerProcess]) -> Iterator[Pair]:
    pair = Pair(brokers)
    try:
        yield pair
    finally:
        pair.close()


@pytest.mark.one_in(4)
def test_what_is_set_at_one_broker_holds_at_the_other_and_over_restarts(pair: Pair) -> None:
    rows = pair.here.set_settings(pair.name, {"max_attempts": 1, "priority": "7"})
    assert rows == [
        {"key": "max_attempts", "value": 1, "source": "mongodb", "file": 7},
        {"key": "priority", "value": 7, "source": "mongodb", "file": 0},
    ]
    wait_until(lambda: pair.source("priority", pair.elsewhere) == (7, "mongodb"), what="the other to hear")
    with Producer(endpoint=pair.brokers[1].doors["smq"]) as producer:
        job = producer.push(pair.name, b"y")
        job.wait(TIMEOUT)
    assert pair.here.jobs.get(pair.name, job.id).priority == 7
    # When a broker is restarted
    pair.elsewhere.close()
    assert pair.brokers[1].terminate() == 0
    pair.brokers[1].restart()
    pair.elsewhere = Client(timeout=TIMEOUT, endpoint=pair.brokers[1].doors["smq"])
    assert pair.source("max_attempts", pair.elsewhere) == (1, "mongodb")
    # When it is taken back
    [row] = pair.elsewhere.unset_settings(pair.name, ["max_attempts"])
    # Then the file counts
    assert row == {"key": "max_attempts", "value": 7, "source": "file"}
    wait_until(lambda: pair.source("max_attempts") == (7, "file"), what="the first to hear")
    assert pair.source("priority") == (7, "mongodb")


@pytest.mark.one_in(4)
def test_what_is_set_for_all_queues_counts_before_files_and_behind_what_is_set_for_one(pair: Pair) -> None:
    try:
        pair.here.queues.set_settings(pair.name, {"keep_done": 5})
        pair.here.queues.set_settings("*", {"keep_done": 60, "ttl": 30})
        assert pair.source("keep_done") == (5.0, "mongodb")
        assert pair.row("ttl", name="named") == {
            "key": "ttl", "value": 30.0, "source": "mongodb *", "file": 60.0,
        }  # fmt: skip
        wait_until(lambda: pair.source("ttl", pair.elsewhere) == (30.0, "mongodb *"), what="the other")
        assert pair.row("ttl", name="*") == {"key": "ttl", "value": 30.0, "source": "mongodb", "file": None}
    finally:
        pair.here.queues.unset_settings("*", ["keep_done", "ttl"])
    assert pair.source("ttl") == (None, "default")


@pytest.mark.one_in(4)
def test_a_limit_that_is_set_holds_for_jobs_that_wait(pair: Pair) -> None:
    pair.here.queues.set_settings(pair.name, {"max_running": 1})
    wait_until(lambda: pair.source("max_running", pair.elsewhere) == (1, "mongodb"), what="the other to hear")
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        producer.push(pair.name, b"y").wait(TIMEOUT)
    with (
        pair.here.jobs.reserve(pair.name, 1, TIMEOUT) as one,
        pair.elsewhere.jobs.reserve(pair.name, 5, 0.5) as other,
    ):
        assert len(one) + len(other) == 1


@pytest.mark.one_in(4)
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "at least one"),
        ({"max_runing": 1}, "did you mean max_running"),
        ({"database": "x"}, "can't change while brokers run"),
        ({"max_attempts": 1, "rate": "fast"}, "rate: expected"),
        ({"tenant_rate": 1}, "limits its tenants: that takes fair = true"),
    ],
)
def test_a_wrong_setting_fails_the_whole_order(pair: Pair, settings: dict[str, Any], why: str) -> None:
    before = pair.here.settings(pair.name)
    with pytest.raises(BadFramesError, match=why):
        pair.here.queues.set_settings(pair.name, settings)
    assert pair.here.settings(pair.name) == before


@pytest.mark.one_in(4)
def test_a_setting_that_others_need_is_taken_back_only_together_with_them(pair: Pair) -> None:
    pair.here.queues.set_settings(pair.name, {"fair": True, "tenant_rate": 1})
    with pytest.raises(BadFramesError, match="limits its tenants: that takes fair = true"):
        pair.here.queues.unset_settings(pair.name, ["fair"])
    assert pair.source("fair") == (True, "mongodb")
    pair.here.queues.unset_settings(pair.name, ["fair", "tenant_rate"])
    assert pair.source("fair") == (False, "default")


@pytest.mark.one_in(4)
def test_a_circle_of_dead_letters_is_refused(pair: Pair) -> None:
    other = f"{pair.name}-dead"
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        producer.push(other, b"x").wait(TIMEOUT)
    pair.here.queues.set_settings(pair.name, {"on_dead": other})
    with pytest.raises(BadFramesError, match="dead letters would go round for ever"):
        pair.here.queues.set_settings(other, {"on_dead": pair.name})
    pair.here.queues.set_settings(other, {"on_dead": other})


@pytest.mark.one_in(4)
def test_a_queue_that_is_not_there_has_no_settings_and_a_removed_one_none_any_more(pair: Pair) -> None:
    for ask in (pair.here.settings, lambda name: pair.here.set_settings(name, {"ttl": 1})):
        with pytest.raises(NotFoundError):
            ask(f"{pair.name}-not")
    pair.here.queues.set_settings(pair.name, {"ttl": 1000})
    pair.here.queues.delete(pair.name).result()
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        producer.push(pair.name, b"x").wait(TIMEOUT)
    assert pair.source("ttl") == (None, "default")


MANY = 2000
#: Queues that may be looked at in one turn: what a few milliseconds are enough for.
A_TURN = 1000


class Turns:
    """The number of the hub's turn, and how often something was done in each."""

    def __init__(self) -> None:
        self.number = 0
        self.done: Counter[int] = Counter()

    def note(self) -> None:
        self.done[self.number] += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        def count() -> None:
            while True:
                let_others_run()
                self.number += 1

        counting = gevent.spawn(count)
        try:
            yield
        finally:
            counting.kill()

    @property
    def most(self) -> int:
        return max(self.done.values(), default=0)


@pytest.fixture
def queues(documents: Database[dict[str, Any]]) -> Queues:
    owners = FakeOwners()
    owners.others = 1
    return Queues(Config.default(), a_context(owners), lambda _name: documents, a_maker())


def say(documents: Database[dict[str, Any]], broker: str, texts: list[str]) -> None:
    LeaseStore(documents).begin(broker, broker, 60.0, NOW)
    ConfigurationStore(documents).put([broker], f"digest of {broker}", texts, NOW)


def pieces(ttl: float) -> list[str]:
    names = [f"q{number}" for number in range(MANY)]
    return [json.dumps({name: {"ttl": ttl} for name in names[at : at + 200]}) for at in range(0, MANY, 200)]


def test_settings_are_read_as_they_were_said(documents: Database[dict[str, Any]]) -> None:
    say(documents, "a", ['{"*": {}, "mail": {"ttl": 60.0}}', '{"news": {"max_running": 5}}'])
    read = ConfigurationStore(documents).read(["digest of a"])
    assert read == {"digest of a": {"*": {}, "mail": {"ttl": 60.0}, "news": {"max_running": 5}}}


@pytest.mark.parametrize("damaged", [None, "{}", 7, ["["], ["7"], ['{"mail": 7}'], [7]])
def test_settings_that_can_not_be_read_are_none(documents: Database[dict[str, Any]], damaged: Any) -> None:
    say(documents, "a", [])
    documents["configurations"].update_many({}, {"$set": {"queues": damaged}})
    assert ConfigurationStore(documents).read(["digest of a"]) == {}


def test_too_large_a_file_is_compared_with_none(queues: Queues, documents: Database[dict[str, Any]]) -> None:
    say(documents, "a", [json.dumps({"mail": {"topic": "x" * 3_000_000}})])
    say(documents, "b", ['{"mail": {"ttl": 60.0}}'])
    looking = Disagreements(queues, queues.context)
    looking.tick()
    assert looking.found == []


def test_many_differences_take_short_turns(queues: Queues, documents: Database[dict[str, Any]]) -> None:
    say(documents, "a", pieces(60.0))
    say(documents, "b", pieces(61.0))
    looking, turns, of = Disagreements(queues, queues.context), Turns(), queues.records.of

    def noted(database: str, queue: str) -> QueueRecord:
        turns.note()
        return of(database, queue)

    queues.records.of = noted  # type: ignore[method-assign]
    with turns.counted():
        looking.tick()
    # Then each difference takes two looks at records
    assert len(looking.found) == 200
    assert sum(turns.done.values()) == 2 * MANY
    assert turns.most <= 2 * A_TURN


def test_a_file_that_is_read_again_is_taken_over_in_short_turns(queues: Queues) -> None:
    turns = Turns()
    for number in range(300):
        queues.open(f"q{number}")
    of = queues.settings.of

    def noted(name: str) -> Any:
        turns.note()
        until = thread_time() + 0.0002  # as long as it takes where a queue has other settings
        while thread_time() < until:
            pass
        return of(name)

    queues.settings.of = noted  # type: ignore[method-assign]
    with turns.counted():
        queues.reconfigure(Config.default())
    assert sum(turns.done.values()) >= 300
    assert turns.most <= 20


BROKER = {"poll": 0.5, "lease": 60.0, "http": "127.0.0.1:0", "history": True}
DIFFERING_FILES: tuple[dict[str, Any], ...] = (
    {"broker": BROKER, "queues": {"mail": {"max_running": 5, "ttl": 60}}},
    {"broker": BROKER, "queues": {"mail": {"ttl": 60}}},
)


@pytest.fixture
def differing_brokers(mongo_uri: str, database: str) -> Iterator[list[BrokerProcess]]:
    with (
        BrokerProcess(mongo_uri, database, config=DIFFERING_FILES[0]) as first,
        BrokerProcess(mongo_uri, database, config=DIFFERING_FILES[1]) as second,
    ):
        yield [first, second]


def differs(broker: BrokerProcess, name: str = "mail") -> list[dict[str, Any]]:
    with Client(timeout=TIMEOUT, endpoint=broker.doors["smq"]) as client:
        return list(client.settings(name)["differs"])


def agrees(broker: BrokerProcess) -> bool:
    return not differs(broker)


def incidents(broker: BrokerProcess) -> list[dict[str, Any]]:
    found = Web(broker.http).get("/api/v1/incidents?span=hour").json["incidents"]
    return [row for row in found if row["kind"] == "disagree"]


@pytest.mark.full
def test_both_say_how_their_files_differ_until_they_agree(differing_brokers: list[BrokerProcess]) -> None:
    # Then both find it, and an incident names queue, key, values and brokers
    for broker in differing_brokers:
        wait_until(partial(differs, broker), what="the difference")
        [found] = differs(broker)
        assert (found["queue"], found["key"]) == ("mail", "max_running")
        assert sorted(found["values"].values(), key=str) == [5, None]
        assert {name.rpartition(":")[2] for name in found["values"]} == {
            str(one.pid) for one in differing_brokers
        }
    wait_until(lambda: incidents(differing_brokers[0]), what="the incident")
    [incident] = incidents(differing_brokers[0])
    assert incident["queue"] == "mail"
    said = re.sub(r"at \S*:", "at ", incident["figures"]["said"])
    assert said.startswith("max_running: ")
    assert f"5 at {differing_brokers[0].pid}" in said
    assert f"none at {differing_brokers[1].pid}" in said
    # When the setting lies in MongoDB all brokers go by that
    with Client(timeout=TIMEOUT, endpoint=differing_brokers[1].doors["smq"]) as client:
        client.queues.set_settings("mail", {"max_running": 3})
        for broker in differing_brokers:
            wait_until(partial(agrees, broker), what="the end of it")
        client.queues.unset_settings("mail", ["max_running"])
    wait_until(lambda: differs(differing_brokers[0]), what="the difference again")
    # When the second reads a file that agrees
    (differing_brokers[1].folder / "broker.toml").write_text(
        tomli_w.dumps({**differing_brokers[1].config, "queues": DIFFERING_FILES[0]["queues"]})
    )
    differing_brokers[1].send_signal(signal.SIGHUP)
    for broker in differing_brokers:
        wait_until(partial(agrees, broker), what="the end of it")


@pytest.mark.full
def test_when_the_other_broker_has_gone_nothing_differs(differing_brokers: list[BrokerProcess]) -> None:
    wait_until(lambda: differs(differing_brokers[0]), what="the difference")
    assert differing_brokers[1].terminate() == 0
    wait_until(lambda: not differs(differing_brokers[0]), what="the end of it")
