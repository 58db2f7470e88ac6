"""The reader's part of the I/O thread: requests page after page, as far as somebody takes them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq.transport.connection import Connection
from sluicemq.transport.pacing import RETRY_AFTER

#: Pages that may be here and not be taken.
_PAGES: Final = 2

Page = dict[str, Any]


class Reading:
    """The :class:`~sluicemq.transport.role.Role` of a reader. ``options`` are those of its READs.

    ``on_page(page, error)`` is called through the mailbox, with each page in order; the last call has an
    error.
    """

    def __init__(
        self, stream: str, options: dict[str, Any], on_page: Callable[[Page | None, SluiceError | None], None]
    ) -> None:
        self.due = inf
        self._stream = stream
        self._options = options
        self._on_page = on_page
        self._connection: Connection
        self._credit = _PAGES
        self._asked = self._over = False

    @property
    def busy(self) -> bool:
        """Return False: a READ may be repeated anywhere."""
        return False

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection

    def taken(self) -> None:
        """Make room for another page: one is used up."""
        self._credit += 1

    def stop(self) -> None:
        """Request no more."""
        self._over = True

    def connected(self) -> None:
        """Go on where the last page ended; ``turn`` follows."""
        self.due = inf

    def turn(self) -> None:
        """Request the next page."""
        if self._asked or self._over or not self._credit or not self._connection.takes_more:
            return
        if monotonic() < self.due < inf:
            return
        self.due = inf
        self._asked = True
        self._connection.request(wire.READ, self._stream, dict(self._options), answered=self._answered)

    def delivered(self, message: wire.Message) -> None:
        """Ignore a message: a reader only gets answers."""

    def disconnected(self) -> None:
        """Repeat the request on the next connection; end if the broker does not let this reader in."""
        if self._connection.not_admitted:
            self.ended(self._connection.not_admitted)

    def ended(self, error: SluiceError) -> None:
        """End the reading: nobody will answer."""
        if not self._over:
            self._over = True
            self._connection.post(self._on_page, None, error)

    def _answered(self, page: Any, error: SluiceError | None) -> None:
        self._asked = False
        if error is self._connection.disconnect_error or self._over:
            return
        if isinstance(error, UnavailableError):
            self.due = monotonic() + RETRY_AFTER
        elif error is not None:
            self._over = True
            self._connection.post(self._on_page, None, error)
        else:
            self._take_page(page)

    def _take_page(self, page: Page) -> None:
        for other in ("since", "new"):
            self._options.pop(other, None)
        passed = page["after"] > self._options.get("after", 0)
        self._options["after"] = page["after"]
        if page["rows"] or page["gone"] or (passed and "wait" in self._options):
            self._credit -= 1
            self._connection.post(self._on_page, page, None)
        elif "wait" not in self._options:
            self._over = True
            self._connection.post(self._on_page, page, None)
