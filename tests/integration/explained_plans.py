"""The plans of the statements that a store really sends, as MongoDB explains them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import MongoClient
from pymongo.monitoring import CommandListener, CommandStartedEvent

_EXPLAINED = ("find", "update", "delete", "distinct", "aggregate")
_ANY_DATE = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_AUTO)  # of bounds
_ONLY_SENT = (
    "lsid", "$db", "$clusterTime", "$readPreference", "txnNumber", "writeConcern", "readConcern", "ordered",
    "autocommit", "startTransaction",
)  # fmt: skip


class Plan(NamedTuple):
    """One statement as it was sent, and what MongoDB does for it."""

    command: str
    stages: set[str]
    keys: int
    documents: int
    returned: int


class Explainer(CommandListener):
    """Explains, over another connection, each statement right before it is sent."""

    def __init__(self, uri: str) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._plans: list[Plan] | None = None

    @contextmanager
    def plans(self) -> Iterator[list[Plan]]:
        """The plans of what is sent inside the block."""
        found: list[Plan] = []
        self._plans = found
        yield found
        self._plans = None

    def close(self) -> None:
        self._client.close()

    def started(self, event: CommandStartedEvent) -> None:
        if self._plans is None or event.command_name not in _EXPLAINED:
            return
        command = {name: value for name, value in event.command.items() if name not in _ONLY_SENT}
        if len(command.get("updates", ())) > 1:  # one explains the others, and more can't be explained
            command["updates"] = command["updates"][:1]
        database = self._client[event.database_name]
        explained = database.command("explain", command, codec_options=_ANY_DATE, verbosity="executionStats")
        self._plans.append(_plan(explained))

    def succeeded(self, event: object) -> None:
        """Not of interest."""

    def failed(self, event: object) -> None:
        """Not of interest."""


def _plan(explained: dict[str, Any]) -> Plan:
    if "stages" in explained:  # an aggregation: what it reads is told in its first stage
        return _plan({**explained["stages"][0]["$cursor"], "command": explained["command"]})
    stats = explained["executionStats"]
    name = next(iter(explained["command"]))
    return Plan(
        name,
        _stages(explained["queryPlanner"]["winningPlan"]),
        stats["totalKeysExamined"],
        stats["totalDocsExamined"],
        stats["nReturned"],
    )


def _stages(plan: Any) -> set[str]:
    if isinstance(plan, list):
        return set().union(*map(_stages, plan))
    if not isinstance(plan, dict):
        return set()
    here = {plan["stage"]} if "stage" in plan else set()
    return here.union(*map(_stages, plan.values()))
