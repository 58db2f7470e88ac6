"""The broker's log: lines for people, or JSON objects, on a stderr that never blocks."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import gevent

from sluicemq.protocol.json_values import dumps
from sluicemq_devices.hub import LONGEST_TRACEBACK, Mishap, Notices, OneLine, shortened, unblock_stderr

#: Fields of a record given as ``extra``; in JSON each is a key.
FIELDS: Final = ("queue", "job", "worker", "attempt", "reason")


def set_up(level: str, form: str) -> None:
    """Log to stderr from ``level`` up; ``form``: ``text`` or ``json``. Errors of greenlets are logged."""
    unblock_stderr()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("pymongo").setLevel(logging.WARNING)
    # Its background tasks end cursors of connections that are lost: MongoDB does that by itself, too.
    logging.getLogger("pymongo.client").setLevel(logging.CRITICAL)
    notices = Notices(logging.getLogger("broker"))

    def failed(context: object, _kind: object, error: BaseException, _trace: object) -> None:
        # Characters of the name of a failed greenlet.
        notices.notice(Mishap.CALLBACKS_FAILED, f"{context}"[:200], error)

    gevent.get_hub().print_exception = failed  # gevent's would print past the log


class _Text(OneLine):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": record.name,
            "message": shortened(record.getMessage()),
            **{name: _short(value) for name in FIELDS if (value := record.__dict__.get(name)) is not None},
        }
        if record.exc_info:
            entry["traceback"] = shortened(self.formatException(record.exc_info), LONGEST_TRACEBACK)
        return dumps(entry, ascii=True)


def _short(value: object) -> object:
    return shortened(value) if isinstance(value, str) else value
