"""Indexes of queues, what is in their way, and the survey of many queues."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from sluicemq import Client, DuplicateError, Producer, TooLargeError, UnavailableError, Worker
from sluicemq_broker.job import Dedupe
from sluicemq_broker.store import Inspector, QueueStore, Surveyed, date, survey_queues
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX, INDEXES, LINE_INDEX, LINE_INDEXES
from support.broker_under_test import BrokerUnderTest, serving
from support.jobs import NOW, ChangesAtOnce, a_job, everything, ids
from support.waiting import wait_until

ME = "me"
NAMES = {str(index.document["name"]) for index in INDEXES}
LINES = {str(index.document["name"]) for index in LINE_INDEXES}


class Bare:
    """A collection that somebody's insert made again, without any index; what is noticed of it."""

    def __init__(self, documents: Database[dict[str, Any]]) -> None:
        self.jobs = documents[f"queue.{token_hex(4)}"]
        self.told: list[tuple[str, str]] = []
        self.store = QueueStore(
            documents, self.jobs.name, notice=lambda kind, text: self.told.append((kind, text))
        )

    def insert(self, number: int, dedupe_id: Any, **fields: Any) -> str:
        name = f"old-{number}"
        given = {"state": "ready", "priority": 0, "eligible_at": date(NOW), "seq": number, "attempts": 0}
        self.jobs.insert_one({"_id": name, **given, "payload": b"x", "dedupe_id": dedupe_id, **fields})
        return name


@pytest.fixture
def bare(documents: Database[dict[str, Any]]) -> Bare:
    return Bare(documents)


@pytest.mark.parametrize("way", ["prepare", "mend"])
def test_jobs_that_share_a_dedupe_id_are_all_delivered_and_the_first_keeps_it(bare: Bare, way: str) -> None:
    # Given the second came in first
    for number in (2, 1, 3):
        bare.insert(number, "x", dedupe_until=date(NOW + 100))
    bare.insert(4, "y", dedupe_until=date(NOW + 100))
    getattr(bare.store, way)()
    assert bare.jobs.index_information().keys() >= NAMES
    stored = everything(bare.store)
    assert [stored[f"old-{at}"].get("dedupe_id") for at in (1, 2, 3, 4)] == ["x", None, None, "y"]
    ((kind, text),) = bare.told
    assert (kind, "'old-1'" in text, "'x'" in text) == ("dedupe_ids_shared", True, True)
    assert ids(bare.store.reserve(10, NOW, ME).jobs) == ["old-1", "old-2", "old-3", "old-4"]
    refused = bare.store.push([a_job(dedupe=Dedupe("x", 9.0))], NOW).refused
    assert isinstance(refused[0], DuplicateError)
    assert refused[0].id == "old-1"


def test_ids_that_are_none_are_freed_too(bare: Bare) -> None:
    for number, dedupe_id in enumerate([None, None, ["a", "b"], ["b"], 5, 5, {"a": 1}, {"a": 1}]):
        bare.insert(number, dedupe_id)
    bare.store.prepare()
    assert bare.jobs.index_information().keys() >= NAMES
    assert len(bare.store.reserve(20, NOW, ME).jobs) == 8


@pytest.mark.parametrize("name", ["somebodys", DEDUPE_INDEX])
def test_an_index_that_somebody_made_otherwise_makes_room(bare: Bare, name: str) -> None:
    bare.insert(1, "x")
    bare.jobs.create_index("dedupe_id", name=name)  # not unique
    bare.jobs.create_index("headers.of_their_own", name="theirs", unique=True)
    bare.store.prepare()
    made = bare.jobs.index_information()
    assert made.keys() >= {"_id_", "theirs", *NAMES}
    assert made[DEDUPE_INDEX]["unique"]
    assert {kind for kind, _ in bare.told} <= {"indexes_remade"}


def test_an_index_that_can_not_be_made_keeps_no_other_from_it(bare: Bare) -> None:
    # Given as many indexes as a collection can have, but for four
    bare.insert(1, "x")
    for number in range(63 - 4):
        bare.jobs.create_index(f"field{number}")
    bare.store.prepare()
    assert len(bare.jobs.index_information().keys() & NAMES) == 4
    assert {kind for kind, _ in bare.told} == {"unindexed"}
    assert ids(bare.store.reserve(10, NOW, ME).jobs) == ["old-1"]
    # And when there is room again
    for number in range(len(NAMES) - 4):
        bare.jobs.drop_index(f"field{number}_1")
    bare.store.mend()
    assert bare.jobs.index_information().keys() >= NAMES


def test_indexes_of_others_do_not_hide_that_ours_are_missing(bare: Bare) -> None:
    bare.store.prepare()
    bare.jobs.drop_index(DEDUPE_INDEX)
    for number in range(3):
        bare.jobs.create_index(f"field{number}")
    bare.store.mend()
    assert bare.jobs.index_information().keys() >= NAMES


def test_the_indexes_of_those_that_wait_are_made_before_the_first_one_does(bare: Bare) -> None:
    # Given a queue in which none does
    bare.store.prepare()
    assert bare.jobs.index_information().keys() == {"_id_"} | NAMES
    bare.store.groups.places(1)
    assert bare.jobs.index_information().keys() == {"_id_"} | NAMES | LINES


@pytest.mark.parametrize("way", ["prepare", "mend"])
def test_a_queue_in_which_a_job_has_waited_gets_the_indexes_of_those_back(bare: Bare, way: str) -> None:
    # Given one whose broker was killed before it had made them all
    bare.store.groups.places(1)
    bare.jobs.drop()
    bare.insert(1, "x")
    again = QueueStore(bare.jobs.database, bare.jobs.name)
    getattr(again, way)()
    assert bare.jobs.index_information().keys() == {"_id_"} | NAMES | LINES


def test_a_queue_with_lines_that_is_removed_while_shared_is_never_without_their_indexes(
    store: QueueStore, changes: ChangesAtOnce
) -> None:
    store.groups.prepare()
    changes.drop("mail", NOW, shared=True)
    assert store.jobs.index_information().keys() == {"_id_"} | NAMES | LINES


def test_a_queue_removed_while_others_use_it_is_never_without_its_indexes(
    store: QueueStore, changes: ChangesAtOnce, inspector: Inspector
) -> None:
    # Given a push that comes right behind the removal, at a broker that has seen the queue
    store.push([a_job(dedupe=Dedupe("x", 9.0)) for _ in range(1)], NOW)
    removed = changes.drop("mail", NOW, shared=True)
    first = store.push([a_job(dedupe=Dedupe("x", 9.0))], NOW)
    second = store.push([a_job(dedupe=Dedupe("x", 9.0))], NOW)
    assert removed == 1
    assert (first.refused, len(second.refused)) == ({}, 1)
    assert store.jobs.index_information().keys() >= NAMES
    assert "mail" in inspector.names()
    assert not [name for name in store.jobs.database.list_collection_names() if "deleted" in name]


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], lease=1.0, poll=0.5) as broker:
        yield broker


def test_a_queue_made_again_without_indexes_goes_on_and_costs_no_other(broker: BrokerUnderTest) -> None:
    # Given two jobs with one dedupe_id that came in after the queue was removed
    queue, door = f"q{token_hex(4)}", broker.doors["smq"]
    jobs = broker.collection(queue)
    handled: list[str] = []
    with Producer(endpoint=door) as producer, Client(endpoint=door) as client:
        producer.push(queue, b"x").wait(60)
        born = jobs.find_one() or {}
        jobs.drop()
        for number in (1, 2):
            jobs.insert_one(
                {**born, "_id": f"job-{number}", "dedupe_id": "same", "seq": born["seq"] + number}
            )
        # When, then
        wait_until(lambda: jobs.index_information().keys() >= NAMES, what="the indexes")
        producer.push(queue, b"x").wait(60)
        with Worker(queue, lambda job: handled.append(job.id), endpoint=door):
            wait_until(lambda: len(set(handled)) >= 3, what="delivery of all jobs")
        assert queue in {listed.name for listed in client.queues.list()}


@pytest.mark.parametrize(
    ("index", "good", "bad"),
    [
        ([("headers.where", "2dsphere")], {"where": [1, 1]}, {"where": "nowhere"}),
        ([("headers.a", 1), ("headers.b", 1)], {"a": [1], "b": 1}, {"a": [1], "b": [1]}),
        ([("headers.text", "text")], {"text": "x"}, {"text": "x", "language": "klingon"}),
    ],
    ids=["a place", "two arrays", "a language"],
)
def test_a_job_that_an_index_somebody_made_can_not_take_is_refused_alone(
    broker: BrokerUnderTest, index: Any, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    queue, door = f"q{token_hex(4)}", broker.doors["smq"]
    jobs = broker.collection(queue)
    options: dict[str, Any] = {"language_override": "language"} if index[0][1] == "text" else {}
    jobs.create_index(index, **options)
    with Producer(endpoint=door) as producer:
        receipts = [producer.push(queue, b"x", headers=headers) for headers in (good, bad, good)]
        receipts[0].wait(60)
        receipts[2].wait(60)
        with pytest.raises(TooLargeError, match="MongoDB refused it"):
            receipts[1].wait(60)
    assert jobs.count_documents({"headers": good}) == 2


def test_a_read_by_an_index_that_an_election_has_taken_back_may_be_repeated(bare: Bare) -> None:
    bare.insert(1, None)
    with pytest.raises(UnavailableError, match="it is made again"), translated():
        list(bare.jobs.find({}, hint=LINE_INDEX))


SURVEY_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def survey_documents(mongo: MongoClient[dict[str, Any]], database: str) -> Database[dict[str, Any]]:
    """A database in which queues come and go."""
    return mongo[database]


def fill(documents: Database[dict[str, Any]], queue: str, *jobs: dict[str, Any]) -> None:
    """Make a queue with its indexes and these documents."""
    collection = documents[f"queue.{queue}"]
    collection.create_indexes(INDEXES)
    if jobs:
        collection.insert_many([{"priority": 0, "eligible_at": SURVEY_NOW, "seq": 1, **job} for job in jobs])


def test_a_survey_shows_owners_and_expiry(survey_documents: Database[dict[str, Any]]) -> None:
    later = SURVEY_NOW.replace(year=2027)
    fill(survey_documents, "held", *({"state": "reserved", "owner": owner} for owner in ("a", "b", "b")))
    fill(
        survey_documents,
        "expires",
        *({"state": "ready", "expires_at": when} for when in (later, SURVEY_NOW, later)),
    )
    fill(survey_documents, "ended", {"state": "dead", "owner": "c", "expires_at": SURVEY_NOW})
    fill(
        survey_documents,
        "strange",
        {"state": "reserved", "owner": 5},
        {"state": "ready", "expires_at": "soon"},
    )
    found = survey_queues(survey_documents, ["held", "expires", "ended", "strange", "absent"])
    assert found == {
        "held": Surveyed(frozenset({"a", "b"})),
        "expires": Surveyed(expires=SURVEY_NOW.timestamp()),
        "ended": Surveyed(),
        "strange": Surveyed(),
        "absent": Surveyed(),
    }


def test_many_queues_are_surveyed(survey_documents: Database[dict[str, Any]]) -> None:
    names = [f"queue-{number}" for number in range(120)]
    fill(survey_documents, names[7], {"state": "reserved", "owner": "a"})
    fill(survey_documents, names[119], {"state": "reserved", "owner": "b"})
    found = survey_queues(survey_documents, names)
    assert found == dict.fromkeys(names, Surveyed()) | {
        names[7]: Surveyed(frozenset("a")),
        names[119]: Surveyed(frozenset("b")),
    }


def test_one_that_can_not_be_surveyed_is_left_out(survey_documents: Database[dict[str, Any]]) -> None:
    # Given a view that MongoDB can't read
    fill(survey_documents, "good", {"state": "reserved", "owner": "a"})
    fill(survey_documents, "other")
    survey_documents.create_collection(
        "queue.broken", viewOn="queue.good", pipeline=[{"$set": {"state": {"$divide": [1, 0]}}}]
    )
    found = survey_queues(survey_documents, ["good", "broken", "other"])
    assert found == {"good": Surveyed(frozenset("a"), math.inf), "other": Surveyed()}
    assert survey_queues(survey_documents, []) == {}
