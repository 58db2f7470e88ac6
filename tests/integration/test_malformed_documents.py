"""What was written by hand, or by another program, keeps no job from its worker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo.errors import WriteError

from sluicemq import Client, NotFoundError, Producer, Worker
from sluicemq.protocol import wire
from sluicemq.protocol.enums import JobState
from sluicemq.protocol.rows import plain
from sluicemq_broker.job import Dedupe
from sluicemq_broker.job import Job as StoredJob
from sluicemq_broker.store import SHOWN_STATES, DeadLetters, Inspector, QueueDefaults, QueueStore, date
from sluicemq_broker.store.jobs.documents import HANDED_OUT, document
from support.broker_under_test import BrokerUnderTest, serving
from support.jobs import NOW, ChangesAtOnce, a_job, everything, ids, some_jobs
from support.waiting import wait_until

ME = "me"
FAR = DatetimeMS(2**61)
ODD: list[Any] = [
    *(None, True, -1, 10**15, 0.5, math.nan, math.inf, "x", b"x", [], [1], ["x"], {}, {"a": {"b": 1}}),
    *(ObjectId(), Decimal128("1"), Int64(5), MinKey(), MaxKey(), Regex("a"), Timestamp(1, 1)),
    *(Binary(b"x", 4), datetime(2020, 1, 1, tzinfo=UTC), FAR),
]
#: Whatever may stand in a field, or nothing at all.
GONE = object()
FIELDS = [
    *("payload", "priority", "seq", "attempts", "eligible_at", "expires_at", "created_at", "headers"),
    *("losses", "suspect", "max_attempts", "visibility_timeout", "keep_done", "remember", "backoff"),
    *("errors", "dedupe_until", "owner", "reserved_at", "result", "unheard_of"),
]
BACKOFFS: list[Any] = [
    {"kind": "fixed", "base": 1.0, "factor": 1.0, "cap": 1.0, "jitter": 0.0, "unheard_of": 1},
    {"kind": "fibonacci"},
    {"kind": "fixed", "base": "x"},
    {"kind": "fixed", "cap": -1.0},
]
changes_of_a_job = st.dictionaries(
    st.sampled_from(FIELDS), st.sampled_from([*ODD, *BACKOFFS, GONE]), max_size=3
)
_TWO_ARRAYS = 171
identities = st.sampled_from([GONE, GONE, ObjectId(), 5, 2.5, True, {"a": 1}, b"id", FAR, None, "a string"])


def strange(number: int, identity: Any, fields: dict[str, Any], state: str = "ready") -> dict[str, Any]:
    born = {**document(a_job(f"strange-{number}"), date(NOW), QueueDefaults()), **fields, "state": state}
    if identity is not GONE:
        born["_id"] = identity
    return {key: value for key, value in born.items() if value is not GONE}


def insert(store: QueueStore, born: dict[str, Any]) -> None:
    """Nothing lies there that MongoDB takes from nobody: two arrays under one index."""
    try:
        store.jobs.insert_one(born)
    except WriteError as error:
        if error.code != _TWO_ARRAYS:
            raise


@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    drawn=st.lists(
        st.tuples(
            identities, changes_of_a_job, st.sampled_from(["ready", "ready", "ready", "reserved", "odd", 7])
        ),
        max_size=8,
    ),
    limit=st.integers(1, 5),
)
@example(drawn=[(5, {}, "ready")], limit=5)
@example(drawn=[("as many fields as a job", {"payload": GONE, "losses": "none"}, "ready")], limit=5)
def test_all_good_jobs_are_delivered_and_settled_beside_any_documents(
    store: QueueStore, inspector: Inspector, changes: ChangesAtOnce, drawn: list[Any], limit: int
) -> None:
    store.jobs.delete_many({})
    good = some_jobs(6)
    store.push(good[:3], NOW)
    for number, (identity, fields, state) in enumerate(drawn):
        born = strange(number, identity, fields, state)
        store.jobs.delete_one({"_id": {"$in": [born.get("_id")]}})
        insert(store, born)
    store.push(good[3:], NOW)
    # When all that lies there is claimed, given back, looked at, swept and committed
    owners = store.owners()
    store.mend_ownerless(NOW)
    store.expire(NOW)
    store.reclaim("x", 20, NOW)
    claimed: list[StoredJob] = []
    for _ in range(40):
        claim = store.reserve(limit, NOW, ME, before=10**15)
        claimed += claim.jobs
        if not claim.jobs and not claim.more:
            break
    owners |= store.owners()
    looked_at = [inspector.peek("mail", state, 100, 10**6, NOW) for state in SHOWN_STATES]
    shown = [inspector.show("mail", row["id"], NOW) for row in looked_at[3] if isinstance(row["id"], str)]
    counts = inspector.counts("mail", NOW)
    inspector.oldest_ready("mail", NOW)
    wire.encode(wire.OK, 1, looked_at, shown, counts)
    store.find([job.id for job in claimed])
    problems = store.commit(claimed)
    changes.redrive("mail", DeadLetters(), NOW + 1)
    assert {job.id for job in claimed} >= set(ids(good))
    assert all(type(job.id) is str for job in claimed)
    assert problems == {}
    assert ME in owners
    assert all(isinstance(owner, str) for owner in owners)
    store.reserve(100, NOW + 2, ME)
    rest = store.reserve(100, NOW + 2, ME)
    assert (rest.jobs, rest.more) == ([], False)


@pytest.mark.parametrize("value", BACKOFFS)
def test_what_is_set_aside_is_a_dead_letter_that_says_why_and_is_counted(
    store: QueueStore, noticed: list[tuple[str, str]], changes: ChangesAtOnce, value: Any
) -> None:
    store.jobs.insert_one(strange(1, GONE, {"backoff": value}))
    store.push([a_job("good")], NOW)
    claim = store.reserve(10, NOW, ME)
    assert ids(claim.jobs) == ["good"]
    letter = everything(store)["strange-1"]
    assert letter["state"] == "dead"
    assert letter["unreadable"] == letter["errors"][-1]["reason"]
    ((kind, text),) = noticed
    assert kind == "unreadable_documents"
    assert "strange-1" in text
    # And it stays there until it was put right
    assert "never was a job" in str(changes.redrive("mail", DeadLetters(), NOW).refused["strange-1"])
    store.jobs.update_one({"_id": "strange-1"}, {"$unset": {"backoff": "", "unreadable": ""}})
    assert changes.redrive("mail", DeadLetters(), NOW).moved == 1
    assert ids(store.reserve(10, NOW, ME).jobs) == ["strange-1"]


@pytest.mark.parametrize("errors", [None, 5, "text", {"at": 1}])
def test_what_has_no_history_to_grow_is_set_aside_by_its_claim(store: QueueStore, errors: Any) -> None:
    store.jobs.insert_one(strange(1, GONE, {"errors": errors}))
    store.push([a_job("good")], NOW)
    claim = store.reserve(10, NOW, ME)
    assert ids(claim.jobs) == ["good"]
    letter = everything(store)["strange-1"]
    assert (letter["state"], letter["unreadable"]) == ("dead", "its errors are no array")
    assert store.reserve(10, NOW, ME).jobs == []


def test_a_document_that_another_broker_took_first_is_left_to_it(
    store: QueueStore, noticed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.jobs.insert_one(strange(1, GONE, {"payload": "text"}))
    find = store.jobs.find

    def found(*arguments: Any, **options: Any) -> Any:
        cursor = find(*arguments, **options)
        if arguments[1] is not HANDED_OUT:
            return cursor
        documents = list(cursor.sort([("seq", 1)]))
        assert documents
        store.jobs.update_one({"_id": "strange-1"}, {"$set": {"state": "reserved", "owner": "other"}})

        class Page:
            alive = False

            def sort(self, _order: object) -> Page:
                return self

            def to_list(self, _at_once: int) -> list[dict[str, Any]]:
                page = documents[:]
                documents.clear()
                return page

        return Page()

    monkeypatch.setattr(store.jobs, "find", found)
    claim = store.reserve(1, NOW, ME)
    assert (claim.jobs, claim.more, noticed) == ([], False, [])
    monkeypatch.undo()
    assert everything(store)["strange-1"]["state"] == "reserved"


def test_a_holder_without_a_window_keeps_its_dedupe_id_from_nobody(store: QueueStore) -> None:
    # Given documents with a dedupe_id that no broker wrote
    documents: list[dict[str, Any]] = [
        {"dedupe_id": "x"},
        {"dedupe_id": ["y", "z"]},
        {"dedupe_id": "w", "dedupe_until": 5},
        {"dedupe_id": ["v", 1], "dedupe_until": date(NOW + 99)},
        {"dedupe_id": "u", "dedupe_until": [date(NOW + 99)]},
        {"dedupe_id": "t", "dedupe_until": FAR},
    ]
    for number, fields in enumerate(documents):
        store.jobs.insert_one(strange(number, ObjectId(), fields))
    jobs = [a_job(dedupe=Dedupe(name, 60.0)) for name in "xyzwvut"]
    pushed = store.push(jobs, NOW)
    assert (pushed.refused, pushed.existing) == ({}, [])
    assert store.push([a_job(dedupe=Dedupe("x", 60.0))], NOW).refused


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], lease=1.0, poll=0.5) as broker:
        yield broker


def test_a_broker_delivers_commits_and_answers_beside_strange_documents(broker: BrokerUnderTest) -> None:
    queue, door = f"q{token_hex(4)}", broker.doors["smq"]
    jobs = broker.collection(queue)
    handled: list[str] = []
    with Producer(endpoint=door) as producer, Client(endpoint=door) as client:
        for _ in range(3):
            producer.push(queue, b"good").wait(60)
        fields = [
            {"backoff": BACKOFFS[0]},
            {"payload": "text"},
            {"eligible_at": FAR},
            {"priority": "x"},
            {"seq": None},
        ]
        fields = [{"eligible_at": ODD[-2], "created_at": ODD[-2], **field} for field in fields]
        jobs.insert_many([strange(number, ObjectId(), field) for number, field in enumerate(fields * 20)])
        jobs.insert_many([strange(number + 1000, GONE, field) for number, field in enumerate(fields)])
        receipts = [producer.push(queue, b"good") for _ in range(100)]
        with Worker(queue, lambda job: handled.append(job.id), prefetch=10, endpoint=door):
            wait_until(lambda: len(set(handled)) >= 103, what="delivery of all good jobs")
        assert {receipt.id for receipt in receipts} <= set(handled)
        wait_until(lambda: counts(client, queue)["reserved"] == 0, what="the commits")
        assert client.counters().counters["unreadable_documents"] >= 50
        for state in SHOWN_STATES:
            client.jobs.list(queue, JobState(state), limit=100)
        assert client.jobs.get(queue, "strange-1001").unreadable
        with pytest.raises(NotFoundError):
            client.jobs.get(queue, "nothing")


def counts(client: Client, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = plain(client.queues.get(queue))
    return found
