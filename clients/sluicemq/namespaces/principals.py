"""``client.principals``."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from sluicemq import arguments
from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.rows import PrincipalRow
from sluicemq.steps import Ask, Steps

#: Principals that a broker returns at once.
_PAGE: Final = 1000


def _granted(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        arguments.text(name, value)


Grants: TypeAlias = Annotated[str | Mapping[str, Sequence[str]], _granted]
"""Permissions: a text such as ``"push=mail.* work=mail.*"``, or patterns by action."""


@checked()
class Principals(Namespace):
    """Principals: who may connect to the brokers, by which keys, and what each may do.

    Each method needs the permission ``operate``. ``force``: also if nobody could change principals after it.
    """

    __slots__ = ()

    def list(self) -> builtins.list[PrincipalRow]:
        """Return all principals, by their names: what they may do, and the ids of their keys."""
        return self._calls.run(self._all())

    def _all(self) -> Steps[builtins.list[PrincipalRow]]:
        rows: builtins.list[dict[str, Any]] = []
        while True:
            after = {"after": rows[-1]["name"]} if rows else {}
            page = yield Ask(wire.USERS, (wire.LIST, after))
            rows += page
            if len(page) < _PAGE:
                return self._calls.converted(builtins.list[PrincipalRow], rows)

    def get(self, name: str) -> PrincipalRow:
        """Return one principal; raises :class:`~sluicemq.NotFoundError`."""
        return self._calls.read(PrincipalRow, wire.USERS, wire.ONE, {"name": name})

    def add(
        self,
        name: str,
        permissions: Grants = "none",
        *,
        key: str | None = None,
        password: str | None = None,
        token: bool = False,
        tenant: str | None = None,
        limits: Mapping[str, float] | None = None,
        note: str | None = None,
    ) -> PrincipalRow:
        """Add a principal with one key at least: a public ``key``, a ``password``, or a ``token`` for HTTP.

        The token is made by the broker, and is in the answer: nobody sees it again. ``tenant``: of all its
        jobs, whatever they say. ``limits``: ``max_rate`` and ``max_bytes_rate``, in a second. ``note`` is
        kept with the keys. Raises :class:`~sluicemq.BadFramesError` if there is another of this name.
        """
        keys = {"key": key, "password": password, "token": token or None, "note": note}
        settings = {"permissions": _plain(permissions), "tenant": tenant, "limits": _limits(limits)}
        return self._change(wire.ADD, name, **keys, **settings)

    def grant(
        self,
        name: str,
        permissions: Grants | None = None,
        *,
        tenant: str | None = None,
        limits: Mapping[str, float] | None = None,
        force: bool = False,
    ) -> PrincipalRow:
        """Replace what a principal may do; open connections get it at once. None: that stays.

        Raises :class:`~sluicemq.NotFoundError`.
        """
        given = None if permissions is None else _plain(permissions)
        settings = {"permissions": given, "tenant": tenant, "limits": _limits(limits)}
        return self._change(wire.PERMIT, name, **settings, force=force or None)

    def rotate(
        self,
        name: str,
        *,
        key: str | None = None,
        password: str | None = None,
        token: bool = False,
        note: str | None = None,
        end: str | None = None,
        drop: bool = False,
        force: bool = False,
    ) -> PrincipalRow:
        """Give a principal one new key, password or token; or ``end`` the key with this id.

        First the new one; once it is in use everywhere, ``end`` the old one: its connections end. ``drop``:
        others of this kind end now. A new password always ends the one before.
        """
        new = {"curve": key, "password": password, "token": token or None}
        kinds = [kind for kind, value in new.items() if value is not None]
        if len(kinds) + (end is not None) != 1:
            raise TypeError("rotate takes one of key, password, token and end")
        if end is not None:
            return self._change(wire.ROTATE, name, id=end, force=force or None)
        fields = {"key": key, "password": password, "note": note, "drop": drop or None}
        return self._change(wire.ROTATE, name, kind=kinds[0], **fields, force=force or None)

    def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a principal: its connections end at once. Raises :class:`~sluicemq.NotFoundError`."""
        self._calls.act(wire.USERS, wire.REMOVE, {"name": name, **({"force": True} if force else {})})

    def _change(self, action: str, name: str, **fields: Any) -> PrincipalRow:
        given = {key: value for key, value in fields.items() if value is not None}
        return self._calls.change(PrincipalRow, wire.USERS, action, {"name": name, **given})


def _plain(permissions: Grants) -> dict[str, list[str]]:
    if isinstance(permissions, str):
        return Permissions.read(permissions).plain()
    return {action: list(patterns) for action, patterns in permissions.items()}


def _limits(limits: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if limits is None else dict(limits)
