"""Which messages somebody wants: topics by their beginning, by pattern, or exactly.

``orders`` every topic that begins so, as ZeroMQ subscribes; ``orders.*.paid`` one word for the star;
``orders.>`` one word or more at the end; ``=orders.17`` this one only; the empty topic: every message.
Words are what full stops part. Of a topic its first 255 bytes count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from sluicemq.errors import BadTopic
from sluicemq.packed import LONGEST_TOPIC

#: Topics in one filter, at most.
MOST_TOPICS: Final = 1000
#: Topics of which it is remembered whether they are wanted.
_MOST_KNOWN: Final = 10_000


class Topics:
    """What one reader wants; all messages if ``wanted`` is empty. Raises :class:`BadTopic`."""

    def __init__(self, wanted: Sequence[bytes] = ()) -> None:
        if len(wanted) > MOST_TOPICS:
            raise BadTopic(f"{len(wanted)} topics at once, at most {MOST_TOPICS} are taken")
        rules = [_rule(each) for each in dict.fromkeys(wanted)]
        self.everything = not wanted or b"" in wanted
        self.exact: frozenset[bytes] = frozenset(rule for rule in rules if isinstance(rule, bytes))
        self._prefixes = tuple(rule[0] for rule in rules if isinstance(rule, tuple))
        self._patterns = [rule for rule in rules if callable(rule)]
        self._known: dict[bytes, bool] = {}

    def want(self, topic: bytes) -> bool:
        """True if messages with this topic are wanted; of long topics their first 255 bytes."""
        if self.everything:
            return True
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[topic] = self._find_out(topic)
        return known

    def of(self, topics: Collection[bytes]) -> bool | None:
        """True if messages with these topics are wanted; None: some of them."""
        if self.everything:
            return True
        wanted = sum(map(self.want, topics))
        return None if 0 < wanted < len(topics) else bool(wanted)

    def _find_out(self, topic: bytes) -> bool:
        return (
            topic in self.exact
            or topic.startswith(self._prefixes)
            or any(matches(topic) for matches in self._patterns)
        )


def _rule(wanted: bytes) -> bytes | tuple[bytes] | Callable[[bytes], Any]:
    """A topic as it is, a beginning as a tuple, or whether a pattern matches."""
    if len(wanted) > LONGEST_TOPIC:
        raise BadTopic(f"a topic of {len(wanted)} bytes is wanted, {LONGEST_TOPIC} count at most")
    if wanted.startswith(b"="):
        return wanted[1:]
    if not (b"*" in wanted or b">" in wanted):
        return (wanted,)
    words = wanted.split(b".")
    for at, word in enumerate(words):
        if word not in (b"*", b">") and (b"*" in word or b">" in word):
            raise BadTopic(
                f"{_shown(wanted)}: * and > stand for whole words: write orders.*.paid or orders.>"
            )
        if word == b">" and at < len(words) - 1:
            raise BadTopic(f"{_shown(wanted)}: > stands for all that follows, so nothing may follow it")
    parts = [{b"*": rb"[^.]+", b">": rb".+"}.get(word, re.escape(word)) for word in words]
    return re.compile(rb"\.".join(parts), re.DOTALL).fullmatch


def _shown(topic: bytes) -> str:
    return repr(topic[:64].decode(errors="replace"))
