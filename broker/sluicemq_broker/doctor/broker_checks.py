"""Checks of brokers: whether one answers, who is silent, whether they hear of each other and agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sluicemq_broker.config import BusForm, Config, given_in_file
from sluicemq_broker.doctor.finding import Finding, error, info, ok, warning
from sluicemq_broker.doctor.subject import Subject
from sluicemq_broker.queues import Difference, differences, differences_of_brokers
from sluicemq_broker.runtime import Count, Gauge
from sluicemq_broker.store import (
    ALL_QUEUES,
    ConfigurationStore,
    Documents,
    LeaseStore,
    QueueRecordStore,
    Tables,
    ring_of_events,
)

#: Differences that are named.
_MOST: Final = 20
#: Counters that show trouble of a broker, and what to say of it.
_TROUBLE: Final = {
    Count.LEASE_LOST: "it lost its lease: its jobs were given to others, and ran twice",
    Count.BUS_UNTOLD: "it could not send events over the event bus",
    Count.BUS_LOST: "it could not receive events over the event bus",
}


def answers(subject: Subject) -> Iterator[Finding]:
    """Say whether a broker answers at the endpoint, and what keeps it from doing so."""
    said, where = subject.answers, subject.answers.endpoint
    if said.is_there:
        yield ok(f"a broker answers at {where}", _about(said.by_name.get("counters") or {}))
        yield from _of_counters(said.by_name.get("counters") or {})
        if said.code:
            yield info(f"the broker does not answer all questions: {said.message}")
    elif not where:
        yield info("no broker was asked", to_do="name one: --endpoint")
    elif said.refuses:
        yield error(
            f"the broker at {where} does not let this client in, or lets it see nothing",
            said.message,
            "give --key-file and --server-key, or --user, of a principal that may operate and read",
        )
    elif said.listens:
        yield error(
            f"something listens at {where} and does not answer: a broker that hangs, or another program",
            said.message,
            "look at its CPU and its log (top, journalctl); kill -9 loses no job, others take over; if it is "
            "no broker, name the right --endpoint",
        )
    else:
        level = error if said.is_named else warning
        yield level(
            f"no broker listens at {where}",
            said.message,
            "start it (sluicemq serve), or name the right --endpoint: its log names its doors",
        )


def _about(counters: dict[str, Any]) -> str:
    broker = counters.get("broker", {})
    return ", ".join(f"{name} {broker[name]}" for name in ("version", "pid", "uptime") if name in broker)


def _of_counters(answer: dict[str, Any]) -> Iterator[Finding]:
    broker, counters = answer.get("broker", {}), answer.get("counters", {})
    if broker.get("store", "ok") != "ok":
        yield error(f"the broker answers, its MongoDB does not: {broker['store']}")
    for name, what in _TROUBLE.items():
        if count := counters.get(name):
            yield warning(f"since its start {what}", f"{name} {count}", "see its log, and docs/counters.md")
    # Seconds of one turn of the hub that are too long: other clients wait for so long.
    if (turn := broker.get(Gauge.LONGEST_TURN, 0.0)) > 0.5:
        still = f"the broker stood still for {turn:.1f} s"
        yield warning(still, str(Gauge.LONGEST_TURN), "its machine is busy, or swaps")


def leases(subject: Subject) -> Iterator[Finding]:
    """Name brokers that live by their lease but have not renewed it, and those that fell silent."""
    store = subject.store
    if store.database is None or store.facts is None:
        return
    now = subject.now + store.facts.ahead
    spans = {row.broker: row.lease for row in ConfigurationStore(store.database).live()}
    brokers = LeaseStore(store.database).brokers()
    for broker in brokers:
        if broker.ended is not None:
            yield info(
                f"broker {broker.name} fell silent {(now - broker.ended) / 3600:.1f} h ago: "
                "it was declared dead",
                to_do="see whether it was killed: its log ends without 'stopped'",
            )
        elif now - broker.seen > 2.0 * spans.get(broker.name, 15.0):  # others look as often
            yield error(
                f"broker {broker.name} has not renewed its lease for {now - broker.seen:.0f} s: it hangs, "
                "or was killed while no other ran",
                f"lease {spans.get(broker.name, 15.0):g} s",
                "end it and start it again: its jobs go to the next broker that starts, or runs",
            )
    live = [broker.name for broker in brokers if broker.ended is None]
    if live:
        yield ok(f"brokers that have a lease: {len(live)}", ", ".join(live))
    else:
        yield info("no broker has a lease in this database")


def bus(subject: Subject) -> Iterator[Finding]:
    """Say whether brokers beside each other hear of each other's jobs at once."""
    config, database = subject.config, subject.store.database
    others = [] if database is None else ConfigurationStore(database).live()
    form = None if config is None else config.broker.event_bus
    if config is not None and form in (BusForm.OFF, BusForm.LOCAL) and len(others) > 1:
        yield warning(
            f"the event bus is {form}, and {len(others)} brokers share the database: each sees what others "
            f"have done only when it looks, every {config.broker.poll:g} s",
            ", ".join(other.broker for other in others),
            'set event_bus = "auto" in [broker] of all of them, and restart them',
        )
    elif database is not None and ring_of_events(database) is False:
        yield error(
            "the collection bus is not capped, so the event bus does not work: brokers only poll",
            to_do="drop it (db.bus.drop()): brokers make it again",
        )
    elif form is not None:
        yield ok(f"the event bus is {form}")


def agreement(subject: Subject) -> Iterator[Finding]:
    """Name settings, versions and leases that brokers have differently, and what this file says otherwise."""
    database = subject.store.database
    if database is None:
        return
    store = ConfigurationStore(database)
    brokers = store.live()
    known = store.read({broker.digest for broker in brokers if broker.digest})
    files = {broker.broker: known[broker.digest] for broker in brokers if broker.digest in known}
    stored = _stored(database)
    found = [*differences_of_brokers(brokers), *_unless_stored(files, stored)]
    for difference in found[:_MOST]:
        of = f" of queue {difference.queue}" if difference.queue else ""
        yield warning(
            f"brokers have different values{of}: {difference}",
            to_do="make their files alike and send SIGHUP, or: sluicemq queues set-settings QUEUE KEY VALUE"
            if difference.queue
            else "upgrade, or restart with one value",
        )
    if not found:
        yield ok("brokers agree on settings of queues, versions and leases", f"{len(brokers)} brokers")
        if subject.file and subject.config and files:
            yield from _of_file(subject.config, next(iter(files.values())), stored)


def _of_file(config: Config, tables: Tables, stored: set[tuple[str, str]]) -> Iterator[Finding]:
    """Name what a file says otherwise than the brokers that run, which agree."""
    own = {name: given_in_file(settings) for name, settings in config.queues.items()}
    own[ALL_QUEUES] = given_in_file(config.other_queues)
    # The name of the file among the settings of brokers.
    for difference in _unless_stored({"this file": own, "the brokers": tables}, stored)[:_MOST]:
        yield warning(
            f"the brokers run with another value of queue {difference.queue} than this file: {difference}",
            to_do="let them read it again: SIGHUP, systemctl reload sluicemq",
        )


def _unless_stored(files: dict[str, Tables], stored: set[tuple[str, str]]) -> list[Difference]:
    """Return the differences of files, but for values that all brokers have from MongoDB."""
    if len(files) < 2:
        return []
    return [
        difference
        for difference in differences(files)
        if not {(difference.queue, difference.key), (ALL_QUEUES, difference.key)} & stored
    ]


def _stored(database: Documents) -> set[tuple[str, str]]:
    records = QueueRecordStore(database).read()
    return {(record.name, key) for record in records for key in record.settings}


CHECKS = (answers, leases, bus, agreement)
