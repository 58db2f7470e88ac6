"""The subscribers of ``sluicemq bench stream``: they count what libzmq's PUB sends, and no probes."""

from __future__ import annotations

import threading
from multiprocessing import Pipe

import zmq

from sluicemq_bench.subscribers import listen
from support.waiting import TIMEOUT, wait_until

#: Seconds in which a test that has sent a probe sends what is counted, on a machine that is busy.
_SILENCE = 3.0


def test_all_messages_behind_the_probes_are_counted_for_each_subscriber() -> None:
    ours, theirs = Pipe()
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        pub.sndhwm = 0
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        count = threading.Thread(
            target=listen, args=(f"tcp://127.0.0.1:{port}", 3, 500, b"probe", TIMEOUT, theirs)
        )
        count.start()
        wait_until(
            lambda: (pub.send_multipart([b"probe", b""]), ours.poll(0.02))[1], what="three subscribers"
        )
        assert ours.recv() == 0

        for number in range(500):
            pub.send_multipart([b"t", b"%0300d" % number])

        got, ended = ours.recv()
        count.join(TIMEOUT)
    assert got == 1500
    assert ended > 0


def test_what_does_not_come_is_not_counted() -> None:
    ours, theirs = Pipe()
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        count = threading.Thread(
            target=listen, args=(f"tcp://127.0.0.1:{port}", 1, 500, b"probe", _SILENCE, theirs)
        )
        count.start()
        wait_until(lambda: (pub.send_multipart([b"probe", b""]), ours.poll(0.02))[1], what="a subscriber")
        ours.recv()
        pub.send_multipart([b"t", b"one"])
        assert ours.recv()[0] == 1
        count.join(TIMEOUT)
