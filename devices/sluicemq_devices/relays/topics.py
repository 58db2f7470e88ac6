"""Which subscribers want a message: those of all topics that begin its first frame.

The longest of these topics is found by its beginning (:mod:`~sluicemq_devices.relays.prefixes`), in one or
two looks and a search in a list, however many topics there are and whatever their lengths. The others
are those that begin it: the tree of topics tells which (:mod:`~sluicemq_devices.relays.topic_tree`). Who the
subscribers of all of them are is learnt with the first message, and holds until a topic changes that begins
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from operator import is_
from typing import Any, Final, Generic
from weakref import WeakValueDictionary

from sluicemq_devices.relays.bounds import TOPIC_BOUNDS, TopicBounds
from sluicemq_devices.relays.prefixes import Beginnings, SortedList
from sluicemq_devices.relays.topic_tree import Node, S, TopicTree, Way
from sluicemq_devices.zmtp import LONG

#: Bytes of a topic, at most. The libzmq of a publisher recurses once for each: half a million overflow
#: a stack of 8 MiB, and threads of some systems have 512 KiB.
LONGEST_TOPIC = 16_384


class _Audience(Generic[S]):
    """Who gets the messages of some topics: one for all that have the same subscribers."""

    __slots__ = ("__weakref__", "subscribers")

    def __init__(self, subscribers: frozenset[S]) -> None:
        self.subscribers = subscribers


_LATER: Final[_Audience[Any]] = _Audience(frozenset())
"""For whom a message is has still to be learnt."""


class Topics(Generic[S]):
    """Topics and who subscribes to them; a message is for those of which a topic begins its first frame.

    No topic is empty, and none longer than :data:`LONGEST_TOPIC`.
    """

    def __init__(self, bounds: TopicBounds = TOPIC_BOUNDS) -> None:
        self._bounds = bounds
        self._most_at_once = bounds.learnt_at_once
        self._tree: TopicTree[S] = TopicTree()
        self._beginnings: Beginnings[Node[S]] = Beginnings(bounds)
        # Until a topic changes that begins others: what a node knows is as new as this,
        self._now = object()
        self._audiences: WeakValueDictionary[frozenset[S], _Audience[S]] = WeakValueDictionary()
        # and so are the ways of these.
        self._ways: set[Node[S]] = set()
        self._learnt = 0
        self._at_once = 0  # learnt for the messages at hand

    def add(self, topic: bytes, subscriber: S) -> None:
        """It was not there."""
        self._keep_bound()
        node = self._tree.grow(topic, self._beginnings.near(topic))
        self._changed(topic, node)
        now = node.subscribers
        if now is None:
            node.subscribers = subscriber
            node.topic = topic
            self._beginnings.add(node)
            self._learn_at_once(node, subscriber)
        elif isinstance(now, set):
            now.add(subscriber)
        else:
            node.subscribers = {now, subscriber}

    def remove(self, topic: bytes, subscriber: S) -> None:
        """It was there."""
        node = self._beginnings[topic]
        self._changed(topic, node)
        now = node.subscribers
        if isinstance(now, set) and len(now) > 1:
            now.remove(subscriber)
            return
        self._beginnings.remove(node)
        node.subscribers = None
        node.topic = b""
        self._tree.prune(node)

    def wanted(self, messages: list[bytes]) -> Iterator[tuple[S, list[bytes]] | None]:
        """For each subscriber what it wants of them, once and in order; messages are encoded.

        Where much is to be learnt they come in several lots, with None in between: each took milliseconds.
        """
        while messages:
            self._keep_bound()
            self._at_once = 0
            audiences, later = self._find(messages), []
            if self._at_once >= self._most_at_once and _LATER in audiences:
                found = audiences.index(_LATER)
                audiences, messages, later = audiences[:found], messages[:found], messages[found:]
            yield from _chosen(audiences, messages)
            messages = later
            if later:
                yield None

    def _find(self, messages: list[bytes]) -> list[_Audience[S] | None]:
        """For whom each of the messages is; None: for nobody."""
        if not self._beginnings.root:
            return [None] * len(messages)
        frames = [
            message[2 : 2 + message[1]] if message[0] < LONG else _first_of_long(message)
            for message in messages
        ]
        now, number = self._now, int.from_bytes
        return [
            near.audience
            if near.learnt is now and frame.startswith(near.topic)
            # This is near.audience(frame), but a call takes as long as all the rest.
            else (
                near.known is now
                and near.audiences[
                    (number(frame[: near.size].ljust(near.size, near.filler)) ^ near.number).bit_length() + 7
                    >> 3
                ]
            )
            or self._look(frame)
            for frame, near in zip(frames, self._beginnings.first_looks(frames), strict=True)
        ]

    def _look(self, frame: bytes) -> _Audience[S] | None:
        """For whom a message is, which the first look does not tell."""
        if self._at_once >= self._most_at_once:
            return _LATER
        found = self._beginnings.group(frame)
        if found.__class__ is SortedList:
            if found.known is not self._now and found.is_chain is not False:
                found.learn(self._now, self._learn, self._bounds.chain_bytes)
                self._at_once += len(found.topics)
            audience: _Audience[S] | None = found.audience(frame) if found.known is self._now else None
            if audience:
                return audience
            found = found.near(frame)
        node: Node[S] | None = found
        if node is not None and not frame.startswith(node.topic):
            node = self._shorter(frame, node)
        return None if node is None else self._learn(node)

    def _shorter(self, frame: bytes, near: Node[S]) -> Node[S] | None:
        """Where the longest topic ends that begins this, if the one near it does not."""
        if near.learnt is not self._now:
            self._learn(near)
        upper = near.upper
        if upper is None or frame.startswith(upper.topic):
            return upper
        return (upper.way or self._learn_way(upper)).longest_of(frame)

    def _learn_at_once(self, node: Node[S], subscriber: S) -> None:
        """The same as the first message would have it learn, if its audience is nothing new."""
        at = node.above
        while at is not None and at.learnt is not self._now and at.subscribers is None:
            at = at.above
        heard = at.audience.subscribers if at is not None and at.learnt is self._now else ()
        if (
            not node.children
            and (at is None or at.learnt is self._now)
            and (not heard or subscriber in heard)
        ):
            self._learn(node)

    def _learn(self, node: Node[S]) -> _Audience[S]:
        """Who gets the messages of a node's topic."""
        unknown: list[Node[S]] = []
        now = self._now
        at: Node[S] | None = node
        while at is not None and at.learnt is not now:
            unknown.append(at)
            at = at.above
        self._at_once += len(unknown)
        for each in reversed(unknown):
            self._learn_one(each)
        audience: _Audience[S] = node.audience
        return audience

    def _learn_one(self, node: Node[S]) -> None:
        """The same, where all above know it."""
        above, now = node.above, node.subscribers
        node.upper = above.upper if above and above.subscribers is None else above
        node.learnt = self._now
        own = now if isinstance(now, set) else () if now is None else (now,)
        known: _Audience[S] | None = above.audience if above else None
        if known and known.subscribers.issuperset(own):
            node.audience = known
            return
        node.audience = self._audience_of(known.subscribers.union(own) if known else frozenset(own))
        self._at_once += len(node.audience.subscribers) // 64  # to unite them takes that long

    def _audience_of(self, subscribers: frozenset[S]) -> _Audience[S]:
        audience = self._audiences.get(subscribers)
        if audience is None:
            audience = self._audiences[subscribers] = _Audience(subscribers)
            self._learnt += len(subscribers)
        return audience

    def _learn_way(self, node: Node[S]) -> Way[S]:
        way = node.way = Way(node)
        self._ways.add(node)
        self._learnt += len(way)
        self._at_once += len(way)
        return way

    def _changed(self, topic: bytes, node: Node[S]) -> None:
        self._beginnings.changed(topic)
        node.learnt = node.way = None
        self._ways.discard(node)
        if node.children:
            self._forget()

    def _keep_bound(self) -> None:
        if self._learnt > self._bounds.learnt:
            self._forget()

    def _forget(self) -> None:
        """Not while messages are looked for: their audiences would be lost."""
        self._now = object()
        self._learnt = 0
        for node in self._ways:
            node.way = None
        self._ways.clear()
        for audience in self._audiences.values():
            audience.subscribers = frozenset()  # who has gone is not kept by nodes that look no more
        self._audiences.clear()


def _chosen(audiences: list[_Audience[S] | None], messages: list[bytes]) -> Iterator[tuple[S, list[bytes]]]:
    """For each subscriber what it wants of the messages, each of which is for one of the audiences."""
    first = audiences[0]
    if all(map(is_, audiences, repeat(first))):
        for subscriber in first.subscribers if first else ():
            yield subscriber, messages
        return
    runs: dict[S, list[list[int]]] = {}
    for audience, run in _places(audiences).items():
        for subscriber in audience.subscribers:
            runs.setdefault(subscriber, []).append(run)
    picked: dict[int, list[bytes]] = {}  # by run: many may want just that one
    for subscriber, several in runs.items():
        first_run = several[0]
        if len(several) > 1:
            yield subscriber, [messages[at] for at in sorted(chain.from_iterable(several))]
            continue
        if id(first_run) not in picked:
            picked[id(first_run)] = [messages[at] for at in first_run]
        yield subscriber, picked[id(first_run)]


def _places(audiences: list[_Audience[S] | None]) -> dict[_Audience[S], list[int]]:
    """Where in the list each stands."""
    places: dict[_Audience[S] | None, list[int]] = {}
    latest: _Audience[S] | None = None
    run = places[latest] = []
    for place, audience in enumerate(audiences):
        if audience is not latest:
            latest, run = audience, places.setdefault(audience, [])
        run.append(place)
    return {audience: run for audience, run in places.items() if audience}


def _first_of_long(message: bytes) -> bytes:
    """The first frame, as far as a topic can reach."""
    if message[0] == LONG:
        return bytes(message[9 : 9 + LONGEST_TOPIC])
    return bytes(message[9 : 9 + min(int.from_bytes(message[1:9]), LONGEST_TOPIC)])
