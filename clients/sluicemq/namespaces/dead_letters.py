"""``client.dead_letters``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, Unpack

from sluicemq.arguments import checked
from sluicemq.dead_letters import DeadLetterChoice, Moment, described
from sluicemq.namespaces.namespace import Namespace
from sluicemq.operation import Operation
from sluicemq.protocol import wire
from sluicemq.protocol.rows import CountRow, ErrorsRow, JobRow, ReasonRow, RedriveRow
from sluicemq.steps import Ask, Finds, Found, Steps

#: Dead letters of one answer, at most.
_PAGE: Final = 200


@checked()
class DeadLetters(Namespace):
    """Dead letters of a queue: jobs that failed too often, were rejected, or came too late."""

    __slots__ = ()

    def list(
        self, queue: str, limit: int = 10, *, newest: bool = False, first: int | None = None
    ) -> builtins.list[JobRow]:
        """Return the dead letters of a queue, the oldest first, or the newest.

        ``first``: the first bytes of each payload are enough, as for ``client.jobs.list``.
        """
        options = () if first is None else ({"first": first},)
        count = -limit if newest else limit
        return self._calls.read(
            builtins.list[JobRow], wire.PEEK, queue, wire.ShownState.DEAD, count, *options
        )

    def latest(
        self,
        queue: str,
        limit: int = 10,
        *,
        reason: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        error: str | None = None,
        place: str | None = None,
        kind: str | None = None,
    ) -> builtins.list[JobRow]:
        """Return the latest dead letters of a queue that match, the latest first, with small payloads only.

        ``error`` and ``place``: as :meth:`by_error` names them, ``"?"``: not known. Older brokers refuse it
        (:class:`~sluicemq.BadFramesError`).
        """
        which = DeadLetterChoice(reason=reason, since=since, until=until, error=error, place=place, kind=kind)
        return self._calls.run(self._latest(queue, limit, which))

    def iterate(
        self,
        queue: str,
        *,
        reason: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        error: str | None = None,
        place: str | None = None,
        kind: str | None = None,
    ) -> Iterator[JobRow]:
        """Yield all dead letters that match, the latest first, with all their fields; a page at a time.

        Chosen as by :meth:`latest`. A payload above 1 MiB is left out: ``client.jobs.get`` has it.
        """
        which = DeadLetterChoice(reason=reason, since=since, until=until, error=error, place=place, kind=kind)
        return self._calls.each(self._all(queue, which))

    def _latest(self, queue: str, limit: int, which: DeadLetterChoice) -> Steps[builtins.list[JobRow]]:
        found: builtins.list[JobRow] = []
        after: str | None = None
        while True:
            page = yield from self._page(queue, wire.LETTERS, which, after, min(limit - len(found), _PAGE))
            found += self._calls.converted(builtins.list[JobRow], page["jobs"])
            after = page["next"]
            if after is None or len(found) >= limit:
                return found

    def _all(self, queue: str, which: DeadLetterChoice) -> Finds:
        after: str | None = None
        while True:
            page = yield from self._page(queue, wire.WHOLE, which, after, _PAGE)
            for letter in self._calls.converted(builtins.list[JobRow], page["jobs"]):
                yield Found(letter)
            after = page["next"]
            if after is None:
                return

    def _page(
        self, queue: str, what: str, which: DeadLetterChoice, after: str | None, limit: int
    ) -> Steps[dict[str, Any]]:
        about = {**described(None, which), "limit": limit, **({"after": after} if after else {})}
        page: dict[str, Any] = yield Ask(wire.DEAD, (queue, what, about))
        return page

    def count(
        self,
        queue: str,
        *,
        reason: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        error: str | None = None,
        place: str | None = None,
        kind: str | None = None,
    ) -> CountRow:
        """Return how many dead letters match, chosen as by :meth:`latest`.

        ``exact`` is false where it took too long to count them, and the number is estimated.
        """
        which = DeadLetterChoice(reason=reason, since=since, until=until, error=error, place=place, kind=kind)
        return self._calls.read(CountRow, wire.DEAD, queue, wire.COUNT, described(None, which))

    def by_reason(
        self,
        queue: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> builtins.list[ReasonRow]:
        """Return why the latest 900 dead letters died: ten reasons, the most frequent first."""
        which = DeadLetterChoice(since=since, until=until)
        about = described(None, which)
        return self._calls.read(
            builtins.list[ReasonRow], wire.DEAD, queue, wire.REASONS, about, pick=itemgetter("reasons")
        )

    def by_error(self, queue: str | None = None) -> ErrorsRow:
        """Return the errors of the latest dead letters, of a queue or of all: each a type and a place.

        Of the 100 queues with the most, some 900 are looked at, 20 of each at least; they stand for the
        others. Older brokers don't know it: :class:`~sluicemq.BadVerbError`.
        """
        return self._calls.read(ErrorsRow, wire.ERRORS, queue)

    def redrive(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        to: str | None = None,
        wait: float | None = 1.0,
        **which: Unpack[DeadLetterChoice],
    ) -> Operation[RedriveRow]:
        """Make dead letters ready again, the oldest first, in their queue or in the queue ``to``.

        All of them, or those with ``ids`` (1,000 at most), or those that match a
        :class:`~sluicemq.DeadLetterChoice`, such as a ``reason`` or an ``error``. Attempts and time to live
        begin again, the history stays. The outcome says how many were ``moved``, how many that match are
        ``left``, and which were ``refused`` (some of them). A job that dies again meanwhile is not redriven
        twice.

        ``wait``: seconds until the operation is returned while it goes on; None: shortly before the client's
        time-out.
        """
        return self._calls.order(RedriveRow, wire.REDRIVE, queue, described(ids, which), to, wait=wait)

    def discard(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        wait: float | None = 1.0,
        **which: Unpack[DeadLetterChoice],
    ) -> Operation[int]:
        """Remove dead letters, chosen as for :meth:`redrive`; the outcome is how many."""
        return self._calls.order(int, wire.DISCARD, queue, described(ids, which), wait=wait)
