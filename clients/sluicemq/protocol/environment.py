"""Variables of the environment: the names that clients read, and how a value is read.

The settings of a broker are variables, too; :mod:`sluicemq_broker.config.environment` has the rule for all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

#: Beginning of the names of all variables.
PREFIX: Final = "SLUICEMQ_"
#: Variables that the library and the command line read, by what they say. Brokers read the endpoint, too.
OF_CLIENTS: Final = {
    name: PREFIX + name.upper()
    for name in ("endpoint", "key_file", "server_key", "user", "password_file", "profile")
}


def given(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the value of a variable; "" if it is not set.

    A line end behind it is left out: a secret that comes from a file often has one.
    """
    return (os.environ if environ is None else environ).get(name, "").rstrip("\r\n")
