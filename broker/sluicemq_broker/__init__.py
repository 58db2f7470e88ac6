"""The SluiceMQ broker: a gevent process between ZeroMQ doors and MongoDB queues."""

from importlib.metadata import version

__version__ = version("sluicemq")
