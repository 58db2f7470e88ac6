"""What a queue's store takes from its settings."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq_broker.config.settings import QueueSettings
from sluicemq_broker.store.jobs.documents import MOVING, QueueDefaults

BRIEF, LONG = 30.0, 10 * MOVING


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, None),
        ({"dead_retention": BRIEF}, BRIEF),
        ({"dead_retention": BRIEF, "on_dead": "mail"}, BRIEF),  # they stay
        ({"dead_retention": BRIEF, "on_dead": "letters"}, MOVING),
        ({"dead_retention": LONG, "on_dead": "letters"}, LONG),
        ({"on_dead": "letters"}, None),
    ],
)
def test_a_dead_letter_that_goes_on_stays_long_enough_for_that(
    settings: dict[str, Any], kept: float | None
) -> None:
    assert QueueDefaults.of(QueueSettings(**settings), "mail").dead_retention == kept
