"""A rule for variables of the environment that begin with ``SLUICEMQ_``.

- A setting of ``[broker]``, such as ``SLUICEMQ_LEASE``: it is used.
- One that clients read, such as ``SLUICEMQ_KEY_FILE``: it is left to them.
- One that Kubernetes sets for a Service whose name begins with ``sluicemq``: it is ignored.
- One that is nearly a setting: it is refused, with the name that was probably meant.
- Any other: it is ignored with a warning, which names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluicemq.protocol.environment import OF_CLIENTS, PREFIX, given
from sluicemq_broker.config import rules
from sluicemq_broker.config.problems import Problem

#: ``SLUICEMQ_PORT=tcp://10.0.0.1:5550``, ``SLUICEMQ_MONGODB_SERVICE_HOST=10.0.0.1``,
#: ``SLUICEMQ_0_PORT_5550_TCP_ADDR=10.0.0.1``, ...
_OF_KUBERNETES: Final = re.compile(
    r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)=.*"
    r"|(?:\w+_)?PORT=\w+://.*",
    re.DOTALL,
)


@dataclass(slots=True)
class Variables:
    """The settings among the variables, those that are refused, and those that nobody knows."""

    settings: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def variables(environ: Mapping[str, str], known: Iterable[str]) -> Variables:
    """Sort the variables; ``known``: the names of all settings of ``[broker]``."""
    found = Variables()
    for name in (name for name in environ if name.startswith(PREFIX)):
        key = name.removeprefix(PREFIX)
        link = _OF_KUBERNETES.fullmatch(f"{key}={environ[name]}")
        if key.lower() in known:
            found.settings[key.lower()] = given(name, environ)
        elif link or name in OF_CLIENTS.values():
            continue
        elif "did you mean" in (complaint := rules.unknown(key.lower(), known)):
            found.problems.append(Problem(name, complaint))
        else:
            found.warnings.append(Problem(name, "no variable of SluiceMQ has this name: it is ignored"))
    return found
