"""Filters of topics: by prefix, by pattern, or exact.

::

    orders          every topic that begins with it, as ZeroMQ subscribes
    orders.*.paid   one word for the star; words are separated by full stops
    orders.>        one word or more at the end
    =orders.17      this topic only
                    (empty) every message

The first 255 bytes of a topic count. Prefixes are found by bisection. Patterns are a tree of words, through
which a topic goes word by word::

    orders.*.paid, orders.*.sent, news.>      orders -- * -- paid
                                                         `-- sent
                                              news -- >

Several nodes may fit the words of a topic so far; they make one state, which is remembered with the states to
which words lead from it. So the cost of a topic is its own words, with any number of patterns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from time import thread_time
from typing import Final

from sluicemq.protocol.errors import BadTopicError
from sluicemq.protocol.packed import LONGEST_TOPIC
from sluicemq_broker.streams.choosing import Usage

#: Topics in one filter, at most.
MOST_TOPICS: Final = 1000
#: Words of all its patterns, at most: the first topic that fits them all builds tree and states in 9 ms.
MOST_WORDS: Final = 4096
#: Topics after which the clock is looked at.
_LOOK: Final = 8
_ONE, _REST = b"*", b">"


class Topics:
    """The messages that one reader wants; all messages if ``wanted`` is empty. Raises :class:`BadTopic`."""

    def __init__(self, wanted: Sequence[bytes] = (), usage: Usage | None = None) -> None:
        """``usage``: the connection's, if it has several readers."""
        if len(wanted) > MOST_TOPICS:
            raise BadTopicError(f"{len(wanted)} topics at once, at most {MOST_TOPICS} are taken")
        distinct = dict.fromkeys(wanted)
        self.everything = not wanted or b"" in distinct
        self.exact: frozenset[bytes] = frozenset(topic[1:] for topic in distinct if topic.startswith(b"="))
        others = [topic for topic in distinct if not topic.startswith(b"=")]
        self._patterns = [topic for topic in others if _ONE in topic or _REST in topic]
        _check(distinct, self._patterns)
        self._beginnings = _shortest(topic for topic in others if not (_ONE in topic or _REST in topic))
        self._tree: _Node | None = None  # built when the first topic is looked at, in the turn for that
        self._start: _State | None = None
        words = _words(self._patterns)
        # Nodes of all remembered states, at most: a number, plus a number for each word of a pattern.
        self._most = 256 + 2 * words
        self._remembered = 0
        self._checking = self._checked = 0  # segment whose topics are checked, and how many of them were
        self._wanted: set[bytes] = set()  # the wanted ones of these
        # Bytes of memory, at most, for each word of a pattern with its node and states, and for each topic
        # of a filter beside its own bytes.
        self.bytes = sum(map(len, distinct)) + 96 * len(distinct) + 512 * words
        """Bytes of memory that the filter takes, at most."""
        self.usage = usage or Usage()

    def want(self, topic: bytes) -> bool:
        """True if messages with this topic are wanted; long topics are cut to 255 bytes."""
        return self.everything or topic in self.exact or self._begins(topic) or self._fits(topic)

    def among(self, topics: Sequence[bytes], place: int, seconds: float) -> Collection[bytes] | None:
        """Return the wanted ones of the topics of a segment; None: not all were checked in these seconds.

        ``place``: the segment's, where the next call for it goes on. ``seconds`` of CPU; some topics are
        checked in any case.
        """
        if self.everything:
            return frozenset(topics)
        until = thread_time() + seconds
        if self._checking != place:
            self._checking, self._checked, self._wanted = place, 0, set()
        for at in range(self._checked, len(topics), _LOOK):
            some = topics[at : at + _LOOK]
            self._wanted.update(filter(self.want, some))
            self._checked = at + len(some)
            if self._checked < len(topics) and thread_time() > until:
                return None
        return self._wanted

    def _begins(self, topic: bytes) -> bool:
        """True if a topic has a wanted prefix: the last prefix that is not behind it in order."""
        at = bisect_right(self._beginnings, topic)
        return at > 0 and topic.startswith(self._beginnings[at - 1])

    def _fits(self, topic: bytes) -> bool:
        """True if a pattern fits a topic."""
        if not self._patterns:
            return False
        if self._tree is None:
            self._tree = _tree(self._patterns)
        if self._start is None or self._remembered > self._most:
            self._start, self._remembered = _State([self._tree]), 0
        state, words = self._start, topic.split(b".")
        last = len(words) - 1
        for at, word in enumerate(words):
            if state.rest and (word or at < last):
                return True
            onward = state.onward.get(word)
            if onward is None:
                onward = state.after(word)
                if not onward.used:
                    onward.used = True
                    self._remembered += onward.weight
            if not onward.nodes:
                return False
            state = onward
        return state.ends


class _Node:
    """A node in the tree of words."""

    __slots__ = ("ends", "one", "rest", "words")

    def __init__(self) -> None:
        self.words: dict[bytes, _Node] | None = None
        self.one: _Node | None = None
        """The node behind a star."""
        self.rest = False
        """True if all topics with these words before fit."""
        self.ends = False
        """True if a pattern ends here."""

    def after(self, word: bytes) -> _Node:
        """Return the node behind this word of a pattern; made if it is missing."""
        if word == _ONE:
            self.one = self.one or _Node()
            return self.one
        if self.words is None:
            self.words = {}
        found = self.words.get(word)
        if found is None:
            found = self.words[word] = _Node()
        return found


class _State:
    """The nodes that fit the first words of topics, and the states to which next words have led."""

    __slots__ = ("_children", "_other", "ends", "nodes", "onward", "rest", "used", "weight")

    def __init__(self, nodes: list[_Node]) -> None:
        self.nodes = nodes
        self.rest = any(node.rest for node in nodes)
        self.ends = any(node.ends for node in nodes)
        self.onward: dict[bytes, _State] = {}
        """Next states by the words of patterns, and by the empty word; see :meth:`after`."""
        self.used = False
        """True if it is counted as remembered."""
        self._other: _State | None = None  # behind all other words: the nodes behind stars
        self._children: dict[bytes, list[_Node]] = {}
        for node in nodes:
            for word, child in (node.words or {}).items():
                self._children.setdefault(word, []).append(child)
        self.weight = 1 + len(nodes) + sum(map(len, self._children.values()))
        """Number of nodes that it keeps, about."""

    def after(self, word: bytes) -> _State:
        """Return the state behind a word that is not remembered here."""
        found = self._children.get(word, [])
        if not word:
            return self.onward.setdefault(word, _State(found))
        if self._other is None:
            self._other = _State([node.one for node in self.nodes if node.one])
        if not found:
            return self._other
        return self.onward.setdefault(word, _State(found + self._other.nodes))


def _check(topics: Iterable[bytes], patterns: Sequence[bytes]) -> None:
    for topic in topics:
        if len(topic) > LONGEST_TOPIC:
            raise BadTopicError(f"a topic of {len(topic)} bytes is wanted, {LONGEST_TOPIC} count at most")
    words = _words(patterns)
    if words > MOST_WORDS:
        raise BadTopicError(
            f"the patterns of topics have {words} words in all, at most {MOST_WORDS} are taken"
        )
    for pattern in patterns:
        _check_pattern(pattern)


def _check_pattern(pattern: bytes) -> None:
    words = pattern.split(b".")
    for at, word in enumerate(words):
        if word not in (_ONE, _REST) and (_ONE in word or _REST in word):
            raise BadTopicError(
                f"{_printable(pattern)}: * and > stand for whole words: write orders.*.paid or orders.>"
            )
        if word == _REST and at < len(words) - 1:
            raise BadTopicError(
                f"{_printable(pattern)}: > stands for all that follows, so nothing may follow it"
            )


def _shortest(beginnings: Iterable[bytes]) -> list[bytes]:
    """Return the prefixes in order, without those that have another one as prefix."""
    found: list[bytes] = []
    for beginning in sorted(beginnings):
        if not (found and beginning.startswith(found[-1])):
            found.append(beginning)
    return found


def _words(patterns: Iterable[bytes]) -> int:
    return sum(pattern.count(b".") + 1 for pattern in patterns)


def _tree(patterns: Iterable[bytes]) -> _Node:
    """Return the tree of the words of these patterns."""
    root = _Node()
    for pattern in patterns:
        node = root
        words = pattern.split(b".")
        rest = words[-1] == _REST
        for word in words[:-1] if rest else words:
            node = node.after(word)
        if rest:
            node.rest = True
        else:
            node.ends = True
    return root


def _printable(topic: bytes) -> str:
    return repr(topic[:64].decode(errors="replace"))
