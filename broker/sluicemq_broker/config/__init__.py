"""The settings of a broker, from file, environment and command line."""

from sluicemq_broker.config.settings import (
    ENVIRONMENT,
    MAX_JOB_BYTES,
    ONLY,
    BrokerSettings,
    Config,
    ConfigError,
    DeviceSettings,
    QueueSettings,
    StreamSettings,
    as_toml,
    describe,
    load,
    settings_of,
)

__all__ = [
    "ENVIRONMENT",
    "MAX_JOB_BYTES",
    "ONLY",
    "BrokerSettings",
    "Config",
    "ConfigError",
    "DeviceSettings",
    "QueueSettings",
    "StreamSettings",
    "as_toml",
    "describe",
    "load",
    "settings_of",
]
