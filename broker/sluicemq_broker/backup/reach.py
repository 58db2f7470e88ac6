"""The MongoDB of a backup or a restore: one that is named, or the embedded one of a data folder.

The embedded one runs with its broker: its socket is used then. Else it is started for as long as it is
needed, and a broker that starts meanwhile is refused, as by another broker.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.backup.refusal import Refusal
from sluicemq_broker.config import ENVIRONMENT, Config, ConfigError, MongoUri, load
from sluicemq_broker.embedded import EmbeddedMongo, uri_of_running
from sluicemq_broker.store import connect_for_copies, require_safe, why_no_primary

_URI: Final = f"{ENVIRONMENT}MONGODB_URI"


class BackupPlace(NamedTuple):
    """A MongoDB by its URI, or by the folder of an embedded one; and databases, the broker's own first."""

    uri: MongoUri | None
    folder: Path
    databases: tuple[str, ...]
    allow_unsafe: bool = False

    def __str__(self) -> str:
        return str(self.uri) if self.uri else f"the MongoDB of {self.folder}"


def place_of(
    config: str | None, uri: str | None, folder: str | None, database: str | None, environ: Mapping[str, str]
) -> BackupPlace:
    """Return the MongoDB that is named by a URI or a folder, or by a configuration and the environment.

    Raises ValueError for values that are wrong.
    """
    variables = {name: value for name, value in environ.items() if uri is None or name != _URI}
    try:
        found = load(Path(config) if config else None, variables, {"data_dir": folder, "database": database})
        given = None if uri is None else MongoUri.read(uri)
    except ConfigError as error:
        raise ValueError("; ".join(map(str, error.problems))) from None
    except ValueError as error:
        raise ValueError(f"--mongodb-uri: expected {error}") from None
    named = given or (None if folder else found.broker.mongodb_uri)
    settings = found.broker
    return BackupPlace(named, settings.data_dir or Path(), _databases(found), settings.allow_unsafe_store)


@contextmanager
def reached(place: BackupPlace, *, running: bool) -> Iterator[Any]:
    """Yield a client of this MongoDB; ``running``: an embedded one may belong to a broker that runs."""
    unsafe = running or place.allow_unsafe  # a backup only reads
    uri = place.uri.text if place.uri else uri_of_running(place.folder)
    if uri is not None and not (place.uri or running):
        raise Refusal(f"a broker runs with {place.folder}: stop it first")
    if uri is not None:
        with _connected(uri, allow_unsafe=unsafe) as client:
            yield client
        return
    if running and not (place.folder / "mongo").is_dir():
        raise Refusal(f"{place.folder} has no data of an embedded MongoDB: name the right --data-dir")
    _require_owner(place.folder)
    embedded = EmbeddedMongo(place.folder)
    try:
        with _connected(embedded.start(), allow_unsafe=unsafe) as client:
            yield client
    finally:
        embedded.stop()


@contextmanager
def _connected(uri: str, *, allow_unsafe: bool) -> Iterator[Any]:
    with closing(connect_for_copies(uri)) as client:
        try:
            require_safe(client, allow_unsafe=allow_unsafe)
        except UnavailableError as error:
            why = why_no_primary(uri)
            raise Refusal(why or str(error)) from error
        yield client


def _databases(config: Config) -> tuple[str, ...]:
    own = config.broker.database
    return (own, *sorted(config.databases - {own}))


def _require_owner(folder: Path) -> None:
    """Refuse what would leave files that the broker can't read."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    owner = there.stat().st_uid
    if there == folder.absolute() and owner != os.geteuid():
        name = (
            pwd.getpwuid(owner).pw_name if owner in {entry.pw_uid for entry in pwd.getpwall()} else str(owner)
        )
        raise Refusal(f"{folder} belongs to {name}: run this as that user, such as with sudo -u {name}")
