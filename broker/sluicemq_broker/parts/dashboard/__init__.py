"""The dashboard as a part of the broker: pages in ``static/``, and the live feed that they show."""

from sluicemq_broker.parts.dashboard.part import DashboardPart
