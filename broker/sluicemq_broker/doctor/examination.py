"""One call of the doctor: the configuration is read, MongoDB and host are looked at, and checks run.

The command asks the broker, since only the library speaks its protocol, and hands in the answers.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sluicemq.protocol.environment import OF_CLIENTS
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.secret_files import read_secret
from sluicemq_broker.command import addresses
from sluicemq_broker.config import (
    Config,
    ConfigError,
    MongoUri,
    Problem,
    load,
    problems_of_exposure,
)
from sluicemq_broker.doctor import (
    broker_checks,
    config_checks,
    host_checks,
    mongodb_checks,
    queue_checks,
    store_checks,
)
from sluicemq_broker.doctor.finding import Finding, Level, info, worst
from sluicemq_broker.doctor.report import as_rows, report, write
from sluicemq_broker.doctor.subject import Answers, ExaminedStore, Host, Subject, this_host
from sluicemq_broker.store import (
    UnsafeStore,
    connect,
    options_left_out,
    require_safe,
    server_facts,
    why_no_primary,
)
from sluicemq_devices.sockets import host_and_port, parse_endpoint

#: The address of this machine that leads to a door which listens on all of them.
_HERE: Final = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound

Check = Callable[[Subject], Iterator[Finding]]

#: The checks of each subject, in the order in which they are shown.
CHECKS: Final[Mapping[str, tuple[Check, ...]]] = {
    "config": config_checks.CHECKS,
    "host": host_checks.CHECKS,
    "mongodb": mongodb_checks.CHECKS,
    "store": store_checks.CHECKS,
    "brokers": broker_checks.CHECKS,
    "queues": queue_checks.CHECKS,
}


class UnusableFile(ValueError):
    """A file that was named for the doctor can't be used: it can't be read, or has no URI."""


class Examination:
    """A set-up that is looked at. ``clock`` is this machine's, ``host`` reads its facts."""

    def __init__(
        self,
        file: Path | None,
        uri: MongoUri | None,
        database: str | None,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.time,
        host: Callable[[Path | None, int | None], Host] = this_host,
    ) -> None:
        self._file = file
        self._clock = clock
        self._host = host
        self.config, self._problems = _read(file, environ)
        self._uri = uri
        self._database = database or (self.config.broker.database if self.config else "sluicemq")

    @property
    def endpoint(self) -> str:
        """The door of the library, as this machine reaches it; empty if it is not known."""
        if self.config is None:
            return ""
        address = self.config.broker.endpoint.address
        if not address.startswith("tcp://"):
            return address
        name, port = host_and_port(address)
        name = _HERE.get(name, name)
        return f"tcp://{f'[{name}]' if ':' in name else name}:{port}"

    def run(
        self,
        endpoint: str,
        answers: Mapping[str, Any],
        code: str = "",
        message: str = "",
        report_to: Path | None = None,
        log: Path | None = None,
    ) -> dict[str, Any]:
        """Run all checks; returns ``{level, exit_code, findings}``, and writes the report if one is wanted.

        ``answers``: of the broker; ``code`` and ``message``: of its error. Raises OSError for files.
        """
        listens = None if answers or not endpoint else _listens(endpoint)
        said = Answers(
            endpoint=endpoint,
            is_named=endpoint != self.endpoint,
            by_name=answers,
            code=code,
            message=message,
            listens=listens,
        )
        with self._store() as store:
            subject = self._subject(store, said)
            found = findings_of(subject)
            if report_to is not None:
                write(report_to, report(subject, found, log))
        return _answer(found)

    def _subject(self, store: ExaminedStore, answers: Answers) -> Subject:
        config = self.config
        folder = config.broker.data_dir if config and not (config.broker.mongodb_uri or self._uri) else None
        return Subject(
            file=self._file,
            config=config,
            problems=self._problems,
            taken=addresses.taken(config) if config else (),
            host=self._host(folder, _pid_here(answers)),
            store=store,
            answers=answers,
            now=self._clock(),
        )

    @contextmanager
    def _store(self) -> Iterator[ExaminedStore]:
        """Yield MongoDB as far as it can be looked at; its connections last as long."""
        uri, embedded, why = self._where()
        if uri is None:
            yield ExaminedStore(embedded=embedded, why=why)
            return
        left_out = options_left_out(uri.text)
        try:
            mongo = connect(uri.text)
        except SluiceError as error:
            yield ExaminedStore(uri=uri, why=str(error), is_broken=True)
            return
        with mongo:
            try:
                unsafe = _unsafe(mongo)
                facts = server_facts(mongo, self._database, self._clock)
            except SluiceError as error:
                why = why_no_primary(uri.text) or str(error)
                yield ExaminedStore(
                    uri=uri, embedded=embedded, why=why, is_broken=not embedded, left_out=left_out
                )
                return
            yield ExaminedStore(
                uri=uri,
                embedded=embedded,
                facts=facts,
                database=mongo[self._database],
                others=[mongo[name] for name in self._others()],
                unsafe=unsafe,
                left_out=left_out,
            )

    def _others(self) -> list[str]:
        return sorted(self.config.databases - {self._database}) if self.config else []

    def _where(self) -> tuple[MongoUri | None, bool, str]:
        """Return the URI, whether it is of an embedded MongoDB, and why there is none."""
        if self._uri is not None:
            return self._uri, False, ""
        if self.config is None:
            return None, False, "the configuration that names it is not valid"
        broker = self.config.broker
        if broker.mongodb_uri is not None:
            return broker.mongodb_uri, False, ""
        try:
            return MongoUri.read(((broker.data_dir or Path()) / "mongodb.uri").read_text().strip()), True, ""
        except (OSError, ValueError):
            return None, True, f"the embedded one runs with a broker only, and none has {broker.data_dir} now"


def examine(config: str | None, uri_file: str | None, database: str | None) -> Examination:
    """Read the named files; raises :class:`UnusableFile`. ``uri_file`` has the URI of MongoDB."""
    try:
        text = read_secret(Path(uri_file).expanduser(), "file of the URI").strip() if uri_file else None
        uri = None if text is None else MongoUri.read(text)
    except ValueError as error:
        raise UnusableFile(f"--mongodb-uri-file: {error}") from None
    return Examination(Path(config) if config else None, uri, database, os.environ)


def findings_of(subject: Subject) -> dict[str, list[Finding]]:
    """Return the findings of each subject; a subject that could not be looked at says so."""
    found = {
        name: [finding for check in checks for finding in _run(check, subject)]
        for name, checks in CHECKS.items()
    }
    if not found["store"]:
        found["store"].append(
            info("the database was not looked at: MongoDB does not answer, or is not known")
        )
    if not found["queues"]:
        found["queues"].append(info("queues were not looked at: no broker answers with them"))
    return found


def _run(check: Check, subject: Subject) -> Iterator[Finding]:
    try:
        yield from check(subject)
    except SluiceError as why:
        name = check.__name__.replace("_", " ")
        yield info(
            f"{name} could not be looked at", str(why), "give the user of the URI the right, or try again"
        )


def _read(file: Path | None, environ: Mapping[str, str]) -> tuple[Config | None, tuple[Problem, ...]]:
    variables = {
        name: value for name, value in environ.items() if name != OF_CLIENTS["endpoint"] or "," not in value
    }
    try:
        config = load(file, variables, {})
    except ConfigError as error:
        return None, error.problems
    return config, tuple(problems_of_exposure(config))


def _unsafe(mongo: Any) -> str:
    try:
        require_safe(mongo, allow_unsafe=False)
    except UnsafeStore as error:
        return str(error)
    return ""


def _pid_here(answers: Answers) -> int | None:
    """Return the pid of the broker that answers, if it runs on this machine."""
    broker = (answers.by_name.get("counters") or {}).get("broker", {})
    here = parse_endpoint(f"@{answers.endpoint}").is_exposed is False if answers.is_there else False
    return broker.get("pid") if here else None


def _listens(endpoint: str) -> bool | None:
    if not endpoint.startswith("tcp://"):
        return None
    try:
        # Seconds for a connection to the broker's door.
        with socket.create_connection(host_and_port(endpoint), 2.0):
            return True
    except (OSError, ValueError):
        return False


def _answer(found: Mapping[str, list[Finding]]) -> dict[str, Any]:
    level: Level = worst([finding.level for findings in found.values() for finding in findings])
    return {"level": level, "exit_code": level.exit_code, "findings": as_rows(found)}
