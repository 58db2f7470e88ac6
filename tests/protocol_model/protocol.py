"""Every step of the protocol: what clients, workers, brokers, MongoDB and the network can do next.

A step is tried with :class:`Steps` on an opened moment. Each statement takes two steps, as its reply
may be held back: MongoDB applies it, and its broker hears of that. In between, or before, the broker
may stop waiting (``unclear``); what was not applied by then may land at any later time, or never.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol_model.statements import ANSWER, APPLY, give_up, hand_out, send
from protocol_model.world import (
    ANSWERED,
    BROKERS,
    JOBS,
    LATE,
    NOBODY,
    PENDING,
    SENT,
    UNANSWERED,
    UNMADE,
    Bounds,
    Document,
    Entry,
    Moment,
    Rules,
    Statement,
    World,
)

NAMES = "AB"
JOB_NAMES = "xy"

_VERBS = {"c": "commit", "b": "rollback", "r": "release"}


class Step:
    """One step: what is done, in words, whether it is a fault or a client's choice, and what it leads to."""

    __slots__ = ("after", "complaint", "fault", "words")

    def __init__(self, words: str, world: World, rules: Rules, *, fault: bool = False) -> None:
        self.words = words
        self.fault = fault
        self.after = world.close(rules)
        self.complaint = world.complaint or taken_from_a_worker(world, rules)


def steps(moment: Moment, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    """Every step that is possible at this moment."""
    yield from _pushes(moment, rules, bounds)
    yield from _network(moment, rules)
    for b in BROKERS:
        if moment[2][b][0]:
            yield from _work(moment, b, rules)
            yield from _duties(moment, b, rules)
    yield from _fate(moment, rules)


def ended(moment: Moment) -> bool:
    """No job is left, and every push that can be answered is."""
    return moment[0] == (None, None) and all(push[0] != PENDING for of in moment[4] for push in of)


# --------------------------------------------------------------------- pushes


def _pushes(moment: Moment, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    for job in JOBS:
        made = sum(life[0] != UNMADE for life in moment[4][job])
        if made == bounds.pushes[job] or (job and not made and moment[4][0][0][0] == UNMADE):
            continue
        for b in BROKERS:
            if not moment[2][b][0] or (b and moment[4][0][0][0] == UNMADE):
                continue  # the brokers are alike, and so are the jobs: the first push is that of x at A
            for born in (True, False):
                if born and not moment[2][b][1]:
                    continue
                world = World(moment)
                world.pushes[job][made] = (PENDING, b)
                _insert(world, b, job, made, born=born)
                how = "inserted reserved" if born else "as ready"
                words = f"push {made + 1} of {JOB_NAMES[job]} at {NAMES[b]}: an insert {how} is sent"
                yield Step(words, world, rules, fault=True)


def _insert(world: World, b: int, job: int, push: int, *, born: bool) -> None:
    broker = world.brokers[b]
    owner = broker.current if born else NOBODY
    hold = world.fresh_hold(owner) if born else 0
    entry = Entry("I" if born else "Q", job, owner, hold, push, int(born))
    broker.entries.append(entry)
    send(world, b, "insert", entry)


# -------------------------------------------------------------------- network


def _network(moment: Moment, rules: Rules) -> Iterator[Step]:
    for at, sent in enumerate(moment[3]):
        if at and moment[3][at - 1] == sent:
            continue
        what = _words(sent)
        if sent.status != ANSWERED:
            world = World(moment)
            del world.network[at]
            reply = APPLY[sent.verb](world, sent, rules)
            if sent.status == SENT:
                world.network.append(sent._replace(status=ANSWERED, reply=reply))
            late = "late " if sent.status == LATE else ""
            yield Step(f"MongoDB applies the {late}{what}", world, rules)
        if sent.status == ANSWERED:
            world = World(moment)
            del world.network[at]
            ANSWER[sent.verb](world, sent, rules)
            hand_out(world, world.brokers[sent.broker])
            yield Step(f"{NAMES[sent.broker]} hears of its {what}", world, rules)
        if sent.status != LATE and moment[8][0]:
            world = World(moment)
            del world.network[at]
            world.budget[0] -= 1
            if sent.status == SENT:
                world.network.append(sent._replace(status=LATE))
            give_up(world, sent, rules)
            state = "not applied yet" if sent.status == SENT else "applied"
            words = f"{NAMES[sent.broker]} waits no more for its {what} ({state})"
            yield Step(words, world, rules, fault=True)


def _words(sent: Statement) -> str:
    jobs = ", ".join(f"{JOB_NAMES[job]}{life + 1}" for job, life, _ in sent.jobs)
    under = f" under {name_of(sent.owner)}.{sent.hold}" if sent.owner else " as ready"
    return f"{sent.verb} of {jobs}{'' if sent.verb == 'fence' else under}"


def name_of(owner: int) -> str:
    return f"{NAMES[owner // 100 - 1].lower()}{owner % 100}"


# ----------------------------------------------------------------------- work


def _work(moment: Moment, b: int, rules: Rules) -> Iterator[Step]:
    yield from _claims(moment, b, rules)
    entries = moment[2][b][4]
    for at, entry in enumerate(entries):
        if at and entries[at - 1] == entry:
            continue
        job = f"{JOB_NAMES[entry.job]}{entry.life + 1}"
        if entry.phase in "SW" and _may_return(moment, b, "r"):
            yield _verdict(moment, b, at, "r", f"{NAMES[b]} releases {job}", rules)
        if entry.phase == "W":
            yield _verdict(moment, b, at, "c", f"the worker at {NAMES[b]} commits {job}", rules)
            if _may_return(moment, b, "b"):
                yield _verdict(moment, b, at, "b", f"the worker at {NAMES[b]} rolls {job} back", rules)


def _claims(moment: Moment, b: int, rules: Rules) -> Iterator[Step]:
    up, sure, owner, _, entries, _ = moment[2][b]
    found = [
        (job, document.life, document.attempts)
        for job, document in enumerate(moment[0])
        if document and not document.owner
    ]
    if not (up and sure and found) or any(entry.phase == "C" for entry in entries):
        return
    world = World(moment)
    hold = world.fresh_hold(owner)
    for job, life, attempts in found:
        world.brokers[b].entries.append(Entry("C", job, owner, hold, life, attempts))
    world.network.append(Statement("claim", b, owner, hold, tuple(found)))
    jobs = ", ".join(f"{JOB_NAMES[job]}{life + 1}" for job, life, _ in found)
    yield Step(f"{NAMES[b]} finds {jobs} ready, and claims that", world, rules)


def _may_return(moment: Moment, b: int, phase: str) -> bool:
    """One statement of a kind at a time, as the batchers of a broker do."""
    return moment[8][3] > 0 and all(entry.phase != phase for entry in moment[2][b][4])


def _verdict(moment: Moment, b: int, at: int, phase: str, words: str, rules: Rules) -> Step:
    world = World(moment)
    world.budget[3] -= phase != "c"
    entry = world.brokers[b].entries[at]._replace(phase=phase)
    world.brokers[b].entries[at] = entry
    send(world, b, _VERBS[phase], entry)
    return Step(words, world, rules)


# --------------------------------------------------------------------- duties


def _duties(moment: Moment, b: int, rules: Rules) -> Iterator[Step]:
    yield from _audit(moment, b, rules)
    for owner in moment[2][b][3]:
        if not any(entry.owner == owner and _known(entry, rules) for entry in moment[2][b][4]):
            world = World(moment)
            world.brokers[b].retired.remove(owner)
            world.dead.add(owner)
            yield Step(f"{NAMES[b]} closes its retired owner {name_of(owner)}", world, rules)
    if not moment[2][b][1]:
        yield _beat(moment, b, rules)
    yield from _declarations(moment, b, rules)
    if any(document and document.owner in moment[1] for document in moment[0]):
        yield _sweep(moment, b, rules)


def _known(entry: Entry, rules: Rules) -> bool:
    return entry.phase in "SWcbr" or (rules.table and entry.phase in "ICF")


def _audit(moment: Moment, b: int, rules: Rules) -> Iterator[Step]:
    world = World(moment)
    broker = world.brokers[b]
    held = {
        (entry.job, entry.owner, entry.hold) if rules.table else entry.job
        for entry in broker.entries
        if _known(entry, rules)
    }
    missing = {
        (job, document.owner, document.hold)
        for job, document in enumerate(world.documents)
        if document
        and document.owner in broker.mine
        and ((job, document.owner, document.hold) if rules.table else job) not in held
    }
    if not rules.table:
        keys = {(job, owner) for job, owner, _ in broker.doubtful}
        orphans = {key for key in missing if key[:2] in keys}
    else:
        orphans = missing & broker.doubtful
    if missing == broker.doubtful and not orphans:
        return
    for job, owner, hold in sorted(orphans):
        found = world.documents[job]
        if found:
            freed = Statement("release", b, owner, hold, ((job, found.life, found.attempts),), LATE)
            if freed not in world.network:
                world.network.append(freed)
    broker.doubtful = missing
    released = ", ".join(JOB_NAMES[job] for job, _, _ in sorted(orphans))
    seen = ", ".join(JOB_NAMES[job] for job, _, _ in sorted(missing))
    words = f"{NAMES[b]} audits: {'releases ' + released if orphans else 'misses ' + (seen or 'nothing')}"
    yield Step(words, world, rules)


def _beat(moment: Moment, b: int, rules: Rules) -> Step:
    world = World(moment)
    broker = world.brokers[b]
    lost = [owner for owner in broker.mine if owner in world.dead]
    broker.entries = [
        entry for entry in broker.entries if entry.owner not in lost or entry.phase not in "SWD"
    ]
    broker.retired = [owner for owner in broker.retired if owner not in lost]
    if broker.current in lost:
        broker.current = world.fresh_owner(b)
    broker.sure = True
    hand_out(world, broker)
    words = f"{NAMES[b]} beats again"
    if lost:
        words += ", and finds a lease of its own dead: it drops what it held"
    return Step(words, world, rules)


def _declarations(moment: Moment, b: int, rules: Rules) -> Iterator[Step]:
    other = 1 - b
    up, sure, current, retired, _, _ = moment[2][other]
    if up and sure:
        return
    live = {current, *retired} | {
        document.owner for document in moment[0] if document and document.owner // 100 - 1 == other
    }
    live |= {message.owner for message in moment[3] if message.owner // 100 - 1 == other}
    for owner in sorted(live - set(moment[1]) - {NOBODY}):
        world = World(moment)
        world.dead.add(owner)
        yield Step(f"{NAMES[b]} declares {name_of(owner)} dead", world, rules)


def _sweep(moment: Moment, b: int, rules: Rules) -> Step:
    world = World(moment)
    for job, document in enumerate(world.documents):
        if document and document.owner in world.dead:
            world.documents[job] = Document(NOBODY, 0, max(0, document.attempts - 1), document.life)
    return Step(f"{NAMES[b]} sweeps what the dead owners hold", world, rules)


# ----------------------------------------------------------------------- fate


def _fate(moment: Moment, rules: Rules) -> Iterator[Step]:
    for b in BROKERS:
        up, sure = moment[2][b][:2]
        if up and sure and moment[8][2]:
            world = World(moment)
            world.budget[2] -= 1
            world.brokers[b].sure = False
            yield Step(f"{NAMES[b]}'s heartbeats get no answer", world, rules, fault=True)
        if up and moment[8][1]:
            yield Step(f"{NAMES[b]} is killed", _killed(moment, b), rules, fault=True)


def _killed(moment: Moment, b: int) -> World:
    world = World(moment)
    world.budget[1] -= 1
    broker = world.brokers[b]
    broker.up = broker.sure = False
    broker.entries, broker.doubtful = [], set()
    world.network = [
        message._replace(status=LATE) if message.broker == b else message
        for message in world.network
        if message.broker != b or message.status != ANSWERED
    ]
    world.pushes = [[(UNANSWERED, b) if push == (PENDING, b) else push for push in of] for of in world.pushes]
    return world


# ----------------------------------------------------------------- invariants


def taken_from_a_worker(world: World, rules: Rules) -> str:
    """What a worker has under a live lease is its own, and no two commits would be accepted."""
    accepted = [0, 0]
    for broker in world.brokers:
        for entry in broker.entries:
            if entry.phase != "W":
                continue
            found = world.documents[entry.job]
            if found and found.owner == entry.owner and (found.hold == entry.hold or not rules.hold):
                accepted[entry.job] += 1
            exact = found and (found.owner, found.hold, found.life) == (entry.owner, entry.hold, entry.life)
            if not exact and entry.owner not in world.dead:
                return "taken: a job is taken from a worker whose broker nobody has declared dead"
    if max(accepted) > 1:
        return "two holders: of two workers with one job, the commit of either would be accepted"
    return ""
