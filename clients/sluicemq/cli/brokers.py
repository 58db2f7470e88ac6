"""``sluicemq brokers`` and ``upgrade``: the brokers of a database, and the schema of their store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.output import CommandClient, Invocation
from sluicemq.protocol.errors import BadVerbError


@click.group(cls=Noun, default="list")
def brokers() -> None:
    """Look at the brokers of the database, and raise the schema of its store."""


@brokers.command("list")
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the brokers of the database: their versions, and since when they run.

    With those that fell silent in the last day, and the schema of the store.
    """
    found = _ask(invocation.broker)
    if invocation.as_json:
        invocation.json(found)
    else:
        _show(invocation, found)


@brokers.command()
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def upgrade(invocation: Invocation, *, yes: bool) -> None:
    """Raise the store's schema to the newest of this version, when all brokers are of it.

    Brokers go on with their work. Refused while a broker lives that can't read the new schema. There is no
    way back: older versions can't use the store any more.
    """
    found = _ask(invocation.broker)
    now, newest = found["schema"], found["newest"]
    if now < newest and not yes:
        _show(invocation, found, err=True)
        click.confirm(f"Raise the store from schema {now} to {newest}, for good?", abort=True, err=True)
    answer = invocation.broker.brokers.upgrade()
    before, schema = answer.before, answer.schema
    text = (
        f"the store had schema {schema} already" if before == schema else f"the store has schema {schema} now"
    )
    invocation.result(text, schema=schema, before=before)


def broker_row(broker: Mapping[str, Any]) -> dict[str, Any]:
    """Return a broker as a line of a table."""
    first, last = broker["reads"]
    state = "fell silent" if broker["ended"] is not None else "answers here" if broker["here"] else "lives"
    return {
        "name": broker["name"],
        "version": broker["version"] or "older",
        "reads": f"{first} to {last}" if first < last else f"{last}",
        "since_at": broker["since"],
        "seen_at": broker["seen"],
        "state": state,
    }


def _ask(client: CommandClient) -> dict[str, Any]:
    """Return the brokers; raises :class:`BadVerb`, with advice, if an older version answers."""
    try:
        return dict(client.sent.brokers.schema())  # with the brokers, as it is one answer
    except BadVerbError as error:
        raise BadVerbError(
            "the broker that answers is of an older version, which knows nothing of this: name a newer one "
            "with --endpoint"
        ) from error


def _show(invocation: Invocation, found: Mapping[str, Any], *, err: bool = False) -> None:
    rows: Sequence[Mapping[str, Any]] = [broker_row(broker) for broker in found["brokers"]]
    table = invocation.tabled("", rows)
    (invocation.err if err else invocation.out).print(table, crop=False)
    schema, newest = found["schema"], found["newest"]
    more = (
        ""
        if schema == newest
        else f"; sluicemq brokers upgrade raises it to {newest}, too new for old versions"
    )
    invocation.note(f"the store has schema {schema}{more}")
