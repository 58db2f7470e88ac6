"""Topics as a radix tree, which knows the topics that are prefixes of others.

topics a, abcd, abcde, abcdf1, abcdf2:    "a" -- "bcd" -- "e"
                                                     `--- "f" -- "1"
                                                            `--- "2"
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, Generic, TypeVar

from sluicemq_devices.relays.prefixes import in_common

S = TypeVar("S")
"""Type of a subscriber: anything hashable."""


class Node(Generic[S]):
    """A node: the bytes that follow those of the nodes above, where topics branch or end."""

    known: Final = None  # as of a list
    __slots__ = ("above", "audience", "bytes", "children", "learnt", "path", "subscribers", "topic", "upper")

    def __init__(self, text: bytes, above: Node[S] | None) -> None:
        self.bytes = text
        self.above = above
        self.children: dict[int, Node[S]] | None = None  # by their first byte
        self.topic = b""
        """Whole topic that ends here, or empty."""
        self.subscribers: S | set[S] | None = None
        """Subscribers of that topic: None, one, or a set of two or more."""
        self.learnt: object = None
        """Version of the cache that the next three belong to: see ``Topics``."""
        self.audience: Any = None
        """Subscribers of all topics on the path to here."""
        self.upper: Node[S] | None = None
        """Node of the longest topic that is a prefix of this one."""
        self.path: Path[S] | None = None
        """Path to here, if it was needed."""


class Path(Generic[S]):
    """A topic, and the topics that are prefixes of it."""

    __slots__ = ("_lengths", "_nodes")

    def __init__(self, node: Node[S]) -> None:
        nodes = []
        at: Node[S] | None = node
        while at is not None:
            nodes.append(at)
            at = at.upper
        nodes.reverse()
        self._nodes = nodes
        self._lengths = [len(node.topic) for node in nodes]

    def __len__(self) -> int:
        """Return the number of topics on the path."""
        return len(self._nodes)

    def longest_of(self, frame: bytes) -> Node[S] | None:
        """Return the node of the longest topic that is a prefix of the frame."""
        at = bisect_right(self._lengths, in_common(frame, self._nodes[-1].topic))
        return self._nodes[at - 1] if at else None


class TopicTree(Generic[S]):
    """The tree of all topics and their subscribers."""

    def __init__(self) -> None:
        self.root: Node[S] = Node(b"", None)

    def grow(self, topic: bytes, near: Node[S] | None) -> Node[S]:
        """Return the node of a topic, made if missing; ``near``: a node whose topic may be its prefix."""
        begins = near is not None and topic.startswith(near.topic)
        node, at = (near, len(near.topic)) if near and begins else (self.root, 0)
        while at < len(topic):
            if node.children is None:
                node.children = {}
            child = node.children.get(topic[at])
            if child is None:
                child = node.children[topic[at]] = Node(topic[at:], node)
            elif not topic.startswith(child.bytes, at):
                child = _parted(child, node, in_common(child.bytes, topic, at))
            node = child
            at += len(node.bytes)
        return node

    def prune(self, node: Node[S]) -> None:
        """Remove a node that holds nothing: a leaf, or one where nothing branches any more."""
        above = node.above
        if node.children:
            _join(node)
        elif above is not None:
            _cut_off(node, above)
            _join(above)


def _cut_off(node: Node[S], above: Node[S]) -> None:
    siblings = above.children or {}
    del siblings[node.bytes[0]]
    if not siblings:
        above.children = None


def _join(node: Node[S]) -> None:
    """Merge a node with its child, if it has one child and no topic ends here."""
    above = node.above
    if above is None or node.subscribers is not None or not node.children or len(node.children) > 1:
        return
    (child,) = node.children.values()
    child.bytes = node.bytes + child.bytes
    child.above = above
    (above.children or {})[child.bytes[0]] = child


def _parted(node: Node[S], above: Node[S], size: int) -> Node[S]:
    """Return a new node above this one, which gets its first ``size`` bytes."""
    between: Node[S] = Node(node.bytes[:size], above)
    (above.children or {})[node.bytes[0]] = between
    node.bytes = node.bytes[size:]
    node.above = between
    between.children = {node.bytes[0]: node}
    return between
