"""What those hear whose message can't be taken in."""

from __future__ import annotations

import json
import logging
from typing import Final

from sluicemq.protocol.errors import (
    BadFrames,
    BadHeaders,
    BadVerb,
    BadVersion,
    Duplicate,
    SluiceError,
    TooLarge,
    Unavailable,
)

#: What says that a message can never be right, whatever the state of the broker.
MALFORMED: Final = (BadFrames, BadHeaders, BadVerb, BadVersion, TooLarge)

log = logging.getLogger("broker.doors")


def refusal(error: Exception) -> SluiceError:
    """Return what to say of an error in reading a message; one that nobody foresaw goes to the log.

    It has neither traceback nor cause: their frames would hold the message until cycles are looked for.
    """
    if isinstance(error, SluiceError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    log.error("a message could not be read", exc_info=error)
    return Unavailable("the broker failed on this; its log says why")


def error_frames(error: SluiceError) -> list[bytes]:
    """How an error looks to a plain socket: ``["ERROR"][JSON {code, message}]``; a DUPLICATE's has ``id``."""
    told = {"code": error.code, "message": str(error)}
    if isinstance(error, Duplicate):
        told["id"] = error.id
    return [b"ERROR", json.dumps(told).encode()]
