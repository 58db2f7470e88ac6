"""The announcement that a broker is ready, with every door: in the log, in a file, as JSON on stdout."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import click

from sluicemq.protocol.secret_files import private
from sluicemq_broker import __version__
from sluicemq_broker.embedded import EmbeddedMongo
from sluicemq_broker.process.server import Server
from sluicemq_devices.relays import Kind

log = logging.getLogger("broker")

_DOORS = {
    Kind.STREAMER: {"frontend": "PUSH producers", "backend": "PULL workers", "commit": "commits"},
    Kind.QUEUE: {"frontend": "REQ clients", "backend": "REP workers"},
    Kind.FORWARDER: {"frontend": "publishers", "backend": "subscribers"},
}


class Readiness:
    """Announces that the broker is ready, in ``file`` if there is one, and ``as_json`` on stdout."""

    def __init__(self, file: Path | None, *, as_json: bool) -> None:
        self._file = file
        self._as_json = as_json
        self._told = False

    def announce(self, server: Server, embedded: EmbeddedMongo | None) -> None:
        """Announce every door, and where the data are."""
        doors = server.describe()
        broker = server.config.broker
        store = f"{embedded.uri} (embedded, data in {broker.data_dir})" if embedded else "as configured"
        log.info("SluiceMQ %s, MongoDB %s, database %s", __version__, store, broker.database)
        log.info("  library, commands (SMQ/1)       %s", doors["endpoint"])
        if doors["http"]:
            log.info("  dashboard, metrics, API (HTTP)  %s://%s", doors["http_scheme"], doors["http"])
        for device in doors["devices"]:
            for end, text in _DOORS[device["kind"]].items():
                for address in device[end]:
                    queue = f" of queue {device['queue']}" if device["queue"] else ""
                    log.info("  %-31s %s", text + queue, address)
        log.info("ready (pid %d); Ctrl-C stops it", os.getpid())
        report = {"pid": os.getpid(), **doors, "mongod_pid": embedded.pid if embedded else None}
        self._write(json.dumps(report))
        sys.stderr.flush()

    def withdraw(self) -> None:
        """Remove the file: the broker has stopped."""
        if self._file and self._told:
            self._file.unlink(missing_ok=True)

    def _write(self, report: str) -> None:
        if self._file:
            partial = self._file.with_suffix(".part")
            with open(partial, "w", encoding="utf-8", opener=private) as file:
                file.write(report)
            partial.rename(self._file)
            self._told = True
        if self._as_json:
            click.echo(report)
