"""Outboxes, followed: a post that an application has committed is a job a moment later."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    QueueFullError,
    SluiceError,
    UnavailableError,
)
from sluicemq_broker.process.foundation import retried
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import check_name
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import OutboxStore, Portions, Post, Refused

log = logging.getLogger("broker.outbox")


class OutboxPart(Part):
    """The outboxes of ``[broker] outboxes``."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        foundation = core.foundation
        self._outboxes = [
            Outbox(name, OutboxStore(foundation.database(name)), core)
            for name in foundation.settings.outboxes
        ]

    def prepare(self) -> None:
        """Make the collections and their indexes."""
        for outbox in self._outboxes:
            retried(outbox.store.prepare)

    def start(self) -> None:
        """Begin to carry posts."""
        for outbox in self._outboxes:
            outbox.start()

    def close_gates(self) -> None:
        """Carry no more posts: other brokers do, or this one when it is back."""
        for outbox in self._outboxes:
            outbox.stop()

    @property
    def busy(self) -> bool:
        """True while posts are on their way."""
        return any(outbox.busy for outbox in self._outboxes)


class Outbox:
    """The outbox of one database of an application, at one of the brokers that carry its posts."""

    def __init__(self, name: str, store: OutboxStore, core: Core) -> None:
        self.store = store
        self._name = name
        self._queues = core.jobs.queues
        self._maker = core.services.maker
        self._counters = core.foundation.context.counters
        self._portions = Portions(100, self._counters.notice)  # posts in one transaction
        self._stopping = Event()
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin to carry posts."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """Begin no other transaction; harmless before start, or twice."""
        self._stopping.set()

    @property
    def busy(self) -> bool:
        """True until the last transaction is over."""
        return self._greenlet is not None and not self._greenlet.ready()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except UnavailableError as error:
                self._counters.notice(Count.STORE_UNAVAILABLE, f"{self}: {error}")
            except SluiceError as error:
                self._counters.notice(Count.UNPOSTED, f"{self}: {error}")
            except Exception:
                log.exception("%s failed; it is tried again", self)
            self._stopping.wait(1.0)

    def _follow(self) -> None:
        """Carry what is there, then what comes; raises errors of MongoDB."""
        self._carry_all()  # also where there is no change stream: then this is called each second
        with self.store.watch() as stream:
            news = True  # posts may have come before it began
            while not self._stopping.is_set():
                if news:
                    self._carry_all()
                news = self.store.is_news(stream.try_next())

    def _carry_all(self) -> None:
        """Carry all posts but those of queues that take none now, which keep no other queue's waiting."""
        full: set[str] = set()
        while not self._stopping.is_set():
            by_queue: dict[str, list[Post]] = {}
            for post in self.store.first(500, full):
                by_queue.setdefault(str(post.queue), []).append(post)
            if not by_queue:
                return
            full.update([name for name, posts in by_queue.items() if not self._carry(name, posts)])

    def _carry(self, name: str, posts: list[Post]) -> bool:
        """Carry the posts of one queue; one that can't be carried now stays, and those behind it wait."""
        try:
            queue = self._queues.for_push(check_name(name), by=str(self), peer=str(self), caller=ANYBODY)
        except SluiceError as error:
            return self._refused(posts, error)
        if not queue.capacity.admits:
            return False
        jobs = list(self._made(queue, posts))
        for part, inserted in self._portions.carry_out(jobs, lambda these: self._insert(queue, these)):
            if isinstance(inserted, Refused):
                return self._refused([post for post, _ in part], inserted)
            if inserted is None:
                continue  # another broker was first
            self._counters.add(Count.POSTED, len(part))
            queue.intake.stored(inserted, existing=len(part) - len(inserted))
        return True

    def _insert(self, queue: Queue, these: Sequence[tuple[Post, Any]]) -> Any:
        posts, jobs = [post for post, _ in these], [job for _, job in these]
        now = queue.intake.accept(jobs)
        return self.store.carry(posts, queue.store, jobs, now)

    def _made(self, queue: Queue, posts: Sequence[Post]) -> Iterator[tuple[Post, Any]]:
        """Yield each post with its job; one that can't become a job is marked."""
        for post in posts:
            try:
                payload = post.payload.encode() if isinstance(post.payload, str) else post.payload
                if not isinstance(payload, bytes) or not isinstance(post.headers or {}, dict):
                    raise BadFramesError("a post has a payload, bytes or a text, and headers, a map")
                yield (
                    post,
                    self._maker.make(ANYBODY, queue.settings, payload, post.headers or {}, str(post.id)),
                )
            except SluiceError as error:
                self._refused([post], error)

    def _refused(self, posts: Sequence[Post], error: Exception) -> bool:
        """Mark posts that can never become jobs; what may become one later stays as it is."""
        if isinstance(error, QueueFullError | UnavailableError):
            self._counters.notice(Count.STORE_UNAVAILABLE, f"{self}: {error}")
            return False
        code = getattr(error, "code", BadHeadersError.code)
        for post in posts:
            if self.store.refuse(post, code, str(error)):
                self._counters.notice(Count.UNPOSTED, f"{self}: post {post.id} is no job: {error}")
        return True

    def __str__(self) -> str:
        return f"outbox of database {self._name}"
