"""``client.queues``."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore
from sluicemq.namespaces.words import FlowWord, StateWord
from sluicemq.operation import Operation
from sluicemq.protocol import wire
from sluicemq.protocol.enums import Flow, JobState
from sluicemq.protocol.errors import TimeoutError
from sluicemq.protocol.rows import BacklogRow, QueueRow, SettingRow, SettingsRow
from sluicemq.steps import Ask, Pause, Steps

#: States of jobs that a queue has to work on still.
_TO_DO: Final = ("ready", "scheduled", "waiting", "reserved")
#: Seconds between two questions about a queue that is not empty, at first and at last.
_FIRST_PAUSE: Final = 0.02
_LAST_PAUSE: Final = 1.0


@checked()
class Queues(CalledBefore, verb="list"):
    """Queues: look at them, pause them, empty them, change their settings."""

    __slots__ = ()

    def list(self) -> builtins.list[QueueRow]:
        """Return all queues with their counts; ``estimates`` names the states not counted now."""
        return self._calls.read(builtins.list[QueueRow], wire.QUEUES)

    def get(self, queue: str) -> QueueRow:
        """Return one queue, counted now; raises :class:`~sluicemq.NotFoundError` if there is none."""
        return self._calls.read(QueueRow, wire.QUEUE, queue)

    def backlog(self, queue: str) -> BacklogRow:
        """Return what the jobs are that wait: the first 10,000 by kind and tenant, and by group."""
        return self._calls.read(BacklogRow, wire.BACKLOG, queue)

    def settings(self, queue: str) -> SettingsRow:
        """Return the settings of a queue, and where brokers' files differ; ``*`` stands for all queues.

        Each setting has its ``source``: ``default``, ``file``, ``mongodb``, or ``mongodb *``; and ``file``
        where that says otherwise.
        """
        return self._calls.read(SettingsRow, wire.SETTINGS, queue)

    def set_settings(self, queue: str, settings: Mapping[str, Any]) -> builtins.list[SettingRow]:
        """Set settings of a queue at all brokers, before what their files say; ``*``: of all queues.

        Values are those of ``[queues.NAME]``, or texts as on a command line. Returns these settings as they
        are now. Raises :class:`~sluicemq.BadFramesError` for a wrong one: then none is set.
        """
        return self._calls.read(builtins.list[SettingRow], wire.SET, queue, dict(settings))

    def unset_settings(self, queue: str, keys: Sequence[str]) -> builtins.list[SettingRow]:
        """Take settings back, so that files count again; returns what they are now.

        Raises :class:`~sluicemq.BadFramesError` for one that others need: take it back together with them.
        """
        return self._calls.read(builtins.list[SettingRow], wire.UNSET, queue, list_of(keys))

    def pause(self, queue: str, what: FlowWord = Flow.DELIVERY) -> builtins.list[str]:
        """Pause ``delivery`` (workers get no jobs) or ``intake`` (pushes are refused) of a queue.

        The pause counts for all brokers and over restarts, until :meth:`resume`. Running jobs go on. Returns
        all that is paused of the queue now.
        """
        return self._calls.read(builtins.list[str], wire.PAUSE, queue, what)

    def resume(self, queue: str, what: FlowWord = Flow.DELIVERY) -> builtins.list[str]:
        """Resume what was paused; returns what is still paused of the queue."""
        return self._calls.read(builtins.list[str], wire.RESUME, queue, what)

    def purge(
        self, queue: str, state: StateWord = JobState.READY, *, wait: float | None = 1.0
    ) -> Operation[int]:
        """Remove all jobs of a queue that are in this state; the outcome is how many.

        ``wait``: seconds until the operation is returned while it goes on; None: shortly before the client's
        time-out.
        """
        return self._calls.order(int, wire.PURGE, queue, state, wait=wait)

    def delete(self, queue: str, *, wait: float | None = 1.0) -> Operation[int]:
        """Remove a queue with all its jobs; the outcome is how many. ``wait`` as for :meth:`purge`.

        Refused while workers are connected to it.
        """
        return self._calls.order(int, wire.DELETE, queue, wait=wait)

    def wait_until_empty(self, queue: str, timeout: float | None = None) -> None:
        """Wait until a queue has no job that is ready, scheduled, waiting or reserved.

        Dead letters, and done jobs that are kept, don't count. Raises :class:`~sluicemq.TimeoutError` after
        ``timeout`` seconds (None: never), and :class:`~sluicemq.NotFoundError` if there is no such queue.
        """
        return self._calls.run(self._until_empty(queue, timeout))

    def _until_empty(self, queue: str, timeout: float | None) -> Steps[None]:
        until = None if timeout is None else monotonic() + timeout
        pause = _FIRST_PAUSE
        while jobs := _to_do((yield from self._calls.reading(QueueRow, Ask(wire.QUEUE, (queue,))))):
            if until is not None and monotonic() + pause > until:
                raise TimeoutError(f"queue {queue} has {jobs} jobs to do after {timeout:g} s")
            yield Pause(pause)
            pause = min(2 * pause, _LAST_PAUSE)


def list_of(texts: Sequence[str]) -> list[str]:
    """Return texts as a list; inside a namespace ``list`` is a verb."""
    return list(texts)


def _to_do(queue: QueueRow) -> int:
    return sum(getattr(queue, state) for state in _TO_DO)
