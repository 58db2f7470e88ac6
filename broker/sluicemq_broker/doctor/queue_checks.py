"""Checks of queues, as a broker counts them: jobs that nobody works on, paused queues, dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sluicemq.protocol.wire import DELIVERY
from sluicemq_broker.doctor.finding import Finding, info, ok, warning
from sluicemq_broker.doctor.subject import Subject
from sluicemq_broker.job import State
from sluicemq_broker.runtime import Gauge

#: Queues that are named for each reason.
_MOST: Final = 20


def unworked(subject: Subject) -> Iterator[Finding]:
    """Name queues with ready jobs and no workers, and those whose jobs wait long."""
    rows = _queues(subject)
    if rows is None:
        return
    only_here = "" if _brokers(subject) < 2 else "; other brokers may have some: sluicemq workers"
    idle = [
        row for row in rows if row[State.READY] and not row[Gauge.WORKERS] and DELIVERY not in row["paused"]
    ]
    for row in idle[:_MOST]:
        yield warning(
            f"queue {row['name']} has {row[State.READY]} ready jobs, and no workers{only_here}",
            f"the oldest waits for {_age(row):.0f} s",
            f"start a worker of it, or see why it does not connect: sluicemq workers list {row['name']}",
        )
    # Seconds for which a job may be ready.
    slow = [row for row in rows if row[State.READY] and row[Gauge.WORKERS] and _age(row) > 300.0]
    for row in slow[:_MOST]:
        yield warning(
            f"jobs of queue {row['name']} wait for {_age(row):.0f} s, though it has workers",
            f"{row[State.READY]} ready, {row[State.RESERVED]} reserved, {row[Gauge.WORKERS]} workers",
            "start more workers; see max_running and rate of the queue: "
            f"sluicemq queues settings {row['name']}",
        )
    if not idle and not slow:
        yield ok("no queue waits for workers", f"{len(rows)} queues")


def paused(subject: Subject) -> Iterator[Finding]:
    """Name queues that somebody has paused."""
    for row in [row for row in _queues(subject) or () if row["paused"]][:_MOST]:
        yield info(
            f"queue {row['name']} is paused: {', '.join(row['paused'])}",
            to_do=f"if that is not meant any more: sluicemq queues resume {row['name']}",
        )


def dead_letters(subject: Subject) -> Iterator[Finding]:
    """Name queues with dead letters."""
    for row in [row for row in _queues(subject) or () if row[State.DEAD]][:_MOST]:
        yield info(
            f"queue {row['name']} has {row[State.DEAD]} dead letters",
            to_do=f"sluicemq dead-letters list {row['name']}; then redrive, or discard",
        )


def _queues(subject: Subject) -> list[Mapping[str, Any]] | None:
    return subject.answers.by_name.get("queues")


def _brokers(subject: Subject) -> int:
    answer = subject.answers.by_name.get("brokers") or {}
    return sum(broker["ended"] is None for broker in answer.get("brokers", ()))


def _age(row: Mapping[str, Any]) -> float:
    return float(row.get(Gauge.OLDEST_READY_AGE) or 0.0)


CHECKS = (unworked, paused, dead_letters)
