"""Tables of the documentation, made from what the code declares: settings, job options, figures, rights.

A page asks for one in a line ``::: reference NAME``; the build of the site puts it there.
``python tools/reference.py NAME`` prints one, without a name all.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeGuard, cast, get_args, get_origin

from msgspec import UnsetType
from msgspec.structs import fields

import sluicemq
from sluicemq import aio, testing
from sluicemq._deprecated import OLD_NAMES
from sluicemq.cli.former import FORMER
from sluicemq.namespaces import Namespaces
from sluicemq.namespaces.calls import Calls
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import rows, wire
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.options import OPTIONS, Option
from sluicemq.protocol.verbs import VERBS as NOUNS
from sluicemq_broker.config import (
    ONLY,
    BrokerSettings,
    Config,
    DeviceSettings,
    DoorSettings,
    PrincipalSettings,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    SecuritySettings,
    StreamSettings,
    as_toml,
    settings_of,
)
from sluicemq_broker.doors import ADMIN_VERBS, VERBS
from sluicemq_broker.http import Site
from sluicemq_broker.http.route import Route
from sluicemq_broker.parts import NEEDS, PARTS
from sluicemq_broker.runtime import BALANCES, Count, Counters, Gauge, Timing
from sluicemq_broker.security import Needs, Security
from sluicemq_broker.store import COLLECTIONS
from sluicemq_devices.hub import DeviceCount, Metric, Mishap

_Row = dict[str, str]
_MEANING: Final = "meaning, and what it may be"
#: Columns of a table of verbs.
_VERBS: Final = ("verb", "array", "answer")


def verbs() -> dict[bytes, Needs]:
    """Return what each verb of SMQ/1 needs."""
    own = {name: verb.needs for name, verb in {**VERBS, **ADMIN_VERBS}.items()}
    return {**own, **NEEDS}


def paths() -> dict[str, Needs | None]:
    """Return what each path of the HTTP door needs."""
    return {path: needs for path, needs in site().needs.items() if path not in former_paths()}


def former_paths() -> set[str]:
    """Return the paths of the HTTP door that have another name now."""
    return {
        route.former for methods in site().table.values() for route, _ in methods.values() if route.former
    }


@cache
def site() -> Site:
    """Return the paths of the HTTP door, without a broker behind them."""
    counters, nothing = Counters(), cast("Any", _Nothing())
    of_site = (Config.default().broker, counters, nothing, nothing, nothing, nothing)
    made = Site(*of_site, Security(counters))
    for part in PARTS:
        part.add_paths(nothing, made)
    return made


class _Nothing:
    """Stands for the parts of a broker whose paths are listed, and not answered."""

    def __getattr__(self, _name: str) -> _Nothing:
        return self

    def __call__(self, *_arguments: Any) -> _Nothing:
        return self


def _table(rows: Iterable[_Row]) -> str:
    """Return a table; the rows have equal keys."""
    listed = list(rows)
    lines = [list(listed[0]), ["---"] * len(listed[0]), *(list(row.values()) for row in listed)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _setting(key: str, setting: Field[Any], more: _Row, *, live: bool) -> _Row:
    rule = setting.metadata["rule"]
    return {
        "key": f"`{key}`",
        "default": f"{_default(setting)} {rule.unit}".strip(),
        _MEANING: _meaning(setting.metadata["doc"], rule.expected),
        **({"SIGHUP": _on_sighup(setting)} if live else {}),
        **more,
    }


def _meaning(doc: str, expected: str) -> str:
    return f"{doc}<br>*{expected.replace('*', chr(92) + '*')}*"


def _on_sighup(setting: Field[Any]) -> str:
    live = setting.metadata["live"]
    return "its login" if callable(live) else "yes" if live else "restart"


def _default(setting: Field[Any]) -> str:
    if setting.default is MISSING:
        return "must be given"
    return "-" if setting.default in (None, ()) else f"`{as_toml(setting.default)}`"


def _kinds(key: str) -> _Row:
    return {"only of a": _either(ONLY.get(key, ()))}


def _option(option: Option) -> _Row:
    default = "-" if option.default is None else f"`{_json(option.default)}`"
    mark = "*" if option.unless_default else ""
    return {
        "option": f"`{option.name}`",
        "default": f"{default} {option.unit}".strip(),
        _MEANING: f"{_meaning(option.doc, option.rule.expected)}, as `{_json(option.example)}`",
        "stored as": ", ".join(f"`{field}`{mark}" for field in option.stored),
    }


def _act(name: str, kind: str, needs: Needs) -> _Row:
    on = [
        "what it names" if needs.name is not None else "",
        "what its content names" if needs.more and needs.name is None else "",
        "each row" if needs.shows else "",
        "not for its own" if needs.own else "",
    ]
    where = ", ".join(filter(None, on)) or "the pattern `*`"
    return {
        kind: f"`{name}`",
        "action": f"`{needs.action}`" if needs.action else "-",
        "on": where if needs.action else "",
        "and": "; ".join(f"`{action}` on {on}" for action, on in needs.also),
    }


def _figure(figure: Metric) -> _Row:
    return {
        "name": f"`{figure}`",
        "meaning": figure.text,
        "unit": figure.unit,
        "labels": ", ".join(figure.labels),
    }


def _either(words: Iterable[str]) -> str:
    return " or ".join(words)


def _json(value: Any) -> str:
    return json.dumps(value)


def _settings(kind: type, more: Callable[[str], _Row] = lambda _key: {}, *, live: bool = True) -> str:
    return _table(_setting(key, field, more(key), live=live) for key, field in settings_of(kind).items())


def _paths() -> str:
    routes = sorted(
        (route for methods in site().table.values() for route, _ in methods.values()), key=_by_path
    )
    return _table(
        _act(f"{route.method} {route.path}", "path", route.needs) | {"does": route.summary}
        for route in dict.fromkeys(routes)
        if route.needs
    )


def _by_path(route: Route) -> tuple[str, str]:
    return route.path, route.method


def _error(kind: type[SluiceError]) -> _Row:
    return {"code": f"`{kind.code}`", "meaning": inspect.getdoc(kind) or ""}


def class_pages() -> dict[str, dict[str, str]]:
    """Return for each group of what the library exports its pages: their paths below docs/, their texts.

    Errors share a page: each is a sentence.
    """
    pages = {
        title: {f"api/{name}.md": _docstrings(name, [f"sluicemq.{name}"]) for name in names}
        for title, names in _groups().items()
    }
    pages["Namespaces of a client"] = {
        f"api/{kind.__name__}.md": _docstrings(kind.__name__, [f"{kind.__module__}.{kind.__name__}"])
        for kind in _namespaces().values()
    }
    pages["Asyncio"] = {
        f"api/aio.{name}.md": _docstrings(f"aio.{name}", [f"sluicemq.aio.{name}"]) for name in aio.__all__
    }
    pages["Testing"] = {
        f"api/testing.{name}.md": _docstrings(f"testing.{name}", [f"sluicemq.testing.{name}"])
        for name in testing.__all__
    }
    errors = [f"sluicemq.{name}" for name in sluicemq.__all__ if _is_error(name)]
    return pages | {"Errors": {"api/errors.md": _docstrings("Errors", errors)}}


def _groups() -> dict[str, list[str]]:
    """Return what the library exports by the groups in which it is shown, without errors."""
    known = {name for names in _GROUPS.values() for name in names}
    more = [name for name in sluicemq.__all__ if name not in known and not _is_error(name)]
    return _GROUPS | {"More": more}


def _docstrings(title: str, names: Iterable[str]) -> str:
    """Return a page of the docstrings of these names."""
    return "\n\n".join([f"# {title}", *[f"::: {name}" for name in names]])


def _library() -> str:
    """Return the classes of the library by their groups, each a link to its page."""
    return "\n\n".join(
        f"**{title}**: " + ", ".join(f"[{Path(path).stem}]({path})" for path in pages)
        for title, pages in class_pages().items()
    )


def _renamed(names: Mapping[str, str]) -> str:
    return _table({"old": f"`{old}`", "write": f"`{new}`"} for old, new in sorted(names.items()))


def _nouns() -> str:
    """Return a table of the client's verbs: each method, its command, and what it does."""
    kinds = _namespaces()
    return _table(
        {
            "method": f"`{verb.method}({_parameters(getattr(kinds[verb.noun], verb.name))})`",
            "does": _first_sentence(getattr(kinds[verb.noun], verb.name)),
            "command": f"`{verb.command}`" if verb.command else "",
        }
        for verb in NOUNS
    )


def _namespaces() -> dict[str, type]:
    """Return the namespaces of a client, by their names."""
    made = vars(Namespaces(Calls.__new__(Calls)))
    return {name: type(value) for name, value in made.items() if isinstance(value, Namespace)}


def _parameters(function: Callable[..., Any]) -> str:
    """Return the parameters that must be given, and the names of the others."""
    found = list(inspect.signature(function).parameters.values())[1:]
    return ", ".join(_parameter(parameter) for parameter in found)


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}=…"


def _first_sentence(function: Callable[..., Any]) -> str:
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    text = re.sub(r":(?:class|meth):`~?(?:\w+\.)*(\w+)`", r"`\1`", text).replace("``", "`")
    return re.split(r"(?<=[.])\s", text)[0].rstrip(".")


def described(section: str, *columns: str) -> str:
    """Return a table of what a section of the protocol's docstring describes: names, form, text."""
    text = (inspect.getdoc(wire) or "").partition(f"\n{section}::\n\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    ([\w, ]+?)(?: \| (.+)| (\[.*))?\n((?: {8}.*\n?)+)", text, re.MULTILINE)
    return _table(
        {
            columns[0]: ", ".join(f"`{name}`" for name in names.split(", ")),
            **({columns[1]: _linked(form or f"``{array}``" if form or array else "")} if columns[2:] else {}),
            columns[-1]: _linked(" ".join(answer.split())),
        }
        for names, form, array, answer in entries
    )


def _linked(text: str) -> str:
    """Return a text of a docstring whose rows are links to them."""
    plain = text.replace("``", "`").replace("...", "…")
    return re.sub(
        r"`\[?(\w+(?:Row|Page))(?:, …\])?`", lambda found: f"[{found[0]}](#{found[1].lower()})", plain
    )


def _rows() -> str:
    """Return each row that brokers answer, with its fields."""
    kinds = [kind for kind in map(vars(rows).get, sorted(vars(rows))) if _is_row(kind)]
    return "\n\n".join(
        f"### {kind.__name__}\n\n{_told(kind)}\n\n```text\n{_fields(kind)}\n```" for kind in kinds
    )


def _is_row(kind: Any) -> TypeGuard[type[rows.Row]]:
    return isinstance(kind, type) and issubclass(kind, rows.Row) and kind is not rows.Row


def _told(kind: type) -> str:
    text = re.sub(r"\bNone\b", "nil", inspect.getdoc(kind) or "")
    return re.sub(r":class:`(\w+)`", lambda found: f"[{found[1]}](#{found[1].lower()})", text)


def _fields(kind: type[rows.Row]) -> str:
    names = [
        f"{field.encode_name}{'' if field.required else '?'}: {_type(field.type)}" for field in fields(kind)
    ]
    opening, closing = "[]" if kind.__struct_config__.array_like else "{}"
    return textwrap.fill(f"{opening}{', '.join(names)}{closing}", 100)


def _type(kind: Any) -> str:
    """Return a type as the protocol's page writes it."""
    if kind is type(None):
        return "nil"
    inner = [arg for arg in get_args(kind) if arg not in (..., UnsetType)]
    if get_origin(kind) in (tuple, list):
        return f"[{_type(inner[0])}, …]"
    if get_origin(kind) is dict:
        return f"{{{_type(inner[0])}: {_type(inner[1])}}}"
    if inner:
        return "|".join(map(_type, inner))
    return "any" if kind is Any else str(kind.__name__)


def _is_error(name: str) -> bool:
    kind = getattr(sluicemq, name)
    return isinstance(kind, type) and issubclass(kind, Exception)


#: Counters that say, when they rise, that something is wrong.
_ALARMING: Final = (
    Count.JOBS_REFUSED, Count.UNCOMMITTED, Count.WORKERS_HUNG_UP, Count.POPPED_LOST, Count.RECLAIMED,
    Count.GIVEN_BACK_BY_OTHERS, Count.STORE_UNAVAILABLE, Count.TRANSACTIONS_ABORTED, Count.BUS_LOST,
    Count.BUS_UNTOLD, Count.CLAIMS_REFUSED, Count.UNSWEPT, Count.UNCOUNTED, Count.UNINDEXED,
    Count.INDEXES_REMADE, Count.DEDUPE_IDS_SHARED, Count.UNREADABLE_DOCUMENTS, Count.SET_ASIDE,
    Mishap.CONNECTIONS_REFUSED, Count.SLOW_TURNS, Mishap.CALLBACKS_FAILED,
)  # fmt: skip
#: Classes of the library that belong together.
_GROUPS: Final = {
    "Push": ["Producer", "PushReceipt", "Reply", "JobOptions", "NewJob"],
    "Work": ["Worker", "Job", "Forward", "FanOut", "ChildResult", "Claim", "ClaimedJob"],
    "Tasks": ["App", "Task", "Step", "chain", "group", "PREVIOUS"],
    "Around tasks": ["Middleware", "TaskRun", "TimeLimits", "Sentry", "Telemetry"],
    "Look and change": ["Client", "Operation", "Access", "DeadLetterChoice", "AuditChoice", "Grants"],
    "Streams": ["Publisher", "PublishReceipt", "Reader", "Start", "Message", "Subscription", "Batch"],
}
#: What each collection has, which its bound does not say. One that is missing here ends the build.
_HAS: Final = {
    "audit": "the [audit log](security.md#audit), a million of each of its three kinds",
    "bus": "[events](operations.md#the-event-bus) between brokers, in a ring",
    "configurations": "settings of brokers' files, to find differences",
    "figures": "load, queues and workers of each broker, for the dashboards of the others",
    "history": "figures: minutes for 8 days, hours and days for `history_retention`",
    "history_months": "figures of months",
    "incidents": "[incidents](watching.md#the-dashboard)",
    "limits": "permits and tokens of shared [limits](limits.md)",
    "logins": "secrets that sign [logins](security.md#http), and ended logins, 1,000 of a principal",
    "meta": "the [schema number](operations.md#upgrades), notes about the store",
    "owners": "leases, in every database with queues",
    "places": "last places in [groups](groups.md)",
    "principals": "[principals](security.md#principals); removed ones a day longer, without keys",
    "queues": "pauses, [settings](configuration.md#settings-of-queues-in-mongodb) and removals of queues",
    "removed": "removed queues, in `removed.NAME.…` and `deleted.NAME.…`",
    "schedules": "[schedules](schedules.md)",
    "subscriptions": "subscriptions and routes: how far, and who holds them",
    "tasks": "[bulk operations](operations.md#bulk-operations), 100 at once at each broker",
}

#: What makes each table, by the name that a page gives it.
TABLES: Final[dict[str, Callable[[], str]]] = {
    "broker": lambda: _settings(BrokerSettings),
    "queues": lambda: _settings(QueueSettings),
    "streams": lambda: _settings(StreamSettings),
    "routes": lambda: _settings(RouteSettings, live=False),
    "schedules": lambda: _settings(ScheduleSettings, live=False),
    "devices": lambda: _settings(DeviceSettings, _kinds, live=False),
    "doors": lambda: _settings(DoorSettings, live=False),
    "security": lambda: _settings(SecuritySettings),
    "principals": lambda: _settings(PrincipalSettings),
    "job-options": lambda: _table(map(_option, OPTIONS.values())),
    "counts": lambda: _table(map(_figure, Count)),
    "alarming": lambda: _table(map(_figure, _ALARMING)),
    "balances": lambda: "\n".join(f"- {balance}" for balance in BALANCES),
    "mishaps": lambda: _table(map(_figure, Mishap)),
    "device-counts": lambda: _table(map(_figure, DeviceCount)),
    "gauges": lambda: _table(map(_figure, Gauge)),
    "timings": lambda: _table(map(_figure, Timing)),
    "deprecations": lambda: _renamed(OLD_NAMES),
    "former-commands": lambda: _renamed(
        {f"sluicemq {old}": f"sluicemq {new}" for old, new in FORMER.items()}
    ),
    "collections": lambda: _table(
        {
            "collection": f"`{name}`",
            "has": _HAS[name],
            "bound": collection.bound,
            "at the bound": "the oldest go"
            if collection.dates
            else "new ones are refused"
            if collection.most
            else "",
        }
        for name, collection in COLLECTIONS.items()
    ),
    "verbs": lambda: _table(_act(name.decode(), "verb", needs) for name, needs in verbs().items()),
    "paths": _paths,
    "library": _library,
    "nouns": _nouns,
    "rows": _rows,
    "reading-verbs": lambda: described("Reading state", *_VERBS),
    "changing-verbs": lambda: described("Changing jobs and queues", *_VERBS),
    "broker-verbs": lambda: described("Brokers and tasks", *_VERBS),
    "stream-verbs": lambda: described("Streams", *_VERBS),
    "subscription-verbs": lambda: described("Subscriptions", *_VERBS),
    "schedule-actions": lambda: described("Actions of SCHEDULE", "action", "takes", "answer"),
    "user-actions": lambda: described("Actions of USERS", "action", "takes", "answer"),
    "verdicts": lambda: described("Verdicts", "verdict", "detail", "means"),
    "ready-options": lambda: described("Options of READY", "option", "means"),
    "publish-options": lambda: described("Options of PUBLISH", "option", "means"),
    "read-options": lambda: described("Options of READ", "option", "means"),
    "errors": lambda: _table(map(_error, SluiceError.__subclasses__())),
}

if __name__ == "__main__":
    print("\n\n".join(TABLES[name]() for name in sys.argv[1:] or TABLES))
