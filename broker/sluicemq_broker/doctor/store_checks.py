"""Checks of the database: its schema, the indexes of its queues, long operations that stand still."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from sluicemq.protocol.names import is_queue_name
from sluicemq.protocol.wire import TaskField
from sluicemq_broker.config import Config
from sluicemq_broker.doctor.finding import Finding, error, info, ok, warning
from sluicemq_broker.doctor.subject import Subject
from sluicemq_broker.job import Parent
from sluicemq_broker.runtime import NEARLY_USED, of_time
from sluicemq_broker.store import (
    READS,
    SCHEMA,
    Documents,
    HalfRestored,
    Inspector,
    LeaseStore,
    NewerSchema,
    QueueStore,
    SchemaStore,
    SetAside,
    StreamStore,
    TaskStore,
    collection,
    count_missing_children,
    damaged_documents,
    disk_of,
    missing_indexes,
    oldest_deaths,
    seconds,
    stream_names,
    waiting_parents,
)
from sluicemq_broker.streams import MUCH_OF_A_DISK

#: Queues that are named in one finding.
_MOST_NAMED: Final = 10


def schema(subject: Subject) -> Iterator[Finding]:
    """Say whether this version can read the database, and whether it should be upgraded."""
    for database in subject.store.databases:
        yield from _schema(SchemaStore(database))


def _schema(store: SchemaStore) -> Iterator[Finding]:
    try:
        number, written = store.read()
    except SetAside:
        return  # named among the documents that can't be read
    except HalfRestored as half:
        yield error(str(half), to_do="sluicemq restore, with that file: it begins again")
        return
    except NewerSchema as newer:
        yield error(str(newer), to_do="install that version on this machine, too")
        return
    if number < READS[0]:
        yield warning(
            f"the store {store.database} has schema {number}, which this version raises to {READS[0]}",
            to_do="stop all brokers of older versions before you start this one",
        )
    elif written < SCHEMA:
        yield warning(
            f"the store {store.database} has schema {written}; this version writes {SCHEMA}",
            "settings of queues in MongoDB, and more, wait for it",
            "when all brokers are of this version: sluicemq brokers upgrade",
        )
    else:
        yield ok(f"the store {store.database} has schema {number}")


def indexes(subject: Subject) -> Iterator[Finding]:
    """Name queues without some index: their jobs come slowly, or are stored twice."""
    if not subject.store.databases:
        return
    missing = {
        queue: names
        for database in subject.store.databases
        for queue, names in missing_indexes(database).items()
    }
    for queue, names in list(missing.items())[:_MOST_NAMED]:
        yield error(
            f"queue {queue} lacks the index {' and '.join(names)}",
            "without it MongoDB reads the whole queue for a claim, or keeps a dedupe_id twice",
            "brokers make it again within a minute; if they do not, their log says why (counter unindexed)",
        )
    if len(missing) > _MOST_NAMED:
        yield error(f"{len(missing) - _MOST_NAMED} more queues lack indexes")
    if not missing:
        yield ok("all queues have their indexes")


def families(subject: Subject) -> Iterator[Finding]:
    """Name parents that wait for children which somebody has removed by hand."""
    databases = subject.store.databases
    lost = {
        (queue, parent.id): count
        for database in databases
        for queue in Inspector(database).names()
        for parent, count in _lost_children(QueueStore(database, collection(queue)), databases)
    }
    for (queue, job), count in list(lost.items())[:_MOST_NAMED]:
        yield error(
            f"job {job} of queue {queue} waits for {count} children that are dead letters, or in no queue",
            "somebody has removed them from MongoDB, or their collection",
            f"sluicemq jobs cancel {queue} {job}",
        )
    if len(lost) > _MOST_NAMED:
        yield error(f"{len(lost) - _MOST_NAMED} more jobs wait for children that are in no queue")
    if databases and not lost:
        yield ok("no job waits for children that are in no queue")


def _lost_children(store: QueueStore, databases: Sequence[Documents]) -> Iterator[tuple[Parent, int]]:
    """Yield the first parents of a queue that have lost children, and how many each."""
    after = 0
    # Pages of parents of one queue that are looked at.
    for _ in range(20):
        page = waiting_parents(store, after)
        if page.parents:
            yield from count_missing_children(store, page.parents, databases).items()
        if page.after is None:
            return
        after = page.after


def retention(subject: Subject) -> Iterator[Finding]:
    """Name queues whose dead letters are about to be removed, and streams that fill their disk."""
    config, store = subject.config, subject.store
    if config is None or store.facts is None:
        return
    now = subject.now + store.facts.ahead
    found = [
        finding
        for database in store.databases
        for finding in (*_dead_letters(config, database, now), *_endless_streams(config, database))
    ]
    yield from found[:_MOST_NAMED]
    if not found:
        yield ok("no dead letter is removed soon, and no stream without a bound is large")


def _dead_letters(config: Config, database: Documents, now: float) -> Iterator[Finding]:
    """Judge the oldest dead letter of each queue, by the configuration; stored settings may say otherwise."""
    for name, died in oldest_deaths(database, Inspector(database).names()).items():
        kept = config.queue(name).dead_retention if is_queue_name(name) else 0.0
        left = died + kept - now
        if left < (1 - NEARLY_USED) * kept:
            yield warning(
                f"the oldest dead letters of queue {name} are removed in {max(0.0, left) / 86_400:.1f} days",
                f"dead_retention is {of_time(kept)}",
                f"sluicemq dead-letters list {name}; then dead-letters redrive, or "
                f"sluicemq queues set-settings {name} dead_retention",
            )


def _endless_streams(config: Config, database: Documents) -> Iterator[Finding]:
    disk = disk_of(database)
    for name in stream_names(database):
        if not (is_queue_name(name) and config.stream(name).endless):
            continue
        size = StreamStore(database, name).bytes_kept()
        if size > MUCH_OF_A_DISK * disk.total:
            yield warning(
                f"stream {name} has no bound, and {size / disk.total:.0%} of the disk of MongoDB",
                f"{size >> 20} MiB; with less than disk_reserve free it takes no more messages",
                f"set max_age or max_bytes in [streams.{name}]; or sluicemq streams trim {name}",
            )


def tasks(subject: Subject) -> Iterator[Finding]:
    """Name bulk operations that have made no progress for long, or whose broker is gone."""
    store = subject.store
    if store.database is None or store.facts is None:
        return
    now = subject.now + store.facts.ahead
    live = {owner for database in store.databases for owner in LeaseStore(database).live()}
    running = [task for database in store.databases for task in TaskStore(database).running()]
    for task in running:
        yield from _judged(task, now - _when(task, now), has_broker=task.get("owner") in live)
    if not running:
        yield ok("no bulk operation is under way")


def _judged(task: dict[str, Any], silent: float, *, has_broker: bool) -> Iterator[Finding]:
    name = f"task {task['_id']} ({task.get('kind')} of queue {task.get('queue')})"
    done = f"{task.get(TaskField.DONE, 0)} jobs so far, at broker {task.get('broker') or 'none'}"
    # Seconds after which a task that has made no progress is stuck: brokers note it each second or so, and
    # take over those of a dead one within a few leases.
    if silent < 120.0:
        yield info(f"{name} is under way", done)
    elif has_broker:
        yield warning(
            f"{name} is stuck: no progress for {silent:.0f} s",
            done,
            f"see that broker's log; sluicemq operations cancel {task['_id']}, and give the order again",
        )
    else:
        yield warning(
            f"{name} is stuck: its broker has ended, and no other has taken it over for {silent:.0f} s",
            done,
            "start a broker with this queue: it goes on with the task",
        )


def documents(subject: Subject) -> Iterator[Finding]:
    """Name documents that brokers can't read, and pass over."""
    found = [document for database in subject.store.databases for document in damaged_documents(database)]
    for damaged in found[:_MOST_NAMED]:
        yield error(
            f"document {str(damaged.id)[:64]!r} of collection {damaged.collection} can't be read: "
            f"{damaged.why[:200]}",
            "brokers pass over it, and do nothing of what it says",
            damaged.cure,
        )
    if len(found) > _MOST_NAMED:
        yield error(f"{len(found) - _MOST_NAMED} more documents can't be read")
    if subject.store.databases and not found:
        yield ok("all documents can be read")


def _when(task: dict[str, Any], now: float) -> float:
    at = task.get("changed_at") or task.get("started_at")
    return seconds(at) if isinstance(at, datetime) else now


CHECKS = (schema, indexes, families, retention, tasks, documents)
