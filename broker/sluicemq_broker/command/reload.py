"""SIGHUP: a running broker reads its configuration again, and uses the settings that are live."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent

from sluicemq_broker.command import logs
from sluicemq_broker.config import Config, ConfigError, changes, load, problems_of_exposure, taken_over
from sluicemq_broker.process.server import Server

log = logging.getLogger("broker")


class Source:
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


def reload(source: Source, server: Server) -> None:
    """Use live settings that have changed; an invalid configuration changes nothing, and is logged.

    Another thread reads it: a file with a thousand queues takes longer than a turn of the hub may.
    """
    new = gevent.get_hub().threadpool.apply(_read, (source,))
    if isinstance(new, ConfigError):
        for problem in new.problems:
            log.error("SIGHUP: %s", problem)
        log.error("SIGHUP: the configuration is not valid, the former one stays")
        server.audit.note("reload", {}, code="BAD_CONFIGURATION")
        return
    old = server.config
    found = changes(old, new)
    server.audit.note("reload", {change.place: True for change in found})
    server.reconfigure(taken_over(old, new))
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


def _read(source: Source) -> Config | ConfigError:
    """Return the error instead of raising it, which gevent would log as one of its own."""
    try:
        return source.read()
    except ConfigError as error:
        return error


def _log_as(config: Config, at_least: str = "error") -> None:
    """Set up the log; while a change of the level is logged, the lower of both levels holds."""
    level = min(
        config.broker.log_level, at_least, key=lambda name: logging.getLevelNamesMapping()[name.upper()]
    )
    logs.set_up(level, config.broker.log_format)
