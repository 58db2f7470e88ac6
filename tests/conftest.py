"""What all tests share: one real MongoDB, a database of one's own, free ports, long tests on request."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from pymongo import MongoClient

import launcher
from long_forms import longer
from redis_server import RedisServer
from sluicemq import Client, Subscription

if TYPE_CHECKING:
    from plain_clients import BrokerUnderTest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long tests too: less than an hour")
    parser.addoption("--hours", action="store_true", help="run all tests, explorations ten times as long")
    parser.addoption("--first-example", action="store_true", help="show a failing example as it was found")


def pytest_configure(config: pytest.Config) -> None:
    """Examples of Hypothesis: more with ``--full`` and ``--hours``, and as slow as a busy machine is.

    Tests that want more or fewer say how many times ``settings().max_examples``.
    """
    if config.getoption("--hours"):
        config.option.full = True
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else no program of a test hears Ctrl-C
    for kind in (Client, Subscription):  # a machine may stand still for longer than users want to wait
        defaults: Any = kind.__init__
        defaults.__kwdefaults__["timeout"] = launcher.TIMEOUT
    examples = 100 * longer(config) if config.getoption("--full") else 50
    slow = [HealthCheck.too_slow]
    found_first = config.getoption("--first-example")
    phases = [each for each in Phase if not (found_first and each in (Phase.shrink, Phase.explain))]
    settings.register_profile(
        "sluicemq", max_examples=examples, deadline=None, suppress_health_check=slow, phases=phases
    )
    settings.load_profile("sluicemq")


#: Files that take long though they have few tests. With several processes they are begun first, so that
#: none of them is left to one process while the others have nothing more to do.
LONG = (
    "test_bench.py",
    "test_longest_turn.py",
    "test_embedded.py",
    "test_model_brokers.py",
    "test_model_brokers_pipelines.py",
    "test_foreign_peers.py",
    "test_broker_killed.py",
    "test_starting.py",
    "test_cli.py",
    "test_workers_die.py",
    "test_fair_queues.py",
    "test_aggregate.py",
    "test_under_gevent.py",
    "test_http_jobs.py",
    "test_stopping.py",
    "test_state_machine.py",
    "test_forks.py",
    "test_http_actions.py",
    "test_json.py",
    "test_topics.py",
    "test_routes.py",
    "test_protocol_model.py",
    "test_devices.py",
    "test_groups_interleaved.py",
    "test_leases_of_live_brokers.py",
    "test_bounds.py",
    "test_held_replies.py",
    "test_forwarding_killed.py",
    "test_model.py",
    "test_dedupe_model.py",
    "test_model_brokers_limits.py",
    "test_mongod_faults.py",
    "test_nobody_works.py",
    "test_retries.py",
    "test_decoys.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: (_place(item.path.name), -counts[item.path]))
    for option in ("full", "hours"):
        if not config.getoption(f"--{option}"):
            _skip(items, option)


def _skip(items: list[pytest.Item], option: str) -> None:
    for item in items:
        if item.get_closest_marker(option):
            item.add_marker(pytest.mark.skip(reason=f"long; runs with --{option}"))


def _place(file: str) -> int:
    return LONG.index(file) if file in LONG else len(LONG)


# The launcher owns mongod: it is a process of its own, so it does not matter whether this one is
# monkey-patched, and when this one is killed, its stdin closes and it ends. A session of its own:
# Ctrl-C must not take it away before the fixtures that still need it.
_STORE = """
import shutil, sys
from pathlib import Path
from sluicemq_broker.embedded.life import EmbeddedMongo
from pymongo import MongoClient
store = EmbeddedMongo(Path(sys.argv[1]))
try:
    uri = store.start()
    with MongoClient(uri) as client:  # dropping a database waits for the journal: 10 ms, not 100
        client.admin.command({"setParameter": 1, "journalCommitInterval": 10})
    print(uri, flush=True)
    sys.stdin.read()
finally:
    store.stop()
shutil.rmtree(sys.argv[1], ignore_errors=True)  # where it has not started, its log is still wanted
"""

#: A file system in memory, for the sessions' MongoDB: what is written a thousand times a minute and kept for
#: no longer than the session needs no disk, which takes a quarter of its CPU and half of the waiting for it.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108
#: Bytes that must be free there, and stay free: three of them take about one gigabyte.
_ROOM = 4 * 2**30


@pytest.fixture(scope="session")
def mongo_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a real MongoDB, a single-node replica set, that lasts as long as the session."""
    given = os.environ.get("SLUICEMQ_TEST_MONGODB_URI")
    if given:
        yield given
        return
    folder = _quick_folder() or tmp_path_factory.mktemp("store")
    program = [sys.executable, "-c", _STORE, str(folder)]
    store = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield _uri_of(store, folder)
    finally:
        _end(store)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a real Redis that lasts as long as the session."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def database(mongo_uri: str) -> Iterator[str]:
    """The name of a database that no other test uses; dropped at the end."""
    name = f"test_{token_hex(6)}"
    yield name
    with MongoClient[dict[str, object]](mongo_uri, serverSelectionTimeoutMS=60_000) as client:
        client.drop_database(name)


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """How many times as long as with ``--full`` a random exploration is."""
    return longer(request.config)


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """The broker that a file's tests share, as ``shared``: they leave no socket, and no error in its log."""
    yield shared
    shared.close_sockets()
    assert "Traceback" not in shared.process.log_text()


@pytest.fixture
def endpoint(broker: BrokerUnderTest) -> str:
    """Where the library finds it."""
    return broker.doors["smq"]


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return token_hex(6)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that gives ports on 127.0.0.1 that are free, another one at each call."""
    return launcher.free_port


def _quick_folder() -> Path | None:
    """A new folder in memory; None where there is no room."""
    if not os.access(_IN_MEMORY, os.W_OK) or shutil.disk_usage(_IN_MEMORY).free < _ROOM:
        return None
    return Path(tempfile.mkdtemp(prefix="sluicemq-test-", dir=_IN_MEMORY))


def _uri_of(store: subprocess.Popen[str], folder: Path) -> str:
    assert store.stdout
    uri = store.stdout.readline().strip()
    assert uri, f"the tests' MongoDB did not start; its log is in {folder}"
    return uri


def _end(store: subprocess.Popen[str]) -> None:
    try:
        store.communicate(timeout=30)  # closes its stdin
    finally:
        store.kill()
        store.wait()
