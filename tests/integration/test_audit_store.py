"""The audit log in MongoDB: how long records stay, and how many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pymongo import MongoClient

from sluicemq_broker.store import AuditChoice, AuditKind, AuditRecord, AuditStore

NOW = 1_790_000_000.0


@pytest.fixture
def store(mongo_uri: str, database: str) -> Iterator[AuditStore]:
    with MongoClient[dict[str, object]](mongo_uri) as mongo:
        store = AuditStore(mongo[database])
        store.prepare()
        yield store


def some(count: int, kind: AuditKind = AuditKind.OPERATORS, at: float = NOW) -> list[AuditRecord]:
    action = "login" if kind == AuditKind.COUNTED else "purge"
    name = f"{kind}-{action}"
    return [
        AuditRecord(id=f"{name}-{number}", at=at + number, until=at + number, action=action, kind=kind)
        for number in range(count)
    ]


def ids(store: AuditStore) -> list[str]:
    return [row["id"] for row in store.page(AuditChoice(), 1000).rows]


def test_records_that_are_older_than_the_retention_are_removed(store: AuditStore) -> None:
    store.write(some(10))
    assert store.trim(NOW + 4, 1000) == 4
    assert ids(store) == [f"operators-purge-{number}" for number in (9, 8, 7, 6, 5, 4)]


@pytest.mark.parametrize("kind", [AuditKind.COUNTED, AuditKind.OTHERS])
def test_a_flood_of_logins_and_others_removes_no_operators_act(store: AuditStore, kind: AuditKind) -> None:
    store.write(some(5))
    store.write(some(500, kind, at=NOW + 100))
    assert store.trim(0, 50) == 450
    assert ids(store)[-5:] == [f"operators-purge-{number}" for number in (4, 3, 2, 1, 0)]
    assert len(ids(store)) == 55


def test_a_record_that_is_written_again_is_the_same_one(store: AuditStore) -> None:
    store.write(some(3))
    store.write(some(3))
    assert len(ids(store)) == 3


def test_records_of_one_moment_are_leafed_through(store: AuditStore) -> None:
    store.write([AuditRecord(id=f"{number:03}", at=NOW, action="purge") for number in range(25)])
    found, after = [], None
    while True:
        page, after = store.page(AuditChoice(after=after), 10)
        found += [row["id"] for row in page]
        if after is None:
            break
    assert found == [f"{number:03}" for number in reversed(range(25))]


def test_repeated_logins_stand_at_their_last_time(store: AuditStore) -> None:
    # Given a login that is repeated behind an act, and one that an older version has counted
    login = AuditRecord(id="login", at=NOW, until=NOW, action="login", kind=AuditKind.COUNTED)
    store.write([login, AuditRecord(id="act", at=NOW + 10, action="purge")])
    store.write([replace(login, until=NOW + 20, count=2)])
    old = AuditRecord(id="old", at=NOW + 5, until=NOW + 30, action="login")
    store.write([old])
    # Then it stands before the act, in each page
    assert ids(store) == ["login", "act", "old"]
    first, place = store.page(AuditChoice(), 1)
    assert (first[0]["at"], first[0]["until"], first[0]["count"]) == (NOW, NOW + 20, 2)
    assert [row["id"] for row in store.page(AuditChoice(after=place), 10).rows] == ["act", "old"]
    # And is chosen by any of its times
    assert [row["id"] for row in store.page(AuditChoice(until=NOW + 1), 10).rows] == ["login"]
    assert [row["id"] for row in store.page(AuditChoice(since=NOW + 15), 10).rows] == ["login"]


def test_an_action_is_found_by_its_first_word_and_no_part_of_one(store: AuditStore) -> None:
    names = ("users add", "users remove", "users", "usersx", "x.y")
    store.write([AuditRecord(id=name, at=NOW, action=name) for name in names])
    assert {row["id"] for row in store.page(AuditChoice(action="users"), 10).rows} == set(names[:3])
    assert store.page(AuditChoice(action="."), 10).rows == []
