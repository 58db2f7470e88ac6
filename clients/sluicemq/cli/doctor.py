"""``sluicemq doctor``: what is wrong with a set-up, how bad it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import click

from sluicemq.cli.output import Invocation, of_broker, printable
from sluicemq.installed import DOCTOR
from sluicemq.protocol import environment
from sluicemq.protocol.errors import NotAdmittedError, SluiceError, TimeoutError, UnavailableError
from sluicemq.transport.endpoints import VARIABLE

_FILE: Final = click.Path(dir_okay=False, path_type=Path)
#: Questions to the broker, the cheapest first: it answers the first one without its MongoDB.
_QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "counters": lambda sent: sent.counters(),
    "brokers": lambda sent: sent.brokers.schema(),
    "queues": lambda sent: sent.queues.list(),
    "tasks": lambda sent: sent.operations.list(),
}
_WIDTH: Final = 9
_COUNTED: Final = {"error": "errors", "warning": "warnings", "ok": "well"}


@click.command()
@click.option("--config", metavar="FILE", help="The broker's configuration.  [environment and defaults]")
@click.option("--mongodb-uri-file", "uri_file", metavar="FILE", help="A file with the URI of MongoDB, instead of the one that the configuration names.")  # noqa: E501 # fmt: skip
@click.option("--database", metavar="NAME", help="Its database there.")
@click.option("--report", type=_FILE, metavar="FILE", help="Write all that is known to FILE (JSON), for a bug report; without secrets and payloads.")  # noqa: E501 # fmt: skip
@click.option("--log", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE", help="A log of the broker, whose last lines go into the report: they quote reasons of failed jobs.")  # noqa: E501 # fmt: skip
@click.pass_context
def doctor(
    ctx: click.Context,
    config: str | None,
    uri_file: str | None,
    database: str | None,
    report: Path | None,
    log: Path | None,
) -> None:
    """Look at the configuration, this machine, MongoDB, and the broker: say what is wrong, and what to do.

    Each is looked at as far as possible: with a broker that runs, with its MongoDB alone, or with a
    configuration alone. It changes nothing.

    Exit codes: 0: all is well. 1: there are warnings. 2: there are errors.
    """
    invocation: Invocation = ctx.obj
    module = of_broker(DOCTOR)
    try:
        examination = module.examine(config, uri_file, database)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _name_the_broker(invocation, examination.endpoint)
    answers, code, message = _ask(invocation)
    try:
        found = examination.run(invocation.endpoint, answers, code, message, report, log)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    if invocation.as_json:
        invocation.json(found)
    else:
        _show(invocation, found)
    if report is not None:
        invocation.note(f"the report is in {report}")
    ctx.exit(found["exit_code"])


def _name_the_broker(invocation: Invocation, endpoint: str) -> None:
    """Ask the broker of the configuration, unless another one is named."""
    if not (invocation.named or invocation.profile or environment.given(VARIABLE)):
        invocation.named = endpoint or None


def _ask(invocation: Invocation) -> tuple[dict[str, Any], str, str]:
    """Return the answers of the broker, and code and text of the error that kept it from more."""
    answers: dict[str, Any] = {}
    code = message = ""
    try:
        with invocation.client() as client:
            for name, question in _QUESTIONS.items():
                try:
                    answers[name] = question(client.sent)
                except (NotAdmittedError, TimeoutError, UnavailableError):
                    raise
                except SluiceError as error:  # not allowed, or an older broker
                    code, message = code or error.code, message or str(error)
    except SluiceError as error:
        code, message = error.code, str(error)
    return answers, code, message


def _show(invocation: Invocation, found: Mapping[str, Any]) -> None:
    for subject, rows in groupby(found["findings"], key=lambda row: row["subject"]):
        invocation.line(subject)
        for row in rows:
            _show_one(invocation, row)
    levels = [row["level"] for row in found["findings"]]
    invocation.line(", ".join(f"{name}: {levels.count(level)}" for level, name in _COUNTED.items()))


def _show_one(invocation: Invocation, row: Mapping[str, str]) -> None:
    level, evidence = row["level"], row["evidence"]
    mark = level if level in ("ok", "info") else level.upper()
    beside = f" ({evidence})" if evidence and level == "ok" else ""
    invocation.line(f"  {mark:{_WIDTH}}{printable(row['what'] + beside)}")
    if evidence and not beside:
        invocation.line(f"  {'':{_WIDTH}}{printable(evidence)}")
    if row["to_do"]:
        invocation.line(f"  {'':{_WIDTH}}-> {printable(row['to_do'])}")
