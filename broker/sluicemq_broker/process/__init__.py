"""The process: its command, its order of starting and stopping, where it listens."""

from sluicemq_broker.process.serve import main

__all__ = [
    "main",
]
