"""All queues of this broker: found at the start, made on their first push, counted, removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.config import Config
from broker.queue import House, Queue
from sluicemq.errors import BadQueue, QueueFull
from sluicemq.wire import QUEUE_NAME_RULE, is_queue_name


class Queues:
    """The queues by name."""

    def __init__(self, config: Config, house: House) -> None:
        self._config = config
        self._house = house
        self._open: dict[str, Queue] = {}

    def __iter__(self) -> Iterator[Queue]:
        """Every queue that is known."""
        return iter(list(self._open.values()))

    def open(self, name: str) -> Queue:
        """The queue of this name, known or not: for the configuration, and for those found in MongoDB."""
        queue = self._open.get(name)
        if queue is None:
            queue = self._open[name] = Queue(check_name(name), self._config.queue(name), self._house)
        return queue

    def get(self, name: str) -> Queue:
        """The queue of this name; raises :class:`BadQueue` if there is none."""
        queue = self._open.get(name)
        if queue is None:
            raise BadQueue(f"there is no queue {check_name(name)!r}")
        return queue

    def for_push(self, name: str) -> Queue:
        """The queue of this name, made if that is allowed.

        Raises :class:`BadQueue` (name not allowed, or unknown while ``auto_create`` is off) and
        :class:`QueueFull` (``max_queues`` reached).
        """
        queue = self._open.get(name)
        if queue is not None:
            return queue
        check_name(name)
        if not self._config.broker.auto_create:
            raise BadQueue(f"there is no queue {name!r}, and auto_create is off")
        if len(self._open) >= self._config.broker.max_queues:
            raise QueueFull(f"queue {name!r} can't be made: there are max_queues = {len(self._open)} already")
        return self.open(name)

    def forget(self, name: str) -> None:
        """The queue's collection was removed; it is made again if somebody still uses it."""
        queue = self._open[name]
        queue.store.dropped()
        queue.forget_all()
        if not queue.dispatch.workers and not queue.busy and name not in self._configured():
            del self._open[name]

    def drop_owner(self, owner: str) -> None:
        """Another broker has taken what we held under this owner id."""
        for queue in self:
            queue.dispatch.drop(owner)

    def _configured(self) -> set[str]:
        return {*self._config.queues, *(device.queue for device in self._config.devices)}

    def summary(self, queue: Queue, counts: dict[str, Any]) -> dict[str, Any]:
        """One line of the list of queues: what MongoDB holds and what is going on here."""
        dispatch = queue.dispatch
        here = {"workers": len(dispatch.workers), "in_flight": len(dispatch.deliveries)}
        return {"name": queue.name, **counts, **here}


def check_name(name: object) -> str:
    """The name, if it may be one; raises :class:`BadQueue`."""
    if isinstance(name, str) and is_queue_name(name):
        return name
    raise BadQueue(f"{str(name)[:80]!r} is no queue name: {QUEUE_NAME_RULE}")
