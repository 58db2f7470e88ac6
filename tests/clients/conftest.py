from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from clients.cli_runs import Run
from clients.scripted_broker import ScriptedBroker
from sluicemq.cli.app import app


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    stub = ScriptedBroker().start()
    yield stub
    stub.stop()


@pytest.fixture
def run(broker: ScriptedBroker) -> Run:
    """Run a command against the stub."""

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["--endpoint", broker.endpoint, *arguments], input=stdin)

    return run
