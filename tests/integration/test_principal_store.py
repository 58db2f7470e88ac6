"""Principals in MongoDB: each change is found once, in its order, and costs one look by an index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from secrets import token_hex
from threading import Barrier, Thread
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from integration.explained_plans import Explainer
from sluicemq import BadFramesError, ForbiddenError, NotFoundError
from sluicemq.protocol.keys import encode
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.command import users
from sluicemq_broker.security import Principals, public_key_of, token_of
from sluicemq_broker.store import PrincipalRecord, PrincipalStore
from support.jobs import NOW

OPERATE = Permissions.read("operate")
OWNER = PrincipalRecord(name="owner", keys=(token_of("t"),), permissions=OPERATE)


@pytest.fixture
def store(documents: Database[dict[str, Any]]) -> PrincipalStore:
    """No principals, with the indexes."""
    store = PrincipalStore(documents)
    store.prepare()
    return store


def put(store: PrincipalStore, record: PrincipalRecord, **options: Any) -> PrincipalRecord | None:
    return store.change(record.name, lambda _before: record, NOW, **options)


def remove(store: PrincipalStore, name: str, **options: Any) -> None:
    store.change(name, lambda _before: None, NOW, **options)


def test_a_principal_is_read_as_it_was_put(store: PrincipalStore) -> None:
    """With all that it may have."""
    whole = PrincipalRecord(
        name="mailer",
        keys=(public_key_of(encode(bytes(32)), NOW, "laptop"), token_of("t", NOW)),
        permissions=Permissions.read("push=mail.* operate"),
        tenant="acme",
        max_rate=2.5,
        max_bytes_rate=1000,
    )
    put(store, whole)
    assert list(store.read()) == [replace(whole, changed_at=NOW, revision=1)]
    assert store.one("mailer") == replace(whole, changed_at=NOW, revision=1)
    assert store.one("nobody") is None
    assert store.one("") is None


def test_no_secret_is_stored(store: PrincipalStore, documents: Database[dict[str, Any]]) -> None:
    """A token is there as its hash alone."""
    put(store, replace(OWNER, keys=(token_of("a secret token"),)))
    assert "a secret token" not in str(list(documents["principals"].find()))


def test_changes_and_removals_are_found_behind_a_revision(store: PrincipalStore) -> None:
    """Whoever has read up to one reads what is newer, and nothing twice."""
    for name in ("a", "b", "c"):
        put(store, PrincipalRecord(name=name))
    seen = list(store.read())[-1].revision
    assert list(store.read(seen)) == []
    put(store, PrincipalRecord(name="a", permissions=OPERATE))
    remove(store, "b")
    found = list(store.read(seen))
    assert [(principal.name, principal.removed) for principal in found] == [("a", False), ("b", True)]
    assert store.one("b") is None
    put(store, PrincipalRecord(name="b", permissions=OPERATE))
    assert [(record.name, record.removed) for record in store.read(found[-1].revision)] == [("b", False)]


def test_one_key_stands_for_one_principal(store: PrincipalStore) -> None:
    """Also at two brokers that have not heard of each other's; a key of a removed one is free."""
    put(store, OWNER)
    with pytest.raises(BadFramesError, match="another principal has this key"):
        put(store, replace(OWNER, name="thief"))
    assert [record.name for record in store.read()] == ["owner"]
    put(store, PrincipalRecord(name="a"))
    put(store, PrincipalRecord(name="b"))  # without keys
    remove(store, "owner")
    put(store, replace(OWNER, name="thief"))


def test_the_last_one_who_may_operate_stays(store: PrincipalStore) -> None:
    """Neither removed, nor without operate, nor without a key, unless that is forced."""
    put(store, OWNER)
    put(store, PrincipalRecord(name="keyless", permissions=OPERATE))

    for change in (
        lambda _before: None,
        lambda before: replace(before, permissions=Permissions()),
        lambda before: replace(before, keys=()),
    ):
        with pytest.raises(ForbiddenError, match="owner is the last principal that may operate"):
            store.change("owner", change, NOW, keep_operator=True)
    put(store, replace(OWNER, tenant="acme"), keep_operator=True)
    put(store, replace(OWNER, name="second", keys=(token_of("second"),)))
    remove(store, "owner", keep_operator=True)
    with pytest.raises(ForbiddenError):
        remove(store, "second", keep_operator=True)
    remove(store, "second")


def test_of_two_that_remove_each_other_one_stays(mongo_uri: str, documents: Database[dict[str, Any]]) -> None:
    """Two changes at once don't both count on the other principal."""
    prepared = PrincipalStore(documents)
    prepared.prepare()
    for name in ("a", "b"):
        put(prepared, replace(OWNER, name=name, keys=(token_of(name),)))
    together, refused = Barrier(2), []

    def leave(name: str) -> None:
        with MongoClient[dict[str, Any]](mongo_uri) as mongo:
            store = PrincipalStore(mongo[documents.name])
            store.one(name)
            together.wait()
            try:
                remove(store, name, keep_operator=True)
            except ForbiddenError as error:
                refused.append(error)

    threads = [Thread(target=leave, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 1
    assert len([principal for principal in prepared.read() if not principal.removed]) == 1


def test_a_damaged_document_is_nobody(store: PrincipalStore, documents: Database[dict[str, Any]]) -> None:
    """It may do nothing, and others are read."""
    put(store, OWNER)
    put(store, replace(OWNER, name="b", keys=()))
    documents["principals"].update_one({"_id": "owner"}, {"$set": {"permissions": "everything", "keys": 7}})
    assert [(record.name, record.keys, record.operates) for record in store.read()] == [
        ("owner", (), False),
        ("b", (), False),
    ]
    remove(store, "owner")
    assert store.one("owner") is None


@pytest.mark.parametrize(
    "damage",
    [
        {"tenant": 5}, {"tenant": "x" * 10_000}, {"limits": {"max_rate": "x"}},
        {"limits": {"max_rate": float("nan")}}, {"limits": {"max_bytes_rate": -5}}, {"limits": []},
        {"keys.0.id": 5}, {"keys.0.hash": 5}, {"keys.0.added_at": "yesterday"},
    ],
)  # fmt: skip
def test_a_document_with_a_wrong_value_is_nobody(
    store: PrincipalStore, documents: Database[dict[str, Any]], damage: dict[str, Any]
) -> None:
    put(store, OWNER)
    documents["principals"].update_one({"_id": "owner"}, {"$set": damage})
    assert [(record.keys, record.operates) for record in store.read()] == [((), False)]


@pytest.mark.parametrize("name", [5, {"a": 1}, "a name", "a\nb", "http_token", None])
def test_a_document_that_no_principal_can_be_keeps_no_other_from_being_read(
    store: PrincipalStore, documents: Database[dict[str, Any]], name: object
) -> None:
    # Given a principal, a document that somebody has put there, and a removal behind it
    known = Principals()
    put(store, OWNER)
    known.use_stored(store.read())
    stored = documents["principals"].find_one({"_id": "owner"})
    assert stored
    documents["principals"].insert_one({**stored, "_id": name, "keys": [], "revision": 2})
    documents["principals"].update_one({"_id": ""}, {"$set": {"last": 2}})
    remove(store, "owner")
    records = list(store.read(1))
    known.use_stored(records)
    assert [record.revision for record in records] == [2, 3]
    assert known.records() == []


@pytest.mark.full
def test_a_look_with_ten_thousand_principals_reads_no_key_and_no_document(mongo_uri: str) -> None:
    """Each broker looks each second; all of them are read once, at its start, in turns of the hub."""
    explainer, name = Explainer(mongo_uri), f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as mongo:
        try:
            store = PrincipalStore(mongo[name])
            store.prepare()
            mongo[name]["principals"].insert_many([_stored(n) for n in range(10_000)])
            known = Principals()
            known.use_stored(store.read(), complete=True)
            assert len(known.records()) == 10_000

            with explainer.plans() as plans:
                assert list(store.read(10_000)) == []

            (plan,) = plans
            assert "COLLSCAN" not in plan.stages
            assert (plan.keys, plan.documents) == (0, 0)
        finally:
            mongo.drop_database(name)
            explainer.close()


def _stored(number: int) -> dict[str, Any]:
    return {
        "_id": f"p{number:05}",
        "revision": number + 1,
        "keys": [{"id": f"{number:012x}", "kind": "token", "hash": f"sha256:{number:064x}"}],
        "permissions": {"push": [f"q{number}.*"]},
        "changed_at": datetime(2026, 11, 25, tzinfo=UTC),
    }


@pytest.fixture
def recovered(mongo_uri: str) -> Iterator[tuple[str, str]]:
    """A URI and a database without a broker."""
    name = f"test_{token_hex(6)}"
    yield mongo_uri, name
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        mongo.drop_database(name)


def test_principals_are_changed_without_a_broker(recovered: tuple[str, str]) -> None:
    """The way back in: by the store alone, with every action of USERS."""

    def act(action: str, **fields: Any) -> Any:
        return users.act(*recovered, action, fields)

    made = act("add", name="owner", permissions="operate", token=True, tenant="acme", limits={"max_rate": 5})

    assert len(made["token"]) > 40
    assert made["limits"] == {"max_rate": 5.0}
    assert [key["kind"] for key in made["keys"]] == ["token"]
    assert [row["name"] for row in act("list")] == ["owner"]
    assert act("show", name="owner") | {"token": made["token"]} == made
    with pytest.raises(BadFramesError, match="there is a principal owner already"):
        act("add", name="owner", permissions="all")
    with pytest.raises(ForbiddenError):
        act("permit", name="owner", permissions="read")
    with pytest.raises(NotFoundError):
        act("rotate", name="nobody", kind="token")
    assert act("permit", name="owner", permissions="read", force=True)["permissions"] == {"read": ("*",)}
    assert act("remove", name="owner") is None
    assert act("list") == []


def test_a_change_that_conflicts_again_and_again_is_repeated_for_its_caller(
    store: PrincipalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_one, tried = Collection.replace_one, list[int]()

    def conflicts(self: Any, *arguments: Any, **options: Any) -> Any:
        tried.append(1)
        if len(tried) <= 14:
            labels = {"errorLabels": ["TransientTransactionError"]}
            raise OperationFailure("WriteConflict error: Please retry your operation", 112, labels)
        return replace_one(self, *arguments, **options)

    monkeypatch.setattr(Collection, "replace_one", conflicts)
    put(store, OWNER)
    found = store.one("owner")
    assert found
    assert found.keys == OWNER.keys
    assert len(tried) == 15


def test_changes_at_two_brokers_are_made(store: PrincipalStore, documents: Database[dict[str, Any]]) -> None:
    other, failed = PrincipalStore(documents), list[Exception]()
    barrier = Barrier(24)

    def change(number: int) -> None:
        barrier.wait()
        try:
            put((store, other)[number % 2], replace(OWNER, name=f"p{number}", keys=()))
        except Exception as error:  # noqa: BLE001 - of a thread
            failed.append(error)

    threads = [Thread(target=change, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [record.revision for record in store.read()] == list(range(1, 25))
