"""Calls into the code of others, whose errors must not take a device down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVarTuple

from sluicemq_devices.hub.counts import Mishap
from sluicemq_devices.hub.notices import Notices

_Arguments = TypeVarTuple("_Arguments")
_failures = Notices(logging.getLogger("devices"))


def shielded(
    callback: Callable[[*_Arguments], object], *arguments: *_Arguments, failures: Notices = _failures
) -> None:
    """Call ``callback``; an error is logged and goes no further, so the next message is handled.

    ``failures``: counts and logs the errors.
    """
    try:
        callback(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises
        failures.notice(Mishap.CALLBACKS_FAILED, f"a callback of a device failed: {callback!r}", error)


def nothing() -> None:
    """Do nothing: the callback that was not set."""
