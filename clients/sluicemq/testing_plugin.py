"""A plugin of pytest: brokers for tests, as fixtures.

It is loaded in each run of pytest where this package is installed, so it imports nothing of
:mod:`sluicemq.testing` before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from sluicemq import App
    from sluicemq.testing import EmbeddedBroker, MemoryBroker

_APP: Final = "sluicemq_app"
_VARIABLE: Final = "SLUICEMQ_ENDPOINT"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option that names the app of the program."""
    parser.addini(_APP, 'the app of the fixtures of sluicemq, as "package.module:app"', default="")


@pytest.fixture
def sluicemq_memory(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MemoryBroker]:
    """Make a broker in memory, to which all goes that names no endpoint, and the program's app."""
    from sluicemq.testing import MemoryBroker  # noqa: PLC0415 - only where a test wants it

    app = _app_of(request.config)
    with MemoryBroker() as broker:
        monkeypatch.setenv(_VARIABLE, broker.endpoint)
        with nullcontext() if app is None else broker.connect(app):
            yield broker


@pytest.fixture
def sluicemq_app(request: pytest.FixtureRequest, sluicemq_memory: MemoryBroker) -> Iterator[App]:
    """Return the app of the ini option ``sluicemq_app``, in eager mode: a push runs the task at once."""
    app = _app_of(request.config)
    if app is None:
        raise pytest.UsageError(f'name your app in the ini file of pytest: {_APP} = "package.module:app"')
    with sluicemq_memory.connect(app, eager=True):
        yield app


@pytest.fixture(scope="session")
def _sluicemq_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    from sluicemq.testing import EmbeddedBroker  # noqa: PLC0415 - as above

    with EmbeddedBroker(tmp_path_factory.mktemp("sluicemq")) as broker:
        yield broker


@pytest.fixture
def sluicemq_broker(
    _sluicemq_process: EmbeddedBroker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedBroker]:
    """Return a real broker with an embedded MongoDB, one for the session, which is empty at each begin."""
    app = _app_of(request.config)
    monkeypatch.setenv(_VARIABLE, _sluicemq_process.endpoint)
    with nullcontext() if app is None else _sluicemq_process.connect(app):
        yield _sluicemq_process
    _sluicemq_process.clear()


def _app_of(config: pytest.Config) -> App | None:
    named: Any = config.getini(_APP)
    if not named:
        return None
    module, _, name = named.partition(":")
    found: App = getattr(import_module(module), name or "app")
    return found
