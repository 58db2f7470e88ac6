"""The subscribers of a message: those of all topics that are prefixes of its first frame.

The longest of these topics is found by its own prefix (:mod:`~sluicemq_devices.relays.prefixes`), in one or
two looks and a search in a list, for any number and length of topics. The others are the prefixes of that
topic, which the tree of topics knows (:mod:`~sluicemq_devices.relays.topic_tree`). The subscribers of all of
them are computed for the first message, and cached until a topic changes that is a prefix of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from operator import is_
from typing import Any, Final, Generic
from weakref import WeakValueDictionary

from sluicemq_devices.relays.bounds import TOPIC_BOUNDS, TopicBounds
from sluicemq_devices.relays.prefixes import Prefixes, SortedList
from sluicemq_devices.relays.topic_tree import Node, Path, S, TopicTree
from sluicemq_devices.zmtp import LONG

#: Bytes of a topic, at most. A publisher's libzmq recurses once for each byte: half a million overflow a
#: stack of 8 MiB, and threads of some systems have 512 KiB.
LONGEST_TOPIC = 16_384


class _Audience(Generic[S]):
    """The subscribers of some topics; topics with equal subscribers share one audience."""

    __slots__ = ("__weakref__", "subscribers")

    def __init__(self, subscribers: frozenset[S]) -> None:
        self.subscribers = subscribers


_LATER: Final[_Audience[Any]] = _Audience(frozenset())
"""Stands for an audience that has still to be computed."""


class SubscribedTopics(Generic[S]):
    """Topics and their subscribers; a message goes to those with a topic that is a prefix of its first frame.

    Topics are not empty, and not longer than :data:`LONGEST_TOPIC`.
    """

    def __init__(self, bounds: TopicBounds = TOPIC_BOUNDS) -> None:
        self._bounds = bounds
        self._most_at_once = bounds.learnt_at_once
        self._tree: TopicTree[S] = TopicTree()
        self.prefixes: Prefixes[Node[S]] = Prefixes(bounds)
        # Version of the cache, which changes with a topic that is a prefix of others.
        self._now = object()
        self._audiences: WeakValueDictionary[frozenset[S], _Audience[S]] = WeakValueDictionary()
        # Nodes with a cached path.
        self._with_path: set[Node[S]] = set()
        self._learnt = 0
        self._at_once = 0  # entries computed for the messages at hand

    def add(self, topic: bytes, subscriber: S) -> None:
        """Add a subscription, which must be new."""
        self._keep_bound()
        node = self._tree.grow(topic, self.prefixes.near(topic))
        self._changed(topic, node)
        now = node.subscribers
        if now is None:
            node.subscribers = subscriber
            node.topic = topic
            self.prefixes.add(node)
            self._learn_at_once(node, subscriber)
        elif isinstance(now, set):
            now.add(subscriber)
        else:
            node.subscribers = {now, subscriber}

    def remove(self, topic: bytes, subscriber: S) -> None:
        """Remove a subscription, which must exist."""
        node = self.prefixes[topic]
        self._changed(topic, node)
        now = node.subscribers
        if isinstance(now, set) and len(now) > 1:
            now.remove(subscriber)
            return
        self.prefixes.remove(node)
        node.subscribers = None
        node.topic = b""
        self._tree.prune(node)

    def wanted(self, messages: list[bytes]) -> Iterator[tuple[S, list[bytes]] | None]:
        """Yield for each subscriber the encoded messages that it wants, once and in order.

        Where much must be computed they come in several lots of some milliseconds, with None between them.
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
        """Return the audience of each message; None: no subscriber wants it."""
        if not self.prefixes.root:
            return [None] * len(messages)
        frames = [
            message[2 : 2 + message[1]] if message[0] < LONG else _first_of_long(message)
            for message in messages
        ]
        now, number = self._now, int.from_bytes
        return [
            near.audience
            if near.learnt is now and frame.startswith(near.topic)
            # As near.audience(frame) does, but a call takes as long as all the rest.
            else (
                near.known is now
                and near.audiences[
                    (number(frame[: near.size].ljust(near.size, near.filler)) ^ near.number).bit_length() + 7
                    >> 3
                ]
            )
            or self._search(frame)
            for frame, near in zip(frames, self.prefixes.first_looks(frames), strict=True)
        ]

    def _search(self, frame: bytes) -> _Audience[S] | None:
        """Return the audience of a message that the first look has not found."""
        if self._at_once >= self._most_at_once:
            return _LATER
        found = self.prefixes.group(frame)
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
        """Return the node of the longest topic that is a prefix of the frame; ``near``'s topic is not."""
        if near.learnt is not self._now:
            self._learn(near)
        upper = near.upper
        if upper is None or frame.startswith(upper.topic):
            return upper
        return (upper.path or self._make_path(upper)).longest_of(frame)

    def _learn_at_once(self, node: Node[S], subscriber: S) -> None:
        """Cache the audience of a new node if it has a known one, as its first message would."""
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
        """Compute and cache the audience of a node's topic."""
        unknown: list[Node[S]] = []
        now = self._now
        at: Node[S] | None = node
        while at is not None and at.learnt is not now:
            unknown.append(at)
            at = at.above
        self._at_once += len(unknown)
        for above in reversed(unknown):
            self._learn_one(above)
        audience: _Audience[S] = node.audience
        return audience

    def _learn_one(self, node: Node[S]) -> None:
        """Compute the audience of a node when all nodes above have theirs."""
        above, now = node.above, node.subscribers
        node.upper = above.upper if above and above.subscribers is None else above
        node.learnt = self._now
        own = now if isinstance(now, set) else () if now is None else (now,)
        known: _Audience[S] | None = above.audience if above else None
        if known and known.subscribers.issuperset(own):
            node.audience = known
            return
        node.audience = self._audience_of(known.subscribers.union(own) if known else frozenset(own))
        # Uniting the sets takes as long as that many nodes.
        self._at_once += len(node.audience.subscribers) // 64

    def _audience_of(self, subscribers: frozenset[S]) -> _Audience[S]:
        audience = self._audiences.get(subscribers)
        if audience is None:
            audience = self._audiences[subscribers] = _Audience(subscribers)
            self._learnt += len(subscribers)
        return audience

    def _make_path(self, node: Node[S]) -> Path[S]:
        path = node.path = Path(node)
        self._with_path.add(node)
        self._learnt += len(path)
        self._at_once += len(path)
        return path

    def _changed(self, topic: bytes, node: Node[S]) -> None:
        self.prefixes.changed(topic)
        node.learnt = node.path = None
        self._with_path.discard(node)
        if node.children:
            self.forget()

    @property
    def remembered(self) -> int:
        """How many things are kept for the topics that there are: 0 when all are gone."""
        of_topics = len(self._tree.root.children or ()) + self.prefixes.remembered
        return of_topics + len(self._with_path) + sum(map(len, self._audiences))

    def _keep_bound(self) -> None:
        if self._learnt > self._bounds.learnt:
            self.forget()

    def forget(self) -> None:
        """Empty the cache. Must not run while messages are matched, whose audiences would be lost."""
        self._now = object()
        self._learnt = 0
        for node in self._with_path:
            node.path = None
        self._with_path.clear()
        for audience in self._audiences.values():
            audience.subscribers = (
                frozenset()
            )  # nodes that are not looked at again keep no subscriber that has left
        self._audiences.clear()


def _chosen(audiences: list[_Audience[S] | None], messages: list[bytes]) -> Iterator[tuple[S, list[bytes]]]:
    """Yield for each subscriber its messages; each message has the audience at its position."""
    first = audiences[0]
    if all(map(is_, audiences, repeat(first))):
        for subscriber in first.subscribers if first else ():
            yield subscriber, messages
        return
    runs: dict[S, list[list[int]]] = {}
    for audience, run in _places(audiences).items():
        for subscriber in audience.subscribers:
            runs.setdefault(subscriber, []).append(run)
    picked: dict[int, list[bytes]] = {}  # by run: many subscribers may want only that one
    for subscriber, several in runs.items():
        first_run = several[0]
        if len(several) > 1:
            yield subscriber, [messages[at] for at in sorted(chain.from_iterable(several))]
            continue
        if id(first_run) not in picked:
            picked[id(first_run)] = [messages[at] for at in first_run]
        yield subscriber, picked[id(first_run)]


def _places(audiences: list[_Audience[S] | None]) -> dict[_Audience[S], list[int]]:
    """Return the positions of each audience in the list."""
    places: dict[_Audience[S] | None, list[int]] = {}
    latest: _Audience[S] | None = None
    run = places[latest] = []
    for place, audience in enumerate(audiences):
        if audience is not latest:
            latest, run = audience, places.setdefault(audience, [])
        run.append(place)
    return {audience: run for audience, run in places.items() if audience}


def _first_of_long(message: bytes) -> bytes:
    """Return the first frame, up to the length of the longest topic."""
    if message[0] == LONG:
        return bytes(message[9 : 9 + LONGEST_TOPIC])
    return bytes(message[9 : 9 + min(int.from_bytes(message[1:9]), LONGEST_TOPIC)])
