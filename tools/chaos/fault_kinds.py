"""What can break in a chaos run: each fault begins, ends, and never waits.

A fault is drawn by its name and its victim (:mod:`chaos.plan`). Two faults that touch one place, or one link,
do not overlap; all others may.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any, Final

from chaos import disk
from chaos.rig import BROKERS, LEASE, NODES, Rig, faketime

PRIMARY, TWO, ALL = "the primary", "two nodes", "all nodes"
_WRONG: Final = 200.0  # seconds of a clock


class Fault:
    """One kind of fault; ``seconds``: between what it lasts."""

    name: str
    seconds: tuple[float, float] = (2.0, 10.0)

    @property
    def why_not(self) -> str:
        """Why this machine can't have it; empty if it can."""
        return ""

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        """Return the victims to choose from, by kind. ``may``: what may happen to each program."""
        raise NotImplementedError

    def touches(self, victim: str) -> frozenset[str]:
        """Return the places and links that belong to it while it lasts."""
        return frozenset([victim])

    def begin(self, rig: Rig, victim: str) -> object:
        """Let it happen; what it returns is handed to :meth:`end`."""
        raise NotImplementedError

    def end(self, rig: Rig, victim: str, begun: Any) -> None:
        """Let it be over."""
        raise NotImplementedError


# ------------------------------------------------------------ brokers


class OfBrokers(Fault):
    """A fault whose victim is a broker."""

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        return [[*BROKERS]]


class KillBroker(OfBrokers):
    """``kill -9`` of a broker, which begins again."""

    name = "kill -9 of a broker"
    seconds = (0.5, 10.0)

    def begin(self, rig: Rig, victim: str) -> None:
        rig.broker(victim).end()

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        rig.broker(victim).begin()


class FreezeBroker(OfBrokers):
    """SIGSTOP of a broker for longer than its lease: others run its jobs, then it goes on."""

    name = "SIGSTOP of a broker beyond its lease"
    seconds = (LEASE + 1, 3 * LEASE)

    def begin(self, rig: Rig, victim: str) -> None:
        rig.broker(victim).send_signal(signal.SIGSTOP)

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        rig.broker(victim).send_signal(signal.SIGCONT)


class BlinkBroker(FreezeBroker):
    """SIGSTOP of a broker for less than its lease."""

    name = "SIGSTOP of a broker within its lease"
    seconds = (1.0, LEASE - 2)


class StopBroker(OfBrokers):
    """SIGTERM of a broker, which begins again; one that has not stopped by then is killed."""

    name = "SIGTERM of a broker"
    seconds = (10.0, 15.0)

    def begin(self, rig: Rig, victim: str) -> None:
        rig.broker(victim).expected = False
        rig.broker(victim).send_signal(signal.SIGTERM)

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        broker = rig.broker(victim)
        if broker.alive:
            rig.note("late", victim=victim, text="has not stopped yet, and is killed")
            broker.end()
        elif (code := broker.process.returncode) and broker.was_ready:
            rig.note("problem", victim=victim, text=f"has stopped with code {code}")
        broker.begin()


class ClockOfBroker(OfBrokers):
    """A broker begins again with a clock that is wrong."""

    seconds = (8.0, 20.0)

    def __init__(self, wrong: float) -> None:
        self.name = f"clock of a broker {wrong:+.0f} s"
        self._wrong = wrong

    @property
    def why_not(self) -> str:
        return _without_faketime()

    def begin(self, rig: Rig, victim: str) -> None:
        rig.broker(victim).end()
        rig.broker(victim).begin(self._wrong)

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        rig.broker(victim).end()
        rig.broker(victim).begin()


# ------------------------------------------------------------ programs of the load


class OfPrograms(Fault):
    """A fault whose victim is a program of the load."""

    verb: str

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        return [[name for name, verbs in may.items() if self.verb in verbs]]

    def begin(self, rig: Rig, victim: str) -> None:
        getattr(rig.programs[victim], self.verb)()

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        rig.programs[victim].start()


class KillProgram(OfPrograms):
    """``kill -9`` of a client, which begins again."""

    name = "kill -9 of a client"
    verb = "kill"
    seconds = (0.5, 6.0)


class StopProgram(OfPrograms):
    """SIGTERM of a client, which begins again."""

    name = "SIGTERM of a client"
    verb = "terminate"
    seconds = (3.0, 8.0)


class FreezeProgram(OfPrograms):
    """SIGSTOP of a client, for longer than a broker waits for a sign of life."""

    name = "SIGSTOP of a client"
    verb = "freeze"
    seconds = (3.0, 15.0)

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        rig.programs[victim].thaw()


# ------------------------------------------------------------ nodes of MongoDB


class OfNodes(Fault):
    """A fault whose victims are nodes: one, the primary, two, or all."""

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        return [[*NODES], [PRIMARY], [TWO, ALL]]

    def touches(self, victim: str) -> frozenset[str]:
        return frozenset([victim] if victim in NODES else NODES)

    def begin(self, rig: Rig, victim: str) -> list[str]:
        chosen = _chosen(rig, victim)
        for name in chosen:
            self.harm(rig, name)
        return chosen

    def end(self, rig: Rig, victim: str, begun: list[str]) -> None:
        for name in begun:
            self.mend(rig, name)

    def harm(self, rig: Rig, node: str) -> None:
        """Let it happen to one node."""
        raise NotImplementedError

    def mend(self, rig: Rig, node: str) -> None:
        """Let one node go on."""
        rig.nodes.begin(node)


class KillNodes(OfNodes):
    """``kill -9`` of nodes."""

    name = "kill -9 of a mongod"

    def harm(self, rig: Rig, node: str) -> None:
        rig.nodes.end(node)


class StopNodes(OfNodes):
    """SIGTERM of nodes: a primary hands its office over first. One that takes long is killed."""

    name = "SIGTERM of a mongod"
    seconds = (5.0, 12.0)

    def harm(self, rig: Rig, node: str) -> None:
        rig.nodes.expected.discard(node)
        rig.nodes.signal(node, signal.SIGTERM)

    def mend(self, rig: Rig, node: str) -> None:
        rig.nodes.end(node)
        rig.nodes.begin(node)


class FreezeNodes(OfNodes):
    """SIGSTOP of nodes."""

    name = "SIGSTOP of a mongod"

    def harm(self, rig: Rig, node: str) -> None:
        rig.nodes.signal(node, signal.SIGSTOP)

    def mend(self, rig: Rig, node: str) -> None:
        rig.nodes.signal(node, signal.SIGCONT)


class ClockOfNode(OfNodes):
    """A node begins again with a clock that is wrong."""

    seconds = (8.0, 20.0)

    def __init__(self, wrong: float) -> None:
        self.name = f"clock of a mongod {wrong:+.0f} s"
        self._wrong = wrong

    @property
    def why_not(self) -> str:
        return _without_faketime()

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        return [[*NODES]]

    def harm(self, rig: Rig, node: str) -> None:
        rig.nodes.end(node)
        rig.nodes.begin(node, self._wrong)

    def mend(self, rig: Rig, node: str) -> None:
        rig.nodes.end(node)
        rig.nodes.begin(node)


class CutOffPrimary(OfNodes):
    """The primary and the other nodes don't hear each other; brokers and clients reach all of them.

    It goes on as a primary until it notices, and what it writes meanwhile is taken back.
    """

    name = "primary cut off from the other nodes"
    seconds = (1.5, 8.0)

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        return [[PRIMARY]]

    def touches(self, victim: str) -> frozenset[str]:
        links = (" ~ ".join(pair) for pair in combinations(NODES, 2))
        return frozenset([*NODES, *links])

    def harm(self, rig: Rig, node: str) -> None:
        for other in NODES:
            if other != node:
                rig.link(node, other).block()

    def mend(self, rig: Rig, node: str) -> None:
        for other in NODES:
            if other != node:
                rig.link(node, other).restore()


class FullDisk(Fault):
    """The disk of a node is full: a small one of memory is made as small as what lies on it.

    A mongod ends when it can't write. It begins again when there is room.
    """

    name = "full disk of a mongod"
    seconds = (5.0, 20.0)

    @property
    def why_not(self) -> str:
        return disk.why_not()

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        return [[NODES[0]]]

    def begin(self, rig: Rig, victim: str) -> None:
        rig.nodes.expected.discard(victim)
        rig.disk.fill()

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        rig.disk.empty()
        rig.nodes.end(victim)  # one that goes on may still end of what it could not write
        rig.nodes.begin(victim)


# ------------------------------------------------------------ links


class OfLinks(Fault):
    """A fault between two places, or between one place and all of a kind.

    A victim is ``a ~ b``; ``a ~ nodes``, ``a ~ brokers`` and ``a ~ clients`` are all links of these kinds.
    """

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        kinds = [product(BROKERS, NODES), combinations(NODES, 2), product(may, BROKERS)]
        kinds += [product(BROKERS, [link_end]) for link_end in ("nodes", "clients")]
        kinds += [product(NODES, [link_end]) for link_end in ("nodes", "brokers")]
        return [[f"{one} ~ {other}" for one, other in kind] for kind in kinds]

    def touches(self, victim: str) -> frozenset[str]:
        return frozenset(" ~ ".join(sorted(map(_place, pair))) for pair in _pairs(victim, ["a client"]))

    def begin(self, rig: Rig, victim: str) -> None:
        for one, other in _pairs(victim, rig.programs):
            self.harm(rig, one, other)

    def end(self, rig: Rig, victim: str, begun: None) -> None:
        for one, other in _pairs(victim, rig.programs):
            rig.link(one, other).restore()

    def harm(self, rig: Rig, one: str, other: str) -> None:
        """Let it happen to one link."""
        raise NotImplementedError


class Partition(OfLinks):
    """No packet passes; connections stay open."""

    name = "partition"
    seconds = (2.0, 15.0)

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).block()


class OneWay(OfLinks):
    """What the second place sends does not arrive at the first."""

    name = "partition one way"

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).block(other)


class Refusal(OfLinks):
    """Connections end, and new ones are refused."""

    name = "connections refused"

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).refuse()


class Slowness(OfLinks):
    """Everything takes longer, each way."""

    seconds = (5.0, 20.0)

    def __init__(self, delay: float) -> None:
        self.name = f"delay of {delay * 1000:.0f} ms"
        self._delay = delay

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).slow(self._delay)


class LostReplies(OfLinks):
    """Of the answers of the place that was dialed one in a hundred is lost, and its connection with it."""

    name = "lost replies"
    seconds = (5.0, 15.0)

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).lose(0.01)


class HalfOpen(OfLinks):
    """Connections end for the place that dialed; the other one does not hear of that."""

    name = "connections half open"

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).halve()


class Lateness(OfLinks):
    """What clients send over connections that are open now arrives at the end; they dial again meanwhile."""

    name = "connections late"
    seconds = (1.5, 4.0)  # a broker cuts a client that it has not heard for 5 s

    def victims(self, may: Mapping[str, frozenset[str]]) -> list[list[str]]:
        kinds = [product(may, BROKERS), product(BROKERS, ["clients"])]
        return [[f"{one} ~ {other}" for one, other in kind] for kind in kinds]

    def harm(self, rig: Rig, one: str, other: str) -> None:
        rig.link(one, other).hold()


#: All of them.
FAULTS: Final[tuple[Fault, ...]] = (
    KillBroker(), FreezeBroker(), BlinkBroker(), StopBroker(),
    KillProgram(), StopProgram(), FreezeProgram(),
    KillNodes(), StopNodes(), FreezeNodes(), CutOffPrimary(),
    Partition(), OneWay(), Refusal(), Slowness(0.05), Slowness(0.3), LostReplies(), HalfOpen(), Lateness(),
    ClockOfBroker(200.0), ClockOfBroker(-200.0), ClockOfNode(200.0), ClockOfNode(-200.0), FullDisk(),
)  # fmt: skip


def _pairs(victim: str, programs: Iterable[str]) -> list[tuple[str, str]]:
    """Return the two places of each link that a victim names."""
    one, other = victim.split(" ~ ")
    groups = {"nodes": NODES, "brokers": BROKERS, "clients": programs}
    return [(one, other) for other in groups.get(other, [other]) if other != one]


def _place(name: str) -> str:
    return name if name in (*BROKERS, *NODES) else "a client"


def _chosen(rig: Rig, victim: str) -> list[str]:
    """Return the nodes that are meant: those called by their office are known only now."""
    if victim in NODES:
        return [victim]
    first = rig.nodes.primary_now() or NODES[0]
    others = [name for name in NODES if name != first]
    return [first, *others][: {PRIMARY: 1, TWO: 2, ALL: 3}[victim]]


def _without_faketime() -> str:
    return "" if faketime() else "libfaketime is missing (apt-get install faketime)"
