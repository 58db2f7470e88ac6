"""List of what is kept, and how much of each bound is used: for dashboard, metrics and incidents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import KeptList, KeptRow
from sluicemq_broker.process.duties import Duty
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.runtime import Kept, LabelledGauge
from sluicemq_broker.security import Needs
from sluicemq_broker.store import COLLECTIONS, Measured, disk_of, measure

if TYPE_CHECKING:
    from sluicemq_broker.http import Site

#: By the field of a row: name and text of its gauge.
GAUGES: Final = {
    "number": ("kept_items", "how many are kept"),
    "bytes": ("kept_bytes", "bytes that are kept"),
    "used": ("kept_used_ratio", "share of its bound that is used; at 1 the oldest go, or no more is taken"),
}


class KeptPart(Part):
    """The list of what is kept."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._databases = sorted(core.jobs.queues.databases)
        self._collections: list[Kept] = []
        self._looked_at: float | None = None
        core.keepers.append(lambda: chain(self._collections, self._disks()))

    def add_paths(self, site: Site) -> None:
        """Add the list."""
        site.ask(
            "/kept",
            "kept.list",
            "What is kept, up to which bound, as it was looked at last",
            Needs(Action.OPERATE),
            KeptList,
            lambda _call: self._answer(),
        )

    def gauges(self) -> Iterable[LabelledGauge]:
        """Return the figures of the last look."""
        for key, (name, text) in GAUGES.items():
            rows = [row for row in self.core.kept if getattr(row, key) is not None][:1000]
            values = [((row.kind, row.name), float(getattr(row, key))) for row in rows]
            yield LabelledGauge(name, text, ("kind", "name"), values)

    def duties(self) -> Iterator[Duty]:
        """Return the looks at collections and disks."""
        settings = self.core.config.broker
        yield Duty("room on disks of MongoDB that have little", settings.lease, self._look_if_scarce)
        # Seconds between two looks at the collections.
        yield Duty("what is kept", min(60.0, 4 * settings.lease), self._measure)

    def _answer(self) -> KeptList:
        if self._looked_at is None:
            self._measure()
        rows = tuple(KeptRow(**row._asdict()) for row in self.core.kept)
        return KeptList(at=self._looked_at, kept=rows)

    def _measure(self) -> None:
        foundation = self.core.foundation
        self._collections = [
            _row(found) for name in self._databases for found in measure(foundation.database(name))
        ]
        self._look_at_disks()
        self._looked_at = foundation.clock.now()

    def _look_if_scarce(self) -> None:
        """Look at disks with little room: with a thousand queues that takes MongoDB a third of a second."""
        reserve = self.core.config.broker.disk_reserve
        # Times the reserve: a disk with less room is looked at every lease
        if any(disk.free < 8 * reserve for disk in self.core.disks.values()):
            self._look_at_disks()

    def _look_at_disks(self) -> None:
        """Note the room on each disk; a MongoDB that does not say it is left out."""
        for name in self._databases:
            try:
                self.core.disks[name] = disk_of(self.core.foundation.database(name))
            except (SluiceError, KeyError, TypeError):
                self.core.disks.pop(name, None)
        self.core.kept[:] = [row for keeper in self.core.keepers for row in keeper()]

    def _disks(self) -> Iterator[Kept]:
        reserve = self.core.config.broker.disk_reserve
        for name, disk in self.core.disks.items():
            used = (disk.total - disk.free) / max(1, disk.total - reserve)
            yield Kept("database", name, f"its disk, less {reserve >> 20} MiB", bytes=disk.used, used=used)


def _row(measured: Measured) -> Kept:
    name, number, size, oldest = measured
    about = COLLECTIONS.get(name)
    if about is None:
        return Kept("collection", name, "not of a broker", number, size)
    used = None if about.most is None else number / about.most
    return Kept("collection", name, about.bound, number, size, oldest, used)
