"""The settings of a broker, from file, environment and command line."""

from sluicemq_broker.config.settings import (
    MAX_JOB_BYTES,
    BrokerSettings,
    Config,
    ConfigError,
    DeviceSettings,
    QueueSettings,
    describe,
    load,
)

__all__ = [
    "MAX_JOB_BYTES",
    "BrokerSettings",
    "Config",
    "ConfigError",
    "DeviceSettings",
    "QueueSettings",
    "describe",
    "load",
]
