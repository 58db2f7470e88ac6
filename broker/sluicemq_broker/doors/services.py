"""Services that all doors of the broker use."""

from __future__ import annotations

from typing import NamedTuple

from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import Counters, Timer
from sluicemq_broker.security import Security
from sluicemq_devices.sockets import Switchboard


class Services(NamedTuple):
    """The broker's settings, counters, switchboard, queues, maker of jobs, timer, security, and name."""

    settings: BrokerSettings
    counters: Counters
    board: Switchboard
    queues: Queues
    maker: JobMaker
    timer: Timer
    security: Security
    name: str = ""
    """The broker's name: its host and pid."""
