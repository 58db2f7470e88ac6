"""``sluicemq principals``: principals, their keys, and what they may do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.options import Ruled, together
from sluicemq.cli.output import Invocation, fields, of_broker, shown
from sluicemq.cli.principal_store import acting
from sluicemq.installed import USERS
from sluicemq.protocol import wire
from sluicemq.protocol.keys import encode, read_key, read_key_file
from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.rules import LIMITS
from sluicemq.protocol.secret_files import read_secret

#: Principals that a broker returns at once.
_PAGE: Final = 1000

_name = click.argument("name")
_permissions = click.argument("permissions", nargs=-1)
_force = click.option("--force", is_flag=True, help="Also if nobody could change principals after this.")
_RATE, _BYTES_RATE = (Ruled(LIMITS[name]) for name in ("max_rate", "max_bytes_rate"))
_limits = together(
    click.option("--tenant", metavar="NAME", help='The tenant of all its jobs, whatever they say; "": none.'),
    click.option("--max-rate", type=_RATE, metavar="N", help="Jobs and messages a second that it may send."),
    click.option("--max-bytes-rate", type=_BYTES_RATE, metavar="N", help="Bytes a second that it may send."),
)
_keys = together(
    click.option("--key", metavar="KEY", help="Its public key, or a key file that has it."),
    click.option("--password", "asks", is_flag=True, help="Ask for its password."),
    click.option("--password-file", metavar="FILE", help="Its password is in FILE; - is stdin."),
    click.option("--token", is_flag=True, help="Make a token for HTTP, which is shown once."),
    click.option("--note", metavar="TEXT", help="Kept with the new key: where it is used, say."),
)


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that were given."""
    return {key: value for key, value in fields.items() if value not in (None, False)}


@click.group(cls=Noun, default="list")
def principals() -> None:
    """Say who may connect to the broker, by which keys, and what each may do.

    PERMISSIONS are actions with patterns of names: push=mail.*,sms work=* operate; or all, or none. Actions
    on queues are push, work, read, manage; on streams publish, subscribe; create makes either; operate is
    for statistics and principals. Quote them: the shell knows * too.

    Nobody may operate any more? --mongodb-uri changes principals in MongoDB itself, without a broker.
    """


@principals.command()
@_name
@_permissions
@_keys
@_limits
@acting
def add(act: Any, invocation: Invocation, name: str, permissions: tuple[str, ...], **options: Any) -> None:
    """Add principal NAME, which has PERMISSIONS."""
    keys = _new_keys(name, options)
    if not keys:
        raise click.UsageError("give its --key, --password, --password-file or --token")
    fields = {"permissions": _read(permissions or ("none",)), **keys, **_settings(options)}
    _changed(invocation, act(wire.ADD, name=name, **fields), f"added {name}")


@principals.command(name="list")
@acting
def list_(act: Any, invocation: Invocation) -> None:
    """List the principals: what they may do, and the ids of their keys."""
    rows: list[dict[str, Any]] = []
    while not rows or len(rows) % _PAGE == 0:
        more = act(wire.LIST, **({"after": rows[-1]["name"]} if rows else {}))
        rows += more
        if not more:
            break
    none = "no principals yet: `sluicemq principals add` adds one"
    invocation.answer({"principals": rows}, [_readable(row) for row in rows], none)


@principals.command()
@_name
@acting
def show(act: Any, invocation: Invocation, name: str) -> None:
    """Show principal NAME and its keys."""
    row = act(wire.ONE, name=name)
    if invocation.as_json:
        invocation.json(row)
        return
    readable = _readable(row)
    invocation.table("", fields({key: shown(key, readable[key]) for key in readable if key != "keys"}))
    invocation.result(" ")
    invocation.table("keys", row["keys"] or [{"id": None}])


@principals.command()
@_name
@click.option("--yes", is_flag=True, help="Don't ask.")
@_force
@acting
def remove(act: Any, invocation: Invocation, name: str, *, yes: bool, force: bool) -> None:
    """Remove principal NAME: its connections end at once."""
    invocation.confirm(f"Remove {name}, and end its connections?", yes=yes)
    act(wire.REMOVE, name=name, **_given(force=force))
    invocation.result(f"removed {name}", name=name)


@principals.command()
@_name
@_keys
@click.option("--drop", is_flag=True, help="Other keys of this kind end now. A new password always ends the one before.")  # noqa: E501 # fmt: skip
@click.option("--end", metavar="ID", help="End the key with this id.")
@_force
@acting
def rotate(act: Any, invocation: Invocation, name: str, end: str | None, **options: Any) -> None:
    """Give principal NAME a new key, password or token, or --end one.

    First the new one with --key; once it is in use everywhere, --end the old one: its connections end.
    """
    keys, more = _new_keys(name, options), _given(drop=options["drop"], force=options["force"])
    kinds = [kind for field, kind in _KINDS.items() if field in keys]
    if len(kinds) + (end is not None) != 1:
        raise click.UsageError("give one of --key, --password, --password-file, --token and --end")
    wanted = {"id": end} if end else {"kind": kinds[0], **{k: v for k, v in keys.items() if k != "token"}}
    _changed(invocation, act(wire.ROTATE, name=name, **wanted, **more), f"changed the keys of {name}")


@principals.command()
@_name
@_permissions
@_limits
@_force
@acting
def grant(
    act: Any, invocation: Invocation, name: str, permissions: tuple[str, ...], *, force: bool, **options: Any
) -> None:
    """Replace what principal NAME may do by PERMISSIONS; open connections get them at once."""
    fields = _settings(options) | ({"permissions": _read(permissions)} if permissions else {})
    if not fields:
        raise click.UsageError("give PERMISSIONS, --tenant, --max-rate or --max-bytes-rate")
    _changed(invocation, act(wire.PERMIT, name=name, **fields, **_given(force=force)), f"changed {name}")


@principals.command(name="hash")
@click.option("--password-file", metavar="FILE", help="The password is in FILE; - is stdin.")
@click.pass_obj
def hash_(invocation: Invocation, password_file: str | None) -> None:
    """Print the hash of a password, for [security.principals] in the configuration file."""
    hashed = of_broker(USERS).hash_password(_password("the principal", password_file))
    invocation.result(hashed, password=hashed)


_KINDS: Final = {"key": "curve", "password": "password", "token": "token"}


def _read(words: tuple[str, ...]) -> dict[str, list[str]]:
    try:
        return Permissions.read(" ".join(words)).plain()
    except ValueError as error:
        raise click.UsageError(f"PERMISSIONS are {error}") from None


def _new_keys(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the new keys as fields of USERS; asks for a password."""
    file = options["password_file"]
    password = _password(name, file) if options["asks"] or file else None
    key = options["key"] and _public_key(options["key"])
    return _given(key=key, password=password, token=options["token"], note=options["note"])


def _public_key(key: str) -> str:
    """Return a public key that is given itself, or by the name of a key file."""
    try:
        return encode(read_key(key))
    except ValueError as error:
        path = Path(key).expanduser()
        if not path.exists():
            raise click.UsageError(f"--key is no file, and not {error}") from None
    try:
        return encode(read_key_file(path).public)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    limits = _given(max_rate=options["max_rate"], max_bytes_rate=options["max_bytes_rate"])
    return _given(tenant=options["tenant"], limits=limits or None)


def _password(name: str, file: str | None) -> str:
    """Return a password from a file, stdin or a prompt: whatever is in an argument all users can read."""
    if file is None:
        return str(
            click.prompt(f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    try:
        text = sys.stdin.read() if file == "-" else read_secret(os.path.expanduser(file), "password file")  # noqa: PTH111
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return text.rstrip("\r\n")


def _changed(invocation: Invocation, row: dict[str, Any], text: str) -> None:
    """Show a changed principal, and its new token, which nobody sees again."""
    token = row.get("token")
    if token and not invocation.as_json:
        invocation.note(f"{text}; its token, which is shown only now:")
    invocation.result(token or text, **row)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    keys = [f"{key['id']} ({key['kind']})" for key in row["keys"]]
    limits = [f"{key}={value:g}" for key, value in row["limits"].items()]
    shown = {"name": row["name"], "permissions": str(Permissions.read(row["permissions"])), "keys": keys}
    rest = {
        "tenant": row["tenant"],
        "limits": limits,
        "throttled": row["throttled"],
        "changed_at": row["changed_at"],
    }
    return shown | rest | {"in the configuration": row["from_configuration"]}
