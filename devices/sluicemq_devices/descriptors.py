"""The numbers 0, 1 and 2 of a process whose standard streams the shell has closed: no socket may get them.

Called before gevent opens anything. What is taken in their place refuses to be read or written, but that of
stderr, which swallows all (``sluicemq.standard_streams`` of the library does so for the commands).
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
