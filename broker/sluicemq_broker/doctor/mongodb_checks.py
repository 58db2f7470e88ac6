"""Checks of MongoDB: it answers, keeps what it confirms; its replica set, oplog, clock and disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluicemq_broker.config import is_reachable
from sluicemq_broker.doctor.finding import Finding, error, info, ok, warning
from sluicemq_broker.doctor.host_checks import judged_disk
from sluicemq_broker.doctor.subject import Subject
from sluicemq_broker.store import ServerFacts, fixed_until

#: The oldest version of MongoDB that is supported.
OLDEST: Final = (4, 4)


def answers(subject: Subject) -> Iterator[Finding]:
    """Say whether MongoDB answers; why it does not, as its hosts say."""
    store = subject.store
    if store.facts is not None:
        where = "the embedded one" if store.embedded else str(store.uri or "")
        yield ok(f"MongoDB {store.facts.version} answers", where)
    elif store.is_broken:
        yield error(f"MongoDB can't be used: {store.why}", str(store.uri or ""), "see the sentence above")
    else:
        yield info(f"MongoDB was not looked at: {store.why}", to_do="name it: --mongodb-uri-file FILE")
    for name in store.left_out:
        yield info(f"the option {name} of the URI is not used: brokers set it themselves", to_do="remove it")


def safety(subject: Subject) -> Iterator[Finding]:
    """Say whether a confirmed job survives: replica set, majority, journal."""
    if subject.store.unsafe:
        allowed = subject.config is not None and subject.config.broker.allow_unsafe_store
        yield error(
            f"MongoDB may lose confirmed jobs: {subject.store.unsafe}",
            "allow_unsafe_store is set, so brokers start all the same" if allowed else "brokers do not start",
            "run it as a replica set with its defaults: mongod --replSet rs0, then once rs.initiate()",
        )
    elif subject.store.facts is not None and subject.store.facts.unconfirmed:
        yield error(
            subject.store.facts.unconfirmed,
            "pushes and verdicts wait",
            "see the members below, their logs, and rs.status() at the primary",
        )
    elif subject.store.facts is not None:
        yield ok("writes wait for a majority and its journal")


def version(subject: Subject) -> Iterator[Finding]:
    """Name a version of MongoDB that is too old."""
    facts = subject.store.facts
    if facts is None or not facts.version:
        return
    numbers = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        yield error(f"MongoDB {facts.version} is too old", to_do=f"use {OLDEST[0]}.{OLDEST[1]} at least")
    elif month := fixed_until(facts.version, subject.now):
        shared = not subject.store.embedded or (subject.config and is_reachable(subject.config))
        yield (warning if shared else info)(
            f"MongoDB {facts.version} has had no fixes, also of security, since {month}",
            to_do="run a newer one (docs/support.md)",
        )


def members(subject: Subject) -> Iterator[Finding]:
    """Name members that are down or behind, and sets in which one failure stops all writes."""
    facts = subject.store.facts
    if facts is None or facts.set_name is None:
        return
    if facts.members is None:
        yield _unseen(facts, "members")
        return
    for member in facts.members:
        if not member.is_healthy or member.state not in ("PRIMARY", "SECONDARY", "ARBITER"):
            yield error(
                f"member {member.host} of the replica set is {member.state}",
                to_do="start it, and look at its log; rs.status() at another member says more",
            )
        elif member.lag is not None and member.lag > 10.0:  # seconds
            yield warning(
                f"member {member.host} is {member.lag:.0f} s behind the primary",
                to_do="see its disk and network: writes wait for the majority",
            )
    yield from _spare(subject, facts)


def _spare(subject: Subject, facts: ServerFacts) -> Iterator[Finding]:
    shown = ", ".join(f"{member.host} {member.state}" for member in facts.members or ())
    if facts.voters is None:
        yield _unseen(facts, "voters")
        return
    voters, with_data = facts.voters
    if voters > 1 and with_data <= voters // 2 + 1 and with_data < voters:
        yield warning(
            "the replica set has an arbiter in place of data: with one member down no write is confirmed",
            f"{voters} members vote, {with_data} have data: {shown}",
            "replace the arbiter by a member with data",
        )
    elif voters < 3 and not subject.store.embedded:
        yield info(
            "the replica set has no spare member: if one ends, brokers wait until it is back",
            shown,
            "give it three members with data",
        )
    else:
        yield ok("the replica set is well", shown)


def oplog(subject: Subject) -> Iterator[Finding]:
    """Judge how long a member may be away; of a set of one member that does not matter."""
    facts = subject.store.facts
    if facts is None or facts.set_name is None or subject.store.embedded:
        return
    found = facts.oplog
    if found is None:
        yield _unseen(facts, "oplog")
        return
    shown = f"{found.seconds / 3600:.1f} h in {found.used >> 20} of {found.size >> 20} MiB"
    # Share of its size above which an oplog is full: what it spans does not grow any more.
    is_full = found.used >= found.size * 0.9
    # Seconds that an oplog should span once it is full: a member that was away longer starts over
    if is_full and found.seconds < 86_400.0:
        level = error if found.seconds < 3600.0 else warning
        yield level(
            "the oplog is too short: a member that is away longer must copy everything, and backups fail",
            shown,
            "at each member: db.adminCommand({replSetResizeOplog: 1, size: MB}), for 24 h at least",
        )
    else:
        yield ok("the oplog is long enough" if is_full else "the oplog is not full yet", shown)


def clock(subject: Subject) -> Iterator[Finding]:
    """Compare this machine's clock with MongoDB's, by which jobs are due."""
    facts = subject.store.facts
    if facts is None:
        return
    difference = abs(facts.ahead) - facts.uncertain
    shown = f"MongoDB's is {abs(facts.ahead):.2f} s {'ahead' if facts.ahead > 0 else 'behind'}"
    # Seconds by which two clocks may differ.
    if difference > 2.0:
        yield warning(
            f"the clocks of this machine and of MongoDB differ by {difference:.0f} s",
            f"{shown}; brokers go by MongoDB's, producers that name a time (not_before) by their own",
            "run chrony or systemd-timesyncd on both: timedatectl",
        )
    else:
        yield ok("the clocks of this machine and of MongoDB agree", shown)


def disk(subject: Subject) -> Iterator[Finding]:
    """Judge the disk of a MongoDB elsewhere, as it says."""
    facts = subject.store.facts
    if facts is None or subject.store.embedded:
        return
    if facts.disk is None:
        yield _unseen(facts, "disk")
    else:
        yield from judged_disk("the disk of MongoDB", *facts.disk)


def connections(subject: Subject) -> Iterator[Finding]:
    """Name a MongoDB that takes few further connections."""
    facts = subject.store.facts
    if facts is None or facts.connections is None:
        return
    current, available = facts.connections
    # Connections that should be left: a broker opens some 80.
    if available < 200:
        yield warning(
            f"MongoDB takes only {available} further connections",
            f"{current} are open",
            "raise net.maxIncomingConnections and the limit of open files of mongod",
        )


def _unseen(facts: ServerFacts, name: str) -> Finding:
    why = facts.unseen.get(name, "")
    return info(
        f"{name} of MongoDB can't be looked at", why, "the role clusterMonitor lets the user of the URI look"
    )


CHECKS = (answers, safety, version, members, oplog, clock, disk, connections)
