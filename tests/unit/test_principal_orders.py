"""Orders that change principals: what is refused is refused before a password is hashed."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq_broker.admin import PrincipalAdmin
from sluicemq_broker.admin.principals import KnownPrincipals
from sluicemq_broker.store import PrincipalRecord

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
