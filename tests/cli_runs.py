"""Runs of the command beside a broker that is played."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

from stub_broker import StubBroker

Run = Callable[..., Result]


def nobody() -> str:
    gone = StubBroker().start()
    gone.stop()
    return gone.endpoint
