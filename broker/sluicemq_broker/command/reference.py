"""The generated pages of the reference: settings, job options, counters.

``python -m sluicemq_broker.command.reference docs`` writes them; a test says so when they are stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Final, cast

from sluicemq.protocol.options import OPTIONS, Option
from sluicemq_broker.command.serve import serve
from sluicemq_broker.config import (
    ENVIRONMENT,
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
from sluicemq_broker.parts import NEEDS, PARTS
from sluicemq_broker.runtime import BALANCES, Count, Counters, Gauge, Timing
from sluicemq_broker.security import Needs, Security
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


#: Settings of queues that lie in no file.
_IN_MONGODB: Final = """\
### Settings of queues in MongoDB

`sluicemq queue set` stores settings of a queue in MongoDB, beside its jobs. All brokers use them at once, \
and after a restart. So brokers whose files differ treat a queue alike:

```console
$ sluicemq queue set mail max_running 5 ttl 1h
mail: max_running = 5 (mongodb; the file says none)
mail: ttl = 3600.0 (mongodb; the file says none)
$ sluicemq queue unset mail ttl
mail: ttl = none (default)
$ sluicemq queue show mail
```

- Later ones win: the default, `[queues."*"]` of the file, `[queues.NAME]` of the file, what is set for \
`"*"`, what is set for the queue.
- A value is checked as in a file, and taken as after SIGHUP. Lists of weights are written `acme=3,bolt=2`. \
`none` takes a value away; so a queue named `none` can't be set as `on_dead`.
- `database` can't be set: jobs would have to move. Give it in the file of each broker.
- `"*"` holds for all queues in the databases of the broker that takes the order.
- `sluicemq delete QUEUE` removes what was set with the queue.
- `sluicemq queue show` names, below the settings, what brokers' files say differently as long as nothing is \
set. That is an [incident](watching.md#the-dashboard), too.
- All of this takes a store of schema 3 ([upgrades](operations.md#upgrades)).
- It needs `manage` on the queue (on `*`: `manage` for every name), and `read` to look."""


def configuration() -> str:
    """Return the page of all settings, table by table."""
    return _page(
        "Configuration",
        "A setting comes from one of four places, and later ones win: the default, one TOML file "
        "(`sluicemq serve --config FILE`), the environment, a flag of `sluicemq serve`. "
        "`sluicemq config check [FILE]` shows every setting that would hold.",
        "- *default* `-`: none.\n"
        "- *SIGHUP* yes: a running broker takes a new value when it "
        "[reads its file again](operations.md#another-configuration). Others need a restart. Those of "
        "devices do, but for `mechanism`, `anonymous`, `insecure` and `server_key`, also in a door's table.\n"
        "- *unit* s: a span of time. It is a number of seconds, or a text such as `90s`, `5m`, `1h30m`, `2d` "
        "or `250ms`. This holds everywhere: here, in the environment, in flags and options of the commands, "
        "in the headers of a job and in keywords of the library.\n"
        "- *types*: TOML has types, so a number or `true` in quotes is a text, and refused. The environment "
        "and flags have only texts; there `true`, `yes`, `on` and `1` are one value. No number may be NaN or "
        "infinite.",
        "## [broker]\n\nThe process, its MongoDB, its door for the library.",
        _table(_setting(key, each, _ways(key)) for key, each in settings_of(BrokerSettings).items()),
        "## [queues.NAME]\n\nWhat holds for the jobs of one queue, unless their [options](job-options.md) "
        "say "
        'otherwise. `[queues."*"]` is for every queue; the table of a name wins over it.',
        _table(_setting(key, each) for key, each in settings_of(QueueSettings).items()),
        _IN_MONGODB,
        "## [streams.NAME]\n\nHow much of one stream is kept; without a bound, everything. Messages beyond a "
        'bound are unseen within a lease, and removed soon after. `[streams."*"]` is for every stream.',
        _table(_setting(key, each) for key, each in settings_of(StreamSettings).items()),
        "## [[routes]]\n\nEvery message of a stream with these topics becomes a job of a queue, exactly "
        "once, in the order of the stream ([streams](streams.md#routes)).",
        _table(_setting(key, each, live=False) for key, each in settings_of(RouteSettings).items()),
        "## [schedules.NAME]\n\nA recurring job, put into MongoDB when the broker starts "
        "([schedules](schedules.md)).",
        _table(_setting(key, each, live=False) for key, each in settings_of(ScheduleSettings).items()),
        "## [[devices]]\n\nTwo ends, each with any number of doors, and what goes on between them "
        "([plain frames](plain-frames.md#devices-and-their-doors)). If the file has one, the default devices "
        "are not there.",
        _table(
            _setting(key, each, _kinds(key), live=False) for key, each in settings_of(DeviceSettings).items()
        ),
        "### A door as a table\n\nThe `endpoint` of `[broker]`, and each end of a device, may be a table: "
        '`frontend = { endpoint = "tcp://*:5551", mechanism = ["curve"] }`. It holds for this one door.',
        _table(_setting(key, each, live=False) for key, each in settings_of(DoorSettings).items()),
        "## [security]\n\nHow clients show who they are, and what those may do that don't "
        "([security](security.md)).",
        _table(_setting(key, each) for key, each in settings_of(SecuritySettings).items()),
        "## [security.principals.NAME]\n\nA client, or a group of clients with one name. Others are kept in "
        "MongoDB (`sluicemq user add`); a principal of the file wins over one of its name there.",
        _table(_setting(key, each) for key, each in settings_of(PrincipalSettings).items()),
    )


def job_options() -> str:
    """Return the page of all options of a job."""
    return _page(
        "Job options",
        "An option of a job is a header at any door, a keyword of `Producer.push` (and `submit`, `call`, "
        "`push_many`), and a flag of `sluicemq push` (`--header KEY=VALUE` makes `headers`). Headers are a "
        "map, JSON or msgpack, of up to 64 KiB. Without an option the setting of the job's queue holds "
        "([configuration](configuration.md#queuesname)). A span of time (unit s) may be a text, as `1h30m`.",
        _table(_option(each) for each in OPTIONS.values()),
        "*stored as*: the fields of the job's document in MongoDB. Fields marked * are stored only where "
        "they differ from the queue's settings, so that a change of these holds for jobs that wait, too.",
        "While a job waits, `sluicemq change` gives it another "
        f"{_either(each.name for each in OPTIONS.values() if each.changeable)}.",
    )


def counters() -> str:
    """Return the page of all counters and gauges."""
    return _page(
        "Counters and gauges",
        "`sluicemq stats` shows these figures; the log uses their names.",
        "- A *counter* only grows, from 0 at the start of the process. One that has not counted yet is not "
        "shown.\n"
        "- A *gauge* is how it stands now.\n"
        "- With the label *queue*, or *stream*, a figure is also counted for each of them, as far as it is "
        "known. `sluicemq queues` shows the rates of some, [`sluicemq history`](watching.md#history) their "
        "past.",
        "## Jobs, workers, the store",
        _table(map(_figure, Count)),
        "### What they add up to\n\nAt any moment, and in the line that a broker logs when it stops:",
        "\n".join(f"- {balance}" for balance in BALANCES),
        f"- `{Gauge.STORING}`, `{Gauge.IN_FLIGHT}` and `{Gauge.COMMITTING}` are jobs under way.\n"
        "- A job that is pushed again, because its producer heard nothing, is received twice. The second "
        f"time it is `{Count.REPEATED}`, or `{Count.PUSHED}` where nothing was stored before.\n"
        f"- A delivery whose time is over, or whose worker has died, is `{Count.ROLLED_BACK}` (the former "
        f"also `{Count.TIMED_OUT}`). A verdict that comes later is one of `{Count.LATE_VERDICTS}`.\n"
        f"- `{Count.JOBS_REFUSED}`, `{Count.RELEASED}` and `{Count.DEAD}` count jobs that are in these sums "
        "already.",
        "## Connections and devices\n\nOf the broker's doors, and of a device alone (`sluicemq device`).",
        _table(map(_figure, Mishap)),
        "### Of each device\n\nIn `/api/v1/devices`, `/metrics` and the history.",
        _table(map(_figure, DeviceCount)),
        "## How it stands",
        _table(map(_figure, Gauge)),
        "## How long it takes\n\nHistograms, in `/metrics` only.",
        _table(map(_figure, Timing)),
    )


def permissions() -> str:
    """Return the page of the permission that each verb of SMQ/1 needs."""
    own = {name: each.needs for name, each in {**VERBS, **ADMIN_VERBS}.items()}
    verbs = {**own, **NEEDS}
    return _page(
        "Permissions of verbs",
        "The action that each verb of [SMQ/1](smq1.md) needs, and on which name. Plain doors and HTTP: "
        "[security](security.md#permissions).",
        _table(_act(name.decode(), "verb", needs) for name, needs in verbs.items()),
        "- *what it names*: the queue or stream in its first field, or in the path.\n"
        "- *what its content names*: such as the queue of a schedule, or the subject of a history.\n"
        "- *each row*: rows of queues and streams without this permission are left out of the answer.\n"
        "- *the pattern `*`*: it names nothing.\n"
        "- *its own*: jobs that its principal pushed, where it may push, need no `read`.\n"
        "- *and*: what a request needs besides, by its effects. The caller is asked for all of it before "
        "anything is changed. What names no queue, such as the id of a task, is `FORBIDDEN` also where it "
        "does not exist, unless the caller may do this everywhere.\n"
        "- *What waits is asked again*: requests that wait for a result, for messages or for a long order "
        "are answered `FORBIDDEN`, or their connection is cut, when the permission is taken away.\n"
        "- A verb without an action is for every client that got in. SETTLE, EXTEND and PROGRESS are about "
        "jobs that workers of their own session have.",
        "## Paths of HTTP\n\nA POST is an act, which clients without a name may not do.",
        _table(_act(path, "path", needs) for path, needs in sorted(paths().items()) if needs is not None),
    )


def paths() -> dict[str, Needs | None]:
    """Return what each path of the HTTP door needs, without a broker behind it."""
    counters, nothing = Counters(), cast("Any", _Nothing())
    of_site = (Config.default().broker, counters, nothing, nothing, nothing, nothing)
    site = Site(*of_site, Security(counters))
    for part in PARTS:
        part.add_paths(nothing, site)
    return site.needs


class _Nothing:
    """Stands for the parts of a broker whose paths are listed, and not answered."""

    def __getattr__(self, _name: str) -> _Nothing:
        return self

    def __call__(self, *_arguments: Any) -> _Nothing:
        return self


#: The pages by the name of their file.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "configuration.md": configuration,
    "job-options.md": job_options,
    "counters.md": counters,
    "permissions.md": permissions,
}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([_MADE, f"# {title}", *parts]) + "\n"


def _table(rows: Iterable[_Row]) -> str:
    """Return a table; the rows have equal keys."""
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
        **({"SIGHUP": _on_sighup(setting)} if live else {}),
        **(more or {}),
    }


def _on_sighup(setting: Field[Any]) -> str:
    live = setting.metadata["live"]
    return "its login" if callable(live) else "yes" if live else "restart"


def _default(setting: Field[Any]) -> str:
    if setting.default is MISSING:
        return "must be given"
    return "-" if setting.default in (None, ()) else f"`{as_toml(setting.default)}`"


def _ways(key: str) -> _Row:
    """Return the variable and the flag of a setting of [broker]."""
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
