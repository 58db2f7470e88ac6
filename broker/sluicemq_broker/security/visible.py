"""Answers without the rows that a caller may not see; each function takes a caller and an answer.

A caller who may see everything gets the answer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluicemq.protocol.permissions import Action
from sluicemq_broker.security.authorize import Caller

Row = dict[str, Any]
Rows = list[Row]


def queues(caller: Caller, rows: Rows) -> Rows:
    """Return the queues that it may read."""
    return _of(caller, Action.READ, rows, "name")


def workers(caller: Caller, rows: Rows) -> Rows:
    """Return the workers of queues that it may read."""
    return _of(caller, Action.READ, rows, "queue")


def stats(caller: Caller, answer: Row) -> Row:
    """Return ``{broker, counters, queues, forwarders}``; without ``operate`` only with visible queues."""
    if not caller.may(Action.OPERATE):
        answer = {**answer, "broker": {}, "counters": {}, "forwarders": []}
    return {**answer, "queues": queues(caller, answer["queues"])}


def tasks(caller: Caller, rows: Rows) -> Rows:
    """Return the tasks of queues that it may manage."""
    return _of(caller, Action.MANAGE, rows, "queue")


def schedules(caller: Caller, answer: Any) -> Any:
    """Return the schedules of queues that it may manage; another answer than a list as it is."""
    return _of(caller, Action.MANAGE, answer, "queue") if isinstance(answer, list) else answer


def streams(caller: Caller, rows: Rows) -> Rows:
    """Return the streams that it may subscribe to."""
    return _of(caller, Action.SUBSCRIBE, rows, "name")


def subscriptions(caller: Caller, rows: Rows) -> Rows:
    """Return the subscriptions, or routes, of streams that it may subscribe to."""
    return _of(caller, Action.SUBSCRIBE, rows, "stream")


def stream_overview(caller: Caller, answer: Row) -> Row:
    """Return ``{streams, subscriptions, routes}`` of streams that it may subscribe to.

    A route is shown to a caller that may read its queue, too.
    """
    return {
        "streams": streams(caller, answer["streams"]),
        "subscriptions": subscriptions(caller, answer["subscriptions"]),
        "routes": _of(caller, Action.READ, subscriptions(caller, answer["routes"]), "queue"),
    }


def incidents(caller: Caller, answer: Row) -> Row:
    """Return ``{since, until, incidents}`` of queues that it may read; those of brokers need ``operate``."""
    operates, may_read = caller.may(Action.OPERATE), names(caller, Action.READ)
    shown = [each for each in answer["incidents"] if (may_read(each["queue"]) if each["queue"] else operates)]
    return {**answer, "incidents": shown}


def recent_curves(caller: Caller, answer: Row) -> Row:
    """Return ``{since, step, queues: {name: curves}}`` of queues that it may read."""
    may_read = names(caller, Action.READ)
    return {**answer, "queues": {name: each for name, each in answer["queues"].items() if may_read(name)}}


def names(caller: Caller, action: Action) -> Callable[[str], bool]:
    """Return the function that says for each name of a queue or stream if it may do this."""
    if caller.may(action):
        return lambda _name: True
    return lambda name: caller.may(action, name)


#: Actions that let a caller read the history of a subject; of others, such as brokers, ``operate``.
_OF_SUBJECT = {"queue": Action.READ, "stream": Action.SUBSCRIBE}


def history(kind: str, name: str) -> tuple[Action, str]:
    """Return what the history of a subject needs: its action, and the name on which it is asked."""
    action = _OF_SUBJECT.get(kind)
    return (Action.OPERATE, "") if action is None else (action, name)


def _of(caller: Caller, action: Action, rows: Iterable[Row], key: str) -> Rows:
    """Return the rows whose queue or stream it may act on."""
    may = names(caller, action)
    return [row for row in rows if may(row[key])]
