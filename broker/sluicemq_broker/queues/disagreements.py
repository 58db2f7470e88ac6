"""Differences between brokers that share a database: settings of queues in their files, versions, leases.

A setting that is stored in MongoDB is none: all brokers go by that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from sluicemq.protocol.rows import DifferenceRow
from sluicemq_broker.config import Config, defaults_of_queues, given_in_file
from sluicemq_broker.context import Context
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.store import ALL_QUEUES, ConfigurationStore, Said, Tables
from sluicemq_devices.hub import in_parts, in_pieces, let_others_run

#: Seconds between two looks.
EVERY: Final = 5.0
_DEFAULTS: Final = defaults_of_queues()


class Difference(NamedTuple):
    """A setting of which brokers have different values, by broker; ``queue`` is empty for one of brokers."""

    queue: str
    key: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        """Return the setting with each value and its brokers."""
        named: dict[str, list[str]] = {}
        for broker, value in self.values.items():
            shown = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
            named.setdefault(shown, []).append(broker)
        said = ", ".join(f"{value} at {' and '.join(brokers)}" for value, brokers in named.items())
        return f"{self.key}: {said}"


class Disagreements:
    """The differences at the last look."""

    every = EVERY

    def __init__(self, queues: Queues, context: Context) -> None:
        self.found: list[Difference] = []
        self._queues = queues
        self._clock = context.clock
        self._timer = context.timer
        self._owners = context.owners
        self._stores = {name: ConfigurationStore(queues.database(name)) for name in queues.databases}
        self._files = {name: _Files(store) for name, store in self._stores.items()}
        self._config: Config | None = None
        self._texts: list[str] = []
        self._digest = ""
        self._published: tuple[str, list[str]] = ("", [])
        self._published_at = 0.0

    def prepare(self) -> None:
        """Make the indexes."""
        for store in self._stores.values():
            store.prepare()

    def of(self, name: str) -> tuple[DifferenceRow, ...]:
        """Return the differences of one queue, and of all queues without a table."""
        these = {name, ALL_QUEUES}
        return tuple(
            DifferenceRow(queue=difference.queue, key=difference.key, values=dict(difference.values))
            for difference in self.found
            if difference.queue in these
        )

    def tick(self) -> None:
        """Say what this broker's file says, and compare it with what others say."""
        self._read_own()
        self._publish()
        found: dict[tuple[str, str], Difference] = {}
        for database, store in self._stores.items() if self._owners.others else ():
            for difference in self._compare(database, store):
                found.setdefault((difference.queue, difference.key), difference)
        self.found = list(islice(found.values(), 200))

    def _read_own(self) -> None:
        if self._config is self._queues.config:
            return
        config = self._queues.config
        queues = {ALL_QUEUES: config.other_queues, **config.queues}
        names = sorted(queues)
        self._texts = []
        for some in in_parts(names, 200):
            tables = {name: given_in_file(queues[name]) for name in some}
            self._texts.append(json.dumps(tables, sort_keys=True))
            let_others_run()
        self._digest = hashlib.sha256("\n".join(self._texts).encode()).hexdigest()[:16]
        self._config = config

    def _publish(self) -> None:
        now, own = self._timer.now(), (self._digest, self._owners.own_ids())
        # Seconds after which a broker says its settings again though they are as before
        if own == self._published and now - self._published_at < 600.0:
            return
        for store in self._stores.values():
            store.put(self._owners.own_ids(), self._digest, self._texts, self._clock.now())
        self._published, self._published_at = own, now

    def _compare(self, database: str, store: ConfigurationStore) -> Iterator[Difference]:
        brokers = store.live()
        yield from differences_of_brokers(brokers)
        for difference in in_pieces(self._files[database].differences(brokers)):
            if not self._is_stored(database, difference):
                yield difference

    def _is_stored(self, database: str, difference: Difference) -> bool:
        """Return True if all brokers go by a value in MongoDB."""
        records = self._queues.records
        return any(
            difference.key in records.of(database, name).settings for name in (difference.queue, ALL_QUEUES)
        )


class _Files:
    """The files of the brokers on one database, and their differences when they were compared last."""

    def __init__(self, store: ConfigurationStore) -> None:
        self._store = store
        self._known: dict[str, Tables] = {}
        self._compared: list[tuple[str, str]] = []
        self._differ: list[Difference] = []

    def differences(self, brokers: Iterable[Said]) -> list[Difference]:
        """Return the differences of these brokers' files; ten thousand queues take a tenth of a second."""
        said = [(broker.broker, broker.digest) for broker in brokers if broker.digest]
        digests = list(islice(dict.fromkeys(digest for _, digest in said), 16))
        if len(digests) < 2:
            return []
        missing = [digest for digest in digests if digest not in self._known]
        self._known = {key: tables for key, tables in self._known.items() if key in digests}
        self._known |= self._store.read(missing) if missing else {}
        known = [pair for pair in said if pair[1] in self._known]
        if known != self._compared:
            self._differ = list(differences({name: self._known[digest] for name, digest in known}))
            self._compared = known
        return self._differ


def differences(files: Mapping[str, Tables]) -> Iterator[Difference]:
    """Yield what files say differently of queues, by queue; ``files``: the tables of each broker."""
    common = _of_queue(files, ALL_QUEUES)
    yield from common.values()
    names = sorted({name for tables in files.values() for name in tables} - {ALL_QUEUES})
    for name in in_pieces(names):
        for key, difference in _of_queue(files, name).items():
            if key not in common or difference.values != common[key].values:
                yield difference


def differences_of_brokers(brokers: Iterable[Said]) -> Iterator[Difference]:
    """Yield versions and leases that brokers have differently."""
    listed = list(brokers)
    for key in ("version", "lease"):
        values = {row.broker: getattr(row, key) for row in listed}
        if len(set(values.values())) > 1:
            yield Difference("", key, values)


def _of_queue(files: Mapping[str, Tables], queue: str) -> dict[str, Difference]:
    rows = {broker: tables.get(queue, tables.get(ALL_QUEUES, {})) for broker, tables in files.items()}
    first, *others = rows.values()
    if all(other == first for other in others):
        return {}
    found = {}
    for key in sorted({key for row in rows.values() for key in row}):
        values = {broker: row.get(key, _DEFAULTS.get(key)) for broker, row in rows.items()}
        if any(value != values[next(iter(values))] for value in values.values()):
            found[key] = Difference(queue, key, values)
    return found
