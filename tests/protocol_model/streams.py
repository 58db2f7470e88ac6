"""The log of a stream in every order of events: two brokers, lost answers, late writes, removal.

What is modelled is :mod:`sluicemq_broker.store.streams.stream_store` and the writer above it, one message a
segment: an insert is sent, copies of it land at any later time or never, an answer comes or is lost, the
broker gives up waiting and sends the same again; brokers read the tail, stand still for longer than the
guard, and are killed; a publisher that heard nothing repeats its message at the other broker; the oldest is
removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple


class Rules(NamedTuple):
    """What the protocol relies on; a model without one must go wrong."""

    mark: bool = True  # a taken place is asked whose it is
    stay: bool = True  # what is unclear is sent again to the same place
    guard: bool = True  # who was away asks for the tail, and for what is removed
    newest: bool = True  # the newest segment is not removed
    ids: bool = True  # what others have stored meanwhile is looked for among what is to be sent


class Bounds(NamedTuple):
    """How much may happen: messages, copies of inserts, repeats elsewhere, removals, crashes."""

    messages: int = 2
    copies: int = 4
    repeats: int = 1
    removals: int = 1
    crashes: int = 0


class Copy(NamedTuple):
    """An insert under way: who sent it, whether that one still waits, where it goes, what it holds."""

    broker: int
    awaited: bool
    place: int
    mark: tuple[int, int]
    message: int


@dataclass(frozen=True)
class BrokerState:
    """What one broker knows: the tail, whether it may be too old, what it has to store, what it waits for."""

    tail: int = 1
    away: bool = False
    queue: tuple[int, ...] = ()
    mark: tuple[int, int] = (0, 0)
    waits: bool = False  # for the answer to what is first in the queue
    dead: bool = False


@dataclass(frozen=True)
class Moment:
    """All there is: the collection, what is under way, the brokers, and who was told what."""

    stored: tuple[tuple[int, tuple[int, int], int], ...] = ()  # place, mark, message
    removed: int = 1
    copies: tuple[Copy, ...] = ()
    brokers: tuple[BrokerState, ...] = (BrokerState(), BrokerState())
    published: int = 0
    confirmed: frozenset[tuple[int, int]] = frozenset()  # message, place
    seen: frozenset[tuple[int, int]] = frozenset()  # place, message: what a reader may have been given
    sent: int = 0
    repeats: int = 0
    removals: int = 0
    crashes: int = 0

    @property
    def real(self) -> list[tuple[int, tuple[int, int], int]]:
        return [segment for segment in self.stored if segment[0] >= self.removed]

    @property
    def tail(self) -> int:
        return max((place for place, _mark, _message in self.stored), default=0) + 1


class Step(NamedTuple):
    words: str
    after: Moment


class Found(NamedTuple):
    """How many moments there were, and the first complaint with the way to it."""

    moments: int
    complaint: str
    trace: list[str]


def explore(rules: Rules, bounds: Bounds) -> Found:
    """Every moment that can be reached, breadth first; stops at the first that is wrong."""
    first = Moment()
    parents: dict[Moment, tuple[Moment, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        moment = queue.popleft()
        for words, after in steps(moment, rules, bounds):
            after = _read_all(after)  # noqa: PLW2901 - a reader may read at any time, so it does
            if after in parents:
                continue
            parents[after] = moment, words
            complaint = wrong(after)
            if complaint:
                return Found(len(parents), complaint, _trace(parents, after))
            queue.append(after)
    return Found(len(parents), "", [])


def wrong(moment: Moment) -> str:
    """What must never be; empty: nothing is wrong."""
    places: dict[int, int] = {}
    for place, message in moment.seen:
        if places.setdefault(place, message) != message:
            return f"number {place} was read with two messages"
    real = {place: message for place, _mark, message in moment.real}
    if sorted(real) != list(range(min(real, default=1), min(real, default=1) + len(real))):
        return f"a hole: {sorted(real)}"
    if len(set(real.values())) < len(real):
        return "a message is there twice"
    for message, place in moment.confirmed:
        if place >= moment.removed and real.get(place) != message:
            return f"lost: message {message} was confirmed with number {place}"
        if place < moment.removed and (place, message) not in moment.seen:
            return f"lost: message {message} was confirmed with number {place} and nobody could read it"
    return ""


def steps(moment: Moment, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    """All that may happen next."""
    yield from _clients(moment, bounds)
    for at, broker in enumerate(moment.brokers):
        if not broker.dead:
            yield from _broker(moment, at, broker, rules, bounds)
    for copy in set(moment.copies):
        yield from _lands(moment, copy, rules)
    yield from _removal(moment, rules, bounds)


def _clients(moment: Moment, bounds: Bounds) -> Iterator[Step]:
    told = {message for message, _place in moment.confirmed}
    for at, broker in enumerate(moment.brokers):
        if broker.dead:
            continue
        if moment.published < bounds.messages:
            new = moment.published + 1
            after = replace(moment, published=new)
            yield Step(f"{new} to {at}", _with(after, at, queue=(*broker.queue, new)))
        for message in range(1, moment.published + 1):
            if moment.repeats == bounds.repeats or message in told or message in broker.queue:
                continue
            # It is queued first, and then looked for: what is found is told, and not stored again.
            after = replace(moment, repeats=moment.repeats + 1)
            found = next((place for place, _mark, stored in moment.real if stored == message), 0)
            if found:
                yield Step(f"{message} again to {at}: there", _confirm(after, message, found))
            else:
                yield Step(f"{message} again to {at}", _with(after, at, queue=(*broker.queue, message)))


def _broker(moment: Moment, at: int, broker: BrokerState, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    if not broker.away:
        yield Step(f"{at} is away", _with(moment, at, away=True))
    if moment.crashes < bounds.crashes:
        after = replace(moment, crashes=moment.crashes + 1, copies=_given_up(moment.copies, at))
        yield Step(f"{at} is killed", _with(after, at, dead=True, queue=()))
    if not broker.queue or moment.sent == bounds.copies:
        return
    if broker.waits:
        # No answer: the same again, to the same place; an earlier copy may land whenever it likes.
        after = replace(moment, copies=_given_up(moment.copies, at))
        yield Step(f"{at} gives up waiting", _sent(after, at) if rules.stay else _read_tail(after, at, rules))
    elif broker.away and rules.guard:
        yield Step(f"{at} reads the tail", _read_tail(moment, at, rules))
    else:
        marked = _with(moment, at, mark=(at, moment.sent + 1), waits=True)
        yield Step(f"{at} sends {broker.queue[0]} to {broker.tail}", _sent(marked, at))


def _lands(moment: Moment, copy: Copy, rules: Rules) -> Iterator[Step]:
    there = {place: mark for place, mark, _message in moment.stored}
    copies = list(moment.copies)
    copies.remove(copy)
    after = replace(moment, copies=tuple(copies))
    words = f"{copy.message} of {copy.broker} at {copy.place}"
    if copy.place not in there:
        stored = tuple(sorted((*moment.stored, (copy.place, copy.mark, copy.message))))
        after = replace(after, stored=stored)
        mine = True
    else:
        mine = there[copy.place] == copy.mark and rules.mark
    if copy.awaited:
        answered = _answered(after, copy, rules, mine=mine)
        yield Step(f"{words}: {'stored' if mine else 'taken'}", answered)
    yield Step(f"{words}: lands, unheard", after)


def _answered(moment: Moment, copy: Copy, rules: Rules, *, mine: bool) -> Moment:
    at, broker = copy.broker, moment.brokers[copy.broker]
    if mine and not (rules.guard and broker.away and moment.removed > copy.place):
        told = _confirm(moment, copy.message, copy.place)
        return _with(told, at, tail=copy.place + 1, queue=broker.queue[1:], waits=False)
    return _read_tail(moment, at, rules)


def _read_tail(moment: Moment, at: int, rules: Rules) -> Moment:
    """Read what is newer; what is there of one's own queue was stored by the other broker."""
    broker = moment.brokers[at]
    queue = broker.queue
    if rules.ids:
        for place, _mark, message in moment.real:
            if place >= broker.tail and message in queue:
                moment = _confirm(moment, message, place)
                queue = tuple(waiting for waiting in queue if waiting != message)
    return _with(moment, at, tail=moment.tail, away=False, queue=queue, waits=False)


def _removal(moment: Moment, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    """The oldest is removed. It was seen long ago: who takes its place for the tail was away since."""
    real = moment.real
    if moment.removals == bounds.removals or len(real) < (2 if rules.newest else 1):
        return
    place = real[0][0]
    brokers = moment.brokers
    if rules.guard:
        brokers = tuple(replace(broker, away=broker.away or broker.tail <= place) for broker in brokers)
    stored = tuple(segment for segment in moment.stored if segment[0] > place)
    after = replace(moment, brokers=brokers, stored=stored, removed=place + 1, removals=moment.removals + 1)
    yield Step(f"{place} is removed", after)


def _read_all(moment: Moment) -> Moment:
    return replace(moment, seen=moment.seen | {(place, message) for place, _mark, message in moment.real})


def _confirm(moment: Moment, message: int, place: int) -> Moment:
    return replace(moment, confirmed=moment.confirmed | {(message, place)})


def _sent(moment: Moment, at: int) -> Moment:
    broker = moment.brokers[at]
    copy = Copy(at, broker.waits, broker.tail, broker.mark, broker.queue[0])
    return replace(moment, copies=tuple(sorted((*moment.copies, copy))), sent=moment.sent + 1)


def _given_up(copies: tuple[Copy, ...], at: int) -> tuple[Copy, ...]:
    return tuple(sorted(copy._replace(awaited=False) if copy.broker == at else copy for copy in copies))


def _with(moment: Moment, at: int, **changes: object) -> Moment:
    brokers = list(moment.brokers)
    brokers[at] = replace(brokers[at], **changes)  # type: ignore[arg-type]
    return replace(moment, brokers=tuple(brokers))


def _trace(parents: dict[Moment, tuple[Moment, str] | None], moment: Moment) -> list[str]:
    words = []
    parent = parents[moment]
    while parent:
        moment, step = parent
        words.append(step)
        parent = parents[moment]
    return words[::-1]
