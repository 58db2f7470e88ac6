"""The end of the program: open parts get a moment to finish."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import Protocol

from sluicemq.complaints import complain, log
from sluicemq.protocol.errors import SluiceError

_SECONDS = 5.0


class _Closable(Protocol):
    def close(self, timeout: float | None = None) -> None: ...


_open: weakref.WeakSet[_Closable] = weakref.WeakSet()
_finalized: set[int] = set()  # processes of multiprocessing that have it in their finalizers


def close_at_exit(part: _Closable) -> None:
    """Close ``part`` when the program ends, unless it is closed by then."""
    _open.add(part)
    _also_in_a_child_of_multiprocessing()


@atexit.register
def _close_all() -> None:
    for part in list(_open):
        try:
            part.close(_SECONDS)
        except SluiceError as error:
            log.error("at the program's end: %s", error)
        except Exception:  # noqa: BLE001 - the others are closed nevertheless
            complain("at the program's end", level=logging.ERROR)


def _also_in_a_child_of_multiprocessing() -> None:
    """Register with multiprocessing: its processes end without ``atexit``, with finalizers of their own."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing and multiprocessing.parent_process() and os.getpid() not in _finalized:
        _finalized.add(os.getpid())
        from multiprocessing import util  # noqa: PLC0415 - only where it is there already

        util.Finalize(None, _close_all, exitpriority=0)
