"""Large pieces of memory go back to the system as soon as nothing is in them."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_MMAP_THRESHOLD: Final = -3  # as glibc's malloc.h has it
_LARGE: Final = 128 << 10


def give_back_large_memory() -> None:
    """Have each piece of 128 KiB or more mapped alone.

    glibc raises its own bound to 32 MiB once such a piece was freed. Then jobs of many megabytes lie among
    small objects, and what they took stays with the process: 120 MB of 12 jobs. Other systems do as they do.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
