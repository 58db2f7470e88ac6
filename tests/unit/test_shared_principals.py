"""The principals in MongoDB are followed: those that were read hold while it is away; removals are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import gevent
import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.bus import BusEvent, BusKind, Channel, silent
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import Principals, SharedPrincipals
from sluicemq_broker.store import PrincipalRecord, PrincipalStore


class FaultyStore:
    """Principals of a MongoDB that may be away; ``read_from``: the revisions that readers had."""

    def __init__(self) -> None:
        self.records: list[PrincipalRecord] = []
        self.read_from: list[int | None] = []
        self.away = False
        self.revision = 0

    def put(self, name: str, *, removed: bool = False) -> None:
        self.revision += 1
        self.records = [record for record in self.records if record.name != name]
        self.records.append(PrincipalRecord(name=name, revision=self.revision, removed=removed))

    def prepare(self) -> None:
        pass

    def read(self, after: int | None = None) -> Iterator[PrincipalRecord]:
        self.read_from.append(after)
        if self.away:
            raise UnavailableError("no MongoDB primary")
        yield from [record for record in self.records if record.revision > (after or 0)]

    def change(self, name: str, change: Any, now: float, *, keep_operator: bool) -> PrincipalRecord | None:
        del change, now, keep_operator
        self.put(name)
        return self.records[-1]


class Told(list[BusEvent]):
    """A channel that notes the events of other brokers."""

    announce = list.append


class Broker:
    """The principals of one broker on that store."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store, self.known, self.counters = FaultyStore(), Principals(), Counters()
        self.told, self.changes = Told(), 0
        self.shared = SharedPrincipals(
            cast("PrincipalStore", self.store),
            self.known,
            lambda: cast("Channel", self.told),
            self.counters,
            lambda: self.now,
        )
        self.shared.on_change = self._changed

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.known.records()]

    def _changed(self) -> None:
        self.changes += 1


def test_only_what_is_newer_is_read_and_only_changes_are_reported() -> None:
    broker = Broker()
    broker.store.put("a")
    broker.store.put("b")
    broker.shared.prepare()
    broker.shared.follow()
    broker.store.put("b", removed=True)
    broker.shared.follow()
    assert broker.names == ["a"]
    assert broker.store.read_from == [None, 2, 2]
    assert broker.changes == 2, "at the start, and for the removal"


def test_the_principals_that_were_read_last_hold_while_mongodb_is_away() -> None:
    broker = Broker()
    broker.store.put("a")
    broker.shared.prepare()
    broker.store.away = True

    with pytest.raises(UnavailableError):
        broker.shared.follow()
    broker.shared.on_event(BusEvent(BusKind.PRINCIPALS))
    gevent.idle()

    assert broker.names == ["a"]
    assert broker.counters.values[Count.STORE_UNAVAILABLE] == 1
    broker.store.away = False
    broker.store.put("b")
    broker.shared.on_event(BusEvent(BusKind.PRINCIPALS))
    gevent.idle()
    assert broker.names == ["a", "b"]


def test_after_a_long_absence_all_are_read_as_removals_are_forgotten() -> None:
    broker = Broker()
    broker.store.put("a")
    broker.store.put("b")
    broker.shared.prepare()
    del broker.store.records[0]  # removed, and MongoDB has forgotten that

    broker.shared.follow()
    assert broker.names == ["a", "b"]
    broker.now += 3601
    broker.shared.follow()

    assert broker.names == ["b"]
    assert broker.store.read_from == [None, 2, None]


def test_a_change_holds_here_before_it_is_answered_and_other_brokers_hear_of_it() -> None:
    broker = Broker()
    broker.shared.prepare()
    broker.shared.change("a", lambda before: before, 0.0, keep_operator=False)
    assert broker.names == ["a"]
    assert broker.told == [BusEvent(BusKind.PRINCIPALS)]


def test_a_change_is_answered_although_mongodb_goes_away_behind_it() -> None:
    broker = Broker()
    broker.shared.prepare()
    broker.store.away = True
    changed = broker.shared.change("a", lambda before: before, 0.0, keep_operator=False)
    assert changed is not None
    assert broker.told == [BusEvent(BusKind.PRINCIPALS)]
    broker.store.away = False
    broker.shared.follow()
    assert broker.names == ["a"]


def test_a_broker_alone_reports_to_nobody() -> None:
    broker = Broker()
    alone = SharedPrincipals(cast("PrincipalStore", broker.store), broker.known, silent, broker.counters)
    alone.prepare()
    alone.change("a", lambda before: before, 0.0, keep_operator=False)
    assert broker.names == ["a"]
