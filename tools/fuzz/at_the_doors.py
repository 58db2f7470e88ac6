"""Targets of the broker's doors: requests of SMQ/1, verdicts, replay questions, HTTP. There is no MongoDB."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import quote

import bson
import falcon
import msgpack
from falcon import testing

from fuzz.attempts import target
from fuzz.choices import Choices
from fuzz.of_the_protocol import WORDS
from sluicemq.protocol import rows, wire
from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    BadStreamError,
    BadTopicError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from sluicemq.protocol.permissions import EVERY, Action, Permissions
from sluicemq_broker.admin import DeadLetterAdmin, JobAdmin, PrincipalAdmin, QueueAdmin, ScheduleAdmin
from sluicemq_broker.admin.jobs import job_page, place_of
from sluicemq_broker.admin.principals import Change, KnownPrincipals
from sluicemq_broker.config import BrokerSettings, Config, QueueSettings, Secret
from sluicemq_broker.context import Context, Retry
from sluicemq_broker.doors import Services, Session, SessionDoor
from sluicemq_broker.doors.worker_frames import answer, commit_frames
from sluicemq_broker.http import BASE, Site, Tls
from sluicemq_broker.http.authorization import HEADER
from sluicemq_broker.http.connections import Connections
from sluicemq_broker.http.door import Server
from sluicemq_broker.http.handler import MOST_BODY_BYTES, Handler
from sluicemq_broker.http.inputs import DeadQuery
from sluicemq_broker.http.route import Nothing, read_query
from sluicemq_broker.http.table import CORE
from sluicemq_broker.parts import PARTS
from sluicemq_broker.parts.streams import replay
from sluicemq_broker.parts.streams.sessions import StreamSessions
from sluicemq_broker.queue import JobMaker, Queue, Verdict
from sluicemq_broker.queues import Schedules, check_name
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import ANYBODY, Caller, Principal, Security
from sluicemq_broker.store import JobPage, PrincipalRecord, date
from sluicemq_broker.store.admin import principals
from sluicemq_broker.streams import Usage, check_stream
from sluicemq_devices.sockets import Outgoing, Switchboard
from support.fakes import Clock, FakeGroups, FakeStore, a_context, go_on
from support.jobs import NOW
from support.virtual_time import VirtualTime

#: Texts that mean something in requests.
_WORDS: Final = (
    *(
        "mail",
        "sms",
        "ready",
        "dead",
        "done",
        "scheduled",
        "delivery",
        "intake",
        "*",
        "list",
        "add",
        "remove",
    ),
    *(
        "pause",
        "resume",
        "run",
        "name",
        "queue",
        "payload",
        "cron",
        "every",
        "timezone",
        "misfire",
        "options",
    ),
    *("* * * * *", "UTC", "all", "look", "pop", "wait", "after", "since", "new", "topics", "most", "bytes"),
    *("id", "ids", "again", "last", "topic", "born", "client", "version", "concurrency", "host", "pid"),
    *("COMMIT", "ROLLBACK", "REJECT", "RELEASE", "FORWARD", "FANOUT", "reason", "limit", "until", "priority"),
    *(
        "delay",
        "fence",
        "permissions",
        "key",
        "password",
        "token",
        "tenant",
        "limits",
        "note",
        "kind",
        "force",
    ),
    *("user", "rotate", "permit", "show", "max_rate", "max_bytes_rate", "push=mail.*", "a.b", "j-1"),
)


class NoMongo:
    """Stands for whatever asks MongoDB: it names collections, all else that is called raises Unavailable."""

    def with_options(self, **_options: Any) -> NoMongo:
        return self

    def __getitem__(self, _name: str) -> NoMongo:
        return self

    def __getattr__(self, name: str) -> NoMongo:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        raise UnavailableError("there is no MongoDB here")


NO_MONGO: Final[Any] = NoMongo()
_MAKER: Final = JobMaker(Clock(), 1 << 20)


class _Time(VirtualTime):
    """Time that passes only where somebody waits, after all others have done what they can."""

    def wait(self, event: Any, seconds: float) -> bool:
        go_on()
        if not event.is_set():
            self.value += seconds
        return bool(event.is_set())


class _Groups(FakeGroups):
    """Lines in memory; what only MongoDB can do raises Unavailable."""

    def __getattr__(self, name: str) -> Any:
        return getattr(NO_MONGO, name)


class _Store(FakeStore):
    """A store of jobs in memory; what only MongoDB can do raises Unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = _Groups()

    def __getattr__(self, name: str) -> Any:
        return getattr(NO_MONGO, name)


class OneQueue:
    """The queues of a broker that has one, over a store in memory; its administration asks MongoDB."""

    make = staticmethod(_MAKER.make)

    def __init__(self, context: Context) -> None:
        others: Any = self
        store: Any = _Store()
        self.queue = Queue("mail", QueueSettings(), NO_MONGO, context, others, store)

    def open(self, name: str) -> Any:
        return self.get(name)

    def known(self, name: str) -> Any:
        return self.queue if name == "mail" else None

    def get(self, name: str) -> Any:
        if check_name(name) != "mail":
            raise NotFoundError(f"there is no queue {name}")
        return self.queue

    def for_push(self, name: str, *, by: str, peer: str, caller: Caller) -> Any:
        return self.get(name)

    def __iter__(self) -> Iterator[Queue]:
        return iter([self.queue])

    def __getattr__(self, name: str) -> Any:
        return NO_MONGO

    def wait_for_queue(self, name: str, came: Callable[..., None]) -> None:
        check_name(name)

    def stop_waiting_for(self, name: str, came: Callable[..., None]) -> None:
        """Nothing waits."""


class OneStream:
    """Streams by checked names; what is read of them or written is in MongoDB."""

    def get(self, name: str) -> Any:
        check_stream(name)
        return NO_MONGO

    def for_publish(self, name: str, *, caller: Caller, peer: str) -> Any:
        return self.get(name)

    def __getattr__(self, name: str) -> Any:
        return NO_MONGO


class _Lane:
    """A connection that notes what is sent."""

    peer = "tcp://127.0.0.1:1"
    backlog = 0
    held = SimpleNamespace(count=0, bytes=0)
    writable = True
    is_full = is_closed = leaves_much = False
    receive: Callable[[list[list[bytes]]], None]
    closed: Callable[[], None]

    def __init__(self, who: Caller) -> None:
        self.who = who
        self.sent: list[wire.Message] = []
        self.ration = Outgoing(64 << 20).ration(None)

    def on(self, **handlers: Callable[..., None]) -> None:
        vars(self).update(handlers)

    def send(self, frames: list[bytes]) -> None:
        self.sent.append(wire.decode(frames))

    def work(self, step: Callable[[], Any]) -> Any:
        return step()

    def close(self) -> None:
        self.is_closed = True

    def gave_sign_of_life(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: None


class _Principals:
    """Principals in memory, of which each must be one that MongoDB can hold."""

    def __init__(self) -> None:
        self.records: dict[str, PrincipalRecord] = {}
        self.known = KnownPrincipals(
            record=self.records.get,
            records=lambda after, most: [self.records[name] for name in sorted(self.records) if name > after][
                :most
            ],
            of_file=lambda name: name == "of-file",
            change=self._change,
            hash=lambda password: f"hash of {len(password.encode())} bytes",
            taken=lambda _value: None,
            throttled=lambda _name: 0,
            now=lambda: NOW,
        )

    def _change(self, name: str, change: Change, _keep_operator: object) -> PrincipalRecord | None:
        changed = change(self.records.get(name))
        if changed is None:
            self.records.pop(name, None)
        else:
            self.records[name] = changed
            stored = {**principals._document(changed, NOW), "changed_at": date(NOW)}
            again = principals.read_principal({**bson.decode(bson.encode(stored), _WITH_ZONES), "_id": name})
            assert (again.keys, again.permissions) == (changed.keys, changed.permissions)
        return changed


@target("principal-requests", BadFramesError, NotFoundError)
def principal_requests(data: bytes) -> None:
    """Principals are added and changed, with fields that are nearly right."""
    given = Choices(data)
    admin = PrincipalAdmin(_Principals().known)
    while given.left:
        action = given.one_of((*("add", "add", "rotate", "permit", "remove", "list", "show"), given.text()))
        about = {given.one_of(_WORDS): given.value(_WORDS) for _ in range(given.byte() % 4)}
        if given.byte() % 4:
            about |= {"name": "p", "kind": given.one_of(("token", "curve", "password")), "key": _KEY}
            about["permissions"] = given.one_of(("all", "push=a", given.value(_WORDS)))
        json.dumps(rows.plain(admin.do(action, about)))


_WITH_ZONES: Final[Any] = bson.CodecOptions(tz_aware=True)
_KEY: Final = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
_RETRY: Final = Retry()
_RETRY.give_up()
_SOME: Final = Principal("p", Permissions({Action.PUSH: ("mail",), Action.WORK: (EVERY,)}))


def _session(who: Caller) -> tuple[Session, _Lane]:
    """Make a session at a door with all verbs of a broker, streams too."""
    time, counters, streams = _Time(), Counters(), OneStream()
    context = a_context(counters=counters, timer=time, retry=_RETRY)
    queues: Any = OneQueue(context)
    admin = _administration(queues, context)
    services = Services(BrokerSettings(), counters, Switchboard(), queues, _MAKER, time, Security(counters))
    sessions = StreamSessions(BrokerSettings(), cast("Any", streams), NO_MONGO, NO_MONGO, counters)
    lane = _Lane(who)
    client: Any = lane
    session = Session(SessionDoor(services, admin, [_Part(sessions)]), client)
    return session, lane


def _administration(queues: Any, context: Context) -> Any:
    """Return what reads and changes a broker with these queues."""
    subjects = {
        "queues": QueueAdmin(queues, NO_MONGO, NO_MONGO),
        "jobs": JobAdmin(queues, NO_MONGO, context),
        "dead_letters": DeadLetterAdmin(queues, NO_MONGO, NO_MONGO, context),
        "schedules": ScheduleAdmin(Schedules(NO_MONGO, queues, context, _MAKER.make)),
        "principals": PrincipalAdmin(_Principals().known),
    }
    return _Admin(subjects)


class _Part:
    def __init__(self, sessions: StreamSessions) -> None:
        self.verbs = sessions.verbs(self)
        self.join = sessions.join


class _Admin:
    def __init__(self, subjects: dict[str, Any]) -> None:
        vars(self).update(subjects)

    def __getattr__(self, name: str) -> Any:
        return NO_MONGO


_VERBS: Final = sorted(_session(ANYBODY)[0].door.verbs)


@target("smq-requests")
def requests(data: bytes) -> None:
    """A session of several requests, with fields that are nearly right: each has one answer."""
    given = Choices(data)
    who = ANYBODY if given.byte() % 4 else Caller(_SOME)
    session, lane = _session(who)
    numbers: list[int] = []
    while given.left and len(numbers) < 16:
        verb = given.one_of(_VERBS)
        fields = [given.value((*_WORDS, *WORDS)) for _ in range(given.byte() % 6)]
        if given.byte() % 4:
            fields = ["mail", *fields]
        numbers.append(len(numbers) + 1)
        try:
            body = msgpack.packb([numbers[-1], *fields], unicode_errors="surrogatepass")
        except (OverflowError, ValueError):
            numbers.pop()
            continue
        lane.receive([[wire.VERSION, verb, body]])
        if len(session.requests.later):
            go_on()
    go_on()
    _end(session, lane, numbers)


@target("smq-bytes")
def request_bytes(data: bytes) -> None:
    """A session of requests whose verbs and bodies are any bytes."""
    given = Choices(data)
    _, lane = _session(ANYBODY)
    while given.left and not lane.is_closed:
        frames = [
            given.one_of((wire.VERSION, wire.VERSION, given.piece())),
            given.one_of(_VERBS),
            given.piece(),
        ]
        lane.receive([frames[: 4 - max(0, given.byte() - 252)]])
    go_on()
    lane.closed()
    go_on()


def _end(session: Session, lane: _Lane, numbers: list[int]) -> None:
    answered = [frame.number for frame in lane.sent if frame.verb in (wire.OK, wire.ERROR)]
    assert len(set(answered)) == len(answered), "a request was answered twice"
    assert set(answered) <= set(numbers)
    lane.closed()
    go_on()
    assert not session.assignments.workers
    assert not session.results


@target("verdicts-of-deliveries")
def verdicts(data: bytes) -> None:
    """A worker of the library: it pushes, gets deliveries, and settles them nearly right."""
    given = Choices(data)
    session, lane = _session(ANYBODY)
    jobs = [[None, given.piece(), None] for _ in range(1 + given.byte() % 4)]
    lane.receive([wire.encode(wire.READY, 1, "mail", 10), wire.encode(wire.PUSH, 2, "mail", jobs)])
    go_on()
    receipts = [row[0] for frame in lane.sent if frame.verb == wire.DELIVER for row in frame.fields[1]]
    assert len(receipts) == len(jobs)
    number = 2
    while given.left and number < 12:
        number += 1
        entries = [_entry(given, receipts) for _ in range(given.byte() % 5)]
        verb = given.one_of((wire.SETTLE, wire.SETTLE, wire.PROGRESS, wire.EXTEND))
        rest = [given.value(_WORDS)] if given.byte() % 2 else [60]
        body = msgpack.packb([number, entries, *rest], unicode_errors="surrogatepass")
        lane.receive([[wire.VERSION, verb, body]])
        go_on()
    _end(session, lane, list(range(1, number + 1)))


def _entry(given: Choices, receipts: list[bytes]) -> Any:
    receipt = given.one_of((*receipts, b"?"))
    kind = given.one_of(("COMMIT", "ROLLBACK", "REJECT", "RELEASE", "FORWARD", "FANOUT"))
    match given.byte() % 6:
        case 0:
            return receipt
        case 1 | 2:
            rest = [_small(given.value(_WORDS)) for _ in range(given.byte() % 4)]
            return [receipt, kind, *rest]
        case 3:
            return [receipt, "FORWARD", None, None, _small(given.value(_WORDS))]
        case 4:
            onward = [
                [
                    given.one_of(("mail", "sms", "")),
                    given.piece(),
                    {given.one_of(WORDS): _small(given.value(WORDS))},
                ]
            ]
            return [receipt, "FANOUT", None, None, onward]
        case _:
            return [receipt, _small(given.value(_WORDS)), _small(given.value(_WORDS)), given.text()]


def _small(value: Any) -> Any:
    """Return a value without integers that msgpack can't hold."""
    return 2**63 if isinstance(value, int) and value >= 2**64 else value


@target("verdicts-of-frames", BadFramesError, BadHeadersError, TooLargeError)
def frame_verdicts(data: bytes) -> None:
    """Frames of plain workers."""
    given = Choices(data)
    reads: Callable[[list[bytes]], Verdict] = given.one_of(
        (lambda frames: commit_frames(frames, bool), lambda frames: answer(b"receipt", frames))
    )
    words = [b"COMMIT", b"ROLLBACK", b"REJECT", b"RELEASE", b"FORWARD", b"FANOUT"]
    frames = [given.one_of(words)] if given.byte() % 4 else []
    frames += list(given.pieces())
    verdict = reads(frames)
    assert verdict.kind in {word.decode() for word in words}
    assert all(isinstance(forward.read().options, dict) for forward in verdict.onward)


@target("replay-questions", BadFramesError, BadTopicError, BadStreamError)
def questions(data: bytes) -> None:
    """Questions of plain sockets about earlier messages."""
    given = Choices(data)
    body = [given.piece() for _ in range(given.byte() % 3)]
    if given.byte() % 2:
        body = [*body[:1], given.rest()]
    name, options = replay._read(body, given.one_of((None, "news")))
    check_stream(name)
    topics = replay._topics(options, Usage())
    topics.want(b"orders.17.paid")
    assert 1 <= options.get("limit", 1) <= 10_000


_READS: Final = [verb for verb in CORE if verb.query is not Nothing]


@target("http-queries", BadFramesError, falcon.HTTPError)
def queries(data: bytes) -> None:
    """Query strings, and cursors: what a page says comes back as it was."""
    environ = testing.create_environ(path="/")
    environ["QUERY_STRING"] = data.decode("latin-1")
    request = falcon.Request(environ)
    place = place_of(request.get_param("after"))
    assert place is None or place_of(job_page(JobPage([], place)).next) == place
    for route in _READS:
        query = read_query(route, request)
        if isinstance(query, DeadQuery):
            query.which()


class _Socket:
    """A connection whose peer has said all that it says, and reads all."""

    def __init__(self, said: bytes) -> None:
        self._said = io.BytesIO(said)
        self.heard = b""
        self.closed = False

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.closed:
            raise OSError("closed")
        before = self._said.tell()
        said = self._said.read(size)
        if flags & socket.MSG_PEEK:
            self._said.seek(before)
        return said

    def sendall(self, data: bytes) -> None:
        self.heard += data

    def fileno(self) -> int:
        raise OSError("it has none")

    def close(self) -> None:
        self.closed = True

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 5580

    def settimeout(self, _seconds: float) -> None:
        """It never waits."""

    def shutdown(self, _how: int) -> None:
        """There is nobody."""

    def do_handshake(self) -> None:
        """It is done: what is said came encrypted."""

    def unwrap(self) -> None:
        """Nobody waits for a goodbye."""


class _Encrypted:
    """TLS whose handshakes are done at once; as a door with a certificate."""

    def wrap(self, sock: _Socket) -> _Socket:
        return sock


class _BareTls:
    """TLS that reads the handshake of a peer from what it says, by OpenSSL."""

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def wrap(self, sock: _Socket) -> Any:
        coming = ssl.MemoryBIO()
        coming.write(sock.recv(1 << 20))
        coming.write_eof()
        handshake = self._context.wrap_bio(coming, ssl.MemoryBIO(), server_side=True)
        sock.do_handshake = handshake.do_handshake  # type: ignore[method-assign]
        return sock


#: Who shows it may do everything.
_TOKEN: Final = "a-token-of-the-fuzzer"  # noqa: S105


class _Http:
    """The HTTP door without a socket; what is read of MongoDB is not there."""

    def __init__(self, tls: Any) -> None:
        self.counters = Counters()
        outgoing = Outgoing(64 << 20)
        self.connections = Connections(10, self.counters, outgoing.ration(None).hold)
        metrics: Any = SimpleNamespace(on_get=lambda _request, _response: None)
        context = a_context(counters=self.counters, timer=_Time(), retry=_RETRY)
        admin = _administration(OneQueue(context), context)
        settings = replace(Config.default().broker, http_token=Secret(_TOKEN))
        site = Site(
            settings, *(self.counters, self.connections, admin, metrics, outgoing, Security(self.counters))
        )
        for part in PARTS:
            part.add_paths(NO_MONGO, site)
        self.paths = sorted(site.needs)
        site.close()
        self.server = Server(("127.0.0.1", 0), site, self.counters, self.connections, tls)
        self.server.environ.update(SERVER_NAME="localhost", SERVER_PORT="5580")


_HTTP: Final = _Http(Tls(Config.default().broker))
_HTTPS: Final = _Http(_Encrypted())
_HANDSHAKES: Final = _Http(_BareTls())


@target("http-bytes")
def http_bytes(data: bytes) -> None:
    """Bytes of a connection of the HTTP door."""
    _exchange(data)


@target("https-bytes")
def https_bytes(data: bytes) -> None:
    """Bytes that come over TLS, and those of handshakes."""
    _exchange(data, _HTTPS)
    _exchange(data, _HANDSHAKES, answered=False)


@target("https-requests")
def https_requests(data: bytes) -> None:
    """Requests that are nearly right, over TLS."""
    _ask(data, _HTTPS)


@target("http-requests")
def http_requests(data: bytes) -> None:
    """Requests that are nearly right."""
    _ask(data, _HTTP)


def _ask(data: bytes, door: _Http) -> None:
    """Make requests of bytes: paths of the door, headers that mean something, JSON in bodies.

    Most of them show the token and what a change needs, so that each route reads what it is asked.
    """
    given = Choices(data)
    said = b""
    while given.left and len(said) < 2 * MOST_BODY_BYTES:
        method = given.one_of((b"GET", b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"PUT", given.piece()))
        path = given.one_of((*door.paths, f"{BASE}/nothing")).encode()
        name = given.one_of((b"mail", b"mail", quote(given.piece(), safe="").encode(), given.piece()))
        path = re.sub(rb"\{[^}]*\}", lambda _found, name=name: name, path)  # type: ignore[misc]
        headers = [b"Content-Type: application/json", HEADER.encode() + b": 1"]
        headers.append(b"Host: " + given.one_of((b"localhost", b"localhost", b"127.0.0.1:", given.piece())))
        if given.byte() % 4:
            headers.append(b"Authorization: Bearer " + _TOKEN.encode())
        headers += [
            given.one_of((b"Host", b"Origin", b"Cookie", b"Authorization", b"Accept", b"Expect", b"Range"))
            + b": "
            + given.piece()
            for _ in range(given.byte() % 4)
        ]
        body = given.piece()
        if given.byte() % 2:
            value = {given.one_of(_WORDS): _plain(given.value(_WORDS)) for _ in range(given.byte() % 4)}
            body = json.dumps(value, default=str).encode()
        headers.append(b"Content-Length: %d" % (len(body) + (given.byte() == 255)))
        said += method + b" " + path + b" HTTP/1.1\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body
    _exchange(said, door)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _exchange(said: bytes, door: _Http = _HTTP, *, answered: bool = True) -> None:
    """Say bytes to a door; whatever it answers is HTTP, and it does not fail."""
    sock, failures = _Socket(said), door.counters.values[Count.HTTP_FAILURES]
    Handler(sock, ("127.0.0.1", 1), door.server).run()
    assert sock.closed
    assert not len(door.connections)
    assert door.connections.unread == 0
    assert door.counters.values[Count.HTTP_FAILURES] == failures
    if not answered:
        return
    answers = io.BytesIO(sock.heard)
    count = 0
    while answers.tell() < len(sock.heard):
        count += 1
        _read_answer(answers)
    assert count <= 1 + said.count(b"\n"), "there are more answers than requests"


def _read_answer(answers: io.BytesIO) -> None:
    line = answers.readline()
    assert line.startswith(b"HTTP/1.1 "), line[:40]
    assert line[9:12].isdigit()
    assert line[9:12] != b"500", "the broker failed"
    headers = http.client.parse_headers(answers)
    if headers.get("Transfer-Encoding") == "chunked":
        while size := int(answers.readline(), 16):
            answers.read(size + 2)
        answers.readline()
    else:
        answers.seek(0, io.SEEK_END)  # of a HEAD there is no body: its end can't be known here
