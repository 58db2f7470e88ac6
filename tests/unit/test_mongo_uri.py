"""A MongoDB URI shows nothing that is secret, however it is written, and wherever it is refused."""

import json
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from sluicemq import UnavailableError
from sluicemq_broker.config import ConfigError, MongoUri, as_json, changes, describe, load
from sluicemq_broker.store import connect

#: The secret in two pieces, so that what parts them does not show one of them either.
ONE, OTHER = "Xq7hunter", "Zw9hunter"
_HOST = "127.0.0.1:1"  # nobody listens there

_between = some.text("@:/?#[]%&=;,+ \\\"'$!\n0éX", max_size=3)
_passwords = some.builds(
    lambda *pieces: "".join(pieces), _between, some.just(ONE), _between, some.just(OTHER), _between
)
_schemes = some.sampled_from(
    ["mongodb://", "mongodb://", "mongdb://", "mongodb+srv:/", "http://", "", "mongodb:"]
)
_names = some.sampled_from(["authMechanismProperties", "tlsCertificateKeyFilePassword", "nosuchoption"])
_keys = some.sampled_from(["", "AWS_SESSION_TOKEN:", "SERVICE_NAME:a,AWS_SESSION_TOKEN:", "TOKEN_RESOURCE:"])
_uris = some.one_of(
    some.builds("{}bob:{}@{}/db".format, _schemes, _passwords, some.sampled_from([_HOST, "h:x", "a,,b", ""])),
    # Without a host: what stands behind an @ is one, and is shown.
    some.builds("{}bob:{}".format, _schemes, _passwords.filter(lambda text: "@" not in text)),
    some.builds("mongodb://bob:12{}@{}/?tls=maybe".format, _passwords, some.just(_HOST)),
    some.builds("mongodb://{}/?tls=true&{}={}{}&w=1".format, some.just(_HOST), _names, _keys, _passwords),
    some.builds("mongodb://bob:pw@{}/?authMechanism={}&{}={}{}".format, some.just(_HOST),
                some.sampled_from(["MONGODB-AWS", "SCRAM-SHA-1", "none"]), _names, _keys, _passwords),
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(_uris)
@example(f"mongdb://bob:{ONE}{OTHER}@h")
@example(f"mongodb://bob:{ONE}@{OTHER}@{_HOST}/")
@example(f"mongodb://bob:12/{ONE}{OTHER}@{_HOST}")
@example(f"mongodb://{_HOST}/?authMechanismProperties={ONE}:{OTHER}")
@example(f"mongodb://bob:{ONE}{OTHER}@{_HOST}/?tls=maybe&replicaSet=")
def test_no_way_of_writing_a_uri_shows_its_password(uri: str) -> None:
    with all_that_is_told() as told:
        told.extend(configured({"SLUICEMQ_MONGODB_URI": uri}, {}))
        told.extend(configured({}, {"mongodb_uri": uri}))
        if "://" in uri or "@" in uri or "mongodb" in uri:  # else nobody sees that it is one
            told.extend(configured({}, {"endpoint": uri}))
            told.extend(configured({"SLUICEMQ_LEASE": uri, "SLUICEMQ_MONGODB_URL": uri}, {}))
        told.extend(connected(uri))
    for text in told:
        assert ONE not in text
        assert OTHER not in text


def test_what_is_harmless_is_shown_and_the_driver_gets_the_whole() -> None:
    text = "mongodb+srv://bob:a%40b@h.example.com/db?replicaSet=rs&authMechanismProperties=A:b&nonsense=1"
    uri = MongoUri.read(text)
    assert str(uri) == (
        "mongodb+srv://bob:***@h.example.com/db?replicaSet=rs&authMechanismProperties=***&***=***"
    )
    assert uri.text == text
    assert uri.secrets >= {"a%40b", "a@b", "A:b", "b", "1"}


@pytest.mark.parametrize(
    "text",
    [
        "mongodb://h",
        "mongodb://h/?replicaSet=a",
        "mongodb://h?replicaSet=a",
        "mongodb://a:1,b:2,[::1]:3,[fe80::1%25eth0]/db",
        "mongodb://%2Ftmp%2Fmongodb-27017.sock/",
        "mongodb://bob@h",
        "mongodb://bob:@h/",
        "mongodb://b%3Ab:p%2F%3F%25@h-1.example.com,h_2:27018/admin?tls=true;tlsCAFile=/etc/ca.pem",
        "mongodb+srv://bob:pw#1@cluster.example.com/",
    ],
)
def test_what_the_driver_can_use_is_taken(text: str) -> None:
    assert MongoUri.read(text).text == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mongdb://bob:s3cret@h", r"begins with mongodb:// .*; did you mean mongodb://\?"),
        ("db:27017", "begins with mongodb://"),
        ("mongodb://bob:a@b@h", "written %40 %3A %2F"),
        ("mongodb://bob:12/a@h", "written %40 %3A %2F"),
        ("mongodb://bob:a?b@h", "written %40 %3A %2F"),
        ("mongodb://bob:a:b@h", "written %40 %3A %2F"),
        ("mongodb://bob:50%@h", "written %40 %3A %2F"),
        ("mongodb://:pw@h", "a user before the @"),
        ("mongodb://bob:pw", "a port from 1 to 65535, as host no. 1"),
        ("mongodb://h,h:0", "as host no. 2"),
        ("mongodb://h:65536", "as host no. 1"),
        ("mongodb://", "as host no. 1"),
        ("mongodb://h/?tls", "NAME=VALUE as option no. 1"),
        ("mongodb://h/?tls=true&=3", "NAME=VALUE as option no. 2"),
        ("mongodb://h /", "without blanks"),
    ],
)
def test_what_is_wrong_with_a_uri_is_told_without_quoting_it(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        MongoUri.read(text)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ("replicaSet=a&tls=maybe", r"option no. 2, tls=maybe: The value of tls must be"),
        ("replicaset2=rs0", r"option no. 1, replicaset2=\*\*\*: Unknown option.*\. Did you mean"),
        (
            "authMechanismProperties=token:x",
            r"option no. 1, authMechanismProperties=\*\*\*: the driver says ValueError",
        ),
        ("tlsCAFile=/no/such.pem", r"option no. 1, tlsCAFile=/no/such.pem: \[Errno 2\] \w"),
    ],
)
def test_an_option_that_the_driver_refuses_is_named_by_its_number(options: str, refusal: str) -> None:
    with pytest.raises(UnavailableError, match=f"^mongodb_uri can't be used: {refusal}"):
        connect(f"mongodb://{_HOST}/?{options}")


def test_hosts_that_dns_does_not_know_are_named_with_the_way_out() -> None:
    with pytest.raises(UnavailableError) as raised:
        connect("mongodb+srv://bob:hunter2@nosuch.invalid/?srvServiceName=mongodb&retryWrites=true")
    assert "the hosts of nosuch.invalid could not be looked up in DNS" in str(raised.value)
    assert "mongodb://HOST,HOST/?replicaSet=NAME" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_an_unknown_option_behind_a_secret_is_not_named() -> None:
    secret = "tlsCertificateKeyFilePassword=hun&ter2=x"  # noqa: S105 - a slip: & is written %26
    with pytest.raises(UnavailableError, match=r"option no\. 2, \*\*\*=\*\*\*") as raised:
        connect(f"mongodb://{_HOST}/?{secret}")
    assert "ter2" not in str(raised.value)


class _Told(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(logging.Formatter().format(record))


@contextmanager
def all_that_is_told() -> Iterator[list[str]]:
    """Log records and warnings while it lasts, and what is added."""
    told: list[str] = []
    handler = _Told(told)
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield told
        told.extend([str(warning.message) for warning in warned])
    finally:
        logging.getLogger().removeHandler(handler)


def configured(environ: dict[str, str], flags: dict[str, Any]) -> list[str]:
    """All ways to show a configuration, or its refusal."""
    try:
        config = load(None, environ, flags)
    except ConfigError as error:
        return [*told_of(error), json.dumps([problem._asdict() for problem in error.problems])]
    before = load(None, {}, {})
    return [describe(config), json.dumps(as_json(config)), repr(config), *map(str, changes(before, config))]


def connected(uri: str) -> list[str]:
    """What is told of a connection to it that fails."""
    try:
        connect(uri).close()
    except UnavailableError as error:
        return told_of(error)
    return []


def told_of(error: Exception) -> list[str]:
    return [str(error), repr(error), *traceback.format_exception(error)]
