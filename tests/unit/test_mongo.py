"""The driver's errors in our words, and whether MongoDB answers."""

import threading
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from bson.errors import InvalidDocument
from gevent.thread import LockType
from pymongo import ReadPreference
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DocumentTooLarge,
    InvalidName,
    NotPrimaryError,
    OperationFailure,
)

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import Doubtful, Refused, StoreAvailability, Unclear, connect, connect_for_leases
from sluicemq_broker.store.availability import SILENCE, UNCONFIRMED
from sluicemq_broker.store.connection import REPLY_TIMEOUT, promised
from sluicemq_broker.store.errors import brief, translated
from sluicemq_broker.store.write_results import refusals

UNSURE = {"writeConcernError": {"code": 64}}


def bulk(*codes: int, **details: Any) -> BulkWriteError:
    errors = [{"index": at, "code": code, "errmsg": "no"} for at, code in enumerate(codes)]
    return BulkWriteError({"writeErrors": errors, "writeConcernErrors": [], **details})


@pytest.mark.parametrize(
    "error",
    [
        OperationFailure("BSONObj size: 25000000 is invalid", 10334),
        InvalidDocument("cannot encode object"),
        DocumentTooLarge("BSON document too large"),
        OverflowError("MongoDB can only handle up to 8-byte ints"),
        InvalidName("collection names cannot be empty"),
        bulk(17419, 17419),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_statement_itself_is_to_blame_for_is_refused(error: Exception) -> None:
    with pytest.raises(Refused) as refused, translated():
        raise error
    assert not isinstance(refused.value, UnavailableError)


@pytest.mark.parametrize(
    "error",
    [
        OperationFailure("out of disk space", 14031),
        OperationFailure("not authorized", 13),
        OperationFailure("interrupted", 11602),
        OperationFailure("no code"),
        OperationFailure("too large, and not replicated", 10334, UNSURE),
        bulk(17419, 112),
        bulk(17419, writeConcernErrors=[{"code": 64}]),
    ],
    ids=str,
)
def test_what_a_server_in_trouble_answers_is_unclear(error: Exception) -> None:
    with pytest.raises(Unclear), translated():
        raise error


@pytest.mark.parametrize(
    ("codes", "kind"),
    [((11000, 112), Unclear), ((14031,), Unclear), ((171, 189), Unclear), ((4_242_424, 171), Doubtful)],
)
def test_of_one_insert_trouble_is_waited_for_and_a_code_nobody_knows_is_doubted(
    codes: tuple[int, ...], kind: type[Exception]
) -> None:
    with pytest.raises(Unclear) as raised:
        refusals(bulk(*codes))
    assert type(raised.value) is kind


def test_what_only_the_document_can_be_to_blame_for_is_refused_alone() -> None:
    refused = refusals(bulk(171, 16755, 121, 10334)).refused
    assert refused.keys() == {0, 1, 2, 3}


HOSTS = "mongodb://me:p%26ss@a,b/db"
OTHERWISE = (
    "readPreference=secondaryPreferred&readPreferenceTags=dc:ny&maxStalenessSeconds=120&readConcernLevel=local"
    "&w=1&wtimeoutMS=5&journal=false&retryWrites=false&retryReads=false&timeoutMS=9&socketTimeoutMS=1"
)


@pytest.mark.parametrize("more", ["", "&replicaSet=rs0"])
def test_reads_are_the_primarys_whatever_the_uri_says(more: str, caplog: pytest.LogCaptureFixture) -> None:
    with connect(f"mongodb://a,b/?{OTHERWISE}{more}") as client:
        assert client.read_preference == ReadPreference.PRIMARY
        assert client.write_concern.document == {"w": "majority"}
        assert client.read_concern.level is None
        assert client.options.timeout is None
        assert client.options.pool_options.socket_timeout == REPLY_TIMEOUT
        assert (client.options.retry_writes, client.options.retry_reads) == (True, True)
        assert client.options.replica_set_name == ("rs0" if more else None)
    for option in OTHERWISE.split("&"):
        assert option.partition("=")[0] in caplog.text


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        (HOSTS, HOSTS),
        (f"{HOSTS}?w=1", HOSTS),
        (f"{HOSTS}?tls=true", f"{HOSTS}?tls=true"),
        (f"{HOSTS}?w=1&tls=true&J=true&authSource=x", f"{HOSTS}?tls=true&authSource=x"),
        (f"{HOSTS}?w=1;tls=true;authSource=x", f"{HOSTS}?tls=true;authSource=x"),
        (f"{HOSTS}?directConnection=true&READPREFERENCE=nearest", f"{HOSTS}?directConnection=true"),
    ],
)
def test_what_else_the_uri_says_holds(uri: str, kept: str) -> None:
    assert promised(uri)[0] == kept


@pytest.mark.parametrize(("lease", "most"), [(15.0, 3.0), (2.0, 0.4), (100.0, 5.0)])
def test_a_heartbeat_is_given_up_within_a_fifth_of_a_lease(lease: float, most: float) -> None:
    with connect_for_leases("mongodb://a/?socketTimeoutMS=99000&readPreference=secondary", lease) as client:
        assert client.options.pool_options.socket_timeout == most
        assert client.options.server_selection_timeout <= most
        assert client.read_preference == ReadPreference.PRIMARY
        assert not client.options.retry_reads


def test_what_the_driver_says_is_told_without_its_settings() -> None:
    said = "db:27017: timed out (configured timeouts: socketTimeoutMS: 3000.0ms), Timeout: 5s, Topology …"
    assert brief(OSError(said)) == "db:27017: timed out"


@pytest.mark.parametrize(
    "details",
    [
        {"ok": 0.0, "errmsg": "no room", "code": 14031, "codeName": "OutOfDiskSpace"},
        {"ok": 1.0, "writeErrors": [{"index": 0, "code": 14031, "errmsg": "no room"}], "nInserted": 0},
        {"ok": 1.0, "writeConcernErrors": [{"code": 14031, "errmsg": "no room"}], "writeErrors": []},
        {"ok": 1.0, "writeConcernError": {"code": 14031, "errmsg": "no room"}},
    ],
)
def test_what_the_server_says_comes_without_json_and_a_full_disk_as_one(details: dict[str, Any]) -> None:
    failure = OperationFailure("no room, full error: {...", details.get("code"), details)
    for error in (failure, BulkWriteError(details)):
        assert brief(error) == "the disk of MongoDB is full, make room there: no room"


class Server:
    """A MongoDB that answers as it is told, or does something else while it is asked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = StoreAvailability(lambda: self.now)
        self.meanwhile: Callable[[], Any] = lambda: None

    @property
    def admin(self) -> Any:
        return self

    def command(self, _name: Any) -> dict[str, Any]:
        self.meanwhile()
        return {"ok": 1}

    def ask(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.meanwhile = meanwhile
        client: Any = self
        self.state.watch(client)

    def confirm(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.meanwhile = meanwhile
        client: Any = {"broker": self}
        self.state.watch_majority(client, "broker")

    def fail(self, seconds: float = 0.0) -> None:
        self.now += seconds
        raise AutoReconnect("connection refused")


def test_one_that_answers_is_reachable_and_has_no_problem() -> None:
    server = Server()
    server.ask()
    assert (server.state.reachable, server.state.problem, server.state.silent) == (True, "", 0.0)


def test_one_that_does_not_answer_is_away_before_the_question_has_failed() -> None:
    server, seen = Server(), list[tuple[bool, str]]()

    def stand_still() -> None:
        for _ in range(2):
            server.now += SILENCE / 2
            seen.append((server.state.reachable, server.state.problem))

    server.ask(stand_still)
    assert seen == [(True, ""), (False, "MongoDB has not answered for 2.0 s")]
    assert server.state.reachable


def test_questions_that_fail_are_counted_from_the_first_one_and_the_last_error_is_told() -> None:
    server = Server()
    for _ in range(3):
        server.ask(lambda: server.fail(1.0))
    assert not server.state.reachable
    assert server.state.problem.startswith("MongoDB has not answered for 3.0 s: AutoReconnect")


def test_one_answer_makes_it_reachable_again() -> None:
    server = Server()
    server.ask(lambda: server.fail(60.0))
    server.ask()
    assert server.state.reachable


def test_one_that_has_no_primary_is_not_reachable() -> None:
    server = Server()

    def refuse() -> None:
        server.now += SILENCE
        raise NotPrimaryError("not primary")

    server.ask(refuse)
    assert "not primary" in server.state.problem


def test_one_that_is_slow_is_said_to_be_so_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    def takes(seconds: float) -> Callable[[], None]:
        def passes() -> None:
            server.now += seconds

        return passes

    def ask(*times: float) -> list[str]:
        caplog.clear()
        for seconds in times:
            server.ask(takes(seconds))
        return [record.getMessage() for record in caplog.records]

    # A busy moment is none
    assert ask(0.05, 0.05, 0.001, 0.05, 0.05, 0.05, 0.05) == []
    said = "MongoDB is slow: it takes 50 ms for each answer at least, and a job takes several"
    assert ask(*[0.05] * 20) == [said]
    assert ask(0.001, 0.001) == ["MongoDB is not slow any more: it takes 1 ms for an answer"]


def test_one_that_answers_and_has_no_majority_is_not_reachable_until_it_has_one() -> None:
    server, back = Server(), list[float]()
    server.state.on_return(back.append)

    def too_late() -> None:
        server.now += UNCONFIRMED
        raise OperationFailure("operation exceeded time limit", 50)

    server.confirm(too_late)
    server.ask()
    assert not server.state.reachable
    assert server.state.problem.startswith("MongoDB answers, but no majority of its members has confirmed")
    assert not back
    server.confirm()
    assert (server.state.reachable, back) == (True, [UNCONFIRMED])


def test_one_that_is_silent_is_not_said_to_lack_a_majority() -> None:
    server = Server()
    server.confirm(lambda: server.fail(60.0))
    server.ask(lambda: server.fail(60.0))
    assert server.state.problem.startswith("MongoDB has not answered for")


def test_a_stand_alone_server_has_nothing_to_confirm() -> None:
    server = Server()

    def refuse() -> None:
        server.now += UNCONFIRMED
        raise OperationFailure("node needs to be a replica set member to use read concern", 123)

    server.confirm(refuse)
    assert server.state.reachable


def test_a_connection_is_given_back_without_a_turn_of_others() -> None:
    """The driver notifies conditions then, over gevent's locks."""
    # Given
    turns: list[str] = []
    condition = threading.Condition(LockType())
    gevent.spawn(turns.append, "another greenlet's")
    # When
    with condition:
        condition.notify()
    # Then
    assert turns == []
    with pytest.raises(RuntimeError):
        condition.notify()
