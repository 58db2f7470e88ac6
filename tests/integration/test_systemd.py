"""A broker tells its service manager how it is, as a unit with ``Type=notify`` wants it."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import gevent
import pytest

from sluicemq import Worker
from sluicemq_broker.process.systemd import Notifier
from support.broker_process import BrokerProcess
from support.service_manager import ServiceManager
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with ServiceManager(tmp_path, watchdog=1.0) as manager:
        yield manager


def test_a_broker_says_that_it_starts_is_ready_reads_its_file_again_and_stops(
    manager: ServiceManager, mongo_uri: str, database: str
) -> None:
    with BrokerProcess(mongo_uri, database, env=manager.environment) as broker:
        # Then it has needed time before it was ready
        manager.wait_for("READY", "1")
        assert any("EXTEND_TIMEOUT_USEC" in message for message in manager.heard)
        # and says how it is
        with Worker("default", lambda job: None, endpoint=broker.doors["smq"]):
            manager.wait_for("STATUS", " queues, 1 workers, 0 jobs running")
        # When it is to read its file
        broker.send_signal(signal.SIGHUP)
        # Then it says when that begins and ends
        assert int(manager.wait_for("RELOADING", "1")["MONOTONIC_USEC"]) > 0
        manager.wait_for("READY", "1")
        # When it is to stop
        broker.process.terminate()
        # Then it says so, and needs time
        manager.wait_for("STOPPING", "1")
        manager.wait_for("EXTEND_TIMEOUT_USEC")
        assert broker.process.wait(TIMEOUT) == 0


def test_no_sign_of_life_at_a_standstill(manager: ServiceManager, mongo_uri: str, database: str) -> None:
    with BrokerProcess(mongo_uri, database, env=manager.environment) as broker:
        manager.wait_for("READY")
        manager.wait_for("WATCHDOG", "1")
        broker.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{broker.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop")
        manager.drain()
        with pytest.raises(TimeoutError):
            manager.next(timeout=2.0)
        broker.send_signal(signal.SIGCONT)
        manager.wait_for("WATCHDOG", "1")


def test_a_watchdogs_abort_is_logged(manager: ServiceManager, mongo_uri: str, database: str) -> None:
    with BrokerProcess(mongo_uri, database, env=manager.environment) as broker:
        broker.send_signal(signal.SIGABRT)
        assert broker.process.wait(TIMEOUT) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in broker.log_text()


def test_a_start_without_mongodb_asks_for_time_and_is_never_ready(
    manager: ServiceManager, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    uri = f"mongodb://127.0.0.1:{free_port()}/?replicaSet=rs0"
    broker = BrokerProcess(uri, "none", env=manager.environment, folder=tmp_path)
    try:
        broker.launch()
        manager.wait_for("STATUS", "starting: MongoDB has not answered for")
        assert broker.process.wait(TIMEOUT) == 1
        assert not any("READY" in message for message in manager.heard)
    finally:
        broker.close()


def test_an_embedded_mongod_hears_nothing_of_the_manager(manager: ServiceManager) -> None:
    with BrokerProcess(env=manager.environment) as broker:
        environ = Path(f"/proc/{broker.mongod_pid}/environ").read_text()
        assert "NOTIFY_SOCKET" not in environ
        assert "WATCHDOG" not in environ
        manager.wait_for("READY")


def test_a_name_without_a_file_is_an_address_too() -> None:
    name = f"sluicemq-test-{token_hex(6)}"
    with ServiceManager(name=name) as manager:
        notifier = Notifier(manager.environment)
        notifier.starting(lambda: "two\nlines")
        notifier.ready()
        assert manager.wait_for("READY")
        assert manager.wait_for("STATUS")["STATUS"] == "two lines"
        notifier.close()
    assert not any("WATCHDOG" in message for message in manager.heard)


def test_states_wait_in_their_order_for_a_manager_that_does_not_read(tmp_path: Path) -> None:
    with ServiceManager(tmp_path) as manager, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        # Given one whose socket is full
        others.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                others.sendto(b"STATUS=of others", manager.environment["NOTIFY_SOCKET"])
        notifier = Notifier(manager.environment)
        notifier.starting(lambda: "")
        notifier.ready()
        with notifier.reloading():
            pass
        notifier.stopping()
        manager.drain()
        gevent.sleep(2.0)
        notifier.close()
        states = [next(iter(manager.next())) for _ in range(4)]
        assert states == ["READY", "RELOADING", "READY", "STOPPING"]


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "not a path"}]
)
def test_where_nobody_listens_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    notifier.starting(lambda: "")
    notifier.ready()
    notifier.stopping()
    notifier.close()


@pytest.mark.parametrize("wanted", ["", "soon", "-5"])
def test_a_watchdog_that_is_not_meant_for_this_process_is_not_fed(wanted: str) -> None:
    assert not Notifier({"WATCHDOG_USEC": wanted}).watched
    assert not Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watched
    assert Notifier({"WATCHDOG_USEC": "1000000"}).watched
