"""A broker of the last schema, whose packages in ``tests/builds`` are found before the installed ones."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, Final

from support.broker_process import BrokerProcess

_BUILDS = Path(__file__).parents[1] / "builds"

#: Nothing out of an archive leaves its folder; Python has that from 3.11.4 on.
SAFELY: Final[dict[str, Any]] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpack(schema: int, folder: Path) -> Path:
    """Unpack the last build that writes this schema; returns the folder with its packages."""
    with tarfile.open(_BUILDS / f"schema-{schema}.tar.xz") as archive:
        archive.extractall(folder, **SAFELY)  # noqa: S202 - of this repository
    return folder


class OldBroker(BrokerProcess):
    """A broker of the build in a folder, until :meth:`renew`."""

    def __init__(self, build: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, env={"PYTHONPATH": str(build)})

    def renew(self) -> None:
        """Have the next start be of the build that is tested."""
        del self._env["PYTHONPATH"]
