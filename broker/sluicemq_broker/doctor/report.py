"""The report for a bug: findings, versions, settings, figures and incidents, without secrets and payloads.

The configuration is shown as ``config check`` shows it, and less: of principals only names and permissions.
Texts that jobs bring (payloads, headers, reasons, results) are left out, since they may hold anything; only a
log that somebody adds quotes reasons.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.secret_files import private
from sluicemq.protocol.wire import TaskField
from sluicemq_broker import __version__
from sluicemq_broker.config import Config, as_json
from sluicemq_broker.doctor.finding import Finding
from sluicemq_broker.doctor.subject import Subject
from sluicemq_broker.store import IncidentStore

#: Packages whose versions matter.
_PACKAGES: Final = ("sluicemq", "gevent", "pymongo", "pyzmq", "msgpack", "falcon", "pynacl", "redis")
#: Fields of a task, and of a row of queues, that are no text of a job.
_OF_TASKS: Final = (
    *("id", "kind", "queue", "state", TaskField.DONE, TaskField.TOTAL, "broker"),
    *("started_at", "changed_at", "ended_at"),
)


def report(subject: Subject, found: Mapping[str, list[Finding]], log: Path | None = None) -> dict[str, Any]:
    """Return the report as JSON values; ``log``: a log of the broker, whose last lines belong to it."""
    facts = subject.store.facts
    return {
        "sluicemq": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "packages": _versions(),
        "at": subject.now,
        "findings": as_rows(found),
        "host": _plain(subject.host._asdict()),
        "mongodb": None if facts is None else _plain(facts._asdict()),
        "mongodb_uri": None if subject.store.uri is None else str(subject.store.uri),
        "config": None if subject.config is None else without_texts(subject.config),
        "endpoint": subject.answers.endpoint,
        "answers": _answers(subject.answers.by_name),
        "incidents": _incidents(subject),
        "log": None if log is None else last_lines(log),
    }


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Write a report, for its owner alone; raises OSError."""
    with open(file, "w", encoding="utf-8", opener=private) as out:
        json.dump(content, out, indent=2, default=str)
        out.write("\n")


def as_rows(found: Mapping[str, list[Finding]]) -> list[dict[str, str]]:
    """Return findings as JSON values."""
    return [
        {"subject": name, **finding._asdict()} for name, findings in found.items() for finding in findings
    ]


def without_texts(config: Config) -> dict[str, Any]:
    """Return the configuration without secrets, hashes, keys, and texts of jobs."""
    shown = as_json(config)
    for row in shown["schedules"].values():
        row["payload"] = f"({len(row.get('payload') or '')} characters)"
    for row in (*shown["schedules"].values(), *shown["routes"]):
        if row.get("headers"):
            row["headers"] = sorted(row["headers"])
    principals = shown["security"]["principals"]
    shown["security"]["principals"] = {
        name: {"permissions": principal.get("permissions")} for name, principal in principals.items()
    }
    return shown


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log; raises OSError."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 256 * 1024))
        return file.read().decode(errors="replace").splitlines()[-300:]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _answers(by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers of the broker; tasks without their orders, which quote reasons of jobs."""
    tasks = [{key: task.get(key) for key in _OF_TASKS} for task in by_name.get("tasks", ())]
    return {**by_name, "tasks": tasks} if "tasks" in by_name else dict(by_name)


def _incidents(subject: Subject) -> list[dict[str, Any]] | None:
    if subject.store.database is None:
        return None
    since = subject.now - 7 * 86_400
    try:
        found = IncidentStore(subject.store.database).between(since, subject.now + 86_400, 200)
    except SluiceError:
        return None
    return [{**row._asdict(), "figures": _numbers(row.figures)} for row in found]


def _numbers(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that are no text: the others quote reasons of jobs."""
    return {key: value for key, value in figures.items() if isinstance(value, int | float)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        fields = getattr(value, "_asdict", None)
        return _plain(fields()) if fields else [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
