"""Parts of a broker that its core runs without: streams, history, the dashboard.

The core is foundation, jobs and listeners. A part is made with it, and adds what is declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sluicemq_broker.config import Config, DeviceSettings
from sluicemq_broker.doors import BrokerDevice, Services, Session, SessionState, Verbs
from sluicemq_broker.process.duties import Duty
from sluicemq_broker.process.foundation import Foundation
from sluicemq_broker.process.jobs import Jobs
from sluicemq_broker.runtime import Kept, LabelledGauge, Subjects
from sluicemq_broker.store import Disk

if TYPE_CHECKING:
    from sluicemq_broker.http import Site


class Core(NamedTuple):
    """The broker's core, as its parts see it; ``subjects``: all that count, those of parts too.

    ``keepers`` say what is kept now, as the last look at MongoDB has found it, and ``kept`` has what they
    said. ``disks``: by database, the room on the disk of its MongoDB, where that is known.
    """

    config: Config
    foundation: Foundation
    jobs: Jobs
    services: Services
    subjects: list[Subjects]
    keepers: list[Callable[[], Iterable[Kept]]]
    kept: list[Kept]
    disks: dict[str, Disk]


class Part:
    """A part that adds nothing; parts override what they add.

    While the broker is put together it asks for ``device``, ``verbs``, ``subjects`` and paths. Then::

        prepare         MongoDB answers and the broker has its lease; no door is open
        start, duties   the doors are open
        close_gates     the broker stops: nothing new comes in; ``busy`` until all is stored
        leave           the last writes before the lease ends
    """

    settings: ClassVar[tuple[str, ...]] = ()
    """Tables of the configuration that only this part reads."""
    subjects: Sequence[Subjects] = ()
    """Things that count: ``/metrics`` and the history have their counters."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.verbs: Verbs = {}
        """Verbs of library sessions."""

    def join(self, session: Session) -> SessionState | None:
        """Return what this part keeps of a new session."""

    def device(self, settings: DeviceSettings) -> BrokerDevice | None:
        """Return the device of these settings, if this part makes it."""

    def add_paths(self, site: Site) -> None:
        """Add paths to the HTTP door."""

    def gauges(self) -> Iterable[LabelledGauge]:
        """Return gauges for ``/metrics``."""
        return ()

    def dying(self) -> Mapping[str, int]:
        """Return how many jobs of each queue became dead letters in the last minutes."""
        return {}

    def prepare(self) -> None:
        """Make what the part needs in MongoDB."""

    def start(self) -> None:
        """Begin to work."""

    def duties(self) -> Iterable[Duty]:
        """Return what is repeated while the broker runs."""
        return ()

    def close_gates(self) -> None:
        """Take nothing new in."""

    @property
    def busy(self) -> bool:
        """True while something that came in is not stored."""
        return False

    def leave(self) -> None:
        """Write what is left."""
