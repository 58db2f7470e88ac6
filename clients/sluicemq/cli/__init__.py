"""The command ``sluicemq``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from sluicemq.installed import to_install
from sluicemq.standard_streams import guarded


def main() -> None:
    """Entry point of the command ``sluicemq``."""
    if not all(find_spec(name) for name in ("click", "rich")):
        sys.exit(f"sluicemq: the command line needs click and rich: {to_install('cli')}")
    from sluicemq.cli.app import app  # noqa: PLC0415 - only now it is known that click is installed

    with guarded():
        app(prog_name="sluicemq")
