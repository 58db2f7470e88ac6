"""The data folder of an embedded MongoDB: its files, its lock, and who can enter.

::

    lock         held (flock) by the broker that owns the folder; its text is the owner's pid
    mongo/       the data files, and mongod's socket
    mongod.pid   the mongod last started here
    mongod.log   mongod's log; mongod.log.1 to .3 are what was before, rotated by size and at each start
    mongodb.uri  the URI of the running mongod, for people: mongosh "$(cat mongodb.uri)"

Files have mode 0600 and folders 0700, whatever the umask. Only the data folder keeps its mode, if it exists
and has files of others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.secret_files import private

#: Characters of a path that mongod takes in --bind_ip, and as a member of a replica set.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+-]+")
#: Name by which mongod, and the driver, know a socket.
_SOCKET: Final = "mongodb-27017.sock"
_PRIVATE_FOLDER: Final = 0o700
_OURS: Final = re.compile(r"lock|mongo|mongod\..+|mongodb\.uri")


class DataFolder:
    """A folder for the data of one MongoDB, of which one process at a time is the owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "mongo"
        self.log = path / "mongod.log"
        self.pid_file = path / "mongod.pid"
        self.uri_file = path / "mongodb.uri"
        self.socket = _socket_of(self.data)
        self._lock: TextIO | None = None

    def take(self) -> None:
        """Make the folder, become its owner, and shut others out.

        Raises :class:`Unavailable` if another process is its owner, and OSError.
        """
        self.path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        if self._is_ours():
            self.path.chmod(_PRIVATE_FOLDER)
        self.data.mkdir(exist_ok=True)
        self.data.chmod(_PRIVATE_FOLDER)
        if self.socket.parent != self.data:
            _make_private_among_others(self.socket.parent)
        for file in self.path.glob("mongod.*"):  # former versions left them to the umask
            file.chmod(0o600)

    def release(self) -> None:
        """Let another process become its owner; leave nothing among temporary files."""
        if self._lock:
            if self.socket.parent != self.data and _is_folder_of_ours(self.socket.parent):
                self.socket.unlink(missing_ok=True)  # mongod has ended, perhaps by force
                with suppress(OSError):
                    self.socket.parent.rmdir()
            self._lock.close()
            self._lock = None

    def dangers(self) -> Iterator[str]:
        """Yield what others may do to the folder, as a sentence with its cure."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            yield (
                f"other users may write in {self.path} (mode {mode:04o}), so they can take MongoDB's data "
                f"away: chmod 700 {self.path}, or move the data to a folder of its own (--data-dir)"
            )

    def _is_ours(self) -> bool:
        """Return True if it belongs to this user, and only the data of a MongoDB is in it."""
        names = os.listdir(self.path)  # noqa: PTH208 - names, not paths
        return self.path.stat().st_uid == os.geteuid() and all(map(_OURS.fullmatch, names))

    @staticmethod
    def write(file: Path, text: str) -> None:
        """Write one of its files, for its owner alone."""
        with open(file, "w", encoding="utf-8", opener=private) as out:
            out.write(text)


def uri_of_running(path: Path) -> str | None:
    """Return the URI of the MongoDB that a process runs in this data folder; None if none does."""
    try:
        uri = (path / "mongodb.uri").read_text().strip()
    except FileNotFoundError:
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        return uri if probe.connect_ex(str(_socket_of(path.absolute() / "mongo"))) == 0 else None


def _locked(folder: Path) -> TextIO:
    """Lock the folder for this process. Python's files are not inherited, so mongod never has the lock.

    But the child of an owner that was killed has it until it becomes mongod: that is waited for.
    """
    lock = open(folder / "lock", "a+", encoding="utf-8", opener=private)  # noqa: SIM115
    # Looks at the lock of an owner that has died
    for left in reversed(range(100)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            if left and _has_died(owner):
                time.sleep(0.05)
                continue
            lock.close()
            raise UnavailableError(
                f"the data folder {folder} is in use by another broker (pid {owner}); stop it, or start this "
                "one with a folder and doors of its own: --data-dir FOLDER --ports 6550"
            ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _has_died(owner: str) -> bool:
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError):
        pass  # not written yet, or another user's
    return False


def _socket_of(data: Path) -> Path:
    """Return the path of the socket: beside the data, or in a short folder of its own for temporary files."""
    path = data / _SOCKET
    # Bytes of a socket's path, at most: 107 on Linux, 103 on macOS and BSD
    if len(os.fsencode(path)) <= 103 and _PLAIN.fullmatch(str(path)):
        return path
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"sluicemq-{os.geteuid()}-{name}", _SOCKET)


def _make_private_among_others(folder: Path) -> None:
    """Make a folder that only this user can enter, where others may have made one of that name before."""
    folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
    if not _is_folder_of_ours(folder):
        raise UnavailableError(f"{folder} is no folder of the user that runs the broker: remove it")
    folder.chmod(_PRIVATE_FOLDER)


def _is_folder_of_ours(folder: Path) -> bool:
    """Return True if it is there, no link, and belongs to this user."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
