"""The driver's errors in our words: what can be waited for, and what can't."""

from __future__ import annotations

from typing import Any

import pytest
from bson.errors import InvalidDocument
from pymongo import ReadPreference
from pymongo.errors import BulkWriteError, DocumentTooLarge, InvalidName, OperationFailure

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import Doubtful, Refused, Unclear, connect, connect_for_leases
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
def test_reads_are_the_primarys_and_writes_the_majoritys_whatever_the_uri_says(
    more: str, caplog: pytest.LogCaptureFixture
) -> None:
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
