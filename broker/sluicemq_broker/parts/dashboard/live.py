"""Server-sent events for dashboards: one snapshot in each interval for all of them.

Without dashboards there is neither a greenlet nor a snapshot. A dashboard that reads slowly gets the latest
snapshot when it can take more; none is kept for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import Final

import falcon
import gevent
from gevent.event import Event

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.admin import Snapshot, Snapshots, View
from sluicemq_broker.http import BASE, Answer, Endless, HubPace, Site, view
from sluicemq_broker.runtime import Timer

log = logging.getLogger("broker.http")

#: Seconds between two snapshots at least; more if they took a larger share of the CPU time, as with many
#: queues on a busy machine; and at most.
INTERVAL: Final = 2.0
_SHARE: Final = 0.005
_SLOWEST: Final = 6.0
#: Milliseconds after which a browser reconnects.
_AGAIN: Final = 3000


def add_paths(site: Site) -> None:
    """Add the overview as it is now, and the feed of its changes."""
    feed = LiveFeed(site.snapshots)
    site.add(f"{BASE}/overview", Answer(lambda request: site.snapshots.latest().whole(view(request))))
    site.add(f"{BASE}/live", _Live(feed))
    site.on_close(feed.close)


class LiveFeed:
    """The event streams of all open dashboards."""

    def __init__(self, snapshots: Snapshots, *, timer: Timer | None = None) -> None:
        self.open = 0
        self._snapshots = snapshots
        self._timer = timer or Timer()
        self._came = Event()
        self._pace = HubPace()
        self._number = 0
        self._latest: Snapshot | None = None
        self._making = False
        self._closed = False

    def listen(self, view: View) -> Generator[bytes, None, None]:
        """Return the events for one dashboard; raises Unavailable while the broker stops."""
        if self._closed:
            raise Unavailable("the broker stops")
        return self._listen(view)

    def close(self) -> None:
        """End all event streams: the broker stops."""
        self._closed = True
        self._came.set()

    def _listen(self, view: View) -> Generator[bytes, None, None]:
        self.open += 1
        try:
            yield b"retry: %d\n\n" % _AGAIN
            yield _event(self._snapshots.latest(), view)
            seen = self._number
            self._begin()
            while not self._closed:
                if self._number == seen:
                    self._came.wait()
                elif self._latest is not None:
                    seen = self._number
                    self._pace.wait(0)  # fifty views of a thousand queues are 0.2 s of work
                    yield _event(self._latest, view)
        finally:
            self.open -= 1

    def _begin(self) -> None:
        if not self._making:
            self._making = True
            gevent.spawn(self._make)

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
            pause = max(INTERVAL, min(_SLOWEST, (time.thread_time() - began) / _SHARE))
            self._number += 1
            came, self._came = self._came, Event()
            came.set()
        self._making = False


class _Live:
    """The feed as server-sent events."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.stream = Endless(self._feed.listen(view(request)))
        response.content_type = "text/event-stream"
        response.set_header("X-Accel-Buffering", "no")  # nginx would buffer events


def _event(snapshot: Snapshot, view: View) -> bytes:
    return b"data: %s\n\n" % snapshot.text(view).encode()
