"""Back-pressure: when the connections of a port may go on reading."""

from __future__ import annotations

from gevent.event import Event

from devices.port import Port

_WINDOW = 1 << 20  # bytes passed to a port since it was last seen empty, before it must catch up


class Valve:
    """Stands between the connections and their port; shut while paused or while the port is behind.

    Inner sockets have no high-water mark of their own (``rcvhwm = 0``), so this is what bounds their
    memory: about 1 MiB and one read for each connection.
    """

    def __init__(self, port: Port) -> None:
        self.paused = False
        self._port = port
        self._passed = 0
        self._overrun = False
        self._open = Event()
        self._open.set()
        port.caught_up = self._caught_up

    def wait(self, seconds: float | None = None) -> bool:
        """Block until reading is allowed; False: it is still not."""
        return bool(self._open.wait(seconds))

    def passed(self, count: int) -> None:
        """Note that ``count`` bytes went to the port."""
        self._passed += count
        if self._passed > _WINDOW:
            self._passed = 0
            self._overrun = self._port.behind
            self._set()

    def pause(self) -> None:
        """Shut until :meth:`resume`."""
        self.paused = True
        self._set()

    def resume(self) -> None:
        """Open again, as soon as the port is not behind."""
        self.paused = False
        self._set()

    def _caught_up(self) -> None:
        self._passed = 0
        if self._overrun:
            self._overrun = False
            self._set()

    def _set(self) -> None:
        if self.paused or self._overrun:
            self._open.clear()
        else:
            self._open.set()
