"""The settings of a broker, from file, environment and command line."""

from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.device_settings import ONLY, Ack, DeviceSettings, Envelope
from sluicemq_broker.config.display import as_json, as_toml, describe
from sluicemq_broker.config.loading import Config, ConfigError, Problem, default_devices, load
from sluicemq_broker.config.mongo_uri import MongoUri
from sluicemq_broker.config.redis_url import RedisUrl
from sluicemq_broker.config.reloading import Change, changes, taken_over
from sluicemq_broker.config.rules import BusForm
from sluicemq_broker.config.settings import (
    ENVIRONMENT,
    MAX_JOB_BYTES,
    BrokerSettings,
    Overflow,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    StreamSettings,
)

__all__ = [
    "ENVIRONMENT",
    "MAX_JOB_BYTES",
    "ONLY",
    "Ack",
    "BrokerSettings",
    "BusForm",
    "Change",
    "Config",
    "ConfigError",
    "DeviceSettings",
    "Envelope",
    "MongoUri",
    "Overflow",
    "Problem",
    "QueueSettings",
    "RedisUrl",
    "RouteSettings",
    "ScheduleSettings",
    "StreamSettings",
    "as_json",
    "as_toml",
    "changes",
    "default_devices",
    "describe",
    "load",
    "settings_of",
    "taken_over",
]
