"""Lags of subscriptions at the last look, for callers that can't wait for MongoDB."""

from __future__ import annotations

from typing import Any

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.streams.subscriptions import Subscriptions


class Lags:
    """The lags of all subscriptions.

    ``rows``: as :meth:`Subscriptions.known` returns them; empty while MongoDB does not answer.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.rows: list[dict[str, Any]] = []
        self._subscriptions = subscriptions

    def look(self) -> None:
        """Read the lags from MongoDB; called once a lease."""
        try:
            self.rows = self._subscriptions.known()
        except SluiceError:
            self.rows = []  # no figure is better than an old one
            raise
