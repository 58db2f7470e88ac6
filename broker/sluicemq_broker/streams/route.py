"""A route: every message of a stream with some topics becomes a job of a queue, once, in their order.

One broker at a time has a route: it holds the route's subscription. A batch's jobs and its watermark are
one transaction, so ``kill -9`` between any two steps leaves both or neither, and the next broker goes on
from there::

    held by another -> wait -> hold -> read a page -> route it -> read ... -> the end: wait for more
                         ^                 hold lost, or the outcome not known            |
                         '----------------------------------------------------------------'
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Final

import gevent
from gevent.event import Event

from sluicemq.protocol import job_headers, packed
from sluicemq.protocol.errors import HeldError, LeaseLostError, SluiceError, UnavailableError
from sluicemq.protocol.readable import start_of
from sluicemq_broker.config import RouteSettings
from sluicemq_broker.job import Job
from sluicemq_broker.queue import JobMaker, Queue
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import Portions, Refused, RouteStore, Subscription
from sluicemq_broker.streams.segments import ChosenMessages
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.stream import Reading, Stream, Wanted
from sluicemq_broker.streams.subscriptions import Subscriptions, Wish
from sluicemq_broker.streams.topics import Topics

log = logging.getLogger("broker.routes")

#: The kind under which a route holds its subscription.
KIND: Final = "route"
#: Messages in one transaction, at most.
_MOST: Final = 500
#: Seconds between two tries to hold the route's subscription.
_LOOK: Final = 1.0


class Route:
    """One route at this broker; ``broker``: its name for people."""

    def __init__(
        self,
        settings: RouteSettings,
        stream: Stream,
        queue: Queue,
        subscriptions: Subscriptions,
        maker: JobMaker,
        context: StreamServices,
        broker: str,
    ) -> None:
        self._settings = settings
        self._stream = stream
        self._queue = queue
        self._subscriptions = subscriptions
        self._store = RouteStore(subscriptions.store(stream), queue.store)
        self._maker = maker
        self._clock = context.clock
        self._counters = context.counters
        self._who = f"{self} at {broker}"
        self._topics = Topics([topic.encode() for topic in settings.topics])
        self._headers = settings.headers or {}
        self._portions = Portions(_MOST, context.counters.notice)
        self._more = Event()
        self._stopping = Event()
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin, or wait for the broker that holds the route."""
        self._greenlet = gevent.spawn(self._run)

    @property
    def busy(self) -> bool:
        """True if a batch is on its way to MongoDB."""
        return self._greenlet is not None and not self._greenlet.ready()

    def close_gates(self) -> None:
        """Stop reading; messages that were read are routed. Harmless before start, or twice."""
        self._stopping.set()
        self._more.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            held = self._hold()
            if held is not None:
                self._follow_until_lost(held)
            self._stopping.wait(_LOOK * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _follow_until_lost(self, held: Subscription) -> None:
        """Route messages until another broker holds the route, MongoDB is away, or this broker stops."""
        try:
            self._follow(held)
        except LeaseLostError:
            log.info("%s: another broker holds it now", self)
        except UnavailableError as error:
            self._counters.notice(Count.STORE_UNAVAILABLE, f"{self}: {error}")
        except Exception:
            log.exception("%s failed; it is tried again", self)
        finally:
            self._stream.forget(self)
            self._subscriptions.vanish(held)  # other brokers may hold it, not other kinds of holders

    def _hold(self) -> Subscription | None:
        settings = self._settings
        try:
            return self._subscriptions.hold(Wish(settings.stream, settings.name, KIND, self._who))
        except HeldError:
            return None
        except SluiceError as error:
            self._counters.notice(Count.STORE_UNAVAILABLE, f"{self}: {error}")
            return None

    def _follow(self, held: Subscription) -> None:
        at = marked = held.watermark
        self._wait_until_after(held.marked_at)
        while not self._stopping.is_set():
            if not self._queue.capacity.admits:
                self._stopping.wait(_LOOK)
                continue
            self._more.clear()
            reading = self._stream.read(Wanted(at + 1, self._topics, _MOST, 4 << 20))
            if at:  # a new route has missed nothing
                self._note_gone(reading)
            jobs = list(self._jobs(reading))
            passed, at = at, reading.first - 1
            # Messages with other topics behind the watermark, at most, before it is raised.
            if jobs or at - marked >= 10_000 or (at > marked and not reading.more):
                self._route(held, at, jobs)
                marked = at
            if not reading.more and passed == at:
                self._wait(at + 1)

    def _wait_until_after(self, marked_at: float | None) -> None:
        """Wait until new jobs come behind those of another broker, whose clock may have been ahead."""
        ahead = (marked_at or 0.0) + 0.001 - self._clock.now()  # MongoDB keeps whole milliseconds
        if ahead > 0:
            self._stopping.wait(min(ahead, 1.0))

    def _route(self, held: Subscription, at: int, jobs: list[Job]) -> None:
        """Route a page, in several transactions if need be: the last one raises the watermark to ``at``."""
        now = self._queue.intake.accept(jobs)
        if not jobs:
            self._store.route(held, at, jobs, now)

        def route(part: Sequence[Job]) -> Sequence[Job]:
            mark = at if part[-1] is jobs[-1] else int(part[-1].id.rpartition("-")[2])
            return self._store.route(held, mark, part, now)

        for part, routed in self._portions.carry_out(jobs, route):
            if isinstance(routed, Refused):
                raise routed
            self._queue.counters.add(Count.ROUTED, len(part))
            self._queue.intake.stored(routed, existing=len(part) - len(routed))

    def _wait(self, first: int) -> None:
        """Wait until there is a message with this number, or may be."""
        self._stream.wait(self, first, self._more.set)
        self._more.wait()

    def _jobs(self, reading: Reading) -> Iterator[Job]:
        """Yield the jobs of a page; a message that can't become a job is counted and logged."""
        for chosen in reading.chosen:
            for number, frames in _numbered(chosen):
                try:
                    yield self._job(number, frames)
                except SluiceError as error:
                    self._counters.notice(Count.UNROUTED, f"{self}: message {number}: {error}")

    def _job(self, number: int, frames: list[bytes]) -> Job:
        settings = self._settings
        topic = start_of(frames[0], job_headers.MOST_BYTES + 1, "replace")  # a longer one is refused
        about = {"stream": settings.stream, "sequence": number, "topic": topic}
        headers = {**self._headers, "headers": {**self._headers.get("headers", {}), **about}}
        payload = frames[1] if len(frames) == 2 else b"".join(frames[1:])
        job_id = f"{settings.stream}-{number}"
        return self._maker.make(ANYBODY, self._queue.settings, payload, headers, job_id)

    def _note_gone(self, reading: Reading) -> None:
        if reading.gone:
            self._counters.add(Count.UNROUTED, reading.gone - 1)
            text = f"{self}: {reading.gone} messages were removed before they were routed"
            self._counters.notice(Count.UNROUTED, text)

    def __str__(self) -> str:
        return f"route of stream {self._settings.stream} into queue {self._settings.queue}"


def _numbered(chosen: ChosenMessages) -> Iterator[tuple[int, list[bytes]]]:
    """Yield messages with their numbers."""
    messages = packed.unpack(chosen.packed)
    places = range(len(messages)) if chosen.places is None else chosen.places
    for place, message in zip(places, messages, strict=True):
        yield chosen.segment.first + place, message
