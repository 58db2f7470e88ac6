"""The file of profiles: brokers and the keys for them under names, so that nobody types them twice.

``~/.config/sluicemq/config.toml``, or below ``$XDG_CONFIG_HOME``::

    default = "prod"

    [profiles.prod]
    endpoint = "tcp://queue.example:5550"   # or a list of them
    key_file = "prod.key"           # beside this file; or user and password_file
    server_key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import IO, Any, Final

from sluicemq.protocol.environment import OF_CLIENTS
from sluicemq.protocol.readable import brief
from sluicemq.protocol.secret_files import others_may

#: The variable that names a profile.
VARIABLE: Final = OF_CLIENTS["profile"]

#: Keys of a profile; those of files are relative to the file of profiles.
KEYS: Final = ("endpoint", "key_file", "server_key", "user", "password", "password_file")


class Profile:
    """One profile: its values, and how errors name it."""

    def __init__(self, name: str, file: str, values: dict[str, Any]) -> None:
        self.name = name
        self.file = file
        self.values = values

    def called(self, key: str) -> str:
        """Return how an error names one of its values."""
        return f"{self.file}: profile {self.name}: {key}"


def find(name: str | None) -> Profile | None:
    """Return a profile; None as a name means that of ``default``, if the file has one.

    Raises ValueError with the file and what is wrong with it.
    """
    file = path()
    content, others = _read(file)
    if content is None:
        if name is not None:
            raise ValueError(f"there is no profile {brief(name)}: there is no file {file}")
        return None
    wanted = content.get("default") if name is None else name
    if wanted is None:
        return None
    found = _profile(file, content.get("profiles", {}), wanted)
    if "password" in found.values:
        _refuse_if(file, others, "has a password, and others can read it")
    return found


def path() -> str:
    """Return where the file of profiles is."""
    # os.path, since Path.home() raises where there is none
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return os.path.join(folder, "sluicemq", "config.toml")  # noqa: PTH118


def _profile(file: str, profiles: Any, name: Any) -> Profile:
    known = profiles if isinstance(profiles, dict) else {}
    values = known.get(name) if isinstance(name, str) else None
    if not isinstance(values, dict):
        names = ", ".join(known) or "none"
        raise ValueError(f"{file}: there is no profile {brief(name)} in it; it has {names}")  # noqa: TRY004
    return Profile(name, file, {key: _value(file, name, key, value) for key, value in values.items()})


def _value(file: str, name: str, key: str, value: Any) -> Any:
    if key not in KEYS:
        raise ValueError(f"{file}: profile {name}: {brief(key)} is no key of a profile: {', '.join(KEYS)}")
    if key == "endpoint" and isinstance(value, list) and value and all(map(_is_value, value)):
        return value
    if not _is_value(value):
        raise ValueError(f"{file}: profile {name}: {key} is a text that is not empty")
    if key not in ("key_file", "password_file"):
        return value
    return os.path.join(os.path.dirname(file), os.path.expanduser(value))  # noqa: PTH111, PTH118, PTH120


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _read(file: str, open_file: Callable[[str, str], IO[bytes]] = open) -> tuple[dict[str, Any] | None, int]:
    """Return what the file holds, None: there is none; and what others may do with the file that was read."""
    import tomllib  # noqa: PLC0415 - most programs have no profile

    try:
        with open_file(file, "rb") as opened:
            others = others_may(os.fstat(opened.fileno()))  # that at its path may be another file by now
            _refuse_if(file, others & (stat.S_IWGRP | stat.S_IWOTH), "can be written by others")
            return tomllib.load(opened), others
    except (FileNotFoundError, NotADirectoryError):
        return None, 0
    except OSError as error:
        raise ValueError(f"can't read the file of profiles {file}: {error.strerror}") from error
    except (
        tomllib.TOMLDecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # its sentence may repeat a password
        raise ValueError(f"the file of profiles {file} is no TOML") from None


def _refuse_if(file: str, others_may: int, why: str) -> None:
    if others_may:
        raise ValueError(f"{file} {why}: chmod 600 {file}")
