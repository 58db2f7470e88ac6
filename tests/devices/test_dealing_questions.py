"""A QUEUE deals questions, and knows who has asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
import zmq

from devices.plain_sockets import ANY_PORT, Clients, Notices, eventually, receive, send, shake_hands
from sluicemq_devices.relays import QueueDevice
from sluicemq_devices.sockets import Switchboard
from sluicemq_devices.zmtp import encode
from support.virtual_time import VirtualTime

Started = Callable[[Any], Any]


def test_answers_for_one_that_has_gone_are_dropped_and_noticed_and_others_get_theirs(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = clients.connect(zmq.DEALER, back)
    goner, other = clients.connect(zmq.REQ, front), clients.connect(zmq.REQ, front)
    eventually(lambda: queue.clients.connections == 2)
    send(goner, b"first")
    first = receive(worker)
    goner.close()
    eventually(lambda: queue.clients.connections == 1)
    send(other, b"second")
    second = receive(worker)
    for question in (first, [b"no envelope", b""], [bytes(100_000), b""], second):
        send(worker, *question[:-1], b"answer")
    assert receive(other) == [b"answer"]
    assert len(notices.of("replies_dropped")) == 3
    assert "the client has left or does not read" in notices.of("replies_dropped")[0]


def test_answers_past_the_mark_of_one_that_does_not_read_are_dropped_and_noticed(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT, hwm=50))
    front, back = queue.addresses
    worker = clients.connect(zmq.REP, back, sndhwm=0)
    deaf, other = shake_hands(front, b"DEALER"), clients.connect(zmq.REQ, front)
    deaf.sendall(b"\1\0\0\1?" * 200)
    for _ in range(200):
        send(worker, receive(worker)[0] + bytes(200_000))
    eventually(lambda: notices.of("replies_dropped"))
    send(other, b"question")
    send(worker, b"answer to " + receive(worker)[0])
    assert receive(other) == [b"answer to question"]


def test_an_answer_amid_a_stop_is_passed_on(board: Switchboard, started: Started, clients: Clients) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT, answering=60.0))
    front, back = queue.addresses
    asker, worker = clients.connect(zmq.REQ, front), clients.connect(zmq.REP, back)
    send(asker, b"question")
    assert receive(worker) == [b"question"]
    stopping = gevent.spawn(queue.stop)
    eventually(lambda: queue.ending)
    send(worker, b"answer")
    assert receive(asker) == [b"answer"]
    stopping.get(timeout=60)


def test_an_answer_may_be_as_large_as_a_question(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT, hwm_bytes=100_000))
    front, back = queue.addresses
    asker, worker = clients.connect(zmq.REQ, front), clients.connect(zmq.REP, back)
    send(asker, bytes(100_000))
    send(worker, *receive(worker))
    assert receive(asker) == [bytes(100_000)]
    assert not notices


def test_a_queue_that_stops_takes_no_more_in_and_answers_what_it_held(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    # Given a client that asks more than the queue holds without a worker
    clock = VirtualTime()
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT, hwm=10, answering=1.0))
    queue.now = clock.now
    front, back = queue.addresses
    asker = clients.connect(zmq.DEALER, front)
    for number in range(500):
        send(asker, b"", b"%d" % number, bytes(100_000))
    eventually(lambda: queue.mark.is_full)
    # When it stops, and a worker comes only later than answers are waited for
    stopping = gevent.spawn(queue.stop)
    eventually(lambda: queue.ending)
    clock.value += 2.0
    held = queue.received
    worker = clients.connect(zmq.REP, back)
    for _ in range(held):
        question, _ = receive(worker)
        send(worker, question)
    # Then what it held is answered, and nothing else was taken in
    assert [receive(asker)[1] for _ in range(held)] == [b"%d" % number for number in range(held)]
    stopping.get(timeout=60)
    assert queue.received == held


def test_a_queue_started_again_serves(board: Switchboard, started: Started, clients: Clients) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    queue.stop()
    queue.start()
    front, back = queue.addresses
    asker, worker = clients.connect(zmq.REQ, front), clients.connect(zmq.REP, back)
    send(asker, b"question")
    assert receive(worker) == [b"question"]


def asked(
    clients: Clients, front: str, worker: zmq.Socket[bytes], name: bytes, question: bytes
) -> tuple[zmq.Socket[bytes], list[bytes]]:
    """A client with a routing id that asks something; and what a worker gets of it."""
    client = clients.connect(zmq.DEALER, front, **({"routing_id": name} if name else {}))
    send(client, b"", question)
    return client, receive(worker)


@pytest.mark.parametrize("name", [b"a", b"alice", bytes(range(1, 256)), b"\1" + bytes(4)], ids=len)
def test_workers_get_the_routing_id_of_a_client_and_answer_to_it(
    board: Switchboard, started: Started, clients: Clients, name: bytes
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    for kind in (zmq.DEALER, zmq.ROUTER):
        worker = clients.connect(kind, back)
        client, question = asked(clients, front, worker, name, b"question")
        assert question[-3:] == [name, b"", b"question"]
        send(worker, *question[:-1], b"answer")
        assert receive(client) == [b"", b"answer"]
        client.close()
        worker.close()
        eventually(lambda: not (queue.clients.connections or queue.workers.connections))


def test_clients_without_a_routing_id_get_one_of_five_bytes_that_nobody_has(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = clients.connect(zmq.DEALER, back)
    taken = b"\0\0\0\0\1"
    _, first = asked(clients, front, worker, taken, b"?")
    _, second = asked(clients, front, worker, b"", b"?")
    assert first[0] == taken
    assert (len(second[0]), second[0][:1]) == (5, b"\0")
    assert second[0] != taken


def test_an_answer_finds_a_client_that_has_connected_anew_under_its_routing_id(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = clients.connect(zmq.DEALER, back)
    before, question = asked(clients, front, worker, b"alice", b"question")
    before.close()
    eventually(lambda: not queue.clients.connections)
    now, _ = asked(clients, front, worker, b"alice", b"another")
    send(worker, *question[:-1], b"answer")
    assert receive(now) == [b"", b"answer"]
    assert not notices


def test_a_client_back_at_a_full_queue_has_its_routing_id(started: Started, clients: Clients) -> None:
    # Given a queue that reads nothing more of a client, which has gone unseen
    board = started(Switchboard(handshake=30.0, glance=1000.0))
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT, hwm=2))
    front, back = queue.addresses
    before = shake_hands(front, b"DEALER", identity=b"alice")
    before.sendall(encode([b"", b"?"]) * 2)
    eventually(lambda: queue.mark.is_full)
    before.sendall(encode([b"", b"unread"]))
    (old,) = queue.clients.lanes
    before.close()
    # When it comes back
    queue.clients.entrance.resume()
    now = clients.connect(zmq.DEALER, front, routing_id=b"alice")
    send(now, b"", b"later")
    eventually(lambda: queue.clients_by_envelope.get(b"\1\5alice") not in (None, old))
    # Then it gets the answers to what it has asked before, too
    worker = clients.connect(zmq.REP, back)
    got = []
    for _ in range(3):
        (question,) = receive(worker)
        send(worker, question)
        got.append(receive(now)[1])
    assert got[:2] == [b"?", b"?"]


def test_two_clients_of_one_routing_id_are_both_served_the_second_under_another(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = clients.connect(zmq.DEALER, back)
    both = [asked(clients, front, worker, b"alice", question) for question in (b"first", b"second")]
    (_, one), (_, two) = both
    assert one[0] == b"alice"
    assert two[0] != b"alice"
    for client, question in reversed(both):
        send(worker, *question[:-1], b"re " + question[-1])
        assert receive(client) == [b"", b"re " + question[-1]]
    # When the first has gone, the second is still the one it was
    both[0][0].close()
    eventually(lambda: queue.clients.connections == 1)
    send(worker, *two[:-1], b"more")
    assert receive(both[1][0]) == [b"", b"more"]


def test_an_answer_for_a_client_of_the_device_that_was_here_before_reaches_no_client_of_this_one(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    # Given the first client of a device that has ended, and the first one of the next device
    former, queue = (started(QueueDevice(board, ANY_PORT, ANY_PORT)) for _ in range(2))
    asker = clients.connect(zmq.REQ, former.addresses[0])
    worker = clients.connect(zmq.DEALER, former.addresses[1])
    send(asker, b"question")
    question = receive(worker)
    asker = clients.connect(zmq.REQ, queue.addresses[0])
    worker = clients.connect(zmq.DEALER, queue.addresses[1])
    send(asker, b"another question")
    another = receive(worker)
    # When a worker answers the former one there
    for envelope in (question, another):
        send(worker, *envelope[:-1], b"answer to " + envelope[-1])
    assert receive(asker) == [b"answer to another question"]


def test_answers_to_nobody_and_in_any_form_do_not_harm_those_of_others(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = shake_hands(back, b"REP")
    client = clients.connect(zmq.DEALER, front, routing_id=b"al")
    send(client, b"", b"question")
    eventually(lambda: worker.recv(100))
    long_id = b"\3" + (2).to_bytes(8) + b"al"
    for answer in (
        b"\0\2al",  # an identity and nothing else
        b"\1\3ali\0\1a",  # somebody else's
        b"\1\2al\1\0\0\1a",
        b"\3" + (300).to_bytes(8) + b"x" * 300 + b"\0\1a",  # nobody has one that long
        long_id + b"\1\0\0\1b",
        b"\1\0\0\1c",
        b"\1\2al\1\0\0\1d",
    ):
        worker.sendall(answer)
    assert [receive(client)[1] for _ in range(3)] == [b"a", b"b", b"d"]
    assert len(eventually(lambda: notices.of("replies_dropped"))) == 4


def test_questions_that_a_killed_worker_had_are_lost_and_counted_as_are_those_of_a_proxy(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    # Given a worker with five questions
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = shake_hands(back, b"REP")
    asker = clients.connect(zmq.DEALER, front, routing_id=b"al")
    for number in range(6):
        send(asker, b"", b"%d" % number)
    heard = b""
    while heard.count(b"\0\1") < 6:
        heard += worker.recv(1000)
    worker.sendall(heard[: heard.index(b"\0\1")] + b"\0\1!")
    assert receive(asker) == [b"", b"!"]
    # When it is killed
    worker.close()
    assert "has left with 5 requests" in eventually(lambda: notices.of("questions_lost"))[0]
    other = clients.connect(zmq.REP, back)
    send(asker, b"", b"again")
    assert receive(other) == [b"again"]
