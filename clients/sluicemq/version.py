"""The version of all packages: what is built is named by it, and a client tells it in its HELLO.

It stands here, not among what is installed: to look it up there loads ``importlib.metadata`` and with it the
standard library's email, zipfile and inspect, a fifth of what a short command takes.
"""

from typing import Final

VERSION: Final = "0.3.0"
