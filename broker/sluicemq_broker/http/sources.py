"""The sources of the answers of the HTTP door."""

from __future__ import annotations

from typing import NamedTuple

from sluicemq_broker.admin import (
    Admin,
    Snapshots,
)
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.callers import Callers
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.metrics import Metrics


class Sources(NamedTuple):
    """The sources of the answers of the door's paths."""

    admin: Admin
    snapshots: Snapshots
    callers: Callers
    metrics: Metrics
    turns: FairTurns
    memory: AnswerMemory
