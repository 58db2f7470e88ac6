"""A call that is interrupted from another thread."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from sluicemq.time_limits import Interruptible, SoftTimeLimitError
from support.waiting import TIMEOUT


def interrupted() -> None:
    call = Interruptible()
    begun = threading.Event()

    def handler() -> None:
        begun.set()
        while True:
            pass

    other = threading.Thread(target=lambda: begun.wait(TIMEOUT) and call.interrupt(SoftTimeLimitError))
    other.start()
    with pytest.raises(SoftTimeLimitError):
        call.call(handler)
    other.join(TIMEOUT)


def lengths() -> list[int]:
    return [len(word) for word in ("a", "b")]


def test_what_is_traced_after_an_interrupted_call_ends() -> None:
    """A debugger traces it; CPython may be left looking for an error that was taken back."""
    ended = threading.Event()

    def trace(_frame: FrameType, _event: str, _argument: object) -> Any:
        return trace

    def traced() -> None:
        interrupted()
        sys.settrace(trace)
        lengths()
        sys.settrace(None)
        ended.set()

    threading.Thread(target=traced, daemon=True).start()
    assert ended.wait(TIMEOUT)
