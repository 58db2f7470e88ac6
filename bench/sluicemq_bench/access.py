"""Keys of the bench: those given for a running broker, in the environment of all its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import zmq

from sluicemq import Access
from sluicemq.protocol.keys import KeyPair, read_key, write_key_file
from sluicemq.transport.profiles import VARIABLE as PROFILE
from sluicemq.transport.sources import VARIABLES

_NAMES = {**VARIABLES, "profile": PROFILE}


def use_only(given: Mapping[str, str | None]) -> None:
    """Put these keys into the environment, and drop all others: they are of another broker."""
    for key, name in _NAMES.items():
        os.environ.pop(name, None)
        value = given.get(key)
        if value is not None:
            os.environ[name] = value


def connect(socket: zmq.Socket[bytes], address: str) -> None:
    """Connect a plain socket, with the key that the environment names."""
    Access.chosen(address).secure(socket)
    socket.connect(address)


def new_key(file: Path) -> KeyPair:
    """Make a key pair, and its file."""
    pair = KeyPair(*(read_key(text.decode()) for text in zmq.curve_keypair()))
    write_key_file(file, pair)
    return pair
