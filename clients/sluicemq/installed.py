"""Commands that are installed beside the library: the broker, the devices and the bench.

The library knows them by entry points of the group ``sluicemq.commands`` only. The value of ``serve`` and
``device`` is a module to run, whose distribution lists its requirements under the extra ``broker``; the value
of ``bench`` is a command of click. Those of ``users``, ``doctor`` and ``backup`` are modules of the broker:
they change principals in MongoDB, look for what is wrong, write backups and restore them.
"""

from __future__ import annotations

import re
import sys
from typing import Any

SERVE, DEVICE, BENCH = "serve", "device", "bench"
USERS, DOCTOR, BACKUP = "users", "doctor", "backup"
#: What pip installs: the checkout, until a release is published.
SOURCE = "."

_GROUP, _EXTRA = "sluicemq.commands", "broker"


def to_install(extra: str) -> str:
    """Return what to type to install this package with one of its extras."""
    return f"pip install '{SOURCE}[{extra}]'{_where()}"


def bench_to_install() -> str:
    """Return what to type to install the bench, which is a package of its own."""
    return f"pip install {'./bench' if SOURCE == '.' else f'{SOURCE}-bench'}{_where()}"


def _where() -> str:
    return " in a checkout of SluiceMQ" if SOURCE == "." else ""


ABSENT = f"the broker is not installed here: {to_install(_EXTRA)}"


def module_command(name: str = SERVE) -> list[str] | None:
    """Return the command that runs ``serve`` or ``device``; None if it or a requirement is not installed.

    ``-P``: whatever lies in the current folder, a ``zmq.py`` or a ``gevent/``, is not what it imports.
    """
    from importlib import metadata  # noqa: PLC0415 - slow to load, and all other commands do without

    for point in metadata.entry_points(group=_GROUP, name=name):
        if all(_is_installed(requirement) for requirement in _requirements(point)):
            return [sys.executable, "-P", "-m", point.value.removesuffix(".__main__")]
    return None


def command_of(name: str) -> Any:
    """Return the object that another package names; None where that is not installed."""
    from importlib import metadata  # noqa: PLC0415 - as above

    return next((point.load() for point in metadata.entry_points(group=_GROUP, name=name)), None)


def _requirements(point: Any) -> list[str]:
    """Return the names of the distributions that only the extra ``broker`` requires."""
    lines = (point.dist.requires or []) if point.dist else []
    extra = re.compile(rf"""^([\w.-]+).*extra\s*==\s*['"]{_EXTRA}['"]""")
    return [found[1] for line in lines if (found := extra.match(line))]


def _is_installed(name: str) -> bool:
    from importlib import metadata  # noqa: PLC0415 - as above

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
