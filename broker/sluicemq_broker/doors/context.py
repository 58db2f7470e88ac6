"""What every door of the broker needs, beside its own settings."""

from __future__ import annotations

from typing import NamedTuple

from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.doors.frames import JobMaker
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import Counters, Timer
from sluicemq_devices.doors import Switchboard


class DoorContext(NamedTuple):
    """The broker's settings and counters, its switchboard, its queues, who makes jobs for them, the time."""

    settings: BrokerSettings
    counters: Counters
    board: Switchboard
    queues: Queues
    maker: JobMaker
    timer: Timer
