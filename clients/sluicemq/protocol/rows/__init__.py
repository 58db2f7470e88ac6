"""Rows: the answers of a broker, as frozen structs; a module for each subject."""

from sluicemq.protocol.rows.acts import *
from sluicemq.protocol.rows.base import *
from sluicemq.protocol.rows.brokers import *
from sluicemq.protocol.rows.history import *
from sluicemq.protocol.rows.jobs import *
from sluicemq.protocol.rows.queues import *
from sluicemq.protocol.rows.streams import *
