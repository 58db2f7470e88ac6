"""Answers without the rows that a caller may not see; each function takes a caller and an answer.

A caller who may see everything gets the answer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import (
    EndRow,
    GoneWorkerRow,
    IncidentsRow,
    KindRow,
    KindsRow,
    OperationRow,
    OperationsRow,
    QueueRow,
    RecentRow,
    SchedulesRow,
    StatsRow,
    StreamRow,
    StreamsRow,
    SubscriptionRow,
    WorkerRow,
    WorkersRow,
)
from sluicemq_broker.security.authorize import Caller

R = TypeVar("R", bound=Struct)
W = TypeVar("W", WorkerRow, GoneWorkerRow)


def queues(caller: Caller, rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Return the queues that it may read."""
    return _of(caller, Action.READ, rows, "name")


def workers(caller: Caller, rows: Iterable[W]) -> list[W]:
    """Return the workers of queues that it may read."""
    return _of(caller, Action.READ, rows, "queue")


def kinds(caller: Caller, rows: Iterable[KindRow]) -> list[KindRow]:
    """Return the kinds of queues that it may read."""
    return _of(caller, Action.READ, rows, "queue")


def all_kinds(caller: Caller, answer: KindsRow) -> KindsRow:
    """Return :func:`kinds` of an answer."""
    return KindsRow(kinds=tuple(kinds(caller, answer.kinds)))


def all_workers(caller: Caller, answer: WorkersRow) -> WorkersRow:
    """Return :func:`workers` of an answer."""
    return WorkersRow(
        workers=tuple(workers(caller, answer.workers)),
        elsewhere=tuple(workers(caller, answer.elsewhere)),
        gone=tuple(workers(caller, answer.gone)),
    )


def ends(caller: Caller, rows: Iterable[EndRow]) -> list[EndRow]:
    """Return all of them, without the names of queues that it may not read."""
    may_read = names(caller, Action.READ)
    return [row if not row.to or may_read(row.to) else replace(row, to=None) for row in rows]


def stats(caller: Caller, answer: StatsRow) -> StatsRow:
    """Return the answer; without ``operate`` only with visible queues."""
    rows = tuple(queues(caller, answer.queues))
    if not caller.may(Action.OPERATE):
        return StatsRow(broker={}, counters={}, queues=rows)
    return replace(answer, queues=rows)


def operations(caller: Caller, rows: Iterable[OperationRow]) -> list[OperationRow]:
    """Return the operations on queues that it may manage."""
    return _of(caller, Action.MANAGE, rows, "queue")


def all_operations(caller: Caller, answer: OperationsRow) -> OperationsRow:
    """Return :func:`operations` of an answer."""
    return OperationsRow(operations=tuple(operations(caller, answer.operations)))


def schedules(caller: Caller, answer: Any) -> Any:
    """Return the schedules of queues that it may manage; another answer than a list as it is."""
    return _of(caller, Action.MANAGE, answer, "queue") if isinstance(answer, list) else answer


def all_schedules(caller: Caller, answer: SchedulesRow) -> SchedulesRow:
    """Return :func:`schedules` of an answer."""
    return SchedulesRow(schedules=tuple(_of(caller, Action.MANAGE, answer.schedules, "queue")))


def streams(caller: Caller, rows: Iterable[StreamRow]) -> list[StreamRow]:
    """Return the streams that it may subscribe to."""
    return _of(caller, Action.SUBSCRIBE, rows, "name")


def subscriptions(caller: Caller, rows: Iterable[SubscriptionRow]) -> list[SubscriptionRow]:
    """Return the subscriptions of streams that it may subscribe to."""
    return _of(caller, Action.SUBSCRIBE, rows, "stream")


def stream_overview(caller: Caller, answer: StreamsRow) -> StreamsRow:
    """Return what is of streams that it may subscribe to.

    A route is shown to a caller that may read its queue, too.
    """
    routes = _of(caller, Action.SUBSCRIBE, answer.routes, "stream")
    return StreamsRow(
        streams=tuple(streams(caller, answer.streams)),
        subscriptions=tuple(subscriptions(caller, answer.subscriptions)),
        routes=tuple(_of(caller, Action.READ, routes, "queue")),
    )


def incidents(caller: Caller, answer: IncidentsRow) -> IncidentsRow:
    """Return the incidents of queues that it may read; those of brokers need ``operate``."""
    operates, may_read = caller.may(Action.OPERATE), names(caller, Action.READ)
    shown = [
        incident
        for incident in answer.incidents
        if (may_read(incident.queue) if incident.queue else operates)
    ]
    return replace(answer, incidents=tuple(shown))


def recent_curves(caller: Caller, answer: RecentRow) -> RecentRow:
    """Return the curves of queues that it may read."""
    may_read = names(caller, Action.READ)
    return replace(answer, queues={name: queue for name, queue in answer.queues.items() if may_read(name)})


def names(caller: Caller, action: Action) -> Callable[[str], bool]:
    """Return the function that says for each name of a queue or stream if it may do this."""
    if caller.may(action):
        return lambda _name: True
    return lambda name: caller.may(action, name)


#: Actions that let a caller read the history of a subject; of others, such as brokers, ``operate``.
_OF_SUBJECT = {"queue": Action.READ, "kind": Action.READ, "stream": Action.SUBSCRIBE}


def history(kind: str, name: str) -> tuple[Action, str]:
    """Return what the history of a subject needs: its action, and the name on which it is asked."""
    action = _OF_SUBJECT.get(kind)
    if kind == "kind":  # it is named behind its queue
        name = name.partition(":")[0]
    return (Action.OPERATE, "") if action is None else (action, name)


def _of(caller: Caller, action: Action, rows: Iterable[R], key: str) -> list[R]:
    """Return the rows whose queue or stream it may act on."""
    may = names(caller, action)
    return [row for row in rows if may(getattr(row, key))]
