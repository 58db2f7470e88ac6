"""How the broker's log looks: lines for people, or one JSON object each, on stderr, which never blocks."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from sluicemq_devices.hub import OneLine, unblock_stderr

#: What a record is about, given as ``extra``: fields of their own in JSON.
FIELDS: Final = ("queue", "job", "worker", "attempt", "reason")


def set_up(level: str, form: str) -> None:
    """Log to stderr from ``level`` up; ``form`` is ``text`` or ``json``."""
    unblock_stderr()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("pymongo").setLevel(logging.WARNING)


class _Text(OneLine):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": record.name,
            "message": record.getMessage(),
            **{name: value for name in FIELDS if (value := record.__dict__.get(name)) is not None},
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)
