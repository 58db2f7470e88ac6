"""What people ask of a queue: counts, since when, peek, show; and the schema number."""

from typing import Any

import bson
import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from sluicemq.protocol.errors import NotFoundError
from sluicemq_broker.store import SHOWN_STATES, Inspector, QueueStore, RolledBack, collection, date
from support.jobs import NOW, a_job, everything, finished, ids, some_jobs

ME = "me"
LIMIT, BYTES = 100, 1_000_000


@pytest.fixture
def crowd(store: QueueStore) -> QueueStore:
    """3 ready, 2 scheduled, 4 reserved, 1 done, 5 dead."""
    store.push(some_jobs(3) + some_jobs(2, eligible_at=NOW + 60) + some_jobs(4, owner=ME), NOW)
    done, *dead = some_jobs(6, owner=ME, remember=60.0)
    store.push([done, *dead], NOW)
    store.complete([finished(done, b"result")], NOW)
    store.roll_back([RolledBack(job, "bad", "worker", dead=True) for job in dead], NOW)
    return store


@pytest.mark.usefixtures("crowd")
def test_jobs_are_counted_exactly_by_state(inspector: Inspector) -> None:
    counts = inspector.counts("mail", NOW)
    assert counts == {
        "ready": 3, "scheduled": 2, "waiting": 0, "reserved": 4, "done": 1, "dead": 5, "exact": True,
        "oldest": NOW,
    }  # fmt: skip


def test_a_scheduled_job_is_ready_when_its_time_has_come(crowd: QueueStore, inspector: Inspector) -> None:
    counts = inspector.counts("mail", NOW + 60)
    assert (counts["ready"], counts["scheduled"]) == (5, 0)


@pytest.mark.usefixtures("store")
def test_an_empty_queue_counts_nothing(inspector: Inspector) -> None:
    assert set(inspector.counts("mail", NOW).values()) == {0, True, None}


def test_many_jobs_of_one_state_are_counted_by_what_is_left_and_it_is_said_that_this_is_an_estimate(
    store: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    store.push(some_jobs(50) + some_jobs(3, eligible_at=NOW + 60), NOW)
    counts = Inspector(documents, exactly=10).counts("mail", NOW)
    assert (counts["ready"], counts["scheduled"], counts["exact"]) == (50, 3, False)


@pytest.mark.parametrize("surely_many", [100, 100_000], ids=["sampled first", "sampled last"])
def test_several_states_with_many_jobs_share_what_is_left_as_a_sample_of_it_does(
    store: QueueStore, documents: Database[dict[str, Any]], surely_many: int
) -> None:
    # Given, but for 5 reserved, three times as many ready jobs as scheduled ones
    store.push(some_jobs(900) + some_jobs(300, eligible_at=NOW + 60) + some_jobs(5, owner=ME), NOW)
    counts = Inspector(documents, exactly=10, surely_many=surely_many).counts("mail", NOW)
    assert counts["ready"] == pytest.approx(900, rel=0.15)
    assert counts["scheduled"] == pytest.approx(300, rel=0.3)
    assert (counts["reserved"], counts["exact"]) == (5, False)


def test_many_scheduled_are_what_is_left(store: QueueStore, documents: Database[dict[str, Any]]) -> None:
    store.push(some_jobs(3) + some_jobs(50, eligible_at=NOW + 60), NOW)
    counts = Inspector(documents, exactly=10).counts("mail", NOW)
    assert (counts["ready"], counts["scheduled"], counts["exact"]) == (3, 50, False)


def test_the_oldest_ready_job_is_found_whatever_its_priority(store: QueueStore, inspector: Inspector) -> None:
    # Given one that is due since 60 s, behind those of higher priority and some that are not due
    store.push([a_job(priority=9, eligible_at=NOW - 5), a_job(priority=9, eligible_at=NOW - 8)], NOW)
    store.push([a_job(priority=0, eligible_at=NOW - 60), a_job(priority=4, eligible_at=NOW + 60)], NOW)
    assert inspector.oldest_ready("mail", NOW) == inspector.counts("mail", NOW)["oldest"] == NOW - 60


@pytest.mark.parametrize("surely_many", [10, 10_000])
def test_what_has_expired_counts_as_nothing_however_many_they_are(
    store: QueueStore, documents: Database[dict[str, Any]], surely_many: int
) -> None:
    # Given many more than are counted, as when nobody has worked for a while, and few others
    store.push(
        some_jobs(90, expires_at=NOW - 1) + some_jobs(30, expires_at=NOW - 1, eligible_at=NOW + 9), NOW
    )
    store.push(some_jobs(3) + some_jobs(2, eligible_at=NOW + 60), NOW)
    # Then: estimated by a sample of all, which with so few is exact
    counts = Inspector(documents, exactly=10, surely_many=surely_many).counts("mail", NOW)
    assert (counts["ready"], counts["scheduled"], counts["exact"]) == (3, 2, False)


def test_what_has_expired_is_neither_counted_nor_the_oldest(store: QueueStore, inspector: Inspector) -> None:
    over = [a_job(eligible_at=NOW - 60, expires_at=NOW - 1), a_job(eligible_at=NOW + 60, expires_at=NOW - 1)]
    store.push([*over, a_job(eligible_at=NOW - 5, expires_at=NOW + 9)], NOW - 70)
    counts = inspector.counts("mail", NOW)
    assert (counts["ready"], counts["scheduled"], counts["oldest"]) == (1, 0, NOW - 5)


def test_a_few_jobs_are_counted_by_three_statements(
    mongo_uri: str, documents: Database[dict[str, Any]], crowd: QueueStore
) -> None:
    sent: list[str] = []

    class Sent(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            sent.append(event.command_name)

    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[Sent()]) as client:
        client.admin.command("ping")
        sent.clear()
        counts = Inspector(client[documents.name]).counts("mail", NOW)
    assert (counts["dead"], sent[:3]) == (5, ["count", "listIndexes", "aggregate"])
    assert set(sent[3:]) <= {"endSessions"}


def test_without_a_ready_job_none_is_the_oldest(store: QueueStore, inspector: Inspector) -> None:
    store.push([a_job(eligible_at=NOW + 60), a_job(owner=ME)], NOW)
    assert inspector.oldest_ready("mail", NOW) is None


def test_a_job_is_shown_whole_with_its_history(store: QueueStore, inspector: Inspector) -> None:
    [job] = jobs = [a_job("a", b"x" * 100_000, headers={"k": [1]}, owner=ME, priority=3)]
    store.push(jobs, NOW)
    store.roll_back([RolledBack(job, "bad", "w", due=NOW + 9)], NOW + 1)
    shown = inspector.show("mail", "a", NOW)
    assert (shown["id"], shown["state"], len(shown["payload"])) == ("a", "scheduled", 100_000)
    assert (shown["headers"], shown["eligible_at"]) == ({"k": [1]}, NOW + 9)
    assert shown["errors"] == [{"at": NOW + 1, "attempt": 1, "reason": "bad", "worker": "w"}]
    assert inspector.show("mail", "a", NOW + 9)["state"] == "ready"


@pytest.mark.usefixtures("store")
def test_a_job_that_is_not_there_can_not_be_shown(inspector: Inspector) -> None:
    with pytest.raises(NotFoundError, match="'a' is not there in queue 'mail'"):
        inspector.show("mail", "a", NOW)


def test_a_peek_shows_the_next_jobs_and_takes_none(store: QueueStore, inspector: Inspector) -> None:
    low, high, next_high = a_job("low"), a_job("high", priority=9), a_job("next", priority=9)
    store.push([low, next_high, high], NOW)
    before = everything(store)
    shown = inspector.peek("mail", "ready", 2, BYTES, NOW)
    assert [row["id"] for row in shown] == ["high", "next"]
    assert everything(store) == before


def test_a_shown_job_has_all_that_is_stored_in_seconds(store: QueueStore, inspector: Inspector) -> None:
    [job] = jobs = [a_job("a", b"x", headers={"k": [1]}, owner=ME, priority=3)]
    store.push(jobs, NOW)
    store.roll_back([RolledBack(job, "bad", "w", dead=True)], NOW + 1)
    [shown] = inspector.peek("mail", "dead", 1, BYTES, NOW)
    assert (shown["id"], shown["state"], shown["payload"], shown["headers"]) == (
        "a",
        "dead",
        b"x",
        {"k": [1]},
    )
    assert (shown["created_at"], shown["ended_at"], shown["priority"]) == (NOW, NOW + 1, 3)
    assert shown["errors"] == [{"at": NOW + 1, "attempt": 1, "reason": "bad", "worker": "w"}]
    assert "_id" not in shown


@pytest.mark.parametrize(
    ("state", "count"),
    [("ready", 3), ("scheduled", 2), ("waiting", 0), ("reserved", 4), ("done", 1), ("dead", 5)],
)
def test_each_state_can_be_looked_at(crowd: QueueStore, inspector: Inspector, state: str, count: int) -> None:
    shown = inspector.peek("mail", state, LIMIT, BYTES, NOW)
    assert [row["state"] for row in shown] == [state] * count
    assert state in SHOWN_STATES


class Traffic(CommandListener):
    """Bytes that came from MongoDB."""

    def __init__(self) -> None:
        self.bytes = 0

    def started(self, _event: CommandStartedEvent) -> None:
        pass

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.bytes += len(bson.encode(event.reply))

    def failed(self, _event: CommandFailedEvent) -> None:
        pass


def test_of_a_peek_at_beginnings_the_rest_of_long_payloads_and_results_does_not_travel(
    store: QueueStore, documents: Database[dict[str, Any]], mongo_uri: str
) -> None:
    # Given jobs with short and long payloads, and one with a long result
    store.push([a_job("long", b"x" * 12_000_000), a_job("short", b"y" * 1000), a_job("none", b"")], NOW)
    [kept] = some_jobs(1, owner=ME, remember=60.0)
    store.push([kept], NOW)
    store.complete([finished(kept, b"r" * 1_000_000)], NOW)
    traffic = Traffic()
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[traffic]) as client:
        # When their beginnings are enough
        inspector = Inspector(client[documents.name])
        long, short, none = inspector.peek("mail", "ready", LIMIT, BYTES, NOW, first=10)
        [done] = inspector.peek("mail", "done", LIMIT, BYTES, NOW, first=10)
        weight = inspector.weigh_first("mail", "ready", LIMIT, NOW, first=10)
    assert "payload" not in long
    assert (long["payload_bytes"], short["payload_bytes"], none["payload_bytes"]) == (12_000_000, 1000, 0)
    assert (short["payload"], none["payload"]) == (b"y" * 10, b"")
    assert (done["result_bytes"], "result" in done) == (1_000_000, False)
    assert traffic.bytes < 10_000
    assert 1000 < weight < 10_000


def test_a_peek_shows_fewer_large_jobs_but_always_one(store: QueueStore, inspector: Inspector) -> None:
    store.push([a_job(payload=b"x" * 1000) for _ in range(5)], NOW)
    assert len(inspector.peek("mail", "ready", LIMIT, 2500, NOW)) == 3
    assert len(inspector.peek("mail", "ready", LIMIT, 1, NOW)) == 1


def test_the_queues_of_a_database_are_its_collections_with_their_prefix(
    documents: Database[dict[str, Any]], inspector: Inspector
) -> None:
    for name in ("mail", "a.b", "A_b-1"):
        QueueStore(documents, collection(name)).prepare()
    documents["owners"].insert_one({"_id": "x"})
    names = inspector.names()
    for name in names:
        documents.drop_collection(collection(name))
    assert names == ["A_b-1", "a.b", "mail"]


def test_the_jobs_of_schema_1_are_read(documents: Database[dict[str, Any]], store: QueueStore) -> None:
    # Given: a document as the first version wrote it
    when = date(NOW)
    documents[collection("mail")].insert_one(
        {
            "_id": "old", "state": "ready", "priority": 2, "eligible_at": when, "seq": 7, "attempts": 1,
            "created_at": when, "payload": b"x", "headers": {"a": 1}, "losses": 1, "suspect": True,
            "max_attempts": 9, "visibility_timeout": 3.0, "remember": 60.0,
            "errors": [{"at": when, "attempt": 1, "reason": "bad", "worker": "w"}],
        }
    )  # fmt: skip
    [job] = store.reserve(1, NOW, ME).jobs
    assert (ids([job]), job.payload, job.priority, job.headers) == (["old"], b"x", 2, {"a": 1})
    assert (job.attempts, job.losses, job.isolated) == (2, 1, True)
    assert (job.max_attempts, job.visibility_timeout, job.remember) == (9, 3.0, 60.0)


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("state", SHOWN_STATES)
def test_the_last_jobs_of_a_state_are_the_first_ones_from_the_end(inspector: Inspector, state: str) -> None:
    def peeked(limit: int) -> list[str]:
        return [job["id"] for job in inspector.peek("mail", state, limit, BYTES, NOW)]

    def weighed(limit: int) -> int:
        return inspector.weigh_first("mail", state, limit, NOW)

    assert peeked(-LIMIT) == peeked(LIMIT)[::-1]
    assert peeked(-2) == peeked(LIMIT)[::-1][:2]
    assert weighed(-LIMIT) == weighed(LIMIT)
