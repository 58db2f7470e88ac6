"""A TCP proxy before MongoDB that interferes with chosen statements: cut, held, late, slow, or watched.

::

    with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database) as broker:
        held = proxy.hold(lambda command: command.name == "delete" and command.collection == "queue.mail")
        ...
        [reply] = held.wait()  # MongoDB has applied it, the broker does not know
        reply.release()        # or reply.cut()

What is chosen is said by a function of the :class:`Command`; all other commands pass on meanwhile, also
on other connections. Everything is released and closed at the end of the ``with``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from pymongo.uri_parser import parse_uri

from faults.mongo_messages import OP_MSG, Command, header, read_message
from support.waiting import TIMEOUT, wait_until

Chosen = Callable[[Command], bool]


class Interference:
    """Interference with one chosen command; this one lets it pass."""

    def __init__(self, command: Command, splice: _Splice) -> None:
        self.command = command
        self._splice = splice

    def request(self, message: bytes) -> bool:
        """Called with the request: true if it is passed on to MongoDB."""
        return True

    def reply(self, message: bytes) -> bool:
        """Called with the reply, which MongoDB gives once it has applied the command: true to pass it on."""
        return True

    def release(self) -> None:
        """Let go of whatever waits; again is harmless."""

    def cut(self) -> None:
        """Cut the connection that the command came on: its sender never hears the reply."""
        self._splice.cut()
        self.release()


class Lost(Interference):
    """The reply is swallowed, and the connection cut in its place."""

    def reply(self, message: bytes) -> bool:
        raise EOFError


class Refused(Interference):
    """The connection is cut before the request is passed on: it is never applied."""

    def request(self, message: bytes) -> bool:
        raise EOFError


class Held(Interference):
    """The reply is kept back until :meth:`release`; only its own connection waits for it."""

    def __init__(self, command: Command, splice: _Splice) -> None:
        super().__init__(command, splice)
        self.applied = threading.Event()
        self._released = threading.Event()

    def reply(self, message: bytes) -> bool:
        self.applied.set()
        self._released.wait()
        return True

    def release(self) -> None:
        self._released.set()


class Late(Interference):
    """The request is kept back, on no connection, until :meth:`land`; its sender waits, or has given up."""

    def __init__(self, command: Command, splice: _Splice) -> None:
        super().__init__(command, splice)
        self._message = b""

    def request(self, message: bytes) -> bool:
        self._message = message
        return False

    @property
    def given_up(self) -> bool:
        """Return whether the connection that it came on has ended."""
        return self._splice.ended.is_set()

    def land(self) -> dict[str, Any]:
        """Send it to MongoDB now, on a connection of its own; returns MongoDB's answer."""
        with connected_to(self._splice.upstream, timeout=30) as own:
            own.sendall(self._message)
            return Command(read_message(own)).body


class Slow(Interference):
    """The request is passed on ``seconds`` later."""

    seconds = 0.0

    def request(self, message: bytes) -> bool:
        self._splice.ended.wait(self.seconds)
        return True


class Watched(Interference):
    """Functions of the test run before the request is passed on, or when it is applied and nobody knows."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def __init__(self, command: Command, splice: _Splice) -> None:
        super().__init__(command, splice)
        self.done = threading.Event()
        self.error: BaseException | None = None

    def request(self, message: bytes) -> bool:
        self._run(self.before)
        return True

    def reply(self, message: bytes) -> bool:
        self._run(self.after)
        return True

    def _run(self, function: Callable[[], object] | None) -> None:
        if function is None:
            return
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error
        self.done.set()


Kind = TypeVar("Kind", bound=Interference)


class Fault(Generic[Kind]):
    """The next ``times`` commands that are chosen (None: all), and what became of them so far."""

    def __init__(self, kind: Callable[[Command, _Splice], Kind], chosen: Chosen, times: int | None) -> None:
        self._kind = kind
        self._chosen = chosen
        self._left = times
        self._lock = threading.Lock()
        self.met: list[Kind] = []

    @property
    def active(self) -> bool:
        """Return whether it waits for a command still."""
        return self._left != 0

    def meet(self, command: Command, splice: _Splice) -> Kind | None:
        """Interfere with this command, if it is chosen."""
        with self._lock:
            if self._left == 0 or not self._chosen(command):
                return None
            if self._left:
                self._left -= 1
            self.met.append(self._kind(command, splice))
            return self.met[-1]

    def wait(self, count: int = 1, timeout: float = TIMEOUT) -> list[Kind]:
        """Wait until ``count`` were met: those held until applied, those watched until the function has run.

        Raises what that raised.
        """
        wait_until(lambda: len(self.met) >= count, timeout, f"a chosen statement, {count} times")
        met = self.met[:count]
        for future in met:
            if isinstance(future, Held):
                assert future.applied.wait(timeout), f"MongoDB has not applied {future.command}"
            if isinstance(future, Watched):
                assert future.done.wait(timeout), f"the function has not ended at {future.command}"
                if future.error:
                    raise future.error
        return met

    def stop(self) -> None:
        """Choose no more."""
        self._left = 0

    def release(self) -> None:
        """Choose no more, and let go of all that waits."""
        self.stop()
        for met in list(self.met):
            met.release()

    def cut(self) -> None:
        """Choose no more, and cut the connections of all that were chosen."""
        self.stop()
        for met in list(self.met):
            met.cut()


class CuttingProxy:
    """Passes everything on, but for the commands that are chosen."""

    def __init__(self, mongodb_uri: str) -> None:
        self.upstream: tuple[str, int | None] = parse_uri(mongodb_uri)["nodelist"][0]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?directConnection=true"
        self.flowing = threading.Event()
        self.flowing.set()
        self._connected = True
        self._faults: list[Fault[Any]] = []
        self._cutting: list[Fault[Lost]] = []
        self._splices: list[_Splice] = []

    # ------------------------------------------------------------ statements

    @property
    def cuts(self) -> list[Command]:
        """The commands whose replies were swallowed by :meth:`cut`."""
        return [message.command for fault in self._cutting for message in fault.met]

    @property
    def held(self) -> list[Held]:
        """The commands whose replies are, or were, held."""
        return [message for fault in self._faults for message in fault.met if isinstance(message, Held)]

    def cut(self, chosen: Chosen, times: int = 1) -> Fault[Lost]:
        """Swallow the replies to the next ``times`` commands, and cut their connections.

        The former order is forgotten.
        """
        for cutting in self._cutting:
            cutting.stop()
        fault = self._add(Fault(Lost, chosen, times))
        self._cutting.append(fault)
        return fault

    def refuse(self, chosen: Chosen, times: int | None = 1) -> Fault[Refused]:
        """Cut the connections of the next ``times`` commands before they are applied."""
        return self._add(Fault(Refused, chosen, times))

    def hold(self, chosen: Chosen, times: int | None = 1) -> Fault[Held]:
        """Hold the replies: applied, and nobody hears of it until they are released or cut."""
        return self._add(Fault(Held, chosen, times))

    def delay(self, chosen: Chosen, times: int | None = 1) -> Fault[Late]:
        """Keep the requests back until each may ``land``, also when its sender is gone."""
        return self._add(Fault(Late, chosen, times))

    def slow(self, chosen: Chosen, seconds: float, times: int | None = None) -> Fault[Slow]:
        """Pass the requests on ``seconds`` later."""
        kind = type("Slow", (Slow,), {"seconds": seconds})
        return self._add(Fault(kind, chosen, times))

    def before(self, chosen: Chosen, function: Callable[[], object], times: int | None = 1) -> Fault[Watched]:
        """Run a function of the test before the request is passed on."""
        return self._watch(chosen, times, before=function)

    def after(self, chosen: Chosen, function: Callable[[], object], times: int | None = 1) -> Fault[Watched]:
        """Run a function of the test when MongoDB has applied the command, before its sender hears of it.

        So a second broker acts between two statements of one verb.
        """
        return self._watch(chosen, times, after=function)

    def pass_all(self) -> None:
        """Interfere with nothing more, and let go of all that waits."""
        for fault in self._faults:
            fault.release()

    # ----------------------------------------------------------- connections

    def freeze(self) -> None:
        """Pass nothing on from now on; connections stay open."""
        self.flowing.clear()

    def thaw(self) -> None:
        """Pass on what has come since, and all that comes."""
        self.flowing.set()

    def cut_off(self) -> None:
        """Cut all connections, and each new one, until :meth:`connect`."""
        self._connected = False
        for splice in list(self._splices):
            splice.cut()

    def connect(self) -> None:
        self._connected = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.flowing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.pass_all()
        for splice in list(self._splices):
            splice.cut()

    # --------------------------------------------------------------- helpers

    def _watch(self, chosen: Chosen, times: int | None, **functions: Callable[[], object]) -> Fault[Watched]:
        called = {name: staticmethod(function) for name, function in functions.items()}
        return self._add(Fault(type("Watched", (Watched,), called), chosen, times))

    def _add(self, fault: Fault[Kind]) -> Fault[Kind]:
        self._faults.append(fault)
        return fault

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._take(self._listener.accept()[0])

    def _take(self, client: socket.socket) -> None:
        try:
            server = connected_to(self.upstream) if self._connected else None
        except OSError:
            server = None
        if server is None:
            _cut(client)
            return
        splice = _Splice(client, server, self)
        self._splices = [other for other in self._splices if not other.ended.is_set()] + [splice]
        splice.start()
        if not self._connected:  # cut off in between
            splice.cut()

    def meet(self, message: bytes, splice: _Splice) -> list[Interference]:
        """Return the interference for this message."""
        faults = [fault for fault in self._faults if fault.active]
        if not faults:
            return []
        command = Command(message)
        met = [fault.meet(command, splice) for fault in faults]
        return [fault for fault in met if fault is not None]


class _Splice:
    """One connection, both ways, a thread each."""

    def __init__(self, client: socket.socket, server: socket.socket, proxy: CuttingProxy) -> None:
        self.upstream = proxy.upstream
        self.ended = threading.Event()
        self._client = client
        self._server = server
        self._proxy = proxy
        self._met: dict[int, list[Interference]] = {}

    def start(self) -> None:
        for way in (self._requests, self._replies):
            threading.Thread(target=self._run, args=(way,), daemon=True).start()

    def cut(self) -> None:
        self.ended.set()
        _cut(self._client)
        _cut(self._server)

    def _run(self, way: Callable[[], None]) -> None:
        with suppress(OSError, EOFError):
            way()
        self.cut()

    def _requests(self) -> None:
        while True:
            message = read_message(self._client)
            _, number, _, operation = header(message)
            met = self._proxy.meet(message, self) if operation == OP_MSG else []
            self._met[number] = met
            if all(fault.request(message) for fault in met):
                self._proxy.flowing.wait()
                self._server.sendall(message)

    def _replies(self) -> None:
        while True:
            message = read_message(self._server)
            met = self._met.pop(header(message)[2], [])
            if all(fault.reply(message) for fault in met):
                self._proxy.flowing.wait()
                self._client.sendall(message)


def connected_to(address: tuple[str, int | None], timeout: float | None = None) -> socket.socket:
    """A connection to a host and its port, or to a Unix socket, which has none."""
    path, port = address
    if port is not None:
        return socket.create_connection((path, port), timeout)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
