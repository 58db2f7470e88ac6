"""Library, command line and HTTP use one table of nouns and verbs."""

from __future__ import annotations

import inspect

import click
import pytest

from reference import site
from sluicemq.cli.app import SECTIONS, app
from sluicemq.cli.former import FORMER
from sluicemq.cli.nouns import Noun
from sluicemq.namespaces import Namespaces
from sluicemq.namespaces.calls import Calls
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import wire
from sluicemq.protocol.verbs import VERBS, Verb

#: Commands that are no verbs of administration: they publish, read, or compute alone.
BESIDE = {"streams publish", "streams read", "streams tail", "principals hash"}

#: Paths for browsers: a payload as a file, one dead letter, the counters of the broker itself, and curves.
OF_HTTP = {"jobs.payload", "jobs.delete", "jobs.redrive", "brokers.counters"}
OF_HTTP |= {"jobs.push", "streams.messages"}
OF_HTTP |= {"history.get", "history.series", "history.recent"}


def commands() -> dict[str, click.Command]:
    """Each command of a noun, by its words."""
    context, found = click.Context(app), {}
    for name in app.list_commands(context):
        noun = app.get_command(context, name)
        if isinstance(noun, Noun):
            found.update({f"{name} {verb}": command for verb, command in noun.commands.items()})
    return found


def test_the_namespaces_of_a_client_have_the_verbs_of_the_table() -> None:
    namespaces = vars(Namespaces(Calls.__new__(Calls)))
    found = {
        f"{noun}.{verb}"
        for noun, namespace in namespaces.items()
        if isinstance(namespace, Namespace)
        for verb, _ in inspect.getmembers(type(namespace), inspect.isfunction)
        if not verb.startswith("_")
    }
    assert found == {verb.method for verb in VERBS}


def test_the_command_line_has_the_verbs_of_the_table() -> None:
    assert commands().keys() - BESIDE == {verb.command for verb in VERBS if verb.command}


def test_help_has_each_command_in_one_section() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == app.list_commands(click.Context(app))


def test_paths_of_http_have_the_verbs_of_the_table() -> None:
    nouns = {verb.noun for verb in VERBS}
    routes = [route for methods in site().table.values() for route, _ in methods.values()]
    named = {route.name for route in routes if route.name.partition(".")[0] in nouns}
    assert named - {verb.method for verb in VERBS} == OF_HTTP


@pytest.mark.parametrize("verb", [known for known in VERBS if known.smq], ids=lambda verb: verb.method)
def test_each_verb_of_smq1_exists(verb: Verb) -> None:
    assert getattr(wire, verb.smq.partition(" ")[0]) == verb.smq.partition(" ")[0].encode()


@pytest.mark.parametrize(("old", "new"), FORMER.items())
def test_a_command_of_the_last_version_is_hidden_and_has_a_new_form(old: str, new: str) -> None:
    first, *rest = old.split()
    command = app.get_command(click.Context(app), first)
    assert command is not None
    if rest:
        assert isinstance(command, click.Group)
        command = command.commands[rest[0]]
    assert command.hidden
    assert " ".join(new.split()[:2]) in commands()
