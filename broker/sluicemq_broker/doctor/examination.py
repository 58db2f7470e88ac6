"""The examination: all checks of all subjects, and what keeps one from looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.doctor import (
    broker_checks,
    config_checks,
    host_checks,
    mongodb_checks,
    queue_checks,
    store_checks,
)
from sluicemq_broker.doctor.finding import Finding, info
from sluicemq_broker.doctor.subject import Subject

Check = Callable[[Subject], Iterator[Finding]]

#: The checks of each subject, in the order in which they are shown.
CHECKS: Final[Mapping[str, tuple[Check, ...]]] = {
    "config": config_checks.CHECKS,
    "host": host_checks.CHECKS,
    "mongodb": mongodb_checks.CHECKS,
    "store": store_checks.CHECKS,
    "brokers": broker_checks.CHECKS,
    "queues": queue_checks.CHECKS,
}


def examined(subject: Subject) -> dict[str, list[Finding]]:
    """Return the findings of each subject; a subject that could not be looked at says so."""
    found = {
        name: [each for check in checks for each in _run(check, subject)] for name, checks in CHECKS.items()
    }
    if not found["store"]:
        found["store"].append(
            info("the database was not looked at: MongoDB does not answer, or is not known")
        )
    if not found["queues"]:
        found["queues"].append(info("queues were not looked at: no broker answers with them"))
    return found


def _run(check: Check, subject: Subject) -> Iterator[Finding]:
    try:
        yield from check(subject)
    except SluiceError as why:
        name = check.__name__.replace("_", " ")
        yield info(
            f"{name} could not be looked at", str(why), "give the user of the URI the right, or try again"
        )
