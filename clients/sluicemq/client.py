"""The client for questions and administration, for programs and for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final, Self, Unpack

from sluicemq import forks
from sluicemq._deprecated import Keyword, endpoint_first
from sluicemq.arguments import checked
from sluicemq.claim import Claim
from sluicemq.dead_letters import DeadLetters, described
from sluicemq.headers import as_bytes, as_headers
from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.durations import in_seconds
from sluicemq.protocol.errors import Unfinished, from_code
from sluicemq.protocol.options import JobOptions, Seconds
from sluicemq.protocol.wire import TaskField
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.connection import Connection
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.job_fetch import pop_jobs
from sluicemq.transport.questions import Questions

#: Seconds between two looks at a task.
_LOOK: Final = 0.25
#: Seconds of a bulk operation's timeout that are kept for the answer's way back.
_ON_ITS_WAY: Final = 1.0


@endpoint_first(patient=Keyword("wait"))
@checked()
class Client:
    """A connection for questions and administration; for any number of threads or greenlets.

    ``endpoint``: where the broker is; None means ``SLUICEMQ_ENDPOINT``, else the profile's, else
    ``tcp://127.0.0.1:5550``.

    It connects by itself and stays connected. Every method waits up to ``timeout`` seconds. It raises
    :class:`~sluicemq.Timeout` if no broker has answered by then, and the broker's error if it refuses. After
    a lost connection, reads, ``pause`` and ``resume`` are sent again. A method that changes jobs raises
    :class:`~sluicemq.Unavailable` instead, since the change may have been made or not.

    With ``wait=False`` every method raises :class:`~sluicemq.Unavailable` at once if nothing listens at
    ``endpoint``, instead of waiting for a broker. In the child of a fork the client connects again at its
    first use.
    """

    def __init__(
        self,
        *,
        timeout: float = 10.0,
        wait: bool = True,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self.timeout = timeout
        self._access = Access.chosen(endpoint, access)
        self._patient = wait
        self._closed = False
        self._begin()
        self._connection.start()
        forks.on_fork(self, Client._forked)

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._connection.connected_to

    def queues(self) -> list[dict[str, Any]]:
        """Return all queues with their counts; ``estimates`` names the states not counted now."""
        return list(self._read(wire.QUEUES))

    def queue(self, name: str) -> dict[str, Any]:
        """Return one queue, counted now; raises :class:`~sluicemq.NotFound` if there is none."""
        return dict(self._read(wire.QUEUE, name))

    def stats(self) -> dict[str, Any]:
        """Return the state of the broker, its counters and its queues."""
        return dict(self._read(wire.STATS))

    def counters(self) -> dict[str, Any]:
        """Return :meth:`stats` without the queues: it costs next to nothing, and works without MongoDB."""
        return dict(self._read(wire.COUNTERS))

    def history(
        self,
        queue: str | None = None,
        *,
        stream: str | None = None,
        device: str | None = None,
        broker: str | None = None,
        span: str = "minute",
        day: str | None = None,
    ) -> dict[str, Any]:
        """Return the history of a queue, counted by all brokers together, by a ``span`` of time.

        Or the history of a ``stream``; of the devices of one kind and queue or stream, such as
        ``streamer.mail``; or of the brokers on one host (``*``: of all).

        Spans are ``minute`` (of one day), ``hour`` (of the 30 days up to it), ``day`` (of a year), and
        ``month``. ``day`` is a date such as 2026-01-31, in UTC, by default today. Returns ``{total, points:
        [{at, counted}], since, until, …}``, times in Unix seconds.
        """
        subjects = {"queue": queue, "stream": stream, "device": device, "broker": broker}
        about = [(kind, name) for kind, name in subjects.items() if name is not None]
        if len(about) != 1:
            raise TypeError(f"history is of one {', '.join(subjects)}")
        return dict(self._read(wire.HISTORY, *about[0], day, span))

    def brokers(self) -> dict[str, Any]:
        """Return the brokers of the database: ``{brokers: [{name, since, seen, ended, version, …}], …}``.

        With those of the last day that fell silent, whose ``ended`` says when. ``reads``: the oldest and the
        newest schema of the store that a broker reads. ``schema``: that of the store; ``newest``: the one to
        which :meth:`upgrade` raises it.
        """
        return dict(self._read(wire.BROKERS))

    def upgrade(self) -> dict[str, int]:
        """Raise the store's schema to the newest of this broker; returns ``{schema, before}``.

        Raises :class:`~sluicemq.OldBroker` while a broker lives that can't read it. There is no way back.
        """
        return dict(self._act(wire.UPGRADE))

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """Return the workers at this broker, or those of one queue, up to 1,000.

        Each has its ``queue``, its ``name`` (its own or its kind, with host and pid; of a plain socket the
        address), the ``door`` through which it works, the seconds for which it is ``connected``, the first of
        its ``jobs``, and the name of its ``broker``.
        """
        return list(self._read(wire.WORKERS, queue))

    def events(self, queue: str | None = None, after: int | None = None) -> dict[str, Any]:
        """Return the events of jobs at this broker since ``after``: ``{events, after, missed}``.

        Make the first call without ``after``. Give each next one the ``after`` of the last answer, within ten
        seconds. ``missed``: events of all queues that the broker could not keep until then.
        """
        options = {"after": after, "queue": queue}
        return dict(
            self._read(wire.EVENTS, {name: value for name, value in options.items() if value is not None})
        )

    def peek(
        self,
        queue: str,
        state: str = wire.ShownState.READY,
        limit: int = 10,
        *,
        newest: bool = False,
        first: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the next jobs of a queue in one state, without taking them; times in Unix seconds.

        ``newest``: the last jobs instead, the very last first. There are fewer than ``limit`` if the queue
        has no more, or if they exceed 8 MiB. ``first``: the first bytes of each payload and result are
        enough. ``payload_bytes`` and ``result_bytes`` say how many there are; of more than 16 KiB none come.
        """
        options = () if first is None else ({"first": first},)
        return list(self._read(wire.PEEK, queue, state, -limit if newest else limit, *options))

    def purge(self, queue: str, state: str = wire.ShownState.READY, *, wait: float | None = None) -> int:
        """Remove all jobs of a queue that are in this state; returns how many.

        ``wait``, here and in other bulk operations: seconds until :class:`~sluicemq.Unfinished` is raised, by
        default shortly before ``timeout``. The broker goes on: :meth:`follow` the task.
        """
        return int(self._order(wire.PURGE, queue, state, wait=wait) or 0)

    def delete(self, queue: str, *, wait: float | None = None) -> int:
        """Remove a queue with all its jobs; returns how many."""
        return int(self._order(wire.DELETE, queue, wait=wait) or 0)

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks of the last day, of all brokers, the latest first: bulk operations that took long.

        Each has ``id, kind, queue, order, state, done, total, broker`` and the times ``started_at``,
        ``changed_at``, ``ended_at``. ``state``: ``running``, ``done``, ``cancelled``, ``failed`` (``error``
        says why), or ``interrupted``: its broker has died, and another one may take it over.
        """
        return list(self._read(wire.TASKS))

    def task(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Return one task, with its ``answer`` if it is done; raises :class:`~sluicemq.NotFound`."""
        return dict(self._read(wire.TASK, id))

    def cancel_task(self, id: str) -> None:  # noqa: A002
        """End a task after its current batch; nothing is undone. Raises :class:`~sluicemq.NotFound`."""
        self._act(wire.TCANCEL, id)

    def follow(
        self,
        id: str,  # noqa: A002
        tell: Callable[[dict[str, Any]], None] = lambda _task: None,
    ) -> Any:
        """Wait until a task ends, and return its answer. ``tell`` is called with the task while it goes on.

        Raises the task's error, or :class:`~sluicemq.Unfinished` if it was cancelled.
        """
        while True:
            task = self.task(id)
            tell(task)
            if task["state"] == wire.TaskState.DONE:
                return task["answer"]
            if error := task.get("error"):
                raise from_code(error["code"], error["message"])
            if "ended_at" in task:
                so_far = task[TaskField.DONE], task.get(TaskField.TOTAL)
                raise Unfinished(f"task {id} was {task['state']}", id, *so_far)
            sleep(_LOOK)

    def cancel(self, queue: str, id: str) -> None:  # noqa: A002 - the word that jobs use everywhere
        """Remove one job that no worker has; raises :class:`~sluicemq.NotFound`."""
        self._act(wire.CANCEL, queue, id)

    def show(self, queue: str, id: str) -> dict[str, Any]:  # noqa: A002
        """Return all that is known of one job: payload, result, history; times in Unix seconds.

        Raises :class:`~sluicemq.NotFound`.
        """
        return dict(self._read(wire.SHOW, queue, id))

    def promote(self, queue: str, id: str) -> None:  # noqa: A002
        """Make a delayed job due now; raises :class:`~sluicemq.NotFound` if no such job waits."""
        self._act(wire.PROMOTE, queue, id)

    def change(
        self,
        queue: str,
        id: str,  # noqa: A002
        *,
        priority: int | None = None,
        delay: Seconds | None = None,
    ) -> None:
        """Give a waiting job another priority (0 to 255), or a delay from now, or both.

        Raises :class:`~sluicemq.NotFound` if no such job waits.
        """
        fields = {"priority": priority, "delay": None if delay is None else in_seconds(delay)}
        self._act(wire.CHANGE, queue, id, {key: value for key, value in fields.items() if value is not None})

    def redrive(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        to: str | None = None,
        wait: float | None = None,
        **which: Unpack[DeadLetters],
    ) -> dict[str, Any]:
        """Make dead letters ready again, the oldest first, in their queue or in the queue ``to``.

        All of them, or those with ``ids`` (1,000 at most), or those that match ``reason``, ``since``,
        ``until`` and ``limit`` (:class:`~sluicemq.dead_letters.DeadLetters`). Attempts and time to live begin
        again, the history stays. Returns ``{moved, left, refused}``: how many were moved, how many that match
        are left, and ``[id, code, text]`` of some that can't be moved. A job that dies again meanwhile is not
        redriven twice.
        """
        return dict(self._order(wire.REDRIVE, queue, described(ids, which), to, wait=wait))

    def discard(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        wait: float | None = None,
        **which: Unpack[DeadLetters],
    ) -> int:
        """Remove dead letters, chosen as for :meth:`redrive`; returns how many."""
        return int(self._order(wire.DISCARD, queue, described(ids, which), wait=wait) or 0)

    def pause(self, queue: str, what: str = wire.DELIVERY) -> list[str]:
        """Pause ``delivery`` (workers get no jobs) or ``intake`` (pushes are refused) of a queue.

        The pause counts for all brokers and over restarts, until :meth:`resume`. Running jobs go on. Returns
        all that is paused of the queue now.
        """
        return list(self._read(wire.PAUSE, queue, what))

    def resume(self, queue: str, what: str = wire.DELIVERY) -> list[str]:
        """Resume what was paused; returns what is still paused of the queue."""
        return list(self._read(wire.RESUME, queue, what))

    def settings(self, queue: str) -> dict[str, Any]:
        """Return the settings of a queue: ``{settings, differs}``; ``*`` stands for all queues.

        ``settings``: each as ``{key, value, source}``, with ``file`` where that says otherwise. ``source``:
        ``default``, ``file``, ``mongodb``, or ``mongodb *``. ``differs``: what brokers' files say
        differently, ``{queue, key, values}``, values by broker.
        """
        return dict(self._read(wire.SETTINGS, queue))

    def set_settings(self, queue: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Set settings of a queue at all brokers, before what their files say; ``*``: of all queues.

        Values are those of ``[queues.NAME]``, or texts as on a command line. Returns them as
        :meth:`settings` does. Raises :class:`~sluicemq.BadFrames` for a wrong one: then none is set.
        """
        return list(self._read(wire.SET, queue, dict(settings)))

    def unset_settings(self, queue: str, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Take settings back, so that files count again; returns what they are now.

        Raises :class:`~sluicemq.BadFrames` for one that others need: take it back together with them.
        """
        return list(self._read(wire.UNSET, queue, list(keys)))

    def streams(self) -> list[dict[str, Any]]:
        """Return all streams: name, ``first`` and ``last`` number, ``messages`` and ``bytes``."""
        return list(self._read(wire.STREAMS))

    def stream(self, stream: str) -> dict[str, Any]:
        """Return one stream, with its retention; raises :class:`~sluicemq.BadStream`."""
        return dict(self._read(wire.STREAM, stream))

    def trim(self, stream: str, first: int) -> int:
        """Remove the messages of a stream before number ``first``; returns how many."""
        return int(self._act(wire.TRIM, stream, first))

    def erase(self, stream: str) -> int:
        """Remove all messages of a stream, whose numbers go on; returns how many."""
        return int(self._act(wire.ERASE, stream))

    def subscriptions(self, stream: str | None = None) -> list[dict[str, Any]]:
        """Return all subscriptions, or those of one stream: ``watermark``, holder, how far ``behind``."""
        return list(self._read(wire.SUBS, stream))

    def seek(self, stream: str, name: str, watermark: int) -> None:
        """Set the watermark of a subscription that nobody holds (-1: the newest message).

        Raises :class:`~sluicemq.Held`.
        """
        self._read(wire.SEEK, stream, name, watermark)

    def release(self, stream: str, name: str) -> None:
        """Take a subscription from its present or last holder; raises :class:`~sluicemq.NotFound`."""
        self._act(wire.FREE, stream, name, None)

    def forget(self, stream: str, name: str) -> None:
        """Remove a subscription that nobody holds; raises :class:`~sluicemq.Held`."""
        self._act(wire.FORGET, stream, name)

    def schedules(self) -> list[dict[str, Any]]:
        """Return all schedules: next runs (``next_at``, Unix seconds), and how many jobs they pushed."""
        return list(self._read(wire.SCHEDULE, wire.LIST, {}))

    def add_schedule(
        self,
        name: str,
        queue: str,
        payload: bytes,
        *,
        cron: str | None = None,
        timezone: str = "UTC",
        every: Seconds | None = None,
        misfire: str = "one",
        **options: Unpack[JobOptions],
    ) -> dict[str, Any]:
        """Push a job again and again: at the times of a ``cron`` expression, or at intervals of ``every``.

        Each run is pushed once, by one of all brokers. A schedule with this name is replaced. ``cron`` has
        five fields, in the hours of ``timezone``. ``misfire`` says what happens to runs that no broker was
        there for: ``skip``, ``one`` (the last) or ``all``. ``options`` are those of
        :meth:`~sluicemq.Producer.push` without ``dedupe_id`` and ``not_before``. Returns the schedule as
        :meth:`schedules` does; raises :class:`~sluicemq.BadHeaders` for wrong values.
        """
        if (cron is None) == (every is None):
            raise TypeError("a schedule has either cron or every")
        when: dict[str, Any] = {"cron": cron, "timezone": timezone}
        if every is not None:
            when = {"every": in_seconds(every)}
        headers, _ = as_headers(options)
        about = {"name": name, "queue": queue, "payload": as_bytes(payload), "misfire": misfire, **when}
        return dict(self._read(wire.SCHEDULE, wire.ADD, {**about, "options": headers or {}}))

    def remove_schedule(self, name: str) -> None:
        """Remove a schedule; raises :class:`~sluicemq.NotFound`."""
        self._act(wire.SCHEDULE, wire.REMOVE, {"name": name})

    def pause_schedule(self, name: str) -> None:
        """Push no jobs of a schedule until it is resumed; raises :class:`~sluicemq.NotFound`."""
        self._read(wire.SCHEDULE, wire.SUSPEND, {"name": name})

    def resume_schedule(self, name: str) -> dict[str, Any]:
        """Resume a schedule; runs in between are skipped. Raises :class:`~sluicemq.NotFound`."""
        return dict(self._read(wire.SCHEDULE, wire.GO_ON, {"name": name}))

    def run_schedule(self, name: str) -> str:
        """Push one job of a schedule now, and return the job's id; raises :class:`~sluicemq.NotFound`."""
        return str(self._act(wire.SCHEDULE, wire.RUN, {"name": name}))

    def result(self, queue: str, id: str, wait: Seconds = 0.0) -> bytes:  # noqa: A002
        """Return the result of a job; waits for it up to ``wait`` seconds.

        A result is kept for the queue's ``remember`` seconds if the job was pushed by ``submit`` or ``call``,
        by REQ with an id, or with header ``reply: "result"``. Raises :class:`~sluicemq.Timeout` while the job
        has not ended, :class:`~sluicemq.Dead`, :class:`~sluicemq.NotFound`, or :class:`~sluicemq.Uncertain`
        if it has ended and its result is not known.
        """
        seconds = in_seconds(wait)
        return bytes(self._questions.ask(wire.RESULT, queue, id, seconds, timeout=seconds + self.timeout))

    def reserve(self, queue: str, limit: int, wait: Seconds = 0.0) -> Claim:
        """Reserve up to ``limit`` jobs (1000 at most) as one claim: ready jobs, then those that become ready.

        Returns when there are ``limit`` jobs, or after ``wait`` seconds with the jobs so far, also none.
        Raises :class:`~sluicemq.NotFound` if there is no such queue.
        """
        claim = Claim(self._access, queue, timeout=self.timeout, patient=self._patient)
        return claim.fill(limit, in_seconds(wait))

    def pop(self, queue: str, limit: int = 1, wait: Seconds = 0.0) -> list[Job]:
        """Take up to ``limit`` jobs (1000 at most) at most once: they are removed before they are sent.

        Waits as :meth:`reserve` does. Jobs under way when the connection is lost are gone.
        """
        return pop_jobs(
            self._access, queue, limit, in_seconds(wait), timeout=self.timeout, patient=self._patient
        )

    def ping(self, timeout: float | None = None) -> float:
        """Return the seconds of one round trip to the broker; the first call waits for the connection too."""
        start = monotonic()
        self._questions.ask(wire.PING, timeout=self.timeout if timeout is None else timeout)
        return monotonic() - start

    def health(self, timeout: float | None = None) -> dict[str, Any]:
        """Return the health of the broker's MongoDB: ``store``, which is "ok" or says what is wrong.

        ``store_silent`` is the seconds since a question to MongoDB that has no answer. The broker answers at
        once, also without MongoDB. A broker of an older version returns an empty map.
        """
        return dict(self._questions.ask(wire.PING, True, timeout=timeout or self.timeout) or {})  # noqa: FBT003

    @property
    def permissions(self) -> dict[str, list[str]] | None:
        """Return what this client may do: patterns of queues and streams by action, as the broker said last.

        None: everything, or the broker, which may be of an older version, has not said it.
        """
        return self._connection.permissions

    def users(self, action: str = "list", **fields: Any) -> Any:
        """Carry out one action on principals: list, show, add, remove, rotate or permit.

        Its fields and its answer are those of the verb USERS in docs/smq1.md. Needs the permission operate.
        """
        looks = action in (wire.LIST, wire.ONE)
        return self._questions.ask(wire.USERS, action, fields, timeout=self.timeout, repeat=looks)

    def audit(
        self,
        *,
        principal: str | None = None,
        action: str | None = None,
        name: str | None = None,
        outcome: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return administrative acts, logins and refusals, the newest first, and where the next page begins.

        ``action``: such as ``purge``; ``users`` is all that begin with it. ``name``: of the queue, stream,
        schedule or principal. ``outcome``: done, begun or refused. ``since``, ``until``: Unix seconds.
        ``after``: the second value of the page before; None: there are no more. Needs the permission operate.
        """
        chosen = {"principal": principal, "action": action, "name": name, "outcome": outcome}
        answer = self._read(
            wire.AUDIT, {**chosen, "since": since, "until": until, "after": after, "limit": limit}
        )
        return answer["records"], answer["next"]

    def close(self) -> None:
        """Disconnect from the broker; may be called again."""
        self._closed = True
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._questions = Questions()
        self._connection = Connection(self._access, self._questions, patient=self._patient, repeats=True)
        self._questions.attach(self._connection)

    def _forked(self) -> None:
        self._connection.abandon()
        if not self._closed:
            self._begin()
            self._connection.start_when_used(lambda: None)

    def _read(self, verb: bytes, *fields: Any) -> Any:
        return self._questions.ask(verb, *fields, timeout=self.timeout)

    def _order(self, verb: bytes, *fields: Any, wait: float | None) -> Any:
        """Carry out a bulk operation; raises :class:`Unfinished` shortly before ``timeout``."""
        most = max(self.timeout / 2, self.timeout - _ON_ITS_WAY)
        answer = self._act(verb, *fields, most if wait is None else min(wait, most))
        if isinstance(answer, dict) and TaskField.TASK in answer:
            task, done, total = (answer[each] for each in TaskField)
            of = "" if total is None else f" of {total}"
            raise Unfinished(f"the broker goes on, as task {task}: {done}{of} jobs so far", task, done, total)
        return answer

    def _act(self, verb: bytes, *fields: Any) -> Any:
        return self._questions.ask(verb, *fields, timeout=self.timeout, repeat=False)
