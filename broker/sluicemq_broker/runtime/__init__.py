"""Time, counters, batches and turns of the hub: for every part of the broker."""

from sluicemq_broker.runtime.alarm import Alarm
from sluicemq_broker.runtime.batcher import Batcher
from sluicemq_broker.runtime.bucket import Bucket, Buckets
from sluicemq_broker.runtime.budget import Budget
from sluicemq_broker.runtime.counters import Counters, PartCounters, QueueCounters
from sluicemq_broker.runtime.counts import BALANCES, Count, Gauge, Timing
from sluicemq_broker.runtime.events import Events
from sluicemq_broker.runtime.histogram import BOUNDS, Histogram, percentile
from sluicemq_broker.runtime.json_values import read_json
from sluicemq_broker.runtime.kinds import OTHERS, CountedKind, KindCounters
from sluicemq_broker.runtime.labelled import (
    ALL,
    DEAD_LETTERS,
    NEARLY_USED,
    Kept,
    LabelledGauge,
    Subjects,
    of_time,
)
from sluicemq_broker.runtime.memory_limit import HostMemory, host_memory
from sluicemq_broker.runtime.options import FLAG, IS_TRUE, TEXT, array_of, read_options
from sluicemq_broker.runtime.pulse import Pulse
from sluicemq_broker.runtime.query_slots import QuerySlots, SlotUser
from sluicemq_broker.runtime.server_time import Measure, better
from sluicemq_broker.runtime.shield import shielded
from sluicemq_broker.runtime.timer import Timer
from sluicemq_broker.runtime.turns import Turns
