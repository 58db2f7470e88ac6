"""The doors where plain sockets (REQ, DEALER) read earlier messages of streams, page by page.

Request: ``[stream][JSON {after | since, topic | topics, limit}]``; the JSON may be left out.
Answer: ``[JSON {count, after, gone, newest}]``, then for each message ``["NUMBER TIME FRAMES"]`` and its
frames as they were published. ``after`` is for the next request; an error is ``["ERROR"][JSON]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import gevent

from sluicemq.protocol.errors import BadFramesError, BadTopicError
from sluicemq.protocol.packed import unpack
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rules import Rule, number, whole
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors import (
    DoorGroup,
    Services,
    error_frames,
    read_name,
    refusal,
    split_envelope,
    without_probes,
)
from sluicemq_broker.runtime import QuerySlots, SlotUser, read_json, read_options
from sluicemq_broker.security import authorize
from sluicemq_broker.streams import Reading, Streams, Topics, Usage, Wanted, check_stream
from sluicemq_devices.hub import let_others_run
from sluicemq_devices.sockets import Lane, LaneDoor

#: Bytes of memory that an answer takes, about: its messages, and twice the frames of each.
_ROOM: Final = 4 << 20


class ReplayDoors:
    """The replay doors of one device, where all streams can be read."""

    def __init__(self, settings: DeviceSettings, services: Services, streams: Streams) -> None:
        self._streams = streams
        self._counters = services.counters
        self._default = settings.stream
        # Requests that are answered at one time; each client waits for its answer.
        self._slots = QuerySlots(8)
        self.doors = DoorGroup(
            LaneDoor(
                services.board,
                end,
                "ROUTER",
                self._connected,
                max_frame=256 * 1024,
                guard=services.security.guard(end, settings),
            )
            for end in settings.replays
        )

    def _connected(self, lane: Lane) -> None:
        client = _Client(lane, Usage(), self._slots.user())
        lane.on(receive=lambda requests: self._receive(client, requests))

    def _receive(self, client: _Client, requests: list[list[bytes]]) -> None:
        """Answer requests one after the other; the client is not read meanwhile."""
        requests = without_probes(requests, self._counters)
        if requests:
            client.lane.pause(self)
            gevent.spawn(self._answer_all, client, requests)

    def _answer_all(self, client: _Client, requests: list[list[bytes]]) -> None:
        lane = client.lane
        for frames in requests:
            envelope = frames[:1]
            try:
                envelope, body = split_envelope(frames, "stream")
                self._answer(client, envelope, body)
            except Exception as error:  # noqa: BLE001 - the client must have an answer
                problem = refusal(error)
                lane.blame(malformed=isinstance(problem, BadFramesError))
                lane.send([*envelope, *error_frames(problem)])
        client.user.answered()
        lane.resume(self)

    def _answer(self, client: _Client, envelope: list[bytes], body: list[bytes]) -> None:
        """Read page after page until one has wanted messages; a client that has left gets no answer."""
        name, options = _read(body, self._default)
        authorize(client.lane.who, Action.SUBSCRIBE, name)
        topics, limit = _topics(options, client.usage), options.get("limit", 1000)
        after, since = options.get("after", 0), options.get("since")
        with client.user.slot():
            stream = self._streams.get(check_stream(name))
            first = at = after + 1 if since is None else stream.since(since)
        gone = 0
        while client.listens:
            with client.page():
                reading = stream.read(Wanted(at, topics, limit, 1 << 20))
                gone += reading.gone
                if reading.chosen or not reading.more:
                    client.lane.send([*envelope, *_frames(reading, 0 if first == 1 else gone)])
                    return
            at = reading.first
            let_others_run()


class _Client(NamedTuple):
    """One connection, the time that it has used for choosing messages, and its slots for queries."""

    lane: Lane
    usage: Usage
    user: SlotUser

    @property
    def listens(self) -> bool:
        """Wait until the client has read its answers; False if it has left."""
        return self.lane.ration.reserve(0) and not self.lane.peer_has_left

    @contextmanager
    def page(self) -> Iterator[None]:
        """Wait for a slot, then for memory, and have both for the body: only slots hold memory."""
        with self.user.slot():
            has_room = self.lane.ration.reserve(_ROOM)
            try:
                yield
            finally:
                if has_room:
                    self.lane.ration.release(_ROOM)


def _read(body: list[bytes], default: str | None) -> tuple[str, dict[str, Any]]:
    if not 1 <= len(body) <= 2:
        raise BadFramesError(f"a request has 1 or 2 frames, [stream][JSON], this one has {len(body)}")
    name = read_name(body[0]) or default or ""
    try:
        options = read_json(body[1]) if len(body) == 2 and body[1] else {}
    except ValueError as error:
        raise BadFramesError(f"the second frame is not JSON: {error}") from error
    if not isinstance(options, dict):
        raise BadFramesError(f"the second frame is a JSON object of {', '.join(_OPTIONS)}")
    return name, read_options(options, _OPTIONS, "a request")


def _topics(options: dict[str, Any], usage: Usage) -> Topics:
    names = [*options.get("topics", []), *filter(None, [options.get("topic")])]
    return Topics([name.encode(errors="surrogateescape") for name in names], usage)


def _frames(reading: Reading, gone: int) -> list[bytes]:
    frames: list[bytes] = []
    count, after = 0, reading.first - 1
    for part in reading.chosen:
        # Frames after which an answer ends with the segment
        if len(frames) > 20_000:
            break
        if count:
            let_others_run()
        segment = part.segment
        count += part.count
        after = reading.first - 1 if part is reading.chosen[-1] else segment.next - 1
        places = range(segment.count) if part.places is None else part.places
        for place, message in zip(places, unpack(part.packed), strict=True):
            frames.append(b"%d %.3f %d" % (segment.first + place, segment.at, len(message)))
            frames += message
    about = {"count": count, "after": after, "gone": gone, "newest": reading.newest}
    return [json.dumps(about).encode(), *frames]


def _read_topic(value: Any) -> str:
    if not isinstance(value, str):
        raise BadTopicError(f"a topic is a string, not {str(value)[:64]!r}")
    return value


def _read_topics(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise BadTopicError("topics is an array of strings")
    return [_read_topic(item) for item in value]


_OPTIONS: Final = {
    "after": whole(0, 2**62),
    "since": number(0, 2**40),
    "topic": Rule("a string", _read_topic),
    "topics": Rule("an array of strings", _read_topics),
    "limit": whole(1, 10_000),
}
