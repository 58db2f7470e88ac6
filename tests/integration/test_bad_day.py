"""A bad day is replayed: ten questions of an operator, answered by commands and by the dashboard's API."""

import json
import subprocess
import sys
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest

from bad_day import FLOOD, SOME, BadDay
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until

TOKEN = token_hex(16)


@pytest.fixture
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    settings: dict[str, Any] = {"poll": 0.2, "history": True, "http": "127.0.0.1:0", "http_token": TOKEN}
    with serving(mongo_uri, [], **settings) as broker:
        yield broker.process


class Operator:
    """Types commands, and sees what the dashboard's pages read."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._endpoint = broker.doors["smq"]
        self._web = Web(broker.http)

    def types(self, line: str, *words: str) -> Any:
        program = [sys.executable, "-m", "sluicemq.cli", "--endpoint", self._endpoint, "--json"]
        command = [*program, *line.split(), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return json.loads(done.stdout)

    def sees(self, path: str) -> Any:
        answer = self._web.get(f"/api/v1/{path}", Authorization=f"Bearer {TOKEN}")
        assert answer.status == 200, answer.body
        return answer.json

    def orders(self, path: str, said: Any = None) -> None:
        answer = self._web.post(f"/api/v1/{path}", said, TOKEN)
        assert answer.status in (200, 202, 204), answer.body


def names(workers: list[str]) -> set[str]:
    """Return the names of workers without their hosts and processes."""
    return {worker.partition(" ")[0] for worker in workers}


def at_rest(queue: dict[str, Any]) -> bool:
    return bool(queue["ready"] == queue["reserved"] == 0)


@pytest.mark.full  # some twenty commands, each a process
def test_ten_questions_of_a_bad_day_have_answers(broker: BrokerProcess) -> None:
    operator = Operator(broker)
    with BadDay(broker.doors["smq"]) as day:
        wait_until(lambda: any(see.get("stuck") for see in operator.sees("workers")["workers"]))
        wait_until(lambda: at_rest(operator.sees("queues/orders")))

        # 1. What is wrong?
        top = operator.types("top --once")
        dead = {row["name"]: row["dead"] for row in top["queues"]}
        assert dead["orders"] > dead["mail"] == 0
        seen = wait_until(lambda: operator.sees("incidents")["incidents"])
        for incidents in (seen, operator.types("incidents --since 2h")["incidents"]):
            kinds = {row["kind"] for row in incidents}
            assert kinds & {"dead_letters", "stuck", "flood", "timed_out", "started"}

        # 2. Which kinds fail, and which don't?
        for found in (
            operator.types("kinds list orders")["kinds"],
            operator.sees("kinds?queue=orders")["kinds"],
        ):
            rows = {kind["kind"]: kind for kind in found}
            assert (rows["import"]["dead"], rows["receipt"]["dead"]) == (SOME // 2, 0)
            assert 0 < rows["invoice"]["dead"] < SOME

        # 3. Why, and since when? 4. On which hosts?
        for found in (operator.types("dead-letters by-error"), operator.sees("errors")):
            errors = {row["place"]: row for row in found["errors"]}
            invoices, imports = errors["bad_day.render_invoice"], errors["bad_day.parse_import"]
            assert (invoices["type"], invoices["kinds"]) == ("KeyError", ["invoice"])
            assert 0 < invoices["first_at"] <= invoices["last_at"]
            assert names(invoices["workers"]) == {"web-2", "web-3"}
            assert imports["kinds"] == ["import"]
            assert len(invoices["hosts"]) == 1  # all workers of a test are at one

        # 5. Where in the code?
        one = invoices["job"]
        for job in (
            operator.types(f"jobs show orders {one}")["job"],
            operator.sees(f"queues/orders/jobs/{one}"),
        ):
            assert 'invoice["vat"]' in job["errors"][-1]["traceback"]
            assert job["errors"][-1]["pid"]

        # 6. Which handler hangs, with which job, since when?
        for workers in (operator.types("workers list images"), operator.sees("workers?queue=images")):
            (hanging,) = workers["workers"]
            assert hanging["name"].startswith("img-1 ")
            assert hanging["stuck"][0]["id"].startswith("thumbnail-")
            assert hanging["stuck"][0]["seconds"] > 1

        # 7. Who floods?
        for tenants in (
            operator.types("queues show mail")["tenants"],
            operator.sees("queues/mail/backlog")["tenants"],
        ):
            acme = max(tenants, key=lambda tenant: int(tenant["jobs"]))
            assert (acme["name"], acme["held_back"]) == ("acme", True)
            assert acme["jobs"] > FLOOD // 2

        # 8. Which jobs of a tenant are affected?
        for found in (
            operator.types("find --tenant bolt --state dead --queue orders --limit 100"),
            operator.sees("find?tenant=bolt&state=dead&queue=orders&limit=100"),
        ):
            ids = {row["id"] for row in found["jobs"]}
            assert ids
            assert all(int(job_id.rpartition("-")[2]) % 3 == 0 for job_id in ids)

        # 9. Stop those that run, and the hosts with the wrong deploy
        running = [
            row["id"] for worker in operator.types("workers list mail")["workers"] for row in worker["jobs"]
        ]
        operator.types(f"jobs cancel mail {running[0]} --running")
        operator.orders(f"queues/mail/jobs/{running[1]}/cancel", {"running": True})
        ends = {row["id"]: row["end"] for row in operator.types("jobs ended mail")["ends"]}
        assert ends[running[0]] == ends[running[1]] == "cancelled"
        operator.types("queues set-settings images hard_time_limit 60 kind_hard_time_limits thumbnail=10s")
        wrong = sorted(invoice for invoice in invoices["workers"])
        assert operator.types("workers stop", wrong[0])["queues"] == 1
        operator.orders("workers/stop", {"name": wrong[1]})

        # 10. Put them back, once the deploy is mended
        day.is_mended = True
        operator.types("dead-letters redrive orders --reason vat")
        operator.orders("queues/orders/dead/redrive", {"all": True})
        wait_until(lambda: at_rest(operator.sees("queues/orders")))
        assert operator.sees("queues/orders")["dead"] == 0
        assert operator.types("find --queue orders")["jobs"] == []
