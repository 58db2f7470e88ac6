"""Fixtures that several files here share."""

import pytest

from support.virtual_time import VirtualTime
from unit.dispatch_rig import DispatchRig


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def rig() -> DispatchRig:
    """A queue over a store in memory."""
    return DispatchRig()


@pytest.fixture
def slow() -> DispatchRig:
    """A queue whose released jobs stay on their way."""
    return DispatchRig(slow=True)


@pytest.fixture
def empty(rig: DispatchRig) -> DispatchRig:
    """A queue with one worker, of which it is known that nothing lies ready."""
    rig.worker()
    return rig
