"""``sluicemq streams`` and ``subscriptions``: messages that are kept, and their readers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from time import time
from typing import Any

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.options import timespan
from sluicemq.cli.output import Invocation, fields, shown, span
from sluicemq.message import Message
from sluicemq.protocol.errors import GapError
from sluicemq.protocol.permissions import Action
from sluicemq.publisher import Publisher
from sluicemq.reader import Reader
from sluicemq.start import Start

_topics = click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="A beginning, a pattern such as orders.*.paid or orders.>, or =TOPIC; may be given again.")  # noqa: E501 # fmt: skip
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(cls=Noun, default="list")
def streams() -> None:
    """Publish messages, read them from any point on, and remove the oldest."""


@click.group(cls=Noun, default="list")
def subscriptions() -> None:
    """Look at the named readers of streams, and say where they go on."""


@streams.command("list")
@click.pass_obj
def list_(invocation: Invocation, /) -> None:
    """List the streams, and what each keeps."""
    rows = invocation.broker.sent.streams.list()
    none = invocation.none_seen(Action.SUBSCRIBE, "streams")
    invocation.answer({"streams": rows}, [_readable(row) for row in rows], none)


@streams.command()
@click.argument("stream")
@click.pass_obj
def show(invocation: Invocation, /, stream: str) -> None:
    """Show one STREAM: its numbers, size, bounds and subscriptions."""
    found = invocation.broker.sent.streams.get(stream)
    readers = invocation.broker.sent.subscriptions.list(stream)
    invocation.answer({**found, "subscriptions": readers}, fields(_readable(found)))
    if readers and not invocation.as_json:
        invocation.table("subscriptions", readers)


@streams.command()
@click.argument("stream")
@click.argument("topic")
@click.argument("payload", required=False)
@click.option("--lines", is_flag=True, help="Publish each line of stdin.")
@click.option("--id", "own", metavar="ID", help="Stored once within the stream's dedupe_window.")
@click.option("--expect", type=click.IntRange(min=0), metavar="N", help="Only if the stream ends with N.")
@click.pass_obj
def publish(
    invocation: Invocation, /, stream: str, topic: str, payload: str | None, *, lines: bool, own: str | None,
    expect: int | None,
) -> None:  # fmt: skip
    """Publish PAYLOAD to STREAM on a TOPIC, and print its number.

    PAYLOAD may be - for stdin.
    """
    if lines == (payload is not None):
        raise click.UsageError("give one of PAYLOAD and --lines")
    with Publisher(close_timeout=invocation.timeout, endpoint=invocation.access) as publisher:
        if lines:
            receipts = [publisher.publish(stream, topic, line.rstrip(b"\n")) for line in sys.stdin.buffer]
        else:
            body = sys.stdin.buffer.read() if payload == "-" else str(payload).encode()
            receipts = [publisher.publish(stream, topic, body, id=own, expect=expect)]
        numbers = [receipt.wait(invocation.timeout) for receipt in receipts]
    if invocation.as_json:
        invocation.json({"stream": stream, "published": len(numbers), "last": max(numbers, default=0)})
    elif lines:
        invocation.note(f"{len(numbers)} published")
    else:
        invocation.result(str(numbers[0]))


@streams.command()
@click.argument("stream")
@click.option("--after", type=click.IntRange(min=0), metavar="N", help="Behind N; else from the oldest.")
@click.option("--since", type=timespan(), metavar="S", help="Not older than S seconds.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Messages at most.")
@_topics
@click.pass_obj
def read(
    invocation: Invocation, /, stream: str, *, after: int | None, since: float | None, limit: int,
    topics: tuple[str, ...],
) -> None:  # fmt: skip
    """Read messages of STREAM: number, time, size, topic, payload."""
    if after is not None and since is not None:
        raise click.UsageError("give one of --after and --since")
    start = Start.at((after or 0) + 1) if since is None else Start.since(time() - since)
    found: list[Message] = []
    with _reader(invocation, stream, start, topics) as reader:
        while len(found) < limit and (message := reader.read(invocation.timeout)):
            found.append(message)
    if invocation.as_json:
        invocation.json({"messages": [_row(message) for message in found]})
    else:
        for message in found:
            invocation.result(_line(message))


@streams.command()
@click.argument("stream")
@_topics
@click.pass_obj
def tail(invocation: Invocation, /, stream: str, *, topics: tuple[str, ...]) -> None:
    """Print what is published to STREAM from now on, until Ctrl-C."""
    with _reader(invocation, stream, Start.new(), topics, follow=True) as reader:
        for message in reader:
            if invocation.as_json:
                invocation.json(_row(message))
            else:
                invocation.result(_line(message))


@subscriptions.command("list")
@click.argument("stream", required=False)
@click.pass_obj
def list_subscriptions(invocation: Invocation, /, stream: str | None) -> None:
    """List subscriptions: their holders, and how far each is behind, in messages and seconds."""
    rows = invocation.broker.sent.subscriptions.list(stream)
    none = invocation.none_seen(Action.SUBSCRIBE, "subscriptions", "no subscriptions")
    invocation.answer({"subscriptions": rows}, rows, none)


@subscriptions.command(context_settings={"ignore_unknown_options": True})  # -1 is no option
@click.argument("stream")
@click.argument("subscription")
@click.argument("after", type=int)
@click.pass_obj
def seek(invocation: Invocation, /, stream: str, subscription: str, after: int) -> None:
    """Set the watermark of a SUBSCRIPTION that nobody holds to number AFTER (-1: the newest)."""
    invocation.broker.subscriptions.seek(stream, subscription, after)
    text = f"{subscription} goes on behind {after}" if after >= 0 else f"{subscription} goes on at the end"
    invocation.result(text, stream=stream, subscription=subscription, after=after)


@subscriptions.command()
@click.argument("stream")
@click.argument("subscription")
@click.pass_obj
def release(invocation: Invocation, /, stream: str, subscription: str) -> None:
    """Take a SUBSCRIPTION from its present or last holder."""
    invocation.broker.subscriptions.release(stream, subscription)
    invocation.result(f"released {subscription}", stream=stream, subscription=subscription)


@subscriptions.command("delete")
@click.argument("stream")
@click.argument("subscription")
@_yes
@click.pass_obj
def delete(invocation: Invocation, /, stream: str, subscription: str, *, yes: bool) -> None:
    """Remove a SUBSCRIPTION that nobody holds, with its position."""
    invocation.confirm(f"Remove subscription {subscription} of stream {stream}?", yes=yes)
    invocation.broker.subscriptions.delete(stream, subscription)
    invocation.result(f"removed {subscription}", stream=stream, subscription=subscription)


@streams.command()
@click.argument("stream")
@click.argument("first", type=click.IntRange(min=1))
@_yes
@click.pass_obj
def trim(invocation: Invocation, /, stream: str, first: int, *, yes: bool) -> None:
    """Remove the messages of STREAM before number FIRST."""
    invocation.confirm(f"Remove all messages of stream {stream} before {first}?", yes=yes)
    removed = invocation.broker.streams.trim(stream, first)
    invocation.result(f"removed {removed} messages of {stream}", stream=stream, removed=removed)


@streams.command()
@click.argument("stream")
@_yes
@click.pass_obj
def erase(invocation: Invocation, /, stream: str, *, yes: bool) -> None:
    """Remove all messages of STREAM; its numbers go on."""
    invocation.confirm(f"Remove all messages of stream {stream}?", yes=yes)
    removed = invocation.broker.streams.erase(stream)
    invocation.result(f"removed {removed} messages of {stream}", stream=stream, removed=removed)


def _reader(
    invocation: Invocation, stream: str, start: Start, topics: tuple[str, ...], *, follow: bool = False
) -> Reader:
    def report(gap: GapError) -> None:
        invocation.note(str(gap))

    return Reader(
        stream, start=start, topics=topics, follow=follow, on_gap=report, endpoint=invocation.access
    )


def _line(message: Message) -> str:
    when = datetime.fromtimestamp(message.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    payload = shown("", message.payload)
    return f"{message.sequence} {when} {len(message.payload)} {message.topic} {payload}"


def _row(message: Message) -> dict[str, Any]:
    return {
        "sequence": message.sequence,
        "topic": message.topic.encode(errors="surrogateescape").decode(errors="replace"),
        "time": message.time,
        "payload": message.payload,
    }


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    age = row.get("last_at")
    seen = {} if age is None else {"last_at": f"{span(max(0.0, time() - age))} ago"}
    return {key: value for key, value in {**row, **seen}.items() if value is not None}
