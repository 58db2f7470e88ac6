"""SIGHUP: a running broker reads its configuration again, and uses the settings that are live."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gevent

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.command import logs
from sluicemq_broker.config import (
    Config,
    ConfigError,
    Problem,
    changes,
    load,
    problems_of_doors,
    problems_of_exposure,
    rule_of,
    taken_over,
)
from sluicemq_broker.process.server import Server
from sluicemq_devices.zmtp import CURVE, load_curve

log = logging.getLogger("broker")


class ConfigSource:
    """The sources of the configuration: the file, which is read again, environment and flags."""

    def __init__(self, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> None:
        self.file = file
        self._environ = environ
        self._flags = dict(flags)

    def read(self) -> Config:
        """Read the configuration; raises :class:`ConfigError`, also for doors that must not be open so."""
        config = load(self.file, self._environ, self._flags)
        if problems := problems_of_exposure(config):
            raise ConfigError(problems)
        return config


def reload(source: ConfigSource, server: Server) -> None:
    """Use live settings that have changed; an invalid configuration changes nothing, and is logged.

    Another thread reads it: a file with a thousand queues takes longer than a turn of the hub may.
    """
    new = gevent.get_hub().threadpool.apply(_read, (source,))
    if isinstance(new, ConfigError):
        _refuse(server, new.problems, "the configuration is not valid")
        return
    old = server.config
    found, merged = changes(old, new), taken_over(old, new)
    if problems := [*problems_of_doors(merged), *problems_of_exposure(merged)]:
        _refuse(server, problems, "together with what needs a restart these settings are not valid")
        return
    server.audit.note("reload", {change.place: True for change in found})
    server.reconfigure(merged)
    _log_as(server.config, at_least=old.broker.log_level)
    for change in found:
        if change.live:
            log.info("SIGHUP: now %s", change)
        else:
            log.warning("SIGHUP: needs a restart: %s", change)
    count = sum(change.live for change in found)
    read = source.file or "no file, the environment as it was"
    log.info("SIGHUP: read %s: %d settings changed, %d need a restart", read, count, len(found) - count)
    _log_as(server.config)


def _refuse(server: Server, problems: Iterable[Problem], why: str) -> None:
    for problem in problems:
        log.error("SIGHUP: %s", problem)
    log.error("SIGHUP: %s, the former one stays", why)
    server.audit.note("reload", {}, code="BAD_CONFIGURATION")


def _read(source: ConfigSource) -> Config | ConfigError:
    """Return the error instead of raising it, which gevent would log as one of its own."""
    try:
        config = source.read()
        rules = (rule_of(config.security, end, device) for _place, end, device in config.doors)
        if any(CURVE.lower() in rule.mechanisms for rule in rules):
            load_curve()  # here, as the import takes longer than a turn of the hub may
    except ConfigError as error:
        return error
    except UnavailableError as error:
        return ConfigError([Problem("[security] mechanism", str(error))])
    return config


def _log_as(config: Config, at_least: str = "error") -> None:
    """Set up the log; while a change of the level is logged, the lower of both levels holds."""
    level = min(
        config.broker.log_level, at_least, key=lambda name: logging.getLevelNamesMapping()[name.upper()]
    )
    logs.set_up(level, config.broker.log_format)
