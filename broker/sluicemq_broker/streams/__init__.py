"""Streams: numbered messages that are kept, for any number of readers, from any number on."""

from sluicemq_broker.streams.batch import Batch, Expected, StoredNumbers, read_batch
from sluicemq_broker.streams.choosing import Usage
from sluicemq_broker.streams.publishers import BatchNumber
from sluicemq_broker.streams.route import Route
from sluicemq_broker.streams.segments import ChosenMessages
from sluicemq_broker.streams.services import StreamServices
from sluicemq_broker.streams.stream import Reading, Stream, Wanted
from sluicemq_broker.streams.streams import MUCH_OF_A_DISK, Streams, check_stream, summary
from sluicemq_broker.streams.subscriptions import NEWEST, Lags, Subscriptions, Wish, not_held
from sluicemq_broker.streams.topics import Topics
