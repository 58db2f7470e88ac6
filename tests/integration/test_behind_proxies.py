"""The dashboard behind a reverse proxy, under a path of it: the documents' recipes, with real proxies."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from integration.reverse_proxies import HOST, caddy, nginx
from sluicemq import Producer
from support.broker_under_test import BrokerUnderTest, serving
from support.browser import chromium, path_of_chromium
from support.http_reader import Answer, Web
from support.own_queue import TOKEN
from support.ports import free_port
from support.samples import block

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

ID = "a/b c%2Fd"
IN_PATH = "a%2Fb%20c%252Fd"
KEPT = "proxy_set_header Host $http_host;"
#: Host as nginx sends it by itself, as the recipe has it, and as Caddy keeps it.
WAYS = ("nginx", "nginx, host rewritten", "caddy")


class Behind:
    def __init__(self, broker: BrokerUnderTest, web: Web, port: int) -> None:
        self.broker = broker
        self.web = web
        self.host = f"{HOST}:{port}"

    def get(self, path: str) -> Answer:
        return self.web.get(f"/sluicemq{path}", Host=self.host)

    def post(self, path: str, origin: str, **headers: str) -> Answer:
        given: dict[str, Any] = {"Host": self.host, "Origin": origin, **headers}
        return self.web.post(f"/sluicemq{path}", {}, TOKEN, **given)


@pytest.fixture(scope="module", params=WAYS)
def behind(
    request: pytest.FixtureRequest, mongo_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Behind]:
    port, folder = free_port(), tmp_path_factory.mktemp("proxy")
    own: dict[str, Any] = {"http": "127.0.0.1:0", "http_token": TOKEN, "http_hosts": [f"{HOST}:{port}"]}
    with serving(mongo_uri, [], **own) as broker, Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("mail", b"a job", id=ID).wait(60)
        name, _, rewritten = request.param.partition(",")
        recipe = block(f"proxy: {name}").replace("127.0.0.1:5580", broker.process.http)
        if rewritten:
            assert KEPT in recipe
            recipe = recipe.replace(KEPT, "")
        with _proxy(name, recipe, folder, port) as web:
            yield Behind(broker, web, port)


def _proxy(name: str, recipe: str, folder: Path, port: int) -> Any:
    if name == "nginx":
        return nginx(recipe, folder, port)
    inside = re.sub(r"^mq\.example\.com \{\n|^\}\n", "", recipe, flags=re.MULTILINE)
    return caddy(inside, folder, port)


def test_the_page_and_all_that_it_names_are_there(behind: Behind) -> None:
    page = behind.get("/")
    assert page.status == 200
    named = re.findall(r'(?:src|href)="([^"#]+)"', page.body.decode())
    assert len(named) >= 5
    for path in named:
        assert behind.get(f"/{path}").status == 200, path
    assert behind.get("").status in (301, 302, 308)
    assert behind.get("/healthz").body == b"ok\n"
    assert behind.get("/api/v1/overview").json["totals"]["queues"] >= 1


def test_an_id_with_a_slash_comes_through(behind: Behind) -> None:
    assert behind.get(f"/api/v1/queues/mail/jobs/{IN_PATH}").json["id"] == ID


def test_snapshots_come_as_they_are_made(behind: Behind) -> None:
    with behind.web.dial() as stranger:
        stranger.sendall(f"GET /sluicemq/api/v1/live HTTP/1.1\r\nHost: {behind.host}\r\n\r\n".encode())
        came = b""
        while came.count(b"data: ") < 2:
            came += stranger.recv(65536)


def test_orders_of_its_page_are_taken_and_those_of_other_sites_are_not(behind: Behind) -> None:
    path = "/api/v1/queues/mail/resume"
    assert behind.post(path, f"http://{behind.host}", Sec_Fetch_Site="same-origin").status == 200
    for other in ("http://evil.example", f"http://{HOST}:1", "null", "http://["):
        assert behind.post(path, other).json["code"] == "CROSS_SITE"
    assert behind.post(path, f"http://{behind.host}", Sec_Fetch_Site="same-site").json["code"] == "CROSS_SITE"


@pytest.mark.skipif(path_of_chromium() is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_shows_the_dashboard_and_gives_orders(behind: Behind, tmp_path: Path) -> None:
    wrong: list[str] = []
    with sync_playwright() as playwright, chromium(playwright) as browser:
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"http://{behind.host}/sluicemq/")
        expect(page.locator("#health-words")).to_have_text("all is well")
        expect(page.get_by_role("link", name="mail", exact=True)).to_be_visible()
        page.screenshot(path=tmp_path / "proxy.png")
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Token").fill("a-wrong-token-of-16")
        page.keyboard.press("Enter")
        expect(page.locator("#login-why")).to_contain_text("wrong")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        page.goto(f"http://{behind.host}/sluicemq/#/queues/mail")
        page.get_by_role("button", name=re.compile("^Pause")).first.click()
        page.get_by_role("dialog").locator("button.main").click()
        expect(page.locator("#said")).not_to_be_empty()
    assert wrong == []
    told = behind.get("/api/v1/queues/mail").json
    assert told["paused"], json.dumps(told)
    assert behind.post("/api/v1/queues/mail/resume", f"http://{behind.host}").status == 200
