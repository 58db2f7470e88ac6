"""A relay between a client and a broker that keeps what the client sends until a test lets it arrive."""

import socket
import threading
from contextlib import suppress
from typing import Self


class LateRelay:
    """Passes on what both send until :meth:`hold`; ``address``: where the client connects."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.removeprefix("tcp://").rpartition(":")
        self._upstream = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[tuple[socket.socket, socket.socket]] = []
        self._may_pass = threading.Event()
        self._may_pass.set()
        self.broker_has_ended = threading.Event()
        """The broker has read all, and closed a connection."""
        self.kept = 0
        """Bytes that are kept now."""

    def hold(self) -> None:
        """Keep from now on what the client sends."""
        self._may_pass.clear()

    def cut(self) -> None:
        """End the connections for the client alone, and let it make no other."""
        self._listener.close()
        for client, _broker in self._ends:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def deliver(self) -> None:
        """Let arrive what was kept, and then the end of the client."""
        self._may_pass.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self.deliver()
        for _client, broker in self._ends:
            with suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._upstream)
                self._ends.append((client, broker))
                threading.Thread(target=self._send, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._answer, args=(broker, client), daemon=True).start()

    def _send(self, client: socket.socket, broker: socket.socket) -> None:
        while data := _received(client):
            self.kept += len(data)
            self._may_pass.wait()
            self.kept -= len(data)
            with suppress(OSError):
                broker.sendall(data)
        self._may_pass.wait()
        with suppress(OSError):
            broker.shutdown(socket.SHUT_WR)

    def _answer(self, broker: socket.socket, client: socket.socket) -> None:
        while data := _received(broker):
            with suppress(OSError):
                client.sendall(data)
        self.broker_has_ended.set()


def _received(end: socket.socket) -> bytes:
    with suppress(OSError):
        return end.recv(1 << 16)
    return b""
