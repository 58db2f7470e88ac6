"""Principals of the file and of MongoDB: how they are found, followed, and changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import gevent
import pytest

from sluicemq.protocol.errors import BadFramesError, SluiceError, UnavailableError
from sluicemq.protocol.keys import encode, key_id
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.admin import PrincipalAdmin
from sluicemq_broker.admin.principals import KnownPrincipals
from sluicemq_broker.bus import BusEvent, BusKind, Channel, silent
from sluicemq_broker.config import PrincipalSettings, Secret
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import (
    Caller,
    Limits,
    Principals,
    SharedPrincipals,
    password_of,
    public_key_of,
    token_of,
)
from sluicemq_broker.security.passwords import NOBODYS
from sluicemq_broker.store import PrincipalRecord, PrincipalStore

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
PUSH, ALL = Permissions.read("push=mail.*"), Permissions.all()


def test_a_principal_is_found_by_each_of_its_keys() -> None:
    """By a public key, a token, and its name with the hash of its password."""
    known = Principals()

    known.use_stored(
        [
            PrincipalRecord(
                name="mailer",
                keys=(
                    public_key_of(encode(KEY)),
                    public_key_of(encode(OTHER)),
                    token_of("a token"),
                    password_of(NOBODYS),
                ),
                permissions=PUSH,
                tenant="acme",
                max_rate=5,
            )
        ]
    )

    found = known.by_public_key(KEY)
    assert found is not None
    assert found.key == key_id(KEY)
    mailer = found.principal
    assert (mailer.name, mailer.permissions, mailer.tenant) == ("mailer", PUSH, "acme")
    assert mailer.limits == Limits(5, None)
    for other in (known.by_public_key(OTHER), known.by_token("a token"), known.login("mailer")):
        assert other is not None
        assert other.principal is mailer
        assert Caller(mailer, key=other.key).is_known
    assert known.by_public_key(bytes(32)) is None
    assert known.by_token("another") is None
    assert known.login("nobody") is None


def test_a_name_in_both_places_is_that_of_the_file_and_so_is_a_key(caplog: pytest.LogCaptureFixture) -> None:
    known = Principals()
    of_file = {"mailer": PrincipalSettings(keys=(encode(KEY),), permissions=PUSH)}
    known.use_file(of_file)

    with caplog.at_level(logging.WARNING):
        known.use_stored(
            [
                PrincipalRecord(name="mailer", keys=(public_key_of(encode(OTHER)),), permissions=ALL),
                PrincipalRecord(name="thief", keys=(public_key_of(encode(KEY)),), permissions=ALL),
            ]
        )

    assert holder(known, KEY) == "mailer"
    assert holder(known, OTHER) is None
    assert known.holder_in_file(encode(KEY)) == "mailer"
    assert "principal mailer is in the file and in MongoDB: that of the file holds" in caplog.text
    assert f"key {key_id(KEY)} of principal thief stands for a principal of the file" in caplog.text
    known.use_file({})
    assert (holder(known, KEY), holder(known, OTHER)) == ("thief", "mailer")
    known.use_file(of_file)
    assert (holder(known, KEY), holder(known, OTHER)) == ("mailer", None)


def test_a_change_is_one_of_the_principal_that_callers_have() -> None:
    known = Principals()
    record = PrincipalRecord(
        name="mailer", keys=(public_key_of(encode(KEY)), public_key_of(encode(OTHER))), permissions=PUSH
    )
    known.use_stored([record])
    callers = [caller_of(known, key) for key in (KEY, OTHER)]

    known.use_stored([replace(record, keys=record.keys[:1], permissions=Permissions.read("work=*"))])

    assert [caller.may(Action.WORK, "mail") for caller in callers] == [True, True]
    assert [caller.may(Action.PUSH, "mail.a") for caller in callers] == [False, False]
    assert [caller.is_known for caller in callers] == [True, False]
    known.use_stored([PrincipalRecord(name="mailer", removed=True)])
    assert [caller.is_known for caller in callers] == [False, False]
    known.use_stored([record])
    assert not callers[0].is_known, "another principal of that name"
    assert caller_of(known, KEY).is_known


def test_a_complete_reading_removes_what_is_not_in_it() -> None:
    """After a long absence a removal can't be read any more."""
    known = Principals()
    known.use_stored([PrincipalRecord(name=name) for name in ("a", "b", "c")])
    assert known.use_stored([PrincipalRecord(name="b")], complete=True)
    assert [record.name for record in known.records()] == ["b"]


def test_a_key_moves_from_one_principal_to_another() -> None:
    """Both changes may come in one reading, in any order of names."""
    known = Principals()
    key = public_key_of(encode(KEY))
    known.use_stored([PrincipalRecord(name="b", keys=(key,))])
    known.use_stored([PrincipalRecord(name="b"), PrincipalRecord(name="a", keys=(key,))])
    assert holder(known, KEY) == "a"
    known.use_stored([PrincipalRecord(name="a"), PrincipalRecord(name="b", keys=(key,))])
    assert holder(known, KEY) == "b"


def test_there_are_logins_while_anybody_has_a_token_or_a_password() -> None:
    """A key of CURVE is no login."""
    known = Principals()
    known.use_stored([PrincipalRecord(name="a", keys=(public_key_of(encode(KEY)),))])
    assert not known.has_logins
    known.use_file({"b": PrincipalSettings(password=Secret(NOBODYS), permissions=PUSH)})
    assert known.has_logins
    known.use_file({})
    assert not known.has_logins


def test_they_are_listed_in_pages_by_name() -> None:
    known = Principals()
    known.use_stored([PrincipalRecord(name=name) for name in ("d", "a", "c")])
    known.use_file({"b": PrincipalSettings(permissions=PUSH)})
    assert [record.name for record in known.records(most=2)] == ["a", "b"]
    assert [record.name for record in known.records("b", 5)] == ["c", "d"]


def holder(known: Principals, key: bytes) -> str | None:
    found = known.by_public_key(key)
    return found.principal.name if found else None


def caller_of(known: Principals, key: bytes) -> Caller:
    found = known.by_public_key(key)
    assert found is not None
    return Caller(found.principal, key=found.key)


class FaultyStore:
    """Principals of a MongoDB that may be away; ``read_from``: the revisions that readers had."""

    def __init__(self) -> None:
        self.records: list[PrincipalRecord] = []
        self.read_from: list[int | None] = []
        self.away = False
        self.revision = 0

    def put(self, *names: str, removed: bool = False) -> None:
        for name in names:
            self.revision += 1
            self.records = [record for record in self.records if record.name != name]
            self.records.append(PrincipalRecord(name=name, revision=self.revision, removed=removed))

    def prepare(self) -> None:
        pass

    def read(self, after: int | None = None) -> Iterator[PrincipalRecord]:
        self.read_from.append(after)
        if self.away:
            raise UnavailableError("no MongoDB primary")
        yield from [record for record in self.records if record.revision > (after or 0)]

    def change(self, name: str, change: Any, now: float, *, keep_operator: bool) -> PrincipalRecord | None:
        del change, now, keep_operator
        self.put(name)
        return self.records[-1]


class Told(list[BusEvent]):
    """A channel that notes the events of other brokers."""

    announce = list.append


class Broker:
    """The principals of one broker on that store."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store, self.known, self.counters = FaultyStore(), Principals(), Counters()
        self.told, self.changes = Told(), 0
        self.shared = SharedPrincipals(
            cast("PrincipalStore", self.store),
            self.known,
            lambda: cast("Channel", self.told),
            self.counters,
            lambda: self.now,
        )
        self.shared.on_change = self._changed

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.known.records()]

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_only_what_is_newer_is_read_and_only_changes_are_reported(broker: Broker) -> None:
    broker.store.put("a", "b")
    broker.shared.prepare()
    broker.shared.follow()
    broker.store.put("b", removed=True)
    broker.shared.follow()
    assert broker.names == ["a"]
    assert broker.store.read_from == [None, 2, 2]
    assert broker.changes == 2, "at the start, and for the removal"


def test_the_principals_that_were_read_last_hold_while_mongodb_is_away(broker: Broker) -> None:
    broker.store.put("a")
    broker.shared.prepare()
    broker.store.away = True

    with pytest.raises(UnavailableError):
        broker.shared.follow()
    broker.shared.on_event(BusEvent(BusKind.PRINCIPALS))
    gevent.idle()

    assert broker.names == ["a"]
    assert broker.counters.values[Count.STORE_UNAVAILABLE] == 1
    broker.store.away = False
    broker.store.put("b")
    broker.shared.on_event(BusEvent(BusKind.PRINCIPALS))
    gevent.idle()
    assert broker.names == ["a", "b"]


def test_after_a_long_absence_all_are_read_as_removals_are_forgotten(broker: Broker) -> None:
    broker.store.put("a", "b")
    broker.shared.prepare()
    del broker.store.records[0]  # removed, and MongoDB has forgotten that
    broker.shared.follow()
    assert broker.names == ["a", "b"]
    broker.now += 3601
    broker.shared.follow()
    assert broker.names == ["b"]
    assert broker.store.read_from == [None, 2, None]


def test_a_change_holds_here_before_it_is_answered_and_other_brokers_hear_of_it(broker: Broker) -> None:
    broker.shared.prepare()
    broker.shared.change("a", lambda before: before, 0.0, keep_operator=False)
    assert broker.names == ["a"]
    assert broker.told == [BusEvent(BusKind.PRINCIPALS)]


def test_a_change_is_answered_although_mongodb_goes_away_behind_it(broker: Broker) -> None:
    broker.shared.prepare()
    broker.store.away = True
    changed = broker.shared.change("a", lambda before: before, 0.0, keep_operator=False)
    assert changed is not None
    assert broker.told == [BusEvent(BusKind.PRINCIPALS)]
    broker.store.away = False
    broker.shared.follow()
    assert broker.names == ["a"]


def test_a_broker_alone_reports_to_nobody(broker: Broker) -> None:
    alone = SharedPrincipals(cast("PrincipalStore", broker.store), broker.known, silent, broker.counters)
    alone.prepare()
    alone.change("a", lambda before: before, 0.0, keep_operator=False)
    assert broker.names == ["a"]


_ALICE = PrincipalRecord(name="alice")
_PASSWORD = {"password": "x" * 20}
_PERMISSIONS = {"permissions": {"push": ["mail"]}}


@pytest.fixture
def hashed() -> list[str]:
    """The passwords that were hashed."""
    return []


@pytest.fixture
def known(hashed: list[str]) -> KnownPrincipals:
    """Known principals, alice among them, and bob in the configuration file."""

    def hash_it(password: str) -> str:
        hashed.append(password)
        return "a hash"

    def change(name: str, change: Any, keep_operator: bool) -> PrincipalRecord | None:  # noqa: FBT001
        del keep_operator
        changed: PrincipalRecord | None = change(_ALICE if name == "alice" else None)
        return changed

    return KnownPrincipals(
        record=lambda name: _ALICE if name == "alice" else None,
        records=lambda _after, _most: [_ALICE],
        of_file=lambda name: name == "bob",
        change=change,
        hash=hash_it,
        taken=lambda _value: None,
        throttled=lambda _name: 0,
        now=lambda: 1000.0,
    )


@pytest.mark.parametrize(
    ("action", "about"),
    [
        ("add", {"name": "alice", **_PASSWORD, **_PERMISSIONS}),
        ("add", {"name": "bob", **_PASSWORD, **_PERMISSIONS}),
        ("add", {"name": "carol", **_PASSWORD}),
        ("add", {"name": "carol", **_PASSWORD, **_PERMISSIONS, "limits": {"max_rate": -1}}),
        ("rotate", {"name": "carol", "kind": "password", **_PASSWORD}),
        ("rotate", {"name": "bob", "kind": "password", **_PASSWORD}),
    ],
)
def test_an_order_that_is_refused_hashes_no_password(
    known: KnownPrincipals, hashed: list[str], action: str, about: dict[str, Any]
) -> None:
    with pytest.raises(SluiceError):
        PrincipalAdmin(known).do(action, about)
    assert hashed == []


def test_one_that_another_broker_has_added_meanwhile_is_refused(known: KnownPrincipals) -> None:
    late = PrincipalAdmin(known._replace(record=lambda _name: None))
    with pytest.raises(BadFramesError, match="there is a principal alice already"):
        late.do("add", {"name": "alice", **_PASSWORD, **_PERMISSIONS})


def test_one_that_is_new_gets_its_password(known: KnownPrincipals, hashed: list[str]) -> None:
    made = PrincipalAdmin(known).do("add", {"name": "carol", **_PASSWORD, **_PERMISSIONS})
    assert [key.kind for key in made.keys] == ["password"]
    assert hashed == [_PASSWORD["password"]]
