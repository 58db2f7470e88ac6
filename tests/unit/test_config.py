"""The configuration: its defaults, its sources, and the words with which it refuses."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from sluicemq.protocol.options import OPTIONS, Option
from sluicemq_broker.command.serve import serve
from sluicemq_broker.config import (
    BrokerSettings,
    Config,
    ConfigError,
    DeviceSettings,
    MongoUri,
    QueueSettings,
    as_json,
    changes,
    describe,
    load,
    problems_of_exposure,
    settings_of,
    taken_over,
)
from sluicemq_broker.config.rules import Rule, http_hosts
from sluicemq_broker.job import Timetable
from sluicemq_devices.sockets import Endpoint


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = Config.default()
    assert str(config.broker.endpoint) == "@tcp://127.0.0.1:5550"
    assert config.broker.mongodb_uri is None
    assert (config.broker.lease, config.broker.heartbeat, config.broker.silence) == (15.0, 2.0, 20.0)
    assert config.broker.max_job_bytes == 12 * 2**20
    assert config.queue("any").max_attempts == 13
    assert [doors(device) for device in config.devices] == [
        ("streamer", [5551], [5552], [5557]),
        ("queue", [5553], [5554], []),
        ("forwarder", [5555], [5556], []),
    ]


def test_it_cant_be_changed() -> None:
    config = Config.default()
    with pytest.raises(FrozenInstanceError):
        config.broker.lease = 1.0  # type: ignore[misc]


def test_later_sources_win(tmp_path: Path) -> None:
    file = written(tmp_path, "[broker]\nlease = 20\nhwm = 7\ndatabase = 'file'\n")
    environ = {"SLUICEMQ_LEASE": "30", "SLUICEMQ_HWM": "8"}
    config = load(file, environ, {"lease": 40.0, "hwm": None})
    assert (config.broker.lease, config.broker.hwm, config.broker.database) == (40.0, 8, "file")


@pytest.mark.parametrize(
    ("key", "word", "value"),
    [
        ("mongodb_uri", "mongodb://db/", MongoUri.read("mongodb://db/")),
        ("endpoint", "@tcp://*:1", Endpoint("tcp://*:1", bind=True)),
        ("auto_create", "off", False),
        ("allow_unsafe_store", "1", True),
        ("max_connections", "9", 9),
        ("stop_timeout", "0.5", 0.5),
        ("data_dir", "/var/lib/x", Path("/var/lib/x")),
    ],
)
def test_the_environment_is_read_in_the_type_of_each_key(key: str, word: str, value: object) -> None:
    config = load(None, {f"SLUICEMQ_{key.upper()}": word}, {})
    assert getattr(config.broker, key) == value


def test_variables_that_are_not_for_us_are_left_alone() -> None:
    environ = {"SLUICEMQ_PORT_5550_TCP_ADDR": "10.0.0.1", "SLUICEMQ_SERVICE_HOST": "10.0.0.1", "LEASE": "x"}
    assert load(None, environ, {}) == Config.default()


def test_a_queues_table_goes_over_the_star_and_the_star_over_the_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, '[queues."*"]\nmax_attempts = 9\nttl = 60\n[queues.mail]\nttl = 5\n')
    config = load(file, {}, {})
    assert (config.queue("mail").max_attempts, config.queue("mail").ttl) == (9, 5.0)
    assert (config.queue("else").max_attempts, config.queue("else").ttl) == (9, 60.0)
    assert config.queue("mail").remember == 300.0
    assert list(config.queues) == ["mail"]


def test_host_moves_the_default_doors_and_no_others(tmp_path: Path) -> None:
    moved = load(None, {}, {"host": "*"})
    named = load(written(tmp_path, '[broker]\nendpoint = "tcp://127.0.0.1:1"'), {}, {"host": "::1"})
    assert moved.broker.endpoint.address == "tcp://*:5550"
    assert moved.devices[1].backends[0].address == "tcp://*:5554"
    assert named.broker.endpoint.address == "tcp://127.0.0.1:1"
    assert named.devices[0].frontends[0].address == "tcp://[::1]:5551"


@pytest.mark.parametrize(
    ("environ", "flags"), [({}, {"ports": "6550"}), ({"SLUICEMQ_PORTS": "6550"}, {}), (None, {})]
)
def test_ports_move_all_doors(tmp_path: Path, environ: dict[str, str] | None, flags: dict[str, str]) -> None:
    file = written(tmp_path, "[broker]\nports = 6550\n") if environ is None else None
    config = load(file, environ or {}, flags)
    assert config.broker.endpoint.address == "tcp://127.0.0.1:6550"
    assert config.broker.http == "127.0.0.1:6580"
    assert [doors(device) for device in config.devices] == [
        ("streamer", [6551], [6552], [6557]),
        ("queue", [6553], [6554], []),
        ("forwarder", [6555], [6556], []),
    ]


def test_ports_move_the_addresses_of_earlier_sources_and_none_of_later_ones(tmp_path: Path) -> None:
    file = written(tmp_path, '[broker]\nendpoint = "tcp://*:1"\nhttp = "127.0.0.1:2"\nports = 6550')
    same, moved, over = (
        load(file, environ, flags).broker
        for environ, flags in (
            ({}, {}),
            ({"SLUICEMQ_ENDPOINT": "tcp://*:3"}, {"ports": "7550"}),
            ({"SLUICEMQ_PORTS": "7550"}, {"endpoint": "tcp://*:3", "http": "*:4"}),
        )
    )
    assert (same.endpoint.address, same.http) == ("tcp://*:1", "127.0.0.1:2")
    assert (moved.endpoint.address, moved.http) == ("tcp://127.0.0.1:7550", "127.0.0.1:7580")
    assert (over.endpoint.address, over.http) == ("tcp://*:3", "*:4")
    assert load(None, {"SLUICEMQ_HTTP": ""}, {"ports": "6550"}).broker.http == ""
    assert load(None, {}, {"ports": "6550", "host": "*"}).broker.endpoint.address == "tcp://*:6550"


@pytest.mark.parametrize("value", ["tcp://a:1,tcp://b:2", "dns+tcp://a:1"])
def test_a_list_of_brokers_is_no_door(value: str) -> None:
    for environ, flags in (({"SLUICEMQ_ENDPOINT": value}, {}), ({}, {"endpoint": value})):
        with pytest.raises(
            ConfigError, match=r"ENDPOINT|--endpoint: .* lists of brokers are for their clients"
        ):
            load(None, environ, flags)


@pytest.mark.parametrize("ports", ["0", "65506", "-1", "x", "6550.5"])
def test_ports_leave_room_for_all_doors(ports: str) -> None:
    with pytest.raises(ConfigError, match=r"--ports: expected a whole number, 1 to 65505"):
        load(None, {}, {"ports": ports})


def test_the_variables_of_kubernetes_for_a_service_of_this_name_are_no_ports_of_ours() -> None:
    assert load(None, {"SLUICEMQ_PORT": "tcp://10.0.0.1:5550"}, {}) == Config.default()
    with pytest.raises(ConfigError, match=r"SLUICEMQ_PORT: unknown key; did you mean ports\?"):
        load(None, {"SLUICEMQ_PORT": "6550"}, {})


SERVICE_LINKS = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "27017",
    "SERVICE_PORT_CLIENT": "27017",
    "PORT": "tcp://10.0.0.1:27017",
    "PORT_27017_TCP": "tcp://10.0.0.1:27017",
    "PORT_27017_TCP_PROTO": "tcp",
    "PORT_27017_TCP_PORT": "27017",
    "PORT_27017_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["", "MONGODB_", "HTTP_", "0_", "LEASE_", "MONGODB_URI_"])
def test_the_variables_of_a_service_are_ignored_whatever_it_is_called(service: str) -> None:
    config = load(None, {f"SLUICEMQ_{service}{name}": value for name, value in SERVICE_LINKS.items()}, {})
    assert config == Config.default()
    assert not config.warnings


def test_what_clients_read_is_left_to_them() -> None:
    names = ("KEY_FILE", "SERVER_KEY", "USER", "PASSWORD_FILE", "PROFILE")
    config = load(None, {f"SLUICEMQ_{name}": "x" for name in names}, {})
    assert config == Config.default()
    assert not config.warnings


def test_a_variable_that_nobody_knows_is_named() -> None:
    assert [str(warning) for warning in load(None, {"SLUICEMQ_NONSENSE": "1"}, {}).warnings] == [
        "SLUICEMQ_NONSENSE: no variable of SluiceMQ has this name: it is ignored"
    ]


def test_the_endpoint_of_clients_moves_no_door_that_a_file_or_a_flag_places(tmp_path: Path) -> None:
    environ = {"SLUICEMQ_ENDPOINT": "tcp://10.0.0.9:5550,tcp://10.0.0.8:5550"}
    for text, flags in (
        ('endpoint = "tcp://127.0.0.1:7000"', {}),
        ("ports = 7000", {}),
        ("", {"endpoint": "tcp://127.0.0.1:7000"}),
        ("", {"ports": "7000"}),
    ):
        config = load(written(tmp_path, f"[broker]\n{text}"), environ, flags)
        assert config.broker.endpoint.address == "tcp://127.0.0.1:7000"
        assert "SLUICEMQ_ENDPOINT: is left to clients" in str(config.warnings[0])
    environ = {"SLUICEMQ_ENDPOINT": "tcp://10.0.0.9:5550"}
    config = load(written(tmp_path, "[broker]\nlease = 10"), environ, {})
    assert config.broker.endpoint.address == "tcp://10.0.0.9:5550"
    assert "tcp://10.0.0.9:5550 (of SLUICEMQ_ENDPOINT)" in str(problems_of_exposure(config)[0])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_a_line_end_behind_a_value_of_the_environment_is_no_part_of_it(end: str) -> None:
    environ = {"SLUICEMQ_LEASE": f"30{end}", "SLUICEMQ_MONGODB_URI": f"mongodb://a:p@b/?replicaSet=r{end}"}
    broker = load(None, environ, {}).broker
    assert broker.lease == 30
    assert broker.mongodb_uri
    assert broker.mongodb_uri.text.endswith("=r")


def test_a_broker_without_devices_opens_none_of_its_file_nor_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, "[[devices]]\nkind = 'queue'\nfrontend = 'tcp://*:1'\n")
    assert load(None, {}, {"devices": False}).devices == ()
    assert load(None, {"SLUICEMQ_DEVICES": "off"}, {}).devices == ()
    assert load(file, {}, {"devices": False}).devices == ()
    assert len(load(file, {}, {}).devices) == 1


def test_devices_that_are_named_replace_the_default_ones(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [[devices]]
        kind = "streamer"
        queue = "mail"
        frontend = ["tcp://*:1", ">tcp://producer:2"]
        [[devices]]
        kind = "streamer"
        queue = "mail"
        backend = "tcp://*:3"
        commit = "tcp://*:4"
        ack = "explicit"
        prefetch = 20
        """,
    )

    first, second = load(file, {}, {}).devices

    assert first.frontends == (Endpoint("tcp://*:1", bind=True), Endpoint("tcp://producer:2", bind=False))
    assert first.backends == ()
    assert (second.queue, second.ack, second.prefetch) == ("mail", "explicit", 20)


def test_no_devices_at_all_can_be_asked_for(tmp_path: Path) -> None:
    assert load(written(tmp_path, "devices = []"), {}, {}).devices == ()


def test_the_data_folder_is_the_users() -> None:
    assert load(None, {"XDG_DATA_HOME": "/data"}, {}).broker.data_dir == Path("/data/sluicemq")
    assert load(None, {}, {}).broker.data_dir == Path.home() / ".local/share/sluicemq"


DEVICE = '[[devices]]\nkind = "{}"\n'


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[broker]\nlese = 3", r"\[broker\]: lese: unknown key; did you mean lease\?"),
        ("[brokr]", r"broker\.toml: brokr: unknown key; did you mean broker\?"),
        ("[queues.a]\nattempts = 3", r"\[queues\.a\]: attempts: .*max_attempts"),
        ('[queues."*"]\nx = 3', r'\[queues\."\*"\]: x: unknown key; known are .*visibility_timeout'),
        ('[broker]\nlease = "soon"', r"\[broker\] lease: expected seconds, more than 0, .*; got 'soon'"),
        ("[broker]\nlease = 0", "lease: expected seconds, more than 0, at most ten years; got 0"),
        ("[broker]\nlease = true", "lease: expected seconds"),
        ("[broker]\nlease = inf", "lease: expected seconds"),
        (f"[broker]\nlease = {10**400}", "lease: expected seconds"),
        ("[queues.mail]\nremember = 400000000", "remember: expected seconds, at least 0, at most ten years"),
        (f"[queues.mail]\nmax_losses = {2**64}", "max_losses: expected a whole number, 1 to 1000000"),
        (
            '[queues.a]\nbackoff = "exponental"',
            'backoff: expected one of .*"linear".* did you mean exponential',
        ),
        ("[queues.a]\nbackoff_factor = 0.5", "backoff_factor: expected a number, 1 to 100; got 0.5"),
        ("[queues.a]\nbackoff_jitter = 2", "backoff_jitter: expected a number, 0 to 1; got 2"),
        ('[queues.a]\non_expiry = "die"', 'on_expiry: expected one of "drop", "dead"'),
        ('[queues."a..b"]', r"\[queues.a..b\]: expected a queue's name"),
        ('[queues."a."]', "expected a queue's name: .* single full stops"),
        ("[broker]\nhwm = 1.5", "hwm: expected a whole number of at least 1; got 1.5"),
        ("[broker]\nmax_job_bytes = 16777216", "max_job_bytes: expected a whole number, 1 to 15728640"),
        ("[broker]\nauto_create = 2", "auto_create: expected true or false; got 2"),
        ('[broker]\nlog_level = "inf"', 'log_level: expected one of .*"info".* did you mean info'),
        ('[broker]\nmongodb_uri = "db:27017"', "mongodb_uri: expected a URI that begins with mongodb://"),
        ('[broker]\ndatabase = "a.b"', "database: expected the name of a database"),
        ('[broker]\nhost = "tcp://x"', "host: expected a host name"),
        ('[broker]\nendpoint = "5550"', r"endpoint: expected an endpoint: .*tcp://HOST:PORT"),
        ('[broker]\nendpoint = ">tcp://a:1"', "endpoint: expected one endpoint that binds"),
        ("[broker]\nheartbeat = 27", "silence = 20 must be longer than heartbeat = 27"),
        ('[queues."a b"]', "expected a queue's name"),
        ("queues = 3", r"expected tables, \[queues\.NAME\]"),
        ("broker = 3", r"\[broker\]: expected a table"),
        ("[devices]", r"expected \[\[devices\]\]"),
        ("[[devices]]\nfrontend = 'tcp://*:1'", r"\[\[devices\]\] no\. 1: kind is missing"),
        (DEVICE.format("streamr"), "kind: expected one of .* did you mean streamer"),
        ("[schedules.a]\ncron = '* * * * *'", "queue is missing"),
        ("[schedules.a]\nqueue = 'q'", "either cron or every"),
        ("[schedules.a]\nqueue = 'q'\ncron = '61 * * * *'", "Bad minute"),
        ("[schedules.a]\nqueue = 'q'\nevery = 5\nmisfire = 'al'", "misfire: expected .* did you mean all"),
        ("[schedules.a]\nqueue = 'q'\nevery = 5\noptions = { id = 'x' }", "'id': unknown key"),
        ("[schedules.a]\nqueue = 'q'\nevery = 5\noptions = { priority = 300 }", "priority: a whole number"),
        ("[schedules.'a b']\nqueue = 'q'\nevery = 5", "a queue's name"),
        (DEVICE.format("streamer"), "expected a frontend, a backend or both"),
        (
            DEVICE.format("queue") + "backend = 'tcp://*:1'\nack = 'auto'",
            "ack: is for a streamer, this is a queue",
        ),
        (DEVICE.format("queue") + "backend = 'tcp://*:1'\nprefetch = 2", "prefetch: is for a streamer"),
        (
            DEVICE.format("forwarder") + "backend = 'tcp://*:1'\nqueue = 'a'",
            "queue: is for a streamer or queue",
        ),
        (DEVICE.format("streamer") + "backend = 'tcp://*:1'\nack = 'explicit'", "commit is missing"),
        (DEVICE.format("queue") + "backend = 'tcp://127.0.0.1:5550'", "127.0.0.1:5550 is bound twice"),
        (DEVICE.format("queue") + "backend = [3]", "backend: expected one endpoint such as"),
        ("[queues.a]\ntenant_rate = 1", r"\[queues\.a\]: limits its tenants: that takes fair = true"),
        ('[queues."*"]\ntenant_max_running = 1', r'\[queues\."\*"\]: limits its tenants'),
        ("[queues.a]\ndelay = 60\nttl = 5", r"\[queues\.a\]: jobs would expire before they are due: delay"),
        (
            "[queues.a]\nttl = 5\n[schedules.s]\nqueue = 'a'\nevery = 60\noptions = { delay = '1m' }",
            r"\[schedules\.s\]: jobs would expire before they are due: delay is 60 s, ttl 5 s",
        ),
        (
            "[queues.a]\ndelay = 60\n[[routes]]\nstream = 's'\nqueue = 'a'\nheaders = { ttl = 5 }",
            r"\[\[routes\]\] no\. 1: jobs would expire before they are due",
        ),
        (
            "[queues.a]\nfair = true\ntenant_max_running = 0",
            "tenant_max_running: expected a whole number, 1 to",
        ),
        (
            2 * "[[routes]]\nstream = 's'\nqueue = 'a'\n",
            r"stream 's' has two routes with subscription '.*': give one another name",
        ),
        ("[broker\n", r"broker\.toml: is not TOML: .*line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, toml: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(written(tmp_path, toml), {}, {})
    is_between_places = any(words in complaint for words in ("twice", "silence", "two routes"))
    assert is_between_places or "broker.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "flags", "complaint"),
    [
        ({"SLUICEMQ_LEASE": "x"}, {}, "^SLUICEMQ_LEASE: expected seconds"),
        ({"SLUICEMQ_LEASES": "1"}, {}, r"^SLUICEMQ_LEASES: unknown key; did you mean lease\?"),
        ({}, {"mongodb_uri": "x"}, "^--mongodb-uri: expected a URI"),
        ({}, {"nonsense": 1}, "^flags: nonsense: unknown key"),
    ],
)
def test_words_are_as_written(environ: dict[str, str], flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(None, environ, flags)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [broker]
        lese = 3
        lease = "soon"
        mongodb_uri = 7
        [queues.mail]
        ttl = -1
        [queues."a b"]
        attempts = 3
        [[devices]]
        kind = "streamr"
        frontend = "5551"
        [[devices]]
        kind = "queue"
        ack = "auto"
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load(file, {"SLUICEMQ_HWM": "x", "SLUICEMQ_LEASES": "1"}, {"poll": "0"})

    places = [problem.place.removeprefix(f"{file}: ") for problem in caught.value.problems]
    assert sorted(places) == sorted(
        [
            *("[broker]: lese", "[broker] lease", "[broker] mongodb_uri", "SLUICEMQ_LEASES", "SLUICEMQ_HWM"),
            *("--poll", "[queues.mail] ttl", "[queues.a b]", "[queues.a b]: attempts"),
            *("[[devices]] no. 1 kind", "[[devices]] no. 1 frontend"),
            *("[[devices]] no. 2: ack", "[[devices]] no. 2"),
        ]
    )
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]


def test_what_contradicts_itself_is_told_beside_what_is_wrong_by_itself(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [broker]
        silence = 3
        heartbeat = 5
        [queues.x]
        tenant_rate = 5
        [queues.y]
        on_dead = "z"
        max_atempts = 3
        [queues.z]
        on_dead = "y"
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    told = str(caught.value)
    assert "did you mean max_attempts?" in told
    assert "silence = 3 must be longer than heartbeat = 5" in told
    assert "[queues.x]: limits its tenants" in told
    assert "on_dead leads from y → z → y" in told


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('[broker]\nsilence = "x"\nheartbeat = 100', "[broker] silence"),
        ("[queues.x]\nfair = 7\ntenant_rate = 5", "[queues.x] fair"),
        (
            '[broker]\nendpoint = 7\n[[devices]]\nkind = "queue"\nfrontend = "tcp://127.0.0.1:5550"',
            "[broker] endpoint",
        ),
    ],
)
def test_nothing_is_compared_with_a_default_nobody_wanted(tmp_path: Path, text: str, wrong: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert [problem.place.removeprefix(f"{file}: ") for problem in caught.value.problems] == [wrong]


# What a map of a back-off says, a queue says in settings of their own.
_ALIKE = [option for option in OPTIONS.values() if option.setting and option.name != "backoff"]


@pytest.mark.parametrize("option", _ALIKE, ids=lambda option: option.name)
def test_a_queue_may_say_of_an_option_what_a_header_may(option: Option) -> None:
    rule = settings_of(QueueSettings)[option.setting].metadata["rule"]
    least, most = option.rule.bounds
    numbers = [] if least is None else [least, most, least - 0.0001, least + 0.0001, most + 1, -1, 0, 10**400]
    strange = [True, "7", float("nan"), float("inf"), [], {}, "exponential", "none", "no such word"]
    for value in (*numbers, *strange):
        assert takes(rule, value) == option.rule.holds(value), value


def test_every_setting_of_the_broker_is_a_flag() -> None:
    flags = {param.name: param for param in serve.params}
    for key in settings_of(BrokerSettings):
        assert flags[key].opts == ["--" + key.replace("_", "-")]


@pytest.mark.parametrize(
    "setting",
    [
        *({"max_running": 1}, {"rate": 1.0}, {"fair": True, "tenant_rate": 1.0}, {"fair": True}),
        *({"max_ready": 1}, {"max_bytes": 1}, {"keep_done": 1.0}, {"pack": False}),
    ],
)
def test_jobs_that_are_limited_counted_or_kept_are_not_packed(setting: dict[str, Any]) -> None:
    assert QueueSettings().packs
    assert not QueueSettings(**setting).packs


def test_a_schedule_runs_by_its_expression_or_at_its_interval(tmp_path: Path) -> None:
    text = "[schedules.a]\nqueue = 'q'\nevery = 5\n[schedules.b]\nqueue = 'q'\ncron = '0 1 * * *'"
    schedules = load(written(tmp_path, text), {}, {}).schedules
    assert {name: schedule.timetable for name, schedule in schedules.items()} == {
        "a": Timetable(every=5.0),
        "b": Timetable("0 1 * * *"),
    }


def test_a_file_that_cant_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: can't be read: No such file"):
        load(tmp_path / "none.toml", {}, {})


def test_what_is_described_can_be_read_back(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [broker]
        lease = 3.5
        mongodb_uri = "mongodb://db/?replicaSet=a"
        [queues."*"]
        ttl = 4
        [queues.a]
        max_attempts = 0
        [[devices]]
        kind = "streamer"
        frontend = ["tcp://*:1", ">tcp://b:2"]
        """,
    )
    for config in (load(file, {}, {}), Config.default()):
        again = tmp_path / "again.toml"
        again.write_text(describe(config))

        assert load(again, {}, {}) == config


def test_a_running_broker_takes_live_settings_and_no_others(tmp_path: Path) -> None:
    old = load(written(tmp_path, "[queues.a]\nttl = 3\n[queues.b]\nttl = 3"), {}, {})
    toml = """
        [broker]
        log_level = "debug"
        lease = 20
        mongodb_uri = "mongodb://me:new@db/"
        [queues.a]
        ttl = 4
        database = "elsewhere"
        [queues."*"]
        max_attempts = 9
        [[devices]]
        kind = "queue"
        backend = "tcp://*:1"
        """
    new = load(written(tmp_path, toml), {}, {})

    running = taken_over(old, new)

    assert (running.broker.log_level, running.broker.lease, running.broker.mongodb_uri) == (
        "debug",
        15.0,
        None,
    )
    assert (running.queue("a").ttl, running.queue("a").database) == (4.0, None)
    assert (running.queue("b").ttl, running.queue("b").max_attempts) == (None, 9)
    assert running.queue("new").max_attempts == 9
    assert running.devices == old.devices
    told = {str(change) for change in changes(old, new) if change.live}
    assert told == {
        '[broker] log_level: "info" -> "debug"',
        '[queues."*"] max_attempts: 13 -> 9',
        "[queues.a] ttl: 3.0 -> 4.0",
        "[queues.a] max_attempts: 13 -> 9",
        "[queues.b] ttl: 3.0 -> nothing",
        "[queues.b] max_attempts: 13 -> 9",
    }
    assert {str(change) for change in changes(running, new)} == {
        "[broker] lease: 15.0 -> 20.0",
        '[broker] mongodb_uri: nothing -> "mongodb://me:***@db/"',
        '[queues.a] database: nothing -> "elsewhere"',
        "number of [[devices]]: 3 -> 1",
        *(f"[[devices]] no. 1 {key}" + ": " + what for key, what in [
            ("kind", '"streamer" -> "queue"'),
            ("frontend", '"@tcp://127.0.0.1:5551" -> nothing'),
            ("backend", '"@tcp://127.0.0.1:5552" -> "@tcp://*:1"'),
            ("commit", '"@tcp://127.0.0.1:5557" -> nothing'),
        ]),
    }  # fmt: skip
    assert changes(running, taken_over(running, new)) == []


def test_it_can_be_shown_as_json(tmp_path: Path) -> None:
    shown = as_json(
        load(written(tmp_path, "[queues.mail]\nttl = 3"), {}, {"mongodb_uri": "mongodb://me:x@db/"})
    )
    assert shown["broker"]["mongodb_uri"] == "mongodb://me:***@db/"
    assert shown["queues"]["mail"]["ttl"] == 3.0
    assert shown["devices"][1] == {
        **shown["devices"][1],
        "kind": "queue",
        "backend": ["@tcp://127.0.0.1:5554"],
    }
    assert json.loads(json.dumps(shown)) == shown


def test_a_password_is_not_described() -> None:
    config = load(None, {}, {"mongodb_uri": "mongodb://me:se%40cret@db/"})
    assert 'mongodb_uri = "mongodb://me:***@db/"' in describe(config)


def test_every_setting_says_what_it_is_for() -> None:
    config = Config.default()
    named = replace(config, queues={"mail": config.other_queues})
    lines = [line for line in describe(named).splitlines() if line and not line.startswith("[")]
    assert all("  # " in line for line in lines)
    assert '[queues."mail"]' in describe(named)


def takes(rule: Rule, value: object) -> bool:
    try:
        rule(value)
    except ValueError:
        return False
    return True


def doors(device: DeviceSettings) -> tuple[str, list[int], list[int], list[int]]:
    ends = (device.frontends, device.backends, device.commits)
    push, pull, commit = ([int(door.address.rpartition(":")[2]) for door in end] for end in ends)
    return device.kind, push, pull, commit


def written(folder: Path, toml: str) -> Path:
    file = folder / "broker.toml"
    file.write_text(toml)
    return file


def test_a_token_is_never_shown_not_even_a_wrong_one() -> None:
    config = load(None, {"SLUICEMQ_HTTP_TOKEN": "a-token-of-20-letters"}, {})
    assert config.broker.http_token is not None
    assert config.broker.http_token.text == "a-token-of-20-letters"
    assert "a-token-of" not in describe(config) + json.dumps(as_json(config)) + repr(config)
    with pytest.raises(ConfigError) as refused:
        load(None, {"SLUICEMQ_HTTP_TOKEN": "too-short"}, {})
    assert "16 to 256" in str(refused.value)
    assert "too-short" not in str(refused.value)


@pytest.mark.parametrize(
    "given", [["MQ.example.com", "b:8443"], "mq.example.com, b:8443", ("mq.example.com", "b:8443")]
)
def test_names_of_the_http_door_are_a_list_or_one_text(given: object) -> None:
    assert http_hosts(given) == ("mq.example.com", "b:8443")
    assert http_hosts(list(http_hosts(given))) == ("mq.example.com", "b:8443")
    assert http_hosts("") == ()


@pytest.mark.parametrize("given", ["http://a", "*", "a b", "a:999999", "a/b", [1], 7, {"a": 1}, ["ä"]])
def test_what_is_no_name_of_a_host_is_none_of_the_http_door(given: object) -> None:
    assert not takes(http_hosts, given)
