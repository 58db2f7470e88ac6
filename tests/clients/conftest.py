from collections.abc import Iterator
from secrets import token_hex

import pytest
from click.testing import CliRunner, Result

from clients.cli_runs import Run
from clients.scripted_broker import ScriptedBroker
from sluicemq.cli.app import app
from support.own_queue import quick_broker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    stub = ScriptedBroker().start()
    yield stub
    stub.stop()


@pytest.fixture
def run(broker: ScriptedBroker) -> Run:
    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["--endpoint", broker.endpoint, *arguments], input=stdin)

    return run


@pytest.fixture(scope="module")
def endpoint(mongo_uri: str) -> Iterator[str]:
    """Where the library finds a broker of this file's own."""
    with quick_broker(mongo_uri) as broker:
        yield broker.doors["smq"]


@pytest.fixture
def stream() -> str:
    return f"orders.{token_hex(4)}"
