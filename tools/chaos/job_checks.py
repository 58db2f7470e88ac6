"""Checks of the books alone: jobs that are lost, unexpected, run again, out of order, over a limit."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from chaos import books, features
from chaos.books import COMMIT, FANOUT, FORWARD, REJECT, Fact
from chaos.breach import Breach
from chaos.ledger import Key, Ledger, Run

#: Seconds beyond its time-out after which a call has hung: the machine may be busy.
_HUNG: Final = 10.0
#: Seconds without a confirmed push in which something has stood still: faults end after 20.
_IDLE: Final = 120.0
#: Seconds from a push to its confirmation after which the producer may have repeated it.
_REPEATED: Final = 1.5
#: The interval in which begun jobs are counted against the rate, and what may come on top: a second burst,
#: tokens that three brokers hold from before, and jobs that workers had and not begun.
_WINDOW: Final = 10.0
_MOST_IN_WINDOW: Final = features.RATE * _WINDOW + 2 * features.BURST + 3 * max(1.0, features.RATE / 4) + 8
#: Seconds for which a broker may repeat a commit whose answer was lost.
_REPEATS: Final = 5.0
#: Codes with which a push or a question may be refused while brokers die: the caller knows.
_MOST_OF_A_KIND: Final = 50
_REFUSALS: Final = ("UNAVAILABLE", "UNCERTAIN", "TIMEOUT")
#: Refusals that are promised: of what was there, and of a stream without a bound while a disk is full.
_MEANT: Final = {(features.DEDUPED, "DUPLICATE"), *((stream, "QUEUE_FULL") for stream in features.STREAMS)}


def job_checks(ledger: Ledger) -> Iterator[Breach]:
    """Yield all breaches that the books of jobs show."""
    for check in _CHECKS:
        yield from islice(check(ledger), _MOST_OF_A_KIND)


# ------------------------------------------------------------------ lost, unexpected


def lost(ledger: Ledger) -> Iterator[Breach]:
    """Yield the jobs that were confirmed, and never done."""
    for key in (ledger.confirmed.keys() | ledger.settled.keys()) - ledger.cancelled.keys():
        if missing := [
            end for end, verdicts in _has_to_end(ledger, key) if not ledger.first_end(end, *verdicts)
        ]:
            text = f"job {key[1]} was confirmed, and has not ended in {', '.join(end[0] for end in missing)}"
            yield Breach("lost", text, ledger.story(key))


def _has_to_end(ledger: Ledger, key: Key) -> Iterable[tuple[Key, tuple[str, ...]]]:
    """Return the queues in which a job has to come to an end, and how."""
    queue, id_ = key
    if queue == features.FIRST:
        return [(key, (FORWARD,)), ((features.SECOND, id_), (COMMIT,))]
    if queue == features.PARENTS:
        return [(key, (FANOUT,)), *(((features.PAGES, page), (COMMIT,)) for page in _pages(id_))]
    pushed = ledger.pushed.get(key)
    if pushed and pushed.about.get("fate") == REJECT:
        return [(key, (REJECT,)), ((features.ALL[queue].settings["on_dead"], id_), (COMMIT,))]
    return [(key, (COMMIT,))]


def _pages(parent: str) -> list[str]:
    return [f"{parent}.{number}" for number in range(1, features.CHILDREN + 1)]


def unexpected(ledger: Ledger) -> Iterator[Breach]:
    """Yield the jobs that nobody has pushed, or that came with another payload."""
    numbers = {
        f"{features.STREAM}-{fact.about['sequence']}": fact.id
        for fact in ledger.facts
        if fact.queue == features.STREAM and fact.what in (books.STORED, books.READ)
    }
    for key, runs in ledger.runs.items():
        payload = _expected_payload(ledger, key, numbers)
        came = {str(run.begun.about["payload"]) for run in runs}
        if payload is None:
            yield Breach("unexpected", f"nobody has pushed job {key[1]} of {key[0]}", ledger.story(key))
        elif came != {payload}:
            text = f"job {key[1]} of {key[0]} came with {came}, not with {payload!r}"
            yield Breach("unexpected", text, ledger.story(key))


def _expected_payload(ledger: Ledger, key: Key, numbers: dict[str, str]) -> str | None:
    queue, id_ = key
    came_from = {
        features.SECOND: [features.FIRST],
        features.FAILED: [features.FAILING],
        features.SPOILT: features.PACKED,
    }.get(queue, [queue])
    if any((name, id_) in ledger.pushed for name in came_from):
        return id_
    if queue == features.ROUTED:
        return numbers.get(id_)
    if queue == features.TICKS:
        return features.SCHEDULE if id_.startswith(f"{features.SCHEDULE}@") else None
    if queue == features.PAGES:
        parent, _, number = id_.rpartition(".")
        known = (features.PARENTS, parent) in ledger.pushed and id_ in _pages(parent)
        return f"{parent}.{int(number) - 1}" if known else None
    return None


# ------------------------------------------------------------------ run again


def again(ledger: Ledger) -> Iterator[Breach]:
    """Yield the jobs that began after the broker had confirmed their end, but what the docs allow."""
    for key, end, run in _reruns(ledger):
        if reason_for(ledger, key, end, run) is None:
            text = f"job {key[1]} of {key[0]} was begun {run.begun.at - end.at:.3f} s after its confirmed end"
            yield Breach("again", text, ledger.story(key))


def allowed_again(ledger: Ledger) -> dict[str, int]:
    """Count what the docs allow, by its reason."""
    found: dict[str, int] = defaultdict(int)
    for key, end, run in _reruns(ledger):
        if reason := reason_for(ledger, key, end, run):
            found[reason] += 1
    return dict(found)


def _reruns(ledger: Ledger) -> Iterator[tuple[Key, Fact, Run]]:
    for key, end in ledger.settled.items():
        yield from ((key, end, run) for run in ledger.runs.get(key, ()) if run.begun.at > end.at)


def reason_for(ledger: Ledger, key: Key, end: Fact, run: Run) -> str | None:
    """Return which of the "Remaining risks" in docs/statements.md allows a run after the end, or None."""
    if ledger.may_be_late(end.at, run.begun.at):
        return "a worker that had the job was taken for dead meanwhile"
    if key[0] not in features.REMEMBERING and _may_be_repeated(ledger, key):
        return "its push was repeated after its end, and its queue remembers no ids"
    return None


def _may_be_repeated(ledger: Ledger, key: Key) -> bool:
    pushed, confirmed = ledger.pushed.get(key), ledger.confirmed.get(key)
    return not (pushed and confirmed) or confirmed.at - pushed.at > _REPEATED


def ended_twice(ledger: Ledger) -> Iterator[Breach]:
    """Yield the jobs of which a broker has confirmed two ends: a commit, a reject, a cancel.

    Near a fault a commit may be repeated, and a job that is not there then is taken for done.
    """
    ends: dict[Key, list[Fact]] = defaultdict(list)
    for fact in ledger.facts:
        if fact.what in (books.ACKNOWLEDGED, books.CANCELLED):
            ends[fact.queue, fact.id].append(fact)
    for key, facts in ends.items():
        if len(facts) < 2 or (key[0] not in features.REMEMBERING and _may_be_repeated(ledger, key)):
            continue
        commits = sum(fact.what == books.ACKNOWLEDGED for fact in facts)
        if commits > 1 or ledger.is_calm(facts[0].at - _REPEATS, facts[-1].at):
            yield Breach("again", f"job {key[1]} of {key[0]} has ended {len(facts)} times", ledger.story(key))


def stored_twice(ledger: Ledger) -> Iterator[Breach]:
    """Yield the payloads of packed jobs that came under two ids, or under another one than was confirmed."""
    for key, runs in ledger.runs.items():
        if key[0] in features.KNOWN_BY_PAYLOAD:
            ids = {run.begun.about["job"] for run in runs}
            if confirmed := ledger.confirmed.get(key):
                ids.add(confirmed.about["job"])
            if len(ids) > 1:
                text = f"{key[1]} of {key[0]} was stored as {', '.join(sorted(ids))}"
                yield Breach("again", text, ledger.story(key))


# ------------------------------------------------------------------ order, limits


def out_of_order(ledger: Ledger) -> Iterator[Breach]:
    """Yield the jobs of a group that began before one that was pushed before them had ended."""
    groups: dict[str, list[tuple[int, Key]]] = defaultdict(list)
    for key, fact in ledger.pushed.items():
        if key[0] == features.ORDERS and key in ledger.runs:
            groups[fact.about["key"]].append((fact.about["place"], key))
    for jobs in groups.values():
        before: tuple[float, Key] | None = None
        for _, key in sorted(jobs):
            began = ledger.runs[key][0].begun.at
            if before and began < before[0]:
                text = f"job {key[1]} began {before[0] - began:.3f} s before {before[1][1]} had ended"
                yield Breach("order", text, ledger.story(before[1]) + ledger.story(key))
            end = ledger.first_end(key, COMMIT)
            before = max(filter(None, [before, (end, key) if end else None]), default=None)


def over_limits(ledger: Ledger) -> Iterator[Breach]:
    """Yield where more jobs ran, or began, than the limits allow."""
    yield from _too_many_at_once("max_running", features.MAX_RUNNING, _single_runs(ledger, features.NARROW))
    tenants: dict[str, list[Run]] = defaultdict(list)
    for run in _single_runs(ledger, features.TENANTS):
        pushed = ledger.pushed.get((features.TENANTS, run.begun.id))
        tenants[str(pushed and pushed.about["tenant"])].append(run)
    for name, runs in tenants.items():
        yield from _too_many_at_once(f"tenant_max_running of {name}", features.TENANT_MAX_RUNNING, runs)
    begun = [run.begun for (queue, _), runs in ledger.runs.items() if queue == features.PACED for run in runs]
    yield from _too_fast(sorted(begun, key=lambda fact: fact.at))


def _single_runs(ledger: Ledger, queue: str) -> list[Run]:
    """Return the runs of jobs that ran once: a worker that was taken for dead counts at no limit."""
    return [runs[0] for (name, _), runs in ledger.runs.items() if name == queue and len(runs) == 1]


def _too_many_at_once(limit: str, most: int, runs: Iterable[Run]) -> Iterator[Breach]:
    at_work: list[Run] = []
    for run in sorted((run for run in runs if run.ended), key=lambda run: run.begun.at):
        at_work = [other for other in at_work if other.ended and other.ended.at > run.begun.at]
        at_work.append(run)
        if len(at_work) > most:
            evidence = [f"{other.begun}, until {other.ended and other.ended.at:.3f}" for other in at_work]
            yield Breach("limit", f"{len(at_work)} jobs ran at once, {limit} is {most}", evidence)


def _too_fast(begun: list[Fact]) -> Iterator[Breach]:
    window: deque[Fact] = deque()
    for fact in begun:
        window.append(fact)
        while fact.at - window[0].at > _WINDOW:
            window.popleft()
        if len(window) > _MOST_IN_WINDOW:
            text = f"{len(window)} jobs began in {_WINDOW} s, the rate allows {_MOST_IN_WINDOW:.0f}"
            yield Breach("limit", text, [str(run) for run in window])
            window.clear()


# ------------------------------------------------------------------ results, calls


def wrong_results(ledger: Ledger) -> Iterator[Breach]:
    """Yield answers that are not the worker's, and parents that had ended before their children."""
    for key, fact in ledger.settled.items():
        if fact.what != books.ANSWERED:
            continue
        expected = features.answer_to(key[1].encode()).decode()
        if fact.about["result"] != expected:
            text = f"the result of {key[1]} is {fact.about['result']!r}, not {expected!r}"
            yield Breach("result", text, ledger.story(key))
        if key[0] == features.PARENTS:
            late = [page for page in _pages(key[1]) if not _ended_before(ledger, page, fact.at)]
            if late:
                text = f"{key[1]} was answered before its children {', '.join(late)} had ended"
                yield Breach("result", text, [line for page in late for line in ledger.story((key[0], page))])


def _ended_before(ledger: Ledger, page: str, at: float) -> bool:
    end = ledger.first_end((features.PAGES, page), COMMIT)
    return end is not None and end < at


def hung(ledger: Ledger) -> Iterator[Breach]:
    """Yield calls that took much longer than their time-out."""
    for fact in ledger.facts:
        if fact.what == books.CALLED and fact.about["seconds"] > fact.about["timeout"] + _HUNG:
            since = fact.at - fact.about["seconds"]
            frozen = [
                disturbance
                for disturbance in ledger.disturbances
                if disturbance.victim == fact.program
                and disturbance.begin < fact.at
                and disturbance.end > since
            ]
            if not frozen:
                text = f"a call of {fact.id} took {fact.about['seconds']} s"
                yield Breach("hung", text, ledger.story((fact.queue, fact.id)))


def done_twice(ledger: Ledger) -> Iterator[Breach]:
    """Yield pieces of work for which two jobs ran though they had one dedupe_id."""
    ran: dict[str, list[Key]] = defaultdict(list)
    for key, fact in ledger.pushed.items():
        if key[0] == features.DEDUPED and key in ledger.runs:
            ran[fact.about["work"]].append(key)
    for work, keys in ran.items():
        if len(keys) > 1:
            evidence = [line for key in keys for line in ledger.story(key)]
            yield Breach("again", f"{len(keys)} jobs with the dedupe_id {work} ran", evidence)


def refused(ledger: Ledger) -> Iterator[Breach]:
    """Yield refusals that no fault explains, and that are not meant to be."""
    for fact in ledger.facts:
        meant = (fact.queue, fact.about.get("code")) in _MEANT
        if fact.what == books.REFUSED and not meant and fact.about["code"] not in _REFUSALS:
            text = f"{fact.id} of {fact.queue} was refused: {fact.about['code']}"
            yield Breach("refused", text, ledger.story((fact.queue, fact.id)))


def idle(ledger: Ledger) -> Iterator[Breach]:
    """Yield the long times without a confirmed push: all faults together last less, so something stands."""
    before: Fact | None = None
    for fact in ledger.facts:
        if before and fact.at - before.at > _IDLE:
            text = f"no push was confirmed for {fact.at - before.at:.0f} s"
            yield Breach("stuck", text, [str(before), str(fact)])
            before = fact
        if fact.what == books.DRAINING:
            return
        if fact.what in (books.CONFIRMED, books.ANSWERED):
            before = fact


_CHECKS: Final = (
    lost, unexpected, again, ended_twice, stored_twice, done_twice, out_of_order,
    over_limits, wrong_results, hung, refused, idle,
)  # fmt: skip
