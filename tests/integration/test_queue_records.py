"""Records of queues: what is ordered of a queue holds for all brokers, over restarts, and is found by all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.queues.records import QueueRecords
from sluicemq_broker.store import QueueRecord, QueueRecordStore, Removing
from support.fakes import Held, go_on
from support.jobs import NOW
from support.virtual_time import VirtualTime

Change = Callable[[QueueRecord], QueueRecord]


def pausing(what: str) -> Change:
    return lambda record: replace(record, paused=record.paused | {what})


def resuming(what: str) -> Change:
    return lambda record: replace(record, paused=record.paused - {what})


@pytest.fixture
def store(documents: Database[dict[str, Any]]) -> QueueRecordStore:
    store = QueueRecordStore(documents)
    store.prepare()
    return store


class Reader:
    """A broker that follows the records of one database."""

    def __init__(self, documents: Database[dict[str, Any]]) -> None:
        self.time = VirtualTime()
        self.records = QueueRecords(lambda _name: documents, ["db"], self.time)
        self.store = self.records.store("db")
        self.records.prepare()

    def found(self) -> dict[str, bool]:
        """Read; return the names of records that have changed, and whether their queues were removed."""
        found: dict[str, bool] = {}
        self.records.read()
        self.records.apply(lambda _database, name, removed: found.update({name: removed}))
        return found

    def paused(self, queue: str) -> set[str]:
        return set(self.records.of("db", queue).paused)


@pytest.fixture
def reader(documents: Database[dict[str, Any]], store: QueueRecordStore) -> Reader:
    del store  # its indexes are there
    return Reader(documents)


def test_what_is_paused_of_a_queue_is_kept_until_it_is_resumed(store: QueueRecordStore) -> None:
    for what in ("intake", "delivery", "intake"):
        store.change("a", pausing(what), NOW)
    store.change("b", pausing("intake"), NOW)
    store.change("a", resuming("intake"), NOW)
    assert {queue.name: set(queue.paused) for queue in store.read()} == {"a": {"delivery"}, "b": {"intake"}}


def test_a_change_that_changes_nothing_is_not_written(store: QueueRecordStore) -> None:
    before = store.change("a", pausing("intake"), NOW)
    assert store.change("a", pausing("intake"), NOW) == before


def test_a_record_that_says_nothing_goes_a_day_later_and_is_found_until_then(
    documents: Database[dict[str, Any]], store: QueueRecordStore
) -> None:
    revision = store.change("a", pausing("intake"), NOW).revision
    store.change("a", resuming("intake"), NOW)
    [found] = store.read(revision)
    assert found.says_nothing
    assert "removed_at" in (documents["queues"].find_one({"_id": "a"}) or {})
    # When it says something again
    store.change("a", pausing("intake"), NOW)
    # Then it stays
    assert "removed_at" not in (documents["queues"].find_one({"_id": "a"}) or {})


def test_a_removal_is_known_by_its_revision_also_behind_later_orders(store: QueueRecordStore) -> None:
    store.change("a", pausing("intake"), NOW)
    removed = store.change("a", QueueRecord.without_orders, NOW)
    later = store.change("a", pausing("delivery"), NOW)
    assert (removed.removed, later.removed) == (removed.revision, removed.revision)
    assert store.one("a") == later
    assert (later.paused, later.revision > removed.revision) == (frozenset({"delivery"}), True)


def test_brokers_that_hear_of_a_removal_say_how_many_workers_they_have(store: QueueRecordStore) -> None:
    store.change("a", lambda record: replace(record, removing=Removing("t1", "me", NOW)), NOW)
    store.note_workers("a", "t1", {"x": 2, "y": 0})
    store.note_workers("a", "other", {"z": 1})
    assert store.one("a").removing == Removing("t1", "me", NOW, {"x": 2, "y": 0})


@pytest.mark.parametrize(
    "damaged",
    [
        {"paused": "intake"}, {"paused": None, "settings": 7}, {"removing": {"token": "t"}}, {"removing": []},
        {"revision": "x", "removed": []}, {},
    ],
)  # fmt: skip
def test_of_what_was_damaged_by_hand_nothing_holds_and_others_are_read(
    documents: Database[dict[str, Any]], store: QueueRecordStore, damaged: dict[str, Any]
) -> None:
    documents["queues"].insert_one({"_id": "a", **damaged})
    store.change("b", pausing("intake"), NOW)
    assert {record.name: record.says_nothing for record in store.read()} == {"a": True, "b": False}
    store.change("a", pausing("intake"), NOW)
    assert store.one("a").paused == {"intake"}


def test_a_look_reads_only_what_has_changed(documents: Database[dict[str, Any]], reader: Reader) -> None:
    for name in "abc":
        reader.store.change(name, pausing("intake"), NOW)
    assert reader.found() == dict.fromkeys("abc", False)
    reader.store.change("b", pausing("delivery"), NOW)
    # Given a record that only a complete reading would find
    documents["queues"].insert_one({"_id": "d", "paused": ["intake"]})
    assert reader.found() == {"b": False}
    assert [reader.paused(name) for name in "abcd"] == [
        {"intake"}, {"intake", "delivery"}, {"intake"}, set(),
    ]  # fmt: skip
    assert reader.found() == {}


def test_a_pause_of_an_older_version_holds(documents: Database[dict[str, Any]]) -> None:
    documents["queues"].insert_one({"_id": "a", "paused": ["intake"]})
    reader = Reader(documents)
    assert reader.found() == {"a": False}
    assert reader.paused("a") == {"intake"}


def test_a_removal_is_found_by_each_broker_once(reader: Reader, documents: Database[dict[str, Any]]) -> None:
    other = Reader(documents)
    reader.store.change("a", pausing("intake"), NOW)
    assert (reader.found(), other.found()) == ({"a": False}, {"a": False})
    reader.store.change("a", QueueRecord.without_orders, NOW)
    reader.store.change("a", pausing("delivery"), NOW)
    # When the other was away for a while, and one is new
    other.time.value += 7200.0
    assert (reader.found(), other.found(), Reader(documents).found()) == (
        {"a": True}, {"a": True}, {"a": False},
    )  # fmt: skip
    assert (reader.found(), other.found()) == ({}, {})


def test_a_gone_record_is_found_after_long(reader: Reader, documents: Database[dict[str, Any]]) -> None:
    reader.store.change("a", pausing("intake"), NOW)
    reader.found()
    documents["queues"].delete_one({"_id": "a"})
    assert (reader.found(), reader.paused("a")) == ({}, {"intake"})
    reader.time.value += 7200.0
    assert (reader.found(), reader.paused("a")) == ({"a": False}, set())


def test_while_mongodb_is_away_what_was_known_holds(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.store.change("a", pausing("intake"), NOW)
    reader.found()

    def away(_after: object) -> None:
        raise UnavailableError("no primary")

    monkeypatch.setattr(reader.store, "read", away)
    with pytest.raises(UnavailableError):
        reader.found()
    assert reader.paused("a") == {"intake"}


def test_a_change_that_can_not_be_applied_is_applied_by_the_next_look(reader: Reader) -> None:
    reader.store.change("a", QueueRecord.without_orders, NOW)
    reader.found()
    reader.store.change("a", QueueRecord.without_orders, NOW)
    reader.store.change("a", pausing("intake"), NOW)

    def away(_database: str, _name: str, _removed: object) -> None:
        raise UnavailableError("no primary")

    reader.records.read()
    with pytest.raises(UnavailableError):
        reader.records.apply(away)
    assert reader.found() == {"a": True}


def test_an_earlier_look_does_not_undo_an_order(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a look that has read, and whose answer takes long
    held, read = Held(), reader.store.read

    def slowly(after: int | None) -> list[QueueRecord]:
        found = list(read(after))
        held()
        return found

    monkeypatch.setattr(reader.store, "read", slowly)
    look = gevent.spawn(reader.records.read)
    go_on()
    reader.store.change("a", pausing("intake"), NOW)
    order = gevent.spawn(reader.records.read)
    go_on()
    held.set()
    gevent.joinall([look, order], timeout=60, raise_error=True)
    assert reader.paused("a") == {"intake"}
