"""``sluicemq find``: jobs of all queues, by id or by what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from time import time
from typing import TYPE_CHECKING, Any, Final

import click

from sluicemq.cli.jobs import without_empty
from sluicemq.cli.options import timespan
from sluicemq.cli.output import CommandClient, Invocation, shown, span
from sluicemq.protocol.rules import IDENTIFIER, rfc3339
from sluicemq.protocol.wire import ShownState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Jobs in one page, at most.
_PAGE: Final = 200


class When(click.ParamType[float]):
    """A moment: a span before now, or RFC 3339 with a time zone."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return Unix seconds."""
        try:
            return rfc3339(str(value))
        except ValueError:
            return time() - float(timespan().convert(value, param, ctx))


class Header(click.ParamType[tuple[str, str]]):
    """A header and its value, as ``order=17``."""

    name = "header"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the name and the value."""
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not like order=17", param, ctx)
        return name, text


@click.command()
@click.argument("words", nargs=-1)
@click.option("--id", metavar="ID", help="By the beginning of its id alone.")
@click.option("--kind", metavar="NAME", help="Of this kind.")
@click.option("--tenant", metavar="NAME", help="Of this tenant.")
@click.option("--group", metavar="NAME", help="Of this group.")
@click.option("--header", "headers", type=Header(), multiple=True, metavar="K=V", help="With this header.")
@click.option("--error", metavar="TEXT", help="With TEXT in the last error, or its type.")
@click.option("--text", metavar="TEXT", help="With TEXT in the payload.")
@click.option("--state", "states", type=click.Choice([state.value for state in ShownState]), multiple=True)
@click.option("--since", type=When(), metavar="WHEN", help="Ended, or else pushed, since: 2h, or a time.")
@click.option("--until", type=When(), metavar="WHEN", help="Ended, or else pushed, before then.")
@click.option("--queue", metavar="QUEUE", help="In this queue alone.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N")
@click.option("--after", metavar="PLACE", help="Go on where this search stopped before.")
@click.pass_obj
def find(
    invocation: Invocation,
    /,
    words: tuple[str, ...],
    id: str | None,  # noqa: A002
    headers: tuple[tuple[str, str], ...],
    limit: int,
    after: str | None,
    **conditions: Any,
) -> None:
    """Search all queues for jobs, newest ids first; WORDS may be in any part of a job.

    A job whose id is WORDS is found at once, or how it ended. All conditions must hold. Ctrl-C ends the
    search, and says how to go on.
    """
    wanted = {**conditions, "words": " ".join(words) or None, "headers": dict(headers) or None}
    if id is not None and (words or headers or any(map(conditions.get, _BESIDE_ID))):
        raise click.UsageError("--id has no other condition but --queue")
    search = _Search(invocation, invocation.broker, limit, after)
    if id is not None:
        search.run({"id": id, "queue": conditions["queue"]})
    elif search.is_one_id(words, wanted):
        search.run({"id": words[0], "queue": conditions["queue"]})
        if not search.has(words[0]):
            search = _Search(invocation, invocation.broker, limit, after)
            search.run(wanted)
    else:
        search.run(wanted)
    search.show()
    if search.stopped:
        click.get_current_context().exit(130)


_BESIDE_ID: Final = ("kind", "tenant", "group", "error", "text", "states", "since", "until")


class _Search:
    """A search, page by page, until it has found enough or all is searched."""

    def __init__(self, invocation: Invocation, client: CommandClient, limit: int, after: str | None) -> None:
        self._invocation = invocation
        self._client = client
        self._limit = limit
        self._jobs: list[dict[str, Any]] = []
        self._ends: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {"searched": 0, "total": 0, "next": after}
        self._by_id = False
        self.stopped = False

    def is_one_id(self, words: tuple[str, ...], wanted: Mapping[str, Any]) -> bool:
        """Return True if the words may be the id of a job, and nothing else is asked."""
        others = {name for name, value in wanted.items() if value} - {"words", "queue"}
        return len(words) == 1 and not others and not self._last["next"] and IDENTIFIER.holds(words[0])

    def has(self, job_id: str) -> bool:
        """Return True if the job of this id was found, or how it ended."""
        return bool(self._ends) or any(job["id"] == job_id for job in self._jobs)

    def run(self, wanted: Mapping[str, Any]) -> None:
        """Search until it has found enough, all is searched, or Ctrl-C."""
        self._by_id = "id" in wanted
        with _progress(self._invocation) as moved:
            try:
                while len(self._jobs) < self._limit:
                    room = min(_PAGE, self._limit - len(self._jobs))
                    page = self._client.sent.jobs.find(**wanted, limit=room, after=self._last["next"])
                    self._jobs += page["jobs"]
                    self._ends += page.get("ends", ())
                    self._last = {"next": None, **page}
                    moved(page["searched"], page["total"])
                    if self._last["next"] is None:
                        break
            except KeyboardInterrupt:
                self.stopped = True

    def show(self) -> None:
        """Show what was found, how far the search is, and how it goes on."""
        if self._invocation.as_json:
            self._invocation.json({**self._last, "jobs": self._jobs, "ends": self._ends})
            return
        now = time()
        if self._jobs:
            self._invocation.table("", without_empty([_row(job, now) for job in self._jobs]))
        for end in self._ends:
            self._invocation.result(_ended(end, now))
        self._invocation.note(self._summary())

    def _summary(self) -> str:
        found = f"{len(self._jobs)} found" if self._jobs else "no job found"
        last, queues = self._last, self._last.get("queues", 0)
        if self._by_id:
            if self._jobs or self._ends:
                return f"{found} in {queues} queues"
            return (
                f"no job has this id in the {queues} queues that you may read; of jobs that are done and "
                "forgotten, a broker remembers the last 500 of a queue or more, until it stops"
            )
        text = f"{found}; searched {last['searched']:,} of {last['total']:,} jobs in {queues} queues"
        if last.get("unread"):
            text += f", but not in {last['unread']:,} that are too large to be looked into"
        if last["next"] is not None:
            text += f"; to go on, repeat it with --after '{last['next']}'"
        return text


@contextmanager
def _progress(invocation: Invocation) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far a search is: ``moved(searched, total)``."""
    if not invocation.err.is_terminal:
        yield lambda _searched, _total: None
        return
    with invocation.err.status("searching") as status:
        yield lambda searched, total: status.update(f"searched {searched:,} of {total:,}")


def _row(job: Mapping[str, Any], now: float) -> dict[str, Any]:
    errors, ended = job.get("errors") or [{}], job.get("ended_at")
    return {
        "queue": job["queue"],
        "id": job["id"],
        "kind": job.get("kind"),
        "state": job["state"],
        "age": span(max(0.0, now - job.get("created_at", now))),
        "ended": None if ended is None else f"{span(max(0.0, now - ended))} ago",
        "payload": job.get("payload", f"{job.get('payload_bytes', 0)} bytes"),
        "last error": errors[-1].get("reason"),
    }


def _ended(end: Mapping[str, Any], now: float) -> str:
    """Say how a job ended that may be stored no longer."""
    worker = f" by {end['worker']}" if end.get("worker") else ""
    ago = span(max(0.0, now - end["at"]))
    return (
        f"{end['id']} was {end['end']} in {end['queue']}{worker} {ago} ago ({shown('ended_at', end['at'])})"
    )
