from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import zmq
from gevent import subprocess

from devices.plain_sockets import (
    ANY_PORT,
    Clients,
    Notices,
    eventually,
    open_files,
    receive,
    send,
    shake_hands,
)
from sluicemq_devices.relays import Forwarder, QueueDevice, Streamer
from sluicemq_devices.relays.bounds import BOUNDS, Bounds
from sluicemq_devices.relays.subscriber import weight_of
from sluicemq_devices.sockets import Endpoint, Switchboard
from sluicemq_devices.zmtp import encode

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

Started = Callable[[Any], Any]


class Alone:
    """``python -m sluicemq_devices …`` as a process of its own, or other code that takes its arguments."""

    def __init__(self, arguments: tuple[object, ...], code: str = "") -> None:
        program = ["-c", code] if code else ["-m", "sluicemq_devices"]
        command = [sys.executable, *program, *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)

    def doors(self) -> tuple[str, str]:
        """Its frontend and its backend, from the line that it prints at the start."""
        line = self.process.stderr.readline().decode()
        assert "frontend" in line, line
        _, _, front, _, back = line.split()
        return front.rstrip(","), back

    def end(self) -> str:
        self.process.kill()
        self.process.wait()
        with self.process.stderr as stderr:
            return str(stderr.read().decode())


Run = Callable[..., Alone]


@pytest.fixture
def alone() -> Iterator[Run]:
    runs: list[Alone] = []

    def run(*arguments: object, code: str = "") -> Alone:
        runs.append(Alone(arguments, code))
        return runs[-1]

    yield run
    for broker in runs:
        if not broker.process.stderr.closed:
            broker.end()


ENDS = pytest.mark.parametrize("connecting", ["neither", "frontend", "backend", "both"])


def join(
    alone: Run, clients: Clients, name: str, connecting: str, front: int, back: int
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Plain sockets at both ends of a device of which these ends connect; the others bind."""
    bound: dict[str, tuple[zmq.Socket[bytes], Endpoint]] = {}
    for end, kind in (("frontend", front), ("backend", back)):
        if connecting in (end, "both"):
            bound[end] = clients.bind(kind)
    device = alone(name, *(bound[end][1] if end in bound else ANY_PORT for end in ("frontend", "backend")))
    doors = dict(zip(("frontend", "backend"), device.doors(), strict=True))
    first, second = (
        bound[end][0] if end in bound else clients.connect(kind, doors[end])
        for end, kind in (("frontend", front), ("backend", back))
    )
    return first, second


@pytest.mark.one_in(4)
@ENDS
def test_a_streamer_alone_relays_from_push_to_pull(alone: Run, clients: Clients, connecting: str) -> None:
    push, pull = join(alone, clients, "streamer", connecting, zmq.PUSH, zmq.PULL)
    for number in range(100):
        send(push, b"%d" % number, b"", b"part")
    assert [receive(pull) for _ in range(100)] == [[b"%d" % n, b"", b"part"] for n in range(100)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("host", ["[::1]", "localhost", "lo"])
def test_a_device_alone_listens_and_dials_anywhere(alone: Run, clients: Clients, host: str) -> None:
    first = alone("streamer", f"tcp://{host}:*", f"tcp://{host}:0")
    front, back = first.doors()
    second = alone("streamer", f">{back}", f"@tcp://{host}:0")
    push, pull = (
        clients.connect(kind, address, ipv6=host == "[::1]")
        for kind, address in ((zmq.PUSH, front), (zmq.PULL, second.doors()[1]))
    )
    send(push, b"job")
    assert receive(pull) == [b"job"]


@ENDS
def test_a_queue_alone_relays_questions_and_answers(alone: Run, clients: Clients, connecting: str) -> None:
    asker, worker = join(alone, clients, "queue", connecting, zmq.REQ, zmq.REP)
    for number in range(20):
        send(asker, b"%d" % number)
        assert receive(worker) == [b"%d" % number]
        send(worker, b"answer %d" % number)
        assert receive(asker) == [b"answer %d" % number]


@ENDS
def test_a_forwarder_alone_relays_both_ways(alone: Run, clients: Clients, connecting: str) -> None:
    publisher, subscriber = join(alone, clients, "forwarder", connecting, zmq.XPUB, zmq.SUB)
    subscriber.subscribe(b"news")
    eventually(lambda: subscriber.poll(0) or publisher.poll(0))  # libzmq works only when it is called
    assert receive(publisher) == [b"\x01news"]
    send(publisher, b"weather", b"rain")
    send(publisher, b"news", b"none")
    assert receive(subscriber) == [b"news", b"none"]
    subscriber.unsubscribe(b"news")
    assert receive(publisher) == [b"\x00news"]


BODIES = pytest.mark.parametrize(
    "body",
    [
        [b""],
        [b"x" * 255],
        [b"x" * 256],
        [b"one", b"", b"three", b""],
        [bytes(65_535), bytes(65_536), b"", bytes(65_537)],
        [b"first", bytes(range(256)) * (12 << 12)],
        [bytes(range(256)) * (12 << 12)],
    ],
    ids=lambda body: "+".join(str(len(frame)) for frame in body),
)


@BODIES
def test_messages_of_any_shape_are_relayed(
    board: Switchboard, started: Started, clients: Clients, body: list[bytes]
) -> None:
    streamer, forwarder, queue = (
        started(kind(board, ANY_PORT, ANY_PORT)) for kind in (Streamer, Forwarder, QueueDevice)
    )
    beats = {"heartbeat_ivl": 20, "heartbeat_timeout": 5000}
    push, publisher, asker = (
        clients.connect(kind, device.addresses[0], **beats)
        for kind, device in ((zmq.PUSH, streamer), (zmq.XPUB, forwarder), (zmq.REQ, queue))
    )
    pull, subscriber, worker = (
        clients.connect(kind, device.addresses[1], **beats)
        for kind, device in ((zmq.PULL, streamer), (zmq.SUB, forwarder), (zmq.REP, queue))
    )
    subscriber.subscribe(body[0][:10])
    assert receive(publisher) == [b"\1" + body[0][:10]]
    for _ in range(2):
        for there, here in ((push, pull), (publisher, subscriber), (asker, worker), (worker, asker)):
            send(there, *body)
            assert receive(here) == body


def test_answers_of_a_queue_find_their_asker(board: Switchboard, started: Started, clients: Clients) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    askers = [clients.connect(zmq.REQ, front) for _ in range(3)]
    workers = [clients.connect(zmq.REP, back) for _ in range(2)]
    for number, asker in enumerate(askers):
        send(asker, b"%d" % number)
    for _ in askers:
        worker = eventually(lambda: next((worker for worker in workers if worker.poll(0)), None))
        send(worker, b"re " + receive(worker)[0])
    assert [receive(asker) for asker in askers] == [[b"re 0"], [b"re 1"], [b"re 2"]]


def test_a_queue_relays_a_probe_as_libzmq(board: Switchboard, started: Started, clients: Clients) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = clients.connect(zmq.DEALER, back)
    _asking = clients.connect(zmq.REQ, front, probe_router=1)
    asker, probe = receive(worker)
    assert (len(asker), probe) == (5, b"")


def test_a_rep_worker_ignores_a_relayed_probe(board: Switchboard, started: Started, clients: Clients) -> None:
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    worker = clients.connect(zmq.REP, back)
    asker = clients.connect(zmq.REQ, front, probe_router=1)
    for number in range(5):
        send(asker, b"%d" % number)
        assert receive(worker) == [b"%d" % number]
        send(worker, b"answer %d" % number)
        assert receive(asker) == [b"answer %d" % number]


def test_a_burst_of_answers_to_one_client_that_reads_late_is_not_dropped(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    # Given a client with 3,000 questions, that takes no answer yet
    queue = started(QueueDevice(board, ANY_PORT, ANY_PORT))
    front, back = queue.addresses
    asker = clients.connect(zmq.DEALER, front, rcvhwm=1, rcvbuf=10_000)
    other = clients.connect(zmq.REQ, front)
    worker = clients.connect(zmq.REP, back, sndhwm=0)  # a REP whose own mark is reached drops answers
    for number in range(3000):
        send(asker, b"", b"%d" % number)
    # When they are answered, with more than the kernel takes, and a last one of somebody else's
    for number in range(3001):
        if number == 3000:
            send(other, b"last")
        (question,) = receive(worker)
        send(worker, question + bytes(10_000))
    assert receive(other)[0].startswith(b"last")
    # Then it gets them all, when it reads
    answers = [receive(asker)[1].rstrip(b"\0") for _ in range(3000)]
    assert answers == [b"%d" % number for number in range(3000)]
    assert not notices.of("replies_dropped")


def test_two_subscribers_of_one_topic_are_one_subscription_upstream_until_both_are_gone(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    forwarder = started(Forwarder(board, [ANY_PORT], [ANY_PORT, ANY_PORT]))
    front, *backs = forwarder.addresses
    publisher = clients.connect(zmq.XPUB, front)
    subscribers = [clients.connect(zmq.SUB, back) for back in backs]
    for subscriber in subscribers:
        subscriber.subscribe(b"a")
    assert receive(publisher) == [b"\x01a"]
    eventually(
        lambda: (
            [len(subscriber.topics) for subscriber in forwarder.fan_out.subscriptions.subscribers] == [1, 1]
        )
    )
    # When the first leaves, the second still gets messages
    subscribers[0].close()
    send(publisher, b"abc")
    assert receive(subscribers[1]) == [b"abc"]
    # When the second is killed too, the subscription is taken back
    subscribers[1].close()
    assert receive(publisher) == [b"\x00a"]


@pytest.mark.parametrize("start", [b"a", b"t" * 300], ids=["short", "long"])
def test_only_the_first_frame_is_the_topic(board: Switchboard, started: Started, start: bytes) -> None:
    # Given a subscriber of what a message looks like on the wire beyond its first frame
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT))
    front, back = forwarder.addresses
    publisher, subscriber = shake_hands(front, b"PUB"), shake_hands(back, b"SUB")  # libzmq's filter too
    subscriber.sendall(encode([b"\1" + start + b"\0\x01b"]))
    eventually(lambda: forwarder.upstream.wanted)
    publisher.sendall(encode([start, b"b"]))
    publisher.sendall(wanted := encode([start + b"\0\x01bc", b"b"]))
    assert subscriber.recv(4096) == wanted


def test_a_publisher_that_comes_later_is_told_all_topics_and_nothing_else(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    # Given subscribers, of which one also says what is no subscription
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT))
    front, back = forwarder.addresses
    first = clients.connect(zmq.XPUB, front)
    subscriber = clients.connect(zmq.XSUB, back)
    topics = {b"%d" % number for number in range(500)}
    send(subscriber, b"\2 for nobody")
    for topic in topics:
        send(subscriber, b"\1" + topic)
    send(subscriber, b"\1gone")
    send(subscriber, b"\0gone")
    assert {receive(first)[0] for _ in topics} >= {b"\1" + topic for topic in topics}
    eventually(lambda: set(forwarder.upstream.wanted) == topics)
    later = clients.connect(zmq.XPUB, front)
    told = {receive(later)[0] for _ in range(500)}
    assert told == {b"\1" + topic for topic in topics}
    assert not later.poll(50)


def test_a_publisher_that_did_not_read_hears_what_changed(board: Switchboard, started: Started) -> None:
    # Given a publisher that reads nothing, and a subscriber whose topics are more than the kernel takes
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT))
    front, back = forwarder.addresses
    deaf = shake_hands(front, b"PUB")
    eventually(lambda: forwarder.upstream.publishers)
    ((lane, _),) = forwarder.upstream.publishers.items()
    subscribers = []
    while lane.writable:
        subscribers.append(shake_hands(back, b"SUB"))
        topics = [b"%08d" % len(subscribers) + b"%04000d" % number for number in range(250)]
        subscribers[-1].sendall(b"".join(encode([b"\1" + topic]) for topic in topics))
        eventually(lambda: len(forwarder.upstream.wanted) == 250 * len(subscribers))
    # When it reads
    subscribers[0].sendall(b"\0\5\1last")
    heard = b""
    while not heard.endswith(b"\0\5\1last"):
        heard = heard[-100:] + deaf.recv(1 << 20)
    # Then it has heard all
    eventually(lambda: lane.writable)


@pytest.mark.parametrize("length", [16_385, 70_000])
def test_a_topic_that_is_too_long_is_refused_once_and_the_subscriber_stays(
    board: Switchboard, started: Started, clients: Clients, notices: Notices, length: int
) -> None:
    # Given a subscriber of a topic that is too long, of the longest, and of another
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT))
    front, back = forwarder.addresses
    publisher, subscriber = clients.connect(zmq.XPUB, front), clients.connect(zmq.SUB, back)
    for topic in (b"x" * length, b"y" * 16_384, b"a"):
        subscriber.subscribe(topic)
    assert [receive(publisher)[0] for _ in range(2)] == [b"\1" + b"y" * 16_384, b"\1a"]
    for topic in (b"x" * length, b"y" * 16_384, b"abc"):
        send(publisher, topic, b"body")
    assert [receive(subscriber)[0] for _ in range(2)] == [b"y" * 16_384, b"abc"]
    (notice,) = notices
    assert notice[0] == "subscriptions_refused"
    assert f"a topic of {length} bytes, more than 16384" in notice[1]
    # And it can be taken back
    for topic in (b"x" * length, b"y" * 16_384):
        subscriber.unsubscribe(topic)
    assert receive(publisher)[0] == b"\0" + b"y" * 16_384


def test_a_large_subscription_may_be_too_long(board: Switchboard, started: Started, notices: Notices) -> None:
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT))
    greedy = shake_hands(forwarder.addresses[1], b"SUB")
    greedy.sendall(encode([b"\1" + bytes(100_000)]))
    assert "a topic of 100000 bytes" in eventually(lambda: notices.of("subscriptions_refused"))[0]


ROOM = 100 * weight_of(b"t0000")  # for a hundred topics


@pytest.mark.parametrize(
    ("bounds", "of", "why"),
    [
        (BOUNDS._replace(bytes_of_one=ROOM), 1, "its 100 topics take"),
        (BOUNDS._replace(bytes_of_all=ROOM), 2, "topics of all subscribers take"),
    ],
    ids=["of one", "of all"],
)
def test_topics_beyond_what_memory_allows_are_refused_and_counted_and_the_others_serve(
    board: Switchboard,
    started: Started,
    clients: Clients,
    notices: Notices,
    bounds: Bounds,
    of: int,
    why: str,
) -> None:
    # Given room for a hundred topics, and two subscribers of as many together
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT, bounds=bounds))
    front, back = forwarder.addresses
    publisher = clients.connect(zmq.XPUB, front)
    first, greedy = clients.connect(zmq.SUB, back), clients.connect(zmq.SUB, back)
    for number in range(50 if of > 1 else 0):
        first.subscribe(b"t%04d" % number)
        assert receive(publisher)
    # When one wants thirty more
    for number in range(50 if of > 1 else 0, 130):
        greedy.subscribe(b"t%04d" % number)
    # Then it gets what there is room for
    told = [receive(publisher)[0] for _ in range(50 if of > 1 else 100)]
    assert told[-1] == b"\1t0099"
    assert len(eventually(lambda: len(notices) == 30 and notices.of("subscriptions_refused"))) == 30
    assert why in notices[0][1]
    for topic in (b"t0129", b"t0099"):
        send(publisher, topic)
    assert receive(greedy) == [b"t0099"]
    # And when it has left, there is room for others
    greedy.close()
    eventually(lambda: len(forwarder.upstream.wanted) == (50 if of > 1 else 0))
    assert forwarder.fan_out.subscriptions.weight == (50 if of > 1 else 0) * weight_of(b"t0000")


@pytest.mark.full
def test_a_hundred_thousand_topics_of_ten_subscribers_are_served_and_given_up_in_many_turns(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT))
    front, back = forwarder.addresses
    publisher = shake_hands(front, b"PUB")  # a libzmq's filter would have to hear of all topics first
    subscribers = [clients.connect(zmq.SUB, back, sndhwm=0) for _ in range(10)]  # or it forgets some
    for at, subscriber in enumerate(subscribers):
        for number in range(10_000):
            subscriber.subscribe(b"%d.%04d" % (at, number))
        subscriber.subscribe(b"5.77")  # and one that two want
    eventually(lambda: len(forwarder.upstream.wanted) == 100_001)
    for at in range(10):
        publisher.sendall(encode([b"%d.9999" % at, b"body"]))
    publisher.sendall(encode([b"5.7788", b"body"]))
    # Then each gets its own, once
    for at, subscriber in enumerate(subscribers):
        assert receive(subscriber) == [b"%d.9999" % at, b"body"]
        assert receive(subscriber) == [b"5.7788", b"body"]
    # And when one leaves, it takes many turns of the hub
    someone = max(forwarder.fan_out.subscriptions.subscribers, key=lambda subscriber: len(subscriber.topics))
    someone.leave()
    assert len(someone.topics) > 8000
    eventually(lambda: not someone.topics)
    assert not notices


def test_a_slow_subscriber_loses_what_goes_beyond_its_mark_counted_and_others_lose_nothing(
    board: Switchboard, started: Started, clients: Clients, notices: Notices
) -> None:
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT, hwm=50))
    front, back = forwarder.addresses
    publisher = clients.connect(zmq.XPUB, front, sndhwm=0)
    slow, quick = (clients.connect(zmq.SUB, back, rcvhwm=1) for _ in range(2))
    slow.subscribe(b"big")
    quick.subscribe(b"")
    assert {receive(publisher)[0], receive(publisher)[0]} == {b"\x01big", b"\x01"}
    total = 400
    for number in range(total):
        send(publisher, b"big %d" % number, bytes(100_000))
        send(publisher, b"small")
        assert [receive(quick)[0] for _ in range(2)] == [b"big %d" % number, b"small"]
    kept = 0
    lost = eventually(lambda: forwarder.lost)
    while kept + lost < total:
        receive(slow)
        kept += 1
    eventually(lambda: forwarder.backlog == 0)
    assert slow.poll(0) == 0
    assert forwarder.lost == lost
    assert forwarder.received == 2 * total
    assert notices.of("subscribers_behind")


@pytest.mark.parametrize("options", [{"hwm": 200}, {"hwm_bytes": 200_000}], ids=["by count", "by bytes"])
def test_what_no_worker_takes_is_held_up_to_the_mark_then_the_producer_waits(
    board: Switchboard, started: Started, clients: Clients, options: dict[str, Any]
) -> None:
    streamer = started(Streamer(board, ANY_PORT, ANY_PORT, **options))
    front, back = streamer.addresses
    push = clients.connect(zmq.PUSH, front, sndhwm=10, sndbuf=10_000)
    sent, last = 0, time.monotonic()

    def blocked() -> bool:
        nonlocal sent, last
        while push.poll(0, zmq.POLLOUT):
            push.send(bytes(1000))
            sent, last = sent + 1, time.monotonic()
        return streamer.backlog >= 150 and time.monotonic() - last > 0.5

    eventually(blocked)
    assert streamer.backlog < 200 + 2000  # the mark, and what was on its way: about a MiB
    pull = clients.connect(zmq.PULL, back)
    assert {len(receive(pull)[0]) for _ in range(sent)} == {1000}
    eventually(lambda: streamer.backlog == 0)
    send(push, b"goes on")
    assert receive(pull) == [b"goes on"]


_FLOOD = """
import sys, zmq
push = zmq.Context().socket(zmq.PUSH)
push.connect(sys.argv[1])
while True:
    push.send(b"x" * 10_000)
"""


def test_a_flooded_device_stays_small(alone: Run, python: Callable[..., subprocess.Popen]) -> None:
    device = alone("streamer", ANY_PORT, ANY_PORT, "--hwm", 1000, "--hwm-bytes", 5_000_000)
    front, _ = device.doors()
    memory = psutil.Process(device.process.pid).memory_info
    before = memory().rss
    flood = psutil.Process(python(_FLOOD, front).pid)
    eventually(lambda: memory().rss - before > 4_000_000)
    eventually(lambda: flood.cpu_percent(0.2) < 1)  # it waits
    assert memory().rss - before < 40 << 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_flushes_it_and_ends_it_with_0(alone: Run, clients: Clients, number: signal.Signals) -> None:
    device = alone("streamer", ANY_PORT, ANY_PORT)
    front, back = device.doors()
    with shake_hands(front, b"PUSH") as producer:  # one of libzmq may have sent only a part by then
        producer.sendall(encode([bytes(100)]) * 500)
    pull = clients.connect(zmq.PULL, back, rcvhwm=10)
    assert receive(pull) == [bytes(100)]
    device.process.send_signal(number)
    assert [receive(pull) for _ in range(499)] == [[bytes(100)]] * 499
    assert device.process.wait(60) == 0
    assert "stopped after 500 messages" in device.end()


def test_a_signal_ends_it_within_its_deadline_though_nobody_takes(alone: Run, clients: Clients) -> None:
    device = alone("streamer", ANY_PORT, ANY_PORT)
    front, _ = device.doors()
    push = clients.connect(zmq.PUSH, front)
    send(push, b"for nobody")
    device.process.send_signal(signal.SIGTERM)
    assert device.process.wait(60) == 0


#: Its queue waits for answers as long as any test does.
_PATIENT = """
from sluicemq_devices.__main__ import main  # before all others, as a device starts
import sys
from functools import partial
from sluicemq_devices.relays import QueueDevice
sys.exit(main(devices={"queue": partial(QueueDevice, answering=60.0)}))
"""


def test_a_queue_that_ends_still_delivers_a_busy_workers_answer(alone: Run, clients: Clients) -> None:
    device = alone("queue", ANY_PORT, ANY_PORT, code=_PATIENT)
    front, back = device.doors()
    asker, worker = clients.connect(zmq.REQ, front), clients.connect(zmq.REP, back)
    send(asker, b"question")
    assert receive(worker) == [b"question"]
    device.process.send_signal(signal.SIGTERM)
    send(worker, b"answer")
    assert receive(asker) == [b"answer"]
    assert device.process.wait(60) == 0


def test_an_address_in_use_is_one_clear_line_and_exit_1(alone: Run, clients: Clients) -> None:
    _, end = clients.bind(zmq.PULL)
    device = alone("streamer", ANY_PORT, end.address)
    assert device.process.wait(60) == 1
    assert device.end() == f"streamer: {end.address} can't be bound: Address already in use\n"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("streamer", "udp://x", "tcp://127.0.0.1:0"), "neither tcp:// nor ipc://"),
        (("funnel", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), "invalid choice: 'funnel'"),
        (("queue", "tcp://127.0.0.1:0"), "required: BACKEND"),
        (("queue", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "--hwm", "0"), "argument --hwm"),
    ],
)
def test_wrong_usage_is_said_and_exits_2(alone: Run, arguments: tuple[object, ...], what: str) -> None:
    device = alone(*arguments)
    assert device.process.wait(60) == 2
    assert what in device.end()


@pytest.mark.parametrize("kind", [Streamer, QueueDevice, Forwarder])
def test_starting_and_stopping_twice_or_out_of_order_is_harmless_and_leaves_no_files(
    board: Switchboard, kind: type[Streamer | QueueDevice | Forwarder]
) -> None:
    device = kind(board, ANY_PORT, ANY_PORT)
    device.stop()
    files = open_files()
    for _ in range(2):
        device.start()
        device.start()
        device.stop()
        device.stop()
    eventually(lambda: open_files() == files)


def test_one_door_that_can_not_open_opens_no(board: Switchboard, started: Started, clients: Clients) -> None:
    _, taken = clients.bind(zmq.PULL)
    device = Streamer(board, Endpoint(taken.address, bind=True), ANY_PORT)
    files = open_files()
    with pytest.raises(OSError, match="can't be bound"):
        device.start()
    eventually(lambda: open_files() == files)


def test_a_door_that_other_machines_can_reach_is_refused_unless_it_is_meant(alone: Run) -> None:
    words = [sys.executable, "-m", "sluicemq_devices", "streamer", "tcp://*:*", "tcp://127.0.0.1:*"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "other machines can reach tcp://*:*, and clients need no key there" in done.stderr
    assert alone("streamer", "tcp://*:*", "tcp://127.0.0.1:*", "--insecure").doors()
