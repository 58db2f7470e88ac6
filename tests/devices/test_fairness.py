"""Nobody's messages keep the hub from others: turns end in time, and who sends rubbish comes last."""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import pytest

from devices.plain_sockets import LaneRecorder, Notices, eventually, lane_door, shake_hands
from sluicemq_devices.hub import Line, SpareTime, TimeUsed
from sluicemq_devices.sockets import Lane, Switchboard
from sluicemq_devices.sockets.conduct import MOST_MALFORMED, MOST_UNHEARD, WITHIN, Conduct
from support.virtual_time import VirtualTime

Started = Callable[[Any], Any]

MESSAGE = b"\x00\x05hello"


def works(seconds: float) -> None:
    """Keep the hub busy: compute for so long, whatever else the machine does."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_one_that_sends_much_at_once_has_turns_and_others_have_theirs_between(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, kind="PULL"))
    greedy, other = (shake_hands(door.address, b"PUSH") for _ in range(2))
    order: list[str] = []

    def receive(name: str, messages: list[list[bytes]]) -> None:
        if not order:
            other.sendall(MESSAGE)
        for _ in messages:
            order.append(name)
            works(0.001)

    recorder.lane(1)
    for lane in recorder.lanes:
        name = "greedy" if lane.peer.endswith(str(greedy.getsockname()[1])) else "other"
        lane.on(receive=partial(receive, name))
    greedy.sendall(MESSAGE * 1000)
    eventually(lambda: len(order) == 1001)

    assert order.index("other") <= 64


def test_what_is_made_for_many_at_once_is_made_in_turns_and_a_light_one_is_heard_between(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    # Given one that has sent little so far, and fifty for whom much was made before
    door = started(lane_door(board, recorder, kind="PULL"))
    crowd, other = [shake_hands(door.address, b"PUSH") for _ in range(50)], shake_hands(door.address, b"PUSH")
    order: list[str] = []

    def answers(lane: Lane) -> None:
        lane.work(lambda: works(0.001))
        order.append("answer")
        if len(order) == 51:
            other.sendall(MESSAGE)

    def receive(lane: Lane, _messages: list[list[bytes]]) -> None:
        gevent.spawn(answers, lane)

    recorder.lane(50)
    for lane in recorder.lanes:
        if lane.peer.endswith(str(other.getsockname()[1])):
            lane.on(receive=lambda _messages: order.append("other"))
        else:
            lane.on(receive=partial(receive, lane))
    for peer in crowd:
        peer.sendall(MESSAGE)
    eventually(lambda: len(order) == 50)
    # When all of them ask again at once, and the light one meanwhile
    for peer in crowd:
        peer.sendall(MESSAGE)
    eventually(lambda: len(order) == 101)
    # Then it does not wait for all of the answers
    assert order.index("other") < 75


def test_those_who_send_what_is_of_no_use_take_a_small_part_of_the_time_however_many_they_are(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, kind="PULL"))
    strangers = [shake_hands(door.address, b"PUSH") for _ in range(20)]
    taken = 0.0

    def receive(lane: Lane, messages: list[list[bytes]]) -> None:
        nonlocal taken
        began = time.thread_time()
        for _ in messages:
            works(0.0005)
            lane.blame(malformed=False)
        taken += time.thread_time() - began

    recorder.lane(19)
    for lane in recorder.lanes:
        lane.on(receive=partial(receive, lane))
    for stranger in strangers:
        stranger.sendall(MESSAGE * 1000)
    eventually(lambda: all(lane.received for lane in recorder.lanes))
    before, began = taken, time.perf_counter()
    eventually(lambda: taken - before > 0.05)

    assert taken - before < 0.4 * (time.perf_counter() - began)
    assert recorder.closed == []
    for lane in recorder.lanes:
        lane.on(receive=lambda _messages: None)


def test_one_that_sends_little_but_what_is_malformed_is_cut_and_named(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, kind="ROUTER"))
    stranger = shake_hands(door.address, b"DEALER")
    lane = recorder.lane()

    def receive(messages: list[list[bytes]]) -> None:
        for _ in messages:
            lane.blame()

    lane.on(receive=receive)

    stranger.sendall(MESSAGE * 5000)
    eventually(lambda: recorder.closed)

    assert MOST_MALFORMED <= lane.received < 2 * MOST_MALFORMED
    (notice,) = notices.of("connections_cut")
    assert f"{MOST_MALFORMED} messages within {WITHIN:.0f} s that can't be used" in notice


def test_one_that_is_paused_while_it_waits_for_its_turn_is_read_when_it_is_resumed(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, kind="PULL"))
    stranger = shake_hands(door.address, b"PUSH")
    lane = recorder.lane()

    def receive(messages: list[list[bytes]]) -> None:
        for _ in messages:
            lane.blame(malformed=False)
        if lane.received == 16:
            lane.pause()

    lane.on(receive=receive)
    stranger.sendall(MESSAGE * 100)
    eventually(lambda: lane.received == 16 and not len(board.spare))
    lane.resume()
    eventually(lambda: lane.received == 100)


def test_one_that_sends_nothing_but_commands_waits_for_its_turn_and_a_message_makes_it_good(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, kind="PULL"))
    stranger = shake_hands(door.address, b"PUSH")
    lane = recorder.lane()
    stranger.sendall(b"\x04\x06\x05WHAT?" * 1000)
    eventually(lambda: lane.conduct.is_bad)
    stranger.sendall(MESSAGE)
    eventually(lambda: lane.received == 1)
    assert not lane.conduct.is_bad


def test_a_closing_door_takes_turns(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder, kind="PULL"))
    stranger = shake_hands(door.address, b"PUSH")
    lane, sizes, between = recorder.lane(), list[int](), list[int]()

    def receive(messages: list[list[bytes]]) -> None:
        if not sizes:
            door.pause()
            gevent.spawn(door.stop)
        sizes.append(len(messages))
        gevent.get_hub().loop.run_callback(lambda: between.append(len(sizes)))
        works(0.001)

    lane.on(receive=receive)
    stranger.sendall(MESSAGE * 2000)
    eventually(lambda: recorder.closed)

    assert sum(sizes) == 2000
    assert len(set(between)) >= len(sizes) - 1


def test_a_light_peer_beside_a_crowd_that_never_stops_waits_for_a_few_of_its_messages(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    # Given forty that have sent more than can be read, and one that asks and waits for the answer
    door = started(lane_door(board, recorder, kind="DEALER"))
    crowd = [shake_hands(door.address, b"DEALER") for _ in range(40)]
    light = shake_hands(door.address, b"DEALER")
    name = light.getsockname()[1]
    read = asked = 0
    waited: list[int] = []

    def receive(lane: Lane, messages: list[list[bytes]]) -> None:
        nonlocal read
        if lane.peer.endswith(f":{name}"):
            waited.append(read - asked)
        else:
            read += len(messages)
            works(len(messages) * 0.0001)

    recorder.lane(40)
    for lane in recorder.lanes:
        lane.on(receive=partial(receive, lane))
    for peer in crowd:
        peer.sendall(MESSAGE * 5000)
    eventually(lambda: read > 4000)
    # When it asks again and again
    for number in range(20):
        asked = read
        light.sendall(MESSAGE)
        eventually(lambda number=number: len(waited) > number)
    # Then it does not wait until each of them has had a turn of two milliseconds
    assert sorted(waited)[10] <= 20
    assert max(waited[10:]) <= 80
    for lane in recorder.lanes:
        lane.on(receive=lambda _messages: None)


def test_what_was_read_of_many_that_are_cut_at_once_is_handed_over_in_turns(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    # Given producers, with more read of each than one turn takes
    door = started(lane_door(board, recorder, kind="PULL"))
    crowd = [shake_hands(door.address, b"PUSH") for _ in range(20)]
    turn = 0
    read = Counter[int]()

    def receive(messages: list[list[bytes]]) -> None:
        read[turn] += len(messages)
        works(len(messages) * 0.0001)

    def count() -> None:
        nonlocal turn
        turn += 1

    recorder.lane(19)
    for lane in recorder.lanes:
        lane.on(receive=receive)
    watch = gevent.get_hub().loop.check()
    watch.start(count)
    for peer in crowd:
        peer.sendall(MESSAGE * 500)
    eventually(lambda: all(lane.received for lane in recorder.lanes))
    for lane in recorder.lanes:
        lane.cut("enough")
    eventually(lambda: len(recorder.closed) == 20)
    watch.stop()
    # Then all of it was handed over, a part of it in each turn of the hub
    assert sum(lane.received for lane in recorder.lanes) == 20 * 500
    assert max(read.values()) <= 130


# --------------------------------------------------------------------------- line


def time_used(*turns: float, more: bool = True) -> TimeUsed:
    peer = TimeUsed()
    for seconds in turns:
        peer.used(seconds, more=more)
    return peer


def test_a_light_peer_is_next_however_many_heavy_ones_wait() -> None:
    line, served = Line(), list[str]()
    for _ in range(100):
        line.add(partial(served.append, "heavy"), time_used(0.002))
    line.add(partial(served.append, "light"), time_used(*[0.0] * 10, more=False))
    line.take()()
    assert served == ["light"]
    assert len(line) == 100


def test_peers_of_one_level_share_the_time_and_not_the_turns() -> None:
    line, used = Line(), Counter[float]()
    peers = {seconds: time_used(seconds) for seconds in (0.001, 0.004)}

    def turn(seconds: float) -> None:
        used[seconds] += 1
        peers[seconds].used(seconds, more=True)
        line.add(partial(turn, seconds), peers[seconds])
        line.took(seconds)

    for seconds, peer in peers.items():
        line.add(partial(turn, seconds), peer)
    for _ in range(1000):
        line.take()()
    assert 3.5 < used[0.001] / used[0.004] < 4.5


def test_a_heavy_peer_has_a_quarter_of_the_time_beside_light_ones_that_never_stop() -> None:
    line, used = Line(), Counter[str]()
    light, heavy = time_used(*[0.0] * 10, more=False), time_used(0.002)

    def turn(name: str, seconds: float, peer: TimeUsed) -> None:
        used[name] += round(seconds * 1e6)
        line.add(partial(turn, name, seconds, peer), peer)
        line.took(seconds)

    for _ in range(20):
        line.add(partial(turn, "light", 0.00005, light), light)
    line.add(partial(turn, "heavy", 0.0005, heavy), heavy)
    for _ in range(5000):
        line.take()()
    assert 0.1 < used["heavy"] / used.total() < 0.3


# ------------------------------------------------------------------------ conduct


@pytest.fixture
def clock() -> VirtualTime:
    return VirtualTime()


def handed_over(peer: Conduct, good: int, malformed: int = 0, refused: int = 0) -> None:
    for _ in range(malformed):
        peer.blame(malformed=True)
    for _ in range(refused):
        peer.blame(malformed=False)
    peer.judge(good + malformed + refused)


def test_a_peer_that_errs_now_and_then_is_never_cut(clock: VirtualTime) -> None:
    peer = Conduct(now=clock.now)
    for _ in range(10_000):
        handed_over(peer, good=1, malformed=1)
    assert not peer.is_over


def test_a_good_message_makes_up_for_a_bad_one(clock: VirtualTime) -> None:
    peer = Conduct(now=clock.now)
    handed_over(peer, good=0, malformed=2)
    assert peer.is_bad
    handed_over(peer, good=1)
    assert peer.is_bad
    handed_over(peer, good=1)
    assert not peer.is_bad


def test_what_is_refused_for_the_moment_cuts_nobody(clock: VirtualTime) -> None:
    peer = Conduct(now=clock.now)
    for _ in range(1000):
        handed_over(peer, good=0, refused=1)
        assert peer.is_bad
    assert not peer.is_over
    handed_over(peer, good=1)
    assert not peer.is_bad


def test_what_was_malformed_a_minute_ago_counts_no_more(clock: VirtualTime) -> None:
    peer = Conduct(now=clock.now)
    for _ in range(10):
        handed_over(peer, good=0, malformed=MOST_MALFORMED - 1)
        assert not peer.is_over
        clock.value += WITHIN + 1
    handed_over(peer, good=0, malformed=MOST_MALFORMED)
    assert peer.is_over


def test_one_that_hears_nothing_goes(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    shake_hands(started(lane_door(board, recorder, kind="PULL")).address, b"PUSH")
    assert recorder.lane().conduct.most == MOST_UNHEARD > MOST_MALFORMED


# --------------------------------------------------------------------- spare time


def test_spare_time_is_a_tenth_and_a_long_turn_is_paid_for_by_those_after_it(clock: VirtualTime) -> None:
    spare, served = SpareTime(clock.now), []

    def turn(seconds: float) -> None:
        clock.value += seconds
        served.append(seconds)

    for seconds in [0.00035] * 5 + [0.005] + [0.00035] * 5:
        spare.wait(partial(turn, seconds), TimeUsed())
    periods = []
    while spare:
        before = len(served)
        spare.give()
        periods.append(len(served) - before)
    assert periods == [3, 3, 0, 0, 0, 0, 1, 3, 1]


def test_who_comes_again_at_once_waits_for_the_next_period(clock: VirtualTime) -> None:
    spare, served = SpareTime(clock.now), []

    def again() -> None:
        served.append(1)
        if len(served) < 4:
            spare.wait(again, TimeUsed())

    spare.wait(again, TimeUsed())
    for period in range(1, 5):
        spare.give()
        assert len(served) == period


@pytest.mark.full
def test_a_crowd_that_sends_at_once_is_read_in_many_turns_each_in_the_order_of_coming(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    # Given forty that have sent a hundred messages each, of which one takes a moment
    door = started(lane_door(board, recorder, kind="PULL"))
    crowd = [shake_hands(door.address, b"PUSH") for _ in range(40)]
    turn = 0
    read: list[tuple[int, Lane]] = []

    def receive(lane: Lane, messages: list[list[bytes]]) -> None:
        read.append((turn, lane))
        works(0.002)

    def count() -> None:
        nonlocal turn
        turn += 1

    recorder.lane(39)
    for lane in recorder.lanes:
        lane.on(receive=partial(receive, lane))
    watch = gevent.get_hub().loop.check()
    watch.start(count)
    for peer in crowd:
        peer.sendall(MESSAGE * 100)
    works(0.05)  # all of it has come when the hub looks
    eventually(lambda: all(lane.received == 100 for lane in recorder.lanes))
    watch.stop()
    # Then no turn reads many of them, and none is read twice while others wait for the first time
    assert max(Counter(turn for turn, _ in read).values()) <= 20
    assert len({lane for _, lane in read[:45]}) >= 38
