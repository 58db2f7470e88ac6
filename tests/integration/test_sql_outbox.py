"""Outboxes of SQL databases: a job exists exactly if the transaction of the application has committed."""

import importlib
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sluicemq import Producer, sql_outbox
from support.own_queue import SECONDS, OwnQueue
from support.ports import free_port
from support.samples import block
from support.waiting import wait_until


def sqlite(folder: Path) -> Callable[[], sqlite3.Connection]:
    connect = partial(sqlite3.connect, folder / "shop.sqlite")
    with closing(connect()) as connection:
        connection.execute(sql_outbox.SQLITE)
        connection.execute("CREATE TABLE orders (number INTEGER)")
        connection.commit()
    return connect


@contextmanager
def postgresql(folder: Path) -> Iterator[Callable[[], Any]]:
    """A PostgreSQL of the test's own, with the table of posts."""
    psycopg: Any = importlib.import_module("psycopg")

    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    data, port = folder / "data", free_port()
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(folder, "postgres")
        for parent in (folder, *list(folder.parents)[:-1]):
            with suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o011)
    run = partial(subprocess.run, check=True, capture_output=True, cwd=folder)
    run([*user, str(programs / "initdb"), "-D", str(data), "-U", "shop", "-A", "trust"])
    command = [*user, str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    connect = partial(psycopg.connect, host=str(folder), port=port, user="shop", dbname="postgres")
    try:

        def up() -> bool:
            with suppress(psycopg.OperationalError):
                connect().close()
                return True
            return False

        wait_until(up, SECONDS, "PostgreSQL")
        with connect() as connection:
            connection.execute(sql_outbox.POSTGRESQL)
            connection.execute("CREATE TABLE orders (number INTEGER)")
        yield connect
    finally:
        server.terminate()
        server.wait(SECONDS)


class Dying:
    """A connection that is lost at its commit."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        raise ConnectionResetError


def order(connection: Any, number: int, queue: str, **options: Any) -> str:
    """Note an order, and push its job, in the transaction of the connection."""
    cursor = connection.cursor()
    cursor.execute(f"INSERT INTO orders VALUES ({number})")  # noqa: S608
    return sql_outbox.push(cursor, queue, b"%d" % number, **options)


def carries(connect: Callable[[], Any], jobs: OwnQueue, folder: Path) -> None:
    """What holds with every database."""
    relay = sql_outbox.Relay(connect, jobs.producer)
    with closing(connect()) as shop:
        pushed = [order(shop, number, jobs.queue, priority=3) for number in range(3)]
        shop.commit()
        order(shop, 3, jobs.queue)
        shop.rollback()
        pushed.append(order(shop, 4, jobs.queue, priority=3, headers={"trace": "t"}))
        wrong = order(shop, 5, jobs.queue)
        shop.cursor().execute(f"UPDATE sluicemq_outbox SET queue = 'no name' WHERE id = '{wrong}'")  # noqa: S608
        shop.commit()

        with closing(connect()) as connection:
            assert relay.carry(connection) == 4
            assert relay.carry(connection) == 0

        claim = jobs.reserve(4)
        assert [job.id for job in claim.jobs] == pushed
        assert claim.jobs[3].headers == {"trace": "t"}
        assert claim.jobs[3].priority == 3
        cursor = shop.cursor()
        cursor.execute("SELECT id, refused FROM sluicemq_outbox")
        ((left, refused),) = cursor.fetchall()
        assert left == wrong
        assert refused.startswith("BAD_QUEUE")
        cursor.execute("DELETE FROM sluicemq_outbox")
        cursor.execute("SELECT number FROM orders ORDER BY number")
        assert [row[0] for row in cursor.fetchall()] == [0, 1, 2, 4, 5]
        shop.commit()

        # A relay dies between the answer of the broker and its deletion, and the job is done by then.
        again = order(shop, 6, jobs.queue)
        shop.commit()
        with closing(Dying(connect())) as connection, pytest.raises(ConnectionResetError):
            relay.carry(connection)
        claim.commit()
        jobs.take().commit()
        with closing(connect()) as connection:
            assert relay.carry(connection) == 1
        assert not jobs.ready()
        assert jobs.state(again) == "done"  # it is known for a day


def test_a_post_of_sqlite_becomes_one_job(jobs: OwnQueue, tmp_path: Path) -> None:
    carries(sqlite(tmp_path), jobs, tmp_path)


@pytest.mark.full
def test_a_post_of_postgresql_becomes_one_job(jobs: OwnQueue, tmp_path: Path) -> None:
    if not (importlib.util.find_spec("psycopg") and any(Path("/usr/lib/postgresql").glob("*/bin"))):
        pytest.skip("needs PostgreSQL and psycopg: apt-get install postgresql, pip install psycopg[binary]")
    with postgresql(tmp_path) as connect:
        carries(connect, jobs, tmp_path)


def test_a_queue_that_takes_no_jobs_keeps_no_other_waiting(jobs: OwnQueue, tmp_path: Path) -> None:
    connect, full = sqlite(tmp_path), f"{jobs.queue}.paused"
    jobs.broker.make(full)
    jobs.client.queues.pause(full, "intake")
    with closing(connect()) as shop, Producer(endpoint=jobs.endpoint, push_timeout=60) as producer:
        for number in range(2):
            order(shop, number, full)
        free = order(shop, 2, jobs.queue)
        shop.commit()
        relay = sql_outbox.Relay(connect, producer)
        assert relay.carry(shop) == 1
        assert jobs.take().id == free
        jobs.client.queues.resume(full, "intake")
        assert relay.carry(shop) == 2
        assert [job.payload for job in jobs.client.jobs.list(full)] == [b"0", b"1"]


def test_relays_beside_each_other_make_one_job_of_each_post(jobs: OwnQueue, tmp_path: Path) -> None:
    connect, stop = sqlite(tmp_path), threading.Event()
    threads = []
    for _ in range(2):
        relay = sql_outbox.Relay(connect, jobs.producer, every=0.01)
        threads.append(threading.Thread(target=relay.run, args=(stop,)))
        threads[-1].start()
    with closing(connect()) as shop:
        pushed = []
        for number in range(50):
            pushed.append(order(shop, number, jobs.queue))
            shop.commit()
    taken: list[str] = []
    while len(taken) < len(pushed):
        with jobs.client.jobs.reserve(jobs.queue, 50, wait=SECONDS) as claim:
            taken += [job.id for job in claim.jobs]
            claim.commit()
    stop.set()
    for thread in threads:
        thread.join(SECONDS)
    assert taken == pushed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["outbox: sqlite", "outbox: sqlalchemy", "outbox: django"])
def test_the_recipes_push_with_their_transactions(jobs: OwnQueue, tmp_path: Path, name: str) -> None:
    where = {"SLUICEMQ_ENDPOINT": jobs.endpoint, "SHOP": str(tmp_path / "shop.sqlite")}
    jobs.broker.make("mail")
    program = [sys.executable, "-c", block(name)]
    subprocess.run(program, check=True, env={**os.environ, **where}, cwd=tmp_path, timeout=SECONDS)
    relay = subprocess.Popen(
        [sys.executable, "-c", block("outbox: relay")], env={**os.environ, **where}, cwd=tmp_path
    )
    try:
        with jobs.client.jobs.reserve("mail", 1, wait=SECONDS) as claim:
            assert [job.payload for job in claim.jobs] == [b'{"order":7}']
            claim.commit()
    finally:
        relay.terminate()
        assert relay.wait(SECONDS) == 0
