"""Targets of ZMTP: greetings, mechanisms, frames, and what a peer with the right keys puts into its boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from devices.mechanism_wire import DEALER, ROUTER, FixedRandom, frames_of
from fuzz.attempts import target
from fuzz.choices import Choices
from sluicemq_devices.relays.bounds import TopicBounds
from sluicemq_devices.relays.topics import SubscribedTopics
from sluicemq_devices.zmtp import (
    COMMAND,
    CURVE,
    LARGE,
    LONG,
    MORE,
    NULL,
    PLAIN,
    FramePeer,
    Mechanism,
    Peer,
    PlainClient,
    PlainServer,
    RawPeer,
    Terms,
    command,
    encode,
    greeting,
    ready_property,
)
from sluicemq_devices.zmtp.curve.client import CurveClient
from sluicemq_devices.zmtp.curve.server import CurveServer
from sluicemq_devices.zmtp.curve.sodium import public_of, seal, shared_key, unseal
from sluicemq_devices.zmtp.curve.traffic import FROM_CLIENT, FROM_SERVER, CurveTraffic
from sluicemq_devices.zmtp.greeting import split
from sluicemq_devices.zmtp.null import Null

MOST: Final = 1 << 20
SERVER, CLIENT, PASSING = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
KINDS: Final = ("ROUTER", "DEALER", "PULL", "PUSH", "XPUB", "XSUB")
#: Bytes of memory that one byte on the wire may take: a frame of two bytes is an object in a list.
_MEMORY: Final = 64
_SWELLS: Final = b"\xf5"
_LARGE_BODY: Final = b"\x08" * (LARGE + 7)


class _Terms(Terms):
    def __init__(self, *mechanisms: str, server_key: bytes = b"", user: str = "") -> None:
        self.mechanisms = frozenset(mechanisms)
        self.secret_key = SERVER
        self.server_key = server_key
        self.user = user
        self.password = "p" * len(user)


BINDS: Final = (
    *(_Terms(NULL), _Terms(PLAIN), _Terms(CURVE), _Terms(NULL, PLAIN, CURVE), _Terms(PLAIN, CURVE)),
)
DIALS: Final = (
    _Terms(NULL),
    _Terms(user="u"),
    _Terms(server_key=public_of(SERVER)),
    _Terms(server_key=bytes(32)),
)


class Driven:
    """A peer without a socket, fed as a connection feeds it; everybody gets in."""

    def __init__(self, form: type[Peer[Any]], kind: str, terms: Terms, *, dials: bool) -> None:
        self.said = b""
        self.messages: list[Any] = []
        self._came = 0
        self.peer: Peer[Any] = form(kind, MOST, self._say, terms, dials=dials)
        self.peer.greet()

    def feed(self, data: bytes) -> None:
        peer = self.peer
        while data and not peer.error:
            part, data = (data[: peer.missing], data[peer.missing :]) if peer.missing else (data, b"")
            self._came += len(part)
            self.messages += peer.take(part)
            while not peer.error and (peer.credentials or peer.behind):
                if peer.credentials:
                    peer.decide("")
                self.messages += peer.take()
            assert peer.unfinished <= _MEMORY * self._came, "it keeps more than came"
        assert peer.ready or not self.messages, "there are messages before the end of the handshake"

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What must not depend on how the bytes were cut; the bytes that an error quotes may."""
        return self.messages, self.peer.error.partition(", but sent")[0], self.peer.ready, len(self.said)

    def _say(self, data: bytes) -> None:
        self.said += data


def swollen(wire: bytes) -> bytes:
    """Return a wire where the first bytes F5 stand for the body of a large frame each."""
    return wire.replace(_SWELLS, _LARGE_BODY, 2)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """Cut data into pieces of a size, large data into larger ones; 0: not at all."""
    size *= 997 if len(data) > LARGE else 1
    yield from (data[at : at + size] for at in range(0, len(data), size)) if size else (data,)


def _shake_hands(data: bytes, all_terms: tuple[Terms, ...], *, dials: bool) -> None:
    """Feed a stranger's bytes whole, in pieces and to both forms of peers: nothing may differ."""
    given = Choices(data)
    kind, terms, size, wire = given.one_of(KINDS), given.one_of(all_terms), given.byte(), given.rest()
    sides = [Driven(form, kind, terms, dials=dials) for form in (FramePeer, FramePeer, RawPeer)]
    for side, step in zip(sides, (0, size, size), strict=True):
        for piece in cut(swollen(wire), step):
            side.feed(piece)
    whole, pieces, raw = (side.outcome for side in sides)
    assert whole == pieces, "it matters how the bytes were cut"
    assert whole[1:] == raw[1:], "relays read otherwise than queues"
    for side in sides:
        assert isinstance(side.peer.late, str)
        assert isinstance(side.peer.offered, str)
        side.peer.forget()


@target("handshake")
def handshake(data: bytes) -> None:
    """A door that binds: kind, mechanisms, how the bytes are cut, then what a stranger sends."""
    _shake_hands(data, BINDS, dials=False)


@target("handshake-dialled")
def handshake_dialled(data: bytes) -> None:
    """A door that dials: a stranger answers as the server."""
    _shake_hands(data, DIALS, dials=True)


@target("frames")
def frames(data: bytes) -> None:
    """Frames after the handshake: both forms of peers, and a reader of few lines, find the same messages."""
    given = Choices(data)
    kind, partner = given.one_of(
        [("DEALER", b"DEALER"), ("ROUTER", b"DEALER"), ("PULL", b"PUSH"), ("XPUB", b"SUB")]
    )
    size, wire = given.byte(), swollen(given.rest())
    hello = greeting.GREETING + command(b"READY", ready_property(b"Socket-Type", partner))
    sides = [Driven(form, kind, BINDS[0], dials=False) for form in (FramePeer, RawPeer, FramePeer)]
    for side, step in zip(sides, (0, size, size), strict=True):
        side.feed(hello)
        assert side.peer.ready
        for piece in cut(wire, step):
            side.feed(piece)
    whole, raw, pieces = sides
    assert whole.outcome == pieces.outcome, "it matters how the bytes were cut"
    assert whole.said == raw.said
    assert whole.peer.error == raw.peer.error
    found = [message[1:] if kind == "ROUTER" else message for message in whole.messages]
    assert found == [_bodies(message) for message in raw.messages], "relays read otherwise than queues"
    expected = _read(wire, subscribes=kind == "XPUB")
    assert found == expected[: len(found)]
    assert whole.peer.error or len(found) == len(expected)


def _bodies(encoded: bytes) -> list[bytes]:
    return [bytes(body) for _, body in frames_of(bytes(encoded))]


def _read(wire: bytes, *, subscribes: bool) -> list[list[bytes]]:
    """Read the whole messages as RFC 23 and 37 say; what follows broken bytes does not matter."""
    found: list[list[bytes]] = []
    message: list[bytes] = []
    while len(wire) >= 2:
        flags, start = wire[0], 9 if wire[0] & LONG else 2
        if flags & ~(MORE | LONG | COMMAND) or len(wire) < start:
            break
        stop = start + int.from_bytes(wire[1:start])
        if stop > len(wire):
            break
        body, wire = wire[start:stop], wire[stop:]
        if flags & COMMAND:
            name, about = split(body)
            if subscribes and name in (b"SUBSCRIBE", b"CANCEL"):
                found.append([bytes((name == b"SUBSCRIBE",)) + about])
            continue
        message.append(body)
        if not flags & MORE:
            found.append(message)
            message = []
    return found


# ----------------------------------------------------------------- mechanisms


def _take_all(side: Mechanism, data: bytes) -> None:
    """Give a mechanism the bodies of commands, and the decision that it asks for."""
    given = Choices(data)
    side.begin()
    for body in given.pieces():
        was_wrong = side.error
        said = side.take(body)
        assert not (was_wrong and said), "it goes on after an error"
        assert isinstance(said, bytes)
        if side.credentials and not side.done and not side.error:
            said += side.decide("" if len(body) % 8 else "not today")
        assert not (side.done and not side.credentials), "somebody got in without a word"
        assert sum(map(len, side.properties or {})) <= len(data)
        for _, sent_body in frames_of(said):
            assert split(sent_body)[0], "it says what is no command"
        if side.done:
            return


@target("mechanism-null")
def null(data: bytes) -> None:
    """Bodies of commands for NULL."""
    _take_all(Null(DEALER), data)


@target("mechanism-plain-server")
def plain_server(data: bytes) -> None:
    """Bodies of commands for the server of PLAIN."""
    _take_all(PlainServer(ROUTER), data)


@target("mechanism-plain-client")
def plain_client(data: bytes) -> None:
    """Bodies of commands for the client of PLAIN."""
    _take_all(PlainClient(DEALER, "u", "p"), data)


@target("mechanism-curve-server")
def curve_server_commands(data: bytes) -> None:
    """Bodies of commands for the server of CURVE, from one without keys: nobody gets in."""
    side = CurveServer(ROUTER, MOST, SERVER, FixedRandom(b"server"))
    _take_all(side, data)
    assert not side.done, "somebody got in without a key"


@target("mechanism-curve-client")
def curve_client_commands(data: bytes) -> None:
    """Bodies of commands for the client of CURVE, from one who is not its server: it never goes on."""
    side = CurveClient(DEALER, MOST, CLIENT, public_of(SERVER), FixedRandom(b"client"))
    _take_all(side, data)
    assert not side.done, "another server was believed"


# -------------------------------------------------------------- inside boxes


class _Forger:
    """A client that has keys of its own, and seals what a case says."""

    def __init__(self) -> None:
        self.server = CurveServer(ROUTER, MOST, SERVER, FixedRandom(b"server"))
        self._key = shared_key(public_of(SERVER), PASSING)

    def hello(self, hidden: bytes = bytes(64)) -> bytes:
        """Say HELLO with a box of 64 bytes; return the body of WELCOME, or nothing."""
        nonce = (1).to_bytes(8)
        box = seal(hidden, b"CurveZMQHELLO---" + nonce, self._key)
        about = b"\x01\x00" + bytes(72) + public_of(PASSING) + nonce + box
        return self._body(self.server.take(_body(b"HELLO", about)))

    def initiate(self, welcome: bytes, shown: Callable[[bytes], bytes], nonce: bytes) -> bytes:
        """Say INITIATE with what ``shown`` makes of the server's key of this connection."""
        about = welcome[8:]
        opened = unseal(about[16:], b"WELCOME-" + about[:16], self._key)
        passing, cookie = opened[:32], opened[32:]
        self.key = shared_key(passing, PASSING)
        box = seal(shown(passing), b"CurveZMQINITIATE" + nonce, self.key)
        self.server.take(_body(b"INITIATE", cookie + nonce + box))
        return passing

    @staticmethod
    def _body(said: bytes) -> bytes:
        return frames_of(said)[0][1] if said else b""


def _body(name: bytes, about: bytes) -> bytes:
    return bytes((len(name),)) + name + about


def _vouched(passing: bytes, metadata: bytes) -> bytes:
    nonce = bytes(16)
    vouch = seal(public_of(PASSING) + public_of(SERVER), b"VOUCH---" + nonce, shared_key(passing, CLIENT))
    return public_of(CLIENT) + nonce + vouch + metadata


@target("curve-boxes-for-server")
def boxes_for_server(data: bytes) -> None:
    """Valid boxes of a client, with any content: of HELLO, of INITIATE whole or behind its vouch."""
    given = Choices(data)
    how, forger = given.byte() % 3, _Forger()
    nonce = (2).to_bytes(8)
    if how == 0:
        hidden = given.take(64).ljust(64, b"\0")
        welcome = forger.hello(hidden)
        assert bool(welcome) is not any(hidden), "a HELLO was answered whose box is not empty"
        return
    welcome = forger.hello()
    content = given.rest()
    if how == 1:
        forger.initiate(welcome, lambda _passing: content, nonce)
        assert forger.server.credentials is None, "somebody got in without a vouch"
        return
    forger.initiate(welcome, lambda passing: _vouched(passing, content), nonce)
    server = forger.server
    assert (server.credentials is None) is bool(server.error)
    if server.credentials:
        assert server.credentials.key == public_of(CLIENT)
        server.decide("")
        assert server.done


@target("curve-boxes-for-client")
def boxes_for_client(data: bytes) -> None:
    """Valid boxes of a server, with any content: of WELCOME, of READY."""
    given = Choices(data)
    how = given.byte() % 2
    client = CurveClient(DEALER, MOST, CLIENT, public_of(SERVER), lambda size: PASSING[:size])
    client.begin()
    key, nonce = shared_key(public_of(PASSING), SERVER), bytes(16)
    passing = bytes(range(96, 128))
    cookie = bytes(96)
    shown = public_of(passing) + cookie if how else given.take(128).ljust(128, b"\0")
    client.take(_body(b"WELCOME", nonce + seal(shown, b"WELCOME-" + nonce, key)))
    if client.error:
        return
    key = shared_key(public_of(PASSING), passing)
    nonce = given.take(8).rjust(8, b"\0")
    client.take(_body(b"READY", nonce + seal(given.rest(), b"CurveZMQREADY---" + nonce, key)))
    if how == 0:
        assert not client.done
    if client.credentials:
        client.decide("")
        assert client.done
        assert client.traffic


@target("curve-messages")
def curve_messages(data: bytes) -> None:
    """A server's traffic: boxes with any content and wire bytes between them, whole and cut.

    What is sealed and opened is what was said; nothing that was altered is opened.
    """
    given = Choices(data)
    size = given.byte()
    key = bytes(range(128, 160))
    nonce, wire, said, is_forged = 2, b"", b"", False
    while given.left:
        how, content = given.byte(), swollen(given.piece())
        if how % 8 == 7 and content:
            wire += content
            is_forged = True
            continue
        flags, nonce = how % 8, nonce + 1
        box = seal(bytes((flags,)) + content, FROM_CLIENT + nonce.to_bytes(8), key)
        body = b"\x07MESSAGE" + nonce.to_bytes(8) + box
        wire += (bytes((0, len(body))) if len(body) < 256 else b"\x02" + len(body).to_bytes(8)) + body
        is_forged |= flags > 2
        if not is_forged:
            said += _plain(flags, content)
    whole, pieces = (
        CurveTraffic(key, FROM_SERVER, FROM_CLIENT, sent=1, received=2, most_bytes=MOST) for _ in range(2)
    )
    opened = [_open(whole, wire, 0), _open(pieces, wire, size)]
    assert (opened[0], whole.error) == (opened[1], pieces.error), "it matters how the bytes were cut"
    assert opened[0][: len(said)] == said
    assert is_forged or (opened[0] == said and not whole.error)
    assert max(whole.held, pieces.held) <= len(wire)
    back = whole.seal(said)
    if said and not whole.error:  # behind an error nothing need be sealed: the connection is cut
        assert whole.unseal(back) == said
        back_again = CurveTraffic(key, FROM_CLIENT, FROM_SERVER, sent=2, received=1, most_bytes=MOST)
        assert back_again.open(back) == said


def _plain(flags: int, content: bytes) -> bytes:
    outer = (0, MORE, COMMAND)[flags]
    if len(content) < 256:
        return bytes((outer, len(content))) + content
    return bytes((outer | LONG,)) + len(content).to_bytes(8) + content


def _open(traffic: CurveTraffic, wire: bytes, size: int) -> bytes:
    opened = b""
    for piece in cut(wire, size):
        left = piece
        while left and not traffic.error:
            part, left = (
                (left[: traffic.missing], left[traffic.missing :]) if traffic.missing else (left, b"")
            )
            opened += traffic.open(part)
    return opened


# --------------------------------------------------------------------- topics


@target("subscriptions")
def subscriptions(data: bytes) -> None:
    """Topics that come and go at a forwarder: each message goes to those with a prefix of it, once."""
    given = Choices(data)
    bounds = TopicBounds(listed=2, in_dictionary=4) if given.byte() & 1 else TopicBounds()
    topics: SubscribedTopics[int] = SubscribedTopics(bounds)
    held: set[tuple[bytes, int]] = set()
    while given.left:
        how = given.byte()
        topic, who = given.piece(), how >> 2 & 3
        if how & 3 < 2 and topic and (topic, who) not in held:
            topics.add(topic, who)
            held.add((topic, who))
        elif how & 3 == 2 and (topic, who) in held:
            topics.remove(topic, who)
            held.discard((topic, who))
        else:
            message = encode([topic])
            lots = [lot for lot in topics.wanted([message, message]) if lot]
            expected = {who for prefix, who in held if topic.startswith(prefix)}
            assert sorted(who for who, _ in lots) == sorted(expected)
            assert all(lot == [message, message] for _, lot in lots)
