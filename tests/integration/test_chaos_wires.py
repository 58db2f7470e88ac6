"""Wires pass everything on, and fail between two places alone, as they are told."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

from chaos.dialers import Dialers, sockets_of
from chaos.wires import Network
from support.waiting import TIMEOUT, wait_until

#: Sends each line of its stdin to a port, and prints what comes back; "lost" when the connection ends.
_DIALER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
for line in sys.stdin:
    try:
        connection.sendall(line.encode())
        answer = connection.recv(1000)
    except OSError:
        answer = b""
    print(answer.decode().strip() or "lost", flush=True)
"""


class Dialer:
    """A process that dials a wire; what comes back is collected."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _DIALER, str(port)], stdin=-1, stdout=-1, stderr=-3, text=True
        )
        self.heard: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def say(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def wait(self, *heard: str) -> None:
        wait_until(lambda: self.heard == ["connected", *heard], what=f"{heard}")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._reader.join(TIMEOUT)

    def _read(self) -> None:
        assert self.process.stdout
        self.heard.extend(line.strip() for line in self.process.stdout)


class Echo:
    """A place that sends back whatever it receives."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.ended = 0
        self.received = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._echo, args=[connection], daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    self.received += data
                    connection.sendall(data)
            except OSError:
                pass
            self.ended += 1


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(Random(1)) as network:
        yield network


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def dial(network: Network, echo: Echo) -> Iterator[Callable[[str], Dialer]]:
    """A function that lets a place dial the echo, which is called "echo"."""
    port = network.wire("echo", echo.port)
    dialers: list[Dialer] = []

    def dial(place: str) -> Dialer:
        dialer = Dialer(port)
        network.knows(place, lambda: dialer.process.pid)
        dialers.append(dialer)
        return dialer

    yield dial
    for dialed in dialers:
        dialed.end()


Dial = Callable[[str], Dialer]


def test_the_kernel_tells_which_process_has_dialed() -> None:
    dialers = Dialers()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as ours:
        ours.connect(server.getsockname())
        theirs, address = server.accept()
        inode = dialers.inode(address, server.getsockname())
        theirs.close()
        assert inode in sockets_of(os.getpid())
        assert inode not in sockets_of(os.getppid())
        assert dialers.inode(("127.0.0.1", 1), server.getsockname()) == 0
    dialers.close()


def test_a_block_holds_back_what_two_places_send_each_other_alone(network: Network, dial: Dial) -> None:
    a, b = dial("a"), dial("b")
    for receipt in (a, b):
        receipt.say("before")
        receipt.wait("before")
    network.between("a", "echo").block()
    a.say("held")
    b.say("not held")
    b.wait("before", "not held")
    a.wait("before")
    network.between("a", "echo").restore()
    a.wait("before", "held")


def test_a_block_of_one_direction_lets_the_other_pass(network: Network, dial: Dial, echo: Echo) -> None:
    a = dial("a")
    a.say("before")
    a.wait("before")
    network.between("a", "echo").block("echo")
    a.say("heard by the echo alone")
    wait_until(lambda: echo.connections, what="a connection")
    a.wait("before")
    network.restore()
    a.wait("before", "heard by the echo alone")


def test_a_blocked_connection_opens_when_it_is_restored(network: Network, dial: Dial, echo: Echo) -> None:
    network.between("a", "echo").block()
    network.knows("a", os.getpid)
    with socket.create_connection(("127.0.0.1", network.wire("echo", echo.port)), TIMEOUT) as early:
        early.sendall(b"held")
        b = dial("b")
        b.say("not held")
        b.wait("not held")
        assert len(echo.connections) == 1
        network.restore()
        assert early.recv(100) == b"held"


def test_refused_connections_end_and_new_ones_are_not_taken(network: Network, dial: Dial) -> None:
    a, b = dial("a"), dial("b")
    for receipt in (a, b):
        receipt.say("before")
        receipt.wait("before")
    network.between("a", "echo").refuse()
    a.say("refused")
    b.say("taken")
    a.wait("before", "lost")
    b.wait("before", "taken")


def test_bytes_arrive_in_their_order_also_when_a_delay_ends(network: Network, dial: Dial) -> None:
    a = dial("a")
    a.wait()
    network.between("a", "echo").slow(0.2)
    words = [f"{number:03}" for number in range(50)]
    for at, word in enumerate(words):
        if at == len(words) // 2:
            network.restore()
        a.say(word)
    wait_until(lambda: "".join(a.heard[1:]).replace("\n", "") == "".join(words), what="all, in order")


def test_lost_answers_end_their_connection(network: Network, dial: Dial) -> None:
    a = dial("a")
    a.wait()
    network.between("a", "echo").lose(1.0)
    a.say("lost")
    a.wait("lost")


def test_the_dialed_end_of_a_half_open_one_does_not_hear(network: Network, dial: Dial, echo: Echo) -> None:
    a = dial("a")
    a.say("before")
    a.wait("before")
    network.between("a", "echo").halve()
    a.say("after")
    a.wait("before", "lost")
    assert echo.ended == 0
    network.restore()
    wait_until(lambda: echo.ended == 1, what="the end of the other half")


def test_what_was_sent_over_a_held_connection_comes_late_and_its_dialer_has_lost_it_before(
    network: Network, dial: Dial, echo: Echo
) -> None:
    a = dial("a")
    a.say("before")
    a.wait("before")
    network.between("a", "echo").hold()
    a.say("late")
    a.wait("before", "lost")
    with socket.create_connection(("127.0.0.1", network.wire("echo", echo.port)), TIMEOUT) as again:
        again.sendall(b"new")
        assert again.recv(100) == b"new"
    assert echo.received == b"before\nnew"
    network.restore()
    wait_until(lambda: echo.received == b"before\nnewlate\n", what="what came late")
    wait_until(lambda: echo.ended == 2, what="the end of both")


def test_nobody_is_reached_at_a_place_whose_process_has_ended(network: Network, dial: Dial) -> None:
    network.knows("echo", lambda: None)
    a = dial("a")
    a.say("lost")
    a.wait("lost")


@pytest.mark.full
def test_large_messages_pass_whole_in_both_directions(network: Network, echo: Echo) -> None:
    data = os.urandom(20 << 20)
    port = network.wire("echo", echo.port)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        sending = threading.Thread(target=connection.sendall, args=[data])
        sending.start()
        received = bytearray()
        while len(received) < len(data):
            received += connection.recv(1 << 20)
        sending.join(TIMEOUT)
    assert received == data
