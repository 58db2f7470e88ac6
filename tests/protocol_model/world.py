"""One moment of the modelled world: MongoDB, the network, two brokers, and what the onlooker notes.

Everything in it is a small tuple, so that a moment can be hashed. :class:`World` is the same opened
up, to be changed by one step; :meth:`World.close` makes a moment of it again, with names that mean
nothing (owner ids, holds) numbered anew in the order in which they are met, so that two moments which
differ in nothing else are one.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

BROKERS: Final = (0, 1)
JOBS: Final = (0, 1)
NOBODY: Final = 0
#: Owner ids of broker b are 100 * (b + 1) + 1, + 2, …
_NAMES: Final = 100
#: Deliveries of one job that fail; then it is dead.
MAX_ATTEMPTS: Final = 2

#: A statement on its way; applied, its reply on its way; nobody waits for it any more: it may land late.
SENT, ANSWERED, LATE = 0, 1, 2

#: What a push is: not made, at one of the brokers, confirmed, told that the id is there, never answered.
UNMADE, PENDING, STORED, EXISTING, UNANSWERED = 0, 1, 2, 3, 4

Moment = tuple[Any, ...]


class Rules(NamedTuple):
    """What the protocol does; all True is the one that is built.

    ``hold``: guarded statements name the hold; else commits {_id, owner}, rollbacks {_id, owner,
    attempts}, releases {_id, owner}. ``numbered``: inserts are repeated under (session, number); else
    as ready jobs under no id, and what is found stored under the retired owner is adopted. ``table``:
    what is reserved is in the table from before it is sent; else once it is staged, in the order of
    arrival. ``fenced``: "the id is there" is told after an unclear insert once its session's number
    is used up. ``exact``: a claim takes no later life of a job than the one it has read.
    """

    hold: bool = True
    numbered: bool = True
    table: bool = True
    fenced: bool = True
    exact: bool = True


class Bounds(NamedTuple):
    """How much may happen in one history: pushes of each job, and faults of each kind."""

    pushes: tuple[int, int] = (1, 1)
    unclear: int = 1
    crashes: int = 1
    stalls: int = 1
    returns: int = 1  # jobs that are rolled back or released


class Document(NamedTuple):
    """A job in MongoDB: ``ready`` under nobody, else reserved; ``life``: the push that stored it."""

    owner: int
    hold: int
    attempts: int
    life: int


class Entry(NamedTuple):
    """What a broker has in hand: one push, one reservation or one statement that ends it.

    Phases: ``Q`` insert as ready, ``I`` insert inserted reserved, ``F`` using up the session's number, ``D``
    durable and behind an earlier arrival (old rules), ``C`` claim, ``S`` staged, ``W`` at a worker, ``c``
    commit, ``b`` rollback, ``r`` release. ``doubt``: the statement was sent before, and no answer came;
    ``former``: the owner under which it was sent (old rules).
    """

    phase: str
    job: int
    owner: int
    hold: int
    life: int
    attempts: int
    doubt: bool = False
    former: int = NOBODY


class Statement(NamedTuple):
    """A statement in the network; ``jobs``: (job, life, attempts) of each that it is about."""

    verb: str
    broker: int
    owner: int
    hold: int
    jobs: tuple[tuple[int, int, int], ...]
    status: int = SENT
    reply: int = 0

    def under(self, owner: int, hold: int) -> Statement:
        """The same of another owner, in another hold."""
        return self._replace(owner=owner, hold=hold)

    @property
    def job(self) -> int:
        return self.jobs[0][0]

    @property
    def life(self) -> int:
        return self.jobs[0][1]

    @property
    def attempts(self) -> int:
        return self.jobs[0][2]


class BrokerMemory:
    """One broker's memory; ``sure``: nobody can have declared it dead."""

    __slots__ = ("current", "doubtful", "entries", "retired", "sure", "up")

    def __init__(self, frozen: Moment) -> None:
        self.up, self.sure, self.current = frozen[0], frozen[1], frozen[2]
        self.retired: list[int] = list(frozen[3])
        self.entries: list[Entry] = list(frozen[4])
        self.doubtful: set[tuple[int, int, int]] = set(frozen[5])

    @property
    def mine(self) -> list[int]:
        return [self.current, *self.retired] if self.current else list(self.retired)


class World:
    """A moment, opened up to be changed."""

    __slots__ = (
        "acked",
        "born",
        "brokers",
        "budget",
        "complaint",
        "dead",
        "documents",
        "fenced",
        "network",
        "pushes",
    )

    def __init__(self, moment: Moment) -> None:
        self.documents: list[Document | None] = list(moment[0])
        self.dead: set[int] = set(moment[1])
        self.brokers = [BrokerMemory(memory) for memory in moment[2]]
        self.network: list[Statement] = list(moment[3])
        # By job and push: state and broker; how often it was stored; whether its commit was acknowledged.
        self.pushes: list[list[tuple[int, int]]] = [list(pushes) for pushes in moment[4]]
        self.born: list[list[int]] = [list(births) for births in moment[5]]
        self.acked: list[list[bool]] = [list(acks) for acks in moment[6]]
        self.fenced: set[tuple[int, int]] = set(moment[7])
        self.budget: list[int] = list(moment[8])  # what is left of the bounds
        self.complaint = ""

    @classmethod
    def beginning(cls, bounds: Bounds) -> Moment:
        brokers = tuple((True, True, _NAMES * (b + 1) + 1, (), (), ()) for b in BROKERS)
        none = tuple(((UNMADE, 0),) * n for n in bounds.pushes)
        zeros = tuple((0,) * n for n in bounds.pushes)
        falses = tuple((False,) * n for n in bounds.pushes)
        budget = (bounds.unclear, bounds.crashes, bounds.stalls, bounds.returns)
        return ((None, None), (), brokers, (), none, zeros, falses, (), budget)

    def fresh_owner(self, b: int) -> int:
        base = _NAMES * (b + 1)
        used = [*self._owners(), *self.dead]
        return max([base, *(name for name in used if base < name < base + _NAMES)]) + 1

    def fresh_hold(self, owner: int) -> int:
        return 1 + max((hold for holder, hold in self._holds() if holder == owner), default=0)

    def close(self, rules: Rules) -> Moment:
        """The moment as it is now, without what can't matter any more, its names numbered anew."""
        self._drop_inert(rules)
        owners = self._renamed_owners()
        holds = self._renamed_holds()

        def name(owner: int, hold: int) -> tuple[int, int]:
            return owners[owner], holds.get((owner, hold), 0)

        documents = tuple(
            document and Document(*name(document.owner, document.hold), document.attempts, document.life)
            for document in self.documents
        )
        brokers = []
        for broker in self.brokers:
            entries = [
                Entry(e[0], e[1], *name(e[2], e[3]), e[4], e[5], e[6], owners[e[7]]) for e in broker.entries
            ]
            if rules.table:
                entries.sort()
            doubtful = tuple(sorted((job, *name(owner, hold)) for job, owner, hold in broker.doubtful))
            retired = tuple(sorted(owners[owner] for owner in broker.retired))
            brokers.append(
                (broker.up, broker.sure, owners[broker.current], retired, tuple(entries), doubtful)
            )
        network = tuple(sorted(link.under(*name(link.owner, link.hold)) for link in self.network))
        dead = tuple(sorted(owners[owner] for owner in self.dead if owner in owners))
        return (
            documents,
            dead,
            tuple(brokers),
            network,
            tuple(map(tuple, self.pushes)),
            tuple(map(tuple, self.born)),
            tuple(map(tuple, self.acked)),
            tuple(sorted(self.fenced)),
            tuple(self.budget),
        )

    # --------------------------------------------------------------- helpers

    def _drop_inert(self, rules: Rules) -> None:
        """Forget late statements that can change nothing any more, and doubts about what is gone."""
        if not any(link.status == LATE for link in self.network) and not any(
            b.doubtful for b in self.brokers
        ):
            return
        reserved = {
            (job, document.owner, document.hold if rules.hold else 0)
            for job, document in enumerate(self.documents)
            if document and document.owner
        }
        coming = {
            (job, link.owner, link.hold if rules.hold else 0)
            for link in self.network
            if link.verb in ("insert", "claim") and link.status != ANSWERED
            for job, _, _ in link.jobs
        }
        held = reserved | coming
        self.network = [
            link for link in self.network if link.status != LATE or not self._is_inert(link, held, rules)
        ]
        if rules.hold:
            for broker in self.brokers:
                broker.doubtful &= reserved

    def _is_inert(self, sent: Statement, held: set[tuple[int, int, int]], rules: Rules) -> bool:
        if sent.verb == "insert":
            known = rules.numbered and self.born[sent.job][sent.life] > 0
            return known or (sent.job, sent.life) in self.fenced
        if sent.verb in ("commit", "rollback", "release"):
            key = (sent.job, sent.owner, sent.hold if rules.hold else 0)
            return key not in held and (
                rules.hold or all(sent.owner != broker.current for broker in self.brokers)
            )
        if sent.verb == "claim" and rules.exact and rules.numbered:
            return all(not self._is(job, life) for job, life, _ in sent.jobs)
        return False

    def _is(self, job: int, life: int) -> bool:
        document = self.documents[job]
        return document is not None and document.life == life

    def _owners(self) -> list[int]:
        """Every owner id that is named anywhere but among the dead leases, in a fixed order."""
        found = []
        for broker in self.brokers:
            found += [broker.current, *broker.retired]
        found += [document.owner for document in self.documents if document]
        for broker in self.brokers:
            for entry in broker.entries:
                found += [entry.owner, entry.former]
        return found + [link.owner for link in self.network]

    def _holds(self) -> list[tuple[int, int]]:
        found = [(document.owner, document.hold) for document in self.documents if document]
        for broker in self.brokers:
            found += [(entry.owner, entry.hold) for entry in broker.entries]
        found += [(link.owner, link.hold) for link in self.network]
        for broker in self.brokers:
            found += [(owner, hold) for _, owner, hold in broker.doubtful]
        return found

    def _renamed_owners(self) -> dict[int, int]:
        names = {NOBODY: NOBODY}
        met = [0 for _ in BROKERS]
        for owner in self._owners():
            if owner not in names:
                b = owner // _NAMES - 1
                met[b] += 1
                names[owner] = _NAMES * (b + 1) + met[b]
        for broker in self.brokers:
            for _, owner, _ in broker.doubtful:
                names.setdefault(owner, NOBODY)
        return names

    def _renamed_holds(self) -> dict[tuple[int, int], int]:
        names: dict[tuple[int, int], int] = {}
        met: dict[int, int] = {}
        for owner, hold in self._holds():
            if hold and (owner, hold) not in names:
                met[owner] = met.get(owner, 0) + 1
                names[owner, hold] = met[owner]
        return names
