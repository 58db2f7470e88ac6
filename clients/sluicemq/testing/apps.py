"""Apps of a program, at the broker of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluicemq.app import App
from sluicemq.producer import Producer


@contextmanager
def at_broker(app: App, endpoint: str, producer: Producer | None = None) -> Iterator[App]:
    """Have an app push to this broker, whatever its endpoint, until the block ends."""
    before = app._endpoint, app._options, app._producer
    app._endpoint, app._options, app._producer = endpoint, {}, producer
    try:
        if app._schedules:
            app.declare_schedules()
        yield app
    finally:
        app.close()
        app._endpoint, app._options, app._producer = before
