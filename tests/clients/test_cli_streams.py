"""``sluicemq streams`` at a real broker."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluicemq.cli.app import app


class Command:
    """Runs ``sluicemq streams`` in this process."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def __call__(self, *arguments: str, stdin: str = "") -> Result:
        noun = [] if arguments[0] == "subscriptions" else ["streams"]
        everything = ["--endpoint", self._endpoint, "--timeout", "60", *noun, *arguments]
        return CliRunner().invoke(app, everything, stdin)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)


@pytest.fixture
def run(endpoint: str) -> Command:
    return Command(endpoint)


def test_what_is_published_is_read(run: Command, stream: str) -> None:
    one, two = run("publish", stream, "a.x", "one"), run("publish", stream, "b.x", "-", stdin="two")
    lines = run("publish", stream, "c", "--lines", stdin="three\nfour\n")
    read = run("read", stream)
    some = run.json("read", stream, "--topic", "*.x", "--after", "1", "--limit", "5")
    assert (one.stdout, two.stdout) == ("1\n", "2\n")
    assert lines.exit_code == 0
    assert [line.split()[0::2] for line in read.stdout.splitlines()] == [
        ["1", "3", "one"],
        ["2", "3", "two"],
        ["3", "5", "three"],
        ["4", "4", "four"],
    ]
    assert [(row["sequence"], row["payload"]) for row in some["messages"]] == [(2, "two")]


def test_streams_are_listed_shown_trimmed_and_deleted(run: Command, stream: str) -> None:
    run("publish", stream, "a", "--lines", stdin="1\n2\n3\n")
    listed = {row["name"]: row for row in run.json("list")["streams"]}[stream]
    trimmed = run("trim", stream, "3", "--yes")
    shown = run.json("show", stream)
    asked = run("erase", stream, stdin="n\n")
    deleted = run.json("erase", stream, "--yes")
    assert (listed["first"], listed["last"], listed["messages"]) == (1, 3, 3)
    assert "removed 2 messages" in trimmed.stdout
    assert (shown["first"], shown["subscriptions"]) == (3, [])
    assert (asked.exit_code, deleted["removed"]) == (1, 1)
    assert stream in run("show", stream).output
    assert stream not in run("list").stdout


def test_people_read_tables_of_streams_and_subscriptions(run: Command, stream: str) -> None:
    run("publish", stream, "a", "--lines", stdin="1\n2\n3\n")
    nobody = run("subscriptions", "list", stream)
    behind, at_the_end = (
        run("subscriptions", "seek", stream, "sums", "1"),
        run("subscriptions", "seek", stream, "totals", "-1"),
    )
    assert "no subscriptions" in nobody.output
    assert (behind.stdout, at_the_end.stdout) == ("sums goes on behind 1\n", "totals goes on at the end\n")
    assert {"messages", "sums", "totals"} <= set(run("show", stream).stdout.split())
    assert {"sums", "totals"} <= set(run("subscriptions", "list", stream).stdout.split())
    assert stream in run("list").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "nobody.knows"), 1),
        (("read", "nobody.knows"), 1),
        (("publish", "orders", "a"), 2),
        (("publish", "orders", "a", "x", "--expect", "99999999"), 1),
        (("read", "orders", "--after", "1", "--since", "1"), 2),
        (("trim", "nobody.knows", "1", "--yes"), 1),
        (("subscriptions", "release", "orders", "nobody"), 1),
    ],
)
def test_what_can_not_be_done_has_its_exit_code(run: Command, arguments: tuple[str, ...], code: int) -> None:
    assert run(*arguments).exit_code == code
