"""Server-sent events for dashboards: one snapshot in each interval for all of them.

Without dashboards there is neither a greenlet nor a snapshot. A dashboard that reads slowly gets the latest
snapshot when it can take more; none is kept for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

import falcon
import gevent
from gevent.event import Event

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.rows import OverviewRow
from sluicemq_broker.admin import Snapshot, Snapshots, View
from sluicemq_broker.http import BASE, EVENT_STREAM, Endless, HubPace, Site
from sluicemq_broker.runtime import Timer
from sluicemq_broker.security import NOTHING, Caller

log = logging.getLogger("broker.http")

#: Seconds between two snapshots at least.
INTERVAL: Final = 2.0
#: Seconds between two looks for callers whose permissions have changed.
CHECK: Final = 1.0


def add_paths(site: Site) -> None:
    """Add the overview as it is now, and the feed of its changes."""
    feed = LiveFeed(site.snapshots)
    site.ask(
        "/overview",
        "overview.get",
        "The broker, all queues together, and some of them",
        NOTHING,
        OverviewRow,
        lambda call: site.snapshots.latest().of(call.caller).whole(call.query),
        query=View,
        asks_store=False,
    )
    site.serve(
        f"{BASE}/live",
        "overview.live",
        "The overview again every 2 seconds, as server-sent events; 50 readers at most",
        NOTHING,
        partial(_serve, feed),
        media=EVENT_STREAM,
        query=View,
    )
    site.on_close(feed.close)


class LiveFeed:
    """The event streams of all open dashboards.

    A stream ends within :data:`CHECK` seconds when the permissions of its caller change, or the login ends.
    """

    def __init__(self, snapshots: Snapshots, *, timer: Timer | None = None) -> None:
        self._snapshots = snapshots
        self._timer = timer or Timer()
        self._changed = Event()
        self._pace = HubPace()
        self._number = 0
        self._latest: Snapshot | None = None
        self._making = self._checking = False
        self._closed = False
        self._checks: dict[object, Callable[[], bool]] = {}  # of the open streams

    def listen(
        self, view: View, caller: Caller, permitted: Callable[[], bool]
    ) -> Generator[bytes, None, None]:
        """Return the events for one dashboard; raises Unavailable while the broker stops.

        ``permitted()``: whether the caller still has the permissions that it had.
        """
        if self._closed:
            raise UnavailableError("the broker stops")
        return self._listen(view, caller, permitted)

    def close(self) -> None:
        """End all event streams: the broker stops."""
        self._closed = True
        self._changed.set()

    def _listen(
        self, view: View, caller: Caller, permitted: Callable[[], bool]
    ) -> Generator[bytes, None, None]:
        stream = object()
        self._checks[stream] = permitted
        try:
            yield b"retry: %d\n\n" % 3000  # milliseconds after which a browser reconnects
            yield _event(self._snapshots.latest().of(caller), view)
            seen = self._number
            self._begin()
            while not self._closed and permitted():
                if self._number == seen:
                    self._changed.wait()
                elif self._latest is not None:
                    seen = self._number
                    self._pace.wait(0)  # fifty views of a thousand queues are 0.2 s of work
                    yield _event(self._latest.of(caller), view)
        finally:
            del self._checks[stream]

    @property
    def open(self) -> int:
        """How many dashboards are open."""
        return len(self._checks)

    def _begin(self) -> None:
        if not self._making:
            self._making = True
            gevent.spawn(self._make)
        if not self._checking:
            self._checking = True
            gevent.spawn(self._check)

    def _check(self) -> None:
        """Wake the streams when one of them must end, while any is open."""
        while self.open and not self._closed:
            self._timer.sleep(CHECK)
            if not all(permitted() for permitted in self._checks.values()):
                self._wake()
        self._checking = False

    def _wake(self) -> None:
        changed, self._changed = self._changed, Event()
        changed.set()

    def _make(self) -> None:
        """Make snapshots while any dashboard is open."""
        pause = INTERVAL
        while True:
            self._timer.sleep(pause)
            if not self.open or self._closed:
                break
            began = time.thread_time()
            try:
                self._latest = self._snapshots.renew()
            except Exception:
                log.exception("no snapshot for the dashboards could be made")
                continue
            # With many queues on a busy machine they take a 200th of the CPU time
            pause = max(INTERVAL, min(6.0, 200 * (time.thread_time() - began)))
            self._number += 1
            self._wake()
        self._making = False


def _serve(feed: LiveFeed, request: falcon.Request, response: falcon.Response) -> None:
    """Answer with the feed as server-sent events."""
    context = request.context
    response.stream = Endless(feed.listen(context.query, context.caller, context.is_permitted))
    response.content_type = EVENT_STREAM
    response.set_header("X-Accel-Buffering", "no")  # nginx would buffer events


def _event(snapshot: Snapshot, view: View) -> bytes:
    return b"data: %s\n\n" % snapshot.text(view).encode()
