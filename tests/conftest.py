"""Fixtures of all tests: one real MongoDB, a database of one's own, free ports, long tests on request."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from pymongo import MongoClient

from sluicemq import Client, Subscription
from support import durations, ports
from support.forced_packs import force_packs
from support.forked_broker import nursery
from support.long_forms import longer
from support.own_queue import OwnQueue, own_queue, quick_broker
from support.processes import Processes
from support.redis_server import RedisServer
from support.session_mongodb import GIVEN, session_mongodb
from support.waiting import TIMEOUT

if TYPE_CHECKING:
    from support.broker_under_test import BrokerUnderTest

#: What the process that has others run the tests keeps open.
_FOR_ALL = ExitStack()
#: How many tests of a mark were left out.
_LEFT_OUT = pytest.StashKey[dict[str, int]]()
_UNITS = Path(__file__).parent / "unit"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long tests too: about an hour")
    parser.addoption("--hours", action="store_true", help="run all tests, explorations ten times as long")
    parser.addoption("--processes", type=int, default=0, help="run the tests in so many processes")
    parser.addoption("--first-example", action="store_true", help="show a failing example as it was found")


def pytest_configure(config: pytest.Config) -> None:
    """Examples of Hypothesis: more with ``--full`` and ``--hours``, and as slow as a busy machine is.

    Tests that want more or fewer say how many times ``settings().max_examples``.
    """
    if config.getoption("--hours"):
        config.option.full = True
    if cache := getattr(config, "cache", None):  # None with -p no:cacheprovider
        config.pluginmanager.register(durations.Recorder(cache))
    if count := config.getoption("--processes"):
        config.pluginmanager.register(Processes(count))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else no program of a test hears Ctrl-C
    force_packs()
    for kind in (Client, Subscription):  # a machine may stand still for longer than users want to wait
        defaults: Any = kind.__init__
        defaults.__kwdefaults__["timeout"] = TIMEOUT
    examples = 100 * longer(config) if config.getoption("--full") else 50
    slow = [HealthCheck.too_slow]
    found_first = config.getoption("--first-example")
    phases = [phase for phase in Phase if not (found_first and phase in (Phase.shrink, Phase.explain))]
    settings.register_profile(
        "sluicemq", max_examples=examples, deadline=None, suppress_health_check=slow, phases=phases
    )
    settings.load_profile("sluicemq")


@pytest.hookimpl(tryfirst=True)  # before there are processes to run the tests
def pytest_sessionstart(session: pytest.Session) -> None:
    """All processes share one MongoDB: each of its own would take a second to start, and 2 % at rest.

    But not with ``--full``, where some fill it with millions. They share the process that forks brokers, too;
    unit tests need neither.
    """
    config = session.config
    units = all(Path(arg).resolve() == _UNITS for arg in config.args)
    if config.getoption("processes") and not units:
        nursery()
        if not config.getoption("full"):
            os.environ[GIVEN] = _FOR_ALL.enter_context(session_mongodb())


def pytest_unconfigure() -> None:
    """However the session ends."""
    _FOR_ALL.close()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _sample(items)
    if config.getoption("processes") and (cache := getattr(config, "cache", None)):
        durations.longest_first(items, cache.get(durations.KEY, {}))
    for option in ("full", "hours"):
        if not config.getoption(f"--{option}"):
            _leave_out(config, items, option)


def _sample(items: list[pytest.Item]) -> None:
    """Leave all but one in so many cases of a test, and those named ``always``, to ``--full``."""
    seen: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            test, _, case = item.nodeid.rstrip("]").partition("[")
            if seen[test] % mark.args[0] and case not in mark.kwargs.get("always", ()):
                item.add_marker("full")
            seen[test] += 1


def _leave_out(config: pytest.Config, items: list[pytest.Item], option: str) -> None:
    """Leave out the tests of this mark: that they are skipped one by one would take them all a second."""
    chosen = [item for item in items if not item.get_closest_marker(option)]
    if left_out := [item for item in items if item.get_closest_marker(option)]:
        config.stash.setdefault(_LEFT_OUT, {})[option] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was skipped or left out, and why, a line for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in Counter(_reason(report) for report in skipped).most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
    for option, count in config.stash.get(_LEFT_OUT, {}).items():
        terminalreporter.write_line(f"left out {count}: long; run with --{option}")


def _reason(report: Any) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


@pytest.fixture(scope="session")
def mongo_uri() -> Iterator[str]:
    """The URI of a real MongoDB, a single-node replica set, that lasts as long as the session."""
    with session_mongodb() as uri:
        yield uri


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def database(mongo_uri: str) -> Iterator[str]:
    """The name of a database that no other test uses; dropped at the end."""
    name = f"test_{token_hex(6)}"
    yield name
    with MongoClient[dict[str, object]](mongo_uri, serverSelectionTimeoutMS=60_000) as client:
        client.drop_database(name)


@pytest.fixture(autouse=True)
def _same_chance(request: pytest.FixtureRequest) -> None:
    """Seed jitter and the like by the name of the test; what explores has Hypothesis, or a Random."""
    random.seed(request.node.nodeid)


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


@pytest.fixture(scope="module")
def shared_broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    """The broker of a file's tests that need no more than a queue of their own.

    Of a file's, for it looks often: with the queues of a hundred tests it and MongoDB would take a third of a
    processor for as long as the session lasts.
    """
    with quick_broker(mongo_uri) as broker:
        yield broker


@pytest.fixture
def jobs(shared_broker: BrokerUnderTest) -> Iterator[OwnQueue]:
    """A new queue at that broker, and the library for it."""
    with own_queue(shared_broker) as jobs:
        yield jobs


@pytest.fixture
def endpoint(broker: BrokerUnderTest) -> str:
    return broker.doors["smq"]


@pytest.fixture
def queue() -> str:
    return token_hex(6)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that gives ports on 127.0.0.1 that are free, another one at each call."""
    return ports.free_port
