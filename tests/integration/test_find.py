"""Jobs are found by id and by conditions, over all queues that may be read, slice by slice."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gevent.pool import Pool
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import ExecutionTimeout

from sluicemq import Client, Forward, Job, Producer, Reject, Worker
from sluicemq.protocol.errors import BadFramesError, NotFoundError, UnavailableError
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq.protocol.rows import EndRow, FoundPage
from sluicemq_broker.admin import Finder
from sluicemq_broker.config import Config
from sluicemq_broker.context import Context, Owners
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import Census, Queues
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import ANYBODY, Caller, Principal, visible
from sluicemq_broker.store import LeaseStore, QueueDefaults, QueueStore, Search, ServerClock, Wanted
from sluicemq_broker.store.admin.places import Place
from sluicemq_broker.store.admin.search import SLICE, Found
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.packs import form_packs
from sluicemq_broker.store.values import date
from sluicemq_devices.hub import let_others_run
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.jobs import NOW, a_job
from support.waiting import TIMEOUT, wait_until

PACKED = QueueDefaults(packs=True)
Documents = Database[dict[str, Any]]
Broker = Callable[[], Finder]


class Clock(ServerClock):
    """The time of the jobs of these tests."""

    def __init__(self) -> None:
        """It needs no server."""

    def now(self) -> float:
        return NOW + 1


@pytest.fixture
def broker(documents: Documents) -> Broker:
    """Makes a broker, as it is after a start, that knows the queues mail, news and work."""

    def start(seconds: float = TIMEOUT, size: int = SLICE) -> Finder:
        clock, counters = Clock(), Counters()
        context = Context(Owners(LeaseStore(documents), clock, "broker", 15.0), clock, counters)
        queues = Queues(Config.default(), context, lambda _name: documents, JobMaker(clock, 2**20).make)
        for name in ("mail", "news", "work"):
            queues.open(name)
        return Finder(queues, Census(queues, context), context, seconds, size)

    return start


def filled(documents: Documents, queue: str, jobs: list[Any], defaults: QueueDefaults = PACKED) -> QueueStore:
    store = QueueStore(documents, collection(queue))
    store.reconfigure(defaults)
    store.prepare()
    answer = store.push(jobs, NOW)
    assert (answer.existing, answer.refused) == ([], {})
    return store


def packed(count: int, **fields: Any) -> list[Any]:
    """Jobs as one message of a producer brings them."""
    jobs = [a_job(f"{0:012x}{1:010x}{1 + n:08x}", b'{"Order": %d}' % n, **fields) for n in range(count)]
    form_packs(jobs, PACKED)
    return jobs


def die(store: QueueStore, job_id: str, at: float, **error: Any) -> None:
    """Make a job a dead letter, as a worker's failure does."""
    failed = {"at": date(at), "attempt": 1, "reason": "", "worker": "w", **error}
    store.jobs.update_one(
        {"_id": job_id}, {"$set": {"state": "dead", "ended_at": date(at), "errors": [failed]}}
    )


def ids(page: FoundPage) -> list[tuple[str, str]]:
    return [(job.queue, job.id) for job in page.jobs]


def pages(finder: Finder, options: dict[str, Any], limit: int = 20) -> Iterator[FoundPage]:
    after: str | None = None
    while True:
        page = finder.find(options, limit, after, ANYBODY)
        yield page
        if page.next is None:
            return
        after = page.next


def may(*reads: str) -> Caller:
    return Caller(Principal("eve", Permissions({Action.READ: reads})))


# ------------------------------------------------------------------------------ conditions


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"kind": "receipt"}, ["a", "d"]),
        ({"tenant": "north"}, ["b"]),
        ({"group": "g"}, ["c"]),
        ({"headers": {"order": "17"}}, ["a"]),
        ({"headers": {"a.b": "yes"}}, ["b"]),
        ({"headers": {"order": "17", "a.b": "yes"}}, []),
        ({"error": "ValueError: no"}, []),
        ({"error": "valueerror no ADDRESS"}, ["d"]),
        ({"error": "$reason"}, []),
        ({"text": "ada"}, ["a"]),
        ({"text": "ADA", "kind": "receipt"}, ["a"]),
        ({"text": "ada", "kind": "other"}, []),
        ({"words": "north"}, ["b"]),
        ({"words": "address"}, ["d"]),
        ({"words": "receipt"}, ["a", "d"]),
        ({"states": ["ready"]}, ["a"]),
        ({"states": ["scheduled"]}, ["b"]),
        ({"states": ["waiting"]}, ["f"]),
        ({"states": ["reserved"]}, ["e"]),
        ({"states": ["scheduled", "dead"]}, ["b", "d"]),
        ({"since": NOW + 50}, ["d"]),
        ({"until": NOW + 50, "kind": "receipt"}, ["a"]),
        ({"since": NOW + 50, "until": NOW + 60}, []),
        ({"queue": "news"}, []),
    ],
    ids=str,
)
def test_jobs_are_found_by_each_condition(
    documents: Documents, broker: Broker, options: dict[str, Any], found: list[str]
) -> None:
    store = filled(
        documents,
        "mail",
        [
            a_job("a", b'{"to": "Ada"}', kind="receipt", headers={"order": 17}),
            a_job("b", b"x", tenant="north", eligible_at=NOW + 100, headers={"a.b": "yes"}),
            a_job("d", b"x", kind="receipt"),
            a_job("e", b"x", owner="other", hold=1),
        ],
    )
    in_line = [a_job("c", b"x", group="g"), a_job("f", b"x", group="h")]
    for job in in_line:
        job.place = job.seq
    filled(documents, "mail", in_line)
    store.jobs.update_one({"_id": "c"}, {"$set": {"state": "done", "ended_at": date(NOW)}})
    die(store, "d", NOW + 90, type="ValueError", reason="no address")
    page = broker().find(options, 20, None, ANYBODY)
    assert sorted(ids(page)) == [("mail", job_id) for job_id in found]
    assert page.next is None


def test_a_found_job_is_shown_with_the_beginning_of_its_payload(documents: Documents, broker: Broker) -> None:
    store = filled(documents, "mail", [a_job("a", b"x" * 1000, kind="k"), a_job("b", b"y" * 20_000)])
    die(store, "a", NOW, type="E", reason="r")
    (b, a) = broker().find({}, 20, None, ANYBODY).jobs
    assert (a.payload, a.payload_bytes, a.kind, a.state) == (b"x" * 256, 1000, "k", "dead")
    assert a.errors
    assert (a.errors[0].type, a.errors[0].reason) == ("E", "r")
    assert (b.payload, b.payload_bytes, b.state) == (None, 20_000, "ready")


def test_a_job_that_is_too_large_to_be_looked_into_is_counted(documents: Documents) -> None:
    filled(documents, "mail", [a_job("a", b"needle" + bytes(1000)), a_job("b", b"needle")])
    searching = Search(documents, "mail", Wanted(text="needle"), NOW + 1, largest=500)
    found = [(place.candidate.id, len(place.jobs), place.unread) for place in looked_at(searching)]
    assert found == [("b", 1, False), ("a", 0, True)]


def looked_at(searching: Search) -> list[Found]:
    return list(searching.found(searching.slice(None).candidates))


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"text": ""},
        {"text": "x" * 257},
        {"states": ["lost"]},
        {"headers": {"": "x"}},
        {"headers": {"a": 1}},
        {"since": -1},
        {"id": "a", "kind": "b"},
    ],
    ids=str,
)
def test_a_search_that_makes_no_sense_is_refused(broker: Broker, options: dict[str, Any]) -> None:
    with pytest.raises(BadFramesError):
        broker().find(options, 20, None, ANYBODY)


# ---------------------------------------------------------------------------------- slices


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("states", [(), ("ready",), ("reserved",), ("ready", "dead")])
def test_slices_look_at_each_job_once(documents: Documents, size: int, states: tuple[str, ...]) -> None:
    # Given ready jobs of equal order but their numbers, others of equal priority, and reserved ones
    jobs = [a_job(priority=n % 2, eligible_at=NOW - n % 3) for n in range(11)]
    jobs += [a_job(owner="other", hold=1) for _ in range(5)]
    filled(documents, "mail", jobs)
    wanted = {job.id for job in jobs if not states or ("reserved" in states) == bool(job.owner)}
    found: list[str] = []
    looked, after = 0, None
    searching = Search(documents, "mail", Wanted(states=states), NOW + 1)
    for _ in itertools.count():
        part = searching.slice(after, size)
        assert len(part.candidates) <= size
        found += [candidate.candidate.id for candidate in searching.found(part.candidates)]
        looked, after = looked + part.looked, part.end
        if after is None:
            break
    assert sorted(found) == sorted(wanted)
    assert looked == (len(wanted) if len(states) == 1 else len(jobs))


@pytest.mark.parametrize(("bearable", "looked"), [(200, 30), (40, 30), (12, 10)])
def test_a_slice_that_takes_too_long_is_smaller(
    documents: Documents, monkeypatch: pytest.MonkeyPatch, bearable: int, looked: int
) -> None:
    filled(documents, "mail", [a_job() for _ in range(30)])
    too_slow_beyond(bearable, monkeypatch)
    assert len(Search(documents, "mail", Wanted(), NOW + 1).slice(None, 160).candidates) == looked


def test_where_jobs_take_too_long_it_says_so(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(documents, "mail", [a_job() for _ in range(30)])
    too_slow_beyond(5, monkeypatch)
    with pytest.raises(UnavailableError, match="too slow"):
        Search(documents, "mail", Wanted(), NOW + 1).slice(None)


def too_slow_beyond(bearable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MongoDB end statements that look at more documents, as it does when they take too long."""
    plain = Collection.aggregate

    def limited(jobs: Any, steps: list[Any], **options: Any) -> Any:
        if steps[2]["$limit"] > bearable:
            raise ExecutionTimeout("operation exceeded time limit")
        return plain(jobs, steps, **options)

    monkeypatch.setattr(Collection, "aggregate", limited)


def test_jobs_in_packs_are_found_by_text_and_by_id(documents: Documents, broker: Broker) -> None:
    filled(documents, "mail", packed(100, kind="order"))
    page = broker().find({"text": '"order": 42', "kind": "order"}, 20, None, ANYBODY)
    assert [(job.payload, job.state) for job in page.jobs] == [(b'{"Order": 42}', "ready")]
    assert (page.searched, page.next) == (100, None)
    assert ids(broker().find({"id": page.jobs[0].id}, 20, None, ANYBODY)) == ids(page)
    assert ids(broker().find({"words": page.jobs[0].id}, 20, None, ANYBODY)) == ids(page)


@pytest.mark.parametrize("limit", [1, 7, 33, 200])
def test_pages_go_on_within_a_pack_over_a_restart(documents: Documents, broker: Broker, limit: int) -> None:
    # Given packs, and jobs of their own, in two queues
    jobs = packed(100)
    filled(documents, "mail", jobs)
    single = [a_job() for _ in range(5)]
    filled(documents, "news", single)
    # When each page is asked of a broker that has just started
    found: list[str] = []
    after: str | None = None
    for _ in range(200):
        page = broker().find({}, limit, after, ANYBODY)
        assert len(page.jobs) <= min(limit, page.searched)
        found += [job.id for job in page.jobs]
        after = page.next
        if after is None:
            break
    # Then each job was found once
    assert sorted(found) == sorted(job.id for job in [*jobs, *single])
    assert page.searched == 105


def test_a_page_ends_in_time(documents: Documents, broker: Callable[[float, int], Finder]) -> None:
    for queue in ("mail", "news"):
        filled(documents, queue, [a_job(kind="rare" if n == 5 else "often") for n in range(10)])
    found = list(pages(broker(0.0, 4), {"kind": "rare"}))
    assert sum(len(place.jobs) for place in found) == 2
    searched = [place.searched for place in found]
    assert searched == sorted(searched)
    assert searched[-1] == 20
    assert len(found) > 6


@pytest.mark.parametrize(
    "after", ["{}", "[1]", '["mail",0,0,0,"",0,{}]', '["mail",0,0,0,"",0,1,2]', "no", '["mail",0,0]']
)
def test_a_place_that_no_page_gave_is_refused(documents: Documents, broker: Broker, after: str) -> None:
    filled(documents, "mail", [a_job()])
    with pytest.raises(BadFramesError):
        broker().find({}, 20, after, ANYBODY)


def test_a_search_meets_a_queue_that_is_gone(documents: Documents, broker: Broker) -> None:
    filled(documents, "work", [a_job("w")])
    place: Place = ["news", 7, 0, 0, "", 0, "x"]
    after = str(place).replace("'", '"')
    assert ids(broker().find({}, 20, after, ANYBODY)) == [("work", "w")]
    with pytest.raises(NotFoundError):
        broker().find({"queue": "nowhere"}, 20, None, ANYBODY)


# ---------------------------------------------------------------------------------- rights


@pytest.mark.parametrize("options", [{}, {"id": "job"}, {"words": "job"}])
def test_only_what_may_be_read_is_seen(documents: Documents, broker: Broker, options: dict[str, Any]) -> None:
    for queue in ("mail", "news", "work"):
        filled(documents, queue, [a_job(f"job-{queue}")])
    page = broker().find(options, 20, None, may("news"))
    assert (ids(page), page.queues) == ([("news", "job-news")], 1)
    assert page.searched == page.total == (0 if "id" in options else 1)
    assert broker().find(options, 20, None, may()).queues == 0


@pytest.mark.parametrize(
    ("principals", "at_once", "answered", "of_one"), [(1, 1, 8, {8}), (5, 2, 16, {3, 4})]
)
def test_one_principal_searches_once_at_a_time_all_twice_and_few_wait(
    documents: Documents,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    principals: int,
    at_once: int,
    answered: int,
    of_one: set[int],
) -> None:
    filled(documents, "mail", [a_job() for _ in range(3)])
    finder, now, most = broker(), 0, 0
    plain = Search.slice

    def noting(*request: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        let_others_run()
        try:
            return plain(*request)
        finally:
            now -= 1

    monkeypatch.setattr(Search, "slice", noting)
    callers = [Caller(Principal(f"p{number}", Permissions.all())) for number in range(principals)]

    def ask(number: int) -> str:
        try:
            return str(len(finder.find({}, 20, None, callers[number % principals]).jobs))
        except UnavailableError as error:
            return str(error)

    answers = Pool(30).map(ask, range(20))
    assert most == at_once
    assert answers.count("3") == answered
    assert {answer for answer in answers if answer != "3"} <= {
        f"{answered} searches wait already, {own} of this principal: try again in a second" for own in of_one
    }
    assert ask(0) == "3"


@pytest.mark.parametrize(("reads", "to"), [(("mail", "news"), "news"), (("mail",), None)])
def test_a_forwarded_jobs_queue_is_named_to_those_who_read_it(reads: tuple[str, ...], to: str | None) -> None:
    end = EndRow(id="a", end="forwarded", at=NOW, to="news")
    assert [row.to for row in visible.ends(may(*reads), [end])] == [to]


@pytest.fixture(scope="module")
def process(mongo_uri: str) -> Iterator[BrokerProcess]:
    queues: dict[str, Any] = {"mail": {}, "later": {}}
    with serving(mongo_uri, [], queues=queues, http="127.0.0.1:0") as running:
        yield running.process


def reject(_job: Job) -> None:
    raise Reject("no such address: ada")


def test_a_job_is_found_wherever_it_is_and_how_it_ended(process: BrokerProcess) -> None:
    endpoint = process.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        # Given a job that is done and forgotten, a dead letter, and one that waits
        with Worker("mail", lambda _job: b"", endpoint=endpoint):
            producer.call("mail", b"x", TIMEOUT, id="done")
        producer.push("later", b"to ada", id="waits", kind="letter").wait(TIMEOUT)
        with Worker("mail", reject, endpoint=endpoint):
            producer.push("mail", b"x", id="dead", headers={"order": 9})
            wait_until(lambda: client.dead_letters.count("mail").count)
        with Worker("mail", lambda _job: Forward("later"), endpoint=endpoint):
            producer.push("mail", b"x", id="moved", delay=0)
            wait_until(lambda: client.jobs.find(id="moved", queue="later").jobs)
        # When each is looked for by its id
        done = client.jobs.find(id="done")
        dead = client.jobs.find(id="dead")
        assert [(end.queue, end.end) for end in done.ends] == [("mail", "committed")]
        assert [(job.queue, job.state) for job in dead.jobs] == [("mail", "dead")]
        moved = client.jobs.find(id="moved")
        assert [(job.queue, job.state) for job in moved.jobs] == [("later", "ready")]
        assert [(end.queue, end.end, end.to) for end in moved.ends] == [("mail", "forwarded", "later")]
        absent = client.jobs.find(id="nobody")
        assert (absent.jobs, absent.ends, absent.queues) == ((), (), len(client.queues.list()))
        # And by what is in them
        assert [job.id for job in client.jobs.find("ada").jobs] == ["waits", "dead"]
        assert [job.id for job in client.jobs.find(error="no such", states=["dead"]).jobs] == ["dead"]
        # And over HTTP
        web = Web(process.http)
        for query in ("header=order%3D9", "state=dead&queue=mail", "words=dead"):
            answer = web.get(f"/api/v1/find?{query}").json
            assert [row["id"] for row in answer["jobs"]] == ["dead"], query
        assert web.get("/api/v1/find?state=lost").status == 400
        assert web.get("/api/v1/find?queue=nowhere").status == 404
