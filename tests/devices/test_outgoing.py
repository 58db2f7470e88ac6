"""What goes out: peers share a budget of what they have not taken, a small answer never waits."""

from collections.abc import Callable
from typing import Any

import gevent
from gevent import socket as sockets
from hypothesis import given
from hypothesis import strategies as st

from devices.plain_sockets import ANY_PORT, NEWER, Notices, ended, eventually, shake_hands
from sluicemq_devices.sockets import SMALL, Lane, LaneDoor, Outgoing, Ration, Switchboard

Started = Callable[[Any], Any]

MIB = 1 << 20


class Taker:
    """One that takes what it is sent, or not."""

    def __init__(self, outgoing: Outgoing) -> None:
        self.taken = 0
        self.reads = True
        self.cuts: list[str] = []
        self.ration = outgoing.ration(self)

    def filled(self) -> None:
        self.reads = False

    def drained(self) -> None:
        self.reads = True

    def cut(self, why: str) -> None:
        self.cuts.append(why)
        self.ration.close()


def budget(most: int = 8 * MIB, **options: Any) -> Outgoing:
    return Outgoing(most, **options)


def granted(ration: Ration, size: int) -> list[bool]:
    """What is told of a reservation: nothing yet, True, or False."""
    told: list[bool] = []
    ration.when_room(size, told.append)
    return told


def test_one_peer_may_leave_half_of_the_budget_unread_and_is_read_again_at_half_of_that() -> None:
    outgoing = budget(8 * MIB)
    peer = Taker(outgoing)
    peer.ration.hold(4 * MIB - 1)
    assert peer.reads
    peer.ration.hold(4 * MIB)
    assert not peer.reads
    assert peer.ration.is_full
    peer.ration.hold(3 * MIB)
    assert not peer.reads
    peer.ration.hold(2 * MIB)
    assert peer.reads


def test_a_small_answer_never_waits_whatever_others_leave_unread() -> None:
    outgoing = budget(MIB)
    for _ in range(3):
        Taker(outgoing).ration.hold(MIB)
    peer = Taker(outgoing)
    assert peer.ration.fits(SMALL)
    assert not peer.ration.fits(SMALL + 1)
    assert granted(peer.ration, SMALL) == [True]


def test_a_large_answer_waits_for_room_and_the_smallest_is_made_first() -> None:
    outgoing = budget(8 * MIB)
    other = Taker(outgoing)
    other.ration.hold(7 * MIB)
    large = granted(Taker(outgoing).ration, 4 * MIB)
    middle = granted(Taker(outgoing).ration, 2 * MIB)
    assert (large, middle, outgoing.waiting) == ([], [], 2)
    other.ration.hold(5 * MIB)
    assert (large, middle) == ([], [True])
    other.ration.hold(0)
    assert large == [True]
    assert outgoing.bytes == 6 * MIB


def test_nothing_is_reserved_for_a_peer_that_leaves_more_than_a_little_unread() -> None:
    outgoing = budget()
    peer = Taker(outgoing)
    peer.ration.hold(SMALL + 1)
    told = granted(peer.ration, 1)
    assert told == []
    assert not outgoing.waiting  # nobody else has to make room for it
    peer.ration.hold(SMALL)
    assert told == [True]


def test_an_answer_that_is_larger_than_the_budget_is_made_with_half_of_it() -> None:
    outgoing = budget(MIB)
    peer = Taker(outgoing)
    assert granted(peer.ration, 99 * MIB) == [True]
    assert outgoing.bytes == MIB // 2
    peer.ration.release(99 * MIB)
    assert outgoing.bytes == 0


def test_what_is_being_made_for_one_that_has_gone_counts_until_it_is_made() -> None:
    outgoing = budget()
    peer = Taker(outgoing)
    granted(peer.ration, MIB)
    Taker(outgoing).ration.hold(4 * MIB)
    waits = granted(peer.ration, 4 * MIB)
    peer.ration.close()
    assert (waits, outgoing.bytes) == ([False], 5 * MIB)
    peer.ration.release(MIB)
    assert outgoing.bytes == 4 * MIB
    assert granted(peer.ration, 1) == [False]


def test_a_reservation_that_is_not_waited_for_any_longer_leaves_the_line() -> None:
    outgoing = budget()
    other, peer = Taker(outgoing), Taker(outgoing)
    other.ration.hold(8 * MIB)
    assert not peer.ration.reserve(MIB, timeout=0.001)
    assert not outgoing.waiting
    waiting = gevent.spawn(peer.ration.reserve, MIB)
    eventually(lambda: outgoing.waiting)
    other.ration.hold(0)
    assert waiting.get(timeout=10.0)


def test_one_that_takes_nothing_while_others_wait_is_cut_and_one_that_takes_some_is_not() -> None:
    outgoing = budget(8 * MIB, look=0.01)
    stalled, slow, idle = Taker(outgoing), Taker(outgoing), Taker(outgoing)
    stalled.ration.hold(7 * MIB)
    slow.ration.hold(MIB)
    idle.ration.hold(SMALL)
    looks = gevent.spawn(_take_on, slow)
    told = granted(Taker(outgoing).ration, 4 * MIB)
    eventually(lambda: told)
    looks.kill()
    assert (len(stalled.cuts), slow.cuts, idle.cuts) == (1, [], [])


def _take_on(taker: Taker) -> None:
    while True:
        taker.taken += MIB
        gevent.sleep(0.001)


def test_nobody_is_cut_while_nobody_waits() -> None:
    outgoing = budget(look=0.001)
    peer, other = Taker(outgoing), Taker(outgoing)
    peer.ration.hold(8 * MIB)
    told = granted(other.ration, MIB)
    other.ration.close()
    assert told == [False]
    gevent.sleep(0.05)
    assert peer.cuts == []


_STEPS = st.lists(
    st.tuples(st.sampled_from(("hold", "take", "release", "close")), st.integers(0, 4), st.integers(0, 100)),
    max_size=80,
)


@given(_STEPS)
def test_all_that_is_held_is_counted_and_goes_on_when_it_may(steps: list[tuple[str, int, int]]) -> None:
    outgoing = budget(100 * SMALL)
    peers = [Taker(outgoing) for _ in range(5)]
    reserved: list[list[int]] = [[] for _ in peers]
    asked = 0
    for verb, number, amount in steps:
        peer, size = peers[number], amount * SMALL
        if verb == "hold":
            peer.ration.hold(size)
        elif verb == "take":
            asked += 1
            peer.ration.when_room(size, _noting(reserved[number], min(size, 50 * SMALL)))
        elif verb == "release" and reserved[number]:
            peer.ration.release(reserved[number].pop())
        elif verb == "close":
            peer.ration.close()
            peers[number] = Taker(outgoing)
            for taken in reserved[number]:
                peer.ration.release(taken)
            reserved[number] = []
        assert outgoing.bytes == sum(peer.ration.unread for peer in peers) + sum(map(sum, reserved))
        assert outgoing.waiting <= len(peers)
        for ration in [other.ration for other in peers]:
            assert not (ration.line and ration.unread <= SMALL and ration.place is None)
            if ration.place:
                assert not ration.fits(ration.line[0][0])
    for peer in peers:
        peer.ration.close()


def _noting(reserved: list[int], size: int) -> Callable[[bool], object]:
    return lambda granted: reserved.append(size) if granted else None


ANSWER = MIB
QUESTIONS = 100


class Answerer:
    """Answers each question with a MiB, while the peer takes them."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.answered = 0

    def opened(self, lane: Lane) -> None:
        lane.on(receive=lambda questions: self._answer(lane, questions))
        self.lanes.append(lane)

    def _answer(self, lane: Lane, questions: list[list[bytes]]) -> None:
        for at, frames in enumerate(questions):
            if lane.is_full:
                lane.take_back(questions[at:])
                return
            lane.send([*frames, bytes(ANSWER)])
            self.answered += 1


def answering_door(board: Switchboard, started: Started, answerer: Answerer) -> LaneDoor:
    board.outgoing = budget(8 * ANSWER)
    door: LaneDoor = started(LaneDoor(board, ANY_PORT, "ROUTER", answerer.opened, max_frame=MIB))
    return door


def ask_all(door: LaneDoor) -> sockets.socket:
    """One who has asked a lot, and takes no answer."""
    client = shake_hands(door.address, b"DEALER", NEWER)
    client.sendall(b"\0\1?" * QUESTIONS)
    return client


def test_questions_of_one_that_takes_no_answers_are_not_answered_and_nothing_is_lost_of_them(
    board: Switchboard, started: Started
) -> None:
    answerer = Answerer()
    client = ask_all(answering_door(board, started, answerer))
    eventually(lambda: answerer.lanes and answerer.lanes[0].is_full)
    lane = answerer.lanes[0]
    assert lane.backlog <= 5
    assert lane.received == answerer.answered < 20  # the kernel has taken some
    # When it reads they go on, in order
    left = QUESTIONS * (3 + 9 + ANSWER)
    while left:
        left -= len(client.recv(min(left, MIB)))
    assert lane.received == answerer.answered == QUESTIONS
    eventually(lambda: board.outgoing.bytes == 0)
    client.close()


def test_one_that_takes_no_answers_is_cut_when_others_wait_and_its_memory_is_free(
    board: Switchboard, started: Started, notices: Notices
) -> None:
    answerer = Answerer()
    door = answering_door(board, started, answerer)
    board.outgoing = budget(8 * ANSWER, look=0.02)
    client = ask_all(door)
    eventually(lambda: answerer.lanes and answerer.lanes[0].is_full)
    told = granted(Taker(board.outgoing).ration, 4 * MIB + ANSWER)
    eventually(lambda: told)
    assert "took next to nothing" in notices.of("connections_cut")[0]
    assert ended(client)


def test_one_that_leaves_answers_unread_leaves_no_memory(board: Switchboard, started: Started) -> None:
    answerer = Answerer()
    client = ask_all(answering_door(board, started, answerer))
    eventually(lambda: answerer.lanes and answerer.lanes[0].is_full)
    client.close()
    eventually(lambda: board.outgoing.bytes == 0)


def test_what_a_session_has_sent_is_heard_though_it_left(board: Switchboard, started: Started) -> None:
    answerer = Answerer()
    board.outgoing = budget(8 * ANSWER)
    door = started(LaneDoor(board, ANY_PORT, "DEALER", answerer.opened, max_frame=MIB, answers=True))
    client = ask_all(door)
    eventually(lambda: answerer.lanes and answerer.lanes[0].is_full)
    client.close()
    eventually(lambda: answerer.answered == QUESTIONS)
    eventually(lambda: board.outgoing.bytes == 0)
