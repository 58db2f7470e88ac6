"""Brokers with leases, and a time that tests set."""

from typing import Any

from pymongo.database import Database

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.context import Owners
from sluicemq_broker.runtime import Timer
from sluicemq_broker.store import LeaseStore, ServerClock

LEASE = 15.0
BEAT = LEASE / 5


class LeaseTime(Timer):
    """The time of every broker in a test; it passes when the test says so."""

    value = 1000.0

    def now(self) -> float:
        return self.value

    def passes(self, seconds: float) -> None:
        self.value += seconds


TIME = LeaseTime()


def owners(leases: LeaseStore, name: str = "broker", *more: Any, **options: Any) -> Owners:
    return Owners(leases, ServerClock(), name, LEASE, *more, timer=TIME, **options)


def a_broker(leases: LeaseStore, name: str = "broker", lease: float = LEASE, **options: Any) -> Owners:
    broker = Owners(leases, ServerClock(), name, lease, timer=TIME, **options)
    broker.use()
    return broker


def document(documents: Database[dict[str, Any]], owner: str) -> dict[str, Any]:
    return documents["owners"].find_one({"_id": owner}) or {}


def beats(time: LeaseTime, *brokers: Owners, count: int = 1) -> None:
    for _ in range(count):
        time.passes(BEAT)
        for broker in brokers:
            broker.beat()


def refused(*_arguments: object) -> None:
    raise UnavailableError("no primary")
