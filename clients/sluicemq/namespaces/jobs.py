"""``client.jobs``."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence

from sluicemq.arguments import checked
from sluicemq.claim import Claim
from sluicemq.dead_letters import Moment, in_unix
from sluicemq.job import Job
from sluicemq.namespaces.namespace import Namespace
from sluicemq.namespaces.words import StateWord
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, in_seconds
from sluicemq.protocol.enums import JobState
from sluicemq.protocol.rows import EndRow, FoundPage, JobRow
from sluicemq.steps import Ask, Steps
from sluicemq.transport.job_fetch import pop_jobs


@checked()
class Jobs(Namespace):
    """Single jobs of a queue: look at them, change them, take them."""

    __slots__ = ()

    def list(
        self,
        queue: str,
        state: StateWord = JobState.READY,
        limit: int = 10,
        *,
        newest: bool = False,
        first: int | None = None,
    ) -> builtins.list[JobRow]:
        """Return the next jobs of a queue in one state, without taking them; times in Unix seconds.

        ``newest``: the last jobs instead, the very last first. There are fewer than ``limit`` if the queue
        has no more, or if they exceed 8 MiB. ``first``: the first bytes of each payload and result are
        enough. ``payload_bytes`` and ``result_bytes`` say how many there are; of more than 16 KiB none come.
        """
        options = () if first is None else ({"first": first},)
        count = -limit if newest else limit
        return self._calls.read(builtins.list[JobRow], wire.PEEK, queue, state, count, *options)

    def get(self, queue: str, id: str) -> JobRow:  # noqa: A002 - the word that jobs use everywhere
        """Return all that is known of one job: payload, result, history; times in Unix seconds.

        Raises :class:`~sluicemq.NotFoundError`.
        """
        return self._calls.read(JobRow, wire.SHOW, queue, id)

    def ended(
        self,
        queue: str,
        id: str | None = None,  # noqa: A002
        limit: int = 10,
    ) -> builtins.list[EndRow]:
        """Return how one job ended, or the latest ends of a queue, as this broker remembers them.

        It remembers the last 500 of a queue or more, fewer where there are many queues, until it stops; also
        of jobs that are stored no longer. An empty list: it does not know.
        """
        return self._calls.read(builtins.list[EndRow], wire.ENDS, queue, id, limit)

    def find(
        self,
        words: str | None = None,
        *,
        id: str | None = None,  # noqa: A002
        text: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        error: str | None = None,
        states: Sequence[StateWord] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        queue: str | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> FoundPage:
        """Search all queues that the client may read for jobs that match all conditions, newest ids first.

        ``id``: how it begins, and no other condition but ``queue``; ``ends`` then says how a job of this id
        ended. ``words``: in the id, kind, tenant, group, last error or payload; ``text``: in the payload;
        ``error``: in the last error or its type; upper and lower case of ASCII are alike. ``headers``: values
        as texts. ``since``, ``until``: when it ended, or else was pushed.

        The broker searches for a tenth of a second at a time. While ``next`` of the page is not None, repeat
        the call with it as ``after``, at any broker; a page may have no jobs.
        """
        options = {
            "words": words,
            "id": id,
            "text": text,
            "kind": kind,
            "tenant": tenant,
            "group": group,
            "headers": dict(headers) if headers else None,
            "error": error,
            "queue": queue,
            "states": list(states) or None,
            "since": in_unix(since),
            "until": in_unix(until),
        }
        given = {name: value for name, value in options.items() if value is not None}
        return self._calls.read(FoundPage, wire.FIND, given, limit, after)

    def change(
        self,
        queue: str,
        id: str,  # noqa: A002
        *,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> None:
        """Give a waiting job another priority (0 to 255), or a delay from now, or both.

        Raises :class:`~sluicemq.NotFoundError` if no such job waits.
        """
        fields = {"priority": priority, "delay": None if delay is None else in_seconds(delay)}
        given = {key: value for key, value in fields.items() if value is not None}
        self._calls.act(wire.CHANGE, queue, id, given)

    def promote(self, queue: str, id: str) -> None:  # noqa: A002
        """Make a delayed job due now; raises :class:`~sluicemq.NotFoundError` if no such job waits."""
        self._calls.act(wire.PROMOTE, queue, id)

    def cancel(
        self,
        queue: str,
        id: str,  # noqa: A002
        *,
        running: bool = False,
        children: bool = False,
    ) -> None:
        """Remove one job that no worker has; raises :class:`~sluicemq.NotFoundError`.

        ``running``: also one that a worker has. Its verdict changes nothing any more; a worker of the library
        is notified (``job.is_cancelled``). ``children``: with those for which it waits. Who waits for a
        result hears :class:`~sluicemq.CancelledError`.
        """
        options = {name: True for name, given in (("running", running), ("children", children)) if given}
        return self._calls.act(wire.CANCEL, queue, id, *([options] if options else []))

    def result(self, queue: str, id: str, wait: Duration = 0.0) -> bytes:  # noqa: A002
        """Return the result of a job; waits for it up to ``wait`` seconds.

        A result is kept for the queue's ``remember`` seconds if the job was pushed by ``submit`` or ``call``,
        by REQ with an id, or with header ``reply: "result"``. Raises :class:`~sluicemq.TimeoutError` while
        the job has not ended, :class:`~sluicemq.DeadError`, :class:`~sluicemq.NotFoundError`, or
        :class:`~sluicemq.UncertainError` if it has ended and its result is not known.
        """
        seconds = in_seconds(wait)
        return self._calls.run(_result(Ask(wire.RESULT, (queue, id, seconds), more=seconds)))

    def reserve(self, queue: str, limit: int, wait: Duration = 0.0) -> Claim:
        """Reserve up to ``limit`` jobs (1000 at most) as one claim: ready jobs, then those that become ready.

        Returns when there are ``limit`` jobs, or after ``wait`` seconds with the jobs so far, also none.
        Raises :class:`~sluicemq.NotFoundError` if there is no such queue.
        """
        return self._calls.Claim(self._calls.asker, queue).fill(limit, in_seconds(wait))

    def pop(self, queue: str, limit: int = 1, wait: Duration = 0.0) -> builtins.list[Job]:
        """Take up to ``limit`` jobs (1000 at most) at most once: they are removed before they are sent.

        Waits as :meth:`reserve` does. Jobs under way when the connection is lost are gone.
        """
        return pop_jobs(self._calls.Fetch, self._calls.asker, queue, limit, in_seconds(wait))


def _result(ask: Ask) -> Steps[bytes]:
    return bytes((yield ask))
