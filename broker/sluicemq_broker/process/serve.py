"""The process: flags, configuration, the embedded MongoDB, signals, exit codes."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
import gevent
from gevent.event import Event

from sluicemq.errors import SluiceError
from sluicemq_broker import __version__
from sluicemq_broker.config import Config, ConfigError, describe, load
from sluicemq_broker.embedded import EmbeddedMongo
from sluicemq_broker.process import addresses, logs
from sluicemq_broker.process.server import Server
from sluicemq_devices.relays import Kind

log = logging.getLogger("broker")

REFUSED, USAGE = 1, 2

#: Signals within so many seconds are one: timeout(1) signals the process and then its group.
_ONE_SIGNAL = 1.0

#: When Python looks for cycles: after so many new objects among these, each second time among those that were
#: left of the former look too, and after so many of these among all. Jobs come and go by the thousand and are
#: in no cycle; to look after every 700 of them, as Python does by itself, took a tenth of the broker's CPU.
#: But each look is one turn of the hub, a microsecond for each object that is still there.
_LOOKS_FOR_CYCLES = (20_000, 1, 50)

_EPILOG = (
    "Every setting of [broker] can also be given in the file or as SLUICEMQ_NAME in the environment; "
    "flags win. Queues and devices are set in the file. 'sluicemq config check' shows all of them."
)


@click.command(name="serve", epilog=_EPILOG)
@click.version_option(__version__, prog_name="sluicemq")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the configuration."
)
@click.option("--endpoint", help="Door of the library and the commands.  [tcp://127.0.0.1:5550]")
@click.option("--host", help="Where the default doors listen.  [127.0.0.1]")
@click.option("--mongodb-uri", help="MongoDB to use; without it a private one is run in the data folder.")
@click.option("--database", help="MongoDB database.  [sluicemq]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the private MongoDB.")
@click.option("--lease", type=float, help="Seconds a silent broker keeps its jobs.  [15]")
@click.option("--stop-timeout", type=float, help="Seconds a stop waits for running jobs.  [30]")
@click.option("--allow-unsafe-store", is_flag=True, default=None, help="Accept a MongoDB that may lose jobs.")
@click.option("--log-level", help="debug, info, warning or error.  [info]")
@click.option("--log-format", help="text or json.  [text]")
@click.option(
    "--ready-file", type=click.Path(path_type=Path), help="Write doors and pids here (JSON) when ready."
)
@click.option("--check-config", is_flag=True, help="Show the configuration that would hold, and stop.")
def serve(config_file: Path | None, ready_file: Path | None, *, check_config: bool, **flags: Any) -> int:
    """Run the SluiceMQ broker in the foreground; SIGTERM or Ctrl-C stops it without losing a job."""
    try:
        config = load(config_file, os.environ, flags)
    except ConfigError as error:
        click.echo(f"sluicemq: {error}", err=True)
        return USAGE
    if check_config:
        click.echo(describe(config))
        return 0
    logs.set_up(config.broker.log_level, config.broker.log_format)
    gc.freeze()
    gc.set_threshold(*_LOOKS_FOR_CYCLES)
    return _Process(config).run(ready_file)


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code: 0 done, 1 refused, 2 usage."""
    try:
        code: int = serve.main(arguments, prog_name="sluicemq serve", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return USAGE
    except click.Abort:
        return REFUSED
    return code


class _Process:
    """The broker and its embedded MongoDB, from the start until a signal, at any time, has ended them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._embedded = None if config.broker.mongodb_uri else EmbeddedMongo(_data_dir(config))
        self._server: Server | None = None
        self._asked = Event()
        self._asked_at = 0.0
        self._hurried = False
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self._signalled)

    def run(self, ready_file: Path | None) -> int:
        """Start, wait for a signal, stop; returns the exit code."""
        try:
            self._start(ready_file)
            self._asked.wait()
        except (SluiceError, OSError) as error:
            log.error("%s", error)  # noqa: TRY400 - the text says what to do, a traceback would hide it
            return REFUSED
        else:
            return 0
        finally:
            stop(self._server, self._embedded)

    def _start(self, ready_file: Path | None) -> None:
        config = self._config
        addresses.require_free(config)
        for address in addresses.exposed(config):
            log.warning("%s is open to the network without a password", address)
        uri = config.broker.mongodb_uri or (self._embedded.start() if self._embedded else "")
        if self._asked.is_set():
            return
        self._server = Server(config, uri, alone=self._embedded is not None)
        self._server.start()
        _announce(self._server, self._embedded, ready_file)

    def _signalled(self) -> None:
        now = time.monotonic()
        if not self._asked.is_set():
            self._asked_at = now
            self._asked.set()
        elif now - self._asked_at >= _ONE_SIGNAL and not self._hurried:
            self._hurry()

    def _hurry(self) -> None:
        self._hurried = True
        log.warning("second signal: stopping at once")
        if self._server:
            self._server.hurry()
        if self._embedded:
            self._embedded.hurry()


def stop(server: Server | None, embedded: EmbeddedMongo | None) -> None:
    """Stop the broker, then its MongoDB, whatever becomes of the first."""
    try:
        if server:
            server.stop()
    finally:
        if embedded:
            embedded.stop()
    log.info("stopped")


def _data_dir(config: Config) -> Path:
    folder: Path | None = config.broker.data_dir
    if folder is None:
        raise ConfigError("data_dir is not known")
    return folder


def _announce(server: Server, embedded: EmbeddedMongo | None, ready_file: Path | None) -> None:
    """Say where everything is: every door, and the data."""
    doors = server.describe()
    store = f"embedded, data in {server.config.broker.data_dir}" if embedded else "as configured"
    log.info("SluiceMQ %s, MongoDB %s, database %s", __version__, store, server.config.broker.database)
    log.info("  library, commands (SMQ/1)       %s", doors["endpoint"])
    for device in doors["devices"]:
        for end, text in _DOORS[device["kind"]].items():
            for address in device[end]:
                queue = f" of queue {device['queue']}" if device["queue"] else ""
                log.info("  %-31s %s", text + queue, address)
    log.info("ready (pid %d); Ctrl-C stops it", os.getpid())
    if ready_file:
        report = {"pid": os.getpid(), **doors, "mongod_pid": embedded.pid if embedded else None}
        partial = ready_file.with_suffix(".part")
        partial.write_text(json.dumps(report))
        partial.rename(ready_file)
    sys.stderr.flush()


_DOORS = {
    Kind.STREAMER: {"frontend": "PUSH producers", "backend": "PULL workers", "commit": "commits"},
    Kind.QUEUE: {"frontend": "REQ clients", "backend": "REP workers"},
    Kind.FORWARDER: {"frontend": "publishers", "backend": "subscribers"},
}
