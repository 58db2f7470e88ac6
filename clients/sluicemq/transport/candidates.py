"""Choice of the address to dial next, among those of all endpoints.

::

    round: each address once, in random order ──greeted──▶ connected
      ▲  │ all in vain                                         │ lost
      │  ▼                                                     ▼
    pause: random, up to twice the last            a new round at once, the lost address last

Names are looked up at the begin of each round. A round begins with the addresses that are known, and goes on
with new ones as they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Final, NamedTuple

from sluicemq.transport.endpoints import Place, place
from sluicemq.transport.names import Address, Names

_SHORTEST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
#: Seconds that a round waits for lookups once it has no address left.
_LOOK_UP_WITHIN: Final = 2.0
#: Seconds for a greeting where there is another candidate; doubled with each round in vain, since brokers
#: may be slow.
_GREET_WITHIN: Final = 2.0
_GREET_LATEST: Final = 60.0
#: Seconds between two lookups of a name that stands for several brokers. So long is also the pause while
#: other connections of the worker have taken all candidates.
_LOOK_AGAIN: Final = 30.0
#: Shortest and longest stay at one broker of several, for what does not matter where it is. Clients that
#: restarts have driven to a few brokers are spread over all again, one by one.
STAYS: Final = (600.0, 1200.0)


class Candidate(NamedTuple):
    """One address to dial: the endpoint that people know it by, and what libzmq gets."""

    endpoint: str
    address: str
    ipv6: bool


class TakenEndpoints:
    """Endpoints that the connections of one worker have taken, so that each leads to another broker.

    Used by several I/O threads: every operation is one on a dict, which is atomic.
    """

    def __init__(self) -> None:
        self._takers: dict[str, object] = {}

    def take(self, endpoint: str, taker: object) -> bool:
        """Take an endpoint; False if another has it."""
        return self._takers.setdefault(endpoint, taker) is taker

    def leave(self, endpoint: str, taker: object) -> None:
        """Let others take an endpoint."""
        if self._takers.get(endpoint) is taker:
            del self._takers[endpoint]

    def free(self, endpoints: Sequence[str]) -> list[str]:
        """Return the endpoints that nobody has taken."""
        return [endpoint for endpoint in endpoints if endpoint not in self._takers]


class Candidates:
    """The addresses of all endpoints, in turn. It knows no socket and no clock."""

    def __init__(
        self,
        endpoints: Sequence[str],
        names: Names,
        rng: Random | None = None,
        *,
        taken: TakenEndpoints | None = None,
        stays: tuple[float, float] = (inf, inf),
    ) -> None:
        """``apart``: shared with other connections; a candidate that one of them has is passed over.

        ``stays``: seconds of the shortest and the longest stay at one broker of several.
        """
        self._stays = stays
        self._leave_at = inf
        self.passed_over = False
        """Another connection has a candidate of this round, or the last."""
        self._taken = taken or TakenEndpoints()
        self._tried = False
        self._look_at = self._in_name_at = 0.0
        self.rounds = 0
        """Rounds in vain since the last connection that lasted."""
        self.longest_pause = LONGEST_PAUSE
        self._places = [place(endpoint) for endpoint in endpoints]
        self._names = names
        self._rng = rng or Random()  # noqa: S311 - no secret
        self._begin_at = -inf  # when the next round begins, if none is under way
        self._under_way = False
        self._left: deque[Candidate] = deque()
        self._seen: set[Candidate] = set()
        self._awaited: list[Place] = []  # names that are looked up in this round
        self._until = inf  # the round waits for lookups up to this time
        self._dialled: Candidate | None = None
        self._greeted_at: float | None = None

    @property
    def several(self) -> bool:
        """Return whether this round has, or may get, more than one address."""
        return len(self._seen) > 1 or len(self._places) > 1

    @property
    def lacks_addresses(self) -> bool:
        """Return whether this round has no address, since no name has any."""
        return not self._seen and all(where.host for where in self._places)

    @property
    def elsewhere(self) -> bool:
        """Return whether there is more than one broker; a name may have several addresses of one."""
        return len(self._places) > 1 or (self._places[0].all_of and len(self._seen) > 1)

    @property
    def greet_within(self) -> float:
        """Return the seconds after which a candidate that does not greet is left for the next one."""
        if not self.several:
            return inf
        return min(_GREET_LATEST, _GREET_WITHIN * 2.0 ** min(self.rounds, 10))

    @property
    def due(self) -> float:
        """Return when :meth:`next` may have a candidate; an answer to a lookup may come before."""
        if not self._under_way:
            return self._begin_at
        return -inf if self._left else self._until

    def next(self, now: float) -> Candidate | None:
        """Return the candidate to dial; None: there is none before ``due``."""
        if not self._under_way:
            if now < self._begin_at:
                return None
            self._begin(now)
        self._add_new()
        while self._left:
            candidate = self._left.popleft()
            if self._taken.take(candidate.endpoint, self):
                self._dialled, self._tried = candidate, True
                self._until = now + _LOOK_UP_WITHIN
                return candidate
            self.passed_over = True
        self._end_if_over(now)
        return None

    def greeted(self, now: float) -> None:
        """Note that the broker at the last candidate has greeted."""
        self._greeted_at = self._in_name_at = now
        self._look_at = now + _LOOK_AGAIN
        shortest, longest = self._stays
        self._leave_at = now + (inf if shortest == inf else self._rng.uniform(shortest, longest))

    def stayed(self, now: float) -> bool:
        """Return whether another broker should have its turn."""
        return now >= self._leave_at and self.elsewhere

    def vanished(self, now: float) -> bool:
        """Return whether the connected address is gone from its name, which is looked up at times."""
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_AGAIN
        of_names = [where for where in self._places if where.all_of]
        self._names.collect()
        known = {candidate for where in of_names for group in self._groups(where) for candidate in group}
        for where in of_names:
            self._names.look_up(where.host)
        dialled, given = self._dialled, {where.endpoint for where in self._places}
        if dialled is None or dialled.endpoint in given or dialled in known:
            self._in_name_at = now
        # Seconds for which no lookup has brought an address that is connected until it counts as gone from
        # its name: many DNS servers answer with some of the addresses, in turn
        return now - self._in_name_at >= 600.0

    def failed(self, now: float) -> None:
        """Note that the last candidate did not greet, or that its connection was lost."""
        if self._dialled:
            self._taken.leave(self._dialled.endpoint, self)
        greeted_at, self._greeted_at = self._greeted_at, None
        # Seconds: a connection that ends within these was a try in vain
        if greeted_at is not None and now - greeted_at >= 1.0:
            self.rounds = 0
            self._under_way, self._begin_at = False, now
        else:
            self._add_new()
            self._end_if_over(now)

    def _begin(self, now: float) -> None:
        self._under_way, self._until = True, now + _LOOK_UP_WITHIN
        self._tried = self.passed_over = False
        self._seen = set()
        self._left = deque()
        self._awaited = [where for where in self._places if where.host]
        for where in self._awaited:
            self._names.look_up(where.host)
        groups = [group for where in self._places for group in self._groups(where)]
        self._rng.shuffle(groups)
        found = [candidate for group in groups for candidate in group]
        found.sort(key=lambda candidate: candidate == self._dialled)
        self._add(found)

    def _add_new(self) -> None:
        """Add addresses that lookups have brought since the begin of the round."""
        self._names.collect()
        ended = [where for where in self._awaited if not self._names.sought(where.host)]
        if ended:
            self._awaited = [where for where in self._awaited if self._names.sought(where.host)]
            groups = [group for where in ended for group in self._groups(where)]
            self._rng.shuffle(groups)
            self._add(candidate for group in groups for candidate in group)

    def _add(self, candidates: Iterator[Candidate] | list[Candidate]) -> None:
        for candidate in candidates:
            if candidate not in self._seen:
                self._seen.add(candidate)
                self._left.append(candidate)

    def _groups(self, where: Place) -> list[list[Candidate]]:
        """Return the known candidates of an endpoint; those of one broker stay together, in their order."""
        if not where.host:
            return [[Candidate(where.endpoint, where.address, where.ipv6)]]
        known = [address for address in self._names.known(where.host) if address.ipv6 in where.families]
        found = [self._candidate(where, address) for address in known]
        return [[candidate] for candidate in found] if where.all_of else [found]

    @staticmethod
    def _candidate(where: Place, address: Address) -> Candidate:
        dialled = f"tcp://{where.source}{address.text}:{where.port}"
        return Candidate(dialled if where.all_of else where.endpoint, dialled, address.ipv6)

    def _end_if_over(self, now: float) -> None:
        if self._left or (self._awaited and now < self._until):
            return
        self._under_way = False
        if self.passed_over and not self._tried:
            self._begin_at = now + _LOOK_AGAIN
            return
        self.rounds += 1
        pause = min(self.longest_pause, _SHORTEST_PAUSE * 2 ** min(self.rounds - 1, 20))
        self._begin_at = now + self._rng.uniform(0.0, pause)
