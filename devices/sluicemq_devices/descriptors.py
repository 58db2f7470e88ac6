"""File numbers 0, 1 and 2 of a process whose standard streams are closed: no socket may get them.

Call this before gevent opens a file. The files in place of stdin and stdout refuse to be read or written, the
one of stderr swallows all (``sluicemq.standard_streams`` of the library does so for the commands).
"""

from __future__ import annotations

import os


def take_closed_numbers() -> None:
    """Open a file in the place of each of the three that is closed."""
    for number, way in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)
