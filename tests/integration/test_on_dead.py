"""Dead letters that go into an ordinary queue, as ``on_dead`` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tomli_w

from sluicemq import Client, DeadError, NotFoundError, Producer
from sluicemq_broker.config import ConfigError, QueueSettings, load
from sluicemq_broker.context import Context
from sluicemq_broker.queues import OnDead, Queues, check_name
from sluicemq_broker.runtime import Counters
from sluicemq_broker.store import DeadLetters, QueueStore, Redriven, RolledBack, date
from support.broker_under_test import BrokerUnderTest, serving
from support.faulty_mongo import Fault, Kind, Line
from support.jobs import NOW, ChangesAtOnce, a_job, stored
from support.own_queue import SECONDS
from support.small_broker import SmallBroker, VirtualClock
from support.virtual_time import VirtualTime
from support.waiting import wait_until

QUEUES: dict[str, Any] = {
    "risky": {"on_dead": "letters", "max_attempts": 1},
    "brief": {"on_dead": "letters", "on_expiry": "dead"},
    "letters": {"on_dead": "letters"},
}


class OneQueue:
    """All that a broker knows is one queue, which nobody uses here."""

    def __init__(self, store: QueueStore) -> None:
        self.name, self.store = "mail", store
        self.settings, self.in_use = QueueSettings(), False
        self.records = SimpleNamespace(removals=list)  # nothing was ordered of it

    def follow_records(self) -> None:
        pass

    def __iter__(self) -> Iterator[OneQueue]:
        yield self

    def open(self, name: str) -> OneQueue:
        check_name(name)
        return self

    def documents(self) -> list[Any]:
        return []


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], queues=QUEUES, poll=0.5, lease=1.0) as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    yield shared
    for queue in QUEUES:
        shared.collection(queue).delete_many({})
    shared.close_sockets()
    assert "Traceback" not in shared.process.log_text()


@pytest.fixture
def producer(broker: BrokerUnderTest) -> Iterator[Producer]:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        yield producer


def test_a_rejected_job_goes_to_whoever_works_on_dead_letters(client: Client, producer: Producer) -> None:
    producer.push("risky", b"cup", id="a", headers={"colour": "red"}).wait(SECONDS)
    with client.jobs.reserve("risky", 1, SECONDS) as claim:
        claim.jobs[0].reject("it is broken")
    with client.jobs.reserve("letters", 1, SECONDS) as claim:
        (letter,) = claim
        assert (letter.id, letter.payload, letter.attempt) == ("a", b"cup", 1)
        assert letter.headers["colour"] == "red"
        told = letter.headers["dead_letter"]
        assert (told["queue"], told["reason"], told["attempts"]) == ("risky", "it is broken", 1)
        shown = client.show("letters", "a")
        assert [row["reason"] for row in shown["errors"]] == ["it is broken", "dead in risky"]
        assert [row["queue"] for row in shown["passed"]] == ["risky"]
        claim.commit()
    assert client.queues.get("risky").dead == 0


@pytest.mark.parametrize(("queue", "options"), [("risky", {}), ("brief", {"ttl": 0.01})])
def test_however_it_has_died(client: Client, producer: Producer, queue: str, options: Any) -> None:
    producer.push(queue, b"x", id="a", **options).wait(SECONDS)
    if queue == "risky":
        with client.jobs.reserve(queue, 1, SECONDS) as claim:
            claim.jobs[0].rollback("once is enough")
    with client.jobs.reserve("letters", 1, SECONDS) as claim:
        assert claim.jobs[0].headers["dead_letter"]["queue"] == queue
        claim.commit()


def test_one_that_another_broker_has_left_goes_there_too(
    broker: BrokerUnderTest, client: Client, producer: Producer
) -> None:
    # Given: what this broker has to look at because something died here, it has looked at
    producer.push("risky", b"x").wait(SECONDS)
    for queue in ("risky", "letters"):
        with client.jobs.reserve(queue, 1, SECONDS) as claim:
            (claim.jobs[0].reject if queue == "risky" else claim.commit)()
    now = datetime.now(UTC).replace(tzinfo=None)
    left = {"_id": "a", "state": "dead", "priority": 0, "eligible_at": now, "seq": 1, "attempts": 3}
    left |= {"created_at": now, "payload": b"x", "ended_at": now, "errors": []}
    broker.collection("risky").insert_one(left)
    with client.jobs.reserve("letters", 1, SECONDS) as claim:
        assert claim.jobs[0].headers["dead_letter"]["reason"] == ""
        claim.commit()


def test_a_dead_letter_of_the_last_queue_stays_there(client: Client, producer: Producer) -> None:
    producer.push("letters", b"x", id="a").wait(SECONDS)
    with client.jobs.reserve("letters", 1, SECONDS) as claim:
        claim.jobs[0].reject("nobody can")
    wait_until(lambda: [job.id for job in client.jobs.list("letters", "dead")] == ["a"])


def test_one_whose_id_is_there_stays_and_keeps_no_other(client: Client, producer: Producer) -> None:
    producer.push("letters", b"its own", id="a", delay=1000)
    for name in ("a", "b"):
        producer.push("risky", b"x", id=name)
    producer.flush(SECONDS)
    with client.jobs.reserve("risky", 2, SECONDS) as claim:
        for job in claim:
            job.reject("no")
    with client.jobs.reserve("letters", 1, SECONDS) as claim:
        assert claim.jobs[0].id == "b"
        claim.commit()
    assert client.jobs.get("risky", "a").state == "dead"
    assert client.jobs.get("letters", "a").payload == b"its own"


def test_who_waits_for_it_hears_that_it_is_dead(client: Client, producer: Producer) -> None:
    reply = producer.submit("risky", b"x")
    with client.jobs.reserve("risky", 1, SECONDS) as claim:
        claim.jobs[0].reject("no")
    with pytest.raises(DeadError, match="no"):
        reply.result(SECONDS)


def test_what_may_be_asked_for_waits(store: QueueStore, changes: ChangesAtOnce, documents: Any) -> None:
    other = QueueStore(documents, "queue.letters")
    asked = a_job("asked")
    asked.want_result()
    store.push([asked, a_job("other")], NOW)
    jobs = store.reserve(2, NOW, "worker").jobs
    store.roll_back([RolledBack(job, "no", "", dead=True) for job in jobs], NOW)
    for later, ids in ((1, ["other"]), (100, ["asked", "other"])):
        letters = DeadLetters(unasked=NOW + later - 60)
        moving = changes.redriving(
            "mail", letters, NOW + later, Redriven(), lambda: 9, other, by_setting=True
        )
        assert sum(moving) == 1
        assert sorted(job["_id"] for job in other.jobs.find()) == ids
    assert stored(other, "asked")["headers"]["dead_letter"]["queue"] == "mail"


def test_one_that_has_gone_on_is_shown_where_it_is_now(client: Client, producer: Producer) -> None:
    producer.push("risky", b"cup", id="a").wait(SECONDS)
    with client.jobs.reserve("risky", 1, SECONDS) as claim:
        claim.jobs[0].reject("it is broken")
    wait_until(lambda: client.queues.get("letters").ready == 1)
    assert client.show("letters", "a")["headers"]["dead_letter"]["queue"] == "risky"
    for ask in (client.show, client.result):
        with pytest.raises(NotFoundError):
            ask("risky", "a")


def test_a_dead_child_among_very_many_dead_letters_is_found_some_of_them_at_a_time(store: QueueStore) -> None:
    # Given: its broker was killed before it could tell the parent; some died in one millisecond
    looks = looking_at(store, step=2)
    for number, died in enumerate((1, 2, 2, 2, 3, 4, 5)):
        store.jobs.insert_one(
            {"_id": f"{number}", "seq": number, "state": "dead", "ended_at": date(NOW + died)}
        )
    parent = {"queue": "mail", "id": "a", "seq": 9, "by": ""}
    store.jobs.update_one({"_id": "6"}, {"$set": {"parent": parent}})
    told = []
    for _ in range(4):
        looks.round(1.0)
        told.append("told" in stored(store, "6")["parent"])
    assert told == [False, False, True, True]
    # When another one is found out of turn
    store.jobs.update_one({"_id": "0"}, {"$set": {"parent": parent}})
    for _ in range(3):
        looks.round(1.0)
    # Then it begins anew
    assert "told" in stored(store, "0")["parent"]


def test_behind_a_dead_broker_parents_in_a_queue_that_nobody_uses_are_notified(store: QueueStore) -> None:
    # Given children of which one died just before its broker
    parent = {"queue": "mail", "id": "a", "seq": 9, "by": ""}
    for number, died in enumerate((5, 50)):
        dead = {"state": "dead", "ended_at": date(NOW + died), "parent": parent}
        store.jobs.insert_one({"_id": f"{number}", "seq": number, **dead})
    looking_at(store, 1).notify_parents_since(NOW + 49)
    assert ["told" in stored(store, f"{number}")["parent"] for number in range(2)] == [False, True]


def looking_at(store: QueueStore, step: int) -> OnDead:
    """What looks at some of all dead letters of one queue in each round."""
    known = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW + 100), counters=Counters())
    return OnDead(cast("Queues", OneQueue(store)), cast("Context", known), step=step, seldom=1)


@pytest.mark.parametrize("parent", [{"id": 5}, {"queue": "no such name", "id": "a", "seq": 1, "by": ""}])
def test_documents_that_are_no_jobs_keep_no_parent_from_hearing(store: QueueStore, parent: Any) -> None:
    # Given more of them than a page has, which died first
    strange = {"state": "dead", "ended_at": date(NOW), "parent": parent, "errors": "none"}
    store.jobs.insert_many([{"_id": f"strange-{number}", **strange} for number in range(300)])
    own = {"queue": "mail", "id": "a", "seq": 9, "by": ""}
    store.jobs.insert_one({"_id": "b", "seq": 1, "state": "dead", "ended_at": date(NOW + 1), "parent": own})
    looking_at(store, step=1000).round(1.0)
    assert stored(store, "b")["parent"]["told"]


class LettersRig:
    """A broker whose queue ``mail`` has dead letters; ``on_dead`` of all queues is what it says."""

    def __init__(self, documents: Any, store: QueueStore, on_dead: str | None) -> None:
        self.time = VirtualTime()
        self.line = Line(lambda *_stored: None, self.time)
        clock = VirtualClock(self.time)
        self.broker = SmallBroker(
            "one", documents, self.time, clock, self.line, lambda: "one", {"on_dead": on_dead}
        )
        self._letters = documents["queue.letters"]
        store.push([a_job(str(number)) for number in range(3)], NOW)
        dead = [RolledBack(job, "no", "worker", dead=True) for job in store.reserve(3, NOW, "me").jobs]
        store.roll_back(dead, NOW)

    @property
    def moved(self) -> int:
        return int(self._letters.count_documents({}))

    def reconfigure(self, on_dead: str | None) -> None:
        queues = self.broker.queues
        queues.reconfigure(
            replace(queues.config, other_queues=replace(queues.config.other_queues, on_dead=on_dead))
        )


def test_those_there_go_when_on_dead_is_set_also_once_more(documents: Any, store: QueueStore) -> None:
    rig = LettersRig(documents, store, None)
    rig.broker.round()
    before = rig.moved
    rig.reconfigure("letters")
    rig.broker.round()
    assert (before, rig.moved) == (0, 3)
    # When it is taken away for a while, in which an old one comes
    rig.reconfigure(None)
    rig.broker.round()
    old = documents["queue.letters"].find_one_and_delete({"_id": "0"})
    store.jobs.insert_one({**old, "_id": "4", "state": "dead", "ended_at": date(NOW - 3600)})
    rig.reconfigure("letters")
    rig.broker.round()
    assert rig.moved == 3
    rig.line.dead = True


def test_a_broker_that_stops_moves_no_more(documents: Any, store: QueueStore) -> None:
    rig = LettersRig(documents, store, "letters")
    rig.broker.on_dead.stop()
    rig.broker.round()
    assert rig.moved == 0
    rig.line.dead = True


def test_those_that_could_not_go_at_first_go_in_the_next_round(documents: Any, store: QueueStore) -> None:
    rig = LettersRig(documents, store, "letters")
    store.jobs.update_many({}, {"$set": {"ended_at": date(NOW - 3600)}})
    rig.line.fault = Fault(Kind.AWAY, "transaction")
    rig.broker.round()
    before = rig.moved
    rig.broker.round()
    assert (rig.line.fired, before, rig.moved) == (1, 0, 3)
    rig.line.dead = True


def test_one_of_which_its_parent_heard_late_goes_there_in_turn(documents: Any, store: QueueStore) -> None:
    # Given: a broker that has moved all that it found when it began
    time = VirtualTime()
    line = Line(lambda *_stored: None, time)
    broker = SmallBroker(
        "one", documents, time, VirtualClock(time), line, lambda: "one", {"on_dead": "letters"}
    )
    broker.round()
    parent = {"queue": "mail", "id": "a", "seq": 9, "by": "", "told": True}
    letter = {"_id": "b", "seq": 1, "payload": b"x", "priority": 0, "attempts": 1, "errors": []}
    died = date(NOW - 3600)
    letter |= {"state": "dead", "eligible_at": died, "created_at": died, "ended_at": died, "parent": parent}
    store.jobs.insert_one(letter)
    for _ in range(32):
        broker.round()
    assert [document["_id"] for document in documents["queue.letters"].find()] == ["b"]
    assert store.jobs.find_one({"_id": "b", "state": "dead"}) is None
    broker.line.dead = True


def test_a_letter_of_a_repeated_push_waits_for_its_done_copys_end(documents: Any, store: QueueStore) -> None:
    # Given: three letters have moved, their worker has done one, which is kept, and its push is repeated
    rig = LettersRig(documents, store, "letters")
    rig.broker.round()
    assert rig.moved == 3
    letters = documents["queue.letters"]
    letters.update_one({"_id": "1"}, {"$set": {"state": "done", "ended_at": date(NOW)}})
    store.push([a_job("1")], NOW)
    (again,) = store.reserve(1, NOW, "me").jobs
    store.roll_back([RolledBack(again, "no, as before", "worker", dead=True)], NOW)
    store.jobs.update_many({}, {"$set": {"ended_at": date(NOW - 3600)}})

    def go_round() -> tuple[bool, str]:
        for _ in range(32):
            rig.broker.round()
        return store.jobs.find_one({"_id": "1"}) is not None, letters.find_one({"_id": "1"})["state"]

    # When, Then: neither takes the place of the other
    assert go_round() == (True, "done")
    letters.delete_one({"_id": "1"})
    store.jobs.update_many({}, {"$set": {"ended_at": date(NOW - 3600)}})

    def found() -> str | None:
        go_on = letters.find_one({"_id": "1"})
        return None if go_on is None else go_on["errors"][-2]["reason"]

    for _ in range(32):
        rig.broker.round()
    assert (store.jobs.find_one({"_id": "1"}), found()) == (None, "no, as before")
    rig.line.dead = True


def test_dead_letters_that_would_go_round_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    queues = {"a": {"on_dead": "b"}, "b": {"on_dead": "c"}, "c": {"on_dead": "a"}}
    file.write_text(tomli_w.dumps({"queues": queues}))
    with pytest.raises(ConfigError, match="a → b → c → a: dead letters would go round for ever"):
        load(file, {}, {})
