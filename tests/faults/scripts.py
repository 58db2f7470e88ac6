"""Scripts, one for each group of features: what clients ask of a broker that dies on the way."""

from __future__ import annotations

import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from pymongo.errors import DuplicateKeyError

from faults.killed_at import ENDED, LEASE, Died, Hand, Scenario, until
from sluicemq import (
    Client,
    ConflictError,
    FanOut,
    Forward,
    LeaseLostError,
    NotFoundError,
    Producer,
    Publisher,
    Reader,
    SluiceError,
    Subscription,
    UnavailableError,
    UncertainError,
    Worker,
    outbox,
)
from sluicemq.claim import ClaimedJob
from sluicemq_broker.job import Job
from sluicemq_broker.store import FairOrder, QueueDefaults, QueueStore
from sluicemq_broker.store.jobs.index_models import SLOTS

#: Of both brokers.
CONFIG: Final[Mapping[str, Any]] = {
    "devices": [],
    "broker": {"devices": False, "lease": LEASE, "poll": 0.3, "silence": 60.0, "max_job_bytes": 12 << 20},
    "queues": {
        "*": {"backoff": "none"},
        "kept": {"keep_done": 3600.0},
        "fair": {"fair": True},
        "limited": {"max_running": 50, "rate": 10_000.0},
        "tenants": {"fair": True, "tenant_max_running": 50, "tenant_rate": 10_000.0},
        "expiring": {"on_expiry": "dead"},
        "next": {},
        "ones": {},
        "doomed": {"max_losses": 1},
        "packed": {"pack": True},
    },
}
#: Of A alone: a broker that holds a route lets no other have it.
ROUTE: Final[Mapping[str, Any]] = {"routes": [{"stream": "routed", "queue": "from_stream"}]}
#: Of A alone, too: its own database has an outbox.
POSTS: Final[Mapping[str, Any]] = {"broker": {**CONFIG["broker"], "outboxes": ["{database}"]}}
TOKEN: Final = "0123456789-abcdefghij"  # noqa: S105 - of a test
HTTP: Final[Mapping[str, Any]] = {"broker": {**CONFIG["broker"], "http": "127.0.0.1:0", "http_token": TOKEN}}
#: Orders of one removal, at most.
_TRIES: Final = 5


def stopping(hand: Hand) -> None:
    """A broker that stops gives back its jobs and permits, and ends its lease."""
    hand.push("mail", "a", "b")
    hand.push("limited", "c")
    hand.take("mail")
    hand.take("limited")
    hand.broker.process.terminate()
    until(lambda: hand.broker.dead)


# ---------------------------------------------------------------------- jobs


def pushing(hand: Hand) -> None:
    hand.push("mail", "a", "b")
    hand.push("mail", "c", dedupe_id=hand.name("d"), dedupe_window=0.1)
    time.sleep(0.2)  # its window is over
    hand.push("mail", "e", dedupe_id=hand.name("d"), dedupe_window=0.1)
    taker = threading.Thread(target=_take_one, args=(hand, "waited"))
    taker.start()
    hand.push("waited", "f")
    taker.join(60)


def _take_one(hand: Hand, queue: str) -> None:
    with suppress(SluiceError, AssertionError, Died):  # the script finds it dead itself
        hand.commit(*hand.take(queue))


def working(hand: Hand) -> None:
    hand.push("mail", "one")
    (one,) = hand.take("mail")
    hand.commit(one)
    hand.push("mail", "a", "b", "c", "d", "e")
    a, b, c, d, e = sorted(hand.take("mail", 5), key=lambda job: job.id)
    a.progress(1, 2, "half")
    b.extend(60)
    hand.commit(a)
    hand.book.rolled_back.add(b.id)
    b.rollback("not now")
    with hand.fate([c.id], "dead mail"):
        c.reject("never")
    hand.commit(d)
    hand.client.jobs.reserve("mail", 1, wait=2).release()
    del e
    hand.push("kept", "f", "g")
    f, g = hand.take("kept", 2)
    hand.commit(f, g, result=b"done")
    hand.push("mail", "h")
    job = hand.name("h")
    hand.book.perhaps(hand.name("b"), ENDED)  # b is ready, too: a pop takes one of them
    with hand.fate([], ENDED):
        hand.book.perhaps(job, ENDED)
        hand.client.jobs.pop("mail", 2, wait=2)


def grouped(hand: Hand) -> None:
    for number in range(4):
        hand.push("lines", f"g{number}", group=hand.name("group"))
    hand.commit(*hand.take("lines"))
    hand.commit(*hand.take("lines"))


def fairly(hand: Hand) -> None:
    for queue in ("fair", "tenants"):
        for number in range(4):
            hand.push(queue, f"{queue}{number}", tenant=f"t{number % 2}")
        hand.commit(*hand.take(queue, 2))


def limited(hand: Hand) -> None:
    hand.push("limited", *(f"l{number}" for number in range(4)))
    hand.commit(*hand.take("limited", 2))


def forwarding(hand: Hand) -> None:
    hand.push("mail", "a")
    hand.push("mail", "b", dedupe_id=hand.name("of b"))
    for job in hand.take("mail", 2):
        with hand.fate([job.id], "worked next"):
            job.forward("next", b"on")
    for job in hand.take("next", 2):
        with hand.fate([job.id], "worked mail"):
            job.forward("mail", b"back")


def with_children(hand: Hand) -> None:
    parent = hand.name("p")
    children = [f"{parent}.{n}" for n in (1, 2, 3)]
    hand.push("parents", "p")
    for child in children:
        hand.book.perhaps(child, ENDED, "worked pages", "worked kept")
    hand.book.perhaps(parent, ENDED)

    def fan(_job: Any) -> FanOut:
        last = Forward("kept", b"3")
        return FanOut(Forward("pages", b"1"), Forward("pages", b"2"), last, result=b"all")

    with _worker(hand, "parents", fan):
        until(lambda: _state(hand, "parents", parent) == "waiting" or hand.broker.dead, what="children")
    _check_alive(hand)
    hand.book.surely(parent, ENDED)
    for child in children:
        hand.book.surely(child, "worked pages", "worked kept")
    hand.commit(*hand.take("pages", 2))
    hand.commit(*hand.take("kept"), result=b"kept")


def joining(hand: Hand) -> None:
    """A job is delivered once more when its children are done, with what each has returned, once."""
    parent, children = hand.name("p"), [f"{hand.name('p')}.{n}" for n in (1, 2)]
    hand.push("kept", "p")
    hand.book.perhaps(parent, ENDED)
    for child in children:
        hand.book.perhaps(child, ENDED, "worked pages")

    def join(job: Any) -> Any:
        if job.children is None:
            return FanOut(Forward("pages", b"1"), Forward("pages", b"2"), join=True)
        return b"".join(child.result for child in job.children)

    def noted() -> None:
        found = hand.jobs("kept").find_one({"_id": parent}) or {}
        ids = [row["id"] for row in found.get("joined", ())]
        assert sorted(ids) == (children if "children" in found else []), found

    hand.book.checks.append(noted)
    with _worker(hand, "kept", join):
        _until(hand, "kept", parent, "waiting")
        _check_alive(hand)
        hand.book.surely(parent, ENDED, "worked kept")
        for child in children:
            hand.book.surely(child, "worked pages")
        for job in hand.take("pages", 2):
            hand.commit(job, result=job.id.encode())
        _until(hand, "kept", parent, "done")
    _check_alive(hand)
    hand.book.surely(parent, ENDED)


def allowed_failures(hand: Hand) -> None:
    """A job goes on without a child that fails, which is an ordinary dead letter then."""
    parent, child = hand.name("p"), f"{hand.name('p')}.1"
    hand.push("kept", "p")
    hand.book.perhaps(parent, ENDED)
    hand.book.perhaps(child, ENDED, "worked pages")

    def join(job: Any) -> Any:
        if job.children is None:
            return FanOut(Forward("pages", b"1"), join=True, allow_failures=True)
        return job.children[0].error.encode()

    def noted() -> None:
        found = hand.jobs("kept").find_one({"_id": parent}) or {}
        assert len(found.get("joined", ())) == (1 if "children" in found else 0), found

    hand.book.checks.append(noted)
    with _worker(hand, "kept", join):
        _until(hand, "kept", parent, "waiting")
        _check_alive(hand)
        hand.book.surely(parent, ENDED, "worked kept")
        hand.book.surely(child, "worked pages")
        (job,) = hand.take("pages")
        with hand.fate([child], "dead pages"):
            job.reject("no")
        _until(hand, "kept", parent, "done")
    _check_alive(hand)
    hand.book.surely(parent, ENDED)


def failing_children(hand: Hand) -> None:
    for name in ("p", "q"):
        parent, child = hand.name(name), f"{hand.name(name)}.1"
        _fan_out_two(hand, name)
        if name == "p":
            hand.book.perhaps(parent, "dead parents")
            hand.client.jobs.cancel("pages", child)
            hand.book.surely(child, ENDED)
            hand.book.surely(parent, "dead parents")
        else:
            _fail_child(hand, parent, child)


def _fan_out_two(hand: Hand, name: str) -> None:
    """Push a parent, and have a worker give it two children."""
    parent = hand.name(name)
    hand.push("parents", name)
    hand.book.perhaps(parent, ENDED, "dead parents")
    for n in (1, 2):
        hand.book.perhaps(f"{parent}.{n}", ENDED, "worked pages", "dead pages")

    def fan(_job: Any) -> FanOut:
        return FanOut(Forward("pages", b"1"), Forward("pages", b"2"))

    with _worker(hand, "parents", fan):
        _until(hand, "parents", parent, "waiting")
    _check_alive(hand)


def _fail_child(hand: Hand, parent: str, child: str) -> None:
    job = next(found for found in hand.take("pages", 3) if found.id == child)
    with hand.fate([child], "dead pages"):
        job.reject("no")
    hand.book.surely(parent, "dead parents")
    _until(hand, "parents", parent, "dead")
    notified = {"_id": child, "parent.told": True}
    until(lambda: hand.jobs("pages").find_one(notified) or hand.broker.dead)


def _worker(hand: Hand, queue: str, handler: Callable[[Any], Any]) -> Worker:
    return Worker(queue, handler, stop_timeout=0.2, endpoint=hand.broker.doors["smq"])


def _state(hand: Hand, queue: str, job: str) -> Any:
    return (hand.jobs(queue).find_one({"_id": job}) or {}).get("state")


def _until(hand: Hand, queue: str, job: str, *states: str | None) -> None:
    """Wait until a job is in one of these states (None: is gone), or A is dead."""
    until(lambda: hand.broker.dead or _state(hand, queue, job) in states, what=f"{job} {states}")


def _check_alive(hand: Hand) -> None:
    if hand.broker.dead:
        raise TimeoutError


# ------------------------------------------------------------------ administration


def ordering(hand: Hand) -> None:
    hand.book.at_b.append(lambda client: client.promote("mail", hand.name("delayed")))
    hand.push("mail", "running")
    for job in hand.take("mail", 1):
        with hand.fate([job.id], ENDED):
            hand.client.jobs.cancel("mail", job.id, running=True)
    hand.push("mail", "cancelled", "changed", "purged")
    hand.push("mail", "delayed", delay=3600)
    with hand.fate([hand.name("cancelled")], ENDED):
        hand.client.jobs.cancel("mail", hand.name("cancelled"))
    hand.client.jobs.change("mail", hand.name("changed"), priority=9)
    hand.client.jobs.promote("mail", hand.name("delayed"))
    three = [hand.name(name) for name in ("changed", "purged", "delayed")]
    with hand.fate(three, ENDED):
        hand.client.queues.purge("mail").result()


def redriving(hand: Hand) -> None:
    names = ("r1", "r2", "r3", "r4")
    hand.push("mail", *names)
    for job in hand.take("mail", 4):
        with hand.fate([job.id], "dead mail"):
            job.reject("no")
    one, two, three, four = map(hand.name, names)
    with hand.fate([one], "worked mail"):
        hand.client.dead_letters.redrive("mail", [one]).result()
    with hand.fate([two], "worked next"):
        hand.client.dead_letters.redrive("mail", [two], to="next").result()
    with hand.fate([three], ENDED):
        hand.client.dead_letters.discard("mail", [three]).result()
    hand.book.perhaps(four, ENDED)


def deleting(hand: Hand) -> None:
    hand.push("gone", "a", "b")
    with hand.fate([hand.name("a"), hand.name("b")], ENDED):
        _delete(hand, "gone")
    hand.push("gone", "c")


def _delete(hand: Hand, queue: str) -> None:
    """Delete a queue, again where A was slow, so that B took it for dead and took the removal back."""
    for left in reversed(range(_TRIES)):
        try:
            hand.client.queues.delete(queue).result()
        except UnavailableError as error:
            if not left or "taken for dead" not in str(error):
                raise
        else:
            return


def deleting_children(hand: Hand) -> None:
    _fan_out_two(hand, "p")
    hand.client.queues.delete("pages").result()
    hand.book.surely(hand.name("p"), "dead parents")


def pausing(hand: Hand) -> None:
    hand.push("mail", "a")
    hand.book.at_b.append(lambda client: client.resume("mail"))
    hand.client.queues.pause("mail")
    hand.client.queues.resume("mail")


def auditing(hand: Hand) -> None:
    """What was answered is recorded."""
    queue, answered = hand.name("audited"), list[str]()

    def each_is_recorded() -> None:
        with Client(endpoint=hand.lane.b.doors["smq"]) as client:
            recorded = [entry["action"] for entry in client.audit(name=queue)[0]]
        assert set(answered) <= set(recorded), (answered, recorded)

    hand.book.checks.append(each_is_recorded)
    hand.book.at_b.append(lambda client: client.resume(queue))
    hand.push(queue, "a")
    for change in (hand.client.pause, hand.client.resume):
        change(queue)
        answered.append(change.__name__)


def scheduling(hand: Hand) -> None:
    name = hand.name("pulse")
    hand.book.at_b.append(lambda client: client.remove_schedule(name))
    for payload in (b"first", b"go"):
        hand.client.schedules.add(name, "scheduled", payload, every=1.0)
    until(lambda: hand.jobs("scheduled").count_documents({}) or hand.broker.dead, what="a run")
    _check_alive(hand)
    hand.client.schedules.pause(name)
    hand.client.schedules.resume(name)
    hand.client.schedules.run(name)
    hand.client.schedules.delete(name)

    def each_run_once() -> None:
        runs = [job for queue, job in hand.lane.worked.elements() if queue == "scheduled"]
        assert len(runs) == len(set(runs)), runs

    hand.book.checks.append(each_run_once)


def expiring(hand: Hand) -> None:
    for queue in ("mail", "expiring"):
        job = hand.name(queue)
        hand.book.perhaps(job, ENDED if queue == "mail" else "dead expiring")
        hand.push(queue, queue, ttl=0.3)
        _until(hand, queue, job, None, "dead")
        _check_alive(hand)


# ------------------------------------------------------------------ what is found in MongoDB


def strange_before(hand: Hand) -> None:
    now = datetime.now(UTC) - timedelta(hours=1)
    jobs = hand.jobs("strange")
    common = {"priority": 0, "eligible_at": now, "created_at": now, "attempts": 0, "payload": Binary(b"x")}
    jobs.insert_many(
        [
            {"_id": hand.name("no-seq"), "state": "ready", **common, "seq": "text"},
            {"_id": hand.name("ownerless"), "state": "reserved", **common, "seq": Int64(2)},
        ]
    )
    for name in ("no-seq", "ownerless"):
        hand.book.perhaps(hand.name(name), "dead strange")


def strange(hand: Hand) -> None:
    hand.push("strange", "a")
    hand.take("strange")
    for name in ("no-seq", "ownerless"):
        _until(hand, "strange", hand.name(name), "dead")


def orphans_before(hand: Hand) -> None:
    for queue in ("mail", "doomed"):
        _orphan(hand, queue)
        hand.book.perhaps(hand.name(queue), "worked mail" if queue == "mail" else "dead doomed")


def orphans(hand: Hand) -> None:
    for queue in ("mail", "doomed"):
        job = hand.name(queue)
        _until(hand, queue, job, "ready", "dead")


def starting(_hand: Hand) -> None:
    """Start, and stop."""


def limited_orphan_before(hand: Hand) -> None:
    _orphan(hand, "limited")
    hand.documents["limits"].update_one(
        {"_id": "limited"}, {"$set": {"running.gone": {"permits": 3, "order": 1}}}, upsert=True
    )
    hand.book.perhaps(hand.name("limited"), "worked limited")


def limited_orphan(hand: Hand) -> None:
    hand.push("limited", "more")
    until(lambda: _state(hand, "limited", hand.name("limited")) != "reserved" or hand.broker.dead)


def _orphan(hand: Hand, queue: str) -> None:
    """A job that is reserved by a broker without a lease."""
    now = datetime.now(UTC) - timedelta(hours=1)
    hand.jobs(queue).insert_one({**_document(hand.name(queue)), **_reserved(now)})


def _document(job: str, **fields: Any) -> dict[str, Any]:
    now = datetime.now(UTC) - timedelta(hours=1)
    common = {"state": "ready", "priority": 0, "eligible_at": now, "created_at": now, "attempts": 0}
    return {"_id": job, **common, "seq": Int64(1), "payload": Binary(b"x"), **fields}


def _reserved(at: datetime) -> dict[str, Any]:
    return {"state": "reserved", "attempts": 1, "owner": "gone", "hold": 1, "reserved_at": at}


def spent_before(hand: Hand) -> None:
    hand.jobs("mail").insert_one(_document(hand.name("spent"), attempts=5, max_attempts=5))
    hand.book.perhaps(hand.name("spent"), "dead mail")


def spent(hand: Hand) -> None:
    hand.push("mail", "a")
    hand.commit(*hand.take("mail"))
    _until(hand, "mail", hand.name("spent"), "dead")


def one_by_one(hand: Hand) -> None:
    """An event of another broker has a broker with an idle worker claim one job by one statement."""
    _push_at_b_for_a_worker(hand, "a")


def one_strange(hand: Hand) -> None:
    """While A waits before that claim, a document that is no job comes first: A gives it back."""
    _push_at_b_for_a_worker(hand, "a", strange=True)


def _push_at_b_for_a_worker(hand: Hand, name: str, *, strange: bool = False) -> None:
    job = hand.name(name)
    taker = _worker(hand, "ones", lambda _job: None)
    taker.start()
    until(lambda: hand.broker.dead or _waits(hand, "ones"), what="a worker that waits")
    hand.book.perhaps(job, "worked ones", ENDED)
    with Producer(endpoint=hand.lane.b.doors["smq"]) as producer:
        producer.push("ones", b"x", id=job).wait(60)
    if strange:
        hand.jobs("ones").insert_one(_document(hand.name("strange"), seq="text", priority=9))
        hand.book.perhaps(hand.name("strange"), "dead ones")
        _until(hand, "ones", hand.name("strange"), "dead")
    _until(hand, "ones", job, None)
    taker.close()


def _waits(hand: Hand, queue: str) -> bool:
    with suppress(SluiceError):
        return bool(hand.client.workers(queue))
    return False


def unsent_before(hand: Hand) -> None:
    hand.jobs("kept").insert_one(_document(hand.name("popped")))
    hand.book.perhaps(hand.name("popped"), "worked kept")


def unsent(hand: Hand) -> None:
    """A pop whose client has gone before its job can be sent."""
    popped = hand.name("popped")
    hand.book.perhaps(popped, ENDED)
    with suppress(SluiceError, TimeoutError), Client(timeout=6, endpoint=hand.broker.doors["smq"]) as client:
        client.pop("kept", 1)
    _until(hand, "kept", popped, "reserved", "done")
    _until(hand, "kept", popped, "ready")


def beyond_before(hand: Hand) -> None:
    job = _document(
        hand.name("large"), payload=Binary(bytes(11 << 20)), padding=Binary(bytes((5 << 20) - 10_000))
    )
    hand.jobs("kept").insert_one(job)


def beyond(hand: Hand) -> None:
    """A document that a result makes too large fails the update of all, so each is written alone."""
    hand.push("kept", "small")
    jobs = {job.id: job for _ in range(2) for job in hand.take("kept")}
    large, small = hand.name("large"), hand.name("small")
    hand.book.perhaps(large, "worked kept", "dead kept")
    hand.book.perhaps(small, ENDED)
    with suppress(SluiceError):
        jobs[large].commit(bytes(20_000))
    jobs[small].commit(b"result")
    hand.book.surely(small, ENDED)


def crowded_heads(hand: Hand) -> None:
    """While A is about to promote a job another broker makes a head of its group: A's update is refused."""
    group = hand.name("group")
    pushing = threading.Thread(target=_push_quietly, args=(hand, "lines", "one", group))
    pushing.start()
    until(lambda: hand.broker.dead or _state(hand, "lines", hand.name("one")), what="the insert")
    time.sleep(1.5)  # A has looked for heads, and waits before its update
    with suppress(DuplicateKeyError):  # A was faster: then nothing was met, and it is tried again
        hand.jobs("lines").insert_one(_document(hand.name("head"), group=group, head=group))
        hand.book.perhaps(hand.name("head"), "worked lines")
        hand.groups[group].insert(0, hand.name("head"))
    until(lambda: hand.broker.dead or not pushing.is_alive(), what="the push")
    time.sleep(3)  # the promotion comes behind its confirmation


def _push_quietly(hand: Hand, queue: str, job: str, group: str) -> None:
    with suppress(SluiceError, TimeoutError, Died):
        hand.push(queue, job, group=group)


def odd_indexes_before(hand: Hand) -> None:
    """What keeps the indexes of a queue from being made as they should be, and indexes that nobody needs."""
    odd, tenants, mail = (hand.jobs(name) for name in ("odd", "tenants", "mail"))
    for queue in ("odd", "tenants"):
        hand.jobs(queue).drop()
    odd.insert_many(
        [
            _document(hand.name("odd1"), dedupe_id=hand.name("d"), seq=Int64(1)),
            _document(hand.name("odd2"), dedupe_id=hand.name("d"), seq=Int64(2)),
            _document(hand.name("odd3"), dedupe_id=[hand.name("e"), hand.name("f")], seq=Int64(3)),
        ]
    )
    odd.create_index([("state", 1), ("owner", 1), ("seq", 1)], name="reserved")
    for name in ("odd1", "odd2", "odd3"):
        hand.book.perhaps(hand.name(name), "worked odd")
    slot = {"tenant": "t", "n": 1}
    tenants.insert_many([_document(hand.name(name), slot=slot, tenant="t") for name in ("t1", "t2")])
    for name in ("t1", "t2"):
        hand.book.perhaps(hand.name(name), "worked tenants")
    for index in (FairOrder.index, SLOTS):
        mail.create_indexes([index])


def odd_indexes(hand: Hand) -> None:
    hand.push("odd", "new")
    hand.push("tenants", "t3", tenant="u")
    hand.take("tenants")
    until(lambda: not _superfluous(hand) or hand.broker.dead, what="the removal of indexes")


def _superfluous(hand: Hand) -> set[str]:
    return {"fair", "slot"} & set(hand.jobs("mail").index_information())


def left_over_before(hand: Hand) -> None:
    """A task of a dead broker; a queue put aside by one; an empty collection that one did not put to use."""
    now = datetime.now(UTC)
    many = [f"m{number}" for number in range(600)]
    hand.jobs("mail").insert_many([_document(hand.name(job)) for job in many])
    for job in many:
        hand.book.perhaps(hand.name(job), ENDED, "worked mail")
    task = {"kind": "purge", "queue": "mail", "order": {"state": "ready"}, "now": time.time() + 60}
    task |= {"state": "running", "done": 0, "total": 600, "owner": "gone", "broker": "gone"}
    hand.documents["tasks"].insert_one(
        {"_id": hand.name("task"), **task, "started_at": now, "changed_at": now}
    )
    hand.documents[f"removed.old.{hand.run}00"].insert_one(_document(hand.name("old")))
    hand.book.perhaps(hand.name("old"), ENDED)
    hand.documents.create_collection(_empty(hand))


def left_over(hand: Hand) -> None:
    names = hand.documents.list_collection_names
    until(lambda: _empty(hand) not in names() or hand.broker.dead, what="the removal of what is left")
    tasks = hand.documents["tasks"]
    until(lambda: not tasks.count_documents({"state": "running"}) or hand.broker.dead, what="the task")
    (mine,) = [document["_id"] for document in hand.documents["owners"].find({"state": "live"})]
    task = {"kind": "purge", "queue": "mail", "order": {"state": "dead"}, "now": time.time(), "total": 1}
    now = datetime.now(UTC)
    task |= {"started_at": now, "changed_at": now, "done": 0, "state": "running", "owner": mine}
    tasks.insert_one({"_id": hand.name("other"), **task, "broker": "A"})
    hand.client.operations.cancel(hand.name("other"))


def _empty(hand: Hand) -> str:
    return f"deleted.old.{int(time.time() * 1000) - 120_000:x}"[:-6] + "000000-" + hand.run


def again(hand: Hand) -> None:
    """An insert without an answer is sent again, and finds its job there: the next number is used up."""
    hand.push("mail", "a")
    space = f"{hand.lane.database}.queue.mail"
    data = {"failCommands": ["insert"], "closeConnection": True, "namespace": space}
    hand.documents.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
    hand.push("mail", "a")


def over_http(hand: Hand) -> None:
    hand.push("mail", "a")
    (job,) = hand.take("mail")
    with hand.fate([job.id], "dead mail"):
        job.reject("no")
    url = f"http://{hand.broker.http}/api/v1/queues/mail/jobs/{job.id}/delete"
    request = urllib.request.Request(url, method="POST", data=b"{}")
    request.add_header("Content-Type", "application/json")
    request.add_header("X-SluiceMQ-Action", "test")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    hand.book.perhaps(job.id, ENDED)
    try:
        urllib.request.urlopen(request, timeout=30).read()  # noqa: S310 - of the broker
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from None
    except OSError as error:
        raise TimeoutError from error
    hand.book.surely(job.id, ENDED)


def expiring_child(hand: Hand) -> None:
    parent = hand.name("p")
    hand.push("parents", "p")
    hand.book.perhaps(parent, ENDED, "dead parents")
    hand.book.perhaps(f"{parent}.1", ENDED, "dead pages")

    def fan(_job: Any) -> FanOut:
        return FanOut(Forward("pages", b"1", ttl=0.5))

    with _worker(hand, "parents", fan):
        _until(hand, "parents", parent, "waiting", "dead")
    _check_alive(hand)
    hand.book.surely(parent, "dead parents")
    _until(hand, "parents", parent, "dead")


# ---------------------------------------------------------------------- streams


def publishing(hand: Hand) -> None:
    stream, seen = hand.name("s"), dict[str, int]()
    endpoint = hand.broker.doors["smq"]
    publisher = Publisher(close_timeout=0, endpoint=endpoint)
    topics = [f"t{n}" for n in range(6)]

    def repeat(_client: Any) -> None:
        with Publisher(endpoint=hand.lane.b.doors["smq"]) as again:
            for topic in topics:
                again.publish(stream, topic, topic.encode(), id=topic)

    hand.book.at_b.append(repeat)

    def each_once() -> None:
        with Reader(stream, endpoint=hand.lane.b.doors["smq"]) as reader:
            found = [(message.sequence, message.payload.decode()) for message in reader]
        assert sorted(payload for _, payload in found) == topics, found
        assert [number for number, _ in found] == list(range(1, len(topics) + 1))
        assert all((number, topic) in found for topic, number in seen.items()), (found, seen)

    hand.book.checks.append(each_once)
    try:
        for topic in topics:
            seen[topic] = hand.heard(publisher.publish(stream, topic, topic.encode(), id=topic))
            if topic == topics[3]:
                expecting = publisher.publish(stream, topic, b"not", expect_topic=99)
                with suppress(ConflictError):
                    hand.heard(expecting)
    finally:
        with suppress(SluiceError):
            publisher.close(0)


def subscribing(hand: Hand) -> None:
    stream, name = hand.name("s"), "reader"
    a, b = hand.broker.doors["smq"], hand.lane.b.doors["smq"]
    with Publisher(endpoint=b) as publisher:
        for n in range(6):
            publisher.publish(stream, "t", b"%d" % n)
    came: list[tuple[int, int]] = []

    def at(endpoint: str) -> Subscription:
        def handler(batch: Any) -> None:
            came.extend((batch.fence, message.sequence) for message in batch)

        return Subscription(stream, name, handler, batch=2, follow=False, endpoint=endpoint)

    def finish(_client: Any) -> None:
        until(lambda: _ends(at(b)), what="the take-over")

    def each_at_least_once_in_order() -> None:
        numbers = [number for _, number in came]
        assert sorted(set(numbers)) == list(range(1, 7)), came
        assert all(fence <= later for (fence, _), (later, _) in pairwise(came)), came

    hand.book.at_b.append(finish)
    hand.book.checks.append(each_at_least_once_in_order)
    working = at(a)
    working.start()
    until(lambda: hand.broker.dead or _joined(working), what="the end of the stream")
    _check_alive(hand)
    hand.client.subscriptions.seek(stream, name, 3)
    hand.client.subscriptions.delete(stream, name)
    came.clear()
    with suppress(SluiceError, KeyboardInterrupt):
        Subscription(stream, name, _break_off, batch=2, follow=False, endpoint=a).run()
    subscribed = hand.documents["subscriptions"]
    until(lambda: subscribed.find_one({"_id": f"{stream}/{name}", "holder": None}) or hand.broker.dead)


def _break_off(_batch: Any) -> None:
    raise KeyboardInterrupt


def _ends(subscription: Subscription) -> bool:
    try:
        subscription.run()
    except SluiceError:
        return False
    return True


def _joined(subscription: Subscription) -> bool:
    with suppress(SluiceError):
        return subscription.join(0.05)
    return True


def trimming(hand: Hand) -> None:
    stream = hand.name("s")
    with Publisher(endpoint=hand.lane.b.doors["smq"]) as publisher:
        for n in range(6):
            publisher.publish(stream, "t", b"%d" % n).wait(60)
    hand.book.at_b.append(lambda client: client.trim(stream, 4))

    def the_rest_is_there() -> None:
        with Reader(stream, on_gap=lambda _gap: None, endpoint=hand.lane.b.doors["smq"]) as reader:
            assert [message.sequence for message in reader] == [4, 5, 6]

    hand.book.checks.append(the_rest_is_there)
    hand.client.streams.trim(stream, 4)


def removing(hand: Hand) -> None:
    """Segments that are not kept are removed once they were seen twice, 20 seconds apart."""
    stream = hand.name("s")
    segments = hand.documents[f"stream.{stream}"]
    publisher = Publisher(endpoint=hand.broker.doors["smq"])
    try:
        for n in range(4):
            hand.heard(publisher.publish(stream, "t", b"%d" % n))
    finally:
        with suppress(SluiceError):
            publisher.close(0)
    hand.client.streams.trim(stream, 5)
    until(lambda: hand.broker.dead or segments.count_documents({}) <= 2, 120, "the removal of segments")
    hand.book.checks.append(lambda: _is_empty_and_goes_on(hand, stream))


def _is_empty_and_goes_on(hand: Hand, stream: str) -> None:
    endpoint = hand.lane.b.doors["smq"]
    with Publisher(endpoint=endpoint) as publisher:
        assert publisher.publish(stream, "t", b"next").wait(60) == 5
    with Reader(stream, on_gap=lambda _gap: None, endpoint=endpoint) as reader:
        assert [job.payload for job in reader] == [b"next"]


def routing(hand: Hand) -> None:
    publisher = Publisher(endpoint=hand.broker.doors["smq"])
    jobs = []
    try:
        for n in range(4):
            jobs.append(f"routed-{hand.heard(publisher.publish('routed', hand.run, b'%d' % n))}")
            hand.book.perhaps(jobs[-1], "worked from_stream")
    finally:
        with suppress(SluiceError):
            publisher.close(0)
    ids = {"_id": {"$in": jobs}}
    until(lambda: hand.jobs("from_stream").count_documents(ids) == 4 or hand.broker.dead)


def posting(hand: Hand) -> None:
    """Posts of an application's transactions, one of which is aborted, and one that can be no job."""
    posts = hand.documents["sluicemq_outbox"]
    posts.insert_one({"_id": ObjectId(), "queue": "no queue's name", "payload": b"x"})
    with hand.documents.client.start_session() as session:
        for payload in (b"a", b"b"):
            with session.start_transaction():
                post = outbox.push(session, "posted", payload, database=hand.documents.name)
            hand.book.surely(post, "worked posted")
        session.start_transaction()
        outbox.push(session, "posted", b"never", database=hand.documents.name)
        session.abort_transaction()
    until(lambda: not posts.count_documents({"refused": None}) or hand.broker.dead)
    hand.book.checks.append(lambda: until(lambda: not posts.count_documents({"refused": None})))


def in_transactions(hand: Hand) -> None:
    """Jobs end in transactions that keep a ledger; of some ends the broker does not hear, one is aborted."""
    ledger = hand.documents["ledger"]
    pushed = {"mail": ("a", "heard of never", "aborted"), "kept": ("b",)}

    def balances() -> None:
        for queue, jobs in pushed.items():
            for job in map(hand.name, jobs):
                paid, worked = ledger.count_documents({"job": job}), hand.lane.worked[queue, job]
                assert paid + worked == (job in hand.book.fates), (
                    f"{job}: {paid} payments, {worked} times at B"
                )

    hand.book.checks.append(balances)
    for queue, jobs in pushed.items():
        for name in jobs:
            hand.push(queue, name)
            (job,) = hand.take(queue)
            with hand.documents.client.start_session() as session:
                session.start_transaction()
                ledger.insert_one({"job": job.id}, session=session)
                job.commit_in(session, b"paid")
                if name == "aborted":
                    session.abort_transaction()
                else:
                    hand.book.perhaps(job.id, ENDED)
                    session.commit_transaction()
                    hand.book.surely(job.id, ENDED)
            if name == "heard of never":
                hand.leave(job)
                _until(hand, "mail", job.id, None)
            elif name == "aborted":
                with suppress(LeaseLostError):
                    job.commit()
                hand.book.rolled_back.add(job.id)
            else:
                job.commit()


def packing_before(hand: Hand, packs: int = 2) -> None:
    """A pack of 40 jobs, and later ones."""
    store = QueueStore(hand.documents, "queue.packed", QueueDefaults(packs=True))
    for first in range(0, 100 * packs, 100):
        jobs = [Job(f"{0:012x}{hand.run}0000{first + n:08x}", b"x") for n in range(40)]
        for job in jobs:
            job.accept(int(time.time() * 1e6) + int(job.id[-8:], 16), time.time())
            hand.book.perhaps(job.id, "worked packed")
        store.form_packs(jobs)
        store.push(jobs, time.time())


def packing(hand: Hand) -> None:
    jobs = sorted(hand.take("packed", 40), key=lambda job: job.id)
    hand.commit(*jobs[:3])
    hand.book.rolled_back.add(jobs[3].id)
    jobs[3].rollback("not now")
    with hand.fate([jobs[4].id], "dead packed"):
        jobs[4].reject("never")
    hand.commit(*jobs[5:])
    ready = [jobs[3].id, *(fate for fate in hand.book.fates if int(fate[-8:], 16) >= 100)]
    with hand.fate([ready[1]], ENDED):
        hand.client.jobs.cancel("packed", ready[1])
    for ready_job in ready:
        hand.book.perhaps(ready_job, ENDED)
    hand.client.queues.purge("packed").result()


def bursting_before(hand: Hand) -> None:
    packing_before(hand, packs=_BURSTS)


def bursting(hand: Hand) -> None:
    """Bursts come, and their jobs have verdicts of all kinds at one time, until the broker dies."""
    chance = random.Random(hand.run)
    pool = ThreadPoolExecutor(8)
    try:
        with Client(endpoint=hand.lane.b.doors["smq"]) as other:
            for number in range(_BURSTS):
                _burst(hand, other, number, chance, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _burst(hand: Hand, other: Client, number: int, chance: random.Random, pool: ThreadPoolExecutor) -> None:
    if number % 3 == 1:
        _push_burst(hand)
    claim = hand.client.jobs.reserve("packed", 40, wait=2.0)
    jobs = sorted(claim.jobs, key=lambda job: job.id)
    if number % 4 == 3:
        _wait_alive(hand, [pool.submit(hand.commit, *jobs[:3])])
        _wait_alive(hand, [pool.submit(claim.release)])
        return
    kinds = chance.choices([*_VERDICTS], [weight for weight, _ in _VERDICTS.values()], k=40)
    under_way = [
        pool.submit(_VERDICTS[kind][1], hand, other, job) for job, kind in zip(jobs, kinds, strict=False)
    ]
    waiting = hand.jobs("packed").find_one({"left": {"$gte": 2}, "state": "ready"}) or {"first": ""}
    if ready := waiting["first"]:
        under_way.append(pool.submit(_order, hand, ready, cancel=number % 2 == 0))
    _wait_alive(hand, under_way)
    _wait_alive(hand, [pool.submit(claim.release)])


def _wait_alive(hand: Hand, under_way: Iterable[Future[Any]]) -> None:
    """Wait for what is under way, as long as the broker lives."""
    for one in under_way:
        while not one.done():
            wait([one], 0.2)
            _check_alive(hand)
        one.result()


def _push_burst(hand: Hand) -> None:
    receipts = list(hand.producer.push_many("packed", [b"burst"] * 64))
    for receipt in receipts:
        hand.book.perhaps(receipt.id, "worked packed", ENDED)
    for receipt in receipts:
        hand.heard(receipt)
        hand.book.surely(receipt.id, "worked packed")


def _order(hand: Hand, job: str, *, cancel: bool) -> None:
    """An order about the first job of a pack that lies ready; that job may have ended long ago."""
    if hand.book.fates.get(job) != {"worked packed"}:
        return
    with suppress(NotFoundError):
        if cancel:
            with hand.fate([job], ENDED):
                hand.client.jobs.cancel("packed", job)
        else:
            hand.client.jobs.change("packed", job, priority=7)


def _commit(hand: Hand, _other: Client, job: ClaimedJob) -> None:
    with suppress(UncertainError):  # gone, perhaps beside a cancelled one
        hand.commit(job)


def _reject(hand: Hand, _other: Client, job: ClaimedJob) -> None:
    with hand.fate([job.id], "dead packed"):
        job.reject("never")


def _retry(hand: Hand, _other: Client, job: ClaimedJob) -> None:
    hand.book.rolled_back.add(job.id)
    job.retry("not now")


def _forward(hand: Hand, _other: Client, job: ClaimedJob) -> None:
    with hand.fate([job.id], "worked next"):
        job.forward("next")


def _progress(hand: Hand, other: Client, job: ClaimedJob) -> None:
    job.progress(1, 2, "half")
    job.extend(60)  # meanwhile it is lifted
    _commit(hand, other, job)


def _cancel(hand: Hand, other: Client, job: ClaimedJob) -> None:
    """An operator at the other broker, and the worker, end a job at the same time."""
    hand.book.perhaps(job.id, ENDED)
    cancelled: list[str] = []
    cancelling = threading.Thread(target=_cancel_at, args=(other, job.id, cancelled))
    cancelling.start()
    try:
        job.commit()
        cancelled.append(job.id)
    except UncertainError:  # gone, and so cancelled
        cancelled.append(job.id)
    except LeaseLostError:
        if hand.broker.dead:
            raise
    finally:
        cancelling.join(60)
        if cancelled:
            hand.book.surely(job.id, ENDED)


def _cancel_at(other: Client, job: str, cancelled: list[str]) -> None:
    with suppress(SluiceError):
        other.jobs.cancel("packed", job, running=True)
        cancelled.append(job)


def _requeue(_hand: Hand, _other: Client, job: ClaimedJob) -> None:
    job.requeue()


#: Verdicts, and how many in a hundred jobs have each.
_VERDICTS: Final[Mapping[str, tuple[int, Callable[[Hand, Client, ClaimedJob], None]]]] = {
    "commit": (50, _commit),
    "progress": (15, _progress),
    "reject": (10, _reject),
    "retry": (8, _retry),
    "forward": (5, _forward),
    "cancel": (10, _cancel),
    "requeue": (2, _requeue),
}
_BURSTS: Final = 12
#: Each lift is answered late, so that commits come in between.
_SLOW_LIFTS: Final = ",".join(f"lifts.commit.after=wait:0.1@{time}" for time in range(1, 100))


#: A broker is killed at a failpoint in the first script that meets it.
SCENARIOS: Final[Mapping[str, Scenario]] = {
    "starting": Scenario(starting),
    "pushing": Scenario(pushing),
    "working": Scenario(working),
    "grouped": Scenario(grouped),
    "fairly": Scenario(fairly),
    "limited": Scenario(limited),
    "stopping": Scenario(stopping),
    "forwarding": Scenario(forwarding),
    "ordering": Scenario(ordering),
    "with_children": Scenario(with_children),
    "joining": Scenario(joining),
    "allowed_failures": Scenario(allowed_failures, alone=True),
    "failing_children": Scenario(failing_children),
    "deleting": Scenario(deleting),
    "long_deletion": Scenario(deleting, waits="queues.put_aside.before=wait:1"),
    "redriving": Scenario(redriving),
    "deleting_children": Scenario(deleting_children, alone=True),
    "packing": Scenario(packing, packing_before),
    "bursting": Scenario(bursting, bursting_before, waits=_SLOW_LIFTS),
    "pausing": Scenario(pausing),
    "auditing": Scenario(auditing),
    "scheduling": Scenario(scheduling, alone=True),
    "expiring": Scenario(expiring, alone=True),
    "strange": Scenario(strange, strange_before, alone=True),
    "orphans": Scenario(orphans, orphans_before, alone=True),
    "limited_orphan": Scenario(limited_orphan, limited_orphan_before, alone=True),
    "spent": Scenario(spent, spent_before, alone=True),
    "one_by_one": Scenario(one_by_one),
    "one_strange": Scenario(one_strange, waits="jobs.claim_one.before=wait:2"),
    "unsent": Scenario(unsent, unsent_before, alone=True, waits="jobs.complete.before=wait:10"),
    "beyond": Scenario(beyond, beyond_before, alone=True),
    "crowded_heads": Scenario(crowded_heads, waits="groups.make_heads.before=wait:4"),
    "odd_indexes": Scenario(odd_indexes, odd_indexes_before, alone=True),
    "left_over": Scenario(left_over, left_over_before, alone=True),
    "again": Scenario(again),
    "over_http": Scenario(over_http, extra=HTTP),
    "expiring_child": Scenario(expiring_child, alone=True),
    "publishing": Scenario(publishing),
    "subscribing": Scenario(subscribing),
    "trimming": Scenario(trimming),
    "removing": Scenario(removing, alone=True),
    "routing": Scenario(routing, extra=ROUTE, alone=True),
    "posting": Scenario(posting, extra=POSTS, alone=True),
    "in_transactions": Scenario(in_transactions),
}
