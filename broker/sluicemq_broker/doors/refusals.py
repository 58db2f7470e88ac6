"""The errors that are sent for a message that can't be taken in."""

from __future__ import annotations

import json
import logging
from typing import Final

from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    BadVerbError,
    BadVersionError,
    DuplicateError,
    SluiceError,
    TooLargeError,
    UnavailableError,
)

#: Errors of a message that is wrong in any state of the broker.
MALFORMED: Final = (BadFramesError, BadHeadersError, BadVerbError, BadVersionError, TooLargeError)

log = logging.getLogger("broker.doors")


def refusal(error: Exception) -> SluiceError:
    """Return the error to send for one in reading a message; an unexpected one is logged.

    It has neither traceback nor cause: these would keep the message in memory until the next collection of
    cycles.
    """
    if isinstance(error, SluiceError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    log.error("a message could not be read", exc_info=error)
    return UnavailableError("the broker failed on this; its log says why")


def error_frames(error: SluiceError) -> list[bytes]:
    """Return an error's frames: ``["ERROR"][JSON {code, message}]``; a DUPLICATE has ``id`` too."""
    about = {"code": error.code, "message": str(error)}
    if isinstance(error, DuplicateError):
        about["id"] = error.id
    return [b"ERROR", json.dumps(about).encode()]
