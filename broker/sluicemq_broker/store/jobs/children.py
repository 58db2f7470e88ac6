"""Jobs that wait for others: a parent is ``waiting`` until all its children are done, and done then.

::

    parent: {..., state: "waiting", children: {total: 3, left: 2, by, queues}, wait: {group: 0, place},
             result?}
    child:  {..., parent: {queue, id, seq, by, told?}}

A fan-out is one transaction: the parent waits, under the hold of its worker's delivery, and its children are
there. The end of a child is one, too: it is out of its queue (or ``done``), and its parent's ``left`` is one
lower; the last one ends the parent, and so on upwards. So ``left`` is right whoever is killed when. What
becomes of a parent whose child is not done: :mod:`~sluicemq_broker.store.jobs.failed_children`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bson.int64 import Int64
from pymongo import DeleteOne, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import Duplicate, SluiceError
from sluicemq_broker.job import RESULT_WANTED_FOR, Job, Parent, State
from sluicemq_broker.store.jobs import documents
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, HANDED_OUT
from sluicemq_broker.store.jobs.failed_children import is_parent
from sluicemq_broker.store.jobs.outcomes import HOLD, Completed, all_held, done_alike, held, lost, uncertain
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import Overtaken, check_statements, transact
from sluicemq_broker.store.values import BY_ID, Document, date


class Child(NamedTuple):
    """A job that its parent makes: for which queue; without a payload of its own it has its parent's."""

    to: QueueStore
    job: Job
    inherits: bool


class FanOut(NamedTuple):
    """A job that waits for its children from now on, and then has this result."""

    job: Job
    children: tuple[Child, ...]
    result: bytes


class Ended(NamedTuple):
    """A parent whose last child is done, and the group that had to wait for it."""

    queue: str
    id: str
    result: bytes
    group: str | None


def fan_out(source: QueueStore, fans: Sequence[FanOut], now: float) -> dict[str, SluiceError]:
    """Let jobs of one owner wait for their children, which are made; returns those that don't, and why.

    :class:`Duplicate`: there is a job with a child's id. Else as ``forward``.
    """
    for store in {child.to for each in fans for child in each.children}:
        store.prepare(anew=True)
        store.groups.prepare_for_children()
    source.groups.prepare()  # the parents wait
    step = _FanOut(source, fans, now)
    transact(source.jobs.database.client, step.look, step.apply, "fan-outs")
    return step.problems


def end_children(
    source: QueueStore, completed: Sequence[Completed], now: float, queue: Callable[[str], QueueStore]
) -> tuple[dict[str, SluiceError], list[Ended]]:
    """Commit children of one owner, and count them at their parents, in the queues of these names.

    Returns the ids that are not committed, and why; and the parents that are done with that.
    """
    step = _End(source, completed, now, queue)
    transact(source.jobs.database.client, step.look, step.apply, "children")
    return step.problems, step.ended


class _FanOut:
    """A batch of fan-outs; the first time nobody is expected to be in its way."""

    def __init__(self, source: QueueStore, fans: Sequence[FanOut], now: float) -> None:
        self.problems: dict[str, SluiceError] = {}
        self._source = source
        self._fans = fans
        self._now = now
        self._tries = 0

    def look(self) -> Sequence[FanOut]:
        self._tries += 1
        if self._tries == 1:
            return self._fans
        here, there = self._here(), self._there()
        self.problems = {}
        going = []
        for each in self._fans:
            job, stored = each.job, here.get(each.job.id, {})
            taken = [child for child in each.children if (child.to.name, child.job.id) in there]
            if stored.get("children", {}).get("by") == job.under:
                continue  # it was carried out before its answer was lost
            if (stored.get("owner"), stored.get("hold")) != (job.owner, job.reservation.number):
                self.problems[job.id] = lost(job.id) if stored else uncertain(job.id)
            elif taken:
                name, job_id = documents.queue_of(taken[0].to.name), taken[0].job.id
                self.problems[job.id] = Duplicate(f"queue {name!r} has a job {job_id!r} already", job_id)
            else:
                going.append(each)
        return going

    def apply(self, going: Sequence[FanOut], session: ClientSession) -> None:
        if not going:
            return
        born: dict[QueueStore, list[Job]] = defaultdict(list)
        for child in (child for each in going for child in each.children):
            born[child.to].append(child.job)
        check_statements(len(born), len(going), "children of fan-outs")
        self._inherit(going, session)
        waits = [UpdateOne(held(each.job), _waits(each)) for each in going]
        if self._source.jobs.bulk_write(waits, ordered=False, session=session).matched_count < len(going):
            raise Overtaken
        for store, jobs in born.items():
            store.insert_within(session, jobs, self._now)

    def _inherit(self, going: Sequence[FanOut], session: ClientSession) -> None:
        """Children without a payload of their own get their parent's, which only MongoDB has by now."""
        heirs = [each for each in going if any(child.inherits for child in each.children)]
        if not heirs:
            return
        these = all_held([each.job for each in heirs])
        found = self._source.jobs.find(these, {"payload": 1}, hint=BY_ID, session=session)
        payloads = {each["_id"]: each.get("payload", b"") for each in found}
        for each in heirs:
            for child in each.children:
                if child.inherits:
                    child.job.inherit_payload(payloads.get(each.job.id, b""))

    def _here(self) -> dict[str, Document]:
        births = {each.job.id: each.job.seq for each in self._fans}
        wanted = {"seq": 1, "owner": 1, "hold": 1, "children": 1}
        found = self._source.jobs.find({"_id": {"$in": list(births)}}, wanted, hint=BY_ID)
        return {each["_id"]: each for each in found if births[each["_id"]] == each.get("seq")}

    def _there(self) -> set[tuple[str, str]]:
        ids: dict[QueueStore, list[str]] = defaultdict(list)
        for child in (child for each in self._fans for child in each.children):
            ids[child.to].append(child.job.id)
        return {(store.name, each) for store, these in ids.items() for each in store.which_exist(these)}


class _End:
    """A batch of children that are done."""

    def __init__(
        self,
        source: QueueStore,
        completed: Sequence[Completed],
        now: float,
        queue: Callable[[str], QueueStore],
    ) -> None:
        self.problems: dict[str, SluiceError] = {}
        self.ended: list[Ended] = []
        self._source = source
        self._completed = completed
        self._now = now
        self._queue = queue
        self._tries = 0

    def look(self) -> Sequence[Completed]:
        self._tries += 1
        if self._tries == 1:
            return self._completed
        jobs = {each.job.id: each.job for each in self._completed}
        wanted = {"seq": 1, "owner": 1, "done_by": 1, "hold": 1}
        found = self._source.jobs.find({"_id": {"$in": list(jobs)}}, wanted, hint=BY_ID)
        here = {each["_id"]: each for each in found if jobs[each["_id"]].seq == each.get("seq")}
        self.problems = {}
        going = []
        for each in self._completed:
            job, stored = each.job, here.get(each.job.id)
            if stored is None:
                self.problems[job.id] = uncertain(job.id)
            elif (stored.get("owner"), stored.get("hold")) == (job.owner, job.reservation.number):
                going.append(each)
            elif (stored.get("done_by"), stored.get("hold")) != (job.owner, job.reservation.number):
                self.problems[job.id] = lost(job.id)
        return going

    def apply(self, going: Sequence[Completed], session: ClientSession) -> None:
        """Count the parents down first: a conflict with another broker shows there before all else."""
        if not going:
            return
        self.ended = []
        self._count_down(Counter(each.job.parent for each in going if each.job.parent), session)
        jobs = self._source.jobs
        gone = [each.job for each in going if each.job.kept_until(self._now) is None]
        kept = [each for each in going if each.job.kept_until(self._now) is not None]
        if gone and jobs.delete_many(all_held(gone), session=session).deleted_count < len(gone):
            raise Overtaken
        if kept:
            writes = done_alike(kept, self._now)
            if jobs.bulk_write(writes, ordered=False, session=session).matched_count < len(kept):
                raise Overtaken

    def _count_down(self, done: Counter[Parent], session: ClientSession) -> None:
        """Let each of these have so many children fewer to wait for.

        The last one ends its parent, which may be a child itself: so it goes on upwards, level by level.
        """
        queues = 0
        while done:
            above: Counter[Parent] = Counter()
            for name, parents in _by_queue(done).items():
                queues += 1
                check_statements(3 * queues, len(self._completed), "the parents of children")
                above.update(self._count_down_in(name, parents, session))
            done = above

    def _count_down_in(
        self, name: str, parents: Mapping[Parent, int], session: ClientSession
    ) -> Iterator[Parent]:
        """Count down the parents in one queue, all with one read and one write.

        Yields the parents of those that end.

        No guard but the id is needed in the write: whatever has changed since the read is a conflict.
        """
        store = self._queue(name)
        found = {each["_id"]: each for each in self._waiting(store, parents, session)}
        left: dict[int, list[str]] = defaultdict(list)
        writes: list[UpdateMany | UpdateOne | DeleteOne] = []
        for parent, count in parents.items():
            stored = found.get(parent.id)
            if stored is None or not is_parent(stored, parent):
                continue
            if stored["children"]["left"] > count:
                left[count].append(parent.id)
                continue
            writes.append(self._ending(store, stored))
            self.ended.append(Ended(name, parent.id, stored.get("result", b""), stored.get("group")))
            if above := documents.parent_of(stored):
                yield above
        for count, ids in left.items():
            lower = {"$inc": {"children.left": -count}}
            writes.append(UpdateMany({"_id": {"$in": ids}}, lower, hint=BY_ID))
        if writes:
            store.jobs.bulk_write(writes, ordered=False, session=session)

    def _waiting(
        self, store: QueueStore, parents: Mapping[Parent, int], session: ClientSession
    ) -> Iterable[Document]:
        """Read these parents, if they wait, and the results of those that may end now."""
        waits = {
            "_id": {"$in": [each.id for each in parents]},
            "state": State.WAITING,
            "children.left": {"$gt": 0},
        }
        ends = {"$lte": ["$children.left", max(parents.values())]}
        result = {"result": {"$cond": [ends, "$result", "$$REMOVE"]}}
        wanted = {**_COUNTED, **result}
        return store.jobs.find(waits, wanted, hint=BY_ID, session=session, batch_size=len(parents) + 1)

    def _ending(self, store: QueueStore, stored: Document) -> UpdateOne | DeleteOne:
        job = documents.job(stored, store.defaults)
        if job.result_wanted:  # who asks at another broker looks for it
            job.keep_result(RESULT_WANTED_FOR)
        until, this = job.kept_until(self._now), {"_id": job.id, "seq": job.seq}
        if until is None:
            return DeleteOne(this, hint=BY_ID)
        ended = {"state": State.DONE, "ended_at": date(self._now), "remove_at": date(until)}
        gone = dict.fromkeys(("head", "wait", *(() if job.keep_done else ("payload",))), "")
        return UpdateOne(this, {"$set": ended, "$unset": gone}, hint=BY_ID)


#: What is read of a parent: what its end needs, and of that neither payload nor, most times, result.
_COUNTED: Final = {**{key: 1 for key in HANDED_OUT if key != "payload"}, "children": 1}


def _by_queue(parents: Mapping[Parent, int]) -> dict[str, dict[Parent, int]]:
    queues: dict[str, dict[Parent, int]] = defaultdict(dict)
    for parent, count in parents.items():
        queues[parent.queue][parent] = count
    return queues


def _waits(fan: FanOut) -> Mapping[str, Any]:
    """The update that makes a parent wait."""
    count, queues = len(fan.children), {documents.queue_of(each.to.name) for each in fan.children}
    waits: Document = {
        "state": State.WAITING,
        "children": {"total": count, "left": count, "by": fan.job.under, "queues": sorted(queues)},
        "wait": {"group": FOR_CHILDREN, "place": Int64(fan.job.seq)},
        "result": fan.result,
    }
    return {"$set": waits, "$unset": {**HOLD, "expires_at": ""}}
