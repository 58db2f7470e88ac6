"""The set-up that the doctor looks at: a configuration, this host, a MongoDB, and what a broker answers."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sluicemq.protocol.errors import ForbiddenError
from sluicemq_broker.config import Config, MongoUri, Problem
from sluicemq_broker.runtime import host_memory
from sluicemq_broker.store import Documents, ServerFacts


class Host(NamedTuple):
    """A machine: bytes of disk and memory, and how many files a process may open.

    ``folder``: the data folder of the embedded MongoDB; None where there is no such. ``pid``: the broker
    that runs here, whose limit ``open_files`` is; None: it is that of a process that is started here now.
    """

    folder: Path | None
    disk_free: int | None
    disk_total: int | None
    memory: int | None
    memory_available: int | None
    open_files: int
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExaminedStore:
    """The MongoDB of a set-up: its facts, or why there are none.

    ``why``: what keeps it from being looked at. ``is_broken``: that is wrong, not only unknown. ``others``:
    databases, beside that of the broker, in which queues lie.
    """

    uri: MongoUri | None = None
    embedded: bool = False
    facts: ServerFacts | None = None
    database: Documents | None = None
    others: Sequence[Documents] = ()
    why: str = ""
    is_broken: bool = False
    unsafe: str = ""
    left_out: Sequence[str] = ()

    @property
    def databases(self) -> tuple[Documents, ...]:
        """All databases; none if there is no answer."""
        return () if self.database is None else (self.database, *self.others)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of a running broker to the doctor's questions, by their names.

    ``code``, ``message``: of the error to the first question that has no answer. ``listens``: whether
    something takes connections at ``endpoint``, None where that is not known. ``is_named``: somebody has
    named the endpoint; else the configuration says it.
    """

    endpoint: str = ""
    is_named: bool = False
    by_name: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    message: str = ""
    listens: bool | None = None

    @property
    def is_there(self) -> bool:
        """True if a broker answers some question."""
        return bool(self.by_name)

    @property
    def refuses(self) -> bool:
        """True if a broker answers nothing, since it does not let this client in, or see anything."""
        return not self.by_name and self.code == ForbiddenError.code


@dataclass(frozen=True, kw_only=True)
class Subject:
    """All that the checks look at.

    ``config`` is None where it is wrong: ``problems`` says how. ``file``: None where none was named, and
    ``config`` is that of the environment and the defaults. ``taken``: addresses of its doors that another
    process has. ``now``: Unix seconds, of this machine.
    """

    file: Path | None
    config: Config | None
    problems: Sequence[Problem]
    taken: Sequence[str]
    host: Host
    store: ExaminedStore
    answers: Answers
    now: float


def this_host(folder: Path | None, pid: int | None) -> Host:
    """Read the facts of this machine; ``folder``: of the embedded MongoDB, ``pid``: of a broker here."""
    disk = None if folder is None else shutil.disk_usage(_existing(folder))
    memory = host_memory()
    of_broker = None if pid is None else _most_files_of(pid)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if of_broker is None else of_broker
    return Host(
        folder,
        disk and disk.free,
        disk and disk.total,
        memory.total,
        memory.available,
        sys.maxsize if most == resource.RLIM_INFINITY else most,
        None if of_broker is None else pid,
    )


def _most_files_of(pid: int) -> int | None:
    """Return the limit of a process of SluiceMQ; None if it is no such, or of another user."""
    process = Path(f"/proc/{pid}")
    try:
        if b"sluicemq" not in (process / "cmdline").read_bytes():
            return None
        lines = (process / "limits").read_text().splitlines()
    except OSError:
        return None
    hard = next((line.split()[4] for line in lines if line.startswith("Max open files")), "")
    return int(hard) if hard.isdecimal() else resource.RLIM_INFINITY if hard else None


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
