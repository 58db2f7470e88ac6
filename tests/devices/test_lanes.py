import signal
from collections.abc import Callable
from typing import Any

import gevent
import pytest
import zmq
from gevent import subprocess

from devices.plain_sockets import (
    ANY_PORT,
    GREETING,
    Clients,
    LaneRecorder,
    Notices,
    dial,
    ended,
    eventually,
    lane_door,
    open_files,
    receive,
    send,
    shake_hands,
)
from sluicemq_devices.sockets import Lane, LaneDoor, Switchboard

Started = Callable[[Any], Any]
Python = Callable[..., subprocess.Popen]


_WORKER = """
import sys, zmq
worker = zmq.Context().socket(zmq.REP)
worker.connect(sys.argv[1])
while True:
    worker.send(worker.recv())
"""


def test_every_rep_worker_has_a_lane_of_its_own_and_answers_on_it(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder))
    workers = [clients.connect(zmq.REP, door.address) for _ in range(3)]
    recorder.lane(2)
    for number, lane in enumerate(recorder.lanes):
        assert lane.writable
        lane.send([b"", b"job %d" % number])
    asked = [receive(worker) for worker in workers]
    assert sorted(asked) == [[b"job 0"], [b"job 1"], [b"job 2"]]
    for worker in workers:
        send(worker, b"done")
    eventually(lambda: recorder.messages == [[b"", b"done"]] * 3)
    assert {lane.peer for lane in recorder.lanes} >= {recorder.lanes[0].peer}
    assert len({lane.peer for lane in recorder.lanes}) == 3


def test_a_connection_that_never_finishes_its_handshake_opens_no_lane(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    board.handshake = 0.5
    door = started(lane_door(board, recorder))
    half = dial(door.address)
    half.sendall(GREETING)
    assert ended(half)
    eventually(lambda: door.connections == 0)
    assert (recorder.lanes, recorder.closed) == ([], [])


def test_a_lane_closes_when_its_worker_is_killed_and_waits_for_no_silence(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, python: Python
) -> None:
    door = started(lane_door(board, recorder, heartbeat=1000.0, silence=3000.0))
    for number in range(5):
        worker = python(_WORKER, door.address)
        lane = recorder.lane(number)
        lane.send([b"", b"job"])
        eventually(lambda wanted=number + 1: len(recorder.messages) == wanted)
        worker.send_signal(signal.SIGKILL)
        eventually(lambda wanted=number + 1: len(recorder.closed) == wanted)
    assert recorder.closed == recorder.lanes
    assert notices == []


def test_an_answer_sent_right_before_the_workers_exit_arrives_before_the_close(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder))
    for number in range(20):
        worker = shake_hands(door.address, b"REP")
        seen_at_close: list[int] = []

        def closed(seen: list[int] = seen_at_close) -> None:
            seen.append(len(recorder.messages))

        recorder.lane(number).on(closed=closed)
        worker.sendall(b"\x01\x00\x00\x04done")
        worker.close()
        eventually(lambda seen=seen_at_close: seen)
        assert seen_at_close == [number + 1]


def test_a_stopped_worker_is_seen_by_its_silence(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, python: Python
) -> None:
    door = started(lane_door(board, recorder, heartbeat=0.2, silence=3.0))
    stopped = python(_WORKER, door.address)
    recorder.lane(0)
    well = python(_WORKER, door.address)
    recorder.lane(1)
    stopped.send_signal(signal.SIGSTOP)
    eventually(lambda: recorder.closed)
    assert recorder.closed == [recorder.lanes[0]]
    assert "no answer to heartbeats" in notices.of("connections_cut")[0]
    assert well.poll() is None


def test_a_stopped_worker_is_seen_also_while_it_leaves_a_large_job_unread(
    board: Switchboard, recorder: LaneRecorder, started: Started, python: Python
) -> None:
    door = started(lane_door(board, recorder, heartbeat=0.1, silence=0.3))
    stopped = python(_WORKER, door.address)
    lane = recorder.lane()
    stopped.send_signal(signal.SIGSTOP)
    lane.send([b"", bytes(32 << 20)])
    eventually(lambda: recorder.closed)


def test_what_the_worker_does_not_take_is_held_until_it_does(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, kind="PUSH"))
    worker = clients.connect(zmq.PULL, door.address, rcvhwm=1)
    lane = recorder.lane()
    for number in range(200):
        lane.send([b"%d" % number, bytes(100_000)])
    assert lane.backlog > 100
    assert lane.held.bytes > 100 * 100_000
    assert not lane.writable
    assert [receive(worker)[0] for _ in range(200)] == [b"%d" % number for number in range(200)]
    eventually(lambda: recorder.unblocked and lane.writable)
    assert lane.backlog == 0


def test_a_paused_lane_is_not_read(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder))
    clients = [shake_hands(door.address, b"DEALER") for _ in range(2)]
    recorder.lane(1)
    paused = next(lane for lane in recorder.lanes if lane.peer.endswith(f":{clients[0].getsockname()[1]}"))
    paused.pause()
    clients[0].sendall(b"\x00\x06second")
    for number in range(50):
        clients[1].sendall(b"\x00\x05other")
        eventually(lambda wanted=number + 1: recorder.messages.count([b"other"]) == wanted)
    assert [b"second"] not in recorder.messages
    paused.resume()
    eventually(lambda: recorder.messages[-1] == [b"second"])


def test_two_pauses_must_both_end(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder))
    client = shake_hands(door.address, b"DEALER")
    lane = recorder.lane()
    lane.pause()
    door.pause()
    client.sendall(b"\x00\x05hello")
    door.resume()
    assert not lane.reading
    other = shake_hands(door.address, b"DEALER")
    for _ in range(5):
        other.sendall(b"\x00\x05other")
    eventually(lambda: recorder.messages == [[b"other"]] * 5)
    lane.resume()
    eventually(lambda: recorder.messages[5:] == [[b"hello"]])


def test_the_end_of_a_client_is_seen_though_its_lane_is_paused_and_what_it_had_sent_is_read(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder))
    client = shake_hands(door.address, b"DEALER")
    recorder.lane().pause()
    for _ in range(2):
        client.sendall(b"\x00\x04work")
    client.close()
    eventually(lambda: recorder.closed)
    assert recorder.messages == [[b"work"], [b"work"]]


def test_a_paused_door_reads_none_of_its_lanes_nor_one_that_was_being_accepted(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, kind="ROUTER"))
    askers = [clients.connect(zmq.DEALER, door.address) for _ in range(2)]
    for asker in askers:
        send(asker, b"before")
    recorder.lane(1)
    eventually(lambda: door.received == 2)
    door.pause()
    askers.append(clients.connect(zmq.DEALER, door.address))
    eventually(lambda: door.connections == 3)
    for asker in askers:
        send(asker, b"meanwhile")
    assert not any(lane.reading for lane in door.lanes)
    assert len(door.lanes) == 3
    door.resume()
    eventually(lambda: door.received == 5)
    door.stop()
    assert door.received == 5


def test_a_router_lane_holds_answers_until_they_are_read(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, kind="ROUTER"))
    asker = clients.connect(zmq.DEALER, door.address, rcvhwm=1)
    send(asker, b"", b"question")
    lane = recorder.lane()
    eventually(lambda: recorder.messages)
    ((identity, *question),) = recorder.messages
    assert question == [b"", b"question"]
    for number in range(200):
        lane.send([identity, b"", b"%d" % number, bytes(100_000)])
    assert lane.backlog > 100
    assert not lane.writable
    assert [receive(asker)[1] for _ in range(200)] == [b"%d" % number for number in range(200)]
    eventually(lambda: recorder.unblocked and lane.writable)


def test_answers_to_one_that_has_left_unread_ones_end_with_its_lane(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, kind="ROUTER"))
    asker = clients.connect(zmq.DEALER, door.address, rcvhwm=1)
    send(asker, b"", b"question")
    lane = recorder.lane()
    eventually(lambda: recorder.messages)
    for _ in range(200):
        lane.send([recorder.messages[0][0], b"", bytes(100_000)])
    assert lane.backlog
    asker.close(linger=0)
    eventually(lambda: recorder.closed == [lane])
    lane.send([recorder.messages[0][0], b"", b"too late"])
    assert not lane.writable
    assert notices == []


def test_what_was_given_back_of_one_that_has_left_comes_again_once_its_lane_is_read(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    # Given a lane whose receiver has paused it, and given back what came
    door = started(lane_door(board, recorder))
    asker = clients.connect(zmq.DEALER, door.address)
    lane = recorder.lane()
    given: list[Any] = []

    def give_back(messages: list[list[bytes]]) -> None:
        given.append(messages)
        lane.pause("debt")
        lane.take_back(messages)

    lane.on(receive=give_back)
    send(asker, b"job")
    eventually(lambda: given)
    # When its client leaves
    asker.close(linger=0)
    eventually(lane.look_for_its_end)
    for _ in range(100):
        gevent.sleep(0.0001)
    # Then it comes again when the lane is read, and not before
    assert len(given) == 1
    lane.on(receive=recorder.messages.extend)
    lane.resume("debt")
    eventually(lambda: recorder.messages == [[b"job"]])
    eventually(lambda: recorder.closed == [lane])


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "reading"])
def test_closing_a_lane_flushes_what_was_sent_then_ends_the_connection(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    clients: Clients,
    *,
    paused: bool,
) -> None:
    door = started(lane_door(board, recorder))
    worker = clients.connect(zmq.DEALER, door.address)
    lane = recorder.lane()
    if paused:
        lane.pause()
    for number in range(50):
        lane.send([b"%d" % number, bytes(10_000)])
    lane.close()
    lane.close()
    assert not lane.writable
    lane.send([b"too late"])
    assert [receive(worker)[0] for _ in range(50)] == [b"%d" % number for number in range(50)]
    eventually(lambda: recorder.closed == [lane])
    recorder.lane(1)  # libzmq connects anew
    assert worker.poll(0) == 0
    assert notices == []


def test_a_closing_lane_is_not_writable(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder))
    client = shake_hands(door.address, b"DEALER")
    lane = recorder.lane()
    assert lane.writable
    lane.close()
    assert not lane.writable
    assert ended(client)


def test_closing_a_lane_whose_client_reads_nothing_ends_its_connection_too(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder))
    client = shake_hands(door.address, b"DEALER")
    lane = recorder.lane()
    for _ in range(100):
        lane.send([bytes(1_000_000)])
    lane.close()
    eventually(lambda: recorder.closed)
    assert ended(client)


def test_a_lane_door_can_be_the_one_that_connects(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    worker, end = clients.bind(zmq.REP)
    started(lane_door(board, recorder, at=end))
    lane = recorder.lane()
    assert lane.peer == end.address
    lane.send([b"", b"job"])
    assert receive(worker) == [b"job"]
    send(worker, b"done")
    eventually(lambda: recorder.messages == [[b"", b"done"]])


def test_a_callback_that_raises_ends_neither_its_lane_nor_others(
    board: Switchboard, recorder: LaneRecorder, started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_lane: Lane) -> None:
        raise RuntimeError("not ready for lanes")

    door = started(LaneDoor(board, ANY_PORT, "DEALER", fail, max_frame=1000))
    client = shake_hands(door.address, b"DEALER")
    eventually(lambda: "not ready for lanes" in caplog.text)
    assert door.connections == 1
    client.close()
    eventually(lambda: door.connections == 0)


def test_starting_and_stopping_twice_or_out_of_order_is_harmless_and_leaves_no_files(
    board: Switchboard, recorder: LaneRecorder, clients: Clients
) -> None:
    door = lane_door(board, recorder)
    door.stop()
    door.stop()
    files = open_files()
    for _ in range(2):
        door.start()
        door.start()
        count = len(recorder.lanes)
        connected = [shake_hands(door.address, b"DEALER") for _ in range(10)]
        recorder.lane(count + 9)
        door.stop()
        door.stop()
        assert all(ended(client) for client in connected)
        for client in connected:
            client.close()
    eventually(lambda: len(recorder.closed) == 20)
    eventually(lambda: open_files() <= files + 1)
