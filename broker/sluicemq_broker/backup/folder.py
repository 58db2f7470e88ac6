"""The folder of backups: a file is whole, or has a name that ends with ``.part``.

``DATABASE-20261126T054900Z.tar``: the moment, in UTC. Files have mode 0600, as payloads are in them. A file
is written under its other name, and locked; when it is on the disk it gets its own. So one that nobody has
locked was left by a backup that was killed, and the next one removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from sluicemq.protocol.secret_files import private
from sluicemq_broker.backup.refusal import Refusal

PART: Final = ".part"
_ENDING: Final = ".tar"
_MOMENT: Final = "%Y%m%dT%H%M%SZ"
_NAME: Final = r"-\d{8}T\d{6}Z(-\d+)?\.tar"
#: Bytes that must stay free: a MongoDB that has its data there, too, ends without them.
_LEAST_FREE: Final = 1 << 30


class BackupFolder:
    """The backups of one database in a folder, which is made for its owner alone."""

    def __init__(self, path: Path, database: str) -> None:
        self._path = path
        self._database = database

    def prepare(self) -> None:
        """Make the folder, and remove what backups have left that were killed."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in self._files(re.escape(PART)):
            with file.open("rb") as left:
                if _locked(left):
                    file.unlink()

    @contextmanager
    def writing(self, now: float) -> Iterator[tuple[BinaryIO, Path]]:
        """Yield an empty file, and the path that it gets at the end; an error removes it."""
        whole = self._free_name(now)
        part = whole.with_name(whole.name + PART)
        with open(part, "xb+", opener=private) as file:
            _locked(file)
            try:
                yield file, whole
                file.flush()
                os.fsync(file.fileno())
                part.rename(whole)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        self._sync()

    def require_room(self) -> None:
        """Raise Refusal if the disk is nearly full."""
        if (free := shutil.disk_usage(self._path).free) < _LEAST_FREE:
            raise Refusal(
                f"only {free >> 20} MiB are free on the disk of {self._path}, and {_LEAST_FREE >> 20} MiB "
                "must stay free: make room there, keep fewer backups (--keep), or put them elsewhere (--out)"
            )

    def keep(self, most: int, newest: Path) -> list[Path]:
        """Remove all but the newest backups of this database; returns those that were removed.

        ``newest`` stays, whatever its name: the clock may have been set back.
        """
        others = sorted((file for file in self._files() if file != newest), key=lambda file: file.name)
        old = others[: max(0, len(others) - most + 1)]
        for path in old:
            path.unlink(missing_ok=True)
        if old:
            self._sync()
        return old

    def _files(self, ending: str = "") -> Iterator[Path]:
        name = re.compile(re.escape(self._database) + _NAME + ending)
        return (path for path in self._path.iterdir() if name.fullmatch(path.name))

    def _free_name(self, now: float) -> Path:
        stem = f"{self._database}-{datetime.fromtimestamp(now, UTC):{_MOMENT}}"
        names = (f"{stem}{_ENDING}", *(f"{stem}-{number}{_ENDING}" for number in range(2, 100)))
        found = (self._path / name for name in names)
        return next(path for path in found if not path.exists() and not Path(f"{path}{PART}").exists())

    def _sync(self) -> None:
        """Have the names on the disk, too."""
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _locked(file: BinaryIO) -> bool:
    """Lock a file for this process; False if another one has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
