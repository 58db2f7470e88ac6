"""Checks of the configuration: wrong values, doors that are open to others, addresses that are taken."""

from __future__ import annotations

from collections.abc import Iterator

from sluicemq_broker.config import Config, day, exposed, http_exposure, validity
from sluicemq_broker.doctor.finding import Finding, error, info, ok, warning
from sluicemq_broker.doctor.subject import Subject


def is_valid(subject: Subject) -> Iterator[Finding]:
    """Name each wrong value and key."""
    for problem in subject.problems:
        yield error(f"the configuration is not valid: {problem}", to_do="mend it: sluicemq config check FILE")
    if subject.config is not None:
        where = str(subject.file) if subject.file else "no file: environment and defaults"
        yield ok("the configuration is valid", where)
        for text in subject.config.warnings:
            yield warning(str(text), to_do=f"unset {text.place} where the broker runs")


def addresses(subject: Subject) -> Iterator[Finding]:
    """Name addresses of doors that another program has; a broker that answers has them by right."""
    if subject.config is None or subject.answers.is_there or subject.answers.refuses:
        return
    for door in subject.taken:
        yield error(
            f"{door} is taken, and no broker answers there: this one can't start",
            subject.answers.message,
            f"see who has it: ss -ltnp 'sport = :{door.rpartition(':')[2]}'; end that program, or give this "
            "broker others: ports in [broker], or --ports",
        )
    if not subject.taken:
        yield ok("the addresses of all doors are free")


def open_doors(subject: Subject) -> Iterator[Finding]:
    """Name doors that other machines can reach without a key, although somebody has accepted that."""
    if subject.config is None:
        return
    for door in exposed(subject.config):
        yield warning(
            f"other machines can reach {door.address}, and clients need no key there",
            f"{door.place}: {door.permissions}",
            "give clients keys (docs/security.md), or let it listen on 127.0.0.1",
        )
    if http := http_exposure(subject.config):
        yield warning(
            f"other machines can reach the HTTP door {subject.config.broker.http}, and {http}",
            to_do="set http_tls_cert and http_tls_key, and anonymous in [security]",
        )


def certificate(subject: Subject) -> Iterator[Finding]:
    """Say until when the certificate of the HTTP door holds."""
    file = subject.config.broker.http_tls_cert if subject.config else None
    holds = validity(file) if file else None
    if holds is None:
        return
    problem, renewed = holds.problem(subject.now), "put a new one into its files, and send the broker SIGHUP"
    if not problem:
        yield ok(f"the certificate of the HTTP door holds until {day(holds.ends)}", str(file))
    elif holds.begins < subject.now < holds.ends:
        yield warning(f"the certificate of the HTTP door {problem}", str(file), renewed)
    else:
        yield error(f"the certificate of the HTTP door {problem}", str(file), renewed)


def risky_values(subject: Subject) -> Iterator[Finding]:
    """Name values that are allowed, and rarely meant."""
    config = subject.config
    if config is None:
        return
    broker = config.broker
    if broker.allow_unsafe_store:
        yield warning(
            "allow_unsafe_store is set: a MongoDB that loses confirmed jobs would be accepted",
            to_do="remove it, and run MongoDB as a replica set",
        )
    # A lease takes several heartbeats of MongoDB; below this a busy machine loses it now and then
    if broker.lease < 3.0:
        yield warning(
            f"lease is {broker.lease:g} s: an election takes longer, and jobs run twice then",
            to_do="leave it at 15 s, or set 5 s at least",
        )
    yield from _unbounded(config)


def _unbounded(config: Config) -> Iterator[Finding]:
    streams = {"*": config.other_streams, **config.streams}
    endless = [name for name, settings in streams.items() if settings.endless]
    if endless:
        yield info(
            "streams without a bound keep all messages, until the disk has no more than disk_reserve left",
            f"[streams]: {', '.join(endless)}",
            "set max_age, max_messages or max_bytes",
        )


CHECKS = (is_valid, addresses, open_doors, certificate, risky_values)
