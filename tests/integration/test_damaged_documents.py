"""Documents of every collection with each field missing, of a wrong type, unknown: the others go on."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo.database import Database

from sluicemq import Batch, Client, Producer, Publisher, Subscription
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.job import Misfire, Timetable
from sluicemq_broker.store import (
    COLLECTIONS,
    Appended,
    AuditChoice,
    AuditKind,
    AuditRecord,
    AuditStore,
    ConfigurationStore,
    FigureStore,
    HistoryStore,
    HistorySubject,
    Holder,
    Incident,
    IncidentStore,
    KeyKind,
    LeaseStore,
    LimitStore,
    LoginStore,
    MinuteCounts,
    PrincipalKey,
    PrincipalRecord,
    PrincipalStore,
    QueueRecord,
    QueueRecordStore,
    Removing,
    Schedule,
    ScheduleStore,
    SchemaStore,
    Segment,
    SetAside,
    StreamStore,
    SubscriptionStore,
    Tail,
    TaskStore,
    damaged_documents,
    date,
    day_of,
)
from support.broker_process import BrokerProcess
from support.jobs import NOW
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

Documents = Database[dict[str, Any]]

#: NOW lies ahead.
PAST: Final = 1.7e9
MISSING: Final = object()
#: What may stand in a field, whatever should.
ODD: Final[list[Any]] = [
    *(MISSING, None, "x", b"x", -1, 1.5, True, [], [1], ["x"], {}, {"a": 1}, {"a": {"b": "x"}}),
    *(DatetimeMS(2**61), date(NOW)),
]
#: Collections of which each document is one of many, and no broker can do without a certain one.
READERS: Final = {name for name, collection in COLLECTIONS.items() if collection.read}
MANY: Final = sorted(READERS - {"meta", "places"})
ALL: Final = [*MANY, "stream.prices"]
SECONDS: Final = 30.0


def make_some(documents: Documents) -> None:
    """Store a document of each collection, as brokers do."""
    SchemaStore(documents).open()
    schedules = ScheduleStore(documents)
    schedules.put(
        Schedule(name="report", queue="mail", payload=b"x", timetable=Timetable(every=60.0), next_at=PAST)
    )
    schedules.put(
        Schedule(
            name="nightly",
            queue="mail",
            payload=b"x",
            timetable=Timetable("0 3 * * *", "Europe/Berlin"),
            headers={"priority": 3},
            misfire=Misfire.ALL,
            next_at=NOW + 1e7,
            added_by="anna",
        )
    )
    TaskStore(documents).begin("a1b2", a_task("running"))
    TaskStore(documents).begin("c3d4", {**a_task("done"), "ended_at": date(NOW), "answer": 7})
    act = AuditRecord(id="9f", at=NOW, principal="anna", action="purge", name="mail", about={"n": 1})
    login = AuditRecord(id="9e", at=NOW, kind=AuditKind.COUNTED, until=NOW + 9, count=3)
    AuditStore(documents).write([act, login])
    figures = {"count": 3, "usual": 1.5, "reason": "x"}
    IncidentStore(documents).write("w", [Incident("dead_letters", "mail", "b", NOW, NOW + 5, figures)])
    principals = PrincipalStore(documents)
    principals.prepare()
    key = PrincipalKey(id="k1", kind=KeyKind.TOKEN, value="sha256:00", added_at=NOW, note="a note")
    anna = PrincipalRecord(
        name="anna", keys=(key,), permissions=Permissions.read({"push": ["mail"]}), tenant="t", max_rate=5.0
    )
    principals.change("anna", lambda _before: anna, NOW)
    records = QueueRecordStore(documents)
    records.prepare()
    removing = Removing("token", "owner", NOW, {"owner": 1})
    for record in (
        QueueRecord(name="paused", paused=frozenset(["delivery"])),
        QueueRecord(name="settled", settings={"max_attempts": json.dumps(3)}),
        QueueRecord(name="removing", removing=removing),
    ):
        records.change(record.name, partial(_as, record), NOW)
    logins = LoginStore(documents)
    logins.prepare()
    logins.renew(NOW)
    logins.end("0123456789", "anna", NOW)
    history = HistoryStore(documents)
    history.prepare()
    counts = {"pushed": 3}
    for minute in (int(NOW // 60), int(NOW // 60) - 3 * 1440):
        history.add("w", 1, [MinuteCounts(HistorySubject("queue", "mail"), minute, counts, {"ready": 2})])
    history.roll_up(day_of(NOW))
    LeaseStore(documents).begin("owner-that-lives", "elsewhere:1", 1e5, NOW)
    LeaseStore(documents).begin("owner-that-died", "elsewhere:2", 15.0, NOW)
    LeaseStore(documents).end("owner-that-died", NOW, silent=True)
    texts = [json.dumps({"*": {"max_attempts": 3}})]
    ConfigurationStore(documents).put(["owner-that-lives"], "0123456789abcdef", texts, NOW)
    FigureStore(documents).put("elsewhere:1", b"{}", NOW)
    limits = LimitStore(documents, "limited")
    limits.permit("owner", 1, 5, 1)
    limits.take(1, 5.0, 5, NOW)
    limits.take_each({"t": 1}, 0.001, 5, NOW, "owner", 1)
    stream = StreamStore(documents, "prices")
    stream.prepare(NOW)
    stream.append(a_segment(1))
    subscriptions = SubscriptionStore(documents)
    holder = Holder("owner", "token", "who")
    held = subscriptions.hold("prices", "sums", "update", holder, NOW, is_lost=lambda _holder: False)
    subscriptions.mark("prices", "sums", held.fence, 1, NOW)


def _as(record: QueueRecord, _before: QueueRecord) -> QueueRecord:
    return record


def a_task(state: str) -> dict[str, Any]:
    return {
        "kind": "purge",
        "queue": "mail",
        "order": {"state": "ready"},
        "now": NOW,
        "state": state,
        "done": 0,
        "looked": 0,
        "total": 7,
        "owner": "",
        "broker": "b",
        "started_at": date(NOW),
        "changed_at": date(NOW),
    }


def a_segment(first: int) -> Segment:
    packed = b"\x01\x01t\x00\x01x"  # topic "t", body "x"
    return Segment(first, 1, NOW, 6, 6 * first, f"m{first}", packed, (b"t",), ("id",), (0,))


def damaged(document: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield copies in which one field is missing, or something else, or which have one more."""
    inside: Any = document
    for key in keys:
        inside = inside[key]
    for key, value in islice(inside.items(), 2 if keys else None):
        if key == "_id":
            continue
        for odd in ODD[:4] if keys else ODD:
            one: dict[str, Any] = copy.deepcopy(dict(document))
            place: Any = one
            for step in keys:
                place = place[step]
            if odd is MISSING:
                del place[key]
            else:
                place[key] = odd
            yield one
        if isinstance(value, dict) and value and len(keys) < 2:
            yield from damaged(document, (*keys, key))
    yield {**copy.deepcopy(dict(document)), "unheard_of": 1}


def damage(documents: Documents, name: str) -> int:
    """Put damaged copies of all documents of a collection beside them; return how many."""
    copies = []
    for document in list(documents[name].find({"_id": {"$nin": ["", 0]}})):
        for number, one in enumerate(damaged(document)):
            key = document["_id"]
            one["_id"] = f"{key}-{number}" if isinstance(key, str) else key + 1 + number
            if name == "principals" and isinstance(one.get("keys"), list):
                for row in one["keys"]:
                    if isinstance(row, dict) and isinstance(row.get("id"), str):
                        row["id"] += f"-{number}"  # the index lets no two have one
            if name == "subscriptions" and one.get("name") == document["name"]:
                one["name"] += f"-{number}"
            copies.append(one)
        if isinstance(document["_id"], str):
            copies.append({"_id": f"{document['_id']}-empty"})
    documents[name].insert_many(copies, ordered=False)
    return len(copies)


@pytest.fixture
def filled(documents: Documents) -> Documents:
    """A database with a document of each collection."""
    for name in documents.list_collection_names():
        documents.drop_collection(name)
    make_some(documents)
    return documents


def test_the_examples_have_every_collection(filled: Documents) -> None:
    assert {*READERS, "stream.prices"} <= set(filled.list_collection_names())
    assert not list(damaged_documents(filled))


CONFIG: Final = {
    "broker": {"lease": 1.0, "poll": 0.5},
    "queues": {"limited": {"max_running": 5, "rate": 100.0}},
}
#: Heartbeats in which a broker does all its duties.
ROUNDS: Final = 12


def test_a_broker_starts_runs_and_answers_beside_damaged_documents(mongo_uri: str, filled: Documents) -> None:
    goes_on_beside(mongo_uri, filled, ALL)


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_a_broker_starts_runs_and_answers_beside_damaged_documents_of_one_collection(
    mongo_uri: str, filled: Documents, name: str
) -> None:
    goes_on_beside(mongo_uri, filled, [name])


def goes_on_beside(mongo_uri: str, filled: Documents, names: Sequence[str]) -> None:
    count = sum(damage(filled, name) for name in names)
    with BrokerProcess(mongo_uri, filled.name, config=CONFIG) as broker:
        with Client(endpoint=broker.doors["smq"]) as client:
            look_around(client)
            work(broker, client, filled)
            wait_until(lambda: beats(filled, broker) > ROUNDS, SECONDS, "all duties")
            look_around(client)
            named = {schedule.name for schedule in client.schedules.list()}
        log = broker.log_text()
    assert {"report", "nightly"} <= named
    assert "Traceback" not in log
    aside = [line.partition("document ")[2] for line in log.splitlines() if "is set aside" in line]
    assert len(aside) == len(set(aside)), "each is logged once"
    assert len(aside) <= 2 * count
    assert list(damaged_documents(filled))


def look_around(client: Client) -> None:
    """Ask every question that an operator may ask."""
    for ask in (
        *(client.queues, client.stats, client.counters, client.brokers, client.workers, client.events),
        *(client.tasks, client.schedules, client.streams, client.subscriptions, client.users, client.audit),
    ):
        ask()
    assert client.operations.get("a1b2").kind == "purge"
    for span in ("minute", "hour", "day", "month"):
        client.history("mail", span=span)


def work(broker: BrokerProcess, client: Client, documents: Documents) -> None:
    """Use what lies beside the damaged documents."""
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer:
        producer.push("limited", b"job").wait(SECONDS)
    with client.jobs.reserve("limited", 1, SECONDS) as claim:
        assert len(claim.jobs) == 1
    wait_until(documents["queue.mail"].find_one, SECONDS, "a run of the schedule")
    with Publisher(endpoint=endpoint) as publisher:
        publisher.publish("prices", b"t", b"new").wait(SECONDS)
    came: list[bytes] = []

    def handle(batch: Batch) -> None:
        came.extend(job.payload for job in batch)

    with Subscription("prices", "others", handle, on_gap=lambda _gap: None, endpoint=endpoint):
        wait_until(lambda: b"new" in came, SECONDS, "what was published behind damaged segments")


def beats(documents: Documents, broker: BrokerProcess) -> int:
    mine = documents["owners"].find_one({"name": {"$regex": f":{broker.pid}$"}, "state": "live"})
    return int(mine["beat"]) if mine else 0


def of_limits(documents: Documents) -> None:
    limits = LimitStore(documents, "limited")
    assert limits.permit("another", 1, 5, 2) == 1
    assert limits.take(1, 5.0, 5, NOW + 60).taken == 1
    limits.take_each({"t": 1}, 5.0, 5, NOW + 60, "owner", 2)
    assert limits.take_each({"t": 1}, 5.0, 5, NOW + 60, "owner", 3)["t"].taken == 1
    limits.holders()


def of_history(documents: Documents) -> None:
    history = HistoryStore(documents)
    mail, other = HistorySubject("queue", "mail"), HistorySubject("queue", "other")
    counts = [MinuteCounts(subject, int(NOW // 60), {"pushed": 1}, {"ready": 9}) for subject in (mail, other)]
    history.add("w", 2, counts)
    assert history.minutes(other, day_of(NOW))
    first = day_of(NOW - 9 * 86400)
    history.hours(mail, first, day_of(NOW))
    history.days(mail, first, day_of(NOW))
    history.months(mail)
    history.minutes_of([mail, other], day_of(NOW), NOW - 60, NOW)
    history.roll_up(day_of(NOW + 5 * 86400))
    assert not history.roll_up(day_of(NOW + 5 * 86400)), "it comes to an end"


def of_principals(documents: Documents) -> None:
    store = PrincipalStore(documents)
    before = max(record.revision for record in store.read())
    store.change("berta", lambda _before: PrincipalRecord(name="berta"), NOW)
    assert "berta" in [record.name for record in store.read(before)], "brokers find the change"


def of_records(documents: Documents) -> None:
    store = QueueRecordStore(documents)
    before = max(record.revision for record in store.read())
    paused = frozenset(["intake"])
    store.change("new", lambda _before: QueueRecord(name="new", paused=paused), NOW)
    assert "new" in [record.name for record in store.read(before)]


def test_a_page_of_the_audit_goes_around_a_record_without_a_time(documents: Documents) -> None:
    make_some(documents)
    documents["audit"].insert_one({"_id": "strange", "principal": "p"})
    page = AuditStore(documents).page(AuditChoice(), 3)
    assert [row["id"] for row in page.rows] == ["9e", "9f"]


def test_each_collection_that_a_broker_makes_has_a_reader(documents: Documents) -> None:
    make_some(documents)
    made = {name for name in documents.list_collection_names() if "." not in name}
    assert made - {"bus", "places"} == {*READERS}


def of_schedules(documents: Documents) -> None:
    store = ScheduleStore(documents)
    again = Schedule(name="report", queue="mail", payload=b"y", timetable=Timetable(every=9.0), next_at=PAST)
    store.put(again)
    assert store.one("report").payload == b"y"
    assert store.due(NOW) == ([] if store.one("report").paused else ["report"])
    store.remove("report")


def of_schema(documents: Documents) -> None:
    with suppress(SetAside):
        SchemaStore(documents).read()
        SchemaStore(documents).open()


def of_lease(documents: Documents) -> None:
    leases = LeaseStore(documents)
    alive = leases.beat(["owner-that-lives"], NOW)
    assert alive or "owner-that-lives" not in leases.live()
    leases.brokers()
    leases.end("owner-that-lives", NOW)


def of_stream(documents: Documents) -> None:
    stream = StreamStore(documents, "prices")
    tail = stream.tail()
    assert stream.append(a_segment(tail.next)) is Appended.STORED
    assert stream.newer(Tail())[-1].next == tail.next + 1
    stream.raise_first(tail.next)
    assert stream.head().first == tail.next
    assert [segment.first for segment in stream.read(1, 1 << 20).segments] == [tail.next]
    stream.remove(tail.next)
    assert stream.kept().messages == 1


def of_subscription(documents: Documents) -> None:
    found, damaged = SubscriptionStore(documents).of_stream("prices")
    assert damaged or found[0].name == "sums", "retention knows that there is one"


#: What uses one certain document: its collection, its id, and its verbs.
CERTAIN: Final[list[tuple[str, Any, Callable[[Documents], None]]]] = [
    ("limits", "limited", of_limits),
    ("limits", "limited/t", of_limits),
    ("history", f"queue/mail/{day_of(NOW):%Y-%m-%d}", of_history),
    ("history_months", f"queue/mail/{day_of(NOW - 3 * 86400):%Y-%m}", of_history),
    ("principals", "", of_principals),
    ("principals", "anna", of_principals),
    ("queues", "", of_records),
    ("queues", "removing", of_records),
    ("schedules", "report", of_schedules),
    ("meta", "schema", of_schema),
    ("owners", "owner-that-lives", of_lease),
    ("stream.prices", 0, of_stream),
    ("stream.prices", 1, of_stream),
    ("subscriptions", "prices/sums", of_subscription),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "key", "use"), CERTAIN, ids=[f"{case[0]}-{case[1]}" for case in CERTAIN])
def test_one_certain_document_may_be_damaged_in_any_way(
    filled: Documents, name: str, key: Any, use: Callable[[Documents], None]
) -> None:
    used = [found for found in filled.list_collection_names() if found.startswith(name)]
    whole = {collection: list(filled[collection].find()) for collection in used}
    (good,) = [document for document in whole[name] if document["_id"] == key]
    failed = []
    for one in damaged(good):
        for collection, stored in whole.items():
            filled[collection].delete_many({})
            filled[collection].insert_many(
                [one if collection == name and doc["_id"] == key else doc for doc in stored]
            )
        try:
            use(filled)
        except Exception as error:  # noqa: BLE001 - all are told together
            changed = {
                field: one.get(field, "missing")
                for field in {*good, *one}
                if one.get(field) != good.get(field)
            }
            failed.append(f"{changed}: {type(error).__name__}: {error}"[:300])
    assert not failed, "\n".join(failed)
