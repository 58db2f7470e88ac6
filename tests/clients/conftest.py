from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from cli_runs import Run
from sluicemq.cli.app import app
from stub_broker import StubBroker


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    stub = StubBroker().start()
    yield stub
    stub.stop()


@pytest.fixture
def run(broker: StubBroker) -> Run:
    """Run a command against the stub."""

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["--endpoint", broker.endpoint, *arguments], input=stdin)

    return run
