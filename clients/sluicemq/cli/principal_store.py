"""Where ``sluicemq principals`` changes principals: at a broker, or in MongoDB itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click

from sluicemq.cli.output import Invocation, of_broker
from sluicemq.installed import USERS
from sluicemq.protocol import environment
from sluicemq.protocol.secret_files import read_secret

URI: Final = "SLUICEMQ_MONGODB_URI"
_FLAG: Final = "--mongodb-uri"
_HIDDEN: Final = "***"

_uri = click.option(
    _FLAG,
    "uri",
    is_flag=False,
    flag_value=_HIDDEN,
    metavar="[URI]",
    help=f"Without a broker: the MongoDB where the principals are.  [{URI}]",
)
_uri_file = click.option("--mongodb-uri-file", "uri_file", metavar="FILE", help="A file with that URI.")
_database = click.option("--database", metavar="NAME", default="sluicemq", show_default=True, help="Its database there.")  # noqa: E501 # fmt: skip


def acting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its options, and ``act(action, **fields)``, which does what the verb USERS does."""

    @_uri
    @_uri_file
    @_database
    @click.pass_obj
    @wraps(command)
    def run(
        invocation: Invocation, /, uri: str | None, uri_file: str | None, database: str, **given: Any
    ) -> Any:
        where = chosen_uri(uri, uri_file)
        if where is not None:
            invocation.note(f"without a broker, in database {database} of MongoDB itself")

        def act(action: str, **fields: Any) -> Any:
            if where is not None:
                try:
                    return of_broker(USERS).act(where, database, action, fields)
                except ValueError as error:
                    raise click.UsageError(f"{_FLAG}: {error}") from None
            return invocation.broker.act_on_principals(action, fields)

        return command(act, invocation, **given)

    return run


def chosen_uri(uri: str | None, file: str | None) -> str | None:
    """Return the URI of MongoDB that is given by an option, as it is or in a file; None: by neither."""
    if uri is not None and file is not None:
        raise click.UsageError(f"give one of {_FLAG} and --mongodb-uri-file")
    if file is not None:
        try:
            return read_secret(os.path.expanduser(file), "file of the URI").strip()  # noqa: PTH111
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    return None if uri is None else _out_of_sight(uri)


def _out_of_sight(uri: str) -> str:
    """Run this command again without the URI, as all users can read its arguments; return the URI then."""
    if uri == _HIDDEN:
        if not (given := environment.given(URI)):
            raise click.UsageError(f"{_FLAG} needs a URI, there or in {URI}")
        return given
    words = [_hidden(word, uri) for word in sys.orig_argv]
    if words != sys.orig_argv:
        os.environ[URI] = uri
        sys.stdout.flush()
        os.execv(sys.executable, words)  # noqa: S606 - this command again, before it has done anything
    return uri


def _hidden(word: str, uri: str) -> str:
    if word == uri:
        return _HIDDEN
    return f"{_FLAG}={_HIDDEN}" if word == f"{_FLAG}={uri}" else word
