"""The pages of the reference, made of what the code declares: settings, job options, figures.

``python -m sluicemq_broker.command.reference docs`` writes them; a test says so when they are stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Final

from sluicemq.protocol.options import OPTIONS, Option
from sluicemq_broker.command.serve import serve
from sluicemq_broker.config import (
    ENVIRONMENT,
    ONLY,
    BrokerSettings,
    DeviceSettings,
    QueueSettings,
    RouteSettings,
    ScheduleSettings,
    StreamSettings,
    as_toml,
    settings_of,
)
from sluicemq_broker.runtime import BALANCES, Count, Gauge, Timing
from sluicemq_devices.hub import DeviceCount, Metric, Mishap

COMMAND: Final = "python -m sluicemq_broker.command.reference docs"

_MADE = f"<!-- Made by `{COMMAND}`; what stands here is changed in the code. -->"
_Row = dict[str, str]


def main(arguments: list[str]) -> int:
    """Write the pages into the folder."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: {COMMAND}\n")
        return 2
    for name, page in PAGES.items():
        (Path(arguments[0]) / name).write_text(page())
    return 0


def configuration() -> str:
    """Every setting, table by table."""
    return _page(
        "Configuration",
        "Sources, later ones win: the defaults, one TOML file (`sluicemq serve --config FILE`), the "
        "environment, flags of `sluicemq serve`. `sluicemq config check [FILE]` shows what would hold. "
        "A default of `-` is nothing. *SIGHUP*: whether a running broker takes another value when told to "
        "read its file again ([operations](operations.md#another-configuration)); of devices it takes none.",
        "A span of time (unit s) is a number of seconds, or a text such as `90s`, `5m`, `1h30m`, `2d` or "
        "`250ms`, everywhere: here, in the environment, as flags and options of the commands, in the headers "
        "of a job and as keywords of the library. TOML has types, so a number or `true` in quotes is a text "
        "and refused, whatever the key; the environment and flags have texts only, where `true`, `yes`, `on` "
        "and `1` are one thing. No number may be NaN or infinite.",
        "## [broker]\n\nThe process, its MongoDB, its door for the library.",
        _table(_setting(key, each, _ways(key)) for key, each in settings_of(BrokerSettings).items()),
        "## [queues.NAME]\n\nHow the jobs of one queue are treated, unless their [options](job-options.md) "
        'say otherwise; `[queues."*"]` is for every queue, and the table of a name is over it.',
        _table(_setting(key, each) for key, each in settings_of(QueueSettings).items()),
        "## [streams.NAME]\n\nWhat of one stream is kept; without a bound, all of it. What is over is "
        'unseen within a lease and removed soon after; `[streams."*"]` is for every stream.',
        _table(_setting(key, each) for key, each in settings_of(StreamSettings).items()),
        "## [[routes]]\n\nEvery message of a stream with these topics becomes a job of a queue, exactly "
        "once, in the order of the stream.",
        _table(_setting(key, each, live=False) for key, each in settings_of(RouteSettings).items()),
        "## [schedules.NAME]\n\nA recurring job, put into MongoDB when the broker starts "
        "([jobs](schedules.md)).",
        _table(_setting(key, each, live=False) for key, each in settings_of(ScheduleSettings).items()),
        "## [[devices]]\n\nTwo ends, each with any number of doors, and what goes on between them. Once the "
        "file has one, the default devices are not there.",
        _table(
            _setting(key, each, _kinds(key), live=False) for key, each in settings_of(DeviceSettings).items()
        ),
    )


def job_options() -> str:
    """Every option of a job."""
    return _page(
        "Job options",
        "Headers of a job at any door, keywords of `Producer.push` (and `submit`, `call`, `push_many`), "
        "flags of `sluicemq push` (`--header KEY=VALUE` makes `headers`). Headers are a map, JSON or "
        "msgpack, of up to 64 KiB. What a job does not say is as its queue's settings have it "
        "([configuration](configuration.md)). A span of time (unit s) may be a text, as `1h30m`.",
        _table(_option(each) for each in OPTIONS.values()),
        "*stored as*: the fields of the job's document in MongoDB; those marked * only where they are not "
        "what the queue's settings say, so that a change of these holds for jobs that wait, too. While a job "
        f"waits it can be given another {_either(each.name for each in OPTIONS.values() if each.changeable)} "
        "(`sluicemq change`).",
    )


def counters() -> str:
    """Every counter and gauge."""
    return _page(
        "Counters and gauges",
        "What `sluicemq stats` tells, and the names in the log. A *counter* only grows, from 0 at the start "
        "of the process; one that has not counted yet is not shown. A *gauge* is how it stands now. "
        "With the label *queue*, or *stream*, it is counted for each of them, too, as far as that is known: "
        "`sluicemq queues` shows the rates of some, [`sluicemq history`](watching.md#history) what was.",
        "## Jobs, workers, the store",
        _table(map(_figure, Count)),
        "### What they add up to\n\nAt any moment, and in the line that a broker logs when it stops:",
        "\n".join(f"- {balance}" for balance in BALANCES),
        f"`{Gauge.STORING}`, `{Gauge.IN_FLIGHT}` and `{Gauge.COMMITTING}` are what is under way. A job that "
        "the library or a program pushes again, because it heard nothing, is received twice: the second time "
        f"it is `{Count.REPEATED}`, or `{Count.PUSHED}` where nothing was stored before. A delivery whose "
        f"time is over, or whose worker has died, is `{Count.ROLLED_BACK}` (the former also "
        f"`{Count.TIMED_OUT}`); a verdict that comes later is one of `{Count.LATE_VERDICTS}`. "
        f"`{Count.JOBS_REFUSED}`, `{Count.RELEASED}` and `{Count.DEAD}` are looks at the same "
        "jobs from another side.",
        "## Connections and devices\n\nOf the broker's doors, and of a device alone (`sluicemq device`).",
        _table(map(_figure, Mishap)),
        "### Of each device\n\nIn `/api/v1/devices`, `/metrics` and the history.",
        _table(map(_figure, DeviceCount)),
        "## How it stands",
        _table(map(_figure, Gauge)),
        "## How long it takes\n\nHistograms, in `/metrics` only.",
        _table(map(_figure, Timing)),
    )


#: The pages by the name of their file.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "configuration.md": configuration,
    "job-options.md": job_options,
    "counters.md": counters,
}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([_MADE, f"# {title}", *parts]) + "\n"


def _table(rows: Iterable[_Row]) -> str:
    """Rows that all have the same keys."""
    listed = list(rows)
    lines = [list(listed[0]), ["---"] * len(listed[0]), *(list(each.values()) for each in listed)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _setting(key: str, setting: Field[Any], more: _Row | None = None, *, live: bool = True) -> _Row:
    rule = setting.metadata["rule"]
    return {
        "key": f"`{key}`",
        "default": _default(setting),
        "unit": rule.unit,
        "may be": rule.expected,
        "meaning": setting.metadata["doc"],
        **({"SIGHUP": "yes" if setting.metadata["live"] else "restart"} if live else {}),
        **(more or {}),
    }


def _default(setting: Field[Any]) -> str:
    if setting.default is MISSING:
        return "must be given"
    return "-" if setting.default in (None, ()) else f"`{as_toml(setting.default)}`"


def _ways(key: str) -> _Row:
    """Where else a setting of [broker] can be given."""
    flags = {str(each.name): each.opts[0] for each in serve.params}
    return {
        "variable": f"`{ENVIRONMENT}{key.upper()}`",
        "flag": f"`{flags[key]}`" if key in flags else "",
    }


def _kinds(key: str) -> _Row:
    return {"only of a": _either(ONLY.get(key, ()))}


def _option(option: Option) -> _Row:
    without = "" if option.default is None else f"`{_json(option.default)}`"
    mark = "*" if option.unless_default else ""
    return {
        "option": f"`{option.name}`",
        "may be": option.rule.expected,
        "unit": option.unit,
        "default": without or "-",
        "queue's setting": f"`{option.setting}`" if option.setting else "",
        "flag": f"`--{option.name.replace('_', '-')} {option.metavar}`" if option.metavar else "",
        "stored as": ", ".join(f"`{field}`{mark}" for field in option.stored),
        "example": f"`{_json(option.example)}`",
        "meaning": option.doc,
    }


def _figure(figure: Metric) -> _Row:
    return {
        "name": f"`{figure}`",
        "type": figure.kind,
        "unit": figure.unit,
        "labels": ", ".join(figure.labels),
        "meaning": figure.text,
    }


def _either(words: Iterable[str]) -> str:
    return " or ".join(words)


def _json(value: Any) -> str:
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
