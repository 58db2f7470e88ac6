from __future__ import annotations

from collections.abc import Iterator

import pytest

from stub_broker import StubBroker


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    stub = StubBroker().start()
    yield stub
    stub.stop()
