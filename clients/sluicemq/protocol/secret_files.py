"""Files that hold a secret: read only if nobody else can, and written for their owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

#: Characters of a file with a key, a password or a token, at most.
LONGEST: Final = 65536

#: Facts of the file system of an open file; None on Windows.
_STATVFS: Final[Callable[[int], Any] | None] = getattr(os, "fstatvfs", None)
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_WRITE_AND_OTHERS: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


def read_secret(
    path: str | os.PathLike[str], kind: str, statvfs: Callable[[int], Any] | None = _STATVFS
) -> str:
    """Return the text of a file that only its owner can read; ``kind`` is what errors call it, "key file".

    A group may read some (:func:`others_may`). Everybody may read a file in a file system that can't be
    written: Docker and Kubernetes give secrets to a container in such a one. Raises ValueError, with
    the command that mends it, never with the text.
    """
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the open file is examined
            if not (statvfs and statvfs(file.fileno()).f_flag & os.ST_RDONLY):
                _refuse_if_exposed(os.fstat(file.fileno()), path, kind)
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise ValueError(f"can't read the {kind} {os.fspath(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"the {kind} {os.fspath(path)} is no text in UTF-8") from None
    if len(text) > LONGEST:
        raise ValueError(f"the {kind} {os.fspath(path)} is longer than {LONGEST} characters")
    return text


def write_secret(path: str | os.PathLike[str], text: str) -> None:
    """Make a file that only its owner can read; raises FileExistsError rather than write over one.

    Raises OSError if it can't be written; then it does not exist.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - Path knows no descriptors
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        Path(path).unlink(missing_ok=True)
        raise


def private(path: str, flags: int) -> int:
    """Open a file for its owner alone, whatever the umask: the ``opener`` of ``open``.

    A file that exists is taken from others, too.
    """
    descriptor = os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)
    if os.name == "posix":
        try:
            os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR)
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def others_may(found: os.stat_result, groups: Collection[int] | None = None, main: int | None = None) -> int:
    """Return the bits of a file's mode by which others than its owner may use it; 0: nobody else may.

    The group of these files is nobody else: one of root's, which others may read then, and one of a group
    that this process has as the ``fsGroup`` of a Pod: a supplementary one, or one of the owner's number.
    ``groups``: all of this process; ``main``: the one that it makes files with.
    """
    if os.name != "posix":  # its modes say nothing there
        return 0
    mode = stat.S_IMODE(found.st_mode)
    groups = os.getgroups() if groups is None else groups
    main = os.getegid() if main is None else main
    is_own = found.st_gid in groups and found.st_gid != 0
    if is_own and found.st_gid in ({*groups} - {main} | {found.st_uid}):
        return mode & stat.S_IRWXO
    of_root = found.st_uid == 0 and os.geteuid() != 0
    return mode & (_WRITE_AND_OTHERS if of_root else _GROUP_AND_OTHERS)


def _refuse_if_exposed(found: os.stat_result, path: str | os.PathLike[str], kind: str) -> None:
    if others_may(found):
        raise ValueError(f"others can read the {kind} {os.fspath(path)}: chmod 600 {os.fspath(path)}")
