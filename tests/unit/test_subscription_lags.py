"""How far subscriptions are behind, as it is kept for whoever may not wait."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.streams import Lags


class Subscriptions:
    """They stand like this, or nobody can tell."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] | None = [{"name": "sums", "behind": 3}]

    def known(self) -> list[dict[str, Any]]:
        if self.rows is None:
            raise UnavailableError("no primary")
        return self.rows


def test_what_was_seen_last_is_kept_until_nobody_can_tell() -> None:
    subscriptions: Any = Subscriptions()
    lags = Lags(subscriptions)
    assert lags.rows == []
    lags.measure()
    assert lags.rows == subscriptions.rows
    subscriptions.rows = None
    with pytest.raises(UnavailableError):
        lags.measure()
    assert lags.rows == []
