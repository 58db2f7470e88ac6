"""A day of a small system, in six minutes: ``python tests/faults/day.py [--hold] [--folder FOLDER]``.

Two brokers share a MongoDB; five queues have producers and workers. In the morning ``mail`` is flooded, at
noon jobs of ``images`` begin to fail, in the afternoon MongoDB stops answering for half an hour, and then a
broker is killed, with all workers of ``invoices``. What happened has to be seen in the dashboard: ``--hold``
leaves the brokers running until Ctrl-C, so that somebody can look; ``--folder`` is where pictures go.

``tests/faults/test_day.py`` holds that it can be told from the API.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.replica_set import ReplicaSet
from sluicemq import Job, Producer, Worker
from sluicemq.protocol.errors import SluiceError
from support.broker_process import BrokerProcess

#: Hours of the day, and how many of its seconds pass in one.
HOURS, SPEED = 12.0, 120.0
#: Hours until it is the time of this machine, in which one can look.
LOOKED = 4.0
#: Jobs a second of each queue; and how long a worker takes for one, in seconds.
RATES: Final = {"orders": 12, "mail": 10, "invoices": 6, "images": 8, "search": 9}
WORK: Final = {"mail": 0.01}
#: Of which broker the workers are: those of one queue are all at the one that is killed.
AT_B: Final = ("invoices",)
FLOOD, POISON = 4000, 25
POISONOUS: Final = "cannot identify image file: truncated header"
#: When what happens, as parts of the day.
FLOODED, POISONED, AWAY, BACK, KILLED, RESTARTED = 0.2, 0.45, 0.6, 0.64, 0.75, 0.86


class DayBroker(BrokerProcess):
    program = (str(Path(__file__).parent / "day_broker.py"),)


class Day:
    """Where it can be looked at: the HTTP addresses of both brokers; ``names``: as they call themselves."""

    def __init__(self, a: BrokerProcess, b: BrokerProcess, began: float, since: float, speed: float) -> None:
        self.a, self.b = a, b
        self.killed = ""
        self._began = began
        self._from = since
        self._speed = speed

    def at(self, part: float) -> float:
        """When that part of the day is over, in its time."""
        return self._began + part * HOURS * 3600

    def until(self, part: float) -> None:
        """Wait until then."""
        time.sleep(max(0.0, self._from + part * HOURS * 3600 / self._speed - time.monotonic()))


@contextmanager
def day(speed: float = SPEED) -> Iterator[Day]:
    """The day is over, and both brokers are there still."""
    began = time.time() - (HOURS + LOOKED) * 3600 + (HOURS + LOOKED) * 3600 / speed
    since = time.monotonic()
    env = {"DAY_BEGAN": str(began), "DAY_FROM": str(since), "DAY_SPEED": str(speed)}
    config: dict[str, Any] = {
        "broker": {"http": "127.0.0.1:0", "history": True, "lease": 3.0, "poll": 0.1, "log_level": "info"},
        "queues": {"*": {"backoff": "none", "max_attempts": 3}},
        "devices": [],
    }
    with ExitStack() as stack:
        mongod = stack.enter_context(ReplicaSet())
        a, b = (stack.enter_context(DayBroker(mongod.uri, "day", config=config, env=env)) for _ in range(2))
        it = Day(a, b, began, since, speed)
        it.killed = f"{os.uname().nodename}:{b.pid}"
        for name in RATES:
            endpoint = (b if name in AT_B else a).doors["smq"]
            stack.enter_context(
                Worker(name, _handler(name), prefetch=8, name=f"{name}-worker", endpoint=endpoint)
            )
        stop = threading.Event()
        for name in RATES:
            stack.enter_context(_going_on(_push, a.doors["smq"], name, stop))
        stack.callback(stop.set)
        _live(it, mongod)
        yield it


def _live(it: Day, mongod: ReplicaSet) -> None:
    it.until(FLOODED)
    with Producer(endpoint=it.a.doors["smq"]) as producer:
        for number in range(FLOOD):
            producer.push("mail", b"newsletter %d" % number)
            if number % 100 == 99:
                time.sleep(0.1)
    it.until(POISONED)
    with Producer(endpoint=it.a.doors["smq"]) as producer:
        for number in range(POISON):
            producer.push("images", b"poison %d" % number)
            time.sleep(0.1)
    it.until(AWAY)
    mongod.send_signal(mongod.ports[0], signal.SIGSTOP)
    it.until(BACK)
    mongod.send_signal(mongod.ports[0], signal.SIGCONT)
    it.until(KILLED)
    it.b.kill()
    it.until(RESTARTED)
    it.b.restart()
    it.until(1.0)


def _handler(name: str) -> Callable[[Job], None]:
    seconds = WORK.get(name, 0.002)

    def handler(job: Job) -> None:
        if job.payload.startswith(b"poison"):
            raise ValueError(POISONOUS)
        time.sleep(seconds)

    return handler


def _push(endpoint: str, name: str, stop: threading.Event) -> None:
    with suppress(SluiceError), Producer(endpoint=endpoint) as producer:
        while not stop.wait(1 / RATES[name]):
            producer.push(name, b'{"for": "ada"}')


@contextmanager
def _going_on(target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    try:
        yield
    finally:
        thread.join()


PICTURES: Final = (
    "",
    "queues?sort=dead",
    "queues/mail",
    "queues/images?state=dead",
    "queues/invoices",
    "dead?queue=images",
)


def main() -> int:
    """Live it, and look at it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--speed", type=float, default=SPEED)
    parser.add_argument("--hold", action="store_true", help="leave the brokers running at the end")
    options = parser.parse_args()
    with day(options.speed) as it:
        print(f"http://{it.a.http}", flush=True)
        if options.folder:
            _take_pictures(it.a.http, options.folder)
        with suppress(KeyboardInterrupt):
            while options.hold:
                time.sleep(1)
    return 0


def _take_pictures(address: str, folder: Path) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where it is asked for

    from support.browser import chromium  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        for width in (1600, 400):
            for scheme in ("light", "dark"):
                context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
                context.add_init_script("sessionStorage.setItem('sluicemq-span', 'day')")
                for place in PICTURES:
                    page = context.new_page()
                    page.goto(f"http://{address}/#/{place}")
                    page.wait_for_timeout(3000)
                    name = place.replace("/", "-").partition("?")[0] or "overview"
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
                    page.close()
                context.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
