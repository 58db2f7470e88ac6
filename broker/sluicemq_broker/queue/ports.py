"""The callbacks of one queue: who calls whom without importing it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.queue.worker import Delivery


class Dispatcher(Protocol):
    """The queue: its parts call this after they have changed what the scheduler knows."""

    def dispatch(self) -> None:
        """Do all that the scheduler decides."""

    def hand_out(self) -> None:
        """Do what follows when a worker may have room, which is a part of :meth:`dispatch`."""


class Pusher(Protocol):
    """Sender of jobs that may repeat them elsewhere."""

    @property
    def superseded(self) -> bool:
        """Return True once it does: what it has sent here is not stored."""

    @property
    def repeats(self) -> bool:
        """Return True if it may have sent them before, over an earlier connection."""


class OnStored(Protocol):
    """Called when every job of a push is durable or refused."""

    def __call__(self, refused: dict[int, SluiceError], existing: Mapping[int, str], /) -> None:
        """Take refusals by position, and the states of jobs that were there before (empty: unknown)."""


class Popped(Protocol):
    """Called once popped jobs are out of the queue: they are sent now."""

    def __call__(self, lost: Collection[Delivery], /) -> None:
        """Take the deliveries whose jobs were not ours any more."""


class Durable(Protocol):
    """Called once all verdicts that came together are durable or refused."""

    def __call__(self, refused: dict[int, SluiceError], /) -> None:
        """Take refusals by position."""
