"""The three devices: STREAMER, QUEUE and FORWARDER."""

from sluicemq_devices.relays.device import HWM, HWM_BYTES, Device, Kind
from sluicemq_devices.relays.fan_out import FanOut
from sluicemq_devices.relays.forwarder import Forwarder
from sluicemq_devices.relays.queue import QueueDevice
from sluicemq_devices.relays.streamer import Streamer
from sluicemq_devices.relays.subscriber import Subscriber
from sluicemq_devices.relays.upstream import Upstream
