"""Queues: their counts and workers; they are paused, resumed, purged, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import (
    BacklogRow,
    DifferenceRow,
    KindRow,
    QueueRow,
    SettingRow,
    SettingsRow,
    WaitingRow,
    WorkerRow,
)
from sluicemq_broker.admin.jobs import check_state
from sluicemq_broker.admin.shared_answer import SharedAnswer
from sluicemq_broker.config import NO_VALUE, require_setting, stored_value
from sluicemq_broker.job import State
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import Census, Delete, Purge, Queues, Task, Tasks, check_name
from sluicemq_broker.security import Caller, Effect, Need, Unchanged, authorize
from sluicemq_broker.store import ALL_QUEUES, MOST_LOOKED_AT, SHOWN_STATES, Waiting, backlog
from sluicemq_devices.hub import in_pieces

#: Effects of a redrive into another queue, and of the setting ``on_dead``: actions, and on what.
OF_REDRIVE: Final = (
    Effect(Action.READ, "the queue, if its dead letters go to another"),
    Effect(Action.PUSH, "that other queue"),
)
OF_ON_DEAD: Final = (
    Effect(Action.READ, "the queue, with `on_dead`"),
    Effect(Action.PUSH, "the queue of `on_dead`"),
    Effect(Action.CREATE, "the queue of `on_dead`, if it is not there"),
)
Answer = TypeVar("Answer")


class QueueAdmin:
    """The queues of a broker."""

    def __init__(
        self,
        queues: Queues,
        census: Census,
        tasks: Tasks,
        differs: Callable[[str], tuple[DifferenceRow, ...]] = lambda _name: (),
    ) -> None:
        """``differs(name)``: the settings of a queue that brokers' files say differently."""
        self._differs = differs
        self._queues = queues
        self._census = census
        self._tasks = tasks
        self._counts = SharedAnswer(census.all)
        self.kept = census.rows

    def all(self) -> list[QueueRow]:
        """Return all queues with their counts, with those that other brokers have made."""
        return self._counts.get()

    def one(self, name: str) -> QueueRow:
        """Return one queue with its counts."""
        return self._census.one(check_name(name))

    def workers(self, name: str | None, is_seen: Callable[[str], bool]) -> list[WorkerRow]:
        """Return the workers at this broker, or those of one queue, with the jobs of each.

        ``is_seen``: whether those of a queue belong to the answer.
        """
        queues = self._queues if name is None else [self._queues.get(name)]
        seen = (queue for queue in queues if queue.workers and is_seen(queue.name))
        # More is read by no person
        return list(islice((row for queue in seen for row in queue.worker_list(most_jobs=20)), 1000))

    def order_worker(self, action: str, name: str, caller: Caller) -> int:
        """Let the workers of this name get no more jobs, or end them; returns how many queues they work on.

        The caller must be allowed to manage each of these.
        """
        if action not in (wire.QUIET, wire.END):
            raise BadFramesError(f"a worker is made {wire.QUIET}, or to {wire.END}, not {action[:32]!r}")
        if not caller.principal.permissions.patterns(Action.MANAGE):
            authorize(caller, Action.MANAGE)
        theirs = [queue for queue in self._queues if queue.has_worker(name)]
        for queue in theirs:
            authorize(caller, Action.MANAGE, queue.name, hidden=True)
        return sum([queue.order(name, action) for queue in theirs])

    def backlog(self, name: str) -> BacklogRow:
        """Return what the waiting jobs are that it looks at, and which tenants are held back here."""
        queue = self._queues.get(name)
        queue.store.prepare()
        found = backlog(self._queues.database_of(queue), name, queue.clock.now())
        return BacklogRow(
            kinds=tuple(_waiting(kind) for kind in found.kinds),
            tenants=tuple(
                _waiting(tenant, held_back=queue.holds_back(tenant.name)) for tenant in found.tenants
            ),
            groups=tuple(_waiting(group) for group in found.groups),
            looked=found.looked,
            more=found.looked >= MOST_LOOKED_AT,
        )

    def kinds(
        self, name: str | None, is_seen: Callable[[str], bool], contains: str = "", limit: int = 1000
    ) -> list[KindRow]:
        """Return the kinds of jobs at this broker, or those of one queue; ``is_seen`` as for workers.

        They are computed in one turn of the hub, hence the ``limit``.

        ``contains``: a part of their names. Of more than ``limit`` those that fail most.
        """
        queues = self._queues if name is None else [self._queues.get(name)]
        seen = (kind for queue in queues if is_seen(queue.name) for kind in queue.kinds())
        found = [kind for kind in in_pieces(seen) if contains.lower() in kind.kind.lower()]
        if len(found) > limit:
            found = nlargest(limit, found, key=attrgetter("trouble"))
        return [kind.row() for kind in in_pieces(found)]

    def pause(self, name: str, what: str) -> list[str] | Unchanged:
        """Pause delivery or intake at all brokers; returns what is paused now."""
        queue = self._pausable(name, what)
        changed = self._queues.pause(queue, what)
        return _answer(sorted(queue.paused), changed=changed)

    def resume(self, name: str, what: str) -> list[str] | Unchanged:
        """Resume delivery or intake at all brokers; returns what is still paused."""
        queue = self._pausable(name, what)
        changed = self._queues.resume(queue, what)
        return _answer(sorted(queue.paused), changed=changed)

    def settings(self, name: str) -> SettingsRow:
        """Return each setting and its source, and where brokers' files differ.

        ``name`` may be ``*``: the settings of queues of which nothing else is said.
        """
        self._of_queues(name)
        return SettingsRow(settings=self._queues.settings.explain(name), differs=self._differs(name))

    def needs(self, name: str, settings: object) -> list[Need]:
        """Return what settings of a queue need by their effects: dead letters go on into another queue.

        Who works there then reads them, and the queue is made.
        """
        needs: list[Need] = []
        for to in _on_dead(name, settings):
            needs += [(Action.READ, name), (Action.PUSH, to)]
            if self._queues.is_missing(to):
                needs.append((Action.CREATE, to))
        return needs

    def set_settings(
        self, name: str, settings: dict[str, Any], caller: Caller
    ) -> list[SettingRow] | Unchanged:
        """Set settings at all brokers; returns what they are now, and what else they could be here.

        The queue of ``on_dead`` is made now, in the caller's name: dead letters make none later.
        """
        values: dict[str, str | None] = {key: _stored(key, value) for key, value in settings.items()}
        self._require_values(values)
        self._of_queues(name)
        for to in _on_dead(name, settings):
            by = f"on_dead of queue {name}"
            self._queues.for_push(to, by=by, peer=caller.maker, caller=caller).store.prepare(again=True)
        return self._change_settings(name, values)

    def unset_settings(self, name: str, keys: list[Any]) -> list[SettingRow] | Unchanged:
        """Take settings back: files count again; returns what they are now at this broker."""
        for key in keys:
            with _as_refusal():
                require_setting(key)
        return self._change_settings(name, dict.fromkeys(keys))

    def purge(self, name: str, state: str) -> Task:
        """Remove all jobs of a state."""
        check_state(state, [shown for shown in SHOWN_STATES if shown != State.RESERVED])
        return self._tasks.begin(Purge.kind, name, state=state)

    def delete(self, name: str) -> Task:
        """Remove a queue and all its jobs; refused while workers are connected to it."""
        return self._tasks.begin(Delete.kind, name)

    def _change_settings(self, name: str, values: dict[str, str | None]) -> list[SettingRow] | Unchanged:
        self._require_values(values)
        queue = self._of_queues(name)
        if queue:
            queue.store.prepare(again=True)  # a queue without a collection is forgotten by a restart
        changed = self._queues.set_settings(name, values)
        now = [setting for setting in self._queues.settings.explain(name) if setting.key in values]
        return _answer(now, changed=changed)

    def _require_values(self, values: dict[str, str | None]) -> None:
        if not values:
            raise BadFramesError("name at least one setting")

    def _of_queues(self, name: str) -> Queue | None:
        """Return the queue of this name; None for all queues. Raises NotFound."""
        return None if name == ALL_QUEUES else self._queues.get(name)

    def _pausable(self, name: str, what: str) -> Queue:
        if what not in (wire.DELIVERY, wire.INTAKE):
            raise BadFramesError(f"{what!r} can't be paused, only {wire.DELIVERY} or {wire.INTAKE}")
        queue = self._queues.get(name)
        queue.store.prepare(again=True)  # a queue without a collection is forgotten by a restart
        return queue


def redrive_needs(name: str, to: str | None) -> list[Need]:
    """Return what a redrive needs by its effects: jobs are pushed into another queue, and read there."""
    return [] if to is None or to == name else [(Action.READ, name), (Action.PUSH, to)]


def _waiting(found: Waiting, *, held_back: bool = False) -> WaitingRow:
    return WaitingRow(name=found.name, jobs=found.jobs, oldest=found.oldest, held_back=held_back)


def _on_dead(name: str, settings: object) -> list[str]:
    """Return the other queue into which dead letters of a queue would go by these settings."""
    to = settings.get("on_dead") if isinstance(settings, dict) else None
    return [to] if isinstance(to, str) and to.strip().lower() != NO_VALUE and to != name else []


def _answer(now: Answer, *, changed: bool) -> Answer | Unchanged:
    return now if changed else Unchanged(now)


def _stored(key: object, value: Any) -> str:
    with _as_refusal():
        require_setting(key)
        return stored_value(str(key), value)


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise BadFramesError(str(error)) from None
