"""The load, the queues and the workers of all brokers on a database, for dashboards.

Every few seconds a broker looks at its own. While there are others it stores what it saw, and reads what
they have stored. So a dashboard at any broker shows the rates and the workers of all of them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec
from msgspec.structs import replace

from sluicemq.protocol.rows import GoneWorkerRow, LoadRow, QueueRow, RatesRow, WorkerRow
from sluicemq_broker.context import Context
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Turns
from sluicemq_broker.store import FigureStore
from sluicemq_devices.hub import in_pieces

log = logging.getLogger("broker")

#: Seconds between two looks; what another broker said three looks ago counts no more.
EVERY: Final = 5.0
#: Of one broker, for the others: workers, jobs of each, queues. About 200 KB at most.
_MOST_WORKERS, _MOST_JOBS, _MOST_QUEUES = 300, 3, 1000
#: Workers that have gone: how many are remembered, and for how many seconds.
_MOST_GONE, _GONE_FOR = 100, 3600.0
_NOTHING: Final = RatesRow(pushed=0.0, delivered=0.0, committed=0.0)


class QueueLoad(msgspec.Struct, frozen=True, array_like=True):
    """The part of one broker in the work of a queue."""

    queue: str
    rates: RatesRow
    workers: int
    in_flight: int


class Said(msgspec.Struct, frozen=True):
    """A broker, as it describes itself."""

    load: LoadRow
    queues: tuple[QueueLoad, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    gone: tuple[GoneWorkerRow, ...] = ()


class Fleet:
    """All brokers on the database, as they described themselves last. ``name``: this broker's."""

    every = EVERY

    def __init__(
        self, queues: Queues, context: Context, store: Callable[[], FigureStore], turns: Turns, name: str
    ) -> None:
        self._queues = queues
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._open = store
        self._turns = turns
        self._name = name
        self._others: dict[str, Said] = {}
        self._of_queues: dict[str, QueueLoad] = {}  # sums of the others
        self._own = Said(LoadRow(rates=_NOTHING, workers=0, in_flight=0, busy=0.0))
        self._busy = (self._timer.now(), turns.busy)
        self._gone: deque[GoneWorkerRow] = deque(maxlen=_MOST_GONE)
        self._there: dict[tuple[str, str, str], WorkerRow] = {}

    def prepare(self) -> None:
        """Make the index."""
        self._open().prepare()

    def tick(self) -> None:
        """Look at this broker; while there are others, store what it is and read what they are."""
        self._own = self._measure()
        if not self._owners.others:
            self._others, self._of_queues = {}, {}
            return
        store, now = self._open(), self._clock.now()
        store.put(self._name, msgspec.json.encode(self._own), now)
        found = store.others(self._name, now - 3 * EVERY)
        self._others = {name: said for name, text in found.items() if (said := _read(name, text))}
        self._of_queues = _summed(chain.from_iterable(other.queues for other in self._others.values()))

    def loads(self) -> dict[str, LoadRow]:
        """Return by name the load of each broker."""
        return {name: other.load for name, other in self._others.items()} | {self._name: self._own.load}

    def added(self, rows: Iterable[QueueRow]) -> list[QueueRow]:
        """Return the rows of queues with the rates, workers and jobs at workers of all brokers."""
        return [
            _with(row, load) if (load := self._of_queues.get(row.name)) else row for row in in_pieces(rows)
        ]

    def workers(self, queue: str | None) -> tuple[WorkerRow, ...]:
        """Return the workers at other brokers, or those of one queue."""
        return tuple(
            replace(row, broker=name)
            for name, said in self._others.items()
            for row in said.workers
            if queue in (None, row.queue)
        )

    def gone(self, queue: str | None) -> tuple[GoneWorkerRow, ...]:
        """Return the workers that have left any broker in the last hour, the latest first."""
        now = self._clock.now()
        found = [
            replace(row, broker=name)
            for name, said in ((self._name, self._own), *self._others.items())
            for row in said.gone
            if queue in (None, row.queue) and now - row.at < _GONE_FOR
        ]
        return tuple(sorted(found, key=lambda row: row.at, reverse=True)[:_MOST_GONE])

    def _measure(self) -> Said:
        now, then = self._timer.now(), self._busy
        self._busy = now, self._turns.busy
        busy = (self._busy[1] - then[1]) / max(now - then[0], 0.001)
        loads = list(self._loads(now))
        workers = [row for queue in in_pieces(self._queues) for row in queue.worker_list(_MOST_JOBS)]
        self._note_gone(workers)
        return Said(
            LoadRow(
                rates=_sum(load.rates for load in loads),
                workers=len(workers),
                in_flight=sum(load.in_flight for load in loads),
                busy=round(min(1.0, busy), 4),
            ),
            tuple(islice((load for load in loads if load.workers or any(_values(load.rates))), _MOST_QUEUES)),
            tuple(workers[:_MOST_WORKERS]),
            tuple(self._gone),
        )

    def _loads(self, now: float) -> Iterator[QueueLoad]:
        for queue in in_pieces(self._queues):
            rates = RatesRow(**queue.counters.rates(now))
            yield QueueLoad(queue.name, rates, queue.workers, queue.in_flight)

    def _note_gone(self, workers: Iterable[WorkerRow]) -> None:
        """Remember workers that have left; one that came back under its name has not."""
        there = {(row.queue, row.name, row.door): row for row in workers}
        for key, row in self._there.items():
            if key not in there:
                gone = GoneWorkerRow(
                    queue=row.queue,
                    name=row.name,
                    door=row.door,
                    at=self._clock.now(),
                    connected=row.connected,
                    jobs=row.in_flight,
                )
                self._gone.append(gone)
        self._there = there


def _read(name: str, text: bytes) -> Said | None:
    try:
        return msgspec.json.decode(text, type=Said)
    except msgspec.MsgspecError as error:  # a broker of another version
        log.debug("the figures of broker %s can't be read: %s", name, error)
        return None


def _summed(loads: Iterable[QueueLoad]) -> dict[str, QueueLoad]:
    sums: dict[str, QueueLoad] = {}
    for load in loads:
        before = sums.get(load.queue)
        sums[load.queue] = load if before is None else _together(before, load)
    return sums


def _together(one: QueueLoad, other: QueueLoad) -> QueueLoad:
    rates = _sum((one.rates, other.rates))
    return QueueLoad(one.queue, rates, one.workers + other.workers, one.in_flight + other.in_flight)


def _with(row: QueueRow, load: QueueLoad) -> QueueRow:
    return replace(
        row,
        rates=_sum((row.rates, load.rates)),
        workers=row.workers + load.workers,
        in_flight=row.in_flight + load.in_flight,
    )


def _sum(rates: Iterable[RatesRow]) -> RatesRow:
    pushed, delivered, committed = (
        round(sum(values), 3) for values in zip(_values(_NOTHING), *map(_values, rates), strict=True)
    )
    return RatesRow(pushed=pushed, delivered=delivered, committed=committed)


def _values(rates: RatesRow) -> tuple[float, float, float]:
    return rates.pushed, rates.delivered, rates.committed
