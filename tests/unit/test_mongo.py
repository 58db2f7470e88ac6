"""The driver's errors in our words: what can be waited for, and what can't."""

from __future__ import annotations

from typing import Any

import pytest
from bson.errors import InvalidDocument
from pymongo.errors import BulkWriteError, DocumentTooLarge, InvalidName, OperationFailure

from broker.mongo import Refused, Unclear, translated
from sluicemq.errors import Unavailable

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
    assert not isinstance(refused.value, Unavailable)


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
