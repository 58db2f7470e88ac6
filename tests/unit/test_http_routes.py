"""Every path of the HTTP door, walked by callers who may everything but what it needs, and only that."""

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from falcon import testing
from msgspec import Struct

from sluicemq.protocol.permissions import EVERY, Action, Permissions
from sluicemq.protocol.rows import JobPage
from sluicemq_broker.config import Config
from sluicemq_broker.http import BASE, Site
from sluicemq_broker.http.authorization import HEADER
from sluicemq_broker.http.connections import Connections
from sluicemq_broker.http.handler import CONNECTION
from sluicemq_broker.http.route import read_query
from sluicemq_broker.parts import PARTS
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import Caller, Principal, Security
from sluicemq_devices.sockets import Outgoing

#: Names in the paths of these tests.
NAMES = {"stream": "mail", "queue": "mail", "subject": "queue", "name": "mail", "task_id": "t", "job_id": "j"}
QUEUE = f"{BASE}/queues/{{queue}}"
SCHEDULE = f"{BASE}/schedules/{{name}}"
#: Paths below :data:`BASE` by what must be permitted for each; None: whoever got in may ask.
PATHS: dict[Action | None, str] = {
    None: """
        /openapi.json /queues /workers /kinds /workers/quiet /workers/stop /errors /find /schedules
        /operations /recent /incidents /streams /overview /live /token /logout /me""",
    Action.OPERATE: "/broker /brokers /devices /audit /kept",
    Action.PUSH: "QUEUE/push",
    Action.SUBSCRIBE: "/streams/{stream}/messages",
    Action.READ: """
        QUEUE QUEUE/backlog QUEUE/settings QUEUE/jobs QUEUE/ended JOB JOB/payload QUEUE/dead-letters
        QUEUE/dead-letters/count QUEUE/dead-letters/reasons QUEUE/dead-letters/export
        /history/{subject}/{name} /series/{subject}/{name}""",
    Action.MANAGE: """
        /streams/{stream}/subscriptions/{name}/seek /schedules/{name} /operations/{task_id}
        /operations/{task_id}/cancel QUEUE/pause QUEUE/resume QUEUE/settings/set QUEUE/settings/unset
        QUEUE/purge QUEUE/delete QUEUE/dead-letters/redrive QUEUE/dead-letters/discard
        JOB/redrive JOB/promote JOB/cancel JOB/delete JOB/change /schedules/{name}/add
        /schedules/{name}/delete /schedules/{name}/pause /schedules/{name}/resume /schedules/{name}/run""",
}
WANTED = {
    BASE + path.replace("JOB", "QUEUE/jobs/{job_id}").replace("QUEUE", "/queues/{queue}"): action
    for action, paths in PATHS.items()
    for path in paths.split()
} | {"/metrics": None}
OPEN = {"/", "/healthz", "/readyz", f"{BASE}/login"}
CHANGES = {"pause", "resume", "set", "unset", "purge", "redrive", "delete"}
CHANGES |= {"promote", "cancel", "run", "token", "discard", "change", "add", "quiet", "stop", "push", "seek"}


class KnownTokens(Security):
    """Principals in a table: the token of each is its name."""

    def __init__(self, counters: Counters) -> None:
        super().__init__(counters)
        self.table: dict[str, Principal] = {}

    @property
    def has_logins(self) -> bool:
        return True

    def by_token(self, token: str, peer: str) -> Caller | None:
        principal = self.table.get(token)
        return Caller(principal, peer, refused=self.refused) if principal else None


class Door:
    """All paths, in this process, with nothing behind them."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.security = KnownTokens(self.counters)
        outgoing = Outgoing(1 << 20)
        connections = Connections(10, self.counters, outgoing.ration(None).hold)
        admin: Any = MagicMock()
        admin.schedules.queue_of.return_value = "mail"
        admin.schedules.needs.return_value = [(Action.MANAGE, "mail")]
        admin.tasks.find.return_value.queue = "mail"
        admin.dead_letters.page.return_value = JobPage(jobs=(), next=None)
        metrics: Any = SimpleNamespace(on_get=lambda _request, _response: None)
        settings = Config.default().broker
        self.site = Site(settings, self.counters, connections, admin, metrics, outgoing, self.security)
        for part in PARTS:
            part.add_paths(MagicMock(), self.site)
        self.site.close()  # no event stream goes on for ever

    def status(
        self, path: str, permissions: Permissions | None, body: Any = None, method: str | None = None
    ) -> int:
        """Status of the answer to a principal with these permissions; None: to nobody."""
        return int(self.answer(path, permissions, body, method).status_code)

    def answer(
        self, path: str, permissions: Permissions | None, body: Any = None, method: str | None = None
    ) -> testing.Result:
        """The answer itself."""
        headers = {HEADER: "x", "Content-Type": "application/json"}
        if permissions is not None:
            self.security.table["p"] = Principal("p", permissions)
            headers["Authorization"] = "Bearer p"
        method = method or ("POST" if path.rpartition("/")[2] in {*CHANGES, "logout"} else "GET")
        return testing.simulate_request(
            self.site,
            method,
            path.format(**NAMES),
            headers=headers,
            host="localhost",
            body=json.dumps(body or {}),
            extras={CONNECTION: SimpleNamespace(served=0)},
        )


@pytest.fixture
def door() -> Door:
    return Door()


def everything_but(*actions: Action) -> Permissions:
    return Permissions({action: (EVERY,) for action in Action if action not in actions})


def test_each_path_is_in_the_table_of_these_tests(door: Door) -> None:
    routes = [method for methods in door.site.table.values() for method, _ in methods.values()]
    needed = {route.path for route in routes if route.needs is not None}
    assert needed == WANTED.keys()
    assert {
        route.path for route in routes if route.needs is None and not route.path.startswith("/dashboard/")
    } == OPEN


@pytest.mark.parametrize("path", [path for path, action in WANTED.items() if action and path != SCHEDULE])
def test_who_may_everything_but_that_is_refused_and_who_may_only_that_is_not(door: Door, path: str) -> None:
    wanted = WANTED[path]
    assert wanted
    assert door.status(path, everything_but(wanted)) == 403
    assert door.counters.values[Count.FORBIDDEN] == 1
    assert door.status(path, Permissions({wanted: (EVERY,)})) not in (401, 403)
    if wanted != Action.OPERATE:
        assert door.status(path, Permissions({wanted: ("mail",)})) not in (401, 403)
        assert door.status(path, Permissions({wanted: ("mails", "mai", "sms.*")})) == 403


def test_a_schedule_is_shown_to_who_manages_and_reads_its_queue(door: Door) -> None:
    for missing in (Action.MANAGE, Action.READ):
        assert door.status(SCHEDULE, everything_but(missing)) == 403
    assert door.status(SCHEDULE, Permissions({Action.MANAGE: ("mail",), Action.READ: ("mail",)})) != 403


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", WANTED)
def test_nobody_gets_in_where_anonymous_clients_may_nothing(door: Door, path: str) -> None:
    door.security.anonymous.change(Permissions())
    assert door.status(path, None) == 401
    assert door.counters.values[Count.FORBIDDEN] == 1


@pytest.mark.parametrize("path", [path for path, action in WANTED.items() if action is None])
def test_whoever_got_in_may_ask_for_what_it_may_see(door: Door, path: str) -> None:
    assert door.status(path, Permissions()) not in (401, 403)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", [path for path, action in WANTED.items() if action])
def test_nobody_is_asked_for_a_token_where_somebody_would_be_refused(door: Door, path: str) -> None:
    door.security.anonymous.change(everything_but(*filter(None, [WANTED[path]])))
    assert door.status(path, None) == 401


@pytest.mark.parametrize("path", [path for path in WANTED if path.rpartition("/")[2] in CHANGES])
def test_anonymous_clients_change_nothing_even_where_they_may_everything(door: Door, path: str) -> None:
    assert door.status(path, None) == 401


def test_a_parameter_without_a_value_is_true_or_as_if_it_were_not_there() -> None:
    route: Any = SimpleNamespace(query=Parameters)
    request = testing.create_req(query_string="whole&limit=&name=a&name=b")
    assert read_query(route, request) == Parameters(whole=True, limit=7, name="b")


class Parameters(Struct):
    whole: bool = False
    limit: int = 7
    name: str = ""


def test_health_and_the_page_with_the_login_need_nobody(door: Door) -> None:
    door.security.anonymous.change(Permissions())
    for path in ("/healthz", "/", "/dashboard/app.js"):
        assert door.status(path, None) == 200


def test_dead_letters_are_redriven_into_another_queue_by_who_may_push_there(door: Door) -> None:
    path = f"{QUEUE}/dead-letters/redrive"
    manages = Permissions({Action.MANAGE: ("mail",)})
    assert door.status(path, manages, {"all": True, "to": "sms"}) == 403
    assert door.status(path, manages, {"all": True}) != 403
    both = Permissions({Action.MANAGE: ("mail",), Action.PUSH: ("sms",)})
    assert door.status(path, both, {"all": True, "to": "sms"}) == 403  # who works there would read them
    both = Permissions({Action.MANAGE: ("mail",), Action.READ: ("mail",), Action.PUSH: ("sms",)})
    assert door.status(path, both, {"all": True, "to": "sms"}) != 403


def test_a_path_that_was_renamed_needs_what_it_needed_and_says_where_it_is(door: Door) -> None:
    former = {
        method.former: method
        for methods in door.site.table.values()
        for method, _ in methods.values()
        if method.former
    }
    assert len(former) == 10
    for path, route in former.items():
        assert door.site.needs[path] is door.site.needs[route.path]
    answer = door.answer(f"{QUEUE}/dead/count", Permissions.all())
    assert answer.headers["deprecation"] == "true"
    assert answer.headers["link"] == f'<{QUEUE}/dead-letters/count>; rel="successor-version"'


def test_a_path_that_changes_something_is_not_read(door: Door) -> None:
    for path in (wanted for wanted in WANTED if wanted.rpartition("/")[2] in CHANGES):
        assert door.status(path, Permissions.all(), method="GET") == 405


def test_the_history_of_a_stream_and_of_the_broker_need_what_those_need(door: Door) -> None:
    for subject, action in (("stream", Action.SUBSCRIBE), ("broker", Action.OPERATE), ("x", Action.OPERATE)):
        path = f"{BASE}/series/{subject}/mail"
        assert door.status(path, everything_but(action)) == 403
        assert door.status(path, Permissions({action: (EVERY,)})) not in (401, 403)


def test_the_workers_of_one_queue_are_for_who_may_read_it(door: Door) -> None:
    assert door.status(f"{BASE}/workers?queue=mail", everything_but(Action.READ)) == 403
