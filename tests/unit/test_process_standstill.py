"""A process that stood still blames nobody for it."""

from __future__ import annotations

from sluicemq_broker.runtime import Pulse
from support.virtual_time import VirtualTime


def test_a_process_that_runs_did_not_stand_still() -> None:
    time = VirtualTime()
    pulse = Pulse(6.0, time.now)
    for _ in range(10):
        time.value += 1.0
        assert not pulse.was_frozen
        pulse.beat()
        assert not pulse.was_frozen


def test_a_pause_is_seen_before_and_after_the_first_beat_and_excused_for_as_long_as_a_silence() -> None:
    time = VirtualTime()
    pulse = Pulse(6.0, time.now)
    time.value += 6.1
    before = pulse.was_frozen
    pulse.beat()
    time.value += 5.9
    after = pulse.was_frozen
    pulse.beat()
    time.value += 0.2
    assert (before, after, pulse.was_frozen) == (True, True, False)
