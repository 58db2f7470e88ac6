"""The time that a peer uses: how its level rises and falls."""

from __future__ import annotations

import pytest

from sluicemq_devices.hub import HEAVY, TimeUsed

#: Turns of a peer, each with its seconds and whether it had sent more, where a light one takes one second.
Turns = list[tuple[float, bool]]


@pytest.mark.parametrize(
    ("turns", "level"),
    [
        ([], 2),
        ([(1.9, False)], 1),  # the average of what it used before, two seconds, and of this
        ([(0.0, False)], 1),
        ([(0.0, False)] * 2, 0),
        ([(5.9, False)], 2),
        ([(6.0, False)], HEAVY),
        ([(14.0, False), (0.0, False)], HEAVY),
        ([(14.0, False)] + [(0.0, False)] * 2, 2),
        ([(1e6, False)], HEAVY),
        # Turns until all was read count as one
        ([(3.9, True)], 2),
        ([(4.0, True)], HEAVY),
        ([(2.0, True), (2.0, True)], HEAVY),
        ([(0.0, True)] * 100, 2),
        ([(3.0, True), (2.9, False)], 2),
        ([(3.0, True), (3.0, False)], HEAVY),
        ([(3.0, True), (2.9, False), (0.0, False)], 1),
    ],
)
def test_a_peers_level_follows_the_time_in_which_it_was_read(turns: Turns, level: int) -> None:
    peer = TimeUsed(1.0)
    for seconds, more in turns:
        peer.used(seconds, more=more)
    assert peer.level == level
    assert peer.is_light == (level < 2)
    assert peer.latest == (turns[-1][0] if turns else 0.0)


def test_a_peer_that_is_never_read_to_the_end_gets_heavy_and_light_again_once_it_is() -> None:
    peer = TimeUsed()
    assert 0 < peer.level < HEAVY
    peer.used(0.002, more=True)
    assert peer.level == HEAVY
    peer.used(0.0, more=False)
    assert peer.level == HEAVY
    for _ in range(10):
        peer.used(0.00001, more=False)
    assert peer.level == 0
    assert peer.is_light
