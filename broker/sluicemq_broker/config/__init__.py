"""The settings of a broker, from file, environment and command line."""

from sluicemq_broker.config.declared import settings_of
from sluicemq_broker.config.device_settings import ONLY, Ack, DeviceSettings, Envelope
from sluicemq_broker.config.display import as_json, as_toml, describe
from sluicemq_broker.config.door_settings import Door, DoorSettings
from sluicemq_broker.config.exposure import exposed, http_exposure, is_reachable, problems_of_exposure
from sluicemq_broker.config.loading import Config, default_devices, load, problems_of_doors
from sluicemq_broker.config.mongo_uri import LOGIN_OPTIONS, MongoUri
from sluicemq_broker.config.problems import (
    ConfigError,
    Problem,
    circle_of_dead_letters,
    problems_of_queue,
)
from sluicemq_broker.config.reloading import Change, changes, taken_over
from sluicemq_broker.config.rules import BusForm
from sluicemq_broker.config.secrets import KeyFile, RedisUrl, Secret
from sluicemq_broker.config.security_settings import (
    DoorRule,
    PrincipalSettings,
    SecuritySettings,
    anonymous_of,
    rule_of,
)
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
from sluicemq_broker.config.stored_settings import (
    NO_VALUE,
    Layer,
    SettingOrigin,
    defaults_of_queues,
    explained,
    given_in_file,
    require_setting,
    stored_value,
    with_stored,
)
from sluicemq_broker.config.tls_files import Validity, day, load_certificate, validity
