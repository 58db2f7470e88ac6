"""How far subscriptions are behind, as of the last look: for whoever may not wait for MongoDB."""

from __future__ import annotations

from typing import Any

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.streams.subscriptions import Subscriptions


class Lags:
    """How far behind each subscription is.

    ``rows``: as :meth:`Subscriptions.known` tells them; empty while MongoDB does not answer.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.rows: list[dict[str, Any]] = []
        self._subscriptions = subscriptions

    def look(self) -> None:
        """From time to time."""
        try:
            self.rows = self._subscriptions.known()
        except SluiceError:
            self.rows = []  # no figure rather than an old one
            raise
