"""The dashboard in a real browser. One look at all of it by default, the rest with ``--full``."""

import hashlib
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from threading import Event
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from sluicemq import Client, Producer, Publisher, Reject, Worker
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest
from support.browser import chromium, path_of_chromium
from support.certificates import Authority
from support.cheap_passwords import cheap_hash
from support.own_queue import TOKEN, OwnQueue
from support.ports import free_port
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(path_of_chromium() is None, reason="no Chromium: apt-get install chromium")

PAGES = ("", "queues", "kinds", "dead", "workers", "schedules", "streams", "operations", "storage", "audit")
#: What would run if any of it became markup.
SCRIPT = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
_full = pytest.mark.full
#: Counts in ``window.awaited`` the answers that the page has not had yet, or has not drawn.
COUNTING = """
window.awaited = 0;
const over = () => setTimeout(() => window.awaited--);
const counted = (ask) => function (...given) {
  window.awaited++;
  return ask.apply(this, given).finally(over);
};
window.fetch = counted(window.fetch);
Response.prototype.json = counted(Response.prototype.json);
window.streams = [];
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    window.streams.push(this);
    window.awaited++;
    this.first = () => { this.first = () => {}; over(); };
    for (const kind of ["message", "error"]) this.addEventListener(kind, () => this.first());
  }
  close() { this.first(); super.close(); }
};
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        yield browser
        browser.close()


class Dashboard:
    """One tab, and what went wrong in it."""

    def __init__(
        self, browser: Browser, address: str, queue: str, scheme: str = "http", **context: Any
    ) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1600, "height": 900}, **context})
        self.context.add_init_script(COUNTING)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.queue = queue
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda line: self._note(line.type, line.text))
        self._address = f"{scheme}://{address}"

    def _note(self, kind: str, text: str) -> None:
        if kind == "error" and "status of 4" not in text:  # a refusal is an answer
            self.wrong.append(text)

    def show(self, place: str) -> Page:
        """A page, when it has drawn all that it asked for."""
        self.page.goto(f"{self._address}/#/{place}")
        self.page.wait_for_selector("h1")
        self.page.evaluate("() => new Promise(requestAnimationFrame)")  # it has heard where it is
        self.page.wait_for_function("() => !window.awaited")
        return self.page

    def log_in(self) -> None:
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_label("Token").fill(TOKEN)
        self.page.get_by_role("dialog").get_by_role("button", name="Log in", exact=True).click()
        expect(self.page.get_by_role("button", name="Log out")).to_be_visible()


@pytest.fixture
def dashboard(browser: Browser, shared_broker: BrokerUnderTest, jobs: OwnQueue) -> Iterator[Dashboard]:
    dashboard = Dashboard(browser, shared_broker.process.http, jobs.queue)
    yield dashboard
    dashboard.context.close()
    assert dashboard.wrong == []


def kill(
    jobs: OwnQueue, *ids: str, reason: str = "no such address", payload: bytes = b"job", worker: str = SCRIPT
) -> None:
    for job_id in ids:
        jobs.push(payload, id=job_id)

    def handler(_job: Any) -> None:
        raise Reject(reason)

    with Worker(jobs.queue, handler, prefetch=50, name=worker, endpoint=jobs.endpoint):
        wait_until(lambda: set(ids) <= set(jobs.ids("dead")), what="the deaths")


def test_every_page_shows_what_is_there_and_nothing_that_users_write_becomes_markup(
    dashboard: Dashboard, jobs: OwnQueue, browser: Browser
) -> None:
    # Given: a script wherever a user can put a text
    stream, schedule = f"s-{jobs.queue}", f"cron-{jobs.queue}"
    kill(jobs, SCRIPT, reason=SCRIPT, payload=SCRIPT.encode())
    jobs.push(json.dumps({SCRIPT: SCRIPT}).encode(), id="json", headers={SCRIPT: SCRIPT}, delay=1000)
    jobs.push(SCRIPT.encode(), id=f"done {SCRIPT}", keep_done=1000.0)
    with jobs.reserve(1) as claim:
        claim.jobs[0].commit(SCRIPT.encode())
    with Publisher(endpoint=jobs.endpoint) as publisher:
        publisher.publish(stream, SCRIPT, SCRIPT.encode()).wait(60)
    jobs.client.schedules.add(schedule, jobs.queue, SCRIPT.encode(), every=10_000)
    try:
        shown = ""
        places = [
            *PAGES,
            f"queues/{jobs.queue}",
            f"queues/{jobs.queue}?state=dead",
            f"dead?queue={jobs.queue}",
            f"schedules/{schedule}",
            f"streams/{stream}",
        ]
        places += [
            f"queues/{jobs.queue}/jobs/{quote(job_id, safe='')}" for job_id in (SCRIPT, f"done {SCRIPT}")
        ]
        places += [
            f"queues/{jobs.queue}/jobs/json",
            f"queues?contains={quote(SCRIPT)}",
            f"find?text={quote(SCRIPT)}",
            f"dead?queue={quote(SCRIPT)}",
        ]
        places += [f"dead?queue={jobs.queue}&reason={quote(SCRIPT)}", f"queues/{quote(SCRIPT, safe='')}"]
        with Worker(jobs.queue, lambda _job: None, name=SCRIPT, endpoint=jobs.endpoint):
            for place in places:
                page = dashboard.show(place)
                if place in (awaited := {"streams": stream, "schedules": schedule}):
                    expect(page.get_by_text(awaited[place]).first).to_be_visible()
                shown += page.inner_text("main")
                assert page.title().endswith("SluiceMQ"), place
                assert page.locator("main img, main script").count() == 0, place
        assert shown.count(SCRIPT) >= 6
        for words in (stream, schedule, "Overview", "done", "no such queue"):
            assert words in shown
    finally:
        jobs.client.schedules.delete(schedule)


def test_the_charts_of_the_history_are_drawn(dashboard: Dashboard) -> None:
    page = dashboard.show("")
    expect(page.locator(".chart canvas, .chart p:text('no jobs')")).to_have_count(4)
    # And one event stream, whatever the tab has shown
    for place in ("queues", "workers", "dead", ""):
        dashboard.show(place)
    assert page.evaluate("window.streams.filter((each) => each.readyState < 2).length") == 1
    expect(page.get_by_text("no history")).to_have_count(0)


@pytest.mark.full
def test_no_two_labels_of_an_axis_are_alike_whatever_is_shown(dashboard: Dashboard) -> None:
    axes = dashboard.show("").evaluate(
        """async () => {
          const { count, labels, rate, span, steps } = await import("/dashboard/format.js");
          const axes = [];
          for (const form of [count, rate, span]) for (let most = 1e-4; most < 1e9; most *= 1.7) {
            const step = steps.get(form).find((each) => each >= most / 5);
            const places = Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
            axes.push(labels(form, places, step));
          }
          axes.push(labels(count, [0, 1], 1), labels(span, [0, 120, 240], 120));
          axes.push(labels(count, [0, 5e5, 1e6], 5e5));
          return axes;
        }"""
    )
    assert axes[-3:] == [["0", "1"], ["0 min", "2 min", "4 min"], ["0.0M", "0.5M", "1.0M"]]
    for ax in axes:
        assert len(set(ax)) == len(ax)
        assert max(map(len, ax)) <= 9, ax


@_full
def test_figures_change_without_a_reload(dashboard: Dashboard, jobs: OwnQueue) -> None:
    jobs.push()
    page = dashboard.show(f"queues/{jobs.queue}")
    ready = page.locator(".tiles li", has_text="Ready").locator(".value")
    # An estimate may have a job twice that came while it was counted, until it is counted again.
    expect(ready).to_have_text(re.compile("^~?1$"), timeout=30_000)
    for _ in range(4):
        jobs.push()
    expect(ready).to_have_text(re.compile("^~?5$"), timeout=30_000)


@_full
def test_queues_are_sorted_and_filtered_by_keyboard(dashboard: Dashboard, jobs: OwnQueue) -> None:
    for number in range(3):
        for _ in range(number + 1):
            jobs.producer.push(f"{jobs.queue}-{number}", b"")
    jobs.producer.flush(60)
    for number in range(3):  # counted: what was known until then is an estimate
        assert jobs.client.queues.get(f"{jobs.queue}-{number}").ready == number + 1
    page = dashboard.show("queues")
    page.get_by_label("Filter by name").fill(f"{jobs.queue}-")
    names = page.locator("tbody th")
    expect(names).to_have_text([f"{jobs.queue}-{number}" for number in range(3)])
    page.get_by_role("button", name="Ready").focus()
    page.keyboard.press("Enter")
    expect(names).to_have_text([f"{jobs.queue}-{number}" for number in (2, 1, 0)])
    expect(page.get_by_role("columnheader", name="Ready")).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    expect(names).to_have_text([f"{jobs.queue}-{number}" for number in range(3)])


@_full
def test_back_leads_to_the_filter_order_tab_and_page_before(dashboard: Dashboard, jobs: OwnQueue) -> None:
    # Given: a tab of the queue's page that opens where jobs are, and its second page
    kill(jobs, *(f"job-{number:02}" for number in range(30)))
    page = dashboard.show(f"queues?contains={jobs.queue}")
    page.get_by_role("button", name="Dead", exact=True).click()
    page.get_by_role("link", name=jobs.queue).click()
    dead = page.get_by_role("button", name=re.compile("^dead ~?30$"))
    expect(dead).to_have_attribute("aria-pressed", "true")
    card = page.get_by_role("region", name="Jobs", exact=True)
    rows = card.locator("tbody th")
    expect(rows).to_have_count(25)
    card.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(5)
    first = rows.first.inner_text()
    card.get_by_role("button", name=re.compile("^ready")).click()
    expect(card.get_by_text("no such jobs")).to_be_visible()
    # When and then: each step back
    page.go_back()
    expect(rows).to_have_count(5)
    expect(rows.first).to_have_text(first)
    page.reload()
    expect(rows.first).to_have_text(first)
    card.get_by_role("button", name="Previous").click()
    expect(rows).to_have_count(25)
    for _ in range(3):
        page.go_back()
    expect(page.get_by_role("columnheader", name="Dead")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_label("Filter by name")).to_have_value(jobs.queue)


@_full
def test_a_job_is_pushed_by_hand_and_the_queue_is_deleted(dashboard: Dashboard, jobs: OwnQueue) -> None:
    jobs.push()
    page = dashboard.show(f"queues/{jobs.queue}")
    dashboard.log_in()
    page.get_by_role("button", name="Push a job").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Payload").fill('{"to": "ada"}')
    form.get_by_label("Options").fill('{"priority": "high"}')
    form.get_by_role("button", name="Push").click()
    expect(form.get_by_role("status")).to_contain_text("priority")
    form.get_by_label("Options").fill('{"id": "by hand"}')
    form.get_by_role("button", name="Push").click()
    expect(page.get_by_text("pushed job by hand")).to_be_visible()
    assert jobs.client.jobs.get(jobs.queue, "by hand").payload == b'{"to": "ada"}'
    page.get_by_role("button", name="Delete queue").click()
    expect(form).to_contain_text("with 2 jobs?")
    form.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


@_full
def test_a_schedule_is_added_changed_and_shown_with_its_runs(dashboard: Dashboard, jobs: OwnQueue) -> None:
    name = f"nightly-{jobs.queue}"
    page = dashboard.show("schedules")
    dashboard.log_in()
    page.get_by_role("button", name="Add a schedule").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill(name)
    form.get_by_label("Queue").fill(jobs.queue)
    form.get_by_label("Cron").fill("0 99 * * *")
    form.get_by_label("Time zone").fill("Europe/Berlin")
    form.get_by_label("Payload").fill("all")
    form.get_by_role("button", name="Add it").click()
    expect(form.get_by_role("status")).to_contain_text("99")
    form.get_by_label("Cron").fill("0 3 * * *")
    form.get_by_role("button", name="Add it").click()
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("region", name="Next runs").locator("li")).to_have_count(5)
    page.get_by_role("button", name="Run now").click()
    form.get_by_role("button", name="Run now").click()
    runs = page.get_by_role("region", name="Latest runs").locator("tbody tr")
    expect(runs).to_have_count(1)
    expect(runs).to_contain_text("ready")
    page.get_by_role("button", name="Change").click()
    expect(form.get_by_label("Payload")).to_have_value("all")
    form.get_by_label("Options").fill('{"priority": 5}')
    form.get_by_role("button", name="Change it").click()
    expect(page.locator(".facts")).to_contain_text('{"priority":5}')
    page.get_by_role("button", name="Delete").click()
    form.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()


@_full
def test_messages_are_found_and_a_subscription_moved(dashboard: Dashboard, jobs: OwnQueue) -> None:
    stream = f"s-{jobs.queue}"
    with Publisher(endpoint=jobs.endpoint) as publisher:
        for number in range(120):
            publisher.publish(stream, f"orders.{'eu' if number % 40 else 'us'}", b"%d" % number)
        publisher.flush(60)
    jobs.client.subscriptions.seek(stream, "sums", 100)
    page = dashboard.show(f"streams/{stream}")
    dashboard.log_in()
    rows = page.get_by_role("region", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.last).to_contain_text("119")
    page.get_by_role("button", name="Earlier").click()
    expect(rows.first).to_contain_text("21")
    page.get_by_label("Topic begins with").fill("orders.us")
    page.get_by_label("From number").fill("1")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Seek sums").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Go on behind number").fill("40")
    expect(form).to_contain_text("60 messages come again")
    form.get_by_role("button", name="Move it").click()
    expect(page.get_by_text("sums is moved")).to_be_visible()
    (row,) = jobs.client.subscriptions.list(stream)
    assert row.watermark == 40


@_full
def test_an_order_asks_for_a_login_then_whether_it_is_meant(dashboard: Dashboard, jobs: OwnQueue) -> None:
    jobs.push()
    page = dashboard.show(f"queues/{jobs.queue}")
    pause = page.get_by_role("button", name="Pause delivery")
    pause.click()
    page.get_by_label("Token").fill("wrong-but-long-enough")
    page.get_by_role("dialog").get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_text("that token is wrong")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("No broker gives its jobs to workers")
    page.keyboard.press("Escape")  # not meant
    assert not jobs.counts()["paused"]
    expect(pause).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("delivery paused")).to_be_visible()
    assert jobs.counts()["paused"] == ("delivery",)
    page.get_by_role("button", name="Resume delivery").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    wait_until(lambda: not jobs.counts()["paused"], what="the resumption")


@_full
def test_dead_letters_are_redriven_and_deleted_with_a_count(dashboard: Dashboard, jobs: OwnQueue) -> None:
    kill(jobs, "a1", "a2", reason="no such address")
    kill(jobs, "d1", "d2", "d3", reason="disk full")
    page = dashboard.show(f"dead?queue={jobs.queue}")
    expect(page.get_by_text("5 dead letters in all")).to_be_visible()
    dashboard.log_in()
    page.get_by_role("button", name="disk full 3").click()
    expect(page.get_by_text("3 dead letters match")).to_be_visible()
    page.get_by_label("choose job d2").check()
    page.get_by_role("button", name="Redrive 1 chosen").click()
    expect(page.get_by_role("dialog")).to_contain_text("Redrive 1 dead letter?")
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("2 dead letters match")).to_be_visible()
    assert jobs.ids("ready") == ["d2"]
    page.get_by_role("button", name="Delete all that match").click()
    expect(page.get_by_role("dialog")).to_contain_text("Delete 2 dead letters?")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("2 removed")).to_be_visible()
    assert set(jobs.ids("dead")) == {"a1", "a2"}


@_full
def test_letters_of_one_error_are_counted_redriven_and_exported(dashboard: Dashboard, jobs: OwnQueue) -> None:
    error = f"Lost_{re.sub('[^a-z0-9]', '_', jobs.queue)}"
    kill(jobs, "a", "b", reason=f"{error}: no such address")
    kill(jobs, "c", reason="disk full")
    page = dashboard.show("dead")
    dashboard.log_in()
    form = page.get_by_role("dialog")
    page.get_by_role("button", name=re.compile("^Redrive sluicemq.protocol.errors.Reject")).click()
    expect(form).to_contain_text(f"3 in {jobs.queue}")
    page.keyboard.press("Escape")
    # And of one queue, by a part of what is chosen, which stands in the address
    row = page.get_by_role("region", name="By error, over all queues").locator("tr", has_text=jobs.queue)
    row.get_by_role("link", name=jobs.queue, exact=True).click()
    expect(page.get_by_text("3 dead letters match")).to_be_visible()
    page.get_by_label("Reason has").fill(error)
    expect(page.get_by_text("2 dead letters match")).to_be_visible()
    page.get_by_label("Died from").fill("2026-01-01T00:00")
    page.get_by_label("Kind").fill("none")
    expect(page.get_by_text("0 dead letters match")).to_be_visible()
    page.get_by_label("Kind").fill("")
    expect(page.get_by_text("2 dead letters match")).to_be_visible()
    page.get_by_role("link", name="a", exact=True).click()
    expect(page.locator(".title .badge")).to_have_text("dead")
    page.go_back()
    expect(page.get_by_label("Died from")).to_have_value("2026-01-01T00:00")
    expect(page.get_by_text("2 dead letters match")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    lines = download.value.path().read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {"a", "b"}
    page.get_by_role("button", name="All errors").click()
    page.get_by_role("button", name="Redrive all that match").click()
    form.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("0 dead letters match")).to_be_visible()
    assert set(jobs.ids("ready")) == {"a", "b"}


@_full
def test_an_error_has_the_hosts_and_first_workers_it_is_of(dashboard: Dashboard, jobs: OwnQueue) -> None:
    for name in ("w1", "w2", "w3", "w4"):
        kill(jobs, name, worker=name)
    page = dashboard.show("dead")
    row = page.get_by_role("region", name="By error, over all queues").locator("tr", has_text=jobs.queue)
    expect(row.get_by_text(f"hosts {socket.gethostname()}", exact=True)).to_be_visible()
    workers = row.get_by_title(re.compile("w1.*w2.*w3.*w4|w4.*w3.*w2.*w1"))
    expect(workers).to_have_text(re.compile("^workers [^,]*, [^,]*, [^,]* and more$"))


@_full
def test_a_queue_whose_jobs_die_is_red_and_its_cause_is_named(dashboard: Dashboard, jobs: OwnQueue) -> None:
    kill(jobs, "a", "b", "c", reason="no such address")
    # Then: in its own page
    page = dashboard.show(f"queues/{jobs.queue}")
    expect(page.get_by_text("jobs die: 3 lately")).to_be_visible(timeout=30_000)
    happened = page.get_by_role("region", name="What happened").locator("tr", has_text="Dead letters")
    expect(happened).to_contain_text("3 jobs died", timeout=30_000)
    # And among the others
    page = dashboard.show(f"queues?contains={jobs.queue}")
    expect(page.get_by_role("link", name=jobs.queue)).to_have_class("bad")
    expect(page.get_by_role("row", name=jobs.queue)).to_contain_text("3 ↑")


@_full
def test_one_job_is_shown_and_retried_promoted_cancelled(dashboard: Dashboard, jobs: OwnQueue) -> None:
    kill(jobs, "dead", payload=b'{"to": "ada"}')
    jobs.push(b"\x00\x01\xff", id="later", delay=1000)
    page = dashboard.show(f"queues/{jobs.queue}/jobs/dead")
    dashboard.log_in()
    expect(page.get_by_role("region", name="Payload").locator(".content")).to_have_text('{1}to: "ada"')
    page.get_by_role("button", name="Hex").click()
    expect(page.get_by_role("region", name="Payload").locator(".content")).to_contain_text("7b 22 74 6f 22")
    expect(page.locator(".story")).to_contain_text("no such address")
    expect(page.locator(".story")).to_contain_text("sluicemq.protocol.errors.Reject in ")
    page.get_by_text("Traceback", exact=True).click()
    expect(page.get_by_label("traceback of attempt 1")).to_contain_text("raise Reject(reason)")
    page.get_by_role("button", name="Retry", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.locator(".badge").first).to_have_text("ready")
    page = dashboard.show(f"queues/{jobs.queue}/jobs/later")
    expect(page.get_by_role("region", name="Payload").locator(".content")).to_contain_text("00 01 ff")
    page.get_by_role("button", name="Promote").click()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(page.locator(".badge").first).to_have_text("ready")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").last.click()
    expect(page.locator(".badge").first).to_have_text("gone")
    expect(page.locator(".card.empty")).to_contain_text("It was cancelled: ")


@_full
def test_a_job_at_a_worker_is_stopped_from_its_page(dashboard: Dashboard, jobs: OwnQueue) -> None:
    jobs.push(b"x", id="runs")
    with jobs.client.jobs.reserve(jobs.queue, 1):
        page = dashboard.show(f"queues/{jobs.queue}/jobs/runs")
        dashboard.log_in()
        expect(page.locator(".badge").first).to_have_text("reserved")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").last.click()
        expect(page.locator(".card.empty")).to_contain_text("It was cancelled: ")


@_full
def test_a_running_job_shows_progress_and_what_happened_before(dashboard: Dashboard, jobs: OwnQueue) -> None:
    # Given: a job that has failed once, in its second attempt
    jobs.push(
        b'{"to": ["ada", {"cc": null}]}', id="long", group="g-1", kind="mail", backoff="none", tenant="t-1"
    )
    second, go_on, end = Event(), Event(), Event()

    def handler(job: Any) -> None:
        if job.attempt == 1:
            raise ValueError("no such template")
        job.progress(1, 4, "one of four")
        second.set()
        go_on.wait(60)
        job.progress(3, 4)
        end.wait(60)

    with Worker(jobs.queue, handler, name="slow", endpoint=jobs.endpoint):
        assert second.wait(60)
        page = dashboard.show(f"queues/{jobs.queue}/jobs/long")
        story = page.get_by_role("region", name="What happened").locator("li")
        expect(story).to_have_count(3)
        expect(story.nth(0)).to_contain_text("Pushed")
        expect(story.nth(1)).to_contain_text("Attempt 1 failed")
        expect(story.nth(1)).to_contain_text("no such template")
        expect(story.nth(2)).to_contain_text("Attempt 2 runs")
        expect(page.get_by_role("progressbar")).to_have_attribute("aria-label", "1 of 4, 25 %")
        page.get_by_text("Traceback", exact=True).click()
        facts = page.get_by_role("region", name="About the job")
        expect(facts).to_contain_text("t-1")
        for own in ("owner", "hold", "seq", "slot"):
            expect(facts.get_by_text(own, exact=False)).to_have_count(0)
        # And live: what is open stays open
        go_on.set()
        expect(page.get_by_role("progressbar")).to_have_attribute(
            "aria-label", "3 of 4, 75 %", timeout=30_000
        )
        expect(page.get_by_label("traceback of attempt 1")).to_be_visible()
        end.set()
        expect(page.locator(".title .badge")).to_have_text("gone", timeout=30_000)
        expect(story.last).to_contain_text("It is done")


@_full
def test_a_dead_letter_is_retried_edited_and_a_job_changed(dashboard: Dashboard, jobs: OwnQueue) -> None:
    jobs.push(b'{"to": "adda"}', id="typo", priority=7, group="g-1")
    with jobs.reserve(1) as claim:
        claim.jobs[0].reject("no such address")
    page = dashboard.show(f"queues/{jobs.queue}/jobs/typo")
    dashboard.log_in()
    form = page.get_by_role("dialog")
    page.get_by_role("button", name="Retry with an edit").click()
    expect(form.get_by_label("Payload")).to_have_value('{"to": "adda"}')
    form.get_by_label("Payload").fill('{"to": "ada"}')
    form.get_by_role("button", name="Push").click()
    expect(page.locator(".title .badge")).to_have_text("ready")
    assert jobs.ids("dead") == []
    (edited,) = jobs.ids("ready")
    shown = jobs.client.jobs.get(jobs.queue, edited)
    assert (shown.payload, shown.priority, shown.group) == (b'{"to": "ada"}', 7, "g-1")
    # And changed
    page.get_by_role("button", name="Change").click()
    form.get_by_label("Priority").fill("9")
    form.get_by_label("Delay").fill("1000")
    form.get_by_role("button", name="Change it").click()
    expect(page.locator(".title .badge")).to_have_text("scheduled")
    assert jobs.client.jobs.get(jobs.queue, edited).priority == 9
    # And bytes that are no text are cloned as they are
    jobs.push(b"\x00\xff", id="bytes")
    page = dashboard.show(f"queues/{jobs.queue}/jobs/bytes")
    page.get_by_role("button", name="Clone").click()
    expect(form).to_contain_text("2 B that are no text")
    form.get_by_label("Options").fill('{"id": "copy"}')
    form.get_by_role("button", name="Push").click()
    expect(page.get_by_role("heading", name="copy")).to_be_visible()
    assert jobs.client.jobs.get(jobs.queue, "copy").payload == b"\x00\xff"


@_full
def test_a_job_is_found_from_any_page_by_id_or_by_its_words(dashboard: Dashboard, jobs: OwnQueue) -> None:
    # Given a job that waits, one that is done and forgotten, and more than a page shows
    name = jobs.queue
    jobs.push(b"dear ada", id=f"w-{name}", kind=f"k-{name}", delay=1000)
    jobs.push(b"x", id=f"d-{name}")
    with jobs.reserve(1) as claim:
        claim.jobs[0].commit(b"")
    for number in range(60):
        jobs.producer.push(name, b"%d" % number, id=f"{name}-{number:02}", kind="many")
    jobs.producer.flush(60)
    page = dashboard.show("workers")
    # When it is looked for by its id, with the key of the field
    page.keyboard.press("/")
    page.keyboard.type(f"w-{name}")
    page.keyboard.press("Enter")
    rows = page.get_by_role("region", name="Jobs, those").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("dear ada")
    expect(page.get_by_role("status").filter(has_text="by its id, in")).to_be_visible()
    assert f"words=w-{name}" in page.url
    # And a job that is stored no longer says how it ended
    page.get_by_role("search").get_by_role("searchbox").fill(f"d-{name}")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"d-{name} was committed in {name}")).to_be_visible()
    expect(rows).to_have_count(0)
    # And Back leads to the search before, whose link leads to the job
    page.go_back()
    rows.get_by_role("link", name=f"w-{name}").click()
    expect(page.get_by_role("heading", name=f"w-{name}")).to_be_visible()
    # And a search by conditions goes on, and stands in the address
    page = dashboard.show("find")
    page.get_by_label("Kind").fill("many")
    page.get_by_label("Queue", exact=True).fill(name)
    page.get_by_role("button", name="Find", exact=True).click()
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Go on").click()
    expect(rows).to_have_count(60)
    expect(page.get_by_role("status").filter(has_text="60 found; searched")).to_be_visible()
    assert page.url.endswith(f"find?kind=many&queue={name}")
    page.reload()
    expect(rows).to_have_count(50)


def unanswered(_route: Route) -> None:
    """Leave a request without an answer."""


@_full
def test_a_search_is_stopped_and_says_what_the_broker_refuses(dashboard: Dashboard, jobs: OwnQueue) -> None:
    dashboard.page.route("**/api/v1/find?**", unanswered)
    dashboard.page.goto(f"{dashboard.show('').url}find?text=x")
    page = dashboard.page
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    page.unroute("**/api/v1/find?**")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("0 found; searched")).to_be_visible()
    page.get_by_label("Queue", exact=True).fill("no-such-queue")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(page.get_by_text("there is no queue 'no-such-queue'")).to_be_visible()


@_full
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_found_fits_its_window(
    browser: Browser, shared_broker: BrokerUnderTest, jobs: OwnQueue, width: int, scheme: str
) -> None:
    kill(jobs, "long-id-" * 15, reason="a-reason-without-any-space-" * 20)
    screen: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    dashboard = Dashboard(browser, shared_broker.process.http, jobs.queue, **screen)
    page = dashboard.show(f"find?queue={jobs.queue}")
    expect(page.locator("main tbody tr")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        '[...document.querySelectorAll(".scroll")].every((each) => each.scrollWidth <= each.clientWidth)'
    )
    if folder := os.environ.get("SLUICEMQ_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/find-{width}-{scheme}.png", full_page=True)
    dashboard.context.close()
    assert dashboard.wrong == []


@_full
def test_jobs_are_leafed_through_and_found_by_id(dashboard: Dashboard, jobs: OwnQueue) -> None:
    for number in range(60):
        jobs.producer.push(jobs.queue, b"", id=f"job-{number:02}")
    jobs.producer.flush(60)
    page = dashboard.show(f"queues/{jobs.queue}")
    card = page.get_by_role("region", name="Jobs", exact=True)
    rows = card.locator("tbody th")
    expect(rows).to_have_count(25)
    card.get_by_role("button", name="Next").click()
    expect(rows.first).to_have_text("job-25")
    card.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(10)
    expect(card.get_by_role("button", name="Next")).to_be_disabled()
    card.get_by_role("button", name="Previous").click()
    expect(rows.first).to_have_text("job-25")
    card.get_by_label("Find by id").fill("job-4")
    expect(rows).to_have_count(10)


@_full
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window_and_all_that_can_be_used_has_a_name(
    browser: Browser, shared_broker: BrokerUnderTest, jobs: OwnQueue, width: int, scheme: str
) -> None:
    kill(jobs, f"{'long-id-' * 15}", reason="a-reason-without-any-space-" * 20)
    with (
        Client(endpoint=shared_broker.doors["smq"]) as client,
        Publisher(endpoint=shared_broker.doors["smq"]) as publisher,
    ):
        client.schedules.add("heartbeat-of-a-shop", jobs.queue, b"x", every=3600)
        publisher.publish("shop", "orders", b"x").wait(60)
        client.subscriptions.seek("shop", "invoices-of-the-shop", 0)
    screen: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    dashboard = Dashboard(browser, shared_broker.process.http, jobs.queue, **screen)
    job = f"queues/{jobs.queue}/jobs/{'long-id-' * 15}"
    pages = (*PAGES, f"queues/{jobs.queue}?state=dead", f"dead?queue={jobs.queue}", job)
    for place in (*pages, "schedules/heartbeat-of-a-shop", "streams/shop"):
        page = dashboard.show(place)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        cut = page.evaluate(
            """() => [...document.querySelectorAll(".scroll")]
                 .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"""
        )
        assert cut == [], place
        here = page.locator("nav a[aria-current]")
        assert here.evaluate("(each) => each.getBoundingClientRect().right < innerWidth + 1"), place
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, a, input, select, [role=img]")].filter((each) =>
                 !(each.ariaLabel || each.textContent.trim() || each.labels?.length || each.title)
               ).map((each) => each.outerHTML)"""
        )
        assert nameless == [], place
        for role in ("banner", "navigation", "main"):
            assert page.get_by_role(role).count() == 1
    dashboard.context.close()
    assert dashboard.wrong == []


@pytest.mark.full
def test_the_audit_log_is_leafed_through_and_filtered(dashboard: Dashboard, jobs: OwnQueue) -> None:
    for _ in range(26):
        jobs.client.queues.pause(jobs.queue)
        jobs.client.queues.resume(jobs.queue)
    page = dashboard.show(f"audit?name={jobs.queue}")
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.locator("tbody tr").first).to_contain_text(f"resume {jobs.queue}")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Action").fill("purge")
    expect(page.get_by_text("no records")).to_be_visible()


@_full
def test_the_first_tab_stop_leads_to_the_content_and_focus_is_seen(dashboard: Dashboard) -> None:
    page = dashboard.show("queues")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


READER, OPERATOR = "a-token-of-the-reader", "the password of ops"


@pytest.fixture(scope="module")
def closed_broker(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with TLS where nobody sees anything before a login; its database has two queues."""
    certificate = Authority(tmp_path_factory.mktemp("ca")).certificate("127.0.0.1")
    hashed = hashlib.sha256(READER.encode()).hexdigest()
    people = {
        "reader": {"tokens": f"sha256:{hashed}", "permissions": "read=mail"},
        "ops": {"password": cheap_hash(OPERATOR), "permissions": "all"},
    }
    broker = {
        "endpoint": {"endpoint": "tcp://127.0.0.1:0", "anonymous": "all"},
        "http": "127.0.0.1:0",
        "http_tls_cert": str(certificate.chain),
        "http_tls_key": str(certificate.key),
        "history": True,
    }
    config = {
        "broker": broker,
        "security": {"anonymous": "none", "principals": people},
        "queues": {"mail": {}, "sms": {}},
        "devices": [],
    }
    with BrokerProcess(mongo_uri, "test_dashboard_closed", config=config) as process:
        with (
            Client(endpoint=process.doors["smq"]) as client,
            Producer(endpoint=process.doors["smq"]) as producer,
        ):
            for queue in ("mail", "sms"):
                producer.push(queue, b"job").wait(60)
                client.queues.get(queue)
        yield process


@pytest.fixture
def closed(browser: Browser, closed_broker: BrokerProcess) -> Iterator[Dashboard]:
    dashboard = Dashboard(browser, closed_broker.http, "mail", "https", ignore_https_errors=True)
    yield dashboard
    dashboard.context.close()
    assert dashboard.wrong == []


def test_nobody_sees_anything_before_a_login_and_then_what_is_permitted(closed: Dashboard) -> None:
    page = closed.show("queues")
    expect(page.get_by_role("heading", name="Log in to SluiceMQ")).to_be_visible()
    expect(page.get_by_role("navigation")).not_to_be_visible()
    # When the token is wrong
    page.get_by_label("Token").fill("a-guess-of-some-length")
    page.keyboard.press("Enter")
    expect(page.get_by_text("that token is wrong")).to_be_visible()
    # When it is right
    page.get_by_label("Token").fill(READER)
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.locator("tbody th")).to_have_text(["mail"])
    expect(page.locator("#who")).to_have_text("reader")
    expect(page.locator("nav li:visible")).to_have_text(
        ["Overview", "Queues", "Kinds", "Dead letters", "Workers"]
    )
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    (cookie,) = closed.context.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    for place in ("", "queues/mail", "dead?queue=mail", "workers"):
        closed.show(place)
    assert READER not in json.dumps(page.evaluate("[{...sessionStorage}, {...localStorage}]"))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in to SluiceMQ")).to_be_visible()
    assert "mail" not in page.inner_text("main")


@pytest.mark.full
def test_a_user_logs_in_by_password_and_may_change_what_is_permitted(closed: Dashboard) -> None:
    page = closed.show("queues/sms")
    page.get_by_role("button", name="By password").click()
    page.get_by_label("User").fill("ops")
    page.get_by_label("Password", exact=True).fill(OPERATOR)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause delivery").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("delivery paused")).to_be_visible()
    page.get_by_role("button", name="Resume delivery").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_text("delivery of sms is resumed")).to_be_visible()


@pytest.mark.full
def test_a_login_that_ends_leads_back_to_the_form(closed: Dashboard) -> None:
    page = closed.show("")
    page.get_by_label("Token").fill(READER)
    page.keyboard.press("Enter")
    expect(page.locator("#health")).to_have_attribute("data-health", "good")
    closed.context.clear_cookies()
    page.get_by_role("link", name="Queues", exact=True).click()  # the page looks again
    expect(page.get_by_role("heading", name="Log in to SluiceMQ")).to_be_visible()


@_full
def test_a_broker_that_goes_is_told_at_once_and_comes_back(browser: Browser, mongo_uri: str) -> None:

    config = {"broker": {"http": f"127.0.0.1:{free_port()}"}, "devices": []}
    with BrokerProcess(mongo_uri, "test_dashboard_away", config=config) as broker:
        dashboard = Dashboard(browser, broker.http, "")
        page = dashboard.show("")
        expect(page.locator("#health")).to_have_attribute("data-health", "good")
        expect(page.get_by_role("button", name="Read only")).to_be_disabled()
        broker.terminate()
        expect(page.locator("#health")).to_have_attribute("data-health", "bad")
        broker.restart()
        expect(page.locator("#health")).to_have_attribute("data-health", "good")
        dashboard.context.close()


@_full
def test_words_stand_where_nothing_is_known_while_mongodb_is_away(browser: Browser) -> None:
    config = {"broker": {"http": "127.0.0.1:0", "history": True}, "devices": []}
    with BrokerProcess(config=config) as broker:
        with Producer(endpoint=broker.doors["smq"]) as producer:
            producer.push("mail", b"job").wait(60)
        dashboard = Dashboard(browser, broker.http, "")
        dashboard.show("")
        os.kill(broker.mongod_pid, signal.SIGSTOP)
        try:
            expect(dashboard.page.locator("#health")).to_have_attribute("data-health", "bad")
            for place in ("queues/mail", ""):
                page = dashboard.page
                page.goto(f"http://{broker.http}/#/{place}")
                page.reload()
                # Then: what is waited for is named, and no box is empty
                expect(page.locator(".no-store .loading").first).to_be_visible()
                expect(page.locator(".plot:empty")).to_have_count(0)
                expect(page.get_by_text("not known now").first).to_be_visible(timeout=30_000)
            expect(dashboard.page.locator(".notices")).to_contain_text("MongoDB")
        finally:
            os.kill(broker.mongod_pid, signal.SIGCONT)
        expect(dashboard.page.locator("#health")).to_have_attribute("data-health", "good")
        dashboard.context.close()
