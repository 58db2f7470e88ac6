"""Turns and time on gevent's hub, marks, and notices that never block."""

from sluicemq_devices.hub.callbacks import nothing, shielded
from sluicemq_devices.hub.counts import DeviceCount, Metric, Mishap
from sluicemq_devices.hub.cycles import look_for_cycles
from sluicemq_devices.hub.fair_line import Line
from sluicemq_devices.hub.large_memory import give_back_large_memory
from sluicemq_devices.hub.latest import Latest
from sluicemq_devices.hub.notices import About, Notices
from sluicemq_devices.hub.spare_time import SpareTime, StrangersTime
from sluicemq_devices.hub.stderr import LONGEST_TRACEBACK, OneLine, shortened, unblock_stderr
from sluicemq_devices.hub.time_used import HEAVY, TimeUsed
from sluicemq_devices.hub.turn_time import TurnTime
from sluicemq_devices.hub.turns import NEXT_TURN, in_parts, in_pieces, in_turns, let_others_run
from sluicemq_devices.hub.watchers import switch
from sluicemq_devices.hub.watermarks import Fillers, Pausable, Shares, Watermark, boundless
