"""Large pieces of memory that go back to the system as soon as they are free."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h has them
_LARGE: Final = 4 << 20
_KEPT: Final = 16 << 20  # bytes that are free at the end of the heap: mapping them again takes long


def give_back_large_memory() -> None:
    """Let malloc map each piece of 4 MiB or more by itself.

    glibc raises its own bound to 32 MiB once such a piece was freed. Then jobs of many megabytes lie among
    small objects, and their memory stays with the process: 120 MB of 12 jobs. Does nothing on other systems.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
