"""``sluicemq backup`` and ``sluicemq restore``: the state of one moment in a file, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from sluicemq.cli.output import Invocation, of_broker
from sluicemq.cli.principal_store import URI, chosen_uri
from sluicemq.installed import BACKUP
from sluicemq.protocol.errors import SluiceError

_FAILED: Final = 1


def _place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a MongoDB, and the place that they name."""

    @click.option(
        "--config", metavar="FILE", help="The broker's configuration: its MongoDB, and its databases."
    )
    @click.option("--mongodb-uri", "uri", metavar="URI", help=f"The MongoDB, instead of the one that it names.  [{URI}]")  # noqa: E501 # fmt: skip
    @click.option("--mongodb-uri-file", "uri_file", metavar="FILE", help="A file with that URI.")
    @click.option(
        "--data-dir", "folder", metavar="FOLDER", help="The folder of an embedded MongoDB, instead."
    )
    @click.option("--database", metavar="NAME", help="The broker's database there.")
    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
    @click.pass_context
    @wraps(command)
    def run(
        ctx: click.Context,
        /,
        config: str | None,
        uri: str | None,
        uri_file: str | None,
        folder: str | None,
        database: str | None,
        *,
        as_json: bool,
        **given: Any,
    ) -> None:
        invocation: Invocation = ctx.obj
        invocation.as_json |= as_json
        if folder is not None and (uri is not None or uri_file is not None):
            raise click.UsageError("give one of --mongodb-uri, --mongodb-uri-file and --data-dir")
        module = of_broker(BACKUP)
        chosen = chosen_uri(uri, uri_file)
        named = bool(config or chosen or folder)
        try:
            place = module.place_of(config, chosen, folder, database, os.environ)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        try:
            command(invocation, module, place, named=named, **given)
        except SluiceError as error:
            invocation.error(error)
            ctx.exit(_FAILED)
        except OSError as error:
            invocation.error(SluiceError(f"{error.filename or 'the file'}: {error.strerror or error}"))
            ctx.exit(_FAILED)

    return run


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="FOLDER", help="Where backups are; made for its owner alone.")  # noqa: E501 # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Remove all but the newest N of this database there, when the new one is whole.")  # noqa: E501 # fmt: skip
@_place
def backup(
    invocation: Invocation, module: Any, place: Any, *, named: bool, out: Path, keep: int | None
) -> None:
    """Write all that brokers have stored into one file, as it is at one moment, while they work.

    Payloads are in it: its mode is 0600. Without --config or the like: the MongoDB of the environment, or the
    embedded one of the default folder.

    Exit code 1: there is no new backup.
    """
    del named
    done = module.back_up(place, out, keep, invocation.note)
    invocation.result(done["file"], **done)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--paused", is_flag=True, help="Pause its queues and schedules, so that nothing runs until resumed.")  # noqa: E501 # fmt: skip
@_place
def restore(
    invocation: Invocation, module: Any, place: Any, *, named: bool, file: Path, yes: bool, paused: bool
) -> None:
    """Write the backup in FILE into an empty database that no broker uses; name it by an option.

    FILE is checked before anything is written. A restore that was killed is repeated; no broker starts before
    it has ended. Jobs that ended after the backup are there again, and run again. They and the schedules run
    as soon as a broker starts there, unless you say --paused.

    Exit code 1: it is not restored.
    """
    if not named:
        raise click.UsageError("say where: --config, --mongodb-uri, --mongodb-uri-file or --data-dir")
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: --yes")

    def confirm(what: str) -> None:
        if yes:
            invocation.note(what.rstrip("?"))
        else:
            click.confirm(what, abort=True, err=True)

    done = module.restore(file, place, invocation.note, confirm, paused=paused)
    where = " and ".join(done["databases"])
    invocation.note(_what_runs(done))
    invocation.result(
        f"{done['documents']} documents in {done['collections']} collections are restored into {where}",
        **done,
    )


def _what_runs(done: dict[str, Any]) -> str:
    what = f"{done['queues']} queues and {done['schedules']} schedules"
    if done["paused"]:
        return f"{what} are paused: go on with sluicemq queues resume QUEUE, and schedules resume NAME"
    return f"the jobs of {what} run as soon as a broker starts there; to look around first: --paused"
