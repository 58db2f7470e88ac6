"""The dashboard's paths at the HTTP door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicemq_broker.process.part import Part

if TYPE_CHECKING:
    from sluicemq_broker.http import Site


class DashboardPart(Part):
    """The dashboard: paths of the HTTP door, which show the door's snapshots."""

    def add_paths(self, site: Site) -> None:
        """Add its files, the overview, and the live feed."""
        from sluicemq_broker.parts.dashboard import files, live  # noqa: PLC0415 - for brokers with HTTP only

        files.add_paths(site)
        live.add_paths(site)
