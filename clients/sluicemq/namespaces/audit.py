"""``client.audit``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, Final, TypedDict, Unpack

from sluicemq import arguments
from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore
from sluicemq.protocol import wire
from sluicemq.protocol.rows import AuditRow
from sluicemq.steps import Ask, Finds, Found, Steps

#: Records that a broker returns at once.
_PAGE: Final = 1000


class AuditChoice(TypedDict, total=False):
    """Records of the audit; what is not given, or None, is any.

    ``principal``: who did it; empty is anonymous clients. ``action``: such as ``purge``; ``users`` is all
    that begin with it. ``name``: of the queue, stream, schedule or principal. ``outcome``: done, begun or
    refused. ``since``, ``until``: Unix seconds.
    """

    principal: str | None
    action: str | None
    name: str | None
    outcome: str | None
    since: float | None
    until: float | None


@checked()
class Audit(CalledBefore, verb="list"):
    """The audit: administrative acts, logins and refusals. Needs the permission ``operate``."""

    __slots__ = ()

    def list(self, *, limit: int = 100, **choice: Unpack[AuditChoice]) -> builtins.list[AuditRow]:
        """Return up to ``limit`` records, the newest first, chosen as by :class:`AuditChoice`."""
        return self._calls.run(self._first(limit, choice))

    def iterate(self, **choice: Unpack[AuditChoice]) -> Iterator[AuditRow]:
        """Yield all records, the newest first, chosen as by :class:`AuditChoice`; a page at a time."""
        return self._calls.each(self._all(choice))

    def _first(self, limit: int, choice: AuditChoice) -> Steps[builtins.list[AuditRow]]:
        found: builtins.list[AuditRow] = []
        after: str | None = None
        while True:
            rows, after = yield from self._page(min(limit, _PAGE), choice, after)
            found += self._calls.converted(builtins.list[AuditRow], rows)[: limit - len(found)]
            if after is None or len(found) >= limit:
                return found

    def _all(self, choice: AuditChoice) -> Finds:
        after: str | None = None
        while True:
            rows, after = yield from self._page(_PAGE, choice, after)
            for row in self._calls.converted(builtins.list[AuditRow], rows):
                yield Found(row)
            if after is None:
                return

    def _page(
        self, size: int, choice: AuditChoice, after: str | None
    ) -> Steps[tuple[builtins.list[dict[str, Any]], str | None]]:
        for name, value in choice.items():
            _check(name, value)
        answer = yield Ask(wire.AUDIT, ({**choice, "after": after, "limit": size},))
        return answer["records"], answer["next"]

    def _called(self, plain: Any, *, after: str | None = None, limit: int = 100, **choice: Any) -> Any:
        return plain._calls.run(plain._page(limit, choice, after))


def _check(name: str, value: Any) -> None:
    if name not in AuditChoice.__annotations__:
        raise TypeError(f"records are chosen by {', '.join(AuditChoice.__annotations__)}, not by {name!r}")
    if value is None:
        return
    if name in ("since", "until"):
        arguments.number(name, value)
    else:
        arguments.text(name, value)
