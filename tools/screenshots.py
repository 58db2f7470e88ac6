"""The pictures of the dashboard in docs/images: ``python tools/screenshots.py [--folder FOLDER]``.

A broker with an embedded MongoDB is given a shop's queues, a month of made-up history, workers that work and
jobs that fail; Chromium looks at its pages, in light and dark, 1,600 and 400 pixels wide.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from pymongo import MongoClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sluicemq import Client, Job, Producer, Publisher, Reject, Worker
from sluicemq_broker.store import HistoryStore, HistorySubject, Incident, IncidentStore, MinuteCounts, day_of
from support.broker_process import BrokerProcess
from support.browser import chromium
from support.ports import tcp

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TOKEN = "a-token-for-pictures"  # noqa: S105 - of a broker that is gone with the pictures
NAMES = (
    "orders",
    "mail",
    "invoices",
    "images.resize",
    "search.index",
    "webhooks",
    "reports.nightly",
    "audit",
)
REASONS = ("SMTP 421 too many connections", "timed out after 30 s: GET https://hooks.example.net/in",
           "KeyError: 'customer_id'", "no such file: s3://shop/img/8812.png")  # fmt: skip
#: What is taken: its name, its place, whether dark, how wide, and how high.
PICTURES = (
    ("overview", "", False, 1600, 1180),
    ("overview-dark", "", True, 1600, 1180),
    ("overview-narrow", "", False, 400, 1500),
    ("queues", "queues?sort=in", False, 1600, 700),
    ("queue-dark", "queues/mail?state=dead", True, 1600, 1100),
    ("job-narrow-dark", "queues/mail/jobs/mail-dead-1", True, 400, 860),
    ("dead", "dead?queue=mail", False, 1600, 1000),
)


def main() -> int:
    """Take all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=IMAGES)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with shop() as address, sync_playwright() as playwright:
        browser = chromium(playwright)
        for name, place, dark, width, height in PICTURES:
            page = look(browser, address, place, dark=dark, width=width, height=height)
            _keep(page.screenshot(), folder / f"{name}.png")
            page.context.close()
        browser.close()
    return 0


def _keep(picture: bytes, file: Path) -> None:
    """Write a PNG of 256 colours, the rare ones too: a third of the bytes, and nobody sees it."""
    whole = Image.open(io.BytesIO(picture)).convert("RGB")
    whole.quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)


def look(browser: Browser, address: str, place: str, *, dark: bool, width: int, height: int) -> Page:
    """A page as somebody sees it after a moment."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": width, "height": height},
        reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    page.add_init_script("sessionStorage.setItem('sluicemq-span', 'day')")
    page.goto(f"http://{address}/#/{place}")
    page.wait_for_selector("[data-health=good], [data-health=warn]")
    page.wait_for_timeout(2500)  # two snapshots: every figure has come
    return page


@contextmanager
def shop() -> Iterator[str]:
    """A broker with a shop's work; where its HTTP door is."""
    config = {
        "broker": {"http": "127.0.0.1:0", "http_token": TOKEN, "history": True, "log_level": "warning"},
        "queues": {"reports.nightly": {}, "*": {"backoff": "none"}, "audit": {"keep_done": 3600.0}},
        "routes": [{"stream": "shop", "topics": ["orders."], "queue": "invoices"}],
        "schedules": {"nightly": {"queue": "reports.nightly", "payload": "all", "cron": "0 3 * * *"},
                      "heartbeat": {"queue": "audit", "payload": "tick", "every": 300.0}},
        "devices": [{"kind": "queue", "queue": "orders", "frontend": tcp(), "backend": tcp()}],
    }  # fmt: skip
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(config=config))
        endpoint = broker.doors["smq"]
        _fill(endpoint)
        _remember(broker.embedded_uri)
        for name in NAMES[:6]:
            worker = Worker(
                name, _work, prefetch=8, name=f"{name.partition('.')[0]}-worker", endpoint=endpoint
            )
            stack.enter_context(worker)
        stop = threading.Event()
        pushing = threading.Thread(target=_push, args=(endpoint, stop))
        pushing.start()
        stack.callback(pushing.join)
        stack.callback(stop.set)
        with Client(endpoint=endpoint) as client:
            client.queues.pause("webhooks")
        time.sleep(8)  # until rates and counts have settled
        yield broker.http


def _fill(endpoint: str) -> None:
    with (
        Producer(endpoint=endpoint) as producer,
        Publisher(endpoint=endpoint) as publisher,
        Client(endpoint=endpoint) as client,
    ):
        for number in range(60):
            producer.push("mail", b'{"to": "ada@example.org", "template": "welcome", "try": %d}' % number,
                          id=f"mail-dead-{number}", headers={"tenant": "north"})  # fmt: skip
        for number in range(1400):
            producer.push("webhooks", b'{"order": %d, "event": "paid"}' % number)
        for number in range(300):
            producer.push("reports.nightly", b"part %d" % number, delay=3600 + number)
        for number in range(400):
            publisher.publish("shop", f"orders.eu.{number}", b'{"order": %d}' % number)
        producer.flush(60)
        publisher.flush(60)
        with Worker("mail", _fail, prefetch=8, endpoint=endpoint):
            while client.queues.get("mail").dead < 60:
                time.sleep(0.1)


def _fail(job: Job) -> None:
    raise Reject(REASONS[(job.payload[-2] * 7 + len(job.payload)) % len(REASONS)])


def _work(job: Job) -> None:
    time.sleep(random.uniform(0.002, 0.02))


def _push(endpoint: str, stop: threading.Event) -> None:
    with Producer(endpoint=endpoint) as producer:
        while not stop.wait(0.2):
            for place, name in enumerate(NAMES[:5]):
                for number in range(random.randrange(1, 12 - 2 * place)):
                    producer.push(name, b'{"order": %d}' % number)


def _remember(uri: str) -> None:
    """A month, in which the days have their noons, one an outage, and one a flood."""
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    store, now = HistoryStore(client["sluicemq"]), time.time()
    subjects = [HistorySubject("broker", "*"), *(HistorySubject("queue", name) for name in NAMES[:6])]
    # As many minutes as are drawn: those of a day, and of each hour before it one.
    minutes = [*range(int(now // 60) - 1440, int(now // 60) + 1)]
    hours = [hour * 60 for hour in range(int(now // 3600) - 720, int(now // 3600) - 24)]
    for number, subject in enumerate(subjects):
        rows = [MinuteCounts(subject, minute, *_minute(number, minute, 1)) for minute in minutes]
        rows += [MinuteCounts(subject, hour, *_minute(number, hour, 60)) for hour in hours]
        store.add("pictures", number + 1, rows)
    today = day_of(now)
    assert store.days(subjects[0], today - timedelta(days=31), today)
    IncidentStore(client["sluicemq"]).write("pictures", _happened(int(now // 60)))
    client.close()


def _happened(last: int) -> Iterator[Incident]:
    """The outage and the floods of the last day, as brokers would have noticed them."""
    for minute in range(last - 1440, last):
        if minute % 1440 == 201:
            at = minute * 60.0
            yield Incident("store_away", "", "shop-1:4711", at, at + 660, {})
            waited = {"ready": 41_200, "longest": 1260.0, "pushed": 52_300, "committed": 50_900}
            yield Incident("backlog", "orders", "shop-1:4711", at, at + 1500, waited)
        if minute % 1440 % 700 == 671:
            figures = {"pushed": 61_400, "usual": 4_310}
            yield Incident("flood", "mail", "shop-1:4711", minute * 60.0, (minute + 29) * 60.0, figures)


def _minute(number: int, minute: int, times: int) -> tuple[dict[str, int], dict[str, int]]:
    dice = random.Random(minute * 31 + number)
    noon = 1.2 + math.sin((minute % 1440) / 1440 * 2 * math.pi - math.pi / 2)
    outage = 200 < (minute % 1440) < 212 or minute // 1440 % 9 == 4
    flood = 3.0 if minute % 1440 % 700 > 670 else 1.0
    pushed = int(times * 4800 / (1 + number) * noon * flood * dice.uniform(0.85, 1.15))
    done = int(pushed * (0.15 if outage else dice.uniform(0.93, 1.0)))
    failed = int(done * (0.03 if flood > 1 else 0.004))
    ready = int(pushed / times * (9 if outage else 1.6 if flood > 1 else 0.2) * dice.uniform(0.7, 1.2))
    waited = int(done * (4000 if outage else 60 * flood * flood) * dice.uniform(0.8, 1.2))
    worked = int(done * 14 * dice.uniform(0.9, 1.1))
    added = {"pushed": pushed, "delivered": done + failed, "committed": done, "rolled_back": failed,
             "waited": waited, "worked": worked}  # fmt: skip
    # How long jobs waited and took, by the bounds of the histograms: twenty from half a millisecond to a day.
    slow = 8 if outage else 3 if flood > 1 else 0
    for letter, middle in (("q", 5 + slow), ("w", 4)):
        for bound, share in zip(range(middle - 1, middle + 4), (0.3, 0.5, 0.14, 0.05, 0.01), strict=True):
            added[f"{letter}{bound}"] = int(done * share * dice.uniform(0.8, 1.2))
    return added, {"ready": ready}


if __name__ == "__main__":
    sys.exit(main())
