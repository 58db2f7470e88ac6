"""The examples of web frameworks, run as their READMEs say."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from sluicemq import Client
from support.broker_process import BrokerProcess
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, f"frameworks-{free_port()}", config={"devices": []}) as process:
        yield process


class Example:
    """A folder of examples, whose programs know the broker."""

    def __init__(self, name: str, broker: BrokerProcess, **variables: str) -> None:
        pytest.importorskip(name)
        self.folder = EXAMPLES / name
        self.environment = {**os.environ, "SLUICEMQ_ENDPOINT": broker.doors["smq"], **variables}
        self.port = str(free_port())

    def run(self, *words: str) -> str:
        """Return what a command of the folder prints; AssertionError if it fails."""
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *words: str) -> Iterator[None]:
        """Run a program of the folder during the block; it ends in order."""
        with subprocess.Popen([sys.executable, *words], cwd=self.folder, env=self.environment) as process:
            try:
                yield
            finally:
                process.terminate()
                assert process.wait(TIMEOUT) in (0, -signal.SIGTERM)  # uvicorn ends by its signal

    @contextmanager
    def served(self, *words: str) -> Iterator[None]:
        """The same for the web application, once it answers."""
        with self.running(*words):
            wait_until(self.answers)
            yield

    def answers(self) -> bool:
        with suppress(URLError):
            try:
                self.ask("/nothing")
            except HTTPError:
                return True
        return False

    def ask(self, path: str, form: Mapping[str, str] | None = None) -> Any:
        """Return the JSON that a path answers, by GET, or by POST if there is a form."""
        data = None if form is None else urlencode(form).encode()
        with urlopen(f"http://127.0.0.1:{self.port}{path}", data, TIMEOUT) as answer:
            return json.load(answer)


def events(example: Example, path: str) -> Iterator[tuple[str, Any]]:
    """The names and data of server-sent events."""
    with urlopen(f"http://127.0.0.1:{example.port}{path}", timeout=TIMEOUT) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


def test_a_page_of_fastapi_shows_a_report_from_its_order_to_its_end(broker: BrokerProcess) -> None:
    example = Example("fastapi", broker)
    with example.served("-m", "uvicorn", "--port", example.port, "reports:web"):
        ordered = example.ask("/reports?title=Year&pages=2", {})
        refused = example.ask("/reports?title=Nothing&pages=0", {})
        with urlopen(f"http://127.0.0.1:{example.port}{ordered['page']}") as page:
            assert b'new EventSource(location.pathname + "/events")' in page.read()
        seen = events(example, f"{ordered['page']}/events")
        assert next(seen) == ("progress", {"state": "ready", "pages": 0})
        with example.running("-m", "sluicemq", "work", "reports:tasks", "--concurrency", "100"):
            assert list(seen)[-1] == ("done", "Year: 2 pages")
            name, why = list(events(example, f"{refused['page']}/events"))[-1]
            assert (name, "a report has at least one page" in why) == ("failed", True)
        [(name, why)] = events(example, "/reports/nothing/events")
        assert (name, "nothing" in why) == ("failed", True)


@pytest.mark.full  # gunicorn that forks is in test_forks.py, too
def test_a_form_of_flask_that_is_sent_twice_makes_one_mail(broker: BrokerProcess) -> None:
    example = Example("flask", broker)
    words = ("-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{example.port}")
    with example.served(*words, "--no-control-socket", "signup:web"):
        form = {"token": "T1", "address": "ann@example.org"}
        assert example.ask("/sign-up", form) == {"id": "T1", "again": False}
        assert example.ask("/sign-up", form) == {"id": "T1", "again": True}
        assert example.ask("/mail/T1") == {"state": "on its way"}
        with example.running("-m", "sluicemq", "work", "signup:tasks"):
            done = {"state": "sent", "result": "a mail has gone to ann@example.org"}
            assert example.ask("/mail/T1?wait=30") == done
        with pytest.raises(HTTPError) as nothing:
            example.ask("/mail/T2")
        assert nothing.value.code == 404


#: Typed into the shell of Django: prints the order's link, and pushes jobs of orders that have none.
SHELL = """
from django.contrib import admin
from shop.admin import OrderAdmin
from shop.models import Order
orders = OrderAdmin(Order, admin.site)
print(Order.objects.get(sent=True), orders.in_dashboard(Order.objects.get()))
Order.objects.create(item="pots", count=1, job="lost")
orders.push_again(None, Order.objects.all())
orders.push_again(None, Order.objects.all())
"""


def test_an_order_of_django_is_sent_once_it_is_committed(broker: BrokerProcess, tmp_path: Path) -> None:
    example = Example("django", broker, DATABASE=str(tmp_path / "shop.sqlite3"))
    example.run("manage.py", "migrate", "--verbosity", "0")
    with example.served("manage.py", "runserver", "--noreload", example.port):
        assert example.ask("/orders", {"item": "cups", "count": "3"}) == {"order": 1}
        with pytest.raises(HTTPError):
            example.ask("/orders", {"item": "cups", "count": "-3"})
    with Client(endpoint=broker.doors["smq"]) as client:
        # Then: the order that was rolled back has no job
        [job] = client.jobs.list("orders")
        with example.running("manage.py", "work", "--concurrency", "2"):
            client.queues.wait_until_empty("orders", timeout=TIMEOUT)
        said = example.run("manage.py", "shell", "-c", SHELL)
        assert "3 cups" in said
        assert f"/#/queues/orders/jobs/{job.id}" in said
        assert [listed.id for listed in client.jobs.list("orders")] == ["lost"]
