"""``sluicemq backup`` and ``sluicemq restore``: the state of one moment in a file, and back."""

from sluicemq_broker.backup.reach import place_of
from sluicemq_broker.backup.refusal import Refusal
from sluicemq_broker.backup.restoring import restore
from sluicemq_broker.backup.saving import back_up
