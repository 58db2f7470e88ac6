"""Permissions at every verb and every plain door of a real broker, for connections that are open, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from secrets import token_hex
from threading import Event
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from faults.test_every_verb_is_bounded import VERBS
from sluicemq import Batch, Producer, Subscription, Worker
from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from sluicemq.protocol.permissions import Action
from sluicemq_broker.doors import ADMIN_VERBS, AdminVerb, SessionVerb
from sluicemq_broker.doors import VERBS as SESSION_VERBS
from sluicemq_broker.parts import NEEDS as NEEDS_OF_PARTS
from sluicemq_broker.security import Needs
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT, AT_ONCE, BrokerUnderTest
from support.raw_sockets import Smq, code, message, receive
from support.waiting import TIMEOUT, wait_until

FORBIDDEN = "FORBIDDEN"
#: Milliseconds after which a socket that was cut comes again: not within a test.
RARELY = 300_000
NAMES, PASSWORD = ("eve", "bob"), "long enough"
DEVICES: list[dict[str, Any]] = [
    {"kind": "streamer", "queue": "mail", "frontend": ANY_PORT, "backend": ANY_PORT, "ack": "explicit"},
    {"kind": "queue", "queue": "ask", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "forwarder", "stream": "news", "frontend": ANY_PORT, "backend": ANY_PORT, "replay": ANY_PORT},
    {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "queue", "queue": "serves", "frontend": ANY_PORT, "backend": ANY_PORT},
]
DEVICES[0]["commit"] = ANY_PORT


class Many(BrokerUnderTest):
    """A broker with principals, and clients of each. Clients without a password may do everything."""

    def __init__(self, process: BrokerProcess, jobs: Any) -> None:
        super().__init__(process, jobs)
        self.database = jobs
        self.operator = Smq(self._context.socket(zmq.DEALER))
        self.operator.plain.linger = 0
        self.operator.plain.connect(self.doors["smq"])
        self._own += 1
        for name in NAMES:
            about = {"name": name, "password": PASSWORD, "permissions": "none"}
            assert self.operator.ask(wire.USERS, "add", about).verb == wire.OK

    def permit(self, permissions: str, *, tenant: str | None = None, name: str = "eve") -> None:
        about = {"name": name, "permissions": permissions, "tenant": tenant or ""}
        answer = self.operator.ask(wire.USERS, "permit", about)
        assert answer.verb == wire.OK, answer.fields

    def of(self, kind: int, address: str, name: str = "eve", **options: Any) -> zmq.Socket[bytes]:
        """A plain socket of a principal."""
        shows: dict[str, Any] = {"plain_username": name.encode(), "plain_password": PASSWORD.encode()}
        return self.socket(kind, address, **shows, **options)

    def smq_of(self, name: str = "eve") -> Smq:
        """A raw SMQ/1 connection of a principal."""
        return Smq(self.of(zmq.DEALER, self.doors["smq"], name))

    def device(self, number: int) -> dict[str, str]:
        """The address at each end of a device."""
        return {
            end: device[0]
            for end, device in self.process.devices[number].items()
            if isinstance(device, list) and device
        }

    def push_one(
        self, queue: str, payload: bytes = b"job", job_id: str | None = None, **headers: Any
    ) -> None:
        answer = self.operator.ask(wire.PUSH, queue, [[job_id, payload, headers or None]])
        assert answer.fields == [[]], answer

    def document(self, queue: str, **where: Any) -> dict[str, Any]:
        """The one document of a queue that is like this, once it is there."""
        found: dict[str, Any] = wait_until(
            lambda: self.collection(queue).find_one(where), what=f"{where} in {queue}"
        )
        return found


@pytest.fixture(scope="module")
def process(mongo_uri: str) -> Iterator[Many]:
    name = f"test_{token_hex(6)}"
    config = {
        "broker": {"stop_timeout": 3, "silence": 300, "history": True, "http": ""},
        "security": {"mechanism": ["null", "plain"], "anonymous": "all"},
        "queues": AT_ONCE,
        "devices": DEVICES,
    }
    with MongoClient[dict[str, Any]](mongo_uri, serverSelectionTimeoutMS=60_000) as mongo:
        try:
            with BrokerProcess(mongo_uri, name, config=config) as running:
                many = Many(running, mongo[name])
                try:
                    many.connect_proof()
                    yield many
                finally:
                    many.close()
        finally:
            mongo.drop_database(name)


@pytest.fixture
def many(process: Many) -> Iterator[Many]:
    """The broker; nobody else's permissions and connections are left from the test before."""
    yield process
    process.close_sockets()
    for name in NAMES:
        process.permit("none", name=name)


@pytest.fixture
def eve(many: Many) -> Smq:
    return many.smq_of()


@pytest.fixture
def queue() -> str:
    return token_hex(6)


def all_but(action: str | None) -> str:
    return " ".join(f"{other}=*" for other in Action if other != action)


def outcome(answer: wire.Message) -> str:
    """The code of an error, or OK."""
    return "OK" if answer.verb == wire.OK else str(answer.fields[0])


# ------------------------------------------------------------------------------ verbs


#: Requests in place of those of :data:`VERBS`, which name a queue in their content.
SAID: dict[bytes, tuple[Any, ...]] = {
    wire.DELETE: ("gone",),
    wire.ERASE: ("gone",),
    wire.SCHEDULE: ("pause", {"name": "nightly"}),
    wire.TASK: ("purged",),
    wire.TCANCEL: ("purged",),
    wire.EVENTS: ({"queue": "victim"},),
    wire.WORKERS: ("victim",),
    wire.KINDS: ("victim",),
    wire.ERRORS: ("victim",),
    wire.FIND: ({"queue": "victim"}, 20, None),
    wire.SUBS: ("news",),
    wire.FREE: ("news", "sums", 1),
    wire.HISTORY: ("queue", "large", None, "hour"),
    wire.PUBLISH: ("news", pack(b"topic", b"text"), {}),
}
#: Verbs without a name, whose answers have fewer rows for those who may not see them.
LISTS = {wire.QUEUES, wire.INCIDENTS, wire.STATS, wire.STREAMS, wire.TASKS}


@pytest.fixture(scope="module")
def filled(process: Many) -> Many:
    """The broker, with something for each verb: queues, a stream, a schedule, a task."""
    for name in ("pushed", "taken", "large", "victim"):
        process.push_one(name)
    process.operator.ask(wire.PUBLISH, "news", pack(b"topic", b"first"), {})
    process.operator.ask(wire.PUBLISH, "others", pack(b"topic", b"first"), {})
    about = {"name": "nightly", "queue": "victim", "payload": b"go", "cron": "0 3 * * *"}
    assert process.operator.ask(wire.SCHEDULE, "add", about).verb == wire.OK
    a_job = process.collection("victim").find_one()
    assert a_job is not None
    long_ago = a_job["created_at"]
    process.database["tasks"].insert_one(
        {
            "_id": "purged",
            "kind": "purge",
            "queue": "victim",
            "order": {},
            "now": 1.0,
            "state": "done",
            "done": 1,
            "looked": 1,
            "total": 1,
            "owner": "",
            "broker": "b",
            "answer": 1,
            "started_at": long_ago,
            "changed_at": long_ago,
        }
    )
    return process


#: Permissions that the verbs of the library's door need, with those of its parts.
NEEDED: dict[bytes, Needs] = {
    **{verb: needs_of.needs for verb, needs_of in {**SESSION_VERBS, **ADMIN_VERBS}.items()},
    **NEEDS_OF_PARTS,
}


def test_each_verb_of_the_protocol_is_walked() -> None:
    assert NEEDED.keys() == VERBS.keys()


def test_a_verb_without_needs_can_not_be_made() -> None:
    with pytest.raises(TypeError, match="needs"):
        SessionVerb(lambda *_: None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needs"):
        AdminVerb(lambda _: None, lambda _: None)  # type: ignore[call-arg]


@pytest.mark.one_in(3, always=["PUSH"])
@pytest.mark.parametrize("verb", [code for code in VERBS if code not in LISTS], ids=bytes.decode)
def test_a_verb_is_forbidden_without_its_action_and_needs_one(many: Many, filled: Many, verb: bytes) -> None:
    action = NEEDED[verb].action
    fields = SAID.get(verb, VERBS[verb].fields)
    many.permit(all_but(action))
    without = outcome(many.smq_of().ask(verb, *fields))
    many.permit(f"{action}=*" if action else "none")
    with_it = outcome(many.smq_of().ask(verb, *fields))
    assert without == (FORBIDDEN if action else with_it)
    assert with_it != FORBIDDEN


def moved(many: Many, name: str) -> tuple[Any, ...]:
    """A hold that moves a free subscription."""
    many.operator.ask(wire.SEEK, "news", name, 1)
    return ("news", name, "update", {"after": 0})


def held(many: Many, name: str) -> tuple[Any, ...]:
    """An order that takes a subscription from its holder."""
    many.operator.ask(wire.HOLD, "news", name, "update", {})
    return ("news", name, None)


#: Requests with all effects that a verb can have, by a name that nobody has used.
EFFECTS: dict[bytes, Callable[[Many, str], tuple[Any, ...]]] = {
    wire.PUSH: lambda _many, name: (name, [[None, b"x", None]]),
    wire.PUBLISH: lambda _many, name: (name, pack(b"t", b"x"), {}),
    wire.SET: lambda _many, name: ("victim", {"on_dead": name}),
    wire.REDRIVE: lambda _many, _name: ("victim", {"limit": 1}, "large"),
    wire.SCHEDULE: lambda _many, name: (
        "add",
        {"name": name, "queue": name, "payload": b"go", "every": 3600},
    ),
    wire.HOLD: moved,
    wire.FREE: held,
}
#: Permissions that need another caller than this one, and verbs whose effects are walked below.
ELSEWHERE = {(wire.PUSH, Action.READ), (wire.SETTLE, Action.PUSH), (wire.SETTLE, Action.CREATE)}
#: Verbs whose effects need what they need themselves, on other queues.
ELSEWHERE |= {(wire.CANCEL, Action.MANAGE), (wire.WORKER, Action.MANAGE)}
WALKED = [
    (verb, action)
    for verb, needs in NEEDED.items()
    for action in (needs.action, *(entry.action for entry in needs.also))
    if needs.also and action and (verb, action) not in ELSEWHERE
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("verb", "action"), WALKED, ids=lambda value: value.decode() if isinstance(value, bytes) else value
)
def test_acts_need_all_permissions(many: Many, filled: Many, queue: str, verb: bytes, action: Action) -> None:
    fields = EFFECTS[verb](many, queue)
    many.permit(all_but(action))
    assert outcome(many.smq_of().ask(verb, *fields)) == FORBIDDEN
    assert queue not in {field["name"] for field in many.operator.ask(wire.QUEUES).fields[0]}
    many.permit(
        " ".join(
            f"{entry}=*" for entry in {NEEDED[verb].action, *(entry.action for entry in NEEDED[verb].also)}
        )
    )
    assert outcome(many.smq_of().ask(verb, *fields)) == "OK"
    many.operator.ask(wire.UNSET, "victim", ["on_dead"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        (wire.PUSH, ("sms", [[None, b"x", None]])),
        (wire.READY, ("sms", 1)),
        (wire.RESULT, ("sms", "id", 0.0)),
        (wire.PEEK, ("sms", "ready", 1)),
        (wire.PAUSE, ("sms", "delivery")),
        (wire.SETTINGS, ("sms",)),
        (wire.SET, ("sms", {"ttl": 1})),
        (wire.SET, ("mail.in", {"on_dead": "sms"})),
        (wire.UNSET, ("sms", ["ttl"])),
        (wire.SETTINGS, ("*",)),
        (wire.SET, ("*", {"ttl": 1})),
        (wire.UNSET, ("*", ["ttl"])),
        (wire.READ, ("sms", {})),
        (wire.PUBLISH, ("sms", pack(b"t", b"x"), {})),
        (wire.HOLD, ("sms", "sums", "update", {})),
        (wire.TRIM, ("sms", 1)),
    ],
)
def test_a_permission_is_for_its_names(many: Many, eve: Smq, verb: bytes, fields: tuple[Any, ...]) -> None:
    many.permit(" ".join(f"{granted}=mail.*,news" for granted in Action))
    assert outcome(eve.ask(verb, *fields)) == FORBIDDEN
    assert outcome(eve.ask(verb, "x" * 60_000, *fields[1:])) == FORBIDDEN
    assert outcome(eve.ask(verb, None, *fields[1:])) == FORBIDDEN


def test_lists_have_only_what_may_be_seen(many: Many, filled: Many, eve: Smq) -> None:
    many.operator.ask(wire.HOLD, "news", "sums", "update", {})
    many.operator.ask(wire.HOLD, "others", "sums", "update", {})
    many.operator.ask(wire.READY, "taken", 0)

    many.permit("read=victim,taken manage=victim subscribe=news")

    (stats,) = eve.ask(wire.STATS).fields
    assert {field["name"] for field in eve.ask(wire.QUEUES).fields[0]} == {"victim", "taken"}
    assert {stat["name"] for stat in stats["queues"]} == {"victim", "taken"}
    assert (stats["counters"], stats["broker"], stats.get("forwarders", [])) == ({}, {}, [])
    assert {field["queue"] for field in eve.ask(wire.WORKERS, None).fields[0]} == {"taken"}
    assert {field["name"] for field in eve.ask(wire.STREAMS).fields[0]} == {"news"}
    assert {field["stream"] for field in eve.ask(wire.SUBS, None).fields[0]} == {"news"}
    assert {field["name"] for field in eve.ask(wire.SCHEDULE, "list", {}).fields[0]} == {"nightly"}
    assert {field["id"] for field in eve.ask(wire.TASKS).fields[0]} == {"purged"}
    many.permit("push=*")
    for verb, fields in ((wire.QUEUES, ()), (wire.WORKERS, (None,)), (wire.STREAMS, ()), (wire.SUBS, (None,)),
                         (wire.SCHEDULE, ("list", {})), (wire.TASKS, ())):  # fmt: skip
        assert eve.ask(verb, *fields).fields == [[]]


def test_statistics_hide_the_longest_turn_without_operate(many: Many, eve: Smq, queue: str) -> None:
    many.permit("read=victim")

    def longest(ask: Callable[[], object]) -> float:
        many.operator.ask(wire.COUNTERS)  # those before are forgotten
        many.operator.ask(wire.PUSH, queue, [[None, b"x" * 1000, {"headers": {"a": "b"}}]] * 1000)
        ask()
        (told,) = many.operator.ask(wire.COUNTERS).fields
        return float(told["broker"]["longest_turn_cpu"])

    after_all = longest(lambda: many.operator.ask(wire.STATS))
    assert longest(lambda: eve.ask(wire.STATS)) > 2 * after_all


def test_events_have_only_those_of_queues_that_may_be_read(many: Many, eve: Smq) -> None:
    many.permit("read=seen")
    begin = eve.ask(wire.EVENTS, {}).fields[0]["after"]
    many.push_one("seen")
    many.push_one("unseen")

    def seen() -> Any:
        return eve.ask(wire.EVENTS, {"after": begin}).fields[0]["events"]

    assert {row["queue"] for row in wait_until(seen)} == {"seen"}


def test_who_may_read_nothing_makes_the_broker_record_no_events(many: Many, eve: Smq, queue: str) -> None:
    many.permit(all_but(Action.READ))
    assert outcome(eve.ask(wire.EVENTS, {})) == FORBIDDEN
    many.permit("read=mine")
    begin = eve.ask(wire.EVENTS, {}).fields[0]["after"]
    for _ in range(3):
        many.push_one(queue)
    (told,) = eve.ask(wire.EVENTS, {"after": begin}).fields
    assert told == {"events": [], "after": begin, "missed": 0}


def test_what_is_not_there_is_told_to_nobody_who_would_not_see_it(many: Many, eve: Smq, filled: Many) -> None:
    def answers(name: str) -> list[list[Any]]:
        schedule = [
            eve.ask(wire.SCHEDULE, text, {"name": name}) for text in ("remove", "pause", "resume", "run")
        ]
        return [
            answer.fields for answer in (*schedule, eve.ask(wire.TASK, name), eve.ask(wire.TCANCEL, name))
        ]

    many.permit("manage=mine read=victim")
    known = [*answers("nightly")[:4], *answers("purged")[4:]]
    assert {answer[0] for answer in known} == {FORBIDDEN}
    assert answers("nosuch") == known
    many.permit("manage=*")
    assert {answer[0] for answer in answers("nosuch")} == {"NOT_FOUND"}


def test_dead_letters_make_a_queue_only_for_who_said_so(many: Many, eve: Smq, queue: str) -> None:
    to = f"{queue}-dead"
    many.push_one(queue)
    many.permit(f"manage={queue} read={queue} push={to} create={to}")
    # When a principal sets where dead letters go
    assert outcome(eve.ask(wire.SET, queue, {"on_dead": to})) == "OK"
    # Then that queue is made at once, in its name
    assert to in {field["name"] for field in many.operator.ask(wire.QUEUES).fields[0]}
    # When somebody has removed it
    assert outcome(many.operator.ask(wire.DELETE, to, None)) == "OK"
    wait_until(lambda: outcome(many.operator.ask(wire.QUEUE, to)) == "NOT_FOUND")
    before = many.counter("dead_unmoved")
    worker = many.smq_of("bob")
    many.permit(f"work={queue}", name="bob")
    worker.ask(wire.READY, queue, 1)
    worker.ask(wire.SETTLE, [[worker.delivery()[0][0], wire.REJECT, b"no", None]])
    # Then dead letters stay where they are
    wait_until(lambda: many.counter("dead_unmoved") > before)
    assert outcome(many.operator.ask(wire.QUEUE, to)) == "NOT_FOUND"
    assert many.document(queue, state="dead")
    # When it is there again
    many.push_one(to)
    wait_until(
        lambda: (
            many.collection(to).count_documents({"state": "dead"})
            or many.collection(to).count_documents({}) == 2
        )
    )


def test_what_names_a_queue_in_its_content_is_asked_for_that(many: Many, eve: Smq, filled: Many) -> None:
    many.permit("manage=mine push=mine read=victim create=*")
    add = {"name": "weekly", "queue": "mine", "payload": b"go", "every": 3600}
    steal = {**add, "name": "nightly"}

    assert outcome(eve.ask(wire.SCHEDULE, "add", {**add, "queue": "victim"})) == FORBIDDEN
    assert outcome(eve.ask(wire.SCHEDULE, "add", steal)) == FORBIDDEN
    for action in ("remove", "pause", "resume", "run"):
        assert outcome(eve.ask(wire.SCHEDULE, action, {"name": "nightly"})) == FORBIDDEN
    assert outcome(eve.ask(wire.SCHEDULE, "add", add)) == "OK"
    many.permit("manage=mine,victim push=mine")
    assert outcome(eve.ask(wire.SCHEDULE, "add", {**add, "queue": "mine"})) == FORBIDDEN  # its run makes it
    assert outcome(eve.ask(wire.REDRIVE, "victim", {}, "large")) == FORBIDDEN
    many.permit("manage=victim push=large read=victim")
    assert outcome(eve.ask(wire.REDRIVE, "victim", {}, "large")) == "OK"
    assert outcome(eve.ask(wire.HISTORY, "broker", "b", None, "hour")) == FORBIDDEN
    assert outcome(eve.ask(wire.HISTORY, "stream", "news", None, "hour")) == FORBIDDEN
    of_brokers = many.operator.ask(wire.INCIDENTS, "hour", None).fields[0]["incidents"]
    assert "" in {incident["queue"] for incident in of_brokers}
    of_victim = eve.ask(wire.INCIDENTS, "hour", None).fields[0]["incidents"]
    assert {incident["queue"] for incident in of_victim} <= {"victim"}


def test_a_subscription_is_taken_from_its_holder_by_its_managers(many: Many, eve: Smq, filled: Many) -> None:
    name = token_hex(6)
    held = many.operator.ask(wire.HOLD, "news", name, "update", {}).fields[0]
    many.permit("subscribe=news")
    assert outcome(eve.ask(wire.FREE, "news", name, None)) == FORBIDDEN
    assert outcome(many.operator.ask(wire.MARK, "news", name, held["fence"], 0)) == "OK"
    many.permit("subscribe=news manage=news")
    assert outcome(eve.ask(wire.FREE, "news", name, None)) == "OK"
    assert outcome(many.operator.ask(wire.MARK, "news", name, held["fence"], 0)) == "LEASE_LOST"


def subscription(many: Many, name: str) -> dict[str, Any]:
    """A subscription of the stream ``news`` as it is stored."""
    found = many.database["subscriptions"].find_one({"name": name})
    assert found
    return dict(found)


def test_what_proves_a_hold_is_the_session_that_has_it(many: Many, eve: Smq, filled: Many) -> None:
    # Given one that another session holds
    name = token_hex(6)
    held = many.operator.ask(wire.HOLD, "news", name, "update", {}).fields[0]
    many.permit("subscribe=news")
    # Then only that session is shown what names its hold
    (mine,) = (field for field in many.operator.ask(wire.SUBS, "news").fields[0] if field["name"] == name)
    (shown,) = (field for field in eve.ask(wire.SUBS, "news").fields[0] if field["name"] == name)
    assert mine["fence"] == held["fence"]
    assert "fence" not in shown
    # When another guesses it
    for fence in (0, 1, *range(held["fence"] - 1, held["fence"] + 2)):
        assert outcome(eve.ask(wire.MARK, "news", name, fence, 1)) == "LEASE_LOST"
        assert outcome(eve.ask(wire.FREE, "news", name, fence)) == "LEASE_LOST"
    # Then nothing is changed, and its holder goes on
    assert subscription(many, name)["watermark"] == 0
    assert outcome(many.operator.ask(wire.MARK, "news", name, held["fence"], 1)) == "OK"
    assert outcome(many.operator.ask(wire.FREE, "news", name, held["fence"])) == "OK"
    assert subscription(many, name)["watermark"] == 1


def test_a_hold_moves_a_watermark_only_for_one_that_may_seek(many: Many, eve: Smq, filled: Many) -> None:
    name = token_hex(6)
    many.permit("subscribe=news")

    def hold(**options: int) -> str:
        answer = outcome(eve.ask(wire.HOLD, "news", name, "rebuild", options))
        if answer == "OK":
            eve.ask(wire.FREE, "news", name, subscription(many, name)["fence"])
        return answer

    assert hold(after=1) == "OK"  # a new one begins there
    assert hold(after=1) == "OK"  # it stands there
    assert hold(after=0) == FORBIDDEN
    assert hold(after=-1) == ("OK" if subscription(many, name)["watermark"] == newest(many) else FORBIDDEN)
    assert subscription(many, name)["watermark"] == 1
    many.permit("subscribe=news manage=news")
    assert hold(after=0) == "OK"
    assert subscription(many, name)["watermark"] == 0


def newest(many: Many) -> int:
    """The newest message of the stream ``news``."""
    return int(many.operator.ask(wire.STREAM, "news").fields[0]["last"])


def test_a_librarys_subscription_whose_connection_ended_repeats_nothing(many: Many, filled: Many) -> None:
    name, inside, go_on = token_hex(6), Event(), Event()
    seen: list[int] = []

    def handler(batch: Batch) -> None:
        seen.extend(job.sequence for job in batch)
        inside.set()
        assert go_on.wait(TIMEOUT)

    many.permit("subscribe=news")
    # Given one that is cut while its handler works
    login: dict[str, Any] = {"user": "eve", "password": PASSWORD}
    with Subscription("news", name, handler, **login, endpoint=many.doors["smq"]):
        assert inside.wait(TIMEOUT)
        last = seen[-1]
        many.permit("none")
        wait_until(lambda: "holder" not in subscription(many, name))
        # When it gets in again
        many.permit("subscribe=news")
        go_on.set()
        # Then what it has handled is marked under its next hold
        wait_until(lambda: subscription(many, name)["watermark"] >= last)
    assert seen == sorted(set(seen))


def test_a_receipt_is_known_to_its_worker_alone(many: Many) -> None:
    # Given two workers, each with a job of one queue
    many.permit("work=*", name="bob")
    many.permit("work=*")
    doors = many.device(0)
    of_bob = many.of(zmq.PULL, doors["backend"], "bob")
    many.push_one("mail", b"one")
    receipt = receive(of_bob)[0]
    of_eve, commits = many.of(zmq.PULL, doors["backend"]), many.of(zmq.PUSH, doors["commit"])
    many.push_one("mail", b"other")
    own = receive(of_eve)[0]
    # When one makes the receipts of others of its own
    late = many.counter("late_verdicts")
    rest, number = own.rsplit(b"-", 1)
    guesses = [b"%s-%x" % (rest, guess) for guess in range(int(number, 16))]
    for guess in guesses:
        commits.send_multipart([b"COMMIT", guess])
    # Then they are void
    wait_until(lambda: many.counter("late_verdicts") >= late + len(guesses))
    assert many.collection("mail").count_documents({"state": "reserved"}) == 2
    for name in (receipt, own):
        commits.send_multipart([b"COMMIT", name])
    wait_until(lambda: many.collection("mail").count_documents({}) == 0)


def test_errors_say_no_name_that_the_request_does_not_say(many: Many, eve: Smq, filled: Many) -> None:
    many.permit("manage=mine read=victi,vict")
    add = {"name": "nightly", "queue": "mine", "payload": b"go", "every": 3600}

    for verb, *fields in (
        (wire.SCHEDULE, "pause", {"name": "nightly"}),
        (wire.SCHEDULE, "add", add),
        (wire.TASK, "purged"),
        (wire.TCANCEL, "purged"),
        (wire.QUEUE, "victi"),
        (wire.RESULT, "vict", "id", 0.0),
    ):
        answer = eve.ask(verb, *fields)
        assert answer.verb == wire.ERROR
        assert "victim" not in answer.fields[1], verb

    many.permit("read=victi push=victim")
    assert "did you mean 'victim'?" in eve.ask(wire.QUEUE, "victi").fields[1]


# --------------------------------------------------------------------------- create


def test_a_push_that_makes_a_queue_needs_create(many: Many, eve: Smq, queue: str) -> None:
    many.permit("push=*")
    assert outcome(eve.ask(wire.PUSH, queue, [[None, b"x", None]])) == FORBIDDEN
    many.permit(f"push=* create={queue}")
    assert eve.ask(wire.PUSH, queue, [[None, b"x", None]]).fields == [[]]
    many.permit("push=*")
    assert eve.ask(wire.PUSH, queue, [[None, b"x", None]]).fields == [[]]


def test_a_queue_that_another_broker_has_made_needs_no_create(many: Many, eve: Smq, queue: str) -> None:
    many.permit("push=*")
    many.make(queue)
    wait_until(lambda: eve.ask(wire.PUSH, queue, [[None, b"x", None]]).verb == wire.OK)


def test_a_message_that_makes_a_stream_needs_create(many: Many, eve: Smq, queue: str) -> None:
    many.permit("publish=*")
    assert outcome(eve.ask(wire.PUBLISH, queue, pack(b"t", b"x"), {})) == FORBIDDEN
    many.permit("publish=* create=*")
    assert outcome(eve.ask(wire.PUBLISH, queue, pack(b"t", b"x"), {})) == "OK"


# ------------------------------------------------------------------------- verdicts


def reserved(many: Many, eve: Smq, queue: str) -> bytes:
    """Let eve reserve a job of a queue; its receipt."""
    many.push_one(queue, b"payload", "job")
    assert outcome(eve.ask(wire.READY, queue, 1)) == "OK"
    receipt: bytes = eve.delivery()[0][0]
    return receipt


@pytest.mark.parametrize("kind", [wire.FORWARD, wire.FAN_OUT])
def test_a_job_goes_on_to_queues_its_worker_may_push_to(many: Many, eve: Smq, queue: str, kind: str) -> None:
    to = f"{queue}-next"
    many.permit(f"work={queue} create=*")
    receipt = reserved(many, eve, queue)
    onward: Any = [to, b"on", None] if kind == wire.FORWARD else [[to, b"on", None]]
    before = many.counter("forbidden")

    # When it may not
    (problems,) = eve.ask(wire.SETTLE, [[receipt, kind, None, None, onward]]).fields
    # Then the job is rolled back with that reason
    assert [problem[:2] for problem in problems] == [[0, FORBIDDEN]]
    assert many.counter("forbidden") == before + 1
    failed = many.document(queue, errors={"$exists": True})
    assert failed["errors"][-1]["reason"].startswith(f"FORBIDDEN: eve may not push {to}")
    # When it may push, but not make the queue; and when it may both
    (again,) = eve.delivery()
    many.permit(f"work={queue} push={to}")
    (problems,) = eve.ask(wire.SETTLE, [[again[0], kind, None, None, onward]]).fields
    assert problems[0][1:] == [FORBIDDEN, f"eve may not create {to}: its permissions don't allow that"]
    (again,) = eve.delivery()
    many.permit(f"work={queue} push={to} create={to}")
    assert eve.ask(wire.SETTLE, [[again[0], kind, None, None, onward]]).fields == [[]]
    assert many.document(to)["pushed_by"] == "eve"


def test_a_plain_worker_forwards_into_queues_that_it_may_push_to(many: Many, queue: str) -> None:
    doors = many.device(1)
    many.permit("work=ask")
    worker = many.of(zmq.REP, doors["backend"])
    many.push_one("ask", b"x", queue)
    receive(worker)
    worker.send_multipart([b"FORWARD", queue.encode()])
    receive(worker)  # the job again
    assert many.document("ask", _id=queue)["errors"][-1]["reason"].startswith("FORBIDDEN")
    many.permit("work=ask push=* create=*")
    worker.send_multipart([b"FORWARD", queue.encode()])
    assert many.document(queue)["pushed_by"] == "eve"


def test_a_verdict_at_a_commit_door_is_that_of_who_gives_it(many: Many, queue: str) -> None:
    doors = many.device(0)
    many.permit("work=mail push=* create=*", name="bob")
    many.permit("work=mail")
    worker, commits = many.of(zmq.PULL, doors["backend"], "bob"), many.of(zmq.PUSH, doors["commit"])
    many.push_one("mail", b"x", queue)
    receipt, _ = receive(worker)
    commits.send_multipart([b"FORWARD", receipt, queue.encode()])
    receive(worker)
    assert many.document("mail", _id=queue)["errors"][-1]["reason"].startswith("FORBIDDEN: eve may not push")
    many.operator.ask(wire.PURGE, "mail", "ready")


# --------------------------------------------------------------------- plain doors


def test_a_forbidden_push_is_dropped_and_those_around_it_are_stored(many: Many, queue: str) -> None:
    many.permit(f"push=mail,{queue}")
    producer = many.of(zmq.PUSH, many.device(0)["frontend"])
    before = {name: many.counter(name) for name in ("forbidden", "jobs_refused", "refused")}
    producer.send_multipart([b"ask", b"forbidden"])
    producer.send_multipart([queue.encode(), b"may not make it"])
    producer.send(queue.encode())
    assert many.document("mail", payload=queue.encode())["pushed_by"] == "eve"
    wait_until(lambda: many.counter("forbidden") == before["forbidden"] + 2)
    assert {name: many.counter(name) - count for name, count in before.items()} == dict.fromkeys(before, 2)
    assert many.collection("ask").find_one({"payload": b"forbidden"}) is None
    many.operator.ask(wire.PURGE, "mail", "ready")


def test_an_unreadable_push_is_kept_only_where_its_sender_may_push(many: Many, queue: str) -> None:
    producer = many.of(zmq.PUSH, many.device(0)["frontend"])
    many.permit(f"push={queue} create=*")
    producer.send_multipart([b"", b"{", b"may not " + queue.encode()])
    producer.send_multipart([queue.encode(), b"readable"])
    many.document(queue, payload=b"readable")
    many.permit("push=mail")
    producer.send_multipart([b"", b"{", b"may " + queue.encode()])
    assert many.document("mail", payload=b"may " + queue.encode())["pushed_by"] == "eve"
    assert many.collection("mail").find_one({"payload": b"may not " + queue.encode()}) is None


def test_a_request_is_answered_that_it_is_forbidden(many: Many, queue: str) -> None:
    doors = many.device(1)
    asker, worker = many.of(zmq.REQ, doors["frontend"]), many.socket(zmq.REP, doors["backend"])

    def ask(*frames: bytes) -> list[bytes]:
        asker.send_multipart(frames)
        return receive(asker)

    accepted = b'{"reply": "accepted"}'
    assert code(ask(b"job")) == FORBIDDEN
    many.permit("push=ask")
    assert code(answer := ask(b"mail", b"job")) == FORBIDDEN
    assert message(answer) == "eve may not push mail: its permissions don't allow that"
    asker.send(b"job")
    assert receive(worker) == [b"job"]
    worker.send(b"done")
    assert receive(asker) == [b"done"]  # the answer to one's own request needs no permission
    own = json.dumps({"id": queue}).encode()
    assert code(ask(b"", own, b"job")) == FORBIDDEN  # an id may be another's, with its result
    many.permit("push=ask read=ask")
    asker.send_multipart([b"", own, b"job"])
    receive(worker)
    worker.send(b"read")
    assert receive(asker) == [b"read"]
    many.permit("push=*")
    assert code(ask(queue.encode(), accepted, b"job")) == FORBIDDEN  # it would make the queue


def logged(many: Many, who: str) -> str:
    """The last line about a refusal of somebody, without how many more there were."""
    lines = [line for line in many.process.log_text().splitlines() if f"forbidden: {who} from" in line]
    return lines[-1].partition(" (and ")[0] if lines else ""


def queue_of(number: int) -> str:
    """The queue or stream of a device; empty for a forwarder."""
    return str(DEVICES[number].get("queue") or DEVICES[number].get("stream") or "")


PLAIN_DOORS = [
    ("PUSH", 0, "frontend", zmq.PUSH, "push"),
    ("PULL", 0, "backend", zmq.PULL, "work"),
    ("commit", 0, "commit", zmq.PUSH, "work"),
    ("REP", 1, "backend", zmq.REP, "work"),
    ("XSUB", 2, "frontend", zmq.PUB, "publish"),
    ("XPUB", 2, "backend", zmq.SUB, "subscribe"),
    ("forwarder XSUB", 3, "frontend", zmq.PUB, "publish"),
    ("forwarder XPUB", 3, "backend", zmq.SUB, "subscribe"),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("number", "end", "kind", "action"),
    [door[1:] for door in PLAIN_DOORS],
    ids=[door[0] for door in PLAIN_DOORS],
)
def test_one_without_any_right_is_cut(many: Many, number: int, end: str, kind: int, action: str) -> None:
    before = many.counter("connections_cut"), many.counter("forbidden")
    many.permit(all_but(action))
    many.of(kind, many.device(number)[end], reconnect_ivl=RARELY)
    wait_until(lambda: many.counter("connections_cut") == before[0] + 1)
    assert many.counter("forbidden") == before[1] + 1
    wait_until(lambda: logged(many, "eve").endswith((f": {action}", f": {action} {queue_of(number)}")))


def test_a_replay_door_answers_those_who_may_subscribe_to_the_stream(many: Many) -> None:
    reader = many.of(zmq.REQ, many.device(2)["replay"])
    many.operator.ask(wire.PUBLISH, "news", pack(b"topic", b"text"), {})

    def ask(stream: bytes) -> list[bytes]:
        reader.send_multipart([stream])
        return receive(reader)

    many.permit("subscribe=others")
    assert code(ask(b"news")) == code(ask(b"")) == FORBIDDEN
    many.permit("subscribe=news")
    assert json.loads(ask(b"news")[0])["count"] >= 1


# ------------------------------------------------------------ revoked while connected


def drained(plain: zmq.Socket[bytes]) -> list[bytes]:
    """All frames that come until nothing more does; what a cut connection had may be gone after a poll."""
    came: list[bytes] = []
    while plain.poll(200):
        with suppress(zmq.Again):
            came += plain.recv_multipart(zmq.NOBLOCK)
    return came


@pytest.mark.parametrize(("number", "kind"), [(1, zmq.REP), (0, zmq.PULL)], ids=["REP", "PULL"])
def test_a_plain_worker_that_may_no_longer_work_gets_no_more_jobs(many: Many, number: int, kind: int) -> None:
    doors, queue = many.device(number), queue_of(number)
    many.permit(f"work={queue}")
    worker = many.of(kind, doors["backend"], reconnect_ivl=RARELY)
    wait_until(lambda: many.workers(queue) == 1)
    many.permit(f"read={queue}")
    wait_until(lambda: many.workers(queue) == 0)
    many.push_one(queue, b"later")
    assert b"later" not in drained(worker)
    many.operator.ask(wire.PURGE, queue, "ready")


def test_a_session_that_may_work_no_longer_is_cut_and_its_job_moves(many: Many, eve: Smq, queue: str) -> None:
    many.permit(f"work={queue}")
    reserved(many, eve, queue)
    many.permit("none")
    assert outcome(many.operator.ask(wire.READY, queue, 1)) == "OK"
    assert many.operator.delivery()[0][1] == "job"
    many.operator.ask(wire.BYE)


def test_a_waiting_reader_gets_nothing_that_it_may_no_longer_read(many: Many, eve: Smq, queue: str) -> None:
    many.operator.ask(wire.PUBLISH, queue, pack(b"t", b"1"), {})
    many.permit(f"subscribe={queue}")
    eve.plain.send_multipart(wire.encode(wire.READ, 77, queue, {"after": 1, "wait": 60.0}))
    eve.ask(wire.PING)
    many.permit("none")  # it is answered at once, not when there is a message
    assert outcome(eve.answer(77)) == FORBIDDEN


def test_a_request_that_waits_hears_no_result_that_it_may_no_longer_read(many: Many, queue: str) -> None:
    # Given a request under the id of another's job
    doors = many.device(1)
    many.push_one("ask", b"secret", queue, reply="result")
    many.permit("push=ask read=ask")
    asker, own = many.of(zmq.REQ, doors["frontend"]), json.dumps({"id": queue}).encode()
    received = many.counter("received")
    asker.send_multipart([b"", own, b"job"])
    wait_until(lambda: many.counter("received") > received)
    # When it may no longer read
    many.permit("push=ask")
    # Then it hears that at once
    answer = receive(asker)
    assert code(answer) == FORBIDDEN
    # And again the answer to its own request
    asker.send(b"own")
    worker = many.socket(zmq.REP, doors["backend"])
    for result in (b"of another", b"mine"):
        receive(worker)
        worker.send(result)
    assert receive(asker) == [b"mine"]


def test_who_pushed_a_job_hears_its_result_and_no_other(many: Many, eve: Smq, queue: str) -> None:
    # Given a principal that may only push
    many.push_one(queue, b"x", "another", reply="result")
    many.permit(f"push={queue}")
    eve.ask(wire.PUSH, queue, [["own", b"x", {"reply": "result"}]])
    for name in ("another", "nosuch"):
        assert outcome(eve.ask(wire.RESULT, queue, name, 1.0)) == FORBIDDEN
    eve.plain.send_multipart(wire.encode(wire.RESULT, 77, queue, "own", 60.0))
    # When its job is done
    many.permit(f"work={queue}", name="bob")
    worker = many.smq_of("bob")
    worker.ask(wire.READY, queue, 1)
    for _ in range(2):
        receipt = worker.delivery()[0][0]
        worker.ask(wire.SETTLE, [[receipt, wire.COMMIT, b"result", None]])
    assert eve.answer(77).fields == [b"result"]
    worker.ask(wire.BYE)
    # And so does the library
    login: dict[str, Any] = {"user": "eve", "password": PASSWORD}
    with (
        Worker(queue, lambda job: job.payload * 2, endpoint=many.doors["smq"]),
        Producer(**login, endpoint=many.doors["smq"]) as eves,
    ):
        assert eves.call(queue, b"ab", TIMEOUT) == b"abab"


def test_one_that_holds_what_it_may_no_longer_read_is_cut(many: Many, eve: Smq, queue: str) -> None:
    many.operator.ask(wire.PUBLISH, queue, pack(b"t", b"1"), {})
    many.permit(f"subscribe={queue}")
    assert outcome(eve.ask(wire.HOLD, queue, "sums", "update", {})) == "OK"
    before = many.counter("connections_cut")
    many.permit("push=*")
    wait_until(lambda: many.counter("connections_cut") == before + 1)
    wait_until(lambda: outcome(many.operator.ask(wire.HOLD, queue, "sums", "update", {})) == "OK")


def test_who_waits_for_a_result_that_it_may_no_longer_read_is_cut(many: Many, eve: Smq, queue: str) -> None:
    many.push_one(queue, b"x", "job", reply="result")
    many.permit(f"read={queue}")
    eve.plain.send_multipart(wire.encode(wire.RESULT, 77, queue, "job", 60.0))
    eve.ask(wire.PING)
    before = many.counter("connections_cut")
    many.permit("none")
    wait_until(lambda: many.counter("connections_cut") == before + 1)


def test_a_subscriber_that_may_no_longer_subscribe_gets_nothing_more(many: Many) -> None:
    doors = many.device(2)
    many.permit("subscribe=news")
    subscriber = many.of(zmq.SUB, doors["backend"], reconnect_ivl=RARELY)
    subscriber.subscribe(b"")
    publisher = many.socket(zmq.PUB, doors["frontend"])

    def heard() -> int:
        publisher.send_multipart([b"topic", b"text"])
        return subscriber.poll(100)

    wait_until(heard)
    many.permit("none")
    drained(subscriber)
    many.operator.ask(wire.PUBLISH, "news", pack(b"topic", b"later"), {})
    assert not subscriber.poll(200)


# -------------------------------------------------------------------------- whose job


def test_each_way_in_gives_a_job_its_principal_and_tenant_itself(many: Many, eve: Smq, queue: str) -> None:
    said = {"tenant": "another"}
    many.permit("all", tenant="acme")

    eve.ask(wire.PUSH, queue, [["smq", b"x", said], ["plain smq", b"x", None]])
    many.of(zmq.PUSH, many.device(0)["frontend"]).send_multipart(
        [queue.encode(), json.dumps({"id": "push", **said}).encode(), b"x"]
    )
    asker = many.of(zmq.REQ, many.device(1)["frontend"])
    asker.send_multipart(
        [queue.encode(), json.dumps({"id": "req", "reply": "accepted", **said}).encode(), b"x"]
    )
    receive(asker)
    about = {"name": queue, "queue": queue, "payload": b"x", "every": 3600, "options": said}
    row = eve.ask(wire.SCHEDULE, "add", about).fields[0]
    run = many.operator.ask(wire.SCHEDULE, "run", {"name": queue}).fields[0]

    assert row["added_by"] == "eve"
    for job_id in ("smq", "plain smq", "push", "req", run):
        stored = many.document(queue, _id=job_id)
        assert (stored["tenant"], stored["pushed_by"]) == ("acme", "eve"), job_id
    assert many.operator.ask(wire.SHOW, queue, "smq").fields[0]["pushed_by"] == "eve"
    assert {field["pushed_by"] for field in many.operator.ask(wire.PEEK, queue, "ready", 9).fields[0]} == {
        "eve"
    }
    many.operator.ask(wire.SCHEDULE, "remove", {"name": queue})


def test_a_job_that_goes_on_and_its_children_keep_their_principal(many: Many, eve: Smq, queue: str) -> None:
    many.permit("all", tenant="acme")
    many.push_one(queue, b"payload", "job", tenant="first")
    eve.ask(wire.READY, queue, 1)
    ((receipt, *_),) = eve.delivery()
    eve.ask(wire.SETTLE, [[receipt, wire.FORWARD, None, None, [f"{queue}-on", None, None]]])
    on = many.document(f"{queue}-on")
    eve.ask(wire.READY, f"{queue}-on", 1)
    ((receipt, *_),) = eve.delivery()
    eve.ask(wire.SETTLE, [[receipt, wire.FAN_OUT, None, None, [[f"{queue}-child", None, None]]]])
    child = many.document(f"{queue}-child")
    for stored in (on, child):
        assert (stored["tenant"], stored["pushed_by"], stored["payload"]) == ("acme", "eve", b"payload")
    assert on["passed"][0]["queue"] == queue


def test_a_job_keeps_its_tenant_when_one_of_none_forwards_it(many: Many, eve: Smq, queue: str) -> None:
    many.permit("all")
    many.push_one(queue, b"payload", "job", tenant="first")
    eve.ask(wire.READY, queue, 1)
    ((receipt, *_),) = eve.delivery()
    eve.ask(wire.SETTLE, [[receipt, wire.FORWARD, None, None, [f"{queue}-on", None, None]]])
    assert many.document(f"{queue}-on")["tenant"] == "first"


def test_a_dead_letter_says_whose_job_it_was(many: Many, eve: Smq, queue: str) -> None:
    many.permit("all")
    eve.ask(wire.PUSH, queue, [["job", b"x", None]])
    eve.ask(wire.READY, queue, 1)
    ((receipt, *_),) = eve.delivery()
    eve.ask(wire.SETTLE, [[receipt, wire.REJECT, "no", None]])
    assert many.document(queue, state="dead")["pushed_by"] == "eve"
    assert many.operator.ask(wire.PEEK, queue, "dead", 1).fields[0][0]["pushed_by"] == "eve"


def test_jobs_of_clients_without_a_name_have_no_field_for_it(many: Many, queue: str) -> None:
    many.push_one(queue)
    assert "pushed_by" not in many.document(queue)


# -------------------------------------------------------------------------------- log


def test_a_flood_of_refusals_of_one_does_not_hide_those_of_another(many: Many, eve: Smq, queue: str) -> None:
    bob, before = many.smq_of("bob"), many.counter("forbidden")
    for number in range(50):
        eve.ask(wire.PEEK, queue, "ready", 1)
        if number == 1:
            bob.ask(wire.PEEK, f"{queue}-of-bob", "ready", 1)
    many.process.wait_log("forbidden: bob from tcp://127.0.0.1:")
    assert f"read {queue}-of-bob" in many.process.log_text()
    assert many.counter("forbidden") == before + 51
    assert many.process.log_text().count(f"read {queue}\n") < 20
