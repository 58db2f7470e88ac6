"""What each statement does when MongoDB applies it, and what its broker does with the answer, or without."""

from __future__ import annotations

from collections.abc import Callable

from protocol_model.world import (
    EXISTING,
    MAX_ATTEMPTS,
    NOBODY,
    STORED,
    BrokerMemory,
    Document,
    Entry,
    Rules,
    Statement,
    World,
)

#: What MongoDB answers to an insert.
_STORED, _THERE = 1, 2
#: The phase in which a broker waits for a statement's answer.
_WAITING = {"insert": "IQ", "fence": "F", "claim": "C", "commit": "c", "rollback": "b", "release": "r"}


def send(world: World, b: int, verb: str, entry: Entry) -> None:
    jobs = ((entry.job, entry.life, entry.attempts),)
    world.network.append(Statement(verb, b, entry.owner, entry.hold, jobs))


def hand_out(world: World, broker: BrokerMemory) -> None:
    """What is staged goes to a worker at once, if nobody can have declared the broker dead."""
    if not broker.sure:
        return
    for at, entry in enumerate(broker.entries):
        if entry.phase == "S" and entry.owner in broker.mine:
            broker.entries[at] = entry._replace(phase="W")
            if world.acked[entry.job][entry.life]:
                world.complaint = "run again: a job is delivered after its commit was acknowledged"


# -------------------------------------------------------------------- applied


def _apply_insert(world: World, sent: Statement, rules: Rules) -> int:
    job, life = sent.job, sent.life
    if rules.numbered and ((job, life) in world.fenced or world.born[job][life]):
        return _STORED  # the number is too old, or the statement is known: it is not executed
    if world.documents[job]:
        return _THERE
    world.documents[job] = Document(sent.owner, sent.hold, sent.attempts, life)
    world.born[job][life] += 1
    if world.born[job][life] > 1:
        world.complaint = "stored again: one push has stored its job a second time, after it was done"
    elif world.pushes[job][life][0] == EXISTING:
        world.complaint = "stored late: a push was told that its job is there, and stores it later"
    return _STORED


def _apply_fence(world: World, sent: Statement, rules: Rules) -> int:
    world.fenced.add((sent.job, sent.life))
    return 1


def _apply_claim(world: World, sent: Statement, rules: Rules) -> int:
    count = 0
    for job, life, _ in sent.jobs:
        found = world.documents[job]
        if found and not found.owner and (found.life == life or not rules.exact):
            attempts = found.attempts + 1
            world.documents[job] = found._replace(owner=sent.owner, hold=sent.hold, attempts=attempts)
            count += 1
    return count


def _match(world: World, sent: Statement, rules: Rules) -> Document | None:
    found = world.documents[sent.job]
    if found is None or found.owner != sent.owner or not sent.owner:
        return None
    if rules.hold:
        return found if found.hold == sent.hold else None
    if sent.verb == "rollback" and found.attempts != sent.attempts:
        return None
    return found


def _apply_commit(world: World, sent: Statement, rules: Rules) -> int:
    found = _match(world, sent, rules)
    if not found:
        return 0
    if found.life != sent.life:
        world.complaint = "lost: the commit of one life of a job removes its next life"
    world.documents[sent.job] = None
    return 1


def _apply_rollback(world: World, sent: Statement, rules: Rules) -> int:
    found = _match(world, sent, rules)
    if found:
        dead = found.attempts >= MAX_ATTEMPTS
        world.documents[sent.job] = None if dead else found._replace(owner=NOBODY, hold=0)
    return 1


def _apply_release(world: World, sent: Statement, rules: Rules) -> int:
    found = _match(world, sent, rules)
    if found:
        world.documents[sent.job] = Document(NOBODY, 0, max(0, found.attempts - 1), found.life)
    return 1


APPLY: dict[str, Callable[[World, Statement, Rules], int]] = {
    "insert": _apply_insert,
    "fence": _apply_fence,
    "claim": _apply_claim,
    "commit": _apply_commit,
    "rollback": _apply_rollback,
    "release": _apply_release,
}


# -------------------------------------------------------------------- answers


def _waiting(world: World, sent: Statement) -> tuple[BrokerMemory, Entry]:
    """The entry that waits for this statement; it is taken out of the broker's memory."""
    broker = world.brokers[sent.broker]
    for at, entry in enumerate(broker.entries):
        if entry.phase in _WAITING[sent.verb] and (entry.job, entry.life, entry.owner, entry.hold) == (
            sent.job,
            sent.life,
            sent.owner,
            sent.hold,
        ):
            return broker, broker.entries.pop(at)
    raise AssertionError(f"nobody waits for {sent}")


def _answer_insert(world: World, sent: Statement, rules: Rules) -> None:
    b = sent.broker
    place = _place(world, sent)
    broker, entry = _waiting(world, sent)
    if sent.reply == _STORED:
        world.pushes[sent.job][sent.life] = (STORED, b)
        if entry.phase == "I" and entry.owner in broker.mine:
            broker.entries.insert(place, entry._replace(phase="S" if rules.table else "D", doubt=False))
    elif rules.numbered and rules.fenced and entry.doubt:
        fence = entry._replace(phase="F", doubt=False)
        broker.entries.append(fence)
        send(world, b, "fence", fence)
    else:
        world.pushes[sent.job][sent.life] = (EXISTING, b)
        _adopt(world, broker, entry, place)
    if not rules.table:
        _stage_in_order(broker)


def _place(world: World, sent: Statement) -> int:
    for at, entry in enumerate(world.brokers[sent.broker].entries):
        if entry.phase in "IQ" and (entry.job, entry.life) == (sent.job, sent.life):
            return at
    return 0


def _adopt(world: World, broker: BrokerMemory, entry: Entry, place: int) -> None:
    """Old rules: what the unclear insert did store lies reserved under its owner, so it is ours."""
    found = world.documents[entry.job]
    if entry.former and found and found.owner == entry.former and entry.former in broker.mine:
        held = any(other.job == entry.job and other.phase in "SWcbr" for other in broker.entries)
        if not held:
            adopted = Entry("D", entry.job, found.owner, found.hold, found.life, found.attempts)
            broker.entries.insert(place, adopted)


def _stage_in_order(broker: BrokerMemory) -> None:
    """Old rules: what is durable is staged, and known, once every earlier arrival is through."""
    for at, entry in enumerate(broker.entries):
        if entry.phase in "IQ":
            return
        if entry.phase == "D":
            broker.entries[at] = entry._replace(phase="S")


def _answer_fence(world: World, sent: Statement, rules: Rules) -> None:
    _waiting(world, sent)
    world.pushes[sent.job][sent.life] = (EXISTING, sent.broker)


def _answer_claim(world: World, sent: Statement, rules: Rules) -> None:
    broker = world.brokers[sent.broker]
    claimed = [entry for entry in broker.entries if entry.phase == "C"]
    broker.entries = [entry for entry in broker.entries if entry.phase != "C"]
    if sent.owner not in broker.mine:
        return  # declared dead meanwhile: others have these jobs
    for job in claimed:
        found = world.documents[job.job]
        mine = found and found.owner == sent.owner and (found.hold == sent.hold or not rules.hold)
        if sent.reply == len(claimed) or mine:
            broker.entries.append(job._replace(phase="S", attempts=job.attempts + 1))


def _answer_commit(world: World, sent: Statement, rules: Rules) -> None:
    broker, entry = _waiting(world, sent)
    gone = world.documents[sent.job] is None
    if sent.reply or (gone and entry.doubt and broker.sure and sent.owner in broker.mine):
        if world.acked[sent.job][sent.life]:
            world.complaint = "accepted twice: two commits of one life of a job were acknowledged"
        world.acked[sent.job][sent.life] = True


def _answer_return(world: World, sent: Statement, rules: Rules) -> None:
    _waiting(world, sent)


ANSWER: dict[str, Callable[[World, Statement, Rules], None]] = {
    "insert": _answer_insert,
    "fence": _answer_fence,
    "claim": _answer_claim,
    "commit": _answer_commit,
    "rollback": _answer_return,
    "release": _answer_return,
}


def give_up(world: World, sent: Statement, rules: Rules) -> None:
    """The outcome is unclear: the statement is repeated at once.

    A claim is not: what lies under its hold by now is taken, the audit frees what comes later. By the
    old rules its owner is retired.
    """
    broker = world.brokers[sent.broker]
    if sent.verb == "claim" and rules.hold:
        _answer_claim(world, sent._replace(reply=0), rules)
        hand_out(world, broker)
        return
    if sent.verb == "claim":
        broker.entries = [other for other in broker.entries if other.phase != "C"]
        _retire(world, broker, sent.broker, sent.owner)
        return
    place = _place(world, sent)
    _, entry = _waiting(world, sent)
    entry = entry._replace(doubt=True)
    if sent.verb == "insert" and not rules.numbered:
        if entry.phase == "I":
            _retire(world, broker, sent.broker, entry.owner)
            entry = entry._replace(phase="Q", owner=NOBODY, hold=0, attempts=0, former=entry.owner)
        broker.entries.insert(place, entry)
    else:
        broker.entries.append(entry)
    if sent.verb in ("rollback", "release") and not rules.hold:
        _retire(world, broker, sent.broker, sent.owner)
    send(world, sent.broker, sent.verb, entry)


def _retire(world: World, broker: BrokerMemory, b: int, owner: int) -> None:
    if broker.current == owner:
        broker.retired.append(owner)
        broker.current = world.fresh_owner(b)
