"""Transports of events between brokers; each form of the bus is one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Feed(Protocol):
    """Lines received by a listener."""

    def next(self) -> Sequence[str]:
        """Return lines in the order in which they were sent; none after a second or two.

        Raises :class:`~sluicemq.UnavailableError` if some may have been missed.
        """


class Transport(Protocol):
    """Connects all brokers on one database. Calls block, and end by themselves: they are never killed.

    ``in_store``: lines pass through that database, so their senders write there, and data in them can be
    trusted. Through Redis they may come from another system with a database of this name: such a line may
    only cause a look into MongoDB.
    """

    in_store: bool

    def listen(self, greeting: Sequence[str]) -> AbstractContextManager[Feed]:
        """Send the greeting, and receive all lines sent from then on; raises Unavailable."""

    def send(self, lines: Sequence[str]) -> None:
        """Send to all listeners; raises Unavailable: some may have received it."""
