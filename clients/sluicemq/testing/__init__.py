"""Tests without MongoDB and sockets: a broker in memory behind the classes of the library.

Needs the extra ``testing``, which has the packages of the broker: its decisions are those of the broker.
"""

from sluicemq.installed import to_install

try:
    from sluicemq.testing.broker import MemoryBroker, PushedJob
    from sluicemq.testing.embedded import EmbeddedBroker
except ModuleNotFoundError as error:
    raise ImportError(f"sluicemq.testing needs the extra: {to_install('testing')}") from error

__all__ = ["EmbeddedBroker", "MemoryBroker", "PushedJob"]
