"""What is still open when the program ends gets a moment to finish."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol

from sluicemq.errors import SluiceError
from sluicemq.transport import native

_SECONDS = 5.0


class _Closable(Protocol):
    def close(self, timeout: float | None = None) -> None: ...


_open: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_at_exit(part: _Closable) -> None:
    """Close ``part`` when the program ends, unless it has been closed by then."""
    _open.add(part)


@atexit.register
def _close_all() -> None:
    for part in list(_open):
        try:
            part.close(_SECONDS)
        except SluiceError as error:
            native.log.error("at the program's end: %s", error)
