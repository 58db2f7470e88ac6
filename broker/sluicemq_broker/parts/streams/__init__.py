"""Streams as a part of the broker: their verbs, devices, routes, paths and figures."""

from sluicemq_broker.parts.streams.part import StreamsPart
from sluicemq_broker.parts.streams.sessions import NEEDS
