"""All jobs that may lie in packs do, each message of one job too, where ``TESTS_FORCE_PACKS`` is set.

So any test of a queue runs both ways. A job alone in its pack takes each way that packs have.
"""

from __future__ import annotations

import os
from typing import Final

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.store.jobs import packs

#: Variable of the environment of the tests, and of the brokers that they start.
FORCED_PACKS: Final = "TESTS_FORCE_PACKS"


def force_packs() -> None:
    """Pack whatever may lie in packs, in this process, if the environment says so."""
    if os.environ.get(FORCED_PACKS):
        packs.LEAST = 1  # type: ignore[misc]
        init: object = QueueSettings.__init__
        init.__kwdefaults__["pack"] = True  # type: ignore[attr-defined]
        QueueSettings.__dataclass_fields__["pack"].default = True
