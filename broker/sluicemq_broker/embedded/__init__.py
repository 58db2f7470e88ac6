"""The MongoDB that a broker brings along."""

from sluicemq_broker.embedded.life import EmbeddedMongo

__all__ = [
    "EmbeddedMongo",
]
