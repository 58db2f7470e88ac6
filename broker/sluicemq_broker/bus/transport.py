"""What carries events from one broker to the others; each form of the bus is one of these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Feed(Protocol):
    """What comes in, once it is listened."""

    def next(self) -> Sequence[str]:
        """Some lines that others have sent, in their order, or none: it waits for a second or two.

        Raises :class:`~sluicemq.Unavailable` where some may have been missed.
        """


class Transport(Protocol):
    """The way to all brokers on one database. It blocks, and is given up by nobody: it ends by itself.

    ``in_store``: it goes through that database, so whoever sends on it writes there too, and its word on what
    lies there may be taken. Elsewhere another system may have a database of the same name: what comes says
    where to look, and no more.
    """

    in_store: bool

    def listen(self, greeting: Sequence[str]) -> AbstractContextManager[Feed]:
        """Tell the others the greeting, and hear all that they send from there on. Raises Unavailable."""

    def send(self, lines: Sequence[str]) -> None:
        """Tell all that listen; raises Unavailable: some may have heard it."""
