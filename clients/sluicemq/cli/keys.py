"""``sluicemq key``: key pairs of clients and brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import zmq

from sluicemq.cli.output import Invocation
from sluicemq.protocol.keys import (
    KeyPair,
    encode,
    key_file,
    key_id,
    read_key,
    read_key_file,
    write_key_file,
)

_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def key() -> None:
    """Make the keys by which brokers and clients know each other (CURVE)."""


@key.command()
@click.option("--out", type=_FILE, metavar="FILE", help="Write the pair to FILE, for you alone, and print the public key.")  # noqa: E501 # fmt: skip
@_json
@click.pass_obj
def new(invocation: Invocation, out: Path | None, *, as_json: bool) -> None:
    """Make a key pair. Without --out it is printed whole: its secret key is for nobody else."""
    invocation.as_json |= as_json
    pair = _new_pair()
    if out is not None:
        _write(out, pair)
        _show(invocation, pair.public, file=str(out))
        return
    if invocation.as_json:
        keys = {"public_key": encode(pair.public), "secret_key": encode(pair.secret)}
        invocation.json({**keys, "key_id": key_id(pair.public)})
    else:
        invocation.line(key_file(pair).rstrip())
    invocation.note("keep the secret key to yourself: --out FILE writes a file that nobody else can read")


@key.command()
@click.argument("file", type=_FILE)
@_json
@click.pass_obj
def show(invocation: Invocation, file: Path, *, as_json: bool) -> None:
    """Show the public key and the key id of a key FILE, never its secret key."""
    invocation.as_json |= as_json
    try:
        pair = read_key_file(file)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="FILE") from None
    _show(invocation, pair.public)


def _show(invocation: Invocation, public: bytes, **more: str) -> None:
    """Print a public key, alone, so that a script can take it."""
    if not invocation.as_json:
        invocation.note(f"key id {key_id(public)}, public key:")
    invocation.result(encode(public), public_key=encode(public), key_id=key_id(public), **more)


def _new_pair(has: Callable[[str], bool] = zmq.has) -> KeyPair:
    if not has("curve"):
        raise click.ClickException(
            f"libzmq {zmq.zmq_version()} was built without CURVE: that of the wheels of pyzmq has it"
        )
    public, secret = zmq.curve_keypair()
    return KeyPair(read_key(public.decode()), read_key(secret.decode()))


def _write(file: Path, pair: KeyPair) -> None:
    try:
        write_key_file(file, pair)
    except FileExistsError:
        raise click.ClickException(f"{file} exists, and no key is written over: name another file") from None
    except OSError as error:
        raise click.ClickException(f"can't write {file}: {error.strerror}") from None
