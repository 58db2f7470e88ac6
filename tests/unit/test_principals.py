"""The principals that a broker knows, of its file and of MongoDB, and how they are found by what is shown."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sluicemq.protocol.keys import encode, key_id
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.config import PrincipalSettings, Secret
from sluicemq_broker.security import Caller, Limits, Principals, password_of, public_key_of, token_of
from sluicemq_broker.security.passwords import NOBODYS
from sluicemq_broker.store import PrincipalRecord

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
    """The file holds, which is logged; once it is gone from there the other one holds."""
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
    """Permissions change for connections that are open; a removed key, or principal, is no longer known."""
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
    """A list goes on behind the last name of the one before."""
    known = Principals()
    known.use_stored([PrincipalRecord(name=name) for name in ("d", "a", "c")])
    known.use_file({"b": PrincipalSettings(permissions=PUSH)})
    assert [record.name for record in known.records(most=2)] == ["a", "b"]
    assert [record.name for record in known.records("b", 5)] == ["c", "d"]


def holder(known: Principals, key: bytes) -> str | None:
    """Return the name of the principal with this key."""
    found = known.by_public_key(key)
    return found.principal.name if found else None


def caller_of(known: Principals, key: bytes) -> Caller:
    """Return a caller that shows this key."""
    found = known.by_public_key(key)
    assert found is not None
    return Caller(found.principal, key=found.key)
