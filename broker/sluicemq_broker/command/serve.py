"""``sluicemq serve``: flags, configuration, the embedded MongoDB, signals, exit codes."""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import logging
import os
import re
import signal
import time
from dataclasses import Field
from pathlib import Path
from typing import Any

import click
import gevent
from gevent.event import Event
from gevent.util import wrap_errors

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker import __version__
from sluicemq_broker.command import addresses, logs
from sluicemq_broker.command.readiness import Readiness
from sluicemq_broker.command.reload import ConfigSource, reload
from sluicemq_broker.config import (
    ENVIRONMENT,
    BrokerSettings,
    Config,
    ConfigError,
    Problem,
    describe,
    exposed,
    http_exposure,
    is_reachable,
    settings_of,
)
from sluicemq_broker.config import as_json as shown_as_json
from sluicemq_broker.embedded import EmbeddedMongo
from sluicemq_broker.parts import PARTS
from sluicemq_broker.process import systemd
from sluicemq_broker.process.server import Server
from sluicemq_broker.store import fixed_until
from sluicemq_devices.hub import give_back_large_memory, look_for_cycles

log = logging.getLogger("broker")

REFUSED, USAGE = 1, 2


#: New objects after which Python looks for cycles among them, and blocks of memory after which those left are
#: not looked at again: 7 ms each. Jobs come and go by the thousand and are in no cycle: looking after every
#: 700 objects, as Python does by default, took a tenth of the broker's CPU.
_NEW_OBJECTS, _NEW_BLOCKS = 20_000, 25_000

_EPILOG = (
    "Every setting of [broker] is also a key of the file and SLUICEMQ_NAME in the environment; flags win. "
    "Queues and devices are set in the file. 'sluicemq config check' shows all of them. Values of "
    "--mongodb-uri, --http-token and --event-bus leave the command line, which others can read, as "
    "soon as the program runs; better name a file that has them: --mongodb-uri-file."
)
#: Replaces a secret on the command line once it is in the environment.
_HIDDEN = "***"
_URI = re.compile(r"\S*://\S*")


@click.command(name="serve", epilog=_EPILOG)
@click.version_option(__version__, prog_name="sluicemq")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the configuration."
)
@click.option(
    "--ready-file", type=click.Path(path_type=Path), help="Write doors and pids here (JSON) when ready."
)
@click.option("--check-config", is_flag=True, help="Show the configuration that would hold, and stop.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print that, or when ready doors and pids, as one JSON object."
)
def serve(
    config_file: Path | None, ready_file: Path | None, *, check_config: bool, as_json: bool, **flags: Any
) -> int:
    """Run the SluiceMQ broker in the foreground.

    SIGTERM or Ctrl-C stops it without losing a job; SIGHUP has it read its file again.
    """
    environ = dict(os.environ)
    for name in [name for name, value in flags.items() if value == _HIDDEN]:
        # It was a flag: an error must name the flag, not the environment.
        flags[name] = environ.pop(ENVIRONMENT + name.upper(), _HIDDEN)
    source = ConfigSource(config_file, environ, flags)
    try:
        config = source.read()
    except ConfigError as error:
        _refuse(error, as_json=as_json and check_config)
        return USAGE
    for warning in config.warnings if check_config else ():
        click.echo(f"sluicemq: {warning}", err=True)
    if check_config:
        click.echo(
            json.dumps({"valid": True, "config": shown_as_json(config)}) if as_json else describe(config)
        )
        return 0
    logs.set_up(config.broker.log_level, config.broker.log_format)
    look_for_cycles(_NEW_OBJECTS, _NEW_BLOCKS)
    give_back_large_memory()
    for name in systemd.VARIABLES:
        os.environ.pop(name, None)  # a mongod that is started is not what the service manager waits for
    readiness = Readiness(ready_file, as_json=as_json)
    return _Process(config, source, readiness, systemd.Notifier(environ)).run()


def _flag(key: str, setting: Field[Any]) -> click.Option:
    """Return a setting of [broker] as a flag; its rule reads the value later."""
    rule = setting.metadata["rule"]
    default = setting.default
    doc = setting.metadata["doc"]
    name = "--" + key.replace("_", "-")
    shown = "" if default is None else f"  [{str(default).lower() if isinstance(default, bool) else default}]"
    text = f"{doc[0].upper()}{doc[1:]}.{shown}"
    if isinstance(default, bool):
        return click.Option([f"{name}/--no-{name[2:]}"], default=None, help=text)
    return click.Option(
        [name],
        metavar={"s": "S", "bytes": "BYTES"}.get(rule.unit) or key.rpartition("_")[2].upper(),
        help=text,
    )


serve.params += [_flag(key, setting) for key, setting in settings_of(BrokerSettings).items()]


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code: 0 done, 1 refused, 2 usage."""
    try:
        code: int = serve.main(arguments, prog_name="sluicemq serve", standalone_mode=False) or 0
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(_URI.sub("(a URI)", shown.getvalue()), err=True, nl=False)  # it may hold a password
        return USAGE
    except click.Abort:
        return REFUSED
    return code


def _refuse(error: ConfigError, *, as_json: bool) -> None:
    for problem in error.problems:
        click.echo(f"sluicemq: {problem}", err=True)
    if as_json:
        click.echo(json.dumps({"valid": False, "errors": [problem._asdict() for problem in error.problems]}))


class _Process:
    """The broker and its embedded MongoDB, from the start until a signal ends them, at any time."""

    def __init__(
        self, config: Config, source: ConfigSource, readiness: Readiness, notifier: systemd.Notifier
    ) -> None:
        self._config = config
        self._source = source
        self._readiness = readiness
        self._notifier = notifier
        self._embedded = None if config.broker.mongodb_uri else _embedded(config)
        self._server: Server | None = None
        self._asked = Event()
        self._error: SluiceError | None = None
        self._asked_at = 0.0
        self._hurried = False
        self._reload_asked = Event()
        if notifier.watched:
            faulthandler.enable()  # SIGABRT of a watchdog: the log says where the hub was stuck
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self._signalled)
        gevent.signal_handler(signal.SIGHUP, self._reload_asked.set)

    def run(self) -> int:
        """Start, wait for a signal, or for a reason to stop; stop. Returns the exit code."""
        reloads = None
        self._notifier.starting(self._status)
        try:
            server = self._start()
            if server:
                reloads = gevent.spawn(self._reload_when_asked, server)
            self._asked.wait()
            if self._error:
                raise self._error
        except (SluiceError, OSError) as error:
            log.error("%s", error)  # noqa: TRY400 - the text says what to do, a traceback would hide it
            return REFUSED
        else:
            return 0
        finally:
            if reloads:
                reloads.kill()  # it is inside no statement: it only reads a file
            self._notifier.stopping()
            stop(self._server, self._embedded)
            self._readiness.withdraw()
            self._notifier.close()

    def _start(self) -> Server | None:
        config = self._config
        for warning in config.warnings:
            log.warning("%s", warning)
        addresses.require_free(config)
        for door in exposed(config):
            log.warning("other machines can reach %s, and clients need no key there", door.address)
        if http := http_exposure(config):
            log.warning("other machines can reach the HTTP door %s, and %s", config.broker.http, http)
        uri = config.broker.mongodb_uri
        address = uri.text if uri else self._embedded.start() if self._embedded else ""
        if self._asked.is_set():
            return None
        embedded = self._embedded
        if embedded and is_reachable(config) and (month := fixed_until(embedded.version, time.time())):
            log.warning(
                "other machines can reach this broker, and the MongoDB that it brings along, %s, has had no "
                "fixes since %s: run a newer one and name it with mongodb_uri (docs/support.md)",
                *(embedded.version, month),
            )
        server = Server(
            config,
            address,
            PARTS,
            alone=embedded is not None,
            why=lambda: embedded.trouble if embedded else "",
            give_up=self._give_up,
        )
        if not self._starts(server):
            return None
        gc.freeze()  # what it is made of stays, and need not be looked at again: 20 ms of one turn
        self._readiness.announce(server, self._embedded)
        self._notifier.ready()
        return server

    def _starts(self, server: Server) -> bool:
        """Start the broker; False if a signal came in the middle. Raises what the start raises."""
        self._server = server
        starting = gevent.spawn(wrap_errors(Exception, server.start))
        gevent.wait([starting, self._asked], count=1)
        # Seconds that a start has to come to its end after a signal. One that waits for MongoDB takes longer
        starting.join(1.0)
        if not starting.ready():
            # A statement of it has no answer yet, and goes on until this process ends. No client was let in,
            # and other brokers see to what a dead one leaves behind.
            log.info("stopping in the middle of the start")
            server.give_up_start()
            self._server = None
            return False
        if starting.value:
            raise starting.value
        return True

    def _status(self) -> str:
        return self._server.status if self._server else "its MongoDB"

    def _reload_when_asked(self, server: Server) -> None:
        while self._reload_asked.wait():
            self._reload_asked.clear()
            try:
                with self._notifier.reloading():
                    reload(self._source, server)
            except Exception:
                log.exception("SIGHUP: reading the configuration again failed")

    def _give_up(self, error: SluiceError) -> None:
        """Stop as a signal would have it, and say why."""
        self._error = self._error or error
        self._asked.set()

    def _signalled(self) -> None:
        now = time.monotonic()
        if not self._asked.is_set():
            self._asked_at = now
            self._asked.set()
        # Within a second they are one: timeout(1) signals the process and then its group
        elif now - self._asked_at >= 1.0 and not self._hurried:
            self._hurry()

    def _hurry(self) -> None:
        self._hurried = True
        log.warning("second signal: stopping at once")
        if self._server:
            self._server.hurry()
        if self._embedded:
            self._embedded.hurry()


def stop(server: Server | None, embedded: EmbeddedMongo | None) -> None:
    """Stop the broker, and then its MongoDB, also if the broker's stop fails."""
    try:
        if server:
            server.stop()
    finally:
        if embedded:
            embedded.stop()
    log.info("stopped")


def _embedded(config: Config) -> EmbeddedMongo:
    return EmbeddedMongo(_data_dir(config), cache_bytes=config.broker.embedded_cache)


def _data_dir(config: Config) -> Path:
    folder: Path | None = config.broker.data_dir
    if folder is None:
        raise ConfigError([Problem("data_dir", "is not known")])
    return folder
