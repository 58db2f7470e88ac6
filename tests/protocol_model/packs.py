"""One pack of three jobs in every order of events: two brokers, lost answers, late statements, deaths.

The verbs are those of the store, and so are their statements (:mod:`protocol_model.pack_verbs`). Here is what
their brokers do around them: repeat what has no answer, remember which jobs they have, audit, declare a dead
broker's lease dead and take over its jobs.

A statement takes two steps, as in :mod:`protocol_model.protocol`: MongoDB carries it out, and its broker gets
the reply. One that reads takes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import bson

from protocol_model.explore import Found, search
from protocol_model.pack_verbs import ALL, COUNT, IDS, PACK, Memory, PackVerbs, Seen, Verb
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.jobs.pack_contents import done_bits

OWNERS: Final = "ab"
SENT, ANSWERED = 0, 1
_NOTHING: Final = Memory()


class Bounds(NamedTuple):
    """What workers do with jobs of the first claim or insert, in any order; and how many faults there are.

    ``script``: verbs, each with the bits of its jobs. Then all others are committed together. ``ready``: the
    pack is not inserted reserved.
    """

    script: tuple[tuple[str, int], ...]
    unclear: int = 0
    crashes: int = 0
    stalls: int = 0
    brokers: int = 1
    ready: bool = False


class Hand(NamedTuple):
    """Jobs that a broker has under one reservation.

    ``workers``: those that a worker has. ``settling``: those whose verdict is under way. ``packed``: those
    that came in the pack.
    """

    owner: str
    hold: int
    memory: Memory
    workers: int
    settling: int = 0
    packed: int = 0


class Work(NamedTuple):
    """A verb under way; ``doubt``: it was tried before."""

    verb: Verb
    seen: Seen
    status: int = SENT
    reply: int = 0
    doubt: bool = False


class Moment(NamedTuple):
    """All there is; each part can be hashed. Sets of jobs are bits.

    ``up``, ``sure``: brokers that live, and whose lease nobody can have declared dead. ``missed``: the
    reservations that an audit has missed once, of each broker. ``acked``, ``cancelled``: jobs whose commit,
    or cancel, was answered.
    """

    stored: tuple[bytes, ...]
    born: bool
    dead: str
    up: str
    sure: str
    hands: tuple[Hand, ...]
    works: tuple[Work, ...]
    late: tuple[Work, ...]
    missed: tuple[frozenset[tuple[str, int]], ...]
    script: tuple[tuple[str, int], ...]
    acked: int
    cancelled: int
    budget: tuple[int, int, int]


class Step(NamedTuple):
    """A step, in words, and what it leads to."""

    words: str
    after: tuple[Any, ...]
    complaint: str = ""
    fault: bool = False


def explore(verbs: PackVerbs, bounds: Bounds, *, looking_for: str = "", most: int = 3_000_000) -> Found:
    """Go over all moments within the bounds, as :func:`protocol_model.explore.explore`."""
    push = Verb("push") if bounds.ready else Verb("push", "a", 1, ALL)
    hands = () if bounds.ready else (Hand("a", 1, _NOTHING, 0, ALL, ALL),)
    up = OWNERS[: bounds.brokers]
    first = Moment(
        *((), False, OWNERS[bounds.brokers :], up, up, hands, (_begun(push, _NOTHING),), ()),
        *((frozenset(), frozenset()), bounds.script, 0, 0),
        budget=(bounds.unclear, bounds.crashes, bounds.stalls),
    )
    undisturbed = not any(first.budget) and all(name != "cancel" for name, _ in bounds.script)
    model = _Model(verbs, faultless=undisturbed, clear=not any(first.budget))
    return search(tuple(first), model.steps, _ended, looking_for, most)


def _begun(verb: Verb, memory: Memory) -> Work:
    return Work(verb, ((memory, 0),))


def _ended(moment: tuple[Any, ...]) -> bool:
    now = Moment._make(moment)
    return not now.works and all(place.state == "dead" for place in places(now.stored).values())


# ------------------------------------------------------------------ documents


class Place(NamedTuple):
    """How a job is stored."""

    document: str
    state: str
    owner: str
    hold: int


@cache
def places(stored: tuple[bytes, ...]) -> dict[int, Place]:
    """Return where each job is, and the pack if it is empty (as number -1); raises ValueError."""
    found: dict[int, Place] = {}
    for document in map(bson.decode, stored):
        where = Place(document["_id"], document["state"], document.get("owner", ""), document.get("hold", 0))
        jobs = [IDS.index(document["_id"])] if document["_id"] in IDS else []
        if document["_id"] == PACK:
            bits = done_bits(document)
            if document["left"] != COUNT - bits.bit_count():
                raise ValueError(f"left: a pack says {document['left']}, and its bits are {bits:b}")
            jobs = [at for at in range(COUNT) if not bits >> at & 1] or [-1]
        for job in jobs:
            if job in found:
                raise ValueError(f"doubled: job {job} is there twice")
            found[job] = where
    return found


# ---------------------------------------------------------------------- steps


class _Model:
    def __init__(self, verbs: PackVerbs, *, faultless: bool, clear: bool) -> None:
        self._verbs = verbs
        self._faultless = faultless
        self._clear = clear

    def steps(self, moment: tuple[Any, ...]) -> Iterator[Step]:
        """Yield every step that is possible at this moment."""
        now = Moment._make(moment)
        for work in dict.fromkeys(now.works):
            yield from self._network(now, work)
        for work in dict.fromkeys(now.late):
            after, complaint, _ = self._applied(now._replace(late=_without(now.late, work)), work)
            yield _step(f"MongoDB applies the late {_words(work)}", after, complaint)
        for owner in now.up:
            yield from self._duties(now, owner)
        yield from _fate(now)

    # -------------------------------------------------------------- network

    def _network(self, now: Moment, work: Work) -> Iterator[Step]:
        statement = self._verbs.next(work.verb, work.seen).statement
        assert statement
        others = now._replace(works=_without(now.works, work))
        if work.status == ANSWERED:
            after, complaint = self._heard(others, work, work.reply)
            yield _step(f"{work.verb.owner} hears of its {_words(work)}", after, complaint)
        else:
            after, complaint, reply = self._applied(others, work)
            if statement.reads:
                after, complaint = self._heard(after, work, reply)
            else:
                after = _with(after, work._replace(status=ANSWERED, reply=reply))
            yield _step(f"MongoDB applies the {_words(work)}: {statement.text[:90]}", after, complaint)
        if now.budget[0]:
            left = others._replace(budget=(now.budget[0] - 1, *now.budget[1:]))
            if work.status == SENT and not statement.reads:
                left = left._replace(late=_sorted((*left.late, work)))
            after, complaint = self._heard(left, work, self._verbs.LOST)
            state = "applied" if work.status == ANSWERED else "not applied yet"
            words = f"{work.verb.owner} waits no more for its {_words(work)} ({state})"
            yield _step(words, after, complaint, fault=True)

    def _applied(self, now: Moment, work: Work) -> tuple[Moment, str, int]:
        verb, before = work.verb, places(now.stored)
        if verb.name == "push" and now.born:
            return now, "", 0
        stored, reply = self._verbs.apply(now.stored, verb, work.seen)
        if stored == now.stored:
            return now, "", reply
        now = now._replace(stored=stored, born=True)
        try:
            return now, _wrong(now, verb, before, places(stored)), reply
        except ValueError as error:
            return now, str(error), reply

    def _heard(self, now: Moment, work: Work, reply: int) -> tuple[Moment, str]:
        """A verb goes on with a reply, and its broker with what comes of it."""
        verb, hand = work.verb, _hand(now, work.verb)
        memory = hand.memory if hand else _NOTHING
        seen = (*work.seen, (memory, reply))
        found = self._verbs.next(verb, seen)
        if hand:
            hand = hand._replace(memory=found.memory)
            now = _with_hand(now, hand)
        if found.statement:
            return _with(now, Work(verb, seen, doubt=work.doubt)), ""
        if isinstance(found.error, UnavailableError):
            return _with(now, _begun(verb, found.memory)._replace(doubt=True)), ""
        if found.error:
            return now, f"refused: {verb.name} ends with {found.error}"
        return self._ended(now, work, hand, found.value)

    def _ended(self, now: Moment, work: Work, hand: Hand | None, value: Any) -> tuple[Moment, str]:
        verb = work.verb
        if verb.name == "claim":
            return _claimed(now, verb, value), ""
        if verb.name == "cancel" and value:
            return self._ended_once(now._replace(cancelled=now.cancelled | verb.jobs))
        if hand is None or verb.name == "progress":
            return now, ""
        workers = hand.workers | (ALL if verb.name == "push" and hand.owner not in now.dead else 0)
        now = _with_hand(now, hand._replace(settling=hand.settling & ~verb.jobs, workers=workers))
        if verb.name == "commit":
            return self._committed(now, work, dict(value))
        there = places(now.stored)
        ours = [at for at in _jobs(verb.jobs) if at in there and there[at][2:] == (verb.owner, verb.hold)]
        if ours and verb.owner not in now.dead and verb.name != "push":
            return now, f"kept: {verb.name} was answered, and jobs are reserved as before"
        return now, ""

    def _committed(self, now: Moment, work: Work, problems: dict[int, str]) -> tuple[Moment, str]:
        verb, there = work.verb, places(now.stored)
        if work.doubt and verb.owner not in now.dead:
            problems = {at: why for at, why in problems.items() if why != "UncertainError"}
        done = verb.jobs & ~sum(1 << at for at in problems)
        wrong = ""
        if problems and self._faultless:
            wrong = f"refused: without a fault a commit ends with {problems}"
        elif done & now.acked:
            wrong = "accepted twice: two commits of one job were answered"
        elif any(at in there for at in _jobs(done)):
            wrong = "run again: a job is there after its commit was answered"
        now, twice = self._ended_once(now._replace(acked=now.acked | done))
        return now, wrong or twice

    def _ended_once(self, now: Moment) -> tuple[Moment, str]:
        wrong = "ended twice: a cancel and a commit of one job were answered"
        return now, wrong if self._clear and now.acked & now.cancelled else ""

    # --------------------------------------------------------------- duties

    def _duties(self, now: Moment, owner: str) -> Iterator[Step]:
        for hand in now.hands:
            if hand.owner == owner:
                yield from self._verdicts(now, hand)
        if owner in now.sure:
            yield from self._reservations(now, owner)
        yield from self._audit(now, owner)
        if owner not in now.sure:
            after = now._replace(sure=_owners(now.sure + owner))
            if owner in now.dead:  # it drops what it held
                hands = tuple(hand._replace(workers=0) if hand.owner == owner else hand for hand in now.hands)
                after = after._replace(hands=hands)
            yield _step(f"{owner} beats again", after)
        other = OWNERS.replace(owner, "")
        if other not in now.sure and other not in now.dead:
            yield _step(f"{owner} declares {other} dead", now._replace(dead=_owners(now.dead + other)))

    def _reservations(self, now: Moment, owner: str) -> Iterator[Step]:
        busy = {work.verb.name for work in now.works if work.verb.owner == owner}
        there = places(now.stored).values()
        ready = any(place.state == "ready" for place in there)
        if ready and owner not in now.dead and "claim" not in busy:
            yield self._begin(now, Verb("claim", owner, _fresh_hold(now, owner)), f"{owner} claims")
        for dead in now.dead if "reclaim" not in busy else "":
            if dead != owner and any(place.owner == dead for place in there):
                verb = Verb("reclaim", owner, about=dead)
                yield self._begin(now, verb, f"{owner} takes over what {dead} held")

    def _verdicts(self, now: Moment, hand: Hand) -> Iterator[Step]:
        scripted = 0
        for name, jobs in now.script:
            scripted |= jobs
            if these := jobs & hand.workers:
                left = now._replace(script=_without(now.script, (name, jobs)))
                at = next(_jobs(these))
                verb = Verb(name, hand.owner, hand.hold, these, IDS[at] if name == "cancel" else "")
                if name == "cancel":
                    verb = verb._replace(hold=0, jobs=1 << at)
                yield self._settle(left, hand, verb)
        if hand.workers and not hand.workers & scripted:
            yield self._settle(now, hand, Verb("commit", hand.owner, hand.hold, hand.workers))

    def _settle(self, now: Moment, hand: Hand, verb: Verb) -> Step:
        if verb.name not in ("progress", "cancel"):
            hand = hand._replace(workers=hand.workers & ~verb.jobs, settling=hand.settling | verb.jobs)
            now = _with_hand(now, hand)
        names = "".join(map(str, _jobs(verb.jobs)))
        memory = hand.memory if verb.hold else _NOTHING
        return self._begin(now, verb, f"{hand.owner} begins to {verb.name} {names}", memory)

    def _begin(self, now: Moment, verb: Verb, words: str, memory: Memory = _NOTHING) -> Step:
        return _step(words, _with(now, _begun(verb, memory)))

    def _audit(self, now: Moment, owner: str) -> Iterator[Step]:
        if owner in now.dead:
            return
        known = {
            (name, hand.hold)
            for hand in now.hands
            if hand.owner == owner and (held := hand.workers | hand.settling)
            for name in [*(IDS[at] for at in _jobs(held)), *([PACK] if held & hand.packed else [])]
        }
        under_way = [work.verb for work in now.works if work.verb.owner == owner]
        made = {verb.hold for verb in under_way if verb.name == "claim"}
        missing = frozenset(
            (place.document, place.hold)
            for place in places(now.stored).values()
            if place.owner == owner and (place.document, place.hold) not in known and place.hold not in made
        )
        former = now.missed[OWNERS.index(owner)]
        if missing == former and not missing:
            return
        missed = tuple(missing if of == owner else seen for of, seen in zip(OWNERS, now.missed, strict=True))
        after = now._replace(missed=missed)
        for document, hold in sorted(missing & former):
            work = _begun(Verb("free", owner, hold, about=document), _NOTHING)
            if all(other.verb != work.verb for other in now.works):
                after = _with(after, work)
        if after != now:
            yield _step(f"{owner} audits: misses {sorted(missing)}", after)


def _claimed(now: Moment, verb: Verb, found: tuple[tuple[int, int], ...]) -> Moment:
    if not found or verb.owner in now.dead:
        return now
    packed = sum(1 << at for at, done in found if done >= 0)
    done = next((done for _, done in found if done >= 0), ALL)
    memory = Memory(done, ALL & ~packed)
    hand = Hand(verb.owner, verb.hold, memory, sum(1 << at for at, _ in found), packed=packed)
    return now._replace(hands=_sorted((*now.hands, hand)))


def _fate(now: Moment) -> Iterator[Step]:
    _, crashes, stalls = now.budget
    for owner in now.up:
        if crashes and now.up == OWNERS:
            left = now._replace(
                up=now.up.replace(owner, ""),
                sure=now.sure.replace(owner, ""),
                hands=tuple(hand for hand in now.hands if hand.owner != owner),
                works=tuple(work for work in now.works if work.verb.owner != owner),
                late=_sorted(
                    (*now.late, *(w for w in now.works if w.verb.owner == owner and w.status == SENT))
                ),
                missed=tuple(
                    frozenset() if of == owner else seen for of, seen in zip(OWNERS, now.missed, strict=True)
                ),
                budget=(now.budget[0], crashes - 1, stalls),
            )
            yield _step(f"{owner} is killed", left, fault=True)
        if stalls and owner in now.sure:
            left = now._replace(sure=now.sure.replace(owner, ""), budget=(now.budget[0], crashes, stalls - 1))
            yield _step(f"{owner}'s heartbeats get no answer", left, fault=True)


# ----------------------------------------------------------------- invariants


def _wrong(now: Moment, verb: Verb, before: dict[int, Place], after: dict[int, Place]) -> str:
    """Return what is wrong with what a statement of a verb has done to the jobs."""
    for at in range(COUNT):
        wrong = _wrong_with(verb, at, before.get(at), after.get(at))
        if at in after and now.acked >> at & 1:
            wrong = f"run again: job {at} is there after its commit was answered"
        if wrong:
            return wrong
    for hand in now.hands:
        for at in _jobs(hand.workers if hand.owner not in now.dead else 0):
            held = after[at][2:] == hand[:2] if at in after else at not in before or verb.name == "cancel"
            if not held:
                return f"taken: job {at} is taken from its worker at {hand.owner}"
    return ""


def _wrong_with(verb: Verb, at: int, was: Place | None, is_now: Place | None) -> str:
    if was and not is_now:
        if not (verb.name in ("commit", "cancel") and verb.jobs >> at & 1):
            return f"lost: {verb.name} of {verb.jobs:03b} removes job {at}"
        if verb.name == "commit" and was[2:] != (verb.owner, verb.hold):
            return f"lost: a commit removes job {at}, which has another reservation"
    if is_now and not was and verb.name != "push":
        return f"stored again: job {at} by {verb.name}"
    if was and is_now and was.document != is_now.document and was[1:] != is_now[1:]:
        return f"lifted: job {at} was {was}, and is {is_now}"
    return ""


# -------------------------------------------------------------------- moments


def _step(words: str, after: Moment, complaint: str = "", *, fault: bool = False) -> Step:
    """What it leads to, without what can't matter any more."""
    there = [*places(after.stored).values()] if not complaint else []
    at_work = {(work.verb.owner, work.verb.hold) for work in after.works}
    hands = tuple(
        hand for hand in after.hands if hand.workers or hand.settling or (hand.owner, hand.hold) in at_work
    )
    late = tuple(work for work in after.late if _matters(work.verb, after, there)) if after.late else ()
    return Step(words, tuple(after._replace(hands=hands, late=late)), complaint, fault)


def _matters(verb: Verb, now: Moment, there: list[Place]) -> bool:
    """Return True if a late statement of a verb may change anything yet."""
    if verb.name == "push":
        return not now.born
    if verb.name == "claim":
        return any(place.state != "dead" for place in there)
    if verb.name == "reclaim":
        return any(place.owner == verb.about for place in there)
    if verb.name == "cancel":
        return bool(there)
    return any((place.owner, place.hold) == (verb.owner, verb.hold) for place in there)


def _hand(now: Moment, verb: Verb) -> Hand | None:
    same = (hand for hand in now.hands if (hand.owner, hand.hold) == (verb.owner, verb.hold))
    return next(same, None) if verb.jobs and verb.hold else None


def _with_hand(now: Moment, hand: Hand) -> Moment:
    others = (other for other in now.hands if other[:2] != hand[:2])
    return now._replace(hands=_sorted((*others, hand)))


def _with(now: Moment, work: Work) -> Moment:
    return now._replace(works=_sorted((*now.works, work)))


def _fresh_hold(now: Moment, owner: str) -> int:
    held = [place.hold for place in places(now.stored).values() if place.owner == owner]
    held += [hand.hold for hand in now.hands if hand.owner == owner]
    held += [work.verb.hold for work in (*now.works, *now.late) if work.verb.owner == owner]
    return max(held, default=0) + 1


def _without(these: tuple[Any, ...], one: Any) -> tuple[Any, ...]:
    at = these.index(one)
    return these[:at] + these[at + 1 :]


def _sorted(these: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(these))


def _owners(these: str) -> str:
    return "".join(sorted(these))


def _jobs(bits: int) -> Iterator[int]:
    return (at for at in range(COUNT) if bits >> at & 1)


def _words(work: Work) -> str:
    verb = work.verb
    of = "".join(map(str, _jobs(verb.jobs))) or verb.about
    return f"{verb.name} of {of or 'what is ready'} under {verb.owner or 'nobody'}{verb.hold or ''}"
